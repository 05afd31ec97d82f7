//! The settings of an HTTP layer that take functions of the application, in the groups of the table.

use std::any::Any;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Extensions, Response, request, response};
use http_body::Body;

use crate::flight::client_key::ClientKey;
use crate::http::body::RequestBody;
use crate::http::config;
use crate::http::flow::error_response::Refusal;
use crate::http::layer::HttpLayer;
use crate::http::layer::rules::{KeyRule, ServiceErrorRule};
use crate::key::{KeyBuf, ToKey};

/// # Keys by functions of the application
impl HttpLayer {
    /// The request fields that are part of the key unless
    /// [`replace_keyed_headers`](Self::replace_keyed_headers) says otherwise:
    /// they can change where a request leads without changing its URI.
    /// [What is cached](crate::guide::what_is_cached) lists them.
    pub const KEYED_HEADERS: &'static [&'static str] = config::KEYED_HEADERS;

    /// Adds to the key what `part` returns: the class of a device, for example.
    ///
    /// A field of [`CREDENTIAL_HEADERS`](Self::CREDENTIAL_HEADERS) that `part`
    /// reads stays a credential: the layer does not see what a rule reads. To
    /// keep the responses of tenants apart by `X-Tenant-Id`, name it in
    /// [`vary`](Self::vary) or [`keyed_headers`](Self::keyed_headers).
    ///
    /// Where the part may be missing, use [`identity`](Self::identity): a
    /// default value would be one key for all clients without the part.
    pub fn key<K: ToKey>(self, part: impl Fn(&Parts) -> K + Send + Sync + 'static) -> Self {
        self.add_key(false, move |parts| Some(part(parts)))
    }

    /// Adds the identity of the client to the key; with `None` the request is forwarded
    /// uncached.
    ///
    /// Needed where an authentication layer puts the identity into an
    /// extension of the request: nothing else tells the cache that two such
    /// requests are of different people. `Cookie`, `Authorization` and the
    /// fields of [`CREDENTIAL_HEADERS`](Self::CREDENTIAL_HEADERS) stay
    /// credentials beside it: a response to a request with one of them is not stored
    /// unless it says that it may be shared. Name those that the identity stands for in
    /// [`identity_covers`](Self::identity_covers), where the example is: then each identity has
    /// responses of its own. The rule must return another key for every client that gets other
    /// pages. Where the first 20 responses that could be stored were all refused because of
    /// credentials, a line of the log (WARN) says so once for the layer, and once for each route with
    /// rules of its own.
    ///
    /// The rule runs when the layer is called. A task-local value is there if the middleware calls
    /// the layer inside of the scope, as axum's `from_fn` does. A middleware of a `ServiceBuilder`
    /// that wraps only the future, as in `USER.scope(user, inner.call(request))`, sets the value
    /// later: then the rule finds none, and the request is forwarded uncached. In axum, give the two
    /// layers to `Router::layer` one by one: axum calls the inner one inside of the scope.
    ///
    /// Name the fields that the rule reads in
    /// [`refresh_headers`](Self::refresh_headers), and those by which the service
    /// knows the user: otherwise a background refresh carries all fields of the
    /// client that triggered it, credentials excepted.
    pub fn identity<K: ToKey>(
        self,
        who: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        self.add_key(true, who)
    }

    fn add_key<K: ToKey>(
        self,
        is_identity: bool,
        part: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        let rule: KeyRule = Arc::new(move |parts, key| match part(parts) {
            Some(part) => {
                key.push_part(KeyBuf::of(&part).as_bytes());
                true
            }
            None => false,
        });
        self.change(move |rules| {
            rules.key_rules.push(rule);
            rules.has_identity |= is_identity;
        })
    }
}

/// # Sharing by functions of the application
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
        self.change(|rules| rules.bypass.push(Arc::new(rule)))
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
        self.change(|rules| {
            rules.contexts.push(Arc::new(move |parts| {
                let wrap = take(parts);
                Box::new(move |work| Box::pin(wrap(work)))
            }));
        })
    }
}

