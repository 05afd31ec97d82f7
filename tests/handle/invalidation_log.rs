//! Many invalidations by tag: what they concern is dead, and nothing else.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use tower_stampede::{Computed, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

/// More than the log of a cache keeps by default.
const MANY: u64 = 100_000;

async fn invalidate_others(cache: &Stampede<u64>, tags: std::ops::Range<u64>) {
    for n in tags {
        cache.invalidate_tag(("other", n)).await;
    }
}

/// A cache with 100 entries, each with a tag of its own.
async fn with_hundred_entries() -> Stampede<u64> {
    let cache: Stampede<u64> = settings().build().unwrap();
    for n in 0..100_u64 {
        cache.put_with(n, Computed::new(n).tag(("mine", n))).await;
    }
    cache
}

async fn hits(cache: &Stampede<u64>) -> usize {
    let mut hits = 0;
    for n in 0..100_u64 {
        hits += usize::from(cache.get(n).await == Some(n));
    }
    hits
}

#[tokio::test(start_paused = true)]
async fn unrelated_entries_outlive_a_hundred_thousand_invalidations_and_one() {
    let cache = with_hundred_entries().await;
    invalidate_others(&cache, 0..MANY).await;
    cache.invalidate_tag("one more").await;
    assert_eq!(hits(&cache).await, 100);
    assert_eq!(cache.stats().hits, 100);
}

#[tokio::test(start_paused = true)]
async fn unrelated_entries_outlive_several_times_what_the_log_keeps() {
    let cache = with_hundred_entries().await;
    for round in 0..4 {
        invalidate_others(&cache, round * MANY..(round + 1) * MANY).await;
        assert_eq!(hits(&cache).await, 100, "after round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_related_entry_is_dead_however_many_invalidations_follow() {
    let cache = with_hundred_entries().await;
    cache.put_with("related", Computed::new(1).tag("related")).await;
    cache.invalidate_tag("related").await;
    // Its record may be dropped now; none of them was looked at since.
    invalidate_others(&cache, 0..3 * MANY).await;
    assert_eq!(cache.get("related").await, None);
    assert_eq!(hits(&cache).await, 100);
}

#[tokio::test(start_paused = true)]
async fn a_related_entry_is_dead_when_its_tag_is_the_one_more() {
    let cache = with_hundred_entries().await;
    invalidate_others(&cache, 0..MANY).await;
    cache.invalidate_tag(("mine", 7_u64)).await;
    assert_eq!(cache.get(7_u64).await, None);
    assert_eq!(hits(&cache).await, 99);
}

#[tokio::test(start_paused = true)]
async fn entries_that_are_filled_between_the_invalidations_are_judged_by_what_came_after_them() {
    let cache: Stampede<u64> = settings().build().unwrap();
    for n in 0..100_u64 {
        cache.put_with(n, Computed::new(n).tag(("mine", n))).await;
        invalidate_others(&cache, n * 2000..(n + 1) * 2000).await;
        if n % 10 == 0 {
            cache.invalidate_tag(("mine", n)).await;
        }
    }
    invalidate_others(&cache, 200_000..400_000).await;
    assert_eq!(hits(&cache).await, 90);
}

#[tokio::test(start_paused = true)]
async fn a_stale_entry_that_is_unrelated_is_still_served_and_refreshed() {
    let cache: Stampede<u64> = settings().stale_for(60 * MINUTE).build().unwrap();
    cache.put_with("k", Computed::new(1000).tag("mine")).await;
    pass(2 * MINUTE).await;
    invalidate_others(&cache, 0..MANY + 1).await;
    let origin = Origin::new();
    assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 1000);
    all_have_run().await;
    assert_eq!(cache.get("k").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_computation_that_was_invalidated_is_not_stored_however_many_invalidations_follow() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let (open, gate) = oneshot::channel::<()>();
    let (begins, begun) = oneshot::channel::<()>();
    let handle = cache.clone();
    let computing = spawn(async move {
        let compute = || async {
            begins.send(()).unwrap();
            gate.await.unwrap();
            Ok::<_, OriginError>(Computed::new(1).tag("related"))
        };
        handle.get_or_compute_with("k", compute).await
    });
    begun.await.unwrap();
    cache.invalidate_tag("related").await;
    invalidate_others(&cache, 0..3 * MANY).await;
    open.send(()).unwrap();
    assert_eq!(computing.await.unwrap().unwrap(), 1);
    assert_eq!(cache.get("k").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_computation_that_ends_after_many_invalidations_is_shared_with_its_waiters() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let origin = Origin::taking(100 * MS);
    let ask = |_| {
        let (cache, compute) = (cache.clone(), origin.compute());
        async move {
            let tagged = || async { compute().await.map(|n| Computed::new(n).tag("mine")) };
            cache.get_or_compute_with("k", tagged).await
        }
    };
    let callers = spawn_herd(10, ask);
    all_have_run().await;
    invalidate_others(&cache, 0..MANY + 1).await;
    for answer in gather(callers).await {
        assert_eq!(answer.unwrap(), 1);
    }
    assert_eq!(origin.calls(), 1);
}

/// Real threads: invalidations of one tag, of others, and readers beside them.
#[test]
fn a_reader_never_gets_what_was_invalidated_before_it_asked_while_the_log_is_cut() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (stop, oldest) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(0)));
    let reader = std::thread::spawn({
        let (cache, stop, oldest) = (cache.clone(), Arc::clone(&stop), Arc::clone(&oldest));
        move || {
            runtime().block_on(async {
                let (mut old, mut reads) = (0, 0_u64);
                while !stop.load(SeqCst) {
                    let least = *oldest.lock().unwrap();
                    let got = cache.get("k").await;
                    old += u64::from(got.is_some_and(|version| version < least));
                    reads += u64::from(got.is_some());
                }
                (old, reads)
            })
        }
    });
    runtime().block_on(async {
        for version in 0..200_u64 {
            cache.put_with("k", Computed::new(version).tag("related")).await;
            invalidate_others(&cache, version * 2000..(version + 1) * 2000).await;
            cache.invalidate_tag("related").await;
            *oldest.lock().unwrap() = version + 1;
        }
    });
    stop.store(true, SeqCst);
    let (old, reads) = reader.join().unwrap();
    assert_eq!(old, 0, "of {reads}");
    assert!(reads > 0, "it read");
}
