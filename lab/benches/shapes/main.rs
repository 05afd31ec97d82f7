//! Crowds of 500 clients whose requests have every shape: method, range, `Vary`, condition,
//! status, size, with the store of one process and with two processes on one Redis, cold and
//! expired. How often is the origin asked?
//!
//! `cargo bench -p tower-stampede-lab --bench shapes [-- --profile quick] [--docs FILE] [--out DIR]
//! [--row N]` plays two tables of rows in each of which each pair of values occurs (`rows`), prints
//! them, and takes about two and a half minutes; `--profile quick` plays one of the tables. `--docs`
//! writes the rows into a page, `--row` plays one row alone. Needs `redis-server`; without it those
//! rows are left out, and the bench says so.
//!
//! The bench fails where
//! - RFC 9111 lets the answer be shared, and the crowd costs more than two origin requests (two
//!   for each variant, where the crowd asks for several variants with `no-cache`; for each process,
//!   one for each variant and one more, where the origin fails);
//! - one more request, which an odd field makes uncacheable, comes before the crowd or leads it,
//!   and the crowd costs more than two origin requests;
//! - it may not be shared, and the crowd costs more than 2.05 times the origin requests, or
//!   3.1 times the time, of the same crowd straight at the origin in the same run (4.1 times the
//!   time in two processes that had a response which could be shared);
//! - a client gets another status than a client of the origin, or another body than its like.

use std::process::ExitCode;

#[cfg(unix)]
mod crowd;
#[cfg(unix)]
mod origin;
#[cfg(unix)]
mod pairs;
#[cfg(unix)]
#[path = "../../../tests/kit/redis/mod.rs"]
mod redis_support;
#[cfg(unix)]
#[path = "../../../benches/report/mod.rs"]
mod report;
#[cfg(unix)]
mod rows;
#[cfg(unix)]
mod run;

// The fixtures start processes and send signals as Unix does.
#[cfg(not(unix))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}

#[cfg(unix)]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // Under `cargo test` there is nothing to measure.
    if args.iter().any(|arg| arg == "--bench") { run::run(&args) } else { ExitCode::SUCCESS }
}
