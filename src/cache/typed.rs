//! A cache with one type of key, one type of error, and a loader that it keeps.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::cache::batch::Batcher;
use crate::cache::call_options::{CallContext, Stored};
use crate::cache::computation::CallerClosure;
use crate::cache::compute::Answer;
use crate::cache::failure::Failure;
use crate::cache::get_many::{Batch, Missing, boxed};
use crate::cache::handle::{Invalidation, Stampede};
use crate::cache::loader::{Hooks, LoadOne, Loader, Loading};
use crate::cache::seat::AppKey;
use crate::cache::state::Lookup;
use crate::computed::Computed;
use crate::entry::Entry;
use crate::error::{Error, FailureAction, LoadFailure};
use crate::key::{Key, Tag, ToKey};

/// A key of a cache with keys of type `K`, to look up: a `K`, or a reference to a borrowed form
/// of it, `&str` for a `String`. `F` says which, and is always inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no key of this cache, whose keys are of type `{K}`",
    label = "neither `{K}` nor a reference to a borrowed form of it"
)]
pub trait KeyOf<K, F>: ToKey {}

// One `F` for each kind, so that the kinds may overlap. `ToOwned` keeps `&str` from being of two
// kinds where `&'static str` is the key.
impl<K: ToKey> KeyOf<K, ()> for K {}
impl<K: Borrow<Q>, Q: ToKey + ToOwned<Owned = K> + ?Sized> KeyOf<K, PhantomData<Q>> for &Q {}
impl KeyOf<Arc<str>, u8> for &str {}
impl KeyOf<Box<str>, u8> for &str {}
impl KeyOf<Arc<[u8]>, u8> for &[u8] {}
impl KeyOf<Bytes, u8> for &[u8] {}

/// A cache of one kind of thing: it knows the type of its keys, how a value is loaded, and
/// what may go wrong with that.
///
/// It is a [`Stampede`] handle with a loader. The handle has the settings, the remote and
/// the store; see [`handle`](Self::handle). Cheap to clone: every clone shares the same
/// values and the same running computations.
///
/// Must be used within a Tokio runtime.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::{Cache, Failure, Stampede};
///
/// #[derive(Debug)]
/// enum UserError {
///     NotFound(u64),
///     Cache(tower_stampede::Error),
/// }
///
/// impl std::fmt::Display for UserError {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         match self {
///             Self::NotFound(id) => write!(f, "there is no user {id}"),
///             Self::Cache(error) => error.fmt(f),
///         }
///     }
/// }
///
/// impl From<Failure<UserError>> for UserError {
///     fn from(failure: Failure<UserError>) -> Self {
///         match failure {
///             Failure::Computation(error) => match &*error {
///                 Self::NotFound(id) => Self::NotFound(*id),
///                 Self::Cache(error) => Self::Cache(error.clone()),
///             },
///             Failure::Cache(error) => Self::Cache(error),
///         }
///     }
/// }
///
/// #[derive(Clone)]
/// struct Database;
///
/// impl Database {
///     async fn user(&self, id: u64) -> Result<String, UserError> {
///         if id == 7 { Ok("Ada".to_owned()) } else { Err(UserError::NotFound(id)) }
///     }
/// }
///
/// async fn greet(users: &Cache<u64, String, UserError>, id: u64) -> Result<String, UserError> {
///     Ok(format!("Hello, {}!", users.get(id).await?))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let handle = Stampede::in_memory(Duration::from_secs(60));
/// let users = Cache::with_state(handle, Database, |db, id| async move { db.user(id).await });
/// assert_eq!(greet(&users, 7).await.unwrap(), "Hello, Ada!");
/// assert!(matches!(greet(&users, 8).await, Err(UserError::NotFound(8))));
/// # }
/// ```
///
/// A key of another type does not compile:
///
/// ```compile_fail
/// # use std::time::Duration;
/// # use tower_stampede::{Cache, Stampede};
/// # async fn run() {
/// let squares: Cache<u64, u64, std::io::Error> =
///     Cache::new(Stampede::in_memory(Duration::from_secs(60)), |n| async move { Ok(n * n) });
/// squares.get("42").await;
/// # }
/// ```
pub struct Cache<K, V, E> {
    handle: Stampede<V>,
    loader: Arc<Loader<K, V, E>>,
    hooks: Arc<Hooks<K, E>>,
}

