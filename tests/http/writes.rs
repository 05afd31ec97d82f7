//! What a write ends, and when: every response for its URI, and nothing of other URIs.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::routing::{get as route_get, post as route_post};
use axum::{Router, http::request::Parts};
use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body_util::BodyExt;
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{HttpLayer, RequestEnd};

use crate::kit::http::*;
use crate::kit::spawn;

const PAGE: &str = "http://x/page";

/// GETs are answered with a number, writes with 204.
fn numbered() -> Origin {
    Origin::new(|call| match call.parts.method.as_str() {
        "GET" => Answer::ok("max-age=60", call.n.to_string()),
        _ => Answer::status(204),
    })
}

fn post(uri: &str) -> Request<Body> {
    request("POST", uri, &[])
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_writes_to_other_uris_ends_no_page() {
    let cache = origin_only();
    let pages = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&pages);
    let origin = service_fn(move |request: Request<Body>| {
        let is_get = request.method() == http::Method::GET;
        counted.fetch_add(is_get.into(), Ordering::Relaxed);
        let response = Response::builder().header("cache-control", "max-age=600");
        async move { Ok::<_, Infallible>(response.body(Body::from("page")).unwrap()) }
    });
    let app = cache.http_layer().layer(origin);
    let ask = |n: usize| app.clone().oneshot(get(&format!("http://x/page{n}")));
    for n in 0..20 {
        ask(n).await.unwrap();
    }
    let before = cache.stats().invalidations;
    for n in 0..100_200 {
        app.clone().oneshot(post(&format!("http://x/other{n}"))).await.unwrap();
    }
    for n in 0..20 {
        ask(n).await.unwrap();
    }
    assert_eq!(pages.load(Ordering::Relaxed), 20, "20 of 20 are hits");
    assert_eq!(cache.stats().invalidations, before, "there was nothing to invalidate");
}

/// A URI by which the GETs of a test differ, and the fields of each.
type Asked = (&'static str, &'static [(&'static str, &'static str)]);

fn by_tenant(layer: HttpLayer) -> HttpLayer {
    fn tenant(parts: &Parts) -> Option<String> {
        let tenant = parts.headers.get("x-tenant")?;
        Some(tenant.to_str().unwrap().to_owned())
    }
    layer.identity(tenant)
}

