//! Edges of settings, of calls that block, of hidden failures, and of work that is cancelled.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tower_stampede::{Builder, Cache, Stampede};
use tracing::Level;

use crate::kit::log::TextLog;
use crate::kit::origin::*;
use crate::kit::spawn;

fn cancelling() -> Builder<u64> {
    settings().cancel_unwanted(0.5)
}

async fn call(cache: &Stampede<u64>, key: u64, origin: &Origin) -> JoinHandle<u64> {
    let (cache, compute) = (cache.clone(), origin.compute());
    let call = spawn(async move { cache.get_or_compute(key, compute).await.unwrap() });
    all_have_run().await;
    call
}

async fn leave(call: JoinHandle<u64>) {
    call.abort();
    all_have_run().await;
}

/// Breaks `Builder::cancel_unwanted`: "The call of a batch is cancelled when none of its keys has a
/// caller." `while_wanted` in `cache/batch/driver.rs` looks at the keys one after the other, and at
/// none twice: a key that had no caller once, and has one again, counts as unwanted for ever.
#[tokio::test(start_paused = true)]
async fn the_call_of_a_batch_goes_on_for_a_key_that_has_a_caller_again() {
    let loads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&loads);
    let cache: Stampede<u64> = cancelling().batch_window(5 * MS).build().unwrap();
    let load = move |ids: Vec<u64>| {
        counted.fetch_add(1, SeqCst);
        async move {
            tokio::time::sleep(30 * SECOND).await;
            Ok::<_, OriginError>(ids.into_iter().map(|id| (id, id * id)).collect::<HashMap<_, _>>())
        }
    };
    let cache = Cache::batched(cache, load);
    let ask = |id| {
        let cache = cache.clone();
        spawn(async move { cache.get(id).await.unwrap() })
    };
    let (first, second) = (ask(1), ask(2));
    pass(SECOND).await;
    assert_eq!(loads.load(SeqCst), 1, "one call for both");
    first.abort();
    all_have_run().await;
    let back = ask(1);
    pass(SECOND).await;
    second.abort();
    assert_eq!(within(60 * SECOND, back).await.unwrap(), 1);
    assert_eq!(loads.load(SeqCst), 1, "the call that ran had a caller at every moment");
}

/// Breaks `Builder::cancel_unwanted`: "Expected is the time that the value in hand has taken, else
/// what computations of this cache have taken of late". A value that was put has taken none: its
/// window says zero, and `Leader::is_needless` in `flight/leader.rs` expects work of no time.
#[tokio::test(start_paused = true)]
async fn work_over_a_value_that_was_put_is_cancelled_like_other_work() {
    let cache = cancelling().stale_if_error(60 * MINUTE).build().unwrap();
    let origin = Origin::taking(30 * SECOND);
    assert_eq!(cache.get_or_compute(0, origin.compute()).await.unwrap(), 1);
    cache.put(1, 100).await;
    pass(2 * MINUTE).await;
    leave(call(&cache, 1, &origin).await).await;
    assert_eq!(origin.running(), 0, "it has run for a moment of an expected 30 s");
}

/// A caller in a slot, so that a `Drop` can begin it.
type Slot = Arc<Mutex<Option<Pin<Box<dyn Future<Output = u64> + Send>>>>>;

struct AsksWhenDropped {
    cache: Stampede<u64>,
    slot: Slot,
    runtime: Handle,
}

impl Drop for AsksWhenDropped {
    fn drop(&mut self) {
        let (cache, runtime) = (self.cache.clone(), self.runtime.clone());
        // On another thread: here it would ask for what it is itself.
        let joins = std::thread::spawn(move || {
            let _inside = runtime.enter();
            let mut asks: Pin<Box<dyn Future<Output = u64> + Send>> = Box::pin(async move {
                cache.get_or_compute(1, || async { Ok::<_, OriginError>(7) }).await.unwrap()
            });
            assert!(asks.as_mut().now_or_never().is_none(), "it joins");
            asks
        });
        *self.slot.lock().unwrap() = Some(joins.join().unwrap());
    }
}

