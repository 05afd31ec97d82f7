//! Nested layers of one handle where something between them changes the request.

use axum::Router;
use axum::body::Body;
use axum::extract::OriginalUri;
use axum::middleware::map_request;
use axum::routing::any;
use http::{Request, Uri};
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;

use crate::kit::http::*;

const SWR: &str = "max-age=10, stale-while-revalidate=600";

#[derive(Clone)]
struct User(&'static str);

/// Finds the user by a field that is on no list.
async fn find_user(mut request: Request<Body>) -> Request<Body> {
    let is_alice = request.headers().get("x-sid").is_some_and(|sid| sid == "a11ce");
    request.extensions_mut().insert(User(if is_alice { "alice" } else { "bob" }));
    request
}

fn user(call: &Call) -> &'static str {
    call.parts.extensions.get::<User>().unwrap().0
}

/// The mark names all parameters, the flight only those of the list.
#[tokio::test(start_paused = true)]
async fn a_layer_between_that_adds_an_unlisted_parameter_does_not_make_the_route_wait_for_itself() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.uri()));
    let cache = origin_only();
    let layer = || cache.http_layer().query(["id"]);
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request)).layer(layer());
    let app: Router = Router::new()
        .route("/page", route)
        .layer(map_request(|mut request: Request<Body>| async {
            // As a layer does that rewrites what a router has received.
            let uri = Uri::from_static("/page?id=1&lang=de");
            *request.uri_mut() = uri.clone();
            request.extensions_mut().insert(OriginalUri(uri));
            request
        }))
        .layer(layer());
    let reply = send(&app, get("/page?id=1")).await;
    assert!(reply.status == 200 && reply.took < secs(1), "{} {:?}", reply.status, reply.took);
}

/// The same with a layer of plain tower.
#[tokio::test(start_paused = true)]
async fn the_same_without_a_router() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.uri()));
    let cache = origin_only();
    let layer = || cache.http_layer().query(["id"]);
    let inner = layer().layer(origin.clone());
    let between = tower::util::MapRequest::new(inner, |mut request: Request<Body>| {
        *request.uri_mut() = Uri::from_static("/page?id=1&lang=de");
        request
    });
    let app = layer().layer(between);
    let reply = send(&app, get("/page?id=1")).await;
    assert!(reply.status == 200 && reply.took < secs(1), "{} {:?}", reply.status, reply.took);
}

/// The outer layer stores no response to a GET from behind the inner one.
#[tokio::test(start_paused = true)]
async fn the_response_to_a_post_from_behind_a_stricter_layer_is_not_shared_by_the_outer_one() {
    let origin =
        Origin::new(|call| Answer::ok("max-age=60", user(call)).header("content-location", "/me"));
    let cache = origin_only();
    let strict = post_storing(&cache).identity(|parts| parts.extensions.get::<User>().map(|u| u.0));
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request)).layer(strict);
    let app: Router =
        Router::new().route("/me", route).layer(map_request(find_user)).layer(post_storing(&cache));
    let fields = |sid| [("x-sid", sid), ("host", "x")];
    assert_eq!(send(&app, request("POST", "/me", &fields("a11ce"))).await.text(), "alice");
    let bob = send(&app, with("/me", &fields("b0b"))).await;
    assert_eq!(bob.text(), "bob", "{}", bob.cache_status());
}

/// What `bypass` sends past the outer layer must not come back out of it.
#[tokio::test(start_paused = true)]
async fn what_a_rule_of_the_outer_layer_sends_past_it_is_not_what_it_answers_others_with() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", user(call)));
    let cache = origin_only();
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request)).layer(cache.http_layer());
    let outer = cache
        .http_layer()
        .bypass(|parts| parts.headers.get("x-sid").is_some_and(|sid| sid == "a11ce"));
    let app: Router = Router::new().route("/me", route).layer(map_request(find_user)).layer(outer);
    let ask = |sid| with("/me", &[("x-sid", sid)]);
    assert_eq!(send(&app, ask("a11ce")).await.text(), "alice");
    let bob = send(&app, ask("b0b")).await;
    assert_eq!(bob.text(), "bob", "{}", bob.cache_status());
}

