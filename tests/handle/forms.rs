//! The forms of one operation: with a value that sets its own lifetime and tags, by
//! reference, and without `await`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tower_stampede::{CacheOutcome, Computed, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

/// A value that counts its clones.
#[derive(Debug, Default)]
struct Counted(Arc<AtomicUsize>);

impl Clone for Counted {
    fn clone(&self) -> Self {
        self.0.fetch_add(1, SeqCst);
        Self(Arc::clone(&self.0))
    }
}

#[tokio::test(start_paused = true)]
async fn a_reference_to_a_stored_value_clones_nothing_and_outlives_its_eviction() {
    let cache: Stampede<Counted> = settings().build().unwrap();
    let clones = Arc::<AtomicUsize>::default();
    cache.put("k", Counted(Arc::clone(&clones))).await;
    let never = || async { Err::<Counted, _>(OriginError(0)) };
    let served = cache.entry("k").get_or_compute(never).await.unwrap();
    let looked_up = cache.entry("k").get().await.unwrap();
    cache.invalidate("k").await;
    assert!(Arc::ptr_eq(&served.0, &clones) && Arc::ptr_eq(&looked_up.0, &clones));
    assert_eq!(clones.load(SeqCst), 0);
    drop(served.into_value());
    assert_eq!(clones.load(SeqCst), 1);
    assert!(cache.entry("k").get().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn each_outcome_comes_with_the_value() {
    let settings = settings().ttl(10 * SECOND).stale_for(60 * SECOND);
    let (cache, origin) = (settings.build().unwrap(), Origin::taking(SECOND));
    let (waiting, compute) = (cache.clone(), origin.compute());
    let leader = spawn(async move { waiting.entry("k").get_or_compute(compute).await });
    all_have_run().await;
    let joined = cache.entry("k").get_or_compute(origin.compute()).await.unwrap();
    assert_eq!((*joined, joined.outcome()), (1, CacheOutcome::Joined));
    assert_eq!(leader.await.unwrap().unwrap().outcome(), CacheOutcome::Computed);
    assert_eq!(cache.entry("k").get().await.unwrap().outcome(), CacheOutcome::Hit);
    pass(11 * SECOND).await;
    assert_eq!(cache.entry("k").get().await.unwrap().outcome(), CacheOutcome::Stale);
    let stale = cache.entry("k").get_or_compute(origin.compute()).await.unwrap();
    assert_eq!((*stale, stale.outcome()), (1, CacheOutcome::Stale));
}

#[tokio::test(start_paused = true)]
async fn every_computing_method_takes_a_value_with_its_own_tags() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let tagged = || async { Ok::<_, OriginError>(Computed::new(7).tag("t")) };
    for form in 0..4 {
        let got = match form {
            0 => cache.get_or_compute_with("k", tagged).await.unwrap(),
            1 => *cache.entry("k").get_or_compute_scoped(tagged).await.unwrap(),
            2 => *cache.entry("k").get_or_compute(tagged).await.unwrap(),
            _ => *cache.entry("k").refresh(tagged).await.unwrap(),
        };
        assert_eq!((got, cache.get("k").await), (7, Some(7)), "form {form}");
        cache.invalidate_tag("t").await;
        assert_eq!(cache.get("k").await, None, "form {form}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refresh_keeps_the_tags_of_the_old_value_unless_the_new_one_sets_its_own() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let put = || cache.put_with("k", Computed::new(1).tag("old"));
    put().await;
    cache.refresh("k", || async { Ok::<_, OriginError>(2) }).await.unwrap();
    cache.invalidate_tag("old").await;
    assert_eq!(cache.get("k").await, None);
    put().await;
    let untagged = || async { Ok::<_, OriginError>(Computed::new(3)) };
    cache.entry("k").refresh(untagged).await.unwrap();
    cache.invalidate_tag("old").await;
    assert_eq!(cache.get("k").await, Some(3));
}

#[tokio::test(start_paused = true)]
async fn several_tags_are_invalidated_at_once_and_none_is_nothing() {
    let cache: Stampede<u64> = settings().build().unwrap();
    for (key, tag) in [("a", "one"), ("b", "two"), ("c", "three")] {
        cache.put_with(key, Computed::new(1).tag(tag)).await;
    }
    assert!(cache.invalidate_tags(["one", "two"]).await.local);
    let left = [cache.get("a").await, cache.get("b").await, cache.get("c").await];
    assert_eq!(left, [None, None, Some(1)]);
    assert!(!cache.invalidate_tags(Vec::<&str>::new()).await.local);
    assert_eq!(cache.stats().invalidations, 2);
}

/// Invalidates when it is dropped, as a guard of a transaction does.
struct InvalidatesOnDrop(Stampede<u64>);

impl Drop for InvalidatesOnDrop {
    fn drop(&mut self) {
        self.0.invalidate_now("k");
        self.0.put_now("other", 2);
    }
}

#[test]
fn a_drop_outside_of_a_runtime_may_invalidate_and_put() {
    let cache: Stampede<u64> = settings().stale_for(MINUTE).build().unwrap();
    cache.put_with_now("k", Computed::new(1).tag("t"));
    drop(InvalidatesOnDrop(cache.clone()));
    assert!(!cache.mark_stale_now("k"), "it is gone");
    assert!(cache.mark_stale_now("other"));
    cache.put_with_now("k", Computed::new(1).tag("t"));
    cache.invalidate_tags_now(["t"]);
    assert!(!cache.mark_stale_now("k"));
    assert_eq!(cache.stats().invalidations, 2);
}

#[tokio::test(start_paused = true)]
async fn a_computation_that_runs_while_its_key_is_invalidated_without_await_is_not_stored() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(SECOND));
    let (asking, compute) = (cache.clone(), origin.compute());
    let asked = spawn(async move { asking.get_or_compute("k", compute).await });
    all_have_run().await;
    assert!(cache.invalidate_now("k"), "a computation that runs");
    assert_eq!(asked.await.unwrap().unwrap(), 1);
    assert_eq!(cache.get("k").await, None);
}

/// Types of the application need no bounds to hold a cache.
#[derive(Clone)]
struct Repository<K, V, E> {
    _handle: Stampede<V>,
    _cache: tower_stampede::Cache<K, V, E>,
}

#[tokio::test(start_paused = true)]
async fn a_struct_holds_a_cache_without_bounds() {
    let handle: Stampede<u64> = settings().build().unwrap();
    let cache =
        tower_stampede::Cache::new(handle.clone(), |n: u64| async move { Ok::<_, OriginError>(n) });
    let repository = Repository { _handle: handle, _cache: cache };
    assert_eq!(repository.clone()._cache.get(3).await.unwrap(), 3);
}
