//! The settings of one HTTP layer.

use std::time::Duration;

use http::header::{self, HeaderName};

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
    /// `HttpOnly` or named `__Host-…` or `__Secure-…`. Otherwise it is not
    /// stored.
    Explicit,
}

/// Names of fields that are looked for among all fields of every request.
#[derive(Clone, Debug)]
pub(crate) struct FieldNames {
    names: Vec<HeaderName>,
    /// A bit for each length: it tells most fields apart from all of these.
    lengths: u64,
}

impl FieldNames {
    pub(crate) fn contains(&self, name: &HeaderName) -> bool {
        self.have(name, name.as_str().len())
    }

    /// Returns whether this name, of that length, is one of them.
    #[inline]
    pub(crate) fn have(&self, name: &HeaderName, length: usize) -> bool {
        self.lengths & bit(length) != 0 && self.names.contains(name)
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, HeaderName> {
        self.names.iter()
    }
}

impl FromIterator<HeaderName> for FieldNames {
    fn from_iter<I: IntoIterator<Item = HeaderName>>(names: I) -> Self {
        let names: Vec<_> = names.into_iter().collect();
        let lengths = names.iter().fold(0, |lengths, name| lengths | bit(name.as_str().len()));
        Self { names, lengths }
    }
}

#[inline]
fn bit(length: usize) -> u64 {
    1 << length.min(63)
}

/// The settings of one HTTP layer.
#[derive(Clone, Debug)]
pub(crate) struct HttpConfig {
    /// Lifetime of responses that say nothing; `None`: they are not stored.
    pub(crate) ttl: Option<Duration>,
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
    pub(crate) max_header_bytes: usize,
    pub(crate) max_key_bytes: usize,
    /// Variants per URI.
    pub(crate) max_variants: usize,
    /// Tags per entry.
    pub(crate) max_tags: usize,
    pub(crate) set_cookie: SetCookie,
    pub(crate) ignore_cookies: bool,
    /// Fields with credentials besides `Authorization` and `Cookie`.
    pub(crate) credential_headers: FieldNames,
    /// Fields that are part of the key when present: they can change where a
    /// request leads without changing its URI.
    pub(crate) keyed_headers: FieldNames,
    /// Fields that govern instead of `Cache-Control` (RFC 9213), the first
    /// before the others.
    pub(crate) targeted: Vec<HeaderName>,
    /// Parameters that the handler sees; `None`: all.
    pub(crate) query: Option<Vec<String>>,
    /// Fields treated as if every response named them in `Vary`.
    pub(crate) vary: Vec<HeaderName>,
    pub(crate) scope: Option<String>,
    /// Our name in `Cache-Status`; `None`: the field is not sent.
    pub(crate) cache_status: Option<String>,
    /// Whether a hit carries the extension `CacheOutcome`.
    pub(crate) outcome_on_hits: bool,
    /// Whether a hit carries `Age`.
    pub(crate) age: bool,
    /// Whether the order of equally welcome encodings and languages is
    /// ignored.
    pub(crate) normalise_accept: bool,
    /// Whether a request says how new its answer must be.
    pub(crate) honour_request_directives: bool,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            ttl: None,
            heuristics: true,
            stale_beside_s_maxage: true,
            stale_for: Duration::ZERO,
            stale_if_error: Duration::ZERO,
            stale_if_disconnected: Duration::ZERO,
            max_body: 1 << 20,
            max_header_bytes: 64 << 10,
            max_key_bytes: 8 << 10,
            max_variants: 64,
            max_tags: 64,
            set_cookie: SetCookie::Refuse,
            ignore_cookies: false,
            credential_headers: credential_headers(),
            keyed_headers: keyed_headers(),
            targeted: vec![HeaderName::from_static("cdn-cache-control")],
            query: None,
            vary: Vec::new(),
            scope: None,
            cache_status: Some("tower-stampede".into()),
            outcome_on_hits: true,
            age: true,
            normalise_accept: true,
            honour_request_directives: false,
        }
    }
}

fn credential_headers() -> FieldNames {
    let others = ["x-api-key", "x-auth-token", "client-cert"];
    let others = others.into_iter().map(HeaderName::from_static);
    std::iter::once(header::PROXY_AUTHORIZATION).chain(others).collect()
}

fn keyed_headers() -> FieldNames {
    let keyed = [
        "forwarded",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-original-url",
        "x-rewrite-url",
        "x-http-method",
        "x-http-method-override",
        "x-host",
    ];
    keyed.into_iter().map(HeaderName::from_static).collect()
}
