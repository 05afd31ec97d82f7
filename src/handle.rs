//! The handle: what an application holds.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::broadcast;

use crate::builder::{Builder, Values};
use crate::computed::Computed;
use crate::engine::leader::Leader;
use crate::engine::ports::Local;
use crate::engine::time::{Clock, Tick};
use crate::engine::{Boarding, Engine, EngineSettings, Entered, Mode};
use crate::entry::{Entry, Started};
use crate::error::{BoxError, Error};
use crate::key::{Key, KeyBuf, Tag, ToKey};
use crate::local::{LocalSettings, LocalStore};
use crate::observe::{Event, Observer, Stats};
use crate::outcome::CacheOutcome;
use crate::policy::{self, Freshness, Lifetimes, Window};
use crate::serve::{self, KeyCaller, Made, Served};

/// How often a quiet cache is tidied.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// A cache that computes each value once.
///
/// Cheap to clone: every clone, and every layer made from one, shares the same
/// values and the same running computations.
///
/// Must be used within a Tokio runtime.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::Stampede;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_stampede::Error> {
/// let squares: Stampede<u64> = Stampede::in_memory(Duration::from_secs(60));
/// let square = squares.get_or_compute(7, || async { Ok::<_, std::io::Error>(7 * 7) }).await?;
/// assert_eq!(square, 49);
/// # Ok(()) }
/// ```
pub struct Stampede<V: Clone + Send + Sync + 'static>(pub(crate) Arc<Inner<V>>);

pub(crate) struct Inner<V: Clone + Send + Sync + 'static> {
    pub(crate) local: Arc<LocalStore<V>>,
    pub(crate) engine: Arc<Engine<V>>,
    pub(crate) observer: Arc<Observer>,
    pub(crate) values: Values<V>,
    tidying: AtomicBool,
    /// The longest time any entry may be of use, in nanoseconds.
    longest_kept: AtomicU64,
}

/// What the store says of a key at one moment.
pub(crate) enum Look<V> {
    Fresh(Arc<Entry<V>>),
    Early(Arc<Entry<V>>),
    Stale(Arc<Entry<V>>),
    /// Nothing to serve; perhaps something to serve in place of a failure.
    Miss(Option<Arc<Entry<V>>>),
}

/// What an invalidation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Invalidation {
    /// Whether this process had something to invalidate: a value, or a running
    /// computation whose result will not be stored. Always `true` for tags.
    pub local: bool,
}

/// How the cache is doing; see [`Stampede::health`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// All is well.
    Up,
    /// Switched off, observing or shut down: callers compute for themselves.
    Bypassed,
}

