//! The sweep: a caller is dropped at its k-th poll, for every k until it is
//! done. Whatever it was doing, another caller then gets the value, no caller
//! hangs, nothing is left over, and the calls stay within their bound.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tower::{ServiceExt, service_fn};
use tower_stampede::{Builder, Error, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

type Asking = Pin<Box<dyn Future<Output = Result<u64, Error>> + Send>>;

/// A way to ask, detached or inline.
type Ask = fn(&Stampede<u64>, &Origin) -> Asking;

fn detached(cache: &Stampede<u64>, origin: &Origin) -> Asking {
    let (cache, compute) = (cache.clone(), slowly(origin));
    Box::pin(async move { cache.get_or_compute("k", compute).await })
}

fn scoped(cache: &Stampede<u64>, origin: &Origin) -> Asking {
    let (cache, compute) = (cache.clone(), slowly(origin));
    Box::pin(async move { cache.get_or_compute_scoped("k", compute).await })
}

fn refreshing(cache: &Stampede<u64>, origin: &Origin) -> Asking {
    let (cache, compute) = (cache.clone(), slowly(origin));
    Box::pin(async move { cache.refresh("k", compute).await })
}

fn service(cache: &Stampede<u64>, origin: &Origin) -> Asking {
    ask_service(&cache.layer(|(): &()| Some("k")), origin)
}

fn inline_service(cache: &Stampede<u64>, origin: &Origin) -> Asking {
    ask_service(&cache.layer(|(): &()| Some("k")).inline(), origin)
}

fn ask_service<F>(layer: &tower_stampede::StampedeLayer<u64, F>, origin: &Origin) -> Asking
where
    F: Fn(&()) -> Option<&'static str> + Send + Sync + 'static,
{
    let origin = origin.clone();
    let load = service_fn(move |()| slowly(&origin)());
    Box::pin(tower::Layer::layer(layer, load).oneshot(()))
}

/// A computation with several points at which it can be dropped.
fn slowly(origin: &Origin) -> impl FnOnce() -> Loading + Send + 'static + use<> {
    let origin = origin.clone();
    move || {
        let load = origin.load();
        Box::pin(async move {
            tokio::task::yield_now().await;
            pass(3 * MS).await;
            tokio::task::yield_now().await;
            let answer = load.await;
            tokio::task::yield_now().await;
            answer
        })
    }
}

/// How the caller to be dropped finds the key.
#[derive(Clone, Copy, Debug)]
enum Scene {
    /// No other caller is there.
    Cold,
    /// Others wait for the caller that is dropped.
    ColdWithWaiters,
    /// Another caller computes.
    Waiting(Ask),
    /// Another caller computes, and is dropped in the middle.
    WaitingForOneWhoLeaves(Ask),
    /// There is a stale value.
    Stale,
    /// There is a fresh value.
    Fresh,
    /// All places for computations are taken for a while.
    NoPlaceYet,
    /// The call fails; a stale value may stand in.
    FailingOverStale,
    /// The key failed a moment ago.
    Held,
}

struct Stage {
    cache: Stampede<u64>,
    origin: Origin,
    /// Others on the stage; they must all be answered.
    others: Vec<tokio::task::JoinHandle<Result<u64, Error>>>,
    leaves: Option<tokio::task::JoinHandle<Result<u64, Error>>>,
}

impl Stage {
    async fn set(scene: Scene, ask: Ask) -> Self {
        let cache = scene.settings().build().unwrap();
        let origin = Origin::taking(5 * MS);
        let mut stage = Self { cache, origin, others: Vec::new(), leaves: None };
        match scene {
            Scene::Cold | Scene::ColdWithWaiters => {}
            Scene::Waiting(other) => stage.enter(other),
            Scene::WaitingForOneWhoLeaves(other) => {
                stage.leaves = Some(spawn(other(&stage.cache, &stage.origin)));
            }
            Scene::Stale | Scene::FailingOverStale => {
                stage.cache.put("k", 1000).await;
                pass(MINUTE).await;
                if matches!(scene, Scene::FailingOverStale) {
                    stage.origin.next([Answer::Fail]);
                }
            }
            Scene::Fresh => stage.cache.put("k", 1000).await,
            Scene::NoPlaceYet => {
                let cache = stage.cache.clone();
                stage.others.push(spawn(async move {
                    let busy = || async {
                        pass(10 * MS).await;
                        Ok::<u64, OriginError>(0)
                    };
                    cache.get_or_compute("another key", busy).await
                }));
            }
            Scene::Held => {
                stage.origin.next([Answer::Fail]);
                let _ = ask(&stage.cache, &stage.origin).await;
            }
        }
        all_have_run().await;
        stage
    }