impl<K, V, E> Cache<K, V, E>
where
    K: ToKey + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: fmt::Debug + fmt::Display + Send + Sync + 'static,
{
    /// Makes a cache of a handle, which brings the settings, and a loader.
    ///
    /// The loader returns a value, or a [`Computed`] where the value sets its own lifetime
    /// and tags. A plain value that refreshes another one keeps the tags of that one. The loader
    /// runs on a task of its own: it goes on when the caller goes away.
    pub fn new<F, Fut, R>(handle: Stampede<V>, load: F) -> Self
    where
        F: Fn(K) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Computed<V>>,
    {
        Self::with_loader(handle, move |key, _| load(key), false)
    }

    /// Like [`new`](Self::new), with a loader that sees the older value: it can ask the origin
    /// whether that still stands, and renew it. See [`Stored`], also for which values it sees.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::{Cache, Computed, Stampede, Stored};
    ///
    /// type Page = (String, u64);
    ///
    /// async fn load(id: u64, stored: Option<Stored<Page>>) -> Result<Computed<Page>, std::io::Error> {
    ///     // select page, revision from pages where id = $1 and revision > $2
    ///     let revision = stored.as_ref().map_or(0, |stored| stored.value().1);
    ///     match stored {
    ///         Some(stored) if revision == 1 => Ok(stored.renewed()),
    ///         _ => Ok(Computed::new((format!("page {id}"), 1))),
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let handle = Stampede::builder("pages")
    ///     .ttl(Duration::from_secs(60))
    ///     .stale_if_error(Duration::from_secs(3600))
    ///     .build()?;
    /// let pages = Cache::revalidating(handle, load);
    /// assert_eq!(pages.get(7).await?.0, "page 7");
    /// # Ok(()) }
    /// ```
    pub fn revalidating<F, Fut, R>(handle: Stampede<V>, load: F) -> Self
    where
        F: Fn(K, Option<Stored<V>>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Computed<V>>,
    {
        Self::with_loader(handle, load, true)
    }

    fn with_loader<F, Fut, R>(handle: Stampede<V>, load: F, sees_stored: bool) -> Self
    where
        F: Fn(K, Option<Stored<V>>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Computed<V>>,
    {
        let load = move |key, stored| -> Loading<V, E> {
            let loading = load(key, stored);
            Box::pin(async move { loading.await.map(Into::into) })
        };
        let loader = Loader::One(LoadOne { load: Arc::new(load), sees_stored });
        Self { handle, loader: Arc::new(loader), hooks: Hooks::new() }
    }

    /// Sets what a failure of the loader does to the waiters and to the callers that come
    /// next, for every clone. The hook takes the place of
    /// [`Builder::on_failure`](crate::Builder::on_failure) of the handle, and sees the loader's
    /// own error. It must not panic. A key that a [batch loader](Self::batched) returned no
    /// value for has no such error: there the handle's own hook is asked, with
    /// [`Absent`](crate::Absent).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::{Cache, Failure, FailureAction, Stampede};
    ///
    /// #[derive(Debug)]
    /// enum UserError {
    ///     NotFound,
    ///     DatabaseDown,
    /// }
    /// # impl std::fmt::Display for UserError {
    /// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("e") }
    /// # }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let handle: Stampede<String> = Stampede::in_memory(Duration::from_secs(60));
    /// let users = Cache::new(handle, |_id: u64| async { Err::<String, _>(UserError::NotFound) })
    ///     .on_failure(|error| match error {
    ///         UserError::NotFound => FailureAction::Remember(Duration::from_secs(10)),
    ///         UserError::DatabaseDown => FailureAction::Hold,
    ///     });
    /// for _ in 0..3 {
    ///     let Err(Failure::Computation(error)) = users.get(7).await else { panic!() };
    ///     assert!(matches!(*error, UserError::NotFound));
    /// }
    /// assert_eq!(users.handle().stats().computations, 1);
    /// # }
    /// ```
    #[must_use]
    pub fn on_failure(self, hook: impl Fn(&E) -> FailureAction + Send + Sync + 'static) -> Self {
        let replaced = self.hooks.failure.write().replace(Arc::new(hook));
        drop(replaced);
        self
    }

    /// Makes a cache of a handle and a loader that loads several keys with one call; see
    /// [`Stampede::get_many`]. A key without a pair in what it returns is absent: [`get`](Self::get)
    /// returns [`Absent`](crate::Absent) as the inner error of [`Failure::Cache`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::{Cache, Failure, Stampede};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Failure<std::io::Error>> {
    /// let handle = Stampede::in_memory(Duration::from_secs(60));
    /// let squares = Cache::batched(handle, |missing: Vec<u64>| async move {
    ///     // One query: select * from squares where n = any($1)
    ///     Ok::<_, std::io::Error>(missing.into_iter().map(|n| (n, n * n)))
    /// });
    /// assert_eq!(squares.get(2).await?, 4);
    /// assert_eq!(squares.get_many([2, 3, 4]).await.complete()?[&4], 16);
    /// # Ok(()) }
    /// ```
    pub fn batched<F, Fut, P, R>(handle: Stampede<V>, load: F) -> Self
    where
        F: Fn(Vec<K>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<P, E>> + Send + 'static,
        P: IntoIterator<Item = (K, R)>,
        R: Into<Computed<V>> + 'static,
    {
        let keys_of = |(key, _): (K, Option<Stored<V>>)| key;
        let load = move |missing: Vec<_>| load(missing.into_iter().map(keys_of).collect());
        Self::with_batch_loader(handle, load, false)
    }

    /// Like [`batched`](Self::batched), with a loader that sees the older value of each key: it can
    /// renew those that still stand. See [`revalidating`](Self::revalidating).
    pub fn batched_revalidating<F, Fut, P, R>(handle: Stampede<V>, load: F) -> Self
    where
        F: Fn(Vec<(K, Option<Stored<V>>)>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<P, E>> + Send + 'static,
        P: IntoIterator<Item = (K, R)>,
        R: Into<Computed<V>> + 'static,
    {
        Self::with_batch_loader(handle, load, true)
    }

    fn with_batch_loader<F, Fut, P, R>(handle: Stampede<V>, load: F, sees_stored: bool) -> Self
    where
        F: Fn(Vec<(K, Option<Stored<V>>)>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<P, E>> + Send + 'static,
        P: IntoIterator<Item = (K, R)>,
        R: Into<Computed<V>> + 'static,
    {
        let hooks = Hooks::new();
        let (of_call, of_key) = (Arc::clone(&hooks), Arc::clone(&hooks));
        let load = boxed(load, move |error| of_call.failure(error));
        let absent = Arc::new(move |key: &AppKey| of_key.absent(key));
        let window = handle.0.engine.settings.batch_window();
        let batcher = Batcher::new(&handle.0.engine, load, absent, window, sees_stored);
        Self { handle, loader: Arc::new(Loader::Batch(batcher)), hooks }
    }

    /// Like [`batched`](Self::batched), with something that each call of the loader gets a
    /// clone of: a connection pool, or a client.
    pub fn batched_with_state<S, F, Fut, P, R>(handle: Stampede<V>, state: S, load: F) -> Self
    where
        S: Clone + Send + Sync + 'static,
        F: Fn(S, Vec<K>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<P, E>> + Send + 'static,
        P: IntoIterator<Item = (K, R)>,
        R: Into<Computed<V>> + 'static,
    {
        Self::batched(handle, move |keys| load(state.clone(), keys))
    }

    /// Sets what a key is that a batch loader returned nothing for, for every clone: a failure
    /// of the application, which [`on_failure`](Self::on_failure) may have remembered. Without
    /// it, such a key is no failure of [`get_many`](Self::get_many), and
    /// [`Absent`](crate::Absent) for [`get`](Self::get). The hook must not panic.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::{Cache, Failure, FailureAction, Stampede};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let handle: Stampede<String> = Stampede::in_memory(Duration::from_secs(60));
    /// let load = |_: Vec<u64>| async { Ok::<_, String>(Vec::<(u64, String)>::new()) };
    /// let users = Cache::batched(handle, load)
    ///     .absent(|id| format!("there is no user {id}"))
    ///     .on_failure(|_| FailureAction::Remember(Duration::from_secs(10)));
    /// let Err(Failure::Computation(error)) = users.get(7).await else { panic!() };
    /// assert_eq!(*error, "there is no user 7");
    /// # }
    /// ```
    #[must_use]
    pub fn absent(self, error: impl Fn(&K) -> E + Send + Sync + 'static) -> Self {
        let replaced = self.hooks.absent.write().replace(Arc::new(error));
        drop(replaced);
        self
    }

    /// Like [`new`](Self::new), with something that each call of the loader gets a clone of:
    /// a connection pool, or a client.
    pub fn with_state<S, F, Fut, R>(handle: Stampede<V>, state: S, load: F) -> Self
    where
        S: Clone + Send + Sync + 'static,
        F: Fn(S, K) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Computed<V>>,
    {
        Self::new(handle, move |key| load(state.clone(), key))
    }

    /// Returns the handle, for statistics, modes, events and the rest.
    #[must_use]
    pub fn handle(&self) -> &Stampede<V> {
        &self.handle
    }

    /// Returns the value of `key`, and loads it if there is none. Of all callers that ask at
    /// once, one loads; the others get its result.
    ///
    /// # Errors
    ///
    /// [`Failure::Computation`] with the loader's own error, also where a hold repeats it,
    /// and [`Failure::Cache`] with an error of the cache. Where a stale value may stand in,
    /// that is returned instead.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime. A panic of the loader goes on in the caller that led.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a dropped caller leaves a loader that has begun running for the others, and
    /// its result is stored.
    pub async fn get(&self, key: K) -> Result<V, Failure<E>> {
        let loaded = match self.look_up(&key) {
            Ok(entry) => return Ok(entry.value.clone()),
            Err((encoded, look)) => self.load((encoded, Some(look)), &key, None).await,
        };
        loaded.map(Answer::into_value).map_err(Failure::from)
    }

    /// Looks up a key, and remembers it where it is used often.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn look_up(&self, key: &K) -> Result<Arc<Entry<V>>, (Key, Lookup<V>)> {
        let found = self.handle.look_up(key);
        if let Ok(entry) = &found
            && entry.is_noted_use()
        {
            self.note_popular(key, || key.clone());
        }
        found
    }

    /// Answers a caller that has found nothing fresh. Without a look it gets a value whose loading
    /// began after the call.
    pub(super) async fn load(
        &self,
        (encoded, look): (Key, Option<Lookup<V>>),
        key: &K,
        context: Option<Arc<CallContext<V>>>,
    ) -> Result<Answer<V, V>, Error> {
        let state = &self.handle.0;
        match &*self.loader {
            Loader::One(load) => {
                let context = load.context(context);
                let mut later = CallerClosure::Closure(self.loading(load, key, context.as_ref()));
                match look {
                    Some(look) => state.answer_detached(encoded, look, &mut later, context).await,
                    None => state.answer_fresh(encoded, &mut later, context).await,
                }
            }
            Loader::Batch(batcher) => {
                let key = Arc::new(key.clone());
                let answer = state.answer_by_batcher((encoded, look), key, batcher, context);
                Box::pin(answer).await
            }
        }
    }

    /// Returns a value whose loading began after this call: a fresh read; see
    /// [`Stampede::refresh`]. One loading runs and one is queued, however many callers ask.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    /// use std::time::Duration;
    /// use tower_stampede::{Cache, Failure, Stampede};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Failure<std::io::Error>> {
    /// let stock = Arc::new(AtomicU64::new(7));
    /// let source = Arc::clone(&stock);
    /// let cache = Cache::new(Stampede::in_memory(Duration::from_secs(60)), move |_item: u32| {
    ///     let source = Arc::clone(&source);
    ///     async move { Ok::<_, std::io::Error>(source.load(SeqCst)) }
    /// });
    /// assert_eq!(cache.get(1).await?, 7);
    /// stock.store(6, SeqCst);
    /// assert_eq!(cache.refresh(1).await?, 6);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get), but no stale value stands in, and a hold does not refuse it.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a dropped caller leaves the loader running.
    pub async fn refresh(&self, key: K) -> Result<V, Failure<E>> {
        let loaded = self.load((key.to_key(), None), &key, None).await;
        loaded.map(Answer::into_value).map_err(Failure::from)
    }

    pub(super) fn hooks(&self) -> &Hooks<K, E> {
        &self.hooks
    }

    pub(super) fn loader(&self) -> &Loader<K, V, E> {
        &self.loader
    }

    /// Returns what makes the cache again, as long as a caller has it.
    pub(super) fn downgrade(&self) -> impl Fn() -> Option<Self> + Send + use<K, V, E> {
        let state = Arc::downgrade(&self.handle.0);
        let (loader, hooks) = (Arc::clone(&self.loader), Arc::clone(&self.hooks));
        move || {
            let handle = Stampede(state.upgrade()?);
            Some(Self { handle, loader: Arc::clone(&loader), hooks: Arc::clone(&hooks) })
        }
    }

    /// Returns what a leader runs; the loader is called by the leader alone.
    pub(super) fn loading(
        &self,
        load: &LoadOne<K, V, E>,
        key: &K,
        context: Option<&Arc<CallContext<V>>>,
    ) -> impl FnOnce() -> BoxFuture<'static, Result<Computed<V>, LoadFailure>> + Send + use<K, V, E>
    {
        let (load, key, hooks) = (Arc::clone(&load.load), key.clone(), Arc::clone(&self.hooks));
        let context = context.cloned();
        move || {
            let loading = load(key, context.and_then(|call| call.take_stored()));
            Box::pin(
                async move { loading.await.map_err(|error| LoadFailure(hooks.failure(error))) },
            )
        }
    }

    /// Returns the values of many keys. With a [batch loader](Self::batched), those that are
    /// missing are loaded with one call; see [`Stampede::get_many`]. With a loader for single
    /// keys they are loaded side by side.
    ///
    /// # Errors
    ///
    /// For each key as [`get`](Self::get). An absent key is no failure: it stands in neither
    /// map. To get a failure by `?`, call [`complete`](Batch::complete):
    /// `get_many(keys).await.complete()?`.
    ///
    /// # Panics
    ///
    /// As [`get`](Self::get).
    ///
    /// # Cancel safety
    ///
    /// As [`get`](Self::get).
    pub async fn get_many(&self, keys: impl IntoIterator<Item = K>) -> Batch<K, V, Failure<E>>
    where
        K: Eq + Hash,
    {
        let batch = match &*self.loader {
            Loader::Batch(batcher) => self.handle.get_many_by(keys, || Arc::clone(batcher)).await,
            Loader::One(_) => self.get_each(keys).await,
        };
        batch.map_failures(Failure::from)
    }

    /// Returns values from the store, and loads each of the others by itself, side by side.
    async fn get_each(&self, keys: impl IntoIterator<Item = K>) -> Batch<K, V>
    where
        K: Eq + Hash,
    {
        let (mut batch, missing) = self.handle.look_up_all(keys);
        let load = |Missing { key, encoded, lookup }| {
            Box::pin(async move {
                let answer = self.load((encoded, Some(lookup)), &key, None).await;
                (key, answer)
            })
        };
        let mut answers: FuturesUnordered<_> = missing.into_iter().map(load).collect();
        while let Some((key, answer)) = answers.next().await {
            batch.add(key, answer);
        }
        batch
    }

    /// Loads the keys that have no value in this process, not even a stale one, with at most
    /// `limit` calls of the loader at once (at least one). Returns the keys that failed, and why.
    /// For a warm-up before the first caller comes; see also [`keep_fresh`](Self::keep_fresh).
    ///
    /// # Panics
    ///
    /// As [`get`](Self::get).
    ///
    /// # Cancel safety
    ///
    /// A dropped call begins no further loads. Those that run go on.
    pub async fn preload(
        &self,
        keys: impl IntoIterator<Item = K>,
        limit: usize,
    ) -> HashMap<K, Failure<E>>
    where
        K: Eq + Hash,
    {
        let size = match &*self.loader {
            Loader::One(_) => 1,
            Loader::Batch(_) => self.handle.0.engine.settings.max_batch(),
        };
        let state = &self.handle.0;
        let is_missing = |key: &K| matches!(state.look(key.to_key().as_bytes()), Lookup::Miss(_));
        let mut keys = keys.into_iter().filter(is_missing).peekable();
        let mut failures = HashMap::new();
        let mut loads = FuturesUnordered::new();
        loop {
            while loads.len() < limit.max(1) && keys.peek().is_some() {
                loads.push(self.get_many(keys.by_ref().take(size).collect::<Vec<_>>()));
            }
            match loads.next().await {
                Some(batch) => failures.extend(batch.failures),
                None => return failures,
            }
        }
    }

    /// Returns the value of `key`, as [`get`](Self::get) does, by a borrowed form of the key:
    /// `&str` for a `String`. A key of the own type is made on a miss only.
    ///
    /// The borrowed form must be the same key ([`ToKey`]) as the own one, as it is for text and
    /// bytes. The key of a [`key_struct!`](crate::key_struct) has the name of its type too, so a
    /// `&str` cannot stand for a struct around a `String`, and does not compile. A `&Token` can
    /// stand for a `Token`: it is cloned on a miss only.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    ///
    /// # Panics
    ///
    /// As [`get`](Self::get).
    ///
    /// # Cancel safety
    ///
    /// As [`get`](Self::get).
    pub async fn get_borrowed<Q>(&self, key: &Q) -> Result<V, Failure<E>>
    where
        K: Borrow<Q>,
        Q: ToKey + ToOwned<Owned = K> + ?Sized,
    {
        let loaded = match self.handle.look_up(key) {
            Ok(entry) => {
                if entry.is_noted_use() {
                    self.note_popular(key, || key.to_owned());
                }
                return Ok(entry.value.clone());
            }
            Err((encoded, look)) => self.load((encoded, Some(look)), &key.to_owned(), None).await,
        };
        loaded.map(Answer::into_value).map_err(Failure::from)
    }

    /// Returns the value of `key` if it is there; never loads. See [`Stampede::get`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn peek<F>(&self, key: impl KeyOf<K, F>) -> Option<V> {
        self.handle.get(key).await
    }

    /// Stores a value; see [`Stampede::put_with`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn put<F>(&self, key: impl KeyOf<K, F>, value: impl Into<Computed<V>>) {
        self.handle.put_with(key, value.into()).await;
    }

    /// Removes a value; see [`Stampede::invalidate`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn invalidate<F>(&self, key: impl KeyOf<K, F>) -> Invalidation {
        self.handle.invalidate(key).await
    }

    /// Removes a value, from where nothing can be awaited; see [`Stampede::invalidate_now`].
    pub fn invalidate_now<F>(&self, key: impl KeyOf<K, F>) -> bool {
        self.handle.invalidate_now(key)
    }

    /// Stores a value, from where nothing can be awaited; see [`Stampede::put_now`].
    pub fn put_now<F>(&self, key: impl KeyOf<K, F>, value: impl Into<Computed<V>>) {
        self.handle.put_with_now(key, value.into());
    }

    /// Makes a value stale; see [`Stampede::mark_stale`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn mark_stale<F>(&self, key: impl KeyOf<K, F>) -> Invalidation {
        self.handle.mark_stale(key).await
    }

    /// Makes a value stale, from where nothing can be awaited; see [`Stampede::mark_stale_now`].
    pub fn mark_stale_now<F>(&self, key: impl KeyOf<K, F>) -> bool {
        self.handle.mark_stale_now(key)
    }

    /// Ends the use of every value that carries `tag`; see [`Stampede::invalidate_tag`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn invalidate_tag(&self, tag: impl Into<Tag>) -> Invalidation {
        self.handle.invalidate_tag(tag).await
    }
}

// By hand, to say that a clone counts references, and asks nothing of the types.
impl<K, V, E> Clone for Cache<K, V, E> {
    fn clone(&self) -> Self {
        let (handle, loader) = (self.handle.clone(), Arc::clone(&self.loader));
        Self { handle, loader, hooks: Arc::clone(&self.hooks) }
    }
}

impl<K, V: Clone + Send + Sync + 'static, E> fmt::Debug for Cache<K, V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("handle", &self.handle).finish_non_exhaustive()
    }
}
