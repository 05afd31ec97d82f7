//! The handle: what an application holds.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::broadcast;

use crate::cache::builder::Builder;
use crate::cache::compute::{Answer, ComputationResult};
use crate::cache::state::{CacheState, Lookup};
use crate::computed::Computed;
use crate::entry::Entry;
use crate::error::{BoxError, Error};
use crate::key::{Key, KeyBuf, Tag, ToKey};
use crate::lease::shared_store::RemoteHealth;
use crate::mode::Mode;
use crate::observe::{Event, Observe, Occurrence, Stats};
use crate::outcome::CacheOutcome;

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
pub struct Stampede<V: Clone + Send + Sync + 'static>(pub(crate) Arc<CacheState<V>>);

/// What an invalidation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Invalidation {
    /// Whether this process had something to invalidate: a value, or a running
    /// computation whose result will not be stored. Always `true` for tags.
    pub local: bool,
    /// Whether the other processes have been told.
    pub remote: Announcement,
}

/// Whether other processes have been told of an invalidation or a `put`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Announcement {
    /// There is no remote.
    NoRemote,
    /// The remote has done it. The local copies of other processes go when its
    /// message arrives.
    Done,
    /// The remote is away. It is told before this process asks it again; until
    /// then other processes go on with what they have. What is queued is lost
    /// with the process.
    Queued,
}

/// How the cache is doing; see [`Stampede::health`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// All is well.
    Up,
    /// The remote is away, or its messages do not arrive: callers are served,
    /// and this process computes what it needs for itself, or asks the remote
    /// more often.
    Degraded,
    /// Switched off, observing or shut down: callers compute for themselves.
    Bypassed,
}

