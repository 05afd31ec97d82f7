//! What a request must be before anything is done with it.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode, Version, request::Parts};

use crate::flags::Flags;
use crate::forward::{OF_ONE_CONNECTION, is_chunked, members, remove, says_any};
use crate::host;
use crate::pages::page;
use crate::via::Via;

/// The exchange is neither stored nor shared: its `Connection` took fields
/// away, and what it is an answer to is not what was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotShared;

/// Fields that a client must not take from us by naming them in `Connection`.
static KEPT: [HeaderName; 6] = [
    header::HOST,
    header::AUTHORIZATION,
    header::COOKIE,
    header::CACHE_CONTROL,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
];

/// Names in `Connection` that take nothing away from the request.
static PLAIN: [&str; 7] =
    ["close", "keep-alive", "upgrade", "te", "trailer", "proxy-connection", "http2-settings"];

/// Fields that claim where a request came from or where it should lead. Not
/// from clients: we write those that we mean.
static CLAIMS: [HeaderName; 11] = [
    header::FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-forwarded-prefix"),
    HeaderName::from_static("x-original-url"),
    HeaderName::from_static("x-rewrite-url"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-host"),
];

/// Further fields that [`admit`] has to look at. Most requests have none.
static OF_HOPS: [HeaderName; 3] =
    [header::TRANSFER_ENCODING, header::VIA, HeaderName::from_static("http2-settings")];

/// Nothing, or the answer to a request that goes no further.
type Checked = Result<(), Box<Response<Bytes>>>;

/// Brings a request into the form in which it is looked up and forwarded, or
/// answers it.
pub(crate) fn admit(parts: &mut Parts, flags: &Flags, via: &Via) -> Checked {
    is_small(parts, flags)?;
    if parts.method == Method::CONNECT {
        return refuse(StatusCode::NOT_IMPLEMENTED, "this is no tunnel");
    }
    is_for_us(parts, flags)?;
    if says_any(&parts.headers, &OF_ONE_CONNECTION) || says_any(&parts.headers, &OF_HOPS) {
        is_framed(&parts.headers)?;
        take_what_connection_names(parts)?;
        end_connection(parts);
        if via.is_in(&parts.headers) {
            return refuse(StatusCode::LOOP_DETECTED, "this request was here before");
        }
    }
    if !flags.trust_forwarded {
        remove(&mut parts.headers, &CLAIMS);
    }
    hop(parts)
}

fn refuse(status: StatusCode, reason: &str) -> Checked {
    Err(Box::new(page(status, reason)))
}

fn is_small(parts: &Parts, flags: &Flags) -> Checked {
    let fields = parts.headers.iter();
    let bytes: usize = fields.map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if bytes > flags.max_header_bytes {
        return refuse(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too many bytes of fields");
    }
    Ok(())
}

fn is_for_us(parts: &mut Parts, flags: &Flags) -> Checked {
    let Ok(has_host) = host::settle(parts) else {
        return refuse(StatusCode::BAD_REQUEST, "a request is for exactly one host");
    };
    if !has_host {
        // HTTP/1.0 knows of one host per address: ours is the origin's.
        let origin = HeaderValue::from_str(flags.origin().as_str());
        let origin = origin.expect("an authority is visible ASCII");
        parts.headers.insert(header::HOST, origin);
        return Ok(());
    }
    if flags.allow_host.is_empty() || flags.allow_host.contains(&host::normal(&parts.headers)) {
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
    let names = members(&parts.headers, &header::CONNECTION).map(HeaderName::from_bytes);
    let Ok(mut names) = names.collect::<Result<Vec<_>, _>>() else {
        return refuse(StatusCode::BAD_REQUEST, "Connection names what is no field");
    };
    if names.iter().any(|name| KEPT.contains(name)) {
        return refuse(StatusCode::BAD_REQUEST, "Connection names a field that is not its own");
    }
    names.retain(|name| !PLAIN.contains(&name.as_str()));
    if !names.is_empty() {
        remove(&mut parts.headers, &names);
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
    remove(&mut parts.headers, &OF_ONE_CONNECTION);
    remove(&mut parts.headers, &[HeaderName::from_static("http2-settings")]);
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
