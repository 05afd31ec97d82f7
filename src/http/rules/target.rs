//! Absolute URIs: what a response of an unsafe method invalidates (RFC 9111,
//! 4.4), and the tags and keys by which that is found.

use http::header::HOST;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderValue, Uri, request::Parts};
use smallvec::SmallVec;

use crate::cache::state::QueryLists;
use crate::http::rules::host::{self, Host};
use crate::http::rules::key::{path, resource};
use crate::http::rules::request::BypassReason;
use crate::key::{KeyKind, UriName, UriReach};
use crate::{KeyBuf, Tag};

/// Returns the absolute URI of a request, its authority in normal form. It
/// stays relative if the request names no host.
pub(crate) fn absolute_uri(parts: &Parts, uri: &Uri, scheme: &str) -> Result<Uri, BypassReason> {
    let resource = uri.path_and_query().cloned();
    let resource = resource.unwrap_or_else(|| PathAndQuery::from_static("/"));
    match host::of_request(parts, uri, scheme)? {
        Some(host) => build(scheme, &host, resource).ok_or(BypassReason::BadHost),
        None => Ok(Uri::from(resource)),
    }
}

/// Returns the absolute URIs of a request under every host that it names: it says more than one,
/// or says it twice. Which of them the service believes is not known.
pub(crate) fn every_absolute_uri(parts: &Parts, uri: &Uri, scheme: &str) -> Vec<Uri> {
    let resource = uri.path_and_query().cloned();
    let resource = resource.unwrap_or_else(|| PathAndQuery::from_static("/"));
    let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
    let fields = parts.headers.get_all(HOST).iter().map(HeaderValue::as_bytes);
    let hosts = authority.into_iter().chain(fields);
    let hosts = hosts.filter_map(|host| Host::parse(host, scheme));
    let mut named = Vec::new();
    for uri in hosts.filter_map(|host| build(scheme, &host, resource.clone())) {
        if named.len() < MOST_HOSTS && !named.contains(&uri) {
            named.push(uri);
        }
    }
    named
}

/// A request that names more hosts is known by the first ones.
const MOST_HOSTS: usize = 8;

/// Reads an absolute URL of HTTP into the form in which requests for it are known.
#[cfg(feature = "admin")]
pub(crate) fn normal_url(text: &str) -> Option<Uri> {
    let uri: Uri = text.parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let host = Host::parse(uri.authority()?.as_str().as_bytes(), &scheme)?;
    build(&scheme, &host, uri.path_and_query()?.clone())
}

fn build(scheme: &str, host: &Host<'_>, resource: PathAndQuery) -> Option<Uri> {
    let uri = Uri::builder().scheme(scheme).authority(host.normal());
    uri.path_and_query(resource).build().ok()
}

/// Returns what the keys of a URI in normal form call it. `resource` is its path and query, with
/// the parameters that count.
pub(crate) fn name_of<'a>(
    uri: &'a Uri,
    scheme: &'a str,
    scope: Option<&'a str>,
    resource: &'a [u8],
) -> UriName<'a> {
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let scope = scope.unwrap_or_default();
    UriName { scope: scope.as_bytes(), scheme: scheme.as_bytes(), host: host.as_bytes(), resource }
}

impl QueryLists {
    /// Returns what a URI is called by any layer: its path and query, with the parameters that
    /// count there.
    fn resources(&self, uri: &Uri) -> Vec<Vec<u8>> {
        let mut all = vec![resource(uri, None)];
        // Without a query all lists say the same.
        if uri.query().is_some() {
            for list in &self.all() {
                let one = resource(uri, Some(list));
                if !all.contains(&one) {
                    all.push(one);
                }
            }
        }
        all
    }

    /// Returns everything that a write to a URI ends, in any layer of `scope`. `ends_both` says
    /// that it ends what is stored under the other scheme of HTTP as well.
    pub(crate) fn reach(
        &self,
        uri: &Uri,
        (scheme, ends_both): (&str, bool),
        scope: Option<&str>,
    ) -> UriReach {
        let (schemes, mut reach) = (schemes_of(scheme, ends_both), UriReach::default());
        for resource in self.resources(uri) {
            reach.add(name_of(uri, scheme, scope, &resource), &schemes);
        }
        reach
    }
}

/// Returns the schemes under which a write ends what is stored: HTTP has two.
fn schemes_of(scheme: &str, ends_both: bool) -> SmallVec<[&str; 2]> {
    match scheme {
        "http" | "https" if ends_both => SmallVec::from_slice(&["http", "https"]),
        own => SmallVec::from_slice(&[own]),
    }
}

/// The tag that every entry of a path carries, whatever host, scheme and
/// query.
pub(crate) fn path_tag(scope: Option<&str>, path: &str) -> Tag {
    let mut parts = KeyBuf::default();
    parts.push_part(scope.unwrap_or_default().as_bytes());
    parts.push_part(path.as_bytes());
    hashed(KeyKind::PathTag, &parts)
}

pub(super) fn hashed(kind: KeyKind, parts: &KeyBuf) -> Tag {
    let digest = blake3::hash(parts.as_bytes());
    Tag::from_encoded(&[&kind.start()[..], &digest.as_bytes()[..16]].concat())
}

/// Resolves `Location` or `Content-Location` against the absolute URI of the
/// request; `None` unless it leads to the same origin.
pub(crate) fn same_origin_target(base: &Uri, location: &HeaderValue) -> Option<Uri> {
    let text = location.to_str().ok()?;
    let text = text.split('#').next()?;
    if has_scheme(text) {
        return same_origin(base, text);
    }
    if text.starts_with("//") {
        return same_origin(base, &format!("{}:{text}", base.scheme_str()?));
    }
    with_resource(base, &resolve(base, text))
}

