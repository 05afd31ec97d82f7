//! What the handle offers besides computing once: lifetimes that values set
//! themselves, writes, refreshes, looks.

use std::convert::Infallible;

use tokio::time::Instant;
use tower_stampede::{Computed, ErrorKind, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

#[tokio::test(start_paused = true)]
async fn an_absent_value_is_remembered_for_the_negative_ttl() {
    let cache: Stampede<Option<u64>> = settings().negative_ttl(5 * SECOND).build().unwrap();
    let origin = Origin::new();
    let ask = |key: &'static str, found: bool| {
        let load = origin.load();
        let compute = move || async move { load.await.map(|n| found.then_some(n)) };
        cache.get_or_compute(key, compute)
    };
    // `ask` makes the call, used or not, so ask only where one is expected.
    assert_eq!(ask("absent", false).await.unwrap(), None);
    assert_eq!(ask("there", true).await.unwrap(), Some(2));
    pass(4 * SECOND).await;
    assert_eq!(cache.get("absent").await, Some(None));
    pass(2 * SECOND).await;
    assert_eq!(cache.get("absent").await, None);
    assert_eq!(cache.get("there").await, Some(Some(2)));
    assert_eq!(ask("absent", true).await.unwrap(), Some(3));
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_sets_its_own_ttl_is_fresh_for_that_long() {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::new());
    let ask = || {
        let compute = origin.compute();
        cache.get_or_compute_with("k", move || async move {
            compute().await.map(|n| Computed::new(n).ttl(10 * SECOND).stale_for(10 * SECOND))
        })
    };
    assert_eq!(ask().await.unwrap(), 1);
    pass(9 * SECOND).await;
    assert_eq!(ask().await.unwrap(), 1);
    assert_eq!(cache.stats().stale, 0);
    pass(2 * SECOND).await;
    assert_eq!(ask().await.unwrap(), 1);
    assert_eq!(cache.stats().stale, 1);
    all_have_run().await;
    assert_eq!(ask().await.unwrap(), 2);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_ttl_of_zero_serves_those_who_wait_and_keeps_nothing() {
    let cache: Stampede<u64> = settings().stale_for(MINUTE).build().unwrap();
    let origin = Origin::taking(100 * MS);
    let wave = || {
        herd(100, |_| {
            let (cache, compute) = (cache.clone(), origin.compute());
            async move {
                let computed = move || async move {
                    compute().await.map(|n| Computed::new(n).ttl(std::time::Duration::ZERO))
                };
                cache.get_or_compute_with("k", computed).await.unwrap()
            }
        })
    };
    assert_eq!(wave().await, [1; 100]);
    assert_eq!(cache.get("k").await, None);
    assert_eq!(wave().await, [2; 100]);
    assert_eq!(origin.calls(), 2);
}

/// The three kinds of results that are not stored.
const UNSTORED: [fn(u64) -> Computed<u64>; 3] = [
    |n| Computed::new(n).ttl(std::time::Duration::ZERO),
    |n| Computed::new(n).do_not_store(),
    |n| Computed::new(n + HEAVY),
];
const HEAVY: u64 = 1000;

/// A cache with a long stale window, in which values above `HEAVY` find no room.
fn with_stale_window() -> Stampede<u64> {
    let weigher = |value: &u64| if *value > HEAVY { usize::MAX } else { 8 };
    settings().stale_for(60 * MINUTE).weigher(weigher).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_refresh_whose_result_is_not_stored_ends_the_older_value() {
    for (kind, make) in UNSTORED.into_iter().enumerate() {
        let (cache, origin) = (with_stale_window(), Origin::new());
        cache.put("k", 0).await;
        pass(MINUTE).await;
        let mut got = Vec::new();
        for _ in 0..5 {
            let load = origin.compute();
            let compute = move || async move { load().await.map(make) };
            got.push(cache.get_or_compute_with("k", compute).await.unwrap() % HEAVY);
            all_have_run().await;
        }
        assert_eq!(got, [0, 2, 3, 4, 5], "kind {kind}: stale once, then what is new");
        assert_eq!(cache.get("k").await, None);
        let inside = || async { origin.load().await.map(make) };
        cache.put("k", 0).await;
        pass(MINUTE).await;
        let got = cache.entry("k").get_or_compute_scoped(inside).await.unwrap().into_value();
        assert_eq!(
            (got % HEAVY, cache.get("k").await),
            (6, None),
            "kind {kind}: inside its caller"
        );
        cache.put("k", 0).await;
        let compute = move || async move { Ok::<_, OriginError>(make(7)) };
        cache.entry("k").refresh(compute).await.unwrap();
        assert_eq!(cache.get("k").await, None, "kind {kind}: a fresh read");
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_not_stored_ends_no_value_that_is_newer_than_its_computation() {
    for make in UNSTORED {
        let (cache, origin) = (with_stale_window(), Origin::taking(SECOND));
        cache.put("k", 0).await;
        pass(MINUTE).await;
        let load = origin.compute();
        let compute = move || async move { load().await.map(make) };
        assert_eq!(cache.get_or_compute_with("k", compute).await.unwrap(), 0, "refreshed");
        all_have_run().await;
        cache.put("k", 5).await;
        pass(2 * SECOND).await;
        assert_eq!((origin.calls(), cache.get("k").await), (1, Some(5)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_counts_from_the_end_of_the_computation() {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::taking(20 * SECOND));
    cache.get_or_compute("k", origin.compute()).await.unwrap();
    pass(59 * SECOND).await;
    assert_eq!(cache.get("k").await, Some(1));
    pass(2 * SECOND).await;
    assert_eq!(cache.get("k").await, None);
    assert_eq!(origin.calls(), 1);
}

/// The oldest data that callers of a page get, which is made of a part of the same handle. They come
/// every 700 ms, and every 15 s there is a pause.
async fn oldest_page(refreshes_part: bool) -> std::time::Duration {
    let cache: Stampede<Instant> = settings()
        .ttl(10 * SECOND)
        .stale_for(5 * SECOND)
        .compute_timeout(6 * SECOND)
        .build()
        .unwrap();
    let mut oldest = std::time::Duration::ZERO;
    for n in 0..600 {
        let inner = cache.clone();
        let part = || async {
            let read = Instant::now();
            pass(2 * SECOND).await;
            Ok::<_, OriginError>(read)
        };
        let page = move || async move {
            match refreshes_part {
                true => inner.refresh("part", part).await,
                false => inner.get_or_compute("part", part).await,
            }
        };
        let read = cache.get_or_compute("page", page).await.unwrap();
        oldest = oldest.max(read.elapsed());
        pass(if n % 20 == 0 { 14 * SECOND } else { 700 * MS }).await;
    }
    oldest
}

#[tokio::test(start_paused = true)]
async fn the_ages_of_a_value_and_of_a_cached_value_that_it_is_made_of_add_up() {
    let bound = (10 + 5 + 6) * SECOND;
    let oldest = oldest_page(false).await;
    assert!(bound < oldest && oldest <= 2 * bound, "{oldest:?}");
    let oldest = oldest_page(true).await;
    assert!(oldest <= bound, "{oldest:?}: it is made of what is read for it");
}

#[tokio::test(start_paused = true)]
async fn refreshing_computes_however_fresh_the_value_is_and_serves_it_meanwhile() {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::taking(100 * MS));
    cache.get_or_compute("k", origin.compute()).await.unwrap();
    let refreshes = spawn_herd(100, |_| {
        let (cache, origin) = (cache.clone(), origin.clone());
        async move { cache.refresh("k", origin.compute()).await.unwrap() }
    });
    all_have_run().await;
    assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 1);
    assert_eq!(gather(refreshes).await, [2; 100]);
    assert_eq!(cache.get("k").await, Some(2));
    assert_eq!(origin.calls(), 2);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_failed_refresh_leaves_the_value_and_does_not_mind_a_hold() {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::new());
    cache.get_or_compute("k", origin.compute()).await.unwrap();
    origin.next([Answer::Fail]);
    let error = cache.refresh("k", origin.compute()).await.unwrap_err();
    assert_eq!(error.inner::<OriginError>(), Some(&OriginError(2)));
    assert_eq!(cache.get("k").await, Some(1));
    assert_eq!(cache.refresh("k", origin.compute()).await.unwrap(), 3);
    assert_eq!(cache.get("k").await, Some(3));
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_value_marked_stale_is_served_while_one_refresh_runs() {
    let cache: Stampede<u64> = settings().stale_for(MINUTE).build().unwrap();
    let origin = Origin::taking(100 * MS);
    cache.get_or_compute("k", origin.compute()).await.unwrap();
    assert!(cache.mark_stale("k").await.local);
    assert!(!cache.mark_stale("nothing there").await.local);

    let from = Instant::now();
    let answers = herd(1000, |_| {
        let (cache, origin) = (cache.clone(), origin.clone());
        async move { cache.get_or_compute("k", origin.compute()).await.unwrap() }
    });
    assert_eq!(answers.await, [1; 1000]);
    assert!(from.elapsed().is_zero());
    pass(101 * MS).await;
    assert_eq!(cache.get("k").await, Some(2));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_a_stale_window_a_value_marked_stale_is_not_served() {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::taking(100 * MS));
    cache.get_or_compute("k", origin.compute()).await.unwrap();
    assert!(cache.mark_stale("k").await.local);
    assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 2);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_result_of_a_computation_that_ran_when_its_key_was_marked_stale_is_not_stored() {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::taking(100 * MS));
    let (asking, compute) = (cache.clone(), origin.compute());
    let leader = spawn(async move { asking.get_or_compute("k", compute).await });
    all_have_run().await;
    cache.mark_stale("k").await;
    assert_eq!(leader.await.unwrap().unwrap(), 1);
    assert_eq!(cache.get("k").await, None);
    assert_eq!(cache.stats().refused_fills, 1);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_put_takes_the_place_of_what_is_stored_and_of_what_is_being_computed() {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::taking(100 * MS));
    let (asking, compute) = (cache.clone(), origin.compute());
    let leader = spawn(async move { asking.get_or_compute("k", compute).await });
    all_have_run().await;
    cache.put("k", 10).await;
    assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 10);
    assert_eq!(leader.await.unwrap().unwrap(), 1, "its own caller still gets its result");
    assert_eq!(cache.get("k").await, Some(10));
    cache.put_with("k", Computed::new(11).ttl(5 * SECOND).tag("t")).await;
    assert_eq!(cache.get("k").await, Some(11));
    cache.invalidate_tag("t").await;
    assert_eq!(cache.get("k").await, None);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_put_and_not_to_be_kept_still_takes_the_place_of_what_is_stored() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let gone = [Computed::new(2).ttl(std::time::Duration::ZERO), Computed::new(2).do_not_store()];
    for computed in gone {
        cache.put("k", 1).await;
        cache.put_with("k", computed).await;
        assert_eq!(cache.get("k").await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_never_computes_and_finds_what_is_stale() {
    let cache: Stampede<u64> = settings().stale_for(MINUTE).build().unwrap();
    assert_eq!(cache.get("k").await, None);
    cache.put("k", 1).await;
    assert_eq!(cache.get("k").await, Some(1));
    pass(MINUTE).await;
    assert_eq!(cache.get("k").await, Some(1));
    pass(MINUTE).await;
    assert_eq!(cache.get("k").await, None);
    assert_eq!(cache.stats().computations, 0);
}

#[tokio::test(start_paused = true)]
async fn a_look_finds_every_fresh_value_also_where_it_draws_the_early_refresh() {
    let cache: Stampede<u64> =
        settings().early_refresh(1.0).early_refresh_share(1.0).build().unwrap();
    let origin = Origin::taking(20 * SECOND);
    cache.get_or_compute("k", origin.compute()).await.unwrap();
    pass(20 * SECOND).await;
    for _ in 0..1000 {
        assert_eq!(cache.get("k").await, Some(1));
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn every_clone_shares_values_and_computations() {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::taking(100 * MS));
    let clones: Vec<_> = (0..10).map(|_| cache.clone()).collect();
    herd(10, |i| {
        let (cache, origin) = (clones[i].clone(), origin.clone());
        async move { cache.get_or_compute("k", origin.compute()).await.unwrap() }
    })
    .await;
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_borrowing_computation_may_use_what_lives_on_the_stack() {
    let cache: Stampede<usize> = settings().build().unwrap();
    let text = String::from("borrowed");
    let calls = std::cell::Cell::new(0);
    let length = || async {
        calls.set(calls.get() + 1);
        Ok::<_, Infallible>(text.len())
    };
    assert_eq!(cache.get_or_compute_scoped("k", length).await.unwrap(), 8);
    assert_eq!(cache.get_or_compute_scoped("k", length).await.unwrap(), 8);
    assert_eq!(calls.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_error_reaches_its_caller_as_what_it_is() {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::new());
    origin.next([Answer::Fail]);
    let error = cache.get_or_compute("k", origin.compute()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Inner);
    assert_eq!(error.inner::<OriginError>(), Some(&OriginError(1)));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn while_time_stands_still_no_value_ends_however_long_the_test_takes() {
    let nanosecond = std::time::Duration::from_nanos(1);
    let cache: Stampede<u64> = settings().ttl(nanosecond).build().unwrap();
    for key in 0..1000_u64 {
        cache.put(key, key).await;
    }
    assert_eq!(cache.stats().entries, 1000);
    for key in 0..1000_u64 {
        assert_eq!(cache.get(key).await, Some(key));
    }
}

#[tokio::test(start_paused = true)]
async fn to_mark_stale_what_has_ended_is_to_mark_nothing() {
    let cache: Stampede<u64> = settings().build().unwrap();
    cache.put("k", 1).await;
    assert!(cache.mark_stale("k").await.local);
    cache.put("k", 1).await;
    cache.invalidate_all().await;
    assert!(!cache.mark_stale("k").await.local, "invalidated");
    cache.put("k", 1).await;
    pass(MINUTE + SECOND).await;
    assert!(!cache.mark_stale("k").await.local, "expired");
}
