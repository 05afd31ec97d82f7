//! One process on a Redis, and 64.

use crate::client::{Done, Fleet, Task};
use crate::draw::{Chart, line, points};
use crate::meter::{Meter, Spent};
use crate::profile::Profile;
use crate::redis_support::Server;
use crate::report::{Figure, Part, Role, median};
use crate::values::last_after_fill;

const FLEETS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

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
struct Cost {
    sent: f64,
    executed: f64,
    cpu: f64,
}

struct Row {
    processes: f64,
    /// From the fill until the last process has the value, in ms.
    last: f64,
    cold: Cost,
    /// Another process has computed it. None where there is no other.
    found: Option<Cost>,
    steady: Cost,
    /// Computations a second under the steady load.
    steady_calls: f64,
    /// The same of processes that share nothing.
    alone_calls: f64,
}

/// What must hold however many processes there are.
#[derive(Default)]
struct Counts {
    cold_keys: u64,
    cold_calls: u64,
    /// Computations under the steady load beyond one a key and lifetime.
    steady_surplus: f64,
    found_calls: u64,
    errors: u64,
    waited: u64,
    pushed: u64,
}

pub(crate) fn measure(profile: Profile, server: &Server, part: &mut Part) {
    let (mut fleet, mut counts) = (Fleet::on(server.url()), Counts::default());
    let mut scene = Scene { profile, meter: Meter::of(server), counts: &mut counts };
    let rows: Vec<_> = FLEETS
        .iter()
        .map(|size| {
            fleet.grow_to(*size);
            scene.row(&mut fleet, *size)
        })
        .collect();
    say(part, &rows, &counts);
    draw(part, &rows);
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

    /// All ask for one key that nobody has.
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

fn say(part: &mut Part, rows: &[Row], counts: &Counts) {
    let most = &rows[rows.len() - 1];
    let calls = counts.cold_calls as f64 / counts.cold_keys as f64;
    let figure = |id: &str, says: &str, value, unit, statistic| {
        Figure::new(&format!("scaling.{id}"), says, value, unit, statistic)
    };
    let found = most.found.expect("the largest fleet has more than one process");
    let [cold, all] = ["a cold key that 64 processes ask for at once", "1 to 64 processes"];
    part.figures.extend([
        figure(
            "processes_cold_origin_calls",
            &format!("computations of a cold key, {all}"),
            calls,
            "calls",
            "mean",
        )
        .at_least(1.0)
        .at_most(1.0)
        .or_fail(),
        figure(
            "processes_found_origin_calls",
            "computations of what another process has computed",
            counts.found_calls as f64,
            "calls",
            "count",
        )
        .at_most(0.0)
        .or_fail(),
        figure(
            "processes_steady_surplus",
            "computations under steady load beyond one a key and lifetime, the worst fleet",
            counts.steady_surplus.max(0.0),
            "calls",
            "count",
        )
        .at_most(0.0)
        .or_fail(),
        figure(
            "processes_errors",
            &format!("requests without a value, {all}"),
            counts.errors as f64,
            "requests",
            "count",
        )
        .at_most(0.0)
        .or_fail(),
        figure(
            "processes_pushed_share",
            "processes that waited and were woken by a message, not by a timer",
            counts.pushed as f64 / counts.waited as f64,
            "",
            "share of all rounds",
        )
        .at_least(0.99),
        figure(
            "processes_64_last_ms",
            "from the fill until the last of 64 processes has the value",
            most.last,
            "ms",
            "median of all rounds",
        ),
        figure(
            "processes_64_cold_commands",
            &format!("commands sent for each request, {cold}"),
            most.cold.sent,
            "commands",
            "mean of 20 keys",
        ),
        figure(
            "processes_64_cold_cpu_us",
            &format!("server CPU of each request, {cold}"),
            most.cold.cpu,
            "µs",
            "mean of 20 keys, by INFO cpu",
        ),
        figure(
            "processes_64_found_commands",
            "commands sent for a request that finds what another of 64 processes has computed",
            found.sent,
            "commands",
            "mean of 20 keys",
        ),
        figure(
            "processes_64_steady_commands",
            "commands sent for each request of 64 processes, steady load",
            most.steady.sent,
            "commands",
            "mean",
        ),
        figure(
            "processes_64_steady_cpu_us",
            "server CPU of each request of 64 processes, steady load",
            most.steady.cpu,
            "µs",
            "mean, by INFO cpu",
        ),
    ]);
}

const PROCESSES: (&str, &str) = ("processes on one Redis", "");

fn draw(part: &mut Part, rows: &[Row]) {
    let of = |value: fn(&Row) -> f64| points(rows, |row| (row.processes, value(row)));
    let found = |value: fn(&Cost) -> f64| {
        let rows = rows.iter().filter_map(|row| Some((row.processes, value(&row.found?))));
        rows.collect::<Vec<_>>()
    };
    let chart = Chart {
        id: "scaling.processes",
        title: "From the fill to the last of so many processes",
        caption: "All ask for one cold key at once; one computes, the others wait for its message \
                  from Redis. All of them, and Redis, share the cores of one machine.",
        x: PROCESSES,
        y: ("after the fill", "ms"),
    };
    part.exhibits.push(chart.of(vec![line("the last has it", Role::Ours, of(|row| row.last))]));
    let chart = Chart {
        id: "scaling.processes_commands",
        title: "Commands for each request as the fleet grows",
        caption: "What the processes send, in three situations: a cold key that all ask for at \
                  once; a key that one of the others has computed; and steady load, each process \
                  with 100 requests a second for 10 keys that live one second. What scripts call \
                  inside Redis is not counted, nor the one PING a second by which each process \
                  sees that Redis lives.",
        x: PROCESSES,
        y: ("commands per request", ""),
    };
    part.exhibits.push(chart.of(vec![
        line("cold key", Role::Ours, of(|row| row.cold.sent)),
        line("found in Redis", Role::Ours, found(|cost| cost.sent)),
        line("steady load", Role::Ours, of(|row| row.steady.sent)),
    ]));
    let chart = Chart {
        id: "scaling.processes_executed",
        title: "The same with what the scripts call",
        caption: "Commands that Redis executes for each request, by INFO commandstats: a script \
                  is one command and the commands inside it are more.",
        x: PROCESSES,
        y: ("commands executed per request", ""),
    };
    part.exhibits.push(chart.of(vec![
        line("cold key", Role::Ours, of(|row| row.cold.executed)),
        line("found in Redis", Role::Ours, found(|cost| cost.executed)),
        line("steady load", Role::Ours, of(|row| row.steady.executed)),
    ]));
    let chart = Chart {
        id: "scaling.processes_cpu",
        title: "Server CPU for each request as the fleet grows",
        caption: "User and system time of the Redis process by INFO cpu, in the same three \
                  situations. Below the line of its own situation nothing is saved by sharing: a \
                  cold request is one that waits, and to be told costs what it costs.",
        x: PROCESSES,
        y: ("server CPU per request", "µs"),
    };
    part.exhibits.push(chart.of(vec![
        line("cold key", Role::Ours, of(|row| row.cold.cpu)),
        line("found in Redis", Role::Ours, found(|cost| cost.cpu)),
        line("steady load", Role::Ours, of(|row| row.steady.cpu)),
    ]));
    let chart = Chart {
        id: "scaling.processes_origin",
        title: "Computations a second as the fleet grows",
        caption: "Steady load: each process with 100 requests a second for 10 keys that live one \
                  second. However many processes there are, each key is computed once in its \
                  lifetime. Beside it the same processes without Redis, each with its own cache.",
        x: PROCESSES,
        y: ("computations per second", "1/s"),
    };
    part.exhibits.push(chart.of(vec![
        line("one Redis", Role::Ours, of(|row| row.steady_calls)),
        line("each process alone", Role::Without, of(|row| row.alone_calls)),
    ]));
}
