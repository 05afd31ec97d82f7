//! Settings of single routes in the layer of a router.

mod failures;
mod paths;
mod storms;
mod writes;

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::middleware::map_request;
use axum::routing::{any, get as on_get};
use http::Request;
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{CacheFor, HttpLayer};

use crate::kit::http::*;

/// A handler that answers from the origin.
fn handler(origin: &Origin) -> axum::routing::MethodRouter<(), Infallible> {
    let origin = origin.clone();
    any(move |request| origin.clone().handle(request))
}

/// Two routes that the tests give rules, and one without.
fn routes(origin: &Origin) -> Router {
    ["/search", "/items/{id}", "/plain"]
        .iter()
        .fold(Router::new(), |app, path| app.route(path, handler(origin)))
}

trait Change: Fn(HttpLayer) -> HttpLayer + Clone + Send + Sync + 'static {}

impl<C: Fn(HttpLayer) -> HttpLayer + Clone + Send + Sync + 'static> Change for C {}

fn ruled(layer: HttpLayer, rules: impl Change) -> HttpLayer {
    layer.route_rules("/search", rules.clone()).route_rules("/items/{id}", rules)
}

fn site(origin: &Origin, layer: HttpLayer, rules: impl Change) -> Router {
    routes(origin).layer(ruled(layer, rules))
}

/// The same with the layer around the whole router: before the routes are matched.
fn around(
    origin: &Origin,
    layer: HttpLayer,
    rules: impl Change,
) -> tower_stampede::HttpService<Router> {
    ruled(layer, rules).layer(routes(origin))
}

fn echo() -> Origin {
    Origin::new(|call| Answer::status(200).body(format!("{} {}", call.uri(), call.n)))
}

