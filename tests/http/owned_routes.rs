//! What a layer remembers of the routes that layers inside of it own, and what that costs.

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::Request;
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;

use crate::kit::http::*;
use crate::kit::spawn;

#[tokio::test(start_paused = true)]
async fn a_refused_client_does_not_make_later_paths_of_a_route_cost_two_leases() {
    use axum::middleware::{Next, from_fn};
    use tower_stampede::Stampede;
    use tower_stampede::remote::{Double, RemoteOp, RemoteSettings};
    let (double, origin) =
        (Double::new(), Origin::new(|call| Answer::status(200).body(call.uri())));
    let cache: tower_stampede::HttpStampede = Stampede::builder("web")
        .ttl(secs(60))
        .jitter(0.0)
        .remote(double.process(), RemoteSettings::new())
        .build()
        .unwrap();
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request)).layer(cache.rules());
    let app: Router = Router::new()
        .route("/items/{id}", route)
        .layer(from_fn(async |request: Request<Body>, next: Next| {
            if request.headers().contains_key("x-no-ticket") {
                return http::Response::builder().status(403).body(Body::empty()).unwrap();
            }
            next.run(request).await
        }))
        .layer(cache.http_layer());
    let leases = async |path: &str, fields: &[(&str, &str)]| {
        let before = double.calls(RemoteOp::Acquire);
        send(&app, with(path, fields)).await;
        pass(secs(1)).await;
        double.calls(RemoteOp::Acquire) - before
    };
    // Of the two layers, and of the anchor of the URI, which the inner one fills.
    assert_eq!(leases("/items/first", &[]).await, 3);
    assert_eq!(leases("/items/second", &[]).await, 2);
    leases("/items/third", &[("x-no-ticket", "1")]).await;
    leases("/items/fourth", &[]).await;
    for n in 0..3 {
        assert_eq!(leases(&format!("/items/{n}"), &[]).await, 2, "{n}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_kept_waiting_between_the_layers_delays_no_other_client_of_a_known_route()
{
    use axum::middleware::{Next, from_fn};
    let (cache, origin) = (with_ttl(60), Origin::new(|call| Answer::status(200).body(call.uri())));
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request)).layer(cache.rules());
    let app: Router = Router::new()
        .route("/items/{id}", route)
        .layer(from_fn(async |request: Request<Body>, next: Next| {
            if request.headers().contains_key("x-no-ticket") {
                tokio::time::sleep(secs(10)).await;
                return http::Response::builder().status(403).body(Body::empty()).unwrap();
            }
            next.run(request).await
        }))
        .layer(cache.http_layer());
    send(&app, get("/items/first")).await;
    let refused = |path: &str| with(path, &[("x-no-ticket", "1")]);
    // The route is known: the refused delays no other client.
    let (_, other) = tokio::join!(send(&app, refused("/items/1")), send(&app, get("/items/1")));
    assert!(other.took < secs(1), "{:?}", other.took);
    for n in 2..5 {
        let path = format!("/items/{n}");
        send(&app, get(&format!("/items/known-{n}"))).await;
        let (_, other) = tokio::join!(send(&app, refused(&path)), send(&app, get(&path)));
        assert!(other.took < secs(1), "{n}: {:?} {}", other.took, other.cache_status());
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_at_a_page_from_between_the_layers_is_not_a_call_for_each_client() {
    use axum::middleware::{Next, from_fn};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    let (cache, origin) = (with_ttl(60), Origin::new(|_| Answer::status(200).body("route")));
    let calls = Arc::new(AtomicUsize::new(0));
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request)).layer(cache.rules());
    let counted = Arc::clone(&calls);
    let app: Router = Router::new()
        .route("/page", route)
        .layer(from_fn(move |request: Request<Body>, next: Next| {
            let counted = Arc::clone(&counted);
            async move {
                if request.uri().query() != Some("old") {
                    return next.run(request).await;
                }
                counted.fetch_add(1, SeqCst);
                tokio::time::sleep(ms(100)).await;
                http::Response::builder()
                    .header("cache-control", "max-age=3600")
                    .body(Body::from("from between"))
                    .unwrap()
            }
        }))
        .layer(cache.http_layer());
    for _ in 0..5 {
        send(&app, get("/page")).await;
        crowd(&app, 20, |_| get("/page?old")).await;
    }
    // Few that were taken for requests to the route, and one for all others.
    assert!(calls.load(SeqCst) <= 10, "{}", calls.load(SeqCst));
}