/// # Times by functions of the application
impl HttpLayer {
    /// Sets which errors of the inner service, of type `E`, say that it could
    /// not be reached: refused, reset or broken off before the header section
    /// ended, or no connection in time.
    ///
    /// Such an error is answered stale within
    /// [`stale_if_disconnected`](Self::stale_if_disconnected). Where what is
    /// stored forbids that (`must-revalidate` and its kin), the client gets a
    /// 504 from the cache instead of the error. Defaults to every error of the
    /// service, and never a 504.
    pub fn disconnected<E: 'static>(self, is: impl Fn(&E) -> bool + Send + Sync + 'static) -> Self {
        self.change(|rules| rules.disconnected = Some(of_type(is)))
    }
}

/// # Bodies by functions of the application
impl HttpLayer {
    /// Sets how an empty request body is made.
    ///
    /// Where the service confirms another response than the stored one, it is asked once
    /// more, and the first body is gone. With a body type of which the layer cannot make an
    /// empty one, stored responses are not validated: they are fetched again. The layer
    /// knows axum's `Body`, `Empty<Bytes>`, `Full<Bytes>` and `String` without this; wrap
    /// hyper's `Incoming` into `Either<Incoming, Empty<Bytes>>`. The second request has a copy of
    /// the extensions of the first: leave this out where an adapter needs the only copy of one.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body_util::{Either, Empty, Full};
    /// # use tower_stampede::{HttpLayer, Stampede};
    ///
    /// type RequestBody = Either<Full<Bytes>, Empty<Bytes>>;
    ///
    /// fn empty() -> RequestBody {
    ///     Either::Right(Empty::new())
    /// }
    ///
    /// # let cache: tower_stampede::HttpStampede =
    /// #     Stampede::in_memory(std::time::Duration::from_secs(60));
    /// let layer: HttpLayer = cache.http_layer().empty_request_body(empty);
    /// ```
    pub fn empty_request_body<Q: 'static>(self, make: fn() -> Q) -> Self {
        self.change(move |rules| rules.empty_body = Some(Arc::new(make)))
    }

    /// Sets how the service's request body is made of one that the layer has read.
    ///
    /// Without it, a request with a body type that the layer does not know is never read: a
    /// QUERY is forwarded uncached, and so is a POST of [`cache_posts`](Self::cache_posts).
    /// The layer knows axum's `Body`, `Empty<Bytes>`, `Full<Bytes>` and `String`. It replaces
    /// [`empty_request_body`](Self::empty_request_body) too.
    ///
    /// # Examples
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
    /// use tower_stampede::{HttpLayer, RequestBody, Stampede};
    ///
    /// type Boxed = UnsyncBoxBody<Bytes, std::io::Error>;
    ///
    /// fn make(body: RequestBody<Boxed>) -> Boxed {
    ///     body.boxed_unsync()
    /// }
    ///
    /// # let cache: tower_stampede::HttpStampede =
    /// #     Stampede::in_memory(std::time::Duration::from_secs(60));
    /// let layer: HttpLayer = cache.http_layer().request_body(make);
    /// ```
    pub fn request_body<Q: Body + 'static>(self, make: fn(RequestBody<Q>) -> Q) -> Self {
        self.change(move |rules| rules.request_body = Some(Arc::new(make)))
    }

    /// Sets which POSTs change nothing, by their heads: they are handled as QUERY is. Such a
    /// POST invalidates nothing. Its response is stored by the rules for GET, the layer's
    /// `ttl` included, under a key with its body, and answers only POSTs with the same body.
    /// Defaults to none.
    ///
    /// Where the body says whether a POST changes something, as with GraphQL, add
    /// [`post_key`](Self::post_key). A POST that carries a condition (`If-None-Match`) is
    /// forwarded uncached; its `Range` is ignored (RFC 9110, 13.1.2 and 14.2).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_stampede::{HttpStampede, Stampede};
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache.http_layer().cache_posts(|parts| parts.uri.path() == "/search");
    /// ```
    pub fn cache_posts(self, are: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.change(|rules| rules.posts = Some(Arc::new(are)))
    }

    /// Sets the key of the body of a POST that [`cache_posts`](Self::cache_posts) has chosen.
    /// `None`: the POST may change something, and is handled as any other POST.
    ///
    /// POSTs with equal keys get one response. The service sees the body of one of them: make
    /// the key of all that changes the answer. URI, `Content-Type` and the other fields that
    /// say what the body means are in the key besides. The bytes are as the client has sent
    /// them; where `Content-Encoding` is set, they are coded. Defaults to a hash of the bytes.
    ///
    /// A body that could not be read to its end counts as one that may change something.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_stampede::{HttpStampede, Stampede};
    /// # use bytes::Bytes;
    /// # use http::request::Parts;
    /// /// Makes one key of all spellings of a GraphQL query; `None` for a mutation.
    /// fn query(_: &Parts, body: &Bytes) -> Option<String> {
    ///     let text = std::str::from_utf8(body).ok()?;
    ///     let is_read = text.starts_with("{\"query\":\"query ");
    ///     is_read.then(|| text.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
    /// }
    ///
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache
    ///     .http_layer()
    ///     .cache_posts(|parts| parts.uri.path() == "/graphql")
    ///     .post_key(query);
    /// ```
    pub fn post_key<K: ToKey>(
        self,
        key: impl Fn(&Parts, &Bytes) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        self.change(|rules| {
            let key =
                move |parts: &Parts, body: &Bytes| key(parts, body).map(|key| KeyBuf::of(&key));
            rules.post_key = Some(Arc::new(key));
        })
    }
}

