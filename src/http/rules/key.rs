//! What names the entries of one URI.

use http::header::{HeaderMap, HeaderName};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Uri};
use smallvec::SmallVec;

use crate::KeyBuf;
use crate::http::config::HttpConfig;
use crate::http::rules::field_names::FieldNames;
use crate::http::rules::host::{self, HostField};
use crate::http::rules::request::{BypassReason, FieldScan};
use crate::key::KeyKind;
#[cfg(feature = "admin")]
use crate::key::UriName;

/// Where a request names its host. The service sees it, and may build other
/// links from a URI with a host than from one without: so each has keys of its
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostPlace {
    /// In the field `Host`, as in most requests of HTTP/1.1, or nowhere.
    Field,
    /// In the URI alone, as in requests of HTTP/2 and of most clients.
    Uri,
    Both,
}

impl HostPlace {
    #[inline]
    pub(crate) fn of(uri: &Uri, field: HostField<'_>) -> Self {
        match (uri.authority(), field) {
            (None, _) => Self::Field,
            (Some(_), HostField::None) => Self::Uri,
            (Some(_), _) => Self::Both,
        }
    }

    /// How keys of this module begin; no user's key does.
    const fn mark(self) -> [u8; 2] {
        match self {
            Self::Field => KeyKind::HostInField,
            Self::Uri => KeyKind::HostInUri,
            Self::Both => KeyKind::HostInBoth,
        }
        .start()
    }
}

/// Returns the URI as received, before any router rewrote it.
#[inline]
pub(crate) fn received_uri(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}

/// Returns how most primary keys of one scheme begin.
pub(crate) fn key_start(scope: Option<&str>, scheme: &str) -> Box<[u8]> {
    let mut start = KeyBuf::default();
    push_start(&mut start, HostPlace::Field, scope, scheme);
    start.as_bytes().into()
}

pub(crate) fn push_start(key: &mut KeyBuf, host: HostPlace, scope: Option<&str>, scheme: &str) {
    key.push(&host.mark());
    key.push_part(scope.unwrap_or_default().as_bytes());
    key.push_part(scheme.as_bytes());
}

/// Appends what names a request to the beginning of its primary key.
///
/// `uri` is the one received; a router or a layer may have given the request
/// another one since.
#[inline]
pub(crate) fn push_request(
    key: &mut KeyBuf,
    parts: &Parts,
    seen: &FieldScan<'_>,
    uri: &Uri,
    scheme: &str,
    config: &HttpConfig,
) -> Result<(), BypassReason> {
    let query = config.query.as_deref();
    match host::named_by(seen.host, uri, scheme)? {
        Some(host) => host.push_to(key),
        None => key.push_part(b""),
    }
    if query.is_some() && has_many_parameters(uri) {
        return Err(BypassReason::KeyTooLong);
    }
    push_resource(key, uri, query);
    if !std::ptr::eq(uri, &parts.uri) && *uri != parts.uri {
        push_rewritten(key, uri, &parts.uri, query);
    }
    if !config.vary.is_empty() {
        push_vary(key, &config.vary);
    }
    if seen.has_keyed {
        push_fields(key, &parts.headers, &config.keyed_headers);
    }
    let too_long = key.as_bytes().len() > config.max_key_bytes;
    if too_long { Err(BypassReason::KeyTooLong) } else { Ok(()) }
}

/// Appends what a layer has made of the URI since it was received. Of a path
/// that has lost its beginning, as by a router that nests another, how much is
/// gone says it all.
#[cold]
fn push_rewritten(key: &mut KeyBuf, received: &Uri, own: &Uri, query: Option<&[String]>) {
    let has_lost_its_beginning = received.scheme() == own.scheme()
        && received.authority() == own.authority()
        && received.query() == own.query();
    let lost = path(received).strip_suffix(path(own)).filter(|_| has_lost_its_beginning);
    // No URI and no field has a zero byte: these parts are like no others.
    if let Some(lost) = lost {
        key.push_part(&[&[0, b'-'], &(lost.len() as u64).to_le_bytes()[..]].concat());
        return;
    }
    key.push_part(&[0, b'=']);
    key.push_part(own.scheme_str().unwrap_or_default().as_bytes());
    key.push_part(own.authority().map_or("", Authority::as_str).as_bytes());
    push_resource(key, own, query);
}

