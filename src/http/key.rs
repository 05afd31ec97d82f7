//! What names the entries of one URI.

use http::header::HeaderMap;
use http::uri::{PathAndQuery, Uri};
use smallvec::SmallVec;

use super::config::{FieldNames, HttpConfig};
use super::host;
use super::request::{BypassReason, Seen};
use crate::KeyBuf;

/// How keys of this module begin; no user's key does.
const PRIMARY: [u8; 2] = [0, b'h'];

/// Returns how the primary keys of one scheme begin.
pub(super) fn key_start(scope: Option<&str>, scheme: &str) -> Box<[u8]> {
    let mut start = KeyBuf::default();
    push_start(&mut start, scope, scheme);
    start.as_bytes().into()
}

pub(super) fn push_start(key: &mut KeyBuf, scope: Option<&str>, scheme: &str) {
    key.push(&PRIMARY);
    key.push_part(scope.unwrap_or_default().as_bytes());
    key.push_part(scheme.as_bytes());
}

/// Appends what names a request to the beginning of its primary key.
///
/// `uri` is the one received, before any router rewrote it.
#[inline]
pub(super) fn push_request(
    key: &mut KeyBuf,
    headers: &HeaderMap,
    seen: &Seen<'_>,
    uri: &Uri,
    scheme: &str,
    config: &HttpConfig,
) -> Result<(), BypassReason> {
    match host::named_by(seen.host, uri, scheme)? {
        Some(host) => host.push_to(key),
        None => key.push_part(b""),
    }
    push_resource(key, uri, config);
    if seen.has_keyed {
        push_fields(key, headers, &config.keyed_headers);
    }
    let too_long = key.as_bytes().len() > config.max_key_bytes;
    if too_long { Err(BypassReason::KeyTooLong) } else { Ok(()) }
}

/// Appends path and query as one part, without the parameters that are left
/// out.
#[inline]
pub(super) fn push_resource(key: &mut KeyBuf, uri: &Uri, config: &HttpConfig) {
    match (&config.query, uri.query()) {
        (Some(allow), Some(query)) => {
            let mut resource = SmallVec::<[u8; 128]>::from_slice(path(uri).as_bytes());
            push_kept(&mut resource, query, allow);
            key.push_part(&resource);
        }
        _ => key.push_part(uri.path_and_query().map_or("/", PathAndQuery::as_str).as_bytes()),
    }
}

/// Removes the parameters outside `allow`: what is not in the key, the
/// handler must not see.
pub(crate) fn unkey_query(uri: &Uri, allow: &[String]) -> Uri {
    let Some(query) = uri.query() else { return uri.clone() };
    let mut resource = SmallVec::<[u8; 128]>::from_slice(path(uri).as_bytes());
    push_kept(&mut resource, query, allow);
    let mut parts = uri.clone().into_parts();
    let kept = PathAndQuery::try_from(&resource[..]);
    parts.path_and_query = Some(kept.expect("a query without some parameters is a query"));
    Uri::from_parts(parts).expect("only the query of a valid URI was replaced")
}

fn push_kept(out: &mut SmallVec<[u8; 128]>, query: &str, allow: &[String]) {
    let name = |parameter: &str| parameter.find('=').unwrap_or(parameter.len());
    let kept = query.split('&').filter(|p| allow.iter().any(|a| a == &p[..name(p)]));
    for (i, parameter) in kept.enumerate() {
        out.push(if i == 0 { b'?' } else { b'&' });
        out.extend_from_slice(parameter.as_bytes());
    }
}

pub(super) fn path(uri: &Uri) -> &str {
    if uri.path().is_empty() { "/" } else { uri.path() }
}

/// Appends the fields that change where a request leads, in the order of the
/// settings.
fn push_fields(key: &mut KeyBuf, headers: &HeaderMap, keyed: &FieldNames) {
    for name in keyed.iter() {
        for value in headers.get_all(name) {
            key.push_part(name.as_str().as_bytes());
            key.push_part(value.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::request::tests::request;
    use http::request::Parts;
    use proptest::prelude::*;
    use proptest::string::string_regex;

    fn primary(
        parts: &Parts,
        uri: &Uri,
        scheme: &str,
        config: &HttpConfig,
    ) -> Result<KeyBuf, BypassReason> {
        let mut key = KeyBuf::default();
        push_start(&mut key, config.scope.as_deref(), scheme);
        let seen = Seen::of(&parts.headers, config);
        push_request(&mut key, &parts.headers, &seen, uri, scheme, config).map(|()| key)
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
        assert_eq!(one, plain("http://x.example/a?b", &[]));
        assert_eq!(one, plain("http://x.example:80/a?b", &[("host", "x.example")]));
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
