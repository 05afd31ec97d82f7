//! Every setting, once, checked together.
//!
//! The setters only collect. `build` checks all values together and makes the handle.

mod checks;
pub(crate) mod status_ttl;

use std::any::type_name;
use std::error::Error as StdError;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::budget::ByteBudget;
use crate::cache::builder::status_ttl::StatusTtl;
use crate::cache::handle::Stampede;
use crate::cache::state::CacheState;
use crate::cache::weights::{MOST_UNWEIGHED, Weigher, Weights};
use crate::clock::Clock;
use crate::error::{ConfigError, FailureAction};
use crate::flight::engine::{Engine, EngineSettings};
use crate::flight::hold_policy::HoldPolicy;
use crate::freshness::{EarlyRefresh, Lifetimes};
use crate::garbage::{EvictionCause, EvictionHook};
use crate::key::Key;
use crate::observe::{Observe, Occurrence};
use crate::store::{Eviction, LocalSettings};
use crate::weigh::Weigh;

/// Defaults of settings that follow another setting where that is narrower.
const MAX_HOLD: Duration = Duration::from_secs(60);
const MAX_WAITERS: u32 = 100_000;
const MAX_REFRESHES: usize = 256;

/// The longest time-out, a hundred years: clocks cannot count much further.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

pub(crate) type FailureHook =
    Arc<dyn Fn(&(dyn StdError + Send + Sync + 'static)) -> FailureAction + Send + Sync>;
/// How long negative values live, and which values those are.
pub(crate) type Negative<V> = (Duration, fn(&V) -> bool);

/// How values are kept; the part of the settings that outlives `build`.
#[derive(Clone)]
pub(crate) struct Values<V> {
    /// `None`: only what the origin's own headers allow.
    pub(crate) lifetimes: Option<Lifetimes>,
    pub(crate) stale_for: Duration,
    pub(crate) stale_if_error: Duration,
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "of HTTP's errors"))]
    pub(crate) status_ttl: StatusTtl,
    pub(crate) jitter: f64,
    pub(crate) early: Option<EarlyRefresh>,
    pub(crate) weights: Weights<V>,
    /// The bytes that bodies take which arrive.
    pub(crate) arriving: Arc<ByteBudget>,
    pub(crate) max_batch: usize,
    pub(crate) batch_window: Duration,
    pub(crate) negative: Option<Negative<V>>,
    pub(crate) on_failure: Option<FailureHook>,
}

/// Collects the settings of a [`Stampede`].
///
/// Nothing is checked before [`build`](Builder::build), which checks
/// everything together.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::Stampede;
///
/// let cache: Stampede<String> = Stampede::builder("users")
///     .ttl(Duration::from_secs(30))
///     .stale_for(Duration::from_secs(300))
///     .max_bytes(16 << 20)
///     .build()?;
/// # Ok::<(), tower_stampede::ConfigError>(())
/// ```
#[must_use = "a builder does nothing before `build`"]
pub struct Builder<V> {
    name: String,
    ttl: Option<Duration>,
    origin_only: bool,
    stale_for: Duration,
    stale_if_error: Duration,
    status_ttl: StatusTtl,
    negative: Option<Negative<V>>,
    jitter: f64,
    early_refresh: Option<f64>,
    early_refresh_share: f64,
    compute_timeout: Duration,
    lease: Duration,
    wait_timeout: Option<Duration>,
    compute_after_wait: bool,
    hold: Duration,
    max_hold: Option<Duration>,
    uncacheable_for: Duration,
    max_bytes: u64,
    max_entries: Option<u64>,
    max_arriving_bytes: Option<u64>,
    eviction: Eviction,
    max_waiters: Option<u32>,
    max_waiters_in_all: usize,
    max_computations: usize,
    max_refreshes: Option<usize>,
    max_logged_tags: usize,
    max_batch: usize,
    batch_window: Duration,
    weigher: Option<Weigher<V>>,
    on_failure: Option<FailureHook>,
    on_eviction: Option<EvictionHook<V>>,
    clock: Option<Clock>,
    schema: u32,
    log_keys: bool,
    attach: Option<Attach<V>>,
    local_ttl: Option<Duration>,
    /// Where the settings stand in a file; errors name it.
    path: String,
    value: PhantomData<fn() -> V>,
}

