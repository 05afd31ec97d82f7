//! What is to be seen.

use crate::crowd::{Scenario, Wave};
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
    exhibits.extend([crowds(found), hits(found), configurations(found)]);
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
    let title = "Callers who got somebody else's answer, though it may not be stored";
    let caption = "1000 callers ask at the same moment, and each answer is for one of them alone: \
                   it says no-store. There must be no bar. Caches of values are not here: \
                   but for ours there is no way to tell them.";
    let axis = Axis::new("callers with somebody else's answer", "callers", Scale::Linear);
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
    if let (Content::Bars { series, .. }, Some(ns)) = (&mut exhibit.content, floor(found, kind)) {
        let reference = kind.reference();
        series.push(BarSeries {
            name: reference.name.into(),
            role: reference.role,
            values: vec![Some(ns)],
        });
    }
    exhibit
}

/// What was measured beside ours.
fn floor(found: &[Found], kind: Kind) -> Option<f64> {
    let of_kind = found.iter().find(|found| found.peer.kind == kind);
    of_kind.and_then(|found| Some(found.hits.as_ref().ok()?.one_task.reference_ns))
}

fn allocations(found: &[Found]) -> Exhibit {
    let title = "Allocations of a hit";
    let caption = "Of one hit in memory, 1 KiB, without those of making the request.";
    let axis = Axis::new("allocations of a hit", "allocations", Scale::Linear);
    bars(found, "allocations", [title, caption], axis, |found| found.allocations.clone().ok())
}

fn table(id: &str, title: &str, caption: &str, columns: &[&str], rows: Vec<Vec<Cell>>) -> Exhibit {
    let columns = columns.iter().map(|&column| column.to_owned()).collect();
    let content = Content::Table { columns, rows };
    Exhibit { id: format!("peers.{id}"), title: title.into(), caption: caption.into(), content }
}

fn crowds(found: &[Found]) -> Exhibit {
    let mut columns = vec!["1000 callers, 100 ms of work"];
    columns.extend(Scenario::ALL.map(Scenario::title));
    let row = |found: &Found| {
        let mut row = vec![Cell::Text(found.peer.name.into())];
        row.extend(Scenario::ALL.map(|scenario| Cell::Text(outcome(found, scenario))));
        row
    };
    let mut rows: Vec<_> = found.iter().map(row).collect();
    let mut must = vec![Cell::Text("ours must".into())];
    must.extend(Scenario::ALL.map(|scenario| Cell::Text(scenario.must().into())));
    rows.push(must);
    let caption = "Calls of the service; the times from the first question to the answer or the \
                   error that half and that 99 of 100 callers have, in milliseconds over the 100 \
                   ms; then what else happened to callers.";
    table("crowds", "What comes of a crowd", caption, &columns, rows)
}

fn outcome(found: &Found, scenario: Scenario) -> String {
    if !found.waves.iter().any(|(of, _)| *of == scenario) {
        return NONE.to_owned();
    }
    found.wave(scenario).map_or_else(|| "not measured".to_owned(), said)
}

fn said(wave: &Wave) -> String {
    let mut said = wave.calls.to_string();
    // Below zero: nobody waited for the work.
    if let (Some(p50), Some(p99 @ 0.0..)) = (wave.p50, wave.p99) {
        said += &format!("; {p50:.1}/{p99:.1}");
    }
    let counts = [(wave.errors, "errors"), (wave.stuck, "stuck"), (wave.shared, "shared")];
    let happened = counts.iter().filter(|(count, _)| *count > 0);
    happened.for_each(|(count, what)| said += &format!("; {count} {what}"));
    said
}

fn hits(found: &[Found]) -> Exhibit {
    let row = |found: &Found| {
        let ns = |of: fn(&Hits) -> f64| match &found.hits {
            Ok(hits) => Cell::Text(format!("{:.0}", of(hits))),
            Err(_) => Cell::Text("not measured".into()),
        };
        let ratio = |of: fn(&Hits) -> f64| match &found.hits {
            Ok(hits) => Cell::Text(format!("{:.2}", of(hits))),
            Err(_) => Cell::Text("not measured".into()),
        };
        let allocations = match found.allocations {
            Ok(allocations) => format!("{allocations:.1}"),
            Err(_) => "not measured".to_owned(),
        };
        vec![
            Cell::Text(found.peer.name.into()),
            Cell::Text(found.peer.kind.reference().name.into()),
            ns(|hits| hits.one_task.ns),
            ratio(|hits| hits.one_task.ratio),
            Cell::Text(allocations),
            ns(|hits| hits.many_tasks.ns),
            ratio(|hits| hits.many_tasks.ratio),
        ]
    };
    let columns = [
        "a hit in memory, 1 KiB",
        "compared with",
        "one task, ns",
        "ratio",
        "allocations",
        "64 tasks on 2 threads, 10,000 keys, ns",
        "ratio",
    ];
    let caption = "Medians of paired slices. Beside each stands the least that a hit of its kind \
                   could cost, measured in turn with it.";
    table("hits", "What a hit costs", caption, &columns, found.iter().map(row).collect())
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
    table("configurations", "Who, and how set up", caption, &["", "version", "set up"], rows)
}
