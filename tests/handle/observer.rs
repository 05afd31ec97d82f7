//! The application's recorder of metrics and its subscriber of traces are code
//! of the application: they may call the cache, be slow, or panic.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use tokio::sync::oneshot;
use tower_stampede::{Builder, ErrorKind, Stampede};
use tracing::instrument::WithSubscriber;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};

use crate::kit::alone::alone;
use crate::kit::origin::*;
use crate::kit::spawn;

/// What happens when a counter of this name goes up.
#[derive(Clone)]
struct Counted {
    name: &'static str,
    act: Arc<dyn Fn() + Send + Sync>,
}

impl CounterFn for Counted {
    fn increment(&self, _: u64) {
        (self.act)();
    }

    fn absolute(&self, _: u64) {}
}

/// A recorder with one counter that acts: `stampede_fill_total` is counted by
/// leaders, `stampede_lock_total` by every caller without a hit.
impl Recorder for Counted {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        if key.name() == self.name {
            Counter::from_arc(Arc::new(self.clone()))
        } else {
            Counter::noop()
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

const LEADERS: &str = "stampede_fill_total";
const CALLERS: &str = "stampede_lock_total";

/// A cache whose recorder does this when the counter goes up.
fn recorded(
    settings: Builder<u64>,
    name: &'static str,
    act: impl Fn() + Send + Sync + 'static,
) -> Stampede<u64> {
    let recorder = Counted { name, act: Arc::new(act) };
    metrics::with_local_recorder(&recorder, || settings.build().unwrap())
}

fn ask(
    cache: &Stampede<u64>,
    origin: &Origin,
) -> tokio::task::JoinHandle<Result<u64, tower_stampede::Error>> {
    let (cache, compute) = (cache.clone(), origin.compute());
    spawn(async move { cache.get_or_compute("k", compute).await })
}

// ---- a recorder that calls back ----

fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

thread_local!(static INSIDE: Cell<bool> = const { Cell::new(false) });

#[test]
fn a_recorder_may_call_the_cache() {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let home = Arc::new(OnceLock::<Stampede<u64>>::new());
        let (own, calls) = (Arc::clone(&home), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&calls);
        let act = move || {
            let quiet = counted.load(SeqCst) >= 1000 || INSIDE.replace(true);
            if let Some(cache) = own.get().filter(|_| !quiet) {
                let _ = cache.stats();
                assert!(poll_once(cache.get("k")).is_ready());
                assert!(poll_once(cache.put("k", 1)).is_ready());
                assert!(poll_once(cache.invalidate("k")).is_ready());
                assert!(poll_once(cache.invalidate_tag("t")).is_ready());
                drop(poll_once(cache.get_or_compute("k", || async { Ok::<_, OriginError>(1) })));
                counted.fetch_add(1, SeqCst);
                INSIDE.set(false);
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for name in [LEADERS, CALLERS] {
                let act = act.clone();
                let cache = recorded(settings().hold(Duration::from_millis(1)), name, act);
                let _ = home.set(cache.clone());
                let origin = Origin::new();
                for n in 0..300 {
                    origin.next([[Answer::Value, Answer::Fail][n % 2]]);
                    drop(ask(&cache, &origin).await);
                    cache.invalidate("k").await;
                }
            }
        });
        done.send(calls.load(SeqCst)).unwrap();
    });
    let calls = ended.recv_timeout(Duration::from_secs(120)).expect("no deadlock and no panic");
    assert!(calls > 0, "it was called");
}

// ---- a slow recorder ----

/// Blocks the first thread that counts until it is opened, at most for a
/// minute.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_open: bool,
    blocked: usize,
    too_long: usize,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.blocked += 1;
        let most = Duration::from_secs(60);
        let closed = |state: &mut GateState| !state.is_open;
        let (mut state, end) = self.changed.wait_timeout_while(state, most, closed).unwrap();
        state.too_long += usize::from(end.timed_out());
    }

    fn open(&self) {
        self.state.lock().unwrap().is_open = true;
        self.changed.notify_all();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_recorder_does_not_delay_the_waiters() {
    for succeeds in [true, false] {
        let gate = Arc::new(Gate::default());
        let cache = recorded(settings(), LEADERS, {
            let gate = Arc::clone(&gate);
            move || gate.pass()
        });
        let (open, opened) = oneshot::channel::<()>();
        let (begins, begun) = oneshot::channel::<()>();
        let handle = cache.clone();
        let leader = spawn(async move {
            let compute = move || async move {
                begins.send(()).unwrap();
                opened.await.unwrap();
                if succeeds { Ok(1) } else { Err(OriginError(1)) }
            };
            handle.get_or_compute("k", compute).await
        });
        begun.await.unwrap();
        // This thread is not the leader's: the waiter is woken beside it.
        let waiter = cache.get_or_compute("k", || async { Ok::<_, OriginError>(2) });
        let (waited, ()) = tokio::join!(waiter, async { open.send(()).unwrap() });
        gate.open();
        assert_eq!(
            waited.map_err(|error| error.kind()),
            if succeeds { Ok(1) } else { Err(ErrorKind::Inner) }
        );
        drop(leader.await.unwrap());
        let state = gate.state.lock().unwrap();
        assert_eq!((state.blocked, state.too_long), (1, 0), "the waiter is answered meanwhile");
    }
}

// ---- a recorder that panics ----

/// Runs `work` with paused time. A panic while another one is handled ends the
/// process, so each case has a process of its own.
fn paused<F: Future<Output = ()>>(work: F) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(work);
}

