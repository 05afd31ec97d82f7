//! POSTs of which the application says that they change nothing, as those of GraphQL.

use bytes::Bytes;
use http::request::Parts;
use tower_stampede::CacheOutcome::*;
use tower_stampede::HttpLayer;

use super::query::{dripping, echo, query, with_body};
use crate::kit::http::*;

fn is_graphql(parts: &Parts) -> bool {
    parts.uri.path() == "/graphql"
}

fn post(body: &'static str) -> http::Request<axum::body::Body> {
    with_body("POST", "/graphql", body)
}

/// Queries without the space between their words; no key for a mutation.
fn words(_: &Parts, body: &Bytes) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    let words: Vec<_> = text.split_ascii_whitespace().collect();
    (words.first() != Some(&"mutation")).then(|| words.join(" "))
}

fn graphql() -> HttpLayer {
    origin_only().http_layer().cache_posts(is_graphql).post_key(words)
}

#[tokio::test(start_paused = true)]
async fn a_crowd_with_one_body_is_one_computation() {
    let origin = echo();
    let app = layered(origin_only().http_layer().cache_posts(is_graphql), &origin);
    let bodies = ["{ a }", "{ b }"];
    let replies = crowd(&app, 500, |i| post(bodies[i % 2])).await;
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!(reply.text(), format!("POST {}", bodies[i % 2]));
    }
    assert_eq!(origin.calls(), 2);
    assert!(send(&app, post("{ a }")).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn a_safe_post_invalidates_nothing_and_answers_neither_get_nor_query() {
    let origin = Origin::new(|call| {
        let answer = Answer::ok("max-age=60", call.parts.method.to_string());
        answer.header("content-location", "/graphql")
    });
    let layer = post_storing(&origin_only()).cache_posts(is_graphql);
    let app = layered(layer, &origin);
    send(&app, get("/graphql")).await;
    assert_eq!(send(&app, post("x")).await.text(), "POST");
    let reply = send(&app, get("/graphql")).await;
    assert!(reply.is(Hit) && reply.text() == "GET");
    assert_eq!(send(&app, with_body("QUERY", "/graphql", "x")).await.text(), "QUERY");
    assert!(send(&app, post("x")).await.is(Hit));
    // Any other POST is what it was: it invalidates, and may be stored for a GET.
    let other = Origin::new(|call| {
        let answer = Answer::ok("max-age=60", call.parts.method.to_string());
        answer.header("content-location", "/other")
    });
    let app = layered(post_storing(&origin_only()).cache_posts(is_graphql), &other);
    send(&app, with_body("POST", "/other", "x")).await;
    assert_eq!(send(&app, get("/other")).await.text(), "POST");
}

#[tokio::test(start_paused = true)]
async fn the_key_of_the_application_stands_for_the_body() {
    let origin = echo();
    let app = layered(graphql(), &origin);
    let spellings = ["query { a }", " query  {  a } ", "query { a }\n"];
    let replies = crowd(&app, 500, |i| post(spellings[i % 3])).await;
    assert_eq!(origin.calls(), 1);
    assert!(replies.iter().all(|reply| reply.text() == "POST query { a }"));
    // What the body means counts beside it.
    let mut other = post("query { a }");
    other.headers_mut().insert("content-type", "text/plain".parse().unwrap());
    assert!(send(&app, other).await.is(Computed));
}

#[tokio::test(start_paused = true)]
async fn a_body_without_a_key_is_a_write_like_any_other() {
    let origin = echo();
    let app = layered(graphql(), &origin);
    send(&app, post("query { a }")).await;
    send(&app, get("/graphql")).await;
    let replies = crowd(&app, 3, |_| post("mutation { b }")).await;
    assert!(replies.iter().all(|reply| reply.is(Bypass) && reply.text() == "POST mutation { b }"));
    assert_eq!(origin.calls(), 5);
    assert!(send(&app, post("query { a }")).await.is(Computed));
    assert!(send(&app, get("/graphql")).await.is(Computed));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_cannot_be_read_is_a_write_where_the_body_decides() {
    for is_decided_by_body in [true, false] {
        let origin = echo();
        let layer = origin_only().http_layer().cache_posts(is_graphql).max_request_body(8);
        let layer = if is_decided_by_body { layer.post_key(words) } else { layer };
        let app = layered(layer, &origin);
        send(&app, get("/graphql")).await;
        let long = with_body("POST", "/graphql", dripping(5, ms(1), "123"));
        assert_eq!(send(&app, long).await.text(), "POST 123123123123123");
        assert_eq!(send(&app, get("/graphql")).await.is(Hit), !is_decided_by_body);
    }
}

#[tokio::test(start_paused = true)]
async fn conditions_of_a_post_go_to_the_service_and_its_range_is_ignored() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "0123").header("etag", "\"a\""));
    let app = layered(origin_only().http_layer().cache_posts(is_graphql), &origin);
    let ask = |name: &'static str, value: &'static str| {
        let mut request = post("x");
        request.headers_mut().insert(name, value.parse().unwrap());
        request
    };
    send(&app, post("x")).await;
    assert!(send(&app, ask("if-none-match", "\"a\"")).await.is(Bypass));
    let reply = send(&app, ask("range", "bytes=0-1")).await;
    assert_eq!((reply.status, reply.text()), (200, "0123"));
    assert!(reply.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_the_safe_posts_of_its_uri() {
    let origin = echo();
    let app = layered(graphql(), &origin);
    send(&app, post("query { a }")).await;
    send(&app, with_body("PUT", "/graphql", "x")).await;
    assert!(send(&app, post("query { a }")).await.is(Computed));
}

#[tokio::test(start_paused = true)]
async fn a_route_stores_the_posts_that_its_layer_stores() {
    let cache = origin_only();
    let origin = echo();
    let layer = cache.http_layer().cache_posts(is_graphql).post_key(words);
    let app = layered(layer.route_rules("/graphql", |it| it.stale_for(secs(1))), &origin);
    let replies = crowd(&app, 100, |_| post("query { a }")).await;
    assert!(replies.iter().all(|reply| reply.text() == "POST query { a }"));
    assert_eq!(origin.calls(), 1);
    assert!(send(&app, post("query { a }")).await.is(Hit));
    send(&app, post("mutation { b }")).await;
    assert!(send(&app, post("query { a }")).await.is(Computed));
    assert!(send(&app, query("x")).await.is(Computed));
}

#[tokio::test(start_paused = true)]
async fn switched_off_the_layer_reads_no_body() {
    let cache = origin_only();
    let origin = echo();
    let layer = cache.http_layer().cache_posts(is_graphql);
    let app = layered(layer.post_key(|_, _| -> Option<u8> { panic!("it was read") }), &origin);
    cache.set_mode(tower_stampede::Mode::Off);
    let slow = with_body("POST", "/graphql", dripping(2, secs(1), "x"));
    assert_eq!(send(&app, slow).await.text(), "POST xx");
    let replies = crowd(&app, 3, |_| query("x")).await;
    assert!(replies.iter().all(|reply| reply.text() == "QUERY x"));
    assert_eq!(origin.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_date_is_no_condition_of_a_post() {
    // RFC 9110, 13.1.3
    let origin = echo();
    let app = layered(origin_only().http_layer().cache_posts(is_graphql), &origin);
    let request = |_| {
        let mut request = post("{ a }");
        let date = "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap();
        request.headers_mut().insert("if-modified-since", date);
        request
    };
    let replies = crowd(&app, 20, request).await;
    assert!(replies.iter().all(|reply| reply.text() == "POST { a }"));
    assert_eq!(origin.calls(), 1);
    assert_eq!(origin.last().header("if-modified-since"), None);
}
