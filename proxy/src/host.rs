//! Which host a request is for (RFC 9110, 7.2; RFC 9112, 3.2).

use std::net::Ipv6Addr;

use http::header::{self, HeaderValue};
use http::{Uri, Version, request::Parts};

/// A host, and its port unless that is the scheme's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host<'a> {
    name: &'a str,
    port: Option<u16>,
}

/// No host, several, or none that makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadHost;

impl<'a> Host<'a> {
    /// Reads `host [":" port]`; user information is no part of it. `default` is the port that
    /// says nothing. A name with an encoded byte or with an empty label is no name in DNS: some
    /// origins read another name in it.
    pub(crate) fn parse(text: &'a str, default: u16) -> Option<Self> {
        let end = match text.strip_prefix('[') {
            Some(literal) => 1 + literal.find(']').filter(|&end| is_address(&literal[..end]))? + 1,
            None => text.bytes().position(|b| !is_name(b)).unwrap_or(text.len()),
        };
        let (name, port) = text.split_at(end);
        if name.is_empty() || name.starts_with('.') || name.contains("..") {
            return None;
        }
        let port = match port {
            "" | ":" => None,
            port => {
                let digits = port.strip_prefix(':')?;
                let is_number = digits.bytes().all(|b| b.is_ascii_digit());
                Some(digits.parse().ok().filter(|_| is_number)?)
            }
        };
        Some(Self { name, port: port.filter(|port| *port != default) })
    }

    pub(crate) fn name(&self) -> &'a str {
        self.name
    }

    /// Lower case, the shortest form of an address, and no port that says nothing.
    pub(crate) fn normal(&self) -> String {
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        let name = match self.address() {
            Some(address) => format!("[{address}]"),
            None => self.name.to_ascii_lowercase(),
        };
        name + &port
    }

    fn address(&self) -> Option<Ipv6Addr> {
        self.name.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
    }

    /// Returns whether this is how the host is written in its normal form.
    fn is_normal(&self, text: &str) -> bool {
        let port = &text[self.name.len()..];
        let is_plain_port = match self.port {
            None => port.is_empty(),
            Some(0) => port == ":0",
            Some(_) => !port.starts_with(":0"),
        };
        is_plain_port && !self.name.bytes().any(|b| b.is_ascii_uppercase() || b == b'[')
    }
}

impl PartialEq for Host<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.name.eq_ignore_ascii_case(other.name) && self.port == other.port
    }
}

fn is_address(literal: &str) -> bool {
    literal.parse::<Ipv6Addr>().is_ok()
}

/// RFC 3986, 3.2.2: `reg-name`, without encoded bytes.
fn is_name(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&b)
}

/// Finds the one host of a request, and returns whether there is one.
/// Afterwards it stands in `Host` in its normal form, and the target is in
/// origin form: an origin that builds URLs from what it sees must build the
/// same ones for all requests with the same key.
///
/// A host in the target replaces `Host` (RFC 9112, 3.2.2), which must still be
/// a valid one. In HTTP/2 the two must agree. Only HTTP/1.0 may go without.
///
/// `default` is the port of the scheme that clients speak.
pub(crate) fn settle(parts: &mut Parts, default: u16) -> Result<bool, BadHost> {
    let field = of_field(parts, default)?;
    let Some(target) = parts.uri.authority() else {
        let Some((text, host)) = field else {
            return if parts.version == Version::HTTP_10 { Ok(false) } else { Err(BadHost) };
        };
        if !host.is_normal(text) {
            let value = HeaderValue::try_from(host.normal()).map_err(|_| BadHost)?;
            parts.headers.insert(header::HOST, value);
        }
        return Ok(true);
    };
    if !matches!(parts.uri.scheme_str(), Some("http" | "https")) {
        return Err(BadHost);
    }
    let host = Host::parse(target.as_str(), default).ok_or(BadHost)?;
    let agrees = field.is_none_or(|(_, field)| field == host);
    let is_missing = field.is_none() && parts.version == Version::HTTP_11;
    if is_missing || !agrees && parts.version > Version::HTTP_11 {
        return Err(BadHost);
    }
    let value = HeaderValue::try_from(host.normal()).map_err(|_| BadHost)?;
    parts.headers.insert(header::HOST, value);
    parts.uri = resource(&parts.uri);
    Ok(true)
}

fn of_field(parts: &Parts, default: u16) -> Result<Option<(&str, Host<'_>)>, BadHost> {
    let mut fields = parts.headers.get_all(header::HOST).iter();
    let Some(field) = fields.next() else { return Ok(None) };
    let text = field.to_str().ok().filter(|_| fields.next().is_none()).ok_or(BadHost)?;
    Ok(Some((text, Host::parse(text, default).ok_or(BadHost)?)))
}

