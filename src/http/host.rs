//! Which host a request is for (RFC 9110, 7.2).

use http::header;
use http::{Uri, request::Parts};
use smallvec::SmallVec;

use super::request::BypassReason;

/// A host as received, and its port unless that is the scheme's own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host<'a> {
    name: &'a str,
    port: Option<u16>,
}

impl<'a> Host<'a> {
    /// Reads `host [":" port]`; user information is refused (RFC 9110, 4.2.4).
    pub(super) fn parse(text: &'a str, scheme: &str) -> Option<Self> {
        let (name, port) = split(text)?;
        let port = match port {
            None | Some("") => None,
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                Some(digits.parse().ok()?)
            }
            Some(_) => return None,
        };
        Some(Self { name, port: port.filter(|port| Some(*port) != default_port(scheme)) })
    }

    /// Writes the normal form: lower case, and no port that says nothing.
    pub(super) fn write(&self, out: &mut SmallVec<[u8; 64]>) {
        out.extend_from_slice(self.name.as_bytes());
        out.make_ascii_lowercase();
        if let Some(port) = self.port {
            out.push(b':');
            out.extend_from_slice(itoa::Buffer::new().format(port).as_bytes());
        }
    }

    pub(super) fn normal(&self) -> String {
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        self.name.to_ascii_lowercase() + &port
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.name.eq_ignore_ascii_case(other.name) && self.port == other.port
    }
}

/// Returns the one host that a request names.
///
/// A request without any is one that never was on a wire: a test's, or a
/// service's that calls another in the same process.
pub(super) fn of_request<'a>(
    parts: &'a Parts,
    uri: &'a Uri,
    scheme: &str,
) -> Result<Option<Host<'a>>, BypassReason> {
    let mut fields = parts.headers.get_all(header::HOST).iter();
    let (field, second) = (fields.next(), fields.next());
    let field = field.map(|value| value.to_str().unwrap_or_default());
    let read = |text| Host::parse(text, scheme).ok_or(BypassReason::BadHost);
    let authority = uri.authority().map(|authority| read(authority.as_str())).transpose()?;
    let field = field.map(read).transpose()?;
    match (authority, field) {
        _ if second.is_some() => Err(BypassReason::BadHost),
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

fn split(text: &str) -> Option<(&str, Option<&str>)> {
    let end = match text.strip_prefix('[') {
        Some(literal) => 1 + literal.find(']').filter(|&end| is_address(&literal[..end]))? + 1,
        None => text.bytes().position(|b| !is_name(b)).unwrap_or(text.len()),
    };
    match text.split_at(end) {
        ("", _) => None,
        (name, "") => Some((name, None)),
        (name, port) => Some((name, Some(port.strip_prefix(':')?))),
    }
}

fn is_address(literal: &str) -> bool {
    !literal.is_empty() && literal.bytes().all(|b| b.is_ascii_hexdigit() || b":.".contains(&b))
}

/// RFC 3986, 3.2.2: `reg-name`. A table, for every hit reads its host.
const NAME: [bool; 256] = {
    let mut table = [false; 256];
    let marks = b"-._~%!$&'()*+,;=";
    let mut b = 0;
    while b < 256 {
        table[b] = (b as u8).is_ascii_alphanumeric();
        b += 1;
    }
    let mut i = 0;
    while i < marks.len() {
        table[marks[i] as usize] = true;
        i += 1;
    }
    table
};

fn is_name(b: u8) -> bool {
    NAME[usize::from(b)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::request::tests::request;

    fn host(uri: &str, fields: &[(&str, &str)]) -> Result<String, BypassReason> {
        let parts = request("GET", uri, fields);
        let host = of_request(&parts, &parts.uri, "http")?;
        let Some(host) = host else { return Ok(String::new()) };
        let mut written = SmallVec::new();
        host.write(&mut written);
        assert_eq!(&written[..], host.normal().as_bytes());
        Ok(host.normal())
    }

    #[test]
    fn a_host_is_named_by_the_uri_or_by_the_field() {
        for (uri, fields, expected) in [
            ("/", &[][..], ""),
            ("/", &[("host", "A.Example:80")], "a.example"),
            ("/", &[("host", "a:")], "a"),
            ("/", &[("host", "a:8080")], "a:8080"),
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
