//! What happens as the number of processes grows: origin calls, wake-ups,
//! messages, and the work of Redis.

use crate::bench::{Bench, line, log, number, table, text};
use crate::plan::{Arrivals, Plan, Strategy};
use crate::queue::{MILLISECOND, Moment, SECOND, seconds};
use crate::report::{Content, Role, Series};
use crate::tally::Tally;
use crate::world::run;

const KEYS: u32 = 4;
const SHARDS: usize = 4;
const CLIENTS_A_PROCESS: f64 = 1000.0;

/// A client asks for one of the keys once in so many seconds.
const PAUSE: f64 = 4.0;

/// Of the message and its envelope: `filled` of `src/remote/redis/subscriber.rs`, in
/// the inbox that `src/remote/redis/names.rs` names, as RESP2 writes it.
const MESSAGE: &str = "*3\r\n$7\r\nmessage\r\n$36\r\nstampede:2:fleet:in:0123456789abcdef\r\n$26\r\n\
                       1Fkeykeyke0123456789abcdef\r\n";

struct Kind {
    name: &'static str,
    role: Role,
    strategy: Strategy,
    op_timeout: Option<Moment>,
    is_far: bool,
    beta: f64,
}

impl Kind {
    const fn new(name: &'static str, role: Role, strategy: Strategy) -> Self {
        Self { name, role, strategy, op_timeout: None, is_far: false, beta: 0.0 }
    }
}

struct Run {
    processes: u32,
    tally: Tally,
    until: Moment,
}

const OURS: usize = 4;
const PATIENT: usize = 5;
const FAR: usize = 6;
const EARLY: usize = 7;

/// Processes start one after the other, as when a new version is rolled out.
const START: Moment = 30 * SECOND;

/// From here on all that is made is made in place of a value that ends.
const AFTER_START: Moment = 45 * SECOND;

fn kinds() -> [Kind; 8] {
    let patient = Some(SECOND);
    [
        Kind::new("no protection", Role::Without, Strategy::Nothing),
        Kind::new("coalescing in each process alone", Role::Other, Strategy::Coalescing),
        Kind::new(
            "shared lock, looking every 10 ms",
            Role::Other,
            Strategy::Polling(10 * MILLISECOND),
        ),
        Kind::new(
            "shared lock, looking every 50 ms",
            Role::Other,
            Strategy::Polling(50 * MILLISECOND),
        ),
        Kind::new("ours", Role::Ours, Strategy::Ours),
        Kind {
            op_timeout: patient,
            ..Kind::new("ours, op_timeout 1 s", Role::Ours, Strategy::Ours)
        },
        Kind {
            op_timeout: patient,
            is_far: true,
            ..Kind::new("ours, op_timeout 1 s, 1 ms network", Role::Ours, Strategy::Ours)
        },
        Kind { beta: 1.0, ..Kind::new("ours, early refresh", Role::Ours, Strategy::Ours) },
    ]
}

pub(crate) fn show(bench: &mut Bench) {
    let kinds = kinds();
    let runs: Vec<Vec<Run>> = kinds.iter().map(|kind| sweep(bench, kind)).collect();
    calls(bench, &kinds, &runs);
    fan_out(bench, &kinds, &runs);
    starts(bench);
    traffic(bench, &runs[PATIENT]);
    work(bench, &kinds, &runs);
}

fn sweep(bench: &Bench, kind: &Kind) -> Vec<Run> {
    let sizes: &[u32] = if bench.is_full {
        &[1, 3, 10, 30, 100, 300, 1000, 3000, 10_000]
    } else {
        &[1, 10, 100, 1000, 10_000]
    };
    // Without protection a large fleet has the most to do, also in here.
    let largest = if bench.is_full || kind.strategy == Strategy::Ours { 10_000 } else { 1000 };
    let sizes = sizes.iter().filter(|processes| **processes <= largest);
    sizes.map(|processes| one(bench, kind, *processes)).collect()
}

