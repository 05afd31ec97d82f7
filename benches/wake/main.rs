//! From the leader's fill to the value with the waiter: in another process over
//! a real Redis on the loopback interface, by each cause of a wake-up that
//! there is, beside polling with `GET` as clients without wake-ups do.
//!
//! `cargo bench -p tower-stampede-benches --bench wake [-- --profile quick] [--out DIR]`; needs `redis-server`, and takes
//! about a minute; `--profile quick` has fewer samples. The processes are handles of their own in one process,
//! with connections of their own, but for the leaders that are killed, and the herds.

#![allow(clippy::unwrap_used, reason = "a bench, which ends at the first thing wrong")]

use std::process::ExitCode;

#[cfg(unix)]
mod causes;
#[cfg(unix)]
mod findings;
#[cfg(unix)]
mod herd;
#[cfg(unix)]
mod inboxes;
#[cfg(unix)]
mod polling;
#[cfg(unix)]
mod processes;
#[cfg(unix)]
#[path = "../../tests/kit/redis/mod.rs"]
mod redis_support;
#[cfg(unix)]
#[path = "../report/mod.rs"]
mod report;

#[cfg(not(unix))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}

#[cfg(unix)]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    // A thousand processes have two thousand connections.
    let _ = rlimit::increase_nofile_limit(20_000);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    match args.get(1).map(String::as_str) {
        Some("--leader") => runtime.block_on(processes::lead_for_ever(&args[2], &args[3])),
        Some("--caller") => runtime.block_on(herd::call_as_told(&args[2])),
        Some("--library") => runtime.block_on(herd::use_the_library(&args[2], &args[4])),
        Some("--sockets") => herd::use_sockets(&args[3]),
        // Under `cargo test` there is nothing to see.
        _ if !args.iter().any(|arg| arg == "--bench") => ExitCode::SUCCESS,
        _ => {
            let (profile, out) = (report::Profile::among(&args), report::out_directory(&args));
            runtime.block_on(findings::run(profile, out.as_deref()))
        }
    }
}
