use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::ghosts::Ghosts;
use super::*;
use crate::freshness::{Lifetimes, Window};

const SECOND: Duration = Duration::from_secs(1);

/// Every policy, with and without moka.
const EVICTIONS: &[Eviction] = &[
    Eviction::ByPrice,
    Eviction::S3Fifo,
    #[cfg(feature = "moka")]
    Eviction::Lru,
    #[cfg(feature = "moka")]
    Eviction::TinyLfu,
];

fn store_of<V: Send + Sync + 'static>(
    eviction: Eviction,
    max_bytes: u64,
) -> (LocalStore<V>, Clock) {
    let clock = Clock::runtime();
    let settings = LocalSettings {
        name: "test".into(),
        max_bytes,
        eviction,
        on_eviction: None,
        clock: clock.clone(),
        local_ttl: None,
    };
    (LocalStore::new(&settings), clock)
}

fn store(max_bytes: u64) -> (LocalStore<u32>, Clock) {
    store_of(Eviction::default(), max_bytes)
}

fn entry_of<V: Send + Sync + 'static>(
    clock: &Clock,
    value: V,
    weight: u32,
    computed_in: Duration,
) -> EntryRef<V> {
    let lifetimes =
        Lifetimes { ttl: 60 * SECOND, stale_for: Duration::ZERO, stale_if_error: Duration::ZERO };
    let window = Window::new(clock.now(), lifetimes, computed_in);
    let mut entry = Entry::new(value, window, Box::default(), 0);
    entry.weight = weight;
    Arc::new(entry)
}

fn entry(clock: &Clock, value: u32, weight: u32) -> EntryRef<u32> {
    entry_of(clock, value, weight, Duration::ZERO)
}

/// Asks for a key as a caller does: what is not there is computed and stored. Returns whether it
/// was there.
fn ask(store: &LocalStore<u32>, clock: &Clock, key: u32, took: Duration) -> bool {
    let name = Key::from(key);
    let is_held = store.get(name.as_bytes()).is_some();
    if !is_held {
        assert!(store.fill(&name, entry_of(clock, key, 1, took), &|| true).finish());
    }
    is_held
}

#[test]
fn a_fill_that_is_not_allowed_leaves_what_was_there() {
    let (store, clock) = store(100);
    let key = Key::from("k");
    assert!(store.fill(&key, entry(&clock, 1, 1), &|| true).finish());
    assert!(!store.fill(&key, entry(&clock, 2, 1), &|| false).finish());
    assert_eq!(store.get(key.as_bytes()).unwrap().value, 1);
}

#[test]
fn a_new_entry_is_always_taken_and_another_one_goes() {
    let (store, clock) = store(10);
    for n in 0..100_u32 {
        store.fill(&n.into(), entry(&clock, n, 1), &|| true).finish();
        assert!(store.get(Key::from(n).as_bytes()).is_some(), "entry {n}");
    }
    assert_eq!(store.entries(), 10);
    assert_eq!(store.evictions(), 90);
}

#[tokio::test]
async fn a_sweep_removes_what_is_dead_and_nothing_else() {
    let (store, clock) = store(10_000);
    for n in 0..2000_u32 {
        store.fill(&n.into(), entry(&clock, n, 1), &|| true).finish();
    }
    store.sweep(|entry| entry.value % 2 == 0).await;
    assert_eq!(store.entries(), 1000);
    assert!(store.get(Key::from(1_u32).as_bytes()).is_some());
    assert!(store.get(Key::from(2_u32).as_bytes()).is_none());
}

/// How many keys one bucket of ghosts remembers.
const EIGHT: usize = 8;

#[test]
fn a_key_is_remembered_once_and_the_oldest_of_its_bucket_goes_first() {
    let mut ghosts = Ghosts::default();
    assert!(!ghosts.take(7), "empty");
    for hash in 1..=EIGHT as u32 + 1 {
        ghosts.put(hash, EIGHT);
    }
    assert!(!ghosts.take(1), "eight fit, and this was the first of nine");
    assert!(ghosts.take(3));
    assert!(!ghosts.take(3), "taken");
    assert!(ghosts.take(EIGHT as u32 + 1) && ghosts.take(2), "the others stay");
}

