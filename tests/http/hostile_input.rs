//! Input that no well-meaning client or origin sends: bounded work, no panic,
//! a clear answer, and nothing stored that may not be.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use http_body::{Frame, SizeHint};
use tower_stampede::CacheOutcome::*;
use tower_stampede::{CacheFor, SetCookie};

use crate::kit::http::*;

/// As many different fields as a map takes.
const FULL: usize = 24_576;

fn nth_field(n: usize) -> HeaderName {
    HeaderName::try_from(format!("h{n}")).unwrap()
}

/// Adds fields until the map takes no more.
fn fill(headers: &mut HeaderMap) {
    let mut n = 0;
    while headers.try_append(nth_field(n), HeaderValue::from_static("")).is_ok() {
        n += 1;
    }
    assert!(headers.keys_len() >= FULL, "it is full");
}

/// An answer with these fields, and `body`.
fn answer(fields: &[(&str, &str)], body: impl Into<Body>) -> Answer {
    fields
        .iter()
        .fold(Answer::status(200), |answer, (name, value)| answer.header(name, value))
        .body(body)
}

/// Whether the second of two requests is answered from the store.
async fn is_stored(fields: &[(&str, &str)]) -> bool {
    let fields: Vec<_> = fields.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    let origin = Origin::new(move |call| {
        let fields: Vec<_> = fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        answer(&fields, call.n.to_string())
    });
    let app = app(&origin);
    assert_eq!(send(&app, get("/report")).await.text(), "0");
    let reply = send(&app, get("/report")).await;
    assert_eq!(reply.is(Hit), reply.text() == "0");
    reply.is(Hit)
}

// ===== Numbers and dates =====

#[tokio::test(start_paused = true)]
async fn numbers_beyond_all_numbers_mean_the_largest() {
    let digits = "9".repeat(25_000);
    for (fields, stored) in [
        // RFC 9111, 1.2.2 and 5.1
        (&[("cache-control", "max-age=60"), ("age", "18446744073709551615")][..], false),
        (&[("cache-control", "max-age=60"), ("age", "18446744073709551616")], false),
        (&[("cache-control", "max-age=60"), ("age", &digits)], false),
        (&[("cache-control", "max-age=2147483648"), ("age", "18446744073709551616")], false),
        (&[("cache-control", "max-age=60"), ("age", "-1")], true),
        (&[("cache-control", "max-age=60"), ("age", "1e9")], true),
        (&[("cache-control", "max-age=60"), ("age", "")], true),
        (&[("cache-control", "max-age=99999999999999999999")], true),
        (&[("cache-control", &format!("max-age={digits}"))], true),
        (&[("cache-control", &format!("s-maxage={digits}, stale-if-error={digits}"))], true),
        (&[("cdn-cache-control", "max-age=999999999999999")], true),
        // RFC 9651, 3.3.1: no more than fifteen digits.
        (&[("cdn-cache-control", "max-age=9999999999999999")], false),
        // RFC 9111, 4.2.1
        (&[("cache-control", "max-age=-1")], false),
        (&[("cache-control", "max-age=1.5")], false),
        (&[("cache-control", "max-age=0x60")], false),
    ] {
        let row = format!("{fields:?}");
        assert_eq!(is_stored(fields).await, stored, "{row:.100}");
    }
}

