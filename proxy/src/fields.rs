//! The request fields that the proxy treats in a special way: one table, and
//! one pass over the fields of a request that finds out which of them it has.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// What a field means to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It belongs to one connection and ends here (RFC 9110, 7.6.1).
    Hop,
    /// It frames the body.
    Framing,
    /// It names the proxies on the way.
    Via,
    /// It announces a body.
    Expect,
    /// It carries cookies, in one line or several.
    Cookie,
    /// It decides what the request asks for; `Connection` must not name it.
    Meaning,
    /// It claims how the request was sent or where it should lead. The origin
    /// may build its answer from it: with a trusted peer it is keyed.
    AnswerClaim,
    /// It claims where the client is. Answers that depend on it name it in
    /// `Vary`; keyed, each client would cost a request to the origin.
    AddressClaim,
    /// `Proxy` is no field of HTTP, but CGI programs find it in `HTTP_PROXY`
    /// and send their own requests to the server that it names.
    Forbidden,
}

use Role::{AddressClaim, AnswerClaim, Cookie, Expect, Forbidden, Framing, Hop, Meaning, Via};

/// The fields and their roles.
///
/// Of the claims, those that name a scheme, host, port, path or method are
/// answer claims: frameworks build URLs from them or route by them. So are those
/// that say what a proxy can do with an answer: an origin then leaves a file to
/// it (`X-Sendfile-Type`, `X-Accel-Mapping`) or `<esi:include>`
/// (`Surrogate-Capability`), and this proxy would store the page as it is.
/// Those that name the client only are address claims.
static TABLE: [(&str, Role); 61] = [
    ("connection", Hop),
    ("http2-settings", Hop),
    ("keep-alive", Hop),
    ("proxy-connection", Hop),
    ("te", Hop),
    ("upgrade", Hop),
    ("content-length", Framing),
    ("transfer-encoding", Framing),
    ("via", Via),
    ("expect", Expect),
    ("cookie", Cookie),
    ("authorization", Meaning),
    ("cache-control", Meaning),
    ("host", Meaning),
    ("cf-visitor", AnswerClaim),
    ("cloudfront-forwarded-proto", AnswerClaim),
    ("fastly-ssl", AnswerClaim),
    ("forwarded", AnswerClaim),
    ("front-end-https", AnswerClaim),
    ("https", AnswerClaim),
    ("surrogate-capability", AnswerClaim),
    ("wl-proxy-ssl", AnswerClaim),
    ("x-accel-mapping", AnswerClaim),
    ("x-appengine-https", AnswerClaim),
    ("x-arr-ssl", AnswerClaim),
    ("x-envoy-original-path", AnswerClaim),
    ("x-forwarded-host", AnswerClaim),
    ("x-forwarded-https", AnswerClaim),
    ("x-forwarded-method", AnswerClaim),
    ("x-forwarded-path", AnswerClaim),
    ("x-forwarded-port", AnswerClaim),
    ("x-forwarded-prefix", AnswerClaim),
    ("x-forwarded-proto", AnswerClaim),
    ("x-forwarded-protocol", AnswerClaim),
    ("x-forwarded-scheme", AnswerClaim),
    ("x-forwarded-server", AnswerClaim),
    ("x-forwarded-ssl", AnswerClaim),
    ("x-forwarded-uri", AnswerClaim),
    ("x-host", AnswerClaim),
    ("x-http-host-override", AnswerClaim),
    ("x-http-method", AnswerClaim),
    ("x-http-method-override", AnswerClaim),
    ("x-method-override", AnswerClaim),
    ("x-original-host", AnswerClaim),
    ("x-original-method", AnswerClaim),
    ("x-original-uri", AnswerClaim),
    ("x-original-url", AnswerClaim),
    ("x-rewrite-url", AnswerClaim),
    ("x-scheme", AnswerClaim),
    ("x-script-name", AnswerClaim),
    ("x-sendfile-type", AnswerClaim),
    ("x-url-scheme", AnswerClaim),
    ("cf-connecting-ip", AddressClaim),
    ("client-ip", AddressClaim),
    ("fastly-client-ip", AddressClaim),
    ("true-client-ip", AddressClaim),
    ("x-client-ip", AddressClaim),
    ("x-cluster-client-ip", AddressClaim),
    ("x-forwarded-for", AddressClaim),
    ("x-real-ip", AddressClaim),
    ("proxy", Forbidden),
];

