//! What is to be seen.

use crate::crowd::{Scenario, Wave};
use crate::faults::Fault;
use crate::hits::Hits;
use crate::peers::Kind;
use crate::report::{Axis, BarSeries, Cell, Content, Exhibit, Scale};
use crate::run::Found;
use crate::versions;

const NONE: &str = "–";

pub(crate) fn of(found: &[Found]) -> Vec<Exhibit> {
    use Scenario::{Cold, Fails, LeaderLeaves, Panics, Private, TwoProcesses};
    let mut exhibits: Vec<_> = [Cold, LeaderLeaves, Fails, Panics, TwoProcesses]
        .into_iter()
        .map(|scenario| calls(found, scenario))
        .collect();
    exhibits.push(shared(found, Private));
    exhibits.extend([Kind::Http, Kind::Function].map(|kind| time_of_hits(found, kind)));
    exhibits.push(allocations(found));
    exhibits.extend(CROWDS.map(|table| crowds(found, table)));
    exhibits.push(faults(found));
    exhibits.extend([Kind::Function, Kind::Http].map(|kind| hits(found, kind)));
    exhibits.push(configurations(found));
    exhibits
}

/// One group of bars: each peer's name stands beside its own.
fn bars(
    found: &[Found],
    id: &str,
    [title, caption]: [&str; 2],
    value: Axis,
    of: impl Fn(&Found) -> Option<f64>,
) -> Exhibit {
    let series = found.iter().filter_map(|found| {
        let values = vec![Some(of(found)?)];
        Some(BarSeries { name: found.peer.name.into(), role: found.peer.role, values })
    });
    let categories = vec![value.label.clone()];
    let content = Content::Bars { series: series.collect(), value, categories };
    Exhibit { id: format!("peers.{id}"), title: title.into(), caption: caption.into(), content }
}

fn calls(found: &[Found], scenario: Scenario) -> Exhibit {
    let caption = format!(
        "How often the work was done for 1000 callers who asked at the same moment: {}. The \
         shortest bars are one call. {}",
        scenario.title(),
        scenario.caption()
    );
    // Linear: what matters is the distance between one and one for each.
    let axis = Axis::new("calls of the service", "calls", Scale::Linear);
    let title = format!("Calls of the service, {}", scenario.title());
    bars(found, &format!("calls.{}", scenario.id()), [&title, &caption], axis, |found| {
        found.wave(scenario).map(|wave| wave.calls as f64)
    })
}

fn shared(found: &[Found], scenario: Scenario) -> Exhibit {
    let title = "Callers that got another caller's answer, although it may not be stored";
    let caption = "1000 callers ask at the same moment, and each answer is for one of them alone: \
                   it says no-store. There must be no bar. Caches of values are not here: \
                   but for ours there is no way to tell them.";
    let axis = Axis::new("callers with another caller's answer", "callers", Scale::Linear);
    bars(found, "shared", [title, caption], axis, |found| {
        found.wave(scenario).map(|wave| wave.shared as f64)
    })
}

fn time_of_hits(found: &[Found], kind: Kind) -> Exhibit {
    let (id, title, caption) = match kind {
        Kind::Http => (
            "hits.http",
            "Time of a hit, HTTP",
            "From the request to the end of the body, 1 KiB from memory, one task, in \
             nanoseconds, by equal ratios. The least it could cost is moka's get and a response \
             made of it; the bare service stores nothing and answers the same at once.",
        ),
        Kind::Function => (
            "hits.function",
            "Time of a hit, caches of values",
            "From the key to the value, 1 KiB from memory, one task, in nanoseconds, by equal \
             ratios. quick_cache and foyer have no lifetimes to look at.",
        ),
    };
    let axis = Axis::new("time of a hit", "ns", Scale::Log);
    let mut exhibit = bars(found, id, [title, caption], axis, |found| {
        let hits = found.hits.as_ref().ok().filter(|_| found.peer.kind == kind);
        hits.map(|hits| hits.one_task.ns)
    });
    if let (Content::Bars { series, .. }, Some(hits)) = (&mut exhibit.content, first(found, kind)) {
        let reference = kind.reference();
        series.push(BarSeries {
            name: reference.name.into(),
            role: reference.role,
            values: vec![Some(hits.one_task.reference_ns)],
        });
    }
    exhibit
}

