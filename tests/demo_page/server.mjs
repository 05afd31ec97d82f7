// The example as a process, and requests to it that no browser would send.
import fs from 'node:fs'
import http from 'node:http'
import readline from 'node:readline'
import { spawn } from 'node:child_process'
import { once } from 'node:events'

const SOON = 10_000
const PAUSE = 20

// Returns once `is` holds; `is` may be asynchronous.
export async function until (what, is) {
  const giveUp = Date.now() + SOON
  while (!await is()) {
    if (Date.now() > giveUp) throw new Error(`waited in vain until ${what}`)
    await new Promise(resolve => setTimeout(resolve, PAUSE))
  }
}

const started = []

export class Server {
  static async start (program, listen) {
    const child = spawn(program, ['--listen', listen], { stdio: ['ignore', 'pipe', 'inherit'] })
    const [line] = await Promise.race([
      once(readline.createInterface({ input: child.stdout }), 'line'),
      once(child, 'exit').then(([code]) => { throw new Error(`the server ended with ${code}`) })
    ])
    // Every address is none that can be asked.
    return new Server(child, line.replace('listening on ', '').replace('0.0.0.0', '127.0.0.1'))
  }

  constructor (child, url) {
    Object.assign(this, { child, url, port: new URL(url).port })
    started.push(this)
  }

  // Ends what a check that failed has left.
  static async killAll () {
    for (const server of started) {
      server.child.kill('SIGCONT')
      await server.kill('SIGTERM')
    }
  }

  // Sends a request with just these fields; returns the status.
  async status (method, path, headers) {
    const options = { method, path, port: this.port, host: '127.0.0.1', headers }
    const request = http.request(options)
    request.end()
    const [response] = await once(request, 'response')
    response.resume()
    await once(response, 'end')
    return response.statusCode
  }

  // All processes that this one has started, and those that they have started.
  descendants () {
    const parents = processes()
    const found = [this.child.pid]
    for (const pid of found) {
      for (const [child, { parent }] of parents) if (parent === pid) found.push(child)
    }
    return found.slice(1)
  }

  async kill (signal) {
    const exit = this.child.exitCode === null && this.child.signalCode === null && once(this.child, 'exit')
    this.child.kill(signal)
    await exit
    return this.child.exitCode
  }
}

// Where the system tells: each process, its parent and its state.
function processes () {
  const known = new Map()
  for (const name of fs.existsSync('/proc/self/stat') ? fs.readdirSync('/proc') : []) {
    if (!/^\d+$/.test(name)) continue
    try {
      const stat = fs.readFileSync(`/proc/${name}/stat`, 'utf8')
      const [state, parent] = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
      known.set(Number(name), { parent: Number(parent), state })
    } catch {
      // It has ended meanwhile.
    }
  }
  return known
}

// The processes among these that run; one that is dead may wait for its parent to notice.
export function running (pids) {
  const all = processes()
  return pids.filter(pid => all.has(pid) && all.get(pid).state !== 'Z')
}
