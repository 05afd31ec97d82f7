// Presses the buttons of the page in a real browser, and reads the numbers.
//
//   node check.mjs PLAYWRIGHT CHROMIUM PROGRAM [DIR]
//
// PLAYWRIGHT is the folder of the package playwright-core. DIR gets screenshots.
import assert from 'node:assert/strict'
import path from 'node:path'
import process from 'node:process'
import { createRequire } from 'node:module'
import { Server, running, until } from './server.mjs'

const [playwright, executablePath, program, directory] = process.argv.slice(2)
const { chromium } = createRequire(import.meta.url)(playwright)

const FLAGS = [
  '--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking',
  '--disable-component-update', '--disable-sync'
]
const WIDE = { width: 1280, height: 900 }
const NARROW = { width: 375, height: 812 }
const TIMEOUT = 20_000

let server = await Server.start(program, '127.0.0.1:0')
const browser = await chromium.launch({ executablePath, args: FLAGS })
const complaints = []
const page = await openPage(server)

async function openPage (server) {
  const context = await browser.newContext({ viewport: WIDE, colorScheme: 'light' })
  const page = await context.newPage()
  page.setDefaultTimeout(TIMEOUT)
  page.on('request', request => {
    const { origin, protocol } = new URL(request.url())
    if (origin !== new URL(server.url).origin && protocol !== 'data:') complaints.push(`asks for ${request.url()}`)
  })
  page.on('console', message => complaints.push(`console: ${message.text()}`))
  page.on('pageerror', error => complaints.push(`error: ${error.message}`))
  await page.goto(server.url)
  return page
}

// One of the two parts of the page that start processes.
class Stage {
  constructor (name, on = page) {
    this.root = on.locator(`[data-stage=${name}]`)
  }

  button (name) {
    return this.root.locator(`[data-press=${name}]`)
  }

  part (name) {
    return this.root.locator(`[data-part=${name}]`)
  }

  // Presses a button, and waits until its work is done.
  async press (name) {
    await this.button(name).click()
    await this.root.locator('button[aria-disabled]').first().waitFor({ state: 'detached' })
    const story = await this.part('story').textContent()
    assert.ok(!story.includes('did not work'), `${name}: ${story}`)
    return story
  }

  async says (words) {
    await until(`the page says "${words}"`, async () => (await this.part('story').textContent()).includes(words))
  }

  async number (name) {
    return Number((await this.part(name).textContent()).replaceAll(',', ''))
  }

  lanes (state) {
    return this.root.locator(state ? `.lane:has(.state[data-is=${state}])` : '.lane:not(:has(.state[data-is=gone]))')
  }

  // Waits until a lane is in a state.
  async shows (state) {
    await this.lanes(state).first().waitFor()
  }

  async lastHerd () {
    const numbers = await Promise.all(['calls', 'requests', 'answered'].map(name => this.number(`last-${name}`)))
    return { calls: numbers[0], requests: numbers[1], answered: numbers[2] }
  }

  async requestsGrowBy (more) {
    const goal = await this.number('requests') + more
    await until(`there are ${goal} requests`, async () => await this.number('requests') >= goal)
  }

  // How many lanes say that Redis is away.
  async away (count) {
    const lanes = this.root.locator('.lane:not(:has(.state[data-is=gone])) .away:visible')
    await until(`${count} processes miss Redis`, async () => await lanes.count() === count)
  }
}

function passed (what) {
  console.log(`${(process.uptime()).toFixed(0).padStart(3)} s  ${what}`)
}

async function screenshot (name) {
  if (directory) await page.screenshot({ path: path.join(directory, `${name}.png`), fullPage: true })
}

async function checkHerd () {
  await page.locator('#herd').click()
  await page.locator('#herd[aria-disabled]').waitFor({ state: 'detached' })
  const calls = name => page.locator(`#calls-${name}`).textContent()
  assert.equal(await calls('protected'), '1', 'origin calls of a herd with the layer')
  assert.equal(await calls('unprotected'), '500', 'origin calls of a herd without the layer')
  assert.match(await page.locator('#story').textContent(), /With it, once/)
  passed('a herd of 500 is 1 origin call with the layer, and 500 without')
}

