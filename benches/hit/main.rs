//! What a hit costs, beside the bare map look-up and the bare service.
//!
//! `cargo bench --bench hit` prints the ratios of paired slices and the
//! allocations of one hit, then criterion's own figures. With `-- --out DIR`
//! it writes them for the report, without criterion, in about a minute.
//!
//! Instruction counts repeat where times do not: `-- --instructions` adds
//! them, from runs of this program under callgrind, for two minutes more. To
//! look at one of them, build with `CARGO_PROFILE_BENCH_DEBUG=1 cargo bench
//! --bench hit --no-run`, then run the binary under `valgrind
//! --tool=callgrind` with `--subject SLUG HITS` (`moka`, `generic`, `floor`,
//! `bare`, `http_plain`, `http_lean`, `http`), or with `--requests HITS`:
//! making requests and nothing else.

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
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use report::Role;
use support::{Floor, Generic, Http, Moka, Subject};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

const TASKS: usize = 64;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if instructions::is_one_run(&args) {
        return ExitCode::SUCCESS;
    }
    let is_bench = args.iter().any(|arg| arg == "--bench");
    let with_instructions = args.iter().any(|arg| arg == "--instructions");
    let out = report::out_directory(&args);
    // Under `cargo test` criterion runs each bench once, without the prelude.
    if is_bench {
        let ended = found::part(with_instructions).finish(out.as_deref());
        if out.is_some() || with_instructions {
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

/// A subject, and how figures and the page call it.
struct Candidate {
    slug: &'static str,
    role: Role,
    subject: Arc<dyn Subject>,
}

impl Candidate {
    fn new(slug: &'static str, role: Role, subject: impl Subject + 'static) -> Self {
        Self { slug, role, subject: Arc::new(subject) }
    }
}

fn candidates(keys: usize) -> Vec<Candidate> {
    vec![
        Candidate::new("moka", Role::Without, Moka::new(keys)),
        Candidate::new("generic", Role::Ours, Generic::new(keys)),
        Candidate::new("bare", Role::Without, Http::bare(keys)),
        Candidate::new("http", Role::Ours, Http::full(keys)),
        Candidate::new("floor", Role::Without, Floor::new(keys)),
        Candidate::new("http_lean", Role::Ours, Http::lean(keys)),
        Candidate::new("http_plain", Role::Ours, Http::plain(keys)),
    ]
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

fn many_tasks(criterion: &mut Criterion, keys: usize, workers: usize) {
    let runtime = support::runtime(workers);
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
