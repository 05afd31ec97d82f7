//! The state that a handle and its layers share: the look-up, how entries are made, and the
//! task that tidies a quiet cache.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::cache::builder::Values;
use crate::cache::call_options::{CallContext, Stored};
use crate::cache::names::{self, RegisteredName};
use crate::clock::{Clock, Tick};
use crate::computed::Computed;
use crate::entry::{ComputationStart, Entry, Tags};
use crate::flight::door::FlightFacts;
use crate::flight::engine::Engine;
use crate::flight::ports::Store;
use crate::freshness::{self, Freshness, Lifetimes, Window};
use crate::key::{Key, Tag};
use crate::lease::shared_store::RemoteHealth;
use crate::mode::Mode;
use crate::observe::{CacheLabel, Observe, Observer, Occurrence, Stats};
use crate::settings::Settings;
use crate::store::{LocalSettings, LocalStore};

/// How often a quiet cache is tidied.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// How often the task that tidies looks around. With metrics, it sets the gauges each time:
/// so old can they be.
const BEAT: Duration = if cfg!(feature = "metrics") { Duration::from_secs(5) } else { SWEEP_EVERY };

pub(crate) struct CacheState<V> {
    pub(crate) name: Arc<str>,
    _registered: RegisteredName,
    pub(crate) local: Arc<LocalStore<V>>,
    pub(crate) engine: Arc<Engine<V>>,
    pub(crate) observer: Arc<Observer>,
    pub(crate) values: Values<V>,
    #[cfg(feature = "http")]
    pub(crate) queries: QueryLists,
    /// Counts the HTTP layers of a handle: those that differ.
    ///
    /// A layer counts from the moment when the handle makes it, not when it gets its service: axum
    /// gives a layer of one method or handler its service when the first request for it comes. An
    /// application makes its layers before it answers requests, so the count is complete then. A
    /// layer that is dropped still counts: its services may live on.
    #[cfg(feature = "http")]
    pub(crate) layers: std::sync::atomic::AtomicUsize,
    /// Counts stored responses until a write passes a layer, or the application invalidates: in
    /// `get(page).layer(cache).post(save)` the POST passes none, and the stored page stays.
    #[cfg(feature = "http")]
    pub(crate) writes: HintWatch<100>,
    /// When the task that tidies was last at work, by the timers; zero: there is none.
    tidied_at: AtomicU64,
    /// The longest time any entry may be of use, in nanoseconds.
    longest_kept: AtomicU64,
}

/// Which query parameters count, in each HTTP layer that was made of a handle. A write that
/// reaches one layer has to name the entries of the others.
#[cfg(feature = "http")]
#[derive(Debug, Default)]
pub(crate) struct QueryLists(parking_lot::RwLock<Vec<Vec<String>>>);

/// Counts what would be no surprise once, and is worth a hint when it has happened `ENOUGH` times
/// without something else that was to be expected.
#[cfg(feature = "http")]
#[derive(Debug, Default)]
pub(crate) struct HintWatch<const ENOUGH: u32> {
    count: std::sync::atomic::AtomicU32,
    is_over: std::sync::atomic::AtomicBool,
}

#[cfg(feature = "http")]
impl<const ENOUGH: u32> HintWatch<ENOUGH> {
    /// What was to be expected has happened: there will be no hint.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Counts one more. Returns true once, when the hint is due.
    pub(crate) fn count(&self) -> bool {
        let counts =
            !self.is_over.load(Ordering::Relaxed) && self.count.load(Ordering::Relaxed) < ENOUGH;
        counts && self.count.fetch_add(1, Ordering::Relaxed) + 1 == ENOUGH
    }
}

#[cfg(feature = "http")]
impl QueryLists {
    pub(crate) fn add(&self, list: &[String]) {
        let mut lists = self.0.write();
        if !lists.iter().any(|known| known == list) {
            lists.push(list.to_vec());
        }
    }

    pub(crate) fn all(&self) -> Vec<Vec<String>> {
        self.0.read().clone()
    }
}

/// What the store says of a key at one moment.
pub(crate) enum Lookup<V> {
    Fresh(Arc<Entry<V>>),
    Early(Arc<Entry<V>>),
    Stale(Arc<Entry<V>>),
    /// Something that may be served if no other process has ended it: the remote does not vouch
    /// for it any more.
    Unvouched(Arc<Entry<V>>),
    /// Nothing to serve; perhaps something to serve in place of a failure.
    Miss(Option<Arc<Entry<V>>>),
}

