//! What values a setting of an HTTP layer may have. Each function returns what is wrong with one: the
//! value, the rule and the remedy.

use std::time::Duration;

pub(crate) use crate::settings::refused_status as statuses;

pub(super) const TWO_LIFETIMES: &str = "a lifetime for all contradicts lifetimes from the origin \
    only; leave one of the two out";

pub(crate) fn ttl(ttl: &Duration) -> Option<String> {
    let why = "is zero; say `origin_only` to store only what headers allow";
    ttl.is_zero().then(|| why.into())
}

pub(crate) fn not_zero(number: &usize) -> Option<String> {
    (*number == 0).then(|| "is 0; leave it out to set no bound".into())
}

/// Names of fields.
pub(crate) fn fields(names: &[String]) -> Option<String> {
    names.iter().find_map(|name| match name.contains('*') {
        true => Some(format!("`{name}` is a pattern; write the names of fields")),
        false => (!is_token(name)).then(|| format!("`{name}` is no field name")),
    })
}

/// Names of fields, and patterns that end in `*`.
pub(crate) fn patterns(names: &[String]) -> Option<String> {
    let is_one = |name: &&String| {
        let start = name.strip_suffix('*').unwrap_or(name);
        is_token(start) && !start.contains('*')
    };
    let wrong = names.iter().find(|name| !is_one(name));
    wrong.map(|name| format!("`{name}` is no field name and no pattern"))
}

pub(crate) fn exemptions(names: &[String]) -> Option<String> {
    let is_it = |name: &String| name.eq_ignore_ascii_case("authorization");
    let why = "`Authorization` always counts (RFC 9111, 3.5); name it in `vary` or \
               `identity_covers` to keep its users apart";
    patterns(names).or_else(|| names.iter().any(is_it).then(|| why.into()))
}

/// Names of response fields with tags.
pub(crate) fn tag_fields(names: &[String]) -> Option<String> {
    let known = ["surrogate-key", "xkey", "cache-tag", "edge-cache-tag"];
    let is_known = |name: &&String| known.iter().any(|known| name.eq_ignore_ascii_case(known));
    let unknown = || {
        let name = names.iter().find(|name| !is_known(name))?;
        Some(format!(
            "`{name}` is not one of `surrogate-key`, `xkey`, `cache-tag` and `edge-cache-tag`"
        ))
    };
    fields(names).or_else(unknown)
}

/// Names of response fields with a lifetime that clients do not get.
pub(crate) fn lifetime_fields(names: &[String]) -> Option<String> {
    let is_plain = |name: &&String| {
        ["cache-control", "expires"].iter().any(|plain| name.eq_ignore_ascii_case(plain))
    };
    let plain = || {
        let name = names.iter().find(is_plain)?;
        Some(format!("`{name}` is read in any case, and clients need it"))
    };
    fields(names).or_else(plain)
}

/// Names of cookies, and beginnings of names before a `*`.
pub(crate) fn cookies(names: &[String]) -> Option<String> {
    let is_of_name = |b: u8| b.is_ascii_graphic() && !matches!(b, b';' | b'=' | b'*' | b',' | b'"');
    let is_one = |name: &&String| {
        let start = name.strip_suffix('*').unwrap_or(name);
        !name.is_empty() && start.bytes().all(is_of_name)
    };
    let wrong = names.iter().find(|name| !is_one(name));
    wrong.map(|name| {
        format!("`{name}` is no name of a cookie, nor the beginning of names before a `*`")
    })
}

/// The longest name of a field that a setting takes.
const MAX_NAME: usize = 1024;

/// Returns whether a text is a field name (RFC 9110, 5.6.2).
pub(super) fn is_token(text: &str) -> bool {
    let is_char = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_char)
}