    fn enter(&mut self, ask: Ask) {
        self.others.push(spawn(ask(&self.cache, &self.origin)));
    }

    /// Lets time pass between two polls.
    async fn step(&mut self, scene: Scene, ask: Ask, poll: usize) {
        if matches!(scene, Scene::ColdWithWaiters) && poll == 1 {
            for _ in 0..3 {
                self.enter(ask);
            }
        }
        if poll == 3
            && let Some(leaves) = self.leaves.take()
        {
            leaves.abort();
        }
        all_have_run().await;
    }

    /// Another caller comes; every caller is answered, and nothing is left over.
    async fn end(mut self, scene: Scene, ask: Ask, at: &str) -> usize {
        if matches!(scene, Scene::Held) {
            pass(2 * SECOND).await;
        }
        self.enter(ask);
        for other in self.others {
            let answer = within(10 * SECOND, other).await.unwrap();
            assert!(answer.is_ok(), "{at}: {answer:?}");
        }
        // Whatever still runs in the background.
        pass(SECOND).await;
        drop(self.leaves);
        assert_eq!(self.origin.running(), 0, "{at}");
        assert_quiet(&self.cache);
        self.origin.calls()
    }
}

impl Scene {
    fn settings(self) -> Builder<u64> {
        let settings = settings().compute_timeout(2 * SECOND).wait_timeout(3 * SECOND);
        match self {
            Self::Stale => settings.stale_for(60 * MINUTE),
            Self::FailingOverStale => settings.stale_if_error(60 * MINUTE),
            Self::NoPlaceYet => settings.max_refreshes(1).max_computations(1),
            _ => settings,
        }
    }
}

/// Drops the caller after `polls` polls; returns whether it was done by then,
/// and the calls that were made in the end.
async fn drop_after(polls: usize, scene: Scene, ask: Ask, name: &str) -> (bool, usize) {
    let mut stage = Stage::set(scene, ask).await;
    let mut caller = ask(&stage.cache, &stage.origin);
    let mut done = false;
    for poll in 1..=polls {
        let polled = caller.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(answer) = polled {
            let may_fail = matches!(scene, Scene::Held);
            assert!(answer.is_ok() || may_fail, "{name}, {scene:?}: {answer:?}");
            done = true;
            break;
        }
        stage.step(scene, ask, poll).await;
    }
    drop(caller);
    let at = format!("{name}, {scene:?}, dropped after {polls} polls");
    (done, stage.end(scene, ask, &at).await)
}

/// Runs the sweep and asserts that no drop costs more than `bound` calls.
/// Returns the number of polls until the caller was done.
async fn sweep(name: &str, ask: Ask, scene: Scene, bound: usize) -> usize {
    for polls in 0..200 {
        let (done, calls) = drop_after(polls, scene, ask, name).await;
        assert!(calls <= bound, "{name}, {scene:?}: {calls} calls after {polls} polls");
        if done {
            return polls;
        }
    }
    panic!("{name}, {scene:?}: not done after 200 polls");
}

const DETACHED: [(&str, Ask); 2] = [("detached", detached), ("service", service)];
const INLINE: [(&str, Ask); 2] = [("scoped", scoped), ("inline service", inline_service)];