fn by_region(layer: HttpLayer) -> HttpLayer {
    layer.key(|parts: &Parts| parts.headers.get("x-region").map(|it| it.as_bytes().to_vec()))
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_every_response_for_its_uri_whatever_tells_them_apart() {
    type Settings = fn(HttpLayer) -> HttpLayer;
    let cases: [(Settings, [Asked; 2]); 6] = [
        // Each variant.
        (
            |it| it,
            [("/page", &[("host", "x"), ("a", "1")]), ("/page", &[("host", "x"), ("a", "2")])],
        ),
        // Each key of the application.
        (by_region, [("/page", &[("host", "x"), ("x-region", "eu")]), ("/page", &[("host", "x")])]),
        (
            by_tenant,
            [
                ("/page", &[("host", "x"), ("x-tenant", "t")]),
                ("/page", &[("host", "x"), ("x-tenant", "u")]),
            ],
        ),
        // Each keyed field.
        (
            |it| it,
            [("/page", &[("host", "x"), ("x-forwarded-host", "y")]), ("/page", &[("host", "x")])],
        ),
        // Both schemes, and each place for the host.
        (|it| it, [("http://x/page", &[]), ("https://x/page", &[])]),
        (|it| it, [("http://x/page", &[("host", "x")]), ("/page", &[("host", "X:80")])]),
    ];
    for (n, (settings, asked)) in cases.into_iter().enumerate() {
        let origin = Origin::new(|call| match call.parts.method.as_str() {
            "GET" => Answer::ok("public, max-age=60", call.n.to_string()).header("vary", "a"),
            _ => Answer::status(204),
        });
        let app = layered(settings(origin_only().http_layer()), &origin);
        for (uri, fields) in asked {
            send(&app, with(uri, fields)).await;
            assert!(send(&app, with(uri, fields)).await.is(Hit), "{n}");
        }
        send(&app, with("http://x/other", asked[0].1)).await;
        // The tenant of the writer is another one.
        send(&app, request("POST", "/page", &[("host", "x"), ("x-tenant", "w")])).await;
        for (uri, fields) in asked {
            assert!(!send(&app, with(uri, fields)).await.is(Hit), "{n}: {uri} {fields:?}");
        }
        assert_eq!(origin.calls(), 6, "{n}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_the_other_scheme_unless_the_layer_is_told_otherwise() {
    for both in [true, false] {
        let origin = numbered();
        let layer = origin_only().http_layer().invalidate_other_scheme(both);
        let app = layered(layer, &origin);
        for uri in [PAGE, "https://x/page"] {
            send(&app, get(uri)).await;
        }
        send(&app, post(PAGE)).await;
        assert!(!send(&app, get(PAGE)).await.is(Hit));
        assert_eq!(send(&app, get("https://x/page")).await.is(Hit), !both);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_what_a_route_behind_a_nested_router_has_stored() {
    let origin = numbered();
    let cache = origin_only();
    let handler = origin.clone();
    let read = move |request| handler.clone().handle(request);
    let handler = origin.clone();
    let write = move |request| handler.clone().handle(request);
    let inner = Router::new().route("/page", route_get(read).merge(route_post(write)));
    let layer = cache.http_layer().route_rules("/api/page", |it| it.query(["q"]));
    let app = Router::new().nest("/api", inner).layer(layer);
    let ask = || with("/api/page?q=1&x=2", &[("host", "x")]);
    send(&app, ask()).await;
    assert!(send(&app, ask()).await.is(Hit));
    send(&app, request("POST", "/api/page?q=1&x=2", &[("host", "x")])).await;
    assert!(!send(&app, ask()).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_the_use_of_every_variant_that_is_being_computed() {
    let origin = Origin::new(|call| match call.parts.method.as_str() {
        "GET" => {
            let answer = Answer::ok("max-age=60", call.n.to_string()).header("vary", "a");
            answer.after(secs(if call.n < 2 { 0 } else { 2 }))
        }
        _ => Answer::status(204),
    });
    let app = app(&origin);
    // Each variant has a flight of its own once the index says so.
    for a in ["1", "2"] {
        send(&app, with(PAGE, &[("a", a)])).await;
    }
    tokio::time::sleep(secs(61)).await;
    let early = spawn({
        let app = app.clone();
        async move { crowd(&app, 4, |i| with(PAGE, &[("a", ["1", "2"][i % 2])])).await }
    });
    pass(secs(1)).await;
    send(&app, post(PAGE)).await;
    let late = crowd(&app, 4, |i| with(PAGE, &[("a", ["1", "2"][i % 2])])).await;
    let number = |reply: &Reply| reply.text().parse::<usize>().unwrap();
    assert!(early.await.unwrap().iter().all(|reply| number(reply) < 4));
    assert!(late.iter().all(|reply| number(reply) > 4), "{late:?}");
    for a in ["1", "2"] {
        let kept = send(&app, with(PAGE, &[("a", a)])).await;
        assert!(kept.is(Hit) && number(&kept) > 4);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_a_hold_of_its_uri_although_nothing_is_stored() {
    let origin = Origin::new(|call| match (call.parts.method.as_str(), call.n) {
        ("GET", 0 | 1) => Answer::error(),
        ("GET", _) => Answer::ok("max-age=60", "well"),
        _ => Answer::status(204),
    });
    let app = app(&origin);
    for _ in 0..2 {
        assert!(try_send(&app, get(PAGE)).await.is_err());
    }
    assert!(send(&app, get(PAGE)).await.is(Refused));
    send(&app, post(PAGE)).await;
    assert_eq!(send(&app, get(PAGE)).await.text(), "well");
}

// ===== How the request ended =====

/// A service that reads a write to its end, and then does what it is told.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Fails,
    IsNotReached,
    Panics,
    Hangs,
}

#[derive(Debug, PartialEq)]
struct ServiceError(Then);

async fn write_ending(then: Then, body: Body, layer: impl Fn(HttpLayer) -> HttpLayer) -> bool {
    let origin = service_fn(move |request: Request<Body>| async move {
        if request.method() == http::Method::GET {
            let response = Response::builder().header("cache-control", "max-age=60");
            return Ok(response.body(Body::from("page")).unwrap());
        }
        if then != Then::IsNotReached {
            let _ = request.into_body().collect().await;
        }
        match then {
            Then::Fails | Then::IsNotReached => Err(ServiceError(then)),
            Then::Panics => panic!("as the test told it"),
            Then::Hangs => std::future::pending().await,
        }
    });
    let app = layer(origin_only().http_layer()).layer(origin);
    let ask = || async {
        let response = app.clone().oneshot(get(PAGE)).await.unwrap();
        tower_stampede::CacheOutcome::of(&response) == Some(Hit)
    };
    ask().await;
    assert!(ask().await);
    let write = Request::post(PAGE).body(body).unwrap();
    let write = spawn(app.clone().oneshot(write));
    pass(secs(1)).await;
    // The client hangs up, if the request has not ended otherwise.
    write.abort();
    let _ = write.await;
    !ask().await
}

fn half() -> Body {
    let first = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"half"))]);
    Body::from_stream(futures_util::StreamExt::chain(first, stream::pending()))
}

fn broken() -> Body {
    let half: [Result<_, std::io::Error>; 2] =
        [Ok(Bytes::from_static(b"half")), Err(std::io::ErrorKind::ConnectionReset.into())];
    Body::from_stream(stream::iter(half))
}

#[tokio::test(start_paused = true)]
async fn an_unknown_end_invalidates_where_the_whole_request_was_sent() {
    for then in [Then::Fails, Then::Panics, Then::Hangs] {
        for (name, body, invalidates) in [
            ("none", Body::empty(), true),
            ("whole", Body::from("whole"), true),
            (
                "in pieces",
                Body::from_stream(stream::iter([Ok::<_, Infallible>("a"), Ok("b")])),
                true,
            ),
            ("half", half(), false),
            ("broken off", broken(), false),
        ] {
            let ended = write_ending(then, body, |layer| layer).await;
            assert_eq!(ended, invalidates, "{then:?} {name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_the_service_has_not_received_ends_nothing() {
    for is_told in [true, false] {
        let layer = |layer: HttpLayer| match is_told {
            true => layer.unsent(|error: &ServiceError| error.0 == Then::IsNotReached),
            false => layer,
        };
        assert_eq!(write_ending(Then::IsNotReached, Body::empty(), layer).await, !is_told);
        assert!(write_ending(Then::Fails, Body::from("whole"), layer).await, "of another kind");
        // The body was not read.
        assert!(!write_ending(Then::IsNotReached, Body::from("whole"), layer).await);
    }
}

/// A body of a type that the layer does not know.
#[derive(Debug)]
struct Foreign(Option<&'static str>);

impl http_body::Body for Foreign {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        std::task::Poll::Ready(self.0.take().map(|text| Ok(http_body::Frame::data(text.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_of_a_foreign_type_ends_where_its_server_says_so() {
    for (inserts, notes) in [(false, false), (true, false), (true, true)] {
        let origin = service_fn(|request: Request<Foreign>| async move {
            if request.method() == http::Method::POST {
                return Err("failed");
            }
            let response = Response::builder().header("cache-control", "max-age=60");
            Ok(response.body(Body::from("page")).unwrap())
        });
        let app = origin_only().http_layer().layer(origin);
        let ask = async || {
            let get = Request::get(PAGE).body(Foreign(None)).unwrap();
            tower_stampede::CacheOutcome::of(&app.clone().oneshot(get).await.unwrap()) == Some(Hit)
        };
        ask().await;
        let mut post = Request::post(PAGE).body(Foreign(Some("text"))).unwrap();
        let end = RequestEnd::new();
        if inserts {
            post.extensions_mut().insert(end.clone());
        }
        if notes {
            end.note();
        }
        app.clone().oneshot(post).await.unwrap_err();
        assert_eq!(ask().await, !notes, "{inserts} {notes}");
    }
}

// ===== The rule of the application =====

#[tokio::test(start_paused = true)]
async fn the_rule_of_the_application_says_which_writes_invalidate() {
    let origin = Origin::new(|call| match call.parts.method.as_str() {
        "GET" => Answer::ok("max-age=60", "page"),
        _ => Answer::status(if call.uri().contains("fail") { 500 } else { 200 })
            .header("x-changed", call.header("x-change").unwrap_or("no")),
    });
    let layer = origin_only().http_layer().invalidate_if(|request, response| {
        assert_eq!(request.method, "POST");
        assert!(request.extensions.get::<u8>().is_some(), "as the layer has received it");
        response.is_some_and(|response| response.headers["x-changed"] == "yes")
    });
    let app = layered(layer, &origin);
    for (uri, change, invalidates) in [
        (PAGE, "yes", true),
        (PAGE, "no", false),
        // A failure never does.
        ("http://x/page?fail", "yes", false),
    ] {
        send(&app, get(uri)).await;
        let mut write = request("POST", uri, &[("x-change", change)]);
        write.extensions_mut().insert(0_u8);
        send(&app, write).await;
        assert_eq!(send(&app, get(uri)).await.is(Hit), !invalidates, "{uri} {change}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_rule_of_the_application_is_asked_about_unknown_ends_without_a_response() {
    for says in [true, false] {
        let layer = |layer: HttpLayer| {
            layer.invalidate_if(move |_, response| {
                assert!(response.is_none());
                says
            })
        };
        for then in [Then::Fails, Then::Hangs, Then::Panics] {
            assert_eq!(write_ending(then, Body::from("whole"), layer).await, says, "{then:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_rule_that_panics_lets_the_write_invalidate() {
    let layer = |layer: HttpLayer| layer.invalidate_if(|_, _| panic!("as the test told it"));
    for then in [Then::Fails, Then::Panics] {
        assert!(write_ending(then, Body::from("whole"), layer).await, "{then:?}");
    }
    let app = layered(layer(origin_only().http_layer()), &numbered());
    send(&app, get(PAGE)).await;
    assert_eq!(send(&app, post(PAGE)).await.status, 204);
    assert!(!send(&app, get(PAGE)).await.is(Hit));
}