#[test]
fn what_is_remembered_stays_when_the_store_grows() {
    let mut ghosts = Ghosts::default();
    for hash in 1..=1000_u32 {
        ghosts.put(hash.wrapping_mul(0x9E37_79B1), 1000 * EIGHT);
    }
    ghosts.put(0, 100_000);
    let found = (1..=1000_u32).filter(|hash| ghosts.take(hash.wrapping_mul(0x9E37_79B1)));
    assert_eq!(found.count(), 1000);
    assert!(ghosts.take(0));
}

#[test]
fn a_scan_of_keys_that_are_asked_for_once_costs_the_others_nothing() {
    let (store, clock) = store(1000);
    for key in (0..500).chain(0..500) {
        ask(&store, &clock, key, SECOND);
    }
    for key in 10_000..30_000 {
        ask(&store, &clock, key, SECOND);
    }
    let held = (0..500).filter(|key| ask(&store, &clock, *key, SECOND)).count();
    assert_eq!(held, 500);
}

/// Asks for 100 slow and 500 quick keys twice in a row, and for all of them `more` times in the
/// same way once they are held. Returns how many slow ones are held after 3,000 other quick keys.
fn slow_keys_held(eviction: Eviction, more: u32) -> usize {
    let (store, clock) = store_of(eviction, 400);
    let took = |key: u32| if key < 100 { SECOND } else { SECOND / 100 };
    let rounds = (0..=more).map(|_| 0..600).chain((0..5).map(|n| 1000 + n * 600..1600 + n * 600));
    for key in rounds.flatten() {
        ask(&store, &clock, key, took(key));
        ask(&store, &clock, key, took(key));
    }
    (0..100_u32).filter(|key| store.get(Key::from(*key).as_bytes()).is_some()).count()
}

#[test]
fn of_entries_that_are_used_alike_those_stay_longer_that_took_longer() {
    assert!(slow_keys_held(Eviction::ByPrice, 1) >= 90);
    assert!(slow_keys_held(Eviction::S3Fifo, 1) <= 60);
}

#[test]
fn entries_that_are_in_the_main_queue_for_their_price_alone_take_a_sixth_of_it() {
    let held = slow_keys_held(Eviction::ByPrice, 0);
    assert!((50..=70).contains(&held), "{held}: a sixth of 400 is 66");
}

/// Returns the hit ratio of clients that share keys, in per cent, beside a client with slow keys
/// of its own. That one asks for each of them `times` times in a row, and makes `part` requests
/// for one request of the others.
fn shared_hit_ratio(eviction: Eviction, entries: u32, times: u32, part: f64) -> f64 {
    let (store, clock) = store_of(eviction, u64::from(entries));
    let mut random = fastrand::Rng::with_seed(7);
    let (mut hits, mut asked, mut due, mut own) = (0, 0, 0.0, 1_000_000);
    for turn in 0..60_000_u32 {
        // A tenth of the keys takes most of the requests.
        let key = (random.f64().powi(4) * f64::from(entries) * 10.0) as u32;
        let is_held = ask(&store, &clock, key, SECOND / 100);
        if turn > 20_000 {
            hits += u32::from(is_held);
            asked += 1;
        }
        due += part;
        while due >= 1.0 {
            for _ in 0..times {
                ask(&store, &clock, own, 10 * SECOND);
                due -= 1.0;
            }
            own += 1;
        }
    }
    100.0 * f64::from(hits) / f64::from(asked)
}

#[test]
fn a_client_of_slow_keys_that_no_other_client_uses_lowers_their_hit_ratio_by_at_most_two_points() {
    for entries in [100, 1000] {
        let alone = shared_hit_ratio(Eviction::ByPrice, entries, 1, 0.0);
        assert!(alone > 40.0, "{alone}: something is held");
        for part in [0.1, 0.5] {
            let beside = shared_hit_ratio(Eviction::ByPrice, entries, 1, part);
            assert!(beside > alone - 2.0, "{entries}, {part}: {alone} alone, {beside} beside");
        }
    }
}

#[test]
fn slow_keys_that_are_asked_for_twice_in_a_row_cost_others_little_more_than_quick_ones() {
    for entries in [100, 1000] {
        for (times, part) in [(2, 0.1), (2, 0.5), (4, 0.5)] {
            let [plain, priced] = [Eviction::S3Fifo, Eviction::ByPrice]
                .map(|eviction| shared_hit_ratio(eviction, entries, times, part));
            let load = (entries, times, part);
            assert!(priced > plain - 2.5, "{load:?}: {plain} per cent plain, {priced} by price");
        }
    }
}

