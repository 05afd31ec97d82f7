//! Code of the application that the cache runs, and that calls back into the
//! cache or is slow. `Drop` has a file of its own.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;
use std::time::Duration;

use tokio::sync::oneshot;
use tower_stampede::{Computed, Stampede};

use crate::kit::origin::{MINUTE, OriginError, settings};
use crate::kit::spawn;

// ---- weigher and clone ----

/// Polls once; what is not done then is dropped, as by a client that hangs up.
fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Calls every operation that code of the application may reach for.
fn call_everything<V: Clone + Send + Sync + 'static>(cache: &Stampede<V>, value: &V, key: u64) {
    let _ = cache.stats();
    assert!(poll_once(cache.get(key)).is_ready());
    assert!(poll_once(cache.put(key, value.clone())).is_ready());
    assert!(poll_once(cache.mark_stale(key)).is_ready());
    assert!(poll_once(cache.invalidate(key)).is_ready());
    assert!(poll_once(cache.invalidate_tag(("tag", key))).is_ready());
    let own = value.clone();
    drop(poll_once(cache.get_or_compute(key, || async { Ok::<_, OriginError>(own) })));
}

/// Code that is called back for what it calls would go on for ever.
const CALLS: usize = 1000;

/// Runs `work`, which counts its calls, on a thread and a runtime of its own.
fn must_end<F: Future<Output = ()>>(work: impl FnOnce(Arc<AtomicUsize>) -> F + Send + 'static) {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let calls = Arc::new(AtomicUsize::new(0));
        runtime.block_on(work(Arc::clone(&calls)));
        done.send(calls.load(SeqCst)).unwrap();
    });
    let calls = ended.recv_timeout(Duration::from_secs(120)).expect("no deadlock and no panic");
    assert!(calls > 0, "it was called");
}

thread_local!(static INSIDE: Cell<bool> = const { Cell::new(false) });

#[test]
fn a_weigher_may_call_the_cache_for_the_key_that_it_weighs() {
    must_end(|calls| async move {
        let home = Arc::new(OnceLock::<Stampede<u64>>::new());
        let (own, counted) = (Arc::clone(&home), Arc::clone(&calls));
        let weigh = move |key: &u64| {
            if let Some(cache) =
                own.get().filter(|_| counted.load(SeqCst) < CALLS && !INSIDE.replace(true))
            {
                call_everything(cache, key, *key);
                counted.fetch_add(1, SeqCst);
                INSIDE.set(false);
            }
            8
        };
        let cache = settings().weigher(weigh).build().unwrap();
        home.set(cache.clone()).unwrap();
        for key in 0..300_u64 {
            cache.put(key, key).await;
            let key = key + 1000;
            cache
                .get_or_compute(key, move || async move { Ok::<_, OriginError>(key) })
                .await
                .unwrap();
            cache.refresh(key, move || async move { Ok::<_, OriginError>(key) }).await.unwrap();
        }
    });
}

/// A value whose `Clone` calls the cache for its own key.
struct Cloning(u64, Arc<OnceLock<Stampede<Cloning>>>, Arc<AtomicUsize>);

impl Cloning {
    fn copy(&self) -> Self {
        Self(self.0, Arc::clone(&self.1), Arc::clone(&self.2))
    }
}

impl Clone for Cloning {
    fn clone(&self) -> Self {
        if let Some(cache) =
            self.1.get().filter(|_| self.2.load(SeqCst) < CALLS && !INSIDE.replace(true))
        {
            call_everything(cache, self, self.0);
            self.2.fetch_add(1, SeqCst);
            INSIDE.set(false);
        }
        self.copy()
    }
}

#[test]
fn the_clone_of_a_value_may_call_the_cache_for_its_own_key() {
    must_end(|calls| async move {
        let cache: Stampede<Cloning> = settings().stale_for(MINUTE).build().unwrap();
        let home = Arc::new(OnceLock::new());
        assert!(home.set(cache.clone()).is_ok());
        for key in 0..300_u64 {
            let value = Cloning(key, Arc::clone(&home), Arc::clone(&calls));
            cache.put(key, value.copy()).await;
            drop(cache.get(key).await);
            cache.put(key, value.copy()).await;
            cache.mark_stale(key).await;
            let refreshed = value.copy();
            let compute = || async { Ok::<_, OriginError>(refreshed) };
            cache.get_or_compute(key, compute).await.unwrap();
            tokio::task::yield_now().await;
            let compute = || async { Ok::<_, OriginError>(value) };
            cache.refresh(key, compute).await.unwrap();
        }
    });
}

// ---- a put beside a computation ----

#[tokio::test(start_paused = true)]
async fn a_put_is_not_replaced_by_a_computation_that_began_before_it_ended() {
    type Running = std::pin::Pin<Box<dyn Future<Output = u64> + Send>>;
    static CACHE: OnceLock<Stampede<u64>> = OnceLock::new();
    const PUT: u64 = 2;
    let (open, gate) = oneshot::channel::<()>();
    let (gate, begun) = (Mutex::new(Some(gate)), Arc::new(Mutex::new(None::<Running>)));
    let begins = Arc::clone(&begun);
    let cache = settings()
        .weigher(move |value| {
            // The put is under way: a caller comes in and computes.
            if *value == PUT
                && let Some(gate) = gate.lock().unwrap().take()
            {
                let mut caller: Running = Box::pin(async move {
                    let older = || async move {
                        gate.await.unwrap();
                        Ok::<_, OriginError>(1)
                    };
                    CACHE.get().unwrap().get_or_compute_scoped("k", older).await.unwrap()
                });
                assert!(poll_once(&mut caller).is_pending());
                *begins.lock().unwrap() = Some(caller);
            }
            8
        })
        .build()
        .unwrap();
    CACHE.set(cache.clone()).unwrap();
    cache.put("k", PUT).await;
    let running = begun.lock().unwrap().take().expect("a computation began");
    assert_eq!(cache.get("k").await, Some(PUT));
    open.send(()).unwrap();
    running.await;
    assert_eq!(cache.get("k").await, Some(PUT));
}

