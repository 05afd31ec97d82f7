//! What a frozen shard, dead leaders and a partition cost in origin calls.

use std::time::Duration;

use crate::bench::{Bench, number, table, text};
use crate::plan::{Arrivals, Fault, Plan, Strategy};
use crate::queue::{Moment, SECOND, seconds};
use crate::report::Cell;
use crate::tally::Tally;
use crate::world::run;

const FROM: Moment = 20 * SECOND;

/// Two lives of a value do not begin within this share of a lifetime.
const SHORTEST_LIFE: f64 = 0.9;

pub(crate) fn show(bench: &mut Bench) {
    let rows = vec![
        frozen(bench, 1, "frozen_shard", "one shard of 4 frozen for 10 s"),
        frozen(bench, 0, "frozen_probed_shard", "the same, the shard that is probed"),
        killed(bench),
        cut_off(bench),
    ];
    let columns = [
        "what goes wrong",
        "processes",
        "most calls of a key within a shortest life",
        "bound",
        "longest wait, s",
        "time-outs",
    ];
    let caption = "Origin calls of any key within 0.9 of a lifetime, the shortest that jitter \
                   leaves of it, from the failure on, and what the protocol allows. Each process \
                   has one breaker for all shards: while one shard is frozen, processes compute \
                   keys of the others for themselves too.";
    bench.exhibit("failures", "Failures", caption, table(&columns, rows));
}

fn plan(bench: &Bench, processes: u32, ttl: u64) -> Plan {
    let mut plan = Plan::new(Strategy::Ours, &bench.costs, bench.seed);
    plan.processes = processes;
    plan.keys = 16;
    plan.shards = 4;
    plan.arrivals = Arrivals::Poisson(5.0);
    plan.ttl = Duration::from_secs(ttl);
    plan.until = 60 * SECOND;
    plan
}

fn judged(bench: &mut Bench, id: &str, says: &str, plan: &Plan, bound: u32) -> (Tally, Vec<Cell>) {
    let tally = run(plan);
    let life = plan.ttl.mul_f64(SHORTEST_LIFE).as_nanos();
    let life = Moment::try_from(life).expect("a lifetime in 64 bits");
    let most = tally.most_calls_within(life, FROM) as f64;
    let what = format!("most calls of a key within a shortest life: {says}");
    bench.must(&format!("failures.{id}_calls"), &what, most, "calls", 1.0, f64::from(bound));
    let row = vec![
        text(says),
        number(f64::from(plan.processes)),
        number(most),
        number(f64::from(bound)),
        number(seconds(tally.longest_wait)),
        number(tally.timeouts as f64),
    ];
    (tally, row)
}

/// One for each process, and one under a lease when the shard is back.
fn frozen(bench: &mut Bench, shard: usize, id: &str, says: &str) -> Vec<Cell> {
    let processes = if bench.is_full { 1000 } else { 200 };
    let mut plan = plan(bench, processes, 5);
    plan.faults = vec![Fault::Freeze { shard, from: FROM, lasts: 10 * SECOND }];
    let (tally, row) = judged(bench, id, says, &plan, processes + 1);
    let limit = seconds(2 * plan.op_timeout + plan.origin) + 1.0;
    let what = format!("longest wait of a request: {says}");
    let wait = seconds(tally.longest_wait);
    bench.goal(&format!("failures.{id}_wait"), &what, wait, "s", limit);
    row
}

fn killed(bench: &mut Bench) -> Vec<Cell> {
    let mut plan = plan(bench, 100, 60);
    plan.until = 150 * SECOND;
    plan.faults = (0..8).map(|key| Fault::KillLeader { key, from: FROM }).collect();
    let says = "8 leaders killed at work";
    let (tally, row) = judged(bench, "killed", says, &plan, 2);
    let killed = tally.killed.len() as f64;
    bench.must("failures.killed", "leaders that were killed", killed, "leaders", 8.0, 8.0);
    let what = "longest wait of a request: a lease, a timer and a computation";
    let wait = seconds(tally.longest_wait);
    bench.goal("failures.killed_wait", what, wait, "s", 1.1 * 5.0 + 0.2 + 0.1);
    row
}

fn cut_off(bench: &mut Bench) -> Vec<Cell> {
    let processes = 1000;
    let mut plan = plan(bench, processes, 10);
    let lost = processes / 100;
    plan.faults = vec![Fault::CutOff { processes: lost, from: FROM }];
    let says = "1 % of the processes cut off from Redis";
    judged(bench, "cut_off", says, &plan, lost + 1).1
}
