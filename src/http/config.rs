//! The settings of one HTTP layer.

use std::time::Duration;

use http::header::{self, HeaderName};

use crate::http::rules::cookies::IgnoredCookies;
use crate::http::rules::field_names::FieldNames;
use crate::key::Tag;
use crate::settings::StatusTtl;

/// What happens to a response with `Set-Cookie`.
///
/// A cookie is nearly always meant for one person; a shared cache that replays
/// it logs strangers in as that person. So the default is to store no such
/// response.
///
/// # Examples
///
/// ```
/// use tower_stampede::SetCookie;
///
/// assert_eq!(SetCookie::default(), SetCookie::Refuse);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SetCookie {
    /// It is not stored and not shared.
    #[default]
    Refuse,
    /// It is stored without its cookies; only the client whose request was
    /// forwarded receives them.
    Strip,
    /// It is stored with its cookies if the origin itself gave it an explicit
    /// lifetime, the request carried no credentials, and no cookie is
    /// `HttpOnly` or named `__Host-…`, `__Secure-…` or `__Http-…`.
    /// Otherwise it is not stored.
    Explicit,
}

/// The settings of one HTTP layer.
#[derive(Clone, Debug)]
pub(crate) struct HttpConfig {
    /// Lifetime of responses that say nothing; `None`: they are not stored.
    pub(crate) ttl: Option<Duration>,
    /// Lifetimes of errors that say nothing, by status.
    pub(crate) status_ttl: StatusTtl,
    /// Whether, where there is no `ttl`, the age of a response that says
    /// nothing sets its lifetime.
    pub(crate) heuristics: bool,
    /// Whether a stale window counts that stands beside `s-maxage`.
    pub(crate) stale_beside_s_maxage: bool,
    pub(crate) stale_for: Duration,
    pub(crate) stale_if_error: Duration,
    /// For how long after its lifetime a response is served while the service
    /// cannot be reached.
    pub(crate) stale_if_disconnected: Duration,
    pub(crate) max_body: usize,
    /// Whether the whole is asked for where clients ask for parts.
    pub(crate) fill_from_ranges: bool,
    pub(crate) max_header_bytes: usize,
    pub(crate) max_key_bytes: usize,
    /// Variants per URI.
    pub(crate) max_variants: usize,
    /// Tags per entry.
    pub(crate) max_tags: usize,
    pub(crate) set_cookie: SetCookie,
    /// Whether cookies are removed: they select nothing, and are no credentials.
    pub(crate) ignore_cookies: bool,
    /// Cookies that the service does not see.
    pub(crate) ignored_cookies: IgnoredCookies,
    /// Fields with credentials besides `Authorization` and `Cookie`.
    pub(crate) credential_headers: FieldNames,
    /// Whether `Authorization` and `Cookie` are credentials: each is one unless
    /// the application keys it.
    pub(crate) authorization_is_credential: bool,
    pub(crate) cookie_is_credential: bool,
    /// Fields that are part of the key when present: they can change where a
    /// request leads without changing its URI.
    pub(crate) keyed_headers: FieldNames,
    /// Fields that govern instead of `Cache-Control` (RFC 9213), the first
    /// before the others.
    pub(crate) targeted: Vec<HeaderName>,
    /// Fields that govern before these, and are removed from what clients get.
    pub(crate) lifetime_fields: Vec<HeaderName>,
    /// Fields with tags; they are removed from what clients get.
    pub(crate) tag_fields: Vec<HeaderName>,
    /// Whether `Cache-Groups` and `Cache-Group-Invalidation` count.
    pub(crate) cache_groups: bool,
    /// Whether a stored response without a validator gets an `ETag` from the cache.
    pub(crate) make_etags: bool,
    /// Parameters that the handler sees; `None`: all.
    pub(crate) query: Option<Vec<String>>,
    /// Fields treated as if every response named them in `Vary`.
    pub(crate) vary: Vec<HeaderName>,
    /// Fields that a background refresh sends besides those that were keyed;
    /// `None`: the application has not said.
    pub(crate) refresh_headers: Option<Vec<HeaderName>>,
    /// Fields that were taken out of the key. A background refresh sends them.
    pub(crate) unkeyed_headers: Vec<HeaderName>,
    /// Whether the response to a POST may be stored for later GETs.
    pub(crate) store_post_responses: bool,
    /// Whether the responses to QUERY are stored.
    pub(crate) query_method: bool,
    /// The longest request body that is read to make a key.
    pub(crate) max_request_body: usize,
    /// How long that may take.
    pub(crate) request_body_timeout: Duration,
    /// Whether no response holds data of one client.
    pub(crate) is_public: bool,
    /// Tags of every response.
    pub(crate) tags: Vec<Tag>,
    pub(crate) scope: Option<String>,
    /// Our name in `Cache-Status`; `None`: the field is not sent.
    pub(crate) cache_status: Option<String>,
    /// Whether a hit carries the extension `CacheOutcome`.
    pub(crate) outcome_on_hits: bool,
    /// Whether a hit carries `Age`.
    pub(crate) age: bool,
    /// Whether `Accept-Encoding` is reduced to the codings that it accepts, and
    /// the order of equally welcome languages ignored.
    pub(crate) normalise_accept: bool,
    /// Whether a request says how new its answer must be.
    pub(crate) honour_request_directives: bool,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            ttl: None,
            status_ttl: StatusTtl::new(),
            heuristics: true,
            stale_beside_s_maxage: true,
            stale_for: Duration::ZERO,
            stale_if_error: Duration::ZERO,
            stale_if_disconnected: Duration::ZERO,
            max_body: 1 << 20,
            fill_from_ranges: true,
            max_header_bytes: 64 << 10,
            max_key_bytes: 8 << 10,
            max_variants: 64,
            max_tags: 64,
            set_cookie: SetCookie::Refuse,
            ignore_cookies: false,
            ignored_cookies: IgnoredCookies::default(),
            credential_headers: FieldNames::of(CREDENTIAL_HEADERS),
            authorization_is_credential: true,
            cookie_is_credential: true,
            keyed_headers: FieldNames::of(KEYED_HEADERS),
            targeted: vec![HeaderName::from_static("cdn-cache-control")],
            lifetime_fields: Vec::new(),
            tag_fields: Vec::new(),
            cache_groups: true,
            make_etags: false,
            query: None,
            vary: Vec::new(),
            refresh_headers: None,
            unkeyed_headers: Vec::new(),
            store_post_responses: false,
            query_method: true,
            max_request_body: 64 << 10,
            request_body_timeout: Duration::from_secs(5),
            is_public: false,
            tags: Vec::new(),
            scope: None,
            cache_status: Some("tower-stampede".into()),
            outcome_on_hits: false,
            age: true,
            normalise_accept: true,
            honour_request_directives: false,
        }
    }
}