fn one(bench: &Bench, kind: &Kind, processes: u32) -> Run {
    let costs = if kind.is_far { bench.costs.on_a_slow_network() } else { bench.costs.clone() };
    let mut plan = Plan::new(kind.strategy, &costs, bench.seed).early(kind.beta);
    plan.start_within = START;
    plan.count_from = AFTER_START;
    plan.processes = processes;
    plan.keys = KEYS;
    plan.shards = SHARDS;
    plan.arrivals = Arrivals::Poisson(CLIENTS_A_PROCESS / PAUSE / f64::from(KEYS));
    plan.op_timeout = kind.op_timeout.unwrap_or(plan.op_timeout);
    plan.until = if bench.is_full { 190 } else { 65 } * SECOND;
    Run { processes, tally: run(&plan), until: plan.until }
}

fn drawn(
    kinds: &[Kind],
    runs: &[Vec<Run>],
    which: impl Fn(usize) -> bool,
    value: impl Fn(&Run) -> Option<f64>,
) -> Vec<Series> {
    let chosen = kinds.iter().zip(runs).enumerate().filter(|(n, _)| which(*n));
    let series = chosen.map(|(_, (kind, runs))| {
        let point = |run: &Run| Some((f64::from(run.processes), value(run)?));
        line(kind.name, kind.role, runs.iter().filter_map(point).collect())
    });
    series.collect()
}

fn found(runs: &[Run], processes: u32) -> Option<&Tally> {
    runs.iter().find(|run| run.processes == processes).map(|run| &run.tally)
}

fn last_of(runs: &[Run], processes: u32) -> &Tally {
    found(runs, processes).expect("each of our sweeps has it")
}

fn calls(bench: &mut Bench, kinds: &[Kind], runs: &[Vec<Run>]) {
    // Nothing where no value ended, as can be with one process and a short run.
    let value =
        |run: &Run| Some(run.tally.calls_a_refresh(AFTER_START)).filter(|calls| *calls > 0.0);
    let series = drawn(kinds, runs, |n| n != FAR, value);
    let caption = "Mean calls each time a value ends, of 4 keys that each of 1,000 clients in \
                   every process asks for once in 4 s; up to 10,000,000 clients. Lifetime 60 s, \
                   origin 200 ms; processes start over 30 s, which is not counted. A line of ours \
                   leaves 1 where so many processes ask one shard in one moment that it cannot \
                   answer all of them within op_timeout (100 ms unless set): then they compute \
                   for themselves. A longer op_timeout ends that, and so does early refresh, \
                   which spreads the looks over time.";
    let content = Content::Lines {
        x: log("processes", ""),
        y: log("origin calls per refresh of a key", "calls"),
        series,
    };
    bench.exhibit("calls", "Origin calls as the fleet grows", caption, content);
    for (n, name) in [
        (0, "nothing"),
        (1, "coalescing"),
        (2, "polling"),
        (OURS, "ours"),
        (PATIENT, "patient"),
        (EARLY, "early"),
    ] {
        for processes in [1000, 10_000] {
            let Some(tally) = found(&runs[n], processes) else { continue };
            let id = format!("calls_{name}_{processes}");
            let (says, value) = (
                format!(
                    "calls for each refresh of a key, {}, {processes} processes",
                    kinds[n].name
                ),
                tally.calls_a_refresh(AFTER_START),
            );
            bench.figure(&id, &says, value, "calls");
        }
    }
    let most =
        |n: usize, processes| f64::from(last_of(&runs[n], processes).most_calls(AFTER_START));
    let says = "most calls for one refresh, ours, 1,000 processes";
    bench.must("most_calls_1000", says, most(OURS, 1000), "calls", 1.0, 1.0);
    let says = "largest fleet simulated with one call for each refresh, op_timeout 100 ms";
    let up_to = f64::from(one_call_up_to(&runs[OURS]));
    bench.figure("one_call_up_to", says, up_to, "processes");
    // Whether it stays 1 depends on measured times: no more than a goal.
    let says = "most calls for one refresh, ours with op_timeout 1 s, 10,000 processes";
    bench.goal("most_calls_10000", says, most(PATIENT, 10_000), "calls", 1.0);
    let says = "most calls for one refresh, ours with op_timeout 100 ms, 10,000 processes";
    bench.must("most_calls_10000_hasty", says, most(OURS, 10_000), "calls", 1.0, 10_000.0);
}

