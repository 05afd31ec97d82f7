//! How costs grow: with waiters, keys, threads, processes, value sizes.
//!
//! `cargo bench -p tower-stampede-lab --bench scaling -- --profile quick|full --out DIR`: full
//! takes about five minutes on two cores, quick has fewer rounds. Needs `redis-server` for what
//! happens between processes; without it that is left out, and said so.
//!
//! These figures are what the simulation of fleets (`lab/benches/fleet`) takes
//! from `DIR/parts/scaling.json`, the part `scaling`:
//!
//! | figure | unit | what |
//! |---|---|---|
//! | `scaling.redis_command_us` | µs | server CPU of one command, mean of acquire, fill and get |
//! | `scaling.redis_acquire_us` | µs | server CPU of an acquire that is granted |
//! | `scaling.redis_locked_us` | µs | server CPU of an acquire that finds the lease taken and registers an inbox |
//! | `scaling.redis_fill_us` | µs | server CPU of a fill of 1 KiB that no process waits for |
//! | `scaling.redis_get_us` | µs | server CPU of a look at 1 KiB |
//! | `scaling.redis_publish_us_per_inbox` | µs | server CPU that each waiting process adds to a fill |
//! | `scaling.remote_round_trip_us` | µs | a look at 1 KiB, as the client sees it; median |
//! | `scaling.fill_to_waiter_us` | µs | from the leader's fill to 1 KiB in one other process; median |
//! | `scaling.wake_per_waiter_ns` | ns | what each of 1,000 waiters in one process adds until the last one has the value |

use std::process::ExitCode;

#[cfg(unix)]
mod client;
#[cfg(unix)]
mod costs;
#[cfg(unix)]
mod draw;
#[cfg(unix)]
mod keys;
#[cfg(unix)]
mod meter;
#[cfg(unix)]
mod processes;
#[cfg(unix)]
mod processes_shown;
#[cfg(unix)]
#[path = "../../../tests/kit/redis/mod.rs"]
mod redis_support;
#[cfg(unix)]
#[path = "../../../benches/report/mod.rs"]
mod report;
#[cfg(unix)]
mod run;
#[cfg(unix)]
mod subjects;
#[cfg(unix)]
mod threads;
#[cfg(unix)]
mod values;
#[cfg(unix)]
mod waiters;
#[cfg(unix)]
mod waiters_leaving;

/// Counts the bytes of the waiters and of stored entries.
#[cfg(unix)]
#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

// The fixtures start processes and send signals as Unix does.
#[cfg(not(unix))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}

#[cfg(unix)]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [flag, url] if flag == client::FLAG => client::run(url),
        // Under `cargo test` there is nothing to measure.
        _ if args.iter().any(|arg| arg == "--bench") => run::run(&args),
        _ => ExitCode::SUCCESS,
    }
}
