//! Which host a request is for (RFC 9110, 7.2).

use http::header::{self, HeaderMap, HeaderValue};
use http::{Uri, request::Parts};

use crate::KeyBuf;
use crate::http::rules::request::BypassReason;

/// The longest host that is read, in bytes. A name in DNS has 253 at most.
const MAX_HOST_BYTES: usize = 1 << 10;

/// A host as received, and its port unless that is the scheme's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host<'a> {
    name: &'a [u8],
    /// Whether the name may have letters in upper case.
    is_mixed: bool,
    port: Option<u16>,
}

/// The `Host` fields of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum HostField<'a> {
    #[default]
    None,
    One(&'a HeaderValue),
    Several,
}

impl<'a> HostField<'a> {
    /// Returns what there is with one more.
    #[inline]
    pub(super) fn and(self, value: &'a HeaderValue) -> Self {
        if matches!(self, Self::None) { Self::One(value) } else { Self::Several }
    }

    fn of(headers: &'a HeaderMap) -> Self {
        headers.get_all(header::HOST).into_iter().fold(Self::None, Self::and)
    }
}

impl<'a> Host<'a> {
    /// Reads `host [":" port]`; user information is refused (RFC 9110, 4.2.4).
    #[inline]
    pub(crate) fn parse(text: &'a [u8], scheme: &str) -> Option<Self> {
        if text.len() > MAX_HOST_BYTES {
            return None;
        }
        let (end, is_mixed) = name_of(text)?;
        let (name, port) = split(text, end)?;
        let port = match port {
            None | Some(b"") => None,
            Some(digits) => Some(read_port(digits)?),
        };
        let port = port.filter(|port| Some(*port) != default_port(scheme));
        Some(Self { name, is_mixed, port })
    }

    /// Appends the normal form as one part: lower case, and no port that says
    /// nothing.
    #[inline]
    pub(super) fn push_to(&self, key: &mut KeyBuf) {
        let mut digits = itoa::Buffer::new();
        let port = self.port.map(|port| digits.format(port).as_bytes());
        key.push_length(self.name.len() + port.map_or(0, |port| 1 + port.len()));
        if self.is_mixed {
            key.push_lower_case(self.name);
        } else {
            key.push(self.name);
        }
        if let Some(port) = port {
            key.push(b":");
            key.push(port);
        }
    }

    pub(crate) fn normal(&self) -> String {
        let name = self.name.iter().map(|b| char::from(b.to_ascii_lowercase()));
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        name.collect::<String>() + &port
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.name.eq_ignore_ascii_case(other.name) && self.port == other.port
    }
}

/// Returns the one host that a request names.
pub(super) fn of_request<'a>(
    parts: &'a Parts,
    uri: &'a Uri,
    scheme: &str,
) -> Result<Option<Host<'a>>, BypassReason> {
    named_by(HostField::of(&parts.headers), uri, scheme)
}

/// Returns the one host that a request with this field names.
///
/// A request without any is one that never was on a wire: a test's, or a
/// service's that calls another in the same process.
#[inline]
pub(super) fn named_by<'a>(
    field: HostField<'a>,
    uri: &'a Uri,
    scheme: &str,
) -> Result<Option<Host<'a>>, BypassReason> {
    let read = |text| Host::parse(text, scheme).ok_or(BypassReason::BadHost);
    let field = match field {
        HostField::None => None,
        HostField::One(value) => Some(read(value.as_bytes())?),
        HostField::Several => return Err(BypassReason::BadHost),
    };
    let authority = uri.authority().map(|authority| read(authority.as_str().as_bytes()));
    match (authority.transpose()?, field) {
        (Some(a), Some(b)) if !a.is_same(&b) => Err(BypassReason::BadHost),
        (authority, field) => Ok(authority.or(field)),
    }
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        _ if scheme.eq_ignore_ascii_case("http") => Some(80),
        _ if scheme.eq_ignore_ascii_case("https") => Some(443),
        _ => None,
    }
}

/// Returns where the name ends that `text` begins with, and whether it may have
/// letters in upper case.
#[inline]
fn name_of(text: &[u8]) -> Option<(usize, bool)> {
    if let Some(literal) = text.strip_prefix(b"[") {
        let end = literal.iter().position(|&b| b == b']')?;
        return is_address(&literal[..end]).then_some((1 + end + 1, true));
    }
    // Mostly there is no port: without a way out, the loop takes half as long.
    let kinds = kinds_in(text);
    if kinds & END == 0 {
        return Some((text.len(), kinds & UPPER != 0));
    }
    let end = text.iter().position(|&b| NAME[usize::from(b)] == END)?;
    Some((end, kinds_in(&text[..end]) & UPPER != 0))
}

