//! The local store at its edges: values whose `Drop` calls back, sleeps or
//! panics, and values that are too heavy.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tower_stampede::{Computed, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

/// Runs `work` on a thread of its own, and fails if it does not end.
fn must_end(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    match ended.recv_timeout(Duration::from_secs(300)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => thread.join().unwrap(),
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work)
}

/// Polls a future that has nothing to wait for.
fn now<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match work.as_mut().poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("it waits"),
    }
}

/// Waits until `is_so`. What a cache that is gone has left behind, the next
/// write of another one drops.
fn eventually(is_so: impl Fn() -> bool) {
    let another: Stampede<u64> = settings().build().unwrap();
    for n in 0..12_000 {
        now(another.put(n % 10, n));
        now(another.invalidate(n % 10));
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it does not come to that");
}

type Hook = Box<dyn Fn(u64) + Send + Sync>;

/// Calls a hook when its last copy is dropped.
struct Bell {
    number: u64,
    hook: Arc<Mutex<Option<Arc<Hook>>>>,
}

impl Drop for Bell {
    fn drop(&mut self) {
        let hook = self.hook.lock().unwrap().clone();
        if let Some(hook) = hook {
            hook(self.number);
        }
    }
}

type Value = Arc<Bell>;

/// Makes the values that share one hook.
#[derive(Clone, Default)]
struct Bells(Arc<Mutex<Option<Arc<Hook>>>>);

impl Bells {
    fn bell(&self, number: u64) -> Value {
        Arc::new(Bell { number, hook: Arc::clone(&self.0) })
    }

    fn ring(&self, hook: impl Fn(u64) + Send + Sync + 'static) {
        *self.0.lock().unwrap() = Some(Arc::new(Box::new(hook)));
    }

    fn silence(&self) {
        *self.0.lock().unwrap() = None;
    }
}

fn small() -> Stampede<Value> {
    settings().max_entries(10).build().unwrap()
}

#[test]
fn a_value_may_call_every_operation_while_it_is_dropped() {
    must_end(|| {
        block_on(async {
            let (cache, bells) = (small(), Bells::default());
            let calls = Arc::new(AtomicUsize::new(0));
            let (called, counted, quiet) = (cache.clone(), Arc::clone(&calls), Bells::default());
            bells.ring(move |number| {
                counted.fetch_add(1, SeqCst);
                let _ = called.stats();
                now(called.put(1_000_000 + number % 7, quiet.bell(0)));
                now(called.get(number));
                now(called.invalidate(number + 1));
                now(called.mark_stale(number + 2));
                now(called.invalidate_tag(("tag", number)));
            });
            for n in 0..5_000_u64 {
                cache.put(n, bells.bell(n)).await;
                if n % 3 == 0 {
                    cache.invalidate(n).await;
                }
                if n % 1000 == 999 {
                    cache.invalidate_all().await;
                }
            }
            let _ = cache.stats();
            assert!(calls.load(SeqCst) > 4_000, "{} were dropped", calls.load(SeqCst));
            bells.silence();
        });
    });
}

#[test]
fn a_sleeping_drop_delays_no_other_thread() {
    must_end(|| {
        let (cache, bells) = (small(), Bells::default());
        let (asleep, is_asleep) = mpsc::channel();
        let (wake, awake) = mpsc::channel::<()>();
        let parts = Mutex::new(Some((asleep, awake)));
        bells.ring(move |_| {
            let parts = parts.lock().unwrap().take();
            if let Some((asleep, awake)) = parts {
                asleep.send(()).unwrap();
                let _ = awake.recv();
            }
        });
        let sleeper = {
            let (cache, bells) = (cache.clone(), bells);
            std::thread::spawn(move || {
                block_on(async {
                    for n in 0..5_000_u64 {
                        cache.put(n, bells.bell(n)).await;
                    }
                });
            })
        };
        is_asleep.recv().unwrap();
        let (done, ended) = mpsc::channel();
        std::thread::spawn(move || {
            block_on(async {
                let quiet = Bells::default();
                for n in 0..5_000_u64 {
                    cache.put(10_000 + n, quiet.bell(n)).await;
                    cache.get(n).await;
                }
                let _ = cache.stats();
            });
            done.send(()).unwrap();
        });
        let ended = ended.recv_timeout(Duration::from_secs(120));
        wake.send(()).unwrap();
        sleeper.join().unwrap();
        assert!(ended.is_ok(), "another thread waits for a value's `Drop`");
    });
}

#[test]
fn a_panic_in_a_drop_reaches_no_caller_and_loses_no_other_value() {
    must_end(|| {
        let bells = Bells::default();
        let drops = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&drops);
        bells.ring(move |number| {
            counted.fetch_add(1, SeqCst);
            assert!(!number.is_multiple_of(3), "a value's own");
        });
        block_on(async {
            let cache = small();
            for n in 0..3_000_u64 {
                cache.put(n % 100, bells.bell(n)).await;
                if n % 10 == 0 {
                    cache.invalidate(n % 100).await;
                }
            }
            let _ = cache.stats();
            cache.put("k", bells.bell(1)).await;
            assert!(cache.get("k").await.is_some());
        });
        eventually(|| drops.load(SeqCst) == 3_001);
    });
}