/// Appends the names that the layer adds to every `Vary`: layers of one handle
/// that differ in them select by different fields, and would replace each
/// other's entries.
fn push_vary(key: &mut KeyBuf, names: &[HeaderName]) {
    key.push_part(&[0, b'v']);
    for name in names {
        key.push_part(name.as_str().as_bytes());
    }
}

/// Appends path and query as one part, without the parameters that are left
/// out.
#[inline]
pub(super) fn push_resource(key: &mut KeyBuf, uri: &Uri, query: Option<&[String]>) {
    with_resource(uri, query, |resource| key.push_part(resource));
}

/// Returns what [`push_resource`] appends.
pub(crate) fn resource(uri: &Uri, query: Option<&[String]>) -> Vec<u8> {
    with_resource(uri, query, <[u8]>::to_vec)
}

#[inline]
fn with_resource<T>(uri: &Uri, query: Option<&[String]>, take: impl FnOnce(&[u8]) -> T) -> T {
    match (query, uri.query()) {
        (Some(allow), Some(query)) => take(&kept(uri, query, allow)),
        // No path is not the root: the service sees it.
        _ => take(uri.path_and_query().map_or("", PathAndQuery::as_str).as_bytes()),
    }
}

/// The most parameters that are looked for in a list.
const MAX_PARAMETERS: usize = 256;

fn has_many_parameters(uri: &Uri) -> bool {
    let query = uri.query().unwrap_or_default().as_bytes();
    query.len() > MAX_PARAMETERS && query.iter().filter(|b| **b == b'&').count() > MAX_PARAMETERS
}

/// Removes the parameters outside `allow`: what is not in the key, the
/// handler must not see.
pub(crate) fn unkey_query(uri: &Uri, allow: &[String]) -> Uri {
    let Some(query) = uri.query() else { return uri.clone() };
    let mut parts = uri.clone().into_parts();
    let kept = PathAndQuery::try_from(&kept(uri, query, allow)[..]);
    parts.path_and_query = Some(kept.expect("a query without some parameters is a query"));
    Uri::from_parts(parts).expect("only the query of a valid URI was replaced")
}

/// Returns the path, and the parameters that count.
fn kept(uri: &Uri, query: &str, allow: &[String]) -> SmallVec<[u8; 128]> {
    let mut out = SmallVec::from_slice(path(uri).as_bytes());
    let name = |parameter: &str| parameter.find('=').unwrap_or(parameter.len());
    let kept = query.split('&').filter(|p| allow.iter().any(|a| a == &p[..name(p)]));
    for (i, parameter) in kept.enumerate() {
        out.push(if i == 0 { b'?' } else { b'&' });
        out.extend_from_slice(parameter.as_bytes());
    }
    out
}

pub(crate) fn path(uri: &Uri) -> &str {
    if uri.path().is_empty() { "/" } else { uri.path() }
}

/// Appends the fields that change where a request leads, in the order of their
/// names. `X_Forwarded_Host` is one of them where `X-Forwarded-Host` is: the
/// service may stand behind CGI, which reads both as one.
fn push_fields(key: &mut KeyBuf, headers: &HeaderMap, keyed: &FieldNames) {
    let names = headers.keys().filter(|name| keyed.contains(name));
    let mut names: SmallVec<[_; 8]> = names.collect();
    names.sort_unstable_by_key(|name| name.as_str());
    for name in names {
        for value in headers.get_all(name) {
            key.push_part(name.as_str().as_bytes());
            key.push_part(value.as_bytes());
        }
    }
}

