//! The situations of a published conformance suite for HTTP caches, as far as
//! the head of one response decides them. The ids are the suite's; those it
//! merely asks about are left out unless RFC or safety decide them.

use std::time::{Duration, SystemTime};

use crate::http::rules::lifetime::tests::times;

use crate::http::config::HttpConfig;
use crate::http::rules::request::{Credentials, RequestFacts};
use crate::http::tests::storable::{anonymous, decide, response, with};

/// What the suite expects of a request a few seconds later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Cached,
    NotCached,
    /// It goes to the origin with what the response can be told by.
    Validated,
}

use Expected::{Cached, NotCached, Validated};

/// For so long the suite pauses between two requests.
const PAUSE: Duration = Duration::from_secs(3);

/// The date so many seconds after the response was received.
fn date(offset: i64) -> String {
    let now = times(0).response;
    let by = Duration::from_secs(offset.unsigned_abs());
    let then: SystemTime = if offset < 0 { now - by } else { now + by };
    httpdate::fmt_http_date(then)
}

/// Reads `name: value` lines; `@` and a number stand for a date.
fn fields(text: &str) -> Vec<(String, String)> {
    let lines = text.split(" | ").filter_map(|line| line.split_once(": "));
    let value = |text: &str| match text.strip_prefix('@') {
        Some(offset) => date(offset.parse().unwrap()),
        None => text.to_owned(),
    };
    lines.map(|(name, text)| (name.to_ascii_lowercase(), value(text))).collect()
}

fn verdict(asked: &RequestFacts, status: u16, text: &str) -> Expected {
    let fields = fields(text);
    let fields: Vec<_> = fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let decision = decide(asked, &response(status, &fields), None, &HttpConfig::default());
    let Ok(plan) = decision else { return NotCached };
    let is_fresh = plan.terms.lifetime > plan.terms.initial_age + PAUSE;
    match plan.is_shareable() && is_fresh {
        true => Cached,
        false if plan.only_validated => Validated,
        false => NotCached,
    }
}

fn check(rows: &[(&str, &str, Expected)]) {
    for (id, fields, expected) in rows {
        assert_eq!(verdict(&anonymous(), 200, fields), *expected, "{id}: {fields}");
    }
}

#[test]
fn freshness_by_cache_control() {
    check(&[
        ("freshness-none", "", NotCached),
        ("freshness-max-age", "cache-control: max-age=3600", Cached),
        ("freshness-max-age-stale", "cache-control: max-age=2 | date: @0", NotCached),
        ("freshness-max-age-0", "cache-control: max-age=0", NotCached),
        ("freshness-max-age-max-minus-1", "cache-control: max-age=2147483647", Cached),
        ("freshness-max-age-max", "cache-control: max-age=2147483648", Cached),
        ("freshness-max-age-max-plus-1", "cache-control: max-age=2147483649", Cached),
        ("freshness-max-age-max-plus", "cache-control: max-age=99999999999", Cached),
        ("freshness-max-age-age", "date: @0 | cache-control: max-age=3600 | age: 7200", NotCached),
        ("freshness-max-age-date", "date: @-7200 | cache-control: max-age=3600", NotCached),
        (
            "freshness-max-age-expires",
            "cache-control: max-age=3600 | expires: @-7200 | date: @0",
            Cached,
        ),
        (
            "freshness-max-age-expires-invalid",
            "cache-control: max-age=3600 | expires: 0 | date: @0",
            Cached,
        ),
        (
            "freshness-max-age-0-expires",
            "expires: @3600 | cache-control: max-age=0 | date: @0",
            NotCached,
        ),
        ("freshness-max-age-extension", "cache-control: foobar, max-age=3600", Cached),
        ("freshness-max-age-case-insenstive", "cache-control: MaX-aGe=3600", Cached),
        ("freshness-max-age-negative", "cache-control: max-age=-3600", NotCached),
        ("freshness-s-maxage-shared", "cache-control: s-maxage=3600", Cached),
        (
            "freshness-max-age-s-maxage-shared-longer",
            "cache-control: max-age=3600, s-maxage=1",
            NotCached,
        ),
        (
            "freshness-max-age-s-maxage-shared-longer-reversed",
            "cache-control: s-maxage=1, max-age=3600",
            NotCached,
        ),
        (
            "freshness-max-age-s-maxage-shared-longer-multiple",
            "cache-control: max-age=3600 | cache-control: s-maxage=1",
            NotCached,
        ),
        (
            "freshness-max-age-s-maxage-shared-shorter",
            "cache-control: max-age=1, s-maxage=3600",
            Cached,
        ),
        (
            "freshness-max-age-s-maxage-shared-shorter-expires",
            "expires: @-10 | cache-control: max-age=0, s-maxage=3600",
            Cached,
        ),
    ]);
}

