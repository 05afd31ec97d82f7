//! The one form of a request that is keyed and forwarded.
//!
//! Requests with one key are answered with one response. So the service must
//! see of each of them the same: the host in lower case and without the
//! scheme's own port, no parameter and no cookie that the key leaves out. Path
//! and query stay byte for byte: nothing is decoded.

use http::header::{self, HeaderMap, HeaderValue};
use http::uri::Authority;
use http::{Method, Uri, request::Parts};

use crate::http::config::HttpConfig;
use crate::http::flow::lookup::scheme;
use crate::http::layer::rules::Rules;
use crate::http::rules::host::Host;
use crate::http::rules::key::{received_uri, unkey_query};

/// Brings a request into the form that its key stands for.
pub(super) fn apply(parts: &mut Parts, rules: &Rules) {
    if rules.config.ignore_cookies {
        parts.headers.remove(header::COOKIE);
    }
    let scheme = scheme(received_uri(parts), rules).to_owned();
    if let Some(host) = other_field(&parts.headers, &scheme) {
        parts.headers.insert(header::HOST, host);
    }
    parts.uri = uri(&parts.uri, &scheme, rules);
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get_mut::<axum::extract::OriginalUri>() {
        original.0 = uri(&original.0, &scheme, rules);
    }
}

/// Takes cookies out of a GET or a HEAD that the settings ignore by name: before it is keyed and
/// judged, so that it is no other request than one without them.
#[cold]
pub(super) fn remove_ignored_cookies(parts: &mut Parts, config: &HttpConfig) {
    if matches!(parts.method, Method::GET | Method::HEAD) {
        config.ignored_cookies.remove_from(&mut parts.headers);
    }
}

/// Returns whether the service would see of a request what its key leaves out.
pub(super) fn is_other(parts: &Parts, rules: &Rules) -> bool {
    let received = received_uri(parts);
    let scheme = scheme(received, rules);
    let is_other_uri = |own: &Uri| {
        let normal = uri(own, scheme, rules);
        // Hosts compare without case: here their letters count.
        normal != *own
            || normal.authority().map(Authority::as_str) != own.authority().map(Authority::as_str)
    };
    rules.config.ignore_cookies && parts.headers.contains_key(header::COOKIE)
        || rules.config.ignored_cookies.concern(&parts.headers)
        || other_field(&parts.headers, scheme).is_some()
        || is_other_uri(&parts.uri)
        || is_other_uri(received)
}

fn uri(own: &Uri, scheme: &str, rules: &Rules) -> Uri {
    let uri = match &rules.config.query {
        Some(allow) => unkey_query(own, allow),
        None => own.clone(),
    };
    let scheme = own.scheme_str().unwrap_or(scheme);
    let Some(other) = uri.authority().and_then(|authority| other_authority(authority, scheme))
    else {
        return uri;
    };
    let mut parts = uri.into_parts();
    parts.authority = Some(other);
    Uri::from_parts(parts).expect("only the authority of a valid URI was replaced")
}

/// Returns the normal form of the one `Host` field where that is another text.
fn other_field(headers: &HeaderMap, scheme: &str) -> Option<HeaderValue> {
    let mut fields = headers.get_all(header::HOST).iter();
    // A request with several `Host` fields is forwarded as it came.
    let host = fields.next().filter(|_| fields.next().is_none())?;
    HeaderValue::try_from(other(host.as_bytes(), scheme)?).ok()
}

fn other_authority(authority: &Authority, scheme: &str) -> Option<Authority> {
    other(authority.as_str().as_bytes(), scheme)?.parse().ok()
}

fn other(text: &[u8], scheme: &str) -> Option<String> {
    // Text that is no host makes no key: such a request is forwarded as it came.
    let normal = Host::parse(text, scheme)?.normal();
    (normal.as_bytes() != text).then_some(normal)
}
