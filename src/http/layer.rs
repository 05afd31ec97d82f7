//! The HTTP layer and its settings.

mod clients;
mod content;
mod context;
mod crowds;
mod failures;
mod ranges;
mod request_fields;
pub(in crate::http) mod route_table;
mod routes;
pub(in crate::http) mod rules;
mod steering;
mod writes;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::header::HeaderName;
use http::request::Parts;
use tower_layer::Layer;

use crate::cache::handle::{Invalidation, Stampede};
use crate::http::config::{HttpConfig, SetCookie};
use crate::http::flow::service::HttpService;
use crate::http::layer::route_table::Patterns;
use crate::http::layer::rules::{BypassRule, KeyRule, Rules};
use crate::http::rules::target::path_tag;
use crate::http::stored::response::StoredResponse;
use crate::key::{KeyBuf, Tag, ToKey};

/// The handle of a cache of HTTP responses.
pub type HttpStampede = Stampede<StoredResponse>;

/// Puts a shared cache in front of an HTTP service: axum, hyper, or any tower
/// service of `http` requests.
///
/// Stores what RFC 9111 lets a shared cache store, and computes each answer
/// once. Never stored or handed to another client: responses with `no-store`,
/// `private`, `Set-Cookie` or `Vary: *`, and responses to requests with
/// credentials unless they have a lifetime of their own and say `public` or the
/// like.
/// [What is cached, for whom, how long](crate::guide::what_is_cached) has the
/// tables.
///
/// # Order with other layers
///
/// Inside compression (one stored body serves every encoding), inside
/// authentication (which rejects a client before it reaches the cache), inside trace
/// (which then sees hits too), inside a time-out (one client gives up, the computation
/// goes on). Where an authentication layer puts the identity into an
/// *extension*, the cache cannot see it in the headers: set
/// [`identity`](Self::identity), or the first user's answer goes to the next.
///
/// # Values of the caller's task
///
/// The service is called on a task of its own where its response may be for several clients. A
/// handler that reads a task-local value there panics: set
/// [`carry_context`](Self::carry_context), where the example is.
///
/// # A layer inside another one
///
/// Of two layers of one handle, the outer one caches, and the inner one passes requests on.
/// Give routes settings of their own with [`route_rules`](Self::route_rules). The settings of the
/// inner layer do nothing, but that what they keep apart is not shared: if they differ from
/// those of the outer layer in more than lifetimes and bounds, responses from behind it are not
/// shared at all. A line of the log says once that there is such a layer.
///
/// A layer leaves a mark in the extensions of a request. Where a handler sends an
/// internal request through a layer of the same handle, it must not copy the extensions
/// into it: the cache would take it for a part of the first request's way.
///
/// # Where writes must pass
///
/// A write invalidates what is stored of its URI only if it passes a layer of
/// the handle. `get(page).layer(cache).post(save)` puts the layer around GET
/// alone: then `save` has to call [`invalidate_path`](Stampede::invalidate_path). A handle
/// whose layers have stored 100 responses and seen no write says so once, in a log line at
/// `DEBUG`.
///
/// # Examples
///
/// With [`origin_only`](Self::origin_only) the cache stores what a handler marks
/// with [`CacheFor`](crate::CacheFor), or the response's own fields allow:
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tower_stampede::{CacheFor, HttpStampede, Stampede};
///
/// async fn report() -> (CacheFor, &'static str) {
///     (CacheFor::new(Duration::from_secs(60)), "expensive")
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let cache: HttpStampede = Stampede::builder("site").origin_only().build()?;
/// let app: Router = Router::new().route("/report", get(report)).layer(cache.http_layer());
/// # drop(app);
/// # Ok(()) }
/// ```
///
/// Routes may have settings of their own:
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, http::request::Parts, routing::get};
/// use tower_stampede::Stampede;
///
/// # async fn page() -> &'static str { "page" }
/// /// The name that an authentication layer has put into an extension.
/// #[derive(Clone)]
/// struct Tenant(String);
///
/// fn tenant(parts: &Parts) -> Option<String> {
///     Some(parts.extensions.get::<Tenant>()?.0.clone())
/// }
///
/// let cache = Stampede::in_memory(Duration::from_secs(60));
/// let layer = cache
///     .http_layer()
///     .stale_for(Duration::from_secs(5))
///     .route_rules("/prices", |route| route.ttl(Duration::from_millis(500)))
///     .route_rules("/search", |route| route.query(["q", "page"]).vary(["accept-language"]))
///     .route_rules("/shop/{*page}", |route| route.identity(tenant))
///     .route_rules("/admin/{*page}", |route| route.private());
/// let app: Router = Router::new()
///     .route("/prices", get(page))
///     .route("/search", get(page))
///     .route("/shop/{item}", get(page))
///     .route("/admin/users", get(page))
///     .layer(layer);
/// ```
#[derive(Clone)]
#[must_use]
pub struct HttpLayer {
    cache: HttpStampede,
    rules: Rules,
    routes: Routes,
    /// The same, finished: one for all services that this layer makes.
    made: Arc<OnceLock<Arc<Rules>>>,
}

