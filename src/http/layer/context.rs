//! The setting that takes the context of a caller's task along.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::request::Parts;

use crate::http::layer::HttpLayer;
use crate::http::layer::rules::ContextRule;

impl HttpLayer {
    /// Takes the context of the caller's task along to the task where the service is called.
    ///
    /// A GET, HEAD or QUERY that finds nothing to be served calls the service on a task of its
    /// own, so that a client that hangs up takes nothing from others. So does a refresh in the
    /// background. A task-local value of the caller is missing there, and tokio's `LocalKey::get`
    /// and `with` panic. A Sentry hub, an OpenTelemetry context and the transaction of a test are
    /// missing as well. Spans of `tracing` are taken along by themselves.
    ///
    /// `take` is called on the caller's task, while its future is polled: it reads the values. What
    /// it returns is called on the other task, with the work that is done there, and returns a
    /// future that runs the work to its end: in the scope of a task-local value, for example.
    ///
    /// - `take` gets the request as the service gets it; for a refresh, without the fields that a
    ///   refresh does not carry. Then the caller is the client that was served stale, so what it
    ///   returns outlives that client's request.
    /// - The work contains the service's future until the head of the response, the waiting for a
    ///   place, and what the cache itself asks of the remote.
    /// - Requests that are forwarded for one client alone are handled on the task of their caller:
    ///   those that [`bypass`](Self::bypass) the cache, those with another method, and in a crowd
    ///   whose responses are not shared all but one. `take` is not called for them, nor for a hit
    ///   or a waiter.
    /// - It may be called several times: what is set later is around what was set before. A route
    ///   takes along what its layer takes, too.
    ///
    /// **The response may be shared.** A value that is taken along is invisible to the cache, like
    /// one in an extension of the request: a page made from the task-local user of one client
    /// would be the page of all. Give each value that shapes the response to
    /// [`identity`](Self::identity) or [`key`](Self::key).
    ///
    /// # Panics
    ///
    /// A panic of `take`, or of what it returns, reaches the caller, and one of the waiters leads
    /// next. If the future that is returned in the end does not run the work to its end, the work
    /// is dropped: the caller gets a 503, and one of the waiters leads next.
    ///
    /// # Cost
    ///
    /// Four allocations for each computation, and two for each `take`; none for a hit or a waiter.
    /// Nothing where it is not set.
    ///
    /// # Examples
    ///
    /// axum's way to hand a value to handlers without a parameter:
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::{Router, extract::Request, middleware::{Next, from_fn}, response::Response, routing::get};
    /// use tower_stampede::{HttpStampede, Stampede};
    ///
    /// tokio::task_local! { static USER: String; }
    ///
    /// async fn auth(request: Request, next: Next) -> Response {
    ///     let user = "ada".to_owned();
    ///     USER.scope(user, next.run(request)).await
    /// }
    ///
    /// async fn hello() -> String {
    ///     format!("hello {}", USER.get())
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let cache: HttpStampede = Stampede::builder("site").origin_only().build()?;
    /// let layer = cache
    ///     .http_layer()
    ///     .identity(|_| USER.try_with(Clone::clone).ok())
    ///     .carry_context(|_| {
    ///         let user = USER.get();
    ///         move |work| USER.scope(user, work)
    ///     });
    /// let app: Router = Router::new().route("/", get(hello)).layer(layer).layer(from_fn(auth));
    /// # drop(app);
    /// # Ok(()) }
    /// # main().unwrap();
    /// # }
    /// ```
    pub fn carry_context<W, F>(self, take: impl Fn(&Parts) -> W + Send + Sync + 'static) -> Self
    where
        W: FnOnce(Pin<Box<dyn Future<Output = ()> + Send>>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let rule: ContextRule = Arc::new(move |parts| {
            let wrap = take(parts);
            Box::new(move |work| Box::pin(wrap(work)))
        });
        self.change(move |rules| rules.contexts.push(rule))
    }
}
