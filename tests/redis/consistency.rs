//! Rule P1 of the protocol, in real processes: a small run of the bench `consistency`.

#[path = "../../lab/benches/consistency/run/mod.rs"]
mod run;

use std::collections::HashSet;
use std::process::Command;
use std::time::Duration;

use run::faults::Fault;
use run::judge::{Part, judge};
use run::passage::{Crossing, Passage};
use run::record::{Invalidation, Record, Sighting, Target};
use run::{Plan, worker};

const SECOND: u64 = 1_000_000_000;

/// This test binary again, as a worker. The other tests of the binary look at the clock: they
/// come first.
fn program(test: &str) -> Command {
    let mut command = Command::new("nice");
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command
}

#[test]
fn no_process_serves_an_invalidated_value_through_every_fault() {
    if worker::work_if_told() {
        return;
    }
    let plan = Plan {
        processes: 6,
        // Each process reads each of the warm keys ten times a second, and a value that is served too
        // long is served for two seconds at least.
        reads: 200_000,
        keys: 320,
        time: Duration::from_secs(45),
        rest: Duration::from_millis(1500),
        invalidate_every: Duration::from_millis(60),
        faults: Fault::ALL.to_vec(),
    };
    let thread = std::thread::current();
    let test = thread.name().expect("a test's thread has its name");
    let findings = run::run(&plan, || program(test));
    let text = findings.to_text();
    assert!(!findings.has_violations(), "{text}");
    // It has seen something to judge.
    assert!(findings.reads() >= plan.reads, "{text}");
    assert!(findings.episodes().count() >= plan.faults.len(), "{text}");
    let (done, queued) = findings.invalidations();
    // On a busy machine many are queued: no process reaches Redis in time.
    assert!(done >= 40 && queued > 0, "{text}");
    assert!(findings.spreads().any(|spread| spread.until_all > 0), "{text}");
    assert!(findings.spreads().any(|spread| spread.is_split), "{text}");
}

/// Two processes. The first has invalidated key 3 from second 10 to second 11.
fn records(seen: Sighting, is_done: bool) -> [Record; 2] {
    let invalidation = Invalidation {
        target: Target::Key(3),
        called: 10 * SECOND,
        returned: 11 * SECOND,
        is_done,
    };
    let own = Record { invalidations: vec![invalidation], ..Record::default() };
    [own, Record { number: 1, sightings: vec![seen], ..Record::default() }]
}

fn parts(records: &[Record]) -> Vec<Part> {
    parts_after(records, &[])
}

fn parts_after(records: &[Record], passages: &[&Passage]) -> Vec<Part> {
    judge(records, 8, passages).violations.iter().map(|found| found.part).collect()
}

/// A value from second 9, last read in second `last`.
fn seen(last: u64) -> Sighting {
    let (started, last) = (9 * SECOND, last * SECOND);
    Sighting { key: 3, started, by: 1, last, answered: last, last_up: last, last_fetched: 0 }
}

#[test]
fn the_judge_finds_what_is_served_elsewhere_two_seconds_after_an_invalidation() {
    assert_eq!(parts(&records(seen(13), true)), []);
    assert_eq!(parts(&records(seen(14), true)), [Part::Late]);
    assert_eq!(parts(&records(Sighting { last_up: 0, ..seen(14) }, true)), [], "not up");
    assert_eq!(parts(&records(Sighting { key: 4, ..seen(14) }, true)), [], "another key");
    assert_eq!(parts(&records(seen(14), false)), [], "queued");
    let newer = Sighting { started: 10 * SECOND + 1, ..seen(14) };
    assert_eq!(parts(&records(newer, true)), [], "it may be younger than the invalidation");
}

#[test]
fn the_judge_finds_what_is_taken_from_redis_after_an_invalidation() {
    let fetched = Sighting { last_fetched: 12 * SECOND, ..seen(12) };
    assert_eq!(parts(&records(fetched, true)), [Part::Adopted]);
    assert_eq!(parts(&records(Sighting { last_fetched: 11 * SECOND, ..fetched }, true)), []);
    // A tag's values stay in Redis: judged by what the process has heard, within the bound.
    let mut of_tag = records(fetched, true);
    of_tag[0].invalidations[0].target = Target::Tag(3);
    assert_eq!(parts(&of_tag), []);
    assert_eq!(judge(&of_tag, 8, &[]).taken_within, [SECOND]);
}

#[test]
fn the_judge_finds_what_the_invalidating_process_serves_itself() {
    for is_done in [true, false] {
        let [mut own, _] = records(seen(12), is_done);
        own.sightings = vec![Sighting { last_up: 0, ..seen(12) }];
        assert_eq!(parts(&[own.clone(), Record::default()]), [Part::Own]);
        own.sightings[0].last = 11 * SECOND;
        assert_eq!(parts(&[own, Record::default()]), []);
    }
}

/// Two processes, and a third one, go to another server, which knows all up to second 5: each is
/// at the old one until a second, and at the new one from another second on.
fn passage(seconds: [(u64, u64); 3]) -> Passage {
    let crossing = |(left, reached): (u64, u64)| Crossing {
        left: left * SECOND,
        reached: reached.saturating_mul(SECOND),
    };
    let crossings = (0..).zip(seconds.map(crossing)).collect();
    Passage { since: 5 * SECOND, crossings, witnesses: (0..3).collect() }
}