/// RFC 9111, 5.2.1.7: it is to be answered from what is stored, and there is something.
#[tokio::test(start_paused = true)]
async fn only_if_cached_finds_what_the_layer_of_a_route_has_stored() {
    let (cache, origin) = (with_ttl(60), Origin::new(|call| Answer::status(200).body(call.uri())));
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request)).layer(cache.rules());
    let inside = Router::new().route("/page", route);
    let around = cache.http_layer().layer(inside);
    send(&around, get("/page")).await;
    let fields = [("cache-control", "only-if-cached")];
    assert!(send(&around, with("/page", &fields)).await.is(Hit));
    let head = send(&around, request("HEAD", "/page", &fields)).await;
    assert!(head.status == 200 && head.is(Hit), "{} {}", head.status, head.cache_status());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_the_outer_layer_forwards_uncached_keeps_the_parameters_of_its_route() {
    for (name, value) in [("upgrade", "websocket"), ("if-match", "\"a\"")] {
        let cache = with_ttl(60);
        let origin = Origin::new(|call| Answer::status(200).body(call.uri()));
        let handler = origin.clone();
        let route = any(move |request| handler.clone().handle(request));
        let app: Router = Router::new()
            .route("/search", route.layer(cache.rules().query(["q"])))
            .layer(cache.http_layer().query([]));
        assert_eq!(send(&app, get("/search?q=1")).await.text(), "/search?q=1");
        let reply = send(&app, with("/search?q=1", &[(name, value)])).await;
        assert_eq!(reply.text(), "/search?q=1", "{name}: {}", reply.cache_status());
    }
}

/// rest of a claimed call runs in the task of the outer leader, which has no place to lend.
#[tokio::test(start_paused = true)]
async fn an_internal_request_to_a_route_with_rules_needs_no_second_place() {
    for (has_outer, has_rules) in [(true, false), (false, true), (true, true)] {
        let cache: tower_stampede::HttpStampede = tower_stampede::Stampede::builder("site")
            .ttl(secs(60))
            .max_computations(1)
            .max_refreshes(1)
            .build()
            .unwrap();
        let whole: std::sync::Arc<std::sync::OnceLock<Router>> = Default::default();
        let own = std::sync::Arc::clone(&whole);
        let outer_page = any(move || {
            let app = own.get().unwrap().clone();
            async move {
                let part = send(&app, get("/part")).await;
                format!("{} {}", part.status, part.text())
            }
        });
        let part = any(|| async { "part" });
        let mut app = match has_rules {
            true => Router::new()
                .route("/whole", outer_page.layer(cache.rules()))
                .route("/part", part.layer(cache.rules())),
            false => Router::new().route("/whole", outer_page).route("/part", part),
        };
        if has_outer {
            app = app.layer(cache.http_layer());
        }
        whole.set(app.clone()).unwrap();
        let reply = send(&app, get("/whole")).await;
        let which = format!("outer: {has_outer}, rules: {has_rules}, {:?}", reply.took);
        assert_eq!(reply.text(), "200 part", "{which}");
    }
}

