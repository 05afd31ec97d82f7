//! QUERY: stored and shared like GET, with the body as a part of the key (RFC 10008).

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Request;
use http_body::{Body as _, Frame};
use http_body_util::StreamBody;
use proptest::prelude::*;
use tower_stampede::CacheOutcome::*;

use crate::kit::http::*;
use crate::kit::spawn;

pub(crate) fn query(body: impl Into<Body>) -> Request<Body> {
    with_body("QUERY", "/contacts", body)
}

pub(crate) fn with_body(method: &str, uri: &str, body: impl Into<Body>) -> Request<Body> {
    let mut request = request(method, uri, &[("content-type", "application/sql")]);
    *request.body_mut() = body.into();
    request
}

/// Answers with the body of the request.
pub(crate) fn echo() -> Origin {
    Origin::new(|call| {
        let text = String::from_utf8(call.body.to_vec()).unwrap();
        Answer::ok("max-age=60", format!("{} {text}", call.parts.method))
    })
}

/// A body that comes in pieces, each after a while; its length is not known.
pub(crate) fn dripping(pieces: usize, every: Duration, piece: &'static str) -> Body {
    let pieces = stream::iter(0..pieces).then(move |_| async move {
        tokio::time::sleep(every).await;
        Ok::<_, Infallible>(piece)
    });
    Body::from_stream(pieces)
}

#[tokio::test(start_paused = true)]
async fn a_crowd_with_one_body_is_one_computation_and_other_bodies_have_their_own() {
    let origin = echo();
    let app = app(&origin);
    let bodies = ["select 1", "select 2", ""];
    let replies = crowd(&app, 500, |i| query(bodies[i % 3])).await;
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!(reply.text(), format!("QUERY {}", bodies[i % 3]));
    }
    assert_eq!(origin.calls(), 3);
    assert_eq!(slowest(&replies), WORK);
    let reply = send(&app, query("select 1")).await;
    assert!(reply.is(Hit), "{}", reply.cache_status());
    // However the body comes.
    let reply = send(&app, query(dripping(1, ms(10), "select 2"))).await;
    assert!(reply.is(Hit) && reply.text() == "QUERY select 2");
}

