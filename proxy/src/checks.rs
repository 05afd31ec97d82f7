//! What a request must be before anything is done with it.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode, Version, request::Parts};

use crate::fields::{Role, Roles, Survey, is_hop_by_hop, join_cookies, retain, role};
use crate::forward::{is_chunked, members};
use crate::host;
use crate::names::NameFilter;
use crate::pages::page;
use crate::provenance;
use crate::server::default_port;
use crate::settings::Settings;
use crate::via::Via;

/// The exchange is neither stored nor shared: its `Connection` took fields
/// away, and what it is an answer to is not what was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotShared;

/// Fields that a client must not take from a request by naming them in
/// `Connection`.
const KEPT: Roles = Roles::of(&[Role::Meaning, Role::Cookie, Role::Framing]);

/// Names in `Connection` that take nothing away from the request.
static PLAIN: [&str; 7] =
    ["close", "keep-alive", "upgrade", "te", "trailer", "proxy-connection", "http2-settings"];

/// Fields that clients must not send: the proxy writes those that it means.
const CLAIMS: Roles = Roles::of(&[Role::AnswerClaim, Role::AddressClaim, Role::Forbidden]);

/// What a trusted peer must not send either.
const FORBIDDEN: Roles = Roles::of(&[Role::Forbidden]);

/// Nothing, or the answer to a request that goes no further.
type Checked = Result<(), Box<Response<Bytes>>>;

/// Brings a request into the form in which it is looked up and forwarded, or
/// answers it. Returns which fields it arrived with.
pub(crate) fn admit(
    parts: &mut Parts,
    settings: &Settings,
    via: &Via,
    names: &NameFilter,
) -> Result<Survey, Box<Response<Bytes>>> {
    let found = Survey::of(&parts.headers);
    is_small(&parts.headers, &found, settings)?;
    if parts.method == Method::CONNECT {
        refuse(StatusCode::NOT_IMPLEMENTED, "this is no tunnel")?;
    }
    if found.has_odd_name {
        names.apply(&mut parts.headers);
    }
    is_for_us(parts, settings)?;
    // RFC 9112, 3.2.4: no other method is about the server.
    if !parts.uri.path().starts_with('/') && parts.method != Method::OPTIONS {
        refuse(StatusCode::BAD_REQUEST, "the target of this method is a path")?;
    }
    if found.has(Role::Framing) {
        is_framed(&parts.headers)?;
    }
    if found.has(Role::Hop) {
        take_what_connection_names(parts)?;
        end_connection(parts);
    }
    if found.has(Role::Via) && via.is_in(&parts.headers) {
        refuse(StatusCode::LOOP_DETECTED, "this request was here before")?;
    }
    if settings.trust_forwarded {
        found.remove(&mut parts.headers, FORBIDDEN);
        provenance::remember_forwarded(&parts.headers, &mut parts.extensions);
    } else {
        found.remove(&mut parts.headers, CLAIMS);
    }
    if found.has_several_cookies {
        join_cookies(&mut parts.headers);
    }
    hop(parts)?;
    Ok(found)
}

fn refuse(status: StatusCode, reason: &str) -> Checked {
    Err(Box::new(page(status, reason)))
}

/// The most lines of fields that a request may have, besides those of `Cookie`: a client of HTTP/2
/// sends one for each cookie. The server reads as many of HTTP/1.
const MOST_FIELDS: usize = 100;

/// The most bytes in the fields of one connection, of framing and of expectations together. They
/// are read member by member, and each name in `Connection` is compared with all fields.
const MOST_HOP_BYTES: usize = 1 << 10;

fn is_small(headers: &HeaderMap, found: &Survey, settings: &Settings) -> Checked {
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    if found.bytes > settings.limits.header_bytes {
        return refuse(status, "too many bytes of fields");
    }
    if headers.len() - headers.get_all(header::COOKIE).iter().count() > MOST_FIELDS {
        return refuse(status, "too many fields");
    }
    if found.hop_bytes > MOST_HOP_BYTES {
        return refuse(status, "too many bytes in fields of the connection");
    }
    Ok(())
}

fn is_for_us(parts: &mut Parts, settings: &Settings) -> Checked {
    let no_host = || refuse(StatusCode::BAD_REQUEST, "a request is for exactly one host");
    let Ok(has_host) = host::settle(parts, default_port(&settings.scheme())) else {
        return no_host();
    };
    if !has_host {
        // HTTP/1.0 knows of one host per address: ours is the origin's.
        let Some(server) = settings.origins.default_server() else { return no_host() };
        parts.headers.insert(header::HOST, server.host.clone());
    }
    if settings.origins.of(parts.headers.get(header::HOST)).is_none() {
        return refuse(StatusCode::MISDIRECTED_REQUEST, "no origin answers for this host");
    }
    let is_named =
        |host: &HeaderValue| settings.allow_host.iter().any(|name| host == name.as_str());
    if settings.allow_host.is_empty() || parts.headers.get(header::HOST).is_some_and(is_named) {
        return Ok(());
    }
    refuse(StatusCode::MISDIRECTED_REQUEST, "nobody here answers for this host")
}

