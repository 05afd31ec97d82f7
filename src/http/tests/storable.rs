use std::time::Duration;

use proptest::prelude::*;

use crate::http::body::Content;
use crate::http::rules::lifetime::tests::times;
use http::header::HeaderValue;
use http::{Method, StatusCode, Uri, response::Parts};

use crate::http::cache_for::CacheFor;
use crate::http::config::HttpConfig;
use crate::http::rules::decline_reason::DeclineReason;
use crate::http::rules::request::{Credentials, RequestFacts, RequestMethod};
use crate::http::rules::storable::*;
use crate::http::stored::response::{CachedResponse, may_answer};
use crate::settings::layer::SetCookie;

pub(in crate::http) fn anonymous() -> RequestFacts {
    RequestFacts { method: RequestMethod::Get, credentials: Credentials::NONE }
}

pub(in crate::http) fn response(status: u16, fields: &[(&str, &str)]) -> Parts {
    let mut response = http::Response::builder().status(status);
    for (name, value) in fields {
        response = response.header(*name, *value);
    }
    response.body(()).unwrap().into_parts().0
}

pub(in crate::http) fn decide(
    asked: &RequestFacts,
    parts: &Parts,
    cache_for: Option<&CacheFor>,
    config: &HttpConfig,
) -> Decision {
    let facts = ResponseFacts { asked, parts, length: None, cache_for, config, times: times(0) };
    facts.judge()
}

pub(super) fn layer() -> HttpConfig {
    HttpConfig { ttl: Some(Duration::from_secs(60)), ..HttpConfig::default() }
}

fn cookies(set_cookie: SetCookie) -> HttpConfig {
    HttpConfig { set_cookie, ..layer() }
}

/// The refusal, or `None` if the response is stored.
pub(super) fn refusal(decision: &Decision) -> Option<DeclineReason> {
    decision.as_ref().err().copied()
}

fn refused(status: u16, fields: &[(&str, &str)]) -> Option<DeclineReason> {
    refusal(&decide(&anonymous(), &response(status, fields), None, &layer()))
}

pub(super) fn with(credentials: Credentials) -> RequestFacts {
    RequestFacts { credentials, ..anonymous() }
}

#[test]
fn responses_that_forbid_it_are_not_stored() {
    // RFC 9111, 3
    for (fields, expected) in [
        (&[][..], None),
        (&[("cache-control", "no-store")], Some(DeclineReason::NoStore)),
        (&[("cache-control", "max-age=100, No-Store")], Some(DeclineReason::NoStore)),
        (
            &[("cache-control", "public, max-age=1"), ("cache-control", "PRIVATE")],
            Some(DeclineReason::Private),
        ),
        (&[("cache-control", "private=\"x\"")], None),
        (&[("cache-control", "no-cache")], Some(DeclineReason::NoCache)),
        (&[("cache-control", "no-cache=\"x\"")], None),
        (&[("cache-control", "max-age=1; private")], Some(DeclineReason::Unreadable)),
        (&[("vary", "accept"), ("vary", "a, *")], Some(DeclineReason::VaryAny)),
        // RFC 9213, 2.2
        (&[("cdn-cache-control", "max-age=1")], None),
        (&[("cdn-cache-control", "max-age=1"), ("cache-control", "no-store")], None),
        (
            &[("cdn-cache-control", "max-age=x"), ("cache-control", "no-store")],
            Some(DeclineReason::NoStore),
        ),
        (
            &[("cdn-cache-control", "private"), ("cache-control", "max-age=1")],
            Some(DeclineReason::Private),
        ),
        (&[("content-type", "Text/Event-Stream; x=y")], Some(DeclineReason::EventStream)),
        (&[("content-type", "text/html, text/event-stream")], Some(DeclineReason::EventStream)),
        (&[("content-type", "text/event-streams")], None),
        (&[("trailer", "x")], Some(DeclineReason::Trailers)),
        (&[("content-length", "1048576")], None),
        (&[("content-length", "1048577")], Some(DeclineReason::TooLarge)),
        (&[("content-length", "99999999999999999999999")], Some(DeclineReason::Framing)),
        (&[("content-length", "+5")], Some(DeclineReason::Framing)),
        (&[("content-length", "5"), ("content-length", "5")], None),
        (&[("content-length", "5"), ("content-length", "6")], Some(DeclineReason::Framing)),
        // RFC 9112, 6.3: "ought to be handled as an error"
        (
            &[("content-length", "5"), ("transfer-encoding", "chunked")],
            Some(DeclineReason::Framing),
        ),
        (&[("x", &"y".repeat(65_536))], Some(DeclineReason::HeadersTooLarge)),
    ] {
        assert_eq!(refused(200, fields), expected, "{fields:?}");
    }
}

