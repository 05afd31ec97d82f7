//! The settings of what tells requests apart.

use std::sync::Arc;

use http::request::Parts;

use crate::http::config;
use crate::http::layer::rules::KeyRule;
use crate::http::layer::{HttpLayer, setters};
use crate::key::{KeyBuf, ToKey};
use crate::settings::layer::{checks, keys};

keys! { setters; "# Keys: what tells requests apart" }

/// Keys by rules of the application.
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