#[test]
fn entries_and_bytes_are_those_that_are_found_and_never_pass_the_bound() {
    for eviction in [Eviction::ByPrice, Eviction::S3Fifo] {
        let (store, clock) = store_of::<u32>(eviction, 300);
        let mut random = fastrand::Rng::with_seed(1);
        for turn in 0..30_000_u32 {
            let key = Key::from(random.u32(..200));
            match random.u32(..20) {
                0 => drop(store.remove(&key).finish()),
                1 if random.u32(..200) == 0 => drop(store.clear()),
                2..10 => drop(store.get(key.as_bytes())),
                _ => {
                    let took = Duration::from_micros(1 << random.u32(..30));
                    let entry = entry_of(&clock, turn, random.u32(1..40), took);
                    assert!(store.fill(&key, Arc::clone(&entry), &|| true).finish());
                    let found = store.get(key.as_bytes()).expect("just filled");
                    assert!(Arc::ptr_eq(&found, &entry));
                }
            }
            assert!(store.bytes() <= 300, "{} bytes", store.bytes());
            if turn % 100 == 0 {
                let found = (0..200_u32).filter_map(|key| store.get(Key::from(key).as_bytes()));
                let weights: Vec<u64> = found.map(|entry| entry.weight.into()).collect();
                assert_eq!(store.entries(), weights.len() as u64);
                assert_eq!(store.bytes(), weights.iter().sum::<u64>());
                assert_eq!(store.batches().flatten().count(), weights.len());
            }
        }
    }
}

/// The other threads fill at most 40 entries between a fill and the look-up after it: the entries
/// on probation may be a tenth of the bound, here 100.
///
/// The threads take turns by yielding. Beside busy processes each turn is a slice of time: then
/// 100 entries are enough, where 10,000 would take ten minutes.
#[test]
fn every_entry_is_found_right_after_its_fill_while_others_fill() {
    let (store, clock) = store(1000);
    // How many fills the other threads may still do; `None` ends them.
    let permits = std::sync::Mutex::new(Some(0_u32));
    let take = |most: u32| {
        let mut permits = permits.lock().unwrap();
        let taken = permits.map(|left| left.min(most));
        *permits = permits.map(|left| left - taken.unwrap_or(0));
        taken
    };
    std::thread::scope(|scope| {
        let (store, clock, take) = (&store, &clock, &take);
        for thread in 1..3_u32 {
            scope.spawn(move || {
                let mut keys = thread * 100_000_000..;
                while let Some(fills) = take(1) {
                    for key in keys.by_ref().take(fills as usize) {
                        ask(store, clock, key, SECOND);
                    }
                    std::thread::yield_now();
                }
            });
        }
        let (mut found, mut filled) = (0, 0);
        let begun = std::time::Instant::now();
        for n in 0..10_000_u32 {
            if n >= 100 && begun.elapsed() > 10 * SECOND {
                break;
            }
            filled += 1;
            *permits.lock().unwrap() = Some(38);
            let entry = entry(clock, n, 1);
            assert!(store.fill(&n.into(), entry, &|| true).finish());
            found += u32::from(store.get(Key::from(n).as_bytes()).is_some());
            while permits.lock().unwrap().is_some_and(|left| left > 0) {
                std::thread::yield_now();
            }
        }
        *permits.lock().unwrap() = None;
        assert_eq!(found, filled);
    });
}

/// Counts how many of it live.
struct Counted(Arc<std::sync::atomic::AtomicUsize>);