impl<V: Clone + Send + Sync + 'static> Stampede<V> {
    /// Begins the settings of a cache; `name` labels its metrics and logs.
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

    /// Returns the value of `key`, and computes it if there is none. Of all
    /// callers that ask at once, one computes; the others get its result.
    ///
    /// The computation runs on a task of its own: it goes on when the caller
    /// goes away. A panic in it goes on in the caller that started it. It may ask
    /// the same handle for other keys; see
    /// [`Builder::max_computations`](crate::Builder::max_computations).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::Stampede;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_stampede::Error> {
    /// let users: Stampede<String> = Stampede::in_memory(Duration::from_secs(60));
    /// let load = || async { Ok::<_, std::io::Error>("Ada".to_owned()) };
    /// // Both ask at once, and one of them loads.
    /// let (one, two) = tokio::join!(users.get_or_compute(7, load), users.get_or_compute(7, load));
    /// assert_eq!(one?, two?);
    /// assert_eq!(users.stats().computations, 1);
    /// # Ok(()) }
    /// ```
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
            Ok::<ComputationResult<V, V>, E>((Some(Computed::plain(value.clone())), value))
        };
        Box::pin(self.0.answer_detached(key, look, made)).await.map(Answer::into_value)
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
        let made = with_own_value(compute);
        Box::pin(self.0.answer_detached(key, look, made)).await.map(Answer::into_value)
    }

    /// Like [`get_or_compute`](Self::get_or_compute), with a computation that
    /// may borrow: it runs inside the caller's future.
    ///
    /// Nothing can run in the background for such a caller, so the first that
    /// finds a stale value refreshes it itself, while the other callers are served
    /// the stale value. Such a caller does not queue for a place: where all
    /// `max_computations` places are taken, it is served the stale value, too.
    ///
    /// # Errors
    ///
    /// As [`get_or_compute`](Self::get_or_compute). When the refresh of a stale
    /// value fails, the caller gets the stored value if it may still be served
    /// then. When its stale windows have ended during the computation, or it was
    /// invalidated, the caller gets the error of the computation.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, or when the computation does.
    ///
    /// # Cancel safety
    ///
    /// A dropped leader loses its work and hands the lead to one of its waiters. A
    /// leader that is neither polled nor dropped is deposed a second after its
    /// `compute_timeout`.
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
            Ok::<ComputationResult<V, V>, E>((Some(Computed::plain(value.clone())), value))
        };
        Box::pin(self.0.answer_inline(key, look, made)).await.map(Answer::into_value)
    }

    /// Returns the value of `key` if it is fresh, or stale in its window. Never
    /// computes or refreshes. It waits for one call to the remote at most: where
    /// there is a remote, and this process holds no value. Returns `None` while
    /// the mode is not `On`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn get<K: ToKey>(&self, key: K) -> Option<V> {
        // Judged once: a second judgement may draw the early refresh differently.
        let (entry, outcome) = match self.look_up(&key) {
            Ok(entry) => return Some(entry.value.clone()),
            Err((_, Lookup::Fresh(entry) | Lookup::Early(entry))) => (entry, CacheOutcome::Hit),
            Err((_, Lookup::Stale(entry))) => (entry, CacheOutcome::Stale),
            Err((key, Lookup::Miss(_))) => {
                let entry = Box::pin(self.0.fetch(key)).await?;
                let fresh = self.0.now() < entry.window.fresh_until;
                (entry, if fresh { CacheOutcome::Hit } else { CacheOutcome::Stale })
            }
        };
        self.0.observer.answered(outcome);
        Some(entry.value.clone())
    }

    /// Stores `value` under `key`, in place of what is there. A computation that
    /// began before this call does not replace it. A hold of the key ends. While
    /// the cache is switched [`Off`](Mode::Off), this invalidates the key instead.
    ///
    /// When several writers put the same key at once, the last one to get here
    /// wins, which need not be the last one to write the database; where that
    /// matters, [`invalidate`](Self::invalidate) instead. With a remote, a put
    /// that was given up on may still be executed there, after what came next.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn put<K: ToKey>(&self, key: K, value: V) {
        self.put_with(key, Computed::new(value)).await;
    }

    /// Like [`put`](Self::put), with a value that sets its own lifetime and tags.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn put_with<K: ToKey>(&self, key: K, computed: Computed<V>) {
        self.0.put(key.to_key(), computed).await;
    }

    /// Removes the value of `key`. A running computation goes on for its
    /// waiters; its result is not stored, and later callers start a new one. So a
    /// caller that asks after this has returned never gets the old value. A hold of
    /// the key ends: the next caller computes.
    ///
    /// With a remote this holds in other processes once its message has
    /// arrived, for the computations that run there too.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn invalidate<K: ToKey>(&self, key: K) -> Invalidation {
        self.0.invalidate(key.to_key()).await
    }

    /// Ends the use of every value that carries `tag`, also of those being
    /// computed now. Costs the same however many there are, with a remote too:
    /// one record and one message.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn invalidate_tag(&self, tag: impl Into<Tag>) -> Invalidation {
        let tag = tag.into();
        self.0.invalidate_tags(Box::new([tag])).await
    }

    /// Ends the use of every value, also of those being computed now.
    ///
    /// # Cancel safety
    ///
    /// As [`invalidate_tag`](Self::invalidate_tag).
    pub async fn invalidate_all(&self) -> Invalidation {
        self.invalidate_tag("*").await
    }

    /// Makes the value of `key` stale now, as if its `ttl` had ended: within
    /// the stale window it is still served while it is refreshed. A running
    /// computation and a hold are treated as by [`invalidate`](Self::invalidate).
    /// Returns whether there was a value that had not ended.
    ///
    /// Concerns this process alone: other processes go on with their copies
    /// until those end, and get the refreshed value when they ask the remote.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is awaited.
    #[expect(clippy::unused_async, reason = "as the operations beside it")]
    pub async fn mark_stale<K: ToKey>(&self, key: K) -> bool {
        let key = key.to_key();
        self.0.engine.forget(&key);
        self.0.mark_stale_now(&key)
    }

    /// Returns a value whose computation began after this call, however fresh the
    /// stored value is, and stores it. Meanwhile other callers are served what is
    /// there. Use it where the caller has just changed the data, and needs a value
    /// that knows of the change.
    ///
    /// A computation that runs already may have read the old data. So the call
    /// waits for its end, and one of the callers that wait computes again: at most
    /// one computation of the key runs, and one is wanted next, however many callers
    /// ask. With a remote, a value that another process began to compute after the
    /// call is new enough.
    ///
    /// The new value keeps the tags of the value that it replaces. A result that is too
    /// heavy to be stored goes to the callers, and the older value is invalidated. With
    /// `compute_after_wait`, a call whose wait has ended returns a value of its own, which is
    /// not stored.
    ///
    /// A caller that waits for an older computation first has another `wait_timeout` after
    /// that.
    ///
    /// # Errors
    ///
    /// As [`get_or_compute`](Self::get_or_compute), but no stale value stands in.
    /// What is stored stays. A hold does not refuse this call.
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
            Ok::<ComputationResult<V, V>, E>((Some(Computed::plain(value.clone())), value))
        };
        Box::pin(self.0.answer_fresh(key.to_key(), made)).await.map(Answer::into_value)
    }

    /// Returns the value of `key`, or runs the computation that `work` makes on a miss.
    pub(crate) async fn get_or_load<K, W, F, Fut, E>(&self, key: &K, work: W) -> Result<V, Error>
    where
        K: ToKey,
        W: FnOnce() -> F,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Computed<V>, E>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        let (key, look) = match self.look_up(key) {
            Ok(entry) => return Ok(entry.value.clone()),
            Err(miss) => miss,
        };
        let made = with_own_value(work());
        Box::pin(self.0.answer_detached(key, look, made)).await.map(Answer::into_value)
    }

    /// Returns a value whose computation began after this call.
    pub(crate) async fn load_fresh<K, F, Fut, E>(&self, key: &K, compute: F) -> Result<V, Error>
    where
        K: ToKey,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Computed<V>, E>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        let made = with_own_value(compute);
        Box::pin(self.0.answer_fresh(key.to_key(), made)).await.map(Answer::into_value)
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

    /// Switches the cache off and waits for running computations, at most
    /// until `deadline` has passed; then the rest is dropped. Returns how many
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

    /// Returns a fresh entry, or the key and the look-up that found none.
    #[inline]
    fn look_up<K: ToKey>(&self, key: &K) -> Result<Arc<Entry<V>>, (Key, Lookup<V>)> {
        // Encoded into a local buffer: to return one from a function would copy it.
        let mut bytes = KeyBuf::new();
        key.encode(&mut bytes);
        match self.0.look(bytes.as_bytes()) {
            Lookup::Fresh(entry) => {
                self.0.observer.answered(CacheOutcome::Hit);
                Ok(entry)
            }
            look => Err((bytes.to_key(), look)),
        }
    }
}

// By hand, to say that a clone counts one reference.
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

/// Makes a computation whose own caller gets the value, too.
fn with_own_value<V, F, Fut, E>(
    compute: F,
) -> impl FnOnce() -> BoxFuture<'static, Result<ComputationResult<V, V>, E>>
where
    V: Clone + Send + 'static,
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = Result<Computed<V>, E>> + Send + 'static,
    E: 'static,
{
    move || {
        Box::pin(async move {
            let computed = compute().await?;
            let own = computed.value.clone();
            Ok((Some(computed), own))
        })
    }
}
