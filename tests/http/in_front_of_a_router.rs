//! The layer in front of an axum router, as a service for `axum::serve`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::routing::get as on_get;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tower::Service;
use tower_stampede::CacheOutcome::*;
use tower_stampede::RouterService;

use crate::kit::http::*;
use crate::kit::spawn;

fn router(origin: &Origin) -> Router {
    let origin = origin.clone();
    Router::new()
        .route("/report/{name}", on_get(move |request: Request| origin.clone().handle(request)))
}

fn report() -> Origin {
    Origin::new(|call| Answer::ok("max-age=60", format!("report {}", call.n)))
}

#[tokio::test(start_paused = true)]
async fn a_crowd_is_one_call_and_a_hit_does_not_reach_the_router() {
    let (origin, passed) = (report(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&passed);
    // As an authorization of the route would stand.
    let checks = from_fn(move |request: Request, next: Next| {
        counted.fetch_add(1, Ordering::SeqCst);
        next.run(request)
    });
    let app = origin_only().http_layer().in_front_of(router(&origin).route_layer(checks));
    let replies = crowd(&app, 100, |_| get("/report/a")).await;
    assert!(replies.iter().all(|reply| reply.text() == "report 0"));
    assert!(send(&app, get("/report/a")).await.is(Hit));
    assert_eq!((origin.calls(), passed.load(Ordering::SeqCst)), (1, 1), "no hit was checked");
    let head = send(&app, request("HEAD", "/report/a", &[])).await;
    assert!(head.is(Hit) && head.body.is_empty());
    assert_eq!(send(&app, get("/report/b")).await.text(), "report 1");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_no_route_matches_is_stored_like_another() {
    let app = with_ttl(60).http_layer().in_front_of(router(&report()));
    assert_eq!(send(&app, get("/nothing")).await.status, 404);
    let again = send(&app, get("/nothing")).await;
    assert!(again.is(Hit) && again.status == 404);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_may_not_be_shared_goes_to_its_client_alone() {
    let origin = Origin::new(|call| Answer::ok("private", call.n.to_string()));
    let app = with_ttl(60).http_layer().in_front_of(router(&origin));
    for expected in ["0", "1"] {
        assert_eq!(send(&app, get("/report/a")).await.text(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn nested_routers_of_the_same_inner_path_do_not_mix() {
    let (one, other) = (report(), Origin::new(|_| Answer::ok("max-age=60", "another")));
    let nested = Router::new().nest("/one", router(&one)).nest("/other", router(&other));
    let app = origin_only().http_layer().in_front_of(nested);
    for _ in 0..2 {
        assert_eq!(send(&app, get("/one/report/a")).await.text(), "report 0");
        assert_eq!(send(&app, get("/other/report/a")).await.text(), "another");
    }
    assert_eq!((one.calls(), other.calls()), (1, 1));
}

#[tokio::test]
async fn axum_serves_it_over_tcp() {
    let origin = report();
    let app: RouterService = origin_only().http_layer().in_front_of(router(&origin));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn(async move { axum::serve(listener, app.into_make_service()).await });
    for expected in ["tower-stampede; fwd=uri-miss", "tower-stampede; hit"] {
        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (mut client, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        spawn(connection);
        let ask = http::Request::get("/report/a").header("host", "x");
        let ask = ask.body(Empty::<bytes::Bytes>::new()).unwrap();
        let reply = client.send_request(ask).await.unwrap();
        let status = reply.headers()["cache-status"].to_str().unwrap().to_owned();
        assert!(status.starts_with(expected), "{status}");
        assert_eq!(reply.into_body().collect().await.unwrap().to_bytes(), "report 0");
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn it_is_always_ready() {
    let mut app = with_ttl(60).http_layer().in_front_of(Router::new());
    let ready = std::future::poll_fn(|cx| {
        Service::<http::Request<axum::body::Body>>::poll_ready(&mut app, cx)
    });
    assert!(ready.await.is_ok());
}
