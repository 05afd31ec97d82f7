//! The handle: what an application holds.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;

use crate::cache::builder::Builder;
use crate::cache::state::CacheState;
use crate::key::ToKey;
use crate::lease::shared_store::RemoteHealth;
use crate::mode::Mode;
use crate::observe::{Event, Observe, Occurrence, Stats};

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
pub struct Stampede<V>(pub(crate) Arc<CacheState<V>>);

/// What an invalidation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Invalidation {
    /// Whether this process had something to invalidate: a value, or a running
    /// computation whose result will not be stored. Always `true` for tags, if there are any.
    pub local: bool,
    /// Whether the other processes have been told.
    pub remote: Announcement,
}

/// Whether other processes have been told of an invalidation or a `put`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Announcement {
    /// There is no remote, or nothing to tell it; or it has no log, and this is no invalidation of
    /// a key.
    NoRemote,
    /// The remote has done it. The local copies of other processes go when its
    /// message arrives.
    Done,
    /// The remote is away. It is told before this process asks it again; until
    /// then other processes go on with what they have. The queue is lost
    /// with the process.
    Queued,
}

/// How the cache is doing; see [`Stampede::health`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// All is well.
    Up,
    /// The remote is away, or a server of it ([`servers_away`](Stampede::servers_away) names
    /// them), or it has still to be told of an invalidation, or its messages do not arrive:
    /// callers are served, and this process computes what it needs for itself, or asks the remote
    /// more often.
    Degraded,
    /// Switched off, observing or shut down: callers compute for themselves.
    Bypassed,
}

impl<V: Clone + Send + Sync + 'static> Stampede<V> {
    /// Begins the settings of a cache; `name` labels its metrics and logs. Two handles of one
    /// name are two caches, with values of their own: the second one says so at WARN.
    pub fn builder(name: &str) -> Builder<V> {
        Builder::new(name)
    }

    /// Makes a cache for this process with every other setting at its default.
    /// Values are fresh for `ttl`, counted from the end of their computation.
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

    /// Returns the hash of a key, as log lines and spans carry it in `key_hash`: 16
    /// hexadecimal digits, the same in every process. By it an operator finds the lines of a
    /// key in a log that holds no keys. Over HTTP, lines are about keys that the layer makes
    /// of the request; find those with [`Builder::log_keys`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::Stampede;
    ///
    /// let users: Stampede<String> = Stampede::in_memory(Duration::from_secs(60));
    /// assert_eq!(users.hash_of(7).len(), 16);
    /// assert_eq!(users.hash_of(7), users.hash_of("7"));
    /// ```
    #[must_use]
    pub fn hash_of(&self, key: impl ToKey) -> String {
        key.to_key().hash_text()
    }

    /// Returns the counts. Reading them also sets the gauges of the `metrics`
    /// feature, and lets the store finish its pending evictions. The gauges are set every
    /// five seconds without it, too.
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
        match self.0.engine.mode() {
            Mode::Observe | Mode::Off => Health::Bypassed,
            Mode::On if self.0.remote_health().is_none_or(|remote| remote == RemoteHealth::Up) => {
                Health::Up
            }
            Mode::On => Health::Degraded,
        }
    }

    /// Returns where the servers of the remote are that no request asks now: they did not answer,
    /// and a probe has not reached them since. Keys on other servers are shared as ever. Hosts and
    /// ports, no secrets. Empty without a remote; takes one short lock.
    #[must_use]
    pub fn servers_away(&self) -> Vec<String> {
        self.0.servers_away()
    }

    /// Returns whether the cache takes part.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.0.engine.mode()
    }

    /// Switches the cache at run time, for every clone and layer; see [`Mode`].
    /// Has no effect after [`shutdown`](Self::shutdown).
    ///
    /// Callers that wait already go on waiting, and compute for themselves at their
    /// `wait_timeout` unless the mode is `On` again. A running computation goes on, and
    /// `compute_timeout` does not end it while the mode is not `On`. Its result is not
    /// stored if the cache is `Off` by then. A computation that begins while the cache
    /// observes is dropped when its caller goes away.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::{Mode, Stampede};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache: Stampede<u32> = Stampede::in_memory(Duration::from_secs(60));
    /// cache.put("k", 1).await;
    /// cache.set_mode(Mode::Off);
    /// assert_eq!(cache.get("k").await, None);
    /// // What was not invalidated meanwhile is there again.
    /// cache.set_mode(Mode::On);
    /// assert_eq!(cache.get("k").await, Some(1));
    /// # }
    /// ```
    pub fn set_mode(&self, mode: Mode) {
        if self.0.engine.set_mode(mode) {
            self.0.observer.happened(Occurrence::ModeChanged { mode });
        }
    }

    /// Switches the cache off and waits for running computations and for writes to the
    /// remote, at most until `deadline` has passed; then the rest is dropped. Returns how many
    /// tasks had not ended by then: computations, leaders that queue for a place,
    /// and messages to the remote, which are not dropped.
    ///
    /// A computation that blocks its thread cannot be dropped while it blocks. The
    /// call returns in time nevertheless, as long as one worker thread is free.
    /// Inline computations ([`get_or_compute_scoped`](Self::get_or_compute_scoped))
    /// belong to their callers: this call neither waits for them nor drops them.
    ///
    /// # Cancel safety
    ///
    /// A dropped shutdown leaves the cache off and the computations running.
    pub async fn shutdown(&self, deadline: Duration) -> usize {
        self.0.engine.shut_down(deadline).await
    }
}

// By hand, to say that a clone counts one reference.
impl<V> Clone for Stampede<V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<V: Clone + Send + Sync + 'static> std::fmt::Debug for Stampede<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stampede").field("mode", &self.mode()).finish_non_exhaustive()
    }
}
