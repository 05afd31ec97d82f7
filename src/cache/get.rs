//! The methods that return a value: by a look alone, or by a computation.
//!
//! The computation of [`Stampede::get_or_compute`] returns a plain value, that of
//! [`Stampede::get_or_compute_with`] a [`Computed`]. All other differences between calls are options
//! of [`Stampede::entry`].

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::cache::computation::{CallerClosure, ComputationResult};
use crate::cache::compute::Answer;
use crate::cache::handle::Stampede;
use crate::cache::state::{CacheState, Lookup};
use crate::clock::{Clock, Tick};
use crate::computed::Computed;
use crate::entry::Entry;
use crate::error::{BoxError, Error};
use crate::key::{Key, KeyBuf, ToKey};
use crate::outcome::CacheOutcome;

/// A value, and how it came about. Dereferences to the value, which is not cloned where it is
/// stored. As long as it lives, a stored value stays in memory, also when the cache has evicted
/// it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::{CacheOutcome, Stampede};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let hour = Duration::from_secs(3600);
/// let rates = Stampede::builder("rates").ttl(hour).stale_if_error(24 * hour).build()?;
/// rates.put("EUR", 1.08).await;
/// rates.mark_stale("EUR").await;
/// let load = || async { Err::<f64, _>(std::io::Error::other("the bank is away")) };
/// let rate = rates.entry("EUR").get_or_compute(load).await?;
/// assert_eq!((*rate, rate.outcome()), (1.08, CacheOutcome::StaleIfError));
/// assert!(rate.is_stale() && rate.age() < hour);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Served<V> {
    answer: Answer<V, V>,
    /// When the call began, if the value is its own result.
    asked: Tick,
    clock: Clock,
}

impl<V> Served<V> {
    /// Returns how the value came about.
    #[must_use]
    pub fn outcome(&self) -> CacheOutcome {
        self.answer.outcome()
    }

    /// Returns the time since the computation of the value began, as
    /// [`EntryInfo::age`](crate::EntryInfo) does. A value that this call itself has computed
    /// counts from the call. Reads the clock: a value that is kept grows older.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.clock.now().since(match &self.answer {
            Answer::Entry(entry, _) => entry.started(),
            Answer::Own(..) => self.asked,
        })
    }

    /// Returns whether the `ttl` of the value is over, or it was marked stale, whatever the
    /// outcome is: a caller that [`Joined`](CacheOutcome::Joined) others may have got a stale
    /// value of the remote. False for a value that this call itself has computed. Reads the
    /// clock, as [`age`](Self::age) does.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        match &self.answer {
            Answer::Entry(entry, _) => self.clock.now() >= entry.window().fresh_until,
            Answer::Own(..) => false,
        }
    }

    /// Returns the value: a clone of it, where it is stored.
    #[must_use]
    pub fn into_value(self) -> V
    where
        V: Clone,
    {
        self.answer.into_value()
    }
}

impl<V> Deref for Served<V> {
    type Target = V;

    fn deref(&self) -> &V {
        match &self.answer {
            Answer::Entry(entry, _) => &entry.value,
            Answer::Own(value, _) => value,
        }
    }
}

impl<V> CacheState<V> {
    pub(super) fn serve(&self, entry: Arc<Entry<V>>, outcome: CacheOutcome) -> Served<V> {
        self.serve_answer(Answer::Entry(entry, outcome), Tick::default())
    }

    /// Makes what a call gets that began at `asked`.
    pub(super) fn serve_answer(&self, answer: Answer<V, V>, asked: Tick) -> Served<V> {
        Served { answer, asked, clock: self.engine.clock.clone() }
    }
}