#[inline]
fn kinds_in(text: &[u8]) -> u8 {
    text.iter().fold(0, |kinds, &b| kinds | NAME[usize::from(b)])
}

/// Splits a name from the port behind its end.
#[inline]
fn split(text: &[u8], end: usize) -> Option<(&[u8], Option<&[u8]>)> {
    match text.split_at(end) {
        (b"", _) => None,
        (name, b"") => Some((name, None)),
        (name, port) => Some((name, Some(port.strip_prefix(b":")?))),
    }
}

fn is_address(literal: &[u8]) -> bool {
    !literal.is_empty() && literal.iter().all(|b| b.is_ascii_hexdigit() || b":.".contains(b))
}

fn read_port(digits: &[u8]) -> Option<u16> {
    digits.iter().try_fold(0_u16, |port, b| {
        let digit = b.is_ascii_digit().then(|| u16::from(b - b'0'))?;
        port.checked_mul(10)?.checked_add(digit)
    })
}

const OTHER: u8 = 1;
const UPPER: u8 = 2;
const END: u8 = 4;

/// RFC 3986, 3.2.2: `reg-name`; `END` is no part of one. A table, for every hit
/// reads its host.
const NAME: [u8; 256] = {
    let mut table = [END; 256];
    let marks = b"-._~%!$&'()*+,;=";
    let mut b = 0;
    while b < 256 {
        let byte = b as u8;
        if byte.is_ascii_alphanumeric() {
            table[b] = if byte.is_ascii_uppercase() { UPPER } else { OTHER };
        }
        b += 1;
    }
    let mut i = 0;
    while i < marks.len() {
        table[marks[i] as usize] = OTHER;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::rules::request::tests::request;

    fn host(uri: &str, fields: &[(&str, &str)]) -> Result<String, BypassReason> {
        let parts = request("GET", uri, fields);
        let host = of_request(&parts, &parts.uri, "http")?;
        let Some(host) = host else { return Ok(String::new()) };
        let (mut written, mut expected) = (KeyBuf::default(), KeyBuf::default());
        host.push_to(&mut written);
        expected.push_part(host.normal().as_bytes());
        assert_eq!(written.as_bytes(), expected.as_bytes());
        Ok(host.normal())
    }

    #[test]
    fn a_host_is_named_by_the_uri_or_by_the_field() {
        for (uri, fields, expected) in [
            ("/", &[][..], ""),
            ("/", &[("host", "A.Example:80")], "a.example"),
            ("/", &[("host", "a:")], "a"),
            ("/", &[("host", "a:8080")], "a:8080"),
            ("/", &[("host", "A:0065535")], "a:65535"),
            ("/", &[("host", "a:443")], "a:443"),
            ("/", &[("host", "[::1]:8080")], "[::1]:8080"),
            ("http://a.example:80/", &[], "a.example"),
            ("http://a/", &[("host", "A:80")], "a"),
        ] {
            assert_eq!(host(uri, fields).as_deref(), Ok(expected), "{uri} {fields:?}");
        }
    }

    #[test]
    fn a_host_that_could_be_two_is_refused() {
        // RFC 9112, 3.2, and the confusions that poison caches.
        for (uri, fields) in [
            ("/", &[("host", "a"), ("host", "a")][..]),
            ("/", &[("host", "")]),
            ("/", &[("host", "a b")]),
            ("/", &[("host", "user@a")]),
            ("/", &[("host", "a/b")]),
            ("/", &[("host", "a, b")]),
            ("/", &[("host", "a:x")]),
            ("/", &[("host", "a:99999")]),
            ("/", &[("host", "a:65536")]),
            ("/", &[("host", "a:+1")]),
            ("/", &[("host", "a:1:2")]),
            ("/", &[("host", "[::1")]),
            ("/", &[("host", "[]")]),
            ("http://a/", &[("host", "b")]),
            ("http://a/", &[("host", "a:81")]),
            ("http://user@a/", &[]),
        ] {
            assert_eq!(host(uri, fields), Err(BypassReason::BadHost), "{uri} {fields:?}");
        }
    }
}
