//! The loader that a typed cache keeps, and its hooks.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use parking_lot::{Mutex, RwLock};

use crate::cache::batch::Batcher;
use crate::cache::call_options::{CallContext, CallOptions, Stored};
use crate::cache::seat::AppKey;
use crate::computed::Computed;
use crate::error::{Absent, Error, FailureAction};

pub(super) type Loading<V, E> = BoxFuture<'static, Result<Computed<V>, E>>;
pub(super) type Load<K, V, E> = dyn Fn(K, Option<Stored<V>>) -> Loading<V, E> + Send + Sync;

/// A loader for single keys.
pub(super) struct LoadOne<K, V, E> {
    pub(super) load: Arc<Load<K, V, E>>,
    /// Whether it reads the older value.
    pub(super) sees_stored: bool,
}

impl<K, V, E> LoadOne<K, V, E> {
    /// Returns the context of a call: a loader that sees the older value needs one in any case.
    pub(super) fn context(
        &self,
        context: Option<Arc<CallContext<V>>>,
    ) -> Option<Arc<CallContext<V>>> {
        context.or_else(|| self.sees_stored.then(|| CallContext::new(CallOptions::default())))
    }
}

/// What is done about failures, and about keys that a batch loader returned nothing for; set after the
/// loader, which needs it.
pub(super) struct Hooks<K, E> {
    pub(super) failure: RwLock<Option<ErrorRule<E>>>,
    pub(super) absent: RwLock<Option<AbsentRule<K, E>>>,
    /// Keys that were used often, by their hashes in the ledger; none before they are asked for.
    pub(super) popular: OnceLock<Mutex<HashMap<u64, K>>>,
}

pub(super) type ErrorRule<E> = Arc<dyn Fn(&E) -> FailureAction + Send + Sync>;
pub(super) type AbsentRule<K, E> = Arc<dyn Fn(&K) -> E + Send + Sync>;

// Called without the lock: the rules are the user's code.
impl<K: 'static, E: fmt::Debug + fmt::Display + Send + Sync + 'static> Hooks<K, E> {
    pub(super) fn new() -> Arc<Self> {
        let (failure, absent) = (RwLock::default(), RwLock::default());
        Arc::new(Self { failure, absent, popular: OnceLock::new() })
    }

    pub(super) fn failure(&self, error: E) -> Error {
        let rule = self.failure.read().clone();
        let action = rule.map(|rule| rule(&error));
        Error::of_load(error, action)
    }

    /// Returns the error of a key that a batch loader returned nothing for.
    pub(super) fn absent(&self, key: &AppKey) -> Error {
        let rule = self.absent.read().clone();
        let error = rule.zip(key.downcast_ref()).map(|(rule, key)| rule(key));
        error.map_or_else(|| Error::inner_error(Absent), |error| self.failure(error))
    }
}

/// How a cache gets its values.
pub(super) enum Loader<K, V, E> {
    One(LoadOne<K, V, E>),
    Batch(Arc<Batcher<V>>),
}