/// RFC 3986, 3.1: a scheme ends at a colon before any other delimiter.
fn has_scheme(text: &str) -> bool {
    let end = text.find([':', '/', '?']);
    end.is_some_and(|end| end > 0 && text[end..].starts_with(':'))
}

fn same_origin(base: &Uri, absolute: &str) -> Option<Uri> {
    let target: Uri = absolute.parse().ok()?;
    let scheme = base.scheme_str()?;
    let theirs = Host::parse(target.authority()?.as_str().as_bytes(), scheme)?;
    let ours = Host::parse(base.authority()?.as_str().as_bytes(), scheme)?;
    if target.scheme().map(Scheme::as_str) != Some(scheme) || !theirs.is_same(&ours) {
        return None;
    }
    let query = target.query().map(|query| format!("?{query}")).unwrap_or_default();
    with_resource(base, &(without_dots(path(&target)) + &query))
}

fn with_resource(base: &Uri, resource: &str) -> Option<Uri> {
    let mut parts = base.clone().into_parts();
    parts.path_and_query = Some(resource.parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// RFC 3986, 5.2.2, for references without an authority.
fn resolve(base: &Uri, reference: &str) -> String {
    let (ref_path, query) = match reference.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (reference, None),
    };
    let query = if reference.is_empty() { base.query() } else { query };
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let base = path(base);
    let directory = &base[..=base.rfind('/').unwrap_or(0)];
    match ref_path {
        "" => base.to_owned() + &query,
        _ if ref_path.starts_with('/') => without_dots(ref_path) + &query,
        _ => without_dots(&format!("{directory}{ref_path}")) + &query,
    }
}

/// RFC 3986, 5.2.4.
fn without_dots(path: &str) -> String {
    let mut kept = Vec::new();
    let segments = path.strip_prefix('/').unwrap_or(path).split('/');
    let mut ends_in_directory = false;
    for segment in segments {
        ends_in_directory = matches!(segment, "." | "..");
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    if ends_in_directory {
        kept.push("");
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::rules::key::resource;
    use crate::http::rules::request::tests::request;
    use proptest::prelude::*;

    fn uri(text: &str, fields: &[(&str, &str)]) -> Uri {
        let parts = request("POST", text, fields);
        absolute_uri(&parts, &parts.uri, "http").unwrap()
    }

    fn target(base: &str, location: &str) -> Option<String> {
        let location = HeaderValue::from_str(location).unwrap();
        same_origin_target(&base.parse().unwrap(), &location).map(|uri| uri.to_string())
    }

    #[test]
    fn the_absolute_uri_is_in_normal_form() {
        assert_eq!(uri("/a?b", &[("host", "X:80")]), "http://x/a?b");
        assert_eq!(uri("http://x:8080/a", &[]), "http://x:8080/a");
        assert_eq!(uri("/a", &[]), "/a");
    }

    #[test]
    fn references_are_resolved_against_the_uri_of_the_request() {
        // RFC 3986, 5.4
        for (reference, expected) in [
            ("http://a/b/g", "/b/g"),
            ("HTTP://A:80/g", "/g"),
            ("http://a", "/"),
            ("//a/g", "/g"),
            ("g", "/b/c/g"),
            ("./g", "/b/c/g"),
            ("g/", "/b/c/g/"),
            ("/g", "/g"),
            ("?y", "/b/c/d;p?y"),
            ("g?y#s", "/b/c/g?y"),
            ("#s", "/b/c/d;p?q"),
            ("", "/b/c/d;p?q"),
            (".", "/b/c/"),
            ("..", "/b/"),
            ("../../../g", "/g"),
            ("g;x=1/../y", "/b/c/y"),
            ("g?y/./x", "/b/c/g?y/./x"),
        ] {
            let resolved = target("http://a/b/c/d;p?q", reference);
            assert_eq!(resolved, Some(format!("http://a{expected}")), "{reference}");
        }
    }

    #[test]
    fn another_origin_is_never_invalidated() {
        // RFC 9111, 4.4: "MUST NOT trigger an invalidation under these
        // conditions if the origin differs".
        for reference in
            ["https://a/b", "http://a:81/b", "http://b/", "//b/", "http://u@a/", "mailto:a"]
        {
            assert_eq!(target("http://a/", reference), None, "{reference}");
        }
        assert_eq!(target("/x", "http://a/"), None);
        assert_eq!(target("/x", "y").as_deref(), Some("/y"));
    }

    #[test]
    fn a_write_and_a_read_of_one_resource_have_one_tag() {
        let query = ["q".to_owned()];
        let tag = |text, fields: &[_]| {
            let uri = uri(text, fields);
            name_of(&uri, "http", None, &resource(&uri, Some(&query))).tag()
        };
        assert_eq!(tag("/a?q=1&x=2", &[("host", "H")]), tag("http://h:80/a?q=1", &[]));
        assert_ne!(tag("/a?q=1", &[("host", "h")]), tag("/a?q=2", &[("host", "h")]));
        assert_ne!(tag("/a", &[("host", "h")]), tag("/a", &[("host", "i")]));
    }

    #[test]
    fn the_tag_of_a_path_depends_on_scope_and_path_alone() {
        assert_ne!(path_tag(None, "/a"), path_tag(Some("s"), "/a"));
        assert_ne!(path_tag(None, "/a"), path_tag(None, "/b"));
    }

    proptest! {
        #[test]
        fn no_reference_makes_it_panic_or_leave_the_origin(reference in "[a-z:/.?#@%]{0,16}|.*") {
            let base = Uri::from_static("http://a/b/c?d");
            let location = HeaderValue::from_str(&reference).ok();
            if let Some(target) = location.and_then(|location| same_origin_target(&base, &location)) {
                prop_assert_eq!(target.authority(), base.authority());
            }
        }
    }
}
