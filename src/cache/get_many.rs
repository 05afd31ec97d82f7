//! Many keys at once: one call of the origin for those that are missing.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::cache::batch::{BatchLoad, Batcher, Gathering, KeyToLoad, LoadedPairs};
use crate::cache::call_options::Stored;
use crate::cache::compute::Answer;
use crate::cache::handle::Stampede;
use crate::cache::state::Lookup;
use crate::computed::Computed;
use crate::error::{Absent, BoxError, Error};
use crate::key::{Key, ToKey};

/// What [`Stampede::get_many`] found: a value or a failure for each key, or neither where the
/// loader returned no value for the key.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::Stampede;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_stampede::Error> {
/// let squares: Stampede<u64> = Stampede::in_memory(Duration::from_secs(60));
/// let load = |missing: Vec<u64>| async move {
///     Ok::<_, std::io::Error>(missing.into_iter().filter(|n| *n < 10).map(|n| (n, n * n)))
/// };
/// let batch = squares.get_many([2, 3, 11], load).await;
/// assert_eq!(batch.values[&3], 9);
/// assert!(batch.failures.is_empty());
/// // The loader knows no square of 11.
/// assert!(!batch.complete()?.contains_key(&11));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use = "keys can have failed: `complete()` returns the values or a failure, `failures` has all of them"]
pub struct Batch<K, V, E = Error> {
    /// The values that were found.
    pub values: HashMap<K, V>,
    /// Why there is no value, for each key where that is a failure.
    pub failures: HashMap<K, E>,
}

impl<K, V, E> Batch<K, V, E> {
    /// Returns all values if nothing failed.
    ///
    /// # Errors
    ///
    /// One of the failures if there are any.
    pub fn complete(self) -> Result<HashMap<K, V>, E> {
        match self.failures.into_values().next() {
            Some(failure) => Err(failure),
            None => Ok(self.values),
        }
    }

    fn new() -> Self {
        Self { values: HashMap::new(), failures: HashMap::new() }
    }

    pub(super) fn map_failures<F>(self, change: impl Fn(E) -> F) -> Batch<K, V, F>
    where
        K: Eq + Hash,
    {
        let changed = |(key, failure)| (key, change(failure));
        let failures = self.failures.into_iter().map(changed).collect();
        Batch { values: self.values, failures }
    }
}

/// A key that is looked for.
pub(super) struct Missing<K, V> {
    pub(super) key: K,
    pub(super) encoded: Key,
    pub(super) lookup: Lookup<V>,
}

