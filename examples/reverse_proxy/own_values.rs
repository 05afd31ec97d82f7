//! What the values of this server's own flags look like.

use http::Uri;
use http::header::HeaderName;

use crate::flags::Origin;
use crate::host::Host;

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

/// Reads `http://HOST[:PORT]`. Nobody is asked yet: an origin that is down is
/// no reason not to start.
pub(crate) fn origin(text: &str) -> Result<Origin, String> {
    let form = || "is not an origin like http://127.0.0.1:9000".to_owned();
    let uri: Uri = text.parse().map_err(|_| form())?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => return Err("is https: this example speaks http to its origin".into()),
        _ => return Err(form()),
    }
    let authority = uri.authority().ok_or_else(form)?;
    let names_a_place = uri.path() == "/" && uri.query().is_none();
    if !names_a_place || Host::parse(authority.as_str()).is_none() {
        return Err(form());
    }
    Ok(authority.clone())
}
