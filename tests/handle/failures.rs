//! A computation that fails, and one whose result may not be shared.

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower_stampede::{Computed, Error, ErrorKind, FailureAction, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

type Answered = Result<u64, Error>;

fn ask(cache: &Stampede<u64>, origin: &Origin) -> JoinHandle<Answered> {
    let (cache, compute) = (cache.clone(), origin.compute());
    spawn(async move { cache.get_or_compute("k", compute).await })
}

async fn wave(n: usize, cache: &Stampede<u64>, origin: &Origin) -> Vec<Answered> {
    gather((0..n).map(|_| ask(cache, origin)).collect()).await
}

fn failing() -> Origin {
    let origin = Origin::taking(100 * MS);
    origin.usually(Answer::Fail);
    origin
}

/// A cache with an expired value that may be served in place of an error.
async fn with_something_stale(cache: &Stampede<u64>) {
    cache.put("k", 100).await;
    pass(MINUTE).await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_shared_by_its_wave_with_one_attempt() {
    let (cache, origin) = (settings().build().unwrap(), failing());
    for answer in wave(1000, &cache, &origin).await {
        assert_eq!(answer.unwrap_err().inner::<OriginError>(), Some(&OriginError(1)));
    }
    assert_eq!(origin.calls(), 1);
    assert_eq!((cache.stats().computations, cache.stats().failures), (1, 1));
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn after_a_failure_the_key_is_held_and_callers_are_told_for_how_long() {
    let cache = settings().hold(2 * SECOND).build().unwrap();
    let origin = failing();
    wave(10, &cache, &origin).await;
    pass(500 * MS).await;
    for answer in wave(10, &cache, &origin).await {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Held);
        assert_eq!(error.retry_after(), Some(1500 * MS));
        assert_eq!(error.inner::<OriginError>(), Some(&OriginError(1)));
    }
    assert_eq!(origin.calls(), 1);
    assert_eq!((cache.stats().held, cache.stats().refused), (10, 10));
    pass(1500 * MS).await;
    wave(10, &cache, &origin).await;
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn with_nothing_stale_the_hold_does_not_grow() {
    let cache = settings().hold(2 * SECOND).build().unwrap();
    let origin = failing();
    for failures in 1..=5 {
        wave(10, &cache, &origin).await;
        assert_eq!(origin.calls(), failures);
        pass(2 * SECOND).await;
    }
    origin.usually(Answer::Value);
    assert_eq!(ask(&cache, &origin).await.unwrap().unwrap(), 6);
}

#[tokio::test(start_paused = true)]
async fn while_stale_values_can_be_served_everybody_gets_one_and_the_hold_doubles() {
    let cache = settings().stale_if_error(60 * MINUTE).hold(SECOND).build().unwrap();
    let origin = failing();
    with_something_stale(&cache).await;
    for _ in 0..10 * 60 * 2 {
        for answer in wave(3, &cache, &origin).await {
            assert_eq!(answer.unwrap(), 100);
        }
        pass(500 * MS).await;
    }
    // Rests of 1, 2, 4, .. 32, and then at most 60 seconds, a tenth less at
    // random, each found by the next wave, which comes every half second.
    let starts = origin.started_at();
    let rests: Vec<_> = starts.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
    for (n, rest) in rests.iter().enumerate() {
        let hold = f64::from(1_u32 << n.min(6)).min(60.0);
        assert!((hold * 0.9..hold + 1.2).contains(rest), "rest {n} of {rests:?}");
    }
    assert!((14..=18).contains(&origin.calls()), "{} calls in ten minutes", origin.calls());

    // A success ends the row.
    pass(MINUTE).await;
    origin.usually(Answer::Value);
    assert!(ask(&cache, &origin).await.unwrap().unwrap() != 100);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_stale_value_stands_in_for_a_failure_only_within_its_window() {
    let cache = settings().stale_if_error(MINUTE).build().unwrap();
    let origin = failing();
    with_something_stale(&cache).await;
    pass(MINUTE - 50 * MS).await;
    // The window ends while the computation runs.
    for answer in wave(10, &cache, &origin).await {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Inner);
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stale_value_stands_in_for_a_timeout_and_for_a_hold() {
    let cache = settings().stale_if_error(60 * MINUTE).compute_timeout(5 * SECOND).build().unwrap();
    let origin = Origin::new();
    origin.usually(Answer::Hang);
    with_something_stale(&cache).await;
    assert!(wave(10, &cache, &origin).await.into_iter().all(|a| a.unwrap() == 100));
    let from = Instant::now();
    assert!(wave(10, &cache, &origin).await.into_iter().all(|a| a.unwrap() == 100));
    assert!(from.elapsed().is_zero(), "a hold is not waited for");
    assert_eq!((origin.calls(), origin.dropped()), (1, 1));
    assert_eq!(cache.stats().stale_if_error, 20);
}

#[tokio::test(start_paused = true)]
async fn a_background_refresh_that_fails_leaves_the_stale_value_in_use_and_is_held() {
    let cache = settings().stale_for(60 * MINUTE).hold(SECOND).build().unwrap();
    let origin = failing();
    with_something_stale(&cache).await;
    for _ in 0..10 {
        for answer in wave(10, &cache, &origin).await {
            assert_eq!(answer.unwrap(), 100);
        }
        pass(80 * MS).await;
    }
    assert_eq!(origin.calls(), 1);
    pass(SECOND).await;
    wave(10, &cache, &origin).await;
    all_have_run().await;
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_is_only_shared_holds_nobody() {
    let cache = settings().on_failure(|_| FailureAction::ShareOnly).build().unwrap();
    let origin = failing();
    for n in 1..=3 {
        for answer in wave(10, &cache, &origin).await {
            assert_eq!(answer.unwrap_err().inner::<OriginError>(), Some(&OriginError(n)));
        }
        assert_eq!(origin.calls(), n as usize);
    }
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn where_each_tries_for_itself_the_waiters_do_so_in_parallel() {
    let cache = settings().on_failure(|_| FailureAction::EachItself).build().unwrap();
    let origin = Origin::taking(100 * MS);
    origin.next([Answer::Fail]);
    let from = Instant::now();
    let answers = wave(100, &cache, &origin).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 99);
    assert_eq!(from.elapsed(), 200 * MS);
    assert_eq!((origin.calls(), origin.most_at_once()), (100, 99));
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn where_each_tries_for_itself_and_fails_the_stale_value_still_stands_in() {
    let cache = settings()
        .stale_if_error(MINUTE)
        .on_failure(|_| FailureAction::EachItself)
        .build()
        .unwrap();
    let origin = failing();
    with_something_stale(&cache).await;
    for answer in wave(10, &cache, &origin).await {
        assert_eq!(answer.unwrap(), 100);
    }
    assert_eq!(origin.calls(), 10);
}

#[tokio::test(start_paused = true)]
async fn the_hook_sees_the_error_of_the_computation() {
    let cache = settings()
        .on_failure(|error| match error.downcast_ref::<OriginError>() {
            Some(OriginError(1)) => FailureAction::ShareOnly,
            _ => FailureAction::Hold,
        })
        .build()
        .unwrap();
    let origin = failing();
    for expected in [ErrorKind::Inner, ErrorKind::Inner, ErrorKind::Held] {
        assert_eq!(ask(&cache, &origin).await.unwrap().unwrap_err().kind(), expected);
    }
    assert_eq!(origin.calls(), 2);
}

// ---- not to be shared ----

fn ask_unshared(cache: &Stampede<u64>, origin: &Origin) -> JoinHandle<Answered> {
    let (cache, compute) = (cache.clone(), origin.compute());
    spawn(async move {
        let compute =
            move || async move { compute().await.map(|n| Computed::new(n).do_not_store()) };
        cache.get_or_compute_with("k", compute).await
    })
}

async fn unshared_wave(n: usize, cache: &Stampede<u64>, origin: &Origin) -> Vec<u64> {
    let answers = gather((0..n).map(|_| ask_unshared(cache, origin)).collect()).await;
    let mut answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    answers.sort_unstable();
    answers
}

#[tokio::test(start_paused = true)]
async fn when_an_answer_may_not_be_shared_the_waiters_are_released_at_once_in_parallel() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
    let from = Instant::now();
    let answers = unshared_wave(1000, &cache, &origin).await;
    assert!(answers.into_iter().eq(1..=1000), "each its own answer");
    assert_eq!(from.elapsed(), 200 * MS);
    assert_eq!((origin.calls(), origin.most_at_once()), (1000, 999));
    assert_eq!(cache.get("k").await, None);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn the_next_crowd_of_a_key_that_may_not_be_shared_does_not_queue() {
    let cache = settings().uncacheable_for(10 * SECOND).build().unwrap();
    let origin = Origin::taking(100 * MS);
    unshared_wave(1, &cache, &origin).await;
    for _ in 0..5 {
        let from = Instant::now();
        unshared_wave(1000, &cache, &origin).await;
        assert_eq!(from.elapsed(), 100 * MS);
    }
    assert_eq!((origin.calls(), origin.most_at_once()), (5001, 1000));
}

#[tokio::test(start_paused = true)]
async fn a_key_is_remembered_as_uncacheable_for_as_long_as_said() {
    let cache = settings().uncacheable_for(10 * SECOND).build().unwrap();
    let origin = Origin::taking(100 * MS);
    unshared_wave(1, &cache, &origin).await;
    pass(10 * SECOND).await;
    let from = Instant::now();
    unshared_wave(10, &cache, &origin).await;
    assert_eq!(from.elapsed(), 200 * MS, "they queue again, once");
    assert_eq!(origin.calls(), 11);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_may_be_shared_ends_the_mark_at_once() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
    unshared_wave(1, &cache, &origin).await;
    assert_eq!(ask(&cache, &origin).await.unwrap().unwrap(), 2);
    cache.invalidate("k").await;
    assert!(wave(100, &cache, &origin).await.into_iter().all(|answer| answer.unwrap() == 3));
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_text_of_an_error_names_the_cache_and_the_cause() {
    let cache: Stampede<u64> = Stampede::builder("users").ttl(MINUTE).build().unwrap();
    let origin = Origin::new();
    origin.next([Answer::Fail]);
    let failed = cache.get_or_compute("k", origin.compute()).await.unwrap_err();
    assert_eq!(failed.to_string(), "cache `users`: computation failed: call 1 failed");
    let held = cache.get_or_compute("k", origin.compute()).await.unwrap_err();
    assert_eq!(
        held.to_string(),
        "cache `users`: computation failed a moment ago and is not tried again yet: \
         computation failed: call 1 failed"
    );
}
