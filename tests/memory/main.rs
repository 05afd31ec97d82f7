//! How much memory the cache holds, by an allocator that counts.

#[path = "../kit/mod.rs"]
mod kit;

use std::alloc::System;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tower_stampede::{Computed, FailureAction, Stampede};

use crate::kit::cases::cases;
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

/// What an empty cache holds, and what waits to be evicted.
const BESIDE: usize = 3 << 20;

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
fn a_flood_of_keys_stays_within_the_bound_and_keeps_the_hot_ones() {
    alone(|| {
        on_paused_time(async {
            // They would take 120 MiB.
            let keys = 100_000 * cases("MEMORY_FLOOD", 1);
            const HOT: u32 = 100;
            const MAX_BYTES: usize = 64 << 20;

            let (before, values) = (live(), Values::default());
            let settings = settings().ttl(24 * 60 * MINUTE).max_bytes(MAX_BYTES as u64);
            let cache: Stampede<Value> = settings.build().unwrap();

            let (mut hot_reads, mut worst) = (0, 0);
            for key in 0..keys {
                values.ask(&cache, HOT + key).await;
                if key % 10 == 0 {
                    values.ask(&cache, hot_reads % HOT).await;
                    hot_reads += 1;
                }
                if key % 1000 == 0 {
                    // Without a look at the counts, which would settle them first.
                    let held = live_since(before);
                    assert!(held <= MAX_BYTES + BESIDE, "{held} bytes, after {key} keys");
                    worst = worst.max(held);
                }
            }
            let stats = cache.stats();
            assert!(stats.entries >= 42_000, "it is used: {} entries", stats.entries);
            assert!(stats.bytes <= MAX_BYTES as u64);

            let recomputed = values.calls() - (keys + HOT) as usize;
            assert_eq!(stats.hits, u64::from(hot_reads - HOT) - recomputed as u64);
            let hit_rate = stats.hits as f64 / f64::from(hot_reads - HOT);
            assert!(hit_rate >= 0.95, "{hit_rate} of the reads of hot keys are hits");
            println!("{} entries, {worst} bytes at most, {hit_rate} hits", stats.entries);
        });
    });
}

/// What is allocated for each entry, and what it weighs, with keys of this length.
async fn allocated_and_weighed<V: Clone + Send + Sync + 'static>(
    key_bytes: usize,
    tags: usize,
    value: impl Fn() -> V,
) -> (usize, usize) {
    let cache: Stampede<V> = settings().max_bytes(1 << 30).build().unwrap();
    let mut before = (0, 0);
    // The table is as full as can be before it grows, so an entry's share of it is the smallest,
    // and just after that, when it is the largest.
    let mut worst = (0, 0);
    for n in 0..40_000 {
        if n == 100 {
            before = (live(), cache.stats().bytes as usize);
        }
        let tagged = (0..tags).fold(Computed::new(value()), |it, tag| it.tag(format!("{tag}")));
        cache.put_with(format!("{n:0key_bytes$}").as_str(), tagged).await;
        if n > 20_000 && n % 1000 == 0 {
            let weight = cache.stats().bytes as usize - before.1;
            worst = worst.max((live_since(before.0) / (n - 100), weight / (n - 100)));
        }
    }
    worst
}

#[test]
fn an_entry_weighs_what_is_allocated_for_it() {
    alone(|| {
        on_paused_time(async {
            let measured = [
                ("u64", allocated_and_weighed(8, 0, || 1_u64).await),
                ("256 bytes inline", allocated_and_weighed(8, 0, || [[0_u64; 16]; 2]).await),
                ("string", allocated_and_weighed(8, 0, || "x".repeat(100)).await),
                ("bytes", allocated_and_weighed(8, 0, || vec![0_u8; 4096]).await),
                ("shared", allocated_and_weighed(8, 0, || Some(Arc::<str>::from("x"))).await),
                ("long key", allocated_and_weighed(500, 0, || 1_u64).await),
                ("tags", allocated_and_weighed(8, 3, || 1_u64).await),
            ];
            for (what, (allocated, weighed)) in measured {
                println!("{what}: {allocated} bytes are allocated, {weighed} weighed");
                assert!(allocated <= weighed, "{what}: {allocated} bytes, weighed {weighed}");
                assert!(weighed <= allocated + 200, "{what}: {allocated} bytes, weighed {weighed}");
            }
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
    settings().build().unwrap()
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
            // No caller touches the cache: the count is of the allocator alone.
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
            let cache = settings().ttl(24 * 60 * MINUTE).build();
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

/// An error with a long text.
#[derive(Debug)]
struct Fat(String);

impl std::fmt::Display for Fat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fat {}

/// What the documentation says that holds take at most, with their errors.
const HOLDS: usize = 10 << 20;

#[test]
fn the_errors_that_holds_repeat_are_bounded_in_bytes() {
    alone(|| {
        for is_remembered in [false, true] {
            on_paused_time(async {
                let before = live();
                let settings = settings().max_bytes(1 << 20).hold(MINUTE);
                let cache: Stampede<Value> = match is_remembered {
                    true => settings.on_failure(|_| FailureAction::Remember(MINUTE)),
                    false => settings,
                }
                .build()
                .unwrap();
                for key in 0..20_000_u32 {
                    let fail = || async { Err::<Value, _>(Fat("x".repeat(10_000))) };
                    cache.get_or_compute(key, fail).await.unwrap_err();
                }
                let held = live_since(before);
                println!("{held} bytes, remembered: {is_remembered}");
                assert!(held <= HOLDS + BESIDE, "{held} bytes");
            });
        }
    });
}

#[test]
fn long_tags_take_no_more_room_in_the_log_than_short_ones() {
    alone(|| {
        on_paused_time(async {
            let before = live();
            let cache: Stampede<Value> = settings().max_logged_tags(10_000).build().unwrap();
            for n in 0..20_000 {
                cache.invalidate_tag(format!("{n}{}", "x".repeat(10_000))).await;
            }
            let held = live_since(before);
            println!("{held} bytes");
            assert!(held <= 10_000 * 300 + BESIDE, "{held} bytes for 10,000 records");
        });
    });
}

/// What a caller that waits may hold, its task included: its own wait, and not
/// the computation that it would have led.
const WAITER: usize = 1000;

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

/// What a caller captures stays where it is while the caller waits: in its own future.
#[test]
fn a_caller_that_waits_holds_its_closure_once() {
    const CAPTURED: usize = 10_000;
    alone(|| {
        on_paused_time(async {
            let cache = roomy();
            let ask = |cache: Stampede<Value>| {
                let captured = [1_u8; CAPTURED];
                let never = move || {
                    std::hint::black_box(&captured);
                    std::future::pending::<Result<Value, OriginError>>()
                };
                let cache = Arc::new(cache);
                async move { drop(cache.get_or_compute(1, never).await) }
            };
            let leader = tokio::spawn(ask(cache.clone()));
            tokio::task::yield_now().await;
            let mut waiters: Vec<_> = (0..100).map(|_| Box::pin(ask(cache.clone()))).collect();
            let before = live();
            for waiter in &mut waiters {
                assert!(futures_util::poll!(waiter).is_pending());
            }
            let each = live_since(before) / waiters.len();
            assert!(each <= WAITER, "{each} bytes");
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
