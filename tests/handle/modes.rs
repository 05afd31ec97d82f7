//! What a cache does that only observes, is switched off or shut down.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use tower::{ServiceExt, service_fn};
use tower_stampede::{Builder, Error, ErrorKind, Mode, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

type Answered = Result<u64, Error>;
type Asking = Pin<Box<dyn Future<Output = Answered> + Send>>;
type Ask = fn(&Stampede<u64>, &Origin, u64) -> Asking;

fn detached(cache: &Stampede<u64>, origin: &Origin, key: u64) -> Asking {
    let (cache, compute) = (cache.clone(), origin.compute());
    Box::pin(async move { cache.get_or_compute(key, compute).await })
}

fn scoped(cache: &Stampede<u64>, origin: &Origin, key: u64) -> Asking {
    let (cache, origin) = (cache.clone(), origin.clone());
    Box::pin(async move { cache.get_or_compute_scoped(key, || origin.load()).await })
}

fn service(cache: &Stampede<u64>, origin: &Origin, key: u64) -> Asking {
    let origin = origin.clone();
    let layer = cache.layer(|key: &u64| Some(*key));
    let service = service_fn(move |_: u64| origin.load());
    Box::pin(tower::Layer::layer(&layer, service).oneshot(key))
}

fn inline_service(cache: &Stampede<u64>, origin: &Origin, key: u64) -> Asking {
    let origin = origin.clone();
    let layer = cache.layer(|key: &u64| Some(*key)).inline();
    let service = service_fn(move |_: u64| origin.load());
    Box::pin(tower::Layer::layer(&layer, service).oneshot(key))
}

const ASKS: [Ask; 4] = [detached, scoped, service, inline_service];

/// The smallest bounds there are.
fn tight() -> Builder<u64> {
    settings()
        .max_refreshes(1)
        .max_computations(1)
        .max_waiters(1)
        .max_waiters_in_all(1)
        .compute_timeout(SECOND)
        .wait_timeout(SECOND)
        .hold(MINUTE)
}

fn switched(mode: Mode) -> Stampede<u64> {
    let cache = tight().build().unwrap();
    cache.set_mode(mode);
    cache
}

const MODES: [Mode; 2] = [Mode::Observe, Mode::Off];

#[tokio::test(start_paused = true)]
async fn no_caller_queues_for_a_place_where_the_cache_does_not_take_part() {
    for mode in MODES {
        for ask in ASKS {
            let (cache, origin) = (switched(mode), Origin::taking(500 * MS));
            let from = Instant::now();
            let answers = herd(10, |n| ask(&cache, &origin, n as u64)).await;
            assert!(answers.iter().all(Result::is_ok), "{mode:?}: {answers:?}");
            assert_eq!(from.elapsed(), 500 * MS, "{mode:?}");
            assert_eq!((origin.calls(), origin.most_at_once()), (10, 10));
            assert_eq!(cache.stats().overloaded, 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_caller_waits_for_another_one_where_the_cache_does_not_take_part() {
    for mode in MODES {
        for ask in ASKS {
            let (cache, origin) = (switched(mode), Origin::taking(500 * MS));
            let from = Instant::now();
            let answers = herd(10, |_| ask(&cache, &origin, 1)).await;
            assert!(answers.iter().all(Result::is_ok), "{mode:?}: {answers:?}");
            assert_eq!(from.elapsed(), 500 * MS, "{mode:?}");
            assert_eq!((origin.calls(), origin.most_at_once()), (10, 10));
        }
    }
}

async fn takes_a_minute(mode: Mode) {
    for ask in ASKS {
        let (cache, origin) = (switched(mode), Origin::taking(MINUTE));
        // The first would lead, the second not, the third for another key.
        let answers = herd(3, |n| ask(&cache, &origin, n as u64 / 2)).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        assert_eq!((origin.calls(), origin.dropped()), (3, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_only_observes_ends_no_computation_at_its_timeout() {
    takes_a_minute(Mode::Observe).await;
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_is_switched_off_ends_no_computation_at_its_timeout() {
    takes_a_minute(Mode::Off).await;
}

#[tokio::test(start_paused = true)]
async fn no_caller_is_held_where_the_cache_does_not_take_part() {
    for mode in MODES {
        for ask in ASKS {
            let (cache, origin) = (switched(mode), Origin::taking(10 * MS));
            origin.usually(Answer::Fail);
            for n in 1..=3 {
                let error = ask(&cache, &origin, 1).await.unwrap_err();
                assert_eq!(error.inner::<OriginError>(), Some(&OriginError(n)), "its own error");
            }
            origin.usually(Answer::Value);
            assert_eq!(ask(&cache, &origin, 1).await.unwrap(), 4, "{mode:?}");
            assert_eq!(cache.stats().held, 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_from_before_the_switch_refuses_no_caller() {
    for mode in MODES {
        for ask in ASKS {
            let (cache, origin) = (tight().build().unwrap(), Origin::taking(10 * MS));
            origin.next([Answer::Fail]);
            ask(&cache, &origin, 1).await.unwrap_err();
            assert_eq!(ask(&cache, &origin, 1).await.unwrap_err().kind(), ErrorKind::Held);
            cache.set_mode(mode);
            assert_eq!(ask(&cache, &origin, 1).await.unwrap(), 2, "{mode:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_caller_gets_its_own_panic_where_the_cache_does_not_take_part() {
    for mode in MODES {
        for ask in ASKS {
            let (cache, origin) = (switched(mode), Origin::taking(10 * MS));
            origin.usually(Answer::Panic);
            for caller in spawn_herd(5, |_| ask(&cache, &origin, 1)) {
                assert!(caller.await.unwrap_err().is_panic(), "{mode:?}");
            }
            assert_eq!(origin.calls(), 5);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_computation_that_took_part_in_no_bound_leaves_the_places_free() {
    let (cache, origin) = (switched(Mode::Observe), Origin::taking(MINUTE));
    let observed = spawn_herd(5, |n| detached(&cache, &origin, n as u64));
    all_have_run().await;
    cache.set_mode(Mode::On);
    let quick = Origin::taking(10 * MS);
    for key in 10..13 {
        assert!(detached(&cache, &quick, key).await.is_ok(), "the only place is free");
    }
    assert!(gather(observed).await.iter().all(Result::is_ok));
}

// ---- shutdown ----

/// Blocks the threads that wait at it until it is opened, at most for two
/// minutes.
#[derive(Default)]
struct Gate {
    waiting: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Gate {
    fn wait(&self) {
        let mut state = self.waiting.lock().unwrap();
        state.0 += 1;
        let closed = |state: &mut (usize, bool)| !state.1;
        let most = Duration::from_secs(120);
        drop(self.changed.wait_timeout_while(state, most, closed).unwrap());
    }

    fn waiting(&self) -> usize {
        self.waiting.lock().unwrap().0
    }

    fn open(&self) {
        self.waiting.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_ends_at_its_deadline_while_one_worker_thread_is_free() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let gate = Arc::new(Gate::default());
    let busy = spawn({
        let (cache, gate) = (cache.clone(), Arc::clone(&gate));
        async move {
            let blocks = move || async move {
                gate.wait();
                Ok::<_, OriginError>(1)
            };
            cache.get_or_compute("blocks its thread", blocks).await
        }
    });
    let hangs = spawn({
        let cache = cache.clone();
        let hangs = || std::future::pending::<Result<u64, OriginError>>();
        async move { cache.get_or_compute("hangs", hangs).await }
    });
    while gate.waiting() == 0 || cache.stats().flights < 2 {
        tokio::task::yield_now().await;
    }
    let from = Instant::now();
    let shutdown = cache.shutdown(Duration::from_millis(100));
    let ended = tokio::time::timeout(Duration::from_secs(60), shutdown).await;
    let took = from.elapsed();
    gate.open();
    let left = ended.unwrap_or_else(|_| panic!("still under way after {took:?}"));
    assert!(took >= Duration::from_millis(100), "{took:?}");
    assert_eq!(left, 2, "the computations that were cut off");
    assert_eq!(hangs.await.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
    drop(busy.await);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_cuts_off_leaders_that_queue_for_a_place() {
    let cache = settings().max_refreshes(1).max_computations(1).build().unwrap();
    let origin = Origin::taking(MINUTE);
    let callers = spawn_herd(5, |n| detached(&cache, &origin, n as u64));
    all_have_run().await;
    let from = Instant::now();
    let left = within(MINUTE, cache.shutdown(100 * MS)).await;
    assert_eq!((left, from.elapsed()), (5, 100 * MS));
    for answer in gather(callers).await {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::ShutDown);
    }
    assert_eq!(origin.running(), 0);
    assert_quiet(&cache);
}
