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
use tower_stampede::{Cache, Computed, Stampede};

use crate::kit::origin::{MINUTE, OriginError, all_have_run, settings};
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

/// Woken callers that have their answers, and code of the application that waits for them.
#[derive(Clone, Default)]
struct Answered(Arc<(Mutex<usize>, Condvar)>);

impl Answered {
    fn add_one(&self) {
        *self.0.0.lock().unwrap() += 1;
        self.0.1.notify_all();
    }

    /// Blocks its thread until so many are answered, or for half a minute. Returns whether they were.
    fn wait_for(&self, waiters: usize) -> bool {
        let too_few = |answered: &mut usize| *answered < waiters;
        let (answered, most) = (self.0.0.lock().unwrap(), Duration::from_secs(30));
        !self.0.1.wait_timeout_while(answered, most, too_few).unwrap().1.timed_out()
    }
}

/// A value whose `Drop` blocks its thread until the waiters are answered.
#[derive(Clone)]
struct Blocking(#[allow(dead_code, reason = "only dropped")] Option<Arc<BlockingDrop>>);

struct BlockingDrop(Answered, Arc<Mutex<Vec<bool>>>);

const WAITERS: usize = 4;

impl Drop for BlockingDrop {
    fn drop(&mut self) {
        let is_in_time = self.0.wait_for(WAITERS);
        self.1.lock().unwrap().push(is_in_time);
    }
}

/// Lets `WAITERS` callers wait for a leader, which ends as `compute` does. Returns once all have
/// their answers.
async fn answer_waiters<F>(cache: &Stampede<Blocking>, answered: &Answered, compute: F)
where
    F: FnOnce() -> Result<Blocking, OriginError> + Send + 'static,
{
    let (open, gate) = oneshot::channel::<()>();
    let (begins, begun) = oneshot::channel::<()>();
    let handle = cache.clone();
    let leader = spawn(async move {
        let compute = || async {
            begins.send(()).unwrap();
            gate.await.unwrap();
            compute()
        };
        drop(handle.get_or_compute("k", compute).await);
    });
    begun.await.unwrap();
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| {
            let (cache, answered) = (cache.clone(), answered.clone());
            let none = || async { Err::<Blocking, _>(OriginError(0)) };
            spawn(async move {
                drop(cache.get_or_compute("k", none).await);
                answered.add_one();
            })
        })
        .collect();
    while cache.stats().waiting < WAITERS {
        tokio::task::yield_now().await;
    }
    open.send(()).unwrap();
    for task in waiters.into_iter().chain([leader]) {
        task.await.unwrap();
    }
}

/// The waiter that is woken last stands next in line on the thread of the leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drop_that_blocks_its_thread_delays_not_even_the_waiter_that_is_woken_last() {
    let in_time = Arc::new(Mutex::new(Vec::new()));
    let later = Duration::from_secs(600);
    for (has_hook, is_stored) in [(false, true), (false, false), (true, true), (true, false)] {
        let answered = Answered::default();
        let mut settings = settings().stale_if_error(later);
        if !is_stored {
            // Then the new value ends the older one.
            let weigh = |value: &Blocking| if value.0.is_some() { 8 } else { usize::MAX };
            settings = settings.weigher(weigh);
        }
        let (by_hook, hooked) = (answered.clone(), Arc::clone(&in_time));
        if has_hook {
            settings = settings.on_eviction(move |_, _, _| {
                let is_in_time = by_hook.wait_for(WAITERS);
                hooked.lock().unwrap().push(is_in_time);
            });
        }
        let cache: Stampede<Blocking> = settings.build().unwrap();
        let old = BlockingDrop(answered.clone(), Arc::clone(&in_time));
        let value = Computed::new(Blocking(Some(Arc::new(old)))).ttl(Duration::from_nanos(1));
        cache.put_with("k", value).await;
        answer_waiters(&cache, &answered, || Ok(Blocking(None))).await;
    }
    assert_eq!(*in_time.lock().unwrap(), [true; 6], "four drops, two of them behind a hook");
}

/// Notes each line of the log, and how many waiters had their answers by then.
struct NotedLine(Answered, Arc<Mutex<Vec<(String, usize)>>>);