#[tokio::test(start_paused = true)]
async fn what_the_body_means_is_part_of_the_key() {
    let origin = echo();
    let app = app(&origin);
    send(&app, query("x")).await;
    for (name, value) in [
        ("content-type", "application/json"),
        ("content-encoding", "gzip"),
        ("content-language", "de"),
        ("content-location", "/x"),
    ] {
        let mut other = query("x");
        other.headers_mut().insert(name, value.parse().unwrap());
        assert!(send(&app, other).await.is(Computed), "{name}");
        assert_eq!(origin.last().header(name), Some(value));
    }
    let mut same = query("x");
    same.headers_mut().insert("user-agent", "y".parse().unwrap());
    assert!(send(&app, same).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn a_query_answers_no_get_and_a_get_no_query() {
    let origin = Origin::new(|call| {
        let answer = Answer::ok("max-age=60", call.parts.method.to_string());
        answer.header("content-location", "/contacts").header("location", "/contacts")
    });
    let app = app(&origin);
    assert_eq!(send(&app, query("")).await.text(), "QUERY");
    assert_eq!(send(&app, get("/contacts")).await.text(), "GET");
    assert_eq!(send(&app, query("")).await.text(), "QUERY");
    let head = send(&app, request("HEAD", "/contacts", &[])).await;
    assert!(head.is(Hit));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_query_invalidates_nothing_and_a_write_ends_the_queries_of_its_uri() {
    let cache = origin_only();
    let origin = echo();
    let app = layered(cache.http_layer(), &origin);
    send(&app, get("/contacts")).await;
    send(&app, query("a")).await;
    send(&app, query("b")).await;
    assert!(send(&app, get("/contacts")).await.is(Hit), "after a query");
    send(&app, with_body("POST", "/contacts", "new")).await;
    for request in [get("/contacts"), query("a"), query("b")] {
        assert!(send(&app, request).await.is(Computed));
    }
    cache.invalidate_path("/contacts").await;
    assert!(send(&app, query("a")).await.is(Computed));
    assert!(send(&app, query("a")).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn conditions_and_ranges_are_those_of_a_get() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "0123456789").header("etag", "\"a\""));
    let app = app(&origin);
    send(&app, query("x")).await;
    let ask = |name: &'static str, value: &'static str| {
        let mut request = query("x");
        request.headers_mut().insert(name, value.parse().unwrap());
        request
    };
    assert_eq!(send(&app, ask("if-none-match", "\"a\"")).await.status, 304);
    let part = send(&app, ask("range", "bytes=2-3")).await;
    assert_eq!((part.status, part.text()), (206, "23"));
    assert_eq!(origin.calls(), 1);
    // What a stored response cannot answer goes to the origin.
    assert!(send(&app, ask("if-match", "\"a\"")).await.is(Bypass));
    assert_eq!(origin.last().body, "x");
}

#[tokio::test(start_paused = true)]
async fn a_stored_query_is_validated_with_its_body() {
    let origin = Origin::new(|_| Answer::ok("max-age=10", "old").header("etag", "\"a\""));
    let app = app(&origin);
    send(&app, query("x")).await;
    pass(secs(11)).await;
    origin.answers(|call| match call.header("if-none-match") {
        Some("\"a\"") => Answer::status(304).header("cache-control", "max-age=10"),
        _ => Answer::ok("max-age=10", "new").header("etag", "\"b\""),
    });
    assert_eq!(send(&app, query("x")).await.text(), "old");
    let last = origin.last();
    assert_eq!((last.parts.method.as_str(), &last.body[..]), ("QUERY", &b"x"[..]));
    assert!(send(&app, query("x")).await.is(Hit));
    // A 304 about another response: the whole body is sent once more.
    pass(secs(11)).await;
    origin.answers(|call| match call.header("if-none-match") {
        Some(_) => Answer::status(304).header("etag", "\"c\""),
        None => Answer::ok("max-age=10", format!("{:?}", call.body)),
    });
    assert_eq!(send(&app, query("x")).await.text(), "b\"x\"");
    let last = origin.last();
    assert_eq!((last.parts.method.as_str(), &last.body[..]), ("QUERY", &b"x"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_sends_the_body_and_what_it_means() {
    let origin = echo();
    let app = layered(origin_only().http_layer().stale_for(secs(60)), &origin);
    let fields = [
        ("content-type", "application/sql"),
        ("content-language", "de"),
        ("user-agent", "one client"),
    ];
    let ask = || {
        let mut request = request("QUERY", "/contacts", &fields);
        *request.body_mut() = "select 1".into();
        request
    };
    send(&app, ask()).await;
    pass(secs(61)).await;
    assert!(send(&app, ask()).await.is(Stale));
    pass(secs(1)).await;
    let last = origin.last();
    assert_eq!((origin.calls(), last.parts.method.as_str()), (2, "QUERY"));
    assert_eq!(last.body, "select 1");
    assert_eq!(last.header("content-type"), Some("application/sql"));
    assert_eq!(last.header("content-language"), Some("de"));
    assert_eq!(last.header("user-agent"), None);
    assert!(send(&app, ask()).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_too_long_reaches_the_service_whole_and_uncached() {
    let origin = echo();
    let app = layered(origin_only().http_layer().max_request_body(8), &origin);
    assert!(send(&app, query("12345678")).await.is(Computed));
    for body in [Body::from("123456789"), dripping(5, ms(1), "123")] {
        let expected = if body.is_end_stream() { "" } else { "123" };
        let reply = send(&app, query(body)).await;
        assert!(reply.is(Bypass), "{}", reply.cache_status());
        assert!(reply.cache_status().contains("detail=body-too-large"), "{}", reply.cache_status());
        assert!(reply.text().starts_with(&format!("QUERY {expected}")));
    }
    assert_eq!(origin.last().body, "123123123123123");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_comes_slowly_holds_no_place_and_no_flight() {
    let cache = tower_stampede::Stampede::builder("test").origin_only().max_computations(1);
    let cache: tower_stampede::HttpStampede = cache.build().unwrap();
    let origin = echo();
    let layer = cache.http_layer().request_body_timeout(secs(2));
    let app = layered(layer, &origin);
    let slow = crowd(&app, 500, |_| query(dripping(30, ms(100), "x")));
    let quick = async {
        pass(ms(1000)).await;
        assert_eq!((cache.stats().flights, cache.stats().waiting), (0, 0));
        let replies = crowd(&app, 500, |_| query("y")).await;
        assert_eq!(slowest(&replies), WORK);
        assert_eq!(origin.calls(), 1);
    };
    let (slow, ()) = tokio::join!(slow, quick);
    for reply in &slow {
        assert!(reply.cache_status().contains("detail=body-too-slow"), "{}", reply.cache_status());
        assert_eq!(reply.text(), format!("QUERY {}", "x".repeat(30)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_while_it_sends_reaches_no_service() {
    let origin = echo();
    let app = app(&origin);
    let sending = spawn({
        let app = app.clone();
        async move { send(&app, query(dripping(9, secs(1), "x"))).await }
    });
    pass(ms(1500)).await;
    sending.abort();
    pass(secs(20)).await;
    assert_eq!(origin.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn trailers_reach_the_service_and_make_no_key() {
    let frames = || {
        let trailers = http::HeaderMap::from_iter([(http::header::ETAG, "t".parse().unwrap())]);
        let frames = [Frame::data(Bytes::from("x")), Frame::trailers(trailers)];
        Body::new(StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>))))
    };
    let origin = echo();
    let app = app(&origin);
    for _ in 0..2 {
        let reply = send(&app, query(frames())).await;
        assert!(
            reply.cache_status().contains("detail=body-unreadable"),
            "{}",
            reply.cache_status()
        );
        assert_eq!(reply.text(), "QUERY x");
    }
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_does_not_store_queries_forwards_them_unread() {
    let origin = echo();
    let app = layered(origin_only().http_layer().query_method(false), &origin);
    let replies = crowd(&app, 5, |_| query("x")).await;
    assert!(replies.iter().all(|reply| reply.is(Bypass)));
    assert_eq!(origin.calls(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_body_type_that_cannot_be_made_is_forwarded_uncached() {
    use http_body_util::combinators::UnsyncBoxBody;
    use http_body_util::{BodyExt, Full};
    use tower::{Layer, Service, ServiceExt};
    use tower_stampede::RequestBody;

    type Boxed = UnsyncBoxBody<Bytes, Infallible>;
    fn make(body: RequestBody<Boxed>) -> Boxed {
        body.boxed_unsync()
    }
    for says in [false, true] {
        let origin = echo();
        let layer = origin_only().http_layer();
        let layer = if says { layer.request_body(make) } else { layer };
        let inner = tower::service_fn({
            let origin = origin.clone();
            move |request: Request<Boxed>| origin.clone().call(request.map(Body::new))
        });
        let app = layer.layer(inner);
        for n in 1..=2 {
            let ask = query("").map(|_| Full::new(Bytes::from("x")).boxed_unsync());
            let reply = read(app.clone().oneshot(ask).await.unwrap(), secs(0)).await;
            assert_eq!(reply.text(), "QUERY x");
            assert_eq!(reply.cache_status().contains("detail=body-type"), !says);
            assert_eq!(origin.calls(), if says { 1 } else { n });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn answers_to_clients_with_credentials_are_not_shared() {
    let origin = Origin::new(|call| {
        let who = call.header("authorization").unwrap_or("none").to_owned();
        Answer::ok("max-age=60", who)
    });
    let app = app(&origin);
    let ask = |who: &str| {
        let mut request = query("x");
        if who != "none" {
            request.headers_mut().insert("authorization", who.parse().unwrap());
        }
        request
    };
    for who in ["alice", "bob", "none", "alice"] {
        assert_eq!(send(&app, ask(who)).await.text(), who);
    }
}

/// The inner one does not read the body, and something in between may have written the client into
/// it.
#[tokio::test(start_paused = true)]
async fn of_two_layers_none_shares_what_is_keyed_by_a_body() {
    let cache = origin_only();
    let origin = echo();
    let layer = cache.http_layer().cache_posts(|_| true);
    let inside = layered(layer.clone(), &origin);
    let rewriting = tower::ServiceBuilder::new()
        .map_request(|request: Request<Body>| {
            let sid = request.headers().get("x-sid").unwrap().to_str().unwrap().to_owned();
            request.map(|_| Body::from(sid))
        })
        .service(inside);
    let app = tower_layer::Layer::layer(&layer, rewriting);
    for method in ["QUERY", "POST"] {
        let ask = |i: usize| {
            let mut request = with_body(method, "/contacts", "mine");
            request.headers_mut().insert("x-sid", i.into());
            request
        };
        for i in 0..2 {
            assert_eq!(send(&app, ask(i)).await.text(), format!("{method} {i}"));
        }
        let replies = crowd(&app, 20, ask).await;
        for (i, reply) in replies.iter().enumerate() {
            assert_eq!(reply.text(), format!("{method} {i}"));
        }
        assert!(slowest(&replies) < secs(1), "{:?}", slowest(&replies));
    }
    assert_eq!(cache.stats().entries, 0);
}

/// The rule of the application reads what something in between has found.
#[tokio::test(start_paused = true)]
async fn of_two_layers_none_shares_a_post_whose_key_is_made_of_more_than_its_body() {
    #[derive(Clone)]
    struct User(http::HeaderValue);
    let user = |parts: &http::request::Parts| {
        let user = parts.extensions.get::<User>();
        user.map_or(b"none".to_vec(), |user| user.0.as_bytes().to_vec())
    };
    let cache = origin_only();
    let origin = Origin::new(move |call| Answer::ok("max-age=60", user(&call.parts)));
    let layer = cache.http_layer().cache_posts(|_| true);
    let layer = layer.post_key(move |parts, body| Some((user(parts), body.to_vec())));
    let finding = tower::ServiceBuilder::new()
        .map_request(|mut request: Request<Body>| {
            let sid = request.headers().get("x-sid").unwrap().clone();
            request.extensions_mut().insert(User(sid));
            request
        })
        .service(layered(layer.clone(), &origin));
    let app = tower_layer::Layer::layer(&layer, finding);
    for name in ["alice", "bob"] {
        let mut request = with_body("POST", "/contacts", "mine");
        request.headers_mut().insert("x-sid", name.parse().unwrap());
        assert_eq!(send(&app, request).await.text(), name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_comes_in_whatever_pieces_each_client_gets_the_answer_to_its_own_body(
        clients in proptest::collection::vec(
            (proptest::collection::vec("[ab]{0,3}", 0..4), 0..3_u64, any::<bool>()), 1..12,
        ),
        most in 0..8_usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let origin = echo();
            let layer = origin_only().http_layer().max_request_body(most);
            let app = layered(layer.cache_posts(|_| true), &origin);
            let method = |is_post: bool| if is_post { "POST" } else { "QUERY" };
            let ask = |i: usize| {
                let (pieces, pause, is_post) = clients[i % clients.len()].clone();
                let pieces = stream::iter(pieces).then(move |piece| async move {
                    tokio::time::sleep(secs(pause)).await;
                    Ok::<_, Infallible>(piece)
                });
                with_body(method(is_post), "/", Body::from_stream(pieces))
            };
            for _ in 0..2 {
                let replies = crowd(&app, clients.len() * 3, ask).await;
                for (i, reply) in replies.iter().enumerate() {
                    let (pieces, _, is_post) = &clients[i % clients.len()];
                    assert_eq!(reply.text(), format!("{} {}", method(*is_post), pieces.concat()));
                }
            }
        });
    }
}
