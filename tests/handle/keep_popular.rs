//! Keys that are refreshed for their price and use, without being named.

use std::time::Duration;

use tower_stampede::{Cache, Stampede};

use crate::kit::origin::*;

type Numbers = Cache<u64, u64, OriginError>;

/// Each key takes so many milliseconds as it is large, and its value is the number of the call.
fn numbers(origin: &Origin) -> Numbers {
    let handle: Stampede<u64> = settings().stale_for(10 * MINUTE).build().unwrap();
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
