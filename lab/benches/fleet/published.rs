//! A count that is published elsewhere, and whether a seed has one course.

use crate::bench::{Bench, linear};
use crate::plan::{Arrivals, Plan, Strategy};
use crate::queue::{MILLISECOND, SECOND};
use crate::report::{BarSeries, Content, Role};
use crate::world::run;

const PROCESSES: u32 = 5;
const REQUESTS: u32 = 200;

pub(crate) fn show(bench: &mut Bench) {
    let kinds = [
        ("nothing", Strategy::Nothing, Role::Without, 1000.0),
        ("coalescing", Strategy::Coalescing, Role::Other, 5.0),
        ("lock", Strategy::Ours, Role::Ours, 1.0),
    ];
    let mut values = Vec::new();
    for (name, strategy, role, expected) in kinds {
        let mut plan = Plan::new(strategy, &bench.costs, bench.seed);
        plan.processes = PROCESSES;
        plan.arrivals = Arrivals::Waves(vec![MILLISECOND], REQUESTS);
        plan.until = 10 * SECOND;
        let calls = run(&plan).calls() as f64;
        let says = format!("calls of 5 processes with 200 requests each at once: {name}");
        bench.must(&format!("published.{name}"), &says, calls, "calls", expected, expected);
        values.push(BarSeries { name: name.into(), role, values: vec![Some(calls)] });
    }
    let caption = "5 processes with 200 requests each for a cold key, all at once: the published \
                   counts are 1000, 5 and 1.";
    let content = Content::Bars {
        value: linear("origin calls", "calls"),
        categories: vec!["5 × 200 requests".into()],
        series: values,
    };
    bench.exhibit("published", "A published count, again", caption, content);
}

pub(crate) fn one_seed_one_course(bench: &mut Bench) {
    let plan = |seed| {
        let mut plan = Plan::new(Strategy::Ours, &bench.costs, seed).early(1.0);
        (plan.processes, plan.keys, plan.shards) = (20, 8, 2);
        plan.faults = vec![crate::plan::Fault::CutOff { processes: 2, from: 30 * SECOND }];
        plan.until = 200 * SECOND;
        plan
    };
    let [first, again, other] =
        [plan(bench.seed), plan(bench.seed), plan(bench.seed ^ 1)].map(|plan| run(&plan));
    let same = f64::from(u8::from(first == again));
    let says =
        "two runs with one seed have the same outcome in everything that is counted: 1 is yes";
    bench.must("same_seed_same_outcome", says, same, "", 1.0, 1.0);
    let differs = f64::from(u8::from(first != other));
    let says = "another seed has another outcome: 1 is yes";
    bench.must("other_seed_other_outcome", says, differs, "", 1.0, 1.0);
}
