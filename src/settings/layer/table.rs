//! The rows of the settings of an HTTP layer; `settings/layer.rs` says how they are read.

/// Calls the macro `$then` with the rows of all settings of an HTTP layer, in groups with a heading.
macro_rules! each_http_setting {
    ($then:ident) => {
        $then! {
            "# Keys: what tells requests apart" {
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
                max_header_bytes: usize as "size" = 64 << 10, alike;
                /// Sets the longest key, in bytes; a request with a longer one is
                /// forwarded uncached. Defaults to 8 KiB.
                max_key_bytes: usize as "size" = 8 << 10, alike;
                /// Sets how many variants of one URI are kept; the least recently used
                /// one makes room. Defaults to 64.
                max_variants: usize as "plain" = 64, alike;
            }
            "# Sharing: which requests share a response" {
                /// Declares that the responses hold no data of one client, so that they may be shared
                /// although a request carries credentials: as if each handler said
                /// [`CacheFor::public`](crate::CacheFor::public). What a response itself forbids, such
                /// as `private` or `Set-Cookie`, stays forbidden. Defaults to false.
                public: bool as "flag" = false;
                /// Names request fields that the [`identity`](Self::identity) covers: the responses to
                /// requests with them are shared between the requests of one identity, as if the fields
                /// were missing. A name, or a pattern like `x-auth-*`. Defaults to none: credentials
                /// stay credentials, and their responses are not shared. So every credential that arrives
                /// must be covered; `detail=credentials:cookie` in `Cache-Status` names one that is not.
                ///
                /// The fields say nothing about the user that the identity does not say: two requests
                /// of one identity with different values get one response. Where the rule finds no
                /// identity, the request is forwarded uncached, whatever it carries. A route that has
                /// no identity shares nothing by this setting. A background refresh carries the fields:
                /// by them the service knows whose page it makes.
                ///
                /// # Panics
                ///
                /// If one is neither a field name nor a pattern. And `layer`
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
            "# Times: how long a response is used, and what says so" {
                /// Sets the lifetime of responses that say nothing, counted from the
                /// arrival of their head. Defaults to the handle's.
                ///
                /// # Panics
                ///
                /// If `ttl` is zero.
                ttl: Duration as "duration", check checks::ttl;
                /// Stores only what the origin's own headers and [`CacheFor`](crate::CacheFor)
                /// allow; [`heuristics`](Self::heuristics) read them too. Defaults to the handle's.
                origin_only: bool as "flag";
                /// Sets the lifetime of responses with the status `status`, an error from 400 to 599,
                /// that say nothing of their lifetime: counted from the arrival of the head, before
                /// [`ttl`](Self::ttl) and [`heuristics`](Self::heuristics). May be called once per
                /// status. Defaults to the handle's [`status_ttl`](crate::Builder::status_ttl).
                ///
                /// Without it, an error that says nothing goes to the clients that wait for it, and is
                /// not stored; under a `ttl`, 404 and 410 live as long as any page.
                ///
                /// An error that one client's request has caused, by a field that is neither keyed nor
                /// named in `Vary`, is then an answer to all clients for so long. Where clients wait
                /// whose requests differ, one of them asks once more before such an error is stored, but
                /// for 404, 405, 410, 414 and 503. A client that comes alone can still store it. So keep
                /// the lifetimes of 400 and of 5xx short. A 408, 500, 502, 503 or 504 replaces nothing
                /// that may be served.
                ///
                /// # Panics
                ///
                /// If `status` is no error, or one that RFC 6585 forbids to store (428, 429, 431, 511),
                /// or `ttl` is zero.
                ///
                /// # Examples
                ///
                /// ```
                /// use std::time::Duration;
                /// use tower_stampede::{HttpStampede, Stampede};
                ///
                /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
                /// let layer = cache
                ///     .http_layer()
                ///     .status_ttl(404, Duration::from_secs(10))
                ///     .status_ttl(503, Duration::from_secs(1));
                /// # drop(layer);
                /// ```
                status_ttl: StatusTtl as "statuses", check checks::statuses;
                /// Sets for how long after its lifetime a response that says nothing
                /// about it is served stale while it is refreshed. What a refresh
                /// carries, and what it does not, says
                /// [`refresh_headers`](Self::refresh_headers). Defaults to the handle's.
                stale_for: Duration as "duration" = Duration::ZERO, alike;
                /// Sets for how long after its lifetime a response that says nothing
                /// about it is served in place of a failure: an error of the service, a time-out,
                /// a panic, a 500, 502, 503 or 504, and a 408, which tower-http's `TimeoutLayer` answers
                /// with by default. Defaults to the handle's.
                stale_if_error: Duration as "duration" = Duration::ZERO, alike;
                /// Sets for how long after its lifetime a response is served while the
                /// service cannot be reached (RFC 9111, 4.2.4), unless the response
                /// forbids it. Which errors mean that, says
                /// [`disconnected`](Self::disconnected). Defaults to 0 s.
                stale_if_disconnected: Duration as "duration" = Duration::ZERO, alike;
                /// Sets whether `stale-while-revalidate` and `stale-if-error` count
                /// where they stand beside `s-maxage`, which by itself forbids stale
                /// answers (RFC 9111, 5.2.2.10). Defaults to true: an origin that
                /// writes both into one field means both.
                stale_beside_s_maxage: bool as "plain" = true, alike;
                /// Sets whether a response that says nothing of its lifetime, where
                /// no `ttl` is set either, lives by its `Last-Modified`: for a tenth
                /// of the time since then, at most a day, if its status is one that
                /// lasts or it says `public`. With a `ttl` it never does. Defaults to true.
                heuristics: bool as "plain" = true;
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
                /// let fields = ["example-cache-control", "cdn-cache-control"];
                /// let layer = cache.http_layer().targeted_fields(fields);
                /// ```
                targeted_fields: Vec<String> as "names", check checks::fields;
                /// Sets response fields that govern before
                /// [`targeted_fields`](Self::targeted_fields) and before `Cache-Control`, in the order of
                /// their priority, and that are removed from what clients get. Defaults to none.
                ///
                /// The first that is there and can be read governs alone. `X-Accel-Expires` is a number
                /// of seconds, `@` and a Unix time in seconds, or `0`: not stored. Beside it the stale
                /// windows of `Cache-Control` still count, as in nginx. Any other field,
                /// `Surrogate-Control` for one, is read as a targeted field (RFC 9213).
                ///
                /// A 304 of the service that does not repeat such a field leaves the lifetime to the
                /// fields that are passed on.
                ///
                /// # Panics
                ///
                /// If a name is no field name, or `Cache-Control` or `Expires`: those are read in any
                /// case.
                ///
                /// # Examples
                ///
                /// ```
                /// # use std::time::Duration;
                /// # use tower_stampede::{HttpStampede, Stampede};
                /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
                /// let layer = cache.http_layer().lifetime_from(["surrogate-control", "x-accel-expires"]);
                /// ```
                lifetime_from: Vec<String> as "names", check checks::lifetime_fields;
                /// Sets whether a request says how new its answer must be, by
                /// `no-cache`, `max-age`, `min-fresh` or `Pragma`. A request that finds
                /// nothing new enough joins a computation that began after it came, or
                /// waits for the running one and joins the next: a crowd costs two
                /// calls of the service, but one client can ask for as many as it
                /// likes. Defaults to false: they are ignored.
                honour_request_directives: bool as "plain" = false, alike;
            }
            "# Bodies: how they arrive and are kept" {
                /// Sets the longest body that is stored, in bytes; longer ones stream
                /// through. Defaults to 1 MiB.
                max_body: usize as "size" = 1 << 20, alike;
                /// Sets how long the body of a response that is to be stored may pause;
                /// then it is not stored, and streams through to its present readers.
                /// Defaults to 30 s.
                body_idle_timeout: Duration as "duration" = Duration::from_secs(30), alike;
                /// Sets for how long a body that arrives may be silent until no more requests join it.
                /// The next request then computes again, in a second flight of the same key, which later
                /// requests join. The clients that read the silent body go on reading it, at most
                /// [`body_idle_timeout`](Self::body_idle_timeout) long; its end is not stored in
                /// place of a newer response. A key has at most two flights at once for this reason:
                /// where the second one is silent as well, requests join it until the first one has
                /// ended.
                ///
                /// With a remote the lease of the silent flight is given up, so that other processes do
                /// not wait for it either. Defaults to 2 s: an origin that sends the head and half of the
                /// body, and then nothing, must not stop a page for all clients.
                body_join_timeout: Duration as "duration" = Duration::from_secs(2), alike;
                /// Sets how long one of several clients that read the same body may read
                /// nothing while another waits for it; then its body ends with an error.
                /// Only for a body that turned out not to be stored: up to
                /// [`max_body`](Self::max_body) no client waits for another. Defaults to 5 s.
                stall_timeout: Duration as "duration" = Duration::from_secs(5), alike;
                /// Shares event streams, and other streams that the rule names, with all clients that
                /// ask for the same while they arrive, and stores those that are complete by the rule.
                /// Defaults to none: an event stream is for one client, and never stored.
                ///
                /// [What is cached](crate::guide::what_is_cached) says in *Shared streams* what else
                /// changes: `no-cache`, `Last-Event-ID`, and the time-outs of bodies. A stream is
                /// stored up to [`max_body`](Self::max_body).
                ///
                /// # Panics
                ///
                /// If a text of the rule is empty or has several lines, a content type is none, the
                /// `ttl` is zero, or the heartbeat shorter than 1 s.
                ///
                /// # Examples
                ///
                /// ```
                /// # use std::time::Duration;
                /// # use tower_stampede::{HttpStampede, Stampede, StreamRule};
                /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
                /// let rule = StreamRule::last_event("done").ttl(Duration::from_secs(600));
                /// let layer = cache.http_layer().max_body(8 << 20).share_streams(rule);
                /// ```
                share_streams: StreamRule as "plain", check StreamRule::problem;
                /// Sets whether a range request that finds nothing fresh asks the service for the whole
                /// response, once for a crowd. It is stored, and each client gets its part of it.
                /// Defaults to true.
                ///
                /// Where the whole may not be stored, or has more bytes than
                /// [`max_body`](Self::max_body), ranges go to the service as they are. The first client
                /// of a crowd costs two calls then: its response for the whole is dropped, and its own
                /// request is sent. That is remembered for `uncacheable_for` of the handle: until then,
                /// no range asks for the whole.
                ///
                /// With false, ranges that find nothing go to the service as they are, each for itself.
                /// They are still answered from stored responses and from computations that run. Set it
                /// where wholes are hardly ever wanted, and the service makes each part for itself.
                ///
                /// A range in another unit than bytes goes to the service as it is; so does each range
                /// where [`empty_request_body`](Self::empty_request_body) is missing.
                ///
                /// # Examples
                ///
                /// ```
                /// # use std::time::Duration;
                /// # use tower_stampede::{HttpLayer, HttpStampede, Stampede};
                /// # let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
                /// let layer: HttpLayer = cache.http_layer().fill_from_ranges(false);
                /// ```
                fill_from_ranges: bool as "plain" = true, alike;
                /// Sets whether the responses to QUERY (RFC 10008) are stored and shared, by the rules
                /// for GET. Defaults to true.
                ///
                /// The key has the URI, the body byte for byte, and `Content-Type`, `Content-Encoding`,
                /// `Content-Language` and `Content-Location`. So the body is read before the service
                /// gets the request: up to [`max_request_body`](Self::max_request_body), for at most
                /// [`request_body_timeout`](Self::request_body_timeout). A QUERY never answers a GET,
                /// nor the reverse. Whatever invalidates a URI ends the responses to its queries too.
                ///
                /// With a body type that the layer cannot make, a QUERY is forwarded uncached: see
                /// [`request_body`](Self::request_body).
                query_method: bool as "plain" = true;
                /// Sets the longest request body that is read to make a key, in bytes. A request with a
                /// longer one is forwarded uncached; the part that was read goes before the rest. Each
                /// request that is being read or waits takes as many bytes of memory as its body has.
                /// Defaults to 64 KiB.
                max_request_body: usize as "size" = 64 << 10, alike;
                /// Sets how long the body of a request may take that is read to make a key. After that
                /// the request is forwarded uncached, and the service reads the rest. Meanwhile it holds
                /// no place and no flight. Defaults to 5 s.
                request_body_timeout: Duration as "duration" = Duration::from_secs(5), alike;
            }
            "# Writes: what ends responses" {
                /// Adds tags to every response. Defaults to none.
                tags: Vec<String> as "names";
                /// Sets how many tags a response may have; one with more is not
                /// stored. Defaults to 64.
                max_tags: usize as "plain" = 64, alike;
                /// Sets the response fields whose members are tags of the response, in the order in
                /// which they are read: `Surrogate-Key` and `xkey`, with blanks between the tags,
                /// `Cache-Tag` and `Edge-Cache-Tag`, with commas. Defaults to none.
                ///
                /// The tags are those of [`CacheFor::tag`](crate::CacheFor::tag): text, compared byte
                /// for byte, the same in all hosts and scopes. They are ended by
                /// [`invalidate_tag`](crate::Stampede::invalidate_tag) and
                /// [`mark_tag_stale`](crate::Stampede::mark_tag_stale), and by no request of a client.
                /// The field is removed from what clients get, also where the response is not stored. A
                /// response with more than [`max_tags`](Self::max_tags) tags, or with one of more than
                /// 1024 bytes, is not stored.
                ///
                /// # Panics
                ///
                /// If a name is none of these four.
                ///
                /// # Examples
                ///
                /// ```
                /// # use std::time::Duration;
                /// # use tower_stampede::{HttpStampede, Stampede};
                /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
                /// let layer = cache.http_layer().tags_from(["surrogate-key", "cache-tag"]);
                /// ```
                tags_from: Vec<String> as "names", check checks::tag_fields;
                /// Sets whether `Cache-Groups` and `Cache-Group-Invalidation` count (RFC 9875). Both are
                /// passed on to clients. Defaults to true.
                ///
                /// `Cache-Groups` names groups that a response belongs to: tags within one origin
                /// (scheme, host and port) and one [`scope`](Self::scope). They count as tags for
                /// [`max_tags`](Self::max_tags). `Cache-Group-Invalidation` in the response to a POST or
                /// to another method that is not safe ends these groups, if the response is no error. In
                /// the response to a safe method it is ignored. A field with more than `max_tags` groups
                /// ends all groups of the origin.
                ///
                /// Where parties that do not trust each other answer under one host, say `false`: each
                /// of them could end the responses of the others.
                cache_groups: bool as "plain" = true;
                /// Sets whether a write ends what is stored of its URI under `http` and `https`,
                /// whichever of the two it names itself. Defaults to true: clients may read by HTTP/2
                /// with TLS what they change by HTTP/1.1. Without it, a write ends what is stored under
                /// its own scheme; say so where the two schemes lead to different resources.
                invalidate_other_scheme: bool as "plain" = true, alike;
                /// Sets whether the response to a POST is stored for later GETs if it
                /// declares that it also answers a GET: by an explicit lifetime and a
                /// `Content-Location` equal to its URI (RFC 9110, 9.3.3). With a remote
                /// none is: writes of other processes would be known too late. Where the handle
                /// has made several layers that differ none is either: the GETs may pass a
                /// layer that the POST does not pass. Each call of `http_layer`
                /// makes one, and so does a setting on a clone. Defaults to
                /// false: where an application answers with what it was sent, each
                /// client that may POST would choose what all other clients get.
                store_post_responses: bool as "plain" = false;
            }
            "# Answers: what clients get besides the response" {
                /// Sets whether a hit carries `Age`. Defaults to true.
                age: bool as "plain" = true, alike;
                /// Sets the name of this cache in `Cache-Status` (RFC 9211). With an empty name, the
                /// field is not sent. Defaults to `tower-stampede`.
                cache_status: String as "text";
                /// Sets whether a hit carries the extension
                /// [`CacheOutcome`](crate::CacheOutcome), which costs it three allocations beside its
                /// own two. All other responses carry it in any case, and of a hit `Cache-Status` and
                /// [`CacheOutcome::of`](crate::CacheOutcome::of) tell. Set it where code further out has
                /// to know, and another body is between: axum's routers put responses into one of their
                /// own. Defaults to false.
                outcome_on_hits: bool as "plain" = false, alike;
                /// Sets whether a 200 that is stored without an `ETag` and without a `Last-Modified`
                /// gets a strong `ETag`: a hash of its body and its `Content-Encoding`. Defaults to
                /// false.
                ///
                /// So clients get a 304 in place of a body that they have. The cache makes the tag: the
                /// service never sees it in a request of the cache's own, and the response is not
                /// revalidated by it. A response with a `Last-Modified` gets none: its clients get a 304
                /// already, by the service's own word, and a tag would take precedence over that.
                /// `no-transform` changes nothing: the body stays as it is.
                ///
                /// The tag is known once the body is complete. The client whose request was forwarded,
                /// and clients that read the body while it arrives, get none.
                ///
                /// # Cost
                ///
                /// One hash per response that is stored, about a millisecond for each MiB; none at a
                /// hit.
                make_etags: bool as "plain" = false, alike;
            }
        }
    };
}
pub(crate) use each_http_setting;
