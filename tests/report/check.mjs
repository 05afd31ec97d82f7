// Opens a report in a real browser and holds it against results.json.
//
//   node check.mjs PLAYWRIGHT CHROMIUM DIR [--prove]
//
// PLAYWRIGHT is the folder of the package playwright-core. With --prove, the
// report is damaged in many ways, and each has to be found.
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import { inspectCharts } from './charts.mjs'
import { inspectLayout } from './layout.mjs'
import { inspectNumbers } from './numbers.mjs'
import { damages } from './damages.mjs'

const [playwright, executablePath, directory, flag] = process.argv.slice(2)
const { chromium } = createRequire(import.meta.url)(playwright)

const WIDTHS = [360, 1280]
const SCHEMES = ['light', 'dark']
const FLAGS = [
  '--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking',
  '--disable-component-update', '--disable-sync'
]
// Numbers of a complaint are of no use after these.
const MOST_COMPLAINTS = 20

const results = JSON.parse(fs.readFileSync(path.join(directory, 'results.json'), 'utf8'))

// Opens a file and tells all that it asks for or complains about itself.
async function open (browser, file, width, colorScheme) {
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme, offline: true })
  const page = await context.newPage()
  const complaints = []
  const address = pathToFileURL(file).href
  page.on('request', request => {
    if (request.url().split('#')[0] !== address) complaints.push(`asks for ${request.url()}`)
  })
  page.on('console', message => complaints.push(`console: ${message.text()}`))
  page.on('pageerror', error => complaints.push(`error: ${error.message}`))
  await page.goto(address)
  return { page, complaints }
}

// Goes on until a complaint is enough.
async function checkPage (browser, file, isEnough = () => false) {
  const complaints = []
  for (const width of WIDTHS) {
    for (const scheme of SCHEMES) {
      const opened = await open(browser, file, width, scheme)
      const { page } = opened
      const found = await page.evaluate(inspectLayout, scheme)
      found.push(...await page.evaluate(inspectCharts, results))
      if (width === WIDTHS[0] && scheme === SCHEMES[0]) {
        found.push(...await page.evaluate(inspectNumbers, results))
      }
      // With every table open as well.
      await page.evaluate(() => document.querySelectorAll('details').forEach(it => { it.open = true }))
      found.push(...await page.evaluate(inspectLayout, scheme))
      found.push(...opened.complaints)
      complaints.push(...found.map(text => `${width} px, ${scheme}: ${text}`))
      await page.context().close()
      if (complaints.some(isEnough)) return complaints
    }
  }
  return complaints
}

// The drawings for the README have the lines of the report's first chart.
async function checkDrawing (browser, name) {
  const file = path.join(directory, name)
  if (!fs.existsSync(file)) return [`${name} is missing`]
  const lines = () => [...document.querySelectorAll('.line[data-series]')].map(line => line.getAttribute('d'))
  const report = await open(browser, path.join(directory, 'report.html'), 1280, 'light')
  const expected = await report.page.$eval('figure.hero', hero =>
    [...hero.querySelectorAll('.line[data-series]')].map(line => line.getAttribute('d')))
  const drawing = await open(browser, file, 1280, 'light')
  const drawn = await drawing.page.evaluate(lines)
  const complaints = drawing.complaints
  if (JSON.stringify(drawn) !== JSON.stringify(expected)) complaints.push('its lines are not those of the report')
  if (await drawing.page.evaluate(() => document.documentElement.nodeName) !== 'svg') complaints.push('it is no drawing')
  await report.page.context().close()
  await drawing.page.context().close()
  return complaints.map(text => `${name}: ${text}`)
}

async function check (browser) {
  const report = path.join(directory, 'report.html')
  const complaints = await checkPage(browser, report)
  const opened = await open(browser, report, 1280, 'light')
  const hasHero = await opened.page.$('figure.hero') !== null
  await opened.page.context().close()
  if (hasHero) {
    complaints.push(...await checkDrawing(browser, 'front.svg'))
    complaints.push(...await checkDrawing(browser, 'front-dark.svg'))
  }
  return complaints
}

// Each damage to the page has to be found by what is said to find it.
async function prove (browser) {
  const html = fs.readFileSync(path.join(directory, 'report.html'), 'utf8')
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), 'damaged-report-'))
  const file = path.join(scratch, 'report.html')
  const complaints = []
  for (const { name, damage, found } of damages) {
    const damaged = damage(html)
    if (damaged === html) {
      complaints.push(`${name}: there is nothing of it in this report`)
      continue
    }
    fs.writeFileSync(file, damaged)
    const seen = await checkPage(browser, file, text => found.test(text))
    const hit = seen.find(text => found.test(text))
    if (hit === undefined) complaints.push(`${name}: not found; ${seen.length} complaints, first ${seen[0]}`)
    else console.log(`${name}: ${hit}`)
  }
  fs.rmSync(scratch, { recursive: true, force: true })
  return complaints
}

const browser = await chromium.launch({ executablePath, args: FLAGS })
const complaints = await (flag === '--prove' ? prove : check)(browser)
await browser.close()
for (const complaint of complaints.slice(0, MOST_COMPLAINTS)) console.error(complaint)
if (complaints.length > MOST_COMPLAINTS) console.error(`and ${complaints.length - MOST_COMPLAINTS} more`)
if (complaints.length === 0) {
  const what = flag === '--prove' ? `all ${damages.length} damages were found` : 'the page is as results.json says'
  console.log(`${directory}: ${what}`)
}
process.exitCode = complaints.length === 0 ? 0 : 1