/// And the other way round: who is sent past gets what the handler says.
#[tokio::test(start_paused = true)]
async fn what_a_rule_of_the_outer_layer_sends_past_it_is_not_answered_with_what_it_stored() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", user(call)));
    let cache = origin_only();
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request)).layer(cache.http_layer());
    let outer = cache
        .http_layer()
        .bypass(|parts| parts.headers.get("x-sid").is_some_and(|sid| sid == "a11ce"));
    let app: Router = Router::new().route("/me", route).layer(map_request(find_user)).layer(outer);
    let ask = |sid| with("/me", &[("x-sid", sid)]);
    assert_eq!(send(&app, ask("b0b")).await.text(), "bob");
    let alice = send(&app, ask("a11ce")).await;
    assert_eq!(alice.text(), "alice", "{}", alice.cache_status());
}

/// The inner one says that the order of equals counts.
#[tokio::test(start_paused = true)]
async fn a_route_whose_layer_tells_the_order_of_languages_apart_does_so_in_another_layer() {
    let origin = Origin::new(|call| {
        let first = call.header("accept-language").unwrap()[..2].to_owned();
        Answer::ok("max-age=60", first).header("vary", "accept-language")
    });
    let cache = origin_only();
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request))
        .layer(cache.http_layer().normalise_accept(false));
    let app: Router = Router::new().route("/page", route).layer(cache.http_layer());
    let ask = |value| with("/page", &[("accept-language", value)]);
    assert_eq!(send(&app, ask("de, en")).await.text(), "de");
    assert_eq!(send(&app, ask("en, de")).await.text(), "en");
}

/// As above, but the inner layer's tags are others.
#[tokio::test(start_paused = true)]
async fn the_response_to_a_post_from_behind_a_stricter_layer_with_a_scope_is_not_shared() {
    for (what, tune) in [
        ("scope", (|layer| layer.scope("inner")) as fn(tower_stampede::HttpLayer) -> _),
        ("scheme", |layer| layer.scheme("https")),
    ] {
        let origin = Origin::new(|call| {
            Answer::ok("max-age=60", user(call)).header("content-location", "/me")
        });
        let cache = origin_only();
        let strict = tune(cache.http_layer());
        let strict = strict.identity(|parts| parts.extensions.get::<User>().map(|u| u.0));
        let handler = origin.clone();
        let route = any(move |request| handler.clone().handle(request)).layer(strict);
        let app: Router = Router::new()
            .route("/me", route)
            .layer(map_request(find_user))
            .layer(post_storing(&cache));
        let fields = |sid| [("x-sid", sid), ("host", "x")];
        assert_eq!(send(&app, request("POST", "/me", &fields("a11ce"))).await.text(), "alice");
        let bob = send(&app, with("/me", &fields("b0b"))).await;
        assert_eq!(bob.text(), "bob", "{what}: {}", bob.cache_status());
    }
}

/// `NormalizePathLayer` of tower-http stands between the two.
#[tokio::test(start_paused = true)]
async fn a_stricter_layer_stays_strict_where_a_slash_is_trimmed_between_the_two() {
    let origin = Origin::new(|call| Answer::status(200).body(user(call)));
    let cache = with_ttl(60);
    let strict = cache.http_layer().identity(|parts| parts.extensions.get::<User>().map(|u| u.0));
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request)).layer(strict);
    let router: Router = Router::new().route("/me", route).layer(map_request(find_user));
    let trimmed = tower::util::MapRequest::new(router, |mut request: Request<Body>| {
        if request.uri().path() == "/me/" {
            *request.uri_mut() = Uri::from_static("/me");
        }
        request
    });
    let app = cache.http_layer().layer(trimmed);
    for path in ["/me", "/me/"] {
        for (sid, user) in [("a11ce", "alice"), ("b0b", "bob")] {
            let reply = send(&app, with(path, &[("x-sid", sid)])).await;
            assert_eq!(reply.text(), user, "{path}: {:?}", reply.all("cache-status"));
        }
    }
}

