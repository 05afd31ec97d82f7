//! The handle for code without `async`: against threads, on real time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tower_stampede::{Cache, Computed, ErrorKind, Failure, Stampede};

use crate::kit::origin::*;

const LONG: Duration = Duration::from_secs(60);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn panic_text(work: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let panic = std::panic::catch_unwind(work).unwrap_err();
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap()
}

#[test]
fn threads_and_tasks_that_ask_for_one_key_share_one_computation() {
    let (runtime, calls) = (runtime(), Arc::<AtomicUsize>::default());
    let cache: Stampede<u64> = settings().build().unwrap();
    let blocking = cache.blocking_on(runtime.handle());
    let (open, gate) = mpsc::channel::<()>();
    let gate = Arc::new(std::sync::Mutex::new(gate));
    let threads: Vec<_> = (0..32)
        .map(|_| {
            let (cache, calls, gate) = (blocking.clone(), Arc::clone(&calls), Arc::clone(&gate));
            std::thread::spawn(move || {
                let compute = move || {
                    calls.fetch_add(1, SeqCst);
                    let _ = gate.lock().unwrap().recv();
                    Ok::<u64, OriginError>(7)
                };
                cache.get_or_compute("k", compute)
            })
        })
        .collect();
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let (cache, calls) = (cache.clone(), Arc::clone(&calls));
            runtime.spawn(async move {
                let compute = || async move {
                    calls.fetch_add(1, SeqCst);
                    tokio::time::sleep(LONG).await;
                    Ok::<u64, OriginError>(7)
                };
                // The threads lead.
                while cache.stats().flights == 0 {
                    tokio::task::yield_now().await;
                }
                cache.get_or_compute("k", compute).await
            })
        })
        .collect();
    while cache.stats().waiting < 63 {
        std::thread::yield_now();
    }
    drop(open);
    for thread in threads {
        assert_eq!(thread.join().unwrap().unwrap(), 7);
    }
    for task in tasks {
        assert_eq!(runtime.block_on(task).unwrap().unwrap(), 7);
    }
    assert_eq!(calls.load(SeqCst), 1);
    // A hit needs no runtime any more.
    drop(runtime);
    assert_eq!(blocking.get("k"), Some(7));
    let never = || Err::<u64, _>(OriginError(0));
    assert_eq!(blocking.get_or_compute("k", never).unwrap(), 7);
}

#[test]
fn each_method_does_what_that_of_the_handle_does() {
    let runtime = runtime();
    let cache: Stampede<u64> = settings().build().unwrap();
    let blocking = cache.blocking_on(runtime.handle());
    assert_eq!(blocking.get("k"), None);
    let tagged = || Ok::<_, OriginError>(Computed::new(1_u64).tag("t"));
    assert_eq!(blocking.get_or_compute("k", tagged).unwrap(), 1);
    assert_eq!(blocking.refresh("k", || Ok::<u64, OriginError>(2)).unwrap(), 2);
    assert!(blocking.invalidate_tag("t").local);
    assert_eq!(blocking.get("k"), None);
    blocking.put("k", 3_u64);
    assert_eq!(blocking.get("k"), Some(3));
    assert!(blocking.invalidate("k").local);
    let error = blocking.get_or_compute("k", || Err::<u64, _>(OriginError(4))).unwrap_err();
    assert_eq!(error.inner::<OriginError>(), Some(&OriginError(4)));
    assert_eq!(cache.blocking_on(runtime.handle()).handle().stats().computations, 3);
}

#[test]
fn a_typed_cache_loads_for_threads() {
    let runtime = runtime();
    let cache = Cache::new(settings().build().unwrap(), |n: u64| async move {
        if n == 9 { Err(OriginError(9)) } else { Ok(n * n) }
    });
    let cache = cache.blocking_on(runtime.handle());
    assert_eq!(cache.get(3).unwrap(), 9);
    assert_eq!(cache.get_many([2, 3, 4]).complete().unwrap()[&4], 16);
    assert_eq!(cache.refresh(5).unwrap(), 25);
    let Err(Failure::Computation(error)) = cache.get(9) else { panic!("9 has no square") };
    assert_eq!(*error, OriginError(9));
}

