//! Fields: what is not passed on or kept, and what we add.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use http::StatusCode;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;

use crate::http::rules::lifetime::valid_date;
use crate::http::rules::members::is_token;

/// Removes what concerns one connection only (RFC 9110, 7.6.1).
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    strip_connection(headers, |_| true);
}

/// The same, but for fields that say whether the response may be stored.
pub(crate) fn strip_hop_by_hop_but_prohibitions(headers: &mut HeaderMap) {
    strip_connection(headers, |name| !governs_storing(name));
}

/// Returns whether a field says whether, or for how long, a response may be stored.
pub(crate) fn governs_storing(name: &HeaderName) -> bool {
    let others = [header::VARY, header::EXPIRES, header::PRAGMA];
    name.as_str().ends_with("cache-control") || name == "surrogate-control" || others.contains(name)
}

/// Returns whether `Connection` takes a field away without which the rest of the response would be
/// misread.
pub(crate) fn loses_indispensable(headers: &HeaderMap) -> bool {
    let named = named_in_connection(headers);
    named.iter().any(|name| {
        [header::CONTENT_ENCODING, header::CONTENT_TYPE].contains(name)
            && headers.contains_key(name)
    })
}

/// Fields that concern one connection, whatever `Connection` says.
pub(crate) const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

fn strip_connection(headers: &mut HeaderMap, is_removed: impl Fn(&HeaderName) -> bool) {
    for name in named_in_connection(headers).into_iter().filter(is_removed) {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

fn named_in_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let lines = headers.get_all(header::CONNECTION).into_iter();
    let names = lines.flat_map(|line| line.as_bytes().split(|&b| b == b','));
    names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect()
}

/// Removes what is not stored (RFC 9111, 3.1) and fixes `Date`.
///
/// A valid `Date` is never rewritten; otherwise it is the time of receipt
/// (RFC 9110, 6.6.1). `Age` is computed at each hit.
pub(crate) fn strip_for_storage(
    headers: &mut HeaderMap,
    withheld: &[HeaderName],
    received: SystemTime,
) {
    strip_hop_by_hop(headers);
    for name in withheld {
        headers.remove(name);
    }
    for name in [
        header::PROXY_AUTHENTICATE,
        HeaderName::from_static("proxy-authentication-info"),
        header::PROXY_AUTHORIZATION,
        header::AGE,
    ] {
        headers.remove(name);
    }
    complete_date(headers, received);
}

/// Writes the time of receipt where there is no valid `Date`.
pub(crate) fn complete_date(headers: &mut HeaderMap, received: SystemTime) {
    if valid_date(headers, received).is_none() {
        let date = HeaderValue::from_str(&httpdate::fmt_http_date(received));
        // A map that is full to the brim goes without, and is not stored.
        let _ = headers.try_insert(header::DATE, date.expect("a date is ASCII"));
    }
}

/// The name of the field that says what the cache did (RFC 9211).
pub(crate) const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// Appends our member behind those of the caches before us.
pub(crate) fn append_cache_status(headers: &mut HeaderMap, member: HeaderValue) {
    // A map that is full to the brim goes without.
    let _ = headers.try_append(CACHE_STATUS, member);
}

/// Returns the member for an answer out of the store; `ttl_secs` is negative
/// when it is stale.
pub(crate) fn cache_status_hit(name: &str, ttl_secs: i64) -> HeaderValue {
    member(format!("{}; hit; ttl={ttl_secs}", Item(name)))
}

/// Returns the member for an answer that the inner service gave.
pub(crate) fn cache_status_forward(
    name: &str,
    fwd: &str,
    fwd_status: Option<StatusCode>,
    stored: bool,
    collapsed: bool,
    detail: Option<&str>,
) -> HeaderValue {
    let status = fwd_status.map(|status| format!("; fwd-status={}", status.as_u16()));
    let detail = detail.map(|detail| format!("; detail={}", Item(detail)));
    member(format!(
        "{}; fwd={}{}{}{}{}",
        Item(name),
        Item(fwd),
        status.unwrap_or_default(),
        if stored { "; stored" } else { "" },
        if collapsed { "; collapsed" } else { "" },
        detail.unwrap_or_default(),
    ))
}

/// Returns the member for our own refusal, before anything was forwarded.
pub(crate) fn cache_status_refused(name: &str, detail: &str) -> HeaderValue {
    member(format!("{}; detail={}", Item(name), Item(detail)))
}

fn member(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("items are written in visible ASCII")
}

/// Text as a token where it is one, else as a string (RFC 9651, 3.3).
struct Item<'a>(&'a str);