/// The largest fleet, of those that were simulated, before the first in which
/// a key was computed twice.
fn one_call_up_to(runs: &[Run]) -> u32 {
    let once = runs.iter().take_while(|run| run.tally.most_calls(AFTER_START) <= 1);
    once.map(|run| run.processes).max().unwrap_or_default()
}

/// All processes ask for all keys in one moment, of a Redis that is empty.
fn starts(bench: &mut Bench) {
    let mut rows = Vec::new();
    for processes in [300, 1000, 3000, 10_000] {
        let [hasty, patient] = [100, 1000].map(|millis| {
            let mut plan = Plan::new(Strategy::Ours, &bench.costs, bench.seed);
            (plan.processes, plan.keys, plan.shards) = (processes, KEYS, SHARDS);
            plan.arrivals = Arrivals::Poisson(CLIENTS_A_PROCESS / PAUSE / f64::from(KEYS));
            plan.op_timeout = millis * MILLISECOND;
            plan.until = 10 * SECOND;
            f64::from(run(&plan).most_calls(0))
        });
        let processes = f64::from(processes);
        let says = format!("most calls of a key, {processes} processes start at once, op_timeout");
        for (name, calls) in [("100 ms", hasty), ("1 s", patient)] {
            let id = format!("start_{processes}_{}", name.replace(' ', "_"));
            bench.must(&id, &format!("{says} {name}"), calls, "calls", 1.0, processes);
        }
        rows.push(vec![number(processes), number(hasty), number(patient)]);
    }
    let columns =
        ["processes", "most calls of a key, op_timeout 100 ms", "most calls of a key, 1 s"];
    let caption = "The worst moment: all processes begin to ask an empty Redis for the same 4 keys \
                   at once. In this model a shard that cannot answer all of them within op_timeout is \
                   taken for one that is away, and each process computes for itself, once. The \
                   cache waits longer while answers are slow: see tests/simulation/fleet.rs.";
    bench.exhibit("starts", "A whole fleet starts at once", caption, table(&columns, rows));
}

fn fan_out(bench: &mut Bench, kinds: &[Kind], runs: &[Vec<Run>]) {
    let ours = |n: usize| n == PATIENT || n == FAR;
    let last = |run: &Run| run.tally.fan_out_ms(100);
    let mut series = drawn(kinds, runs, |n| ours(n) || n == 2 || n == 3, last);
    for (percent, name) in [(50, "half of them"), (99, "99 of 100")] {
        let value = |run: &Run| run.tally.fan_out_ms(percent);
        for mut added in drawn(kinds, runs, |n| n == PATIENT, value) {
            added.name = format!("{}: {name}", added.name);
            series.push(added);
        }
    }
    let caption = "From the end of the computation until the last waiting process has the value; \
                   with op_timeout 1 s also until half of those that wait have it, and 99 of 100. \
                   Each point is the median over the values that were waited for. One shard sends \
                   all messages and answers all looks that follow: time in proportion to the \
                   processes. Where the first looks of so many processes take the shard longer \
                   than the computation, the fill has to wait for its turn as well.";
    let content =
        Content::Lines { x: log("processes", ""), y: log("time after the fill", "ms"), series };
    bench.exhibit("fan_out", "How long a fill takes to reach all processes", caption, content);
    for processes in [1000, 10_000] {
        let tally = last_of(&runs[PATIENT], processes);
        let value = tally.fan_out_ms(100).expect("processes wait for each other");
        let says = format!("fill until the last of {processes} processes has it, median of values");
        bench.figure(&format!("fan_out_last_{processes}"), &says, value, "ms");
    }
    let last = |n| last_of(&runs[PATIENT], n).fan_out_ms(100).expect("processes wait");
    let says = "the last of 10,000 processes to the last of 1,000: 10 is linear";
    bench.goal("fan_out_growth", says, last(10_000) / last(1000), "", 12.0);
}