// ---- what a waiter finds ----

/// Two threads that really run at once: the waiter looks as soon as it is
/// answered, while the leader is still at its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_answered_finds_the_value_in_the_store() {
    const ROUNDS: u64 = 5000;
    let cache: Stampede<u64> = settings().build().unwrap();
    let mut missed = 0;
    for key in 0..ROUNDS {
        let (open, gate) = oneshot::channel::<()>();
        let (begins, begun) = oneshot::channel::<()>();
        let handle = cache.clone();
        let leader = spawn(async move {
            let compute = move || async move {
                begins.send(()).unwrap();
                gate.await.unwrap();
                Ok::<_, OriginError>(key)
            };
            handle.get_or_compute(key, compute).await.unwrap();
        });
        begun.await.unwrap();
        let waiter = cache.get_or_compute(key, || async { Err::<u64, _>(OriginError(0)) });
        let waiter = async {
            let waited = waiter.await.unwrap();
            (waited, cache.get(key).await)
        };
        let ((waited, found), ()) = tokio::join!(waiter, async { open.send(()).unwrap() });
        assert_eq!(waited, key);
        missed += u64::from(found.is_none());
        leader.await.unwrap();
    }
    assert_eq!(missed, 0, "of {ROUNDS} waiters");
}

// ---- weights ----

#[tokio::test(start_paused = true)]
async fn a_weight_of_usize_max_neither_overflows_nor_is_stored() {
    const LONG: &str = "a key that is long enough to have a part of its own on the heap";
    for max_bytes in [64 << 20, 1 << 40, u64::MAX] {
        let cache: Stampede<u64> =
            settings().max_bytes(max_bytes).weigher(|_| usize::MAX).build().unwrap();
        cache.put_with(LONG, Computed::new(1).tag("t")).await;
        assert_eq!(cache.get(LONG).await, None, "put, with max_bytes {max_bytes}");
        let compute = || async { Ok::<_, OriginError>(2) };
        assert_eq!(cache.get_or_compute("k", compute).await.unwrap(), 2);
        assert_eq!(cache.get("k").await, None, "computed, with max_bytes {max_bytes}");
        let stats = cache.stats();
        assert_eq!((stats.entries, stats.bytes, stats.flights), (0, 0, 0));
    }
}

// ---- a slow drop ----

/// Blocks the first thread that drops a value after the computation ended, if
/// it is not the test's own, until the waiter is answered, at most for a
/// minute.
#[derive(Default)]
struct Brake {
    is_armed: AtomicBool,
    answered: Mutex<bool>,
    changed: Condvar,
    drops: AtomicUsize,
    too_long: AtomicUsize,
}

#[derive(Clone)]
struct Slow(#[allow(dead_code, reason = "only dropped")] Option<Arc<SlowDrop>>);

struct SlowDrop(Arc<Brake>, ThreadId);

impl Drop for SlowDrop {
    fn drop(&mut self) {
        let Self(brake, own) = self;
        let elsewhere = std::thread::current().id() != *own && brake.is_armed.load(SeqCst);
        if elsewhere && brake.drops.fetch_add(1, SeqCst) == 0 {
            let answered = brake.answered.lock().unwrap();
            let most = Duration::from_secs(60);
            let waits = |answered: &mut bool| !*answered;
            let (_answered, end) = brake.changed.wait_timeout_while(answered, most, waits).unwrap();
            brake.too_long.fetch_add(usize::from(end.timed_out()), SeqCst);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_drop_of_an_evicted_value_does_not_delay_the_waiters_of_the_fill() {
    let cache: Stampede<Slow> = settings().max_entries(1).build().unwrap();
    let brake = Arc::new(Brake::default());
    for key in 0..5000_u64 {
        *brake.answered.lock().unwrap() = false;
        let old = SlowDrop(Arc::clone(&brake), std::thread::current().id());
        cache.put("old", Slow(Some(Arc::new(old)))).await;
        let (open, gate) = oneshot::channel::<()>();
        let (begins, begun) = oneshot::channel::<()>();
        let handle = cache.clone();
        let leader = spawn(async move {
            let compute = || async {
                begins.send(()).unwrap();
                gate.await.unwrap();
                Ok::<_, OriginError>(Slow(None))
            };
            handle.get_or_compute(key, compute).await.unwrap();
        });
        begun.await.unwrap();
        let waiter = cache.get_or_compute(key, || async { Ok::<_, OriginError>(Slow(None)) });
        // This thread is not the leader's: the waiter is woken beside the drop.
        let (waited, ()) = tokio::join!(waiter, async {
            brake.is_armed.store(true, SeqCst);
            open.send(()).unwrap();
        });
        waited.unwrap();
        *brake.answered.lock().unwrap() = true;
        brake.changed.notify_all();
        leader.await.unwrap();
        brake.is_armed.store(false, SeqCst);
        if brake.drops.load(SeqCst) > 0 {
            break;
        }
    }
    assert!(brake.drops.load(SeqCst) > 0, "a fill evicts");
    assert_eq!(brake.too_long.load(SeqCst), 0, "the waiter is answered before the drop ends");
}
