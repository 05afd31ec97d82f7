//! Crowds of range requests that find nothing fresh: how often the origin is asked, and for what.

use std::convert::Infallible;

use axum::body::Body;
use tower_layer::Layer;
use tower_stampede::CacheOutcome::{self, *};
use tower_stampede::remote::{Double, RemoteSettings};
use tower_stampede::{HttpService, Stampede};

use crate::kit::http::*;
use crate::kit::spawn;

const FILE: &str = "http://x/file";
/// The bodies that the layers here store have this many bytes at most.
const LIMIT: usize = 1000;
const CROWD: usize = 500;

fn range(range: &str) -> http::Request<Body> {
    with(FILE, &[("range", range)])
}

fn whole() -> Answer {
    Answer::ok("max-age=60", body(LIMIT)).header("etag", "\"a\"")
}

fn body(length: usize) -> String {
    (0..length).map(|at| char::from(b'a' + u8::try_from(at % 26).unwrap())).collect()
}

/// The same, in pieces, without a length.
fn streamed(length: usize) -> Body {
    let pieces = futures_util::stream::unfold(0, move |at| async move {
        pass(ms(1)).await;
        let end = (at + 100).min(length);
        (at < length).then(|| (Ok::<_, Infallible>(body(length)[at..end].to_owned()), end))
    });
    Body::from_stream(pieces)
}

/// Knows ranges: whatever is asked for, it sends 206 with its own words.
fn partial() -> Answer {
    Answer::status(206).header("content-range", "bytes 0-2/9999").body("own")
}

fn app_of(origin: &Origin) -> HttpService<Origin> {
    layered(origin_only().http_layer().max_body(LIMIT), origin)
}

fn count(replies: &[Reply], outcome: CacheOutcome) -> usize {
    replies.iter().filter(|reply| reply.is(outcome)).count()
}

fn wholes(origin: &Origin) -> usize {
    origin.seen().iter().filter(|call| call.header("range").is_none()).count()
}

// ===== What may be stored =====

