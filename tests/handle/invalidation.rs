//! A caller that asks after an invalidation has returned never gets the old
//! value, whatever was going on meanwhile.

use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tower_stampede::{Computed, Error, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

/// The three ways to invalidate `k`, which carries the tag `t`.
#[derive(Clone, Copy, Debug)]
enum By {
    Key,
    Tag,
    All,
}

const EVERY_WAY: [By; 3] = [By::Key, By::Tag, By::All];

impl By {
    async fn invalidate(self, cache: &Stampede<u64>) {
        match self {
            Self::Key => cache.invalidate("k").await,
            Self::Tag => cache.invalidate_tag("t").await,
            Self::All => cache.invalidate_all().await,
        };
    }

    /// The same from where nothing can be awaited.
    fn invalidate_now(self, cache: &Stampede<u64>) {
        self.invalidate(cache).now_or_never().expect("done at the first poll");
    }
}

async fn ask_now(cache: Stampede<u64>, origin: Origin) -> Result<u64, Error> {
    let compute = move || async move { origin.load().await.map(|n| Computed::new(n).tag("t")) };
    cache.get_or_compute_with("k", compute).await
}

fn ask(cache: &Stampede<u64>, origin: &Origin) -> JoinHandle<Result<u64, Error>> {
    spawn(ask_now(cache.clone(), origin.clone()))
}

fn crowd(cache: &Stampede<u64>, origin: &Origin) -> Vec<JoinHandle<Result<u64, Error>>> {
    (0..20).map(|_| ask(cache, origin)).collect()
}

async fn all_get(expected: u64, crowd: Vec<JoinHandle<Result<u64, Error>>>, by: By) {
    for answer in gather(crowd).await {
        assert_eq!(answer.unwrap(), expected, "by {by:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn before_the_computation_an_invalidation_changes_nothing() {
    for by in EVERY_WAY {
        let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
        by.invalidate(&cache).await;
        all_get(1, crowd(&cache, &origin), by).await;
        assert_eq!(cache.get("k").await, Some(1));
        assert_eq!(origin.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn during_the_computation_those_who_asked_get_it_and_those_who_ask_later_a_new_one() {
    for by in EVERY_WAY {
        let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
        let before = crowd(&cache, &origin);
        pass(50 * MS).await;
        by.invalidate(&cache).await;
        let after = crowd(&cache, &origin);
        pass(20 * MS).await;
        let later = crowd(&cache, &origin);

        all_get(1, before, by).await;
        all_get(2, after, by).await;
        all_get(2, later, by).await;
        assert_eq!(cache.get("k").await, Some(2), "by {by:?}");
        assert_eq!(cache.stats().refused_fills, 1);
        assert_eq!(origin.calls(), 2);
        assert_quiet(&cache);
    }
}

#[tokio::test(start_paused = true)]
async fn who_asks_between_two_invalidations_does_not_get_what_was_computed_before_the_first() {
    for by in EVERY_WAY {
        let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
        let before = crowd(&cache, &origin);
        pass(20 * MS).await;
        by.invalidate(&cache).await;
        let between = crowd(&cache, &origin);
        pass(20 * MS).await;
        by.invalidate(&cache).await;
        let after = crowd(&cache, &origin);

        all_get(1, before, by).await;
        for answer in gather(between).await {
            assert!(answer.unwrap() > 1, "by {by:?}");
        }
        for answer in gather(after).await {
            assert!(answer.unwrap() > 1, "by {by:?}");
        }
        assert!(origin.calls() <= 3, "by {by:?}: {} calls", origin.calls());
        assert_quiet(&cache);
    }
}

#[tokio::test(start_paused = true)]
async fn the_result_of_an_invalidated_computation_is_not_stored_when_nobody_asks_again() {
    for by in EVERY_WAY {
        let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
        let before = crowd(&cache, &origin);
        all_have_run().await;
        by.invalidate(&cache).await;
        all_get(1, before, by).await;
        assert_eq!(cache.get("k").await, None);
        assert_eq!(origin.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn between_computing_and_storing_it_is_as_during_the_computation() {
    for by in EVERY_WAY {
        // The weigher runs after the computation and before the store; the
        // first time it invalidates, and others ask.
        let hook: Arc<OnceLock<(Stampede<u64>, Origin)>> = Arc::default();
        let (later, slot) = (tokio::sync::mpsc::unbounded_channel(), Arc::clone(&hook));
        let (send, mut receive) = later;
        let weigher = move |n: &u64| {
            if *n == 1 {
                let (cache, origin) = slot.get().unwrap();
                by.invalidate_now(cache);
                assert!(cache.get("k").now_or_never().unwrap().is_none());
                send.send(crowd(cache, origin)).unwrap();
            }
            8
        };
        let cache = settings().weigher(weigher).build().unwrap();
        let origin = Origin::taking(100 * MS);
        hook.set((cache.clone(), origin.clone())).unwrap();

        all_get(1, crowd(&cache, &origin), by).await;
        all_get(2, receive.recv().await.unwrap(), by).await;
        assert_eq!(cache.get("k").await, Some(2));
        assert_eq!(origin.calls(), 2);
        assert_quiet(&cache);
    }
}

#[tokio::test(start_paused = true)]
async fn after_the_computation_the_value_is_gone() {
    for by in EVERY_WAY {
        let cache = settings().stale_for(MINUTE).stale_if_error(MINUTE).build().unwrap();
        let origin = Origin::taking(100 * MS);
        all_get(1, crowd(&cache, &origin), by).await;
        by.invalidate(&cache).await;
        assert_eq!(cache.get("k").await, None);
        all_get(2, crowd(&cache, &origin), by).await;
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stale_value_is_gone_too_also_in_place_of_a_failure() {
    for by in EVERY_WAY {
        let cache = settings().stale_for(MINUTE).stale_if_error(10 * MINUTE).build().unwrap();
        let origin = Origin::taking(100 * MS);
        all_get(1, crowd(&cache, &origin), by).await;
        pass(MINUTE).await;
        by.invalidate(&cache).await;
        origin.next([Answer::Fail]);
        for answer in gather(crowd(&cache, &origin)).await {
            assert_eq!(answer.unwrap_err().inner::<OriginError>(), Some(&OriginError(2)));
        }
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn the_result_of_a_background_refresh_that_was_invalidated_is_not_stored() {
    for by in EVERY_WAY {
        let cache = settings().stale_for(10 * MINUTE).build().unwrap();
        let origin = Origin::taking(100 * MS);
        all_get(1, crowd(&cache, &origin), by).await;
        pass(MINUTE).await;
        all_get(1, crowd(&cache, &origin), by).await;
        pass(50 * MS).await;
        by.invalidate(&cache).await;
        all_get(3, crowd(&cache, &origin), by).await;
        assert_eq!(cache.get("k").await, Some(3));
        assert_eq!(origin.calls(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn refreshing_after_an_invalidation_does_not_return_an_older_result() {
    for by in EVERY_WAY {
        let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
        let before = ask(&cache, &origin);
        pass(50 * MS).await;
        by.invalidate(&cache).await;
        assert_eq!(cache.refresh("k", origin.compute()).await.unwrap(), 2);
        assert_eq!(before.await.unwrap().unwrap(), 1);
        assert_eq!(cache.get("k").await, Some(2));
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tag_concerns_the_entries_that_carry_it_and_no_others() {
    let cache: Stampede<u64> = settings().build().unwrap();
    for n in 0..100_u64 {
        let entry = Computed::new(n).tag(("parity", n % 2)).tag(("third", n % 3));
        cache.put_with(n, entry).await;
    }
    cache.invalidate_tag(("parity", 1)).await;
    cache.invalidate_tag(("third", 0)).await;
    for n in 0..100_u64 {
        let expected = (n % 2 == 0 && n % 3 != 0).then_some(n);
        assert_eq!(cache.get(n).await, expected, "entry {n}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_computed_after_an_invalidation_outlives_it() {
    let (cache, origin) = (settings().build().unwrap(), Origin::new());
    for n in 1..=50 {
        cache.invalidate_tag("t").await;
        assert_eq!(ask_now(cache.clone(), origin.clone()).await.unwrap(), n);
        pass(40 * SECOND).await;
        assert_eq!(ask_now(cache.clone(), origin.clone()).await.unwrap(), n);
    }
    assert_eq!(origin.calls(), 50);
}

#[tokio::test(start_paused = true)]
async fn a_value_of_a_day_stays_invalidated_all_day() {
    let day = 24 * 60 * MINUTE;
    let cache: Stampede<u64> = settings().ttl(day).build().unwrap();
    cache.put_with("k", Computed::new(1).tag("t")).await;
    cache.invalidate_tag("t").await;
    for _ in 0..24 {
        pass(60 * MINUTE - SECOND).await;
        assert_eq!(cache.get("k").await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_says_whether_there_was_anything() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
    assert!(!cache.invalidate("k").await.local);
    let computing = ask(&cache, &origin);
    all_have_run().await;
    assert!(cache.invalidate("k").await.local, "a running computation");
    computing.await.unwrap().unwrap();
    assert!(!cache.invalidate("k").await.local);
    cache.put("k", 1).await;
    assert!(cache.invalidate("k").await.local, "a value");
    assert_eq!(origin.calls(), 1);
}

#[test]
fn a_crowd_that_joined_a_result_that_is_dead_for_it_computes_once_more_together() {
    // On several threads: between a leader's publishing and its storing the
    // others run.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build();
    let runtime = runtime.unwrap();
    for _ in 0..100 {
        let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::new());
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let ask = {
            let (cache, origin, gate) = (cache.clone(), origin.clone(), Arc::clone(&gate));
            move || {
                let (cache, origin, gate) = (cache.clone(), origin.clone(), Arc::clone(&gate));
                spawn(async move {
                    let compute = move || async move {
                        let load = origin.load();
                        drop(gate.acquire().await);
                        load.await.map(|n| Computed::new(n).tag("t"))
                    };
                    cache.get_or_compute_with("k", compute).await.unwrap()
                })
            }
        };
        runtime.block_on(async {
            let first = ask();
            while origin.running() == 0 {
                tokio::task::yield_now().await;
            }
            cache.invalidate_tag("t").await;
            let crowd: Vec<_> = (0..100).map(|_| ask()).collect();
            while cache.stats().waiting < 100 {
                tokio::task::yield_now().await;
            }
            gate.add_permits(1000);
            assert_eq!(first.await.unwrap(), 1);
            for caller in crowd {
                assert_eq!(caller.await.unwrap(), 2);
            }
            assert_eq!(origin.calls(), 2);
        });
    }
}