/// One more than the longest name in the table.
const LENGTHS: usize = 27;

/// For each length, a bit for each row of the table whose name has it.
static ROWS: [u64; LENGTHS] = rows_by_length();

const fn rows_by_length() -> [u64; LENGTHS] {
    let mut rows = [0; LENGTHS];
    let mut row = 0;
    while row < TABLE.len() {
        rows[TABLE[row].0.len()] |= 1 << row;
        row += 1;
    }
    rows
}

/// Returns what a field of this name, in lower case, means to the proxy.
#[inline]
pub(crate) fn role(name: &str) -> Option<Role> {
    let mut rows = *ROWS.get(name.len())?;
    while rows != 0 {
        let (other, role) = TABLE[rows.trailing_zeros() as usize];
        // Most names differ in their first byte, and need no call.
        if other.as_bytes()[0] == name.as_bytes()[0] && other == name {
            return Some(role);
        }
        rows &= rows - 1;
    }
    None
}

/// Returns whether a field belongs to one connection, besides those that frame
/// its messages: whether its role is [`Hop`]. Every response is asked for all
/// of its fields, so this does without the table.
#[inline]
pub(crate) fn is_hop_by_hop(name: &HeaderName) -> bool {
    match *name {
        header::CONNECTION | header::TE | header::UPGRADE => true,
        _ => matches!(name.as_str(), "http2-settings" | "keep-alive" | "proxy-connection"),
    }
}

/// Returns the claims that are part of the key with a trusted peer, as they
/// are received. `Forwarded` is missing: the proxy adds its peer's address to
/// it, so `provenance` keys what the peer sent.
pub(crate) fn keyed_claims() -> impl Iterator<Item = &'static str> {
    let claims = TABLE.iter().filter(|(_, role)| *role == AnswerClaim);
    claims.map(|(name, _)| *name).filter(|name| *name != "forwarded")
}

/// A set of roles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles(u16);

impl Roles {
    pub(crate) const fn of(roles: &[Role]) -> Self {
        let mut set = 0;
        let mut i = 0;
        while i < roles.len() {
            set |= 1 << roles[i] as u16;
            i += 1;
        }
        Self(set)
    }

    pub(crate) fn contains(self, role: Role) -> bool {
        self.0 & 1 << role as u16 != 0
    }

    fn meets(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }
}

/// What one pass over the fields of a request finds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Survey {
    /// The size of the header section.
    pub(crate) bytes: usize,
    /// The size of what is read member by member.
    pub(crate) hop_bytes: usize,
    roles: Roles,
    /// Whether a name has a character other than letters, digits and `-`.
    pub(crate) has_odd_name: bool,
    pub(crate) has_several_cookies: bool,
}

impl Survey {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut survey = Self::default();
        for (name, value) in headers {
            survey.bytes += name.as_str().len() + value.len() + 4;
            if !is_ordinary(name) {
                survey.note(name.as_str(), value);
            }
        }
        survey
    }

    #[inline]
    fn note(&mut self, name: &str, value: &HeaderValue) {
        match role(name) {
            Some(role) => {
                self.has_several_cookies |= role == Cookie && self.has(Cookie);
                if matches!(role, Hop | Framing | Expect) {
                    self.hop_bytes += value.len();
                }
                self.roles.0 |= 1 << role as u16;
            }
            None => self.has_odd_name |= !is_plain(name),
        }
    }

    pub(crate) fn has(&self, role: Role) -> bool {
        self.roles.contains(role)
    }

    /// Removes all fields with these roles, if there are any.
    pub(crate) fn remove(&self, headers: &mut HeaderMap, roles: Roles) {
        if self.roles.meets(roles) {
            retain(headers, |name| !role(name.as_str()).is_some_and(|role| roles.contains(role)));
        }
    }
}

