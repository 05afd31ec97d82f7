//! The layer for any tower service.

use std::sync::Arc;

use tower_layer::Layer;

use crate::cache::handle::Stampede;
use crate::tower::service::StampedeService;

/// Puts a cache in front of a service: any `Service` of any request.
///
/// Made by [`Stampede::layer`], where the example is.
///
/// # Bounds
///
/// The layer takes anything, so the compiler names a missing bound only where the service is used:
/// often as E0599, without its cause. A request needs all of these:
///
/// - the service is `Clone + Send + 'static`; put `tower::buffer::Buffer` around one that is not;
/// - its error is `Into<Box<dyn Error + Send + Sync>>` and `Send`: a type without
///   [`Error`](std::error::Error) needs `map_err` before the layer;
/// - its future and its response are `Send`; the request is `Send + 'static`;
/// - the adapter is `Send + Sync + 'static` and an [`Adapter`](crate::Adapter) of this request and
///   this response: a closure, where the response is the cached type.
///
/// In a function that is generic over the service, repeat them:
///
/// ```
/// use tower::{BoxError, Layer, Service};
/// use tower_stampede::Stampede;
///
/// fn cached<S>(
///     users: &Stampede<String>,
///     inner: S,
/// ) -> impl Service<u64, Response = String, Error = tower_stampede::Error>
/// where
///     S: Service<u64, Response = String> + Clone + Send + 'static,
///     S::Error: Into<BoxError> + Send,
///     S::Future: Send,
/// {
///     users.layer(|id: &u64| Some(*id)).layer(inner)
/// }
/// ```
///
/// An error without `Error` is refused:
///
/// ```compile_fail,E0277
/// use std::time::Duration;
/// use tower::{Layer, Service, service_fn};
/// use tower_stampede::Stampede;
///
/// struct Unavailable;
/// fn is_service<S: Service<u64>>(_: &S) {}
///
/// let users: Stampede<String> = Stampede::in_memory(Duration::from_secs(60));
/// let load = service_fn(|id: u64| async move { Err::<String, _>(Unavailable) });
/// is_service(&users.layer(|id: &u64| Some(*id)).layer(load));
/// ```
#[must_use]
pub struct StampedeLayer<V, A> {
    cache: Stampede<V>,
    adapter: Arc<A>,
    inline: bool,
}

impl<V: Clone + Send + Sync + 'static> Stampede<V> {
    /// Makes a layer that answers from this cache. `adapter` is a closure from
    /// a request to its key, or an [`Adapter`](crate::Adapter).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{convert::Infallible, time::Duration};
    /// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
    /// use tower_stampede::Stampede;
    ///
    /// struct LoadUser { id: u64 }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let users = Stampede::builder("users").ttl(Duration::from_secs(30)).build()?;
    /// let load = ServiceBuilder::new()
    ///     .layer(users.layer(|request: &LoadUser| Some(request.id)))
    ///     .service(service_fn(|request: LoadUser| async move {
    ///         Ok::<_, Infallible>(format!("user {}", request.id))
    ///     }));
    /// assert_eq!(load.oneshot(LoadUser { id: 7 }).await?, "user 7");
    /// # Ok(()) }
    /// ```
    pub fn layer<A>(&self, adapter: A) -> StampedeLayer<V, A> {
        StampedeLayer { cache: self.clone(), adapter: Arc::new(adapter), inline: false }
    }
}

impl<V: Clone + Send + Sync + 'static, A> StampedeLayer<V, A> {
    /// Runs a leader's call inside its caller's future instead of on a task of
    /// its own. When that caller goes away the call is dropped, and one of
    /// the waiters leads the next call. A caller that finds a stale value refreshes it
    /// itself; see [`get_or_compute_scoped`](Stampede::get_or_compute_scoped).
    pub fn inline(mut self) -> Self {
        self.inline = true;
        self
    }
}

impl<S, V: Clone + Send + Sync + 'static, A> Layer<S> for StampedeLayer<V, A> {
    type Service = StampedeService<S, V, A>;

    fn layer(&self, inner: S) -> Self::Service {
        StampedeService::new(inner, self.cache.clone(), Arc::clone(&self.adapter), self.inline)
    }
}

impl<V: Clone + Send + Sync + 'static, A> Clone for StampedeLayer<V, A> {
    fn clone(&self) -> Self {
        Self { cache: self.cache.clone(), adapter: Arc::clone(&self.adapter), inline: self.inline }
    }
}

impl<V: Clone + Send + Sync + 'static, A> std::fmt::Debug for StampedeLayer<V, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StampedeLayer").field("inline", &self.inline).finish_non_exhaustive()
    }
}