/// What is stored of a 200 with these fields, by a layer without a ttl.
fn plan(fields: &[(&str, &str)]) -> Option<Plan> {
    let config = HttpConfig::default();
    decide(&anonymous(), &response(200, fields), None, &config).ok()
}

#[test]
fn what_must_be_validated_is_stored_where_it_can_be_and_shared_with_nobody() {
    // RFC 9111, 5.2.2.4 and 4.3.1
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    for line in
        ["no-cache", "max-age=10000, No-CaChE", "no-cache=x, public", "private=\"x\", no-cache"]
    {
        let line = ("cache-control", line);
        for (name, value, is_stored) in [
            ("etag", "\"abcd\"", true),
            ("etag", "W/\"abcd\"", true),
            ("etag", "\"\"", true),
            ("etag", "\"caf\u{e9}\"", true),
            // As it is compared: whatever stands between the marks.
            ("etag", "\"ab cd\"", true),
            ("last-modified", date, true),
            // Without marks it is compared byte by byte.
            ("etag", "abcd", true),
            ("etag", "w/\"abcd\"", true),
            ("etag", "\"ab\"cd\"", false),
            ("etag", "W/\"abcd", false),
            ("etag", "\"", false),
            ("last-modified", "today", false),
            ("x", "y", false),
        ] {
            let plan = plan(&[line, (name, value)]);
            assert_eq!(plan.is_some(), is_stored, "{line:?} {name} {value}");
            let is_private = |plan: Plan| plan.only_validated && !plan.is_shareable();
            assert!(plan.is_none_or(is_private), "{line:?}");
        }
        assert!(plan(&[line, ("etag", "\"a\""), ("etag", "\"a\"")]).is_none());
    }
    let not_ok = response(404, &[("cache-control", "no-cache, max-age=9"), ("etag", "\"a\"")]);
    let decision = decide(&anonymous(), &not_ok, None, &layer());
    assert_eq!(refusal(&decision), Some(DeclineReason::NoCache), "only a 200 is validated");
    let withheld = [("cache-control", "no-cache, private=\"etag\""), ("etag", "\"a\"")];
    assert!(plan(&withheld).is_none(), "its validator is not stored");
}

#[test]
fn what_is_never_fresh_is_shared_only_in_a_stale_window_and_stored_only_to_be_validated() {
    // RFC 9111, 4.2.4 and 4.3.1
    let tag = ("etag", "\"a\"");
    for (line, alone, with_a_tag) in [
        ("max-age=0", None, Some(false)),
        ("max-age=x", None, Some(false)),
        ("max-age=0, must-revalidate, stale-while-revalidate=9", None, Some(false)),
        ("max-age=0, stale-while-revalidate=9", Some(true), Some(true)),
        ("s-maxage=0, stale-while-revalidate=9", Some(true), Some(true)),
        // Of use only to clients that meet a failure.
        ("max-age=0, stale-if-error=9", Some(false), Some(false)),
        ("max-age=1", Some(true), Some(true)),
        ("public", None, None),
    ] {
        let line = ("cache-control", line);
        let shared = |fields: &[_]| plan(fields).map(|plan| plan.is_shareable());
        assert_eq!(shared(&[line]), alone, "{line:?}");
        assert_eq!(shared(&[line, tag]), with_a_tag, "{line:?} with a validator");
    }
    assert_eq!(plan(&[("expires", "0"), tag]).map(|plan| plan.is_shareable()), Some(false));
}

#[test]
fn a_body_must_be_as_long_as_the_fields_say() {
    let parts = response(200, &[("content-length", "5")]);
    let (asked, config) = (&anonymous(), &layer());
    let facts = ResponseFacts {
        asked,
        parts: &parts,
        length: None,
        cache_for: None,
        config,
        times: times(0),
    };
    let judge = |length| ResponseFacts { length, ..facts }.judge();
    assert_eq!(refusal(&judge(Some(4))), Some(DeclineReason::Framing));
    assert!(matches!(judge(Some(5)), Ok(Plan { length: Some(5), .. })));
}

