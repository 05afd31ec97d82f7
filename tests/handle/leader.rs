//! However a leader goes away, its waiters go on.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower::{Service, ServiceExt, service_fn};
use tower_stampede::{Error, ErrorKind, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

type Answered = Result<u64, Error>;

/// A way to ask.
type Ask = fn(&Stampede<u64>, &Origin) -> JoinHandle<Answered>;

fn detached(cache: &Stampede<u64>, origin: &Origin) -> JoinHandle<Answered> {
    let (cache, compute) = (cache.clone(), origin.compute());
    spawn(async move { cache.get_or_compute("k", compute).await })
}

fn scoped(cache: &Stampede<u64>, origin: &Origin) -> JoinHandle<Answered> {
    let (cache, origin) = (cache.clone(), origin.clone());
    spawn(async move { cache.get_or_compute_scoped("k", || origin.load()).await })
}

/// A caller of an inline layer over `origin`.
fn inline(cache: &Stampede<u64>, origin: &Origin) -> JoinHandle<Answered> {
    let origin = origin.clone();
    let layer = cache.layer(|(): &()| Some("k")).inline();
    let service = tower::Layer::layer(&layer, service_fn(move |()| origin.load()));
    spawn(service.oneshot(()))
}

const INLINE: [Ask; 2] = [scoped, inline];

fn kinds(answers: &[Answered]) -> Vec<Option<ErrorKind>> {
    answers.iter().map(|answer| answer.as_ref().err().map(Error::kind)).collect()
}

fn cache() -> Stampede<u64> {
    settings().build().unwrap()
}

// ---- dropped ----

#[tokio::test(start_paused = true)]
async fn a_detached_computation_goes_on_without_its_caller_and_nobody_waits_longer_for_it() {
    let (cache, origin) = (cache(), Origin::taking(100 * MS));
    let from = Instant::now();
    let leader = detached(&cache, &origin);
    all_have_run().await;
    let waiters: Vec<_> = (0..100).map(|_| detached(&cache, &origin)).collect();
    pass(50 * MS).await;
    leader.abort();
    for answer in gather(waiters).await {
        assert_eq!(answer.unwrap(), 1);
    }
    assert_eq!(from.elapsed(), 100 * MS, "not later than the origin");
    assert_eq!((origin.calls(), origin.dropped()), (1, 0));
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_detached_computation_that_everybody_left_is_finished_and_stored() {
    let (cache, origin) = (cache(), Origin::taking(100 * MS));
    let callers: Vec<_> = (0..100).map(|_| detached(&cache, &origin)).collect();
    all_have_run().await;
    callers.iter().for_each(JoinHandle::abort);
    pass(100 * MS).await;
    assert_eq!(cache.get("k").await, Some(1));
    assert_eq!(origin.calls(), 1);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn when_an_inline_leader_is_dropped_one_waiter_is_elected() {
    for caller in INLINE {
        let (cache, origin) = (cache(), Origin::taking(100 * MS));
        let from = Instant::now();
        let leader = caller(&cache, &origin);
        all_have_run().await;
        let waiters: Vec<_> = (0..100).map(|_| caller(&cache, &origin)).collect();
        pass(49 * MS).await;
        leader.abort();
        for answer in gather(waiters).await {
            assert_eq!(answer.unwrap(), 2);
        }
        assert_eq!(from.elapsed(), 150 * MS);
        assert_eq!((origin.calls(), origin.dropped(), origin.most_at_once()), (2, 1, 1));
        assert_quiet(&cache);
    }
}

#[tokio::test(start_paused = true)]
async fn leaders_that_are_dropped_one_after_the_other_are_replaced_without_limit() {
    let (cache, origin) = (cache(), Origin::taking(100 * MS));
    let mut callers: Vec<_> = (0..10).map(|_| scoped(&cache, &origin)).collect();
    let last = callers.pop().unwrap();
    for caller in callers {
        pass(50 * MS).await;
        caller.abort();
    }
    assert_eq!(last.await.unwrap().unwrap(), 10);
    assert_eq!((origin.calls(), origin.dropped(), origin.most_at_once()), (10, 9, 1));
    assert_quiet(&cache);
}

// ---- panicked ----

#[tokio::test(start_paused = true)]
async fn a_panic_goes_on_in_the_leaders_own_caller_and_one_waiter_is_elected() {
    for caller in [detached, scoped, inline] {
        let (cache, origin) = (cache(), Origin::taking(100 * MS));
        origin.next([Answer::Panic]);
        let leader = caller(&cache, &origin);
        all_have_run().await;
        let waiters: Vec<_> = (0..100).map(|_| caller(&cache, &origin)).collect();
        let panic = leader.await.unwrap_err().into_panic();
        assert_eq!(panic.downcast_ref::<String>().unwrap(), "call 1 panics");
        for answer in gather(waiters).await {
            assert_eq!(answer.unwrap(), 2);
        }
        assert_eq!((origin.calls(), origin.most_at_once()), (2, 1));
        assert_eq!(cache.stats().failures, 1);
        assert_quiet(&cache);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_second_panic_in_a_row_nobody_is_elected_and_the_failure_is_shared_and_held() {
    for caller in [detached, scoped, inline] {
        let (cache, origin) = (cache(), Origin::taking(100 * MS));
        origin.usually(Answer::Panic);
        let callers: Vec<_> = (0..100).map(|_| caller(&cache, &origin)).collect();
        let (mut panicked, mut refused) = (0, 0);
        for caller in callers {
            match within(MINUTE, caller).await {
                Err(error) => panicked += u32::from(error.is_panic()),
                Ok(answer) => {
                    refused += u32::from(answer.unwrap_err().kind() == ErrorKind::Panicked);
                }
            }
        }
        assert_eq!((panicked, refused), (2, 98));
        assert_eq!(origin.calls(), 2);
        let held = caller(&cache, &origin).await.unwrap().unwrap_err();
        assert_eq!(held.kind(), ErrorKind::Held);
        assert_eq!(origin.calls(), 2);
        assert_quiet(&cache);

        pass(SECOND).await;
        origin.usually(Answer::Value);
        assert_eq!(caller(&cache, &origin).await.unwrap().unwrap(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_success_between_two_panics_makes_them_two_first_ones() {
    let (cache, origin) = (cache(), Origin::taking(100 * MS));
    for _ in 0..3 {
        origin.next([Answer::Panic, Answer::Value]);
        let leader = detached(&cache, &origin);
        let waiter = detached(&cache, &origin);
        assert!(leader.await.unwrap_err().is_panic());
        assert!(waiter.await.unwrap().is_ok());
        cache.invalidate("k").await;
    }
    assert_eq!(origin.calls(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_weigher_that_panics_is_a_leader_that_panics() {
    let cache = settings::<u64>()
        .weigher(|n| if *n == 1 { panic!("cannot weigh 1") } else { 1 })
        .build()
        .unwrap();
    let origin = Origin::taking(100 * MS);
    let leader = detached(&cache, &origin);
    let waiter = detached(&cache, &origin);
    assert!(leader.await.unwrap_err().is_panic());
    assert_eq!(waiter.await.unwrap().unwrap(), 2);
    assert_eq!(origin.calls(), 2);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_a_background_refresh_leaves_the_stale_value_in_use() {
    let cache = settings().stale_for(MINUTE).build().unwrap();
    let origin = Origin::taking(100 * MS);
    detached(&cache, &origin).await.unwrap().unwrap();
    pass(MINUTE).await;
    origin.next([Answer::Panic]);
    assert_eq!(detached(&cache, &origin).await.unwrap().unwrap(), 1);
    pass(101 * MS).await;
    assert_eq!(detached(&cache, &origin).await.unwrap().unwrap(), 1);
    pass(101 * MS).await;
    assert_eq!(detached(&cache, &origin).await.unwrap().unwrap(), 3);
    assert_eq!(origin.calls(), 3);
    assert_quiet(&cache);
}

// ---- hung ----

#[tokio::test(start_paused = true)]
async fn work_that_hangs_is_dropped_at_the_compute_timeout_and_the_lead_is_free() {
    for caller in [detached, scoped, inline] {
        let cache = settings().compute_timeout(5 * SECOND).build().unwrap();
        let origin = Origin::new();
        origin.next([Answer::Hang]);
        let from = Instant::now();
        let answers = gather((0..100).map(|_| caller(&cache, &origin)).collect()).await;
        assert_eq!(kinds(&answers), [Some(ErrorKind::ComputeTimeout); 100]);
        assert_eq!(from.elapsed(), 5 * SECOND);
        assert_eq!((origin.calls(), origin.dropped(), origin.running()), (1, 1, 0));
        assert_quiet(&cache);

        let held = caller(&cache, &origin).await.unwrap().unwrap_err();
        assert_eq!(held.kind(), ErrorKind::Held);
        pass(SECOND).await;
        assert_eq!(caller(&cache, &origin).await.unwrap().unwrap(), 2);
    }
}

/// Polls a scoped leader until its call runs, and then never again.
macro_rules! leader_that_stops {
    ($leader:ident, $cache:expr, $origin:expr) => {
        let mut $leader = pin!($cache.get_or_compute_scoped("k", || $origin.load()));
        assert!($leader.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!($origin.running(), 1);
    };
}

#[tokio::test(start_paused = true)]
async fn an_inline_leader_that_is_never_polled_again_is_deposed() {
    let cache = settings().compute_timeout(5 * SECOND).build().unwrap();
    let origin = Origin::taking(100 * MS);
    leader_that_stops!(leader, cache, origin);

    let from = Instant::now();
    let answers = gather((0..100).map(|_| detached(&cache, &origin)).collect()).await;
    assert_eq!(kinds(&answers), [Some(ErrorKind::ComputeTimeout); 100]);
    assert_eq!(from.elapsed(), 6 * SECOND, "compute_timeout and a second of grace");
    assert_eq!(detached(&cache, &origin).await.unwrap().unwrap(), 2);
    assert_eq!(origin.calls(), 2);

    // The late leader: answered, but the stored value is newer.
    assert_eq!(within(MINUTE, leader).await.unwrap(), 1);
    assert_eq!(cache.get("k").await, Some(2));
    assert_eq!(cache.stats().refused_fills, 1);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_comes_after_the_grace_of_a_silent_leader_leads_at_once() {
    let cache = settings().compute_timeout(5 * SECOND).build().unwrap();
    let origin = Origin::taking(100 * MS);
    leader_that_stops!(leader, cache, origin);
    pass(6 * SECOND).await;

    let newer = detached(&cache, &origin);
    all_have_run().await;
    // The late leader ends while the newer one computes, and must not close
    // its flight nor store over it.
    assert_eq!(within(MINUTE, leader).await.unwrap(), 1);
    assert_eq!(cache.stats().flights, 1);
    let joined = detached(&cache, &origin);
    assert_eq!(newer.await.unwrap().unwrap(), 2);
    assert_eq!(joined.await.unwrap().unwrap(), 2);
    assert_eq!(cache.get("k").await, Some(2));
    assert_eq!(origin.calls(), 2);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_silent_leader_that_waits_for_a_place_holds_nobody_longer_than_the_wait_timeout() {
    let cache = settings()
        .compute_timeout(5 * SECOND)
        .wait_timeout(8 * SECOND)
        .max_refreshes(1)
        .max_computations(1)
        .build()
        .unwrap();
    let origin = Origin::taking(2 * SECOND);
    let (other, compute) = (cache.clone(), origin.compute());
    let other = spawn(async move { other.get_or_compute("other", compute).await });
    all_have_run().await;
    let mut silent = Box::pin(cache.get_or_compute_scoped("k", || origin.load()));
    assert!(silent.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());

    let from = Instant::now();
    let answers = gather((0..10).map(|_| detached(&cache, &origin)).collect()).await;
    assert_eq!(kinds(&answers), [Some(ErrorKind::WaitTimeout); 10]);
    assert_eq!(from.elapsed(), 8 * SECOND);
    assert_eq!(other.await.unwrap().unwrap(), 1);
    drop(silent);
    assert_eq!(detached(&cache, &origin).await.unwrap().unwrap(), 2);
    assert_eq!(origin.calls(), 2);
    assert_quiet(&cache);
}

// ---- calls itself ----

#[tokio::test(start_paused = true)]
async fn a_service_that_calls_itself_through_the_layer_does_not_deadlock() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let layer = cache.layer(|_: &bool| Some("k")).inline();
    let origin = Origin::new();
    let calls = origin.clone();
    let bottom = tower::Layer::layer(&layer, service_fn(move |_: bool| calls.load()));
    let top = service_fn(move |again: bool| bottom.clone().oneshot(again));
    let mut service = tower::Layer::layer(&layer, top);
    let from = Instant::now();
    let error = service.ready().await.unwrap().call(true).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Inner);
    assert_eq!(error.inner::<Error>().unwrap().kind(), ErrorKind::Cycle);
    assert_eq!(from.elapsed(), Duration::ZERO);
    assert_eq!(origin.calls(), 0);
    assert_quiet(&cache);
}
