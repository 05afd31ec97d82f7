//! RFC 9111, requirement by requirement, through the public API.
//!
//! `docs/rfc9111.md` is the list of requirements; each has at least one case
//! here, by its id.

/// Rows of an id, what is shown, and the function that shows it.
macro_rules! cases {
    ($($id:literal $what:literal $run:path;)+) => {
        pub(crate) const CASES: &[crate::rfc9111::Case] = &[$(($id, $what, || Box::pin($run()))),+];
    };
}

mod dates;
mod directives;
mod fields;
mod freshness;
mod invalidation;
mod lab;
mod preconditions;
mod reusing;
mod storing;
mod validation;

use std::collections::BTreeSet;
use std::pin::Pin;

use crate::kit::spawn;

type Run = fn() -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// An id of the list, what the case shows, and the case.
type Case = (&'static str, &'static str, Run);

const LIST: &str = include_str!("../../../docs/rfc9111.md");

fn all() -> Vec<Case> {
    [
        storing::CASES,
        reusing::CASES,
        freshness::CASES,
        validation::CASES,
        preconditions::CASES,
        invalidation::CASES,
        fields::CASES,
        directives::CASES,
    ]
    .concat()
}

/// The ids of the list, and whether each applies.
fn listed() -> Vec<(&'static str, bool)> {
    let cells = LIST.lines().filter(|line| line.starts_with("| R")).map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 7, "five cells: {line}");
        assert!(["MUST", "MUST NOT", "SHOULD", "SHOULD NOT"].contains(&cells[2]), "{line}");
        let here = cells[4].split(':').next().unwrap();
        assert!(["met", "stricter", "not applicable"].contains(&here), "{line}");
        (cells[1], here != "not applicable")
    });
    cells.collect()
}

#[test]
fn every_requirement_that_applies_has_a_case_and_every_case_a_requirement() {
    let listed = listed();
    let ids: BTreeSet<_> = listed.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids.len(), listed.len(), "an id stands for one row");
    let applying: BTreeSet<_> =
        listed.iter().filter(|(_, applies)| *applies).map(|(id, _)| *id).collect();
    let shown: BTreeSet<_> = all().iter().map(|(id, ..)| *id).collect();
    assert_eq!(applying, shown);
}

#[test]
fn the_list_accounts_for_every_keyword_of_the_text() {
    // The conditions of sections 3 and 4 have rows of their own; the two
    // keywords on non-volatile storage share one, twice.
    let rows = listed().len();
    assert_eq!(rows - 6 - 4 + 2, 114 - 11 - 23 - 10);
}

/// Runs the cases, each under a paused clock of its own, and tells all that
/// fail.
fn hold(cases: &[Case]) {
    let failed: Vec<_> = cases.iter().filter(|(_, _, run)| !holds(*run)).collect();
    let told: Vec<_> = failed.iter().map(|(id, what, _)| format!("{id}: {what}")).collect();
    assert!(told.is_empty(), "{} of {} fail:\n{}", told.len(), cases.len(), told.join("\n"));
}

fn holds(run: Run) -> bool {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async move { spawn(run()).await }).is_ok()
}

#[test]
fn what_is_stored_follows_section_3() {
    hold(storing::CASES);
}

#[test]
fn what_is_reused_follows_section_4() {
    hold(reusing::CASES);
}

#[test]
fn how_long_follows_section_4_2() {
    hold(freshness::CASES);
}

#[test]
fn validation_follows_section_4_3() {
    hold(validation::CASES);
}

#[test]
fn preconditions_follow_section_4_3_2() {
    hold(preconditions::CASES);
}

#[test]
fn invalidation_follows_section_4_4() {
    hold(invalidation::CASES);
}

#[test]
fn fields_follow_section_5() {
    hold(fields::CASES);
}

#[test]
fn directives_follow_section_5_2() {
    hold(directives::CASES);
}

/// Another process, so that the zone is set before anything reads it.
#[test]
fn the_local_time_zone_does_not_matter() {
    for zone in ["America/New_York", "Asia/Kolkata", "XXX-14"] {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rfc9111::how_long_follows_section_4_2"])
            .env("TZ", zone)
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success(), "{zone}: {stdout}");
        // The name above follows the module's path: a stale one would run no test.
        assert!(stdout.contains("1 passed"), "{zone}: {stdout}");
    }
}
