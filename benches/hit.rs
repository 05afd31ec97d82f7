//! What a hit costs, beside the bare map look-up and the bare service.
//!
//! `cargo bench --bench hit` prints, before criterion's own figures, the
//! allocations of one hit and the ratios of paired slices: the two candidates
//! in turn within one run, so that a drift of the machine's speed hits both.
//!
//! For instruction counts, which repeat: build with `cargo bench --bench hit
//! --no-run`, then run the binary under `valgrind --tool=callgrind` with
//! `--subject N`, N from 0 (moka get) to 6 (HTTP layer): 200,000 hits of it,
//! or with `--requests`: making 200,000 requests and nothing else.

#[path = "report/mod.rs"]
mod report;
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use support::{Floor, Generic, Http, Moka, Subject};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

const SLICES: usize = 31;
const PER_SLICE: usize = 20_000;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1..).unwrap_or_default() {
        [flag, n] if flag == "--subject" => return count_subject(n),
        [flag] if flag == "--requests" => return drop(support::requests(1, 200_000)),
        _ => {}
    }
    let mut criterion = Criterion::default().configure_from_args();
    // Under `cargo test` the benches run once, without the long prelude.
    if std::env::args().any(|arg| arg == "--bench") {
        print_allocations();
        print_ratios();
    }
    for keys in [1, 10_000] {
        one_task(&mut criterion, keys);
        for workers in [1, 2] {
            many_tasks(&mut criterion, keys, workers);
        }
    }
    criterion.final_summary();
}

fn subjects(keys: usize) -> Vec<Arc<dyn Subject>> {
    vec![
        Arc::new(Moka::new(keys)),
        Arc::new(Generic::new(keys)),
        Arc::new(Floor::new(keys)),
        Arc::new(Http::bare(keys)),
        Arc::new(Http::plain(keys)),
        Arc::new(Http::lean(keys)),
        Arc::new(Http::full(keys)),
    ]
}

fn count_subject(n: &str) {
    let n: usize = n.parse().expect("the number of a subject");
    subjects(1)[n].slice(200_000);
}

fn one_task(criterion: &mut Criterion, keys: usize) {
    let mut group = criterion.benchmark_group(format!("one task, {keys} keys"));
    group.throughput(Throughput::Elements(1)).sample_size(20);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    for subject in subjects(keys) {
        group.bench_function(subject.name(), |bencher| {
            bencher.iter_custom(|times| subject.clone().run(times as usize));
        });
    }
    group.finish();
}

fn many_tasks(criterion: &mut Criterion, keys: usize, workers: usize) {
    let runtime = support::runtime(workers);
    let mut group = criterion.benchmark_group(format!("64 tasks, {keys} keys, {workers} workers"));
    group.throughput(Throughput::Elements(1)).sample_size(10);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    for subject in subjects(keys) {
        group.bench_function(subject.name(), |bencher| {
            bencher.iter_custom(|times| runtime.block_on(spread(&subject, times as usize)));
        });
    }
    group.finish();
}

/// Runs `times` hits on 64 tasks and returns the time they took together.
async fn spread(subject: &Arc<dyn Subject>, times: usize) -> Duration {
    let each = times.div_ceil(64).max(1);
    let from = Instant::now();
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let subject = Arc::clone(subject);
            tokio::spawn(async move { subject.run(each) })
        })
        .collect();
    for task in tasks {
        task.await.expect("a slice does not panic");
    }
    from.elapsed()
}

fn print_allocations() {
    println!("allocations per hit, one task, one key");
    for subject in subjects(1) {
        subject.clone().run(100);
        let requests = subject.prepared_allocations();
        let region = Region::new(ALLOCATOR);
        subject.clone().run(1000);
        let made = region.change().allocations as f64 / 1000.0;
        println!("  {:<40} {:.2}", subject.name(), made - requests);
    }
}

fn print_ratios() {
    println!("ratios of {SLICES} paired slices of {PER_SLICE} hits: median (min to max)");
    for keys in [1, 10_000] {
        let (moka, generic) = (Arc::new(Moka::new(keys)), Arc::new(Generic::new(keys)));
        print_ratio(keys, &*generic, &*moka);
        let floor = Arc::new(Floor::new(keys));
        print_ratio(keys, &Http::plain(keys), &*floor);
        print_ratio(keys, &Http::lean(keys), &*floor);
        print_ratio(keys, &Http::full(keys), &*floor);
        print_ratio(keys, &Http::full(keys), &Http::bare(keys));
    }
}

fn print_ratio(keys: usize, ours: &dyn Subject, theirs: &dyn Subject) {
    let mut ratios: Vec<f64> = (0..SLICES)
        .map(|_| {
            let theirs = theirs.slice(PER_SLICE);
            ours.slice(PER_SLICE).as_secs_f64() / theirs.as_secs_f64()
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "  {keys:>6} keys: {} / {}: {:.2} ({:.2} to {:.2})",
        ours.name(),
        theirs.name(),
        ratios[SLICES / 2],
        ratios[0],
        ratios[SLICES - 1]
    );
}