impl Counted {
    fn new(live: &Arc<std::sync::atomic::AtomicUsize>) -> Self {
        live.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Self(Arc::clone(live))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn what_was_replaced_evicted_or_removed_is_dropped_by_the_write_that_did_it() {
    let live = Arc::default();
    for eviction in [Eviction::ByPrice, Eviction::S3Fifo] {
        let (store, clock) = store_of::<Counted>(eviction, 10);
        let fill = |key: u32| {
            let entry = entry_of(&clock, Counted::new(&live), 1, SECOND);
            assert!(store.fill(&key.into(), entry, &|| true).finish());
        };
        let live = || live.load(std::sync::atomic::Ordering::Relaxed) as u64;
        for turn in 0..1000 {
            fill(turn % 25);
            assert!(live() <= 10, "{} live after {turn}", live());
            assert_eq!(store.entries(), live());
        }
        assert!(store.remove(&24_u32.into()).finish());
        assert_eq!(live(), 9);
        drop(store.clear());
        assert_eq!((live(), store.entries(), store.bytes()), (0, 0, 0));
    }
}

#[test]
fn no_policy_keeps_what_was_cleared_or_loses_what_is_filled_after_that() {
    for eviction in EVICTIONS {
        let (store, clock) = store_of::<u32>(*eviction, 100_000);
        for round in 0..3_u32 {
            for key in 0..1000 {
                assert!(store.fill(&key.into(), entry(&clock, round, 1), &|| true).finish());
            }
            let find = |key: u32| store.get(Key::from(key).as_bytes());
            let found = (0..1000).filter(|key| find(*key).is_some_and(|it| it.value == round));
            assert_eq!(found.count(), 1000, "{eviction:?}");
            drop(store.clear());
            assert_eq!((0..1000).filter(|key| find(*key).is_some()).count(), 0, "{eviction:?}");
        }
    }
}

/// A value that counts how many of its kind live, and may panic when it is dropped.
struct Tracked {
    live: Arc<AtomicUsize>,
    panics: bool,
}

impl Tracked {
    fn new(live: &Arc<AtomicUsize>, panics: bool) -> Self {
        live.fetch_add(1, Ordering::SeqCst);
        Self { live: Arc::clone(live), panics }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::SeqCst);
        assert!(!self.panics, "the value's own");
    }
}

#[tokio::test]
async fn a_panic_in_the_drop_of_a_value_does_not_end_a_sweep() {
    for eviction in EVICTIONS {
        let (store, clock) = store_of::<Tracked>(*eviction, 10_000);
        let live = Arc::default();
        for n in 0..10_u32 {
            let value = Tracked::new(&live, n == 3);
            store.fill(&n.into(), entry_of(&clock, value, 1, SECOND), &|| true).finish();
        }
        store.sweep(|_| true).await;
        assert_eq!((store.entries(), live.load(Ordering::SeqCst)), (0, 0), "{eviction:?}");
    }
}

#[test]
fn what_many_threads_have_replaced_is_freed_when_the_readers_are_gone() {
    const WRITERS: usize = 32;
    const READERS: usize = 8;
    for eviction in [Eviction::ByPrice, Eviction::S3Fifo] {
        let (store, clock) = store_of::<Tracked>(eviction, 10_000);
        let (live, stops) = (Arc::new(AtomicUsize::new(0)), AtomicBool::new(false));
        let key = Key::from("k");
        // All threads live to the end, as the workers of a runtime do.
        let (begin, written) = (Barrier::new(WRITERS + READERS), Barrier::new(WRITERS + 1));
        let (gone, end) = (Barrier::new(READERS + 1), Barrier::new(WRITERS + READERS + 1));
        let mut held = 0;
        std::thread::scope(|scope| {
            for _ in 0..READERS {
                scope.spawn(|| {
                    // The table numbers a thread at its first read.
                    let _ = store.get(key.as_bytes());
                    begin.wait();
                    while !stops.load(Ordering::Relaxed) {
                        let _ = store.get(key.as_bytes());
                    }
                    gone.wait();
                    end.wait();
                });
            }
            for _ in 0..WRITERS {
                scope.spawn(|| {
                    begin.wait();
                    for _ in 0..20 {
                        let value = Tracked::new(&live, false);
                        store.fill(&key, entry_of(&clock, value, 1, SECOND), &|| true).finish();
                    }
                    written.wait();
                    end.wait();
                });
            }
            written.wait();
            stops.store(true, Ordering::Relaxed);
            gone.wait();
            drop(store.settle());
            held = live.load(Ordering::SeqCst);
            end.wait();
        });
        // Alone in a process this leaves one value. Threads of other tests that end meanwhile make
        // the writers change their list, and a list keeps what it could not free.
        assert!(held < WRITERS, "{held} values live, {eviction:?}");
    }
}
