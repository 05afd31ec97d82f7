//! Every setting, once, checked together.
//!
//! The setters only collect. `build` checks all values together and makes the handle.

use std::error::Error as StdError;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::cache::handle::Stampede;
use crate::cache::state::CacheState;
use crate::clock::Clock;
use crate::entry::TOO_HEAVY;
use crate::error::ConfigError;
use crate::flight::engine::{Engine, EngineSettings};
use crate::flight::hold_policy::HoldPolicy;
use crate::freshness::{EarlyRefresh, Lifetimes};
use crate::store::{Eviction, LocalSettings};

/// What to do when a computation fails; see [`Builder::on_failure`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureAction {
    /// The waiters share the failure, and no caller tries again for `hold`.
    #[default]
    Hold,
    /// The waiters share the failure; the next caller tries again.
    ShareOnly,
    /// Each waiter tries for itself, in parallel.
    EachItself,
}

/// The longest time-out, a hundred years: clocks cannot count much further.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

pub(crate) type FailureHook =
    Arc<dyn Fn(&(dyn StdError + Send + Sync + 'static)) -> FailureAction + Send + Sync>;
/// How long negative values live, and which values those are.
pub(crate) type Negative<V> = (Duration, fn(&V) -> bool);
pub(crate) type Weigher<V> = Arc<dyn Fn(&V) -> usize + Send + Sync>;

/// How values are kept; the part of the settings that outlives `build`.
#[derive(Clone)]
pub(crate) struct Values<V> {
    /// `None`: only what the origin's own headers allow.
    pub(crate) lifetimes: Option<Lifetimes>,
    pub(crate) stale_for: Duration,
    pub(crate) stale_if_error: Duration,
    pub(crate) jitter: f64,
    pub(crate) early: Option<EarlyRefresh>,
    pub(crate) least_weight: u32,
    pub(crate) weigher: Weigher<V>,
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
///     .weigher(|name: &String| name.capacity())
///     .build()?;
/// # Ok::<(), tower_stampede::ConfigError>(())
/// ```
#[must_use = "a builder does nothing before `build`"]
pub struct Builder<V: Send + Sync + 'static> {
    name: String,
    ttl: Option<Duration>,
    origin_only: bool,
    stale_for: Duration,
    stale_if_error: Duration,
    negative: Option<Negative<V>>,
    jitter: f64,
    early_refresh: Option<f64>,
    early_refresh_share: f64,
    compute_timeout: Duration,
    lease: Duration,
    wait_timeout: Option<Duration>,
    compute_after_wait: bool,
    hold: Duration,
    max_hold: Duration,
    uncacheable_for: Duration,
    max_bytes: u64,
    max_entries: Option<u64>,
    eviction: Eviction,
    max_waiters: u32,
    max_waiters_in_all: usize,
    max_computations: usize,
    max_refreshes: usize,
    max_logged_tags: usize,
    weigher: Weigher<V>,
    on_failure: Option<FailureHook>,
    clock: Option<Clock>,
    schema: u32,
    attach: Option<Attach<V>>,
    value: PhantomData<fn() -> V>,
}

/// Gives an engine its remote, if the settings of both fit.
pub(crate) type Attach<V> =
    Box<dyn FnOnce(Attaching<'_, V>) -> Result<(), ConfigError> + Send + Sync>;

/// What a remote must know of the cache it is for.
#[cfg_attr(not(feature = "remote"), expect(dead_code, reason = "there is no remote to read it"))]
pub(crate) struct Attaching<'a, V: Send + Sync + 'static> {
    pub(crate) name: &'a str,
    pub(crate) lease: Duration,
    pub(crate) wait_timeout: Duration,
    pub(crate) compute_timeout: Duration,
    pub(crate) schema: u32,
    pub(crate) weigher: Weigher<V>,
    pub(crate) least_weight: u32,
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
            negative: None,
            jitter: 0.1,
            early_refresh: None,
            early_refresh_share: 0.25,
            compute_timeout: Duration::from_secs(30),
            lease: Duration::from_secs(5),
            wait_timeout: None,
            compute_after_wait: false,
            hold: Duration::from_secs(1),
            max_hold: Duration::from_secs(60),
            uncacheable_for: Duration::from_secs(30),
            max_bytes: 64 << 20,
            max_entries: None,
            eviction: Eviction::Lru,
            max_waiters: 100_000,
            max_waiters_in_all: 1_000_000,
            max_computations: 1024,
            max_refreshes: 256,
            max_logged_tags: 100_000,
            weigher: Arc::new(|_| size_of::<V>()),
            on_failure: None,
            clock: None,
            schema: 0,
            attach: None,
            value: PhantomData,
        }
    }

    /// Sets how long a value is fresh, counted from the end of its
    /// computation, or from the call of `put`.
    ///
    /// A computation reads its data after its start, so a fresh value is at
    /// most `ttl` + `compute_timeout` old. There is no default: a wrong guess
    /// would be wrong silently.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Stores only what the origin's own headers allow, in place of a `ttl`.
    /// For HTTP; a generic value has no headers, and is then never stored.
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
        /// failures came in a row.
        ///
        /// The hold ends early when the data may have changed: with
        /// `invalidate`, `put` or `mark_stale` of the key, `invalidate_all`, or
        /// a successful computation. With a remote, only `invalidate` and `put` end
        /// the hold of all processes. Two minutes after a hold, its failures are
        /// forgotten. Defaults to 1 s.
        hold: Duration;
        /// Sets up to where the hold doubles, failure by failure, for callers
        /// that are served a stale value meanwhile. It never lasts longer than
        /// that value may be served. Defaults to 60 s.
        max_hold: Duration;
        /// Sets how long a key is remembered as uncacheable: its callers do not
        /// wait for each other. Defaults to 30 s.
        uncacheable_for: Duration;
        /// Sets the bound on the memory of all values together, by the
        /// `weigher`'s measure. Defaults to 64 MiB.
        max_bytes: u64;
        /// Sets which entry makes room at the bound. Defaults to
        /// [`Eviction::Lru`].
        eviction: Eviction;
        /// Sets how many callers may wait for one key. Defaults to 100,000.
        max_waiters: u32;
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
        /// Sets how many background refreshes may run at once. Only a refresh
        /// that starts a computation counts. Further ones are left to the next
        /// reader. Defaults to 256.
        max_refreshes: usize;
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
    }

    /// Sets how long a caller waits for another caller's computation, or in the
    /// queue of `max_computations`. Then it is served a stale value where one
    /// may stand in, else it is refused. Defaults to `lease` +
    /// `compute_timeout`.
    pub fn wait_timeout(mut self, wait_timeout: Duration) -> Self {
        self.wait_timeout = Some(wait_timeout);
        self
    }

    /// Lets a caller that waited for `wait_timeout` compute for itself, in place
    /// of being refused, if one of the `max_computations` places is free.
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

    /// Sets a bound on the number of entries: each then weighs at least
    /// `max_bytes / max_entries`. Unset by default.
    pub fn max_entries(mut self, max_entries: u64) -> Self {
        self.max_entries = Some(max_entries);
        self
    }

    /// Sets how many bytes a value weighs. Called once per fill, never under
    /// a lock. Defaults to the size of `V` itself, which does not see what it
    /// points to.
    pub fn weigher(mut self, weigher: impl Fn(&V) -> usize + Send + Sync + 'static) -> Self {
        self.weigher = Arc::new(weigher);
        self
    }

    /// Sets what a failure does to the waiters and to the callers that come next.
    /// The hook sees the computation's own error and must not panic. Defaults
    /// to [`FailureAction::Hold`] for every error.
    pub fn on_failure(
        mut self,
        hook: impl Fn(&(dyn StdError + Send + Sync + 'static)) -> FailureAction + Send + Sync + 'static,
    ) -> Self {
        self.on_failure = Some(Arc::new(hook));
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
    /// Returns a [`ConfigError`] that names every field involved, when a
    /// setting is out of its range or two contradict each other.
    pub fn build(mut self) -> Result<Stampede<V>, ConfigError> {
        self.check()?;
        let engine = self.engine_settings();
        let local = LocalSettings {
            name: self.name.clone(),
            max_bytes: self.max_bytes,
            eviction: self.eviction,
        };
        let clock = self.clock.clone().unwrap_or_else(Clock::runtime);
        let (name, attach) = (self.name.clone(), self.attach.take());
        let (lease, schema) = (self.lease, self.schema);
        let inner = CacheState::new(&name, engine, &local, self.values(), clock);
        if let Some(attach) = attach {
            let settings = &inner.engine.settings;
            attach(Attaching {
                name: &name,
                lease,
                wait_timeout: settings.wait_timeout,
                compute_timeout: settings.compute_timeout,
                schema,
                weigher: Arc::clone(&inner.values.weigher),
                least_weight: inner.values.least_weight,
                engine: &inner.engine,
            })?;
        }
        Ok(Stampede(Arc::new(inner)))
    }

    /// Sets how the engine gets its remote.
    #[cfg_attr(not(feature = "remote"), expect(dead_code, reason = "there is no remote to attach"))]
    pub(crate) fn attach(mut self, attach: Attach<V>) -> Self {
        self.attach = Some(attach);
        self
    }

    fn engine_settings(&self) -> EngineSettings {
        let wait_timeout = self.wait_timeout;
        let wait_timeout = wait_timeout.unwrap_or(self.lease.saturating_add(self.compute_timeout));
        EngineSettings {
            name: self.name.clone(),
            compute_timeout: self.compute_timeout.min(LONGEST),
            wait_timeout: wait_timeout.min(LONGEST),
            compute_after_wait: self.compute_after_wait,
            hold: HoldPolicy { first: self.hold, longest: self.max_hold },
            uncacheable_for: self.uncacheable_for,
            max_waiters: self.max_waiters,
            max_waiters_in_all: self.max_waiters_in_all,
            max_computations: self.max_computations,
            max_refreshes: self.max_refreshes,
            max_logged_tags: self.max_logged_tags,
        }
    }

    fn values(self) -> Values<V> {
        let lifetimes = self.ttl.map(|ttl| Lifetimes {
            ttl,
            stale_for: self.stale_for,
            stale_if_error: self.stale_if_error,
        });
        let least = self.max_entries.map_or(1, |most| self.max_bytes / most);
        Values {
            lifetimes,
            stale_for: self.stale_for,
            stale_if_error: self.stale_if_error,
            jitter: self.jitter,
            early: self
                .early_refresh
                .map(|beta| EarlyRefresh { beta, max_share: self.early_refresh_share }),
            least_weight: u32::try_from(least).unwrap_or(TOO_HEAVY).min(TOO_HEAVY - 1),
            weigher: self.weigher,
            negative: self.negative,
            on_failure: self.on_failure,
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.check_lifetimes()?;
        self.check_shares()?;
        self.check_times()?;
        self.check_bounds()
    }

    fn check_lifetimes(&self) -> Result<(), ConfigError> {
        let refuse = |fields, reason| Err(ConfigError::new(fields, reason));
        match (self.ttl, self.origin_only) {
            (None, false) => {
                refuse(&["ttl"], "has no default; set it, or say `origin_only` for HTTP")
            }
            (Some(Duration::ZERO), _) => {
                refuse(&["ttl"], "is zero; say `origin_only` to store only what headers allow")
            }
            (Some(_), true) => {
                refuse(&["ttl", "origin_only"], "a lifetime of ours contradicts the origin's only")
            }
            _ if self.negative.is_some_and(|(ttl, _)| ttl.is_zero()) => {
                refuse(&["negative_ttl"], "is zero")
            }
            _ => Ok(()),
        }
    }

    fn check_shares(&self) -> Result<(), ConfigError> {
        if !(0.0..1.0).contains(&self.jitter) {
            return Err(ConfigError::new(
                &["jitter"],
                "is a share from 0 up to but not including 1",
            ));
        }
        if self.early_refresh.is_some_and(|beta| !(beta.is_finite() && beta > 0.0)) {
            return Err(ConfigError::new(&["early_refresh"], "is a positive factor"));
        }
        if !(self.early_refresh_share > 0.0 && self.early_refresh_share <= 1.0) {
            return Err(ConfigError::new(
                &["early_refresh_share"],
                "is a share above 0, at most 1",
            ));
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), ConfigError> {
        let zero = |time: Duration| time.is_zero();
        for (field, time) in [
            (&["compute_timeout"], self.compute_timeout),
            (&["lease"], self.lease),
            (&["hold"], self.hold),
            (&["uncacheable_for"], self.uncacheable_for),
            (&["wait_timeout"], self.wait_timeout.unwrap_or(self.lease)),
        ] {
            if zero(time) {
                return Err(ConfigError::new(field, "is zero"));
            }
        }
        if self.max_hold < self.hold {
            return Err(ConfigError::new(
                &["hold", "max_hold"],
                "the first hold is the longer one",
            ));
        }
        Ok(())
    }

    fn check_bounds(&self) -> Result<(), ConfigError> {
        for (field, bound) in [
            (&["max_bytes"], self.max_bytes),
            (&["max_entries"], self.max_entries.unwrap_or(1)),
            (&["max_waiters"], u64::from(self.max_waiters)),
            (&["max_waiters_in_all"], self.max_waiters_in_all as u64),
            (&["max_computations"], self.max_computations as u64),
            (&["max_refreshes"], self.max_refreshes as u64),
        ] {
            if bound == 0 {
                return Err(ConfigError::new(field, "is zero"));
            }
        }
        if self.max_logged_tags == 0 {
            let rule = "(0) must be at least 1; leave it unset for 100,000";
            return Err(ConfigError::new(&["max_logged_tags"], rule));
        }
        if self.max_entries.is_some_and(|most| most > self.max_bytes) {
            return Err(ConfigError::new(
                &["max_entries", "max_bytes"],
                "less than a byte an entry",
            ));
        }
        if self.max_waiters as usize > self.max_waiters_in_all {
            let fields = &["max_waiters", "max_waiters_in_all"];
            return Err(ConfigError::new(fields, "more for one key than for all together"));
        }
        if self.max_refreshes > self.max_computations {
            let fields = &["max_refreshes", "max_computations"];
            return Err(ConfigError::new(fields, "every refresh is a computation"));
        }
        let most = Semaphore::MAX;
        if self.max_computations > most {
            return Err(ConfigError::new(&["max_computations"], "is more than a semaphore holds"));
        }
        Ok(())
    }
}

struct Semaphore;

impl Semaphore {
    const MAX: usize = tokio::sync::Semaphore::MAX_PERMITS;
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

impl<V: Send + Sync + 'static> fmt::Debug for Builder<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn builder() -> Builder<u32> {
        Builder::new("test").ttl(SECOND)
    }

    fn refused(builder: Builder<u32>) -> &'static [&'static str] {
        builder.build().expect_err("refused").fields()
    }

    #[test]
    fn settings_that_are_out_of_range_are_refused_by_name() {
        assert_eq!(refused(Builder::new("test")), ["ttl"]);
        assert_eq!(refused(builder().ttl(Duration::ZERO)), ["ttl"]);
        assert_eq!(refused(builder().jitter(1.0)), ["jitter"]);
        assert_eq!(refused(builder().jitter(f64::NAN)), ["jitter"]);
        assert_eq!(refused(builder().early_refresh(0.0)), ["early_refresh"]);
        assert_eq!(refused(builder().early_refresh(f64::INFINITY)), ["early_refresh"]);
        assert_eq!(refused(builder().early_refresh_share(0.0)), ["early_refresh_share"]);
        assert_eq!(refused(builder().compute_timeout(Duration::ZERO)), ["compute_timeout"]);
        assert_eq!(refused(builder().lease(Duration::ZERO)), ["lease"]);
        assert_eq!(refused(builder().wait_timeout(Duration::ZERO)), ["wait_timeout"]);
        assert_eq!(refused(builder().hold(Duration::ZERO)), ["hold"]);
        assert_eq!(refused(builder().uncacheable_for(Duration::ZERO)), ["uncacheable_for"]);
        assert_eq!(refused(builder().max_bytes(0)), ["max_bytes"]);
        assert_eq!(refused(builder().max_entries(0)), ["max_entries"]);
        assert_eq!(refused(builder().max_waiters(0)), ["max_waiters"]);
        assert_eq!(refused(builder().max_computations(0)), ["max_computations"]);
        assert_eq!(refused(builder().max_refreshes(0)), ["max_refreshes"]);
        assert_eq!(refused(builder().max_logged_tags(0)), ["max_logged_tags"]);
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused_with_both_names() {
        assert_eq!(refused(builder().origin_only()), ["ttl", "origin_only"]);
        assert_eq!(refused(builder().hold(SECOND * 61)), ["hold", "max_hold"]);
        assert_eq!(
            refused(builder().max_waiters(11).max_waiters_in_all(10)),
            ["max_waiters", "max_waiters_in_all"]
        );
        assert_eq!(refused(builder().max_computations(10)), ["max_refreshes", "max_computations"]);
        assert_eq!(refused(builder().max_bytes(10).max_entries(11)), ["max_entries", "max_bytes"]);
    }

    #[test]
    fn the_text_of_a_refusal_names_the_fields_and_the_reason() {
        let error = builder().origin_only().build().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`ttl` and `origin_only`: a lifetime of ours contradicts the origin's only"
        );
    }
}
