//! Defects found by a hostile reading: each test fails until its defect is gone.

#[path = "kit/mod.rs"]
mod kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kit::alone::alone;
use kit::origin::*;
use tokio::time::Instant;
use tower_stampede::{Computed, Error, FailureAction, Mode, Stampede};

type Answered = Result<u64, Error>;

fn ask(
    cache: &Stampede<u64>,
    key: &'static str,
    origin: &Origin,
) -> tokio::task::JoinHandle<Answered> {
    let (cache, compute) = (cache.clone(), origin.compute());
    tokio::spawn(async move { cache.get_or_compute(key, compute).await })
}

// 1 ---------------------------------------------------------------------------------------

/// A refresh keeps the tags of the entry it replaces: of the one that is there when it
/// computes, not of what was there when its caller asked.
#[tokio::test(start_paused = true)]
async fn a_refresh_that_waited_for_an_older_computation_keeps_the_tags_that_one_stored() {
    let cache = settings::<u64>().build().unwrap();
    let first = tokio::spawn({
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
    let fresh = cache.refresh_with("k", || async { Ok::<_, OriginError>(2) });
    assert_eq!(within(MINUTE, fresh).await.unwrap(), 2);
    first.await.unwrap().unwrap();
    assert_eq!(cache.get("k").await, Some(2));
    cache.invalidate_tag("t").await;
    assert_eq!(cache.get("k").await, None, "alive although its tag was invalidated");
}

// 2 ---------------------------------------------------------------------------------------

/// The same with an entry whose tags have changed meanwhile.
#[tokio::test(start_paused = true)]
async fn a_refresh_does_not_take_the_tags_of_an_entry_that_was_replaced_since_it_was_asked_for() {
    let cache = settings::<u64>().build().unwrap();
    cache.put_with("k", Computed::new(1).tag("old")).await;
    let first = tokio::spawn({
        let cache = cache.clone();
        async move {
            let slow = || async {
                pass(SECOND).await;
                Ok::<_, OriginError>(2)
            };
            cache.refresh_with("k", slow).await
        }
    });
    all_have_run().await;
    let second = tokio::spawn({
        let cache = cache.clone();
        async move { cache.refresh_with("k", || async { Ok::<_, OriginError>(4) }).await }
    });
    all_have_run().await;
    // Written by name with another tag, while the second waits for the first.
    cache.put_with("k", Computed::new(3).tag("new")).await;
    first.await.unwrap().unwrap();
    assert_eq!(second.await.unwrap().unwrap(), 4);
    cache.invalidate_tag("new").await;
    assert_eq!(cache.get("k").await, None, "alive although its tag was invalidated");
}

// 3 ---------------------------------------------------------------------------------------

/// A leader that computes waits no more: it counts for no bound on waiters.
#[tokio::test(start_paused = true)]
async fn an_elected_leader_that_computes_is_not_counted_as_waiting() {
    let cache = settings::<u64>().max_waiters(1).max_waiters_in_all(1).build().unwrap();
    let origin = Origin::taking(10 * SECOND);
    let inline = |origin: &Origin| {
        let (cache, compute) = (cache.clone(), origin.compute());
        tokio::spawn(async move { cache.get_or_compute_scoped("k", compute).await })
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
    assert_eq!(third.map_err(|error| error.kind()), Ok(2), "nobody waits: there is room for one");
    assert_eq!(second.await.unwrap().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_cache_in_which_only_an_elected_leader_computes_has_no_waiters() {
    let cache = settings::<u64>().build().unwrap();
    let origin = Origin::taking(10 * SECOND);
    let inline = || {
        let (cache, compute) = (cache.clone(), origin.compute());
        tokio::spawn(async move { cache.get_or_compute_scoped("k", compute).await })
    };
    let first = inline();
    all_have_run().await;
    let _second = inline();
    all_have_run().await;
    first.abort();
    all_have_run().await;
    assert_eq!(origin.running(), 1, "the second leads");
    assert_eq!(cache.stats().waiting, 0, "nobody waits");
}

// 4 ---------------------------------------------------------------------------------------

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

// 5 ---------------------------------------------------------------------------------------

/// `compute_timeout` bounds how long a key can be stuck, also where its leader began before
/// the cache was switched on.
#[tokio::test(start_paused = true)]
async fn a_computation_that_began_while_observing_does_not_block_its_key_for_ever() {
    let cache = settings::<u64>().compute_timeout(SECOND).wait_timeout(5 * SECOND).build().unwrap();
    cache.set_mode(Mode::Observe);
    let origin = Origin::new();
    origin.next([Answer::Hang]);
    let hung = ask(&cache, "k", &origin);
    all_have_run().await;
    cache.set_mode(Mode::On);
    let mut last = Err(());
    // For minutes callers come, one after the other.
    for _ in 0..20 {
        last = within(MINUTE, ask(&cache, "k", &origin)).await.unwrap().map_err(drop);
    }
    assert!(last.is_ok(), "refused for 100 s by a computation of a client that gave up on nothing");
    hung.abort();
}

/// Nor where its own caller has long gone: those who wait for it keep it alive.
#[tokio::test(start_paused = true)]
async fn a_computation_that_began_while_observing_is_not_kept_alive_by_those_it_blocks() {
    let cache = settings::<u64>().compute_timeout(SECOND).wait_timeout(5 * SECOND).build().unwrap();
    cache.set_mode(Mode::Observe);
    let origin = Origin::new();
    origin.next([Answer::Hang]);
    let hung = ask(&cache, "k", &origin);
    all_have_run().await;
    cache.set_mode(Mode::On);
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

// 6 ---------------------------------------------------------------------------------------

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

// 7 ---------------------------------------------------------------------------------------

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
            let until = std::time::Instant::now() + Duration::from_secs(15);
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

// 8 ---------------------------------------------------------------------------------------

/// What a refresh has returned is not followed by the older value.
#[tokio::test(start_paused = true)]
async fn after_a_refresh_that_is_too_heavy_to_store_the_older_value_is_not_served() {
    let weigher = |value: &u64| if *value == 1 { 8 } else { usize::MAX };
    let cache = settings::<u64>().weigher(weigher).build().unwrap();
    cache.put("k", 1).await;
    let fresh = cache.refresh_with("k", || async { Ok::<_, OriginError>(2) }).await.unwrap();
    assert_eq!(fresh, 2);
    assert_ne!(cache.get("k").await, Some(1), "a put of such a value ends the older one");
}

// 9 ---------------------------------------------------------------------------------------

/// A dead origin is called rarely, also after somebody has tried it by name.
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
    cache.refresh_with("k", origin.compute()).await.unwrap_err();
    for _ in 0..40 {
        pass(SECOND).await;
        ask(&cache, "k", &origin).await.unwrap().unwrap();
    }
    assert_eq!(origin.calls() - calls, 1, "of the refresh by name alone");
}

// 10 --------------------------------------------------------------------------------------

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

// 11 --------------------------------------------------------------------------------------

/// Switched off, the cache delays and refuses nobody, also not who queues already.
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

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_hung_leader_goes_on_when_the_cache_is_switched_off() {
    let cache = settings::<u64>().build().unwrap();
    let origin = Origin::new();
    origin.next([Answer::Hang]);
    let _hangs = ask(&cache, "a", &origin);
    all_have_run().await;
    let waits = ask(&cache, "a", &origin);
    all_have_run().await;
    cache.set_mode(Mode::Off);
    let at = Instant::now();
    let waits = within(10 * MINUTE, waits).await.unwrap();
    assert!(waits.is_ok() && at.elapsed() < SECOND, "{waits:?} after {:?}", at.elapsed());
}

// 12 --------------------------------------------------------------------------------------

/// The place of an outer computation is lent to what it asks for: also where it has given
/// up on what it asked for first, and that one waits for the outer computation itself.
#[tokio::test(start_paused = true)]
async fn a_place_that_is_lent_to_one_that_waits_for_its_lender_is_of_use_to_both() {
    let cache = settings::<u64>().max_computations(1).max_refreshes(1).build().unwrap();
    let outer = {
        let cache = cache.clone();
        move || async move {
            let back = {
                let cache = cache.clone();
                move || async move {
                    cache.get_or_compute("outer", || async { Ok::<_, OriginError>(0) }).await
                }
            };
            let given_up = tokio::time::timeout(SECOND, cache.get_or_compute("back", back)).await;
            assert!(given_up.is_err(), "it waits for us");
            cache.get_or_compute("inner", || async { Ok::<_, OriginError>(5) }).await
        }
    };
    let answer = within(10 * MINUTE, cache.get_or_compute("outer", outer)).await;
    assert_eq!(answer.map_err(|error| error.kind()), Ok(5));
}

// 13 --------------------------------------------------------------------------------------

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

// 14 --------------------------------------------------------------------------------------

/// How long one computation needs that asks for so many other keys.
async fn asks_for(n: u64) -> Duration {
    let cache = settings::<u64>()
        .max_computations(1)
        .max_refreshes(1)
        .compute_timeout(10 * MINUTE)
        .build()
        .unwrap();
    let inner = cache.clone();
    let at = std::time::Instant::now();
    let work = move || async move {
        let asked = (1..=n).map(|key| {
            let cache = inner.clone();
            async move { cache.get_or_compute(key, || async { Ok::<_, OriginError>(1) }).await }
        });
        let asked = futures_util::future::join_all(asked).await;
        Ok::<_, OriginError>(asked.into_iter().map(|one| one.unwrap_or(0)).sum::<u64>())
    };
    let sum = cache.get_or_compute(0, work).await;
    assert_eq!(sum.map_err(|error| error.kind()), Ok(n));
    at.elapsed()
}

#[tokio::test]
async fn a_computation_that_asks_for_ten_times_as_many_keys_needs_about_ten_times_as_long() {
    asks_for(500).await;
    let few = asks_for(1_000).await;
    let many = asks_for(10_000).await;
    assert!(many < few * 30, "{few:?}, then {many:?}");
}

// 15 --------------------------------------------------------------------------------------

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

/// A panic in the `Drop` of what a cache lets go of concerns nobody who comes later.
#[tokio::test(start_paused = true)]
async fn the_drop_of_an_old_error_that_panics_does_not_concern_a_later_caller() {
    let cache = settings::<u64>().build().unwrap();
    let failing = tokio::spawn({
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

// 16 --------------------------------------------------------------------------------------

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

// 17 --------------------------------------------------------------------------------------

/// Nested, aborted, failing, panicking, refreshed, inline and detached callers under switches
/// of the mode: after all of that there are exactly as many places as before.
#[test]
fn after_a_storm_every_place_is_there_and_none_twice() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        if !text.contains("of the storm") {
            eprintln!("{text}");
        }
    }));
    runtime.block_on(async {
        let until = std::time::Instant::now() + Duration::from_secs(8);
        let mut round = 0_u64;
        while std::time::Instant::now() < until {
            let storms = (0..8).map(|n| tokio::spawn(storm(round + n)));
            for storm in storms.collect::<Vec<_>>() {
                storm.await.unwrap();
            }
            round += 8;
        }
        println!("{round} rounds");
    });
}

async fn storm(seed: u64) {
    let places = 1 + seed as usize % 4;
    let settings = settings::<u64>().max_computations(places).max_refreshes(1);
    let settings = if seed % 5 == 0 { settings.compute_after_wait() } else { settings };
    let settings =
        if seed % 7 < 3 { settings.max_waiters(4).max_waiters_in_all(6) } else { settings };
    let wait = if seed % 2 == 0 { 300 } else { 15 };
    let cache = settings
        .stale_for(MINUTE)
        .ttl(Duration::from_millis(2))
        .hold(Duration::from_millis(1))
        .max_hold(Duration::from_millis(2))
        .wait_timeout(Duration::from_millis(wait))
        .compute_timeout(Duration::from_millis(60))
        .build()
        .unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut callers = Vec::new();
    for _ in 0..60 {
        let cache = cache.clone();
        let seed = random.u64(..);
        callers.push(tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed);
            let patience = Duration::from_micros(random.u64(1..20_000));
            let _ = tokio::time::timeout(patience, one(cache, seed, 0)).await;
        }));
        match random.u8(..30) {
            0 => callers[random.usize(..callers.len())].abort(),
            1..4 => tokio::task::yield_now().await,
            _ => {}
        }
    }
    let modes = seed % 3 == 0;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_micros(random.u64(1..1000))).await;
        match random.u8(..4) {
            0 => drop(cache.invalidate(random.u64(..8)).await),
            1 => drop(cache.mark_stale(random.u64(..8)).await),
            2 if modes => cache.set_mode(Mode::Observe),
            3 if modes => cache.set_mode(Mode::On),
            _ => drop(cache.invalidate_all().await),
        }
    }
    cache.set_mode(Mode::On);
    for caller in callers {
        let _ = tokio::time::timeout(Duration::from_secs(5), caller).await.expect("nobody hangs");
    }
    // Detached computations end.
    let quiet = std::time::Instant::now() + Duration::from_secs(5);
    while (cache.stats().flights, cache.stats().waiting) != (0, 0) {
        assert!(std::time::Instant::now() < quiet, "seed {seed}: {:?}", cache.stats());
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    // Also those that were invalidated.
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(cache.stats().waiting, 0, "seed {seed}");
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let fresh: Vec<_> = (100..100 + places as u64)
        .map(|key| {
            let (cache, running, most) = (cache.clone(), running.clone(), most.clone());
            tokio::spawn(async move {
                cache
                    .get_or_compute(key, move || async move {
                        most.fetch_max(
                            running.fetch_add(1, Ordering::SeqCst) + 1,
                            Ordering::SeqCst,
                        );
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        running.fetch_sub(1, Ordering::SeqCst);
                        Ok::<_, OriginError>(1)
                    })
                    .await
            })
        })
        .collect();
    for one in fresh {
        let one = tokio::time::timeout(Duration::from_secs(5), one).await.expect("nobody hangs");
        let one = one.unwrap();
        assert!(one.is_ok(), "seed {seed}: {one:?}");
    }
    assert_eq!(most.load(Ordering::SeqCst), places, "seed {seed}");
}

