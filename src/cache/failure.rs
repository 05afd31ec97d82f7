//! Why a typed cache returned no value.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;

/// Why a [`Cache`](crate::Cache) returned no value.
#[derive(Debug)]
pub enum Failure<E> {
    /// The loader failed; the error is its own. Shared with every caller that waited, and with every
    /// caller during the hold after it.
    Computation(Arc<E>),
    /// An error of the cache: see [`ErrorKind`](crate::ErrorKind). [`Held`](crate::ErrorKind::Held) is
    /// one only if this process has no error of the loader: it timed out or panicked, or another
    /// process failed.
    Cache(Error),
}

impl<E> Failure<E> {
    /// Returns the loader's own error, or what `of_cache` makes of an error of the cache: for a
    /// function whose error type is the loader's, and of another crate, so that it cannot
    /// implement `From<Failure<E>>`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tower_stampede::Failure;
    ///
    /// let failure = Failure::Computation(Arc::new("not found".to_owned()));
    /// assert_eq!(failure.into_error(|error| error.to_string()), "not found");
    /// ```
    pub fn into_error(self, of_cache: impl FnOnce(Error) -> E) -> E
    where
        E: Clone,
    {
        match self {
            Self::Computation(error) => Arc::unwrap_or_clone(error),
            Self::Cache(error) => of_cache(error),
        }
    }
}

impl<E> Failure<E> {
    /// Returns after how long asking again makes sense, where the cache knows it. It knows
    /// nothing of the loader's own errors.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tower_stampede::Failure;
    ///
    /// let failure = Failure::Computation(Arc::new("not found"));
    /// assert_eq!(failure.retry_after(), None);
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Computation(_) => None,
            Self::Cache(error) => error.retry_after(),
        }
    }
}

impl<E> Clone for Failure<E> {
    fn clone(&self) -> Self {
        match self {
            Self::Computation(error) => Self::Computation(Arc::clone(error)),
            Self::Cache(error) => Self::Cache(error.clone()),
        }
    }
}

impl<E: fmt::Debug + fmt::Display + Send + Sync + 'static> From<Error> for Failure<E> {
    fn from(error: Error) -> Self {
        match error.downcast() {
            Ok(own) => Self::Computation(own),
            Err(error) => Self::Cache(error),
        }
    }
}

impl<E: fmt::Display> fmt::Display for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Computation(error) => error.fmt(f),
            Self::Cache(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Failure<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Computation(error) => error.source(),
            Self::Cache(error) => error.source(),
        }
    }
}
