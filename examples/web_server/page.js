const LANES = ["unprotected", "protected"];
const COLUMNS = 50, DOTS = 500;
const REST = 3.9, CALLED = 5.4;  // radius of a dot
const POLL = 250, RESTING_POLL = 1000;
const PATIENCE = 5000;  // how long the server may take to say its state
const SVG = "http://www.w3.org/2000/svg";
const $ = id => document.getElementById(id);
const number = n => n.toLocaleString("en");
const millis = ms => ms >= 1000 ? `${(ms / 1000).toFixed(2)} s` : ms >= 10 ? `${Math.round(ms)} ms` : `${ms.toFixed(1)} ms`;
const times = n => n === 0 ? "not at all" : n === 1 ? "once" : n === 2 ? "twice" : `${number(n)} times`;
const many = (n, word) => `${number(n)} ${word}${n === 1 ? "" : "s"}`;
const hasLessMotion = matchMedia("(prefers-reduced-motion: reduce)");

// ---- 0: the server, which may end and be started again

const tokenOf = page => page.querySelector("meta[name=page-token]").content;
let token = tokenOf(document);
let isGone = false;

async function ask(url, method = "GET") {
  let answer = await send(url, method);
  // A server that was started again has a new token.
  if (answer.status === 403 && await renewToken()) answer = await send(url, method);
  if (!answer.ok) throw new Error(answer.text.trim());
  return JSON.parse(answer.text);
}

// Returns the whole answer. Without one, the page says that the server is gone.
async function send(url, method = "GET") {
  try {
    // The work of a button takes as long as it takes.
    const signal = method === "GET" ? AbortSignal.timeout(PATIENCE) : undefined;
    const response = await fetch(url, { method, signal, headers: { "X-Page-Token": token } });
    const { status, ok } = response, text = await response.text();
    setGone(false);
    return { status, ok, text };
  } catch {
    setGone(true);
    throw new Error("the server does not answer");
  }
}

// Reads the token of the page as the server shows it now; returns whether it is another one.
async function renewToken() {
  const { text } = await send("/");
  const renewed = tokenOf(new DOMParser().parseFromString(text, "text/html"));
  if (renewed === token) return false;
  token = renewed;
  for (const stage of stages) stage.lose();
  return true;
}

function setGone(gone) {
  if (gone === isGone) return;
  isGone = gone;
  $("notice").textContent = gone ? `The server is gone: nothing answers at ${location.host}. Start it again at this address. This page goes on by itself as soon as the server answers.` : "";
  [...HERD_BUTTONS, ...STREAM_BUTTONS].forEach(button => { button.disabled = gone; });
  if (gone) sayStream("The server does not answer.");
  say(gone ? "The server does not answer." : "The server answers again.");
  if (gone) for (const stage of stages) stage.lose();
}

// ---- 1: dots, one per client of the last herd

for (const lane of LANES) {
  for (let i = 0; i < DOTS; i++) {
    const dot = document.createElementNS(SVG, "circle");
    dot.setAttribute("cx", (i % COLUMNS) * 12 + 6);
    dot.setAttribute("cy", Math.floor(i / COLUMNS) * 12 + 6);
    dot.setAttribute("r", REST);
    $(`dots-${lane}`).append(dot);
  }
}

function paint(lane, outcomes) {
  $(`dots-${lane}`).querySelectorAll("circle").forEach((dot, i) => {
    dot.setAttribute("class", outcomes[i] ?? "");
    dot.setAttribute("r", "cF".includes(outcomes[i] || "-") ? CALLED : REST);
    dot.style.transitionDelay = `${Math.floor(i / COLUMNS) * 25}ms`;
  });
}

const WORDS = { c: "made the origin work", w: "waited", h: "were answered from memory",
                s: "were answered stale", F: "made the origin work and got an error", f: "got an error", l: "hung up" };

function tell(lane, result) {
  paint(lane, result.outcomes);
  $(`calls-${lane}`).textContent = number(result.origin_calls);
  $(`word-${lane}`).textContent = result.origin_calls === 1 ? "origin call" : "origin calls";
  $(`requests-${lane}`).textContent = many(result.requests, "request");
  const count = letter => result.outcomes.split(letter).length - 1;
  const counts = Object.keys(WORDS).filter(count).map(l => `${number(count(l))} ${WORDS[l]}`);
  $(`dots-${lane}`).setAttribute("aria-label", `Of ${result.requests} clients: ${counts.join(", ")}`);
  const took = $(`took-${lane}`);
  took.replaceChildren();
  for (const [what, ms] of [["half in", result.p50_ms], ["99 % in", result.p99_ms], ["all in", result.max_ms]]) {
    if (ms === null) continue;
    const part = element("span"), time = element("b");
    time.textContent = millis(ms);
    part.append(`${what} `, time);
    took.append(part);
  }
}

