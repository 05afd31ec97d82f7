//! A simulation, in virtual time, of fleets larger than this machine: up to
//! 10,000 processes with 10,000,000 clients on sharded Redis.
//!
//! `cargo bench -p tower-stampede-lab --bench fleet -- [--profile quick] [--seed N] --out DIR`:
//! quick takes a quarter of a minute, full about a minute on one core. The same seed gives
//! the same numbers. Its small cases are run for real too, on a `redis-server`, and their counts
//! must be equal; without one that is left out, and said so.
//!
//! # What goes in
//!
//! - Costs: what the bench `scaling` measured (`DIR/parts/scaling.json`), or
//!   values that the part's notes call assumed.
//! - Rules: when an entry is fresh, jitter, early refresh, the breaker and its
//!   pauses are the product's own files (`src/freshness`, `src/remote/{breaker,pause}.rs`).
//!   The scripts and the way from a look to a value are written again, each
//!   with the name of the file whose rule it is.
//!
//! # What is assumed
//!
//! - A shard executes one command after the other. Commands other than those
//!   measured cost as much as the most similar one: `SET` as `GET`, a renewal
//!   and giving up as an acquire that finds the lease taken.
//! - All commands travel equally long, and the network has room for all. The
//!   distance is the loopback's, unless an exhibit says otherwise.
//! - Clients ask independently of each other, at a constant rate (Poisson).
//! - The origin takes equally long for every call, however many there are. A
//!   real one would be slower: without protection it is worse than shown.
//! - Processes have all the CPU they need, and their subscriptions hold.
//!   Nothing is evicted; clocks do not drift.
//! - The strategies beside ours wait for Redis as long as it takes.

mod bench;
#[path = "../../../src/remote/breaker.rs"]
#[allow(dead_code, unused_imports, reason = "the model uses a part of it")]
mod breaker;
#[path = "../../../src/clock.rs"]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "the model uses a part of it")]
mod clock;
mod costs;
mod early;
mod expiries;
mod failures;
mod fault;
#[path = "../../../src/freshness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the model uses a part of it")]
mod freshness;
mod growth;
mod lone;
#[path = "../../../src/remote/pause.rs"]
#[allow(dead_code, unused_imports, reason = "the model uses a part of it")]
mod pause;
mod plan;
mod process;
mod published;
mod queue;
#[cfg(unix)]
mod real;
mod redis;
#[cfg(unix)]
#[path = "../../../tests/kit/redis/mod.rs"]
mod redis_support;
#[path = "../../../benches/report/mod.rs"]
mod report;
mod tally;
mod world;

use std::process::ExitCode;
use std::time::Instant;

use bench::Bench;
use costs::Costs;
use report::{Part, Profile};

const SEED: u64 = 7;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    // Under `cargo test` there is nothing to see.
    if !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let out = report::out_directory(&args);
    let profile = Profile::among(&args);
    let seed = value_of(&args, "--seed").map_or(SEED, |seed| seed.parse().expect("a number"));
    let (costs, notes) = Costs::read(out.as_deref());
    let command = format!(
        "cargo bench -p tower-stampede-lab --bench fleet -- --profile {} --seed {seed} --out report",
        profile.name()
    );
    let mut part = Part::new("fleet", "Simulated fleets", &command);
    part.notes = notes;
    part.notes.extend(profile.note());
    part.notes.extend(ASSUMPTIONS.map(String::from));
    let mut bench = Bench { part, costs, seed, is_full: profile == Profile::Full };
    simulate(&mut bench);
    bench.part.finish(out.as_deref())
}

/// What it is about, and what adds its figures and exhibits.
type Show = (&'static str, fn(&mut Bench));

fn simulate(bench: &mut Bench) {
    let shows: [Show; 6] = [
        ("growth", growth::show),
        ("expiries", expiries::show),
        ("early refresh", early::show),
        ("failures", failures::show),
        ("a published count", published::show),
        ("one seed", published::one_seed_one_course),
    ];
    for (what, show) in shows {
        let from = Instant::now();
        show(bench);
        eprintln!("{what}: simulated in {:.1?}", from.elapsed());
    }
    #[cfg(unix)]
    real::show(bench);
}

const ASSUMPTIONS: [&str; 7] = [
    "Simulated in virtual time, not measured; what is checked against real runs says check.",
    "Freshness, jitter, early refresh and the breaker are the product's own code; the scripts and \
     the way to a value follow it, rule by rule.",
    "A shard executes one command after the other; SET is assumed to cost what GET does, renewals \
     and giving up what an acquire does that finds the lease taken.",
    "All commands travel equally long, as on the loopback interface unless an exhibit says \
     otherwise; the network has room for all.",
    "Clients ask independently at a constant rate; the origin takes equally long however many \
     calls there are, so that without protection it is worse than shown.",
    "Processes have all the CPU they need, subscriptions hold, nothing is evicted, clocks do not \
     drift.",
    "The strategies beside ours wait for Redis as long as it takes; ours gives a command \
     op_timeout.",
];

fn value_of<'a>(args: &'a [String], flag: &str) -> Option<&'a str> {
    let at = args.iter().position(|arg| arg == flag)?;
    Some(args.get(at + 1).expect("a flag has a value"))
}
