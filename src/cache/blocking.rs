//! The handle for code without `async`: the same entries and flights.
//!
//! A hit is a look-up in the store. A miss blocks its thread, and goes the way of every caller, on
//! the runtime.

use std::fmt;
use std::panic::{catch_unwind, resume_unwind};

use futures_util::FutureExt;
use futures_util::future::lazy;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{block_in_place, spawn_blocking};
use tokio_util::task::AbortOnDropHandle;

use crate::cache::computation::CallerClosure;
use crate::cache::compute::Answer;
use crate::cache::failure::Failure;
use crate::cache::get_many::Batch;
use crate::cache::handle::{Invalidation, Stampede};
use crate::cache::typed::Cache;
use crate::computed::Computed;
use crate::error::{BoxError, Error, ErrorKind};
use crate::flight::lending::{scope_of_caller, within};
use crate::key::{Tag, ToKey};

const NO_RUNTIME: &str =
    "`blocking` is called outside of a Tokio runtime: give it one, by `blocking_on`";
const ONE_THREAD: &str = "`blocking` needs a runtime of several threads (`Runtime::new`, `#[tokio::main]`): nothing drives \
     the work on a runtime of one thread while that is blocked";
const IN_WORKER: &str = "a blocking call in the one thread of a runtime would stall it: use the methods of the handle \
     itself, or `tokio::task::spawn_blocking` on a runtime of several threads";

/// A cache for code without `async`: from [`Stampede::blocking`] or [`Cache::blocking`].
///
/// It shares entries, computations and settings with the handle that it was made of. A value that is
/// fresh is returned at once, by the same look-up. All other calls block the thread, as long as the
/// call of the same name waits. In a task of a runtime with several threads, the other tasks of the
/// worker go to another thread meanwhile ([`block_in_place`](tokio::task::block_in_place)), but
/// futures that are polled by the same task, as by `join!`, stand still.
///
/// # Panics
///
/// A call that would block panics in the one thread of a current-thread runtime, which would stand
/// still. A hit does not: so do not take it for a test of that. In a `LocalSet`, where tokio cannot move
/// other tasks away, it panics with the words of tokio: block on a thread of its own there
/// ([`spawn_blocking`]).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::{Error, Stampede};
///
/// fn read(id: u64) -> Result<String, std::io::Error> {
///     Ok(format!("user {id}")) // code that blocks: a file, a synchronous driver
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = tokio::runtime::Runtime::new()?;
/// let users: Stampede<String> = Stampede::in_memory(Duration::from_secs(60));
/// let users = users.blocking_on(runtime.handle());
/// let threads: Vec<_> = (0..8)
///     .map(|_| {
///         let users = users.clone();
///         std::thread::spawn(move || users.get_or_compute(7, || read(7)))
///     })
///     .collect();
/// for thread in threads {
///     assert_eq!(thread.join().unwrap()?, "user 7");
/// }
/// assert_eq!(users.handle().stats().computations, 1);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Blocking<C> {
    cache: C,
    runtime: Handle,
}

impl<C> Blocking<C> {
    #[track_caller]
    fn new(cache: C, runtime: Handle) -> Self {
        assert!(runtime.runtime_flavor() != RuntimeFlavor::CurrentThread, "{ONE_THREAD}");
        Self { cache, runtime }
    }

    /// Returns the cache whose methods are `async`.
    #[must_use]
    pub fn handle(&self) -> &C {
        &self.cache
    }

    /// Blocks the thread until `future` ends. Apart from the way of a hit.
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn wait<F: Future>(&self, future: F) -> F::Output {
        let Ok(here) = Handle::try_current() else { return self.runtime.block_on(future) };
        if here.runtime_flavor() == RuntimeFlavor::CurrentThread {
            // Its blocking pool may be blocked, and only tokio knows whether this is it.
            let may_block = catch_unwind(|| block_in_place(|| ()));
            assert!(may_block.is_ok(), "{IN_WORKER}");
        }
        block_in_place(|| self.runtime.block_on(future))
    }
}

#[track_caller]
fn current() -> Handle {
    Handle::try_current().expect(NO_RUNTIME)
}

impl<V: Clone + Send + Sync + 'static> Stampede<V> {
    /// Returns a handle for code without `async`, on the runtime of the caller.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, and in one of the flavor `current_thread`.
    #[must_use]
    #[track_caller]
    pub fn blocking(&self) -> Blocking<Self> {
        Blocking::new(self.clone(), current())
    }

    /// The same on another runtime. It must outlive the calls: one that is shut down meanwhile ends
    /// them with an error or a panic.
    ///
    /// # Panics
    ///
    /// If the runtime is of the flavor `current_thread`.
    #[must_use]
    #[track_caller]
    pub fn blocking_on(&self, runtime: &Handle) -> Blocking<Self> {
        Blocking::new(self.clone(), runtime.clone())
    }
}

