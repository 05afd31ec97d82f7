//! The settings of who shares, and of how much one client takes.

use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;

use http::Extensions;
use http::request::Parts;

use crate::flight::client_key::ClientKey;
use crate::http::config;
use crate::http::layer::rules::{BypassRule, ContextRule};
use crate::http::layer::{HttpLayer, setters};
use crate::settings::layer::{SetCookie, checks, sharing};

sharing! { setters; "# Sharing: which requests share a response" }

/// Sharing by rules of the application.
impl HttpLayer {
    /// The request fields that count as credentials besides `Authorization` and
    /// `Cookie`: names, and patterns that end in `*`. They identify the
    /// client, its user or its account, as clients, gateways and authenticating
    /// proxies write it.
    ///
    /// The response to a request with one of them is stored and shared only
    /// where it has an explicit lifetime of the origin's own and says `public`
    /// or `s-maxage`, or where [`CacheFor::public`](crate::CacheFor::public)
    /// permits it. Otherwise each such request is answered by the service, and
    /// `Cache-Status` names the field: `detail=credentials:x-forwarded-user`.
    /// [What is cached](crate::guide::what_is_cached) lists them.
    pub const CREDENTIAL_HEADERS: &'static [&'static str] = config::CREDENTIAL_HEADERS;

    /// Forwards requests uncached, for example the requests of an administrator. May be called
    /// several times: each rule counts. Defaults to none.
    pub fn bypass(self, rule: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        let rule: BypassRule = Arc::new(rule);
        self.change(move |rules| rules.bypass.push(rule))
    }

    /// Stores and shares no response: the service answers each request. In place of
    /// [`bypass`](Self::bypass). For one route: see [`route_rules`](Self::route_rules).
    pub fn private(self) -> Self {
        self.bypass(|_| true)
    }

    /// Names the client of a request: its address or the prefix of it, a user, a tenant.
    ///
    /// One client has at most seven eighths of the places for computations
    /// ([`max_computations`](crate::Builder::max_computations)), and at least one. Computations
    /// that wait for a place are served round-robin: each client in its turn, and within a client
    /// in the order in which they came. So a client that asks for many slow URLs delays its own
    /// requests, and those of other clients by one computation at most. A computation counts for
    /// the client that leads it, whichever clients wait for its result, and what a handler asks of
    /// the same handle counts for the client of its request.
    ///
    /// Requests for which `name` returns `None` count together, and have no bound. Defaults to
    /// `None` for each request. Where several layers of a handle name clients, let them return
    /// values of one type: clients are compared by the hash of the value, under a secret of the
    /// process. `name` is called for requests that find nothing fresh, and under
    /// [`max_forwarded`](Self::max_forwarded) for those that are forwarded uncached. A client
    /// takes memory only while it has a computation.
    ///
    /// axum puts the address into the extension `ConnectInfo<SocketAddr>`, and only for a router that
    /// is served by `into_make_service_with_connect_info::<SocketAddr>()`.
    ///
    /// A name must be hard to change for the client: an address, not a field that the client
    /// writes. All users behind one proxy have its address; take the client's own from a field
    /// that the proxy writes.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::{IpAddr, SocketAddr};
    /// use std::time::Duration;
    /// use tower_stampede::{HttpStampede, Stampede};
    ///
    /// /// The address as a server has put it into the request, for IPv6 the prefix of a network.
    /// fn network(parts: &http::request::Parts) -> Option<IpAddr> {
    ///     match parts.extensions.get::<SocketAddr>()?.ip().to_canonical() {
    ///         IpAddr::V6(v6) => Some(IpAddr::V6((v6.to_bits() >> 64 << 64).into())),
    ///         v4 => Some(v4),
    ///     }
    /// }
    ///
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache.http_layer().client(network);
    /// ```
    pub fn client<K: Hash>(
        self,
        name: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        let name = Arc::new(name);
        self.change(|rules| {
            rules.client = Some(Arc::new(move |parts| name(parts).map(ClientKey::of)));
        })
    }

    /// Removes extensions of type `T` from requests that are sent as background
    /// refreshes: a user that a layer further out has found, for example.
    ///
    /// All other extensions stay, for axum keeps path parameters and state
    /// there. Name none that a rule of [`key`](Self::key) or
    /// [`identity`](Self::identity) reads: the service would answer the refresh
    /// without it, and that response would stand under the user's key.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_stampede::{HttpStampede, Stampede};
    /// #[derive(Clone)]
    /// struct RequestId(u64);
    ///
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache.http_layer().refresh_without_extension::<RequestId>();
    /// ```
    pub fn refresh_without_extension<T: Clone + Send + Sync + 'static>(self) -> Self {
        self.change(|rules| rules.forgets.push(forget::<T>))
    }

    /// Takes the context of the caller's task along to the task where the service is called.
    ///
    /// A GET, HEAD or QUERY that finds nothing to be served calls the service on a task of its
    /// own, so that a client that hangs up takes nothing from others. So does a refresh in the
    /// background. A task-local value of the caller is missing there, and tokio's `LocalKey::get`
    /// and `with` panic. A Sentry hub, an OpenTelemetry context and the transaction of a test are
    /// missing as well. Spans of `tracing` are taken along by themselves with the feature `tracing`,
    /// and only with it.
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

fn forget<T: Send + Sync + 'static>(extensions: &mut Extensions) {
    extensions.remove::<T>();
}
