//! The picture of README.md: goodput over time, of one run each.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use crate::contestants::Contestant;
use crate::load::{FLUSH, Run, Zipf};
use crate::report::{Axis, Content, Exhibit, Figure, Part, Role, Scale, Series, page};

/// The pictures, and which of them is dark.
const NAMES: [(&str, bool); 2] = [("front-recovery.svg", false), ("front-recovery-dark.svg", true)];

/// Runs those that are shown, writes the part and both pictures to `out`.
pub(crate) fn draw(
    out: &Path,
    zipf: &Arc<Zipf>,
    (rate, bound): (f64, f64),
    run: impl Fn(Contestant) -> Run,
) -> ExitCode {
    let shown = [
        (Contestant::Adaptive(4), "tower-stampede, min_computations", Role::Ours),
        (Contestant::Moka, "moka, get_with", Role::Other),
        (Contestant::BareCache, "a map with a ttl", Role::Other),
        (Contestant::NoCache, "no cache", Role::Without),
    ];
    let command = "cargo bench -p tower-stampede-lab --bench recovery -- --out report";
    let mut part = Part::new("recovery", "An empty cache under full load", command);
    part.notes.push("Simulated time, real caches; the load is 95 % of the capacity.".to_owned());
    let runs: Vec<Run> = shown.iter().map(|(it, ..)| run(*it)).collect();
    let series = shown.iter().zip(&runs).map(|((_, name, role), run)| Series {
        name: (*name).to_owned(),
        role: *role,
        points: (0..run.seconds.len())
            .map(|at| (at as f64 + 0.5, 100.0 * run.goodput(at, at + 1)))
            .collect(),
        steps: false,
    });
    let content = Content::Lines {
        x: Axis::new("time", "s", Scale::Linear),
        y: Axis::new("clients that are served", "%", Scale::Linear),
        series: series.collect(),
    };
    part.exhibits.push(Exhibit {
        id: "recovery.goodput".to_owned(),
        title: format!("At {FLUSH} s everything is flushed, under full load"),
        caption: format!(
            "{rate:.0} requests in a second by Zipf for {:.0} keys in a lifetime. A client gives up after 1 s and comes back \
             three times; it is served when one of its tries is. At best the cache is full again \
             after {bound:.0} s. The line of amalgam-cache would be that of moka.",
            zipf.working_set(rate)
        ),
        content,
    });
    let ours = runs[0].recovered_after().map_or(f64::MAX, |it| it as f64);
    let figure = Figure::new(
        "recovery.seconds",
        "from the flush until 99 % of the goodput before, for good",
        ours,
        "s",
        "one run",
    );
    part.figures.push(figure.at_most(bound.ceil()));
    for (name, dark) in NAMES {
        let written = fs::write(out.join(name), page::front::drawing(&part, 0, dark));
        written.expect("the picture is written");
    }
    part.finish(Some(out))
}