#[test]
fn statuses_are_stored_as_their_freshness_allows() {
    for (status, by_ttl, by_origin) in [
        (100, Some(DeclineReason::Status), Some(DeclineReason::Status)),
        (101, Some(DeclineReason::Status), Some(DeclineReason::Status)),
        (200, None, None),
        (201, Some(DeclineReason::NoFreshness), None),
        (206, Some(DeclineReason::Status), Some(DeclineReason::Status)),
        (302, Some(DeclineReason::NoFreshness), None),
        (304, Some(DeclineReason::Status), Some(DeclineReason::Status)),
        (400, Some(DeclineReason::NoFreshness), None),
        (401, Some(DeclineReason::NoFreshness), None),
        (404, None, None),
        (429, Some(DeclineReason::Status), Some(DeclineReason::Status)),
        (503, Some(DeclineReason::NoFreshness), None),
        (599, Some(DeclineReason::NoFreshness), None),
    ] {
        assert_eq!(refused(status, &[]), by_ttl, "{status}");
        assert_eq!(refused(status, &[("cache-control", "max-age=1")]), by_origin, "{status}");
    }
}

#[test]
fn every_final_status_is_stored_where_the_origin_says_for_how_long() {
    // RFC 9111, 3 and 4.2.1: unknown ones too. But RFC 6585.
    for status in (200..600).filter(|status| !matches!(status, 206 | 304 | 428 | 429 | 431 | 511)) {
        for fresh in [
            ("cache-control", "max-age=9"),
            ("expires", "Sun, 06 Nov 2094 08:49:37 GMT"),
            ("cdn-cache-control", "max-age=9"),
        ] {
            assert_eq!(refused(status, &[fresh]), None, "{status} {fresh:?}");
        }
    }
}

#[test]
fn what_is_wrong_with_one_request_is_stored_only_at_the_origins_word() {
    let cache_for = CacheFor::new(Duration::from_secs(9));
    let by_handler =
        |status| refusal(&decide(&anonymous(), &response(status, &[]), Some(&cache_for), &layer()));
    let modified = ("last-modified", "Sat, 05 Nov 1994 08:49:37 GMT");
    let public = ("cache-control", "public");
    for status in [400, 413, 421] {
        assert_eq!(by_handler(status), Some(DeclineReason::NoFreshness), "{status}");
        let assumed = response(status, &[modified, public]);
        let assumed = decide(&anonymous(), &assumed, None, &HttpConfig::default());
        assert_eq!(refusal(&assumed), Some(DeclineReason::NoFreshness), "{status}");
    }
    assert_eq!(by_handler(500), None);
}

#[test]
fn must_understand_lifts_no_store_only_for_statuses_that_are_understood() {
    // RFC 9111, 5.2.2.3
    for (status, line, expected) in [
        (200, "max-age=1, no-store, must-understand", None),
        (200, "max-age=1, no-store, must-understand, private", Some(DeclineReason::Private)),
        (500, "max-age=1, no-store, must-understand", Some(DeclineReason::MustUnderstand)),
        (500, "max-age=1, must-understand", Some(DeclineReason::MustUnderstand)),
        (599, "max-age=3600, no-store, must-understand", Some(DeclineReason::MustUnderstand)),
        (599, "max-age=1", None),
        // It must stand in the field that governs.
        (200, "max-age=1, no-store", Some(DeclineReason::NoStore)),
    ] {
        assert_eq!(refused(status, &[("cache-control", line)]), expected, "{status} {line}");
    }
}

#[test]
fn nothing_that_cache_for_says_lifts_a_prohibition() {
    let cache_for = CacheFor::new(Duration::from_secs(9)).public();
    for (name, value) in [
        ("cache-control", "no-store"),
        ("cache-control", "private"),
        ("cache-control", "no-cache"),
        ("set-cookie", "a=b"),
        ("vary", "*"),
        ("content-type", "text/event-stream"),
    ] {
        let decision =
            decide(&anonymous(), &response(200, &[(name, value)]), Some(&cache_for), &layer());
        assert!(refusal(&decision).is_some(), "{name}: {value}");
    }
}

