//! How much memory the cache holds, by an allocator that counts.

#[path = "../kit/mod.rs"]
mod kit;

use std::alloc::System;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tower_stampede::Stampede;

use crate::kit::origin::*;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Runs one scenario at a time, as they all read the same counter, on a thread
/// that is gone, with all it held, before the next one begins.
fn alone(scenario: impl FnOnce() + Send) {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let ended = std::thread::scope(|scope| scope.spawn(scenario).join());
    drop(guard);
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Runs `scenario` on a runtime of its own, with paused time.
fn on_paused_time(scenario: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async {
        collect().await;
        scenario.await;
    });
}

/// Has freed what was unlinked: the store defers that, also that of a cache
/// that is gone, until memory is used on.
async fn collect() {
    let other = roomy();
    for key in 0..5000 {
        other.put(key % 10, [].into()).await;
    }
}

const KIB: usize = 1024;

/// What an entry may cost beyond its weight.
const OVERHEAD: usize = 400;

/// Bytes that are allocated now.
fn live() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// Bytes that are allocated now and were not when there were `before`.
fn live_since(before: usize) -> usize {
    live().saturating_sub(before)
}

type Value = Arc<[u8]>;

/// What a value holds on the heap: two counts of references, and its bytes.
fn weigh(value: &Value) -> usize {
    2 * size_of::<usize>() + value.len()
}

/// Computes values of 1 KiB, and counts.
#[derive(Clone, Default)]
struct Values(Arc<AtomicUsize>);

