//! `Drop` of values and errors is code of the application, and may call back
//! into the cache. A store that drops values itself may hold a lock of its own
//! then: from there the counts can be read at least.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tower_stampede::{Builder, Computed, Eviction, Stampede};

use crate::kit::alone::alone;
use crate::kit::origin::{MINUTE, SECOND, settings};

/// What a piece of the application's code does with a key of the cache.
type Operation = fn(&Stampede<Value>, u64);

type Operations = &'static [(&'static str, Operation)];

/// Works also from where the store itself drops a value.
const COUNTS: Operations = &[("stats", |cache, _| drop(cache.stats()))];

const CALLS: Operations = &[
    ("get", |cache, key| drop(poll_once(cache.get(key)))),
    ("put", |cache, key| assert!(poll_once(cache.put(key, Value::silent(key))).is_ready())),
    ("invalidate", |cache, key| assert!(poll_once(cache.invalidate(key)).is_ready())),
    ("invalidate_tag", |cache, key| {
        assert!(poll_once(cache.invalidate_tag(("tag", key))).is_ready());
    }),
    ("get_or_compute", |cache, key| {
        let compute = move || async move { Ok::<_, Failure>(Value::silent(key)) };
        drop(poll_once(cache.get_or_compute(key, compute)));
    }),
];

/// Polls once; what is not done then is dropped, as by a client that hangs up.
fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Calls back into the cache once the test lets it.
#[derive(Clone, Default)]
struct Bell(Arc<BellState>);

#[derive(Default)]
struct BellState {
    rings: OnceLock<(Stampede<Value>, Operation)>,
    rung: AtomicUsize,
    is_on: AtomicBool,
}

thread_local!(static RINGING: Cell<bool> = const { Cell::new(false) });

impl Bell {
    /// Rings with `key` and, the first times, with so many others that every
    /// shard of a table is met.
    fn ring(&self, key: u64) {
        if !self.0.is_on.load(SeqCst) || RINGING.replace(true) {
            return;
        }
        if let Some((cache, operation)) = self.0.rings.get() {
            operation(cache, key);
            if self.0.rung.fetch_add(1, SeqCst) < 10 {
                (1_000_000..1_000_400).for_each(|other| operation(cache, other));
            }
        }
        RINGING.set(false);
    }
}

#[derive(Clone)]
struct Value(#[allow(dead_code, reason = "only dropped")] Arc<Payload>);

struct Payload(u64, Option<Bell>);

impl Value {
    fn silent(key: u64) -> Self {
        Self(Arc::new(Payload(key, None)))
    }

    fn loud(key: u64, bell: &Bell) -> Self {
        Self(Arc::new(Payload(key, Some(bell.clone()))))
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        if let Some(bell) = &self.1 {
            bell.ring(self.0);
        }
    }
}

struct Failure(u64, Option<Bell>);

impl Drop for Failure {
    fn drop(&mut self) {
        if let Some(bell) = &self.1 {
            bell.ring(self.0);
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({})", self.0)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {} failed", self.0)
    }
}

impl std::error::Error for Failure {}

/// Runs `work` once for each operation that calls back. One thread that
/// deadlocks would keep the store from dropping anything in its process.
fn each<F: Future<Output = ()>>(
    operations: Operations,
    build: fn() -> Builder<Value>,
    work: fn(Stampede<Value>, Bell) -> F,
) {
    let names: Vec<_> = operations.iter().map(|(name, _)| *name).collect();
    alone(&names, |name| {
        let (_, operation) = operations.iter().find(|(other, _)| *other == name).unwrap();
        call_back(*operation, build, work);
    });
}

fn call_back<F: Future<Output = ()>>(
    operation: Operation,
    build: fn() -> Builder<Value>,
    work: fn(Stampede<Value>, Bell) -> F,
) {
    let bell = Bell::default();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let cache = build().build().unwrap();
        assert!(bell.0.rings.set((cache.clone(), operation)).is_ok());
        bell.0.is_on.store(true, SeqCst);
        // The store may put a drop off until it is used again.
        let until = Instant::now() + Duration::from_secs(120);
        while bell.0.rung.load(SeqCst) == 0 {
            assert!(Instant::now() < until, "it is called");
            work(cache.clone(), bell.clone()).await;
        }
        bell.0.is_on.store(false, SeqCst);
    });
}

