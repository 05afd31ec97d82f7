//! What the scenarios found, to look at.

use super::lab::Run;
use super::report::{Axis, Cell, Content, Exhibit, Role, Scale, Series};
use super::scenario::Found;
use super::tally::Tally;

/// A count of calls is for this long, in seconds.
const SLICE: f64 = 0.1;
/// For a chart to show that no call follows.
const A_LITTLE: f64 = 0.5;

const PERCENTILES: [f64; 14] =
    [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.8, 99.9, 99.95, 99.99];

pub(crate) fn all(found: &[Found]) -> Vec<Exhibit> {
    let charts = found.iter().filter(|found| found.has_charts);
    let charts = charts.flat_map(|found| [calls(found), waits(found)]);
    std::iter::once(table(found)).chain(charts).collect()
}

fn table(found: &[Found]) -> Exhibit {
    let columns = [
        "scenario",
        "requests",
        "origin calls",
        "origin calls without",
        "errors",
        "errors without",
        "stuck",
        "stuck without",
        "p50 ms",
        "p50 ms without",
        "p99 ms",
        "p99 ms without",
        "longest ms",
        "longest ms without",
        "hung up",
        "sent late",
    ];
    Exhibit {
        id: "load.scenarios".into(),
        title: "What the origin and the clients have to bear".into(),
        caption: "Each line is a load at a caching proxy (an example of this crate) in front of \
                  an origin that works on few requests at a time; each “without” is the same \
                  load straight at such an origin. Waits count from the moment that a request \
                  was meant to be sent, whatever became of those before it; one that is stuck \
                  counts with its deadline."
            .into(),
        content: Content::Table {
            columns: columns.map(str::to_owned).into(),
            rows: found.iter().map(row).collect(),
        },
    }
}

fn row(found: &Found) -> Vec<Cell> {
    let (ours, without) = (&found.ours, &*found.without);
    let pair = |of: fn(&Run) -> f64| [of(ours), of(without)];
    let mut numbers = vec![found.requests as f64];
    numbers.extend(pair(|run| run.calls.len() as f64));
    numbers.extend(pair(|run| run.tally.errors as f64));
    numbers.extend(pair(|run| run.tally.stuck as f64));
    numbers.extend(pair(|run| run.tally.percentile(50.0)));
    numbers.extend(pair(|run| run.tally.percentile(99.0)));
    numbers.extend(pair(|run| run.tally.longest()));
    numbers.extend([ours.tally.hung_up as f64, ours.tally.late as f64]);
    let numbers = numbers.into_iter().map(Cell::Number);
    std::iter::once(Cell::Text(found.title.into())).chain(numbers).collect()
}

fn calls(found: &Found) -> Exhibit {
    let calls = [&found.ours, &*found.without].into_iter().flat_map(|run| &run.calls);
    let until = calls.map(|call| call.at.as_secs_f64()).fold(0.0, f64::max) + A_LITTLE;
    let series = |name: &str, role, run: &Run| Series {
        name: name.into(),
        role,
        points: slices(run, until),
        steps: true,
    };
    Exhibit {
        id: format!("load.{}.calls_over_time", found.name),
        title: format!("Calls of the origin: {}", found.title),
        caption: format!(
            "{} The origin counts each call when it comes; a step is 100 ms.",
            found.story
        ),
        content: Content::Lines {
            x: Axis::new("since the first request", "s", Scale::Linear),
            y: Axis::new("calls in 100 ms", "calls", Scale::Linear),
            series: vec![
                series("with the layer", Role::Ours, &found.ours),
                series("without", Role::Without, &found.without),
            ],
        },
    }
}

/// The calls in each slice of time, until a little after the last of both runs.
fn slices(run: &Run, until: f64) -> Vec<(f64, f64)> {
    let mut counts = vec![0_usize; (until / SLICE) as usize + 1];
    let last = counts.len() - 1;
    for call in &run.calls {
        counts[((call.at.as_secs_f64() / SLICE) as usize).min(last)] += 1;
    }
    counts.iter().enumerate().map(|(n, &count)| (n as f64 * SLICE, count as f64)).collect()
}

fn waits(found: &Found) -> Exhibit {
    let series = |name: &str, role, run: &Run| Series {
        name: name.into(),
        role,
        points: curve(&run.tally),
        steps: false,
    };
    Exhibit {
        id: format!("load.{}.latency", found.name),
        title: format!("How long clients wait: {}", found.title),
        caption: format!(
            "{} So many of 100 requests wait no longer than the line says, from the moment that \
             they were meant to be sent.",
            found.story
        ),
        content: Content::Lines {
            x: Axis::new("of 100 requests", "", Scale::Percentile),
            y: Axis::new("wait", "ms", Scale::Log),
            series: vec![
                series("with the layer", Role::Ours, &found.ours),
                series("without", Role::Without, &found.without),
            ],
        },
    }
}

/// As far as there are requests beyond a percentile.
fn curve(tally: &Tally) -> Vec<(f64, f64)> {
    let waited = tally.waited() as f64;
    let known = PERCENTILES.iter().filter(|percent| (100.0 - **percent) * waited >= 100.0);
    // Less than a microsecond is not measured, and a logarithm of nothing is none.
    known.map(|&percent| (percent, tally.percentile(percent).max(0.001))).collect()
}
