//! What a herd costs: from the first request until the last has its answer.
//!
//! `cargo bench -p tower-stampede-benches --bench flight`. The computation yields once and does nothing,
//! so the figure is the cost of gathering and waking, not of the work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use criterion::{Criterion, Throughput};
use tokio::runtime::Runtime;
use tower_stampede::Stampede;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(workers).enable_all().build().expect("a runtime starts");
    herds(&mut criterion, &runtime);
    many_keys(&mut criterion, &runtime);
    criterion.final_summary();
}

fn herds(criterion: &mut Criterion, runtime: &Runtime) {
    let mut group = criterion.benchmark_group("herd on one cold key");
    group.sample_size(10).measurement_time(Duration::from_secs(2));
    let next = AtomicU64::new(0);
    for callers in [10, 1000, 10_000] {
        group.throughput(Throughput::Elements(callers));
        let cache = cache();
        group.bench_function(format!("{callers} callers"), |bencher| {
            bencher.iter(|| {
                let key = next.fetch_add(1, Ordering::Relaxed);
                let calls =
                    runtime.block_on(herd(&cache, std::iter::repeat_n(key, callers as usize)));
                assert_eq!(calls, 1, "one computation per herd");
            });
        });
    }
    group.finish();
}

fn many_keys(criterion: &mut Criterion, runtime: &Runtime) {
    let mut group = criterion.benchmark_group("1000 cold keys at once");
    group.sample_size(10).measurement_time(Duration::from_secs(2));
    group.throughput(Throughput::Elements(10_000));
    let (cache, next) = (cache(), AtomicU64::new(0));
    group.bench_function("10 callers each", |bencher| {
        bencher.iter(|| {
            let first = next.fetch_add(1000, Ordering::Relaxed);
            let keys = (0..10_000).map(|n| first + n % 1000);
            assert_eq!(runtime.block_on(herd(&cache, keys)), 1000, "one computation per key");
        });
    });
    group.finish();
}

fn cache() -> Stampede<u64> {
    let builder = Stampede::builder("bench").ttl(Duration::from_secs(3600));
    builder.build().expect("the settings are good")
}

/// Asks for every key at once, and returns how many computations there were.
async fn herd(cache: &Stampede<u64>, keys: impl Iterator<Item = u64>) -> usize {
    let calls = Arc::new(AtomicUsize::new(0));
    let ask = |key| {
        let (cache, calls) = (cache.clone(), Arc::clone(&calls));
        tokio::spawn(async move {
            let compute = move || async move {
                calls.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                Ok::<_, std::convert::Infallible>(key)
            };
            cache.get_or_compute(key, compute).await
        })
    };
    let tasks: Vec<_> = keys.map(ask).collect();
    for task in tasks {
        task.await.expect("no task panics").expect("the computation succeeds");
    }
    calls.load(Ordering::Relaxed)
}
