//! Hits on real traces, and the time that callers wait.
//!
//! `cargo bench -p tower-stampede-lab --bench hit_ratio -- --traces DIR [--out DIR]`: five minutes
//! for all. `DIR` has the files that `traces.rs` names, as their publishers give them; what is not
//! there is left out. Needs `xz` and `zstd`.

mod caches;
mod cost;
mod measure;
#[path = "../../../benches/report/mod.rs"]
mod report;
mod shown;
mod store;
mod traces;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // Under `cargo test` there is nothing to measure.
    if !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let Some(directory) = report::path_of(&args, "--traces") else {
        eprintln!("hit_ratio: needs --traces DIR, a folder with the traces that traces.rs names");
        return ExitCode::FAILURE;
    };
    shown::part(&directory).finish(report::out_directory(&args).as_deref())
}