fn evict(operations: Operations) {
    each(
        operations,
        || settings().max_entries(10),
        |cache, bell| async move {
            for key in 0..3000 {
                cache.put(key, Value::loud(key, &bell)).await;
            }
        },
    );
}

#[test]
fn a_value_may_ask_for_the_counts_while_it_is_dropped_because_it_is_evicted() {
    evict(COUNTS);
}

#[test]
fn a_value_may_call_the_cache_while_it_is_dropped_because_it_is_evicted() {
    evict(CALLS);
}

fn refuse_admission(operations: Operations) {
    each(
        operations,
        || settings().max_entries(10).eviction(Eviction::TinyLfu),
        |cache, bell| async move {
            for key in 0..3000 {
                cache.put(key, Value::loud(key, &bell)).await;
            }
        },
    );
}

#[test]
fn a_value_may_ask_for_the_counts_while_it_is_dropped_because_its_admission_is_refused() {
    refuse_admission(COUNTS);
}

#[test]
fn a_value_may_call_the_cache_while_it_is_dropped_because_its_admission_is_refused() {
    refuse_admission(CALLS);
}

fn weigh_too_much(operations: Operations) {
    each(
        operations,
        || settings().max_bytes(1000).weigher(|_| 1001),
        |cache, bell| async move {
            for key in 0..1000 {
                cache.put(key, Value::loud(key, &bell)).await;
            }
            let _ = cache.stats();
        },
    );
}

#[test]
fn a_value_may_ask_for_the_counts_while_it_is_dropped_because_it_is_too_heavy() {
    weigh_too_much(COUNTS);
}

#[test]
fn a_value_may_call_the_cache_while_it_is_dropped_because_it_is_too_heavy() {
    weigh_too_much(CALLS);
}

fn replace(operations: Operations) {
    each(operations, settings, |cache, bell| async move {
        for n in 0..300 {
            cache.put(n % 10, Value::loud(n % 10, &bell)).await;
        }
        for n in 0..300 {
            let (key, bell) = (n % 10, bell.clone());
            let compute = move || async move { Ok::<_, Failure>(Value::loud(key, &bell)) };
            cache.refresh(key, compute).await.unwrap();
        }
    });
}

#[test]
fn a_value_may_ask_for_the_counts_while_it_is_dropped_because_it_is_replaced() {
    replace(COUNTS);
}

#[test]
fn a_value_may_call_the_cache_while_it_is_dropped_because_it_is_replaced() {
    replace(CALLS);
}

fn invalidate(operations: Operations) {
    each(operations, settings, |cache, bell| async move {
        for key in 0..300 {
            cache.put(key, Value::loud(key, &bell)).await;
            cache.invalidate(key).await;
        }
    });
}

#[test]
fn a_value_may_ask_for_the_counts_while_it_is_dropped_because_it_is_invalidated() {
    invalidate(COUNTS);
}

#[test]
fn a_value_may_call_the_cache_while_it_is_dropped_because_it_is_invalidated() {
    invalidate(CALLS);
}

fn sweep(operations: Operations) {
    each(operations, settings, |cache, bell| async move {
        for key in 0..300 {
            let value = Computed::new(Value::loud(key, &bell)).ttl(SECOND).tag(("tag", key));
            cache.put_with(key, value).await;
        }
        cache.invalidate_all().await;
        tokio::time::sleep(2 * MINUTE).await;
    });
}

#[test]
fn a_value_may_ask_for_the_counts_while_it_is_dropped_by_the_sweep() {
    sweep(COUNTS);
}

