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

const server = await Server.start(program, '127.0.0.1:0')
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
  constructor (name) {
    this.root = page.locator(`[data-stage=${name}]`)
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

// Redis is frozen then: it cannot end by itself.
async function checkEnd () {
  const fleet = new Stage('fleet')
  if (await fleet.button('freeze').isEnabled()) await fleet.press('freeze')
  const children = server.descendants()
  await page.context().close()
  await server.kill('SIGKILL')
  await until('all processes are gone', () => running(children).length === 0)
  passed(`the server is killed: its ${children.length} processes are gone`)
}

try {
  for (const check of [checkHerd, checkLife, checkFleet, checkLooks, checkAccess]) await check()
  assert.deepEqual(complaints, [])
  await checkEnd()
} catch (error) {
  await screenshot('failed').catch(() => {})
  console.error(error.message)
  for (const complaint of complaints) console.error(complaint)
  process.exitCode = 1
} finally {
  await browser.close()
  await server.kill('SIGTERM')
}