async function checkLife () {
  const solo = new Stage('solo')
  await solo.press('start')
  await solo.shows('fresh')
  const before = await solo.number('origin_calls')
  await until('the value is refreshed', async () => await solo.number('origin_calls') > before)
  await solo.shows('fresh')
  assert.equal(await solo.number('failures'), 0)
  await solo.press('fail')
  await solo.shows('hold')
  await solo.requestsGrowBy(6)
  assert.equal(await solo.number('failures'), 0, 'failures while the origin fails and a value is stale')
  await screenshot('hold')
  await solo.press('fail')
  await solo.shows('fresh')
  await solo.press('herd')
  assert.equal(await solo.number('failures'), 0)
  passed('one key is fresh, stale, on hold after a failure, and fresh again; no request failed')
}

// Each page says what the other one has done.
async function checkTwoPages () {
  const second = await openPage(server)
  const solo = new Stage('solo'), other = new Stage('solo', second)
  await other.says('The process runs already')
  assert.match(await solo.press('start'), /have ended/)
  await other.says('another page has stopped the process')
  await other.press('start')
  await solo.says('Another page has started the process')
  await other.press('fail')
  await solo.says('Another page makes the origin fail')
  await other.press('fail')
  await solo.says('Another page has let the origin work again')
  await solo.part('rate').focus()
  await other.part('rate').selectOption('10')
  await until('the rate is the same on both pages', async () => await solo.part('rate').inputValue() === '10')
  await other.part('rate').selectOption('3')
  assert.match(await other.part('story').textContent(), /The origin works again/, 'the words of its own button')
  await second.context().close()
  passed('two pages agree, whichever of them presses the buttons')
}

// The server has answered before a button was pressed, and the answers arrive after that.
async function checkLateAnswer () {
  const solo = new Stage('solo'), held = []
  await solo.press('start')
  await page.route('**/demo/stage/solo?since=*', async route => {
    const response = await route.fetch()
    await new Promise(resolve => held.push(resolve))
    await route.fulfill({ response })
  }, { times: 2 })
  await until('an answer is held', () => held.length === 1)
  await solo.button('start').click()
  await until('the next one is held', () => held.length === 2)
  held.forEach(resolve => resolve())
  await solo.shows('fresh')
  assert.match(await solo.part('story').textContent(), /^One process serves/)
  passed('a late answer does not change what a button has said')
}

// Draws 50 failures as one number, alone and with a request that failed after them.
async function checkNumbers () {
  await page.setViewportSize(NARROW)
  const { alone, crossed } = await page.evaluate(() => {
    /* global Board, scaleOf, prepare, ROWS */
    const root = document.querySelector('[data-stage=solo] .board').appendChild(document.createElement('div'))
    const now = Date.now()
    const failures = { seq: 0, kind: 'answers', lane: 'A', outcome: 'failed', n: 50, from: now - 3000, at: now - 2500 }
    const later = { ...failures, seq: 1, n: 1, from: now - 2600, at: now - 1000 }
    const draw = events => {
      const board = new Board(root)
      board.take({ run: 1, now, ttl_ms: 4000, stale_ms: 4000, lanes: [{ name: 'A', pid: 1, port: 1, redis: null }], events })
      board.now = () => now
      board.draw()
      const { pen, width } = { pen: board.lanes.get('A').canvas.getContext('2d'), width: board.lanes.get('A').canvas.clientWidth }
      const ratio = devicePixelRatio, left = scaleOf(width, now).at(failures.at) + 8
      const ground = [left, ROWS[1] - 6, pen.measureText('50').width, 12].map(it => Math.round(it * ratio))
      return [...pen.getImageData(...ground).data]
    }
    const drawn = { alone: draw([failures]), crossed: draw([failures, later]) }
    root.remove()
    return drawn
  })
  assert.ok(new Set(alone).size > 2, 'there is a number')
  assert.deepEqual(crossed, alone, 'the number of failures, with the line of a later request')
  await page.setViewportSize(WIDE)
  passed('no line goes through a number at 375 px')
}

