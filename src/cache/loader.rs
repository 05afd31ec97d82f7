//! The loader that a typed cache keeps, and its hooks.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::RwLock;

use crate::cache::batch::Batcher;
use crate::cache::call_options::{CallContext, CallOptions, Stored};
use crate::computed::Computed;
use crate::error::{Error, FailureAction};

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

impl<K, V, E> Clone for LoadOne<K, V, E> {
    fn clone(&self) -> Self {
        Self { load: Arc::clone(&self.load), sees_stored: self.sees_stored }
    }
}

/// What is done about a failure; set after the loader, which needs it.
pub(super) struct ErrorHook<E>(pub(super) Arc<RwLock<Option<ErrorRule<E>>>>);
pub(super) type ErrorRule<E> = Arc<dyn Fn(&E) -> FailureAction + Send + Sync>;

impl<E: fmt::Debug + fmt::Display + Send + Sync + 'static> ErrorHook<E> {
    pub(super) fn failure(&self, error: E) -> Error {
        // Called without the lock: it is the user's code.
        let rule = self.0.read().clone();
        let action = rule.map(|rule| rule(&error));
        Error::of_load(error, action)
    }
}

impl<E> Clone for ErrorHook<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Makes the error of a key that a batch loader returned nothing for; set after the loader.
pub(super) struct AbsentHook<K, E>(pub(super) Arc<RwLock<Option<AbsentRule<K, E>>>>);
pub(super) type AbsentRule<K, E> = Arc<dyn Fn(&K) -> E + Send + Sync>;

impl<K, E> Clone for AbsentHook<K, E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// How a cache gets its values.
pub(super) enum Loader<K, V, E> {
    One(LoadOne<K, V, E>),
    Batch(Arc<Batcher<V>>),
}

impl<K, V, E> Clone for Loader<K, V, E> {
    fn clone(&self) -> Self {
        match self {
            Self::One(load) => Self::One(load.clone()),
            Self::Batch(batcher) => Self::Batch(Arc::clone(batcher)),
        }
    }
}
