// What the suite found, in the form that the report draws: see
// benches/report/mod.rs.
import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'

const firstLine = (program, flags) => String(execFileSync(program, flags)).split('\n', 1)[0]

function machine () {
  return {
    processor: os.cpus()[0].model,
    cores: os.cpus().length,
    memory_mib: Math.floor(os.totalmem() / 1024 / 1024),
    system: `${os.type()} ${os.release()}`,
    rustc: firstLine('rustc', ['--version'])
  }
}

const OUTCOMES = ['passed', 'failed', 'undecided', 'not run']
const sum = count => OUTCOMES.reduce((all, outcome) => all + count[outcome], 0)

function figures (counts) {
  const figure = (id, says, value) =>
    ({ id: `conformance.${id}`, says, value, unit: 'tests', statistic: 'count', bound: null })
  return Object.entries(counts).flatMap(([kind, count]) => [
    figure(`${kind}_passed`, `${kind} tests that pass`, count.passed),
    figure(`${kind}_all`, `${kind} tests`, sum(count))
  ])
}

function exhibit (counts) {
  return {
    id: 'conformance.counts',
    title: 'The public suite for HTTP caches, at the proxy',
    caption: 'A required test is one that RFC 9111 decides; an optimal one, something a good cache ' +
      'does; a check has no right answer. Undecided: a test that it builds on does not pass.',
    content: {
      kind: 'table',
      columns: ['kind', 'tests', ...OUTCOMES],
      rows: Object.entries(counts).map(([kind, count]) =>
        [kind, sum(count), ...OUTCOMES.map(outcome => count[outcome])])
    }
  }
}

export function writePart (directory, counts, suiteVersion) {
  const part = {
    name: 'conformance',
    title: 'Conformance to RFC 9111',
    command: 'scripts/conformance --out DIR --suite CHECKOUT',
    date: new Date().toISOString().replace(/\.\d+Z$/, 'Z'),
    machine: machine(),
    versions: [['http-cache-tests', suiteVersion], ['node', process.version]],
    notes: ['The proxy runs as it does by default: it collapses requests.'],
    figures: figures(counts),
    exhibits: [exhibit(counts)]
  }
  fs.mkdirSync(path.join(directory, 'parts'), { recursive: true })
  fs.writeFileSync(path.join(directory, 'parts', 'conformance.json'),
    JSON.stringify(part, null, 2) + '\n')
}