#[tokio::test(start_paused = true)]
async fn dates_beyond_all_time_are_no_dates() {
    let long = "Fri, 31 Dec 9999 23:59:59 GMT".repeat(1000);
    for (fields, stored) in [
        // RFC 9111, 4.2 and 5.3
        (&[("expires", "Sat, 01 Jan 1000000 00:00:00 GMT")][..], false),
        (&[("expires", "Fri, 31 Dec 9999 23:59:59 GMT")], true),
        (&[("expires", "Fri, 31 Dec 9999 23:59:61 GMT")], false),
        (&[("expires", "Thu, 01 Jan 0000 00:00:00 GMT")], false),
        (&[("expires", "Fri, 30 Feb 2400 00:00:00 GMT")], false),
        (&[("expires", "0")], false),
        (&[("expires", "-1")], false),
        (&[("expires", "")], false),
        (&[("expires", "\"\\")], false),
        (&[("expires", &long)], false),
        // An invalid date is that of receipt (RFC 9110, 6.6.1).
        (&[("cache-control", "max-age=60"), ("date", "Sat, 01 Jan 1000000 00:00:00 GMT")], true),
        (&[("cache-control", "max-age=60"), ("date", &long)], true),
        (&[("cache-control", "max-age=60"), ("date", "Fri, 31 Dec 9999 23:59:59 GMT")], true),
        // RFC 9111, 4.2.3: it has been under way since then.
        (&[("cache-control", "max-age=60"), ("date", "Thu, 01 Jan 1970 00:00:00 GMT")], false),
        // Heuristics of a time that has not come.
        (&[("last-modified", "Sat, 01 Jan 1000000 00:00:00 GMT")], false),
        (&[("last-modified", "Fri, 31 Dec 9999 23:59:59 GMT")], false),
    ] {
        let row = format!("{fields:?}");
        assert_eq!(is_stored(fields).await, stored, "{row:.100}");
    }
}

// ===== Fields of a response =====

#[tokio::test(start_paused = true)]
async fn fields_over_the_limit_pass_and_are_not_stored() {
    let large = "x".repeat(64 << 10);
    assert!(!is_stored(&[("cache-control", "max-age=60"), ("x", &large)]).await);
    assert!(!is_stored(&[("cache-control", &format!("max-age=60, x={large}"))]).await);
    let cookie = ("set-cookie", "a=b");
    let mut flood = vec![cookie; 10_000];
    flood.push(("cache-control", "max-age=60"));
    assert!(!is_stored(&flood).await);
}

#[tokio::test(start_paused = true)]
async fn directives_that_fill_a_whole_field_are_read_once() {
    let fill = |member: &str| member.repeat(60_000 / member.len());
    for (line, stored) in [
        (format!("{}max-age=60", fill("x,")), true),
        (format!("{}max-age=60", fill(" , \t,")), true),
        (format!("{}max-age=60", fill("max-age=60,")), true),
        (format!("{}max-age=61", fill("max-age=60,")), false),
        (format!("max-age=60, x=\"{}\"", fill("\\\"")), true),
        (format!("max-age=60, x=\"{}", fill("\\\"")), false),
        (format!("max-age=60, {}", fill("\"")), false),
        (format!("max-age=60, {}=", fill("=")), false),
        (format!("max-age=60{}", fill(";")), false),
    ] {
        assert_eq!(is_stored(&[("cache-control", &line)]).await, stored, "{line:.60}");
    }
}

#[tokio::test(start_paused = true)]
async fn bombs_of_structure_do_not_unfold() {
    let fill = |member: &str| member.repeat(60_000 / member.len());
    for (line, stored) in [
        // RFC 9651, 4.2: inner lists do not nest, and a field that fails as a
        // whole leaves it to `Cache-Control`, which forbids here.
        (fill("("), false),
        (format!("a={}", fill("(")), false),
        (format!("a=({})", fill("1 ")), false),
        (format!("max-age=60, a=({})", fill("1 ")), true),
        (format!("max-age=60;{}", fill("a;")), false),
        (format!("max-age=60{}", fill(";a=1")), true),
        (format!("max-age=60{}", fill(", a")), true),
        (format!("max-age=60, a=:{}:", fill("AAAA")), true),
        (format!("max-age=60, a=\"{}", fill("\\\\")), false),
        (format!("{}max-age=60", fill("max-age=1, ")), true),
    ] {
        let fields = [("cdn-cache-control", &*line), ("cache-control", "no-store")];
        assert_eq!(is_stored(&fields).await, stored, "{line:.60}");
    }
}

