//! The fields that say where a request came from: `Via`, `Forwarded` (RFC
//! 7239) and its forerunners.
//!
//! The proxy writes them before the cache looks a request up, so that `Vary`
//! compares what the origin sees. A request that the cache makes itself, to
//! refresh a page for all clients, need not have them: it is completed behind
//! the cache, without a client's address.

use std::net::{AddrParseError, IpAddr, SocketAddr};

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Extensions, Version};

use super::via::Via;

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
static X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The lines of `Forwarded` that a trusted peer sent. An extension, because
/// the field itself also gets the address of the peer, which must not be part
/// of the key.
#[derive(Clone, Debug)]
struct TrustedForwarded(Vec<HeaderValue>);

/// Remembers what a trusted peer says in `Forwarded`, for the key.
pub(crate) fn remember_forwarded(headers: &HeaderMap, extensions: &mut Extensions) {
    let lines: Vec<_> = headers.get_all(header::FORWARDED).iter().cloned().collect();
    if !lines.is_empty() {
        extensions.insert(TrustedForwarded(lines));
    }
}

/// Returns the part of the key that is made of a trusted `Forwarded`.
pub(crate) fn forwarded_key(extensions: &Extensions) -> Vec<u8> {
    let Some(TrustedForwarded(lines)) = extensions.get() else { return Vec::new() };
    let mut key = Vec::new();
    for line in lines {
        key.extend_from_slice(line.as_bytes());
        // No value contains a line end.
        key.push(b'\n');
    }
    key
}

/// Returns the address of the client: the one that the proxy has written, or the one before it,
/// which a trusted peer has. Without an address of a trusted peer it is the peer's own.
pub(crate) fn client(headers: &HeaderMap, is_trusted: bool) -> Option<IpAddr> {
    let mut addresses = addresses(headers);
    let peer = addresses.next()?.ok()?;
    Some(if is_trusted { addresses.next().and_then(Result::ok).unwrap_or(peer) } else { peer })
}

/// Returns the addresses in `X-Forwarded-For`, the last one first.
fn addresses(headers: &HeaderMap) -> impl Iterator<Item = Result<IpAddr, AddrParseError>> {
    let lines = headers.get_all(&X_FORWARDED_FOR).iter().rev();
    let texts = lines.filter_map(|line| line.to_str().ok());
    texts.flat_map(|text| text.rsplit(',')).map(|text| {
        // Some proxies write the port too, and brackets around IPv6.
        let text = text.trim();
        text.parse().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()))
    })
}

/// Returns the address of the client as a trusted peer has written it, if it has.
pub(crate) fn address_of_peer(headers: &HeaderMap) -> Option<IpAddr> {
    addresses(headers).next()?.ok()
}

/// Writes the fields into a request that was received from this address by this scheme. What
/// a trusted peer wrote stays, and the proxy adds to it.
pub(crate) fn write(
    headers: &mut HeaderMap,
    has_claims: bool,
    from: &HeaderValue,
    scheme: &'static str,
) {
    let host = host(headers);
    headers.append(header::FORWARDED, element(Some(from), &host, scheme));
    headers.append(&X_FORWARDED_FOR, from.clone());
    if has_claims {
        write_missing_host(headers, host, scheme);
    } else {
        // Without a look at what is there.
        headers.append(&X_FORWARDED_HOST, host);
        headers.append(&X_FORWARDED_PROTO, HeaderValue::from_static(scheme));
    }
}

/// Writes what is missing behind the cache.
pub(crate) fn complete(
    headers: &mut HeaderMap,
    extensions: &Extensions,
    via: &Via,
    scheme: &'static str,
) {
    if !via.is_in(headers) {
        via.add_to(headers, Version::HTTP_11);
    }
    let host = host(headers);
    if !headers.contains_key(header::FORWARDED) {
        if let Some(TrustedForwarded(lines)) = extensions.get() {
            for line in lines {
                headers.append(header::FORWARDED, line.clone());
            }
        }
        headers.append(header::FORWARDED, element(None, &host, scheme));
    }
    write_missing_host(headers, host, scheme);
}