#[tokio::test(start_paused = true)]
async fn a_response_is_stored_once_under_the_rules_of_its_route() {
    let (cache, origin) = (with_ttl(60), echo());
    let app = site(&origin, cache.http_layer(), |it| it.query(["q"]).ttl(secs(5)));
    let first = send(&app, get("/search?q=1&utm=a")).await;
    assert_eq!(first.text(), "/search?q=1 0");
    assert_eq!(first.all("cache-status").len(), 1, "{first:?}");
    for parameters in ["q=1&utm=b", "utm=c&q=1", "q=1"] {
        let reply = send(&app, get(&format!("/search?{parameters}"))).await;
        assert!(reply.is(Hit) && reply.text() == "/search?q=1 0", "{reply:?}");
        assert_eq!(reply.all("cache-status").len(), 1, "{reply:?}");
    }
    assert_eq!((origin.calls(), cache.stats().entries), (1, 1));
    pass(secs(6)).await;
    assert!(send(&app, get("/search?q=1")).await.is(Computed));
    // Other routes have the settings of the layer.
    assert!(send(&app, get("/plain")).await.is(Computed));
    pass(secs(30)).await;
    assert!(send(&app, get("/plain")).await.is(Hit));
    let stats = cache.stats();
    assert_eq!((stats.computations, stats.hits, stats.computed), (3, 4, 3), "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cold_crowd_is_one_call_for_each_key_of_the_route() {
    for is_around in [false, true] {
        let (cache, origin) = (with_ttl(60), echo());
        let rules = |it: HttpLayer| it.query(["q"]);
        let ask = |i: usize| get(&format!("/search?q={}&utm={}", i % 7, i % 11));
        let replies = if is_around {
            crowd(&around(&origin, cache.http_layer(), rules), 300, ask).await
        } else {
            crowd(&site(&origin, cache.http_layer(), rules), 300, ask).await
        };
        assert_eq!(origin.calls(), 7, "around: {is_around}");
        assert!(slowest(&replies) < WORK * 2, "{:?}", slowest(&replies));
        for (i, reply) in replies.iter().enumerate() {
            assert!(reply.text().starts_with(&format!("/search?q={} ", i % 7)), "{reply:?}");
        }
        let stats = cache.stats();
        assert_eq!((stats.entries, stats.flights, stats.computations), (7, 0, 7), "{stats:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_route_may_count_parameters_that_the_layer_leaves_out() {
    let (cache, origin) = (with_ttl(60), echo());
    let layer = cache.http_layer().query([]);
    let layer = layer.route_rules("/api/search", |it| it.query(["q"]));
    let layer = ruled(layer, |it| it.query(["q"]));
    let nested = Router::new().nest("/api", routes(&origin)).layer(layer.clone());
    for (app, prefix) in [(routes(&origin).layer(layer), ""), (nested, "/api")] {
        for (ask, seen) in [("q=1&x=1", "?q=1"), ("q=2", "?q=2"), ("x=1", ""), ("q=1", "?q=1")] {
            let reply = send(&app, get(&format!("{prefix}/search?{ask}"))).await;
            let path = reply.text().split(' ').next().unwrap();
            assert_eq!(path, format!("/search{seen}"));
        }
        assert_eq!(send(&app, get(&format!("{prefix}/plain?q=1"))).await.text()[..7], *"/plain ");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stale_response_of_a_route_is_refreshed_once_in_the_background() {
    let (cache, origin) = (with_ttl(60), echo());
    let app = site(&origin, cache.http_layer(), |it| it.ttl(secs(1)).stale_for(secs(60)));
    send(&app, get("/search")).await;
    pass(secs(2)).await;
    let replies = crowd(&app, 50, |_| get("/search")).await;
    assert!(replies.iter().all(|reply| reply.is(Stale)), "{:?}", replies[0]);
    pass(secs(1)).await;
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_private_route_stores_nothing_and_keeps_no_client_waiting() {
    let (cache, origin) = (with_ttl(60), echo());
    let app = site(&origin, cache.http_layer(), HttpLayer::private);
    for round in 1..=3 {
        let replies = crowd(&app, 20, |_| get("/items/1")).await;
        assert_eq!(origin.calls(), 20 * round);
        assert!(slowest(&replies) < WORK + ms(10), "{:?}", slowest(&replies));
    }
    assert_eq!(cache.stats().entries, 0);
}

#[tokio::test(start_paused = true)]
async fn a_public_route_is_shared_among_clients_with_cookies_and_no_other_route_is() {
    let (cache, origin) = (with_ttl(60), echo());
    let app = site(&origin, cache.http_layer(), |it| it.public().tags(["search"]));
    let ask = |i: usize| with("/search", &[("cookie", ["a=1", "a=2"][i % 2])]);
    crowd(&app, 20, ask).await;
    assert_eq!(origin.calls(), 1);
    cache.invalidate_tag("search").await;
    send(&app, ask(0)).await;
    assert_eq!(origin.calls(), 2);
    crowd(&app, 5, |_| with("/plain", &[("cookie", "a=1")])).await;
    assert_eq!(origin.calls(), 7);
    // What the response itself forbids stays forbidden.
    origin.answers(|call| Answer::ok("private", call.n.to_string()));
    crowd(&app, 5, |_| with("/items/1", &[("cookie", "a=1")])).await;
    assert_eq!(origin.calls(), 12);
}

// ===== No user gets another user's response =====

#[derive(Clone)]
struct User(String);

/// Reads the user from a field, and removes the field.
async fn authenticate(mut request: Request<Body>) -> Request<Body> {
    let shown = request.headers_mut().remove("authorization");
    let user = shown.map_or("anonymous".into(), |user| user.to_str().unwrap().to_owned());
    request.extensions_mut().insert(User(user));
    request
}

fn personal() -> Origin {
    Origin::new(|call| {
        let user = call.parts.extensions.get::<User>().map_or("none", |user| &user.0).to_owned();
        Answer::status(200).body(user)
    })
}

#[tokio::test(start_paused = true)]
async fn a_credential_that_is_removed_behind_the_layer_still_counts() {
    let rules: [fn(HttpLayer) -> HttpLayer; 2] =
        [|it| it.ttl(secs(5)).stale_for(secs(60)), |it| it.query(["q"])];
    for rules in rules {
        let (cache, origin) = (with_ttl(60), personal());
        let app = routes(&origin).layer(map_request(authenticate));
        let app = app.layer(ruled(cache.http_layer(), rules));
        for _ in 0..3 {
            let ask = |i: usize| match i % 3 {
                0 => get("/search"),
                n => with("/search", &[("authorization", ["alice", "bob"][n - 1])]),
            };
            let replies = crowd(&app, 30, ask).await;
            for (i, reply) in replies.iter().enumerate() {
                assert_eq!(reply.text(), ["anonymous", "alice", "bob"][i % 3]);
            }
            // Stale, with a refresh that must not make it a user's.
            pass(secs(6)).await;
        }
    }
}

fn sid(parts: &http::request::Parts) -> Option<Vec<u8>> {
    parts.headers.get("x-sid").map(|sid| sid.as_bytes().to_vec())
}

/// What a route sets adds to it.
#[tokio::test(start_paused = true)]
async fn what_the_layer_keeps_apart_no_route_shares() {
    type Tune = fn(HttpLayer) -> HttpLayer;
    let strict: [(&str, Tune); 5] = [
        ("identity", |it| it.identity(sid)),
        ("bypass", |it| it.bypass(|parts| parts.headers.contains_key("x-sid"))),
        ("vary", |it| it.vary(["x-sid"])),
        ("keyed", |it| it.keyed_headers(["x-sid"])),
        ("credential", |it| it.credential_headers(["x-sid"])),
    ];
    let rules: [Tune; 6] = [
        |it| it.ttl(secs(5)),
        |it| it.key(|parts| parts.uri.path().to_owned()),
        |it| it.bypass(|_| false),
        |it| it.vary(["accept-language"]),
        |it| it.keyed_headers(["x-plan"]),
        |it| it.credential_headers(["x-token"]),
    ];
    for (name, strict) in strict {
        for rules in rules {
            let (cache, origin) = (
                with_ttl(60),
                Origin::new(|call| {
                    Answer::status(200).body(call.header("x-sid").unwrap().to_owned())
                }),
            );
            let app = site(&origin, strict(cache.http_layer()), rules);
            let ask = |i: usize| with("/search", &[("x-sid", ["a", "b"][i % 2])]);
            for _ in 0..2 {
                let replies = crowd(&app, 10, ask).await;
                for (i, reply) in replies.iter().enumerate() {
                    assert_eq!(reply.text(), ["a", "b"][i % 2], "{name}");
                }
            }
        }
    }
}

/// What a route sets is for this route alone.
#[tokio::test(start_paused = true)]
async fn an_identity_of_a_route_keeps_its_clients_apart_and_no_others() {
    let (cache, origin) = (
        with_ttl(60),
        Origin::new(|call| Answer::status(200).body(call.header("x-sid").unwrap().to_owned())),
    );
    let app = site(&origin, cache.http_layer(), |it| it.identity(sid));
    for _ in 0..2 {
        let ask = |i: usize| with("/search", &[("x-sid", ["a", "b"][i % 2])]);
        for (i, reply) in crowd(&app, 20, ask).await.iter().enumerate() {
            assert_eq!(reply.text(), ["a", "b"][i % 2]);
        }
        assert_eq!(origin.calls(), 2);
    }
    crowd(&app, 20, |i| with("/plain", &[("x-sid", ["a", "b"][i % 2])])).await;
    assert_eq!(origin.calls(), 3);
}

/// The refresh has no credential any more, but the user that was found by it.
#[tokio::test(start_paused = true)]
async fn a_refresh_for_a_user_who_was_found_behind_the_layer_is_shared_by_permission_only() {
    let (cache, origin) = (origin_only(), personal());
    origin.answers(|_| Answer::ok("public, max-age=1, stale-while-revalidate=60", "for all"));
    let app = routes(&origin).layer(map_request(authenticate));
    let app = app.layer(ruled(cache.http_layer(), |it| it.query(["q"])));
    let alice = || with("/search", &[("authorization", "alice")]);
    send(&app, alice()).await;
    pass(secs(2)).await;
    origin.answers(|call| {
        let user = &call.parts.extensions.get::<User>().unwrap().0;
        Answer::ok("max-age=60", user.clone())
    });
    assert!(send(&app, alice()).await.is(Stale));
    pass(secs(1)).await;
    assert_ne!(send(&app, get("/search")).await.text(), "alice");
    pass(secs(1)).await;
    assert_ne!(send(&app, get("/search")).await.text(), "alice");
}

/// A background refresh has the rules of its route.
#[tokio::test(start_paused = true)]
async fn a_refresh_carries_the_fields_that_the_route_has_keyed() {
    type Tune = fn(HttpLayer) -> HttpLayer;
    let keyed: [Tune; 3] =
        [|it| it.identity(sid), |it| it.keyed_headers(["x-sid"]), |it| it.vary(["x-sid"])];
    for keyed in keyed {
        for is_of_layer in [false, true] {
            let (cache, origin) = (
                with_ttl(60),
                Origin::new(|call| {
                    Answer::status(200).body(call.header("x-sid").unwrap_or("anonymous").to_owned())
                }),
            );
            let short = |it: HttpLayer| it.ttl(secs(1)).stale_for(secs(60));
            let app = match is_of_layer {
                true => site(&origin, keyed(cache.http_layer()), short),
                false => site(&origin, cache.http_layer(), move |it| keyed(short(it))),
            };
            let ask = |sid| with("/search", &[("x-sid", sid)]);
            for sid in ["a", "b"] {
                send(&app, ask(sid)).await;
            }
            pass(secs(2)).await;
            for sid in ["a", "b"] {
                assert!(send(&app, ask(sid)).await.is(Stale));
            }
            pass(secs(1)).await;
            assert_eq!(origin.calls(), 4);
            for sid in ["a", "b"] {
                assert_eq!(send(&app, ask(sid)).await.text(), sid);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_keyed_counts_where_it_is_read_behind_the_layer() {
    // The language is a part of the path, the tenant a field; neither reaches the route.
    let read = |mut request: Request<Body>| async {
        let path = request.uri().path().to_owned();
        let tenant = request.headers_mut().remove("x-forwarded-host");
        let tenant = tenant.map_or(String::new(), |it| it.to_str().unwrap().to_owned());
        request.extensions_mut().insert(User(format!("{path} {tenant}")));
        *request.uri_mut() = "/search".parse().unwrap();
        request
    };
    let (cache, origin) = (with_ttl(60), personal());
    let inner = Router::new().fallback_service(handler(&origin));
    let layer = cache.http_layer().route_rules("/{language}", |it| it.ttl(secs(5)));
    let app = layer.layer(inner.layer(map_request(read)));
    for _ in 0..2 {
        for (path, tenant) in [("/de", "a"), ("/en", "a"), ("/de", "b"), ("/en", "b")] {
            let reply = send(&app, with(path, &[("x-forwarded-host", tenant)])).await;
            assert_eq!(reply.text(), format!("{path} {tenant}"));
        }
    }
    assert_eq!(origin.calls(), 4);
}

/// The layer counts it as no credential, because it keys it.
#[tokio::test(start_paused = true)]
async fn a_credential_that_a_route_no_longer_keys_is_a_credential_again() {
    for name in ["x-user", "authorization"] {
        let (cache, origin) = (
            with_ttl(60),
            Origin::new(move |call| {
                Answer::status(200).body(call.header(name).unwrap_or("none").to_owned())
            }),
        );
        let layer = cache.http_layer().keyed_headers([name]);
        let app = site(&origin, layer, |it| it.replace_keyed_headers([]));
        for user in ["alice", "bob"] {
            let reply = send(&app, with("/search", &[(name, user)])).await;
            assert_eq!(reply.text(), user, "{name}: {}", reply.cache_status());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn cookies_select_nothing_at_a_route_that_ignores_them() {
    let (cache, origin) = (
        with_ttl(60),
        Origin::new(|_| Answer::ok("public, max-age=60", "page").header("vary", "cookie")),
    );
    let app = site(&origin, cache.http_layer(), |it| it.ignore_cookies(["*"]));
    for user in ["user=alice", "user=bob"] {
        send(&app, with("/search", &[("cookie", user)])).await;
    }
    assert_eq!(origin.calls(), 1);
    for user in ["user=alice", "user=bob"] {
        send(&app, with("/plain", &[("cookie", user)])).await;
    }
    assert_eq!(origin.calls(), 3);
}

// ===== Requests of other kinds =====

fn with_etag() -> Origin {
    Origin::new(|_| Answer::ok("max-age=60", "0123456789").header("etag", "\"v\""))
}

#[tokio::test(start_paused = true)]
async fn conditions_ranges_and_head_are_answered_by_the_rules_of_a_route_cold_and_warm() {
    let (cache, origin) = (origin_only(), with_etag());
    let app = site(&origin, cache.http_layer(), |it| it.query(["q"]));
    let condition = || with("/search", &[("if-none-match", "\"v\"")]);
    let cold = send(&app, condition()).await;
    assert_eq!((cold.status, cold.text()), (304, ""));
    assert_eq!(origin.calls(), 1);
    let warm = send(&app, condition()).await;
    assert!(warm.status == 304 && warm.is(Hit), "{warm:?}");
    assert_eq!(send(&app, get("/search")).await.text(), "0123456789");
    let part = send(&app, with("/search", &[("range", "bytes=2-4")])).await;
    assert_eq!((part.status, part.text()), (206, "234"));
    let head = send(&app, request("HEAD", "/search", &[])).await;
    assert!(head.is(Hit) && head.text().is_empty(), "{head:?}");
    assert_eq!(origin.calls(), 1);
    // Cold again, by a HEAD and a range: the range fills.
    cache.invalidate_all().await;
    assert_eq!(send(&app, request("HEAD", "/search", &[])).await.status, 200);
    let part = send(&app, with("/items/1", &[("range", "bytes=2-4")])).await;
    assert_eq!((part.status, part.text()), (206, "234"));
    assert!(send(&app, get("/items/1")).await.is(Hit));
    assert_eq!(origin.calls(), 3);
    assert_eq!(cache.stats().flights, 0);
}

/// RFC 9111, 5.2.1.7: it is to be answered from what is stored.
#[tokio::test(start_paused = true)]
async fn only_if_cached_finds_what_a_route_has_stored() {
    let (cache, origin) = (with_ttl(60), echo());
    let app = around(&origin, cache.http_layer(), |it| it.query(["q"]));
    send(&app, get("/search?q=1&x=1")).await;
    let fields = [("cache-control", "only-if-cached")];
    assert!(send(&app, with("/search?q=1&x=2", &fields)).await.is(Hit));
    assert!(send(&app, request("HEAD", "/search?q=1", &fields)).await.is(Hit));
    assert_eq!(send(&app, with("/search?q=2", &fields)).await.status, 504);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_forwarded_uncached_has_the_parameters_of_its_route() {
    for (name, value) in [("upgrade", "websocket"), ("if-match", "\"a\"")] {
        let (cache, origin) = (with_ttl(60), echo());
        let app = site(&origin, cache.http_layer().query([]), |it| it.query(["q"]));
        let reply = send(&app, with("/search?q=1&x=1", &[(name, value)])).await;
        assert!(reply.text().starts_with("/search?q=1 "), "{name}: {}", reply.text());
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_request_of_any_kind_blocks_no_other() {
    for first in ["HEAD", "GET with a range", "GET with a cookie"] {
        let (cache, origin) = (origin_only(), with_etag());
        let app = site(&origin, cache.http_layer(), |it| it.query(["q"]));
        let ask = |i: usize| match (i, first) {
            (0, "HEAD") => request("HEAD", "/search", &[]),
            (0, "GET with a range") => with("/search", &[("range", "bytes=0-1")]),
            (0, _) => with("/search", &[("cookie", "a=b")]),
            _ => get("/search"),
        };
        let replies = crowd(&app, 30, ask).await;
        assert!(slowest(&replies) < WORK * 2, "{first}: {:?}", slowest(&replies));
        assert!(origin.calls() <= 2, "{first}: {}", origin.calls());
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_streams_is_read_by_all_while_it_arrives() {
    let cache = origin_only();
    let calls = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = calls.clone();
    let stream = on_get(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async {
            let parts = futures_util::stream::unfold(0, |n| async move {
                tokio::time::sleep(secs(1)).await;
                (n < 5).then(|| (Ok::<_, Infallible>(format!("{n};")), n + 1))
            });
            ([("cache-control", "max-age=60")], Body::from_stream(parts))
        }
    });
    let layer = cache.http_layer().route_rules("/stream", |it| it.query([]));
    let app: Router = Router::new().route("/stream", stream).layer(layer);
    let started = tokio::time::Instant::now();
    let replies = crowd(&app, 20, |i| get(&format!("/stream?{i}"))).await;
    assert!(replies.iter().all(|reply| reply.text() == "0;1;2;3;4;"));
    assert!(replies.iter().all(|reply| reply.took < secs(1)), "heads come before bodies");
    assert!(started.elapsed() < secs(7), "{:?}", started.elapsed());
    assert_eq!(calls.load(std::sync::atomic::Ordering::SeqCst), 1);
    assert!(send(&app, get("/stream?x")).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn cache_for_is_a_part_of_a_response_and_of_an_error() {
    type Reply = Result<(CacheFor, &'static str), (http::StatusCode, CacheFor, String)>;
    async fn report(request: Request<Body>) -> Reply {
        let cache_for = CacheFor::new(secs(60)).tag("report").public();
        match request.uri().query() {
            Some(query) => Err((http::StatusCode::NOT_FOUND, cache_for, query.to_owned())),
            None => Ok((cache_for, "report")),
        }
    }
    let cache = origin_only();
    let app: Router = Router::new()
        .route("/report", on_get(report))
        .route("/nothing", on_get(async || CacheFor::new(secs(60))))
        .layer(cache.http_layer());
    for path in ["/report", "/report?none", "/nothing"] {
        let first = send(&app, with(path, &[])).await;
        assert!(first.is(Computed) && !first.has_cache_for, "{path}: {first:?}");
        assert!(send(&app, get(path)).await.is(Hit), "{path}");
    }
    assert!(send(&app, with("/report", &[("cookie", "a=b")])).await.is(Hit), "public");
    cache.invalidate_tag("report").await;
    assert!(send(&app, get("/report?none")).await.is(Computed));
}
