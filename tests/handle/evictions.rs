//! The hook that is told of each entry that leaves the store, and why.

use std::sync::Arc;

use parking_lot::Mutex;
use tower_stampede::{Builder, Computed, EvictionCause, Stampede};

use crate::kit::origin::*;

type Told = Arc<Mutex<Vec<(String, u64, EvictionCause)>>>;

fn telling(settings: Builder<u64>) -> (Stampede<u64>, Told) {
    let told = Told::default();
    let noted = Arc::clone(&told);
    let hook = move |key: &tower_stampede::Key, value: &u64, cause| {
        let key = String::from_utf8_lossy(key.as_bytes()).into_owned();
        noted.lock().push((key, *value, cause));
    };
    (settings.on_eviction(hook).build().unwrap(), told)
}

fn take(told: &Told) -> Vec<(String, u64, EvictionCause)> {
    let mut told = std::mem::take(&mut *told.lock());
    told.sort_by(|one, other| one.0.cmp(&other.0));
    told
}

fn one(key: &str, value: u64, cause: EvictionCause) -> Vec<(String, u64, EvictionCause)> {
    vec![(key.to_owned(), value, cause)]
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_a_replacement_and_the_end_of_a_lifetime_are_told_apart() {
    let (cache, told) = telling(settings().ttl(45 * SECOND));
    cache.put_with("a", Computed::new(1).tag("t")).await;
    assert!(take(&told).is_empty());
    cache.put_with("a", Computed::new(2).tag("t")).await;
    assert_eq!(take(&told), one("a", 1, EvictionCause::Replaced));
    cache.invalidate("a").await;
    assert_eq!(take(&told), one("a", 2, EvictionCause::Invalidated));
    cache.put_with("b", Computed::new(3).tag("t")).await;
    cache.invalidate_tag("t").await;
    cache.put("c", 4).await;
    pass(40 * SECOND).await;
    assert_eq!(take(&told), one("b", 3, EvictionCause::Invalidated), "told by the tidying task");
    pass(MINUTE).await;
    assert_eq!(take(&told), one("c", 4, EvictionCause::Expired));
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_makes_room_is_told_with_its_value() {
    let (cache, told) = telling(settings().max_entries(3));
    for n in 0..10_u64 {
        cache.put(n, n * 10).await;
    }
    let _ = cache.stats();
    let told = take(&told);
    assert_eq!(told.len(), 7);
    for (key, value, cause) in told {
        assert_eq!((key.parse::<u64>().unwrap() * 10, EvictionCause::Size), (value, cause));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_may_call_the_cache_and_its_panic_ends_at_the_hook() {
    let handle = Arc::new(Mutex::new(None::<Stampede<u64>>));
    let of_hook = Arc::clone(&handle);
    let cache: Stampede<u64> = settings()
        .on_eviction(move |key, value, cause| {
            let cache = of_hook.lock().clone();
            if let Some(cache) = cache.filter(|_| cause == EvictionCause::Invalidated) {
                // A chain of a hundred evictions, each from within a hook.
                if *value < 100 {
                    cache.put_now(key.clone(), value + 1);
                    cache.invalidate_now(key.clone());
                }
            }
            assert_ne!(*value, 50, "the hook panics");
        })
        .build()
        .unwrap();
    *handle.lock() = Some(cache.clone());
    cache.put("k", 0).await;
    cache.invalidate("k").await;
    assert_eq!(cache.stats().invalidations, 101);
    assert_eq!(cache.get("k").await, None);
    cache.put("k", 500).await;
    assert_eq!(cache.get("k").await, Some(500), "the cache goes on");
}