impl std::io::Write for NotedLine {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let answered = *self.0.0.0.lock().unwrap();
        self.1.lock().unwrap().push((String::from_utf8_lossy(bytes).into_owned(), answered));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// On one thread the order is all there is.
#[tokio::test]
async fn a_subscriber_learns_of_the_end_when_the_waiters_have_their_answers() {
    let (answered, lines) = (Answered::default(), Arc::new(Mutex::new(Vec::new())));
    let (counted, noted) = (answered.clone(), Arc::clone(&lines));
    let write = move || NotedLine(counted.clone(), Arc::clone(&noted));
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG);
    let _listening = crate::kit::log::listen(subscriber.with_writer(write).finish());
    let cache: Stampede<Blocking> = settings().max_entries(10).build().unwrap();
    answer_waiters(&cache, &answered, || Err(OriginError(1))).await;
    let lines = lines.lock().unwrap();
    let is_end = |(line, _): &&(String, usize)| line.contains("computed");
    let ends: Vec<usize> = lines.iter().filter(is_end).map(|(_, answered)| *answered).collect();
    assert_eq!(ends, [WAITERS], "{lines:?}");
}

// ---- the other keys of a batch ----

/// A value whose `Drop` notes how many callers have their answers by then.
#[derive(Clone)]
struct Counting(#[allow(dead_code, reason = "only dropped")] Option<Arc<CountingDrop>>);

struct CountingDrop(Answered, Arc<Mutex<Vec<usize>>>);

impl Drop for CountingDrop {
    fn drop(&mut self) {
        self.1.lock().unwrap().push(*self.0.0.0.lock().unwrap());
    }
}

const KEYS: u64 = 8;

/// Returns a cache with values that are served in place of failures only, and what their drops note.
async fn with_old_values(answered: &Answered) -> (Stampede<Counting>, Arc<Mutex<Vec<usize>>>) {
    let settings = settings().stale_if_error(10 * MINUTE).batch_window(Duration::from_millis(10));
    let (cache, drops) = (settings.build().unwrap(), Arc::<Mutex<Vec<usize>>>::default());
    for key in 0..KEYS {
        let old = Arc::new(CountingDrop(answered.clone(), Arc::clone(&drops)));
        let old = Computed::new(Counting(Some(old))).ttl(Duration::from_nanos(1));
        cache.put_with(key, old).await;
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    (cache, drops)
}

/// On one thread the order is all there is.
#[tokio::test(start_paused = true)]
async fn the_drops_of_a_batch_delay_the_waiter_of_none_of_its_keys() {
    let answered = Answered::default();
    let (cache, drops) = with_old_values(&answered).await;
    let load = |keys: Vec<u64>| async {
        tokio::time::sleep(MINUTE / 60).await;
        Ok::<_, OriginError>(keys.into_iter().map(|key| (key, Counting(None))))
    };
    let batch = cache.get_many(0..KEYS, load);
    let waiter = async {
        let none = || async { Err::<Counting, _>(OriginError(0)) };
        drop(cache.get_or_compute(KEYS - 1, none).await.unwrap());
        answered.add_one();
    };
    let (batch, ()) = tokio::join!(batch, waiter);
    assert_eq!(batch.values.len(), 8);
    all_have_run().await;
    assert_eq!(*drops.lock().unwrap(), [1; 8]);
}

#[tokio::test(start_paused = true)]
async fn the_drop_of_one_callers_value_delays_no_other_caller_of_the_same_call() {
    let answered = Answered::default();
    let (handle, drops) = with_old_values(&answered).await;
    let cache = Cache::batched(handle, |keys: Vec<u64>| async {
        Ok::<_, OriginError>(keys.into_iter().map(|key| (key, Counting(None))))
    });
    let callers = (0..KEYS).map(|key| {
        let (cache, answered) = (cache.clone(), answered.clone());
        spawn(async move {
            drop(cache.get(key).await.unwrap());
            answered.add_one();
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    all_have_run().await;
    assert_eq!(*drops.lock().unwrap(), [8; 8]);
}
