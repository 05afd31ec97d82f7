//! One process on a Redis, and 64.

use crate::client::{Done, Fleet, Task};
use crate::meter::{Meter, Spent};
use crate::processes_shown;
use crate::redis_support::Server;
use crate::report::{Part, Profile, median};
use crate::values::last_after_fill;

const FLEETS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const FEW_FLEETS: [usize; 4] = [1, 4, 16, 64];

/// Long enough for all to be waiting when the value is filled.
const HOLD_MS: u64 = 300;

/// Keys asked for together, so that what they cost can be told from nothing.
const KEYS: u64 = 20;

/// The steady load: so many keys, fresh so long, so many requests a second
/// and process.
const LOAD_KEYS: u64 = 10;
const LOAD_TTL_MS: u64 = 1_000;
const LOAD_PER_SECOND: u64 = 100;

/// What a request cost Redis.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) sent: f64,
    pub(crate) executed: f64,
    pub(crate) cpu: f64,
}

pub(crate) struct Row {
    pub(crate) processes: f64,
    /// From the fill until the last process has the value, in ms.
    pub(crate) last: f64,
    pub(crate) cold: Cost,
    /// Another process has computed it. None where there is no other.
    pub(crate) found: Option<Cost>,
    pub(crate) steady: Cost,
    /// Computations a second under the steady load.
    pub(crate) steady_calls: f64,
    /// The same of processes that share nothing.
    pub(crate) alone_calls: f64,
}

/// What must hold however many processes there are.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) cold_keys: u64,
    pub(crate) cold_calls: u64,
    /// Computations under the steady load beyond one a key and lifetime.
    pub(crate) steady_surplus: f64,
    pub(crate) found_calls: u64,
    pub(crate) errors: u64,
    pub(crate) waited: u64,
    pub(crate) pushed: u64,
}

pub(crate) fn measure(profile: Profile, server: &Server, part: &mut Part) {
    let (mut fleet, mut counts) = (Fleet::on(server.url()), Counts::default());
    let mut scene = Scene { profile, meter: Meter::of(server), counts: &mut counts };
    let rows: Vec<_> = profile
        .pick(&FEW_FLEETS[..], &FLEETS)
        .iter()
        .map(|size| {
            fleet.grow_to(*size);
            scene.row(&mut fleet, *size)
        })
        .collect();
    processes_shown::say(part, &rows, &counts);
    processes_shown::draw(part, &rows);
}

struct Scene<'a> {
    profile: Profile,
    meter: Meter,
    counts: &'a mut Counts,
}

impl Scene<'_> {
    fn row(&mut self, fleet: &mut Fleet, size: usize) -> Row {
        fleet.all(&open_lasting());
        let last = self.last(fleet, size);
        let cold = self.cold(fleet, size);
        let found = (size > 1).then(|| self.found(fleet, size));
        let (steady, steady_calls) = self.steady(fleet, size);
        let alone_calls = self.alone(fleet, size);
        Row { processes: size as f64, last, cold, found, steady, steady_calls, alone_calls }
    }

    /// All ask for one key that no process has.
    fn last(&mut self, fleet: &mut Fleet, size: usize) -> f64 {
        let rounds = self.profile.pick(3, 15);
        let mut times: Vec<_> = (0..rounds)
            .map(|round| {
                let done = fleet.all(&ask(vec![format!("last-{size}-{round}")], HOLD_MS));
                self.count_cold(&done, 1);
                self.counts.waited += size as u64 - 1;
                self.counts.pushed += done.iter().map(|done| done.pushed).sum::<u64>();
                last_after_fill(&done) / 1e6
            })
            .collect();
        median(&mut times)
    }

    /// The same for many keys at once.
    fn cold(&mut self, fleet: &mut Fleet, size: usize) -> Cost {
        let before = self.meter.read();
        let done = fleet.all(&ask(keys("cold", size), HOLD_MS));
        let cost = cost(self.meter.since(before), &done);
        self.count_cold(&done, KEYS);
        cost
    }

    /// All but one ask for what that one has computed.
    fn found(&mut self, fleet: &mut Fleet, size: usize) -> Cost {
        let first = fleet.first(&ask(keys("found", size), 0));
        let before = self.meter.read();
        let done = fleet.others(&ask(keys("found", size), 0));
        let cost = cost(self.meter.since(before), &done);
        self.count_cold(&[first], KEYS);
        self.counts.found_calls += sum(&done, |done| done.computed);
        self.counts.errors += sum(&done, |done| done.errors);
        cost
    }

    /// All ask again and again, for keys that go out of date.
    fn steady(&mut self, fleet: &mut Fleet, size: usize) -> (Cost, f64) {
        fleet.all(&open(size, true));
        let before = self.meter.read();
        let done = fleet.all(&self.load());
        let cost = cost(self.meter.since(before), &done);
        self.counts.errors += sum(&done, |done| done.errors);
        let calls = sum(&done, |done| done.computed) as f64;
        // One begins with the load, and one may begin as the load ends.
        let lifetimes = (seconds(&done) * 1e3 / LOAD_TTL_MS as f64).ceil() + 1.0;
        let surplus = calls - lifetimes * LOAD_KEYS as f64;
        self.counts.steady_surplus = self.counts.steady_surplus.max(surplus);
        (cost, calls / seconds(&done))
    }

    /// The same load on processes that share nothing.
    fn alone(&self, fleet: &mut Fleet, size: usize) -> f64 {
        fleet.all(&open(size, false));
        let done = fleet.all(&self.load());
        sum(&done, |done| done.computed) as f64 / seconds(&done)
    }

    fn load(&self) -> Task {
        let seconds = self.profile.pick(1, 4);
        Task::Load { keys: LOAD_KEYS, per_second: LOAD_PER_SECOND, seconds, hold_ms: 5 }
    }

    fn count_cold(&mut self, done: &[Done], keys: u64) {
        self.counts.cold_keys += keys;
        self.counts.cold_calls += sum(done, |done| done.computed);
        self.counts.errors += sum(done, |done| done.errors);
    }
}

/// The cache of the steady load.
fn open(size: usize, shared: bool) -> Task {
    Task::Open { name: format!("load-{size}"), ttl_ms: LOAD_TTL_MS, shared }
}

/// The cache of everything else: nothing goes out of date.
fn open_lasting() -> Task {
    Task::Open { name: "lasting".into(), ttl_ms: 600_000, shared: true }
}

/// From the first question of all to the last answer.
fn seconds(done: &[Done]) -> f64 {
    let from = done.iter().map(|done| done.asked_at).min().unwrap_or_default();
    let to = done.iter().map(|done| done.had_at).max().unwrap_or_default();
    to.saturating_sub(from) as f64 / 1e9
}

fn ask(keys: Vec<String>, hold_ms: u64) -> Task {
    Task::Ask { keys, hold_ms, bytes: 1024 }
}

fn keys(what: &str, size: usize) -> Vec<String> {
    (0..KEYS).map(|key| format!("{what}-{size}-{key}")).collect()
}

fn sum(done: &[Done], count: impl Fn(&Done) -> u64) -> u64 {
    done.iter().map(count).sum()
}

fn cost(spent: Spent, done: &[Done]) -> Cost {
    let requests = sum(done, |done| done.requests) as f64;
    let sent = sum(done, |done| done.commands) as f64;
    let (executed, cpu) = (spent.commands / requests, spent.cpu / requests);
    Cost { sent: sent / requests, executed, cpu }
}