#[test]
fn the_judge_waits_until_both_processes_are_at_one_server() {
    let after = |last, seconds| parts_after(&records(seen(last), true), &[&passage(seconds)]);
    // The one that invalidated stays at the old server until second 20, the reader is at the new one.
    assert_eq!(after(22, [(20, 20), (6, 7), (6, 7)]), []);
    assert_eq!(after(23, [(20, 20), (6, 7), (6, 7)]), [Part::Late]);
    // The reader stays at the old server.
    assert_eq!(after(22, [(6, 7), (20, 20), (6, 7)]), []);
    assert_eq!(after(23, [(6, 7), (20, 20), (6, 7)]), [Part::Late]);
    // Both are still at the old one, or were at the new one.
    let both_at_old = passage([(20, 20), (20, 20), (6, 7)]);
    assert_eq!(parts_after(&records(seen(14), true), &[&both_at_old]), [Part::Late]);
    let answered_by_new = Sighting { answered: 20 * SECOND, ..seen(14) };
    assert_eq!(parts_after(&records(answered_by_new, true), &[&both_at_old]), []);
    assert_eq!(after(14, [(6, 7), (6, 7), (20, 20)]), [Part::Late]);
    // The new server knows of it.
    let knowing = Passage { since: 12 * SECOND, ..passage([(20, 20), (6, 7), (6, 7)]) };
    assert_eq!(parts_after(&records(seen(14), true), &[&knowing]), [Part::Late]);
    // What it takes from the new server meanwhile is old as well.
    let fetched = |last| Sighting { last_fetched: last * SECOND, ..seen(last) };
    let apart = passage([(20, 20), (6, 7), (6, 7)]);
    assert_eq!(parts_after(&records(fetched(21), true), &[&apart]), []);
    let parts = parts_after(&records(fetched(23), true), &[&apart]);
    assert_eq!(parts, [Part::Late, Part::Adopted]);
}

#[test]
fn the_judge_finds_what_another_server_brings_back() {
    let fetched = Sighting { last_fetched: 21 * SECOND, ..seen(21) };
    let apart = passage([(20, 20), (20, 20), (6, 7)]);
    let after = |since| {
        let passage = Passage { since, ..apart.clone() };
        parts_after(&records(fetched, true), &[&passage])
    };
    assert_eq!(after(9 * SECOND + 1), [Part::BroughtBack]);
    assert_eq!(after(9 * SECOND), [], "it may be of a process at the new server");
    let moved = Passage { since: 9 * SECOND + 1, ..passage([(6, 7), (20, 20), (6, 7)]) };
    assert_eq!(
        parts_after(&records(fetched, true), &[&moved]),
        [],
        "it has not ended at the old one"
    );
}

#[test]
fn the_judge_excuses_no_process_that_serves_what_it_has_invalidated_itself() {
    let [mut own, _] = records(seen(12), true);
    own.sightings = vec![seen(12)];
    let apart = passage([(20, 20), (6, 7), (6, 7)]);
    assert_eq!(parts_after(&[own, Record::default()], &[&apart]), [Part::Own]);
}

#[test]
fn what_a_process_invalidated_that_has_ended_is_told_by_another_that_has_heard_of_it() {
    let ended = (13, u64::MAX);
    let after = |last, seconds| parts_after(&records(seen(last), true), &[&passage(seconds)]);
    assert_eq!(after(23, [ended, (6, 7), (20, 20)]), []);
    assert_eq!(after(24, [ended, (6, 7), (20, 20)]), [Part::Late]);
    // It has left before it must have heard of it.
    assert_eq!(after(30, [ended, (6, 7), (12, 20)]), []);
    let verdict = judge(&records(seen(30), true), 8, &[&passage([ended, (6, 7), (12, 20)])]);
    assert!(verdict.spreads[0].is_uncovered);
}

#[test]
fn an_older_value_that_was_read_later_than_a_newer_one_is_found() {
    let [own, mut other] = records(seen(14), true);
    other.sightings.push(Sighting { started: 9 * SECOND + 1, ..seen(10) });
    assert_eq!(parts(&[own, other]), [Part::Late]);
}

#[test]
fn each_fault_has_a_word_and_a_name_of_its_own() {
    let words: HashSet<_> = Fault::ALL.iter().map(|fault| fault.word()).collect();
    let names: HashSet<_> = Fault::ALL.iter().map(|fault| fault.name()).collect();
    assert_eq!([words.len(), names.len()], [Fault::ALL.len(); 2]);
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let [own, mut other] = records(seen(14), true);
    other.invalidations = own.invalidations;
    for target in [Target::Tag(7), Target::Everything] {
        let first = other.invalidations[0];
        other.invalidations.push(Invalidation { target, is_done: false, ..first });
    }
    other.first_failure = Some("it takes too long".into());
    other = Record { reads: 1, failures: 2, computations: 3, up_ms: 4, degraded_ms: 5, ..other };
    assert_eq!(Record::of_text(&other.to_text()), other);
}
