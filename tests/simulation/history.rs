//! What happened in a case, in one total order, and the rules about it.
//!
//! Each computation and each `put` has a number, and its value is the text `<kKcN>` with the
//! key and that number. So a value names its computation wherever it is seen.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

use crate::case::{self, KEYS};

/// How long local copies are vouched for after the sending of a heartbeat.
const VOUCHED: u64 = 2_000;

/// How long after a failover that has lost items the log may go unverified: 15 s and a heartbeat.
pub(crate) const VERIFIED_WITHIN: u64 = 17_500;

/// The longest that a caller may wait by the clock of its process.
const LONGEST_WAIT: u64 = 10_000;

/// A moment in the order of all events.
pub(crate) type Moment = u64;

/// Which process; one that is started again has another number.
pub(crate) type ProcessId = usize;

#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) rule: &'static str,
    pub(crate) text: String,
}

struct Computation {
    key: usize,
    process: ProcessId,
    began: Moment,
    /// For the writes of other processes: a `put` may come before or after each that is under
    /// way at the same time.
    began_elsewhere: Moment,
}

impl Computation {
    fn began_for(&self, cut: &Cut) -> Moment {
        if cut.process == self.process { self.began } else { self.began_elsewhere }
    }
}

/// An invalidation or a `put`.
struct Cut {
    process: ProcessId,
    keys: Vec<usize>,
    /// Removes the key's records too, and so fences what is computed.
    is_of_key: bool,
    began: Moment,
    returned: Option<Moment>,
    done: Option<Moment>,
    /// The number of the value that was put.
    put: Option<usize>,
}

/// What a process knows of the log.
#[derive(Clone, Copy, Default)]
struct Heard {
    /// When the last call was sent that has read the log to its end: in the order of events, and
    /// by the clock of the process.
    sent: Option<(Moment, u64)>,
}

struct ProcessRecord {
    started: Moment,
    heard: Heard,
    frozen: u64,
}

/// A read that is under way.
#[derive(Clone, Copy)]
pub(crate) struct Read {
    number: u64,
    process: ProcessId,
    key: usize,
    began: Moment,
    began_at: u64,
    began_frozen: u64,
    was_up: bool,
    heard: Heard,
}

#[derive(Default)]
struct Events {
    now: Moment,
    time: u64,
    lines: Option<Vec<String>>,
    computations: Vec<Computation>,
    cuts: Vec<Cut>,
    processes: Vec<ProcessRecord>,
    reads: BTreeMap<u64, (ProcessId, usize)>,
    read_count: u64,
    running: HashMap<(ProcessId, usize), usize>,
    abandoned: [usize; KEYS],
    lossy_failover: Option<(Moment, u64)>,
    violations: Vec<Violation>,
}

pub(crate) struct History(Mutex<Events>);

impl Events {
    fn next(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    fn say(&mut self, text: impl FnOnce() -> String) {
        let time = self.time;
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{time:>6} ms  {}", text()));
        }
    }

    fn violate(&mut self, rule: &'static str, text: String) {
        self.say(|| format!("BROKEN: {rule}: {text}"));
        self.violations.push(Violation { rule, text });
    }

    /// Whether the log may have lost this without any process having had to notice yet.
    fn may_be_lost(&self, cut: &Cut) -> bool {
        self.lossy_failover
            .is_some_and(|(at, time)| cut.began < at && self.time < time + VERIFIED_WITHIN)
    }

    fn check(&mut self, read: &Read, value: &str, is_up: bool, at: u64) {
        let Some((key, number)) = case::parse(value) else {
            return self.violate("a value is one that was computed", value.to_owned());
        };
        let (process, time) = (read.process, read.began_at);
        let heard = self.processes[process].heard.sent;
        if key != read.key || self.computations[number].key != key {
            let text = format!("p{process} asked for k{} and got {value}", read.key);
            return self.violate("no caller gets the value of another key", text);
        }
        let mut broken = Vec::new();
        for cut in &self.cuts {
            let began = self.computations[number].began_for(cut);
            if !cut.keys.contains(&key) || began >= cut.began {
                continue;
            }
            let what = || {
                format!(
                    "p{process} got {value} at {at} ms by its clock, which was ended before by p{}",
                    cut.process
                )
            };
            if cut.process == process && cut.returned.is_some_and(|at| at < read.began) {
                broken.push(("a process never serves what it has invalidated", what()));
                continue;
            }
            let is_done = cut.done.is_some_and(|done| done < read.began);
            if !is_done || self.may_be_lost(cut) {
                continue;
            }
            let done = cut.done.unwrap_or_default();
            if self.processes[process].started > done {
                broken.push(("a new process never serves what was ended before", what()));
            } else if read.was_up && is_up && read.heard.sent.is_some_and(|(sent, _)| sent > done) {
                let rule = "a process that has read the log since serves nothing that was ended";
                broken.push((rule, what()));
            } else if read.was_up && is_up && heard.is_some_and(|(_, sent)| time > sent + VOUCHED) {
                // A read of the log that was answered since the caller came counts too.
                let rule = "without an answer for two seconds nothing is served, or Degraded told";
                broken.push((rule, what()));
            }
        }
        for (rule, text) in broken {
            self.violate(rule, text);
        }
    }
}

