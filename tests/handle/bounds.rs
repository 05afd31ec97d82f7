//! The bounds: on waiters, on computations, on refreshes, on patience.

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower_stampede::{Error, ErrorKind, Event, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

type Answered = Result<u64, Error>;

fn ask(cache: &Stampede<u64>, origin: &Origin, key: usize) -> JoinHandle<Answered> {
    let (cache, compute) = (cache.clone(), origin.compute());
    spawn(async move { cache.get_or_compute(key, compute).await })
}

fn crowd(
    cache: &Stampede<u64>,
    origin: &Origin,
    keys: impl Iterator<Item = usize>,
) -> Vec<JoinHandle<Answered>> {
    keys.map(|key| ask(cache, origin, key)).collect()
}

fn count(answers: &[Answered], kind: ErrorKind) -> usize {
    answers.iter().filter(|a| a.as_ref().is_err_and(|error| error.kind() == kind)).count()
}

#[tokio::test(start_paused = true)]
async fn over_the_waiter_budget_of_a_key_callers_are_turned_away_at_once_and_counted() {
    let cache = settings().max_waiters(10).build().unwrap();
    let origin = Origin::taking(100 * MS);
    let mut events = cache.events();
    let first = crowd(&cache, &origin, std::iter::repeat_n(1, 11));
    all_have_run().await;
    let from = Instant::now();
    let late = gather(crowd(&cache, &origin, std::iter::repeat_n(1, 50))).await;
    assert!(from.elapsed().is_zero());
    assert_eq!(count(&late, ErrorKind::Overloaded), 50);
    assert!(late[0].as_ref().unwrap_err().retry_after().is_some());
    assert_eq!((cache.stats().overloaded, cache.stats().refused), (50, 50));
    assert!(matches!(events.try_recv(), Ok(Event::Overloaded { .. })));

    assert!(ask(&cache, &origin, 2).await.unwrap().is_ok(), "another key has its own budget");
    assert!(gather(first).await.into_iter().all(|answer| answer.unwrap() == 1));
    assert_eq!(origin.calls(), 2);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn over_the_waiter_budget_in_all_callers_of_every_key_are_turned_away() {
    let cache = settings().max_waiters(20).max_waiters_in_all(20).build().unwrap();
    let origin = Origin::taking(100 * MS);
    let first = crowd(&cache, &origin, (0..40).map(|n| n / 4));
    all_have_run().await;
    assert_eq!(cache.stats().waiting, 20);
    let late = gather(crowd(&cache, &origin, 0..10)).await;
    assert_eq!(count(&late, ErrorKind::Overloaded), 10);
    let first = gather(first).await;
    // Ten lead, twenty wait, ten are one too many.
    assert_eq!(count(&first, ErrorKind::Overloaded), 10);
    assert_eq!(first.iter().filter(|answer| answer.is_ok()).count(), 30);
    assert_eq!((origin.calls(), cache.stats().overloaded), (10, 20));
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn places_of_waiters_that_leave_are_free_again() {
    let cache = settings().max_waiters(10).max_waiters_in_all(10).build().unwrap();
    let origin = Origin::taking(100 * MS);
    let leader = ask(&cache, &origin, 1);
    for _ in 0..5 {
        let waiters = crowd(&cache, &origin, std::iter::repeat_n(1, 10));
        all_have_run().await;
        assert_eq!(cache.stats().waiting, 10);
        waiters.iter().for_each(JoinHandle::abort);
        all_have_run().await;
        assert_eq!(cache.stats().waiting, 0);
    }
    leader.await.unwrap().unwrap();
    assert_eq!((origin.calls(), cache.stats().overloaded), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn over_the_budget_a_stale_value_is_served_where_it_may_stand_in() {
    let cache = settings().stale_if_error(MINUTE).max_waiters(1).build().unwrap();
    let origin = Origin::taking(100 * MS);
    cache.put(1, 100).await;
    pass(MINUTE).await;
    let mut answers: Vec<_> = gather(crowd(&cache, &origin, std::iter::repeat_n(1, 10)))
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    answers.sort_unstable();
    assert_eq!(answers, [1, 1, 100, 100, 100, 100, 100, 100, 100, 100]);
    assert_eq!((origin.calls(), cache.stats().overloaded), (1, 8));
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_cold_keys_never_compute_more_than_the_bound_at_once() {
    let cache = settings().max_refreshes(64).max_computations(64).build().unwrap();
    let origin = Origin::taking(10 * MS);
    let from = Instant::now();
    let answers = gather(crowd(&cache, &origin, 0..10_000)).await;
    assert!(answers.iter().all(Result::is_ok), "all answered");
    assert_eq!((origin.calls(), origin.most_at_once()), (10_000, 64));
    assert_eq!(from.elapsed(), 10 * MS * 10_000_u32.div_ceil(64), "and no place stays empty");
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_cold_keys_with_borrowing_computations_keep_to_the_bound_too() {
    let cache = settings::<u64>().max_refreshes(64).max_computations(64).build().unwrap();
    let origin = Origin::taking(10 * MS);
    let answers = herd(10_000, |key| {
        let (cache, origin) = (cache.clone(), origin.clone());
        async move { cache.get_or_compute_scoped(key, || origin.load()).await }
    });
    assert!(answers.await.iter().all(Result::is_ok));
    assert_eq!((origin.calls(), origin.most_at_once()), (10_000, 64));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_gets_no_place_in_time_is_refused_with_its_waiters_and_nobody_is_held() {
    let cache = settings()
        .max_refreshes(1)
        .max_computations(1)
        .compute_timeout(10 * SECOND)
        .wait_timeout(SECOND)
        .build()
        .unwrap();
    let origin = Origin::taking(5 * SECOND);
    let busy = ask(&cache, &origin, 1);
    all_have_run().await;
    let from = Instant::now();
    let refused = gather(crowd(&cache, &origin, std::iter::repeat_n(2, 10))).await;
    assert_eq!(from.elapsed(), SECOND);
    assert!(refused.iter().all(Result::is_err));
    assert!(count(&refused, ErrorKind::Overloaded) >= 1);
    busy.await.unwrap().unwrap();
    assert_eq!(ask(&cache, &origin, 2).await.unwrap().unwrap(), 2, "not held");
    assert_eq!(origin.calls(), 2);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn never_more_refreshes_than_allowed_run_and_every_reader_is_served() {
    let cache = settings().stale_for(60 * MINUTE).max_refreshes(5).build().unwrap();
    let origin = Origin::taking(100 * MS);
    for key in 0..100_usize {
        cache.put(key, 1000).await;
    }
    pass(MINUTE).await;
    let mut rounds = 0;
    while origin.calls() < 100 {
        let from = Instant::now();
        let answers = gather(crowd(&cache, &origin, 0..100)).await;
        assert!(answers.iter().all(Result::is_ok));
        assert!(from.elapsed().is_zero());
        pass(101 * MS).await;
        rounds += 1;
    }
    assert_eq!((origin.calls(), origin.most_at_once(), rounds), (100, 5, 20));
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_caller_waits_no_longer_than_its_wait_timeout() {
    let cache = settings().wait_timeout(SECOND).build().unwrap();
    let origin = Origin::taking(3 * SECOND);
    let mut events = cache.events();
    let leader = ask(&cache, &origin, 1);
    all_have_run().await;
    let from = Instant::now();
    let waiters = gather(crowd(&cache, &origin, std::iter::repeat_n(1, 100))).await;
    assert_eq!(from.elapsed(), SECOND);
    assert_eq!(count(&waiters, ErrorKind::WaitTimeout), 100);
    assert!(waiters[0].as_ref().unwrap_err().retry_after().is_some());
    assert_eq!(cache.stats().wait_timeouts, 100);
    assert!(matches!(events.try_recv(), Ok(Event::WaitTimedOut { .. })));
    assert_eq!(leader.await.unwrap().unwrap(), 1, "the computation goes on");
    assert_eq!(origin.calls(), 1);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn patience_is_counted_from_the_first_wait_however_often_the_leader_changes() {
    let cache: Stampede<u64> = settings().wait_timeout(SECOND).build().unwrap();
    let origin = Origin::taking(700 * MS);
    let scoped = || {
        let (cache, origin) = (cache.clone(), origin.clone());
        spawn(async move { cache.get_or_compute_scoped("k", || origin.load()).await })
    };
    let leaders = [scoped(), scoped()];
    all_have_run().await;
    let from = Instant::now();
    let waiter = scoped();
    pass(500 * MS).await;
    leaders[0].abort();
    let error = waiter.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), from.elapsed()), (ErrorKind::WaitTimeout, SECOND));
    let [_, second] = leaders;
    assert_eq!(second.await.unwrap().unwrap(), 2);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn who_may_compute_after_waiting_does_so_within_the_bound_on_computations() {
    let cache = settings()
        .wait_timeout(SECOND)
        .compute_after_wait()
        .max_refreshes(1)
        .max_computations(5)
        .build()
        .unwrap();
    let origin = Origin::taking(3 * SECOND);
    let answers = gather(crowd(&cache, &origin, std::iter::repeat_n(1, 101))).await;
    // One leads, four more find a place, the others are refused.
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 5);
    assert_eq!(count(&answers, ErrorKind::Overloaded), 96);
    assert_eq!((origin.calls(), origin.most_at_once()), (5, 5));
    assert_eq!(cache.stats().alone, 4);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn at_the_end_of_its_patience_a_caller_gets_the_stale_value_where_it_may_stand_in() {
    let cache = settings().wait_timeout(SECOND).stale_if_error(MINUTE).build().unwrap();
    let origin = Origin::taking(3 * SECOND);
    cache.put(1, 100).await;
    pass(MINUTE).await;
    let mut answers = gather(crowd(&cache, &origin, std::iter::repeat_n(1, 10))).await;
    assert_eq!(answers.remove(0).unwrap(), 1);
    assert!(answers.into_iter().all(|answer| answer.unwrap() == 100));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_entries_keeps_to_its_bound() {
    let cache: Stampede<u64> = settings().max_entries(100).build().unwrap();
    for key in 0..1000_u64 {
        cache.put(key, key).await;
    }
    assert_eq!(cache.stats().entries, 100);
    assert_eq!(cache.get(999_u64).await, Some(999));
    assert_eq!(cache.get(0_u64).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_value_heavier_than_the_whole_store_is_handed_out_and_not_kept() {
    let cache = settings().max_bytes(1000).weigher(|_| 1001).build().unwrap();
    let origin = Origin::taking(100 * MS);
    let answers = gather(crowd(&cache, &origin, std::iter::repeat_n(1, 10))).await;
    assert!(answers.into_iter().all(|answer| answer.unwrap() == 1));
    assert_eq!((cache.stats().entries, cache.stats().bytes), (0, 0));
    assert_eq!(origin.calls(), 1);
}