/// Breaks "`cancelled`: no caller waited for it any more" (docs/observability.md), and a failure is
/// counted for it: `End::Lost` in `flight/end.rs` asks `is_needless` again, after the work was
/// dropped, in place of being told why it ends.
#[tokio::test(start_paused = true)]
async fn cancelled_work_is_no_failure_where_a_caller_joins_while_it_is_dropped() {
    let cache = cancelling().build().unwrap();
    let slot = Slot::default();
    let (caller, asks) = (cache.clone(), Arc::clone(&slot));
    let caller = spawn(async move {
        let runtime = Handle::current();
        let guard = AsksWhenDropped { cache: caller.clone(), slot: asks, runtime };
        let compute = move || async move {
            let _guard = guard;
            std::future::pending::<Result<u64, OriginError>>().await
        };
        caller.get_or_compute(1, compute).await.unwrap()
    });
    all_have_run().await;
    leave(caller).await;
    let asks = slot.lock().unwrap().take().expect("the work was dropped");
    assert_eq!(within(SECOND, asks).await, 7);
    assert_eq!(cache.stats().failures, 0, "it was cancelled, and has not failed");
}

/// A key is put on hold by clients that hang up: a panic in the `Drop` of a future that this setting
/// drops counts as a panic of the computation. `Leader::compute` in `flight/leader.rs` drops the work
/// outside of its `catch_unwind`, and the guard of the leader takes the unwinding for a computation
/// that has panicked.
#[tokio::test(start_paused = true)]
async fn clients_that_hang_up_put_no_key_on_hold() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("the test's future panics when it is dropped");
        }
    }
    let cache = cancelling().build().unwrap();
    for _ in 0..2 {
        let caller = cache.clone();
        let caller = spawn(async move {
            let compute = || async {
                let _guard = Panics;
                std::future::pending::<Result<u64, OriginError>>().await
            };
            caller.get_or_compute(1, compute).await.unwrap()
        });
        all_have_run().await;
        leave(caller).await;
    }
    let origin = Origin::new();
    let next = cache.get_or_compute(1, origin.compute()).await;
    assert_eq!(next.map_err(|error| error.to_string()), Ok(1));
}

/// Breaks docs/observability.md: "the cache reports each failure that a stale value hides, in one way
/// for all". `Engine::end_deposed` in `flight/engine.rs` reports `Deposed` alone, which says
/// `callers_got="the error"` whatever they get; the waiter takes its stale value in
/// `Resolver::take_failure`, which counts on the end of the flight.
#[tokio::test(start_paused = true)]
async fn the_failure_of_a_silent_leader_that_a_stale_value_hides_is_told_of() {
    let log = TextLog::default();
    let _listening = log.listen(Level::INFO);
    let cache = settings::<u64>().stale_if_error(60 * MINUTE).build().unwrap();
    cache.put(1, 100).await;
    pass(2 * MINUTE).await;
    let origin = Origin::new();
    origin.usually(Answer::Hang);
    let mut silent = Box::pin(cache.get_or_compute_scoped(1, origin.compute()));
    assert!(silent.as_mut().now_or_never().is_none(), "it leads, and is not polled any more");
    let served = cache.get_or_compute(1, Origin::new().compute()).await.unwrap();
    all_have_run().await;
    assert_eq!((served, cache.stats().stale_if_error), (100, 1));
    assert!(log.text().contains("failures reach no caller"), "{}", log.text());
}

/// Breaks docs/observability.md of the line `another living handle`: "At the second handle of a name,
/// not at later ones". `register` in `cache/names.rs` counts those that live now: beside one that
/// stays, each handle that is made for a request is the second one.
#[tokio::test(start_paused = true)]
async fn handles_that_are_made_for_each_request_are_told_of_once() {
    let log = TextLog::default();
    let _listening = log.listen(Level::INFO);
    let handle = || Stampede::<u64>::builder("names-for-requests").ttl(MINUTE).build().unwrap();
    let _first = handle();
    for _ in 0..100 {
        drop(handle());
    }
    assert_eq!(log.whole_text().matches("another living handle").count(), 1);
}

