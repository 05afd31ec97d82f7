//! Collects the settings, checks them together and makes the handle.
//!
//! Most settings are rows of [`each_setting`]: their setters follow from that table. The setters
//! here are those that take a function, or no argument, or concern one type of value.

mod checks;
pub(crate) mod status_ttl;

use std::error::Error as StdError;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::budget::ByteBudget;
use crate::cache::handle::Stampede;
use crate::cache::state::CacheState;
use crate::cache::weights::Weights;
use crate::clock::Clock;
use crate::error::{ConfigError, FailureAction};
use crate::flight::engine::Engine;
use crate::freshness::EarlyRefresh;
use crate::garbage::{EvictionCause, EvictionHook};
use crate::key::Key;
use crate::mode::Mode;
use crate::observe::CacheLabel;
use crate::settings::{Eviction, Settings, StatusTtl, each_setting};
use crate::store::LocalSettings;
use crate::weigh::{Weigh, Weigher};

pub(crate) type FailureHook =
    Arc<dyn Fn(&(dyn StdError + Send + Sync + 'static)) -> FailureAction + Send + Sync>;
/// How long negative values live, and which values those are.
pub(crate) type Negative<V> = (Duration, fn(&V) -> bool);

/// How values are kept; the part of the settings that outlives `build`.
#[derive(Clone)]
pub(crate) struct Values<V> {
    /// `None`: only what the origin's own headers allow.
    pub(crate) ttl: Option<Duration>,
    pub(crate) stale_for: Duration,
    pub(crate) stale_if_error: Duration,
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "of HTTP's errors"))]
    pub(crate) status_ttl: StatusTtl,
    pub(crate) jitter: f64,
    pub(crate) early: Option<EarlyRefresh>,
    pub(crate) weights: Weights<V>,
    /// The bytes that bodies take which arrive.
    pub(crate) arriving: Arc<ByteBudget>,
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
    settings: Settings,
    negative: Option<Negative<V>>,
    pub(crate) max_arriving_bytes: Option<u64>,
    weigher: Option<Weigher<V>>,
    on_failure: Option<FailureHook>,
    on_eviction: Option<EvictionHook<V>>,
    clock: Option<Clock>,
    schema: u32,
    #[cfg(feature = "remote")]
    pub(crate) codec: Option<crate::remote::Codec<V>>,
    log_keys: bool,
    attach: Option<Attach<V>>,
    local_ttl: Option<Duration>,
    value: PhantomData<fn() -> V>,
}

/// Gives an engine its remote, if the settings of both fit.
pub(crate) type Attach<V> =
    Box<dyn FnOnce(Attaching<'_, V>) -> Result<(), ConfigError> + Send + Sync>;

/// What a remote must know of the cache it is for.
#[cfg_attr(not(feature = "remote"), expect(dead_code, reason = "there is no remote to read it"))]
pub(crate) struct Attaching<'a, V> {
    pub(crate) schema: u32,
    #[cfg(feature = "remote")]
    pub(crate) codec: Option<crate::remote::Codec<V>>,
    pub(crate) weights: Weights<V>,
    pub(crate) engine: &'a Arc<Engine<V>>,
}

macro_rules! setters {
    ($(
        $(#[$doc:meta])*
        $name:ident: $type:ty as $reader:literal $(= $default:expr)? $(, not_zero $unset:literal)?;
    )+) => {
        /// Settings of any cache.
        impl<V: Clone + Send + Sync + 'static> Builder<V> {$(
            $(#[$doc])*
            pub fn $name(mut self, $name: $type) -> Self {
                self.settings.$name = Some($name);
                self
            }
        )+}
    };
}

each_setting!(setters);