type RouteChange = Arc<dyn Fn(HttpLayer) -> HttpLayer + Send + Sync>;

/// The patterns of a layer, and what each of them changes.
#[derive(Clone, Default)]
struct Routes {
    patterns: Patterns,
    changes: Vec<RouteChange>,
}

impl HttpStampede {
    /// Makes a layer for HTTP services that answers from this cache.
    ///
    /// Several layers of one handle share its responses; give routers that are
    /// nested under a prefix other than by axum a [`scope`](HttpLayer::scope).
    ///
    /// With a remote, processes share what clients ask for by one name: the
    /// host is part of the key, so an instance that is asked by its own address
    /// shares nothing with the others. Clients of HTTP/1.1 and of HTTP/2 have
    /// keys of their own, so each page is computed once for each version.
    pub fn http_layer(&self) -> HttpLayer {
        self.0.layers.add_one();
        let values = &self.0.values;
        let config = HttpConfig {
            ttl: values.lifetimes.map(|lifetimes| lifetimes.ttl),
            status_ttl: values.status_ttl.clone(),
            stale_for: values.stale_for,
            stale_if_error: values.stale_if_error,
            ..HttpConfig::default()
        };
        let rules = Rules {
            config,
            scheme: "http".into(),
            body_idle_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(5),
            body_join_timeout: Duration::from_secs(2),
            key_rules: Vec::new(),
            bypass: Vec::new(),
            client: None,
            forwarded: None,
            disconnected: None,
            unsent: None,
            invalidates: None,
            ends_both_schemes: true,
            empty_body: None,
            request_body: None,
            posts: None,
            post_key: None,
            refusal: None,
            hit_status: None,
            key_start: Box::default(),
            forgets: Vec::new(),
            contexts: Vec::new(),
            route_table: None,
            is_known_as_nested: Arc::default(),
        };
        HttpLayer { cache: self.clone(), rules, routes: Routes::default(), made: Arc::default() }
    }

    /// Ends the use of every response of `path`, whatever its query, host and
    /// variant, in layers without a scope; running computations included. The
    /// path is compared byte for byte with the one received: `/%61` is not `/a`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_stampede::{HttpStampede, Stampede};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// cache.invalidate_path("/report").await;
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn invalidate_path(&self, path: &str) -> Invalidation {
        self.invalidate_tag_of(path_tag(None, path)).await
    }

    /// Like [`invalidate_path`](Self::invalidate_path), in layers of `scope`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn invalidate_path_in(&self, scope: &str, path: &str) -> Invalidation {
        self.invalidate_tag_of(path_tag(Some(scope), path)).await
    }

    async fn invalidate_tag_of(&self, tag: Tag) -> Invalidation {
        self.0.invalidate_tags(Box::new([tag])).await
    }
}