#[test]
fn how_cache_control_is_read() {
    check(&[
        // RFC 9111, 4.2.1: contradictions are stale in any order.
        (
            "freshness-max-age-two-fresh-stale-sameline",
            "cache-control: max-age=1800, max-age=1",
            NotCached,
        ),
        (
            "freshness-max-age-two-fresh-stale-sepline",
            "cache-control: max-age=1800 | cache-control: max-age=1",
            NotCached,
        ),
        (
            "freshness-max-age-two-stale-fresh-sameline",
            "cache-control: max-age=1, max-age=1800",
            NotCached,
        ),
        (
            "freshness-max-age-two-stale-fresh-sepline",
            "cache-control: max-age=1 | cache-control: max-age=1800",
            NotCached,
        ),
        ("freshness-max-age-quoted", "cache-control: max-age=\"3600\"", Cached),
        (
            "freshness-max-age-ignore-quoted",
            "cache-control: extension=\"max-age=3600\", max-age=1",
            NotCached,
        ),
        (
            "freshness-max-age-ignore-quoted-rev",
            "cache-control: max-age=1, extension=\"max-age=3600\"",
            NotCached,
        ),
        ("freshness-max-age-space-before-equals", "cache-control: max-age =3600", NotCached),
        ("freshness-max-age-space-after-equals", "cache-control: max-age= 3600", NotCached),
        ("freshness-max-age-leading-zero", "cache-control: max-age=003600", Cached),
        ("freshness-max-age-single-quoted", "cache-control: max-age='3600'", NotCached),
        ("freshness-max-age-decimal-zero", "cache-control: max-age=3600.0", NotCached),
        ("freshness-max-age-decimal-five", "cache-control: max-age=3600.5", NotCached),
        ("freshness-max-age-a100", "cache-control: max-age=a3600", NotCached),
        ("freshness-max-age-100a", "cache-control: max-age=3600a", NotCached),
    ]);
}

#[test]
fn what_directives_forbid() {
    check(&[
        ("cc-resp-private-shared", "cache-control: private, max-age=3600", NotCached),
        ("cc-resp-no-store", "cache-control: no-store", NotCached),
        ("cc-resp-no-store-case-insensitive", "cache-control: No-StOrE", NotCached),
        (
            "cc-resp-no-store-fresh",
            "cache-control: max-age=10000, no-store | expires: @10000 | date: @0",
            NotCached,
        ),
        (
            "cc-resp-no-cache",
            "cache-control: max-age=10000, no-cache | expires: @10000 | date: @0",
            NotCached,
        ),
        (
            "cc-resp-no-cache-case-insensitive",
            "cache-control: max-age=10000, No-CaChE | expires: @10000 | date: @0",
            NotCached,
        ),
        ("cc-resp-no-cache-revalidate", "cache-control: no-cache | etag: \"abcd\"", Validated),
        (
            "cc-resp-no-cache-revalidate-fresh",
            "cache-control: max-age=10000, no-cache | expires: @10000 | date: @0 | etag: \"abcd\"",
            Validated,
        ),
        (
            "headers-omit-headers-listed-in-Cache-Control-no-cache-single",
            "cache-control: no-cache=\"a\" | a: 1 | cache-control: max-age=3600 | date: @0",
            Cached,
        ),
        (
            "headers-omit-headers-listed-in-Cache-Control-no-cache",
            "cache-control: no-cache=\"a, b\" | a: 1 | cache-control: max-age=3600 | date: @0",
            Cached,
        ),
        (
            "cc-resp-must-revalidate-fresh",
            "cache-control: max-age=10000, must-revalidate | etag: \"abcd\"",
            Cached,
        ),
    ]);
}