impl<V: Clone + Send + Sync + 'static> Stampede<V> {
    /// Begins the settings of a cache; `name` labels its metrics and logs.
    pub fn builder(name: &str) -> Builder<V> {
        Builder::new(name)
    }

    /// Makes a cache for this process with every other setting at its default.
    ///
    /// # Panics
    ///
    /// If `ttl` is zero.
    #[track_caller]
    #[must_use]
    pub fn in_memory(ttl: Duration) -> Self {
        match Self::builder("stampede").ttl(ttl).build() {
            Ok(cache) => cache,
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) fn assemble(
        name: &str,
        engine: EngineSettings,
        local: &LocalSettings,
        values: Values<V>,
        clock: Clock,
    ) -> Self {
        let local = Arc::new(LocalStore::new(local));
        let observer = Arc::new(Observer::new(name));
        let store: Arc<dyn Local<V>> = Arc::clone(&local) as _;
        let engine = Arc::new(Engine::new(engine, clock, store, Arc::clone(&observer) as _));
        let (tidying, longest_kept) = (AtomicBool::new(false), AtomicU64::new(0));
        Self(Arc::new(Inner { local, engine, observer, values, tidying, longest_kept }))
    }

    /// Returns the value of `key`, and computes it if there is none. Of all
    /// callers that ask at once, one computes; the others get its result.
    ///
    /// The computation runs on a task of its own: it goes on when the caller
    /// goes away. A panic in it goes on in the caller that started it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Inner`](crate::ErrorKind::Inner) when the computation
    /// fails, for every caller that waits for it, and the other kinds as they
    /// say. Where a stale value may stand in, that is returned instead.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a dropped caller leaves the computation running for the
    /// others, and its result is stored.
    pub async fn get_or_compute<K, F, Fut, E>(&self, key: K, compute: F) -> Result<V, Error>
    where
        K: ToKey,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        let (key, look) = match self.look_up(&key) {
            Ok(entry) => return Ok(entry.value.clone()),
            Err(miss) => miss,
        };
        let made = move || async move {
            let value = compute().await?;
            Ok::<Made<V, V>, E>((Some(Computed::new(value.clone())), value))
        };
        Box::pin(self.0.serve_detached(key, look, made)).await.map(Served::into_value)
    }

    /// Like [`get_or_compute`](Self::get_or_compute), with a value that sets
    /// its own lifetime and tags, or is not to be stored.
    ///
    /// # Errors
    ///
    /// As [`get_or_compute`](Self::get_or_compute).
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// As [`get_or_compute`](Self::get_or_compute).
    pub async fn get_or_compute_with<K, F, Fut, E>(&self, key: K, compute: F) -> Result<V, Error>
    where
        K: ToKey,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Computed<V>, E>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        let (key, look) = match self.look_up(&key) {
            Ok(entry) => return Ok(entry.value.clone()),
            Err(miss) => miss,
        };
        let made = move || async move {
            let computed = compute().await?;
            let own = computed.value.clone();
            Ok::<Made<V, V>, E>((Some(computed), own))
        };
        Box::pin(self.0.serve_detached(key, look, made)).await.map(Served::into_value)
    }

    /// Like [`get_or_compute`](Self::get_or_compute), with a computation that
    /// may borrow: it runs inside the caller's future.
    ///
    /// Nothing can run in the background for such a caller, so the first that
    /// finds a stale value refreshes it itself, while the others are served
    /// the stale one.
    ///
    /// # Errors
    ///
    /// As [`get_or_compute`](Self::get_or_compute).
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, or when the computation does.
    ///
    /// # Cancel safety
    ///
    /// A dropped leader loses its work and hands the lead to one of those who
    /// wait. One that is neither polled nor dropped is deposed a second after
    /// its `compute_timeout`.
    pub async fn get_or_compute_scoped<K, F, Fut, E>(&self, key: K, compute: F) -> Result<V, Error>
    where
        K: ToKey,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<V, E>>,
        E: Into<BoxError>,
    {
        let (key, look) = match self.look_up(&key) {
            Ok(entry) => return Ok(entry.value.clone()),
            Err(miss) => miss,
        };
        let made = move || async move {
            let value = compute().await?;
            Ok::<Made<V, V>, E>((Some(Computed::new(value.clone())), value))
        };
        Box::pin(self.0.serve_inline(key, look, made)).await.map(Served::into_value)
    }

    /// Returns the value of `key` if it is fresh, or stale in its window. Never
    /// computes, refreshes or waits.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is awaited within one process.
    #[expect(clippy::unused_async, reason = "a remote store will be asked here")]
    pub async fn get<K: ToKey>(&self, key: K) -> Option<V> {
        // Judged once: a second judgement may draw the early refresh differently.
        let (entry, outcome) = match self.look_up(&key) {
            Ok(entry) => return Some(entry.value.clone()),
            Err((_, Look::Fresh(entry) | Look::Early(entry))) => (entry, CacheOutcome::Hit),
            Err((_, Look::Stale(entry))) => (entry, CacheOutcome::Stale),
            Err((_, Look::Miss(_))) => return None,
        };
        self.0.observer.answered(outcome);
        Some(entry.value.clone())
    }

    /// Stores `value` under `key`, in place of what is there or is being
    /// computed.
    ///
    /// When several writers put the same key at once, the last one to get here
    /// wins, which need not be the last one to write the database; where that
    /// matters, [`invalidate`](Self::invalidate) instead.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is awaited within one process.
    pub async fn put<K: ToKey>(&self, key: K, value: V) {
        self.put_with(key, Computed::new(value)).await;
    }

    /// Like [`put`](Self::put), with a value that sets its own lifetime and tags.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is awaited within one process.
    #[expect(clippy::unused_async, reason = "a remote store will be written here")]
    pub async fn put_with<K: ToKey>(&self, key: K, computed: Computed<V>) {
        let key = key.to_key();
        let inner = &self.0;
        inner.engine.table.forget(&key);
        if inner.engine.mode() == Mode::Off || !computed.storable {
            inner.local.remove(&key);
            return;
        }
        let started = Started { tick: inner.engine.clock.now(), seq: inner.engine.log.seq() };
        let (entry, keep) = inner.make_entry(computed, &key, started, Duration::ZERO);
        if keep {
            inner.local.fill(&key, Arc::new(entry), &|| true);
        } else {
            inner.local.remove(&key);
        }
        inner.tidy_from_now_on();
    }

    /// Removes the value of `key`. A computation that runs for it goes on for
    /// those who wait already; its result is not stored, and later callers
    /// start anew: who asks after this returns never gets the old value.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: within one process the work is done at the first poll.
    #[expect(clippy::unused_async, reason = "a remote store will be told here")]
    pub async fn invalidate<K: ToKey>(&self, key: K) -> Invalidation {
        let key = key.to_key();
        // In this order: a fill that is not refused is removed.
        let forgotten = self.0.engine.table.forget(&key);
        let removed = self.0.local.remove(&key);
        self.0.observer.invalidated("key", || Event::Invalidated { key });
        Invalidation { local: forgotten || removed }
    }

    /// Ends the use of every value that carries `tag`, also of those being
    /// computed now. Costs the same however many there are.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: within one process the work is done at the first poll.
    #[expect(clippy::unused_async, reason = "a remote store will be told here")]
    pub async fn invalidate_tag(&self, tag: impl Into<Tag>) -> Invalidation {
        self.0.invalidate_tag_now(tag.into());
        Invalidation { local: true }
    }

    /// Ends the use of every value, also of those being computed now.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: within one process the work is done at the first poll.
    pub async fn invalidate_all(&self) -> Invalidation {
        self.invalidate_tag("*").await
    }

    /// Makes the value of `key` stale now, as if its `ttl` had ended: within
    /// the stale window it is still served while it is refreshed. A running
    /// computation is treated as by [`invalidate`](Self::invalidate). Returns
    /// whether there was a value.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is awaited within one process.
    #[expect(clippy::unused_async, reason = "a remote store will be told here")]
    pub async fn mark_stale<K: ToKey>(&self, key: K) -> bool {
        let key = key.to_key();
        self.0.engine.table.forget(&key);
        self.0.mark_stale_now(&key)
    }

    /// Computes `key` now, however fresh the stored value is, and stores the
    /// result; meanwhile others are served what is there. Joins a computation
    /// that runs already.
    ///
    /// # Errors
    ///
    /// As [`get_or_compute`](Self::get_or_compute); what is stored stays. A
    /// hold is not waited for.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a dropped caller leaves the computation running.
    pub async fn refresh_with<K, F, Fut, E>(&self, key: K, compute: F) -> Result<V, Error>
    where
        K: ToKey,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        let made = move || async move {
            let value = compute().await?;
            Ok::<Made<V, V>, E>((Some(Computed::new(value.clone())), value))
        };
        Box::pin(self.0.recompute(key.to_key(), made)).await.map(Served::into_value)
    }

    /// Returns the counts. Reading them also sets the gauges of the `metrics`
    /// feature.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Returns a receiver of what happens from now on. One that falls more
    /// than 1024 events behind loses the oldest.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.0.observer.subscribe()
    }

    /// Returns how the cache is doing, for a health check.
    #[must_use]
    pub fn health(&self) -> Health {
        if self.0.engine.mode() == Mode::On { Health::Up } else { Health::Bypassed }
    }

    /// Returns whether the cache takes part.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.0.engine.mode()
    }

    /// Switches the cache at run time, for every clone and layer. Has no
    /// effect after [`shutdown`](Self::shutdown).
    pub fn set_mode(&self, mode: Mode) {
        self.0.engine.set_mode(mode);
        self.0.observer.emit(|| Event::ModeChanged { mode });
    }

    /// Switches the cache off and waits for running computations, at most
    /// until `deadline` has passed; then the rest is dropped. Returns how many
    /// were dropped.
    ///
    /// # Cancel safety
    ///
    /// A dropped shutdown leaves the cache off and the computations running.
    pub async fn shutdown(&self, deadline: Duration) -> usize {
        self.0.engine.shut_down(deadline).await
    }

    /// Returns the entry to serve as it is, or what to do without one.
    #[inline]
    fn look_up<K: ToKey>(&self, key: &K) -> Result<Arc<Entry<V>>, (Key, Look<V>)> {
        let key = KeyBuf::of(key);
        match self.0.look(key.as_bytes()) {
            Look::Fresh(entry) => {
                self.0.observer.answered(CacheOutcome::Hit);
                Ok(entry)
            }
            look => Err((key.to_key(), look)),
        }
    }
}

