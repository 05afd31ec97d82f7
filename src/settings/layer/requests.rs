//! The settings of what requests share: what the key is made of, and who shares.

/// What tells requests apart.
macro_rules! keys {
    ($next:ident $($rest:ident)*; $($before:tt)*) => {
        $next! { $($rest)*; $($before)*
            /// Sets a prefix of all keys, so that layers at different places never
            /// share: needed where something other than axum strips a path prefix.
            /// Defaults to none.
            scope: String as "text";
            /// Sets the scheme of requests that do not say it themselves; part of the
            /// key. Defaults to `http`.
            scheme: String as "text";
            /// Sets the query parameters that matter. All others are left out of the
            /// key, and removed from the request before the handler sees it. Defaults
            /// to all.
            query: Vec<String> as "names";
            /// Adds request fields that select a variant as if every response named
            /// them in `Vary`. Defaults to none.
            ///
            /// A field that is named here no longer counts as a credential: requests
            /// that differ in it never share. That holds for `Authorization` too, which
            /// goes beyond RFC 9111, 3.5: a token that was revoked is answered from the
            /// cache until the response expires.
            ///
            /// # Panics
            ///
            /// If a name is no field name.
            vary: Vec<String> as "names", check checks::fields;
            /// Replaces the request fields that are part of the key. Defaults to
            /// [`KEYED_HEADERS`](Self::KEYED_HEADERS). Leave one of them out
            /// only where a proxy that you trust removes or writes it: else one client
            /// can choose the responses of all others.
            ///
            /// A background refresh does not carry a field that is left out. Where the
            /// service needs it, such as `X-Forwarded-Proto`, call
            /// [`not_keyed`](Self::not_keyed) instead, or name it in
            /// [`refresh_headers`](Self::refresh_headers).
            ///
            /// # Panics
            ///
            /// If a name is no field name.
            replace_keyed_headers: Vec<String> as "names", check checks::fields;
            /// Takes fields out of the key. A background refresh still carries them.
            /// Defaults to none.
            ///
            /// For a field that a proxy you trust writes, and by which the answer does
            /// not change: `Forwarded` often has the client's address, so that each
            /// client has keys of its own.
            ///
            /// # Panics
            ///
            /// If a name is no field name.
            not_keyed: Vec<String> as "names", check checks::fields;
            /// Adds request fields that are part of the key when a request has them,
            /// besides [`KEYED_HEADERS`](Self::KEYED_HEADERS). Defaults to none.
            ///
            /// A field that is named here no longer counts as a credential: requests
            /// that differ in it never share. See [`vary`](Self::vary) for
            /// `Authorization`.
            ///
            /// # Panics
            ///
            /// If a name is no field name.
            keyed_headers: Vec<String> as "names", check checks::fields;
            /// Adds names of cookies that do not count: `_ga`, `_ga_*` for all names that begin so,
            /// or `*` for all cookies. Letters count in their case. Defaults to none.
            ///
            /// Such cookies are taken out of GET and HEAD requests before these are keyed, judged
            /// and forwarded. All other cookies stay as they are, select responses with
            /// `Vary: Cookie`, and are credentials. Other methods are forwarded with all cookies.
            /// What stands before the first `=` between two semicolons is a name, without the
            /// blanks around it; what has no `=` has no name, and only `*` takes it out.
            ///
            /// # Panics
            ///
            /// If a name is empty, has a `*` elsewhere than at its end, or has a character that no
            /// name of a cookie has.
            ///
            /// # Examples
            ///
            /// ```
            /// # use std::time::Duration;
            /// # use tower_stampede::{HttpStampede, Stampede};
            /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
            /// let layer = cache.http_layer().ignore_cookies(["_ga", "_gid", "_ga_*"]);
            /// ```
            ignore_cookies: Vec<String> as "names", check checks::cookies;
            /// Sets whether `Accept-Encoding` and `Accept-Language` count by what
            /// they mean. Then the service sees `Accept-Encoding` reduced to the
            /// known codings that it accepts, without weights and unknown ones, and
            /// a response that varies by it answers every request that accepts its
            /// coding. Languages are sorted by their weights to compare them; those of equal
            /// weight keep their order, and the service sees the field as it came.
            /// Defaults to true.
            normalise_accept: bool as "plain" = true;
            /// Sets the longest header section that is handled, in bytes: a
            /// request with more is forwarded uncached, a response with more is not
            /// stored. Defaults to 64 KiB.
            max_header_bytes: usize as "size" [alike] = 64 << 10;
            /// Sets the longest key, in bytes; a request with a longer one is
            /// forwarded uncached. Defaults to 8 KiB.
            max_key_bytes: usize as "size" [alike] = 8 << 10;
            /// Sets how many variants of one URI are kept; the least recently used
            /// one makes room. Defaults to 64.
            max_variants: usize as "plain" [alike] = 64;
        }
    };
}
pub(crate) use keys;

