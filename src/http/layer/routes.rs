//! The setting of rules for single routes.

use std::sync::Arc;

use crate::http::layer::route_table::RouteTable;
use crate::http::layer::rules::Rules;
use crate::http::layer::{HttpLayer, Routes};

impl HttpLayer {
    /// Gives routes settings of their own: exceptions from those of the layer.
    ///
    /// `pattern` is written as axum 0.8 writes routes: `/about`, `/users/{id}`, `/static/{*file}`.
    /// It is compared with the whole path that the client has sent, also inside of a nested router.
    /// A static segment goes before a parameter. `/static/{*file}` matches neither `/static` nor
    /// `/static/`: name them, too, where they need the rule.
    ///
    /// `rules` gets a layer with the settings of this one, and returns it with those of the route;
    /// it is called more than once. All that it does not set is as the layer says, whether that is
    /// set before or after. Each setting is one more call after those of the layer: `bypass`,
    /// `vary`, `keyed_headers`, `credential_headers`, `identity`, `key`, `tags`, `refresh_headers`,
    /// `ignore_cookies`, `carry_context` and others that add keep what the layer has; the rest
    /// replace it.
    ///
    /// A path that routers read in several ways (`/a/../b`, `//b`, `/%62`, `/B`, `/b/`) and that
    /// could lead to other rules is forwarded uncached. So no spelling of a path evades
    /// [`private`](Self::private). Where axum has matched a route without a wildcard, `/users/a%2Fb`
    /// and `/users/a;b` are users: a handler that passes such a path on to another server, which
    /// reads it once more, needs a wildcard in its route.
    ///
    /// # Panics
    ///
    /// If `pattern` is no path pattern, or claims a route that another pattern claims; and if
    /// `rules` sets `scope` or `scheme`, which are one for all routes since writes invalidate by
    /// them, or returns a layer with `route_rules` or of another handle, or one that has lost an
    /// `identity`, a `key` or a `bypass` of this layer.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use std::time::Duration;
    /// use axum::{Router, routing::get};
    /// use tower_stampede::Stampede;
    ///
    /// # async fn page() -> &'static str { "page" }
    /// let cache = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache
    ///     .http_layer()
    ///     .route_rules("/search", |route| route.query(["q"]).ttl(Duration::from_secs(5)))
    ///     .route_rules("/account", |route| route.private())
    ///     .route_rules("/account/{*page}", |route| route.private());
    /// let app: Router = Router::new()
    ///     .route("/search", get(page))
    ///     .route("/account", get(page))
    ///     .route("/account/orders", get(page))
    ///     .route("/about", get(page))
    ///     .layer(layer);
    /// # drop(app);
    /// # }
    /// ```
    #[track_caller]
    pub fn route_rules(
        mut self,
        pattern: &str,
        rules: impl Fn(Self) -> Self + Send + Sync + 'static,
    ) -> Self {
        // Now, so that what is wrong with them is reported where it is written.
        let made = self.rules_of_route(&rules).map(drop);
        if let Err(why) = self.routes.patterns.add(pattern).and(made) {
            panic!("`route_rules`: `{pattern}` {why}");
        }
        self.note_change();
        self.routes.changes.push(Arc::new(rules));
        self
    }

    /// Returns the rules that a route has by its changes.
    fn rules_of_route(&self, change: &dyn Fn(Self) -> Self) -> Result<Rules, String> {
        let Self { cache, rules, .. } = self;
        let bare = Self { routes: Routes::default(), made: Arc::default(), ..self.clone() };
        let route = change(bare);
        let is_of_layer = route.rules.config.scheme == rules.config.scheme
            && route.rules.config.scope == rules.config.scope;
        // Settings add to these: a layer that lacks one shares what this one keeps apart.
        let keeps_rules = begins_with(&route.rules.key_rules, &rules.key_rules)
            && begins_with(&route.rules.bypass, &rules.bypass);
        let why = if !Arc::ptr_eq(&route.cache.0, &cache.0) {
            "returns a layer of another handle; return the layer that it gets"
        } else if !route.routes.changes.is_empty() {
            "has `route_rules` of its own; add each pattern to the layer itself"
        } else if !keeps_rules {
            "returns another layer, without the `identity`, `key` or `bypass` of this one; return the \
             layer that it gets"
        } else if !is_of_layer {
            "sets `scope` or `scheme`, by which writes invalidate; set them on the layer, for all \
             routes"
        } else {
            return Ok(route.rules);
        };
        Err(why.into())
    }

    /// Makes the table of all routes with rules of their own, if there are any.
    pub(super) fn route_table(&self) -> Option<Arc<RouteTable<Rules>>> {
        let Routes { patterns, changes } = &self.routes;
        if changes.is_empty() {
            return None;
        }
        let rules = changes.iter().map(|change| {
            let rules = self.rules_of_route(&**change);
            let rules = rules.unwrap_or_else(|why| panic!("`route_rules`: a rule {why}"));
            Arc::new(rules.finish())
        });
        Some(Arc::new(RouteTable { patterns: patterns.clone(), rules: rules.collect() }))
    }
}

fn begins_with<T: ?Sized>(all: &[Arc<T>], first: &[Arc<T>]) -> bool {
    all.len() >= first.len() && all.iter().zip(first).all(|(a, b)| Arc::ptr_eq(a, b))
}