impl std::fmt::Display for Item<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let begins = self.0.starts_with(|c: char| c.is_ascii_alphabetic() || c == '*');
        if begins && self.0.bytes().all(|b| is_token(b) || matches!(b, b':' | b'/')) {
            return f.write_str(self.0);
        }
        f.write_str("\"")?;
        for c in self.0.chars().filter(|c| matches!(c, ' '..='~')) {
            let escape = if matches!(c, '"' | '\\') { "\\" } else { "" };
            write!(f, "{escape}{c}")?;
        }
        f.write_str("\"")
    }
}

const CHUNK: usize = 64;
/// Values up to about an hour are made once.
const CHUNKS: usize = 57;

/// Values that were made before, so that a hit allocates none. They are made
/// in chunks, when one of the chunk is first needed, and stay for good: a value
/// that counted its users would be one place in memory that all threads write
/// to at every hit.
struct FormattedNumbers([OnceLock<Box<[HeaderValue]>>; CHUNKS]);

impl FormattedNumbers {
    const fn new() -> Self {
        Self([const { OnceLock::new() }; CHUNKS])
    }

    #[inline]
    fn value(&self, n: u64, make: impl Fn(u64) -> HeaderValue) -> HeaderValue {
        if n >= (CHUNKS * CHUNK) as u64 {
            return make(n);
        }
        let (chunk, at) = (n as usize / CHUNK, n as usize % CHUNK);
        self.0[chunk].get_or_init(|| make_chunk(n - at as u64, make))[at].clone()
    }
}

#[cold]
fn make_chunk(first: u64, make: impl Fn(u64) -> HeaderValue) -> Box<[HeaderValue]> {
    (first..first + CHUNK as u64).map(|n| for_good(&make(n))).collect()
}

fn for_good(value: &HeaderValue) -> HeaderValue {
    let text = value.to_str().expect("numbers and items are written in visible ASCII");
    HeaderValue::from_static(Box::leak(text.into()))
}

/// Returns the value of `Age`.
#[inline]
pub(crate) fn age_value(secs: u64) -> HeaderValue {
    static MADE: FormattedNumbers = FormattedNumbers::new();
    MADE.value(secs, HeaderValue::from)
}

/// Writes the `Cache-Status` of hits under one name.
#[derive(Clone)]
pub(crate) struct HitStatus {
    name: Arc<str>,
    made: Option<&'static FormattedNumbers>,
}

/// Names whose values are made before: more of them are not, for they stay for
/// good, and a program may make as many names as it likes.
const MADE_NAMES: usize = 16;