/// # Writes by functions of the application
impl HttpLayer {
    /// Sets which writes invalidate. Defaults to all.
    ///
    /// A request with an unsafe method, or an unknown one, ends what is stored and computed of its
    /// URI once its response says that it was no error (a status of 2xx or 3xx). `rule` gets the
    /// request as the layer has received it and the head of that response, and returns `false`
    /// where nothing has changed: a search by POST, a log-in, a GraphQL query.
    ///
    /// The response is `None` where a write ends in an unknown way: the client hung up, or the
    /// service failed, panicked or was dropped, after the whole request was sent. `false` is then
    /// right only if the request can change nothing.
    ///
    /// A layer inside of another one of the handle asks its own rule, and the outer one its own;
    /// a write invalidates if one of them says so.
    ///
    /// # Panics
    ///
    /// The rule is called on the way of a response, and when the future of a request is dropped.
    /// It must neither block nor call the cache. Where it panics, the write invalidates.
    ///
    /// # Cost
    ///
    /// A copy of the head of each such request.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::Stampede;
    ///
    /// let cache = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache.http_layer().invalidate_if(|request, _| request.uri.path() != "/search");
    /// # drop(layer);
    /// ```
    pub fn invalidate_if(
        self,
        rule: impl Fn(&request::Parts, Option<&response::Parts>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.change(|rules| rules.invalidates = Some(Arc::new(rule)))
    }

    /// Sets which errors of the service, of type `E`, say that it has received nothing of the
    /// request: for example a refused connection. A write that ends so invalidates nothing.
    ///
    /// It must be `false` for a connection that broke after it was made: the service may
    /// have carried the request out. Defaults to no error.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use std::io;
    /// use tower_stampede::Stampede;
    ///
    /// let cache = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache
    ///     .http_layer()
    ///     .unsent(|error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused);
    /// # drop(layer);
    /// ```
    pub fn unsent<E: 'static>(self, is: impl Fn(&E) -> bool + Send + Sync + 'static) -> Self {
        self.change(|rules| rules.unsent = Some(of_type(is)))
    }
}

/// # Answers by functions of the application
impl HttpLayer {
    /// Replaces the responses of our own: when the cache refuses a request, or
    /// the computation it waited for failed. The status is the refusal's,
    /// whatever the response says. Defaults to a line of text.
    pub fn on_refusal(
        self,
        response: impl Fn(&Refusal) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.change(|rules| rules.refusal = Some(Arc::new(response)))
    }
}

/// A rule for errors of one type.
fn of_type<E: 'static>(is: impl Fn(&E) -> bool + Send + Sync + 'static) -> ServiceErrorRule {
    Arc::new(move |error: &dyn Any| error.downcast_ref().is_some_and(&is))
}

fn forget<T: Send + Sync + 'static>(extensions: &mut Extensions) {
    extensions.remove::<T>();
}
