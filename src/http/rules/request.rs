//! What a request asks for, and whether a shared cache can answer it.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, request::Parts};

use crate::http::config::HttpConfig;
use crate::http::rules::content::RequestContent;
pub(crate) use crate::http::rules::credentials::Credentials;
use crate::http::rules::field_names::Trait;
use crate::http::rules::host::HostField;
use crate::http::rules::request_directives::{self, Demand};
use crate::http::rules::streams::LAST_EVENT_ID;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestMethod {
    Get,
    Head,
}

/// What must be known of a request after it has gone to the inner service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestFacts {
    pub(crate) method: RequestMethod,
    pub(crate) credentials: Credentials,
}

/// What a request asks besides the resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes {
    /// It has `If-None-Match` or `If-Modified-Since`.
    pub(crate) condition: bool,
    /// It is a GET with `Range`.
    pub(crate) range: bool,
    /// It has `Last-Event-ID`, and there is a rule for streams.
    pub(crate) last_event: bool,
    pub(crate) no_store: bool,
    pub(crate) only_if_cached: bool,
    pub(crate) demand: Option<Demand>,
}

impl Wishes {
    /// Returns whether the answer may be less than the whole.
    pub(crate) fn is_shaped(self) -> bool {
        self.condition || self.range || self.last_event
    }
}

/// What is done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Cacheable(RequestFacts, Wishes),
    /// Goes through, and invalidates (RFC 9111, 4.4). A method whose safety
    /// is unknown counts as unsafe.
    Unsafe,
    /// Goes through.
    Bypass(BypassReason),
}

words! {
    /// Why a request is forwarded uncached.
    pub(crate) enum BypassReason {
        Method = "method",
        BodyOnGet = "body-on-get",
        Range = "range",
        /// The event that it names is in no stream that is stored or arrives.
        LastEventId = "last-event-id",
        Conditional = "conditional",
        NoStore = "no-store",
        Upgrade = "upgrade",
        KeyTooLong = "key-too-long",
        HeadersTooLarge = "headers-too-large",
        /// A body that is part of the key has more bytes than may be read.
        BodyTooLarge = "body-too-large",
        /// It did not come in time.
        BodyTooSlow = "body-too-slow",
        /// It broke off, or has trailers.
        BodyUnreadable = "body-unreadable",
        /// The layer cannot make a body of this type.
        BodyType = "body-type",
        BadHost = "bad-host",
        /// The user's own rule says so.
        ByRule = "by-rule",
        /// The user's own rule finds no identity.
        Identity = "identity",
        /// Its path may lead to routes with different rules.
        AmbiguousPath = "ambiguous-path",
        /// A layer of the same handle further out sees to it.
        Nested = "nested",
    }
}

/// Classifies a request, whose fields are `seen`. Its host is judged where its
/// key is made.
#[inline]
pub(crate) fn classify(
    parts: &Parts,
    seen: &FieldScan<'_>,
    body_is_empty: bool,
    config: &HttpConfig,
) -> Class {
    let method = match parts.method {
        Method::GET => RequestMethod::Get,
        Method::HEAD => RequestMethod::Head,
        _ if RequestContent::of_request(parts).is_some() => {
            return classify_read(parts, seen, config);
        }
        _ if is_safe(&parts.method) => return Class::Bypass(BypassReason::Method),
        _ => return Class::Unsafe,
    };
    let reason = (!body_is_empty).then_some(BypassReason::BodyOnGet);
    match reason.or_else(|| seen.bypass(config)) {
        Some(reason) => Class::Bypass(reason),
        None => {
            let asked = RequestFacts { method, credentials: seen.credentials };
            Class::Cacheable(asked, seen.wishes(method, &parts.headers, config))
        }
    }
}

/// Classifies a request that is keyed by its body. The rules are those of a GET (RFC 10008,
/// 2.6 to 2.8).
#[cold]
fn classify_read(parts: &Parts, seen: &FieldScan<'_>, config: &HttpConfig) -> Class {
    if let Some(reason) = seen.bypass(config) {
        return Class::Bypass(reason);
    }
    let asked = RequestFacts { method: RequestMethod::Get, credentials: seen.credentials };
    let mut wishes = seen.wishes(asked.method, &parts.headers, config);
    if parts.method == Method::POST {
        if parts.headers.contains_key(header::IF_NONE_MATCH) {
            // RFC 9110, 13.1.2: where it matches, the service answers 412.
            return Class::Bypass(BypassReason::Conditional);
        }
        // RFC 9110, 13.1.3: of no other method.
        wishes.condition = false;
        // RFC 9110, 14.2: of no other method.
        wishes.range = false;
    }
    Class::Cacheable(asked, wishes)
}