#[expect(clippy::manual_async_fn, reason = "an async function holds its closure twice")]
impl<V: Clone + Send + Sync + 'static> Stampede<V> {
    /// Returns the value of `key`, and computes it if there is none. Of all
    /// callers that ask at once, one computes; the others get its result.
    ///
    /// The computation runs on a task of its own: it goes on when the caller
    /// goes away. A panic in it goes on in the caller that started it. It may ask
    /// the same handle for other keys; see
    /// [`Builder::max_computations`](crate::Builder::max_computations).
    ///
    /// With a remote, the value is written behind the answer. A process that ends calls
    /// [`shutdown`](Self::shutdown) first: otherwise it may lose its last writes and leave their locks,
    /// and the next process waits for up to a [`lease`](crate::Builder::lease).
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
    /// # From a method with `&self`
    ///
    /// The computation outlives the call, so its closure must own what it uses: `|| self.db.get(id)`
    /// does not compile (E0373, E0521), and `move` alone does not help. There are three ways: clone
    /// what the closure needs; or give a [`Cache`](crate::Cache) the loader and its state once, by
    /// [`with_state`](crate::Cache::with_state); or borrow, in
    /// [`get_or_compute_scoped`](Self::get_or_compute_scoped), and lose the work when the caller goes
    /// away.
    ///
    /// ```
    /// # use std::{sync::Arc, time::Duration};
    /// # use tower_stampede::{Error, Stampede};
    /// # struct Database;
    /// # impl Database { async fn user(&self, id: u64) -> Result<String, std::io::Error> { Ok(id.to_string()) } }
    /// struct Users {
    ///     database: Arc<Database>,
    ///     cache: Stampede<String>,
    /// }
    ///
    /// impl Users {
    ///     async fn user(&self, id: u64) -> Result<String, Error> {
    ///         let database = Arc::clone(&self.database);
    ///         self.cache.get_or_compute(id, move || async move { database.user(id).await }).await
    ///     }
    ///
    ///     async fn user_while_the_caller_stays(&self, id: u64) -> Result<String, Error> {
    ///         self.cache.get_or_compute_scoped(id, || self.database.user(id)).await
    ///     }
    /// }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let cache = Stampede::in_memory(Duration::from_secs(60));
    /// # let users = Users { database: Arc::new(Database), cache };
    /// # assert_eq!(users.user(7).await?, users.user_while_the_caller_stays(7).await?);
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
    pub fn get_or_compute<K, F, Fut, E>(
        &self,
        key: K,
        compute: F,
    ) -> impl Future<Output = Result<V, Error>>
    where
        K: ToKey,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        async move {
            let (key, look) = match self.look_up(&key) {
                Ok(entry) => return Ok(entry.value.clone()),
                Err(miss) => miss,
            };
            let mut later = CallerClosure::Closure(compute);
            self.0.answer_detached(key, look, &mut later, None).await.map(Answer::into_value)
        }
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
    pub fn get_or_compute_with<K, F, Fut, E>(
        &self,
        key: K,
        compute: F,
    ) -> impl Future<Output = Result<V, Error>>
    where
        K: ToKey,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Computed<V>, E>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        async move {
            let (key, look) = match self.look_up(&key) {
                Ok(entry) => return Ok(entry.value.clone()),
                Err(miss) => miss,
            };
            let mut later = CallerClosure::Closure(compute);
            self.0.answer_detached(key, look, &mut later, None).await.map(Answer::into_value)
        }
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
        Box::pin(self.0.answer_inline(key, look, made, None)).await.map(Answer::into_value)
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
        match self.look_up(&key) {
            Ok(entry) => Some(entry.value.clone()),
            Err(miss) => self.find(miss).await.map(|(entry, _)| entry.value.clone()),
        }
    }

    /// Looks for what a first look has not found fresh.
    pub(super) async fn find(
        &self,
        (key, look): (Key, Lookup<V>),
    ) -> Option<(Arc<Entry<V>>, CacheOutcome)> {
        // Judged once: a second judgement may draw the early refresh differently.
        let look = match look {
            Lookup::Unvouched(_) => Box::pin(self.0.look_vouched(&key)).await,
            look => look,
        };
        let (entry, outcome) = match look {
            Lookup::Fresh(entry) | Lookup::Early(entry) => (entry, CacheOutcome::Hit),
            Lookup::Stale(entry) | Lookup::Unvouched(entry) => (entry, CacheOutcome::Stale),
            Lookup::Miss(_) => {
                let entry = Box::pin(self.0.fetch(key)).await?;
                let fresh = self.0.now() < entry.window().fresh_until;
                (entry, if fresh { CacheOutcome::Hit } else { CacheOutcome::Stale })
            }
        };
        self.0.observer.served(&entry, outcome, self.0.now());
        self.0.observer.answered(outcome);
        Some((entry, outcome))
    }

    /// Returns a value whose computation began after this call, however fresh the
    /// stored value is, and stores it. Meanwhile other callers are served what is
    /// there. Use it where the caller has just changed the data, and needs a value
    /// that knows of the change.
    ///
    /// A computation that runs already may have read the old data. So the call
    /// waits for its end, and one of the callers that wait computes again: at most
    /// one computation of the key runs, and one is wanted next, however many callers
    /// ask. With a remote, a value of another process counts only where its computation
    /// surely began after the call: of all processes one computes at a time, and a call
    /// waits for two others at most.
    ///
    /// This is a *fresh read*: a call that begins after a write to the data has completed never
    /// returns a value from before it, as long as what the computation reads is itself up to
    /// date.
    ///
    /// The new value keeps the tags of the value that it replaces. A result that is too
    /// heavy to be stored goes to the callers, and the older value is invalidated. With
    /// `compute_after_wait`, a call whose wait has ended returns a value of its own, which is
    /// not stored.
    ///
    /// A caller that waits for an older computation first has another `wait_timeout` after
    /// that.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    /// use std::time::Duration;
    /// use tower_stampede::Stampede;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_stampede::Error> {
    /// let stock = Arc::new(AtomicU64::new(7));
    /// let load = {
    ///     let stock = Arc::clone(&stock);
    ///     || async move { Ok::<_, std::io::Error>(stock.load(SeqCst)) }
    /// };
    /// let cache: Stampede<u64> = Stampede::in_memory(Duration::from_secs(60));
    /// assert_eq!(cache.get_or_compute("stock", load.clone()).await?, 7);
    /// stock.store(6, SeqCst);
    /// assert_eq!(cache.get_or_compute("stock", load.clone()).await?, 7);
    /// assert_eq!(cache.refresh("stock", load).await?, 6);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`get_or_compute`](Self::get_or_compute), but no stale value stands in.
    /// The stored entry stays. A hold does not refuse this call.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a dropped caller leaves the computation running.
    pub fn refresh<K, F, Fut, E>(
        &self,
        key: K,
        compute: F,
    ) -> impl Future<Output = Result<V, Error>>
    where
        K: ToKey,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        let mut later = CallerClosure::Closure(compute);
        async move {
            let answer = self.0.answer_fresh(key.to_key(), &mut later, None).await;
            answer.map(Answer::into_value)
        }
    }

    /// Returns a fresh entry, or the key and the look-up that found none.
    // Always: it is the body of a hit, and many methods call it. Not in a build with debug
    // assertions: there each call of `get_or_compute` would compile the body of a hit again.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn look_up<K: ToKey + ?Sized>(
        &self,
        key: &K,
    ) -> Result<Arc<Entry<V>>, (Key, Lookup<V>)> {
        // Encoded into a local buffer: to return one from a function would copy it.
        let mut bytes = KeyBuf::new();
        key.encode(&mut bytes);
        match self.0.look(bytes.as_bytes()) {
            Lookup::Fresh(entry) => {
                self.0.observer.hit(bytes.as_bytes(), &entry);
                Ok(entry)
            }
            look => Err((bytes.to_key(), look)),
        }
    }
}