/// Who shares, and how much one client takes.
macro_rules! sharing {
    ($next:ident $($rest:ident)*; $($before:tt)*) => {
        $next! { $($rest)*; $($before)*
            /// Declares that the responses hold no data of one client, so that they may be shared
            /// although a request carries credentials: as if each handler said
            /// [`CacheFor::public`](crate::CacheFor::public). What a response itself forbids, such
            /// as `private` or `Set-Cookie`, stays forbidden. Defaults to false.
            public: bool as "flag" = false;
            /// Names request fields that the [`identity`](Self::identity) covers: the responses to
            /// requests with them are shared between the requests of one identity, as if the fields
            /// were missing. A name, or a pattern like `x-auth-*`. Defaults to none: credentials
            /// stay credentials, and their responses are not shared.
            ///
            /// The fields say nothing about the user that the identity does not say: two requests
            /// of one identity with different values get one response. Where the rule finds no
            /// identity, the request is forwarded uncached, whatever it carries. A route that has
            /// no identity shares nothing by this setting. A background refresh carries the fields:
            /// by them the service knows whose page it makes.
            ///
            /// # Panics
            ///
            /// If one is neither a field name nor a pattern. And [`layer`](tower_layer::Layer::layer)
            /// panics where neither the layer nor one of its routes has an `identity`.
            ///
            /// # Examples
            ///
            /// ```
            /// # use std::time::Duration;
            /// # use tower_stampede::{HttpStampede, Stampede};
            /// #[derive(Clone)]
            /// struct Tenant(String);
            ///
            /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
            /// // Inside of the authentication, which has read the token.
            /// let layer = cache
            ///     .http_layer()
            ///     .identity(|parts| parts.extensions.get::<Tenant>().map(|tenant| tenant.0.clone()))
            ///     .identity_covers(["authorization"]);
            /// ```
            identity_covers: Vec<String> as "names", check checks::patterns;
            /// Replaces the request fields that count as credentials. Defaults to
            /// [`CREDENTIAL_HEADERS`](Self::CREDENTIAL_HEADERS). `Authorization`
            /// and `Cookie` stay credentials. To take a single field out, call
            /// [`not_a_credential`](Self::not_a_credential).
            ///
            /// # Panics
            ///
            /// If one is neither a field name nor a pattern.
            replace_credential_headers: Vec<String> as "names", check checks::patterns;
            /// Takes request fields, or all that a pattern like `x-ssl-*` matches, out
            /// of the credentials: requests with different values share one response.
            /// Defaults to none.
            ///
            /// For a field that every request carries and that does not say which user
            /// asks. Service meshes send `X-Forwarded-Client-Cert` with the certificate
            /// of the calling workload, for example. A background refresh does not carry
            /// the field: if the service insists on it, name it in
            /// [`refresh_headers`](Self::refresh_headers), too.
            ///
            /// # Panics
            ///
            /// If one is neither a field name nor a pattern, or is `Authorization`,
            /// which always counts (RFC 9111, 3.5): name it in [`vary`](Self::vary) or in
            /// [`identity_covers`](Self::identity_covers) to keep its users apart.
            ///
            /// # Examples
            ///
            /// ```
            /// # use std::time::Duration;
            /// # use tower_stampede::{HttpStampede, Stampede};
            /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
            /// let layer = cache.http_layer().not_a_credential(["x-forwarded-client-cert"]);
            /// ```
            not_a_credential: Vec<String> as "names", check checks::exemptions;
            /// Adds request fields that count as credentials, besides
            /// [`CREDENTIAL_HEADERS`](Self::CREDENTIAL_HEADERS): names, or patterns like
            /// `x-acme-user-*`. Defaults to none.
            ///
            /// # Panics
            ///
            /// If one is neither a field name nor a pattern.
            credential_headers: Vec<String> as "names", check checks::patterns;
            /// Sets what happens to responses with `Set-Cookie`. Defaults to
            /// [`SetCookie::Refuse`].
            set_cookie: SetCookie as "plain" = SetCookie::Refuse;
            /// Adds request fields that a background refresh carries.
            ///
            /// A refresh is sent for all clients, so it carries of the request that
            /// happened to trigger it only what selects the response: `Host`, the fields
            /// in `Vary`, in [`vary`](Self::vary) and in
            /// [`keyed_headers`](Self::keyed_headers), and credentials where the stored
            /// response was computed for a request with credentials, by permission. A
            /// layer with rules ([`key`](Self::key), [`identity`](Self::identity)) cannot
            /// see which fields they read: its refreshes carry all fields but
            /// credentials, until this setting names those that matter, or none
            /// (`refresh_headers([])`).
            ///
            /// Name here what the service needs besides, `traceparent` for example: a
            /// service that reads `Accept` or `User-Agent` without naming it in `Vary`
            /// answers the refresh as if the field were missing, and that response
            /// replaces the stored one. Name no field that identifies a user. Defaults
            /// to none.
            ///
            /// # Panics
            ///
            /// If a name is no field name.
            refresh_headers: Vec<String> as "names", check checks::fields;
            /// Sets how many requests may be forwarded at once without a computation that others
            /// share: those with credentials or an unsafe method, those whose responses are not
            /// shared, and those that [`bypass`](Self::bypass) the cache. Each counts until the head
            /// of its response is there. Defaults to no bound: these requests would reach the
            /// service without the cache, too.
            ///
            /// A request over the bound waits, round-robin by [`client`](Self::client); one client
            /// has at most seven eighths of the bound, and at least one. After the handle's
            /// [`wait_timeout`](crate::Builder::wait_timeout), or where
            /// [`max_waiters_in_all`](crate::Builder::max_waiters_in_all) is reached, the client
            /// gets something stale, or a 503 with `Retry-After` and
            /// `Cache-Status: …; detail=overloaded`. The service does not see such a request, and
            /// nothing is invalidated. A handle that only observes or is off bounds nothing.
            ///
            /// All layers that are made of this one share the bound, and so do its routes. A route
            /// for which [`route_rules`](Self::route_rules) sets a bound has places of its own.
            ///
            /// # Panics
            ///
            /// If it is zero.
            ///
            /// # Cancel safety
            ///
            /// A request whose client goes away while it waits leaves the queue, and is not
            /// forwarded.
            max_forwarded: usize as "plain", check checks::not_zero;
        }
    };
}
pub(crate) use sharing;