impl<V: Clone + Send + Sync + 'static> Inner<V> {
    /// Asks the store. The only place where an entry is judged before it is
    /// served.
    #[inline]
    pub(crate) fn look(&self, key: &[u8]) -> Look<V> {
        if self.engine.mode() == Mode::On { self.peek(key) } else { self.look_off_duty(key) }
    }

    #[cold]
    fn look_off_duty(&self, key: &[u8]) -> Look<V> {
        if self.engine.mode() == Mode::Observe && !matches!(self.peek(key), Look::Miss(_)) {
            self.observer.would_have_answered();
        }
        Look::Miss(None)
    }

    #[inline]
    pub(crate) fn peek(&self, key: &[u8]) -> Look<V> {
        let Some(entry) = self.local.get(key) else { return Look::Miss(None) };
        if !self.engine.log.is_alive(&entry) {
            return Look::Miss(None);
        }
        match self.judge(&entry) {
            Freshness::Fresh => Look::Fresh(entry),
            Freshness::Early => Look::Early(entry),
            Freshness::Stale => Look::Stale(entry),
            Freshness::StaleIfError => Look::Miss(Some(entry)),
            Freshness::Expired => Look::Miss(None),
        }
    }

    #[inline]
    pub(crate) fn judge(&self, entry: &Entry<V>) -> Freshness {
        let now = self.engine.clock.now();
        policy::decide(&entry.window, now, self.values.early.as_ref(), policy::sample)
    }

    /// Returns whether `entry` may stand in for a failure now.
    pub(crate) fn may_stand_in(&self, entry: &Entry<V>) -> bool {
        self.judge(entry) != Freshness::Expired && self.engine.log.is_alive(entry)
    }

    pub(crate) fn entry(
        self: &Arc<Self>,
        computed: Computed<V>,
        leader: &Leader<V>,
    ) -> (Arc<Entry<V>>, bool) {
        let (entry, keep) =
            self.make_entry(computed, leader.key(), leader.started(), leader.took());
        self.tidy_from_now_on();
        (Arc::new(entry), keep)
    }

    /// Makes an entry, and returns whether it is worth keeping.
    fn make_entry(
        &self,
        computed: Computed<V>,
        key: &Key,
        started: Started,
        took: Duration,
    ) -> (Entry<V>, bool) {
        let window = Window::new(started.tick, self.lifetimes(&computed), took);
        let weight = (self.values.weigher)(&computed.value) + key.heap_bytes();
        let entry = Entry::new(computed.value, window, computed.tags.into(), started.seq);
        let weight = weight + entry.tag_bytes();
        let keep = self.engine.clock.now() < window.useful_until();
        self.keeps_for(window);
        (entry.with_weight(weight, self.values.least_weight), keep)
    }

    fn lifetimes(&self, computed: &Computed<V>) -> Lifetimes {
        let negative =
            self.values.negative.filter(|(_, is)| is(&computed.value)).map(|(ttl, _)| ttl);
        let ours = negative.or(self.values.lifetimes.map(|lifetimes| lifetimes.ttl));
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
        lifetimes.jittered(self.values.jitter, policy::sample())
    }

    /// Remembers how long entries can be of use: the invalidation log keeps
    /// its records for as long.
    pub(crate) fn keeps_for(&self, window: Window) {
        let span = window.useful_until().since(window.started);
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.longest_kept.fetch_max(nanos, Ordering::Relaxed);
    }

    pub(crate) fn invalidate_tag_now(&self, tag: Tag) {
        let everything = tag.is_everything();
        let seq = self.engine.log.invalidate(tag.clone(), self.engine.clock.now());
        if everything {
            self.engine.table.forget_before(seq);
        }
        let kind = if everything { "all" } else { "tag" };
        self.observer.invalidated(kind, || Event::TagInvalidated { tag });
    }

    pub(crate) fn mark_stale_now(&self, key: &Key) -> bool {
        let Some(entry) = self.local.get(key.as_bytes()) else { return false };
        let window = entry.window.stale_from(self.engine.clock.now());
        // Cloned before the key is locked: a value's `clone` is the user's code.
        let marked = Arc::new(entry.with_window(window));
        self.local.update(key, |current| {
            current.filter(|current| Arc::ptr_eq(current, &entry)).map(|_| marked)
        })
    }

    pub(crate) fn stats(&self) -> Stats {
        self.local.settle();
        let stats = Stats {
            evictions: self.local.evictions(),
            entries: self.local.entries(),
            bytes: self.local.bytes(),
            flights: self.engine.table.running(),
            waiting: self.engine.waiting(),
            ..self.observer.stats()
        };
        self.observer.gauge(&stats);
        stats
    }

    /// Starts the task that tidies a quiet cache, once. It ends with the cache.
    pub(crate) fn tidy_from_now_on(self: &Arc<Self>)
    where
        V: Clone,
    {
        if self.tidying.load(Ordering::Relaxed) {
            return;
        }
        // Outside of a runtime the next fill tries again.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !self.tidying.swap(true, Ordering::Relaxed) {
            runtime.spawn(tidy(Tidying(Arc::downgrade(self))));
        }
    }

    async fn sweep(&self) {
        let now = self.engine.clock.now();
        let dead = |entry: &Entry<V>| {
            now >= entry.window.useful_until() || !self.engine.log.is_alive(entry)
        };
        self.local.sweep(dead).await;
        self.engine.sweep(Duration::from_nanos(self.longest_kept.load(Ordering::Relaxed)));
        self.stats();
    }
}

