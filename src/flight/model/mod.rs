//! Models of the engine: the same code under a scheduler that tries many orders.
//!
//! Each model is a test with two or three threads and one or two keys. shuttle runs it
//! thousands of times, and chooses at each operation of [`crate::sync`] which thread goes
//! on. A failure prints the schedule; `scripts/model --test NAME --replay SCHEDULE` runs it
//! again.
//!
//! | file | what it models |
//! |---|---|
//! | `table.rs` | enter, join, publish, settle; what is remembered of a key |
//! | `store.rs` | fill against `invalidate` and `put` |
//! | `ends.rs` | leaders that are dropped at any step, or deposed while they end |
//! | `places.rs` | the queue for places, and loans |
//! | `interest.rs` | queued leaders that no caller wants any more |
//! | `succession.rs` | a second leader after the first; fresh reads |
//! | `log.rs` | the invalidation log, and what the store does when records are dropped |
//!
//! The store is the product's, of both kinds; what goes on inside the table and inside moka is
//! one step. Not modelled: tokio's timers (they never fire), tasks of a
//! runtime, the remote, and memory orders weaker than `SeqCst`.

mod ends;
mod interest;
mod log;
mod store;
mod succession;
mod table;

use std::env;
use std::future::Future;
use std::time::Duration;

use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::thread::JoinHandle;
use shuttle::{Config, Runner};

use crate::clock::Clock;
use crate::entry::Entry;
use crate::error::{Error, ErrorKind};
use crate::flight::admission::Admission;
use crate::flight::end::{Conclusion, End, Remember};
use crate::flight::engine::Engine;
use crate::flight::hold::{FailureRule, HoldRule};
use crate::flight::leader::Leader;
use crate::flight::ports::Store;
use crate::flight::request::FlightRequest;
use crate::flight::waiter::{Caller, Resolver, Step, Waiter};
use crate::freshness::{Lifetimes, Window};
use crate::key::{Key, Tag};
use crate::observe::{CacheLabel, Observe, Occurrence};
use crate::settings::{Eviction, Settings};
use crate::store::{LocalSettings, LocalStore};
use crate::sync::{Arc, AtomicU64, Ordering};

/// Longer than any run: no timer comes due.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// Schedules per model, unless the environment says how many.
const SCHEDULES: usize = 1_000;

/// How many of the changes of thread that a bug needs PCT looks for at once.
const PCT_DEPTH: usize = 3;

/// Runs a model under many schedules: three quarters are random, and the others are those
/// of PCT, which holds single threads back for long.
pub(crate) fn check(model: impl Fn() + Send + Sync + 'static) {
    // The engine's waits make timers. They need a runtime, and no thread drives it.
    let timers = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let timers = timers.expect("a runtime");
    let _entered = timers.enter();
    if let Ok(schedule) = env::var("STAMPEDE_MODEL_REPLAY") {
        return shuttle::replay(model, &schedule);
    }
    let schedules = number("STAMPEDE_MODEL_SCHEDULES").map_or(SCHEDULES, |n| n as usize);
    let seed = number("STAMPEDE_MODEL_SEED").unwrap_or_else(|| fastrand::u64(..));
    let mut config = Config::new();
    config.stack_size = 128 * 1024;
    config.silence_warnings = true;
    let model = Arc::new(model);
    let run = |model: Arc<dyn Fn() + Send + Sync>| move || model();
    let by_pct = schedules.div_ceil(4);
    let started = std::time::Instant::now();
    println!("seed {seed}");
    let random = RandomScheduler::new_from_seed(seed, schedules - by_pct);
    Runner::new(random, config.clone()).run(run(Arc::clone(&model) as _));
    let pct = PctScheduler::new_from_seed(seed, PCT_DEPTH, by_pct);
    Runner::new(pct, config).run(run(model));
    let rate = schedules as f64 / started.elapsed().as_secs_f64();
    println!("{schedules} schedules, {rate:.0} a second");
}

fn number(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("`{variable}` (`{value}`) must be a number")))
}

/// One of `0..bound`, chosen by the schedule.
pub(crate) fn choice(bound: u32) -> u32 {
    thread_rng().gen_range(0..bound)
}