#[test]
fn the_field_for_caches_like_ours() {
    let beside = |cdn: &str, others: &str| format!("cdn-cache-control: {cdn} | {others}");
    let long = "cache-control: max-age=10000 | expires: @10000 | date: @0";
    for (id, cdn, others, expected) in [
        ("cdn-max-age", "max-age=3600", "", Cached),
        ("cdn-max-age-max", "max-age=2147483648", "", Cached),
        ("cdn-max-age-max-plus", "max-age=99999999999", "", Cached),
        ("cdn-max-age-age", "max-age=3600", "date: @0 | age: 7200", NotCached),
        ("cdn-max-age-space-before-equals", "max-age =100", "cache-control: max-age=1", NotCached),
        ("cdn-max-age-space-after-equals", "max-age= 100", "cache-control: max-age=1", NotCached),
        ("cdn-max-age-0", "max-age=0", "", NotCached),
        ("cdn-max-age-extension", "foobar, max-age=3600", "", Cached),
        // RFC 9651, 3.2: names are in lower case.
        ("cdn-max-age-case-insensitive", "MaX-aGe=3600", "", NotCached),
        ("cdn-max-age-expires", "max-age=3600", "expires: @-10000 | date: @0", Cached),
        ("cdn-max-age-cc-max-age-invalid-expires", "max-age=3600", "expires: 0 | date: @0", Cached),
        ("cdn-max-age-0-expires", "max-age=0", "expires: @10000 | date: @0", NotCached),
        ("cdn-max-age-short-cc-max-age", "max-age=3600", "cache-control: max-age=1", Cached),
        ("cdn-max-age-long-cc-max-age", "max-age=1", "cache-control: max-age=3600", NotCached),
        ("cdn-private", "private", long, NotCached),
        ("cdn-no-cache", "no-cache", long, NotCached),
        ("cdn-no-store-cc-fresh", "no-store", long, NotCached),
        ("cdn-fresh-cc-nostore", "max-age=10000", "cache-control: no-store", Cached),
        (
            "cdn-cc-invalid-sh-type-unknown",
            "max-age=10000, &&&&&",
            "cache-control: no-store",
            NotCached,
        ),
        ("cdn-cc-invalid-sh-type-wrong", "max-age=\"10000\"", "cache-control: no-store", NotCached),
    ] {
        check(&[(id, &beside(cdn, others), expected)]);
    }
}

#[test]
fn freshness_by_expires() {
    check(&[
        ("freshness-expires-future", "expires: @2592000 | date: @0", Cached),
        ("freshness-expires-past", "expires: @-2592000 | date: @0", NotCached),
        ("freshness-expires-present", "expires: @0 | date: @0", NotCached),
        ("freshness-expires-old-date", "expires: @300 | date: @400", NotCached),
        ("freshness-expires-invalid", "expires: 0 | date: @0", NotCached),
        ("freshness-expires-invalid-date", "date: foo | expires: @10", Cached),
        ("freshness-expires-age-slow-date", "date: @-10 | expires: @10 | age: 25", NotCached),
        ("freshness-expires-age-fast-date", "date: @10 | expires: @20 | age: 15", NotCached),
    ]);
    for (id, expires, expected) in [
        ("freshness-expires-32bit", "Tue, 19 Jan 2038 14:14:08 GMT", Cached),
        ("freshness-expires-far-future", "Sun, 21 Nov 2286 04:46:39 GMT", Cached),
        // The suite has year 50, which from 1994 is past.
        ("freshness-expires-rfc850", "Thursday, 18-Aug-44 02:01:18 GMT", Cached),
        ("freshness-expires-ansi-c", "Thu Aug  8 02:01:18 2050", Cached),
        ("freshness-expires-wrong-case-weekday", "THU, 18 Aug 2050 02:01:18 GMT", Cached),
        ("freshness-expires-wrong-case-month", "Thu, 18 AUG 2050 02:01:18 GMT", Cached),
        ("freshness-expires-wrong-case-tz", "Thu, 18 Aug 2050 02:01:18 gMT", Cached),
        ("freshness-expires-invalid-utc", "Thu, 18 Aug 2050 02:01:18 UTC", NotCached),
        ("freshness-expires-invalid-aest", "Thu, 18 Aug 2050 02:01:18 AEST", NotCached),
        ("freshness-expires-invalid-2-digit-year", "Thu, 18 Aug 50 02:01:18 GMT", NotCached),
        ("freshness-expires-invalid-no-comma", "Thu 18 Aug 2050 02:01:18 GMT", NotCached),
        ("freshness-expires-invalid-multiple-spaces", "Thu, 18  Aug  2050 02:01:18 GMT", NotCached),
        ("freshness-expires-invalid-date-dashes", "Thu, 18-Aug-2050 02:01:18 GMT", NotCached),
        ("freshness-expires-invalid-time-periods", "Thu, 18 Aug 2050 02.01.18 GMT", NotCached),
        ("freshness-expires-invalid-1-digit-hour", "Thu, 18 Aug 2050 2:01:18 GMT", NotCached),
        (
            "freshness-expires-invalid-multiple-lines",
            "Thu, 18 Aug 2050 2:01:18 GMT | expires: Thu, 18 Aug 2050 2:01:19 GMT",
            NotCached,
        ),
    ] {
        check(&[(id, &format!("expires: {expires} | date: @0"), expected)]);
    }
}

