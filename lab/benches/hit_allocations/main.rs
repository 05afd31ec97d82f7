//! How many allocations a hit takes.
//!
//! `cargo bench -p tower-stampede-lab --bench hit_allocations -- --out DIR` counts them, in a
//! second or two. It is a program of its own because counting takes an allocator that is the whole
//! program's, and that would slow down what `hit` measures.

#[path = "../../../benches/report/mod.rs"]
mod report;
#[path = "../../../benches/support/mod.rs"]
mod support;

use std::process::ExitCode;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use report::{Cell, Content, Exhibit, Figure, Part, median};
use support::{Candidate, Subject, candidates};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

const HITS: usize = 1_001;

/// What a hit may allocate at most.
const AT_MOST: [(&str, f64); 5] = [
    ("generic", 0.0),
    ("http", 2.0),
    ("http_routed", 2.0),
    ("http_outcome", 5.0),
    ("http_plain", 2.0),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    part().finish(report::out_directory(&args).as_deref())
}

fn part() -> Part {
    let command = "cargo bench -p tower-stampede-lab --bench hit_allocations -- --out report";
    let mut part = Part::new("hit_allocations", "What a hit allocates", command);
    part.notes.push(
        "One task asks for a key that is held. Making the request does not count. moka, beside \
         ours, tidies up after some of its hits and allocates then: hence the median."
            .into(),
    );
    let figures = candidates(1).into_iter().map(|candidate| {
        let figure = figure(&candidate);
        match AT_MOST.iter().find(|(slug, _)| *slug == candidate.slug) {
            Some((_, limit)) => figure.at_most(*limit).or_fail(),
            None => figure,
        }
    });
    part.figures = figures.collect();
    part.exhibits.push(table(&part.figures));
    part
}

fn figure(candidate: &Candidate) -> Figure {
    let Candidate { slug, subject, .. } = candidate;
    Figure::new(
        &format!("hit_allocations.{slug}"),
        &format!("allocations of a hit: {}", subject.name()),
        per_hit(&**subject),
        "allocations",
        &format!("median of {HITS} single hits, one task, 1 key"),
    )
}

fn per_hit(subject: &dyn Subject) -> f64 {
    subject.slice(100);
    let making = counted(|| subject.make_requests(1));
    let hit = || counted(|| _ = subject.slice(1)) - making;
    median(&mut (0..HITS).map(|_| hit()).collect::<Vec<f64>>())
}

fn counted(what: impl FnOnce()) -> f64 {
    let region = Region::new(ALLOCATOR);
    what();
    region.change().allocations as f64
}

fn table(figures: &[Figure]) -> Exhibit {
    let row = |figure: &Figure| {
        let limit = figure.bound.and_then(|bound| bound.at_most);
        let limit = limit.map_or_else(|| Cell::Text(String::new()), Cell::Number);
        vec![Cell::Text(figure.says.clone()), Cell::Number(figure.value), limit]
    };
    Exhibit {
        id: "hit_allocations.table".into(),
        title: "Allocations of a hit".into(),
        caption: "How often a hit asks for heap memory. The response's fields take two; the \
                  extension that names the outcome, where it is asked for, takes three. `Age` \
                  and `Cache-Status` take none."
            .into(),
        content: Content::Table {
            columns: vec!["".into(), "allocations".into(), "at most".into()],
            rows: figures.iter().map(row).collect(),
        },
    }
}