fn panics_once() -> impl Fn() + Send + Sync + 'static {
    let calls = AtomicUsize::new(0);
    move || {
        let is_first = calls.fetch_add(1, SeqCst) == 0;
        assert!(!is_first, "the recorder panics, as the test told it");
    }
}

async fn crowd_gets_the_value(settings: Builder<u64>) {
    let cache = recorded(settings, LEADERS, panics_once());
    let origin = Origin::taking(100 * MS);
    let leader = ask(&cache, &origin);
    all_have_run().await;
    let waiters: Vec<_> = (0..10).map(|_| ask(&cache, &origin)).collect();
    for answer in gather(waiters).await {
        assert_eq!(answer.unwrap(), 1, "what was computed");
    }
    drop(leader.await);
    assert_eq!(cache.get("k").await, Some(1));
    assert_eq!(origin.calls(), 1);
    assert_quiet(&cache);
    let next = cache.get_or_compute("another key", origin.compute()).await;
    assert_eq!(next.unwrap(), 2, "its place is free");
}

#[test]
fn a_recorder_that_panics_takes_no_value_from_the_waiters_and_the_store() {
    alone(&["many places", "one place"], |case| {
        let one = case == "one place";
        let settings =
            if one { settings().max_refreshes(1).max_computations(1) } else { settings() };
        paused(crowd_gets_the_value(settings));
    });
}

async fn crowd_gets_the_failure() {
    let cache = recorded(settings().hold(MINUTE), LEADERS, panics_once());
    let origin = Origin::taking(100 * MS);
    origin.next([Answer::Fail]);
    let leader = ask(&cache, &origin);
    all_have_run().await;
    let waiters: Vec<_> = (0..10).map(|_| ask(&cache, &origin)).collect();
    for answer in gather(waiters).await {
        assert_eq!(answer.unwrap_err().inner::<OriginError>(), Some(&OriginError(1)));
    }
    drop(leader.await);
    let held = ask(&cache, &origin).await.unwrap().unwrap_err();
    assert_eq!(held.kind(), ErrorKind::Held, "the hold is there");
    assert_quiet(&cache);
}

#[test]
fn a_recorder_that_panics_does_not_turn_a_failure_into_a_panic() {
    alone(&["a failure"], |_| paused(crowd_gets_the_failure()));
}

#[test]
fn the_caller_that_leads_gets_its_value_although_the_recorder_panics() {
    alone(&[LEADERS, CALLERS], |case| {
        let name = if case == LEADERS { LEADERS } else { CALLERS };
        paused(async move {
            let cache = recorded(settings(), name, panics_once());
            let got = ask(&cache, &Origin::taking(100 * MS)).await;
            assert_eq!(got.expect("no panic").unwrap(), 1);
            assert_quiet(&cache);
        });
    });
}

// ---- a subscriber that panics ----

/// Panics at every event of this message.
struct Panicking(&'static str);

impl Subscriber for Panicking {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "tower_stampede"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = String::new();
        let mut visit = |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            if field.name() == "message" {
                message = format!("{value:?}");
            }
        };
        event.record(&mut visit);
        assert_ne!(message, self.0, "the subscriber panics, as the test told it");
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

async fn waiters_of_a_traced_leader_get(answer: Answer) {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
    origin.next([answer]);
    let leader = spawn({
        let (cache, origin) = (cache.clone(), origin.clone());
        let lead = async move { cache.get_or_compute_scoped("k", || origin.load()).await };
        lead.with_subscriber(Panicking("computed"))
    });
    all_have_run().await;
    let waiters: Vec<_> = (0..10).map(|_| ask(&cache, &origin)).collect();
    let expected = if answer == Answer::Value { Ok(1) } else { Err(ErrorKind::Inner) };
    for got in gather(waiters).await {
        assert_eq!(got.map_err(|error| error.kind()), expected);
    }
    drop(leader.await);
    assert_eq!(cache.get("k").await, expected.ok());
    assert_eq!(origin.calls(), 1);
    assert_quiet(&cache);
}

#[test]
fn a_subscriber_that_panics_takes_no_value_from_the_waiters_and_the_store() {
    alone(&["a value", "a failure"], |case| {
        let answer = if case == "a value" { Answer::Value } else { Answer::Fail };
        paused(waiters_of_a_traced_leader_get(answer));
    });
}
