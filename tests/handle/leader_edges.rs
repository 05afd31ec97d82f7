//! Leaders at the edges: tags of what they replace, modes that change under them, lent
//! places, panics that are not theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::kit::alone::alone;
use crate::kit::origin::*;
use crate::kit::spawn;
use tokio::time::Instant;
use tower_stampede::{Computed, Error, FailureAction, Mode, Stampede};

type Answered = Result<u64, Error>;

fn ask(
    cache: &Stampede<u64>,
    key: &'static str,
    origin: &Origin,
) -> tokio::task::JoinHandle<Answered> {
    let (cache, compute) = (cache.clone(), origin.compute());
    spawn(async move { cache.get_or_compute(key, compute).await })
}

/// A refresh keeps the tags of the entry it replaces: of the one that is there when it
/// computes, not of what was there when its caller asked.
#[tokio::test(start_paused = true)]
async fn a_refresh_that_waited_for_an_older_computation_keeps_the_tags_that_one_stored() {
    let cache = settings::<u64>().build().unwrap();
    let first = spawn({
        let cache = cache.clone();
        async move {
            cache
                .get_or_compute_with("k", || async {
                    pass(SECOND).await;
                    Ok::<_, OriginError>(Computed::new(1).tag("t"))
                })
                .await
        }
    });
    all_have_run().await;
    // Asks while the first runs: there is no entry yet.
    let fresh = cache.refresh("k", || async { Ok::<_, OriginError>(2) });
    assert_eq!(within(MINUTE, fresh).await.unwrap(), 2);
    first.await.unwrap().unwrap();
    assert_eq!(cache.get("k").await, Some(2));
    cache.invalidate_tag("t").await;
    assert_eq!(cache.get("k").await, None, "alive although its tag was invalidated");
}

/// The same with an entry whose tags have changed meanwhile.
#[tokio::test(start_paused = true)]
async fn a_refresh_does_not_take_the_tags_of_an_entry_that_was_replaced_since_it_was_asked_for() {
    let cache = settings::<u64>().build().unwrap();
    cache.put_with("k", Computed::new(1).tag("old")).await;
    let first = spawn({
        let cache = cache.clone();
        async move {
            let slow = || async {
                pass(SECOND).await;
                Ok::<_, OriginError>(2)
            };
            cache.refresh("k", slow).await
        }
    });
    all_have_run().await;
    let second = spawn({
        let cache = cache.clone();
        async move { cache.refresh("k", || async { Ok::<_, OriginError>(4) }).await }
    });
    all_have_run().await;
    // Written by name with another tag, while the second waits for the first.
    cache.put_with("k", Computed::new(3).tag("new")).await;
    first.await.unwrap().unwrap();
    assert_eq!(second.await.unwrap().unwrap(), 4);
    cache.invalidate_tag("new").await;
    assert_eq!(cache.get("k").await, None, "alive although its tag was invalidated");
}