type One = std::pin::Pin<Box<dyn Future<Output = Result<u64, Error>> + Send>>;

fn one(cache: Stampede<u64>, seed: u64, depth: u32) -> One {
    Box::pin(async move {
        let mut random = fastrand::Rng::with_seed(seed);
        let (key, how, work_seed) = (random.u64(..8), random.u8(..6), random.u64(..));
        let inner = cache.clone();
        let work = move || async move {
            let mut random = fastrand::Rng::with_seed(work_seed);
            if depth < 3 {
                let nested =
                    |random: &mut fastrand::Rng| one(inner.clone(), random.u64(..), depth + 1);
                match random.u8(..6) {
                    0 => drop(nested(&mut random).await),
                    1 => {
                        let (a, b) = (nested(&mut random), nested(&mut random));
                        drop(tokio::join!(a, b));
                    }
                    2 => {
                        let (a, b) = (nested(&mut random), nested(&mut random));
                        tokio::select! { _ = a => (), _ = b => () }
                        drop(nested(&mut random).await);
                    }
                    3 => {
                        let patience = Duration::from_micros(random.u64(1..2000));
                        drop(tokio::time::timeout(patience, nested(&mut random)).await);
                    }
                    _ => {}
                }
            }
            match random.u8(..12) {
                0 => Err(OriginError(1)),
                1 => panic!("of the storm"),
                2 => {
                    tokio::time::sleep(Duration::from_millis(random.u64(1..80))).await;
                    Ok(1)
                }
                3 => {
                    tokio::task::yield_now().await;
                    Ok(2)
                }
                _ => Ok(3),
            }
        };
        match how {
            0..3 => cache.get_or_compute(key, work).await,
            3 => cache.refresh_with(key, work).await,
            _ => cache.get_or_compute_scoped(key, work).await,
        }
    })
}

