//! One call with options of its own: how long it waits, what it takes, and what its value is.

use tokio::time::Instant;
use tower_stampede::{
    Cache, CacheOutcome, Computed, ErrorKind, Failure, FailureAction, Mode, Stampede, Stored,
};

use crate::kit::origin::*;
use crate::kit::spawn;

/// A cache with a value that has just become stale, and the origin that made it.
async fn with_stale_value(takes: std::time::Duration) -> (Stampede<u64>, Origin) {
    let builder = settings().stale_for(10 * MINUTE).stale_if_error(20 * MINUTE);
    let (cache, origin) = (builder.build().unwrap(), Origin::taking(takes));
    assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 1);
    pass(MINUTE).await;
    (cache, origin)
}

#[tokio::test(start_paused = true)]
async fn a_new_value_within_the_soft_time_out_is_served_and_a_later_one_is_not() {
    let (cache, origin) = with_stale_value(SECOND).await;
    let begun = Instant::now();
    let served = cache.entry("k").soft_timeout(2 * SECOND).get_or_compute(origin.compute());
    let served = served.await.unwrap();
    assert_eq!((*served, served.outcome(), begun.elapsed()), (2, CacheOutcome::Computed, SECOND));
    pass(MINUTE).await;
    let begun = Instant::now();
    let served = cache.entry("k").soft_timeout(300 * MS).get_or_compute(origin.compute());
    let served = served.await.unwrap();
    assert_eq!((*served, served.outcome(), begun.elapsed()), (2, CacheOutcome::Stale, 300 * MS));
    // The work goes on.
    pass(SECOND).await;
    assert_eq!(cache.get("k").await, Some(3));
    assert_eq!(origin.calls(), 3);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_crowd_with_soft_time_outs_costs_one_computation() {
    for (soft, value) in [(300 * MS, 1), (2 * SECOND, 2)] {
        let (cache, origin) = with_stale_value(SECOND).await;
        let begun = Instant::now();
        let answers = herd(1000, |_| {
            let (cache, compute) = (cache.clone(), origin.compute());
            async move { *cache.entry("k").soft_timeout(soft).get_or_compute(compute).await.unwrap() }
        });
        assert!(answers.await.iter().all(|answer| *answer == value));
        assert_eq!(begun.elapsed(), soft.min(SECOND));
        pass(2 * SECOND).await;
        assert_eq!(origin.calls(), 2);
        assert_quiet(&cache);
    }
}

#[tokio::test(start_paused = true)]
async fn the_soft_time_out_of_the_cache_concerns_both_stale_windows_and_typed_caches() {
    for minutes in [1, 15] {
        let builder = settings().stale_for(10 * MINUTE).stale_if_error(20 * MINUTE);
        let handle = builder.soft_timeout(300 * MS).build().unwrap();
        let origin = Origin::taking(SECOND);
        let load = origin.clone();
        let cache = Cache::new(handle, move |_: u64| load.load());
        assert_eq!(cache.get(7).await.unwrap(), 1, "nothing to serve: it is waited for");
        pass(minutes * MINUTE).await;
        let begun = Instant::now();
        let served = cache.entry(7).get().await.unwrap();
        let outcome = if minutes == 1 { CacheOutcome::Stale } else { CacheOutcome::StaleIfError };
        assert_eq!((*served, served.outcome(), begun.elapsed()), (1, outcome, 300 * MS));
        let begun = Instant::now();
        let longer = cache.entry(7).soft_timeout(5 * SECOND).get().await.unwrap();
        assert_eq!((*longer, begun.elapsed()), (2, 700 * MS));
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_within_the_soft_time_out_is_hidden_at_once() {
    let (cache, origin) = with_stale_value(SECOND).await;
    origin.usually(Answer::Fail);
    let begun = Instant::now();
    let served = cache.entry("k").soft_timeout(5 * SECOND).get_or_compute(origin.compute());
    let served = served.await.unwrap();
    assert_eq!((*served, begun.elapsed()), (1, SECOND));
    assert_eq!(served.outcome(), CacheOutcome::StaleIfError);
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_while_a_caller_waits_leaves_nothing_stale_to_serve() {
    let (cache, origin) = with_stale_value(SECOND).await;
    let (asking, compute) = (cache.clone(), origin.compute());
    let caller = spawn(async move {
        asking.entry("k").soft_timeout(500 * MS).get_or_compute(compute).await.map(|it| *it)
    });
    pass(100 * MS).await;
    cache.invalidate("k").await;
    assert!(caller.await.unwrap().unwrap() > 1, "a value from before the invalidation");
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_at_its_time_out_and_the_computation_goes_on() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(10 * SECOND));
    let begun = Instant::now();
    let call = || cache.entry("k").timeout(SECOND).get_or_compute(origin.compute());
    assert_eq!(call().await.unwrap_err().kind(), ErrorKind::WaitTimeout);
    assert_eq!(call().await.unwrap_err().kind(), ErrorKind::WaitTimeout);
    assert_eq!(begun.elapsed(), 2 * SECOND);
    assert_eq!(cache.stats().refused, 2);
    pass(9 * SECOND).await;
    assert_eq!((*call().await.unwrap(), origin.calls()), (1, 1));
    // With something stale, that is served.
    let (cache, origin) = with_stale_value(10 * SECOND).await;
    pass(10 * MINUTE).await;
    let served = cache.entry("k").timeout(SECOND).get_or_compute(origin.compute()).await.unwrap();
    assert_eq!((*served, served.outcome()), (1, CacheOutcome::StaleIfError));
}

#[tokio::test(start_paused = true)]
async fn a_computation_inside_its_caller_is_not_cut_short() {
    let (cache, origin) = with_stale_value(SECOND).await;
    let entry = cache.entry("k").soft_timeout(MS).timeout(2 * MS);
    assert_eq!(*entry.get_or_compute_scoped(origin.compute()).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_is_not_on_ends_no_call() {
    for mode in [Mode::Observe, Mode::Off] {
        let (cache, origin) = (settings().build().unwrap(), Origin::taking(10 * SECOND));
        cache.set_mode(mode);
        let call = cache.entry("k").soft_timeout(MS).timeout(SECOND);
        assert_eq!(*call.get_or_compute(origin.compute()).await.unwrap(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_takes_no_value_that_has_been_stale_for_longer_than_it_says() {
    let (cache, origin) = with_stale_value(SECOND).await;
    pass(11 * MINUTE).await;
    origin.usually(Answer::Fail);
    let call = |longest| cache.entry("k").stale_if_error(longest).get_or_compute(origin.compute());
    let error = call(10 * MINUTE).await.unwrap_err();
    assert_eq!(error.inner::<OriginError>(), Some(&OriginError(2)));
    pass(MINUTE).await;
    assert_eq!(call(std::time::Duration::ZERO).await.unwrap_err().kind(), ErrorKind::Inner);
    pass(MINUTE).await;
    assert_eq!(*call(15 * MINUTE).await.unwrap(), 1);
    // A hold is a failure too.
    assert_eq!(call(10 * MINUTE).await.unwrap_err().kind(), ErrorKind::Held);
}

#[tokio::test(start_paused = true)]
async fn lifetimes_and_tags_of_a_call_are_those_of_its_value_unless_that_sets_some() {
    let (cache, origin) = (settings().build().unwrap(), Origin::new());
    let entry = || cache.entry("k").ttl(SECOND).stale_for(MINUTE).stale_if_error(2 * MINUTE);
    drop(entry().tag("of-the-call").get_or_compute(origin.compute()).await.unwrap());
    let info = cache.lookup("k").unwrap();
    assert_eq!((info.ttl_left, info.stale_left), (SECOND, MINUTE + SECOND));
    assert_eq!(info.stale_if_error_left, 2 * MINUTE + SECOND);
    assert_eq!(info.tags, ["of-the-call".into()]);
    // A caller that has found it changes nothing.
    drop(cache.entry("k").ttl(9 * MINUTE).tag("b").get_or_compute(origin.compute()).await.unwrap());
    assert_eq!(cache.lookup("k").unwrap(), info);
    cache.invalidate_tag("of-the-call").await;
    let own = || async { Ok::<_, OriginError>(Computed::new(7).ttl(5 * SECOND).tag("own")) };
    drop(entry().tag("of-the-call").get_or_compute(own).await.unwrap());
    let info = cache.lookup("k").unwrap();
    assert_eq!((info.ttl_left, info.stale_left), (5 * SECOND, MINUTE + 5 * SECOND));
    assert_eq!(info.tags, ["own".into(), "of-the-call".into()]);
}

#[tokio::test(start_paused = true)]
async fn the_options_of_a_typed_call_reach_its_value_with_a_batch_loader_too() {
    type WithLoader = fn(Stampede<u64>) -> Cache<u64, u64, OriginError>;
    let loaders: [WithLoader; 2] = [
        |handle| Cache::new(handle, |n: u64| async move { Ok::<_, OriginError>(n) }),
        |handle| {
            Cache::batched(handle, |keys: Vec<u64>| async move {
                Ok::<_, OriginError>(keys.into_iter().map(|n| (n, n)))
            })
        },
    ];
    for cache in loaders.map(|with_loader| with_loader(settings().build().unwrap())) {
        assert_eq!(*cache.entry(7).ttl(SECOND).tag("t").get().await.unwrap(), 7);
        let info = cache.handle().lookup(7_u64).unwrap();
        assert_eq!((info.ttl_left, info.tags), (SECOND, vec!["t".into()]));
        assert_eq!(*cache.entry(7).ttl(2 * SECOND).refresh().await.unwrap(), 7);
        assert_eq!(cache.handle().lookup(7_u64).unwrap().ttl_left, 2 * SECOND);
    }
}

/// What a computation has seen: the value, its age in seconds, and its validator.
type Sight = Option<(u64, u64, Option<String>)>;

fn sight(stored: Option<&Stored<u64>>) -> Sight {
    let stored = stored?;
    Some((*stored.value(), stored.age().as_secs(), stored.validator().map(str::to_owned)))
}

#[tokio::test(start_paused = true)]
async fn a_computation_sees_the_older_value_and_can_renew_it() {
    let cache: Stampede<u64> = settings().stale_if_error(10 * MINUTE).build().unwrap();
    let first = |stored: Option<Stored<u64>>| async move {
        assert_eq!(sight(stored.as_ref()), None);
        Ok::<_, OriginError>(Computed::new(5).validator("v1").tag("t"))
    };
    drop(cache.entry("k").get_or_compute_with(first).await.unwrap());
    for round in 1..4 {
        pass(2 * MINUTE).await;
        let renew = |stored: Option<Stored<u64>>| async move {
            assert_eq!(sight(stored.as_ref()), Some((5, 120, Some("v1".to_owned()))));
            Ok::<_, OriginError>(stored.unwrap().renewed())
        };
        let served = cache.entry("k").get_or_compute_with(renew).await.unwrap();
        assert_eq!((*served, served.outcome()), (5, CacheOutcome::Computed), "round {round}");
        let info = cache.lookup("k").unwrap();
        assert_eq!((info.ttl_left, info.tags), (MINUTE, vec!["t".into()]));
    }
    // An invalidated value is not shown: it must not come back.
    cache.invalidate_tag("t").await;
    drop(cache.entry("k").get_or_compute_with(first).await.unwrap());
    pass(12 * MINUTE).await;
    drop(cache.entry("k").get_or_compute_with(first).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn loaders_see_the_older_value_of_each_key() {
    let handle = || settings().stale_for(10 * MINUTE).build().unwrap();
    let single = Cache::revalidating(handle(), |n: u64, stored: Option<Stored<u64>>| async move {
        Ok::<_, OriginError>(match stored {
            Some(stored) => Computed::new(stored.value() + stored.age().as_secs()),
            None => Computed::new(n),
        })
    });
    let load = |missing: Vec<(u64, Option<Stored<u64>>)>| async move {
        Ok::<_, OriginError>(missing.into_iter().map(|(n, stored)| match stored {
            Some(stored) => (n, Computed::new(stored.value() + stored.age().as_secs())),
            None => (n, Computed::new(n)),
        }))
    };
    let batched = Cache::batched_revalidating(handle(), load);
    for cache in [single, batched] {
        assert_eq!(cache.get_many([1, 2]).await.complete().unwrap()[&2], 2);
        pass(2 * MINUTE).await;
        assert_eq!(cache.get(3).await.unwrap(), 3);
        let fresh = cache.entry(2).soft_timeout(SECOND).get().await.unwrap();
        assert_eq!(*fresh, 122);
        assert_eq!(cache.refresh(1).await.unwrap(), 121);
        assert_eq!(cache.refresh(3).await.unwrap(), 3);
        let seen = cache.get_many([1, 2, 3]).await.complete().unwrap();
        assert_eq!((seen[&1], seen[&2], seen[&3]), (121, 122, 3));
        // A refresh in the background sees it too, and so does the upkeep.
        pass(2 * MINUTE).await;
        assert_eq!(cache.get(3).await.unwrap(), 3);
        pass(MS).await;
        assert_eq!(cache.get(3).await.unwrap(), 123);
    }
}

#[tokio::test(start_paused = true)]
async fn a_validator_counts_as_memory_and_one_that_is_too_long_is_not_kept() {
    let cache: Stampede<u64> = settings().stale_for(MINUTE).build().unwrap();
    let put = |validator: String| cache.put_with("k", Computed::new(1).validator(validator));
    put("v".repeat(1000)).await;
    let bytes = cache.lookup("k").unwrap().bytes;
    put("v".repeat(60_000)).await;
    assert!(cache.lookup("k").unwrap().bytes >= bytes + 59_000);
    put("v".repeat(70_000)).await;
    assert!(cache.lookup("k").unwrap().bytes < bytes);
}

#[tokio::test(start_paused = true)]
async fn a_remembered_failure_ends_a_call_that_waits_for_a_newer_value() {
    let handle: Stampede<u64> = settings().stale_for(10 * MINUTE).build().unwrap();
    let (origin, calls) = (Origin::new(), Origin::new());
    let load = calls.clone();
    let cache = Cache::new(handle, move |_: u64| load.load())
        .on_failure(|_| FailureAction::Remember(MINUTE));
    drop(origin);
    assert_eq!(cache.get(1).await.unwrap(), 1);
    pass(2 * MINUTE).await;
    calls.usually(Answer::Fail);
    let ended = cache.entry(1).soft_timeout(SECOND).get().await;
    assert!(
        matches!(ended, Err(Failure::Computation(_))),
        "the origin has answered: there is none"
    );
}
