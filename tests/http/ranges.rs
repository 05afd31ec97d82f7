//! Ranges: a part of what is there, and never the whole for a part's sake.

use axum::body::Body;
use proptest::prelude::*;
use tower_stampede::CacheOutcome::*;
use tower_stampede::Mode;

use crate::kit::http::*;

const FILE: &str = "http://x/file";
const TEXT: &str = "0123456789A";

fn range(range: &str) -> http::Request<Body> {
    with(FILE, &[("range", range)])
}

/// Knows ranges, and says that the whole may be stored.
fn origin() -> Origin {
    Origin::new(|call| match call.header("range") {
        Some(_) => Answer::status(206)
            .header("cache-control", "max-age=60")
            .header("content-range", "bytes 0-1/11")
            .body("01"),
        None => whole(),
    })
}

fn whole() -> Answer {
    Answer::ok("max-age=60", TEXT)
        .header("etag", "\"a\"")
        .header("content-type", "text/plain")
        .header("content-digest", "sha-256=:x:")
}

// ===== From the store =====

#[tokio::test(start_paused = true)]
async fn a_part_is_cut_out_of_what_is_stored() {
    let origin = origin();
    let app = app(&origin);
    send(&app, get(FILE)).await;
    for (asked, part, content_range) in [
        ("bytes=0-1", "01", "bytes 0-1/11"),
        ("bytes=1-", "123456789A", "bytes 1-10/11"),
        ("bytes=-1", "A", "bytes 10-10/11"),
        ("bytes=5-99", "56789A", "bytes 5-10/11"),
        ("bytes=-99", TEXT, "bytes 0-10/11"),
        ("Bytes= 3-4 ,", "34", "bytes 3-4/11"),
    ] {
        let reply = send(&app, range(asked)).await;
        assert!(reply.is(Hit) && reply.status == 206, "{asked}");
        assert_eq!(reply.text(), part, "{asked}");
        assert_eq!(reply.header("content-range"), Some(content_range));
        assert_eq!(reply.header("content-length"), Some(&*part.len().to_string()));
        assert_eq!(reply.declared, Some(part.len() as u64));
        // RFC 9110, 15.3.7
        assert_eq!(reply.header("content-type"), Some("text/plain"));
        assert_eq!(reply.header("cache-control"), Some("max-age=60"));
        assert_eq!(reply.header("etag"), Some("\"a\""));
        assert!(reply.header("date").is_some());
        assert_eq!(reply.header("content-digest"), None, "it was made of the whole");
        assert_eq!(reply.cache_status(), "tower-stampede; hit; ttl=59");
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_cut_is_the_whole() {
    // RFC 9110, 14.2
    let origin = origin();
    let app = app(&origin);
    send(&app, get(FILE)).await;
    for asked in ["bytes=0-1,3-4", "items=0-1", "bytes=2-1", "bytes", "", "bytes=x-"] {
        let reply = send(&app, range(asked)).await;
        assert!(reply.is(Hit) && reply.status == 200, "{asked}");
        assert_eq!((reply.text(), reply.header("content-range")), (TEXT, None));
    }
    let head = send(&app, request("HEAD", FILE, &[("range", "bytes=0-1")])).await;
    assert_eq!((head.status, head.header("content-length")), (200, Some("11")), "of GET alone");
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_there_is_nothing_of_is_refused_with_the_length() {
    // RFC 9110, 15.5.17
    let origin = origin();
    let app = app(&origin);
    send(&app, get(FILE)).await;
    for asked in ["bytes=11-", "bytes=99-100", "bytes=-0"] {
        let reply = send(&app, range(asked)).await;
        assert_eq!((reply.status, reply.text()), (416, ""), "{asked}");
        assert_eq!(reply.header("content-range"), Some("bytes */11"));
        assert_eq!(reply.header("cache-control"), None, "a refusal has no lifetime");
        assert_eq!(reply.header("age"), None);
        assert_eq!(reply.cache_status(), "tower-stampede; hit; ttl=59");
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn parts_of_different_responses_are_not_put_together() {
    // RFC 9110, 13.1.5
    const THEN: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    let origin = Origin::new(|_| {
        // As old as its date says.
        Answer::ok("max-age=2000000000", TEXT)
            .header("etag", "\"a\"")
            .header("last-modified", THEN)
            .header("date", "Sun, 06 Nov 1994 08:49:38 GMT")
    });
    let app = app(&origin);
    send(&app, get(FILE)).await;
    for (if_range, status) in [
        ("\"a\"", 206),
        (THEN, 206),
        ("\"b\"", 200),
        ("W/\"a\"", 200),
        ("Sun, 06 Nov 1994 08:49:38 GMT", 200),
        ("x", 200),
    ] {
        let fields = [("range", "bytes=0-1"), ("if-range", if_range)];
        let reply = send(&app, with(FILE, &fields)).await;
        assert_eq!(reply.status, status, "{if_range}");
        assert_eq!(reply.text(), if status == 206 { "01" } else { TEXT });
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_part_is_cut_out_of_a_200_alone() {
    for status in [203, 301, 404] {
        let origin = Origin::new(move |_| {
            Answer::status(status).header("cache-control", "max-age=60").body(TEXT)
        });
        let app = app(&origin);
        send(&app, get(FILE)).await;
        let reply = send(&app, range("bytes=0-1")).await;
        assert_eq!((reply.status, reply.text()), (status, TEXT));
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_of_what_is_stale_is_served_while_the_whole_is_refreshed() {
    let origin = Origin::new(|_| Answer::ok("max-age=10, stale-while-revalidate=60", TEXT));
    let app = app(&origin);
    send(&app, get(FILE)).await;
    pass(secs(20)).await;
    let reply = send(&app, range("bytes=0-1")).await;
    assert!(reply.is(Stale) && reply.status == 206 && reply.text() == "01");
    pass(WORK * 2).await;
    assert_eq!(origin.last().header("range"), None);
    assert!(send(&app, range("bytes=-1")).await.is(Hit));
    assert_eq!(origin.calls(), 2);
}

// ===== On a miss =====

#[tokio::test(start_paused = true)]
async fn a_cold_range_is_forwarded_as_it_is_and_fills_nothing() {
    let origin = origin();
    let app = app(&origin);
    let fields = [("range", "bytes=0-1"), ("if-range", "\"a\""), ("if-none-match", "\"b\"")];
    let replies = crowd(&app, 5, |_| with(FILE, &fields)).await;
    for reply in &replies {
        assert_eq!((reply.status, reply.text()), (206, "01"));
        assert_eq!(reply.header("content-range"), Some("bytes 0-1/11"));
        assert!(reply.cache_status().ends_with("fwd=bypass; fwd-status=206; detail=range"));
        assert!(reply.is(Bypass));
    }
    assert_eq!(slowest(&replies), WORK);
    let seen = origin.seen();
    for (name, value) in fields {
        assert!(seen.iter().all(|call| call.header(name) == Some(value)), "{name}");
    }
    assert_eq!(origin.calls(), 5);
    assert_eq!(send(&app, get(FILE)).await.text(), TEXT);
    assert_eq!(origin.calls(), 6);
}

#[tokio::test(start_paused = true)]
async fn the_whole_that_a_cold_range_was_answered_is_passed_on_and_not_stored() {
    let origin = Origin::new(|_| whole());
    let app = app(&origin);
    let reply = send(&app, range("bytes=0-1")).await;
    assert_eq!((reply.status, reply.text()), (200, TEXT));
    send(&app, get(FILE)).await;
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_range_waits_for_a_running_flight_and_gets_its_part() {
    let origin = origin();
    let app = app(&origin);
    let replies = crowd(&app, 20, |i| match i % 3 {
        0 => get(FILE),
        1 => range("bytes=2-3"),
        _ => range("bytes=99-"),
    });
    for (i, reply) in replies.await.iter().enumerate() {
        let expected = [(200, TEXT), (206, "23"), (416, "")][i % 3];
        assert_eq!((reply.status, reply.text()), expected, "{i}");
        assert!(reply.is(if i == 0 { Computed } else { Joined }));
    }
    assert_eq!(origin.calls(), 1);
    assert_eq!(origin.last().header("range"), None);
}

#[tokio::test(start_paused = true)]
async fn a_range_is_forwarded_when_the_flight_has_nothing_to_cut() {
    let origin = Origin::new(|call| match call.header("range") {
        Some(_) => Answer::status(206).body("01"),
        None => whole().body("x".repeat(2 << 20)),
    });
    let app = app(&origin);
    let replies = crowd(&app, 3, |i| if i == 0 { get(FILE) } else { range("bytes=0-1") }).await;
    assert_eq!(replies[0].body.len(), 2 << 20);
    for reply in &replies[1..] {
        assert!(reply.is(Bypass) && reply.text() == "01");
    }
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_range_does_not_wait_for_a_body_whose_length_nobody_knows() {
    let origin = Origin::new(|call| match (call.header("range"), call.uri().as_str()) {
        (Some(_), _) => Answer::status(206).body("01"),
        (None, "http://x/known") => slow().header("content-length", "11"),
        (None, _) => slow(),
    });
    let app = app(&origin);
    for (uri, outcome, text) in [("http://x/known", Joined, "23"), (FILE, Bypass, "01")] {
        let replies = crowd(&app, 3, |i| match i {
            0 => get(uri),
            _ => with(uri, &[("range", "bytes=2-3")]),
        });
        let replies = replies.await;
        assert_eq!(replies[0].text(), TEXT);
        for reply in &replies[1..] {
            assert!(reply.is(outcome) && reply.status == 206, "{uri}");
            assert_eq!(reply.text(), text);
        }
        assert!(send(&app, with(uri, &[("range", "bytes=-1")])).await.is(Hit));
    }
}

/// The head at once, the body byte by byte.
fn slow() -> Answer {
    let bytes = futures_util::stream::unfold(0, |at| async move {
        pass(ms(10)).await;
        let byte = TEXT.get(at..=at)?;
        Some((Ok::<_, std::convert::Infallible>(byte), at + 1))
    });
    whole().body(Body::from_stream(bytes))
}

#[tokio::test(start_paused = true)]
async fn a_part_of_what_is_stale_stands_in_for_a_failure() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("max-age=10, stale-if-error=60", TEXT),
        _ => Answer::status(503),
    });
    let app = app(&origin);
    send(&app, get(FILE)).await;
    pass(secs(20)).await;
    let reply = send(&app, range("bytes=0-1")).await;
    assert!(reply.is(StaleIfError) && reply.status == 206 && reply.text() == "01");
    assert_eq!(origin.last().header("range"), Some("bytes=0-1"));
}

#[tokio::test(start_paused = true)]
async fn an_if_range_without_range_is_nothing() {
    // RFC 9110, 13.1.5
    let origin = origin();
    let app = app(&origin);
    let replies = crowd(&app, 5, |_| with(FILE, &[("if-range", "\"b\"")])).await;
    assert!(replies.iter().all(|reply| reply.status == 200 && reply.text() == TEXT));
    assert_eq!(origin.calls(), 1);
    assert_eq!(origin.last().header("if-range"), None);
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_is_switched_off_leaves_ranges_alone() {
    for mode in [Mode::Off, Mode::Observe] {
        let cache = origin_only();
        let origin = origin();
        let app = layered(cache.http_layer(), &origin);
        send(&app, get(FILE)).await;
        cache.set_mode(mode);
        assert_eq!(send(&app, range("bytes=-1")).await.text(), "01", "the origin's word");
        cache.set_mode(Mode::On);
        assert_eq!(send(&app, range("bytes=-1")).await.text(), "A");
    }
}

// ===== At random =====

/// Fields of a request, mostly well formed.
fn fields() -> impl Strategy<Value = Vec<(&'static str, String)>> {
    let any = "[ -~]{0,24}";
    let range = prop_oneof![
        3 => "bytes=[0-9]{0,3}-[0-9]{0,3}",
        1 => "bytes=[0-9]{0,2}-[0-9]{0,2},[0-9]{0,2}-",
        1 => any,
    ];
    let tags = || prop_oneof![2 => "(W/)?\"[ab]\"(, ?(W/)?\"[ab]\")?", 1 => "[*]", 1 => any];
    let date = prop_oneof![2 => "Sun, 06 Nov (1994|2094) 08:49:3[0-9] GMT", 1 => any];
    let field = prop_oneof![
        3 => range.prop_map(|value| ("range", value)),
        1 => tags().prop_map(|value| ("if-range", value)),
        1 => tags().prop_map(|value| ("if-none-match", value)),
        1 => date.prop_map(|value| ("if-modified-since", value)),
    ];
    proptest::collection::vec(field, 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_part_is_a_true_slice_and_everything_else_whole_or_empty(
        body in "[a-z]{0,40}",
        fields in fields(),
        cold: bool,
    ) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        let reply = runtime.block_on(async {
            let text = body.clone();
            let origin = Origin::new(move |_| {
                Answer::ok("max-age=60", text.clone())
                    .header("etag", "\"a\"")
                    .header("last-modified", "Sun, 06 Nov 1994 08:49:35 GMT")
            });
            let app = app(&origin);
            if !cold {
                send(&app, get(FILE)).await;
            }
            let fields: Vec<_> =
                fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let reply = send(&app, with(FILE, &fields)).await;
            assert_eq!(origin.calls(), 1);
            reply
        });
        match reply.status {
            200 => prop_assert_eq!(reply.text(), body),
            206 => {
                let said = reply.header("content-range").unwrap();
                let said = said.strip_prefix("bytes ").unwrap();
                let (at, length) = said.split_once('/').unwrap();
                let (first, last) = at.split_once('-').unwrap();
                let [first, last, length]: [usize; 3] =
                    [first, last, length].map(|n| n.parse().unwrap());
                prop_assert_eq!(length, body.len());
                prop_assert_eq!(reply.text(), &body[first..=last]);
            }
            304 | 416 => prop_assert!(reply.body.is_empty()),
            other => prop_assert!(false, "{}", other),
        }
    }
}