#[tokio::test(start_paused = true)]
async fn a_detached_leader_dropped_at_any_poll_costs_no_call() {
    for (name, ask) in DETACHED {
        for scene in [Scene::Cold, Scene::ColdWithWaiters, Scene::NoPlaceYet] {
            assert!(sweep(name, ask, scene, 1).await > 5, "the sweep has some width");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_inline_leader_dropped_at_any_poll_costs_one_call_at_most() {
    for (name, ask) in INLINE {
        for scene in [Scene::Cold, Scene::ColdWithWaiters, Scene::NoPlaceYet] {
            assert!(sweep(name, ask, scene, 2).await > 5, "the sweep has some width");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_dropped_at_any_poll_costs_no_call() {
    for (name, ask) in DETACHED.into_iter().chain(INLINE) {
        for (_, leader) in DETACHED.into_iter().chain(INLINE) {
            assert!(sweep(name, ask, Scene::Waiting(leader), 1).await > 5);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_elected_may_be_dropped_at_any_poll_too() {
    for (_, leader) in INLINE {
        for (name, ask) in DETACHED {
            sweep(name, ask, Scene::WaitingForOneWhoLeaves(leader), 2).await;
        }
        for (name, ask) in INLINE {
            sweep(name, ask, Scene::WaitingForOneWhoLeaves(leader), 3).await;
        }
    }
    for (_, leader) in DETACHED {
        for (name, ask) in DETACHED.into_iter().chain(INLINE) {
            sweep(name, ask, Scene::WaitingForOneWhoLeaves(leader), 1).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_with_a_stale_value_dropped_at_any_poll_costs_no_refresh() {
    for (name, ask) in DETACHED {
        sweep(name, ask, Scene::Stale, 1).await;
    }
    for (name, ask) in INLINE {
        assert!(sweep(name, ask, Scene::Stale, 2).await > 5, "it refreshes by itself");
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_refreshes_dropped_at_any_poll_costs_no_call() {
    for scene in [Scene::Cold, Scene::NoPlaceYet] {
        assert!(sweep("refreshing", refreshing, scene, 2).await > 5);
    }
    // Another computation began before the refresh, and the last caller comes after the
    // refresh has begun.
    for scene in [Scene::Waiting(detached), Scene::ColdWithWaiters] {
        assert!(sweep("refreshing", refreshing, scene, 3).await > 5);
    }
    assert!(sweep("refreshing", refreshing, Scene::Fresh, 2).await > 5);
}

#[tokio::test(start_paused = true)]
async fn a_caller_of_a_failing_or_held_key_may_be_dropped_at_any_poll() {
    for (name, ask) in DETACHED.into_iter().chain(INLINE) {
        sweep(name, ask, Scene::FailingOverStale, 2).await;
        sweep(name, ask, Scene::Held, 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_closure_that_is_not_called_is_dropped_with_the_answer_of_its_caller() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(SECOND));
    let mut leader = Box::pin(cache.get_or_compute("k", origin.compute()));
    assert!(futures_util::poll!(&mut leader).is_pending());
    let captured = Arc::new(());
    let capturing = || {
        let captured = Arc::clone(&captured);
        move || async move {
            drop(captured);
            Ok::<u64, OriginError>(0)
        }
    };
    let mut waiter = Box::pin(cache.get_or_compute("k", capturing()));
    let mut gone = Box::pin(cache.get_or_compute("k", capturing()));
    assert!(futures_util::poll!(&mut waiter).is_pending());
    assert!(futures_util::poll!(&mut gone).is_pending());
    assert_eq!(Arc::strong_count(&captured), 3);
    drop(gone);
    assert_eq!(Arc::strong_count(&captured), 2);
    assert_eq!((leader.await.unwrap(), (&mut waiter).await.unwrap()), (1, 1));
    assert_eq!(Arc::strong_count(&captured), 1);
    let mut hit = Box::pin(cache.get_or_compute("k", capturing()));
    assert_eq!((&mut hit).await.unwrap(), 1);
    assert_eq!(Arc::strong_count(&captured), 1);
    // Until here: an answered future holds nothing.
    drop((waiter, hit));
}