#[test]
fn a_cache_that_is_dropped_keeps_no_value() {
    must_end(|| {
        let live = Arc::new(());
        block_on(async {
            let cache: Stampede<Arc<()>> = settings().max_entries(100).build().unwrap();
            for n in 0..10_000_u64 {
                cache.put(n % 500, Arc::clone(&live)).await;
            }
            for n in 0..50_u64 {
                cache.invalidate(n).await;
            }
        });
        eventually(|| Arc::strong_count(&live) == 1);
    });
}

#[test]
fn a_value_may_own_the_last_handle_of_another_cache() {
    must_end(|| {
        let drops = Arc::new(AtomicUsize::new(0));
        let bells = Bells::default();
        let counted = Arc::clone(&drops);
        bells.ring(move |_| {
            counted.fetch_add(1, SeqCst);
        });
        block_on(async {
            let outer: Stampede<Stampede<Value>> = settings().max_entries(10).build().unwrap();
            for n in 0..50_u64 {
                let inner = small();
                inner.put(n, bells.bell(n)).await;
                outer.put(n, inner).await;
            }
        });
        eventually(|| drops.load(SeqCst) == 50);
    });
}

#[tokio::test(start_paused = true)]
async fn a_value_heavier_than_the_bound_reaches_its_callers_and_is_not_kept() {
    let cache: Stampede<u64> =
        settings().max_bytes(2000).weigher(|value| *value as usize).build().unwrap();
    let origin = Origin::taking(MS);
    let long = "a key that is longer than thirty-eight bytes";
    for value in [2001, usize::MAX as u64, u64::from(u32::MAX), u64::from(u32::MAX) + 1] {
        let ask = || {
            let (cache, origin) = (cache.clone(), origin.clone());
            spawn(async move {
                let compute = move || async move {
                    origin.load().await.map(|_| Computed::new(value).tag("a tag"))
                };
                cache.get_or_compute_with(long, compute).await.unwrap()
            })
        };
        let calls = origin.calls();
        let (first, second) = (ask(), ask());
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (value, value));
        assert_eq!(origin.calls() - calls, 1, "{value}: both callers share it");
        assert_eq!(cache.get(long).await, None, "{value}: it is not kept");
        assert_eq!((cache.stats().entries, cache.stats().bytes), (0, 0), "{value}");
    }
    cache.put("k", 900).await;
    assert_eq!(cache.get("k").await, Some(900));
    cache.put("k", 2001).await;
    assert_eq!(cache.get("k").await, None, "what was put is not kept, nor what it replaces");
}

#[tokio::test(start_paused = true)]
async fn a_value_too_heavy_for_the_count_is_not_kept_under_a_larger_bound() {
    let cache: Stampede<u64> =
        settings().max_bytes(1 << 40).weigher(|value| *value as usize).build().unwrap();
    cache.put("k", u64::from(u32::MAX) + 1).await;
    assert_eq!(cache.get("k").await, None);
    let cache: Stampede<u64> = settings().max_bytes(1 << 40).max_entries(10).build().unwrap();
    cache.put("k", 1).await;
    assert_eq!(cache.get("k").await, Some(1), "a share of the bound is no weight of its own");
}

#[tokio::test(start_paused = true)]
async fn expired_entries_are_removed_after_a_value_that_panics() {
    let (cache, bells): (Stampede<Value>, _) =
        (settings().max_entries(100).ttl(SECOND).build().unwrap(), Bells::default());
    bells.ring(|number| assert_ne!(number, 3, "a value's own"));
    for n in 0..10_u64 {
        cache.put(n, bells.bell(n)).await;
    }
    for _ in 0..10 {
        pass(MINUTE).await;
    }
    assert_eq!(cache.stats().entries, 0, "all have expired minutes ago");
}
