//! Storms of everything at once on several threads, and what is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::kit::origin::*;
use crate::kit::spawn;
use tower_stampede::{Computed, Error, Mode, Stampede};

type Answered = Result<u64, Error>;

fn ask(
    cache: &Stampede<u64>,
    key: &'static str,
    origin: &Origin,
) -> tokio::task::JoinHandle<Answered> {
    let (cache, compute) = (cache.clone(), origin.compute());
    spawn(async move { cache.get_or_compute(key, compute).await })
}

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
            let storms = (0..8).map(|n| spawn(storm(round + n)));
            for storm in storms.collect::<Vec<_>>() {
                storm.await.unwrap();
            }
            round += 8;
        }
        println!("{round} rounds");
    });
}

/// Computations that are asked for at once begin within this time, and go on for less than their
/// time-out.
const TO_BEGIN: Duration = Duration::from_millis(40);

async fn storm(seed: u64) {
    let places = 1 + seed as usize % 4;
    let settings = settings::<u64>().max_computations(places).max_refreshes(1);
    let settings = if seed.is_multiple_of(5) { settings.compute_after_wait() } else { settings };
    let settings =
        if seed % 7 < 3 { settings.max_waiters(4).max_waiters_in_all(6) } else { settings };
    let wait = if seed.is_multiple_of(2) { 300 } else { 15 };
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
        callers.push(spawn(async move {
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
    let modes = seed.is_multiple_of(3);
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
        let _ =
            tokio::time::timeout(Duration::from_secs(60), caller).await.expect("no caller hangs");
    }
    // Detached computations end.
    let quiet = std::time::Instant::now() + Duration::from_secs(60);
    while (cache.stats().flights, cache.stats().waiting) != (0, 0) {
        assert!(std::time::Instant::now() < quiet, "seed {seed}: {:?}", cache.stats());
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    // Also those that were invalidated.
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(cache.stats().waiting, 0, "seed {seed}");
    // On a busy machine a computation may end before the next one begins: asked again until
    // all places are taken at once. A place that is lost comes back after a second at the
    // earliest, when its computation is overdue.
    let until = std::time::Instant::now() + Duration::from_millis(500);
    let mut first_key = 100;
    loop {
        let most = most_at_once(&cache, first_key, places).await;
        assert!(most <= places, "seed {seed}: {most} of {places} places");
        if most == places {
            return;
        }
        assert!(std::time::Instant::now() < until, "seed {seed}: {most} of {places} places");
        first_key += 100;
    }
}

/// Computes as many keys at once as there are places and one more, and returns how many ran
/// at the same time. Each goes on until all places are taken, but not beyond its time-out.
async fn most_at_once(cache: &Stampede<u64>, first_key: u64, places: usize) -> usize {
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let computing: Vec<_> = (first_key..=first_key + places as u64)
        .map(|key| {
            let (cache, running, most) = (cache.clone(), running.clone(), most.clone());
            let compute = move || async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let begun = std::time::Instant::now();
                while most.load(Ordering::SeqCst) < places && begun.elapsed() < TO_BEGIN {
                    tokio::time::sleep(MS).await;
                }
                tokio::time::sleep(5 * MS).await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, OriginError>(1)
            };
            spawn(async move { cache.get_or_compute(key, compute).await })
        })
        .collect();
    for one in computing {
        let one =
            tokio::time::timeout(Duration::from_secs(60), one).await.expect("no caller hangs");
        // The one more may have waited too long for a place.
        drop(one.unwrap());
    }
    most.load(Ordering::SeqCst)
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
            3 => cache.refresh(key, work).await,
            _ => cache.get_or_compute_scoped(key, work).await,
        }
    })
}

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
    let first = spawn({
        let (cache, alive) = (cache.clone(), alive.clone());
        let work = move || {
            alive.fetch_add(1, Ordering::SeqCst);
            Owning { alive, begun: false }
        };
        async move { cache.get_or_compute("k", work).await }
    });
    tokio::time::sleep(30 * MS).await;
    let second = spawn({
        let (cache, alive) = (cache.clone(), alive.clone());
        let work = move || async move { Ok::<_, OriginError>(alive.load(Ordering::SeqCst) as u64) };
        async move { cache.get_or_compute("k", work).await }
    });
    assert!(first.await.is_err());
    assert_eq!(second.await.unwrap().unwrap(), 0, "computations alive when the next begins");
}

/// A refresh in the background does not lend the place of a computation that goes on
/// working: no caller waits for the refresh.
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

/// Versions, invalidations by tag and by key, a log of a few records, evictions, `put`,
/// `mark_stale`: no caller gets a version older than the last invalidation before it asked.
#[test]
fn no_caller_gets_what_was_invalidated_before_it_asked() {
    use std::sync::atomic::AtomicU64;
    const KEYS: u64 = 6;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        for (n, bound) in [2_usize, 8, 64].into_iter().enumerate() {
            let settings = settings::<u64>()
                .max_logged_tags(bound)
                .ttl(Duration::from_millis(3))
                .stale_for(MINUTE);
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
                tasks.push(spawn(async move {
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
                                    cache.refresh(1000 + key, work).await.ok()
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
            // Refreshes in the background may go on a little longer than their callers.
            let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while cache.stats().flights > 0 {
                assert!(std::time::Instant::now() < end, "{:?}", cache.stats());
                tokio::time::sleep(MS).await;
            }
            assert_eq!(cache.stats().waiting, 0, "{:?}", cache.stats());
        }
    });
}

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

/// The tags of the value that is replaced: also where it may only be served in place of an error.
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
        async move { cache.refresh("k", compute).await }
    });
    let answers: Vec<_> = gather(fresh).await;
    older.await.unwrap().unwrap();
    let refused = answers.iter().filter(|answer| answer.is_err()).count();
    assert_eq!(refused, 0, "of ten; calls: {}", origin.calls());
}

/// `refresh` stores its result, whatever an earlier one was marked as.
#[tokio::test(start_paused = true)]
async fn a_refresh_beside_a_computation_of_an_uncacheable_key_is_stored() {
    let cache = settings::<u64>().build().unwrap();
    let declined = || async { Ok::<_, OriginError>(Computed::new(1).do_not_store()) };
    cache.get_or_compute_with("k", declined).await.unwrap();
    let origin = Origin::taking(SECOND);
    origin.next([Answer::Fail]);
    let running = ask(&cache, "k", &origin);
    all_have_run().await;
    let fresh = cache.refresh("k", || async {
        pass(5 * SECOND).await;
        Ok::<_, OriginError>(7)
    });
    assert_eq!(within(MINUTE, fresh).await.unwrap(), 7);
    running.await.unwrap().unwrap_err();
    assert_eq!(cache.get("k").await, Some(7));
}