let stored = null;  // what the server last said of the stored report, and when

async function poll() {
  let wait = POLL;
  try {
    const state = await ask("/demo/state");
    for (const lane of LANES) {
      const { calls, requests } = state[lane];
      const saved = lane === "protected" ? ` ${number(Math.round(state.saved_seconds))} s of the origin's work were saved.` : "";
      $(`total-${lane}`).textContent = `In all: ${many(calls, "origin call")}, ${many(requests, "request")}.${saved}`;
    }
    stored = { ...state, at: performance.now() };
  } catch {
    stored = null;
    wait = RESTING_POLL;
  }
  setTimeout(poll, document.hidden ? RESTING_POLL : wait);
}

function storeLine() {
  if (!stored) return "The server does not answer.";
  if (stored.flights > 0) {
    const waiting = stored.waiting > 0 ? `, ${many(stored.waiting, "request")} waiting` : "";
    return `Being computed${waiting}…`;
  }
  if (stored.age_ms === null) return "Nothing is stored: the next request calls the origin.";
  const age = stored.age_ms + performance.now() - stored.at;
  const left = limit => `${((limit - age) / 1000).toFixed(1)} s`;
  if (age < stored.ttl_ms) return `Stored, and fresh for ${left(stored.ttl_ms)} more.`;
  const end = stored.ttl_ms + stored.stale_ms;
  if (age < end) return `Stored, and stale; served for ${left(end)} more while it is refreshed.`;
  return "The stored report has expired: the next request calls the origin.";
}

// Both lanes at the same time, each shown as soon as it has an answer.
async function race(url) {
  const lanes = LANES.map(async lane => {
    paint(lane, "");
    $(`dots-${lane}`).classList.add("busy");
    try {
      const result = await ask(`${url}${url.includes("?") ? "&" : "?"}lane=${lane}`, "POST");
      tell(lane, result);
      return result;
    } finally {
      $(`dots-${lane}`).classList.remove("busy");
    }
  });
  return Promise.all(lanes);
}

const areAll = (result, letter) => [...result.outcomes].every(outcome => outcome === letter);

function herdStory(without, withIt) {
  const herd = `${number(withIt.requests)} requests on each side, at the same moment. `;
  const bare = `Without the layer the origin was called ${times(without.origin_calls)}`;
  const calls = times(withIt.origin_calls);
  const within = millis(withIt.max_ms);
  if (areAll(withIt, "h")) return `${herd}${bare}. With it, ${calls}: all clients were answered from memory within ${within}.`;
  if (/^[fF]+$/.test(withIt.outcomes)) return `${herd}${bare} and failed each time. With it, ${calls}, and all clients got that failure.`;
  if (withIt.outcomes.includes("s")) return `${herd}${bare}. With it, ${calls}: clients got the stale report within ${within}.`;
  if (/[fF]/.test(withIt.outcomes)) return `${herd}${bare}. With it, ${calls}; some clients got an error.`;
  return `${herd}${bare}. With it, ${calls}: all clients had the result after ${within}.`;
}

function hangUpStory(without, withIt) {
  if (withIt.outcomes[0] !== "l") return "The origin was faster than 50 ms: the first client had its answer before it could hang up. Start the server with a longer --work-ms.";
  const others = withIt.requests - 1;
  const first = `The first client hung up after 50 ms, while ${others} others waited. `;
  const bare = `Without the layer the origin was called ${times(without.origin_calls)}. `;
  if (/[fF]/.test(withIt.outcomes)) return `${first}${bare}The origin fails: with the layer it was called ${times(withIt.origin_calls)}.`;
  return `${first}${bare}With the layer the work of the first client went on: the origin was called ${times(withIt.origin_calls)}, and all ${others} had the result after ${millis(withIt.max_ms)}.`;
}

const say = words => { $("story").textContent = words; };