/// Returns the field because of which the answer to a request is for its client
/// alone: of several, one that the fewest permissions cover.
pub(crate) fn credential_field(headers: &HeaderMap, config: &HttpConfig) -> Option<HeaderName> {
    let rank = |name: &&HeaderName| match **name {
        header::AUTHORIZATION => 2,
        header::COOKIE => 1,
        _ => 0,
    };
    headers.keys().filter(|name| config.is_credential(name)).min_by_key(rank).cloned()
}

/// Returns the credentials that a request carries.
pub(crate) fn credentials(headers: &HeaderMap, config: &HttpConfig) -> Credentials {
    FieldScan::of(headers, config).credentials
}

/// Returns whether a request may change something, as far as its method says.
pub(crate) fn is_unsafe(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD) && !is_safe(method)
}

/// Methods registered as safe whose responses are not cached, unless the body of a QUERY was
/// read. `CONNECT` is
/// not safe, but it has no URI whose entries it could invalidate.
fn is_safe(method: &Method) -> bool {
    let extensions = ["PROPFIND", "QUERY", "REPORT", "SEARCH"];
    matches!(*method, Method::OPTIONS | Method::TRACE | Method::CONNECT)
        || extensions.contains(&method.as_str())
}

/// The most lines of a header section that are handled: each is looked at several times. Lines of `Cookie` do not count: a client
/// of HTTP/2 sends one for each cookie.
const MAX_LINES: usize = 128;

#[cold]
fn has_too_many_lines(headers: &HeaderMap) -> bool {
    let cookies = headers.get_all(header::COOKIE).iter().count();
    headers.len() - cookies > MAX_LINES
}

/// The longest list in a request that is read member by member, in bytes over all its lines. What
/// a client sends in earnest is shorter. To read or to sort a list takes many times as long as to
/// receive it: with HPACK a few bytes stand for 16 KiB.
pub(super) const MAX_LIST_BYTES: usize = 512;

/// Returns whether the lines of a list are too long to be read member by member.
pub(super) fn is_too_long(headers: &HeaderMap, name: &HeaderName) -> bool {
    bytes_of(headers, name) > MAX_LIST_BYTES
}

/// Returns the size of a field over all its lines.
pub(super) fn bytes_of(headers: &HeaderMap, name: &HeaderName) -> usize {
    headers.get_all(name).iter().map(|line| line.len() + 1).sum()
}

/// What one pass over the fields of a request finds.
#[derive(Default)]
pub(crate) struct FieldScan<'a> {
    pub(crate) host: HostField<'a>,
    /// Whether there are fields that are part of the key.
    pub(super) has_keyed: bool,
    credentials: Credentials,
    bytes: usize,
    has_many_lines: bool,
    cache_control: bool,
    pragma: bool,
    condition: bool,
    range: bool,
    reason: Option<BypassReason>,
}

impl<'a> FieldScan<'a> {
    #[inline]
    pub(crate) fn of(headers: &'a HeaderMap, config: &HttpConfig) -> Self {
        let has_many_lines = headers.len() > MAX_LINES && has_too_many_lines(headers);
        let mut seen = Self { has_many_lines, ..Self::default() };
        for (name, value) in headers {
            let text = name.as_str();
            seen.bytes += text.len() + value.len() + 4;
            let own = Trait::of(text);
            seen.has_keyed |= config.keyed_headers.has(name, own);
            let is_named = config.credential_headers.has(name, own);
            seen.note(name, value, is_named, config);
        }
        seen
    }

