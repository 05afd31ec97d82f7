"use strict";
// The timeline of one key: what each process did, drawn from the events of the server.

// What a request became, by the words of the server.
const OUTCOMES = {
  hit: { colour: "hit", row: 0 },
  stale: { colour: "stale", row: 0 },
  stale_if_error: { colour: "stale", row: 0 },
  computed: { colour: "called", row: 1 },
  alone: { colour: "called", row: 1 },
  joined: { colour: "waited", row: 1 },
  failed: { colour: "failed", row: 1, sign: "×" },
  refused: { colour: "failed", row: 1, sign: "×" },
  lost: { colour: "failed", row: 1, sign: "×" },
  moved: { colour: "ink", row: 1, sign: "↷" },
};
// Requests with these outcomes were not answered from memory.
const WAITED = new Set(["computed", "joined", "alone", "failed", "refused"]);
// Where the parts of a lane are, in pixels from its top.
const VALUE = { y: 13, height: 19 }, ORIGIN = { y: 36, height: 17 }, ROWS = [63, 79];
// A wait that is drawn as a line; the time that a line needs to be seen.
const SHOWN_WAIT = 80;
const KEPT = 40000;  // how long events are remembered, in milliseconds

// ---- what is known of a process

class Lane {
  constructor(name) {
    Object.assign(this, { name, gone: null, invalidated: 0 });
    Object.assign(this, { computations: [], holds: [], values: [], answers: [] });
  }

  take(event, ttl, staleFor) {
    const { at } = event;
    if (event.kind === "began") {
      this.endHold(at);
      this.computations.push({ call: event.call, from: at, to: null, ok: null });
    }
    if (event.kind === "ended") {
      const computation = this.computations.find(it => it.call === event.call);
      if (computation) Object.assign(computation, { to: at, ok: event.ok });
      if (!event.ok && this.valueAt(at)) this.holds.push({ from: at, to: null });
    }
    if (event.kind === "gone") {
      this.gone = at;
      this.endHold(at);
      this.endValue(at);
      for (const it of this.running()) Object.assign(it, { to: at, ok: false, killed: true });
    }
    if (event.kind === "invalidated") {
      this.invalidated = at;
      this.endHold(at);
      this.endValue(at);
    }
    if (event.kind === "answers") {
      this.answers.push(event);
      if (WAITED.has(event.outcome)) this.missValue(event.from);
      if (event.value) this.takeValue(event, ttl, staleFor);
    }
  }

  // Another process has failed, and this one learns of the hold.
  learnHold({ from, at, outcome }) {
    const isHeld = outcome === "stale_if_error" && at - from < SHOWN_WAIT;
    if (isHeld && this.holds.at(-1)?.to !== null) this.holds.push({ from, to: null });
  }

  endHold(at) {
    const hold = this.holds.at(-1);
    if (hold && hold.to === null) hold.to = Math.max(at, hold.from);
  }

  takeValue({ at, value }, ttl, staleFor) {
    const known = this.values.at(-1), made = value.computed_at;
    if (known && known.made >= made) return;
    // Computed before an invalidation, or begun before it: its clients got it, and it was not stored.
    const isOurs = value.pid === this.pid;
    const begun = this.computations.find(it => it.to !== null && Math.abs(it.to - made) < 30);
    if (made < this.invalidated || (isOurs && begun && begun.from < this.invalidated)) return;
    const from = isOurs ? made : Math.max(made, at - 5);
    this.endValue(from);
    const hold = this.holds.at(-1);
    if (hold && hold.to === null && made > hold.from) hold.to = from;
    this.values.push({ from, to: null, made, id: `${value.pid}.${value.version}`, fresh: made + ttl, stale: made + ttl + staleFor });
  }

  running() {
    return this.computations.filter(it => it.to === null);
  }

  // A request that had to wait found nothing to serve: another process had invalidated the value.
  missValue(at) {
    for (const value of this.values) {
      if (value.from < at && (value.to === null || value.to > at)) value.to = at;
    }
    // Without a stale value there is no hold after an error of the origin.
    this.holds = this.holds.filter(hold => hold.from < at);
  }

  endValue(at) {
    const value = this.values.at(-1);
    if (value && value.to === null) value.to = Math.max(at, value.from);
  }

  valueAt(at) {
    const value = this.values.at(-1);
    return value && value.to === null && value.from <= at ? value : null;
  }

  forget(before) {
    const isKept = it => it.to === null || (it.to ?? it.at) >= before;
    for (const part of ["computations", "holds", "values", "answers"]) this[part] = this[part].filter(isKept);
  }

