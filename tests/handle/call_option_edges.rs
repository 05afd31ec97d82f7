//! Edges of calls with options, in one process.

use std::time::Duration;

use tokio::time::Instant;
use tower_stampede::{Cache, CacheOutcome, Computed, Mode, Stampede, Stored};

use crate::kit::origin::*;
use crate::kit::spawn;

// Promise: no waiter waits without the bound it has asked for (`EntrySelector::timeout`).
// Cause: `CacheState::answer_fresh` and `read_fresh` (cache/compute.rs) ask for no `CallLimits`.
#[tokio::test(start_paused = true)]
async fn a_fresh_read_with_a_time_out_ends_at_that_time_out() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(10 * SECOND));
    let begun = Instant::now();
    let ended = cache.entry("k").timeout(SECOND).refresh(origin.compute()).await;
    assert_eq!(begun.elapsed(), SECOND, "{ended:?}");
}

// The same by `Cache::load_fresh` (cache/typed.rs), and `answer_fresh_by_batcher` (cache/batch.rs).
#[tokio::test(start_paused = true)]
async fn a_typed_fresh_read_with_a_time_out_ends_at_that_time_out() {
    let (handle, origin) = (settings().build().unwrap(), Origin::taking(10 * SECOND));
    let load = origin.clone();
    let cache = Cache::new(handle, move |_: u64| load.load());
    let begun = Instant::now();
    let ended = cache.entry(1).timeout(SECOND).refresh().await;
    assert_eq!(begun.elapsed(), SECOND, "{ended:?}");
}

// Promise: `soft_timeout` bounds the wait where the call could be served a stale value. Without the
// soft time-out the same call is served this value at once.
// Cause: `CacheState::stale_now` (cache/call_limits.rs) asks `CallContext::accepts`, a rule for
// failures, also of a value that is in its `stale_for` window.
#[tokio::test(start_paused = true)]
async fn a_call_that_takes_nothing_in_place_of_a_failure_is_served_stale_after_its_soft_time_out() {
    let cache = settings().stale_for(10 * MINUTE).build().unwrap();
    let origin = Origin::taking(10 * SECOND);
    assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 1);
    pass(2 * MINUTE).await;
    let call = || cache.entry("k").stale_if_error(Duration::ZERO);
    let begun = Instant::now();
    let served = call().soft_timeout(300 * MS).get_or_compute(origin.compute()).await.unwrap();
    assert_eq!((*served, served.outcome(), begun.elapsed()), (1, CacheOutcome::Stale, 300 * MS));
}

// Promise: no user sees a value that was invalidated before the call began.
// Cause: `Computed::with_options` (cache/call_options.rs) adds the tags of the call by
// `Computed::tag`, which ends `inherits_tags`: the tags of the replaced value are lost.
#[tokio::test(start_paused = true)]
async fn a_renewed_value_keeps_its_tags_where_the_call_adds_one() {
    let cache: Stampede<u64> = settings().stale_if_error(10 * MINUTE).build().unwrap();
    cache.put_with("k", Computed::new(5).tag("t")).await;
    pass(2 * MINUTE).await;
    let renew = |stored: Option<Stored<u64>>| async move {
        Ok::<_, OriginError>(stored.unwrap().renewed())
    };
    let call = cache.entry("k").tag("of-the-call").get_or_compute_with(renew);
    assert_eq!(*call.await.unwrap(), 5);
    cache.invalidate_tag("t").await;
    assert_eq!(cache.get("k").await, None, "the tag of the value was invalidated");
}

// The same promise and cause, for a plain value.
#[tokio::test(start_paused = true)]
async fn a_plain_value_keeps_the_tags_of_the_one_it_replaces_where_the_call_adds_one() {
    let cache: Stampede<u64> = settings().stale_for(10 * MINUTE).build().unwrap();
    let origin = Origin::new();
    cache.put_with("k", Computed::new(5).tag("t")).await;
    pass(2 * MINUTE).await;
    let call = cache.entry("k").tag("of-the-call").refresh(origin.compute());
    assert_eq!(*call.await.unwrap(), 1);
    cache.invalidate_tag("t").await;
    assert_eq!(cache.get("k").await, None, "the tag of the value was invalidated");
}