/// The claim to be the one who tidies. Given up however the task ends: a cache
/// may outlive its runtime, and is tidied on the next one it is used on.
struct Tidying<V: Clone + Send + Sync + 'static>(Weak<Inner<V>>);

impl<V: Clone + Send + Sync + 'static> Drop for Tidying<V> {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.tidying.store(false, Ordering::Relaxed);
        }
    }
}

/// Sweeps until the cache is gone, or the runtime.
async fn tidy<V: Clone + Send + Sync + 'static>(tidying: Tidying<V>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        let Some(inner) = tidying.0.upgrade() else { return };
        inner.sweep().await;
    }
}

impl<V: Clone + Send + Sync + 'static> Inner<V> {
    /// Answers a caller that found nothing fresh, with a computation that can
    /// run on its own task.
    pub(crate) async fn serve_detached<T, E, F, Fut>(
        self: &Arc<Self>,
        key: Key,
        look: Look<V>,
        work: F,
    ) -> Result<Served<V, T>, Error>
    where
        T: Send + 'static,
        E: Into<BoxError> + Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Made<V, T>, E>> + Send + 'static,
    {
        let result = match look {
            Look::Fresh(entry) => Ok(Served::Entry(entry, CacheOutcome::Hit)),
            Look::Early(entry) => {
                self.refresh(key, &entry, work);
                Ok(Served::Entry(entry, CacheOutcome::Hit))
            }
            Look::Stale(entry) => {
                self.refresh(key, &entry, work);
                Ok(Served::Entry(entry, CacheOutcome::Stale))
            }
            Look::Miss(_) if self.engine.mode() != Mode::On => {
                self.off_duty(key, work, |l, f, w| self.lead_detached(l, f, w), alone).await
            }
            Look::Miss(stale) => {
                let caller = KeyCaller::new(self, &key, stale);
                serve::resolve(self, caller, work, |l, f, w| self.lead_detached(l, f, w), alone)
                    .await
            }
        };
        self.count(result)
    }

    /// The same with a computation that runs inside the caller.
    pub(crate) async fn serve_inline<T, E, F, Fut>(
        self: &Arc<Self>,
        key: Key,
        look: Look<V>,
        work: F,
    ) -> Result<Served<V, T>, Error>
    where
        E: Into<BoxError>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<Made<V, T>, E>>,
    {
        let lead = |leader, fallbacks, work| serve::lead(Arc::clone(self), leader, fallbacks, work);
        let result = match look {
            Look::Fresh(entry) => Ok(Served::Entry(entry, CacheOutcome::Hit)),
            Look::Early(entry) => self.refresh_inline(key, entry, CacheOutcome::Hit, work).await,
            Look::Stale(entry) => self.refresh_inline(key, entry, CacheOutcome::Stale, work).await,
            Look::Miss(_) if self.engine.mode() != Mode::On => {
                self.off_duty(key, work, lead, alone).await
            }
            Look::Miss(stale) => {
                let caller = KeyCaller::new(self, &key, stale);
                serve::resolve(self, caller, work, lead, alone).await
            }
        };
        self.count(result)
    }

    /// Computes for this caller alone, and stores where nobody else computes.
    async fn off_duty<T, W, L, LF, A, AF>(
        self: &Arc<Self>,
        key: Key,
        work: W,
        lead: L,
        alone: A,
    ) -> Result<Served<V, T>, Error>
    where
        L: FnOnce(Leader<V>, serve::Fallbacks, W) -> LF,
        LF: Future<Output = Result<T, Error>>,
        A: FnOnce(W) -> AF,
        AF: Future<Output = Result<T, Error>>,
    {
        let fallbacks = serve::Fallbacks { can_serve_stale: false };
        let mut boarding = Boarding::to(key).without_waiting();
        boarding.despite_hold = true;
        let own = match self.engine.enter(&boarding, &mut None) {
            Entered::Lead(leader) => lead(leader, fallbacks, work).await,
            _ => self.timed_alone(alone(work)).await,
        };
        own.map(|own| Served::Own(own, CacheOutcome::Alone))
    }

    async fn recompute<E, F, Fut>(
        self: &Arc<Self>,
        key: Key,
        work: F,
    ) -> Result<Served<V, V>, Error>
    where
        E: Into<BoxError> + Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Made<V, V>, E>> + Send + 'static,
    {
        let caller = serve::Recompute::of(&key);
        let result =
            serve::resolve(self, caller, work, |l, f, w| self.lead_detached(l, f, w), alone);
        let result = result.await;
        self.count(result)
    }

    async fn lead_detached<T, E, F, Fut>(
        self: &Arc<Self>,
        leader: Leader<V>,
        fallbacks: serve::Fallbacks,
        work: F,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        E: Into<BoxError> + Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Made<V, T>, E>> + Send + 'static,
    {
        let lead = serve::lead(Arc::clone(self), leader, fallbacks, work);
        self.engine.detached(lead).await.and_then(std::convert::identity)
    }

    fn refresh<T, E, F, Fut>(self: &Arc<Self>, key: Key, seen: &Arc<Entry<V>>, work: F)
    where
        T: Send + 'static,
        E: Into<BoxError> + Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Made<V, T>, E>> + Send + 'static,
    {
        let fallbacks = serve::Fallbacks { can_serve_stale: true };
        let boarding = Boarding::to(key).without_waiting();
        let unchanged = || self.is_still(boarding.key.as_bytes(), seen);
        self.engine.refresh(&boarding, unchanged, |leader| {
            let lead = serve::lead(Arc::clone(self), leader, fallbacks, work);
            async move { drop(lead.await) }
        });
    }

    /// Returns whether the store still holds the very entry that was seen.
    pub(crate) fn is_still(&self, key: &[u8], seen: &Arc<Entry<V>>) -> bool {
        self.local.get(key).is_some_and(|entry| Arc::ptr_eq(&entry, seen))
    }

    async fn refresh_inline<T, E, F, Fut>(
        self: &Arc<Self>,
        key: Key,
        seen: Arc<Entry<V>>,
        otherwise: CacheOutcome,
        work: F,
    ) -> Result<Served<V, T>, Error>
    where
        E: Into<BoxError>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<Made<V, T>, E>>,
    {
        let boarding = Boarding::to(key).without_waiting();
        if let Entered::Lead(leader) = self.engine.enter(&boarding, &mut None) {
            if !self.is_still(boarding.key.as_bytes(), &seen) {
                leader.withdraw();
            } else {
                let fallbacks = serve::Fallbacks { can_serve_stale: true };
                let lead = serve::lead(Arc::clone(self), leader, fallbacks, work);
                if let Ok(own) = lead.await {
                    return Ok(Served::Own(own, CacheOutcome::Computed));
                }
            }
        }
        Ok(Served::Entry(seen, otherwise))
    }

    fn count<T>(&self, result: Result<Served<V, T>, Error>) -> Result<Served<V, T>, Error> {
        let outcome = match &result {
            Ok(Served::Entry(_, outcome) | Served::Own(_, outcome)) => *outcome,
            Err(error) if error.kind() == crate::ErrorKind::Inner => CacheOutcome::Computed,
            Err(_) => CacheOutcome::Refused,
        };
        self.observer.answered(outcome);
        result
    }
}

async fn alone<V, T, E, F, Fut>(work: F) -> Result<T, Error>
where
    E: Into<BoxError>,
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<Made<V, T>, E>>,
{
    work().await.map(|(_, own)| own).map_err(Error::inner_error)
}

impl<V: Clone> Served<V, V> {
    fn into_value(self) -> V {
        match self {
            Self::Entry(entry, _) => entry.value.clone(),
            Self::Own(value, _) => value,
        }
    }
}

// Derived `Clone` would ask nothing more, but count one reference it is.
impl<V: Clone + Send + Sync + 'static> Clone for Stampede<V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<V: Clone + Send + Sync + 'static> std::fmt::Debug for Stampede<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stampede").field("mode", &self.mode()).finish_non_exhaustive()
    }
}

/// A reading of the clock as the layers need it.
impl<V: Clone + Send + Sync + 'static> Inner<V> {
    pub(crate) fn now(&self) -> Tick {
        self.engine.clock.now()
    }
}