    #[inline]
    fn note(
        &mut self,
        name: &HeaderName,
        value: &'a HeaderValue,
        is_named: bool,
        config: &HttpConfig,
    ) {
        if *name == header::HOST {
            self.host = self.host.and(value);
        }
        match *name {
            header::AUTHORIZATION if config.authorization_is_credential => {
                self.carries(Credentials::AUTHORIZATION);
            }
            header::COOKIE if config.cookie_is_credential && !config.ignore_cookies => {
                self.carries(Credentials::COOKIE);
            }
            // No credentials, also where they are named among the others.
            header::AUTHORIZATION | header::COOKIE => {}
            header::CACHE_CONTROL => self.cache_control = true,
            header::PRAGMA => self.pragma = true,
            header::UPGRADE => self.reason = Some(BypassReason::Upgrade),
            header::RANGE => self.range = true,
            header::IF_NONE_MATCH | header::IF_MODIFIED_SINCE => self.condition = true,
            header::IF_MATCH | header::IF_UNMODIFIED_SINCE => {
                self.reason = self.reason.or(Some(BypassReason::Conditional));
            }
            _ if is_named => self.carries(Credentials::OTHER),
            _ => {}
        }
    }

    fn carries(&mut self, kind: Credentials) {
        self.credentials = self.credentials | kind;
    }

    #[inline]
    fn bypass(&self, config: &HttpConfig) -> Option<BypassReason> {
        let is_too_large = self.bytes > config.max_header_bytes || self.has_many_lines;
        if is_too_large { Some(BypassReason::HeadersTooLarge) } else { self.reason }
    }

