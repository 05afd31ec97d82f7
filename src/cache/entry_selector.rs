//! One call with options of its own.

use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryFutureExt as _;
use futures_util::future::Either;

use crate::cache::call_options::{CallContext, CallOptions, Stored};
use crate::cache::computation::{CallerClosure, ComputationResult};
use crate::cache::failure::Failure;
use crate::cache::get::Served;
use crate::cache::handle::Stampede;
use crate::cache::state::Lookup;
use crate::cache::typed::Cache;
use crate::computed::Computed;
use crate::error::{BoxError, Error};
use crate::key::{Key, Tag, ToKey};
use crate::outcome::CacheOutcome;

/// One call with options of its own: from [`Stampede::entry`] or [`Cache::entry`].
///
/// The options concern this call, and the value that it computes. They change nothing for the other
/// callers of the key. The methods that end the call return a [`Served`]: the value without a clone,
/// and how it came about.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::Stampede;
///
/// async fn load_user(id: u64) -> Result<String, std::io::Error> {
///     Ok(format!("user {id}"))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let users = Stampede::builder("users")
///     .ttl(Duration::from_secs(60))
///     .stale_for(Duration::from_secs(600))
///     .build()?;
/// let user = users
///     .entry(7)
///     .ttl(Duration::from_secs(10)) // of the value that this call computes
///     .tag("users")
///     .soft_timeout(Duration::from_millis(50)) // fresh within 50 ms, else stale
///     .get_or_compute(|| load_user(7))
///     .await?;
/// assert_eq!(user.len(), 6);
/// # Ok(()) }
/// ```
#[must_use = "nothing happens before one of its methods that end the call"]
pub struct EntrySelector<'a, C, K> {
    pub(super) cache: &'a C,
    key: K,
    options: CallOptions,
}

/// Options of one call.
impl<'a, C, K> EntrySelector<'a, C, K> {
    pub(super) fn new(cache: &'a C, key: K) -> Self {
        Self { cache, key, options: CallOptions::default() }
    }

    /// Sets the lifetime of the value that this call computes, unless the value sets one; see
    /// [`Computed::ttl`]. Defaults to the cache's.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// Sets for how long after its lifetime the value that this call computes is served stale,
    /// unless the value says so itself. Defaults to the cache's.
    pub fn stale_for(mut self, stale_for: Duration) -> Self {
        self.options.stale_for = Some(stale_for);
        self
    }

    /// Sets for how long after its lifetime the value that this call computes is served in place
    /// of a failure, unless the value says so itself. This call takes no stale value in place of a
    /// failure that has been stale for longer: with zero it gets the failure. Defaults to the
    /// cache's.
    pub fn stale_if_error(mut self, stale_if_error: Duration) -> Self {
        self.options.stale_if_error = Some(stale_if_error);
        self
    }

    /// Adds a tag to the value that this call computes.
    pub fn tag(mut self, tag: impl Into<Tag>) -> Self {
        self.options.tags.push(tag.into());
        self
    }

    /// Sets how long this call waits for a new value where it could be served a stale one; see
    /// [`Builder::soft_timeout`](crate::Builder::soft_timeout). Defaults to the cache's.
    pub fn soft_timeout(mut self, soft_timeout: Duration) -> Self {
        self.options.soft_timeout = Some(soft_timeout);
        self
    }

    /// Sets how long this call takes at most: then it is served a stale value where one may stand
    /// in, else it fails with [`ErrorKind::WaitTimeout`](crate::ErrorKind::WaitTimeout). The
    /// computation goes on for other callers, and its result is stored. It has no effect on
    /// [`get_or_compute_scoped`](EntrySelector::get_or_compute_scoped), and none while the mode is
    /// not `On`. By default the time-outs of the cache alone end the call.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// Asks the remote, also where this process has a copy that is fresh: for a caller that must see
    /// what another process has just put. Costs a round trip. Without a remote, and while it is
    /// away, it has no effect.
    pub fn skip_local_copy(mut self) -> Self {
        self.options.skips_local_copy = true;
        self
    }

    /// Computes here also where another process computes the key already, instead of waiting for
    /// its result: one computation for each process, and the result stays in this one. For streams,
    /// whose waiters in other processes get nothing before the end. Without a remote it has no
    /// effect.
    pub fn beside_other_processes(mut self) -> Self {
        self.options.goes_on = true;
        self
    }
}