impl<V: Clone + Send + Sync + 'static> Blocking<Stampede<V>> {
    /// Returns the value of `key`, and computes it if there is none; see
    /// [`Stampede::get_or_compute`]. The computation returns a value or a [`Computed`]. It runs on
    /// the blocking pool of the runtime, so its time-outs end the wait of all callers; the thread of
    /// a computation that has begun goes on until it returns.
    ///
    /// # Errors
    ///
    /// As [`Stampede::get_or_compute`].
    ///
    /// # Panics
    ///
    /// See [`Blocking`]. A panic of the computation goes on in the caller that led.
    #[track_caller]
    pub fn get_or_compute<K, F, R, E>(&self, key: K, compute: F) -> Result<V, Error>
    where
        K: ToKey,
        F: FnOnce() -> Result<R, E> + Send + 'static,
        R: Into<Computed<V>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        let (key, look) = match self.cache.look_up(&key) {
            Ok(entry) => return Ok(entry.value.clone()),
            Err(miss) => miss,
        };
        let mut later = CallerClosure::Closure(|| on_blocking_pool(compute));
        let answer = self.cache.0.answer_detached(key, look, &mut later, None);
        self.wait(answer).map(Answer::into_value)
    }

    /// Returns the value of `key` if it is there; never computes. See [`Stampede::get`].
    #[must_use]
    #[track_caller]
    pub fn get<K: ToKey>(&self, key: K) -> Option<V> {
        match self.cache.look_up(&key) {
            Ok(entry) => Some(entry.value.clone()),
            Err(miss) => self.wait(self.cache.find(miss)).map(|(entry, _)| entry.value.clone()),
        }
    }

    /// Returns a value whose computation began after this call; see [`Stampede::refresh`].
    ///
    /// # Errors
    ///
    /// As [`Stampede::refresh`].
    #[track_caller]
    pub fn refresh<K, F, R, E>(&self, key: K, compute: F) -> Result<V, Error>
    where
        K: ToKey,
        F: FnOnce() -> Result<R, E> + Send + 'static,
        R: Into<Computed<V>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        let mut later = CallerClosure::Closure(|| on_blocking_pool(compute));
        self.wait(self.cache.0.answer_fresh(key.to_key(), &mut later, None)).map(Answer::into_value)
    }

    /// Stores a value, or a [`Computed`]; see [`Stampede::put`].
    #[track_caller]
    pub fn put<K: ToKey>(&self, key: K, value: impl Into<Computed<V>>) {
        self.wait(self.cache.put_with(key, value.into()));
    }

    /// Removes a value; see [`Stampede::invalidate`].
    #[track_caller]
    pub fn invalidate<K: ToKey>(&self, key: K) -> Invalidation {
        self.wait(self.cache.invalidate(key))
    }

    /// Ends the use of every value that carries `tag`; see [`Stampede::invalidate_tag`].
    #[track_caller]
    pub fn invalidate_tag(&self, tag: impl Into<Tag>) -> Invalidation {
        self.wait(self.cache.invalidate_tag(tag))
    }
}

impl<K, V, E> Cache<K, V, E>
where
    K: ToKey + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: fmt::Debug + fmt::Display + Send + Sync + 'static,
{
    /// Returns a cache for code without `async`, on the runtime of the caller.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, and in one of the flavor `current_thread`.
    #[must_use]
    #[track_caller]
    pub fn blocking(&self) -> Blocking<Self> {
        Blocking::new(self.clone(), current())
    }

    /// The same on another runtime; see [`Stampede::blocking_on`].
    ///
    /// # Panics
    ///
    /// If the runtime is of the flavor `current_thread`.
    #[must_use]
    #[track_caller]
    pub fn blocking_on(&self, runtime: &Handle) -> Blocking<Self> {
        Blocking::new(self.clone(), runtime.clone())
    }
}

impl<K, V, E> Blocking<Cache<K, V, E>>
where
    K: ToKey + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: fmt::Debug + fmt::Display + Send + Sync + 'static,
{
    /// Returns the value of `key`, and loads it if there is none; see [`Cache::get`].
    ///
    /// # Errors
    ///
    /// As [`Cache::get`].
    ///
    /// # Panics
    ///
    /// See [`Blocking`]. A panic of the loader goes on in the caller that led.
    #[track_caller]
    pub fn get(&self, key: K) -> Result<V, Failure<E>> {
        let (encoded, look) = match self.cache.look_up(&key) {
            Ok(entry) => return Ok(entry.value.clone()),
            Err(miss) => miss,
        };
        let loaded = self.wait(self.cache.load((encoded, Some(look)), &key, None));
        loaded.map(Answer::into_value).map_err(Failure::from)
    }

    /// Returns the values of many keys; see [`Cache::get_many`].
    #[track_caller]
    pub fn get_many(&self, keys: impl IntoIterator<Item = K>) -> Batch<K, V, Failure<E>>
    where
        K: Eq + std::hash::Hash,
    {
        self.wait(self.cache.get_many(keys))
    }

    /// Returns a value whose loading began after this call; see [`Cache::refresh`].
    ///
    /// # Errors
    ///
    /// As [`Cache::refresh`].
    #[track_caller]
    pub fn refresh(&self, key: K) -> Result<V, Failure<E>> {
        self.wait(self.cache.refresh(key))
    }
}

/// Runs the computation where it may block. It keeps the scope of its flight: a computation that
/// asks for another key, or for its own, is known there too.
async fn on_blocking_pool<F, R, E>(compute: F) -> Result<R, BoxError>
where
    F: FnOnce() -> Result<R, E> + Send + 'static,
    R: Send + 'static,
    E: Into<BoxError> + Send + 'static,
{
    let scope = scope_of_caller();
    let work = move || match scope {
        // It ends in its first poll.
        Some(scope) => within(scope, lazy(|_| compute())).now_or_never(),
        None => Some(compute()),
    };
    // Where it waits for a thread, and its caller's time is over, it does not run at all.
    match AbortOnDropHandle::new(spawn_blocking(work)).await {
        Ok(Some(result)) => result.map_err(Into::into),
        Ok(None) => Err(Error::new(ErrorKind::ShutDown).into()),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => Err(Error::new(ErrorKind::ShutDown).into()),
        },
    }
}

impl<C> fmt::Debug for Blocking<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocking").finish_non_exhaustive()
    }
}
