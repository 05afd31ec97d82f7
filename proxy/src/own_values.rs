//! What the values of this server's own flags look like.

use std::time::Duration;

use http::Uri;
use http::header::HeaderName;
use http::uri::Scheme;
use tower_stampede::SetCookie;

use crate::host::Host;
use crate::server::{HostHeader, Server};

/// Reads a number of bits.
pub(crate) fn at_most<const MAX: u32>(text: &str) -> Result<u32, String> {
    // With none, all addresses would be one client.
    let bits = text.parse().ok().filter(|bits| (1..=MAX).contains(bits));
    bits.ok_or_else(|| format!("is not a whole number from 1 to {MAX}"))
}

/// Reads the name of a field, or the beginning of names before a `*`.
pub(crate) fn field_pattern(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('*').unwrap_or(text);
    if name.contains('*') || HeaderName::try_from(name).is_err() {
        return Err("is not a field name, nor a pattern like X-Acme-*".into());
    }
    Ok(text.to_owned())
}

/// Reads a field that is not to count as a credential.
pub(crate) fn exemption(text: &str) -> Result<String, String> {
    if text.eq_ignore_ascii_case("authorization") {
        return Err("always is a credential (RFC 9111, 3.5)".into());
    }
    field_pattern(text)
}

/// Reads a path as requests have it.
pub(crate) fn path(text: &str) -> Result<String, String> {
    let is_path = text.starts_with('/') && text.parse::<Uri>().is_ok_and(|uri| uri.path() == text);
    is_path.then(|| text.to_owned()).ok_or_else(|| "is not a path like /graphql".into())
}

/// Reads the name of a cookie, or the beginning of names before a `*`.
pub(crate) fn cookie_name(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('*').unwrap_or(text);
    let is_of_name = |b: u8| b.is_ascii_graphic() && !br#";=*,""#.contains(&b);
    match !name.is_empty() && name.bytes().all(is_of_name) {
        true => Ok(text.to_owned()),
        false => Err("is not the name of a cookie, nor a pattern like _ga_*".into()),
    }
}

/// Reads a field with tags.
pub(crate) fn tag_field(text: &str) -> Result<String, String> {
    let known = ["surrogate-key", "xkey", "cache-tag", "edge-cache-tag"];
    match known.iter().find(|known| known.eq_ignore_ascii_case(text)) {
        Some(known) => Ok((*known).to_owned()),
        None => Err(format!("is not one of {}", known.join(", "))),
    }
}

/// Reads a field with a lifetime.
pub(crate) fn lifetime_field(text: &str) -> Result<String, String> {
    let known = ["surrogate-control", "x-accel-expires"];
    match known.iter().find(|known| known.eq_ignore_ascii_case(text)) {
        Some(known) => Ok((*known).to_owned()),
        None => Err(format!("is not one of {}", known.join(", "))),
    }
}

/// Reads `http://HOST[:PORT]` or `https://HOST[:PORT]`. Nothing is asked yet: an origin that is
/// down is no reason not to start.
pub(crate) fn origin(text: &str) -> Result<Server, String> {
    let form = || "is not an origin like http://127.0.0.1:9000".to_owned();
    let uri: Uri = text.parse().map_err(|_| form())?;
    let scheme = uri.scheme().filter(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme));
    let names_a_place = uri.path() == "/" && uri.query().is_none();
    match (scheme, uri.authority()) {
        (Some(scheme), Some(authority)) if names_a_place => {
            Server::new(scheme.clone(), authority.clone()).ok_or_else(form)
        }
        _ => Err(form()),
    }
}

/// Reads the name of a query parameter, or the beginning of names before a `*`.
pub(crate) fn query_name(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('*').unwrap_or(text);
    let is_of_name = |b: u8| b.is_ascii_graphic() && !b"&=#*".contains(&b);
    match !text.is_empty() && name.bytes().all(is_of_name) {
        true => Ok(text.to_owned()),
        false => Err("is not the name of a query parameter, nor a pattern like utm_*".into()),
    }
}

/// Reads how to treat responses with `Set-Cookie`.
pub(crate) fn set_cookie(text: &str) -> Result<SetCookie, String> {
    match text {
        "refuse" => Ok(SetCookie::Refuse),
        "strip" => Ok(SetCookie::Strip),
        "explicit" => Ok(SetCookie::Explicit),
        _ => Err("is not one of refuse, strip, explicit".into()),
    }
}

/// Reads a lifetime by status, such as `404=10s`.
pub(crate) fn status_ttl(text: &str) -> Result<(u16, Duration), String> {
    const RULE: &str = "is not a status and a time in ms, s, m or h, such as 404=10s";
    let (status, time) = text.split_once('=').ok_or(RULE)?;
    let unit_at = time.find(|c: char| !c.is_ascii_digit()).ok_or(RULE)?;
    let (number, unit) = time.split_at(unit_at);
    let number: u32 = number.parse().map_err(|_| RULE)?;
    let unit = match unit {
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        "h" => Duration::from_secs(3600),
        _ => return Err(RULE.into()),
    };
    let status = status.parse().map_err(|_| RULE)?;
    let ttl = unit * number;
    check_status_ttl(status, ttl)?;
    Ok((status, ttl))
}

/// Checks what the library would refuse with a panic.
pub(crate) fn check_status_ttl(status: u16, ttl: Duration) -> Result<(), String> {
    match status {
        428 | 429 | 431 | 511 => Err("names an error that is never stored (RFC 6585); leave it \
                                      out: clients that wait for the same response get it"
            .into()),
        400..600 if ttl.is_zero() => {
            Err("is no time at all; leave it out: such an error is not stored".into())
        }
        400..600 => Ok(()),
        _ => Err("names no error; name a status from 400 to 599, and set a ttl for others".into()),
    }
}

/// Reads which `Host` the origin sees.
pub(crate) fn host_header(text: &str) -> Result<HostHeader, String> {
    match text {
        "preserve" => Ok(HostHeader::Preserve),
        "origin" => Ok(HostHeader::Origin),
        _ => Err("is not one of preserve, origin".into()),
    }
}

/// Reads a host as clients name it, with its port where that is not the scheme's own.
pub(crate) fn host(text: &str) -> Result<String, String> {
    if text.contains('*') {
        return Err("is a pattern; name each host: only `hosts` of origins and rules takes \
                    patterns"
            .into());
    }
    match Host::parse(text, 80) {
        // Which port says nothing is known once the listener is.
        Some(_) => Ok(text.to_owned()),
        None => Err("is not a host like www.example.com".into()),
    }
}

/// Reads the name of a field.
pub(crate) fn field_name(text: &str) -> Result<String, String> {
    match HeaderName::try_from(text) {
        Ok(name) if !name.as_str().contains('*') => Ok(name.as_str().to_owned()),
        _ => Err("is not a field name like Accept-Language".into()),
    }
}

/// Reads a tag that all responses of a rule get.
pub(crate) fn tag(text: &str) -> Result<String, String> {
    let is_tag = !text.is_empty() && text != "*" && text.bytes().all(|b| b.is_ascii_graphic());
    is_tag.then(|| text.to_owned()).ok_or_else(|| "is not a tag like assets, without blanks".into())
}