/// Returns path and query, which is all that is left to say.
fn resource(uri: &Uri) -> Uri {
    match uri.path_and_query() {
        None => Uri::from_static("/"),
        // A target without a path may still have a query (RFC 9110, 4.2.3).
        Some(resource) if resource.as_str().starts_with('?') => {
            let resource = format!("/{}", resource.as_str());
            Uri::try_from(resource).expect("a path before a query is a target")
        }
        Some(resource) => resource.clone().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn settled(version: Version, uri: &str, hosts: &[&str]) -> Result<(String, String), BadHost> {
        let mut request = Request::builder().version(version).uri(uri);
        for host in hosts {
            request = request.header("host", *host);
        }
        let mut parts = request.body(()).unwrap().into_parts().0;
        settle(&mut parts, 80)?;
        let host = parts.headers.get("host").map_or("", |host| host.to_str().unwrap());
        Ok((host.to_owned(), parts.uri.to_string()))
    }

    #[test]
    fn one_host_is_found_wherever_it_stands() {
        for (version, uri, hosts, host, target) in [
            (Version::HTTP_11, "/a?b", &["A:80"][..], "a", "/a?b"),
            (Version::HTTP_11, "/", &["[::1]:81"], "[::1]:81", "/"),
            (Version::HTTP_11, "http://a:81/x", &["b"], "a:81", "/x"), // RFC 9112, 3.2.2
            (Version::HTTP_11, "http://a", &["a"], "a", "/"),
            (Version::HTTP_2, "http://a/x", &[], "a", "/x"),
            (Version::HTTP_2, "http://a/x", &["A:80"], "a", "/x"),
            (Version::HTTP_10, "/x", &[], "", "/x"),
            (Version::HTTP_10, "http://a/x", &[], "a", "/x"),
            (Version::HTTP_11, "*", &["a"], "a", "*"),
            (Version::HTTP_11, "http://a?b", &["a"], "a", "/?b"),
            (Version::HTTP_11, "/", &["a:"], "a", "/"),
            (Version::HTTP_11, "/", &["a:00000080"], "a", "/"),
            (Version::HTTP_11, "/", &["a:0081"], "a:81", "/"),
            (Version::HTTP_11, "/", &["a:000"], "a:0", "/"),
            (Version::HTTP_11, "/", &["a:0"], "a:0", "/"),
            (Version::HTTP_2, "http://A:080/", &[], "a", "/"),
        ] {
            let expected = Ok((host.to_owned(), target.to_owned()));
            assert_eq!(settled(version, uri, hosts), expected, "{version:?} {uri} {hosts:?}");
        }
    }

    #[test]
    fn an_address_has_one_form() {
        for (text, expected) in [
            ("[::1]", "[::1]"),
            ("[0:0:0::0001]:81", "[::1]:81"),
            ("[2001:DB8::A]", "[2001:db8::a]"),
        ] {
            let settled = settled(Version::HTTP_11, "/", &[text]);
            assert_eq!(settled, Ok((expected.to_owned(), "/".to_owned())), "{text}");
        }
    }

    #[test]
    fn behind_tls_it_is_port_443_that_says_nothing() {
        for (text, expected) in [("a:443", "a"), ("a:80", "a:80"), ("a", "a"), ("A:8443", "a:8443")]
        {
            assert_eq!(Host::parse(text, 443).unwrap().normal(), expected, "{text}");
        }
    }

    #[test]
    fn what_could_be_two_hosts_is_refused() {
        for (version, uri, hosts) in [
            (Version::HTTP_11, "/", &[][..]), // RFC 9112, 3.2
            (Version::HTTP_11, "/", &["a", "a"]),
            (Version::HTTP_11, "/", &[""]),
            (Version::HTTP_11, "/", &["a b"]),
            (Version::HTTP_11, "/", &["u@a"]),
            (Version::HTTP_11, "/", &["a/b"]),
            (Version::HTTP_11, "/", &["a:x"]),
            (Version::HTTP_11, "/", &["a%2Eb"]),
            (Version::HTTP_11, "/", &["a..b"]),
            (Version::HTTP_11, "/", &["a.."]),
            (Version::HTTP_11, "/", &[".a"]),
            (Version::HTTP_11, "/", &["[1:2]"]),
            (Version::HTTP_11, "/", &["a:99999"]),
            (Version::HTTP_11, "/", &["a:+1"]),
            (Version::HTTP_11, "/", &["[::1"]),
            (Version::HTTP_11, "http://a/", &[]),
            (Version::HTTP_11, "http://a/", &["b", "c"]),
            (Version::HTTP_11, "http://u@a/", &["a"]),
            (Version::HTTP_11, "ftp://a/", &["a"]),
            (Version::HTTP_2, "http://a/", &["b"]), // RFC 9113, 8.3.1
            (Version::HTTP_2, "/", &[]),
        ] {
            let result = settled(version, uri, hosts);
            assert_eq!(result, Err(BadHost), "{version:?} {uri} {hosts:?}");
        }
    }
}