// Promise: a computation sees a value that is still in one of its windows
// (`EntrySelector::get_or_compute_with`); here `renewed` brings back one that has ended.
// Cause: `KeyQuestion::begin` (cache/key_work.rs) shows what `local.peek` has not swept yet, and
// `BegunCall::stored` checks the invalidation log, not the windows.
#[tokio::test(start_paused = true)]
async fn a_computation_does_not_see_a_value_that_is_in_none_of_its_windows() {
    let cache: Stampede<u64> = settings().build().unwrap();
    cache.put("k", 5).await;
    pass(MINUTE + SECOND).await;
    let see = |stored: Option<Stored<u64>>| async move {
        Ok::<_, OriginError>(if stored.is_some() { 1 } else { 0 })
    };
    assert_eq!(*cache.entry("k").get_or_compute_with(see).await.unwrap(), 0);
}

// Promise: the work of a caller that has gone by its soft time-out goes on. With a time-out below the
// batch window no caller ever refreshes the key.
// Cause: the end of `answer_in_time` (cache/call_limits.rs) drops the interest in the flight, and a
// round drops members that no caller wants (`Lead::is_wanted`).
#[tokio::test(start_paused = true)]
async fn a_batch_that_still_gathers_goes_on_when_its_only_caller_has_gone_by_its_soft_time_out() {
    let builder = settings().stale_for(10 * MINUTE).batch_window(500 * MS);
    let (handle, origin) = (builder.build().unwrap(), Origin::taking(SECOND));
    let load = origin.clone();
    let cache = Cache::batched(handle, move |keys: Vec<u64>| {
        let loading = load.load();
        async move {
            let value = loading.await?;
            Ok::<_, OriginError>(keys.into_iter().map(move |key| (key, value)))
        }
    });
    assert_eq!(cache.get(1).await.unwrap(), 1);
    pass(2 * MINUTE).await;
    let begun = Instant::now();
    let served = cache.entry(1).soft_timeout(100 * MS).get().await.unwrap();
    assert_eq!((*served, begun.elapsed()), (1, 100 * MS));
    pass(3 * SECOND).await;
    assert_eq!(cache.get(1).await.unwrap(), 2);
    assert_eq!((origin.calls(), origin.dropped()), (2, 0));
    assert_quiet(cache.handle());
}

// Promise: the same. While places are scarce for longer than the soft time-out, no caller refreshes
// the key, where a refresh in the background would.
// Cause: as above; the queue gives up with `NoPlace::Unwanted` (flight/leader.rs).
#[tokio::test(start_paused = true)]
async fn work_that_waits_for_a_place_goes_on_when_its_caller_has_gone_by_its_soft_time_out() {
    let builder = settings().stale_for(10 * MINUTE).max_computations(1).max_refreshes(1);
    let (cache, origin) = (builder.build().unwrap(), Origin::taking(SECOND));
    assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 1);
    pass(2 * MINUTE).await;
    let (other, compute) = (cache.clone(), origin.compute());
    let other = spawn(async move { other.get_or_compute("other", compute).await });
    pass(100 * MS).await;
    for _ in 0..2 {
        let call = cache.entry("k").soft_timeout(300 * MS).get_or_compute(origin.compute());
        assert_eq!(*call.await.unwrap(), 1);
    }
    pass(5 * SECOND).await;
    assert_eq!(other.await.unwrap().unwrap(), 2);
    assert_eq!(cache.get("k").await, Some(3));
    assert_eq!((origin.calls(), origin.dropped()), (3, 0));
    assert_quiet(&cache);
}

// Promise: a cache that is not on ends no wait, and refuses no caller (`EntrySelector::timeout`,
// `refuse_unless_off` in flight/door.rs).
// Cause: `CacheState::limits` (cache/call_limits.rs) reads the mode when the call begins, and the end
// of the hard time-out does not ask again; `fallback` hides the stale value since then.
#[tokio::test(start_paused = true)]
async fn a_cache_that_is_switched_off_while_callers_wait_answers_each() {
    for mode in [Mode::Off, Mode::Observe] {
        let builder = settings().stale_for(10 * MINUTE);
        let (cache, origin) = (builder.build().unwrap(), Origin::taking(SECOND));
        assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 1);
        pass(2 * MINUTE).await;
        let waiting = spawn_herd(20, |i| {
            let (cache, compute) = (cache.clone(), origin.compute());
            async move {
                let call = cache.entry("k").soft_timeout(300 * MS);
                let call = if i % 2 == 0 { call.timeout(500 * MS) } else { call };
                call.get_or_compute(compute).await.map(|it| *it)
            }
        });
        pass(100 * MS).await;
        cache.set_mode(mode);
        for answer in gather(waiting).await {
            assert!(answer.is_ok(), "{mode:?}: {answer:?}");
        }
        pass(5 * SECOND).await;
        assert_quiet(&cache);
    }
}