impl<V: Clone + Send + Sync + 'static> CacheState<V> {
    pub(crate) fn new(
        label: CacheLabel,
        settings: Settings,
        local: &LocalSettings<V>,
        values: Values<V>,
        clock: Clock,
    ) -> Self {
        let local = Arc::new(LocalStore::new(local));
        let observer = Arc::new(Observer::new(&label));
        let store: Arc<dyn Store<V>> = Arc::clone(&local) as _;
        let engine =
            Arc::new(Engine::new(label, settings, clock, store, Arc::clone(&observer) as _));
        let (tidied_at, longest_kept) = (AtomicU64::new(0), AtomicU64::new(0));
        let name = engine.label.name.as_str().into();
        let (_registered, is_second) = names::register(&engine.label.name);
        if is_second {
            observer.happened(Occurrence::NameShared);
        }
        Self {
            name,
            _registered,
            local,
            engine,
            observer,
            values,
            #[cfg(feature = "http")]
            queries: QueryLists::default(),
            #[cfg(feature = "http")]
            layers: Default::default(),
            #[cfg(feature = "http")]
            writes: HintWatch::default(),
            tidied_at,
            longest_kept,
        }
    }

    #[inline]
    pub(crate) fn now(&self) -> Tick {
        self.engine.clock.now()
    }

    /// Asks the store. The only place where an entry is judged before it is
    /// served.
    // Always, as `peek`: a call would cost a hit twenty instructions.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn look(&self, key: &[u8]) -> Lookup<V> {
        if self.engine.mode() == Mode::On { self.peek(key) } else { self.look_unprotected(key) }
    }

    #[cold]
    #[inline(never)]
    fn look_unprotected(&self, key: &[u8]) -> Lookup<V> {
        if self.engine.mode() == Mode::Observe && !matches!(self.peek(key), Lookup::Miss(_)) {
            self.observer.happened(Occurrence::WouldHaveAnswered);
        }
        Lookup::Miss(None)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn peek(&self, key: &[u8]) -> Lookup<V> {
        let Some(entry) = self.local.get(key) else { return Lookup::Miss(None) };
        if !self.engine.log.is_alive(&entry) {
            return Lookup::Miss(None);
        }
        let now = self.engine.clock.now();
        if !self.engine.is_vouched(now) {
            return Lookup::Unvouched(entry);
        }
        if entry.is_copy_over(now) && self.is_remote_asked(key) {
            return self.stand_in(entry, now);
        }
        self.judged(entry, now)
    }

    /// Returns whether an entry may be served, at least in place of a failure.
    pub(crate) fn is_of_use(&self, entry: &Entry<V>) -> bool {
        self.now() < entry.window().useful_until() && self.engine.log.is_alive(entry)
    }

    /// Returns whether requests ask the remote for a key at the moment.
    #[cold]
    pub(crate) fn is_remote_asked(&self, key: &[u8]) -> bool {
        self.engine.remote(&Key::from_encoded(key)).is_some()
    }

    /// What may only be served in place of a failure.
    #[cold]
    fn stand_in(&self, entry: Arc<Entry<V>>, now: Tick) -> Lookup<V> {
        Lookup::Miss(Some(entry).filter(|entry| self.judge(entry, now) != Freshness::Expired))
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn judged(&self, entry: Arc<Entry<V>>, now: Tick) -> Lookup<V> {
        match self.judge(&entry, now) {
            Freshness::Fresh => Lookup::Fresh(entry),
            Freshness::Early => Lookup::Early(entry),
            Freshness::Stale => Lookup::Stale(entry),
            Freshness::StaleIfError => Lookup::Miss(Some(entry)),
            Freshness::Expired => Lookup::Miss(None),
        }
    }

    /// Has the remote vouch for what a look has found, and looks again. What the remote says
    /// nothing of is served: it is all there is.
    #[cold]
    pub(crate) async fn look_vouched(&self, key: &Key) -> Lookup<V> {
        self.engine.vouch(true).await;
        self.look_held(key.as_bytes())
    }

    /// Asks the store, whether or not the remote vouches for what it holds.
    pub(crate) fn look_held(&self, key: &[u8]) -> Lookup<V> {
        match self.look(key) {
            Lookup::Unvouched(entry) => self.judged(entry, self.now()),
            look => look,
        }
    }

    #[inline]
    pub(crate) fn judge(&self, entry: &Entry<V>, now: Tick) -> Freshness {
        let (fresh_until, window) = (entry.fresh_until(), || entry.window());
        freshness::decide(fresh_until, window, now, self.values.early.as_ref(), freshness::sample)
    }

    /// Returns an entry that may be served in place of a failure: a fresh one that was stored meanwhile,
    /// the one that the caller has in hand, or what else is stored.
    pub(crate) fn fallback(
        &self,
        key: &Key,
        in_hand: Option<&Arc<Entry<V>>>,
    ) -> Option<Arc<Entry<V>>> {
        if self.engine.mode() != Mode::On {
            // Switched off or observing, the cache answers no caller.
            return None;
        }
        let in_hand = || in_hand.filter(|entry| self.may_stand_in(entry)).cloned();
        match self.peek(key.as_bytes()) {
            // Stored since.
            Lookup::Fresh(entry) | Lookup::Early(entry) => Some(entry),
            Lookup::Miss(stale) => in_hand().or(stale),
            Lookup::Stale(entry) => in_hand().or(Some(entry)),
            Lookup::Unvouched(entry) => {
                in_hand().or_else(|| Some(entry).filter(|entry| self.may_stand_in(entry)))
            }
        }
    }

    /// Returns what a computation may renew. Where there is a remote, that is what its caller has
    /// found there: a copy here may be older, and other processes may have invalidated it since.
    pub(crate) fn renewable(
        &self,
        call: Option<&CallContext<V>>,
        here: Option<&Arc<Entry<V>>>,
    ) -> Option<Stored<V>> {
        let older = match self.engine.shared.get() {
            Some(_) => call?.found(),
            None => here.cloned(),
        };
        let older = older.filter(|entry| self.may_stand_in(entry))?;
        Some(Stored::new(&older, self.now()))
    }

    /// Returns whether the store still holds the very entry that was seen.
    pub(crate) fn is_still(&self, key: &[u8], seen: &Arc<Entry<V>>) -> bool {
        self.local.peek(key).is_some_and(|entry| Arc::ptr_eq(&entry, seen))
    }

    /// Returns whether `entry` may be served in place of a failure now.
    pub(crate) fn may_stand_in(&self, entry: &Entry<V>) -> bool {
        self.judge(entry, self.now()) != Freshness::Expired && self.engine.log.is_alive(entry)
    }

    pub(crate) fn entry(
        self: &Arc<Self>,
        computed: Computed<V>,
        facts: &FlightFacts<V>,
    ) -> (Arc<Entry<V>>, bool) {
        let took = self.now().since(facts.started.tick);
        let (entry, keep) = self.make_entry(computed, &facts.key, facts.started, took);
        let entry = entry.with_version(facts.version);
        self.tidy_from_now_on();
        (Arc::new(entry), keep)
    }

    /// Makes an entry, and returns whether it is worth keeping.
    pub(crate) fn make_entry(
        &self,
        computed: Computed<V>,
        key: &Key,
        started: ComputationStart,
        took: Duration,
    ) -> (Entry<V>, bool) {
        let window = Window::new(started.tick, self.lifetimes(&computed), took);
        let tags = Tags::new(computed.tags.into(), computed.validator);
        let entry = Entry::new(computed.value, window, tags, started.seq);
        let entry = self.values.weights.weigh(entry, key);
        let is_of_use = self.engine.clock.now() < window.useful_until();
        self.keeps_for(window);
        let keep = is_of_use && self.local.is_storable(&entry);
        (entry, keep)
    }

    /// Takes note of an entry that came from elsewhere.
    pub(crate) fn adopted(self: &Arc<Self>, entry: &Entry<V>) {
        self.keeps_for(entry.window());
        self.tidy_from_now_on();
    }

    fn lifetimes(&self, computed: &Computed<V>) -> Lifetimes {
        let negative =
            self.values.negative.filter(|(_, is)| is(&computed.value)).map(|(ttl, _)| ttl);
        let ours = negative.or(self.values.ttl);
        let lifetimes = Lifetimes {
            ttl: computed.ttl.or(ours).unwrap_or_default(),
            stale_for: computed.stale_for.unwrap_or(self.values.stale_for),
            stale_if_error: computed.stale_if_error.unwrap_or(self.values.stale_if_error),
        };
        if lifetimes.ttl.is_zero() {
            // Nothing to be stale after: such a value is for this wave alone.
            return Lifetimes {
                stale_for: computed.stale_for.unwrap_or_default(),
                stale_if_error: computed.stale_if_error.unwrap_or_default(),
                ..lifetimes
            };
        }
        lifetimes.jittered(self.values.jitter, freshness::sample())
    }

    /// Remembers how long entries can be of use: the invalidation log keeps
    /// its records for as long.
    pub(crate) fn keeps_for(&self, window: Window) {
        let span = window.kept_until().since(window.started);
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.longest_kept.fetch_max(nanos, Ordering::Relaxed);
    }

    pub(crate) fn invalidate_tag_now(&self, tag: &Tag) {
        #[cfg(feature = "http")]
        self.writes.end();
        let seq = self.engine.invalidate_tag(tag.clone(), self.engine.clock.now());
        if tag.concerns_all() {
            self.engine.table.forget_before(seq);
        }
        self.observer.happened(Occurrence::TagInvalidated { tag });
    }

    pub(crate) fn stats(&self) -> Stats {
        drop(self.local.settle());
        let stats = Stats {
            evictions: self.local.evictions(),
            entries: self.local.entries(),
            bytes: self.local.bytes(),
            arriving_bytes: self.values.arriving.taken(),
            flights: self.engine.table.running(),
            waiting: self.engine.waiting(),
            computation_limit: self.engine.computation_limit(),
            ..self.observer.stats()
        };
        let is_full = stats.evictions > 0;
        if let Some(assumed_bytes) = self.values.weights.assumed().filter(|_| is_full) {
            let type_name = std::any::type_name::<V>();
            self.observer.happened(Occurrence::WeightsEstimated { type_name, assumed_bytes });
        }
        let is_remote_up = self.remote_health().map(|health| health != RemoteHealth::Away);
        self.observer.gauge(&stats, is_remote_up);
        stats
    }

    /// Starts the task that tidies a quiet cache, once. It ends with the cache.
    pub(crate) fn tidy_from_now_on(self: &Arc<Self>)
    where
        V: Clone,
    {
        let (beat, now) = (self.tidied_at.load(Ordering::Relaxed), self.tidying_beat());
        // A task on a runtime that stands still tidies nothing.
        let is_tidied = beat > 0 && now < Tick::from_nanos(beat).plus(SWEEP_EVERY * 2).as_nanos();
        if is_tidied {
            return;
        }
        // Outside of a runtime the next fill tries again.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let claim =
            self.tidied_at.compare_exchange(beat, now, Ordering::Relaxed, Ordering::Relaxed);
        if claim.is_ok() {
            runtime.spawn(tidy(Tidying { state: Arc::downgrade(self), beat: now }));
        }
    }

    fn tidying_beat(&self) -> u64 {
        self.engine.watch.now().as_nanos()
    }

    async fn sweep(&self) {
        let now = self.engine.clock.now();
        // What was served lately says that results of its key may be shared.
        let span = self.engine.settings.uncacheable_for();
        let is_over = |entry: &Entry<V>| {
            now >= entry.kept_until() && now >= entry.window().served_until().plus(span)
        };
        let dead = |entry: &Entry<V>| is_over(entry) || !self.engine.log.is_alive(entry);
        // Chosen first: the sweep checks every entry against it.
        let log = &self.engine.log;
        let slice = log.wants_room().then(|| log.oldest_slice());
        self.local.sweep(dead).await;
        if let Some(slice) = slice {
            log.drop_slice(slice);
        }
        let longest_kept = Duration::from_nanos(self.longest_kept.load(Ordering::Relaxed));
        self.engine.sweep(longest_kept.saturating_add(span));
    }
}

/// The claim to be the task that tidies. It is given up however the task ends, and lost
/// when its runtime stands still: a cache may outlive its runtime, and is then tidied on
/// the next runtime that uses it.
struct Tidying<V: Clone + Send + Sync + 'static> {
    state: Weak<CacheState<V>>,
    beat: u64,
}