async function checkFleet () {
  const fleet = new Stage('fleet')
  if (await fleet.button('start').isDisabled()) {
    assert.match(await fleet.button('start').textContent(), /redis-server is not installed/)
    passed('redis-server is not installed, and the button says so: the fleet is skipped')
    return
  }
  await fleet.press('start')
  assert.equal(await fleet.lanes().count(), 3, 'processes')
  await fleet.away(0)
  await fleet.shows('fresh')

  await fleet.press('herd')
  assert.deepEqual(await fleet.lastHerd(), { calls: 1, requests: 300, answered: 300 })
  passed('three processes on one Redis: a herd of 300 is 1 origin call')

  await fleet.press('kill-leader')
  const killed = await fleet.lastHerd()
  assert.equal(killed.answered, killed.requests, 'answered requests when the leader is killed')
  assert.ok(killed.calls >= 1 && killed.calls <= 2, `${killed.calls} computations when the leader is killed`)
  await fleet.shows('gone')
  assert.equal(await fleet.lanes().count(), 2, 'processes after one was killed')
  await fleet.press('add')
  await until('there are three again', async () => await fleet.lanes().count() === 3)
  passed(`the leader is killed: all ${killed.requests} requests answered, ${killed.calls} computations`)

  await fleet.press('freeze')
  await fleet.away(3)
  await fleet.requestsGrowBy(30)
  await fleet.press('herd')
  const frozen = await fleet.lastHerd()
  assert.equal(frozen.answered, frozen.requests, 'answered requests of a herd without Redis')
  assert.ok(frozen.calls <= 3, `${frozen.calls} computations of three processes without Redis`)
  assert.equal(await fleet.number('failures'), 0, 'failed requests while Redis is frozen')
  await screenshot('frozen')
  await fleet.press('freeze')
  await fleet.away(0)
  passed(`Redis is frozen: 0 failed requests, ${frozen.calls} computations of three processes`)

  await fleet.press('herd')
  assert.deepEqual(await fleet.lastHerd(), { calls: 1, requests: 300, answered: 300 }, 'with Redis again')
  await fleet.press('fail')
  await fleet.shows('hold')
  await fleet.requestsGrowBy(10)
  assert.equal(await fleet.number('failures'), 0, 'failed requests while the origin fails')
  passed('the origin fails: a process is on hold, 0 failed requests')
}

async function checkStream () {
  const number = async name => Number((await page.locator(`#stream-${name}`).textContent()).replaceAll(',', ''))
  const send = async name => {
    await page.locator(`#stream-${name}`).click()
    let early = 0
    if (name === 'new') {
      await until('words are read', async () => await number('read') > 100)
      early = await number('produced')
      await screenshot('stream')
    }
    await page.locator(`#stream-${name}[aria-disabled]`).waitFor({ state: 'detached' })
    const numbers = []
    for (const name of ['producers', 'produced', 'whole', 'read']) numbers.push(await number(name))
    if (early) assert.ok(early < numbers[1], 'readers have words before all are produced')
    return numbers
  }
  const [producers, produced, whole, read] = await send('new')
  assert.deepEqual([producers, whole, read], [1, 100, produced * 100], 'one producer and 100 readers')
  assert.match(await page.locator('#stream-said').textContent(), /\[DONE\]$/)
  assert.deepEqual(await send('again'), [0, 0, 100, read], '100 more readers')
  passed(`100 readers of one stream are 1 producer, and 100 later ones none: ${read} words from ${produced}`)
}

async function checkLooks () {
  await screenshot('light')
  await page.emulateMedia({ colorScheme: 'dark' })
  await screenshot('dark')
  await page.setViewportSize(NARROW)
  await screenshot('narrow-dark')
  await page.emulateMedia({ colorScheme: 'light' })
  await screenshot('narrow')
  const { scrollWidth, clientWidth } = await page.evaluate(() => {
    const { scrollWidth, clientWidth } = document.documentElement
    return { scrollWidth, clientWidth }
  })
  assert.ok(scrollWidth <= clientWidth, `the page is ${scrollWidth} px wide in a window of ${clientWidth} px`)
  const nameless = await page.locator('button:visible, select:visible').evaluateAll(controls =>
    controls.filter(it => it.textContent.trim() === '' && !it.labels?.length).length)
  assert.equal(nameless, 0, 'controls without a name')
  await page.setViewportSize(WIDE)
  passed('no horizontal scroll at 375 px')
}