impl Values {
    async fn ask(&self, cache: &Stampede<Value>, key: u32) {
        let calls = Arc::clone(&self.0);
        let compute = move || {
            calls.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Ok::<Value, OriginError>(vec![0; KIB].into()))
        };
        assert_eq!(cache.get_or_compute_scoped(key, compute).await.unwrap().len(), KIB);
    }

    fn calls(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn a_million_keys_stay_within_the_bound_and_keep_the_hot_ones() {
    alone(|| {
        on_paused_time(async {
            const KEYS: u32 = 1_000_000;
            const HOT: u32 = 100;
            const MAX_BYTES: usize = 64 << 20;

            let (before, values) = (live(), Values::default());
            let cache: Stampede<Value> = settings()
                .ttl(24 * 60 * MINUTE)
                .max_bytes(MAX_BYTES as u64)
                .weigher(weigh)
                .build()
                .unwrap();

            let (mut hot_reads, mut worst) = (0, 0);
            for key in 0..KEYS {
                values.ask(&cache, HOT + key).await;
                if key % 10 == 0 {
                    values.ask(&cache, hot_reads % HOT).await;
                    hot_reads += 1;
                }
                if key % 1000 == 0 {
                    // The counts first: reading them applies what moka has put off.
                    let entries = cache.stats().entries as usize;
                    let held = live_since(before);
                    let bound = MAX_BYTES + OVERHEAD * entries;
                    assert!(held <= bound, "{held} bytes for {entries} entries, after {key} keys");
                    worst = worst.max(held.saturating_sub(MAX_BYTES) / entries.max(1));
                }
            }
            let stats = cache.stats();
            assert!(stats.entries >= 60_000, "it is used: {} entries", stats.entries);
            assert!(stats.bytes <= MAX_BYTES as u64);

            let recomputed = values.calls() - (KEYS + HOT) as usize;
            assert_eq!(stats.hits, u64::from(hot_reads - HOT) - recomputed as u64);
            let hit_rate = stats.hits as f64 / f64::from(hot_reads - HOT);
            assert!(hit_rate >= 0.95, "{hit_rate} of the reads of hot keys are hits");
            println!("{} entries, {worst} B beyond the bound each, {hit_rate} hits", stats.entries);
        });
    });
}

/// Fills a cache, and returns what it holds then.
async fn fill(cache: &Stampede<Value>, before: usize) -> usize {
    let values = Values::default();
    for key in 0..20_000 {
        values.ask(cache, key).await;
    }
    assert_eq!((values.calls(), cache.stats().entries), (20_000, 20_000));
    live_since(before)
}

fn roomy() -> Stampede<Value> {
    settings().weigher(weigh).build().unwrap()
}

#[test]
fn a_quiet_cache_shrinks_after_its_entries_have_ended() {
    alone(|| {
        on_paused_time(async {
            let before = live();
            let cache = roomy();
            let full = fill(&cache, before).await;
            pass(30 * SECOND).await;
            assert_eq!(cache.stats().entries, 20_000, "not before");
            // Nobody touches the cache: the count is of the allocator alone.
            pass(2 * MINUTE).await;
            let left = live_since(before);
            assert!(left < full / 5, "{left} of {full} bytes are left");
            assert_eq!((cache.stats().entries, cache.stats().bytes), (0, 0));
        });
    });
}

#[test]
fn a_quiet_cache_shrinks_after_everything_is_invalidated() {
    alone(|| {
        on_paused_time(async {
            let before = live();
            let cache = settings().ttl(24 * 60 * MINUTE).weigher(weigh).build();
            let cache = cache.unwrap();
            let full = fill(&cache, before).await;
            cache.invalidate_all().await;
            pass(MINUTE).await;
            let left = live_since(before);
            assert!(left < full / 5, "{left} of {full} bytes are left");
        });
    });
}

#[test]
fn a_cache_that_outlives_its_runtime_is_tidied_on_the_next_one() {
    alone(|| {
        let cache = roomy();
        for _ in 0..2 {
            on_paused_time(async {
                let before = live();
                let full = fill(&cache, before).await;
                pass(2 * MINUTE).await;
                let left = live_since(before);
                assert!(left < full / 5, "{left} of {full} bytes are left");
            });
        }
    });
}

#[test]
fn a_handle_that_is_dropped_frees_what_it_held() {
    alone(|| {
        on_paused_time(async {
            let before = live();
            let cache = roomy();
            let full = fill(&cache, before).await;
            drop(cache);
            pass(2 * MINUTE).await;
            collect().await;
            let left = live_since(before);
            assert!(left < full / 5, "{left} of {full} bytes are left");
        });
    });
}

/// What a caller that waits may hold, its task included: its own wait, and not
/// the computation that it would have led.
const WAITER: usize = 2048;

#[test]
fn a_thousand_callers_that_wait_hold_little_each() {
    alone(|| {
        on_paused_time(async {
            let cache = roomy();
            let ask = |cache: Stampede<Value>| async move {
                let never = std::future::pending::<Result<Value, OriginError>>;
                drop(cache.get_or_compute(1, never).await);
            };
            let leader = tokio::spawn(ask(cache.clone()));
            tokio::task::yield_now().await;
            let before = live();
            let waiters: Vec<_> = (0..1000).map(|_| tokio::spawn(ask(cache.clone()))).collect();
            while cache.stats().waiting < waiters.len() {
                tokio::task::yield_now().await;
            }
            let each = live_since(before) / waiters.len();
            assert!(each <= WAITER, "{each} bytes");
            waiters.iter().for_each(tokio::task::JoinHandle::abort);
            leader.abort();
        });
    });
}

#[test]
fn what_is_remembered_of_failing_and_uncacheable_keys_and_of_tags_is_bounded() {
    alone(|| {
        on_paused_time(async {
            let before = live();
            let cache = roomy();
            for key in 0..50_000_u32 {
                let failing = || std::future::ready(Err::<Value, _>(OriginError(1)));
                cache.get_or_compute(key, failing).await.unwrap_err();
                cache.invalidate_tag(key).await;
            }
            let held = live_since(before);
            assert!(held < 32 << 20, "{held} bytes");
            assert_eq!(cache.stats().entries, 0);
            // All of it ends by itself.
            pass(10 * MINUTE).await;
            assert!(live_since(before) < 16 << 20, "{} bytes", live_since(before));
        });
    });
}