#[tokio::test(start_paused = true)]
async fn a_crowd_of_cold_ranges_costs_one_request_for_the_whole() {
    let bodies: [fn() -> Body; 2] = [|| body(LIMIT).into(), || streamed(LIMIT)];
    for content in bodies {
        let origin = Origin::new(move |_| whole().body(content()));
        let app = app_of(&origin);
        let replies = crowd(&app, CROWD, |i| range(&format!("bytes={i}-{}", i + 1))).await;
        for (i, reply) in replies.iter().enumerate() {
            assert_eq!((reply.status, reply.text()), (206, &body(LIMIT)[i..=i + 1]));
            assert_eq!(reply.header("content-length"), Some("2"));
            let place = reply.header("content-range").unwrap();
            assert!(place.starts_with(&format!("bytes {i}-{}/", i + 1)), "{place}");
        }
        assert_eq!((count(&replies, Computed), count(&replies, Joined)), (1, CROWD - 1));
        assert_eq!((origin.calls(), origin.last().header("range")), (1, None));
        pass(secs(1)).await;
        assert!(send(&app, get(FILE)).await.is(Hit));
        assert!(send(&app, range("bytes=-2")).await.is(Hit));
        assert_eq!(origin.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_leader_says_that_the_whole_is_stored() {
    let origin = Origin::new(|_| whole());
    let reply = send(&app_of(&origin), range("bytes=1-2")).await;
    assert_eq!(reply.cache_status(), "tower-stampede; fwd=uri-miss; fwd-status=200; stored");
    assert_eq!((reply.text(), reply.declared), ("bc", Some(2)));
}

#[tokio::test(start_paused = true)]
async fn the_request_for_the_whole_has_none_of_the_clients_conditions() {
    let origin = Origin::new(|_| whole());
    let app = app_of(&origin);
    let fields = [("if-range", "\"b\""), ("if-none-match", "\"b\""), ("range", "bytes=0-1")];
    let reply = send(&app, with(FILE, &fields)).await;
    assert_eq!((reply.status, reply.body.len()), (200, LIMIT), "of another version, all");
    let seen = origin.last().parts.headers;
    assert!(seen.is_empty(), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn conditions_come_before_ranges_in_a_cold_crowd() {
    // RFC 9110, 13.2.2
    let origin = Origin::new(|_| whole());
    let app = app_of(&origin);
    let replies = crowd(&app, CROWD, |i| match i % 5 {
        0 => with(FILE, &[("range", "bytes=0-1"), ("if-none-match", "\"a\"")]),
        1 => with(FILE, &[("range", "bytes=0-1"), ("if-none-match", "\"b\"")]),
        2 => with(FILE, &[("range", "bytes=0-1"), ("if-range", "\"b\"")]),
        3 => with(FILE, &[("range", "bytes=0-1"), ("if-range", "\"a\"")]),
        _ => range("bytes=1000-"),
    })
    .await;
    for (i, reply) in replies.iter().enumerate() {
        let expected = [(304, 0), (206, 2), (200, LIMIT), (206, 2), (416, 0)][i % 5];
        assert_eq!((reply.status, reply.body.len()), expected, "{i}");
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_ranges_on_an_expired_entry_costs_one_request_which_validates_it() {
    let origin = Origin::new(|call| match call.header("if-none-match") {
        Some("\"a\"") => Answer::status(304).header("etag", "\"a\""),
        _ => whole(),
    });
    let app = app_of(&origin);
    send(&app, get(FILE)).await;
    pass(secs(61)).await;
    let replies = crowd(&app, CROWD, |_| range("bytes=-3")).await;
    let end = &body(LIMIT)[LIMIT - 3..];
    assert!(replies.iter().all(|reply| reply.status == 206 && reply.text() == end));
    assert_eq!((origin.calls(), wholes(&origin)), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_ranges_at_an_origin_that_knows_no_ranges_costs_one_request() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "0123456789"));
    let app = app_of(&origin);
    let replies = crowd(&app, CROWD, |_| range("bytes=2-3")).await;
    assert!(replies.iter().all(|reply| reply.status == 206 && reply.text() == "23"));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_ranges_at_an_empty_body_costs_one_request() {
    let bodies: [fn() -> Body; 2] = [Body::empty, || streamed(0)];
    for content in bodies {
        let origin = Origin::new(move |_| Answer::ok("max-age=60", content()));
        let app = app_of(&origin);
        let replies = crowd(&app, CROWD, |i| range(["bytes=0-1", "bytes=-1"][i % 2])).await;
        for (i, reply) in replies.iter().enumerate() {
            assert_eq!((reply.status, reply.text()), ([416, 200][i % 2], ""));
        }
        assert_eq!(origin.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn ranges_that_cannot_be_read_do_not_lead_past_the_cache() {
    let origin = Origin::new(|_| whole());
    let app = app_of(&origin);
    let ranges = ["bytes=x", "bytes", "", "bytes=2-1", "=0-1"];
    let replies = crowd(&app, CROWD, |i| range(ranges[i % ranges.len()])).await;
    assert!(replies.iter().all(|reply| reply.status == 200 && reply.body.len() == LIMIT));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_range_in_another_unit_is_forwarded_as_it_is() {
    let origin = Origin::new(|call| match call.header("range") {
        Some("items=0-9") => Answer::status(206).body("ten items"),
        _ => whole(),
    });
    let app = app_of(&origin);
    let replies = crowd(&app, 5, |_| range("items=0-9")).await;
    assert!(replies.iter().all(|reply| reply.is(Bypass) && reply.text() == "ten items"));
    assert_eq!(origin.calls(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_stored_error_is_the_answer_to_a_cold_crowd_of_ranges() {
    let origin =
        Origin::new(|_| Answer::status(404).header("cache-control", "max-age=9").body("no"));
    let app = app_of(&origin);
    let replies = crowd(&app, CROWD, |_| range("bytes=0-0")).await;
    assert!(replies.iter().all(|reply| (reply.status, reply.text()) == (404, "no")));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_reaches_the_range_that_led_as_it_is() {
    let origin = Origin::new(|_| Answer::status(503).body("down"));
    let app = app_of(&origin);
    let replies = crowd(&app, CROWD, |_| range("bytes=0-0")).await;
    assert!(replies.iter().all(|reply| reply.status == 503));
    assert_eq!((replies[0].text(), origin.calls()), ("down", 1));
    let broken = Origin::new(|_| Answer::error());
    assert!(try_send(&app_of(&broken), range("bytes=0-0")).await.is_err());
    assert_eq!(broken.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_ranges_over_variants_costs_one_request_for_each() {
    let origin = Origin::new(|call| {
        let language = call.header("accept-language").unwrap().to_owned();
        Answer::ok("max-age=60", language.repeat(5)).header("vary", "accept-language")
    });
    let app = app_of(&origin);
    let languages = ["de", "en"];
    send(&app, with(FILE, &[("accept-language", "fr")])).await;
    let replies = crowd(&app, CROWD, |i| {
        with(FILE, &[("accept-language", languages[i % 2]), ("range", "bytes=0-1")])
    })
    .await;
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!((reply.status, reply.text()), (206, languages[i % 2]));
    }
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_stale_part_is_served_to_a_crowd_while_one_request_refreshes_the_whole() {
    let origin = Origin::new(|_| Answer::ok("max-age=10, stale-while-revalidate=60", body(LIMIT)));
    let app = app_of(&origin);
    send(&app, range("bytes=0-1")).await;
    pass(secs(20)).await;
    let replies = crowd(&app, CROWD, |_| range("bytes=0-1")).await;
    assert!(replies.iter().all(|reply| reply.is(Stale) && reply.text() == "ab"));
    pass(WORK * 2).await;
    assert_eq!((origin.calls(), wholes(&origin)), (2, 2));
}

// ===== What may not be stored, or is too long =====

#[tokio::test(start_paused = true)]
async fn a_whole_that_is_too_long_is_asked_for_once_and_then_not_for_a_while() {
    // By its head: no byte of the body is read.
    let origin = Origin::new(|call| match call.header("range") {
        Some(_) => partial(),
        None => whole().body(body(LIMIT + 1)),
    });
    let app = app_of(&origin);
    let replies = crowd(&app, CROWD, |_| range("bytes=0-2")).await;
    assert!(replies.iter().all(|reply| (reply.status, reply.text()) == (206, "own")));
    assert!(replies.iter().all(|reply| reply.is(Bypass)));
    assert_eq!((origin.calls(), wholes(&origin)), (CROWD + 1, 1));
    assert!(slowest(&replies) <= WORK * 2);
    // Now it is known.
    let replies = crowd(&app, CROWD, |_| range("bytes=0-2")).await;
    assert_eq!((origin.calls(), wholes(&origin)), (2 * CROWD + 1, 1));
    assert_eq!(slowest(&replies), WORK);
    // For 30 s.
    pass(secs(30)).await;
    send(&app, range("bytes=0-2")).await;
    assert_eq!(wholes(&origin), 2);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_grows_over_the_limit_sends_each_range_to_the_service() {
    let origin = Origin::new(|call| match call.header("range") {
        Some(_) => partial(),
        None => whole().body(streamed(LIMIT * 2)),
    });
    let app = app_of(&origin);
    let replies = crowd(&app, CROWD, |_| range("bytes=-2")).await;
    assert!(replies.iter().all(|reply| (reply.status, reply.text()) == (206, "own")));
    assert_eq!((origin.calls(), wholes(&origin)), (CROWD + 1, 1));
    crowd(&app, CROWD, |_| range("bytes=-2")).await;
    assert_eq!(wholes(&origin), 1);
}

#[tokio::test(start_paused = true)]
async fn a_part_within_the_limit_of_a_body_that_grows_over_it_is_a_part_of_the_whole() {
    let origin = Origin::new(|_| whole().body(streamed(LIMIT * 2)));
    let app = app_of(&origin);
    let replies = crowd(&app, CROWD, |_| range("bytes=150-151")).await;
    let expected = (206, &body(LIMIT)[150..=151], Some("bytes 150-151/*"));
    for reply in &replies {
        assert_eq!((reply.status, reply.text(), reply.header("content-range")), expected);
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn of_what_may_not_be_stored_each_client_gets_its_own_part_of_the_service() {
    for (name, value) in [
        ("cache-control", "no-store"),
        ("cache-control", "private"),
        ("vary", "*"),
        ("set-cookie", "id=1"),
        ("content-type", "text/event-stream"),
    ] {
        let origin = Origin::new(move |call| match call.header("range") {
            Some(_) => partial().header("x-call", &call.n.to_string()),
            None => whole().header(name, value).header("x-call", &call.n.to_string()),
        });
        let app = app_of(&origin);
        for wave in 1..=2 {
            let replies = crowd(&app, 50, |_| range("bytes=0-2")).await;
            assert!(replies.iter().all(|reply| reply.text() == "own"), "{name}: {value}");
            let calls: std::collections::HashSet<_> =
                replies.iter().map(|reply| reply.header("x-call").unwrap()).collect();
            assert_eq!(calls.len(), 50, "{name}: {value}");
            assert_eq!((origin.calls(), wholes(&origin)), (50 * wave + 1, 1), "{name}: {value}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_range_with_credentials_gets_a_part_of_the_whole_where_that_may_be_shared() {
    for (directives, calls) in [("max-age=60", 2 * CROWD + 1), ("public, max-age=60", CROWD)] {
        let origin = Origin::new(move |call| match call.header("range") {
            Some(_) => partial(),
            None => Answer::ok(directives, body(LIMIT)),
        });
        let app = app_of(&origin);
        let request =
            |i: usize| with(FILE, &[("range", "bytes=0-2"), ("authorization", &i.to_string())]);
        for _ in 0..2 {
            for reply in crowd(&app, CROWD, request).await {
                assert!(reply.status == 206 && ["own", "abc"].contains(&reply.text()));
            }
        }
        // Whether it may be shared is known from the first response on.
        assert_eq!((origin.calls(), wholes(&origin)), (calls, 1), "{directives}");
    }
}

#[tokio::test(start_paused = true)]
async fn ranges_of_what_each_client_must_validate_share_validations_of_the_whole() {
    let origin = Origin::new(|call| match (call.header("range"), call.header("if-none-match")) {
        (Some(_), _) => partial(),
        (None, Some(_)) => Answer::status(304).header("etag", "\"a\""),
        (None, None) => Answer::ok("no-cache", body(LIMIT)).header("etag", "\"a\""),
    });
    let app = app_of(&origin);
    send(&app, get(FILE)).await;
    let replies = crowd(&app, 20, |_| range("bytes=0-2")).await;
    for reply in &replies {
        assert_eq!((reply.status, reply.text()), (206, "abc"));
    }
    // One that began before the others came, and one for these.
    assert_eq!((origin.calls(), wholes(&origin)), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_range_does_not_ask_for_what_another_process_knows_to_be_for_each_alone() {
    let double = Double::new();
    let origin = Origin::new(|call| match call.header("range") {
        Some(_) => partial(),
        None => Answer::ok("no-store", body(LIMIT)),
    });
    let process = || -> HttpService<Origin> {
        let builder = Stampede::builder("web").origin_only();
        let cache = builder.remote(double.process(), RemoteSettings::new()).build().unwrap();
        cache.http_layer().layer(origin.clone())
    };
    let apps = [process(), process()];
    let client = |_: usize| range("bytes=0-2");
    let (one, two) = tokio::join!(crowd(&apps[0], 20, client), crowd(&apps[1], 20, client));
    assert!(one.iter().chain(&two).all(|reply| reply.text() == "own"));
    assert_eq!((origin.calls(), wholes(&origin)), (41, 1));
    assert_eq!(slowest(&one).max(slowest(&two)), WORK * 2);
}

// ===== Settings and layers =====

#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_be_sent_twice_does_not_ask_for_the_whole() {
    use http_body_util::combinators::BoxBody;
    type Unknown = BoxBody<bytes::Bytes, Infallible>;
    let origin = Origin::new(|call| match call.header("range") {
        Some(_) => partial(),
        None => whole(),
    });
    let inner = origin.clone();
    let service = tower::service_fn(move |request: http::Request<Unknown>| {
        tower::ServiceExt::oneshot(inner.clone(), request.map(Body::new))
    });
    for makes in [false, true] {
        let layer = origin_only().http_layer();
        let empty = || Unknown::new(http_body_util::Empty::new());
        let layer = if makes { layer.empty_request_body::<Unknown>(empty) } else { layer };
        let app = tower_layer::Layer::layer(&layer, service.clone());
        let before = wholes(&origin);
        let request = range("bytes=0-2").map(|_| empty());
        let response = tower::ServiceExt::oneshot(app, request).await.unwrap();
        let reply = read(response, secs(0)).await;
        assert_eq!(reply.text(), if makes { "abc" } else { "own" });
        assert_eq!(wholes(&origin) - before, usize::from(makes));
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_ranges_behind_two_layers_costs_one_request() {
    for limit in [LIMIT, LIMIT - 1] {
        let origin = Origin::new(|call| match call.header("range") {
            Some(_) => partial(),
            None => whole(),
        });
        let cache = origin_only();
        let inner = layered(cache.http_layer().max_body(limit), &origin);
        let inner = tower::ServiceBuilder::new()
            .map_response(|response: http::Response<_>| response.map(Body::new))
            .service(inner);
        let app = tower_layer::Layer::layer(&cache.http_layer().max_body(limit), inner);
        let replies = crowd(&app, CROWD, |_| range("bytes=0-2")).await;
        let is_stored = limit == LIMIT;
        let text = if is_stored { "abc" } else { "own" };
        assert!(replies.iter().all(|reply| (reply.status, reply.text()) == (206, text)));
        let calls = if is_stored { 1 } else { CROWD + 1 };
        assert!(origin.calls() <= calls + 1, "{} calls", origin.calls());
        assert!(wholes(&origin) <= 2);
        let replies = crowd(&app, CROWD, |_| range("bytes=0-2")).await;
        assert!(replies.iter().all(|reply| (reply.status, reply.text()) == (206, text)));
        assert!(wholes(&origin) <= 2);
    }
}

#[tokio::test(start_paused = true)]
async fn one_place_for_computations_is_enough_for_a_range() {
    let origin = Origin::new(|call| match call.header("range") {
        Some(_) => partial(),
        None => whole().body(body(LIMIT + 1)),
    });
    let cache = Stampede::builder("test").origin_only().max_computations(1).build().unwrap();
    let app = layered(cache.http_layer().max_body(LIMIT), &origin);
    let replies = crowd(&app, 20, |i| with(&format!("/{i}"), &[("range", "bytes=0-2")])).await;
    assert!(replies.iter().all(|reply| reply.text() == "own"));
    assert_eq!(cache.stats().flights, 0);
}

#[tokio::test(start_paused = true)]
async fn a_leader_of_a_range_that_hangs_up_leaves_the_whole_to_the_others() {
    let origin = Origin::new(|_| whole());
    let app = app_of(&origin);
    let leader = spawn({
        let app = app.clone();
        async move { send(&app, range("bytes=0-1")).await }
    });
    pass(WORK / 2).await;
    let others = spawn({
        let app = app.clone();
        async move { crowd(&app, 10, |_| range("bytes=2-3")).await }
    });
    pass(WORK / 4).await;
    leader.abort();
    let others = others.await.unwrap();
    assert!(others.iter().all(|reply| reply.is(Joined) && reply.text() == "cd"));
    assert_eq!(origin.calls(), 1);
}