/// Gives an engine its remote, if the settings of both fit.
pub(crate) type Attach<V> =
    Box<dyn FnOnce(Attaching<'_, V>) -> Result<(), ConfigError> + Send + Sync>;

/// What a remote must know of the cache it is for.
#[cfg_attr(not(feature = "remote"), expect(dead_code, reason = "there is no remote to read it"))]
pub(crate) struct Attaching<'a, V> {
    pub(crate) name: &'a str,
    pub(crate) lease: Duration,
    pub(crate) wait_timeout: Duration,
    pub(crate) compute_timeout: Duration,
    pub(crate) schema: u32,
    pub(crate) weights: Weights<V>,
    pub(crate) engine: &'a Arc<Engine<V>>,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $t:ty;)+) => {$(
        $(#[$doc])*
        pub fn $name(mut self, $name: $t) -> Self {
            self.$name = $name;
            self
        }
    )+};
}

impl<V: Clone + Send + Sync + 'static> Builder<V> {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ttl: None,
            origin_only: false,
            stale_for: Duration::ZERO,
            stale_if_error: Duration::ZERO,
            status_ttl: StatusTtl::new(),
            negative: None,
            jitter: 0.1,
            early_refresh: None,
            early_refresh_share: 0.25,
            compute_timeout: Duration::from_secs(30),
            lease: Duration::from_secs(5),
            wait_timeout: None,
            compute_after_wait: false,
            hold: Duration::from_secs(1),
            max_hold: None,
            uncacheable_for: Duration::from_secs(30),
            max_bytes: 64 << 20,
            max_entries: None,
            max_arriving_bytes: None,
            eviction: Eviction::default(),
            max_waiters: None,
            max_waiters_in_all: 1_000_000,
            max_computations: 1024,
            max_refreshes: None,
            max_logged_tags: 100_000,
            max_batch: 1000,
            batch_window: Duration::ZERO,
            weigher: None,
            on_failure: None,
            on_eviction: None,
            clock: None,
            schema: 0,
            log_keys: false,
            attach: None,
            local_ttl: None,
            path: String::new(),
            value: PhantomData,
        }
    }

    /// Sets how long a value is fresh, counted from the end of its
    /// computation, or from the call of `put`.
    ///
    /// A computation reads its data after its start, so a fresh value is at
    /// most `ttl` + `compute_timeout` old. A result that took longer, because
    /// the mode was not `On` or the leader was not polled, is not stored. There
    /// is no default: a wrong guess would be wrong silently.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Stores only what the origin's own headers allow, in place of a `ttl`.
    /// For HTTP. A generic value has no headers: it is stored only where it
    /// sets its own lifetime ([`Computed::ttl`](crate::Computed::ttl)).
    pub fn origin_only(mut self) -> Self {
        self.origin_only = true;
        self
    }

    setters! {
        /// Sets for how long after its `ttl` a value is served stale, at once,
        /// while one background refresh runs (`stale-while-revalidate`, RFC
        /// 5861 section 3). Defaults to 0.
        stale_for: Duration;
        /// Sets for how long after its `ttl` a value is served in place of a
        /// failure (`stale-if-error`, RFC 5861 section 4). Defaults to 0.
        stale_if_error: Duration;
        /// Sets the share of the `ttl` by which lifetimes are shortened at
        /// random, from 0 up to but not including 1, so that what was filled
        /// together does not end together. Defaults to 0.1.
        jitter: f64;
        /// Sets the part of the `ttl`, before its end, in which early
        /// refreshes may fall. Defaults to 0.25.
        early_refresh_share: f64;
        /// Sets after how long a computation is dropped. For services this
        /// covers readiness and the response's head. The time in the queue of
        /// `max_computations` does not count. While the mode is not `On`, it
        /// ends no computation. Defaults to 30 s.
        compute_timeout: Duration;
        /// Sets how long a leader may go silent before another process takes
        /// over; renewed at a third. Counts into the default of
        /// `wait_timeout`, and has no other effect within one process. With a
        /// remote it must be shorter than `wait_timeout`, and longer than
        /// three times the remote's `op_timeout`. Defaults to 5 s.
        lease: Duration;
        /// Sets how long no caller computes a key after a failure. Callers
        /// without a stale value get `Held` for this long, however many
        /// failures came in a row. For callers with one it is up to a tenth
        /// shorter, so that keys that failed together are not tried together.
        ///
        /// The hold ends early when the data may have changed: with
        /// `invalidate`, `put` or `mark_stale` of the key, `invalidate_all`, or
        /// a successful computation. With a remote, only `invalidate` and `put` end
        /// the hold of all processes. Two minutes after a hold, its failures are
        /// forgotten. Defaults to 1 s.
        hold: Duration;
        /// Sets how many keys one call of a batch loader gets at most; more keys are several
        /// calls, side by side. See [`Stampede::get_many`]. Defaults to 1000.
        max_batch: usize;
        /// Sets for how long the first of several callers of
        /// [`Cache::get`](crate::Cache::get) that miss waits for the others, so that one call
        /// of the loader serves them all. It has an effect on caches with a batch loader
        /// ([`Cache::batched`](crate::Cache::batched)) alone, and delays every miss there. A
        /// few milliseconds are a good start. Defaults to 0: a single caller waits for no
        /// other.
        batch_window: Duration;
        /// Sets how long a key is remembered as uncacheable: its callers do not
        /// wait for each other. Defaults to 30 s.
        uncacheable_for: Duration;
        /// Sets the bound on the memory of all entries together, in bytes. An
        /// entry weighs what it takes: its value, with what that holds on the
        /// heap; its key and tags; and about half a kilobyte for its places in
        /// the store. An entry heavier than the bound is handed to its callers
        /// and not stored.
        ///
        /// What a value holds on the heap is known for types without a
        /// destructor (nothing), for `String`, `Vec<u8>`, `Bytes`, `Arc` and
        /// `Box` of `str` and `[u8]`, `Option`s of these, and stored responses.
        /// For other types call [`weigh`](Self::weigh) or
        /// [`weigher`](Self::weigher), or set `max_entries`. Without any of
        /// these, the cache holds at most 10,000 entries, and says so in the
        /// log, once, at WARN (feature `tracing`).
        ///
        /// The bound holds after each write, but for values that callers still read; with one of
        /// moka's policies, see [`eviction`](Self::eviction), up to a thirty-second part of the
        /// bound per thread that writes is held beyond it for a moment. The process grows
        /// by the allocator's fragments, too; with glibc and several threads these
        /// can be large (see the guide, *Bounds*). Not counted: values that callers hold,
        /// bodies of HTTP responses that still arrive (see `max_arriving_bytes`),
        /// flights and waiters, and about 100 KiB for an empty cache. Defaults to 64 MiB.
        max_bytes: u64;
        /// Sets which entry makes room at the bound. Defaults to
        /// [`Eviction::ByPrice`].
        eviction: Eviction;
        /// Sets how many callers may wait in all. A leader that queues for one
        /// of the `max_computations` counts, too. Over the bound a caller gets a
        /// stale value where one may stand in, else `Overloaded`. Defaults to
        /// 1,000,000.
        max_waiters_in_all: usize;
        /// Sets how many computations may run at once. Each takes a place.
        ///
        /// *What queues:* a leader whose caller has no value in hand. It waits
        /// at most `wait_timeout`, first come, first served, and leaves when its
        /// caller and all its waiters have gone. A background refresh and an
        /// inline caller with a stale value do not queue: without a free place
        /// the stale value is served, and the next reader tries again.
        ///
        /// *What lends:* a computation that asks the same handle for another
        /// key waits for it, so it lends its place to that computation, one at a
        /// time. Nested computations need no place beyond the outer one. Work
        /// that a computation spawns (`tokio::spawn`) is not seen as a part of
        /// it: nothing is lent to it, and it queues like any other caller.
        ///
        /// *What returns:* the place of a computation that has been silent for a
        /// second longer than its time-out goes to the next caller that needs
        /// one.
        ///
        /// Callers that compute for themselves because values of the key are not
        /// shared need no place; neither does any caller while the mode is not
        /// `On`. Defaults to 1024.
        max_computations: usize;
        /// Sets how many invalidated tags the process remembers. At the bound
        /// the oldest eighth of the records is dropped, after every local entry
        /// was checked against them: no unrelated entry ends because of that. A
        /// computation that began before a dropped record, and whose tags are
        /// known only with its result, counts as invalidated: its callers get
        /// the result, and it is not stored.
        ///
        /// A task in the background makes room from three quarters of the bound
        /// on. When it does not keep up, the invalidation that reaches the bound
        /// checks the local entries itself: about a second for a million of
        /// them on a free core. Defaults to 100,000.
        max_logged_tags: usize;
        /// Sets the number of the format in which values leave the process.
        /// Values of another number are a miss: raise it when the fields of
        /// `V` change. Defaults to 0; without a remote it has no effect.
        schema: u32;
        /// Sets whether log lines and spans carry the key itself (`key`), beside its hash
        /// (`key_hash`): escaped to printable ASCII, and cut after 200 bytes. Has an effect
        /// with the feature `tracing`.
        ///
        /// This is a decision about privacy. A key often holds what identifies a person: a
        /// user's number, an address, over HTTP the path and the query of the request. With
        /// `true` it gets into every log that the subscriber writes, and to every reader of
        /// it. Without it, find the lines of a key by
        /// [`Stampede::hash_of`](crate::Stampede::hash_of). Metrics never carry a key.
        /// Defaults to `false`.
        log_keys: bool;
    }

    /// Sets how long a caller waits for another caller's computation, or in the
    /// queue of `max_computations`. Then it is served a stale value where one
    /// may stand in, else it is refused. Defaults to `lease` +
    /// `compute_timeout`.
    pub fn wait_timeout(mut self, wait_timeout: Duration) -> Self {
        self.wait_timeout = Some(wait_timeout);
        self
    }

    /// Sets up to where the hold doubles, failure by failure, for callers
    /// that are served a stale value meanwhile. It never lasts longer than
    /// that value may be served. Defaults to 60 s, or to `hold` if that is longer.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Sets how many callers may wait for one key. Defaults to 100,000, or to
    /// `max_waiters_in_all` if that is less.
    pub fn max_waiters(mut self, max_waiters: u32) -> Self {
        self.max_waiters = Some(max_waiters);
        self
    }

    /// Sets how many background refreshes may run at once. Only a refresh that
    /// starts a computation counts. Further ones are left to the next reader.
    /// Defaults to 256, or to `max_computations` if that is less.
    pub fn max_refreshes(mut self, max_refreshes: usize) -> Self {
        self.max_refreshes = Some(max_refreshes);
        self
    }

    /// Lets a caller that waited for `wait_timeout` compute for itself, in place
    /// of being refused, if one of the `max_computations` places is free. The
    /// result is the caller's alone: it is not stored, also not that of a
    /// `refresh`.
    pub fn compute_after_wait(mut self) -> Self {
        self.compute_after_wait = true;
        self
    }

    /// Refreshes before the end of the `ttl`, by chance (XFetch; Vattani,
    /// Chierichetti, Lowenstein, PVLDB 8, 2015): `beta` 1 is the paper's
    /// optimum, larger is earlier. Off by default.
    pub fn early_refresh(mut self, beta: f64) -> Self {
        self.early_refresh = Some(beta);
        self
    }

    /// Sets a bound on the number of entries, beside the one on their memory: each
    /// then weighs at least `max_bytes / max_entries`. Which bound is
    /// reached first depends on what the values weigh. Unset by default; see
    /// [`max_bytes`](Self::max_bytes) for types that cannot be weighed.
    pub fn max_entries(mut self, max_entries: u64) -> Self {
        self.max_entries = Some(max_entries);
        self
    }

    /// Weighs values by their [`Weigh`]: what they hold on the heap counts
    /// against `max_bytes`. Replaces a `weigher`.
    pub fn weigh(self) -> Self
    where
        V: Weigh,
    {
        self.weigher(V::heap_bytes)
    }

    /// Sets how many bytes a value holds on the heap, beside the size of `V`
    /// itself, which the cache adds: for types without [`Weigh`]. Called once
    /// per fill, never under a lock. Unset by default; see
    /// [`max_bytes`](Self::max_bytes) for what is known without it.
    pub fn weigher(mut self, weigher: impl Fn(&V) -> usize + Send + Sync + 'static) -> Self {
        self.weigher = Some(Arc::new(weigher));
        self
    }

    /// Sets what a failure does to the waiters and to the callers that come next.
    /// The hook sees the computation's own error and must not panic. It is not
    /// asked about a time-out, nor about a second panic in a row: they begin a
    /// hold. Defaults to [`FailureAction::Hold`] for every error. For a typed cache, see
    /// [`Cache::on_failure`](crate::Cache::on_failure).
    ///
    /// # Examples
    ///
    /// "Not found" is an answer, and worth remembering; "the database is down" is not:
    ///
    /// ```
    /// use std::io::{Error, ErrorKind};
    /// use std::time::Duration;
    /// use tower_stampede::{FailureAction, Stampede};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let files: Stampede<String> = Stampede::builder("files")
    ///     .ttl(Duration::from_secs(60))
    ///     .on_failure(|error| match error.downcast_ref::<Error>().map(Error::kind) {
    ///         Some(ErrorKind::NotFound) => FailureAction::Remember(Duration::from_secs(10)),
    ///         _ => FailureAction::Hold,
    ///     })
    ///     .build()
    ///     .unwrap();
    /// for _ in 0..3 {
    ///     let load = || async { Err::<String, _>(Error::from(ErrorKind::NotFound)) };
    ///     let error = files.get_or_compute("a.txt", load).await.unwrap_err();
    ///     assert_eq!(error.inner::<Error>().unwrap().kind(), ErrorKind::NotFound);
    /// }
    /// assert_eq!(files.stats().computations, 1);
    /// # }
    /// ```
    pub fn on_failure(
        mut self,
        hook: impl Fn(&(dyn StdError + Send + Sync + 'static)) -> FailureAction + Send + Sync + 'static,
    ) -> Self {
        self.on_failure = Some(Arc::new(hook));
        self
    }

    /// Sets what is told of each entry that leaves the store of this process, and why. Without
    /// a remote that is every value that ends, but for those that live when the cache is
    /// dropped.
    ///
    /// The hook runs on the task that writes next, or on the one that tidies: up to half a
    /// minute after the end of a lifetime, and after the removal of an entry as soon as another
    /// operation writes. No lock of the cache is held: the hook may call the cache. A panic
    /// ends at the hook.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::{EvictionCause, Stampede};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let (told, removed) = std::sync::mpsc::channel();
    /// let cache = Stampede::builder("files")
    ///     .ttl(Duration::from_secs(60))
    ///     .on_eviction(move |key, value: &u32, cause| {
    ///         let _ = told.send((key.clone(), *value, cause));
    ///     })
    ///     .build()
    ///     .unwrap();
    /// cache.put("a", 1).await;
    /// cache.invalidate("a").await;
    /// assert_eq!(removed.recv().unwrap(), ("a".into(), 1, EvictionCause::Invalidated));
    /// # }
    /// ```
    pub fn on_eviction(
        mut self,
        hook: impl Fn(&Key, &V, EvictionCause) + Send + Sync + 'static,
    ) -> Self {
        self.on_eviction = Some(Arc::new(hook));
        self
    }

    /// Judges freshness by `clock`, which moves only when told to.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn clock(mut self, clock: &crate::clock::ManualClock) -> Self {
        self.clock = Some(Clock::Manual(clock.clone()));
        self
    }

    /// Checks all settings together and makes the handle.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] when a setting is out of its range or two
    /// contradict each other. Its text names the settings, their values, the rule
    /// and the remedy.
    pub fn build(mut self) -> Result<Stampede<V>, ConfigError> {
        self.check().map_err(|error| error.at(&self.path))?;
        let engine = self.engine_settings();
        let clock = self.clock.clone().unwrap_or_else(Clock::runtime);
        let (name, attach) = (self.name.clone(), self.attach.take());
        let path = std::mem::take(&mut self.path);
        let (lease, schema, local_ttl) = (self.lease, self.schema, self.local_ttl);
        let (eviction, on_eviction) = (self.eviction, self.on_eviction.take());
        let values = self.values();
        let max_bytes = values.weights.capacity();
        let local = LocalSettings {
            name: name.clone(),
            max_bytes,
            eviction,
            on_eviction,
            clock: clock.clone(),
            local_ttl,
        };
        let inner = CacheState::new(engine, &local, values, clock);
        if !inner.values.weights.is_complete() {
            let (type_name, max_entries) = (type_name::<V>(), MOST_UNWEIGHED);
            inner.observer.happened(Occurrence::Unweighed { type_name, max_entries });
        }
        if let Some(attach) = attach {
            let settings = &inner.engine.settings;
            attach(Attaching {
                name: &name,
                lease,
                wait_timeout: settings.wait_timeout,
                compute_timeout: settings.compute_timeout,
                schema,
                weights: inner.values.weights.clone(),
                engine: &inner.engine,
            })
            .map_err(|error| error.at(&path))?;
        }
        Ok(Stampede(Arc::new(inner)))
    }

    #[cfg(feature = "serde")]
    pub(super) fn settings_at(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// Sets how the engine gets its remote, and how long copies of what it has are used.
    #[cfg_attr(not(feature = "remote"), expect(dead_code, reason = "there is no remote to attach"))]
    pub(crate) fn attach(mut self, local_ttl: Option<Duration>, attach: Attach<V>) -> Self {
        self.attach = Some(attach);
        self.local_ttl = local_ttl;
        self
    }

    fn engine_settings(&self) -> EngineSettings {
        let wait_timeout = self.wait_timeout;
        let wait_timeout = wait_timeout.unwrap_or(self.lease.saturating_add(self.compute_timeout));
        EngineSettings {
            name: self.name.clone(),
            log_keys: self.log_keys,
            compute_timeout: self.compute_timeout.min(LONGEST),
            wait_timeout: wait_timeout.min(LONGEST),
            compute_after_wait: self.compute_after_wait,
            hold: HoldPolicy { first: self.hold, longest: self.longest_hold() },
            uncacheable_for: self.uncacheable_for,
            max_waiters: self.waiters_of_one_key(),
            max_waiters_in_all: self.max_waiters_in_all,
            max_computations: self.max_computations,
            max_refreshes: self.refreshes(),
            max_logged_tags: self.max_logged_tags,
        }
    }

    fn longest_hold(&self) -> Duration {
        self.max_hold.unwrap_or(MAX_HOLD.max(self.hold))
    }

    fn waiters_of_one_key(&self) -> u32 {
        let in_all = u32::try_from(self.max_waiters_in_all).unwrap_or(u32::MAX);
        self.max_waiters.unwrap_or(MAX_WAITERS.min(in_all))
    }

    fn refreshes(&self) -> usize {
        self.max_refreshes.unwrap_or(MAX_REFRESHES.min(self.max_computations))
    }

    fn values(self) -> Values<V> {
        let lifetimes = self.ttl.map(|ttl| Lifetimes {
            ttl,
            stale_for: self.stale_for,
            stale_if_error: self.stale_if_error,
        });
        Values {
            lifetimes,
            stale_for: self.stale_for,
            stale_if_error: self.stale_if_error,
            status_ttl: self.status_ttl,
            jitter: self.jitter,
            early: self
                .early_refresh
                .map(|beta| EarlyRefresh { beta, max_share: self.early_refresh_share }),
            arriving: ByteBudget::new(self.max_arriving_bytes.unwrap_or(self.max_bytes)),
            weights: Weights::new(
                self.weigher,
                self.eviction.entry_bytes(),
                self.max_bytes,
                self.max_entries,
            ),
            max_batch: self.max_batch,
            batch_window: self.batch_window,
            negative: self.negative,
            on_failure: self.on_failure,
        }
    }
}

impl<T: Clone + Send + Sync + 'static> Builder<Option<T>> {
    /// Sets how long a `None` is fresh, where that differs from the `ttl`:
    /// the absence of a thing is often worth remembering, for less long.
    /// Counted from the end of the computation, as the `ttl` is.
    pub fn negative_ttl(mut self, ttl: Duration) -> Self {
        self.negative = Some((ttl, Option::is_none));
        self
    }
}