/// A leader that computes waits no more: it counts for no bound on waiters.
#[tokio::test(start_paused = true)]
async fn an_elected_leader_that_computes_is_not_counted_as_waiting() {
    let cache = settings::<u64>().max_waiters(1).max_waiters_in_all(1).build().unwrap();
    let origin = Origin::taking(10 * SECOND);
    let inline = |origin: &Origin| {
        let (cache, compute) = (cache.clone(), origin.compute());
        spawn(async move { cache.get_or_compute_scoped("k", compute).await })
    };
    let first = inline(&origin);
    all_have_run().await;
    let second = inline(&origin);
    all_have_run().await;
    first.abort();
    all_have_run().await;
    assert_eq!(origin.running(), 1, "the second leads");
    let third = inline(&origin);
    let third = within(MINUTE, third).await.unwrap();
    assert_eq!(
        third.map_err(|error| error.kind()),
        Ok(2),
        "no caller waits: there is room for one"
    );
    assert_eq!(second.await.unwrap().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_cache_in_which_only_an_elected_leader_computes_has_no_waiters() {
    let cache = settings::<u64>().build().unwrap();
    let origin = Origin::taking(10 * SECOND);
    let inline = || {
        let (cache, compute) = (cache.clone(), origin.compute());
        spawn(async move { cache.get_or_compute_scoped("k", compute).await })
    };
    let first = inline();
    all_have_run().await;
    let _second = inline();
    all_have_run().await;
    first.abort();
    all_have_run().await;
    assert_eq!(origin.running(), 1, "the second leads");
    assert_eq!(cache.stats().waiting, 0, "no caller waits");
}

/// A caller that computes after its wait holds a place, and lends it to what it asks for.
#[tokio::test(start_paused = true)]
async fn a_computation_after_the_wait_lends_its_place() {
    let cache = settings::<u64>()
        .max_computations(2)
        .max_refreshes(1)
        .wait_timeout(SECOND)
        .compute_timeout(20 * SECOND)
        .compute_after_wait()
        .build()
        .unwrap();
    let origin = Origin::new();
    origin.usually(Answer::Hang);
    let _hangs = ask(&cache, "outer", &origin);
    all_have_run().await;
    let inner = cache.clone();
    let waited = cache.get_or_compute("outer", move || async move {
        inner.get_or_compute("inner", || async { Ok::<_, OriginError>(7) }).await
    });
    let waited = within(MINUTE, waited).await;
    assert_eq!(waited.map_err(|error| error.kind()), Ok(7));
}

/// A cache that was switched on after a computation had begun that hangs; later ones do not.
async fn hung_while_observing() -> (Stampede<u64>, Origin, tokio::task::JoinHandle<Answered>) {
    let cache = settings().compute_timeout(SECOND).wait_timeout(5 * SECOND).build().unwrap();
    cache.set_mode(Mode::Observe);
    let origin = Origin::new();
    origin.next([Answer::Hang]);
    let hung = ask(&cache, "k", &origin);
    all_have_run().await;
    cache.set_mode(Mode::On);
    (cache, origin, hung)
}

/// `compute_timeout` bounds how long a key can be stuck, also where its leader began before
/// the cache was switched on.
#[tokio::test(start_paused = true)]
async fn a_computation_that_began_while_observing_does_not_block_its_key_for_ever() {
    let (cache, origin, hung) = hung_while_observing().await;
    let mut last = Err(());
    // For minutes callers come, one after the other.
    for _ in 0..20 {
        last = within(MINUTE, ask(&cache, "k", &origin)).await.unwrap().map_err(drop);
    }
    assert!(last.is_ok(), "refused for 100 s by a computation of a client that gave up on nothing");
    hung.abort();
}

/// Nor where its own caller has long gone: its waiters keep it alive.
#[tokio::test(start_paused = true)]
async fn a_computation_that_began_while_observing_is_not_kept_alive_by_those_it_blocks() {
    let (cache, origin, hung) = hung_while_observing().await;
    let mut callers = Vec::new();
    for n in 0..100 {
        callers.push(ask(&cache, "k", &origin));
        pass(SECOND).await;
        if n == 2 {
            hung.abort();
        }
    }
    let last = within(MINUTE, callers.pop().unwrap()).await.unwrap();
    assert!(last.is_ok(), "{last:?} after 100 s; calls: {}", origin.calls());
}

/// A panic outside the computation is not counted against the key.
#[test]
fn a_runtime_that_a_panic_drops_is_no_panic_of_its_computations() {
    let cache = settings::<u64>().build().unwrap();
    for _ in 0..2 {
        let cache = cache.clone();
        let run = std::panic::AssertUnwindSafe(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let origin = Origin::taking(MINUTE);
                let _caller = ask(&cache, "k", &origin);
                all_have_run().await;
                assert_eq!(origin.running(), 1);
                panic!("of something else");
            })
        });
        assert!(std::panic::catch_unwind(run).is_err());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let origin = Origin::new();
        let answer = within(MINUTE, ask(&cache, "k", &origin)).await.unwrap();
        assert_eq!(answer.map_err(|error| error.to_string()), Ok(1));
    });
}