impl History {
    pub(crate) fn new(is_written: bool) -> Self {
        let lines = is_written.then(Vec::new);
        Self(Mutex::new(Events { lines, ..Events::default() }))
    }

    pub(crate) fn say(&self, text: impl FnOnce() -> String) {
        self.0.lock().say(text);
    }

    pub(crate) fn violate(&self, rule: &'static str, text: String) {
        self.0.lock().violate(rule, text);
    }

    pub(crate) fn set_time(&self, time: u64) {
        self.0.lock().time = time;
    }

    pub(crate) fn moment(&self) -> Moment {
        self.0.lock().next()
    }

    pub(crate) fn start_process(&self) -> ProcessId {
        let mut events = self.0.lock();
        let started = events.next();
        let heard = Heard::default();
        events.processes.push(ProcessRecord { started, heard, frozen: 0 });
        let id = events.processes.len() - 1;
        events.say(|| format!("p{id} starts"));
        id
    }

    pub(crate) fn was_frozen(&self, process: ProcessId, time: u64) {
        self.0.lock().processes[process].frozen += time;
    }

    /// A process has the answer to a call that has read the log to its end.
    pub(crate) fn hear(&self, process: ProcessId, sent: (Moment, u64)) {
        let mut events = self.0.lock();
        let heard = &mut events.processes[process].heard;
        if heard.sent.is_none_or(|known| known < sent) {
            heard.sent = Some(sent);
        }
    }

    /// A process has an answer of a log that has begun again: it is vouched for from then on, and
    /// what it held before has gone.
    pub(crate) fn hear_anew(&self, process: ProcessId, (_, sent): (Moment, u64)) {
        let mut events = self.0.lock();
        if let Some((_, known)) = &mut events.processes[process].heard.sent {
            *known = sent.max(*known);
        }
    }

    pub(crate) fn lose_items(&self) {
        let mut events = self.0.lock();
        let at = (events.next(), events.time);
        events.lossy_failover = Some(at);
    }

    pub(crate) fn begin_read(
        &self,
        process: ProcessId,
        key: usize,
        at: u64,
        was_up: bool,
        how: &str,
    ) -> Read {
        let mut events = self.0.lock();
        let began = events.next();
        events.read_count += 1;
        let number = events.read_count;
        events.reads.insert(number, (process, key));
        events.say(|| format!("p{process} {how} k{key} (read {number})"));
        let record = &events.processes[process];
        let (heard, began_frozen) = (record.heard, record.frozen);
        Read { number, process, key, began, began_at: at, began_frozen, was_up, heard }
    }

    pub(crate) fn end_read(
        &self,
        read: Read,
        value: Result<Option<&str>, String>,
        up: bool,
        at: u64,
    ) {
        let mut events = self.0.lock();
        events.next();
        events.reads.remove(&read.number);
        let frozen = events.processes[read.process].frozen - read.began_frozen;
        if at.saturating_sub(read.began_at) > LONGEST_WAIT + frozen {
            let text =
                format!("read {} of p{} took {} ms", read.number, read.process, at - read.began_at);
            events.violate("no caller waits without a bound", text);
        }
        match value {
            Ok(Some(value)) => {
                events.say(|| format!("p{} gets {value} (read {})", read.process, read.number));
                events.check(&read, value, up, at);
            }
            Ok(None) => {
                events.say(|| format!("p{} gets nothing (read {})", read.process, read.number));
            }
            // All that was due meanwhile is due at once, also the end of the caller's patience.
            Err(error) if frozen > 0 => {
                events.say(|| format!("p{} gets an error: {error}", read.process));
            }
            Err(error) => {
                let text = format!("read {} of p{}: {error}", read.number, read.process);
                events.violate("no caller gets an error because of the remote", text);
            }
        }
    }