pub(crate) fn spawn(run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    shuttle::thread::spawn(run)
}

pub(crate) fn join_all(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("a thread of the model");
    }
}

/// The product's store, of one kind or the other: the schedule chooses.
fn store() -> LocalStore<u64> {
    let kinds = [
        Eviction::ByPrice,
        #[cfg(feature = "moka")]
        Eviction::Lru,
    ];
    LocalStore::new(&LocalSettings {
        name: "model".into(),
        max_bytes: 1 << 20,
        eviction: kinds[choice(kinds.len() as u32) as usize],
        on_eviction: None,
        clock: Clock::runtime(),
        local_ttl: None,
    })
}

struct Silent;

impl Observe for Silent {
    fn happened(&self, _: Occurrence<'_>) {}
}

/// An engine, its store, and the origin behind it.
struct World {
    engine: Arc<Engine<u64>>,
    store: Arc<LocalStore<u64>>,
    /// What a computation that reads now returns. It only grows.
    origin: AtomicU64,
    max_computations: usize,
}

impl World {
    fn new(max_computations: usize) -> Arc<Self> {
        Self::with_log(max_computations, 1000)
    }

    fn with_log(max_computations: usize, max_logged_tags: usize) -> Arc<Self> {
        let logged = Settings { max_logged_tags: Some(max_logged_tags), ..Settings::default() };
        Self::with(max_computations, logged)
    }

    /// Without callers, work is cancelled.
    fn cancelling(max_computations: usize) -> Arc<Self> {
        let cancelling = Settings { cancel_unwanted: Some(1.0), ..Settings::default() };
        Self::with(max_computations, cancelling)
    }

    fn with(max_computations: usize, settings: Settings) -> Arc<Self> {
        let settings = Settings {
            compute_timeout: Some(LONG),
            wait_timeout: Some(LONG),
            hold: Some(LONG),
            uncacheable_for: Some(LONG),
            max_waiters: Some(100),
            max_waiters_in_all: Some(100),
            max_computations: Some(max_computations),
            max_refreshes: Some(10),
            ..settings
        };
        let label = CacheLabel { name: "model".into(), log_keys: false };
        let store = Arc::new(store());
        let local: Arc<dyn Store<u64>> = Arc::clone(&store) as _;
        let engine = Engine::new(label, settings, Clock::runtime(), local, Arc::new(Silent) as _);
        let (engine, origin) = (Arc::new(engine), AtomicU64::new(1));
        Arc::new(Self { engine, store, origin, max_computations })
    }

    fn enter(&self, key: &Key) -> Admission<u64> {
        self.engine.enter(&FlightRequest::of(key.clone()), &mut None)
    }

    /// Leads a key that has no flight.
    fn lead(&self, key: &Key) -> Leader<u64> {
        match self.enter(key) {
            Admission::Lead(leader) => leader,
            _ => panic!("the key has a flight"),
        }
    }

    /// Joins the flight of a key.
    fn join(&self, key: &Key) -> Waiter<u64> {
        match self.enter(key) {
            Admission::Join(waiter) => waiter,
            _ => panic!("the key has no flight"),
        }
    }

    fn entry(&self, leader: &Leader<u64>, value: u64, tags: &[Tag]) -> Arc<Entry<u64>> {
        self.entry_of(value, leader.started.seq, tags)
    }

    fn entry_of(&self, value: u64, started: u64, tags: &[Tag]) -> Arc<Entry<u64>> {
        let lifetimes =
            Lifetimes { ttl: LONG, stale_for: Duration::ZERO, stale_if_error: Duration::ZERO };
        let window = Window::new(self.engine.clock.now(), lifetimes, Duration::ZERO);
        Arc::new(Entry::new(value, window, tags.to_vec(), started))
    }

    /// Asks the store.
    fn get(&self, key: &Key) -> Option<Arc<Entry<u64>>> {
        self.store.get(key.as_bytes()).filter(|entry| self.engine.log.is_alive(entry))
    }

    async fn resolve(&self, key: &Key) -> Step<u64> {
        let mut caller = ModelCaller { world: self, key: key.clone() };
        Resolver::new(&self.engine).resolve(&mut caller).await
    }

