//! The HTTP layer and its settings.

mod functions;
pub(in crate::http) mod route_table;
mod routes;
pub(in crate::http) mod rules;
mod set;
#[cfg(all(test, feature = "serde"))]
mod tests;

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tower_layer::Layer;

use crate::cache::handle::{Invalidation, Stampede};
use crate::http::config::HttpConfig;
use crate::http::flow::service::HttpService;
use crate::http::layer::route_table::Patterns;
use crate::http::layer::rules::Rules;
use crate::http::rules::target::path_tag;
use crate::http::stored::response::StoredResponse;
use crate::settings::StatusTtl;
use crate::settings::layer::{SetCookie, StreamRule, checks, each_http_setting};

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
    ///
    /// It begins with the table `http` of `Settings`, where the handle was built from a file.
    pub fn http_layer(&self) -> HttpLayer {
        self.0.layers.fetch_add(1, Ordering::Relaxed);
        let values = &self.0.values;
        let config = HttpConfig {
            ttl: values.ttl,
            status_ttl: values.status_ttl.clone(),
            stale_for: values.stale_for,
            stale_if_error: values.stale_if_error,
            ..HttpConfig::default()
        };
        let mut rules = Rules { config, ..Rules::default() };
        rules.begin_with(&self.0.engine.settings.http);
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
        self.0.invalidate_tags(Box::new([path_tag(None, path)])).await
    }

    /// Like [`invalidate_path`](Self::invalidate_path), in layers of `scope`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn invalidate_path_in(&self, scope: &str, path: &str) -> Invalidation {
        self.0.invalidate_tags(Box::new([path_tag(Some(scope), path)])).await
    }

    /// Makes every response of `path` stale now, whatever its query, host and variant, in
    /// layers without a scope: a soft purge; see
    /// [`mark_tag_stale`](crate::Stampede::mark_tag_stale). The path is compared byte for byte
    /// with the one received.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_stampede::{HttpStampede, Stampede};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// cache.mark_path_stale("/report").await;
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn mark_path_stale(&self, path: &str) -> Invalidation {
        self.0.mark_tags_stale(&[path_tag(None, path)]).await
    }

    /// Like [`mark_path_stale`](Self::mark_path_stale), in layers of `scope`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn mark_path_stale_in(&self, scope: &str, path: &str) -> Invalidation {
        self.0.mark_tags_stale(&[path_tag(Some(scope), path)]).await
    }
}

/// Panics at the caller of a setting with what is wrong with its value.
#[track_caller]
fn refuse(name: &str, why: Option<String>) {
    if let Some(why) = why {
        panic!("`{name}`: {why}");
    }
}

/// Puts the value of a setting into the rules: into a field, or by a method in `set.rs`.
macro_rules! put {
    ($rules:ident, $value:ident, $name:ident [$default:expr]) => {
        $rules.config.$name = $value
    };
    ($rules:ident, $value:ident, $name:ident []) => {
        $rules.$name($value)
    };
}
use put;

/// Makes the setter of a row.
macro_rules! setter {
    (([$($doc:tt)*] $name:ident: $type:ty as "flag" [$($check:path)?] $default:tt)) => {
        $($doc)*
        pub fn $name(self) -> Self {
            let value = true;
            self.change(move |rules| put!(rules, value, $name $default))
        }
    };
    (([$($doc:tt)*] $name:ident: $type:ty as "names" [$($check:path)?] $default:tt)) => {
        $($doc)*
        #[track_caller]
        pub fn $name<'a>(self, $name: impl IntoIterator<Item = &'a str>) -> Self {
            let value: Vec<String> = $name.into_iter().map(str::to_owned).collect();
            $(refuse(stringify!($name), $check(&value));)?
            self.change(move |rules| put!(rules, value, $name $default))
        }
    };
    (([$($doc:tt)*] $name:ident: $type:ty as "text" [$($check:path)?] $default:tt)) => {
        $($doc)*
        pub fn $name(self, $name: impl Into<String>) -> Self {
            let value: String = $name.into();
            self.change(move |rules| put!(rules, value, $name $default))
        }
    };
    (([$($doc:tt)*] $name:ident: $type:ty as "statuses" [$($check:path)?] $default:tt)) => {
        $($doc)*
        #[track_caller]
        pub fn $name(self, status: u16, ttl: Duration) -> Self {
            let value = StatusTtl::from([(status, ttl)]);
            $(refuse(stringify!($name), $check(&value));)?
            self.change(move |rules| put!(rules, value, $name $default))
        }
    };
    (([$($doc:tt)*] $name:ident: $type:ty as $reader:tt [$($check:path)?] $default:tt)) => {
        $($doc)*
        #[track_caller]
        pub fn $name(self, $name: $type) -> Self {
            $(refuse(stringify!($name), $check(&$name));)?
            self.change(move |rules| put!(rules, $name, $name $default))
        }
    };
}

/// Makes the setters, the groups below their headings.
macro_rules! setters {
    ($($heading:literal {$(
        $(#[$doc:meta])*
        $name:ident: $type:ty as $reader:tt $(= $default:expr $(, $alike:ident)?)? $(, check $check:path)?;
    )+})+) => {$(
        #[doc = $heading]
        impl HttpLayer {
            $(setter! { ([$(#[$doc])*] $name: $type as $reader [$($check)?] [$($default)?]) })+
        }
    )+};
}

each_http_setting!(setters);

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
            self.cache.0.layers.fetch_add(1, Ordering::Relaxed);
        }
        self.made = Arc::default();
    }

    fn finish(&self) -> Rules {
        let rules = Rules { route_table: self.route_table(), ..self.rules.clone().finish() };
        let table = rules.route_table.iter().flat_map(|table| &table.rules);
        let all = || table.clone().map(|rules| &**rules).chain([&rules]);
        all().filter_map(|rules| rules.config.query.as_ref()).for_each(|names| {
            self.cache.0.queries.add(names);
        });
        let covers = all().any(|rules| !rules.config.covered.is_empty());
        assert!(
            !covers || all().any(|rules| rules.has_identity),
            "`identity_covers`: neither the layer nor one of its routes has an `identity`, so the \
             fields would be covered by nothing; set `identity`, or leave `identity_covers` out"
        );
        rules
    }
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