impl<V: Clone + Send + Sync + 'static> Stampede<V> {
    /// Returns the values of many keys, and computes those that are missing with one call of
    /// `load`.
    ///
    /// Each key is computed once, however many batches and single callers ask for it: `load`
    /// gets the keys for which this caller leads, each once. For the others the caller waits,
    /// as [`get_or_compute`](Self::get_or_compute) does. Stale values are returned at once,
    /// and refreshed in the background by the same call.
    ///
    /// `load` returns pairs of keys and values, for example a `HashMap`. A key without a pair
    /// is absent: it stands in neither map of the [`Batch`], and nothing is stored for it. A
    /// pair that was not asked for is dropped.
    ///
    /// A call takes one of the `max_computations` places. One call has at most
    /// [`max_batch`](crate::Builder::max_batch) keys; more keys are several calls, side by
    /// side. `load` is called again for keys that another caller or another process had begun
    /// to compute, and came to no result.
    ///
    /// With a remote, all keys are looked up there at the same time: a batch waits for the
    /// remote about as long as one key does.
    ///
    /// # Errors
    ///
    /// The call itself returns a [`Batch`] in every case. To get a failure by `?`, call
    /// [`complete`](Batch::complete): `get_many(keys, load).await.complete()?`.
    ///
    /// A failure of `load` is the failure of each key of the call:
    /// [`ErrorKind::Inner`](crate::ErrorKind::Inner). The other kinds concern single keys. A
    /// failure of one key keeps no other key from its value.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, and when `load` does.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a dropped caller leaves the call running, and its values are stored.
    pub async fn get_many<K, F, Fut, P, R, E>(
        &self,
        keys: impl IntoIterator<Item = K>,
        load: F,
    ) -> Batch<K, V>
    where
        K: ToKey + Eq + Hash + Clone + Send + Sync + 'static,
        F: Fn(Vec<K>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<P, E>> + Send + 'static,
        P: IntoIterator<Item = (K, R)>,
        R: Into<Computed<V>> + 'static,
        E: Into<BoxError> + 'static,
    {
        let keys_of = |(key, _): (K, Option<Stored<V>>)| key;
        let load = move |missing: Vec<_>| load(missing.into_iter().map(keys_of).collect());
        let load = boxed(load, Error::inner_error);
        let absent = Arc::new(|_: &_| Error::inner_error(Absent));
        // No caller beside it knows it, so it has no window.
        let batcher = || Batcher::new(&self.0.engine, load, absent, Duration::ZERO, false);
        self.get_many_by(keys, batcher).await
    }

    pub(super) fn look_up_all<K>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> (Batch<K, V>, Vec<Missing<K, V>>)
    where
        K: ToKey + Eq + Hash + Clone,
    {
        let (mut batch, mut seen, mut missing) = (Batch::new(), HashSet::new(), Vec::new());
        for key in keys {
            if !seen.insert(key.clone()) {
                continue;
            }
            match self.look_up(&key) {
                Ok(entry) => drop(batch.values.insert(key, entry.value.clone())),
                Err((encoded, lookup)) => missing.push(Missing { key, encoded, lookup }),
            }
        }
        (batch, missing)
    }

    /// Returns values from the store, and asks the batcher for the others.
    pub(super) async fn get_many_by<K>(
        &self,
        keys: impl IntoIterator<Item = K>,
        batcher: impl FnOnce() -> Arc<Batcher<V>>,
    ) -> Batch<K, V>
    where
        K: ToKey + Eq + Hash + Clone + Send + Sync + 'static,
    {
        let (mut batch, missing) = self.look_up_all(keys);
        if !missing.is_empty() {
            Box::pin(self.load_missing(&batcher(), missing, &mut batch)).await;
        }
        batch
    }

    async fn load_missing<K>(
        &self,
        batcher: &Arc<Batcher<V>>,
        missing: Vec<Missing<K, V>>,
        batch: &mut Batch<K, V>,
    ) where
        K: ToKey + Eq + Hash + Clone + Send + Sync + 'static,
    {
        let mut answers = FuturesUnordered::new();
        let mut gathering = Gathering::new(batcher);
        for Missing { key, encoded, lookup } in missing {
            if gathering.is_full() {
                gathering = Gathering::new(batcher);
            }
            let member = gathering.member(encoded, Arc::new(key.clone()));
            let mut answer =
                Box::pin(async move { (key, self.0.answer_in_batch(Some(lookup), member).await) });
            // Which of them lead is decided in the first poll.
            match futures_util::poll!(&mut answer) {
                std::task::Poll::Ready((key, answer)) => batch.add(key, answer),
                std::task::Poll::Pending => answers.push(answer),
            }
        }
        drop(gathering);
        while let Some((key, answer)) = answers.next().await {
            batch.add(key, answer);
        }
    }
}

impl<K: Eq + Hash, V: Clone> Batch<K, V> {
    pub(super) fn add(&mut self, key: K, answer: Result<Answer<V, V>, Error>) {
        match answer {
            Ok(answer) => drop(self.values.insert(key, answer.into_value())),
            Err(error) if error.inner::<Absent>().is_some() => {}
            Err(error) => drop(self.failures.insert(key, error)),
        }
    }
}

/// Makes one type of every loader.
pub(super) fn boxed<K, V, F, Fut, P, R, E>(
    load: F,
    error: impl Fn(E) -> Error + Clone + Send + Sync + 'static,
) -> BatchLoad<V>
where
    K: ToKey + Clone + Send + Sync + 'static,
    V: 'static,
    F: Fn(Vec<(K, Option<Stored<V>>)>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<P, E>> + Send + 'static,
    P: IntoIterator<Item = (K, R)>,
    R: Into<Computed<V>>,
{
    Arc::new(move |keys: Vec<KeyToLoad<V>>| -> BoxFuture<'static, Result<LoadedPairs<V>, Error>> {
        let own = |(key, stored): KeyToLoad<V>| {
            Some((Arc::unwrap_or_clone(key.downcast::<K>().ok()?), stored))
        };
        let (loading, error) = (load(keys.into_iter().filter_map(own).collect()), error.clone());
        Box::pin(async move {
            match loading.await {
                Ok(pairs) => {
                    let pairs = pairs.into_iter();
                    Ok(pairs.map(|(key, value)| (key.to_key(), value.into())).collect())
                }
                Err(failure) => Err(error(failure)),
            }
        })
    })
}