#[test]
fn a_value_may_call_the_cache_while_it_is_dropped_by_the_sweep() {
    sweep(CALLS);
}

fn store_nothing(operations: Operations) {
    each(operations, settings, |cache, bell| async move {
        for key in 0..300 {
            let (handle, bell) = (cache.clone(), bell.clone());
            let compute = move || async move {
                // What is invalidated during its computation is not stored.
                handle.invalidate(key).await;
                Ok::<_, Failure>(Value::loud(key, &bell))
            };
            drop(cache.get_or_compute(key, compute).await.unwrap());
        }
    });
}

#[test]
fn a_value_that_is_not_stored_may_ask_for_the_counts_while_it_is_dropped() {
    store_nothing(COUNTS);
}

#[test]
fn a_value_that_is_not_stored_may_call_the_cache_while_it_is_dropped() {
    store_nothing(CALLS);
}

async fn fail(cache: &Stampede<Value>, key: u64, bell: Option<&Bell>) {
    let failure = Failure(key, bell.cloned());
    let compute = || async { Err::<Value, _>(failure) };
    drop(cache.get_or_compute(key, compute).await);
}

fn fail_again(operations: Operations) {
    each(
        operations,
        || settings().hold(SECOND),
        |cache, bell| async move {
            for n in 0..300 {
                fail(&cache, n % 10, Some(&bell)).await;
                if n % 10 == 9 {
                    tokio::time::sleep(2 * SECOND).await;
                }
            }
        },
    );
}

#[test]
fn an_error_may_call_the_cache_while_it_is_dropped_because_another_failure_replaces_it() {
    fail_again([COUNTS, CALLS].concat().leak());
}

fn end_holds(operations: Operations) {
    each(
        operations,
        || settings().hold(MINUTE),
        |cache, bell| async move {
            for key in 0..300 {
                fail(&cache, key, Some(&bell)).await;
                if key % 2 == 0 {
                    cache.invalidate(key).await;
                } else {
                    let compute = move || async move { Ok::<_, Failure>(Value::silent(key)) };
                    cache.refresh(key, compute).await.unwrap();
                }
            }
            // The sweep drops the holds that are left.
            for key in 300..600 {
                fail(&cache, key, Some(&bell)).await;
            }
            tokio::time::sleep(60 * MINUTE).await;
        },
    );
}

#[test]
fn an_error_may_call_the_cache_while_it_is_dropped_because_the_hold_ends() {
    end_holds([COUNTS, CALLS].concat().leak());
}

fn fail_many_keys(operations: Operations) {
    each(
        operations,
        || settings().hold(MINUTE),
        |cache, bell| async move {
            bell.0.is_on.store(false, SeqCst);
            for key in 0..20_000 {
                fail(&cache, key, Some(&bell)).await;
            }
            bell.0.is_on.store(true, SeqCst);
            for key in 20_000..40_000 {
                fail(&cache, key, None).await;
            }
        },
    );
}

#[test]
fn an_error_may_call_the_cache_while_it_is_dropped_because_too_many_keys_fail() {
    fail_many_keys([COUNTS, CALLS].concat().leak());
}

/// A value of which the first copy that is dropped panics.
#[derive(Debug)]
struct PanicsOnce(bool, std::sync::Arc<std::sync::atomic::AtomicUsize>);

impl Clone for PanicsOnce {
    fn clone(&self) -> Self {
        Self(true, std::sync::Arc::clone(&self.1))
    }
}

impl Drop for PanicsOnce {
    fn drop(&mut self) {
        let is_first = self.0 && self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
        assert!(!is_first, "the drop of a copy panics");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_drop_of_a_copy_that_is_not_stored_concerns_no_caller() {
    let cache = settings().weigher(|_: &PanicsOnce| usize::MAX).build().unwrap();
    let value = PanicsOnce(false, std::sync::Arc::default());
    let got = cache.get_or_compute("k", || async { Ok::<_, std::io::Error>(value) }).await;
    assert!(got.is_ok());
}