/// Returns whether this is one of the fields that browsers send with every
/// request and that mean nothing to the proxy. To compare numbers is cheaper
/// than to look at each byte of a name.
#[inline]
fn is_ordinary(name: &HeaderName) -> bool {
    matches!(
        *name,
        header::ACCEPT
            | header::ACCEPT_ENCODING
            | header::ACCEPT_LANGUAGE
            | header::DNT
            | header::IF_MODIFIED_SINCE
            | header::IF_NONE_MATCH
            | header::ORIGIN
            | header::PRAGMA
            | header::RANGE
            | header::REFERER
            | header::UPGRADE_INSECURE_REQUESTS
            | header::USER_AGENT
    )
}

/// Whether a byte is no letter in lower case, no digit and no `-`.
static ODD: [bool; 256] = {
    let mut odd = [true; 256];
    let mut b = 0;
    while b < odd.len() {
        odd[b] = !matches!(b as u8, b'a'..=b'z' | b'0'..=b'9' | b'-');
        b += 1;
    }
    odd
};

/// Returns whether a name consists of letters, digits and `-`. Names arrive in
/// lower case.
pub(crate) fn is_plain(name: &str) -> bool {
    !name.bytes().fold(false, |odd, b| odd | ODD[usize::from(b)])
}

/// How many fields the proxy adds to a request, so that the map need not grow.
const WRITTEN_FIELDS: usize = 6;

/// Keeps some fields and leaves them in their order; the map itself would put
/// the last field into the gap.
pub(crate) fn retain(headers: &mut HeaderMap, keep: impl Fn(&HeaderName) -> bool) {
    let mut field = None;
    let names = headers.keys_len() + WRITTEN_FIELDS;
    let kept = HeaderMap::try_with_capacity(names).unwrap_or_default();
    for (name, value) in std::mem::replace(headers, kept) {
        // Only the first of several values comes with the name.
        field = name.or(field);
        if let Some(name) = field.as_ref().filter(|name| keep(name)) {
            headers.append(name, value);
        }
    }
}

/// Joins several `Cookie` lines into one, at the place of the first (RFC 9113,
/// 8.2.3): the origin must see the line that `Vary` compares.
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    let lines: Vec<_> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    let joined = HeaderValue::from_bytes(&lines.join(&b"; "[..]));
    headers.insert(header::COOKIE, joined.expect("joined values are a value"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_the_table_is_found_and_is_plain() {
        for (name, expected) in TABLE {
            assert_eq!(role(name), Some(expected), "{name}");
            assert_eq!(is_hop_by_hop(&HeaderName::from_static(name)), expected == Hop, "{name}");
            assert!(is_plain(name) && !is_ordinary(&HeaderName::from_static(name)), "{name}");
        }
    }

    #[test]
    fn names_like_those_of_the_table_have_no_role() {
        for name in ["", "x", "hosts", "hoss", "x-forwarded-fox", "x_forwarded_for", "accept"] {
            assert_eq!(role(name), None, "{name}");
        }
        assert_eq!(role(&"x".repeat(1000)), None);
    }

    #[test]
    fn one_pass_finds_what_a_request_has() {
        let mut headers = HeaderMap::new();
        headers.append("host", "a".parse().unwrap());
        headers.append("cookie", "b".parse().unwrap());
        let survey = Survey::of(&headers);
        assert_eq!(survey.bytes, 4 + 1 + 4 + 6 + 1 + 4);
        assert!(survey.has(Cookie) && !survey.has(Via));
        assert!(!survey.has_several_cookies && !survey.has_odd_name);
        headers.append("cookie", "c".parse().unwrap());
        headers.append("x_y", "c".parse().unwrap());
        let survey = Survey::of(&headers);
        assert!(survey.has_several_cookies && survey.has_odd_name);
    }

    #[test]
    fn only_letters_digits_and_hyphens_are_plain() {
        let plain = |b: &u8| is_plain(str::from_utf8(&[*b]).unwrap());
        let found: Vec<_> = (0..128).filter(plain).collect();
        assert_eq!(found, b"-0123456789abcdefghijklmnopqrstuvwxyz");
    }
}