// Presses one button of a group at a time, and says what went wrong.
function group(buttons, report) {
  let isBusy = false;
  return async action => {
    if (isBusy) return;
    isBusy = true;
    buttons.forEach(it => it.setAttribute("aria-disabled", "true"));
    try { await action(); } catch (error) { report(`That did not work: ${error.message}.`); }
    buttons.forEach(it => it.removeAttribute("aria-disabled"));
    isBusy = false;
  };
}

const HERD_BUTTONS = ["herd", "hang-up", "expire"].map($);
const pressHerd = group(HERD_BUTTONS, say);
$("herd").addEventListener("click", () => pressHerd(async () => {
  say("The herd is on its way…");
  say(herdStory(...await race(`/demo/herd?n=${DOTS}`)));
}));
$("hang-up").addEventListener("click", () => pressHerd(async () => {
  say("The report is expired, one client asks, a hundred follow, and the first hangs up…");
  say(hangUpStory(...await race("/demo/hang-up")));
}));
$("expire").addEventListener("click", () => pressHerd(async () => {
  await ask("/invalidate/demo", "POST");
  say("You have expired the stored report: the first request after that calls the origin.");
}));

// ---- 4: readers of one stream

const READERS = 100, BAR = 6, BARS_HIGH = 90;
const sayStream = words => { $("stream-story").textContent = words; };

for (let i = 0; i < READERS; i++) {
  const bar = document.createElementNS(SVG, "rect");
  bar.setAttribute("x", i * BAR + 1);
  bar.setAttribute("width", BAR - 2);
  if (i % 10 === 9) bar.setAttribute("class", "z");
  $("bars").append(bar);
}

// Returns what is shown then.
function showStream({ producers, produced, words, said, read }) {
  const sum = read.reduce((one, other) => one + other, 0);
  const whole = read.filter(count => count === words).length;
  $("bars").querySelectorAll("rect").forEach((bar, i) => {
    const height = BARS_HIGH * (read[i] ?? 0) / words;
    bar.setAttribute("height", height);
    bar.setAttribute("y", BARS_HIGH - height);
  });
  $("bars").setAttribute("aria-label", `${number(whole)} of ${many(READERS, "reader")} have all ${number(words)} words`);
  $("stream-said").textContent = said || "…";
  for (const [name, count] of [["producers", producers], ["produced", produced], ["whole", whole], ["read", sum]]) {
    $(`stream-${name}`).textContent = number(count);
  }
  return { whole, sum };
}

async function sendReaders(again) {
  const all = ask(`/demo/stream?again=${again}`, "POST");
  let isOver = false;
  const end = () => { isOver = true; };
  all.then(end, end);
  while (!isOver) {
    await new Promise(resolve => setTimeout(resolve, 80));
    if (!isOver) await ask("/demo/stream").then(state => isOver || showStream(state));
  }
  const result = await all, { whole, sum } = showStream(result);
  const failed = result.failed ? `, ${number(result.failed)} failed` : "";
  const from = result.producers ? `${many(result.producers, "producer")} sent ${number(result.produced)} words` : "No producer was started: the stored stream was replayed";
  sayStream(`${from}. ${number(whole)} of ${READERS} readers got all of it${failed}: ${number(sum)} words in all.`);
}

const STREAM_BUTTONS = ["stream-new", "stream-again"].map($);
const pressStream = group(STREAM_BUTTONS, sayStream);
STREAM_BUTTONS.forEach((button, again) => button.addEventListener("click", () => pressStream(() => {
  sayStream(again ? "The readers ask again…" : "What is stored is dropped, and the readers come one after the other…");
  return sendReaders(Boolean(again));
})));

// ---- 2 and 3: processes

// What the buttons of any page change.
const factsOf = ({ run, running, failing, frozen }) => ({ run, running, failing, frozen });
const CHANGES = {
  start: ({ run, running }) => ({ run: run + !running, running: !running, failing: false, frozen: false }),
  fail: facts => ({ ...facts, failing: !facts.failing }),
  freeze: facts => ({ ...facts, frozen: !facts.frozen }),
};