/// The server understands `chunked` alone, and has decoded it once; a coding
/// before it would be lost with the field (RFC 9112, 6.1). What comes behind
/// such a request is read no more: where it begins is a matter of opinion.
fn is_framed(headers: &HeaderMap) -> Checked {
    let mut codings = members(headers, &header::TRANSFER_ENCODING);
    let (status, reason) = if !codings.all(is_chunked) {
        (StatusCode::NOT_IMPLEMENTED, "no transfer coding but chunked is understood")
    } else if members(headers, &header::TRANSFER_ENCODING).nth(1).is_some() {
        (StatusCode::BAD_REQUEST, "a body is chunked once")
    } else {
        return Ok(());
    };
    let mut refusal = page(status, reason);
    refusal.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    Err(Box::new(refusal))
}

/// RFC 9110, 7.6.1: what `Connection` names ends here.
fn take_what_connection_names(parts: &mut Parts) -> Checked {
    let is_kept = |name: &HeaderName| role(name.as_str()).is_some_and(|role| KEPT.contains(role));
    let names = members(&parts.headers, &header::CONNECTION).map(HeaderName::from_bytes);
    let Ok(mut names) = names.collect::<Result<Vec<_>, _>>() else {
        return refuse(StatusCode::BAD_REQUEST, "Connection names what is no field");
    };
    if names.iter().any(is_kept) {
        return refuse(StatusCode::BAD_REQUEST, "Connection names a field that is not its own");
    }
    names.retain(|name| !PLAIN.contains(&name.as_str()));
    if !names.is_empty() {
        retain(&mut parts.headers, |name| !names.contains(name));
        parts.extensions.insert(NotShared);
    }
    Ok(())
}

/// Leaves nothing of this connection but what we can pass on: the wish for a
/// web socket, and for trailers.
fn end_connection(parts: &mut Parts) {
    let names = |name, member: &[u8]| {
        members(&parts.headers, &name).any(|other| other.eq_ignore_ascii_case(member))
    };
    let wants_websocket = names(header::CONNECTION, b"upgrade")
        && names(header::UPGRADE, b"websocket")
        && parts.version == Version::HTTP_11
        && parts.method == Method::GET;
    let takes_trailers = names(header::TE, b"trailers");
    retain(&mut parts.headers, |name| !is_hop_by_hop(name));
    if wants_websocket {
        parts.headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
    if takes_trailers {
        parts.headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// RFC 9110, 7.6.2: the last hop answers, every other counts down.
fn hop(parts: &mut Parts) -> Checked {
    if !matches!(parts.method, Method::TRACE | Method::OPTIONS) {
        return Ok(());
    }
    let Some(value) = parts.headers.get(header::MAX_FORWARDS) else { return Ok(()) };
    let left = value.to_str().ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    // A number too large to read is large enough.
    let left = left.filter(|text| !text.is_empty()).map(|n| n.parse().unwrap_or(u64::MAX));
    match left {
        None => refuse(StatusCode::BAD_REQUEST, "Max-Forwards is no number"),
        Some(0) => Err(Box::new(last_hop(parts))),
        Some(left) => {
            parts.headers.insert(header::MAX_FORWARDS, HeaderValue::from(left - 1));
            Ok(())
        }
    }
}

fn last_hop(parts: &Parts) -> Response<Bytes> {
    if parts.method == Method::OPTIONS {
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let allow = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, TRACE";
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
        return response;
    }
    let mut response = page(StatusCode::OK, "");
    let kind = HeaderValue::from_static("message/http");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    *response.body_mut() = seen(parts);
    response
}

/// The request as it arrived, but for its secrets (RFC 9110, 9.3.8).
fn seen(parts: &Parts) -> Bytes {
    let mut text = format!("{} {} {:?}\r\n", parts.method, parts.uri, parts.version).into_bytes();
    let secrets = [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION];
    for (name, value) in parts.headers.iter().filter(|(name, _)| !secrets.contains(name)) {
        let line = [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"];
        line.into_iter().for_each(|part| text.extend_from_slice(part));
    }
    text.extend_from_slice(b"\r\n");
    text.into()
}