/// The same where the inner one says `bypass`.
#[tokio::test(start_paused = true)]
async fn what_an_inner_layer_lets_past_is_not_shared_where_a_slash_is_trimmed_between_the_two() {
    let origin =
        Origin::new(|call| Answer::status(200).body(call.header("x-sid").unwrap().to_owned()));
    let cache = with_ttl(60);
    let strict = cache.http_layer().bypass(|_| true).layer(origin.clone());
    let trimmed = tower::util::MapRequest::new(strict, |mut request: Request<Body>| {
        *request.uri_mut() = Uri::from_static("/me");
        request
    });
    let app = cache.http_layer().layer(trimmed);
    for sid in ["a11ce", "b0b"] {
        let reply = send(&app, with("/me/", &[("x-sid", sid)])).await;
        assert_eq!(reply.text(), sid, "{:?}", reply.all("cache-status"));
    }
}

/// A crowd at the trimmed form. The inner layer has received another URI than the outer one has
/// sent, so nothing is shared.
#[tokio::test(start_paused = true)]
async fn a_crowd_at_two_names_of_one_page_waits_for_nothing_where_a_slash_is_trimmed() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "page"));
    let cache = origin_only();
    let inner = cache.http_layer().layer(origin.clone());
    let trimmed = tower::util::MapRequest::new(inner, |mut request: Request<Body>| {
        *request.uri_mut() = Uri::from_static("/page");
        request
    });
    let app = cache.http_layer().layer(trimmed);
    let replies = crowd(&app, 50, |i| get(["/page", "/page/"][i % 2])).await;
    assert!(replies.iter().all(|reply| reply.text() == "page"));
    assert!(slowest(&replies) < secs(1), "{:?}", slowest(&replies));
}

/// Two pages that a layer between the two layers swaps, as an experiment does.
#[tokio::test(start_paused = true)]
async fn pages_that_are_swapped_between_two_layers_do_not_wait_for_each_other() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.uri()));
    let cache = origin_only();
    let inner = cache.http_layer().layer(origin.clone());
    let swapped = tower::util::MapRequest::new(inner, |mut request: Request<Body>| {
        let other = if request.uri().path() == "/a" { "/b" } else { "/a" };
        *request.uri_mut() = Uri::from_static(other);
        request
    });
    let app = cache.http_layer().layer(swapped);
    let replies = crowd(&app, 2, |i| get(["/a", "/b"][i])).await;
    for (reply, expected) in replies.iter().zip(["/b", "/a"]) {
        assert!(reply.took < secs(1), "{} {:?}", reply.status, reply.took);
        assert_eq!(reply.text(), expected);
    }
}

/// One after the other: no wait, but the page of another.
#[tokio::test(start_paused = true)]
async fn pages_that_are_swapped_between_two_layers_are_not_taken_for_each_other() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.uri()));
    let cache = origin_only();
    let inner = cache.http_layer().layer(origin.clone());
    let swapped = tower::util::MapRequest::new(inner, |mut request: Request<Body>| {
        // Versions of the API that stand under others' names outside.
        let other = match request.uri().path() {
            "/api/x" => "/v1/x",
            "/v1/x" => "/legacy/x",
            other => panic!("{other}"),
        };
        *request.uri_mut() = Uri::from_static(other);
        request
    });
    let app = cache.http_layer().layer(swapped);
    assert_eq!(send(&app, get("/api/x")).await.text(), "/v1/x");
    let reply = send(&app, get("/v1/x")).await;
    assert_eq!(reply.text(), "/legacy/x", "{:?}", reply.all("cache-status"));
}

#[tokio::test(start_paused = true)]
async fn bob_reaches_the_handler_after_a_post_from_behind_a_layer_of_another_scheme() {
    let origin =
        Origin::new(|call| Answer::ok("max-age=60", user(call)).header("content-location", "/me"));
    let cache = origin_only();
    let strict = cache.http_layer().scheme("https");
    let strict = strict.identity(|parts| parts.extensions.get::<User>().map(|u| u.0));
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request)).layer(strict);
    let app: Router =
        Router::new().route("/me", route).layer(map_request(find_user)).layer(post_storing(&cache));
    let fields = |sid| [("x-sid", sid), ("host", "x")];
    send(&app, request("POST", "/me", &fields("a11ce"))).await;
    let bob = send(&app, with("/me", &fields("b0b"))).await;
    assert_eq!((bob.text(), origin.calls()), ("bob", 2), "{:?}", bob.all("cache-status"));
}