fn host(headers: &HeaderMap) -> HeaderValue {
    headers.get(header::HOST).cloned().unwrap_or_else(|| HeaderValue::from_static(""))
}

fn write_missing_host(headers: &mut HeaderMap, host: HeaderValue, scheme: &'static str) {
    headers.entry(&X_FORWARDED_HOST).or_insert(host);
    headers.entry(&X_FORWARDED_PROTO).or_insert(HeaderValue::from_static(scheme));
}

/// Makes the member that the proxy adds to `Forwarded`, in one allocation.
fn element(from: Option<&HeaderValue>, host: &HeaderValue, scheme: &str) -> HeaderValue {
    let from = from.map(HeaderValue::as_bytes);
    let (before, after): (&[u8], &[u8]) = match from {
        // Only an address of IPv6 has colons, and must be quoted.
        Some(from) if from.contains(&b':') => (b"for=\"[", b"]\";"),
        Some(_) => (b"for=", b";"),
        None => (b"", b""),
    };
    let from = from.unwrap_or_default();
    let parts = [before, from, after, b"host=\"", host.as_bytes(), b"\";proto=", scheme.as_bytes()];
    let mut text = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
    parts.iter().for_each(|part| text.extend_from_slice(part));
    let value = HeaderValue::from_maybe_shared(Bytes::from(text));
    value.expect("addresses and hosts are visible ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
        headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }

    fn written(address: &'static str, fields: &[(&'static str, &str)], via: &Via) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        via.add_to(&mut headers, Version::HTTP_2);
        write(&mut headers, false, &HeaderValue::from_static(address), "http");
        headers
    }

    #[test]
    fn an_address_of_ipv6_is_quoted() {
        let headers = written("2001:db8::1", &[("host", "a:81")], &Via::new());
        let forwarded = "for=\"[2001:db8::1]\";host=\"a:81\";proto=http";
        assert_eq!(lines(&headers, "forwarded"), [forwarded]);
        assert_eq!(lines(&headers, "x-forwarded-for"), ["2001:db8::1"]);
    }

    #[test]
    fn what_was_written_is_complete() {
        let via = Via::new();
        let headers = written("10.0.0.1", &[("host", "a"), ("via", "1.1 fred")], &via);
        let mut completed = headers.clone();
        complete(&mut completed, &Extensions::new(), &via, "http");
        assert_eq!(completed, headers);
    }

    #[test]
    fn a_request_of_the_cache_gets_the_fields_without_an_address() {
        let via = Via::new();
        let mut headers = HeaderMap::new();
        headers.insert("host", HeaderValue::from_static("a"));
        complete(&mut headers, &Extensions::new(), &via, "https");
        assert!(via.is_in(&headers));
        assert_eq!(lines(&headers, "forwarded"), ["host=\"a\";proto=https"]);
        assert_eq!(lines(&headers, "x-forwarded-host"), ["a"]);
        assert_eq!(lines(&headers, "x-forwarded-proto"), ["https"]);
        assert!(!headers.contains_key("x-forwarded-for"));
    }

    #[test]
    fn a_request_of_the_cache_keeps_what_a_trusted_peer_said() {
        let mut extensions = Extensions::new();
        let forwarded =
            [("host", "a"), ("forwarded", "host=b;proto=https"), ("x-forwarded-host", "b")];
        let mut headers = HeaderMap::new();
        for (name, value) in forwarded {
            headers.insert(name, HeaderValue::from_static(value));
        }
        assert!(forwarded_key(&extensions).is_empty());
        remember_forwarded(&headers, &mut extensions);
        assert_eq!(forwarded_key(&extensions), b"host=b;proto=https\n");
        headers.remove("forwarded");
        complete(&mut headers, &extensions, &Via::new(), "http");
        let expected = ["host=b;proto=https", "host=\"a\";proto=http"];
        assert_eq!(lines(&headers, "forwarded"), expected);
        assert_eq!(lines(&headers, "x-forwarded-host"), ["b"]);
    }
}
