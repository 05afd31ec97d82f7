//! Keys that are loaded and refreshed although no caller reads them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;
use tower_stampede::{Builder, Cache, Mode};

use crate::kit::origin::*;

type Calls = Arc<Mutex<Vec<Vec<u64>>>>;

/// A cache that records the keys of each call, and takes a tenth of a second for it.
fn cache(settings: Builder<u64>, is_batched: bool) -> (Cache<u64, u64, OriginError>, Calls) {
    let calls = Calls::default();
    let recorded = Arc::clone(&calls);
    let handle = settings.build().unwrap();
    let load = move |mut ids: Vec<u64>| {
        ids.sort_unstable();
        recorded.lock().push(ids.clone());
        async move {
            tokio::time::sleep(100 * MS).await;
            Ok(ids.into_iter().map(|id| (id, id * 10)).collect::<HashMap<_, _>>())
        }
    };
    let cache = match is_batched {
        true => Cache::batched(handle, load),
        false => Cache::new(handle, move |id| {
            let loading = load(vec![id]);
            async move { loading.await.map(|found| found[&id]) }
        }),
    };
    (cache, calls)
}

#[tokio::test(start_paused = true)]
async fn kept_keys_are_loaded_at_once_and_are_fresh_at_every_moment_without_a_miss() {
    for is_batched in [false, true] {
        let (cache, calls) = cache(settings().ttl(10 * SECOND), is_batched);
        let kept = cache.keep_fresh([1, 2, 3]);
        pass(SECOND).await;
        let keys_per_call = if is_batched { 3 } else { 1 };
        assert!(calls.lock().iter().all(|keys| keys.len() == keys_per_call));
        for _ in 0..600 {
            pass(100 * MS).await;
            for id in 1..4 {
                assert_eq!(cache.get(id).await.unwrap(), id * 10);
            }
        }
        let stats = cache.handle().stats();
        assert_eq!((stats.hits, stats.stale, stats.joined), (1800, 0, 0), "{is_batched}");
        let loads = calls.lock().iter().flatten().count();
        assert!((21..=27).contains(&loads), "once in about eight seconds each: {loads}");
        drop(kept);
        pass(MINUTE).await;
        assert_eq!(calls.lock().iter().flatten().count(), loads, "nothing after the drop");
        assert_quiet(cache.handle());
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_keys_with_a_loader_for_single_keys_have_values_at_every_moment() {
    const KEYS: u64 = 10_000;
    let handle = settings().ttl(MINUTE).max_bytes(64 << 20).build().unwrap();
    let cache = Cache::new(handle, |id: u64| async move {
        pass(MS).await;
        Ok::<_, OriginError>(id)
    });
    let _kept = cache.keep_fresh(0..KEYS);
    pass(SECOND).await;
    for second in 0..150 {
        pass(SECOND).await;
        let has_none = |id: &u64| cache.handle().lookup(*id).is_none();
        assert_eq!((0..KEYS).filter(has_none).count(), 0, "after {second} s");
    }
    let stats = cache.handle().stats();
    let requests = stats.hits + stats.computed + stats.joined + stats.alone + stats.stale;
    assert_eq!((requests, stats.refused, stats.held, stats.overloaded), (0, 0, 0, 0));
    assert!((3 * KEYS..=4 * KEYS).contains(&stats.computations), "{}", stats.computations);
}

#[tokio::test(start_paused = true)]
async fn keys_that_fail_and_are_held_count_as_no_request() {
    let settings = settings().ttl(10 * SECOND).hold(5 * SECOND);
    let fail = |id: u64| async move { Err::<u64, _>(OriginError(id)) };
    let cache = Cache::new(settings.build().unwrap(), fail);
    let _kept = cache.keep_fresh(0..100);
    pass(MINUTE).await;
    let stats = cache.handle().stats();
    assert_eq!((stats.computed, stats.refused, stats.held), (0, 0, 0));
    assert!((1000..=1400).contains(&stats.failures), "one try in a hold: {}", stats.failures);
}

#[tokio::test(start_paused = true)]
async fn upkeep_leaves_refreshes_to_the_callers_of_other_keys() {
    let handle = settings().stale_for(60 * MINUTE).max_refreshes(8).build().unwrap();
    let (running, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (now, at_once) = (Arc::clone(&running), Arc::clone(&most));
    let cache = Cache::new(handle, move |id: u64| {
        let (now, at_once) = (Arc::clone(&now), Arc::clone(&at_once));
        async move {
            at_once.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
            pass(10 * SECOND).await;
            now.fetch_sub(1, SeqCst);
            Ok::<_, OriginError>(id)
        }
    });
    cache.put(&1000, 1).await;
    cache.mark_stale_now(&1000);
    let _kept = cache.keep_fresh(0..100);
    pass(SECOND).await;
    assert_eq!(running.load(SeqCst), 7);
    assert_eq!(cache.get(1000).await.unwrap(), 1, "stale");
    pass(SECOND).await;
    assert_eq!(running.load(SeqCst), 8, "and refreshed");
    pass(MINUTE).await;
    assert_eq!((most.load(SeqCst), cache.peek(&1000).await), (8, Some(1000)));
}

#[tokio::test(start_paused = true)]
async fn a_kept_key_that_gets_a_value_before_its_turn_is_not_loaded() {
    for is_batched in [false, true] {
        let (cache, calls) = cache(settings().max_refreshes(1).max_batch(1), is_batched);
        let _kept = cache.keep_fresh([1, 2, 3]);
        pass(50 * MS).await;
        for id in 1..4 {
            cache.put(&id, 7).await;
        }
        pass(10 * SECOND).await;
        assert_eq!(calls.lock().len(), 1, "the others wait for their turns: {is_batched}");
        for id in 1..4 {
            assert_eq!(cache.peek(&id).await, Some(7));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_kept_key_that_is_invalidated_is_loaded_again() {
    let (cache, calls) = cache(settings().ttl(10 * SECOND), true);
    let _kept = cache.keep_fresh([1, 2]);
    pass(SECOND).await;
    cache.invalidate(&2).await;
    pass(SECOND).await;
    assert_eq!(cache.peek(&2).await, Some(20));
    assert_eq!(*calls.lock(), [vec![1, 2], vec![2]]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_load_is_begun_once_and_delays_no_other_key() {
    let calls = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&calls);
    let load = move |id: u64| {
        counted.fetch_add(1, SeqCst);
        async move {
            pass(if id == 1 { 20 * SECOND } else { MS }).await;
            Ok::<_, OriginError>(id)
        }
    };
    let cache = Cache::new(settings().ttl(MINUTE).build().unwrap(), load);
    let kept = cache.keep_fresh([1]);
    let others = cache.keep_fresh([2]);
    pass(10 * SECOND).await;
    assert_eq!(cache.peek(&2).await, Some(2));
    let stats = cache.handle().stats();
    assert_eq!((calls.load(SeqCst), stats.waiting), (2, 0), "no look waits for the load");
    kept.forever();
    drop(others);
    pass(100 * SECOND).await;
    assert_eq!(cache.peek(&1).await, Some(1), "kept although its guard is gone");
    assert_eq!(cache.peek(&2).await, None);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_loaded_while_the_cache_is_off_nor_after_its_shutdown() {
    let (cache, calls) = cache(settings().ttl(10 * SECOND), true);
    cache.handle().set_mode(Mode::Off);
    cache.keep_fresh([1]).forever();
    pass(MINUTE).await;
    assert!(calls.lock().is_empty());
    cache.handle().set_mode(Mode::On);
    pass(MINUTE).await;
    assert!(!calls.lock().is_empty());
    assert_eq!(cache.handle().shutdown(SECOND).await, 0, "its task does not delay a shutdown");
}

#[tokio::test(start_paused = true)]
async fn a_cache_without_a_handle_is_dropped_although_its_keys_were_kept() {
    let (cache, calls) = cache(settings().ttl(10 * SECOND), true);
    cache.keep_fresh([1]).forever();
    pass(SECOND).await;
    let loads = calls.lock().len();
    drop(cache);
    pass(MINUTE).await;
    assert_eq!(calls.lock().len(), loads);
    assert_eq!(Arc::strong_count(&calls), 1, "the loader is dropped");
}

#[tokio::test(start_paused = true)]
async fn a_preload_has_at_most_so_many_calls_at_once_and_returns_the_failures() {
    let running = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let of_load = Arc::clone(&running);
    let cache = Cache::new(settings().build().unwrap(), move |id: u64| {
        let running = Arc::clone(&of_load);
        async move {
            let now = running.0.fetch_add(1, SeqCst) + 1;
            running.1.fetch_max(now, SeqCst);
            pass(SECOND).await;
            running.0.fetch_sub(1, SeqCst);
            if id == 13 { Err(OriginError(id)) } else { Ok(id) }
        }
    });
    let failures = cache.preload(0..20, 4).await;
    assert_eq!(failures.keys().collect::<Vec<_>>(), [&13]);
    assert_eq!(running.1.load(SeqCst), 4);
    for id in 0..20 {
        assert_eq!(cache.peek(&id).await, (id != 13).then_some(id));
    }
}

#[tokio::test(start_paused = true)]
async fn a_preload_of_a_batch_loader_loads_whole_batches() {
    let (cache, calls) = cache(settings().max_batch(8), true);
    assert!(cache.preload(0..20, 1).await.is_empty());
    assert_eq!(calls.lock().iter().map(Vec::len).collect::<Vec<_>>(), [8, 8, 4]);
}