impl<V: Clone + Send + Sync + 'static> Stampede<V> {
    /// Selects the entry of `key`, for one call with options of its own.
    pub fn entry<K: ToKey>(&self, key: K) -> EntrySelector<'_, Self, K> {
        EntrySelector::new(self, key)
    }
}

#[expect(clippy::manual_async_fn, reason = "an async function holds its closure twice")]
impl<V, K> EntrySelector<'_, Stampede<V>, K>
where
    V: Clone + Send + Sync + 'static,
    K: ToKey,
{
    /// Returns the value if there is one, and computes it if not; see
    /// [`Stampede::get_or_compute`]. The computation returns a value, or a [`Computed`], which sets
    /// its own lifetime and tags.
    ///
    /// # Errors
    ///
    /// As [`Stampede::get_or_compute`].
    ///
    /// # Panics
    ///
    /// As [`Stampede::get_or_compute`].
    ///
    /// # Cancel safety
    ///
    /// As [`Stampede::get_or_compute`].
    pub fn get_or_compute<F, Fut, R, E>(
        self,
        compute: F,
    ) -> impl Future<Output = Result<Served<V>, Error>>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Computed<V>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        self.get_or_compute_with(move |_| compute())
    }

    /// Like [`get_or_compute`](Self::get_or_compute), with a computation that sees the older value:
    /// it can ask the origin whether that still stands, and renew it. The example is at [`Stored`].
    ///
    /// It sees a value that is still in one of its windows, here or in the remote, and that was not
    /// invalidated. To keep values for longer than they may be served, set
    /// [`stale_if_error`](crate::Builder::stale_if_error).
    ///
    /// # Errors
    ///
    /// As [`Stampede::get_or_compute`].
    ///
    /// # Panics
    ///
    /// As [`Stampede::get_or_compute`].
    ///
    /// # Cancel safety
    ///
    /// As [`Stampede::get_or_compute`].
    pub fn get_or_compute_with<F, Fut, R, E>(
        self,
        compute: F,
    ) -> impl Future<Output = Result<Served<V>, Error>>
    where
        F: FnOnce(Option<Stored<V>>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Computed<V>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        async move {
            let Self { cache, key, options } = self;
            let (key, look) = match cache.look_with(&key, &options).await {
                Ok(served) => return Ok(served),
                Err(miss) => miss,
            };
            let (context, asked) = (CallContext::new(options), cache.0.now());
            let shown = Arc::clone(&context);
            let mut later = CallerClosure::Closure(move || compute(shown.take_stored()));
            let answer = cache.0.answer_detached(key, look, &mut later, Some(context)).await;
            answer.map(|answer| cache.0.serve_answer(answer, asked))
        }
    }

    /// Like [`get_or_compute`](Self::get_or_compute), with a computation that may borrow; see
    /// [`Stampede::get_or_compute_scoped`].
    ///
    /// # Errors
    ///
    /// As [`Stampede::get_or_compute_scoped`].
    ///
    /// # Panics
    ///
    /// As [`Stampede::get_or_compute_scoped`].
    ///
    /// # Cancel safety
    ///
    /// As [`Stampede::get_or_compute_scoped`].
    pub async fn get_or_compute_scoped<F, Fut, R, E>(self, compute: F) -> Result<Served<V>, Error>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<R, E>>,
        R: Into<Computed<V>>,
        E: Into<BoxError>,
    {
        let Self { cache, key, options } = self;
        let (key, look) = match cache.look_with(&key, &options).await {
            Ok(served) => return Ok(served),
            Err(miss) => miss,
        };
        let made = move || async move {
            let mut computed = compute().await?.into();
            // The clone is stored: the value itself may be a stream whose beginning is its caller's.
            let stored = computed.value.clone();
            let own = std::mem::replace(&mut computed.value, stored);
            Ok::<ComputationResult<V, V>, E>((Some(computed), own))
        };
        let (context, asked) = (Some(CallContext::new(options)), cache.0.now());
        let answer = Box::pin(cache.0.answer_inline(key, look, made, context)).await;
        answer.map(|answer| cache.0.serve_answer(answer, asked))
    }

    /// Returns a value whose computation began after this call; see [`Stampede::refresh`]. The
    /// computation returns a value, or a [`Computed`]; with one, the new value does not keep the
    /// tags of the older one.
    ///
    /// # Errors
    ///
    /// As [`Stampede::refresh`].
    ///
    /// # Panics
    ///
    /// As [`Stampede::refresh`].
    ///
    /// # Cancel safety
    ///
    /// As [`Stampede::refresh`].
    pub fn refresh<F, Fut, R, E>(self, compute: F) -> impl Future<Output = Result<Served<V>, Error>>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Computed<V>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        async move {
            let Self { cache, key, options } = self;
            let mut later = CallerClosure::Closure(compute);
            let (context, asked) = (Some(CallContext::new(options)), cache.0.now());
            let answer = cache.0.answer_fresh(key.to_key(), &mut later, context).await;
            answer.map(|answer| cache.0.serve_answer(answer, asked))
        }
    }

    /// Returns the value if it is fresh, or stale in its window; see [`Stampede::get`]. Of the
    /// options, [`skip_local_copy`](Self::skip_local_copy) alone has an effect.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn get(self) -> Option<Served<V>> {
        let Self { cache, key, options } = self;
        match cache.look_with(&key, &options).await {
            Ok(served) => Some(served),
            Err(miss) => {
                let found = cache.find(miss).await;
                found.map(|(entry, outcome)| cache.0.serve(entry, outcome))
            }
        }
    }
}

