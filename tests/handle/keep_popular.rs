//! Keys that are refreshed for their price and use, without being named.

use std::time::Duration;

use tower_stampede::{Builder, Cache, Computed, Mode, ToKey};

use crate::kit::origin::*;

type Numbers = Cache<u64, u64, OriginError>;

/// Each key takes so many milliseconds as it is large, and its value is the number of the call.
fn numbers(origin: &Origin) -> Numbers {
    numbers_with(settings(), origin)
}

fn numbers_with(settings: Builder<u64>, origin: &Origin) -> Numbers {
    let handle = settings.stale_for(10 * MINUTE).build().unwrap();
    let origin = origin.clone();
    Cache::new(handle, move |key: u64| {
        let work = origin.load();
        async move {
            tokio::time::sleep(Duration::from_millis(key)).await;
            work.await
        }
    })
}

async fn used(cache: &Numbers, key: u64, times: u32) {
    for _ in 0..times {
        cache.get(key).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_keys_by_price_and_use_are_refreshed_before_they_expire_and_no_others() {
    let origin = Origin::new();
    let cache = numbers(&origin);
    let _kept = cache.keep_popular(2);
    for (key, times) in [(1000, 33), (2000, 33), (10, 65), (3000, 5)] {
        used(&cache, key, times).await;
    }
    assert_eq!(origin.calls(), 4);
    pass(55 * SECOND).await;
    for _ in 0..10 {
        pass(SECOND).await;
    }
    assert_eq!(origin.calls(), 6, "the two that have saved the most");
    let fresh = |key: u64| cache.handle().lookup(key).unwrap().ttl_left > 30 * SECOND;
    assert_eq!([1000, 2000, 10, 3000].map(fresh), [true, true, false, false]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_not_used_any_more_is_refreshed_once() {
    let origin = Origin::new();
    let cache = numbers(&origin);
    let _kept = cache.keep_popular(2);
    used(&cache, 1000, 33).await;
    for _ in 0..300 {
        pass(SECOND).await;
    }
    assert_eq!(origin.calls(), 2);
    used(&cache, 1000, 1).await;
    for _ in 0..300 {
        pass(SECOND).await;
    }
    assert_eq!(origin.calls(), 3, "for the one use");
}

#[tokio::test(start_paused = true)]
async fn a_popular_key_that_was_invalidated_is_left_to_the_next_caller() {
    let origin = Origin::new();
    let cache = numbers(&origin);
    let kept = cache.keep_popular(2);
    used(&cache, 1000, 33).await;
    cache.invalidate(1000).await;
    for _ in 0..120 {
        pass(SECOND).await;
    }
    assert_eq!(origin.calls(), 1);
    used(&cache, 1000, 33).await;
    drop(kept);
    for _ in 0..120 {
        pass(SECOND).await;
    }
    assert_eq!(origin.calls(), 2, "nothing is kept any more");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_read_by_a_borrowed_form_is_popular_too() {
    let (handle, origin) = (settings().build().unwrap(), Origin::taking(SECOND));
    let load = {
        let origin = origin.clone();
        move |_: String| origin.load()
    };
    let cache: Cache<String, u64, OriginError> = Cache::new(handle, load);
    let _kept = cache.keep_popular(2);
    for _ in 0..33 {
        cache.get_borrowed("k").await.unwrap();
    }
    seconds(55).await;
    assert_eq!(origin.calls(), 2);
}

/// Looks of the cache go by, one a second.
async fn seconds(count: u32) {
    for _ in 0..count {
        pass(SECOND).await;
    }
}

fn is_refreshed<K, F>(cache: &Cache<K, u64, OriginError>, key: F) -> bool
where
    F: ToKey,
    K: ToKey + Eq + std::hash::Hash + Clone + Send + Sync + 'static,
{
    cache.handle().lookup(key).is_some_and(|it| it.ttl_left > 30 * SECOND)
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_popular_yesterday_makes_room_for_one_of_today() {
    let origin = Origin::new();
    let cache = numbers(&origin);
    let _kept = cache.keep_popular(1);
    used(&cache, 1000, 10_000).await;
    for _ in 0..24 * 60 {
        pass(MINUTE).await;
        used(&cache, 1000, 1).await;
    }
    used(&cache, 3000, 129).await;
    seconds(58).await;
    assert!(is_refreshed(&cache, 3000));
}

#[tokio::test(start_paused = true)]
async fn what_was_saved_an_hour_ago_counts_half_for_several_upkeeps_too() {
    let origin = Origin::new();
    let cache = numbers(&origin);
    let _kept = [(); 3].map(|()| cache.keep_popular(1));
    used(&cache, 1000, 1024).await;
    for _ in 0..62 {
        pass(MINUTE).await;
        used(&cache, 1000, 1).await;
    }
    used(&cache, 3000, 129).await;
    seconds(58).await;
    assert!(!is_refreshed(&cache, 3000), "384 s against half of 1024 s");
}

#[tokio::test(start_paused = true)]
async fn popular_keys_that_are_longer_than_the_ledger_writes_them_are_refreshed_too() {
    let (handle, origin) = (settings().build().unwrap(), Origin::taking(SECOND));
    let load = {
        let origin = origin.clone();
        move |_: String| origin.load()
    };
    let cache: Cache<String, u64, OriginError> = Cache::new(handle, load);
    let _kept = cache.keep_popular(2);
    let (long, other) = (format!("{}a", "x".repeat(256)), format!("{}b", "x".repeat(256)));
    for _ in 0..33 {
        cache.get(long.clone()).await.unwrap();
        cache.get(other.clone()).await.unwrap();
    }
    seconds(55).await;
    assert_eq!(origin.calls(), 4);
    assert!(is_refreshed(&cache, &long) && is_refreshed(&cache, &other));
}

#[tokio::test(start_paused = true)]
async fn popular_keys_that_find_no_place_for_a_refresh_get_the_next_one() {
    let (origin, quick, keys) = (Origin::new(), Origin::taking(100 * MS), 2000..2010_u64);
    let cache = numbers_with(settings().max_refreshes(1), &origin);
    let _kept = cache.keep_popular(20);
    for key in keys.clone() {
        cache.handle().get_or_compute(key, quick.compute()).await.unwrap();
        used(&cache, key, 33).await;
    }
    seconds(75).await;
    assert_eq!(origin.calls(), 10);
    assert!(keys.clone().all(|key| is_refreshed(&cache, key)));
}

#[tokio::test(start_paused = true)]
async fn a_popular_key_whose_tag_was_invalidated_is_left_to_the_next_caller() {
    let (handle, origin) = (settings().build().unwrap(), Origin::taking(SECOND));
    let load = {
        let origin = origin.clone();
        move |_| {
            let work = origin.load();
            async move { work.await.map(|value| Computed::new(value).tag("all")) }
        }
    };
    let cache: Numbers = Cache::new(handle, load);
    let _kept = cache.keep_popular(2);
    used(&cache, 1, 33).await;
    cache.handle().invalidate_tag("all").await;
    seconds(120).await;
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn popular_keys_of_before_that_are_gone_leave_their_places_to_those_of_today() {
    let origin = Origin::new();
    let cache = numbers(&origin);
    let _kept = cache.keep_popular(2);
    for key in [2000, 2001, 2002] {
        used(&cache, key, 65).await;
        cache.invalidate(key).await;
    }
    used(&cache, 1000, 33).await;
    let before = origin.calls();
    seconds(55).await;
    assert_eq!(origin.calls() - before, 1);
    assert!(is_refreshed(&cache, 1000_u64));
}

#[tokio::test(start_paused = true)]
async fn a_popular_key_whose_refresh_fails_or_panics_is_tried_again_as_long_as_it_is_used() {
    let origin = Origin::new();
    let cache = numbers(&origin);
    let _kept = cache.keep_popular(usize::MAX);
    used(&cache, 1000, 33).await;
    origin.next([Answer::Fail, Answer::Panic]);
    for _ in 0..70 {
        pass(SECOND).await;
        used(&cache, 1000, 1).await;
    }
    assert!(origin.calls() >= 4, "{}", origin.calls());
    assert!(is_refreshed(&cache, 1000_u64));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_no_keys_and_nothing_after_a_shutdown() {
    for most in [0, usize::MAX] {
        let origin = Origin::new();
        let cache = numbers(&origin);
        cache.keep_popular(most).forever();
        used(&cache, 1000, 33).await;
        if most > 0 {
            cache.handle().shutdown(SECOND).await;
        }
        seconds(120).await;
        assert_eq!(origin.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_refresh_of_a_popular_key_is_not_cancelled_when_callers_that_joined_it_leave() {
    let origin = Origin::taking(25 * SECOND);
    let handle = settings().cancel_unwanted(1.0).build().unwrap();
    let load = {
        let origin = origin.clone();
        move |_| origin.load()
    };
    let cache: Numbers = Cache::new(handle, load);
    let slow = Origin::taking(20 * SECOND);
    cache.handle().get_or_compute(1_u64, slow.compute()).await.unwrap();
    let _kept = cache.keep_popular(1);
    used(&cache, 1, 33).await;
    seconds(61).await;
    let caller = tokio::time::timeout(SECOND, cache.get(1));
    assert!(caller.await.is_err(), "it waits for the refresh");
    seconds(20).await;
    assert_eq!((origin.calls(), origin.dropped()), (1, 0));
    assert!(is_refreshed(&cache, 1_u64));
}

/// As `a_key_that_was_popular_yesterday_makes_room_for_one_of_today`, but that no look comes
/// meanwhile.
#[tokio::test(start_paused = true)]
async fn a_key_of_yesterday_makes_room_after_a_day_without_a_look() {
    for (is_off, times) in [(false, 33), (true, 33), (false, 10_000), (true, 10_000)] {
        let origin = Origin::new();
        let cache = numbers(&origin);
        let _kept = cache.keep_popular(1);
        used(&cache, 1000, times).await;
        if is_off {
            cache.handle().set_mode(Mode::Off);
            for _ in 0..24 * 60 {
                pass(MINUTE).await;
            }
            cache.handle().set_mode(Mode::On);
        } else {
            tokio::time::advance(24 * 60 * MINUTE).await;
            all_have_run().await;
        }
        used(&cache, 1000, 1).await;
        used(&cache, 3000, 129).await;
        seconds(58).await;
        assert!(is_refreshed(&cache, 3000), "off: {is_off}, {times} uses");
    }
}