#[test]
fn time_outs_end_the_wait_of_a_thread_and_a_panic_reaches_the_one_that_led() {
    let runtime = runtime();
    let cache: Stampede<u64> = settings().compute_timeout(50 * MS).build().unwrap();
    let cache = cache.blocking_on(runtime.handle());
    let (open, gate) = mpsc::channel::<()>();
    let begun = Instant::now();
    let hang = move || {
        let _ = gate.recv();
        Ok::<u64, OriginError>(1)
    };
    assert_eq!(cache.get_or_compute("k", hang).unwrap_err().kind(), ErrorKind::ComputeTimeout);
    assert!(begun.elapsed() < LONG);
    drop(open);
    let panicking: Stampede<u64> = settings().build().unwrap();
    let panicking = panicking.blocking_on(runtime.handle());
    let text = panic_text(std::panic::AssertUnwindSafe(move || {
        drop(panicking.get_or_compute("p", || -> Result<u64, OriginError> { panic!("no value") }));
    }));
    assert_eq!(text, "no value");
}

#[test]
fn a_call_in_a_worker_moves_the_other_tasks_away_or_panics_with_the_remedy() {
    let runtime = runtime();
    let cache: Stampede<u64> = settings().build().unwrap();
    let compute = || Ok::<u64, OriginError>(7);
    let blocking = cache.blocking_on(runtime.handle());
    let in_worker = blocking.clone();
    let answer = runtime.spawn(async move { in_worker.get_or_compute("a", compute).unwrap() });
    assert_eq!(runtime.block_on(answer).unwrap(), 7);
    let in_pool = blocking.clone();
    let answer = runtime.spawn_blocking(move || in_pool.get_or_compute("b", compute).unwrap());
    assert_eq!(runtime.block_on(answer).unwrap(), 7);
    // The one thread of another runtime would stand still.
    let single = Builder::new_current_thread().build().unwrap();
    let in_single = blocking.clone();
    let text = panic_text(std::panic::AssertUnwindSafe(|| {
        single.block_on(async { drop(in_single.get_or_compute("c", compute)) });
    }));
    assert!(text.contains("tokio::task::spawn_blocking"), "{text}");
    // Its blocking pool may block.
    let answer = single.spawn_blocking(move || blocking.get_or_compute("d", compute).unwrap());
    assert_eq!(single.block_on(answer).unwrap(), 7);
}

#[test]
fn a_handle_without_a_runtime_of_several_threads_is_refused_when_it_is_made() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let outside = cache.clone();
    let text = panic_text(std::panic::AssertUnwindSafe(move || drop(outside.blocking())));
    assert!(text.contains("blocking_on"), "{text}");
    let single = Builder::new_current_thread().build().unwrap();
    let text = panic_text(std::panic::AssertUnwindSafe(|| {
        drop(cache.blocking_on(single.handle()));
    }));
    assert!(text.contains("several threads"), "{text}");
}

#[test]
fn a_computation_may_ask_for_another_key_and_one_that_asks_for_its_own_is_found_at_once() {
    let runtime = runtime();
    // One place: the outer computation lends its own.
    let cache: Stampede<u64> = settings().max_computations(1).build().unwrap();
    let cache = cache.blocking_on(runtime.handle());
    let inner = cache.clone();
    let nested = move || {
        let part = inner.get_or_compute("part", || Ok::<u64, OriginError>(2))?;
        Ok::<u64, tower_stampede::Error>(part + 1)
    };
    let begun = Instant::now();
    assert_eq!(cache.get_or_compute("whole", nested).unwrap(), 3);
    let own = cache.clone();
    let circle = move || own.get_or_compute("own", || Ok::<u64, OriginError>(1));
    let error = cache.get_or_compute("own", circle).unwrap_err();
    assert!(error.to_string().contains("itself"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn a_runtime_that_is_shut_down_ends_the_wait_of_a_thread() {
    let runtime = runtime();
    let cache: Stampede<u64> = settings().build().unwrap();
    let blocking = cache.blocking_on(runtime.handle());
    let (open, gate) = mpsc::channel::<()>();
    let waiting = std::thread::spawn(move || {
        let compute = move || {
            let _ = gate.recv();
            Ok::<u64, OriginError>(1)
        };
        blocking.get_or_compute("k", compute)
    });
    while cache.stats().flights == 0 {
        std::thread::yield_now();
    }
    runtime.shutdown_background();
    // An error or a panic, and no wait for ever.
    let begun = Instant::now();
    drop(waiting.join());
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    drop(open);
}
