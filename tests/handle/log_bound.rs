//! The invalidation log at its bound: entries that were not invalidated live
//! on, invalidated entries are dead, and the log does not grow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use tower_stampede::{Computed, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

fn bounded(max_logged_tags: usize) -> Stampede<u64> {
    settings().max_logged_tags(max_logged_tags).build().unwrap()
}

async fn put_hundred(cache: &Stampede<u64>) {
    for n in 0..100_u64 {
        cache.put_with(n, Computed::new(n).tag(("mine", n))).await;
    }
}

async fn hits(cache: &Stampede<u64>) -> usize {
    let mut hits = 0;
    for n in 0..100_u64 {
        hits += usize::from(cache.get(n).await == Some(n));
    }
    hits
}

#[tokio::test(start_paused = true)]
async fn unrelated_entries_are_hits_after_more_invalidations_than_the_default_bound() {
    let cache: Stampede<u64> = settings().build().unwrap();
    put_hundred(&cache).await;
    cache.put_with("related", Computed::new(7).tag(("other", 5_u64))).await;
    for n in 0..100_000_u64 {
        cache.invalidate_tag(("other", n)).await;
    }
    cache.invalidate_tag("one more").await;
    assert_eq!(cache.get("related").await, None, "its tag was invalidated");
    assert_eq!(hits(&cache).await, 100);
}

#[tokio::test(start_paused = true)]
async fn unrelated_entries_outlive_any_number_of_slices() {
    let cache = bounded(64);
    put_hundred(&cache).await;
    for n in 0..5_000_u64 {
        cache.put_with("related", Computed::new(7).tag(("other", n))).await;
        cache.invalidate_tag(("other", n)).await;
        assert_eq!(cache.get("related").await, None, "invalidation {n}");
    }
    assert_eq!(hits(&cache).await, 100);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_nobody_reads_is_dead_when_the_record_of_its_tag_is_long_gone() {
    let cache = bounded(64);
    cache.put_with("related", Computed::new(7).tag("a")).await;
    cache.invalidate_tag("a").await;
    for n in 0..5_000_u64 {
        cache.invalidate_tag(("other", n)).await;
    }
    assert_eq!(cache.get("related").await, None);
    put_hundred(&cache).await;
    cache.invalidate_tag(("mine", 3_u64)).await;
    assert_eq!(hits(&cache).await, 99);
}

#[tokio::test(start_paused = true)]
async fn entries_without_tags_are_concerned_by_nothing_but_everything() {
    let cache = bounded(64);
    cache.put("plain", 1).await;
    for n in 0..1_000_u64 {
        cache.invalidate_tag(("other", n)).await;
    }
    assert_eq!(cache.get("plain").await, Some(1));
    cache.invalidate_all().await;
    assert_eq!(cache.get("plain").await, None);
}

#[tokio::test(start_paused = true)]
async fn what_was_computed_across_dropped_records_is_handed_over_and_not_kept() {
    let cache = bounded(64);
    let (open, gate) = tokio::sync::oneshot::channel::<()>();
    let caller = spawn({
        let cache = cache.clone();
        async move {
            let compute = || async move {
                let _ = gate.await;
                Ok::<_, OriginError>(Computed::new(1).tag("known with the result"))
            };
            cache.get_or_compute_with("k", compute).await
        }
    });
    tokio::time::sleep(MS).await;
    for n in 0..1_000_u64 {
        cache.invalidate_tag(("other", n)).await;
    }
    open.send(()).unwrap();
    assert_eq!(caller.await.unwrap().unwrap(), 1);
    assert_eq!(cache.get("k").await, None, "the log cannot say that it is alive");
}

#[tokio::test(start_paused = true)]
async fn a_fill_remembers_the_number_at_which_it_was_allowed() {
    let cache = bounded(64);
    let (open, gate) = tokio::sync::oneshot::channel::<()>();
    let caller = spawn({
        let cache = cache.clone();
        async move {
            let compute = || async move {
                let _ = gate.await;
                Ok::<_, OriginError>(Computed::new(1).tag("known with the result"))
            };
            cache.get_or_compute_with("k", compute).await
        }
    });
    tokio::time::sleep(MS).await;
    // Fewer than a slice is dropped for.
    for n in 0..40_u64 {
        cache.invalidate_tag(("other", n)).await;
    }
    open.send(()).unwrap();
    assert_eq!(caller.await.unwrap().unwrap(), 1);
    for n in 40..1_000_u64 {
        cache.invalidate_tag(("other", n)).await;
    }
    assert_eq!(cache.get("k").await, Some(1));
}

#[test]
fn a_bound_of_nothing_is_refused_with_the_rule_and_the_remedy() {
    let error = settings::<u64>().max_logged_tags(0).build().unwrap_err();
    assert_eq!(error.fields(), ["max_logged_tags"]);
    assert_eq!(
        error.to_string(),
        "`max_logged_tags`: is 0 and must be at least 1; leave it unset for 100,000"
    );
}

/// Readers of unrelated entries and writers of related ones, while the log
/// turns over a thousand times.
#[test]
fn under_concurrency_no_unrelated_hit_is_lost_and_no_dead_value_is_served() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let cache = bounded(64);
        put_hundred(&cache).await;
        let ended = Arc::new(AtomicBool::new(false));
        let lost = Arc::new(AtomicU64::new(0));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (cache, ended, lost) = (cache.clone(), Arc::clone(&ended), Arc::clone(&lost));
                spawn(async move {
                    while !ended.load(SeqCst) {
                        lost.fetch_add(100 - hits(&cache).await as u64, SeqCst);
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        let writers: Vec<_> = (0..2_u64)
            .map(|writer| {
                let cache = cache.clone();
                spawn(async move {
                    for n in 0..4_000_u64 {
                        let key = ("related", writer);
                        cache.put_with(key, Computed::new(n).tag((writer, n))).await;
                        cache.invalidate_tag((writer, n)).await;
                        assert_eq!(cache.get(key).await, None, "invalidation {n}");
                        if n % 64 == 0 {
                            tokio::task::yield_now().await;
                        }
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
        ended.store(true, SeqCst);
        for reader in readers {
            reader.await.unwrap();
        }
        assert_eq!(lost.load(SeqCst), 0, "unrelated hits were lost");
    });
}