#[test]
fn cookies_are_refused_unless_the_user_says_otherwise() {
    let judge = |config: &HttpConfig, fields: &[_]| {
        decide(&anonymous(), &response(200, fields), None, config)
    };
    let plain = [("set-cookie", "a=b")];
    assert_eq!(refusal(&judge(&layer(), &plain)), Some(DeclineReason::SetCookie));
    let withheld = [("set-cookie", "a=b"), ("cache-control", "no-cache=\"Set-Cookie\"")];
    assert_eq!(refusal(&judge(&layer(), &withheld)), None);
    let stripped = judge(&cookies(SetCookie::Strip), &plain);
    assert!(matches!(stripped, Ok(Plan { strip_set_cookie: true, .. })));
}

#[test]
fn cookies_are_stored_explicitly_only_if_they_are_nobodys() {
    let config = cookies(SetCookie::Explicit);
    let fresh = ("cache-control", "public, max-age=1");
    let judge = |asked: &RequestFacts, fields: &[_]| {
        refusal(&decide(asked, &response(200, fields), None, &config))
    };
    assert_eq!(judge(&anonymous(), &[fresh, ("set-cookie", "a=b; Secure")]), None);
    assert_eq!(
        judge(&anonymous(), &[("set-cookie", "a=b")]),
        Some(DeclineReason::SetCookie),
        "by ttl"
    );
    assert_eq!(
        judge(&with(Credentials::COOKIE), &[fresh, ("set-cookie", "a=b")]),
        Some(DeclineReason::Credentials)
    );
    for cookie in ["a=b; HTTPONLY", "a=b;httponly=x", "__Host-a=b", " __secure-a=b", "=__Host-a"] {
        let fields = [fresh, ("set-cookie", "a=b"), ("set-cookie", cookie)];
        assert_eq!(judge(&anonymous(), &fields), Some(DeclineReason::SetCookie), "{cookie}");
    }
    let expires = ("expires", "Sun, 06 Nov 2094 08:49:37 GMT");
    assert_eq!(judge(&anonymous(), &[expires, ("set-cookie", "a=b")]), None);
    for not_explicit in [("cache-control", "max-age=x, stale-while-revalidate=9"), ("expires", "0")]
    {
        let fields = [not_explicit, ("set-cookie", "a=b")];
        assert_eq!(
            judge(&anonymous(), &fields),
            Some(DeclineReason::SetCookie),
            "{not_explicit:?}"
        );
    }
    let assumed = HttpConfig { set_cookie: SetCookie::Explicit, ..HttpConfig::default() };
    let fields = [("last-modified", "Sat, 05 Nov 1994 08:49:37 GMT"), ("set-cookie", "a=b")];
    let by_heuristics = decide(&anonymous(), &response(200, &fields), None, &assumed);
    assert_eq!(refusal(&by_heuristics), Some(DeclineReason::SetCookie), "by heuristics");
    let cache_for = CacheFor::new(Duration::from_secs(9));
    let parts = response(200, &[fresh, ("set-cookie", "a=b")]);
    let by_handler = decide(&anonymous(), &parts, Some(&cache_for), &config);
    assert_eq!(refusal(&by_handler), Some(DeclineReason::SetCookie), "by CacheFor");
}

#[test]
fn a_response_to_credentials_is_stored_only_by_permission() {
    // RFC 9111, 3.5; `must-revalidate` speaks of Authorization alone.
    let refused = Some(DeclineReason::Credentials);
    for (line, authorization, other) in [
        ("max-age=1", refused, refused),
        ("max-age=1, public", None, None),
        ("s-maxage=1", None, None),
        ("s-maxage=x", refused, refused),
        ("max-age=1, must-revalidate", None, refused),
        ("max-age=1, proxy-revalidate", refused, refused),
    ] {
        let parts = response(200, &[("cache-control", line), ("etag", "\"a\"")]);
        let judge = |kind| refusal(&decide(&with(kind), &parts, None, &layer()));
        assert_eq!(judge(Credentials::AUTHORIZATION), authorization, "{line}");
        assert_eq!(judge(Credentials::COOKIE), other, "{line}");
        assert_eq!(judge(Credentials::OTHER), other, "{line}");
        assert_eq!(judge(Credentials::AUTHORIZATION | Credentials::COOKIE), other, "{line}");
        assert_eq!(judge(Credentials::NONE), None, "{line}");
    }
}