class Stage {
  constructor(root) {
    this.root = root;
    this.name = root.dataset.stage;
    this.board = new Board(this.part("lanes"));
    this.isOff = !token;
    this.state = null;
    // What this page knows of the processes; null before it has looked.
    this.known = null;
    this.greeting = "";
    this.isPressed = false;
    this.asked = this.taken = 0;
    this.rate = null;
    this.buttons = [...root.querySelectorAll("button")];
    this.press = group(this.buttons, words => this.say(words));
    for (const button of this.buttons) {
      button.dataset.off = button.textContent;
      button.addEventListener("click", () => {
        if (!button.disabled) this.press(() => this.work(button));
      });
    }
    this.part("rate").addEventListener("change", event => {
      this.post(`rate?per_second=${event.target.value}`).catch(error => {
        this.rate = null;
        this.say(`That did not work: ${error.message}.`);
      });
    });
    this.empty("No process runs.");
    this.enable();
    if (!this.isOff) this.poll();
    else this.say("Start the server on a loopback address, and open the page under that address: only then can the page start processes.");
  }

  part(name) {
    return this.root.querySelector(`[data-part="${name}"]`);
  }

  say(words) {
    this.part("story").textContent = words;
  }

  empty(words) {
    const line = element("p", "empty");
    line.textContent = words;
    this.part("lanes").replaceChildren(line);
  }

  post(path) {
    return ask(`/demo/stage/${this.name}/${path}`, "POST");
  }

  // The page does not know any more what the processes do.
  lose(reason = "The server does not answer.") {
    if (this.isOff) return;
    this.state = this.known = null;
    this.greeting = "The server answers again. ";
    this.ignoreOpen();
    this.board.reset(null);
    this.empty("What the processes do is not known.");
    this.say(reason);
    this.enable();
  }

  async poll() {
    let wait = POLL;
    try {
      await this.refresh();
      if (!this.state?.running) wait = RESTING_POLL;
    } catch (error) {
      wait = RESTING_POLL;
      if (!isGone) this.lose(`That did not work: ${error.message}.`);
    }
    setTimeout(() => this.poll(), document.hidden ? RESTING_POLL : wait);
  }

  // The answers to what was asked before now tell of the time before.
  ignoreOpen() {
    this.taken = this.asked + 1;
  }

  async refresh() {
    const turn = ++this.asked;
    const state = await ask(`/demo/stage/${this.name}?since=${this.board.since}`);
    if (turn < this.taken) return;
    this.taken = turn;
    const wasRunning = this.state?.running ?? null;
    if (this.state && state.run !== this.state.run && this.part("last")) this.part("last").hidden = true;
    this.state = state;
    if (state.running) this.board.take(state);
    else if (wasRunning !== false) this.empty("No process runs.");
    if (!this.isPressed) this.catchUp(factsOf(state));
    for (const [name, value] of Object.entries(state.counts)) {
      const shown = this.part(name);
      if (shown) shown.textContent = number(value);
    }
    this.enable();
  }

  // Says what this page has not done itself: its last words may be untrue by now.
  catchUp(facts) {
    const { known, greeting } = this;
    const them = this.name === "solo" ? "process" : "processes";
    const runs = this.name === "solo" ? "The process runs" : "The processes run";
    Object.assign(this, { known: facts, greeting: null });
    if (known === null) {
      if (greeting !== null && facts.running) this.say(`${greeting}${runs} already.`);
      else if (greeting) this.say(`${greeting}No process runs.`);
    } else if (facts.running && (!known.running || facts.run !== known.run)) {
      this.say(`Another page has started the ${them}.`);
    } else if (known.running && !facts.running) {
      this.say(`The ${them} ended: another page has stopped the ${them}, or no page looked for a while.`);
    } else if (facts.failing !== known.failing) {
      this.say(facts.failing ? "Another page makes the origin fail." : "Another page has let the origin work again.");
    } else if (facts.frozen !== known.frozen) {
      this.say(facts.frozen ? "Another page has frozen Redis." : "Another page has let Redis go on.");
    }
  }

  // Which buttons can be pressed, and what they say.
  enable() {
    const { running = false, failing, frozen, lanes = [], max_lanes: most } = this.state ?? {};
    const hasRedis = this.state?.redis_installed ?? true;
    for (const button of this.buttons) {
      const { press, on, off } = button.dataset;
      const isOn = { start: running, fail: failing, freeze: frozen }[press] ?? false;
      let words = isOn && on ? on : off;
      button.disabled = this.isOff || isGone || (press === "start" ? !running && !hasRedis : !running);
      if (press === "start" && !hasRedis) words = "redis-server is not installed";
      if (press === "add" && running && lanes.length >= most) button.disabled = true;
      if (press === "kill-leader" && (lanes.length < 2 || failing)) button.disabled = true;
      if (button.hasAttribute("aria-pressed")) button.setAttribute("aria-pressed", isOn);
      if (button.textContent !== words) button.textContent = words;
    }
    this.part("rate").disabled = !running;
    // Only a new rate is shown: somebody may be choosing another one.
    if (this.state && this.state.rate !== this.rate) this.part("rate").value = this.rate = this.state.rate;
  }