fn traffic(bench: &mut Bench, runs: &[Run]) {
    let rows = runs.iter().map(|run| {
        let messages = messages_per_fill(&run.tally);
        let publishing = messages * seconds(bench.costs.publish) * 1e3;
        vec![
            number(f64::from(run.processes)),
            number(messages),
            number(messages * MESSAGE.len() as f64),
            number(publishing),
            number(messages * (SHARDS - 1) as f64),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let columns = [
        "processes",
        "messages per fill",
        "bytes per fill",
        "ms of the shard per fill",
        "messages on the bus of a cluster",
    ];
    let caption = "A process that waits is sent one message by the fill; who does not wait is \
                   sent none. The last column is what a Redis Cluster of 4 nodes sends between \
                   its nodes besides; its cost is not part of the model, since nobody measured \
                   it. op_timeout 1 s.";
    bench.exhibit("traffic", "Messages for one fill", caption, table(&columns, rows));
    let tally = last_of(runs, 10_000);
    let messages = messages_per_fill(tally);
    let says = "messages for one fill, 10,000 processes";
    bench.figure("messages_10000", says, messages, "messages");
    let bytes = messages * MESSAGE.len() as f64;
    bench.figure("bytes_10000", "bytes of messages for one fill, 10,000 processes", bytes, "bytes");
}

/// None where nothing was filled: a single process may find all it needs in its memory.
fn messages_per_fill(tally: &Tally) -> f64 {
    tally.messages as f64 / tally.fills.max(1) as f64
}

/// Server CPU for each request of a client, in microseconds.
fn cpu_a_request(run: &Run) -> f64 {
    let rate = CLIENTS_A_PROCESS / PAUSE * f64::from(run.processes);
    run.tally.server_seconds() * 1e6 / (rate * seconds(run.until))
}

fn work(bench: &mut Bench, kinds: &[Kind], runs: &[Vec<Run>]) {
    let series = drawn(kinds, runs, |n| n != FAR && n != PATIENT, |run| Some(cpu_a_request(run)));
    let caption = "Server CPU of all shards, divided by all requests of clients: hits in the \
                   processes' own memory included, which cost Redis nothing. 4 keys, 4 shards, \
                   lifetime 60 s.";
    let content = Content::Lines {
        x: log("processes", ""),
        y: log("server CPU per request", "µs"),
        series: series.into_iter().filter(|line| !line.points.is_empty()).collect(),
    };
    bench.exhibit("redis_cpu", "The work of Redis for one request", caption, content);
    let rows = kinds.iter().zip(runs).filter_map(|(kind, runs)| {
        let run = runs.last().filter(|run| run.processes == 10_000)?;
        Some(vec![
            text(kind.name),
            number(cpu_a_request(run)),
            number(run.tally.busiest(run.until) * 100.0),
            number(run.tally.waited / run.tally.fills.max(1) as f64),
            number(run.tally.waited_for / run.tally.waited.max(1.0) * 1e3),
            number(run.tally.timeouts as f64),
        ])
    });
    let rows: Vec<_> = rows.collect();
    let columns = [
        "10,000 processes",
        "server CPU per request, µs",
        "busiest shard, %",
        "requests that wait, per fill",
        "their mean wait, ms",
        "time-outs",
    ];
    let caption = "The same at the right end of the lines. The busiest shard is the mean over the \
                   whole time: at an expiry it has work without a pause.";
    bench.exhibit("work", "10,000 processes", caption, table(&columns, rows));
    let run = runs[PATIENT].last().expect("a sweep is not empty");
    let (cpu, busiest) = (cpu_a_request(run), run.tally.busiest(run.until) * 100.0);
    bench.figure("cpu_a_request_10000", "server CPU per request, 10,000 processes", cpu, "µs");
    bench.figure(
        "busiest_10000",
        "time at work of the busiest shard, 10,000 processes",
        busiest,
        "%",
    );
}