/// Returns the URL that the key of an entry names, for people: the key says more. `None` for
/// keys of other kinds.
#[cfg(feature = "admin")]
pub(crate) fn url_of(key: &[u8]) -> Option<String> {
    let UriName { scheme, host, resource, .. } = UriName::of_key(key)?;
    let text = String::from_utf8_lossy;
    Some(format!("{}://{}{}", text(scheme), text(host), text(resource)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::rules::request::tests::request;
    use proptest::prelude::*;
    use proptest::string::string_regex;

    fn primary(
        parts: &Parts,
        uri: &Uri,
        scheme: &str,
        config: &HttpConfig,
    ) -> Result<KeyBuf, BypassReason> {
        let mut key = KeyBuf::default();
        let seen = FieldScan::of(&parts.headers, config);
        push_start(&mut key, HostPlace::of(uri, seen.host), config.scope.as_deref(), scheme);
        push_request(&mut key, parts, &seen, uri, scheme, config).map(|()| key)
    }

    fn key(uri: &str, fields: &[(&str, &str)], config: &HttpConfig) -> Vec<u8> {
        let parts = request("GET", uri, fields);
        primary(&parts, &parts.uri, "http", config).unwrap().as_bytes().to_vec()
    }

    fn plain(uri: &str, fields: &[(&str, &str)]) -> Vec<u8> {
        key(uri, fields, &HttpConfig::default())
    }

    fn only(allow: &[&str]) -> HttpConfig {
        let query = Some(allow.iter().map(ToString::to_string).collect());
        HttpConfig { query, ..HttpConfig::default() }
    }

    /// Two texts, often the same, of lengths around those that one byte tells.
    fn near(one: &'static str, least: usize) -> impl Strategy<Value = (String, String)> {
        let of = |lengths: &str| string_regex(&format!("{one}{{{lengths}}}")).unwrap();
        let text = move || prop_oneof![of(&format!("{least},2")), of("100,130"), of("252,258")];
        prop_oneof![text().prop_map(|text| (text.clone(), text)), (text(), text())]
    }

    #[test]
    fn ways_to_write_one_host_are_one_key() {
        let one = plain("/a?b", &[("host", "x.example")]);
        assert_eq!(one, plain("/a?b", &[("host", "X.EXAMPLE:80")]));
        let in_uri = plain("http://x.example/a?b", &[]);
        assert_eq!(in_uri, plain("http://X.example:80/a?b", &[]));
        let in_both = plain("http://x.example/a?b", &[("host", "x.example")]);
        assert_eq!(in_both, plain("http://x.example:080/a?b", &[("host", "X.example")]));
        assert!(one != in_uri && one != in_both && in_uri != in_both);
    }

    #[test]
    fn a_rewritten_uri_is_told_apart_from_every_other() {
        let key = |own: &str, received: &str| {
            let parts = request("GET", own, &[("host", "x")]);
            let received = received.parse().unwrap();
            primary(&parts, &received, "http", &HttpConfig::default()).unwrap().as_bytes().to_vec()
        };
        let mut keys = Vec::new();
        for received in ["/a/b/c", "/b/c", "/c", "/"] {
            for own in ["/a/b/c", "/b/c", "/c", "/", "/a/b/c?x", "http://x/c", "//x/c"] {
                keys.push(key(own, received));
            }
        }
        for (i, a) in keys.iter().enumerate() {
            assert!(keys[..i].iter().all(|b| a != b), "{}", a.escape_ascii());
        }
        assert_eq!(key("/a/b/c", "/a/b/c"), plain("/a/b/c", &[("host", "x")]));
    }

    #[test]
    fn more_parameters_than_are_looked_for_make_no_key() {
        let many = |n: usize| {
            let parts = request("GET", &format!("/?{}", "a&".repeat(n)), &[("host", "x")]);
            primary(&parts, &parts.uri, "http", &only(&["b"])).map(drop)
        };
        assert!(many(MAX_PARAMETERS).is_ok());
        assert!(matches!(many(MAX_PARAMETERS + 1), Err(BypassReason::KeyTooLong)));
    }

    #[test]
    fn what_distinguishes_requests_distinguishes_keys() {
        let keys = [
            plain("/", &[]),
            plain("/?", &[]),
            plain("/a", &[]),
            plain("/A", &[]),
            plain("/%61", &[]),
            plain("/a/", &[]),
            plain("/a?x=1&y=2", &[]),
            plain("/a?y=2&x=1", &[]),
            plain("/a", &[("host", "x")]),
            plain("/a", &[("host", "x:8080")]),
            plain("/a", &[("x-forwarded-host", "x")]),
            plain("/a", &[("x-forwarded-host", "")]),
            plain("/a", &[("x-forwarded-proto", "x")]),
            plain("/a", &[("x-forwarded-host", "x"), ("x-forwarded-host", "y")]),
            plain("/a", &[("x-forwarded-host", "x, y")]),
            key("/a", &[], &HttpConfig { scope: Some("s".into()), ..HttpConfig::default() }),
        ];
        for (i, a) in keys.iter().enumerate() {
            assert!(keys[..i].iter().all(|b| a != b), "{}", a.escape_ascii());
        }
    }

    #[test]
    fn schemes_have_keys_of_their_own() {
        let parts = request("GET", "/", &[("host", "x")]);
        let key = |scheme| primary(&parts, &parts.uri, scheme, &HttpConfig::default());
        assert_ne!(key("http").unwrap().as_bytes(), key("https").unwrap().as_bytes());
    }

    #[test]
    fn the_order_of_fields_does_not_matter() {
        let (a, b) = (("x-host", "1"), ("forwarded", "2"));
        assert_eq!(plain("/", &[a, b]), plain("/", &[b, a]));
        assert_eq!(plain("/", &[("x-forwarded-for", "1")]), plain("/", &[]));
    }

    #[test]
    fn a_key_over_the_cap_bypasses() {
        let parts = request("GET", &format!("/{}", "x".repeat(9000)), &[]);
        let key = primary(&parts, &parts.uri, "http", &HttpConfig::default());
        assert_eq!(key.err(), Some(BypassReason::KeyTooLong));
    }

    #[test]
    fn parameters_left_out_of_the_key_are_not_seen() {
        let config = only(&["q", "page"]);
        let allow = config.query.as_deref().unwrap();
        for (received, seen) in [
            ("/s?q=1&utm=2&page=3", "/s?q=1&page=3"),
            ("/s?page=3&q=1&q=2", "/s?page=3&q=1&q=2"),
            ("/s?q", "/s?q"),
            ("/s?%71=1&Q=1&=1&&", "/s"),
            ("/s?", "/s"),
            ("/s", "/s"),
            ("http://h/?utm=1", "http://h/"),
            ("*", "*"),
        ] {
            assert_eq!(unkey_query(&received.parse().unwrap(), allow), seen, "{received}");
            assert_eq!(key(received, &[], &config), key(seen, &[], &config), "{received}");
            assert_eq!(key(seen, &[], &config), plain(seen, &[]), "{received}");
        }
    }

    proptest! {
        #[test]
        fn requests_that_look_alike_to_the_handler_share_a_key(uri in "/[a-c/]{0,4}(\\?[a-c=&%;?]{0,12})?") {
            let config = only(&["a", "b"]);
            let seen = unkey_query(&uri.parse().unwrap(), config.query.as_deref().unwrap());
            prop_assert_eq!(key(&uri, &[], &config), plain(&seen.to_string(), &[]));
        }

        // A part ends where it says, whatever the parts around it hold.
        #[test]
        fn hosts_paths_and_fields_of_any_length_are_told_apart(
            (host, other_host) in near("[a-zA-Z.]", 1),
            (path, other_path) in near("[a-z/\\-]", 0),
            (field, other_field) in near("[ -~]", 0),
        ) {
            let name = "x-forwarded-host";
            let key = |host: &str, path: &str, field: &str| {
                plain(&format!("/{path}"), &[("host", host), (name, field)])
            };
            let same = host.eq_ignore_ascii_case(&other_host)
                && path == other_path
                && field.trim() == other_field.trim();
            let (one, other) = (key(&host, &path, field.trim()), key(&other_host, &other_path, other_field.trim()));
            prop_assert_eq!(one == other, same);
        }

        #[test]
        fn no_uri_or_host_makes_it_panic(uri: String, host: Vec<u8>) {
            let mut parts = request("GET", "/", &[]);
            parts.uri = uri.parse().unwrap_or_default();
            if let Ok(host) = http::HeaderValue::from_bytes(&host) {
                parts.headers.insert("host", host);
            }
            let _ = primary(&parts, &parts.uri, "http", &only(&["a"]));
            let _ = unkey_query(&parts.uri, &["a".into()]);
        }
    }
}
