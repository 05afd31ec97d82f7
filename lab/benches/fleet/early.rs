//! Early refresh: against its closed forms, and how many requests wait.

use std::time::Duration;

use crate::bench::{Bench, number, table, text};
use crate::plan::{Arrivals, Plan, Strategy};
use crate::queue::{MILLISECOND, SECOND};
use crate::tally::Tally;
use crate::world::run;

const EULER_GAMMA: f64 = 0.577_215_664_9;

/// Reads of the key in the whole fleet, in a second.
const READS: f64 = 200.0;

const DELTA: f64 = 0.5;
const LIFETIME: u64 = 60;

/// How far the simulation may be from the closed form.
const CALLS_WITHIN: f64 = 0.1;
const LEAD_WITHIN: f64 = 0.05;

pub(crate) fn show(bench: &mut Bench) {
    let mut rows = Vec::new();
    for beta in [0.0, 1.0, 2.0] {
        let alone = refreshes(bench, Strategy::Nothing, 1, beta, 0);
        let apart = refreshes(bench, Strategy::Coalescing, 100, beta, 0);
        let ours = refreshes(bench, Strategy::Ours, 100, beta, 0);
        if beta > 0.0 {
            closed_forms(bench, beta, &alone, "one_process");
            closed_forms(bench, beta, &apart, "fleet");
        }
        let says = format!("most calls for one refresh with the lease, beta {beta}, 100 processes");
        let most = f64::from(ours.most_calls(SECOND));
        bench.must(&format!("early.lease_calls_beta_{beta}"), &says, most, "calls", 1.0, 1.0);
        rows.push(row("1 process, nothing coalesced", beta, &alone));
        rows.push(row("100 processes, no lease", beta, &apart));
        rows.push(row("100 processes, the lease", beta, &ours));
    }
    let stale = refreshes(bench, Strategy::Ours, 100, 0.0, LIFETIME);
    rows.push(row("the lease, stale_for as long as the ttl", 0.0, &stale));
    let columns = [
        "who",
        "beta",
        "calls per refresh",
        "without a lease it is e^(1/beta)",
        "mean lead, s",
        "closed form, s",
        "requests that wait, per refresh",
        "their mean wait, ms",
    ];
    let caption = "A key that 200 readers a second want, made in 500 ms, lifetime 60 s. Without \
                   early refresh (beta 0) all who come during the computation wait. With it, one \
                   reader draws the refresh while the old value is still served: only those who \
                   wait for a look into Redis are left. Without a lease several draw it.";
    bench.exhibit(
        "early",
        "Early refresh: calls, lead, and who waits",
        caption,
        table(&columns, rows),
    );
}

fn refreshes(bench: &Bench, strategy: Strategy, processes: u32, beta: f64, stale: u64) -> Tally {
    let mut plan = Plan::new(strategy, &bench.costs, bench.seed).early(beta);
    plan.processes = processes;
    plan.arrivals = Arrivals::Poisson(READS / f64::from(processes));
    plan.ttl = Duration::from_secs(LIFETIME);
    plan.stale_for = Duration::from_secs(stale);
    plan.jitter = 0.0;
    plan.origin = 500 * MILLISECOND;
    let cycles = if bench.is_full { 3000 } else { 800 };
    plan.until = cycles * LIFETIME * SECOND;
    run(&plan)
}

/// By how much the first of them leads the end: the mean of a Gumbel
/// distribution.
fn expected_lead(beta: f64) -> f64 {
    let scale = beta * DELTA;
    scale * ((READS * scale).ln() + EULER_GAMMA)
}

fn closed_forms(bench: &mut Bench, beta: f64, tally: &Tally, who: &str) {
    let calls = tally.calls_a_refresh(SECOND) / (1.0 / beta).exp();
    let says = format!("calls without a lease to e^(1/beta), beta {beta}, {who}");
    let id = format!("early.calls_{who}_beta_{beta}");
    bench.must(&id, &says, calls, "", 1.0 - CALLS_WITHIN, 1.0 + CALLS_WITHIN);
    let lead = tally.mean_lead(SECOND) / expected_lead(beta);
    let says = format!("mean lead to its closed form, beta {beta}, {who}");
    let id = format!("early.lead_{who}_beta_{beta}");
    bench.must(&id, &says, lead, "", 1.0 - LEAD_WITHIN, 1.0 + LEAD_WITHIN);
}

fn row(who: &str, beta: f64, tally: &Tally) -> Vec<crate::report::Cell> {
    let refreshes: usize = tally.refreshes.iter().map(Vec::len).sum();
    let closed = |value: f64| if beta > 0.0 { number(value) } else { text("-") };
    vec![
        text(who),
        number(beta),
        number(tally.calls_a_refresh(SECOND)),
        closed((1.0 / beta).exp()),
        number(tally.mean_lead(SECOND)),
        closed(expected_lead(beta)),
        number(tally.waited / refreshes as f64),
        number(tally.waited_for / tally.waited.max(1.0) * 1e3),
    ]
}