#[test]
fn cache_for_permits_credentials_only_when_public() {
    let judge = |cache_for: CacheFor| {
        refusal(&decide(&with(Credentials::ALL), &response(200, &[]), Some(&cache_for), &layer()))
    };
    assert_eq!(judge(CacheFor::new(Duration::from_secs(1))), Some(DeclineReason::Credentials));
    assert_eq!(judge(CacheFor::new(Duration::from_secs(1)).public()), None);
    assert_eq!(judge(CacheFor::new(Duration::ZERO)), Some(DeclineReason::Credentials));
}

fn answers(
    from: Credentials,
    status: u16,
    line: &str,
    cache_for: Option<&CacheFor>,
    to: Credentials,
) -> bool {
    // With a validator, so that also what is never fresh is stored.
    let head = response(status, &[("cache-control", line), ("etag", "\"a\"")]);
    let Ok(plan) = decide(&with(from), &head, cache_for, &layer()) else {
        panic!("{line} is storable");
    };
    let stored = CachedResponse::new(
        &head,
        Content::Whole(bytes::Bytes::new()),
        &plan,
        &with(from),
        None,
        times(0).response,
    );
    may_answer(&stored.facts, &with(to))
}

#[test]
fn a_credentialed_request_is_answered_only_with_what_permits_it() {
    use Credentials as C;
    for (from, line, to, expected) in [
        (C::NONE, "max-age=1", C::NONE, true),
        (C::NONE, "max-age=1", C::AUTHORIZATION, false),
        (C::NONE, "max-age=1", C::OTHER, false),
        // The request had no credentials, and the origin knows of caches.
        (C::NONE, "max-age=1", C::COOKIE, true),
        (C::NONE, "max-age=1", C::COOKIE | C::AUTHORIZATION, false),
        (C::NONE, "", C::COOKIE, false),
        (C::NONE, "max-age=x", C::COOKIE, false),
        // What the layer or a rule of thumb lets live has no word of the origin's.
        (C::NONE, "public", C::ALL, false),
        (C::NONE, "public, max-age=1", C::ALL, true),
        (C::NONE, "max-age=1, must-revalidate", C::AUTHORIZATION, true),
        (C::NONE, "max-age=1, must-revalidate", C::COOKIE | C::AUTHORIZATION, true),
        (C::NONE, "must-revalidate", C::COOKIE | C::AUTHORIZATION, false),
        (C::AUTHORIZATION, "max-age=1, must-revalidate", C::NONE, true),
        (C::AUTHORIZATION, "max-age=1, must-revalidate", C::AUTHORIZATION, true),
        (C::AUTHORIZATION, "max-age=1, must-revalidate", C::COOKIE, false),
        (C::COOKIE, "s-maxage=1", C::ALL, true),
    ] {
        assert_eq!(answers(from, 200, line, None, to), expected, "{from:?} {line} {to:?}");
    }
    let cache_for = CacheFor::new(Duration::from_secs(1));
    assert!(!answers(C::NONE, 200, "", Some(&cache_for), C::COOKIE));
    assert!(!answers(C::NONE, 200, "max-age=1", Some(&cache_for), C::COOKIE), "lives by CacheFor");
    assert!(answers(C::NONE, 200, "", Some(&cache_for.public()), C::COOKIE));
}

#[test]
fn log_in_first_is_no_answer_to_somebody_who_has() {
    for status in [401, 403, 407] {
        assert!(!answers(
            Credentials::NONE,
            status,
            "public, max-age=1",
            None,
            Credentials::COOKIE
        ));
        assert!(answers(Credentials::NONE, status, "public, max-age=1", None, Credentials::NONE));
    }
}

#[test]
fn only_get_fills() {
    let head = RequestFacts { method: RequestMethod::Head, ..anonymous() };
    assert_eq!(
        refusal(&decide(&head, &response(200, &[]), None, &layer())),
        Some(DeclineReason::Method)
    );
}