impl<V: Clone + Send + Sync + 'static> Stampede<V> {
    /// Looks for the value as the options of the call say.
    fn look_with<'a, K: ToKey>(
        &'a self,
        key: &K,
        options: &CallOptions,
    ) -> impl Future<Output = Result<Served<V>, (Key, Lookup<V>)>> + use<'a, V, K> {
        let looked = match options.skips_local_copy {
            true => Either::Left(Box::pin(self.0.look_past_copy(key.to_key()))),
            false => Either::Right(ready(self.look_up(key))),
        };
        looked.map_ok(|entry| self.0.serve(entry, CacheOutcome::Hit))
    }
}

impl<K, V, E> Cache<K, V, E>
where
    K: ToKey + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: fmt::Debug + fmt::Display + Send + Sync + 'static,
{
    /// Selects the entry of `key`, for one call with options of its own.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_stampede::{Cache, Failure, Stampede};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Failure<std::io::Error>> {
    /// # let handle = Stampede::in_memory(Duration::from_secs(60));
    /// let squares = Cache::new(handle, |n: u64| async move { Ok(n * n) });
    /// let square = squares.entry(7).soft_timeout(Duration::from_millis(50)).get().await?;
    /// assert_eq!(*square, 49);
    /// # Ok(()) }
    /// ```
    pub fn entry(&self, key: K) -> EntrySelector<'_, Self, K> {
        EntrySelector::new(self, key)
    }
}

impl<K, V, E> EntrySelector<'_, Cache<K, V, E>, K>
where
    K: ToKey + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: fmt::Debug + fmt::Display + Send + Sync + 'static,
{
    /// Returns the value, and loads it if there is none; see [`Cache::get`].
    ///
    /// # Errors
    ///
    /// As [`Cache::get`].
    ///
    /// # Panics
    ///
    /// As [`Cache::get`].
    ///
    /// # Cancel safety
    ///
    /// As [`Cache::get`].
    pub async fn get(self) -> Result<Served<V>, Failure<E>> {
        let Self { cache, key, options } = self;
        let handle = cache.handle();
        let (encoded, look) = match handle.look_with(&key, &options).await {
            Ok(served) => return Ok(served),
            Err(miss) => miss,
        };
        let asked = handle.0.now();
        let loaded = cache.load((encoded, Some(look)), &key, Some(CallContext::new(options))).await;
        loaded.map(|answer| handle.0.serve_answer(answer, asked)).map_err(Failure::from)
    }

    /// Returns a value whose loading began after this call; see [`Cache::refresh`].
    ///
    /// # Errors
    ///
    /// As [`Cache::refresh`].
    ///
    /// # Panics
    ///
    /// As [`Cache::refresh`].
    ///
    /// # Cancel safety
    ///
    /// As [`Cache::refresh`].
    pub async fn refresh(self) -> Result<Served<V>, Failure<E>> {
        let Self { cache, key, options } = self;
        let state = &cache.handle().0;
        let asked = state.now();
        let loaded = cache.load((key.to_key(), None), &key, Some(CallContext::new(options))).await;
        loaded.map(|answer| state.serve_answer(answer, asked)).map_err(Failure::from)
    }
}

/// Shows no key.
impl<C, K> fmt::Debug for EntrySelector<'_, C, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntrySelector").field("options", &self.options).finish_non_exhaustive()
    }
}
