//! All caches on all traces, and what they say together.

use std::path::Path;

use crate::caches::Kind;
use crate::measure::{hit_ratio, waiting};
use crate::report::{Cell, Content, Exhibit, Figure, Part};
use crate::traces::{self, Trace};

const SIGMAS: [f64; 2] = [1.0, 2.0];

/// A trace, and how many entries the caches hold of it.
struct Row {
    name: String,
    /// In per cent, of each kind.
    hits: Vec<f64>,
    /// Seconds, of each sigma and kind.
    waits: [Vec<f64>; 2],
}

pub(crate) fn part(directory: &Path) -> Part {
    let command =
        "cargo bench -p tower-stampede-lab --bench hit_ratio -- --traces DIR --out report";
    let mut part = Part::new("hit_ratio", "Which entry makes room", command);
    let mut rows = Vec::new();
    for trace in &traces::ALL {
        let Some(keys) = trace.read(directory) else { continue };
        part.notes.push(format!("{}: {} requests; {}.", trace.name, keys.len(), trace.source));
        rows.extend(trace.sizes.map(|size| row(trace, size, &keys)));
    }
    if !rows.is_empty() {
        part.figures = figures(&rows);
        part.exhibits = vec![hits_table(&rows), waits_table(&rows)];
    }
    part
}

fn row(trace: &Trace, size: usize, keys: &[u64]) -> Row {
    let name = format!("{}, {size}", trace.name);
    let hits: Vec<f64> = Kind::ALL.map(|kind| 100.0 * hit_ratio(kind, size, keys)).into();
    let waits = SIGMAS.map(|sigma| Kind::ALL.map(|kind| waiting(kind, size, keys, sigma)).into());
    let row = Row { name, hits, waits };
    eprintln!("{}: hits {:.1?}, waiting to LRU {:.3?}", row.name, row.hits, row.to_lru());
    row
}

fn of(values: &[f64], kind: Kind) -> f64 {
    let at = Kind::ALL.iter().position(|each| *each == kind);
    values[at.expect("each kind is measured")]
}

impl Row {
    fn to_lru(&self) -> [Vec<f64>; 2] {
        self.waits.each_ref().map(|waits| {
            waits.iter().map(|waited| waited / of(waits, Kind::Lru)).collect::<Vec<f64>>()
        })
    }
}

/// The arithmetic mean.
fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len();
    values.sum::<f64>() / count as f64
}

fn figures(rows: &[Row]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let cells = format!("{} cells", rows.len());
    let above = |kind| rows.iter().map(move |row| of(&row.hits, Kind::Ours) - of(&row.hits, kind));
    let least = |kind| above(kind).fold(f64::INFINITY, f64::min);
    for (slug, kind, limit) in [("lru", Kind::Lru, 0.0), ("quick_cache", Kind::QuickCache, -0.3)] {
        let id = |what: &str| format!("hit_ratio.{what}_above_{slug}");
        let says = |what: &str| format!("our hit ratio above that of {}, {what}", kind.name());
        let figure =
            |what: &str, value| Figure::new(&id(what), &says(what), value, "points", &cells);
        figures.push(figure("least", least(kind)).at_least(limit));
        figures.push(figure("mean", mean(above(kind))).at_least(0.0));
    }
    for ((sigma, goal), at) in SIGMAS.into_iter().zip([0.88, 0.80]).zip(0..) {
        let ratio = |row: &Row, kind| of(&row.waits[at], Kind::Ours) / of(&row.waits[at], kind);
        let to_lru = mean(rows.iter().map(|row| ratio(row, Kind::Lru)));
        let worst = rows.iter().map(|row| ratio(row, Kind::S3Fifo)).fold(0.0, f64::max);
        let says = |kind: &str| format!("summed waiting to that of {kind}, sigma {sigma}");
        let id = |kind: &str| format!("hit_ratio.waiting_{sigma}_to_{kind}");
        figures.push(Figure::new(&id("lru"), &says("LRU"), to_lru, "", &cells).at_most(goal));
        figures.push(
            Figure::new(&id("s3_fifo_worst"), &says("S3-FIFO, worst"), worst, "", &cells)
                .at_most(1.0),
        );
    }
    figures
}

fn table(id: &str, title: &str, caption: &str, rows: impl Iterator<Item = Vec<Cell>>) -> Exhibit {
    let names = Kind::ALL.iter().map(|kind| kind.name().to_owned());
    let columns = std::iter::once("trace, entries".to_owned()).chain(names).collect();
    let content = Content::Table { columns, rows: rows.collect() };
    Exhibit { id: id.into(), title: title.into(), caption: caption.into(), content }
}

fn cells<'a>(name: &str, values: impl Iterator<Item = &'a f64>) -> Vec<Cell> {
    let numbers = values.map(|value| Cell::Number((value * 1000.0).round() / 1000.0));
    std::iter::once(Cell::Text(name.into())).chain(numbers).collect()
}

fn hits_table(rows: &[Row]) -> Exhibit {
    table(
        "hit_ratio.hits",
        "Hits, in per cent of the requests",
        "All entries have the same weight and the same price. The numbers of entries were chosen \
         before anything was measured.",
        rows.iter().map(|row| cells(&row.name, row.hits.iter())),
    )
}

fn waits_table(rows: &[Row]) -> Exhibit {
    let of_sigma = |at: usize| {
        rows.iter().map(move |row| {
            let name = format!("{}, sigma {}", row.name, SIGMAS[at]);
            cells(&name, row.to_lru()[at].iter())
        })
    };
    table(
        "hit_ratio.waiting",
        "How long all callers wait, to LRU",
        "Each key has a price of its own, log-normal around 10 ms. A request comes every half \
         millisecond, and who asks for a key that is being computed waits for the rest of it.",
        of_sigma(0).chain(of_sigma(1)),
    )
}