/// Of the first of its kind, which is our crate, with what was measured beside it.
fn first(found: &[Found], kind: Kind) -> Option<&Hits> {
    let of_kind = found.iter().find(|found| found.peer.kind == kind);
    of_kind.and_then(|found| found.hits.as_ref().ok())
}

fn allocations(found: &[Found]) -> Exhibit {
    let title = "Allocations of a hit";
    let caption = "Of one hit in memory, 1 KiB, without those of making the request; the median \
                   of single hits.";
    let axis = Axis::new("allocations of a hit", "allocations", Scale::Linear);
    bars(found, "allocations", [title, caption], axis, |found| found.allocations.clone().ok())
}

fn table(id: &str, title: &str, caption: &str, columns: &[&str], rows: Vec<Vec<Cell>>) -> Exhibit {
    let columns = columns.iter().map(|&column| column.to_owned()).collect();
    let content = Content::Table { columns, rows };
    Exhibit { id: format!("peers.{id}"), title: title.into(), caption: caption.into(), content }
}

/// All scenarios in one table would be wider than a page.
const CROWDS: [(&str, &str, &[Scenario]); 3] = [
    (
        "crowds",
        "A crowd at one key",
        &[Scenario::Cold, Scenario::LeaderLeaves, Scenario::TwoProcesses],
    ),
    (
        "crowds.failing",
        "A crowd whose computation fails",
        &[Scenario::FailsOnce, Scenario::Fails, Scenario::Panics],
    ),
    (
        "crowds.private",
        "A crowd whose answers may not be stored",
        &[Scenario::Private, Scenario::PrivateKnown],
    ),
];

fn crowds(found: &[Found], (id, title, scenarios): (&str, &str, &[Scenario])) -> Exhibit {
    let mut columns = vec!["1000 callers, 100 ms of work"];
    columns.extend(scenarios.iter().map(|scenario| scenario.title()));
    let row = |name: &str, of: &dyn Fn(Scenario) -> String| {
        let outcomes = scenarios.iter().map(|scenario| of(*scenario));
        std::iter::once(name.to_owned()).chain(outcomes).map(Cell::Text).collect()
    };
    let is_possible = |found: &&Found| {
        scenarios.iter().any(|scenario| found.waves.iter().any(|(of, _)| of == scenario))
    };
    let possible = found.iter().filter(is_possible);
    let mut rows: Vec<_> =
        possible.map(|found| row(found.peer.name, &|scenario| outcome(found, scenario))).collect();
    rows.push(row("ours must", &|scenario| scenario.must().to_owned()));
    let caption = "Calls of the service; the times from the first question to the answer or the \
                   error that half and that 99 of 100 callers have, in milliseconds over the 100 \
                   ms; then what else happened to callers.";
    table(id, title, caption, &columns, rows)
}

fn outcome(found: &Found, scenario: Scenario) -> String {
    if !found.waves.iter().any(|(of, _)| *of == scenario) {
        return NONE.to_owned();
    }
    found.wave(scenario).map_or_else(|| "not measured".to_owned(), said)
}

fn said(wave: &Wave) -> String {
    let mut said = wave.calls.to_string();
    // Below zero: no caller waited for the work.
    if let (Some(p50), Some(p99 @ 0.0..)) = (wave.p50, wave.p99) {
        said += &format!("; {p50:.1}/{p99:.1}");
    }
    let counts = [(wave.errors, "errors"), (wave.stuck, "stuck"), (wave.shared, "shared")];
    let happened = counts.iter().filter(|(count, _)| *count > 0);
    happened.for_each(|(count, what)| said += &format!("; {count} {what}"));
    said
}