/// A list that is sorted for each name would take many minutes.
#[tokio::test(start_paused = true)]
async fn names_of_withheld_fields_cost_no_more_than_their_number() {
    let mut line = "max-age=60".to_owned();
    for n in 0..60_000 {
        write!(line, ",private=\"h{n}\"").unwrap();
    }
    let origin = Origin::new(move |_| Answer::ok(&line, "x"));
    let began = std::time::Instant::now();
    for layer in [origin_only().http_layer(), origin_only().http_layer().max_header_bytes(64 << 20)]
    {
        let app = layered(layer, &origin);
        assert_eq!(send(&app, get("/report")).await.text(), "x");
    }
    assert!(began.elapsed() < secs(20), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_map_that_is_full_to_the_brim_passes() {
    let full = |method: &str, status: u16, fields: &[(&'static str, &'static str)]| {
        let mut answer = Answer::status(status).body(if method == "HEAD" { "" } else { "x" });
        for (name, value) in fields {
            answer = answer.header(name, value);
        }
        for n in fields.len()..FULL {
            answer = answer.header(nth_field(n).as_str(), "");
        }
        answer
    };
    // The first answer and the one to whatever is asked about it.
    let small = || Answer::ok("max-age=1", "x").header("etag", "\"a\"");
    let confirms = [("cache-control", "max-age=60"), ("etag", "\"a\"")];
    for second in ["GET", "HEAD"] {
        for first_is_full in [false, true] {
            let origin = Origin::new(move |call| match (call.n, call.parts.method.as_str()) {
                (0, _) if !first_is_full => small(),
                (0, _) => full("GET", 200, &confirms),
                (_, "HEAD") => full("HEAD", 200, &confirms),
                _ if call.header("if-none-match").is_some() => full("GET", 304, &confirms),
                (_, method) => full(method, 200, &confirms),
            });
            let layer = origin_only().http_layer().max_header_bytes(64 << 20);
            let app = layered(layer, &origin);
            let reply = send(&app, get("/report")).await;
            assert_eq!((reply.status, reply.text()), (200, "x"));
            pass(secs(2)).await;
            for _ in 0..2 {
                let reply = send(&app, request(second, "/report", &[])).await;
                assert_eq!(reply.status, 200, "{second} {first_is_full}");
                assert!(!reply.broken);
            }
            let reply = send(&app, with("/report", &[("range", "bytes=0-0")])).await;
            assert!(matches!(reply.status, 200 | 206));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_cookies_or_tags_is_not_stored() {
    let origin = Origin::new(|call| {
        let tags = (0..10_000).fold(CacheFor::new(secs(60)), |said, n| said.tag(format!("t{n}")));
        let answer = Answer::status(200).body(call.n.to_string());
        if call.uri().ends_with("tags") {
            answer.extension(tags)
        } else {
            (0..5_000).fold(answer.header("cache-control", "max-age=60"), |a, n| {
                a.header("set-cookie", &format!("c{n}=1"))
            })
        }
    });
    let layer = origin_only().http_layer().set_cookie(SetCookie::Strip).max_header_bytes(1 << 20);
    let app = layered(layer, &origin);
    for _ in 0..2 {
        assert!(!send(&app, get("/tags")).await.is(Hit));
    }
    assert_eq!(
        send(&app, get("/cookies")).await.all("set-cookie").len(),
        5_000,
        "its own client's"
    );
    let reply = send(&app, get("/cookies")).await;
    assert!(reply.is(Hit) && reply.all("set-cookie").is_empty());
}

// ===== Variants =====

fn speaks(lines: usize) -> Request<Body> {
    with("/report", &[("accept-language", &format!("x-{lines}"))])
}

#[tokio::test(start_paused = true)]
async fn a_thousand_variants_of_one_uri_take_no_more_than_their_places() {
    const PLACES: u64 = 8;
    let origin = Origin::new(|call| {
        let vary = if call.uri() == "/report" { "accept-language" } else { "accept-encoding" };
        Answer::ok("max-age=600", call.n.to_string()).header("vary", vary)
    });
    let cache = origin_only();
    let app = layered(cache.http_layer().max_variants(PLACES as usize), &origin);
    send(&app, get("/other")).await;
    for n in 0..1_000 {
        send(&app, speaks(n)).await;
        let reply = send(&app, speaks(0)).await;
        assert!(reply.is(Hit), "what is used is not what makes room, after {n}");
        pass(ms(10)).await;
    }
    // The index and its variants, and the other URI's.
    assert!(cache.stats().entries <= PLACES + 1 + 2, "{:?}", cache.stats());
    assert!(send(&app, get("/other")).await.is(Hit), "the others of its URI make room");
    assert_eq!(origin.calls(), 1_001);
    assert!(send(&app, speaks(999)).await.is(Hit));
    assert!(!send(&app, speaks(500)).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn a_list_of_more_selecting_fields_than_are_looked_at_is_not_stored() {
    let line = |n: usize| (0..n).map(|n| format!("h{n:05}")).collect::<Vec<_>>().join(",");
    let varies = |line: String| async move {
        let origin = Origin::new(move |_| Answer::ok("max-age=60", "").header("vary", &line));
        let app = layered(origin_only().http_layer().max_header_bytes(1 << 20), &origin);
        crowd(&app, 2, |_| get("/report")).await;
        send(&app, get("/report")).await.is(Hit)
    };
    assert!(varies(line(256)).await);
    for n in [257, 10_000] {
        assert!(!varies(line(n)).await, "{n}");
    }
}

// ===== Requests =====

#[tokio::test(start_paused = true)]
async fn ranges_and_conditions_as_long_as_their_fields_are_answered_at_once() {
    let origin = Origin::new(|_| Answer::ok("max-age=600", "0123456789").header("etag", "\"a\""));
    let layer = origin_only().http_layer().max_header_bytes(1 << 20);
    let app = layered(layer, &origin);
    send(&app, get("/report")).await;
    let ranges = format!("bytes={}", "0-0,".repeat(16 << 10));
    let digits = format!("bytes=0-{}", "9".repeat(60_000));
    let spaces = format!("bytes={}0-1", ", ".repeat(30_000));
    let tags = "\"b\",".repeat(16 << 10);
    let ours = format!("{tags}\"a\"");
    let slashes = "W/".repeat(30_000);
    for (name, value, status, body) in [
        ("range", &*ranges, 200, "0123456789"),
        // What is too long is not read: the whole is always a right answer.
        ("range", &digits, 200, "0123456789"),
        ("range", &spaces, 200, "0123456789"),
        ("range", "bytes=18446744073709551616-", 416, ""),
        ("range", "bytes=-18446744073709551616", 206, "0123456789"),
        ("range", "bytes=-0", 416, ""),
        ("range", "bytes=--1", 200, "0123456789"),
        ("if-none-match", &tags, 200, "0123456789"),
        ("if-none-match", &ours, 200, "0123456789"),
        ("if-none-match", "\"b\",\"a\"", 304, ""),
        ("if-none-match", &slashes, 200, "0123456789"),
        ("if-none-match", "\"", 200, "0123456789"),
        ("if-modified-since", "Sat, 01 Jan 1000000 00:00:00 GMT", 200, "0123456789"),
        ("cache-control", &tags, 200, "0123456789"),
    ] {
        let reply = send(&app, with("/report", &[(name, value)])).await;
        assert_eq!((reply.status, reply.text()), (status, body), "{name}: {value:.40}");
        assert!(!reply.broken);
    }
    let many = vec![("if-none-match", "\"b\""); 5_000];
    assert_eq!(origin.calls(), 1);
    assert_eq!(send(&app, with("/report", &many)).await.status, 200);
    assert_eq!(origin.calls(), 2, "too many lines go past the cache");
}

#[tokio::test(start_paused = true)]
async fn a_request_with_too_many_fields_goes_past_the_cache_as_it_is() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.n.to_string()));
    let app = app(&origin);
    send(&app, get("/report")).await;
    let mut request = get("/report");
    fill(request.headers_mut());
    let fields = request.headers().len();
    let reply = send(&app, request).await;
    assert!(reply.is(Bypass) && reply.text() == "1", "{}", reply.cache_status());
    assert_eq!(origin.last().parts.headers.len(), fields);
    assert_eq!(send(&app, get("/report")).await.text(), "0", "and fills nothing");
}

#[tokio::test(start_paused = true)]
async fn a_full_request_is_led_asked_about_and_refreshed_without_a_panic() {
    let origin = Origin::new(|_| {
        Answer::ok("max-age=1, stale-while-revalidate=5", "x").header("etag", "\"a\"")
    });
    let layer = origin_only().http_layer().max_header_bytes(64 << 20);
    let app = layered(layer, &origin);
    for wait in [0, 3, 30] {
        pass(secs(wait)).await;
        let mut request = get("/report");
        fill(request.headers_mut());
        assert_eq!(send(&app, request).await.text(), "x");
    }
    pass(secs(1)).await;
    assert_eq!(origin.calls(), 3);
}

// ===== What a request forbids =====

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_post_that_forbids_storing_is_not_stored() {
    // RFC 9111, 5.2.1.5
    let origin = Origin::new(|call| {
        Answer::ok("max-age=60", call.n.to_string()).header("content-location", "/report")
    });
    let post = |fields: &[(&str, &str)]| request("POST", "http://x/report", fields);
    let app = layered(post_storing(&origin_only()), &origin);
    send(&app, post(&[("cache-control", "no-store")])).await;
    assert_eq!(send(&app, get("http://x/report")).await.text(), "1");
    send(&app, post(&[("cache-control", "\"what\"")])).await;
    assert_eq!(send(&app, get("http://x/report")).await.text(), "3", "nor what nobody can read");
    send(&app, post(&[])).await;
    assert_eq!(send(&app, get("http://x/report")).await.text(), "4");
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_post_that_says_more_than_its_key_is_not_stored() {
    // It reaches the handler as it was, and the key leaves that out.
    let origin = Origin::new(|call| {
        let said = call.header("cookie").unwrap_or("anonymous").to_owned();
        Answer::ok("max-age=60", format!("{said} {}", call.uri()))
            .header("content-location", &call.uri())
    });
    let uri = "http://x/report?page=1";
    let evil = "http://x/report?page=1&utm=evil";
    let layer = || post_storing(&origin_only()).ignore_cookies(["*"]).query(["page"]);
    for (uri_of_post, fields, stored) in
        [(uri, &[("cookie", "alice")][..], false), (evil, &[], false), (uri, &[], true)]
    {
        let app = layered(layer(), &origin);
        send(&app, request("POST", uri_of_post, fields)).await;
        let reply = send(&app, get(uri)).await;
        assert_eq!(reply.is(Hit), stored, "{uri_of_post} {fields:?}");
        assert_eq!(reply.text(), format!("anonymous {uri}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_post_that_the_users_rule_names_stores_nothing_and_yet_invalidates() {
    let origin = Origin::new(|call| {
        Answer::ok("max-age=60", call.n.to_string()).header("content-location", "/report")
    });
    let layer = post_storing(&origin_only());
    let layer = layer.bypass(|parts| parts.headers.contains_key("x-alone"));
    let app = layered(layer, &origin);
    let uri = "http://x/report";
    assert_eq!(send(&app, get(uri)).await.text(), "0");
    send(&app, request("POST", uri, &[("x-alone", "1")])).await;
    let reply = send(&app, get(uri)).await;
    assert!(!reply.is(Hit) && reply.text() == "2");
    send(&app, request("POST", uri, &[])).await;
    let reply = send(&app, get(uri)).await;
    assert!(reply.is(Hit) && reply.text() == "3");
}

#[tokio::test(start_paused = true)]
async fn a_head_that_forbids_storing_brings_nothing_up_to_date() {
    // RFC 9111, 5.2.1.5: no part of the response to it.
    let origin = Origin::new(|call| {
        Answer::ok("max-age=1", if call.n == 0 { "x" } else { "" })
            .header("etag", "\"a\"")
            .header("x-n", &call.n.to_string())
    });
    let app = layered(origin_only().http_layer(), &origin);
    send(&app, get("/report")).await;
    pass(secs(2)).await;
    origin.answers(|call| {
        Answer::ok("max-age=600", "").header("etag", "\"a\"").header("x-n", &call.n.to_string())
    });
    send(&app, request("HEAD", "/report", &[("cache-control", "no-store")])).await;
    assert_eq!(origin.calls(), 2);
    assert!(!send(&app, get("/report")).await.is(Hit));
}

// ===== Bodies =====

/// A body of these frames, and what it says of its length.
struct Frames {
    empty: usize,
    data: VecDeque<&'static str>,
    trailers: usize,
    hint: Option<u64>,
}

impl Frames {
    fn of(data: &[&'static str]) -> Self {
        Self { empty: 0, data: data.iter().copied().collect(), trailers: 0, hint: None }
    }
}

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.empty > 0 {
            self.empty -= 1;
            return Poll::Ready(Some(Ok(Frame::data(Bytes::new()))));
        }
        if let Some(data) = self.data.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(data.as_bytes())))));
        }
        if self.trailers > 0 {
            self.trailers -= 1;
            let mut fields = HeaderMap::new();
            fill(&mut fields);
            return Poll::Ready(Some(Ok(Frame::trailers(fields))));
        }
        Poll::Ready(None)
    }

    fn size_hint(&self) -> SizeHint {
        self.hint.map(SizeHint::with_exact).unwrap_or_default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_not_as_long_as_it_says_is_not_stored() {
    // RFC 9112, 6.3 and 8
    for (length, hint, data, stored) in [
        (Some("2"), None, &["ab"][..], true),
        (Some("2"), None, &["a", "", "b"], true),
        (Some("3"), None, &["ab"], false),
        (Some("1"), None, &["ab"], false),
        (Some("0"), None, &["ab"], false),
        (Some("18446744073709551615"), None, &["ab"], false),
        (Some("18446744073709551616"), None, &["ab"], false),
        (Some("-2"), None, &["ab"], false),
        (Some("2, 3"), None, &["ab"], false),
        (Some("0x2"), None, &["ab"], false),
        (Some("2"), Some(3), &["ab"], false),
        (None, Some(3), &["ab"], false),
        (None, Some(u64::MAX), &["ab"], false),
        (None, Some(1), &["ab"], false),
    ] {
        let origin = Origin::new(move |_| {
            let body = Frames { hint, ..Frames::of(data) };
            let answer = Answer::ok("max-age=60", Body::new(body));
            length.into_iter().fold(answer, |answer, n| answer.header("content-length", n))
        });
        let app = app(&origin);
        for _ in 0..2 {
            let reply = send(&app, get("/report")).await;
            assert_eq!(reply.status, 200);
        }
        assert_eq!(origin.calls(), if stored { 1 } else { 2 }, "{length:?} {hint:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_million_empty_frames_keep_nobody_else_waiting() {
    const MANY: usize = 1_000_000;
    let origin = Origin::new(|call| {
        let empty = if call.uri() == "/empty" { MANY } else { 0 };
        Answer::ok("max-age=60", Body::new(Frames { empty, ..Frames::of(&["x"]) }))
    });
    let app = app(&origin);
    let others = async {
        pass(WORK).await;
        let reply = send(&app, get("/other")).await;
        assert_eq!(reply.text(), "x");
        tokio::time::Instant::now()
    };
    let empty = async {
        let reply = send(&app, get("/empty")).await;
        assert_eq!(reply.text(), "x");
    };
    tokio::join!(empty, others);
    assert!(send(&app, get("/empty")).await.is(Hit));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn trailers_that_fill_their_map_again_and_again_end_the_storing_only() {
    for chunks in [1, 3_000] {
        let origin = Origin::new(move |_| {
            // More than is taken at once, so that it is read while it comes.
            let data = vec!["x"; chunks];
            Answer::ok("max-age=60", Body::new(Frames { trailers: 3, ..Frames::of(&data) }))
        });
        let app = app(&origin);
        for _ in 0..2 {
            let reply = send(&app, get("/report")).await;
            assert_eq!(reply.body.len(), chunks);
            assert!(!reply.is(Hit));
            assert!(reply.trailers.unwrap().keys_len() >= FULL);
        }
    }
}

// ===== What is not cached =====

#[tokio::test(start_paused = true)]
async fn nothing_changes_for_what_is_not_cached_but_that_we_say_so() {
    let fields = [
        ("x-b", "1"),
        ("cache-control", "private"),
        ("x-a", "  "),
        ("set-cookie", "a=b; Path=/"),
        ("x-b", "2,, \t3"),
        ("set-cookie", "c=d"),
        ("x-empty", ""),
        ("age", "7"),
        ("date", "yesterday"),
        ("www-authenticate", "Basic realm=\"a\", Digest x=\"b,c\""),
        ("etag", "not a tag"),
        ("x-obs", "\u{e9}"),
        ("content-type", "text/html;;charset"),
        ("connection", "x-a"),
        ("cache-status", "Upstream; hit"),
    ];
    let expected: Vec<_> =
        fields.iter().map(|(n, v)| (n.to_string(), v.as_bytes().to_vec())).collect();
    let origin = Origin::new(move |call| {
        let mut answer = Answer::status(203).body(Body::new(Frames::of(&["a", "bc", "d"])));
        for (name, value) in fields {
            let value = if call.uri().contains("plain") && name == "x-obs" { "e" } else { value };
            answer = answer.header(name, value);
        }
        answer
    });
    let app = layered(origin_only().http_layer().cache_status(""), &origin);
    for uri in ["/", "/?", "/?a=1&&b", "//x/../y", "/%7e", "*"] {
        let uri = if uri == "*" { "/*" } else { uri };
        let sent =
            with(uri, &[("x-b", "2"), ("x-a", "1"), ("x-b", " 3 ,,"), ("accept", "*/*;q=0")]);
        let (parts, _) =
            with(uri, &[("x-b", "2"), ("x-a", "1"), ("x-b", " 3 ,,"), ("accept", "*/*;q=0")])
                .into_parts();
        let reply = send(&app, sent).await;
        assert_eq!(reply.status, 203);
        // A map keeps the lines of one field together.
        let mut ours: Vec<_> =
            reply.headers.iter().map(|(n, v)| (n.to_string(), v.as_bytes().to_vec())).collect();
        let mut expected = expected.clone();
        let order = |fields: &[(String, Vec<u8>)]| {
            let mut names: Vec<_> = fields.iter().map(|(name, _)| name.clone()).collect();
            let mut seen = std::collections::HashSet::new();
            names.retain(|name| seen.insert(name.clone()));
            names
        };
        assert_eq!(order(&ours), order(&expected));
        ours.sort_by(|a, b| a.0.cmp(&b.0));
        expected.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(ours, expected);
        assert_eq!(reply.text(), "abcd");
        let seen = origin.last();
        assert_eq!((seen.uri(), seen.parts.headers), (uri.to_owned(), parts.headers));
    }
}