impl<V: Clone + Send + Sync + 'static> Builder<V> {
    pub(crate) fn new(name: &str) -> Self {
        Self::with_settings(name, Settings::default())
    }

    fn with_settings(name: &str, settings: Settings) -> Self {
        Self {
            name: name.to_owned(),
            settings,
            negative: None,
            max_arriving_bytes: None,
            weigher: None,
            on_failure: None,
            on_eviction: None,
            clock: None,
            schema: 0,
            #[cfg(feature = "remote")]
            codec: None,
            log_keys: false,
            attach: None,
            local_ttl: None,
            value: PhantomData,
        }
    }

    /// Stores only what the origin's own headers allow, in place of a `ttl`.
    /// For HTTP. A generic value has no headers: it is stored only where it
    /// sets its own lifetime ([`Computed::ttl`](crate::Computed::ttl)).
    pub fn origin_only(mut self) -> Self {
        self.settings.origin_only = Some(true);
        self
    }

    /// Sets the number of the format in which values leave the process.
    /// Values of another number are a miss. A change of the fields of a serde type is
    /// noticed without it; raise it when their meaning changes, or a format of your own
    /// does. Defaults to 0; without a remote it has no effect.
    pub fn schema(mut self, schema: u32) -> Self {
        self.schema = schema;
        self
    }

    /// Sets whether log lines and spans carry the key itself (`key`), beside its hash
    /// (`key_hash`): escaped to printable ASCII, and cut after 200 bytes.
    ///
    /// This is a decision about privacy. A key often holds what identifies a person: a
    /// user's number, an address, over HTTP the path and the query of the request. With
    /// `true` it gets into every log that the subscriber writes, and to every reader of
    /// it. Without it, find the lines of a key by
    /// [`Stampede::hash_of`](crate::Stampede::hash_of). Metrics never carry a key.
    /// Defaults to `false`.
    pub fn log_keys(mut self, log_keys: bool) -> Self {
        self.log_keys = log_keys;
        self
    }

    /// Lets a caller that waited for `wait_timeout` compute for itself, in place
    /// of being refused, if one of the `max_computations` places is free. The
    /// result is the caller's alone: it is not stored, also not that of a
    /// `refresh`.
    pub fn compute_after_wait(mut self) -> Self {
        self.settings.compute_after_wait = Some(true);
        self
    }

    /// Sets the bound on the bytes of all response bodies and all streams together that arrive and
    /// are to be stored or shared, beside `max_bytes`. One with a declared length takes that when
    /// its head arrives, another one what has come. It gives the bytes back when it is
    /// complete, breaks off, or is not kept any longer. Defaults to `max_bytes`.
    ///
    /// At the bound nothing fails. A response is passed on unshared, as one is that is
    /// too large to be stored: its caller reads the body as it comes, and the waiters forward
    /// their own requests. The key is not remembered as uncacheable. `Cache-Status` says
    /// `detail=no-room`; such responses are counted in
    /// [`Stats::refused_bodies`](crate::Stats::refused_bodies) and reported as
    /// [`Event::BodyRefused`](crate::Event::BodyRefused). What happens to a stream says
    /// [`Producer::max_bytes`](crate::Producer::max_bytes).
    ///
    /// Not counted: a body that is there at once, and what slow clients still read of what
    /// has arrived or is not kept any longer. Of the latter each slow client can hold up to
    /// `HttpLayer::max_body`, or the `max_bytes` of the stream.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::{Recording, Stampede};
    ///
    /// let exports: Stampede<Recording<String>> = Stampede::builder("exports")
    ///     .ttl(Duration::from_secs(60))
    ///     .max_bytes(256 << 20)
    ///     .max_arriving_bytes(32 << 20)
    ///     .build()?;
    /// # Ok::<(), tower_stampede::ConfigError>(())
    /// ```
    pub fn max_arriving_bytes(mut self, max_arriving_bytes: u64) -> Self {
        self.max_arriving_bytes = Some(max_arriving_bytes);
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
        self.check().map_err(|error| error.at(&self.settings.path))?;
        let clock = self.clock.take().unwrap_or_else(Clock::runtime);
        let settings = std::mem::take(&mut self.settings).with_bounded_times();
        let weights = Weights::new(
            self.weigher,
            settings.eviction().entry_bytes(),
            settings.max_bytes(),
            settings.max_entries,
        );
        let arriving = self.max_arriving_bytes.unwrap_or(settings.max_bytes());
        // The settings that a look-up reads lie together.
        let values = Values {
            ttl: settings.ttl,
            stale_for: settings.stale_for(),
            stale_if_error: settings.stale_if_error(),
            status_ttl: settings.status_ttl.clone(),
            jitter: settings.jitter(),
            early: settings
                .early_refresh
                .map(|beta| EarlyRefresh { beta, max_share: settings.early_refresh_share() }),
            weights,
            arriving: ByteBudget::new(arriving),
            negative: self.negative,
            on_failure: self.on_failure,
        };
        let local = LocalSettings {
            name: self.name.clone(),
            max_bytes: values.weights.capacity(),
            eviction: settings.eviction(),
            on_eviction: self.on_eviction,
            clock: clock.clone(),
            local_ttl: self.local_ttl,
        };
        let label = CacheLabel { name: self.name, log_keys: self.log_keys };
        let mode = settings.mode();
        let inner = CacheState::new(label, settings, &local, values, clock);
        if mode != Mode::On {
            inner.engine.set_mode(mode);
        }
        // Last: a remote holds a reference to the engine.
        if let Some(attach) = self.attach {
            attach(Attaching {
                schema: self.schema,
                #[cfg(feature = "remote")]
                codec: self.codec,
                weights: inner.values.weights.clone(),
                engine: &inner.engine,
            })
            .map_err(|error| error.at(&inner.engine.settings.path))?;
        }
        Ok(Stampede(Arc::new(inner)))
    }

    /// Sets how the engine gets its remote, and how long copies of what it has are used.
    #[cfg_attr(not(feature = "remote"), expect(dead_code, reason = "there is no remote to attach"))]
    pub(crate) fn attach(mut self, local_ttl: Option<Duration>, attach: Attach<V>) -> Self {
        self.attach = Some(attach);
        self.local_ttl = local_ttl;
        self
    }
}

#[cfg(feature = "serde")]
impl Settings {
    /// Begins the settings of a cache with these; `name` labels its metrics and logs.
    pub fn builder<V: Clone + Send + Sync + 'static>(&self, name: &str) -> Builder<V> {
        Builder::with_settings(name, self.clone())
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

impl<V> fmt::Debug for Builder<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("ttl", &self.settings.ttl)
            .finish_non_exhaustive()
    }
}