#[cfg(feature = "http")]
#[cfg_attr(docsrs, doc(cfg(feature = "http")))]
impl Builder<crate::http::StoredResponse> {
    /// Sets the bound on the bytes of all response bodies together that arrive and are to be
    /// stored or shared, beside `max_bytes`. A body with a declared length takes that when
    /// its head arrives, another one what has come. It gives the bytes back when it is
    /// complete, breaks off, or is not kept any longer. Defaults to `max_bytes`.
    ///
    /// At the bound no request fails: the response is passed on unshared, as one is that is
    /// too large to be stored. Its caller reads the body as it comes, and the waiters forward
    /// their own requests. The key is not remembered as uncacheable. `Cache-Status` says
    /// `detail=no-room`; such responses are counted in
    /// [`Stats::refused_bodies`](crate::Stats::refused_bodies) and reported as
    /// [`Event::BodyRefused`](crate::Event::BodyRefused).
    ///
    /// Not counted: a body that is there at once, and what slow clients still read of a body
    /// that has arrived or is not kept any longer. Of the latter each slow client can hold up to
    /// `HttpLayer::max_body`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_stampede::{HttpStampede, Stampede};
    ///
    /// let cache: HttpStampede = Stampede::builder("site")
    ///     .origin_only()
    ///     .max_bytes(256 << 20)
    ///     .max_arriving_bytes(32 << 20)
    ///     .build()?;
    /// # Ok::<(), tower_stampede::ConfigError>(())
    /// ```
    pub fn max_arriving_bytes(mut self, max_arriving_bytes: u64) -> Self {
        self.max_arriving_bytes = Some(max_arriving_bytes);
        self
    }
}

impl<V> fmt::Debug for Builder<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}