#[test]
fn a_post_is_stored_for_get_only_as_the_resource_itself() {
    // RFC 9110, 9.3.3
    let target = Uri::from_static("http://h/a");
    let fresh = ("cache-control", "max-age=1");
    let judge = |method: Method, credentials, status, fields: &[_]| {
        let parts = response(status, fields);
        let (asked, config, times) = (&with(credentials), &layer(), times(0));
        let parts = &parts;
        let facts = ResponseFacts { asked, parts, length: None, cache_for: None, config, times };
        refusal(&facts.judge_post(&method, &target))
    };
    let here = [fresh, ("content-location", "/a")];
    assert_eq!(judge(Method::POST, Credentials::NONE, 200, &here), None);
    let elsewhere = Some(DeclineReason::OtherResource);
    assert_eq!(judge(Method::PUT, Credentials::NONE, 200, &here), elsewhere);
    assert_eq!(judge(Method::POST, Credentials::NONE, 303, &here), elsewhere);
    assert_eq!(judge(Method::POST, Credentials::NONE, 200, &[fresh]), elsewhere);
    assert_eq!(
        judge(Method::POST, Credentials::NONE, 200, &[fresh, ("content-location", "/b")]),
        elsewhere
    );
    let by_ttl = judge(Method::POST, Credentials::NONE, 200, &[("content-location", "/a")]);
    assert_eq!(by_ttl, Some(DeclineReason::NoFreshness));
    let public = [("cache-control", "public, max-age=1"), ("content-location", "http://h/a")];
    assert_eq!(
        judge(Method::POST, Credentials::COOKIE, 200, &public),
        Some(DeclineReason::Credentials)
    );
}

#[test]
fn the_marker_is_set_by_what_a_response_says_not_by_one_request() {
    let ok = StatusCode::OK;
    for refusal in [
        DeclineReason::NoStore,
        DeclineReason::Private,
        DeclineReason::SetCookie,
        DeclineReason::NoFreshness,
    ] {
        assert!(refusal.marks_uncacheable(ok), "{refusal:?}");
        assert!(!refusal.marks_uncacheable(StatusCode::NOT_FOUND), "{refusal:?}");
    }
    for refusal in [DeclineReason::VaryAny, DeclineReason::TooLarge] {
        assert!(refusal.marks_uncacheable(ok), "{refusal:?}");
        assert!(refusal.marks_uncacheable(StatusCode::NOT_FOUND), "{refusal:?}");
        assert!(!refusal.marks_uncacheable(StatusCode::BAD_REQUEST), "{refusal:?}");
    }
    for refusal in [
        DeclineReason::Credentials,
        DeclineReason::Status,
        DeclineReason::Method,
        DeclineReason::BrokenOff,
    ] {
        assert!(!refusal.marks_uncacheable(ok), "{refusal:?}");
    }
}

proptest! {
    #[test]
    fn no_response_makes_it_panic(status in 100_u16..1000, fields: Vec<(u8, Vec<u8>)>, credentials in 0_u8..8) {
        let names = ["cache-control", "vary", "set-cookie", "content-length", "content-type", "age", "date"];
        let mut parts = response(status, &[]);
        for (name, value) in fields {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                parts.headers.append(names[usize::from(name) % names.len()], value);
            }
        }
        let kinds = [Credentials::AUTHORIZATION, Credentials::COOKIE, Credentials::OTHER];
        let carried = (0..3).filter(|bit| credentials >> bit & 1 == 1);
        let carried = carried.fold(Credentials::NONE, |all, bit| all | kinds[bit]);
        for set_cookie in [SetCookie::Refuse, SetCookie::Strip, SetCookie::Explicit] {
            let _ = decide(&with(carried), &parts, None, &cookies(set_cookie));
        }
    }

    #[test]
    fn nothing_is_stored_with_no_store_or_private_anywhere(
        before in "([a-z-]{1,9}(=\"[a-z, ]{0,5}\")?, ?){0,3}",
        after in "(, ?[a-z-]{1,9}(=[0-9]{1,3})?){0,3}",
        forbidding in "(?i)no-store|private",
        other in "public, max-age=9|s-maxage=9|",
        first: bool,
    ) {
        prop_assume!(!before.contains("must-understand") && !after.contains("must-understand"));
        let line = format!("{before}{forbidding}{after}");
        let mut lines = [("cache-control", line.as_str()), ("cache-control", other.as_str())];
        if first {
            lines.reverse();
        }
        let cache_for = CacheFor::new(Duration::from_secs(9)).public();
        prop_assert!(refusal(&decide(&anonymous(), &response(200, &lines), Some(&cache_for), &layer())).is_some());
    }
}