async function checkAccess () {
  const token = await page.locator('meta[name=page-token]').getAttribute('content')
  const host = new URL(server.url).host
  const fair = { host, 'x-page-token': token, origin: server.url, 'sec-fetch-site': 'same-origin' }
  const path = '/demo/stage/solo/rate?per_second=3'
  assert.equal(await server.status('POST', path, fair), 200)
  const unfair = {
    'no token': { ...fair, 'x-page-token': '' },
    'a wrong token': { ...fair, 'x-page-token': '0'.repeat(token.length) },
    'another origin': { ...fair, origin: 'http://example.com' },
    'another port': { ...fair, origin: 'http://127.0.0.1:1' },
    'another site': { ...fair, 'sec-fetch-site': 'cross-site' },
    'a name that resolves to this machine': { ...fair, host: `example.com:${server.port}`, origin: `http://example.com:${server.port}` }
  }
  for (const [what, headers] of Object.entries(unfair)) {
    assert.equal(await server.status('POST', path, headers), 403, what)
    assert.equal(await server.status('GET', '/demo/stage/solo', headers), 403, what)
  }
  for (const path of ['/nowhere', '/demo/nowhere', '/demo/stage', '/demo/stage/nowhere']) {
    for (const method of ['GET', 'POST']) {
      const status = await server.status(method, path, { host, 'sec-fetch-site': 'cross-site' })
      assert.equal(status, 404, `${method} ${path}, which does not exist`)
    }
  }
  const open = await Server.start(program, '0.0.0.0:0')
  const status = await open.status('POST', '/demo/stage/solo/start', { ...fair, host: `127.0.0.1:${open.port}` })
  const stranger = await openPage(open)
  for (const start of await stranger.locator('[data-press=start]').all()) {
    assert.ok(await start.isDisabled(), 'the page of such a server starts processes')
  }
  await stranger.context().close()
  const code = await open.kill('SIGTERM')
  assert.equal(status, 404, 'a button of a server that other machines reach')
  assert.equal(code, 0, 'exit code after SIGTERM')
  passed('only the page of a server on a loopback address can press the buttons')
}

const notice = words => until(`the notice is "${words}"`, async () => {
  const shown = await page.locator('#notice').textContent()
  return words ? shown.includes(words) : shown === ''
})

async function showsNothing () {
  assert.equal(await page.locator('.lane').count(), 0, 'lanes of a server that does not answer')
  assert.equal(await page.locator('button:enabled').count(), 0, 'buttons of a server that does not answer')
}

async function checkSilence () {
  const second = await openPage(server)
  await second.route('**/demo/herd*', route => route.abort('connectionrefused'))
  await second.locator('#herd').click()
  await second.locator('#herd[aria-disabled]').waitFor({ state: 'detached' })
  await until('the server answers the page again', async () =>
    await second.locator('#story').textContent() === 'The server answers again.')
  await second.context().close()

  const solo = new Stage('solo')
  server.child.kill('SIGSTOP')
  await notice('The server is gone')
  await showsNothing()
  server.child.kill('SIGCONT')
  await notice('')
  await solo.says('The server answers again. The process runs already.')
  await solo.shows('fresh')
  passed('a server that stands still: the page says so, and goes on with it')
}

// Redis is frozen then: it cannot end by itself.
async function checkEnd () {
  const fleet = new Stage('fleet'), solo = new Stage('solo')
  if (await fleet.button('freeze').isEnabled()) await fleet.press('freeze')
  const children = server.descendants()
  await server.kill('SIGKILL')
  await until('all processes are gone', () => running(children).length === 0)
  passed(`the server is killed: its ${children.length} processes are gone`)

  await notice('Start it again at this address')
  await showsNothing()
  await screenshot('gone')
  server = await Server.start(program, `127.0.0.1:${server.port}`)
  await notice('')
  await solo.says('The server answers again. No process runs.')
  await solo.press('start')
  await solo.shows('fresh')
  await page.context().close()
  passed('the page says that the server is gone, and goes on when it was started again')
}

try {
  for (const check of [checkHerd, checkLife, checkTwoPages, checkLateAnswer, checkNumbers, checkFleet, checkStream, checkLooks, checkAccess]) await check()
  assert.deepEqual(complaints, [])
  // From here on the browser itself complains.
  await checkSilence()
  await checkEnd()
} catch (error) {
  await screenshot('failed').catch(() => {})
  console.error(error.message)
  for (const complaint of complaints) console.error(complaint)
  process.exitCode = 1
} finally {
  await browser.close()
  await Server.killAll()
}