  // One word, and a sentence for the chip beside the lane.
  state(now) {
    if (this.gone !== null) return ["gone", "gone"];
    const hold = this.holds.at(-1), value = this.valueAt(now);
    if (this.running().length > 0) return ["computing", value ? "refreshing" : "computing"];
    if (hold && hold.to === null) return ["hold", "on hold"];
    if (!value) return ["empty", "nothing stored"];
    if (now < value.fresh) return ["fresh", `fresh for ${((value.fresh - now) / 1000).toFixed(1)} s`];
    if (now < value.stale) return ["stale", "stale"];
    return ["expired", "kept for failures"];
  }
}

// ---- colours and drawing

const COLOURS = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "soft", "line", "faint", "card", "called", "called-text", "waited", "hit", "stale", "failed", "ice"]) {
    COLOURS[name] = style.getPropertyValue(`--${name}`).trim();
  }
}
readColours();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readColours);

function prepare(canvas) {
  const ratio = devicePixelRatio || 1, { clientWidth: width, clientHeight: height } = canvas;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

// Where moments are: the past takes most of the width, the rest shows what is to come.
function scaleOf(width, now) {
  const past = width > 560 ? 13000 : 8000, future = width > 560 ? 4500 : 2600;
  const perMs = width / (past + future);
  return { at: time => (time - now + past) * perMs, first: now - past, last: now + future, present: past * perMs };
}

function text(pen, words, x, y, colour, { align = "left", weight = 600, size = 12 } = {}) {
  pen.font = `${weight} ${size}px system-ui, sans-serif`;
  pen.textAlign = align;
  pen.textBaseline = "middle";
  pen.fillStyle = colour;
  pen.fillText(words, x, y);
}

// A bar with words, as far as they fit into what is seen of it.
function bar(pen, scale, from, to, { y, height }, look) {
  const x = Math.max(scale.at(from), -4), end = Math.min(scale.at(to), scale.at(scale.last) + 4);
  if (end <= x) return;
  pen.save();
  pen.beginPath();
  pen.roundRect(x, y, Math.max(end - x, 1.5), height, 3);
  pen.clip();
  pen.globalAlpha = look.alpha ?? 1;
  if (look.fill) { pen.fillStyle = COLOURS[look.fill]; pen.fillRect(x, y, end - x, height); }
  pen.globalAlpha = 1;
  if (look.edge) { pen.fillStyle = COLOURS[look.edge]; pen.fillRect(scale.at(from), y, 3, height); }
  if (look.hatch) {
    pen.strokeStyle = COLOURS.soft;
    pen.globalAlpha = 0.45;
    pen.lineWidth = 1.2;
    const shift = ((scale.at(from) % 8) + 8) % 8;
    pen.beginPath();
    for (let at = x - height - 8 + shift; at < end; at += 8) { pen.moveTo(at, y + height); pen.lineTo(at + height, y); }
    pen.stroke();
    pen.globalAlpha = 1;
  }
  pen.restore();
  if (look.outline) {
    pen.strokeStyle = COLOURS[look.outline];
    pen.lineWidth = 1;
    pen.beginPath();
    pen.roundRect(x + 0.5, y + 0.5, Math.max(end - x - 1, 1), height - 1, 3);
    pen.stroke();
  }
  for (const words of look.words ?? []) {
    pen.font = "600 12px system-ui, sans-serif";
    const wide = pen.measureText(words).width, left = Math.max(x, 0) + 7;
    if (left + wide + 4 > Math.min(end, scale.at(scale.last))) continue;
    if (look.hatch) {
      pen.fillStyle = COLOURS.card;
      pen.fillRect(left - 3, y + 2, wide + 6, height - 4);
    }
    text(pen, words, left, y + height / 2 + 0.5, COLOURS[look.text ?? "ink"]);
    break;
  }
}

function line(pen, x, from, to, colour, dash = [], width = 1) {
  pen.save();
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.setLineDash(dash);
  pen.beginPath();
  pen.moveTo(x, from);
  pen.lineTo(x, to);
  pen.stroke();
  pen.restore();
}

// Requests that waited have a row of their own.
function rowOf({ from, at, outcome }) {
  return at - from > SHOWN_WAIT ? 1 : (OUTCOMES[outcome] ?? OUTCOMES.hit).row;
}

// ---- the board of a stage: a lane for each process

class Board {
  constructor(root) {
    this.root = root;
    this.reset(null);
  }

  reset(run) {
    Object.assign(this, { run, lanes: new Map(), since: 0, offset: 0, frozen: [], failing: [], cuts: [], numbers: new Map() });
    this.root.replaceChildren();
    this.axis = null;
  }

  // Takes what the server says; the lanes follow.
  take(state) {
    if (state.run !== this.run) this.reset(state.run);
    this.offset = state.now - performance.now();
    for (const { name, pid, port, redis } of state.lanes) {
      Object.assign(this.lane(name), { pid, port, redis });
    }
    for (const event of state.events) {
      // Two questions may have overlapped: their answers have the same events.
      if (event.seq < this.since) continue;
      this.takeEvent(event, state);
      this.since = event.seq + 1;
    }
    const oldest = this.now() - KEPT;
    for (const lane of this.lanes.values()) {
      lane.forget(oldest);
      if (lane.gone !== null && lane.gone < this.now() - 18000) this.remove(lane);
    }
    this.cuts = this.cuts.filter(at => at > oldest);
  }

  takeEvent(event, { ttl_ms: ttl, stale_ms: staleFor }) {
    if (event.kind === "invalidated") this.cuts.push(event.at);
    for (const kind of ["frozen", "failing"]) {
      if (event.kind !== kind) continue;
      const open = this[kind].at(-1);
      if (event.on) this[kind].push({ from: event.at, to: null });
      else if (open) open.to = event.at;
    }
    if (event.kind === "answers" && event.value) this.number(event.value);
    const lanes = event.lane ? [this.lanes.get(event.lane)] : this.lanes.values();
    for (const lane of lanes) lane?.take(event, ttl, staleFor);
    // Redis tells all processes of a hold. An attempt of one shows that it is over.
    const all = [...this.lanes.values()], isFrozen = this.frozen.at(-1)?.to === null;
    if (event.kind === "began" && !isFrozen) for (const lane of all) lane.endHold(event.at);
    if (event.kind === "answers" && all.every(lane => lane.running().length === 0)) {
      this.lanes.get(event.lane)?.learnHold(event);
    }
  }

  // Values are numbered as they appear, so that people can tell them apart.
  number({ pid, version }) {
    const id = `${pid}.${version}`;
    if (!this.numbers.has(id)) this.numbers.set(id, this.numbers.size + 1);
  }

  now() {
    return performance.now() + this.offset;
  }

  lane(name) {
    let lane = this.lanes.get(name);
    if (!lane) {
      lane = new Lane(name);
      this.lanes.set(name, lane);
      this.build(lane);
    }
    return lane;
  }

  build(lane) {
    if (!this.axis) {
      const row = element("div", "axis");
      this.axis = element("canvas");
      this.axis.setAttribute("aria-hidden", "true");
      row.append(element("div"), this.axis);
      this.root.replaceChildren(row);
    }
    const row = element("div", "lane"), who = element("div", "who");
    row.dataset.lane = lane.name;
    row.setAttribute("role", "group");
    row.setAttribute("aria-label", `Process ${lane.name}`);
    lane.title = element("small");
    lane.chip = element("span", "state");
    lane.away = element("span", "away");
    lane.away.textContent = "Redis is away";
    const name = element("b");
    name.textContent = `Process ${lane.name}`;
    who.append(name, element("br"), lane.title, lane.chip, lane.away);
    lane.canvas = element("canvas");
    lane.canvas.setAttribute("role", "img");
    lane.canvas.setAttribute("aria-label", `Timeline of process ${lane.name}. The words beside it say its state.`);
    row.append(who, lane.canvas);
    lane.row = row;
    this.root.append(row);
  }

  remove(lane) {
    lane.row.remove();
    this.lanes.delete(lane.name);
  }

  draw() {
    const now = this.now();
    if (this.axis) this.drawAxis(now);
    for (const lane of this.lanes.values()) this.drawLane(lane, now);
  }

  drawAxis(now) {
    const { pen, width, height } = prepare(this.axis), scale = scaleOf(width, now);
    for (const [spans, colour, words] of [[this.frozen, "ice", "Redis is frozen"], [this.failing, "failed", "the origin fails"]]) {
      for (const span of spans) {
        const isRed = colour === "failed", place = { y: isRed ? 14 : 1, height: isRed ? 3 : 16 };
        bar(pen, scale, span.from, span.to ?? now, place, { fill: colour, words: isRed ? [] : [words, "frozen"] });
        const x = Math.max(scale.at(span.from), 0);
        if (isRed && scale.at(span.to ?? now) - x > 90) text(pen, words, x, 6, COLOURS.failed);
      }
    }
    const step = width > 560 ? 4000 : 2000;
    for (let ago = step; now - ago > scale.first; ago += step) {
      text(pen, `${ago / 1000} s ago`, scale.at(now - ago), height - 9, COLOURS.soft, { align: "center", weight: 400 });
    }
    text(pen, "now", scale.present, height - 9, COLOURS.ink, { align: "center", weight: 700 });
  }

  drawLane(lane, now) {
    const [is, words] = lane.state(now);
    if (lane.chip.textContent !== words) lane.chip.textContent = words;
    lane.chip.dataset.is = is;
    lane.away.hidden = lane.redis !== false || lane.gone !== null;
    const title = `pid ${lane.pid} · port ${lane.port}`;
    if (lane.title.textContent !== title) lane.title.textContent = title;

    const { pen, width, height } = prepare(lane.canvas), scale = scaleOf(width, now);
    for (const span of this.frozen) {
      const x = scale.at(span.from), end = scale.at(span.to ?? now);
      pen.fillStyle = COLOURS.ice;
      pen.globalAlpha = 0.6;
      pen.fillRect(x, 0, end - x, height);
      pen.globalAlpha = 1;
    }
    for (const y of ROWS) { pen.fillStyle = COLOURS.faint; pen.fillRect(0, y - 0.5, scale.present, 1); }
    for (const value of lane.values) this.drawValue(pen, scale, value, now);
    for (const it of lane.computations) {
      const isBad = it.ok === false;
      const label = [it.killed ? "killed" : "failed", ""];
      const look = isBad ? { outline: "failed", fill: "called", alpha: 0.35, words: label } : { fill: "called", text: "called-text", words: ["computing", ""] };
      bar(pen, scale, it.from, it.to ?? now, ORIGIN, look);
    }
    for (const it of lane.holds) {
      bar(pen, scale, it.from, it.to ?? now, ORIGIN, { hatch: true, outline: "soft", words: ["hold", ""] });
    }
    for (const at of this.cuts) {
      if (at > scale.first) line(pen, scale.at(at), 0, height, COLOURS.ink, [3, 3], 1.2);
    }
    for (const it of lane.answers) this.drawAnswers(pen, scale, it);
    // What is to come is known, but may change.
    pen.fillStyle = COLOURS.card;
    pen.globalAlpha = 0.62;
    pen.fillRect(scale.present, 0, width - scale.present, height);
    pen.globalAlpha = 1;
    line(pen, scale.present, 0, height, COLOURS.ink, [], 1.5);
    if (lane.gone !== null) {
      const x = scale.at(lane.gone);
      line(pen, x, 0, height, COLOURS.failed, [], 2);
      if (width - x > 60) text(pen, "gone", x + 7, VALUE.y + VALUE.height / 2, COLOURS.failed, { weight: 700 });
    }
    this.drawNumbers(pen, scale, lane.answers);
  }

  drawValue(pen, scale, value, now) {
    const number = this.numbers.get(value.id) ?? "";
    const end = value.to ?? Infinity;
    const fresh = Math.min(value.fresh, end), stale = Math.min(value.stale, end);
    bar(pen, scale, value.from, fresh, VALUE, { fill: "hit", alpha: 0.26, edge: "hit", words: [`fresh, value ${number}`, `fresh ${number}`, `${number}`] });
    bar(pen, scale, Math.max(value.fresh, value.from), stale, VALUE, { fill: "stale", alpha: 0.26, edge: "stale", words: [`stale, value ${number}`, "stale", ""] });
    const kept = Math.min(end, now);
    if (kept > value.stale) {
      bar(pen, scale, Math.max(value.stale, value.from), kept, VALUE, { outline: "stale", words: ["kept for failures", "kept", ""] });
    }
  }

  drawAnswers(pen, scale, answers) {
    const { from, at, outcome, n } = answers;
    const { colour, sign } = OUTCOMES[outcome] ?? OUTCOMES.hit;
    const waited = at - from > SHOWN_WAIT;
    const x = scale.at(at), y = ROWS[rowOf(answers)];
    if (x < -20) return;
    pen.strokeStyle = pen.fillStyle = COLOURS[colour];
    if (waited) {
      pen.lineWidth = 2;
      pen.beginPath();
      pen.moveTo(scale.at(from), y);
      pen.lineTo(x, y);
      pen.stroke();
    }
    if (sign) {
      text(pen, sign, x, y, COLOURS[colour], { align: "center", weight: 800, size: n > 1 ? 18 : 15 });
    } else {
      pen.beginPath();
      pen.arc(x, y, n > 1 ? 5.5 : outcome === "computed" ? 4 : 3, 0, 2 * Math.PI);
      pen.fill();
    }
  }

  // After everything else, each on a ground of its own: otherwise the lines of later requests, and
  // the line of the present, go through the numbers.
  drawNumbers(pen, scale, answers) {
    const ends = ROWS.map(() => 0);
    for (const answer of answers) {
      const x = scale.at(answer.at), row = rowOf(answer), y = ROWS[row];
      if (answer.n === 1 || x < -4) continue;
      pen.font = "700 12px system-ui, sans-serif";
      const left = Math.max(x + 8, ends[row]), wide = pen.measureText(answer.n).width;
      pen.fillStyle = COLOURS.card;
      pen.fillRect(left - 2, y - 7, wide + 4, 14);
      text(pen, `${answer.n}`, left, y, COLOURS.ink, { weight: 700 });
      ends[row] = left + wide + 5;
    }
  }
}

function element(name, className = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  return made;
}
