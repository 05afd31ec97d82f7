//! D5: unsafe requests that any client may send add bounded state.
use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::body::Body;
use http::{Request, Response};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_stampede::{Health, HttpStampede, Redis, Stampede};

use crate::kit::redis::{Proxy, Server, eventually};

use super::names;

/// Bytes of all keys.
fn bytes(server: &Server) -> i64 {
    let size = |name: &String| {
        let size = server.cli(&["MEMORY", "USAGE", name, "SAMPLES", "0"]);
        if size.is_nil() { 0 } else { size.int() }
    };
    names(server).iter().map(size).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsafe_requests_by_strangers_add_bounded_state() {
    let server = Server::start();
    let cache: HttpStampede = Stampede::builder("web")
        .ttl(Duration::from_secs(60))
        .redis(
            Redis::lazy(&server.url())
                .unwrap()
                .namespace("stampede")
                .op_timeout(Duration::from_secs(1)),
        )
        .build()
        .unwrap();
    let origin = |_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) };
    let service = cache.http_layer().layer(service_fn(origin));
    let post = async |from: usize, to: usize| {
        for n in from..to {
            let request = Request::post(format!("/nowhere?x={n}")).header("host", "shop.example");
            let request = request.body(Body::empty()).unwrap();
            service.clone().oneshot(request).await.unwrap();
        }
        // What is told in the background is told when the size stays.
        let mut last = -1;
        eventually("all is told", || {
            std::thread::sleep(Duration::from_millis(300));
            std::mem::replace(&mut last, bytes(&server)) == last
        })
        .await;
        last
    };
    // More than any log of bounded length keeps.
    let full = post(0, 6000).await;
    let after = post(6000, 12_000).await;
    let growth = (after - full) >> 10;
    assert!(growth <= 64, "6000 requests added {growth} KiB to {} KiB", full >> 10);
}

/// The longest URI that servers take has 64 KiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_uris_of_strangers_add_bounded_state_and_keep_no_process_away() {
    const WRITES: usize = 1000;
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let build = |url: &str| -> HttpStampede {
        let builder = Stampede::builder("web").ttl(Duration::from_secs(60));
        builder.redis(Redis::lazy(url).unwrap().namespace("stampede")).build().unwrap()
    };
    let (cache, other) = (build(&server.url()), build(&proxy.url()));
    let origin = |_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) };
    let service = cache.http_layer().layer(service_fn(origin));
    let theirs = other.http_layer().layer(service_fn(origin));
    let get = || Request::get("/page").header("host", "shop.example").body(Body::empty()).unwrap();
    theirs.clone().oneshot(get()).await.unwrap();
    eventually("it listens", || other.health() == Health::Up).await;
    proxy.refuse_connections(true);
    proxy.cut();
    let before = bytes(&server);
    for n in 0..WRITES {
        let request = Request::post(format!("/nowhere?x={n}-{}", "x".repeat(60_000)));
        let request = request.header("host", "shop.example").body(Body::empty()).unwrap();
        service.clone().oneshot(request).await.unwrap();
    }
    eventually("all is told", || cache.health() == Health::Up).await;
    let growth = (bytes(&server) - before) >> 20;
    proxy.pass();
    let begun = Instant::now();
    while other.health() != Health::Up && begun.elapsed() < Duration::from_secs(120) {
        theirs.clone().oneshot(get()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(other.health(), Health::Up, "it cannot read what it has missed");
    assert!(growth <= 2, "{WRITES} requests added {growth} MiB");
}
