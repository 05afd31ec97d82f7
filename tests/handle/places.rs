//! The places of `max_computations` when leaders queue, fall silent, lose
//! their callers, or ask for other keys.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Waker};

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower_stampede::{Builder, Error, ErrorKind, Stampede, ToKey};

use crate::kit::origin::*;
use crate::kit::spawn;

type Answered = Result<u64, Error>;

/// Settings with so many places.
fn places(n: usize) -> Builder<u64> {
    settings().max_refreshes(1).max_computations(n)
}

fn ask<K: ToKey + Send + 'static>(
    cache: &Stampede<u64>,
    origin: &Origin,
    key: K,
) -> JoinHandle<Answered> {
    let (cache, compute) = (cache.clone(), origin.compute());
    spawn(async move { cache.get_or_compute(key, compute).await })
}

/// An inline caller that is polled once and then kept without another poll.
fn silent(cache: &Stampede<u64>, origin: &Origin) -> Pin<Box<dyn Future<Output = Answered>>> {
    let (cache, origin) = (cache.clone(), origin.clone());
    let mut caller = Box::pin(async move {
        let compute = || origin.load();
        cache.get_or_compute_scoped("k", compute).await
    });
    assert!(caller.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    caller
}

/// Asserts that `n` computations run at once, and not one more.
async fn assert_bound_is(n: usize, cache: &Stampede<u64>) {
    let origin = Origin::taking(10 * MS);
    let answers = herd(4 * n, |i| {
        let (cache, compute) = (cache.clone(), origin.compute());
        async move { cache.get_or_compute(("bound", i as u64), compute).await }
    });
    assert!(answers.await.iter().all(Result::is_ok), "all are answered");
    assert_eq!(origin.most_at_once(), n, "places are neither lost nor won");
}

fn kinds(answers: &[Answered]) -> Vec<ErrorKind> {
    answers.iter().filter_map(|answer| answer.as_ref().err().map(Error::kind)).collect()
}

// ---- silent leaders ----

#[tokio::test(start_paused = true)]
async fn a_running_leader_that_falls_silent_gives_its_place_to_its_successor() {
    let cache = places(1).compute_timeout(5 * SECOND).build().unwrap();
    let origin = Origin::taking(100 * MS);
    let silent = silent(&cache, &origin);
    assert_eq!(origin.running(), 1);
    pass(7 * SECOND).await;
    let from = Instant::now();
    assert_eq!(ask(&cache, &origin, "k").await.unwrap().unwrap(), 2);
    assert_eq!(from.elapsed(), 100 * MS, "its successor does not queue");
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn a_running_leader_that_falls_silent_gives_its_place_to_another_key() {
    let cache = places(1).compute_timeout(5 * SECOND).build().unwrap();
    let origin = Origin::taking(100 * MS);
    let silent = silent(&cache, &origin);
    pass(7 * SECOND).await;
    assert_eq!(ask(&cache, &origin, "another key").await.unwrap().unwrap(), 2);
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_queues_already_gets_the_place_of_a_leader_that_falls_silent() {
    let cache = places(1).compute_timeout(5 * SECOND).build().unwrap();
    let origin = Origin::taking(100 * MS);
    let silent = silent(&cache, &origin);
    let from = Instant::now();
    assert_eq!(ask(&cache, &origin, "another key").await.unwrap().unwrap(), 2);
    assert!(from.elapsed() <= 7 * SECOND, "after {:?}", from.elapsed());
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn the_place_of_a_replaced_leader_is_given_back_once() {
    for drops_early in [true, false] {
        let cache = places(1).compute_timeout(5 * SECOND).build().unwrap();
        let lost = Origin::taking(100 * MS);
        let origin = Origin::taking(100 * MS);
        let mut silent = Some(silent(&cache, &lost));
        pass(7 * SECOND).await;
        let successor = ask(&cache, &origin, "k");
        let others: Vec<_> = (0..5_u64).map(|n| ask(&cache, &origin, n)).collect();
        all_have_run().await;
        if drops_early {
            silent = None;
        }
        assert_eq!(successor.await.unwrap().unwrap(), 1);
        assert!(gather(others).await.iter().all(Result::is_ok));
        drop(silent);
        assert_eq!(origin.most_at_once(), 1);
        assert_bound_is(1, &cache).await;
        assert_quiet(&cache);
    }
}

#[tokio::test(start_paused = true)]
async fn a_queued_leader_that_falls_silent_does_not_keep_the_place_it_is_given() {
    for key in ["k", "another key"] {
        let cache = places(1).compute_timeout(5 * SECOND).build().unwrap();
        let origin = Origin::taking(2 * SECOND);
        let busy = ask(&cache, &origin, "busy");
        all_have_run().await;
        let silent = silent(&cache, &origin);
        busy.await.unwrap().unwrap();
        // Its patience is over by far, and nothing runs.
        pass(MINUTE).await;
        assert_eq!(origin.running(), 0);
        let got = ask(&cache, &origin, key).await.unwrap();
        assert!(got.is_ok(), "{key}: {got:?}");
        drop(silent);
        assert_bound_is(1, &cache).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_queues_behind_a_silent_leader_is_answered_once_its_patience_ends() {
    let cache = places(1).compute_timeout(5 * SECOND).wait_timeout(10 * SECOND).build().unwrap();
    let origin = Origin::taking(2 * SECOND);
    let busy = ask(&cache, &origin, "busy");
    all_have_run().await;
    let silent = silent(&cache, &origin);
    busy.await.unwrap().unwrap();
    // The silent leader may be given up at 11 s; this caller waits until 15 s.
    pass(3 * SECOND).await;
    let got = ask(&cache, &origin, "another key").await.unwrap();
    assert!(got.is_ok(), "{got:?}");
    drop(silent);
}

// ---- leaders in the queue ----

#[tokio::test(start_paused = true)]
async fn queued_leaders_count_against_the_bound_on_all_waiters() {
    let cache = places(1).max_waiters(10).max_waiters_in_all(10).build().unwrap();
    let origin = Origin::taking(10 * MS);
    let callers: Vec<_> = (0..2000_u64).map(|n| ask(&cache, &origin, n)).collect();
    all_have_run().await;
    assert_eq!(callers.iter().filter(|caller| caller.is_finished()).count(), 1989);
    assert_eq!(cache.stats().flights, 11, "one computes, ten queue");
    let answers = gather(callers).await;
    assert_eq!(kinds(&answers), [ErrorKind::Overloaded; 1989]);
    assert_eq!(origin.calls(), 11);
    assert_eq!(cache.stats().overloaded, 1989);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_leaves_the_queue_leaves_its_seat_to_the_next_caller() {
    let cache = places(1).max_waiters(5).max_waiters_in_all(5).build().unwrap();
    let origin = Origin::taking(MINUTE / 4);
    let _busy = ask(&cache, &origin, "busy");
    all_have_run().await;
    for round in 0..5_u64 {
        let callers: Vec<_> = (0..6_u64).map(|n| ask(&cache, &origin, (round, n))).collect();
        all_have_run().await;
        let refused = callers.iter().filter(|caller| caller.is_finished()).count();
        assert_eq!(refused, 1, "five queue in round {round}");
        callers.iter().for_each(JoinHandle::abort);
        all_have_run().await;
        assert_eq!(cache.stats().flights, 1, "only the busy key is left in round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn queued_leaders_whose_callers_hung_up_leave_and_call_no_origin() {
    let cache = places(1).build().unwrap();
    let origin = Origin::taking(10 * MS);
    let callers: Vec<_> = (0..2000_u64).map(|n| ask(&cache, &origin, n)).collect();
    all_have_run().await;
    callers.iter().for_each(JoinHandle::abort);
    all_have_run().await;
    assert_eq!(cache.stats().flights, 1, "the one that computes goes on");
    pass(MINUTE).await;
    assert_eq!(origin.calls(), 1);
    assert_quiet(&cache);
    assert_bound_is(1, &cache).await;
}

#[tokio::test(start_paused = true)]
async fn a_queued_leader_whose_caller_hung_up_stays_for_its_waiters_and_leaves_with_the_last() {
    for waiter_stays in [true, false] {
        let cache = places(1).build().unwrap();
        let origin = Origin::taking(100 * MS);
        let busy = ask(&cache, &origin, "busy");
        all_have_run().await;
        let leader = ask(&cache, &origin, "k");
        all_have_run().await;
        let waiter = ask(&cache, &origin, "k");
        all_have_run().await;
        leader.abort();
        all_have_run().await;
        assert_eq!(cache.stats().flights, 2, "its waiter still wants the value");
        if waiter_stays {
            assert_eq!(waiter.await.unwrap().unwrap(), 2);
        } else {
            waiter.abort();
            all_have_run().await;
            assert_eq!(cache.stats().flights, 1);
            pass(SECOND).await;
            assert_eq!(origin.calls(), 1);
        }
        busy.await.unwrap().unwrap();
        assert_quiet(&cache);
    }
}

#[tokio::test(start_paused = true)]
async fn the_patience_of_a_queued_leader_is_not_that_of_its_waiters() {
    let cache = places(1).compute_timeout(10 * SECOND).wait_timeout(10 * SECOND).build().unwrap();
    let origin = Origin::taking(8 * SECOND);
    let busy = [ask(&cache, &origin, "busy until 8 s"), ask(&cache, &origin, "busy until 16 s")];
    all_have_run().await;
    let leader = ask(&cache, &origin, "k");
    pass(9 * SECOND).await;
    // It waits until 19 s, and a place is free at 16 s.
    let waiter = ask(&cache, &origin, "k");
    let refused = leader.await.unwrap();
    assert!(refused.is_err(), "the leader's own patience ends at 10 s: {refused:?}");
    let from = Instant::now();
    let got = waiter.await.unwrap();
    assert!(got.is_ok(), "after {:?} of 9 s: {got:?}", from.elapsed());
    assert!(gather(busy.into()).await.iter().all(Result::is_ok));
    assert_eq!(origin.most_at_once(), 1);
}

// ---- computations that ask for other keys ----

/// Runs `outer` computations; each waits for 10 ms and then asks for what
/// `inner` names, all at once.
async fn nested(
    cache: &Stampede<u64>,
    origin: &Origin,
    outer: u64,
    inner: impl Fn(u64) -> Vec<u64>,
    scoped: bool,
) -> Vec<Answered> {
    let pages: Vec<_> = (0..outer)
        .map(|n| {
            let (cache, origin, keys) = (cache.clone(), origin.clone(), inner(n));
            let handle = cache.clone();
            let page = move || async move {
                pass(10 * MS).await;
                let parts = keys.into_iter().map(|key| {
                    let (cache, compute) = (cache.clone(), origin.compute());
                    async move {
                        if scoped {
                            cache.get_or_compute_scoped(("part", key), compute).await
                        } else {
                            cache.get_or_compute(("part", key), compute).await
                        }
                    }
                });
                let parts = join_all(parts).await;
                parts.into_iter().sum::<Result<u64, Error>>()
            };
            spawn(async move { handle.get_or_compute(("page", n), page).await })
        })
        .collect();
    gather(pages).await
}

#[tokio::test(start_paused = true)]
async fn computations_that_take_every_place_may_each_ask_for_another_key() {
    for scoped in [false, true] {
        let cache = places(8).build().unwrap();
        let origin = Origin::taking(10 * MS);
        let from = Instant::now();
        let answers = nested(&cache, &origin, 8, |n| vec![n], scoped).await;
        assert_eq!(kinds(&answers), [], "after {:?}", from.elapsed());
        assert_eq!(from.elapsed(), 20 * MS, "none of them waits for a place");
        assert_bound_is(8, &cache).await;
        assert_quiet(&cache);
    }
}

#[tokio::test(start_paused = true)]
async fn computations_that_take_every_place_may_join_a_leader_that_queues() {
    let cache = places(8).build().unwrap();
    let origin = Origin::taking(10 * MS);
    let other = Origin::taking(10 * MS);
    let from = Instant::now();
    let outsider = spawn({
        let (cache, compute) = (cache.clone(), other.compute());
        async move {
            pass(5 * MS).await;
            cache.get_or_compute(("part", 0_u64), compute).await
        }
    });
    let answers = nested(&cache, &origin, 8, |_| vec![0], false).await;
    assert_eq!(kinds(&answers), [], "after {:?}", from.elapsed());
    assert_eq!(from.elapsed(), 20 * MS);
    assert_eq!(outsider.await.unwrap().unwrap(), 1, "it leads with a place that was lent");
    assert_eq!((other.calls(), origin.calls()), (1, 0));
    assert_bound_is(8, &cache).await;
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_chain_of_computations_needs_one_place() {
    let cache = places(1).build().unwrap();
    let origin = Origin::taking(10 * MS);
    let (middle, inner, compute) = (cache.clone(), cache.clone(), origin.compute());
    let page = move || async move {
        let part = move || async move { inner.get_or_compute("inner", compute).await };
        middle.get_or_compute("middle", part).await
    };
    let from = Instant::now();
    let got = within(60 * MINUTE, cache.get_or_compute("outer", page)).await;
    assert!(got.is_ok(), "after {:?}: {got:?}", from.elapsed());
    assert_eq!(from.elapsed(), 10 * MS);
    assert_bound_is(1, &cache).await;
}

#[tokio::test(start_paused = true)]
async fn a_fan_out_of_inner_keys_keeps_to_the_bound_and_ends() {
    for (bound, pages, parts) in [(1, 1, 10), (1, 4, 5), (2, 1, 10), (4, 4, 5), (4, 20, 3)] {
        let cache = places(bound).build().unwrap();
        let origin = Origin::taking(10 * MS);
        let keys = |n| (0..parts).map(|part| n * 100 + part).collect();
        let answers = nested(&cache, &origin, pages, keys, false).await;
        let of = format!("{pages} pages of {parts} parts in {bound} places");
        assert_eq!(kinds(&answers), [], "{of}");
        assert!(origin.most_at_once() <= bound, "{} at once: {of}", origin.most_at_once());
        assert_eq!(origin.calls() as u64, pages * parts, "{of}");
        assert_bound_is(bound, &cache).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_place_comes_back_from_an_inner_computation_that_fails_or_panics() {
    for answer in [Answer::Fail, Answer::Panic] {
        let cache = places(1).build().unwrap();
        let origin = Origin::taking(10 * MS);
        origin.next([answer]);
        let (handle, compute, then) = (cache.clone(), origin.compute(), origin.compute());
        let got = cache.get_or_compute("page", move || async move {
            let failing = std::panic::AssertUnwindSafe(handle.get_or_compute("part", compute));
            let _ = futures_util::FutureExt::catch_unwind(failing).await;
            handle.get_or_compute("other part", then).await
        });
        let got = within(60 * MINUTE, got).await;
        assert!(got.is_ok(), "{answer:?}: {got:?}");
        assert_bound_is(1, &cache).await;
    }
}

// ---- places for refreshes ----

/// Two threads that really run at once: one reads a stale key whose flight
/// another caller leads, the other one needs the only permit.
#[test]
fn a_background_refresh_takes_no_permit_for_a_flight_that_another_caller_leads() {
    const ROUNDS: usize = 3000;
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let cache: Stampede<u64> = settings().stale_for(60 * MINUTE).max_refreshes(1).build().unwrap();
    let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let reader = std::thread::spawn({
        let (cache, stop, reads) = (cache.clone(), Arc::clone(&stop), Arc::clone(&reads));
        move || {
            runtime().block_on(async {
                cache.put("led", 1).await;
                cache.mark_stale("led").await;
                let pending = || std::future::pending::<Result<u64, OriginError>>();
                let leads = cache.refresh("led", pending);
                tokio::pin!(leads);
                let read = async {
                    tokio::task::yield_now().await;
                    while !stop.load(SeqCst) {
                        let compute = || async { Ok::<_, OriginError>(2) };
                        assert_eq!(cache.get_or_compute("led", compute).await.unwrap(), 1);
                        reads.fetch_add(1, SeqCst);
                    }
                };
                tokio::select! {
                    biased;
                    _ = &mut leads => panic!("it never ends"),
                    () = read => (),
                }
            });
        }
    });
    while reads.load(SeqCst) == 0 {
        assert!(!reader.is_finished(), "the reader reads");
        std::thread::yield_now();
    }
    let mut refused = 0;
    runtime().block_on(async {
        for key in 0..ROUNDS as u64 {
            cache.put(key, 1).await;
            cache.mark_stale(key).await;
            let refreshed = Arc::new(AtomicBool::new(false));
            let mark = Arc::clone(&refreshed);
            let compute = move || async move {
                mark.store(true, SeqCst);
                Ok::<_, OriginError>(2)
            };
            assert_eq!(cache.get_or_compute(key, compute).await.unwrap(), 1);
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            refused += usize::from(!refreshed.load(SeqCst));
        }
    });
    stop.store(true, SeqCst);
    reader.join().unwrap();
    assert_eq!(refused, 0, "of {ROUNDS} refreshes, beside {} reads", reads.load(SeqCst));
}

// ---- a number of places that follows the origin ----

/// Four workers, which calls share: more calls at once are each slower, and none ends sooner.
async fn at_shared_workers(running: Arc<AtomicUsize>) -> Result<u64, Error> {
    let at_once = running.fetch_add(1, SeqCst) + 1;
    tokio::time::sleep(10 * MS * at_once.div_ceil(4) as u32).await;
    running.fetch_sub(1, SeqCst);
    Ok(1)
}

#[tokio::test(start_paused = true)]
async fn with_min_computations_as_many_run_as_the_origin_has_workers() {
    let cache: Stampede<u64> = settings().min_computations(1).build().unwrap();
    assert_eq!(cache.stats().computation_limit, 1);
    let running = Arc::new(AtomicUsize::new(0));
    let answers = herd(2000, |i| {
        let (cache, running) = (cache.clone(), Arc::clone(&running));
        async move { cache.get_or_compute(i as u64, || at_shared_workers(running)).await }
    });
    assert!(answers.await.iter().all(Result::is_ok), "all are answered");
    let limit = cache.stats().computation_limit;
    assert!((3..=6).contains(&limit), "{limit}");
    assert_eq!(cache.stats().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn a_number_of_places_that_has_grown_is_used_whole() {
    let cache: Stampede<u64> = places(64).min_computations(2).build().unwrap();
    let origin = Origin::taking(10 * MS);
    let answers = herd(2000, |i| {
        let (cache, compute) = (cache.clone(), origin.compute());
        async move { cache.get_or_compute(("grow", i as u64), compute).await }
    });
    assert!(answers.await.iter().all(Result::is_ok), "all are answered");
    assert_eq!((cache.stats().computation_limit, origin.most_at_once()), (64, 64));
    assert_bound_is(64, &cache).await;
}
