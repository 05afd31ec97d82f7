//! What happens as the number of processes grows: origin calls, wake-ups,
//! messages, and the work of Redis.

use crate::bench::{Bench, line, log, number, table, text};
use crate::plan::{Arrivals, Plan, Strategy};
use crate::queue::{MILLISECOND, Moment, SECOND, seconds};
use crate::report::{Content, Role, Series};
use crate::tally::{Tally, percentile_ms};
use crate::world::run;

const KEYS: u32 = 4;
const SHARDS: usize = 4;
const CLIENTS_A_PROCESS: f64 = 1000.0;

/// A client asks for one of the keys once in so many seconds.
const PAUSE: f64 = 4.0;

/// Of the message and its envelope: `filled` of `src/remote/redis/wake.rs`, in
/// the inbox that `src/remote/redis/names.rs` names, as RESP2 writes it.
const MESSAGE: &str = "*3\r\n$7\r\nmessage\r\n$36\r\nstampede:1:fleet:in:0123456789abcdef\r\n$26\r\n\
                       1Fkeykeyke0123456789abcdef\r\n";

struct Kind {
    name: &'static str,
    role: Role,
    strategy: Strategy,
    op_timeout: Option<Moment>,
    is_far: bool,
}

impl Kind {
    const fn new(name: &'static str, role: Role, strategy: Strategy) -> Self {
        Self { name, role, strategy, op_timeout: None, is_far: false }
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

fn kinds() -> [Kind; 7] {
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
    ]
}

pub(crate) fn show(bench: &mut Bench) {
    let kinds = kinds();
    let runs: Vec<Vec<Run>> = kinds.iter().map(|kind| sweep(bench, kind)).collect();
    calls(bench, &kinds, &runs);
    fan_out(bench, &kinds, &runs);
    traffic(bench, &runs[PATIENT]);
    work(bench, &kinds, &runs);
}

fn sweep(bench: &Bench, kind: &Kind) -> Vec<Run> {
    let sizes: &[u32] = if bench.is_full {
        &[1, 3, 10, 30, 100, 300, 1000, 3000, 10_000]
    } else {
        &[1, 10, 100, 1000, 10_000]
    };
    sizes.iter().map(|processes| one(bench, kind, *processes)).collect()
}

fn one(bench: &Bench, kind: &Kind, processes: u32) -> Run {
    let costs = if kind.is_far { bench.costs.on_a_slow_network() } else { bench.costs.clone() };
    let mut plan = Plan::new(kind.strategy, &costs, bench.seed);
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

fn last_of(runs: &[Run], processes: u32) -> &Tally {
    let run = runs.iter().find(|run| run.processes == processes);
    &run.expect("every sweep has it").tally
}

fn calls(bench: &mut Bench, kinds: &[Kind], runs: &[Vec<Run>]) {
    let series = drawn(kinds, runs, |n| n != FAR, |run| Some(run.tally.calls_a_refresh(0)));
    let caption = "Mean calls for each time a value has to be made, of 4 keys that each of 1,000 \
                   clients in every process asks for once in 4 s; up to 10,000,000 clients. \
                   Lifetime 60 s, origin 200 ms. Where our line leaves 1, so many processes ask \
                   one shard at once that it does not answer all of them within op_timeout (100 \
                   ms unless set), and they compute for themselves.";
    let content = Content::Lines {
        x: log("processes", ""),
        y: log("origin calls per refresh of a key", "calls"),
        series,
    };
    bench.exhibit("calls", "Origin calls as the fleet grows", caption, content);
    for (n, name) in
        [(0, "nothing"), (1, "coalescing"), (2, "polling"), (OURS, "ours"), (PATIENT, "patient")]
    {
        for processes in [1000, 10_000] {
            let tally = last_of(&runs[n], processes);
            let id = format!("calls_{name}_{processes}");
            let (says, value) = (
                format!(
                    "calls for each refresh of a key, {}, {processes} processes",
                    kinds[n].name
                ),
                tally.calls_a_refresh(0),
            );
            bench.figure(&id, &says, value, "calls");
        }
    }
    let most = |n: usize, processes| f64::from(last_of(&runs[n], processes).most_calls(0));
    let says = "most calls for one refresh, ours, 1,000 processes";
    bench.must("most_calls_1000", says, most(OURS, 1000), "calls", 1.0, 1.0);
    // Whether it stays 1 depends on measured times: no more than a goal.
    let says = "most calls for one refresh, ours with op_timeout 1 s, 10,000 processes";
    bench.goal("most_calls_10000", says, most(PATIENT, 10_000), "calls", 1.0);
    let says = "most calls for one refresh, ours with op_timeout 100 ms, 10,000 processes";
    bench.must("most_calls_10000_hasty", says, most(OURS, 10_000), "calls", 1.0, 10_000.0);
}

fn fan_out(bench: &mut Bench, kinds: &[Kind], runs: &[Vec<Run>]) {
    let ours = |n: usize| n == PATIENT || n == FAR;
    let last = |run: &Run| percentile_ms(&run.tally.last, 50);
    let mut series = drawn(kinds, runs, |n| ours(n) || n == 2 || n == 3, last);
    for (percent, name) in [(50, "ours, op_timeout 1 s: median process"), (99, "the same: p99")] {
        let value = |run: &Run| percentile_ms(&run.tally.fan_out, percent);
        for mut added in drawn(kinds, runs, |n| n == PATIENT, value) {
            added.name = name.into();
            series.push(added);
        }
    }
    let caption = "From the end of the computation until the last waiting process has the value \
                   (median over refreshes), and until the median and the 99th of 100 have it. One \
                   shard sends all messages and answers all looks that follow, so it grows in a \
                   straight line with the processes.";
    let content =
        Content::Lines { x: log("processes", ""), y: log("time after the fill", "ms"), series };
    bench.exhibit("fan_out", "How long a fill takes to reach everybody", caption, content);
    for processes in [1000, 10_000] {
        let tally = last_of(&runs[PATIENT], processes);
        let value = percentile_ms(&tally.last, 50).unwrap_or_default();
        let says = format!("fill until the last of {processes} processes has it, median refresh");
        bench.figure(&format!("fan_out_last_{processes}"), &says, value, "ms");
    }
    let last = |n| percentile_ms(&last_of(&runs[PATIENT], n).last, 50).unwrap_or_default();
    let says = "the last of 10,000 processes to the last of 1,000: 10 is linear";
    bench.goal("fan_out_growth", says, last(10_000) / last(1000), "", 12.0);
}

fn traffic(bench: &mut Bench, runs: &[Run]) {
    let rows = runs.iter().map(|run| {
        let messages = run.tally.messages as f64 / run.tally.fills as f64;
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
    let messages = tally.messages as f64 / tally.fills as f64;
    let says = "messages for one fill, 10,000 processes";
    bench.figure("messages_10000", says, messages, "messages");
    let bytes = messages * MESSAGE.len() as f64;
    bench.figure("bytes_10000", "bytes of messages for one fill, 10,000 processes", bytes, "bytes");
}

/// Server CPU for each request of a client, in microseconds.
fn cpu_a_request(run: &Run) -> f64 {
    let rate = CLIENTS_A_PROCESS / PAUSE * f64::from(run.processes);
    run.tally.server_seconds() * 1e6 / (rate * seconds(run.until))
}

fn work(bench: &mut Bench, kinds: &[Kind], runs: &[Vec<Run>]) {
    let series = drawn(kinds, runs, |n| n != FAR, |run| Some(cpu_a_request(run)));
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
        let run = runs.last()?;
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