impl HitStatus {
    pub(crate) fn new(name: &str) -> Self {
        static NAMES: Mutex<Vec<(Arc<str>, &'static FormattedNumbers)>> = Mutex::new(Vec::new());
        let mut names = NAMES.lock();
        let known = names.iter().find(|(known, _)| **known == *name);
        if let Some((name, made)) = known {
            return Self { name: Arc::clone(name), made: Some(made) };
        }
        let name: Arc<str> = name.into();
        if names.len() == MADE_NAMES {
            return Self { name, made: None };
        }
        let made: &'static FormattedNumbers = Box::leak(Box::new(FormattedNumbers::new()));
        names.push((Arc::clone(&name), made));
        Self { name, made: Some(made) }
    }

    #[inline]
    pub(crate) fn value(&self, ttl_secs: u64) -> HeaderValue {
        match self.made {
            Some(made) => made.value(ttl_secs, |ttl| self.write(ttl)),
            None => self.write(ttl_secs),
        }
    }

    #[cold]
    fn write(&self, ttl_secs: u64) -> HeaderValue {
        cache_status_hit(&self.name, ttl_secs.try_into().unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let fields = fields.iter().map(|&(name, value)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        });
        fields.collect()
    }

    fn stored(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = headers(fields);
        let received = UNIX_EPOCH + Duration::from_secs(784_111_777);
        strip_for_storage(&mut headers, &[HeaderName::from_static("x-mine")], received);
        headers
    }

    #[test]
    fn what_concerns_one_connection_or_one_client_is_not_stored() {
        // RFC 9111, 3.1, and RFC 9110, 7.6.1
        let left = stored(&[
            ("connection", "close, X-Hop"),
            ("connection", "x-other"),
            ("x-hop", "1"),
            ("x-hop", "2"),
            ("x-other", "1"),
            ("keep-alive", "1"),
            ("proxy-connection", "1"),
            ("te", "1"),
            ("trailer", "1"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("proxy-authenticate", "1"),
            ("proxy-authentication-info", "1"),
            ("proxy-authorization", "1"),
            ("x-mine", "1"),
            ("age", "1"),
            ("etag", "1"),
        ]);
        assert_eq!(left.keys().collect::<Vec<_>>(), ["etag", "date"]);
    }

    #[test]
    fn repeated_fields_stay_in_order() {
        let left = stored(&[("link", "a"), ("etag", "1"), ("link", "b")]);
        assert_eq!(left.get_all("link").iter().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_date_is_set_once_and_a_valid_one_never() {
        // RFC 9110, 6.6.1
        let now = "Sun, 06 Nov 1994 08:49:37 GMT";
        let valid = "sunday, 06-nov-94 08:49:01 gmt";
        for (fields, expected) in [
            (&[][..], now),
            (&[("date", "x")], now),
            (&[("date", valid), ("date", valid)], now),
            (&[("date", valid)], valid),
        ] {
            let left = stored(fields);
            assert_eq!(left.get_all("date").iter().collect::<Vec<_>>(), [expected]);
        }
    }

    #[test]
    fn members_of_cache_status_are_written_as_rfc_9211_says() {
        assert_eq!(cache_status_hit("a", 3), "a; hit; ttl=3");
        assert_eq!(cache_status_hit("my cache", -3), "\"my cache\"; hit; ttl=-3");
        assert_eq!(cache_status_hit("é\"\\\n", 0), "\"\\\"\\\\\"; hit; ttl=0");
        let plain = cache_status_forward("a", "miss", None, false, false, None);
        assert_eq!(plain, "a; fwd=miss");
        assert_eq!(cache_status_refused("a", "held"), "a; detail=held", "nothing was forwarded");
        let full =
            cache_status_forward("a", "stale", Some(StatusCode::OK), true, true, Some("x y"));
        assert_eq!(full, "a; fwd=stale; fwd-status=200; stored; collapsed; detail=\"x y\"");
    }

    #[test]
    fn members_of_caches_before_us_come_first() {
        let mut headers = headers(&[("cache-status", "cdn; fwd=miss")]);
        append_cache_status(&mut headers, cache_status_hit("a", 1));
        let members: Vec<_> = headers.get_all("cache-status").iter().collect();
        assert_eq!(members, ["cdn; fwd=miss", "a; hit; ttl=1"]);
    }

    #[test]
    fn values_made_before_are_the_right_ones() {
        let status = HitStatus::new("a");
        for n in [0, 1, 63, 64, 3600, 3647, 3648, u64::MAX / 2] {
            assert_eq!(age_value(n), n.to_string().as_str());
            assert_eq!(status.value(n), cache_status_hit("a", n as i64));
        }
        assert_eq!(age_value(u64::MAX), u64::MAX.to_string().as_str());
        assert_eq!(status.value(u64::MAX), cache_status_hit("a", i64::MAX));
    }

    #[test]
    fn however_many_names_there_are_each_is_written() {
        for n in 0..3 * MADE_NAMES {
            let name = format!("n{n}");
            assert_eq!(HitStatus::new(&name).value(7), cache_status_hit(&name, 7));
        }
    }

    proptest! {
        #[test]
        fn no_name_or_field_makes_it_panic(name: String, connection: Vec<u8>, ttl: u64) {
            let _ = cache_status_forward(&name, &name, None, false, false, Some(&name));
            let _ = HitStatus::new(&name).value(ttl);
            let mut headers = HeaderMap::new();
            if let Ok(connection) = HeaderValue::from_bytes(&connection) {
                headers.insert(header::CONNECTION, connection);
            }
            strip_hop_by_hop(&mut headers);
        }
    }
}
