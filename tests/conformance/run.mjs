// Runs the public test suite for HTTP caches against a proxy and judges what
// comes out by a list of what is known to fail, and why.
//
//   node run.mjs SUITE ORIGIN_PORT PROXY_URL KNOWN [OUT VERSION]
//
// SUITE is the folder of the suite, as its package or as its repository lays it
// out; its own server runs behind the proxy. The counts go to the report in the
// folder OUT, with VERSION as the suite's.
import fs from 'node:fs'
import { createRequire } from 'node:module'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { spawn } from 'node:child_process'
import { pathToFileURL } from 'node:url'
import { writePart } from './part.mjs'

const [suite, originPort, proxy, knownFile, out, version] = process.argv.slice(2)
const inRepository = fs.existsSync(path.join(suite, 'test-engine'))
const engine = inRepository ? path.join(suite, 'test-engine') : suite
const load = file => import(pathToFileURL(file))

// An exchange that its proxy leaves hanging ends the run instead.
const LONGEST_RUN = 10 * 60 * 1000

function startOrigin () {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), 'conformance-'))
  const settings = {
    npm_config_protocol: 'http',
    npm_config_port: originPort,
    npm_config_pidfile: path.join(scratch, 'pid')
  }
  const origin = spawn(process.execPath, [path.join(engine, 'server', 'server.mjs')], {
    env: { ...process.env, ...settings }, stdio: ['ignore', 'pipe', 'inherit'], cwd: suite
  })
  process.on('exit', () => {
    origin.kill()
    fs.rmSync(scratch, { recursive: true, force: true })
  })
  return new Promise((resolve, reject) => {
    origin.stdout.on('data', text => String(text).includes('Listening') && resolve())
    origin.on('exit', status => reject(new Error(`the suite's server ended with ${status}`)))
  })
}

async function runSuite (suites) {
  const runner = await load(path.join(engine, 'client', 'runner.mjs'))
  if (inRepository) {
    await runner.runTests(suites, false, proxy)
  } else {
    const require = createRequire(path.join(suite, 'package.json'))
    await runner.runTests(suites, require('node-fetch'), false, proxy)
  }
  return runner.getResults()
}

// Each line: the id of a test, and why it fails.
function readKnown () {
  const lines = fs.readFileSync(knownFile, 'utf8').split('\n')
  const entries = lines.filter(line => line && !line.startsWith('#'))
  return new Map(entries.map(line => [line.split(/\s/, 1)[0], line.replace(/^\S+\s*/, '')]))
}

// A test says nothing while one that it builds on does not pass.
function judge (test, byId, results) {
  const builtOn = test.depends_on ?? []
  if (!builtOn.every(id => byId.has(id) && judge(byId.get(id), byId, results) === 'passed')) {
    return 'undecided'
  }
  const result = results[test.id]
  if (result === undefined) return 'not run'
  return result === true ? 'passed' : 'failed'
}

const timer = setTimeout(() => {
  console.error('the suite did not end in time')
  process.exit(1)
}, LONGEST_RUN)
timer.unref()

const suites = (await load(path.join(suite, 'tests', 'index.mjs'))).default
await startOrigin()
const results = await runSuite(suites)
const known = readKnown()
const tests = suites.flatMap(group => group.tests).filter(test => !test.browser_only)
const byId = new Map(tests.map(test => [test.id, test]))
const counts = {}
const surprises = []
for (const test of tests) {
  const kind = test.kind ?? 'required'
  const verdict = judge(test, byId, results)
  counts[kind] ??= { passed: 0, failed: 0, undecided: 0, 'not run': 0 }
  counts[kind][verdict]++
  if (kind === 'check') continue
  const detail = Array.isArray(results[test.id]) ? results[test.id].join(': ') : ''
  if (verdict !== 'passed') console.log(`${kind} ${test.id} ${verdict}: ${test.name}; ${detail}`)
  if (kind !== 'required') continue
  if (verdict !== 'passed' && !known.has(test.id)) surprises.push(`${test.id} ${verdict}`)
  if (verdict === 'passed' && known.has(test.id)) surprises.push(`${test.id} passes, and is listed`)
}
for (const [kind, count] of Object.entries(counts)) {
  const all = Object.values(count).reduce((sum, n) => sum + n)
  const share = (100 * count.passed / all).toFixed(1)
  console.log(`${kind}: ${count.passed} of ${all} passed (${share} %), ${count.failed} failed, ` +
    `${count.undecided} undecided, ${count['not run']} not run`)
}
if (out) writePart(out, counts, version)
surprises.forEach(surprise => console.error(`not as listed: ${surprise}`))
const required = counts.required?.passed ?? 0
// A run that reached nobody must not pass for want of surprises.
process.exit(surprises.length || required === 0 ? 1 : 0)