macro_rules! config_setters {
    ($($(#[$doc:meta])* $name:ident: $t:ty;)+) => {$(
        $(#[$doc])*
        pub fn $name(self, $name: $t) -> Self {
            self.change(move |rules| rules.config.$name = $name)
        }
    )+};
}

impl HttpLayer {
    #[cfg(test)]
    pub(in crate::http) fn rules(&self) -> &Rules {
        &self.rules
    }

    fn change(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        self.note_change();
        change(&mut self.rules);
        self
    }

    /// Where a clone or a service has the settings as they were, there are two layers from now on.
    fn note_change(&mut self) {
        if Arc::get_mut(&mut self.made).is_none_or(|made| made.get().is_some()) {
            self.cache.0.layers.add_one();
        }
        self.made = Arc::default();
    }

    fn finish(&self) -> Rules {
        Rules { route_table: self.route_table(), ..self.rules.clone().finish() }
    }

    config_setters! {
        /// Sets for how long after its lifetime a response that says nothing
        /// about it is served stale while it is refreshed. What a refresh
        /// carries, and what it does not, says
        /// [`refresh_headers`](Self::refresh_headers). Defaults to the handle's.
        stale_for: Duration;
        /// Sets for how long after its lifetime a response that says nothing
        /// about it is served in place of a failure: an error of the service, a time-out,
        /// a panic, a 500, 502, 503 or 504, and a 408, which tower-http's `TimeoutLayer` answers
        /// with by default. Defaults to the handle's.
        stale_if_error: Duration;
        /// Sets for how long after its lifetime a response is served while the
        /// service cannot be reached (RFC 9111, 4.2.4), unless the response
        /// forbids it. Which errors mean that, says
        /// [`disconnected`](Self::disconnected). Defaults to zero.
        stale_if_disconnected: Duration;
        /// Sets the longest body that is stored, in bytes; longer ones stream
        /// through. Defaults to 1 MiB.
        max_body: usize;
        /// Sets the longest header section that is handled, in bytes: a
        /// request with more is forwarded uncached, a response with more is not
        /// stored. Defaults to 64 KiB.
        max_header_bytes: usize;
        /// Sets the longest key, in bytes; a request with a longer one is
        /// forwarded uncached. Defaults to 8 KiB.
        max_key_bytes: usize;
        /// Sets how many variants of one URI are kept; the least recently used
        /// one makes room. Defaults to 64.
        max_variants: usize;
        /// Sets how many tags a response may have; one with more is not
        /// stored. Defaults to 64.
        max_tags: usize;
        /// Sets what happens to responses with `Set-Cookie`. Defaults to
        /// [`SetCookie::Refuse`].
        set_cookie: SetCookie;
        /// Sets whether a response that says nothing of its lifetime, where
        /// no `ttl` is set either, lives by its `Last-Modified`: for a tenth
        /// of the time since then, at most a day, if its status is one that
        /// lasts or it says `public`. With a `ttl` it never does. Defaults to
        /// true.
        heuristics: bool;
        /// Sets whether `stale-while-revalidate` and `stale-if-error` count
        /// where they stand beside `s-maxage`, which by itself forbids stale
        /// answers (RFC 9111, 5.2.2.10). Defaults to true: an origin that
        /// writes both into one field means both.
        stale_beside_s_maxage: bool;
        /// Sets whether a hit carries `Age`. Defaults to true.
        age: bool;
        /// Sets whether a hit carries the extension
        /// [`CacheOutcome`](crate::CacheOutcome), which costs it three allocations beside its
        /// own two. All other responses carry it in any case, and of a hit `Cache-Status` and
        /// [`CacheOutcome::of`](crate::CacheOutcome::of) tell. Set it where code further out has to
        /// know, and another body is between: axum's routers put responses into one of their own.
        /// Defaults to false.
        outcome_on_hits: bool;
        /// Sets whether `Accept-Encoding` and `Accept-Language` count by what
        /// they mean. Then the service sees `Accept-Encoding` reduced to the
        /// known codings that it accepts, without weights and unknown ones, and
        /// a response that varies by it answers every request that accepts its
        /// coding. Languages are sorted by their weights to compare them; those of equal
        /// weight keep their order, and the service sees the field as it came.
        /// Defaults to true.
        normalise_accept: bool;
        /// Sets whether a request says how new its answer must be, by
        /// `no-cache`, `max-age`, `min-fresh` or `Pragma`. A request that finds
        /// nothing new enough joins a computation that began after it came, or
        /// waits for the running one and joins the next: a crowd costs two
        /// calls of the service, but one client can ask for as many as it
        /// likes. Defaults to false: they are ignored.
        honour_request_directives: bool;
        /// Sets whether the response to a POST is stored for later GETs if it
        /// declares that it also answers a GET: by an explicit lifetime and a
        /// `Content-Location` equal to its URI (RFC 9110, 9.3.3). With a remote
        /// none is: writes of other processes would be known too late. Where the handle
        /// has made several layers that differ none is either: the GETs may pass a
        /// layer that the POST does not pass. Each call of `http_layer`
        /// makes one, and so does a setting on a clone. Defaults to
        /// false: where an application answers with what it was sent, each
        /// client that may POST would choose what all other clients get.
        store_post_responses: bool;
    }

    /// Sets the lifetime of responses that say nothing, counted from the
    /// arrival of their head. Defaults to the handle's.
    ///
    /// # Panics
    ///
    /// If `ttl` is zero.
    #[track_caller]
    pub fn ttl(self, ttl: Duration) -> Self {
        assert!(
            !ttl.is_zero(),
            "`ttl`: is zero; say `origin_only` to store only what headers allow"
        );
        self.change(move |rules| rules.config.ttl = Some(ttl))
    }

    /// Stores only what the origin's own headers and [`CacheFor`](crate::CacheFor)
    /// allow; [`heuristics`](Self::heuristics) read them too.
    pub fn origin_only(self) -> Self {
        self.change(|rules| rules.config.ttl = None)
    }

    /// Sets a prefix of all keys, so that layers at different places never
    /// share: needed where something other than axum strips a path prefix.
    /// Defaults to none.
    pub fn scope(self, scope: impl Into<String>) -> Self {
        let scope = scope.into();
        self.change(move |rules| rules.config.scope = Some(scope))
    }

    /// Sets the scheme of requests that do not say it themselves; part of the
    /// key. Defaults to `http`.
    pub fn scheme(self, scheme: impl Into<String>) -> Self {
        let scheme = scheme.into().to_ascii_lowercase();
        self.change(move |rules| rules.scheme = scheme)
    }

    /// Sets the query parameters that matter. All others are left out of the
    /// key, and removed from the request before the handler sees it. Defaults
    /// to all.
    pub fn query<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        self.cache.0.queries.add(&names);
        self.change(move |rules| rules.config.query = Some(names))
    }

    /// Sets the response fields that govern in place of `Cache-Control` and
    /// `Expires` (RFC 9213), in the order of their priority: the first that is
    /// there and can be read governs alone. All are passed on. Defaults to
    /// `CDN-Cache-Control`.
    ///
    /// # Panics
    ///
    /// If a name is no field name.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_stampede::{HttpStampede, Stampede};
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache.http_layer().targeted_fields(["example-cache-control", "cdn-cache-control"]);
    /// ```
    #[track_caller]
    pub fn targeted_fields<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let names = field_names("targeted_fields", names);
        self.change(move |rules| rules.config.targeted = names)
    }

    /// Treats cookies as absent: they are removed from GET and HEAD requests
    /// before the handler sees them. For pages that do not depend on them.
    pub fn ignore_cookies(self) -> Self {
        self.change(|rules| rules.config.ignore_cookies = true)
    }

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
        self.identity(move |parts| Some(part(parts)))
    }

    /// Adds the identity of the client to the key; with `None` the request is forwarded
    /// uncached.
    ///
    /// Needed where an authentication layer puts the identity into an
    /// extension of the request: nothing else tells the cache that two such
    /// requests are of different people. `Cookie`, `Authorization` and the
    /// fields of [`CREDENTIAL_HEADERS`](Self::CREDENTIAL_HEADERS) stay
    /// credentials beside it: a response to a request with one of them is not stored
    /// unless it says that it may be shared. For pages of one user, say so for all
    /// responses with [`public`](Self::public): each identity has responses of its own,
    /// so they are shared between the requests of this user only.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_stampede::{HttpStampede, Stampede};
    /// #[derive(Clone)]
    /// struct UserId(u64);
    ///
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// // Inside of the authentication, which has put the user into the request.
    /// let pages = cache
    ///     .http_layer()
    ///     .identity(|parts| parts.extensions.get::<UserId>().map(|user| user.0))
    ///     .public();
    /// ```
    ///
    /// The rule must then return another key for every client that gets other pages.
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
        let rule: KeyRule = Arc::new(move |parts, key| match who(parts) {
            Some(who) => {
                key.push_part(KeyBuf::of(&who).as_bytes());
                true
            }
            None => false,
        });
        self.change(move |rules| rules.key_rules.push(rule))
    }

    /// Forwards requests uncached, for example the requests of an administrator. May be called
    /// several times: each rule counts. Defaults to none.
    pub fn bypass(self, rule: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        let rule: BypassRule = Arc::new(rule);
        self.change(move |rules| rules.bypass.push(rule))
    }

    /// Declares that the responses hold no data of one client, so that they may be shared
    /// although a request carries credentials: as if each handler said
    /// [`CacheFor::public`](crate::CacheFor::public). What a response itself forbids, such as
    /// `private` or `Set-Cookie`, stays forbidden. Defaults to not.
    pub fn public(self) -> Self {
        self.change(|rules| rules.config.is_public = true)
    }

    /// Stores and shares no response: the service answers each request. In place of
    /// [`bypass`](Self::bypass). For one route: see [`route_rules`](Self::route_rules).
    pub fn private(self) -> Self {
        self.bypass(|_| true)
    }

    /// Adds a tag to every response. Defaults to none.
    pub fn tag(self, tag: impl Into<Tag>) -> Self {
        let tag = tag.into();
        self.change(move |rules| rules.config.tags.push(tag))
    }

    /// Sets the name of this cache in `Cache-Status` (RFC 9211). Defaults to `tower-stampede`.
    pub fn cache_status(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.change(move |rules| rules.config.cache_status = Some(name))
    }

    /// Sends no `Cache-Status`.
    pub fn without_cache_status(self) -> Self {
        self.change(|rules| rules.config.cache_status = None)
    }

    /// Sets how long the body of a response that is to be stored may pause;
    /// then it is not stored, and streams through to its present readers.
    /// Defaults to 30 s.
    pub fn body_idle_timeout(self, timeout: Duration) -> Self {
        self.change(move |rules| rules.body_idle_timeout = timeout)
    }

    /// Sets how long one of several clients that read the same body may read
    /// nothing while another waits for it; then its body ends with an error.
    /// Only for a body that turned out not to be stored: up to
    /// [`max_body`](Self::max_body) no client waits for another. Defaults to 5 s.
    pub fn stall_timeout(self, timeout: Duration) -> Self {
        self.change(move |rules| rules.stall_timeout = timeout)
    }
}

/// Reads the field names that are given to `setting`.
#[track_caller]
fn field_names<'a>(setting: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<HeaderName> {
    let mut read = Vec::new();
    for name in names {
        match HeaderName::try_from(name) {
            Ok(name) if !name.as_str().contains('*') => read.push(name),
            Ok(_) => panic!("`{setting}`: `{name}` is a pattern; `{setting}` takes names"),
            Err(_) => panic!("`{setting}`: `{name}` is no field name"),
        }
    }
    read
}

impl<S> Layer<S> for HttpLayer {
    type Service = HttpService<S>;

    fn layer(&self, inner: S) -> HttpService<S> {
        let rules = self.made.get_or_init(|| Arc::new(self.finish()));
        HttpService::new(inner, Arc::clone(&self.cache.0), Arc::clone(rules))
    }
}

impl std::fmt::Debug for HttpLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpLayer").field("config", &self.rules.config).finish_non_exhaustive()
    }
}
