//! A cache of one value, which needs no key.

use std::fmt;
use std::future::Future;

use crate::cache::failure::Failure;
use crate::cache::handle::Stampede;
use crate::cache::typed::Cache;
use crate::computed::Computed;

impl<V, E> Cache<(), V, E>
where
    V: Clone + Send + Sync + 'static,
    E: fmt::Debug + fmt::Display + Send + Sync + 'static,
{
    /// Makes a cache of one value, for an expensive function without arguments. Its key is `()`:
    /// [`keep_fresh([()])`](Self::keep_fresh) refreshes it before it expires, `invalidate(())` ends
    /// it. The loader is otherwise as that of [`new`](Self::new).
    ///
    /// # Examples
    ///
    /// Loaded before the server answers its first request, and again before a minute has passed. If a
    /// refresh fails, callers get the older value for ten minutes more:
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::{Cache, Stampede};
    ///
    /// async fn load_rates() -> Result<Vec<f64>, std::io::Error> {
    ///     Ok(vec![1.08, 0.86])
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let handle = Stampede::builder("rates")
    ///     .ttl(Duration::from_secs(60))
    ///     .stale_for(Duration::from_secs(600))
    ///     .build()?;
    /// let rates = Cache::single(handle, load_rates);
    /// rates.keep_fresh([()]).forever(); // does not wait
    /// assert_eq!(rates.value().await?, [1.08, 0.86]); // waits for the first load
    /// # assert_eq!(rates.handle().stats().computations, 1);
    /// # Ok(()) }
    /// ```
    pub fn single<F, Fut, R>(handle: Stampede<V>, load: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Computed<V>>,
    {
        Self::new(handle, move |()| load())
    }

    /// Returns the value of a [`single`](Self::single) cache, as [`get(())`](Self::get) does.
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
    pub async fn value(&self) -> Result<V, Failure<E>> {
        self.get(()).await
    }
}