/// Each computation asks for the next key, finds it stale, and leaves the refresh behind.
/// The memory of those that ended long ago is free, and the end of the last overflows no
/// stack.
#[test]
fn a_long_chain_of_refreshes_begun_by_refreshes_ends_well() {
    alone(&["chain"], |_| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let cache =
                settings::<u64>().stale_for(60 * MINUTE).max_bytes(1 << 30).build().unwrap();
            let last = Arc::new(AtomicUsize::new(0));
            step(cache.clone(), 0, last.clone()).await;
            let until = std::time::Instant::now() + Duration::from_secs(500);
            while last.load(Ordering::SeqCst) < CHAIN {
                assert!(std::time::Instant::now() < until, "{last:?}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert_eq!(cache.stats().flights, 0);
        });
    });
}

const CHAIN: usize = 100_000;

fn step(
    cache: Stampede<u64>,
    n: usize,
    last: Arc<AtomicUsize>,
) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        last.fetch_max(n, Ordering::SeqCst);
        if n == CHAIN {
            return;
        }
        // Stale from the start.
        let key = n as u64 % 1000;
        cache.mark_stale(key).await;
        if cache.get(key).await.is_none() {
            cache.put(key, 0).await;
            cache.mark_stale(key).await;
        }
        let inner = cache.clone();
        let work = move || async move {
            step(inner, n + 1, last).await;
            Ok::<_, OriginError>(n as u64)
        };
        cache.get_or_compute(key, work).await.unwrap();
    })
}

/// What a refresh has returned is not followed by the older value.
#[tokio::test(start_paused = true)]
async fn after_a_refresh_that_is_too_heavy_to_store_the_older_value_is_not_served() {
    let weigher = |value: &u64| if *value == 1 { 8 } else { usize::MAX };
    let cache = settings::<u64>().weigher(weigher).build().unwrap();
    cache.put("k", 1).await;
    let fresh = cache.refresh("k", || async { Ok::<_, OriginError>(2) }).await.unwrap();
    assert_eq!(fresh, 2);
    assert_ne!(cache.get("k").await, Some(1), "a put of such a value ends the older one");
}

/// A dead origin is called rarely, also after a caller has tried it by name.
#[tokio::test(start_paused = true)]
async fn a_refresh_that_fails_does_not_shorten_a_grown_hold() {
    let cache = settings::<u64>().ttl(SECOND).stale_for(600 * MINUTE).build().unwrap();
    let origin = Origin::new();
    ask(&cache, "k", &origin).await.unwrap().unwrap();
    origin.usually(Answer::Fail);
    // An outage of ten minutes: the hold has grown to a minute.
    for _ in 0..600 {
        pass(SECOND).await;
        ask(&cache, "k", &origin).await.unwrap().unwrap();
    }
    let mut calls = origin.calls();
    // Wait for the next call: the hold begins anew.
    while origin.calls() == calls {
        pass(SECOND).await;
        ask(&cache, "k", &origin).await.unwrap().unwrap();
        all_have_run().await;
    }
    calls = origin.calls();
    cache.refresh("k", origin.compute()).await.unwrap_err();
    for _ in 0..40 {
        pass(SECOND).await;
        ask(&cache, "k", &origin).await.unwrap().unwrap();
    }
    assert_eq!(origin.calls() - calls, 1, "of the refresh by name alone");
}

/// "A second panic in a row": a computation that ended otherwise lies between these.
#[tokio::test(start_paused = true)]
async fn a_failure_between_two_panics_makes_them_two_first_ones() {
    let cache = settings::<u64>().on_failure(|_| FailureAction::Hold).build().unwrap();
    let origin = Origin::taking(SECOND);
    origin.next([Answer::Panic, Answer::Fail, Answer::Panic]);
    ask(&cache, "k", &origin).await.unwrap_err();
    ask(&cache, "k", &origin).await.unwrap().unwrap_err();
    pass(5 * SECOND).await;
    let leader = ask(&cache, "k", &origin);
    all_have_run().await;
    let waiter = ask(&cache, "k", &origin);
    leader.await.unwrap_err();
    let waiter = within(MINUTE, waiter).await.unwrap();
    assert_eq!(waiter.map_err(|error| error.kind()), Ok(4), "is elected after a first panic");
}

