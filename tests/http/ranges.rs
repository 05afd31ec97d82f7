//! Ranges: a part of what is stored or arrives, or of what the service sends for one client.

use axum::body::Body;
use proptest::prelude::*;
use tower::ServiceExt;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{Mode, Stampede};

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
    for asked in ["bytes=0-1,x", "items=0-1", "bytes=2-1", "bytes", "", "bytes=x-"] {
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
async fn a_refused_range_says_which_other_origins_may_read_that() {
    let origin = Origin::new(|_| {
        let answer = Answer::ok("max-age=60", "report").header("vary", "origin");
        answer.header("access-control-allow-origin", "http://a.example").header("x-own", "1")
    });
    let app = app(&origin);
    for _ in 0..2 {
        let fields = [("origin", "http://a.example"), ("range", "bytes=10-")];
        let refused = send(&app, with("/report", &fields)).await;
        assert_eq!((refused.status, refused.header("content-range")), (416, Some("bytes */6")));
        assert_eq!(refused.header("access-control-allow-origin"), Some("http://a.example"));
        assert_eq!(refused.header("vary"), Some("origin"));
        assert!(refused.header("cache-control").is_none() && refused.header("x-own").is_none());
    }
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

/// A layer that never asks for the whole because of a range.
fn without_filling(origin: &Origin) -> tower_stampede::HttpService<Origin> {
    layered(origin_only().http_layer().fill_from_ranges(false), origin)
}

#[tokio::test(start_paused = true)]
async fn where_ranges_do_not_fill_a_cold_one_is_forwarded_as_it_is() {
    let origin = origin();
    let app = without_filling(&origin);
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
async fn where_ranges_do_not_fill_the_whole_in_answer_to_one_is_not_stored() {
    let origin = Origin::new(|_| whole());
    let app = without_filling(&origin);
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
async fn a_range_of_a_body_without_a_length_waits_for_its_own_bytes_or_the_end() {
    // RFC 9110, 14.4: "*" where the length is not known yet.
    let origin = Origin::new(|call| match call.uri().as_str() {
        "http://x/known" => slow().header("content-length", "11"),
        _ => slow(),
    });
    let app = app(&origin);
    let byte = ms(10);
    for (uri, range, content_range, text, waits) in [
        ("http://x/known", "bytes=2-3", "bytes 2-3/11", "23", ms(0)),
        ("http://x/known", "bytes=-1", "bytes 10-10/11", "A", ms(0)),
        ("http://x/1", "bytes=2-3", "bytes 2-3/*", "23", byte * 4),
        ("http://x/2", "bytes=9-", "bytes 9-10/11", "9A", byte * 12),
        ("http://x/3", "bytes=-1", "bytes 10-10/11", "A", byte * 12),
        ("http://x/4", "bytes=8-20", "bytes 8-10/11", "89A", byte * 12),
        ("http://x/5", "bytes=11-", "bytes */11", "", byte * 12),
    ] {
        let request = |i| if i == 0 { get(uri) } else { with(uri, &[("range", range)]) };
        let replies = crowd(&app, 5, request).await;
        assert_eq!(replies[0].text(), TEXT);
        for reply in &replies[1..] {
            assert!(reply.is(Joined), "{uri} {range}");
            assert_eq!(reply.status, if text.is_empty() { 416 } else { 206 }, "{uri} {range}");
            assert_eq!((reply.text(), reply.header("content-range")), (text, Some(content_range)));
            assert_eq!(reply.took, WORK + waits, "{uri} {range}");
        }
        assert!(send(&app, with(uri, &[("range", "bytes=-1")])).await.is(Hit));
        pass(secs(100)).await;
    }
    assert_eq!(origin.calls(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_range_waits_for_a_slow_body_no_longer_than_for_a_computation() {
    let origin = Origin::new(|call| match call.header("range") {
        Some(_) => Answer::status(206).body("own"),
        None => whole().body(Body::from_stream(futures_util::stream::pending::<
            Result<&str, std::convert::Infallible>,
        >())),
    });
    let cache = Stampede::builder("test").origin_only().wait_timeout(secs(3)).build().unwrap();
    let app = layered(cache.http_layer().body_idle_timeout(secs(60)), &origin);
    let first = app.clone().oneshot(get(FILE)).await.unwrap();
    let reply = send(&app, range("bytes=-1")).await;
    assert_eq!((reply.status, reply.text()), (206, "own"));
    assert_eq!(reply.took, secs(3) + WORK);
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn a_range_of_a_body_that_is_not_kept_any_more_waits_no_longer() {
    let origin = Origin::new(|call| match call.header("range") {
        Some(_) => Answer::status(206).body("own"),
        None => whole().body(Body::from_stream(futures_util::stream::pending::<
            Result<&str, std::convert::Infallible>,
        >())),
    });
    let app = layered(origin_only().http_layer().body_idle_timeout(secs(1)), &origin);
    let replies = crowd(&app, 10, |_| range("bytes=0-1")).await;
    assert!(replies.iter().all(|reply| reply.text() == "own"));
    assert_eq!(slowest(&replies), WORK + secs(1) + WORK);
}

// ===== Several ranges =====

/// Returns the parts of a multipart body, each with its `Content-Range` and its bytes.
fn parts_of(reply: &Reply) -> Vec<(String, String)> {
    let content_type = reply.header("content-type").unwrap();
    let boundary = content_type.strip_prefix("multipart/byteranges; boundary=").unwrap();
    let text = reply.text().strip_suffix(&format!("\r\n--{boundary}--\r\n")).unwrap();
    let (text, between) = (format!("\r\n{text}"), format!("\r\n--{boundary}\r\n"));
    let parts = text.split(&between).skip(1).map(|part| {
        let (head, body) = part.split_once("\r\n\r\n").unwrap();
        let (own_type, place) = head.split_once("\r\ncontent-range: ").unwrap();
        assert_eq!(own_type, "content-type: text/plain");
        (place.to_owned(), body.to_owned())
    });
    parts.collect()
}

fn long() -> String {
    ('a'..='z').map(|letter| letter.to_string().repeat(200)).collect()
}

#[tokio::test(start_paused = true)]
async fn several_ranges_are_parts_of_one_response() {
    // RFC 9110, 15.3.7.2
    let origin = Origin::new(|_| whole().body(long()));
    let app = app(&origin);
    let asked = || range("bytes=-2, 0-1, 9999-, 200-201");
    let replies = crowd(&app, 20, |_| asked()).await;
    let mut boundaries = std::collections::HashSet::new();
    for reply in &replies {
        assert_eq!(reply.status, 206);
        let place = |first: u32, last: u32| format!("bytes {first}-{last}/5200");
        let expected = [(place(5198, 5199), "zz"), (place(0, 1), "aa"), (place(200, 201), "bb")];
        let expected = expected.map(|(place, text)| (place, text.to_owned()));
        assert_eq!(parts_of(reply), expected);
        assert_eq!(reply.header("content-range"), None);
        assert_eq!(reply.header("content-digest"), None, "it was made of the whole");
        assert_eq!(reply.header("etag"), Some("\"a\""));
        assert_eq!(reply.header("content-length"), Some(&*reply.body.len().to_string()));
        assert_eq!(reply.declared, Some(reply.body.len() as u64));
        boundaries.insert(reply.header("content-type").unwrap());
    }
    assert_eq!(boundaries.len(), 20, "each response has a boundary of its own");
    let head = send(&app, request("HEAD", FILE, &[("range", "bytes=0-1,200-201")])).await;
    assert_eq!((head.status, head.header("content-length")), (200, Some("5200")));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn ranges_that_overlap_or_are_close_are_one_part() {
    // RFC 9110, 14.2 and 15.3.7.2
    let origin = origin();
    let app = app(&origin);
    for (asked, text, content_range) in [
        ("bytes=0-1,3-4", "01234", "bytes 0-4/11"),
        ("bytes=3-4,0-1", "01234", "bytes 0-4/11"),
        ("bytes=0-,0-,0-,0-", TEXT, "bytes 0-10/11"),
        ("bytes=99-,2-2", "2", "bytes 2-2/11"),
    ] {
        let reply = send(&app, range(asked)).await;
        assert_eq!((reply.status, reply.text()), (206, text), "{asked}");
        assert_eq!(reply.header("content-range"), Some(content_range));
    }
    let none = send(&app, range("bytes=11-,99-")).await;
    assert_eq!((none.status, none.header("content-range")), (416, Some("bytes */11")));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_set_of_ranges_is_answered_with_more_bytes_than_the_whole() {
    let origin = Origin::new(|_| whole().body(long()));
    let app = app(&origin);
    let many = |n: u32, step: u32| {
        let ranges = (0..n).map(|i| format!("{0}-{0}", i * step));
        format!("bytes={}", ranges.collect::<Vec<_>>().join(","))
    };
    for (asked, status) in [
        // The heads of so many parts would take more than the whole.
        (many(32, 160), 206),
        (many(32, 100), 206),
        (many(33, 100), 200),
        (many(1000, 1), 200),
        (format!("bytes={}", "0-,".repeat(1000)), 200),
        ("bytes=0-2500,2600-5199".into(), 200),
    ] {
        let reply = send(&app, range(&asked)).await;
        assert_eq!(reply.status, status, "{asked}");
        assert!(reply.body.len() <= 5200, "{} bytes for {asked}", reply.body.len());
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn of_a_body_with_a_coding_several_ranges_are_the_whole() {
    let origin = Origin::new(|_| whole().header("content-encoding", "x").body(long()));
    let app = app(&origin);
    let reply = send(&app, range("bytes=0-1,2000-2001")).await;
    assert_eq!((reply.status, reply.body.len()), (200, 5200));
    assert_eq!(send(&app, range("bytes=0-1")).await.text(), "aa");
}

#[tokio::test(start_paused = true)]
async fn several_ranges_of_a_body_that_arrives_wait_for_its_end() {
    let pieces = || {
        let pieces = futures_util::stream::unfold(0, |at| async move {
            pass(ms(10)).await;
            (at < 26).then(|| {
                (Ok::<_, std::convert::Infallible>(long()[at * 200..][..200].to_owned()), at + 1)
            })
        });
        whole().header("content-length", "5200").body(Body::from_stream(pieces))
    };
    let origin = Origin::new(move |_| pieces());
    let app = app(&origin);
    let replies = crowd(&app, 10, |_| range("bytes=0-1,5198-")).await;
    for reply in &replies {
        let parts: Vec<_> = parts_of(reply).into_iter().map(|(_, text)| text).collect();
        assert_eq!((reply.status, parts), (206, vec!["aa".to_owned(), "zz".to_owned()]));
    }
    assert_eq!(origin.calls(), 1);
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
    assert_eq!(origin.last().header("range"), None);
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