    #[inline]
    fn wishes(&self, method: RequestMethod, headers: &HeaderMap, config: &HttpConfig) -> Wishes {
        let mut wishes = Wishes {
            condition: self.condition,
            // RFC 9110, 14.2: of no other method.
            range: self.range && method == RequestMethod::Get,
            ..Wishes::default()
        };
        if config.share_streams.is_some() && method == RequestMethod::Get && !self.range {
            let id = headers.get(LAST_EVENT_ID);
            wishes.last_event = id.is_some_and(|id| !id.is_empty());
        }
        if !self.cache_control && !self.pragma {
            return wishes;
        }
        let said = request_directives::read(headers);
        wishes.no_store = said.no_store;
        wishes.only_if_cached = said.only_if_cached;
        if config.honour_request_directives {
            let in_pragma = || request_directives::pragma(headers);
            let demand = if self.cache_control { said.demand } else { in_pragma() };
            wishes.demand = Some(demand).filter(|demand| !demand.is_none());
        }
        wishes
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use http::{HeaderValue, Request};
    use proptest::prelude::*;

    pub(in crate::http) fn request(method: &str, uri: &str, fields: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn class_of(parts: &Parts, body_is_empty: bool, config: &HttpConfig) -> Class {
        classify(parts, &FieldScan::of(&parts.headers, config), body_is_empty, config)
    }

    fn class(method: &str, fields: &[(&str, &str)]) -> Class {
        class_of(&request(method, "/", fields), true, &HttpConfig::default())
    }

    #[test]
    fn only_get_and_head_are_cacheable_and_unknown_methods_are_unsafe() {
        let asked = |method| {
            let asked = RequestFacts { method, credentials: Credentials::NONE };
            Class::Cacheable(asked, Wishes::default())
        };
        assert_eq!(class("GET", &[]), asked(RequestMethod::Get));
        assert_eq!(class("HEAD", &[]), asked(RequestMethod::Head));
        // RFC 9110, 9.2.1
        for method in ["OPTIONS", "TRACE", "CONNECT", "PROPFIND"] {
            assert_eq!(class(method, &[]), Class::Bypass(BypassReason::Method), "{method}");
        }
        // RFC 9111, 4.4: "or method of unknown safety"
        for method in ["POST", "PUT", "DELETE", "PATCH", "get", "WHATEVER"] {
            assert_eq!(class(method, &[]), Class::Unsafe, "{method}");
        }
    }

    #[test]
    fn what_a_cache_cannot_answer_goes_past_it() {
        for (name, value, reason) in [
            ("if-match", "*", BypassReason::Conditional),
            ("if-unmodified-since", "x", BypassReason::Conditional),
            ("upgrade", "websocket", BypassReason::Upgrade),
        ] {
            assert_eq!(class("GET", &[(name, value)]), Class::Bypass(reason), "{name}");
        }
    }

    fn wishes(method: &str, fields: &[(&str, &str)], honour: bool) -> Wishes {
        let config = HttpConfig { honour_request_directives: honour, ..HttpConfig::default() };
        match class_of(&request(method, "/", fields), true, &config) {
            Class::Cacheable(_, wishes) => wishes,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn wishes_are_noted() {
        let none = Wishes::default();
        for (name, value, expected) in [
            ("range", "bytes=0-1", Wishes { range: true, ..none }),
            ("if-none-match", "\"x\"", Wishes { condition: true, ..none }),
            ("if-modified-since", "x", Wishes { condition: true, ..none }),
            ("if-range", "\"x\"", none),
            ("cache-control", "no-store", Wishes { no_store: true, ..none }),
            ("cache-control", "only-if-cached", Wishes { only_if_cached: true, ..none }),
            ("cache-control", "no-cache", none),
            ("pragma", "no-cache", none),
        ] {
            assert_eq!(wishes("GET", &[(name, value)], false), expected, "{name}");
        }
        assert_eq!(wishes("HEAD", &[("range", "bytes=0-1")], false), none, "RFC 9110, 14.2");
    }

    #[test]
    fn how_new_an_answer_must_be_is_noted_where_that_is_honoured() {
        let demand = |fields: &[_]| wishes("GET", fields, true).demand;
        assert_eq!(demand(&[("pragma", "no-cache")]), Some(Demand::NO_CACHE));
        assert_eq!(demand(&[("cache-control", "no-cache")]), Some(Demand::NO_CACHE));
        // RFC 9111, 5.4
        assert_eq!(demand(&[("pragma", "no-cache"), ("cache-control", "x")]), None);
        assert!(demand(&[("cache-control", "max-age=5")]).is_some());
    }

    #[test]
    fn a_body_on_get_goes_past_the_cache() {
        let class = class_of(&request("GET", "/", &[]), false, &HttpConfig::default());
        assert_eq!(class, Class::Bypass(BypassReason::BodyOnGet));
    }

    #[test]
    fn too_many_bytes_of_fields_go_past_the_cache() {
        let large = "x".repeat(HttpConfig::default().max_header_bytes);
        assert_eq!(class("GET", &[("a", &large)]), Class::Bypass(BypassReason::HeadersTooLarge));
    }

    #[test]
    fn more_lines_than_are_looked_at_go_past_the_cache() {
        let lines = |n, name| vec![(name, "x"); n];
        let too_large = Class::Bypass(BypassReason::HeadersTooLarge);
        assert_ne!(class("GET", &lines(MAX_LINES, "a")), too_large);
        assert_eq!(class("GET", &lines(MAX_LINES + 1, "a")), too_large);
        assert_ne!(class("GET", &lines(1000, "cookie")), too_large, "HTTP/2 splits cookies");
    }

    #[test]
    fn credentials_are_recognised() {
        for (name, expected) in [
            ("accept", Credentials::NONE),
            ("authorization", Credentials::AUTHORIZATION),
            ("cookie", Credentials::COOKIE),
            ("proxy-authorization", Credentials::OTHER),
            ("x-api-key", Credentials::OTHER),
            ("x-auth-token", Credentials::OTHER),
            ("client-cert", Credentials::OTHER),
            ("x-ssl-client-verify", Credentials::OTHER),
            ("x-forwarded-for", Credentials::NONE),
        ] {
            let parts = request("GET", "/", &[(name, "")]);
            assert_eq!(credentials(&parts.headers, &HttpConfig::default()), expected, "{name}");
        }
    }

    #[test]
    fn ignored_cookies_are_no_credentials() {
        let config = HttpConfig { ignore_cookies: true, ..HttpConfig::default() };
        let parts = request("GET", "/", &[("cookie", "a=b"), ("authorization", "x")]);
        assert_eq!(credentials(&parts.headers, &config), Credentials::AUTHORIZATION);
    }

    proptest! {
        #[test]
        fn no_fields_make_it_panic(fields: Vec<(String, Vec<u8>)>) {
            let mut parts = request("GET", "/", &[]);
            for (name, value) in fields {
                if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                    parts.headers.append(name, value);
                }
            }
            let _ = class_of(&parts, true, &HttpConfig::default());
        }
    }
}