/// Switched off, the cache delays and refuses no caller, also none that queues already.
#[tokio::test(start_paused = true)]
async fn who_queues_for_a_place_goes_on_when_the_cache_is_switched_off() {
    for mode in [Mode::Off, Mode::Observe] {
        let cache = settings::<u64>().max_computations(1).max_refreshes(1).build().unwrap();
        let origin = Origin::new();
        origin.next([Answer::Hang]);
        let _hangs = ask(&cache, "a", &origin);
        all_have_run().await;
        let queued = ask(&cache, "b", &origin);
        all_have_run().await;
        cache.set_mode(mode);
        let at = Instant::now();
        let queued = within(10 * MINUTE, queued).await.unwrap();
        assert!(
            queued.is_ok() && at.elapsed() < SECOND,
            "{mode:?}: {queued:?} after {:?}",
            at.elapsed()
        );
    }
}

/// "Has no effect after shutdown."
#[test]
fn a_mode_that_is_set_while_the_cache_shuts_down_does_not_outlive_the_shutdown() {
    let until = std::time::Instant::now() + Duration::from_secs(20);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut rounds = 0;
    while std::time::Instant::now() < until && rounds < 20_000 {
        rounds += 1;
        let cache = settings::<u64>().build().unwrap();
        let go = Arc::new(AtomicBool::new(false));
        let switch = std::thread::spawn({
            let (cache, go) = (cache.clone(), go.clone());
            move || {
                go.store(true, Ordering::SeqCst);
                for _ in 0..200 {
                    cache.set_mode(Mode::On);
                }
            }
        });
        while !go.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        runtime.block_on(cache.shutdown(Duration::ZERO));
        switch.join().unwrap();
        assert_eq!(cache.mode(), Mode::Off, "after the shutdown, in round {rounds}");
    }
}

#[derive(Debug)]
struct Rude;

impl std::fmt::Display for Rude {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("rude")
    }
}

impl std::error::Error for Rude {}

impl Drop for Rude {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("in the drop of an error");
        }
    }
}

/// A panic in the `Drop` of what a cache lets go of concerns no later caller.
#[tokio::test(start_paused = true)]
async fn the_drop_of_an_old_error_that_panics_does_not_concern_a_later_caller() {
    let cache = settings::<u64>().build().unwrap();
    let failing = spawn({
        let cache = cache.clone();
        async move {
            let failed = cache.get_or_compute("k", || async { Err::<u64, _>(Rude) }).await;
            drop(failed);
        }
    });
    let _ = failing.await;
    pass(5 * SECOND).await;
    let origin = Origin::new();
    let later = ask(&cache, "k", &origin).await;
    assert!(later.is_ok(), "{:?}", later.map_err(|error| error.is_panic()));
}

#[tokio::test(start_paused = true)]
async fn the_longest_times_and_the_largest_factors_overflow_nothing() {
    let cache = Stampede::<u64>::builder("far")
        .ttl(Duration::MAX)
        .stale_for(Duration::MAX)
        .stale_if_error(Duration::MAX)
        .early_refresh(f64::MAX)
        .early_refresh_share(1.0)
        .jitter(0.999_999)
        .hold(Duration::MAX)
        .max_hold(Duration::MAX)
        .uncacheable_for(Duration::MAX)
        .compute_timeout(Duration::MAX)
        .wait_timeout(Duration::MAX)
        .lease(Duration::MAX)
        .build()
        .unwrap();
    let origin = Origin::taking(SECOND);
    for key in ["a", "b", "c"] {
        ask(&cache, key, &origin).await.unwrap().unwrap();
        ask(&cache, key, &origin).await.unwrap().unwrap();
        cache.mark_stale(key).await;
        ask(&cache, key, &origin).await.unwrap().unwrap();
    }
    origin.usually(Answer::Fail);
    for key in ["x", "y", "a"] {
        let _ = ask(&cache, key, &origin).await.unwrap();
        let _ = ask(&cache, key, &origin).await.unwrap();
        cache.mark_stale(key).await;
        let _ = ask(&cache, key, &origin).await.unwrap();
    }
    cache.invalidate_tag("t").await;
    pass(MINUTE).await;
    cache
        .put_with("z", Computed::new(1).ttl(Duration::from_nanos(1)).stale_for(Duration::MAX))
        .await;
    let _ = cache.get("z").await;
    assert_quiet(&cache);
}