#[test]
fn how_age_is_read() {
    for (id, age, expected) in [
        ("age-parse-nonnumeric", "abc", Cached),
        ("age-parse-negative", "-7200", Cached),
        ("age-parse-float", "7200.0", Cached),
        ("age-parse-large-minus-one", "2147483647", NotCached),
        ("age-parse-large", "2147483648", NotCached),
        ("age-parse-larger", "2147483649", NotCached),
        ("age-parse-suffix", "7200, 0", NotCached),
        ("age-parse-prefix", "0, 7200", Cached),
        ("age-parse-suffix-twoline", "7200 | age: 0", NotCached),
        ("age-parse-prefix-twoline", "0 | age: 7200", Cached),
        ("age-parse-dup-0", "0, 0", Cached),
        ("age-parse-dup-0-twoline", "0 | age: 0", Cached),
        ("age-parse-dup-old", "1800 | age: 1800", Cached),
    ] {
        check(&[(id, &format!("date: @0 | cache-control: max-age=3600 | age: {age}"), expected)]);
    }
}

#[test]
fn freshness_by_last_modified() {
    let modified = "last-modified: @-86400 | date: @0";
    let taking = (200..600).filter(|status| verdict(&anonymous(), *status, modified) == Cached);
    let taking: Vec<_> = taking.collect();
    for status in [200, 203, 204, 404, 405, 410, 414, 501] {
        assert!(taking.contains(&status), "heuristic-{status}-cached");
    }
    for status in [201, 202, 403, 502, 503, 504, 599] {
        assert!(!taking.contains(&status), "heuristic-{status}-not_cached");
    }
    let public = format!("{modified} | cache-control: public");
    assert_eq!(verdict(&anonymous(), 599, &public), Cached, "heuristic-599-cached");
    for (ago, expected) in [(5, NotCached), (10, NotCached), (60, Cached), (3600, Cached)] {
        let fields = format!("last-modified: @-{ago} | date: @0");
        assert_eq!(verdict(&anonymous(), 200, &fields), expected, "heuristic-delta-{ago}");
    }
}

#[test]
fn statuses_with_explicit_freshness() {
    let all =
        [200, 203, 204, 299, 301, 302, 303, 307, 308, 400, 404, 410, 499, 500, 502, 503, 504, 599];
    for status in all {
        let fresh = "cache-control: max-age=100000 | date: @0";
        assert_eq!(verdict(&anonymous(), status, fresh), Cached, "status-{status}-fresh");
        let stale = "expires: @-5000 | last-modified: @-100000 | date: @0";
        assert_eq!(verdict(&anonymous(), status, stale), NotCached, "status-{status}-stale");
    }
    let understood = "cache-control: max-age=3600, no-store, must-understand";
    assert_eq!(verdict(&anonymous(), 599, understood), NotCached, "status-599-must-understand");
    assert_eq!(verdict(&anonymous(), 200, understood), Cached, "status-200-must-understand");
}

#[test]
fn responses_to_requests_with_authorization() {
    let asked = with(Credentials::AUTHORIZATION);
    for (id, directives, expected) in [
        ("other-authorization", "max-age=100000", NotCached),
        ("other-authorization-public", "max-age=3600, public", Cached),
        ("other-authorization-must-revalidate", "max-age=3600, must-revalidate", Cached),
        ("other-authorization-smaxage", "s-maxage=3600", Cached),
    ] {
        let fields = format!("cache-control: {directives} | date: @0");
        assert_eq!(verdict(&asked, 200, &fields), expected, "{id}");
    }
}