impl HttpConfig {
    /// Takes a field out of the credentials.
    pub(crate) fn exempt(&mut self, name: &HeaderName) {
        match *name {
            header::AUTHORIZATION => self.authorization_is_credential = false,
            header::COOKIE => self.cookie_is_credential = false,
            _ => {
                self.credential_headers.exempt(name.as_str());
            }
        }
    }

    /// Takes the fields out of the credentials that the application keys:
    /// clients that differ in them never share in any case. What is keyed by
    /// default was not the application's word, and is no credential.
    pub(crate) fn exempt_keyed(&mut self) {
        let keyed: Vec<_> = self.vary.iter().chain(self.keyed_headers.iter()).cloned().collect();
        keyed.iter().for_each(|name| self.exempt(name));
    }

    /// Returns whether two layers share the same responses among the same clients.
    pub(crate) fn shares_like(&self, other: &Self) -> bool {
        // Without `..`: a new setting has to be put into one of the two groups.
        let Self {
            // These say which clients get which responses, and what ends them.
            ttl,
            status_ttl,
            heuristics,
            set_cookie,
            ignore_cookies,
            ignored_cookies,
            credential_headers,
            authorization_is_credential,
            cookie_is_credential,
            keyed_headers,
            targeted,
            lifetime_fields,
            tag_fields,
            cache_groups,
            query,
            vary,
            store_post_responses,
            query_method,
            is_public,
            tags,
            scope,
            normalise_accept,

            // For how long, how many, how large, and what clients are told.
            stale_beside_s_maxage: _,
            stale_for: _,
            stale_if_error: _,
            stale_if_disconnected: _,
            max_body: _,
            fill_from_ranges: _,
            max_header_bytes: _,
            max_key_bytes: _,
            max_variants: _,
            max_tags: _,
            make_etags: _,
            refresh_headers: _,
            unkeyed_headers: _,
            max_request_body: _,
            request_body_timeout: _,
            cache_status: _,
            outcome_on_hits: _,
            age: _,
            honour_request_directives: _,
        } = other;
        self.ttl.is_some() == ttl.is_some()
            && self.status_ttl == *status_ttl
            && self.heuristics == *heuristics
            && self.set_cookie == *set_cookie
            && self.ignore_cookies == *ignore_cookies
            && self.ignored_cookies == *ignored_cookies
            && self.credential_headers == *credential_headers
            && self.authorization_is_credential == *authorization_is_credential
            && self.cookie_is_credential == *cookie_is_credential
            && self.keyed_headers == *keyed_headers
            && self.targeted == *targeted
            && self.lifetime_fields == *lifetime_fields
            && self.tag_fields == *tag_fields
            && self.cache_groups == *cache_groups
            && self.query == *query
            && self.vary == *vary
            && self.store_post_responses == *store_post_responses
            && self.query_method == *query_method
            && self.is_public == *is_public
            && self.tags == *tags
            && self.scope == *scope
            && self.normalise_accept == *normalise_accept
    }