  // Presses a button. The page knows what that changes; all else is news.
  async work(button) {
    const change = CHANGES[button.dataset.press] ?? (facts => facts);
    this.isPressed = true;
    try {
      await this.act(button);
      // Null if the server was started again meanwhile.
      this.known &&= change(this.known);
    } catch (error) {
      this.known = null;
      throw error;
    } finally {
      this.isPressed = false;
      if (!isGone) this.greeting = null;
      this.ignoreOpen();
    }
    await this.refresh();
  }

  async act(button) {
    const { press, n } = button.dataset;
    const { running, failing, frozen } = this.state ?? {};
    if (press === "start") await this.start(!running);
    if (press === "herd") {
      this.say("The requests are on their way…");
      this.tellHerd(await this.post(`herd?n=${n}`));
    }
    if (press === "kill-leader") {
      this.say("The report is invalidated, clients ask, and the process that computes is killed…");
      this.tellKill(await this.post("kill-leader"));
    }
    if (press === "add") {
      await this.post("add");
      this.say("A further process serves requests. It finds the value of the others in Redis.");
    }
    if (press === "invalidate") {
      await this.post("invalidate");
      this.say("The value is invalidated in all processes: the next request computes.");
    }
    if (press === "fail") await this.fail(!failing);
    if (press === "freeze") await this.freeze(!frozen);
  }

  async start(on) {
    this.say(on ? "Starting…" : "Stopping…");
    await this.post(on ? "start" : "stop");
    if (!on) this.say("All processes have ended.");
    else if (this.name === "solo") this.say("One process serves three requests per second. Watch a value turn stale, and one refresh replace it.");
    else this.say("Three processes share one Redis. One of them computes, and all serve the same value.");
  }

  async fail(on) {
    await this.post(`fail?on=${on}`);
    this.say(on ? "The origin now answers 500. Once the value is stale, a refresh fails, and the key is on hold: clients get the stale value."
                : "The origin works again. The next attempt, after the hold, succeeds.");
  }

  async freeze(on) {
    if (!on) this.say("Redis runs again. The processes look for it…");
    await this.post(`freeze?on=${on}`);
    this.say(on ? "Redis stands still (SIGSTOP). After a short time-out each process goes on alone: one computation per process, and no failed request."
                : "Redis runs again (SIGCONT). Each process has told it what was invalidated meanwhile. They compute once together again.");
  }

  tellHerd(herd) {
    this.tellLast(herd);
    const at = herd.processes > 1 ? ` at ${herd.processes} processes` : "";
    const when = herd.expired ? "just after the value was invalidated" : "while the origin fails";
    const failed = herd.failures ? `, ${number(herd.failures)} failed` : ", none failed";
    this.say(`${many(herd.requests, "request")}${at}, ${when}: ${many(herd.origin_calls, "origin call")}, ${number(herd.answered)} answered${failed}. The last answer came after ${millis(herd.max_ms)}.`);
  }

  tellKill(herd) {
    this.tellLast(herd);
    const after = herd.origin_calls > 1 ? "another process computed anew" : "no second call was necessary";
    this.say(`Process ${herd.killed} was killed while it computed. Its lease of ${millis(herd.lease_ms)} ended, and ${after}: ${many(herd.origin_calls, "origin call")} for ${many(herd.requests, "request")}, ${number(herd.answered)} answered, ${number(herd.moved)} of them by another process than the one they asked first.`);
  }

  tellLast(herd) {
    if (!this.part("last")) return;
    this.part("last").hidden = false;
    for (const [name, shown] of [["calls", number(herd.origin_calls)], ["requests", number(herd.requests)], ["answered", number(herd.answered)], ["took", millis(herd.max_ms)]]) {
      this.part(`last-${name}`).textContent = shown;
    }
  }
}

const stages = [...document.querySelectorAll("[data-stage]")].map(root => new Stage(root));

function tick() {
  const line = storeLine();
  if ($("store").textContent !== line) $("store").textContent = line;
  for (const stage of stages) if (stage.state?.running) stage.board.draw();
  setTimeout(() => requestAnimationFrame(tick), hasLessMotion.matches ? 1000 : 40);
}

poll();
tick();