    /// One call as the product makes it. Returns the value, if there is one.
    async fn call(&self, key: &Key) -> Option<u64> {
        if let Some(entry) = self.get(key) {
            return Some(entry.value);
        }
        match self.resolve(key).await {
            Step::Answer(entry, _) => Some(entry.value),
            Step::Lead(leader) => self.compute(leader).await,
            Step::Alone(_) => Some(self.origin.load(Ordering::SeqCst)),
            Step::Refuse(_) | Step::Remembered(_) => None,
        }
    }

    /// Takes a place, computes and stores. Returns nothing where no caller wants the value.
    async fn compute(&self, mut leader: Leader<u64>) -> Option<u64> {
        leader.take_place().await.ok()?;
        let work = async {
            shuttle::future::yield_now().await;
            self.origin.load(Ordering::SeqCst)
        };
        let value = leader.compute(work).await.ok()?;
        let entry = self.entry(&leader, value, &[]);
        drop(leader.fill(&entry));
        Some(value)
    }

    fn invalidate(&self, key: &Key) {
        self.engine.drop_here(key);
    }

    /// `invalidate_tags`, in the order of `cache/state.rs`.
    fn invalidate_tag(&self, tag: &str) {
        let tag = Tag::from(tag);
        let seq = self.engine.invalidate_tag(tag.clone(), self.engine.clock.now());
        if tag.is_everything() {
            self.engine.table.forget_before(seq);
        }
    }

    fn put(&self, key: &Key, value: u64) {
        let entry = self.entry_of(value, self.engine.log.seq(), &[]);
        self.engine.put_here(key, entry);
    }

    /// Nothing is left behind: no flight, no waiter, no place that is taken.
    fn assert_idle(&self) {
        assert_eq!(self.engine.table.running(), 0, "running flights");
        assert_eq!(self.engine.waiting(), 0, "waiting callers");
        assert_eq!(self.engine.places.free(), self.max_computations, "free places");
        self.engine.places.assert_consistent(self.max_computations);
        for key in [key(), other_key()] {
            assert!(
                self.engine.table.shard(&key).lock().flight(key.as_bytes()).is_none(),
                "a flight is left"
            );
        }
    }
}

fn key() -> Key {
    "k".into()
}

fn other_key() -> Key {
    "other".into()
}

struct ModelCaller<'a> {
    world: &'a World,
    key: Key,
}

impl Caller<u64> for ModelCaller<'_> {
    fn flight_request(&mut self) -> FlightRequest {
        FlightRequest::of(self.key.clone())
    }

    fn second_look(&mut self) -> Option<Arc<Entry<u64>>> {
        self.world.get(&self.key)
    }

    fn fallback(&self) -> Option<Arc<Entry<u64>>> {
        None
    }
}

const NO_HOLD: FailureRule =
    FailureRule { hold: HoldRule::Never, stale_until: None, each_computes: false };

const HOLD: FailureRule =
    FailureRule { hold: HoldRule::After(1), stale_until: None, each_computes: false };

/// Ends a leader in one of the ways in which a leader can end.
fn end_somehow(world: &World, leader: Leader<u64>) {
    let entry = world.entry(&leader, 1, &[]);
    let error = || Error::new(ErrorKind::Inner);
    match choice(9) {
        0 => drop(leader),
        1 => drop(leader.fill(&entry)),
        2 => {
            leader.publish(Arc::clone(&entry));
            drop(leader.fill(&entry));
        }
        3 => {
            leader.publish(entry);
            drop(leader);
        }
        4 => leader.end(Conclusion::Fail { error: error(), rule: NO_HOLD, result: None }),
        5 => leader.end(Conclusion::Fail { error: error(), rule: HOLD, result: None }),
        6 => leader.end(Conclusion::Decline(Remember::Here)),
        7 => leader.end(Conclusion::NotShared),
        _ => leader.end(Conclusion::Withdraw),
    }
}

/// Lets other threads run, a few times or not at all.
pub(crate) fn pause() {
    for _ in 0..choice(4) {
        shuttle::thread::yield_now();
    }
}

fn wait<F: Future>(future: F) -> F::Output {
    block_on(future)
}
