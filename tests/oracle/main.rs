//! An oracle: random pairs of attackers and victims, and a report of every
//! response that a victim gets and would not have got for its own request.
//!
//! A seeded generator draws an origin, the settings of a layer and a few
//! requests. Each case goes through the layer (in process, in virtual time) or
//! through the proxy (a process, over sockets). What each victim gets
//! is held against what it gets where nothing is shared: the same origin asked
//! with the victim's own request; for the proxy, a second proxy before an
//! origin that adds `no-store` to everything.
//!
//! # What counts as a finding
//!
//! - A victim's status, `Location` or body is not what the origin answers to the
//!   victim's own request, at any state that the origin had between the last
//!   write answered before the victim's request was sent and the victim's reply.
//!   The reply to a HEAD is compared by a digest in a field; a part that the
//!   victim asked for must be a part of the expected body.
//! - A victim gets several parts that a compressor around the layer has coded as one body.
//! - A victim gets a `Set-Cookie` that was written for another client.
//! - A crowd costs more calls than without an attacker, or takes longer: see `crowds`.
//! - Only victims are judged. Their requests are plain: one host in lower case,
//!   no port, no claims. An attacker may get whatever it likes.
//! - Origins are honest about `Vary` for ordinary fields, show no user's data
//!   where they themselves permit to share it, and change their state only by
//!   writes. An origin that shows an ordinary field without `Vary` is broken;
//!   what its foreground answers do to others is its own fault, and is not
//!   generated. The one exception reads such a field and may be served stale:
//!   there only what a *refresh in the background* brings is judged, and it must
//!   hold the victim's own value or none.
//! - One origin has coded pages and names no `Vary`: what it sends without a coding is for all.
//! - What a setting is documented to hide from every handler (parameters outside
//!   `query`, cookies under `ignore_cookies`) is hidden from the straight request
//!   too. Lists that RFC 9111, 4.1, lets a cache bring into a normal form are
//!   shown by what they mean: languages of equal weight in their order, since
//!   services may read it as preference.
//! - A write counts whose host is clear: one `Host` line at most, that agrees with
//!   the URI. It changes its own resource, and the one that its `Location` names,
//!   under the same scheme.
//! - A layer has no rules for paths: origins that read a path in their own way, and rules that forbid
//!   to share some of their pages, are behind the proxy only.
//! - Replies of the cache itself (504, 503, 502) and failures are not judged.
//!
//! # How to run it
//!
//! `cargo test -p tower-stampede-tests --test oracle` runs fixed seeds for some seconds.
//! `scripts/oracle` runs as long as it is told, in the release build.

#![cfg(unix)]

mod ask;
mod case;
mod client;
mod crowds;
mod grammar;
mod judge;
#[path = "../kit/mod.rs"]
mod kit;
mod layer;
mod persona;
mod proxy;
mod running;
mod search;
mod settings;
mod world;

use std::time::{Duration, Instant};

use case::Case;
use grammar::Through;
use judge::{Exchange, Finding};
use layer::Lab;
use persona::Kind;
use proxy::Town;
use search::{Outcome, Stage, findings, mix, search};

impl Stage for Lab {
    const THROUGH: Through = Through::Layer;

    fn run(&mut self, case: &Case) -> (Vec<Exchange>, Vec<Finding>) {
        let exchanges = Self::run(self, case);
        let findings = findings(case, &exchanges);
        (exchanges, findings)
    }
}

/// Runs each seed on a thread of its own.
fn on_threads<S: Stage>(
    make: impl Fn() -> S + Sync,
    seeds: &[u64],
    exchanges: u64,
    shows_progress: bool,
) -> Outcome {
    let only = variable("ORACLE_PERSONA").map(|name| {
        let index = Kind::NAMES.iter().position(|kind| *kind == name);
        index.unwrap_or_else(|| panic!("`{name}` is no persona; these are: {:?}", Kind::NAMES))
    });
    let mut all = Outcome::default();
    let run = |seed: u64| {
        let (mut told, begun) = (Instant::now(), Instant::now());
        search(&mut make(), seed, exchanges, only, |outcome| {
            if shows_progress && told.elapsed() > Duration::from_secs(5) {
                told = Instant::now();
                let (done, sorts) = (outcome.exchanges(), outcome.found.len());
                let rate = done as f64 / begun.elapsed().as_secs_f64();
                println!(
                    "seed {seed}: {done} exchanges, {rate:.0} per second, {sorts} sorts of findings"
                );
            }
        })
    };
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = seeds.iter().map(|&seed| scope.spawn(move || run(seed))).collect();
        for thread in threads {
            all.merge(thread.join().expect("no thread of the oracle panics"));
        }
    });
    all
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number(name: &str) -> Option<u64> {
    let text = variable(name)?;
    Some(text.parse().unwrap_or_else(|_| panic!("`{name}` is not a whole number: {text}")))
}

/// Runs the suite's seeds, or as long as `ORACLE_EXCHANGES` says; fails if there
/// are findings, or if the cache answered too few to prove anything.
fn check<S: Stage>(make: impl Fn() -> S + Sync, threads: u64, in_suite: u64) {
    let begun = Instant::now();
    let long = number("ORACLE_EXCHANGES");
    let seed = number("ORACLE_SEED").unwrap_or(1);
    let seeds: Vec<_> = (0..threads).map(|n| if n == 0 { seed } else { mix(seed, n) }).collect();
    let exchanges = long.unwrap_or(in_suite) / threads;
    let outcome = on_threads(make, &seeds, exchanges, long.is_some());
    println!("{outcome}");
    let took = begun.elapsed().as_secs_f64();
    let rate = outcome.exchanges() as f64 / took;
    println!("seeds {seeds:?}: {took:.1} s, {rate:.0} exchanges per second");
    for (name, counts) in Kind::NAMES.iter().zip(&outcome.counts) {
        let is_asked = counts.exchanges > 0;
        assert!(!is_asked || counts.cached() > 0, "{name}: no victim was answered from the cache");
    }
    assert!(outcome.found.is_empty(), "{} sorts of findings, see above", outcome.found.len());
}

#[test]
fn no_victim_of_the_layer_gets_what_another_request_made() {
    // Ten times as fast where the compiler optimises.
    check(Lab::new, 2, if cfg!(debug_assertions) { 16_000 } else { 1_000_000 });
}

#[test]
fn no_crowd_of_the_layer_costs_more_because_of_an_attacker() {
    let in_suite = if cfg!(debug_assertions) { 10_000 } else { 100_000 };
    let exchanges = number("ORACLE_EXCHANGES").map_or(in_suite, |long| long / 10);
    let (done, found) = crowds::search(number("ORACLE_SEED").unwrap_or(1), exchanges);
    println!("{done} exchanges in crowds");
    if let Some(found) = found {
        panic!("{found}");
    }
}

#[test]
fn no_victim_of_the_proxy_gets_what_another_request_made() {
    // They wait for the processes more than they work.
    check(Town::new, 4, 2_000);
}