    /// Returns whether the settings make a field part of the key.
    pub(crate) fn keys(&self, name: &HeaderName) -> bool {
        self.keyed_headers.contains(name) || self.vary.contains(name)
    }

    /// Returns whether a field carries credentials.
    pub(crate) fn is_credential(&self, name: &HeaderName) -> bool {
        match *name {
            header::AUTHORIZATION => self.authorization_is_credential,
            header::COOKIE => self.cookie_is_credential && !self.ignore_cookies,
            _ => self.credential_headers.contains(name),
        }
    }
}

/// What [`HttpLayer::CREDENTIAL_HEADERS`](crate::HttpLayer::CREDENTIAL_HEADERS)
/// publishes.
pub(super) const CREDENTIAL_HEADERS: &[&str] = &[
    // Keys and tokens that clients send.
    "api-key",
    "apikey",
    "authentication",
    "dpop",
    "job-token",
    "ocp-apim-subscription-key",
    "private-token",
    "proxy-authorization",
    "token",
    "x-access-token",
    "x-amz-security-token",
    "x-api-key",
    "x-api-token",
    "x-apikey",
    "x-auth",
    "x-auth-*",
    "x-auth0-*",
    "x-authorization",
    "x-functions-key",
    "x-gitlab-token",
    "x-goog-api-key",
    "x-goog-iam-authorization-token",
    "x-id-token",
    "x-jwt",
    "x-jwt-*",
    "x-original-authorization",
    "x-parse-session-token",
    "x-rapidapi-key",
    "x-serverless-authorization",
    "x-session",
    "x-session-id",
    "x-session-token",
    "x-shopify-access-token",
    "x-token",
    "x-vault-token",
    // Users, as an authenticating proxy names them.
    "cf-access-*",
    "impersonate-*",
    "oidc-*",
    "remote-email",
    "remote-groups",
    "remote-name",
    "remote-user",
    "tailscale-user-*",
    "x-amzn-lattice-identity",
    "x-amzn-oidc-*",
    "x-apigateway-api-userinfo",
    "x-appengine-user-email",
    "x-appengine-user-id",
    "x-appengine-user-nickname",
    "x-authenticated-*",
    "x-authentik-*",
    "x-consumer-*",
    "x-credential-*",
    "x-endpoint-api-userinfo",
    "x-forwarded-access-token",
    "x-forwarded-authorization",
    "x-forwarded-email",
    "x-forwarded-groups",
    "x-forwarded-preferred-username",
    "x-forwarded-user",
    "x-goog-authenticated-user-*",
    "x-goog-iap-*",
    "x-hasura-*",
    "x-ms-client-principal*",
    "x-ms-token-*",
    "x-pomerium-*",
    "x-remote-extra-*",
    "x-remote-group",
    "x-remote-user",
    "x-shib-*",
    "x-userinfo",
    "x-vouch-*",
    "x-webauth-*",
    // Users, accounts and tenants, as applications name them.
    "x-account-id",
    "x-customer-id",
    "x-org-id",
    "x-organization-id",
    "x-principal",
    "x-scope-orgid",
    "x-tenant",
    "x-tenant-id",
    "x-user",
    "x-user-email",
    "x-user-id",
    "x-user-name",
    "x-user-roles",
    "x-username",
    "x-workspace-id",
    // Certificates of clients.
    "cf-cert-*",
    "client-cert",
    "client-cert-chain",
    "ssl-client-*",
    "x-amzn-mtls-*",
    "x-arr-clientcert",
    "x-client-cert*",
    "x-forwarded-client-cert",
    "x-forwarded-tls-client-cert*",
    "x-ssl-cert*",
    "x-ssl-client-*",
    "x-tls-client-*",
];

/// What [`HttpLayer::KEYED_HEADERS`](crate::HttpLayer::KEYED_HEADERS) publishes.
pub(super) const KEYED_HEADERS: &[&str] = &[
    "cf-visitor",
    "cloudfront-forwarded-proto",
    "fastly-ssl",
    "forwarded",
    "front-end-https",
    "https",
    "surrogate-capability",
    "wl-proxy-ssl",
    "x-accel-mapping",
    "x-appengine-https",
    "x-arr-ssl",
    "x-envoy-original-path",
    "x-forwarded-host",
    "x-forwarded-https",
    "x-forwarded-method",
    "x-forwarded-path",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-protocol",
    "x-forwarded-scheme",
    "x-forwarded-server",
    "x-forwarded-ssl",
    "x-forwarded-uri",
    "x-host",
    "x-http-host-override",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-host",
    "x-original-method",
    "x-original-uri",
    "x-original-url",
    "x-rewrite-url",
    "x-scheme",
    "x-script-name",
    "x-sendfile-type",
    "x-url-scheme",
];
