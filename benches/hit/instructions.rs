//! Instructions per hit, counted by callgrind: the same in every run.

use std::env;
use std::process::Command;
use std::sync::Arc;

use super::{Candidate, Subject, candidates};

/// The difference between a short run and a long one is the hits' own: what
/// the start of the program costs is in both.
const SHORT: usize = 5_000;
const LONG: usize = 25_000;

/// Makes the hits or requests that the command line names, if it does.
pub(crate) fn is_one_run(args: &[String]) -> bool {
    match args.get(1..).unwrap_or_default() {
        [flag, slug, hits] if flag == "--subject" => {
            subject(slug, 1).slice(number(hits));
        }
        [flag, slug, hits, keys] if flag == "--subject" => {
            subject(slug, number(keys)).slice(number(hits));
        }
        [flag, slug, times] if flag == "--requests" => {
            subject(slug, 1).make_requests(number(times));
        }
        _ => return false,
    }
    true
}

fn number(text: &str) -> usize {
    text.parse().expect("how many is a number")
}

fn subject(slug: &str, keys: usize) -> Arc<dyn Subject> {
    let candidate = candidates(keys).into_iter().find(|candidate| candidate.slug == slug);
    candidate.expect("a subject of that name").subject
}

pub(crate) fn is_possible() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|said| said.status.success())
}

/// Instructions that one hit takes, without making the request.
pub(crate) fn per_hit(candidate: &Candidate) -> f64 {
    per_run(&["--subject", candidate.slug]) - per_run(&["--requests", candidate.slug])
}

fn per_run(what: &[&str]) -> f64 {
    let (long, short) = (collected(what, LONG), collected(what, SHORT));
    (long - short) / (LONG - SHORT) as f64
}

fn collected(what: &[&str], times: usize) -> f64 {
    let program = env::current_exe().expect("this program has a path");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(what)
        .arg(times.to_string())
        .output()
        .expect("valgrind starts");
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find_map(|line| line.split_once("Collected :"));
    let (_, count) = line.unwrap_or_else(|| panic!("callgrind counts: {said}"));
    count.trim().parse().expect("a count is a number")
}