    /// The caller has gone.
    pub(crate) fn drop_read(&self, read: &Read) {
        let mut events = self.0.lock();
        if events.reads.remove(&read.number).is_some() {
            events.say(|| {
                format!("the caller of p{} goes away (read {})", read.process, read.number)
            });
        }
    }

    pub(crate) fn reads_under_way(&self) -> Vec<String> {
        let events = self.0.lock();
        let text = |(number, (process, key)): (&u64, &(ProcessId, usize))| {
            format!("read {number} of k{key} by p{process}")
        };
        events.reads.iter().map(text).collect()
    }

    /// Returns the value of a computation that begins now.
    pub(crate) fn begin_computation(&self, process: ProcessId, key: usize) -> String {
        let mut events = self.0.lock();
        let began = events.next();
        events.computations.push(Computation { key, process, began, began_elsewhere: began });
        let value = format!("<k{key}c{}>", events.computations.len() - 1);
        events.say(|| format!("p{process} begins to compute {value}"));
        *events.running.entry((process, key)).or_default() += 1;
        value
    }

    pub(crate) fn end_computation(&self, value: &str, is_abandoned: bool) {
        let mut events = self.0.lock();
        let Some((key, number)) = case::parse(value) else { return };
        let process = events.computations[number].process;
        if let Some(running) = events.running.get_mut(&(process, key)) {
            *running -= 1;
        }
        let how = if is_abandoned { "drops" } else { "has computed" };
        events.abandoned[key] += usize::from(is_abandoned);
        events.say(|| format!("p{process} {how} {value}"));
    }

    pub(crate) fn begin_cut(
        &self,
        process: ProcessId,
        keys: Vec<usize>,
        is_of_key: bool,
        what: &str,
    ) -> usize {
        let mut events = self.0.lock();
        let began = events.next();
        events.say(|| format!("p{process} {what}"));
        let (returned, done, put) = (None, None, None);
        events.cuts.push(Cut { process, keys, is_of_key, began, returned, done, put });
        events.cuts.len() - 1
    }

    /// Returns the value of a `put` that begins now, and its cut.
    pub(crate) fn begin_put(&self, process: ProcessId, key: usize) -> (String, usize) {
        let cut = self.begin_cut(process, vec![key], true, &format!("puts k{key}"));
        let mut events = self.0.lock();
        let began = events.next();
        let began_elsewhere = Moment::MAX;
        events.computations.push(Computation { key, process, began, began_elsewhere });
        let number = events.computations.len() - 1;
        events.cuts[cut].put = Some(number);
        let value = format!("<k{key}c{}>", events.computations.len() - 1);
        events.say(|| format!("p{process} puts {value}"));
        (value, cut)
    }

    pub(crate) fn end_cut(&self, cut: usize, is_done: bool, said: &str) {
        let mut events = self.0.lock();
        let now = events.next();
        events.cuts[cut].returned = Some(now);
        events.cuts[cut].done = is_done.then_some(now);
        if let Some(put) = events.cuts[cut].put {
            events.computations[put].began_elsewhere = now;
        }
        let process = events.cuts[cut].process;
        events.say(|| format!("p{process}: its write of cut {cut} has returned {said}"));
    }

    /// The server has stored a value under a grant.
    pub(crate) fn stored(&self, bytes: &[u8]) {
        let mut events = self.0.lock();
        events.next();
        let Some((key, number)) = case::find(bytes) else { return };
        let computation = &events.computations[number];
        let is_fenced = |cut: &&Cut| {
            let is_older = computation.began_for(cut) < cut.began;
            cut.is_of_key && cut.keys.contains(&key) && is_older && cut.done.is_some()
        };
        if let Some(cut) = events.cuts.iter().find(is_fenced) {
            let text = format!("<k{key}c{number}> was stored after p{} had ended it", cut.process);
            events
                .violate("the fence: nothing is stored that began before its key was ended", text);
        }
    }

    /// Returns how often a key was computed, and how many of those were abandoned.
    pub(crate) fn computed(&self, key: usize) -> (usize, usize) {
        let events = self.0.lock();
        let all = events.computations.iter().filter(|each| each.key == key).count();
        (all, events.abandoned[key])
    }

    pub(crate) fn take(&self) -> (Vec<Violation>, Vec<String>, usize) {
        let mut events = self.0.lock();
        let computations = events.computations.len();
        (
            std::mem::take(&mut events.violations),
            events.lines.take().unwrap_or_default(),
            computations,
        )
    }
}