// 18 --------------------------------------------------------------------------------------

/// A computation that is a future of its own: what it owns lives until it is dropped.
struct Owning {
    alive: Arc<AtomicUsize>,
    begun: bool,
}

impl Future for Owning {
    type Output = Result<u64, OriginError>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        if std::mem::replace(&mut self.begun, true) {
            std::thread::sleep(Duration::from_millis(100));
            panic!("of a computation");
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    }
}

impl Drop for Owning {
    fn drop(&mut self) {
        // A connection that is closed, a transaction that is rolled back.
        std::thread::sleep(Duration::from_millis(100));
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One computation per key, one place per computation: the next begins when the one that
/// panicked is dropped, not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn the_next_computation_begins_when_the_one_that_panicked_is_dropped() {
    let cache = settings::<u64>().build().unwrap();
    let alive = Arc::new(AtomicUsize::new(0));
    let first = tokio::spawn({
        let (cache, alive) = (cache.clone(), alive.clone());
        let work = move || {
            alive.fetch_add(1, Ordering::SeqCst);
            Owning { alive, begun: false }
        };
        async move { cache.get_or_compute("k", work).await }
    });
    tokio::time::sleep(30 * MS).await;
    let second = tokio::spawn({
        let (cache, alive) = (cache.clone(), alive.clone());
        let work = move || async move { Ok::<_, OriginError>(alive.load(Ordering::SeqCst) as u64) };
        async move { cache.get_or_compute("k", work).await }
    });
    assert!(first.await.is_err());
    assert_eq!(second.await.unwrap().unwrap(), 0, "computations alive when the next begins");
}

// 19 --------------------------------------------------------------------------------------

/// A refresh in the background does not lend the place of a computation that goes on
/// working: nobody waits for the refresh.
#[tokio::test(start_paused = true)]
async fn a_refresh_in_the_background_lends_no_place_of_one_that_does_not_wait_for_it() {
    let bounded = settings::<u64>().max_computations(1).max_refreshes(1).build().unwrap();
    let other = settings::<u64>().stale_for(MINUTE).build().unwrap();
    other.put("k", 0).await;
    other.mark_stale("k").await;
    let origin = Origin::taking(5 * SECOND);
    let working = {
        let (bounded, origin) = (bounded.clone(), origin.clone());
        move || async move {
            // Stale: answered at once, and refreshed behind our back.
            let (inner, nested) = (bounded.clone(), origin.compute());
            let refresh = move || async move { inner.get_or_compute("nested", nested).await };
            other.get_or_compute("k", refresh).await.unwrap();
            origin.load().await
        }
    };
    bounded.get_or_compute("outer", working).await.unwrap();
    within(MINUTE, bounded.get_or_compute("last", origin.compute())).await.unwrap();
    assert_eq!(origin.most_at_once(), 1, "max_computations");
}

// 20 --------------------------------------------------------------------------------------

/// Versions, invalidations by tag and by key, a log of a few records, evictions, `put`,
/// `mark_stale`: nobody gets a version older than the last invalidation before it asked.
#[test]
fn nobody_gets_what_was_invalidated_before_it_asked() {
    use std::sync::atomic::AtomicU64;
    const KEYS: u64 = 6;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        for (n, bound) in [2_usize, 8, 64].into_iter().enumerate() {
            let settings = settings::<u64>()
                .max_logged_tags(bound)
                .ttl(Duration::from_millis(3))
                .stale_for(MINUTE)
                .max_bytes(400);
            let settings = if n == 0 { settings.max_entries(4) } else { settings };
            let cache = settings.build().unwrap();
            let data: Arc<Vec<AtomicU64>> =
                Arc::new((0..KEYS).map(|_| AtomicU64::new(1)).collect());
            let floor: Arc<Vec<AtomicU64>> =
                Arc::new((0..KEYS).map(|_| AtomicU64::new(0)).collect());
            let until = std::time::Instant::now() + Duration::from_secs(2);
            let mut tasks = Vec::new();
            for t in 0..8_u64 {
                let (cache, data, floor) = (cache.clone(), data.clone(), floor.clone());
                tasks.push(tokio::spawn(async move {
                    let mut random = fastrand::Rng::with_seed(t + bound as u64);
                    while std::time::Instant::now() < until {
                        let key = random.u64(..KEYS);
                        let at = key as usize;
                        if t < 2 {
                            // A writer.
                            let version = data[at].fetch_add(1, Ordering::SeqCst) + 1;
                            match random.u8(..3) {
                                0 => drop(cache.invalidate(key).await),
                                1 => drop(cache.invalidate_tag(key).await),
                                _ => {
                                    for other in 0..random.u64(..20) {
                                        cache.invalidate_tag(1000 + other).await;
                                    }
                                    cache.invalidate_tag(key).await;
                                }
                            }
                            floor[at].fetch_max(version, Ordering::SeqCst);
                        } else {
                            let least = floor[at].load(Ordering::SeqCst);
                            let source = data.clone();
                            let pause = random.bool();
                            let value = match random.u8(..8) {
                                0 => cache.get(key).await,
                                1 => {
                                    cache.mark_stale(key).await;
                                    cache.get(key).await
                                }
                                2 => {
                                    let work = move || async move {
                                        Ok::<_, OriginError>(source[at].load(Ordering::SeqCst))
                                    };
                                    cache.refresh_with(1000 + key, work).await.ok()
                                }
                                _ => {
                                    let work = move || async move {
                                        let value = source[at].load(Ordering::SeqCst);
                                        if pause {
                                            tokio::task::yield_now().await;
                                        }
                                        Ok::<_, OriginError>(Computed::new(value).tag(key))
                                    };
                                    cache.get_or_compute_with(key, work).await.ok()
                                }
                            };
                            if let Some(value) = value {
                                assert!(value >= least, "key {key}: {value} < {least}, {bound}");
                            }
                            if random.u8(..50) == 0 {
                                tokio::time::sleep(MS).await;
                            }
                        }
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            let stats = cache.stats();
            assert_eq!((stats.flights, stats.waiting), (0, 0), "{stats:?}");
        }
    });
}

// 21 --------------------------------------------------------------------------------------

fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A runtime that is entered for one call at a time, as by code that is not async, polls no
/// refresh that it leaves behind. The silent refresh gives back what it holds.
#[test]
fn a_refresh_that_is_never_polled_gives_its_share_of_max_refreshes_back() {
    let cache = settings::<u64>()
        .max_refreshes(1)
        .compute_timeout(50 * MS)
        .wait_timeout(50 * MS)
        .stale_for(60 * MINUTE)
        .build()
        .unwrap();
    let (idle, busy) = (current_thread(), current_thread());
    let origin = Origin::new();
    idle.block_on(async {
        cache.put("a", 100).await;
        cache.put("b", 100).await;
        cache.mark_stale("a").await;
        cache.mark_stale("b").await;
        // Polled once: its refresh is spawned, and never runs.
        assert_eq!(cache.get_or_compute("a", origin.compute()).await.unwrap(), 100);
    });
    let cache = &cache;
    busy.block_on(async {
        // More than any time-out, and the grace of a second.
        pass(3 * SECOND).await;
        for _ in 0..20 {
            cache.get_or_compute("b", origin.compute()).await.unwrap();
            pass(10 * MS).await;
        }
        let value = cache.get_or_compute("b", origin.compute()).await.unwrap();
        assert_ne!(value, 100, "never refreshed");
    });
    drop(idle);
}

// 22 --------------------------------------------------------------------------------------

/// "What is past its last stale window is freed within half a minute": wherever the first
/// fill happened.
#[test]
fn a_cache_is_tidied_where_it_is_used_though_it_was_first_filled_on_a_runtime_that_is_idle() {
    let idle = current_thread();
    let busy = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let cache = busy.block_on(async { settings::<u64>().build().unwrap() });
    idle.block_on(cache.put(0, 0));
    busy.block_on(async {
        for key in 1..100 {
            cache.put(key, key).await;
        }
        pass(10 * MINUTE).await;
        assert_eq!(cache.stats().entries, 0, "ten minutes after their end");
    });
    drop(idle);
}

// 23 --------------------------------------------------------------------------------------

#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

fn live() -> isize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated as isize - stats.bytes_deallocated as isize
}

/// What a cache keeps of a crowd of so many keys that are not stored.
async fn kept_of_a_crowd(n: u64, nested: bool) -> isize {
    let cache =
        settings::<u64>().max_computations(1 << 20).compute_timeout(MINUTE).build().unwrap();
    let ask = |cache: Stampede<u64>, key: u64| async move {
        let work = || async {
            tokio::task::yield_now().await;
            Ok::<_, OriginError>(Computed::new(1).ttl(Duration::ZERO))
        };
        cache.get_or_compute_with(key, work).await.unwrap()
    };
    ask(cache.clone(), 0).await;
    let before = live();
    let inner = cache.clone();
    let crowd = async move {
        let all = (1..=n).map(|key| ask(inner.clone(), key));
        futures_util::future::join_all(all).await;
    };
    if nested {
        let work = || async {
            crowd.await;
            Ok::<_, OriginError>(Computed::new(1).ttl(Duration::ZERO))
        };
        cache.get_or_compute_with(u64::MAX, work).await.unwrap();
    } else {
        crowd.await;
    }
    for _ in 0..10 {
        ask(cache.clone(), 0).await;
    }
    all_have_run().await;
    assert_quiet(&cache);
    live() - before
}

/// Tables shrink again after a crowd.
#[test]
fn the_table_of_those_who_lend_shrinks_again() {
    alone(&["memory"], |_| {
        current_thread().block_on(async {
            kept_of_a_crowd(100, true).await;
            let plain = kept_of_a_crowd(6_000, false).await;
            let nested = kept_of_a_crowd(6_000, true).await;
            assert!(nested < plain + 100_000, "{nested} bytes instead of {plain}");
        });
    });
}

// 24 --------------------------------------------------------------------------------------

/// The tags of the value that is replaced: also where it may stand in for a failure only.
#[tokio::test(start_paused = true)]
async fn a_value_that_replaces_one_past_its_stale_window_keeps_its_tags() {
    let mut lost = Vec::new();
    for after in [90 * SECOND, 150 * SECOND] {
        let cache =
            settings::<u64>().stale_for(MINUTE).stale_if_error(10 * MINUTE).build().unwrap();
        cache.put_with("k", Computed::new(1).tag("t")).await;
        pass(after).await;
        let origin = Origin::new();
        ask(&cache, "k", &origin).await.unwrap().unwrap();
        all_have_run().await;
        assert!(cache.get("k").await.is_some());
        cache.invalidate_tag("t").await;
        if cache.get("k").await.is_some() {
            lost.push(after);
        }
    }
    assert!(
        lost.is_empty(),
        "alive although the tag was invalidated, when computed after {lost:?}"
    );
}

// 25 --------------------------------------------------------------------------------------

/// A fresh read may have to wait for two computations, each within `compute_timeout`: the
/// default of `wait_timeout` is meant to outlast what a caller waits for.
#[tokio::test(start_paused = true)]
async fn fresh_reads_outlast_the_older_computation_and_their_own() {
    let cache = settings::<u64>().build().unwrap();
    let origin = Origin::taking(25 * SECOND);
    let older = ask(&cache, "k", &origin);
    all_have_run().await;
    let fresh = spawn_herd(10, |_| {
        let (cache, compute) = (cache.clone(), origin.compute());
        async move { cache.refresh_with("k", compute).await }
    });
    let answers: Vec<_> = gather(fresh).await;
    older.await.unwrap().unwrap();
    let refused = answers.iter().filter(|answer| answer.is_err()).count();
    assert_eq!(refused, 0, "of ten; calls: {}", origin.calls());
}

// 26 --------------------------------------------------------------------------------------

/// `refresh_with` stores its result, whatever an earlier one was marked as.
#[tokio::test(start_paused = true)]
async fn a_refresh_beside_a_computation_of_an_uncacheable_key_is_stored() {
    let cache = settings::<u64>().build().unwrap();
    let declined = || async { Ok::<_, OriginError>(Computed::new(1).do_not_store()) };
    cache.get_or_compute_with("k", declined).await.unwrap();
    let origin = Origin::taking(SECOND);
    origin.next([Answer::Fail]);
    let running = ask(&cache, "k", &origin);
    all_have_run().await;
    let fresh = cache.refresh_with("k", || async {
        pass(5 * SECOND).await;
        Ok::<_, OriginError>(7)
    });
    assert_eq!(within(MINUTE, fresh).await.unwrap(), 7);
    running.await.unwrap().unwrap_err();
    assert_eq!(cache.get("k").await, Some(7));
}
