//! What `Accept-Encoding` says, read from RFC 9110, 12.5.3, slowly: a judge of the code that
//! selects variants, and no relative of it.

/// The members of a field: a name in lower case, and whether its weight is above zero.
fn members(lines: &[String]) -> Vec<(String, bool)> {
    let joined = lines.join(",").to_lowercase();
    let members = joined.split(',').map(str::trim).filter(|member| !member.is_empty());
    members
        .map(|member| {
            let (name, weight) = member.split_once(';').unwrap_or((member, "q=1"));
            let weight: f64 = weight.trim().trim_start_matches("q=").parse().unwrap_or(1.0);
            let name = name.trim();
            // RFC 9110, 8.4.1.
            (name.strip_prefix("x-").unwrap_or(name).to_owned(), weight > 0.0)
        })
        .collect()
}

/// Returns whether a body with this coding is refused by a weight of zero.
pub(crate) fn refuses(lines: &[String], coding: &str) -> bool {
    let members = members(lines);
    let of = |name: &str| -> Vec<bool> {
        members.iter().filter(|(own, _)| own == name).map(|(_, accepted)| *accepted).collect()
    };
    // Where a field says both, it refuses.
    let own = of(coding);
    let says = if own.is_empty() { of("*") } else { own };
    says.contains(&false)
}

/// Returns whether a body with this coding is acceptable; `identity` is one without any. To a
/// request without the field, a coded body is not: clients that cannot decode send none.
pub(crate) fn accepts(lines: &[String], coding: &str) -> bool {
    if refuses(lines, coding) {
        return false;
    }
    let members = members(lines);
    let is_named = members.iter().any(|(name, _)| name == coding || name == "*");
    coding == "identity" || is_named
}
