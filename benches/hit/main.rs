//! What a hit costs, beside the bare map look-up and the bare service.
//!
//! `cargo bench -p tower-stampede-benches --bench hit` prints the ratios of paired slices, then
//! criterion's own figures. With `-- --out DIR` it writes them for the report,
//! without criterion, in about a minute; `--profile quick` has fewer rounds.
//! Allocations are counted by a program
//! of its own, `hit_allocations`: an allocator that counts costs time.
//!
//! Instruction counts repeat where times do not. They come from runs of this
//! program under callgrind, are part of the report where valgrind is
//! installed, and take half a minute more; `-- --instructions` prints them
//! without a report. To look at one of them, build with `CARGO_PROFILE_BENCH_DEBUG=1 cargo bench
//! --bench hit --no-run`, then run the binary under `valgrind
//! --tool=callgrind` with `--subject SLUG HITS [KEYS]` (`moka`, `generic`, `typed`, `floor`,
//! `bare`, `http_plain`, `http_outcome`, `http`, `http_routed`, `floor_routed`),
//! or with `--requests SLUG HITS`: making its requests and nothing else.

mod found;
mod instructions;
#[path = "../report/mod.rs"]
mod report;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput};

use support::{Candidate, Subject, candidates};

const TASKS: usize = 64;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if instructions::is_one_run(&args) {
        return ExitCode::SUCCESS;
    }
    let is_bench = args.iter().any(|arg| arg == "--bench");
    let out = report::out_directory(&args);
    let with_instructions = out.is_some() || args.iter().any(|arg| arg == "--instructions");
    // Under `cargo test` criterion runs each bench once, without the prelude.
    if is_bench {
        let profile = report::Profile::among(&args);
        let ended = found::part(profile, with_instructions).finish(out.as_deref());
        if with_instructions {
            return ended;
        }
    }
    run_criterion();
    ExitCode::SUCCESS
}

fn run_criterion() {
    let mut criterion = Criterion::default().configure_from_args();
    for keys in [1, 10_000] {
        one_task(&mut criterion, keys);
        for workers in [1, 2] {
            many_tasks(&mut criterion, keys, workers);
        }
    }
    criterion.final_summary();
}

fn one_task(criterion: &mut Criterion, keys: usize) {
    let mut group = criterion.benchmark_group(format!("one task, {keys} keys"));
    group.throughput(Throughput::Elements(1)).sample_size(20);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    for candidate in candidates(keys) {
        let subject = candidate.subject;
        group.bench_function(subject.name(), |bencher| {
            bencher.iter_custom(|times| subject.slice(times as usize));
        });
    }
    group.finish();
}

fn runtime(workers: usize) -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(workers).enable_all().build().expect("a runtime starts")
}

fn many_tasks(criterion: &mut Criterion, keys: usize, workers: usize) {
    let runtime = runtime(workers);
    let mut group = criterion.benchmark_group(format!("64 tasks, {keys} keys, {workers} workers"));
    group.throughput(Throughput::Elements(1)).sample_size(10);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    for candidate in candidates(keys) {
        let subject = candidate.subject;
        group.bench_function(subject.name(), |bencher| {
            bencher.iter_custom(|times| {
                let each = (times as usize).div_ceil(TASKS).max(1);
                runtime.block_on(spread(&subject, each))
            });
        });
    }
    group.finish();
}

/// Runs a slice of `each` hits on each of 64 tasks and returns the time that
/// the workers took for them, together: making the requests does not count.
async fn spread(subject: &Arc<dyn Subject>, each: usize) -> Duration {
    let slice = |_| {
        let subject = Arc::clone(subject);
        tokio::spawn(async move { subject.slice(each) })
    };
    let tasks: Vec<_> = (0..TASKS).map(slice).collect();
    let mut took = Duration::ZERO;
    for task in tasks {
        took += task.await.expect("a slice does not panic");
    }
    took
}