/// A lax one, one of another handle, a strict one.
#[tokio::test(start_paused = true)]
async fn a_stricter_layer_stays_strict_inside_two_of_different_handles() {
    let origin =
        Origin::new(|call| Answer::status(200).body(call.header("x-sid").unwrap().to_owned()));
    let (a, b) = (with_ttl(60), with_ttl(60));
    let strict =
        a.http_layer().identity(|parts| parts.headers.get("x-sid").map(|v| v.as_bytes().to_vec()));
    let app = a.http_layer().layer(b.http_layer().layer(strict.layer(origin.infallible())));
    let replies = crowd(&app, 20, |i| with("/me", &[("x-sid", ["a", "b"][i % 2])])).await;
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!(reply.text(), ["a", "b"][i % 2]);
    }
    for sid in ["a", "b"] {
        assert_eq!(send(&app, with("/me", &[("x-sid", sid)])).await.text(), sid);
        assert_eq!(send(&app, request("HEAD", "/me", &[("x-sid", sid)])).await.status, 200);
    }
}

/// A HEAD that finds the mark of another resource.
#[tokio::test(start_paused = true)]
async fn a_head_between_rewritten_names_does_not_wait() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.uri()));
    let cache = origin_only();
    let layer = || cache.http_layer().query(["id"]);
    let inner = layer().layer(origin.clone());
    let between = tower::util::MapRequest::new(inner, |mut request: Request<Body>| {
        *request.uri_mut() = Uri::from_static("/page?id=1&lang=de");
        request
    });
    let app = layer().layer(between);
    let reply = send(&app, request("HEAD", "/page?id=1", &[])).await;
    assert!(reply.status == 200 && reply.took < secs(1), "{} {:?}", reply.status, reply.took);
}

/// A refresh through the same two layers ends, and the next one is not held up.
#[tokio::test(start_paused = true)]
async fn a_refresh_through_layers_with_an_unlisted_parameter_between_them_ends() {
    let origin = Origin::new(|call| Answer::ok(SWR, call.n.to_string()));
    let cache = origin_only();
    let plain = layered(cache.http_layer().query(["id"]), &origin);
    let inner = cache.http_layer().query(["id"]).layer(origin.clone());
    let between = tower::util::MapRequest::new(inner, |mut request: Request<Body>| {
        *request.uri_mut() = Uri::from_static("/page?id=1&lang=de");
        request
    });
    let app = cache.http_layer().query(["id"]).layer(between);
    send(&plain, get("/page?id=1")).await;
    pass(secs(11)).await;
    assert!(send(&app, get("/page?id=1")).await.is(Stale));
    pass(secs(5)).await;
    assert_eq!(origin.calls(), 2);
}

/// Past the outer layer, the inner one knows of less.
#[tokio::test(start_paused = true)]
async fn a_request_too_large_for_the_outer_layer_does_not_lose_its_credential() {
    let origin = Origin::new(|call| {
        Answer::status(200).body(call.header("x-mine").unwrap_or("anonymous").to_owned())
    });
    let cache = with_ttl(60);
    let inner = cache.http_layer().layer(origin.infallible());
    let app = cache.http_layer().credential_headers(["x-mine"]).max_header_bytes(200).layer(inner);
    let large = "x".repeat(300);
    send(&app, with("/me", &[("x-mine", "alice"), ("x-large", &large)])).await;
    let reply = send(&app, get("/me")).await;
    assert_eq!(reply.text(), "anonymous", "{:?}", reply.all("cache-status"));
}

/// `identity`: "`None` sends the request past the cache".
#[tokio::test(start_paused = true)]
async fn who_has_no_identity_for_the_outer_layer_is_answered_by_the_handler() {
    let origin =
        Origin::new(|call| Answer::status(200).body(call.header("x-sid").unwrap().to_owned()));
    let cache = with_ttl(60);
    let inner = cache.http_layer().layer(origin.infallible());
    let app = cache.http_layer().identity(|_| None::<String>).layer(inner);
    for sid in ["a", "b"] {
        let reply = send(&app, with("/me", &[("x-sid", sid)])).await;
        assert_eq!(reply.text(), sid, "{:?}", reply.all("cache-status"));
    }
}