/// A column for each peer that takes part: there are more faults than such peers.
fn faults(found: &[Found]) -> Exhibit {
    let taking_part: Vec<_> = found.iter().filter(|found| !found.faults.is_empty()).collect();
    let mut columns = vec!["one run each"];
    columns.extend(taking_part.iter().map(|found| found.peer.name));
    let of = |found: &Found, fault| {
        let cell = found.faults.iter().find(|(of, _)| *of == fault);
        let said = cell.and_then(|(_, finding)| Some(finding.as_ref().ok()?.said.clone()));
        said.unwrap_or_else(|| "not measured".to_owned())
    };
    let row = |fault: Fault| {
        let cells = taking_part.iter().map(|found| of(found, fault));
        std::iter::once(fault.title().to_owned()).chain(cells).map(Cell::Text).collect()
    };
    let rows = Fault::ALL.into_iter().map(row).collect();
    let caption = "Each fault is one run, in a process and on a server of its own, with the \
                   settings that the crate is built with.";
    table("faults", "Faults", caption, &columns, rows)
}

fn hits(found: &[Found], kind: Kind) -> Exhibit {
    let least = kind.reference().name;
    let of_kind = found.iter().filter(|found| found.peer.kind == kind);
    let mut rows: Vec<_> = of_kind.map(costs).collect();
    if let Some(hits) = first(found, kind) {
        let [one, many] = [hits.one_task, hits.many_tasks].map(|cost| whole(cost.reference_ns));
        let dash = || NONE.to_owned();
        rows.push(vec![least.to_owned(), one, dash(), dash(), many, dash()]);
    }
    let (id, title) = match kind {
        Kind::Function => ("hit_costs.function", "What a hit costs, caches of values"),
        Kind::Http => ("hit_costs.http", "What a hit costs, HTTP"),
    };
    let columns =
        ["a hit, 1 KiB", "one task, ns", "ratio", "allocations", "64 tasks, ns", "ratio of it"];
    let caption = format!(
        "Medians of paired slices. The ratio is to {least}, measured in turn with each; its own \
         row is from beside ours. The 64 tasks run on 2 threads and ask for 10,000 keys."
    );
    let rows = rows.into_iter().map(|row| row.into_iter().map(Cell::Text).collect()).collect();
    table(id, title, &caption, &columns, rows)
}

fn costs(found: &Found) -> Vec<String> {
    const NOT_MEASURED: &str = "not measured";
    let of = |of: fn(&Hits) -> String| found.hits.as_ref().map_or(NOT_MEASURED.to_owned(), of);
    let allocations = found.allocations.as_ref();
    vec![
        found.peer.name.to_owned(),
        of(|hits| whole(hits.one_task.ns)),
        of(|hits| format!("{:.2}", hits.one_task.ratio)),
        allocations.map_or(NOT_MEASURED.to_owned(), |&allocations| whole(allocations)),
        of(|hits| whole(hits.many_tasks.ns)),
        of(|hits| format!("{:.2}", hits.many_tasks.ratio)),
    ]
}

fn whole(number: f64) -> String {
    format!("{number:.0}")
}

fn configurations(found: &[Found]) -> Exhibit {
    let row = |found: &Found| {
        let versions =
            found.peer.crates.iter().map(|name| format!("{name} {}", versions::of(name)));
        let versions = versions.collect::<Vec<_>>().join(", ");
        vec![found.peer.name.into(), versions, found.peer.configuration.to_owned()]
            .into_iter()
            .map(Cell::Text)
            .collect()
    };
    let rows = found.iter().map(row).collect();
    let caption = "The settings under which each was measured: those of its own documentation \
                   that protect best.";
    table(
        "configurations",
        "Versions and settings",
        caption,
        &["crate", "version", "settings"],
        rows,
    )
}
