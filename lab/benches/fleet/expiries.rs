//! Many keys that were filled together: whether they also end together.

use crate::bench::{Bench, linear};
use crate::plan::{Arrivals, Plan, Strategy};
use crate::queue::{Moment, SECOND};
use crate::report::{Content, Role, Series};
use crate::world::run;

/// The cold start is not what is shown.
const AFTER_START: usize = 30;

pub(crate) fn show(bench: &mut Bench) {
    let keys = if bench.is_full { 10_000 } else { 2000 };
    let until = if bench.is_full { 600 } else { 240 } * SECOND;
    let mut peaks = Vec::new();
    let mut series = Vec::new();
    for (jitter, role) in [(0.0, Role::Without), (0.1, Role::Ours)] {
        let slices = calls_by_second(bench, keys, jitter, until);
        peaks.push(slices.iter().skip(AFTER_START).max().copied().unwrap_or_default());
        let points = (0_u32..).zip(&slices).skip(AFTER_START);
        let points = points.map(|(at, calls)| (f64::from(at), f64::from(*calls))).collect();
        series.push(Series { name: format!("jitter {jitter}"), role, points, steps: true });
    }
    let caption = format!(
        "{keys} keys are filled within the first second, which is left out here, and live 60 s; \
         10 processes want each of them once a second. Without jitter all of them end in one \
         moment, again and again. With 0.1, the default, each life is shortened by up to a tenth, \
         and they drift apart."
    );
    let content = Content::Lines {
        x: linear("time since the start", "s"),
        y: linear("origin calls in a second", "calls"),
        series,
    };
    bench.exhibit("expiries", "Keys that were filled together", &caption, content);
    let [without, with] = *peaks.first_chunk().expect("two runs");
    let (without, with) = (f64::from(without), f64::from(with));
    bench.figure(
        "peak_without_jitter",
        "most origin calls in a second, jitter 0",
        without,
        "calls",
    );
    bench.figure("peak_with_jitter", "most origin calls in a second, jitter 0.1", with, "calls");
    let says = "the peak of origin calls with jitter 0.1 to the one without";
    bench.must("peak_ratio", says, with / without, "", 0.0, 0.5);
}

fn calls_by_second(bench: &Bench, keys: u32, jitter: f64, until: Moment) -> Vec<u32> {
    let mut plan = Plan::new(Strategy::Ours, &bench.costs, bench.seed);
    plan.processes = 10;
    plan.keys = keys;
    plan.shards = 4;
    plan.jitter = jitter;
    plan.arrivals = Arrivals::Poisson(1.0);
    plan.until = until;
    let mut slices = run(&plan).calls_in_slices(1, until);
    // The last one is cut off.
    slices.pop();
    slices
}
