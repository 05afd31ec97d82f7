//! What a message becomes on its way through: the fields that end here, those
//! that we write, and its framing, which is always our own.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode, Uri, Version, request};
use http_body::Body;

use crate::fields::{Role, Survey, is_hop_by_hop, retain};
use crate::provenance;
use crate::server::{HostHeader, Server};
use crate::settings::Settings;
use crate::via::Via;

/// The members of a list field, over all its lines.
pub(crate) fn members<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let lines = headers.get_all(name).into_iter();
    let members = lines.flat_map(|line| line.as_bytes().split(|&b| b == b','));
    members.map(<[u8]>::trim_ascii).filter(|member| !member.is_empty())
}

pub(crate) fn is_chunked(coding: &[u8]) -> bool {
    coding.eq_ignore_ascii_case(b"chunked")
}

/// Removes a field and leaves all others in their order.
fn remove(headers: &mut HeaderMap, name: &HeaderName) {
    if headers.contains_key(name) {
        retain(headers, |other| other != name);
    }
}

/// Brings an admitted request into the form in which the origin gets it,
/// before the cache looks it up: `Vary` compares only what the cache sees.
/// `from` is the address of the client, `scheme` what it speaks.
pub(crate) fn write_fields<B: Body>(
    parts: &mut request::Parts,
    body: &B,
    found: &Survey,
    (from, scheme): (&HeaderValue, &'static str),
    via: &Via,
) {
    via.add_to(&mut parts.headers, parts.version);
    provenance::write(&mut parts.headers, found.has(Role::AnswerClaim), from, scheme);
    if found.has(Role::Framing) || !body.is_end_stream() {
        frame_request(&mut parts.headers, body);
    }
    if found.has(Role::Hop) {
        say_what_is_of_this_connection(&mut parts.headers);
    }
    // RFC 9110, 10.1.1: HTTP/1.0 does not know expectations, and without a body
    // there is nothing to expect. An origin may still answer 417 to it, which
    // others would get.
    if found.has(Role::Expect) && (parts.version == Version::HTTP_10 || body.is_end_stream()) {
        remove(&mut parts.headers, &header::EXPECT);
    }
    parts.version = Version::HTTP_11;
}

/// Makes the request that this origin gets out of one that the cache passes on.
/// The cache may have made it itself, of the fields that were keyed.
pub(crate) fn to_origin<B: Body>(
    parts: &mut request::Parts,
    body: &B,
    (settings, server): (&Settings, &Server),
    via: &Via,
) {
    provenance::complete(&mut parts.headers, &parts.extensions, via, settings.scheme_name());
    if server.host_header.unwrap_or(settings.host_header) == HostHeader::Origin {
        parts.headers.insert(header::HOST, server.host.clone());
    }
    frame_request(&mut parts.headers, body);
    parts.uri = at_origin(&parts.uri, server);
}

fn at_origin(uri: &Uri, server: &Server) -> Uri {
    let mut at = uri.clone().into_parts();
    at.scheme = Some(server.scheme.clone());
    at.authority = Some(server.authority.clone());
    at.path_and_query.get_or_insert_with(|| http::uri::PathAndQuery::from_static("/"));
    Uri::from_parts(at).expect("scheme, authority and path make a URI")
}

/// What is said of a target on a connection to the origin.
pub(crate) fn origin_form(uri: &Uri) -> Uri {
    uri.path_and_query().cloned().map_or_else(|| Uri::from_static("/"), Uri::from)
}

/// Frames a request by the body that it has. The received length only says
/// whether an empty body is worth a word.
fn frame_request<B: Body>(headers: &mut HeaderMap, body: &B) {
    let says_length = headers.contains_key(header::CONTENT_LENGTH);
    match body.size_hint().exact() {
        _ if body.is_end_stream() && !says_length => {
            remove(headers, &header::TRANSFER_ENCODING);
        }
        Some(length) => {
            remove(headers, &header::TRANSFER_ENCODING);
            headers.insert(header::CONTENT_LENGTH, length.into());
        }
        // By name: else the client takes a GET to have no body.
        None => {
            remove(headers, &header::CONTENT_LENGTH);
            let chunked = HeaderValue::from_static("chunked");
            headers.insert(header::TRANSFER_ENCODING, chunked);
        }
    }
}

/// Names in `Connection` what we say to the origin alone.
fn say_what_is_of_this_connection(headers: &mut HeaderMap) {
    for (name, option) in [(header::UPGRADE, "upgrade"), (header::TE, "te")] {
        if headers.contains_key(&name) {
            headers.append(header::CONNECTION, HeaderValue::from_static(option));
        }
    }
}

/// Makes the response that a client gets.
pub(crate) fn to_client<B: Body>(response: &mut Response<B>, method: &Method) {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        end_hop_by_hop(response.headers_mut());
    }
    frame_response(response, method);
    *response.version_mut() = Version::HTTP_11;
}

/// RFC 9110, 7.6.1. `Trailer` stays, for so do trailers.
pub(crate) fn end_hop_by_hop(headers: &mut HeaderMap) {
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    let named = members(headers, &header::CONNECTION);
    let named: Vec<_> = named.filter_map(|name| HeaderName::from_bytes(name).ok()).collect();
    retain(headers, |name| !is_hop_by_hop(name) && !named.contains(name));
}

/// Frames a response by the body that it has.
fn frame_response<B: Body>(response: &mut Response<B>, method: &Method) {
    let (status, exact) = (response.status(), response.body().size_hint().exact());
    let has_no_body = *method == Method::HEAD || status == StatusCode::NOT_MODIFIED;
    let headers = response.headers_mut();
    remove(headers, &header::TRANSFER_ENCODING);
    match exact {
        // Here the length is said of a body that is not sent.
        _ if has_no_body => keep_one_length(headers),
        Some(length) if !status.is_informational() && status != StatusCode::NO_CONTENT => {
            if said_length(headers) != Some(length) {
                headers.insert(header::CONTENT_LENGTH, length.into());
            }
        }
        _ => remove(headers, &header::CONTENT_LENGTH),
    }
}

/// The length as we would write it ourselves.
fn said_length(headers: &HeaderMap) -> Option<u64> {
    let mut lines = headers.get_all(header::CONTENT_LENGTH).iter();
    let length = lines.next()?.to_str().ok()?;
    let is_plain = length.bytes().all(|b| b.is_ascii_digit()) && !length.starts_with('0');
    length.parse().ok().filter(|_| is_plain && lines.next().is_none())
}

/// Keeps a length that is a number and the only one.
fn keep_one_length(headers: &mut HeaderMap) {
    match one_length(headers) {
        Some(length) => drop(headers.insert(header::CONTENT_LENGTH, length)),
        None => remove(headers, &header::CONTENT_LENGTH),
    }
}

fn one_length(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut lengths = members(headers, &header::CONTENT_LENGTH);
    let first = lengths.next().filter(|first| first.iter().all(u8::is_ascii_digit))?;
    lengths.all(|other| other == first).then(|| HeaderValue::from_bytes(first).ok())?
}