/// Breaks `Blocking::get_or_compute`: "its time-outs end the wait of all callers; the thread of a
/// computation *that has begun* goes on until it returns". One that waits for a thread of the pool,
/// and whose flight has ended, runs later for no caller: `on_blocking_pool` in `cache/blocking.rs` drops
/// the handle of the task, which detaches it, in place of aborting it. So an outage fills the pool's
/// queue beyond `max_computations`.
#[test]
fn a_blocking_computation_that_has_not_begun_at_its_time_out_never_runs() {
    use std::time::Duration;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let cache: Stampede<u64> =
        settings().compute_timeout(Duration::from_millis(50)).build().unwrap();
    let cache = cache.blocking_on(runtime.handle());
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let busy = runtime.spawn_blocking(move || gate.recv());
    let calls = Arc::new(AtomicUsize::new(0));
    for key in 0..3_u64 {
        let counted = Arc::clone(&calls);
        let compute = move || {
            counted.fetch_add(1, SeqCst);
            Ok::<u64, OriginError>(7)
        };
        cache.get_or_compute(key, compute).unwrap_err();
    }
    assert_eq!(calls.load(SeqCst), 0, "the pool was busy");
    drop(open);
    let _ = runtime.block_on(busy).unwrap();
    runtime.block_on(runtime.spawn_blocking(|| ())).unwrap();
    assert_eq!(calls.load(SeqCst), 0, "these flights have ended, and their callers have errors");
}

/// Breaks docs/observability.md: "The line comes at the first such failure, and then at the 2nd, 4th, 8th
/// and so on: an outage of an hour is about seven lines", and "The crowd that shares a failure [...] not
/// counted again". One call of a batch that fails once is as many failures as it has keys
/// (`Batcher::end_loaded` in `cache/batch/driver.rs` ends each flight, and each end reports): one
/// failure writes all seven lines.
#[tokio::test(start_paused = true)]
async fn one_failed_call_of_a_batch_is_one_hidden_failure() {
    let log = TextLog::default();
    let _listening = log.listen(Level::INFO);
    let cache: Stampede<u64> = settings().stale_if_error(60 * MINUTE).build().unwrap();
    for key in 0..64_u64 {
        cache.put(key, key).await;
    }
    pass(2 * MINUTE).await;
    let load = |_: Vec<u64>| async { Err::<HashMap<u64, u64>, _>(OriginError(1)) };
    let cache = Cache::batched(cache, load);
    let batch = cache.get_many(0..64_u64).await;
    all_have_run().await;
    assert_eq!((batch.values.len(), cache.handle().stats().batch_calls), (64, 1));
    assert_eq!(log.text().matches("failures reach no caller").count(), 1, "{}", log.text());
}

/// Breaks docs/observability.md: "the cache reports each failure that a stale value hides". What
/// `keep_fresh` loads for the first time replaces no value, and a caller that joins gets the error:
/// `Leader::failure_effect` in `flight/end.rs` takes each flight that is led in the background for one
/// whose callers have a stale value.
#[tokio::test(start_paused = true)]
async fn a_failure_that_a_caller_of_a_kept_key_gets_is_not_told_of_as_hidden() {
    let log = TextLog::default();
    let _listening = log.listen(Level::INFO);
    let cache = Cache::new(settings::<u64>().build().unwrap(), |_: u64| async {
        pass(SECOND).await;
        Err::<u64, _>(OriginError(1))
    });
    let _kept = cache.keep_fresh([1]);
    pass(500 * MS).await;
    cache.get(1).await.unwrap_err();
    all_have_run().await;
    let stats = cache.handle().stats();
    assert_eq!((stats.joined, stats.failures), (1, 1), "it has joined the first load");
    assert_eq!(log.text().matches("reach no caller").count(), 0, "{}", log.text());
}
