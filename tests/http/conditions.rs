//! Conditions of clients: which clients get a 304, from the cache or the
//! origin, and which of the two is asked for it.

use tower_stampede::CacheOutcome::*;
use tower_stampede::{Mode, SetCookie};

use crate::kit::http::*;

const REPORT: &str = "http://x/report";
const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const THEN: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const LATER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";
/// For responses that are as old as their date says.
const LONG: &str = "max-age=2000000000";

fn tagged(directives: &'static str) -> Origin {
    Origin::new(move |call| {
        let answer = Answer::ok(directives, "report").header("etag", "\"a\"");
        match call.header("if-none-match") {
            Some(_) => Answer::status(304).header("etag", "\"a\""),
            None => answer.header("content-type", "text/plain").header("last-modified", THEN),
        }
    })
}

fn if_none_match(tag: &str) -> http::Request<axum::body::Body> {
    with(REPORT, &[("if-none-match", tag)])
}

fn is_bare_304(reply: &Reply) -> bool {
    reply.status == 304 && reply.body.is_empty() && reply.header("content-length").is_none()
}

// ===== From the store =====

#[tokio::test(start_paused = true)]
async fn a_client_that_has_the_stored_response_gets_a_304() {
    let origin = tagged("max-age=60");
    let app = app(&origin);
    send(&app, get(REPORT)).await;
    for (fields, status) in [
        (&[("if-none-match", "\"a\"")][..], 304),
        (&[("if-none-match", "W/\"a\"")], 304),
        (&[("if-none-match", "\"x\", \"a\", \"y\"")], 304),
        (&[("if-none-match", "\"x\""), ("if-none-match", "\"a\"")], 304),
        (&[("if-none-match", "*")], 304),
        (&[("if-none-match", "\"x\"")], 200),
        (&[("if-none-match", "a")], 200),
        (&[("if-none-match", "")], 200),
        (&[("if-modified-since", THEN)], 304),
        (&[("if-modified-since", LATER)], 304),
        (&[("if-modified-since", EARLIER)], 200),
        (&[("if-modified-since", "Sunday, 06-Nov-94 08:49:37 GMT")], 304),
        (&[("if-modified-since", "x")], 200),
        (&[("if-modified-since", THEN), ("if-modified-since", THEN)], 200),
        // RFC 9110, 13.2.2
        (&[("if-none-match", "\"a\""), ("if-modified-since", EARLIER)], 304),
        (&[("if-none-match", "\"x\""), ("if-modified-since", LATER)], 200),
        (&[("if-none-match", "\"a\""), ("range", "bytes=0-1")], 304),
    ] {
        for method in ["GET", "HEAD"] {
            let reply = send(&app, request(method, REPORT, fields)).await;
            assert_eq!(reply.status, status, "{method} {fields:?}");
            assert!(reply.is(Hit));
            assert_eq!(is_bare_304(&reply), status == 304);
        }
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_a_date_of_change_the_date_of_the_response_is_compared() {
    // RFC 9111, 4.3.2
    let origin = Origin::new(|_| Answer::ok(LONG, "report").header("date", THEN));
    let app = app(&origin);
    send(&app, get(REPORT)).await;
    for (since, status) in [(EARLIER, 200), (THEN, 304), (LATER, 304)] {
        let reply = send(&app, with(REPORT, &[("if-modified-since", since)])).await;
        assert_eq!(reply.status, status, "{since}");
        assert!(reply.is(Hit));
    }
}

#[tokio::test(start_paused = true)]
async fn a_304_carries_what_a_200_would_but_not_what_describes_a_body() {
    // RFC 9110, 15.4.5
    let origin = Origin::new(|_| {
        Answer::ok(LONG, "report")
            .header("etag", "\"a\"")
            .header("last-modified", THEN)
            .header("date", LATER)
            .header("expires", LATER)
            .header("content-location", "/report.txt")
            .header("vary", "accept")
            .header("content-type", "text/plain")
            .header("content-language", "en")
            .header("content-length", "6")
            .header("access-control-allow-origin", "*")
    });
    let app = app(&origin);
    send(&app, get(REPORT)).await;
    let reply = send(&app, if_none_match("\"a\"")).await;
    assert!(reply.is(Hit) && is_bare_304(&reply));
    assert!(reply.header("age").is_some());
    assert!(reply.cache_status().starts_with("tower-stampede; hit; ttl="));
    for (name, value) in [
        ("cache-control", LONG),
        ("content-location", "/report.txt"),
        ("date", LATER),
        ("etag", "\"a\""),
        ("expires", LATER),
        ("vary", "accept"),
        ("access-control-allow-origin", "*"),
    ] {
        assert_eq!(reply.header(name), Some(value), "{name}");
    }
    for name in ["content-type", "content-language", "content-length", "last-modified"] {
        assert_eq!(reply.header(name), None, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_stored_2xx_is_compared() {
    // RFC 9111, 4.3.2; RFC 9110, 13.2.1
    for status in [301, 404, 410, 500] {
        let origin = Origin::new(move |_| {
            let answer = Answer::status(status).header("cache-control", "max-age=60");
            answer.header("etag", "\"a\"").header("last-modified", THEN).body("gone")
        });
        let app = app(&origin);
        for fields in
            [("if-none-match", "\"a\""), ("if-none-match", "*"), ("if-modified-since", LATER)]
        {
            let reply = send(&app, with(REPORT, &[fields])).await;
            assert_eq!((reply.status, reply.text()), (status, "gone"), "{fields:?}");
        }
        assert_eq!(origin.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_served_stale_is_compared_too() {
    let origin = tagged("max-age=10, stale-while-revalidate=60");
    let app = app(&origin);
    send(&app, get(REPORT)).await;
    pass(secs(20)).await;
    let reply = send(&app, if_none_match("\"a\"")).await;
    assert!(reply.is(Stale) && is_bare_304(&reply));
    assert!(reply.cache_status().contains("hit; ttl=-"), "{}", reply.cache_status());
}

// ===== On a miss =====

#[tokio::test(start_paused = true)]
async fn each_of_a_crowd_has_its_own_condition_judged_after_one_call() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report").header("etag", "\"a\""));
    let app = app(&origin);
    for first in 0..3 {
        let uri = format!("http://x/{first}");
        let replies = crowd(&app, 30, |i| match (first + i) % 3 {
            0 => with(&uri, &[("if-none-match", "\"a\"")]),
            1 => with(&uri, &[("if-none-match", "\"b\"")]),
            _ => get(&uri),
        });
        for (i, reply) in replies.await.iter().enumerate() {
            let has_it = (first + i) % 3 == 0;
            assert_eq!(is_bare_304(reply), has_it, "{first} {i}");
            assert_eq!(reply.text(), if has_it { "" } else { "report" });
            assert!(reply.is(if i == 0 { Computed } else { Joined }));
            // RFC 9211, 2.3: what the origin answered, not what we make of it.
            assert!(reply.cache_status().contains("fwd-status=200"));
        }
    }
    assert_eq!(origin.calls(), 3);
    assert!(origin.seen().iter().all(|call| call.parts.headers.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn a_condition_is_judged_by_a_response_that_may_not_be_stored_too() {
    for directives in ["private", "no-store"] {
        let origin = Origin::new(move |_| Answer::ok(directives, "mine").header("etag", "\"a\""));
        let app = app(&origin);
        let reply = send(&app, if_none_match("\"a\"")).await;
        assert!(is_bare_304(&reply), "{reply:?}");
        assert!(reply.cache_status().contains("fwd-status=200; detail="));
        assert_eq!(origin.last().header("if-none-match"), None, "no marker says so yet");
        pass(secs(60)).await;
        let reply = send(&app, if_none_match("\"b\"")).await;
        assert_eq!((reply.status, reply.text()), (200, "mine"));
    }
    let origin = Origin::new(|_| Answer::ok("private", "mine"));
    for condition in [("if-none-match", "*"), ("if-modified-since", LATER)] {
        let reply = send(&app(&origin), with(REPORT, &[condition])).await;
        assert_eq!((reply.status, reply.text()), (200, "mine"), "it has no validator");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cookie_that_is_not_stored_reaches_the_client_it_was_for_with_a_304_too() {
    let origin = Origin::new(|_| {
        Answer::ok("max-age=60", "").header("etag", "\"a\"").header("set-cookie", "a=b")
    });
    let app = layered(origin_only().http_layer().set_cookie(SetCookie::Strip), &origin);
    let replies = crowd(&app, 2, |_| if_none_match("\"a\"")).await;
    assert!(replies.iter().all(is_bare_304));
    assert_eq!(replies[0].header("set-cookie"), Some("a=b"));
    assert_eq!(replies[1].header("set-cookie"), None);
}

#[tokio::test(start_paused = true)]
async fn where_answers_are_not_shared_conditions_are_the_origins() {
    for (directives, credentials) in
        [("private", None), ("no-store", None), ("max-age=60", Some("id=mine"))]
    {
        let origin = tagged(directives);
        let app = app(&origin);
        let cookie = credentials.map(|cookie| ("cookie", cookie));
        let fields: Vec<_> = [("if-none-match", "\"a\"")].into_iter().chain(cookie).collect();
        let first = send(&app, with(REPORT, &fields)).await;
        assert!(is_bare_304(&first) && first.cache_status().contains("fwd-status=200"));
        let replies = crowd(&app, 10, |_| with(REPORT, &fields)).await;
        for reply in &replies {
            assert!(is_bare_304(reply));
            assert!(reply.cache_status().contains("fwd-status=304"));
        }
        assert_eq!(slowest(&replies), WORK, "{directives}");
        assert_eq!(origin.last().header("if-none-match"), Some("\"a\""));
        assert_eq!(origin.calls(), 11);
    }
}

#[tokio::test(start_paused = true)]
async fn a_304_for_one_client_neither_fills_nor_marks_a_key() {
    let origin = tagged("private");
    let app = app(&origin);
    send(&app, get(REPORT)).await;
    // The mark is not renewed by what a condition was answered.
    pass(secs(20)).await;
    assert_eq!(send(&app, if_none_match("\"a\"")).await.status, 304);
    pass(secs(15)).await;
    origin.answers(|_| Answer::ok("max-age=60", "report").header("etag", "\"a\""));
    let replies = crowd(&app, 10, |_| get(REPORT)).await;
    assert!(replies.iter().all(|reply| reply.status == 200 && reply.text() == "report"));
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn waiters_of_what_may_not_be_shared_ask_with_their_own_conditions() {
    let origin = tagged("private");
    let app = app(&origin);
    let replies = crowd(&app, 3, |i| if i == 0 { get(REPORT) } else { if_none_match("\"a\"") });
    let replies = replies.await;
    assert_eq!(replies[0].status, 200);
    assert!(replies[1..].iter().all(|reply| is_bare_304(reply) && reply.is(Alone)));
}

#[tokio::test(start_paused = true)]
async fn conditions_on_what_must_not_have_changed_go_past_the_cache() {
    // RFC 9110, 13.1.1 and 13.1.4: they protect the resource, not a copy.
    for name in ["if-match", "if-unmodified-since"] {
        let origin = Origin::new(|_| Answer::ok("max-age=60", "report"));
        let app = app(&origin);
        send(&app, get(REPORT)).await;
        let reply = send(&app, with(REPORT, &[(name, THEN)])).await;
        assert!(reply.is(Bypass));
        assert!(reply.cache_status().ends_with("fwd=bypass; fwd-status=200; detail=conditional"));
        assert_eq!(origin.last().header(name), Some(THEN));
    }
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_is_switched_off_leaves_conditions_alone() {
    for mode in [Mode::Off, Mode::Observe] {
        let cache = origin_only();
        let origin = tagged("max-age=60");
        let app = layered(cache.http_layer(), &origin);
        send(&app, get(REPORT)).await;
        cache.set_mode(mode);
        assert!(is_bare_304(&send(&app, if_none_match("\"x\"")).await), "the origin's word");
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_no_match() {
    let origin = Origin::new(|_| Answer::status(503).header("etag", "\"a\"").body("broken"));
    let app = app(&origin);
    let replies = crowd(&app, 3, |_| if_none_match("*")).await;
    assert!(replies.iter().all(|reply| reply.status == 503));
    assert_eq!(origin.calls(), 1);
}

// ===== After a validation =====

#[tokio::test(start_paused = true)]
async fn a_validation_asks_with_our_validators_and_answers_by_each_clients_own() {
    let origin = tagged("max-age=10");
    let app = app(&origin);
    send(&app, get(REPORT)).await;
    for first in 0..3 {
        pass(secs(20)).await;
        let replies = crowd(&app, 9, |i| match (first + i) % 3 {
            0 => if_none_match("\"a\""),
            1 => if_none_match("\"b\""),
            _ => with(REPORT, &[("if-none-match", "\"b\""), ("range", "bytes=0-1")]),
        });
        for (i, reply) in replies.await.iter().enumerate() {
            let kind = (first + i) % 3;
            assert_eq!(origin.last().header("if-none-match"), Some("\"a\""));
            match kind {
                0 => assert!(is_bare_304(reply), "{first} {i}"),
                1 => assert_eq!((reply.status, reply.text()), (200, "report"), "{first} {i}"),
                _ => assert!(reply.status == 206 || i == 0, "{first} {i}"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_about_each_time_is_answered_by_each_clients_own_condition() {
    let origin = tagged("no-cache");
    let app = app(&origin);
    send(&app, get(REPORT)).await;
    for (tag, status, text) in [("\"a\"", 304, ""), ("\"b\"", 200, "report")] {
        let reply = send(&app, if_none_match(tag)).await;
        assert_eq!((reply.status, reply.text()), (status, text), "{tag}");
        assert_eq!(origin.last().header("if-none-match"), Some("\"a\""));
    }
}

#[tokio::test(start_paused = true)]
async fn a_tag_without_quotation_marks_is_compared_byte_by_byte() {
    let origin = Origin::new(|call| match call.header("if-none-match") {
        Some("v1") => Answer::status(304).header("etag", "v1").header("cache-control", "max-age=9"),
        _ => Answer::ok("max-age=9", "page").header("etag", "v1"),
    });
    let app = app(&origin);
    send(&app, get("/report")).await;
    for (tag, status) in [("v1", 304), ("V1", 200), ("\"v1\"", 200), ("v2, v1", 200)] {
        let reply = send(&app, with("/report", &[("if-none-match", tag)])).await;
        assert_eq!(reply.status, status, "{tag}");
    }
    assert_eq!(origin.calls(), 1);
    // The origin is asked with the tag as it has sent it.
    pass(secs(10)).await;
    assert_eq!(send(&app, get("/report")).await.text(), "page");
    assert_eq!(origin.last().header("if-none-match"), Some("v1"));
    assert!(send(&app, get("/report")).await.is(tower_stampede::CacheOutcome::Hit));
}