/// The layer between takes its time for each request, as one does that looks up a session.
#[tokio::test(start_paused = true)]
async fn a_crowd_at_a_known_uri_is_not_held_back_while_it_is_between_the_layers() {
    use axum::middleware::{Next, from_fn};
    let (cache, origin) = (with_ttl(10), Origin::new(|call| Answer::status(200).body(call.uri())));
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request)).layer(cache.rules());
    let app: Router = Router::new()
        .route("/page", route)
        .layer(from_fn(async |request: Request<Body>, next: Next| {
            tokio::time::sleep(ms(300)).await;
            next.run(request).await
        }))
        .layer(cache.http_layer());
    for n in 1..4 {
        let replies = crowd(&app, 50, |_| get("/page")).await;
        // The first crowd waits until one of its requests has reached the route.
        let longest = if n == 1 { ms(650) } else { ms(450) };
        assert!(slowest(&replies) < longest, "{n}: {:?}", slowest(&replies));
        assert_eq!(origin.calls(), n);
        pass(secs(20)).await;
    }
}

/// A layer inside of the one that forwards it may hide parameters, too.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_forwarded_uncached_keeps_its_parameters_through_three_layers() {
    let cache = with_ttl(60);
    let origin = Origin::new(|call| Answer::status(200).body(call.uri()));
    let handler = origin.clone();
    let route: axum::routing::MethodRouter = any(move |request| handler.clone().handle(request))
        .layer(cache.rules().query(["q", "page"]));
    let route = route.layer(cache.rules().query(["q"]));
    let app: Router = Router::new().route("/search", route).layer(cache.http_layer().query([]));
    let fields = [("upgrade", "websocket")];
    let reply = send(&app, with("/search?q=1&page=2&utm=3", &fields)).await;
    assert_eq!(reply.text(), "/search?q=1&page=2");
}

/// Only as many go straight on at once as have reached the route at once.
#[tokio::test(start_paused = true)]
async fn a_crowd_at_a_known_uri_that_is_answered_from_between_is_not_a_call_for_each_client() {
    use axum::middleware::{Next, from_fn};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    let (cache, origin) = (with_ttl(10), Origin::new(|_| Answer::status(200).body("route")));
    let (calls, is_closed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request)).layer(cache.rules());
    let (counted, closed) = (Arc::clone(&calls), Arc::clone(&is_closed));
    let app: Router = Router::new()
        .route("/page", route)
        .layer(from_fn(move |request: Request<Body>, next: Next| {
            let (counted, closed) = (Arc::clone(&counted), Arc::clone(&closed));
            async move {
                tokio::time::sleep(ms(100)).await;
                if !closed.load(SeqCst) {
                    return next.run(request).await;
                }
                counted.fetch_add(1, SeqCst);
                http::Response::builder()
                    .header("cache-control", "max-age=3600")
                    .body(Body::from("closed"))
                    .unwrap()
            }
        }))
        .layer(cache.http_layer());
    for _ in 0..20 {
        send(&app, get("/page")).await;
    }
    pass(secs(11)).await;
    is_closed.store(true, SeqCst);
    crowd(&app, 50, |_| get("/page")).await;
    // Four that went straight on, and the leader of the others.
    assert_eq!(calls.load(SeqCst), 5);
}

/// A request that is dropped on its way is on its way no more.
#[tokio::test(start_paused = true)]
async fn clients_that_hang_up_between_the_layers_hold_back_no_later_crowd() {
    use axum::middleware::{Next, from_fn};
    let (cache, origin) = (with_ttl(10), Origin::new(|call| Answer::status(200).body(call.uri())));
    let handler = origin.clone();
    let route = any(move |request| handler.clone().handle(request)).layer(cache.rules());
    let app: Router = Router::new()
        .route("/page", route)
        .layer(from_fn(async |request: Request<Body>, next: Next| {
            tokio::time::sleep(ms(300)).await;
            next.run(request).await
        }))
        .layer(cache.http_layer());
    send(&app, get("/page")).await;
    for _ in 0..10 {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                let app = app.clone();
                spawn(async move { send(&app, get("/page")).await })
            })
            .collect();
        pass(ms(50)).await;
        clients.iter().for_each(|client| client.abort());
        pass(ms(1)).await;
        // Three have ended without reaching the route: one more goes straight on.
        send(&app, get("/page")).await;
    }
    let replies = crowd(&app, 4, |_| get("/page")).await;
    assert!(slowest(&replies) < ms(350), "{:?}", slowest(&replies));
}