impl<V: Clone + Send + Sync + 'static> Tidying<V> {
    /// Says that the task is at work. Returns the cache, unless it is gone or another task
    /// tidies it.
    fn beat(&mut self) -> Option<Arc<CacheState<V>>> {
        let state = self.state.upgrade()?;
        let now = state.tidying_beat();
        let (relaxed, beat) = (Ordering::Relaxed, self.beat);
        state.tidied_at.compare_exchange(beat, now, relaxed, relaxed).ok()?;
        self.beat = now;
        Some(state)
    }
}

impl<V: Clone + Send + Sync + 'static> Drop for Tidying<V> {
    fn drop(&mut self) {
        if let Some(state) = self.state.upgrade() {
            let (relaxed, beat) = (Ordering::Relaxed, self.beat);
            let _ = state.tidied_at.compare_exchange(beat, 0, relaxed, relaxed);
        }
    }
}

/// Sets the gauges, and sweeps, until the cache is gone, or the runtime. It sweeps twice a
/// minute, and when the invalidation log wants room.
async fn tidy<V: Clone + Send + Sync + 'static>(mut tidying: Tidying<V>) {
    let Some(state) = tidying.state.upgrade() else { return };
    let room_wanted = state.engine.log.room_wanted();
    drop(state);
    let mut swept = Instant::now();
    loop {
        let woken = tokio::time::timeout(BEAT, room_wanted.notified()).await;
        let Some(state) = tidying.beat() else { return };
        // There may be room again: every record from the mark on notifies.
        if swept.elapsed() >= SWEEP_EVERY || state.engine.log.wants_room() {
            state.sweep().await;
            state.observer.oldest_stale.turn();
            swept = Instant::now();
        } else if woken.is_ok() {
            continue;
        }
        state.stats();
    }
}
