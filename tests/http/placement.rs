//! Where the layer can stand: routers, builders, servers, and over limited
//! services. What stands next to it is in `neighbour_layers`.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get as on_get;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tower::{BoxError, Service, ServiceBuilder};
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{
    CacheFor, ErrorKind, HttpFuture, HttpLayer, HttpService, HttpStampede, Mode, Refusal,
    ResponseBody, Stampede, StoredResponse,
};
use tracing::Level;

use crate::kit::http::*;
use crate::kit::log::TextLog;
use crate::kit::spawn;

fn handler(origin: &Origin) -> axum::routing::MethodRouter {
    let origin = origin.clone();
    on_get(move |request| origin.clone().handle(request))
}

fn report() -> Origin {
    Origin::new(|_| Answer::ok("max-age=60", "report"))
}

// ===== Where it fits =====

#[tokio::test(start_paused = true)]
async fn it_works_wherever_axum_takes_a_layer() {
    let layer = || origin_only().http_layer();
    type Make = fn(axum::routing::MethodRouter, HttpLayer) -> Router;
    let ways: [Make; 4] = [
        |method, layer| Router::new().route("/report", method).layer(layer),
        |method, layer| Router::new().route("/report", method).route_layer(layer),
        |method, layer| Router::new().route("/report", method.layer(layer)),
        |method, layer| {
            let stack = ServiceBuilder::new()
                .layer(tower_http::trace::TraceLayer::new_for_http())
                .layer(layer);
            Router::new().route("/report", method).layer(stack)
        },
    ];
    for (i, way) in ways.into_iter().enumerate() {
        let origin = report();
        let app = way(handler(&origin), layer());
        let replies = crowd(&app, 100, |_| get("/report")).await;
        assert!(replies.iter().all(|reply| reply.text() == "report"), "way {i}");
        assert!(send(&app, get("/report")).await.is(Hit));
        let head = send(&app, request("HEAD", "/report", &[])).await;
        assert!(head.is(Hit) && head.body.is_empty());
        assert_eq!(head.header("content-length"), Some("6"));
        assert_eq!(origin.calls(), 1, "way {i}");
    }
}

#[tokio::test(start_paused = true)]
async fn it_works_around_a_whole_router_and_for_its_fallback() {
    let origin = report();
    let router: Router = Router::new().route("/report", handler(&origin));
    let app = with_ttl(60).http_layer().layer(router);
    crowd(&app, 100, |_| get("/report")).await;
    assert_eq!(origin.calls(), 1);
    assert_eq!(send(&app, get("/nothing")).await.status, 404);
    assert!(send(&app, get("/nothing")).await.is(Hit));
}

fn is_shared<T: Clone + Send + Sync + Unpin + 'static>() {}
fn is_send<T: Send>() {}
fn is_debug<T: std::fmt::Debug>() {}

#[test]
fn its_types_go_where_services_go() {
    is_shared::<HttpLayer>();
    is_shared::<HttpService<Origin>>();
    is_shared::<HttpStampede>();
    is_shared::<StoredResponse>();
    is_shared::<Refusal>();
    is_send::<HttpFuture<Body, Infallible>>();
    is_send::<ResponseBody<Body>>();
    is_debug::<HttpFuture<Body, Infallible>>();
    is_debug::<ResponseBody<Body>>();
    is_debug::<HttpLayer>();
}

#[test]
fn its_error_is_the_inner_services() {
    fn error_of<S: Service<Request<Body>, Error = E>, E>(_: &S) {}
    let origin = report();
    let layer = with_ttl(60).http_layer();
    error_of::<_, Infallible>(&layer.layer(origin.infallible()));
    error_of::<_, OriginError>(&layer.layer(origin.clone()));
    let buffered = tower::buffer::BufferLayer::<Request<Body>>::new(1);
    // A buffer spawns its worker, and needs a runtime for it.
    let _runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = _runtime.enter();
    error_of::<_, BoxError>(&layer.layer(buffered.layer(origin)));
}

// ===== Over limited services =====

#[tokio::test(start_paused = true)]
async fn over_a_concurrency_limit_of_one_nothing_panics_or_hangs() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.uri()));
    let inner = ServiceBuilder::new().concurrency_limit(1).service(origin.clone());
    let app = with_ttl(60).http_layer().layer(inner);
    let replies = crowd(&app, 40, |i| get(&format!("/{}", i % 4))).await;
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!(reply.text(), format!("/{}", i % 4));
    }
    assert_eq!(slowest(&replies), WORK * 4);
    assert_eq!(origin.calls(), 4);
    // The slot is free again for every way past the cache.
    for request in [
        request("POST", "/0", &[]),
        request("HEAD", "/new", &[]),
        with("/newer", &[("range", "bytes=0-1")]),
        with("/0", &[("authorization", "a")]),
        get("/0"),
    ] {
        assert_eq!(send(&app, request).await.took, WORK);
    }
    assert_eq!(origin.calls(), 9);
}

#[tokio::test(start_paused = true)]
async fn a_warm_key_is_answered_while_the_inner_service_is_full() {
    let origin = Origin::new(|call| match call.parts.uri.path() {
        "/slow" => Answer::ok("no-store", "").after(secs(5)),
        _ => Answer::ok("max-age=60, stale-while-revalidate=60", "report"),
    });
    let inner = ServiceBuilder::new().concurrency_limit(1).service(origin.clone());
    let app = origin_only().http_layer().layer(inner);
    send(&app, get("/report")).await;
    let slow = spawn({
        let app = app.clone();
        async move { send(&app, get("/slow")).await }
    });
    pass(ms(10)).await;
    let hits = crowd(&app, 10, |_| get("/report")).await;
    assert!(hits.iter().all(|reply| reply.is(Hit) && reply.took.is_zero()));
    slow.await.unwrap();
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn over_a_buffer_nothing_panics_or_hangs() {
    let origin = report();
    let inner = ServiceBuilder::new().buffer(1).concurrency_limit(1).service(origin.clone());
    let app = with_ttl(60).http_layer().layer(inner);
    let replies = crowd(&app, 100, |i| get(&format!("/{}", i % 5))).await;
    assert!(replies.iter().all(|reply| reply.text() == "report"));
    assert_eq!(origin.calls(), 5);
}

#[tokio::test(start_paused = true)]
async fn over_load_shedding_only_the_clients_of_the_leaders_see_the_error() {
    let origin = report();
    let inner = ServiceBuilder::new().load_shed().concurrency_limit(1).service(origin.clone());
    let app = with_ttl(60).http_layer().layer(inner);
    let other = spawn({
        let app = app.clone();
        async move { send(&app, get("/other")).await }
    });
    pass(ms(10)).await;
    let wave = crowd_of(&app, 10, |_| get("/report")).await;
    let (errors, replies): (Vec<_>, Vec<_>) =
        wave.into_iter().partition(|got| matches!(got, Got::Error(_)));
    assert_eq!(errors.len(), 2);
    assert!(replies.into_iter().all(|got| got.reply().status == 502));
    other.await.unwrap();
    assert_eq!(send(&app, get("/report")).await.text(), "report");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_place_inside_counts_into_the_time_out() {
    let origin = Origin::new(|_| Answer::never());
    let inner = ServiceBuilder::new().concurrency_limit(1).service(origin.clone());
    let cache = Stampede::builder("test").origin_only().compute_timeout(secs(2)).build().unwrap();
    let app = cache.http_layer().layer(inner);
    let replies = crowd(&app, 3, |i| get(&format!("/{i}"))).await;
    assert!(replies.iter().all(|reply| reply.status == 504));
    assert_eq!(slowest(&replies), secs(2));
    // The work of one that was given up is dropped, and its place with it.
    origin.answers(|_| Answer::ok("max-age=60", "report"));
    assert_eq!(send(&app, get("/new")).await.text(), "report");
}

// ===== Bounds and switches =====

#[tokio::test(start_paused = true)]
async fn over_the_waiter_budget_a_client_is_refused_with_503() {
    let origin = report();
    let cache = Stampede::builder("test").origin_only().max_waiters(10).build().unwrap();
    let app = layered(cache.http_layer(), &origin);
    let replies = crowd(&app, 100, |_| get("/report")).await;
    let refused: Vec<_> = replies.iter().filter(|reply| reply.is(Refused)).collect();
    assert_eq!(refused.len(), 89);
    for reply in refused {
        assert_eq!((reply.status, reply.took), (503, Duration::ZERO));
        assert_eq!(reply.header("retry-after"), Some("1"));
        assert_eq!(reply.header("cache-control"), Some("no-store"));
    }
    assert_eq!(replies.iter().filter(|reply| reply.text() == "report").count(), 11);
    assert_eq!(origin.calls(), 1);
    assert_eq!(cache.stats().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn over_the_waiter_budget_stale_is_better_than_a_refusal() {
    let origin = Origin::new(|_| Answer::ok("max-age=10, stale-if-error=60", "good"));
    let cache = Stampede::builder("test").origin_only().max_waiters(1).build().unwrap();
    let app = layered(cache.http_layer(), &origin);
    send(&app, get("/report")).await;
    pass(secs(11)).await;
    let replies = crowd(&app, 10, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.status == 200));
    assert_eq!(replies.iter().filter(|reply| reply.is(StaleIfError)).count(), 8);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_can_be_written_by_the_application() {
    let origin = report();
    let cache = Stampede::builder("test").origin_only().max_waiters(1).build().unwrap();
    let layer = cache.http_layer().on_refusal(|refused| {
        assert_eq!(refused.kind(), ErrorKind::Overloaded);
        let body = format!("{{\"status\":{}}}", refused.status().as_u16());
        let response = Response::builder().header("content-type", "application/json");
        response.status(200).header("x-a", "1").body(Bytes::from(body)).unwrap()
    });
    let app = layered(layer, &origin);
    let replies = crowd(&app, 3, |_| get("/report")).await;
    let refused = &replies[2];
    assert_eq!((refused.status, refused.text()), (503, "{\"status\":503}"));
    assert_eq!(refused.header("content-type"), Some("application/json"));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_more_computations_run_at_once_than_allowed() {
    let origin = report();
    let cache = Stampede::builder("test")
        .origin_only()
        .max_computations(5)
        .max_refreshes(5)
        .build()
        .unwrap();
    let app = layered(cache.http_layer(), &origin);
    let replies = crowd(&app, 100, |i| get(&format!("/{}", i % 50))).await;
    assert!(replies.iter().all(|reply| reply.text() == "report"));
    assert_eq!(slowest(&replies), WORK * 10);
    assert_eq!(origin.calls(), 50);
}

#[tokio::test(start_paused = true)]
async fn who_waits_too_long_is_refused() {
    let cache = Stampede::builder("test").origin_only().wait_timeout(secs(1)).build().unwrap();
    let origin = Origin::new(|_| Answer::ok("max-age=60", "report").after(secs(5)));
    let app = layered(cache.http_layer(), &origin);
    let replies = crowd(&app, 3, |_| get("/report")).await;
    assert_eq!((replies[0].status, replies[0].took), (200, secs(5)));
    for reply in &replies[1..] {
        assert_eq!((reply.status, reply.took), (503, secs(1)));
        assert!(reply.header("retry-after").is_some());
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn switched_off_everybody_asks_the_origin_and_nothing_is_stored() {
    let cache = origin_only();
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.n.to_string()));
    let app = layered(cache.http_layer(), &origin);
    send(&app, get("/report")).await;
    cache.set_mode(Mode::Off);
    let replies = crowd(&app, 10, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.is(Alone) && reply.text() != "0"));
    crowd(&app, 10, |_| get("/new")).await;
    assert_eq!(origin.calls(), 21);
    cache.set_mode(Mode::On);
    assert_eq!(send(&app, get("/report")).await.text(), "0", "what was stored still is");
    assert!(!send(&app, get("/new")).await.is(Hit));
    assert_eq!(origin.calls(), 22);
}

#[tokio::test(start_paused = true)]
async fn observing_everybody_asks_the_origin_and_the_cache_fills() {
    let cache = origin_only();
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.n.to_string()));
    let app = layered(cache.http_layer(), &origin);
    cache.set_mode(Mode::Observe);
    let replies = crowd(&app, 10, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.is(Alone)));
    crowd(&app, 10, |_| get("/report")).await;
    assert_eq!(origin.calls(), 20);
    cache.set_mode(Mode::On);
    assert!(send(&app, get("/report")).await.is(Hit));
    assert_eq!(origin.calls(), 20);
}

#[tokio::test(start_paused = true)]
async fn after_a_shutdown_requests_still_get_their_answers() {
    let cache = origin_only();
    let origin = report();
    let app = layered(cache.http_layer(), &origin);
    let waiting = spawn({
        let app = app.clone();
        async move { crowd(&app, 10, |_| get("/report")).await }
    });
    pass(WORK / 2).await;
    assert_eq!(cache.shutdown(secs(5)).await, 0);
    assert!(waiting.await.unwrap().iter().all(|reply| reply.text() == "report"));
    assert_eq!(origin.calls(), 1);
    assert_eq!(send(&app, get("/report")).await.text(), "report");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn times_without_an_end_are_times_like_any_other() {
    let cache = Stampede::builder("test")
        .ttl(Duration::MAX)
        .jitter(0.0)
        .stale_for(Duration::MAX)
        .stale_if_error(Duration::MAX)
        .compute_timeout(Duration::MAX)
        .uncacheable_for(Duration::MAX)
        .lease(Duration::MAX)
        .build()
        .unwrap();
    let lifetime = CacheFor::new(Duration::MAX).stale_for(Duration::MAX);
    let origin = Origin::new(move |call| match call.parts.uri.path() {
        "/private" => Answer::ok("private", ""),
        "/handler" => Answer::ok("", "").extension(lifetime.clone()),
        "/origin" => Answer::ok("max-age=99999999999999999999", "").header("age", "1"),
        "/fails" => Answer::error(),
        _ => Answer::ok("", ""),
    });
    let layer = cache.http_layer().ttl(Duration::MAX).body_idle_timeout(Duration::MAX);
    let app = layered(layer, &origin);
    for (path, calls) in [("/layer", 1), ("/handler", 1), ("/origin", 1), ("/private", 10)] {
        let before = origin.calls();
        crowd(&app, 5, |_| get(path)).await;
        pass(secs(100)).await;
        crowd(&app, 5, |_| get(path)).await;
        assert_eq!(origin.calls(), before + calls, "{path}");
    }
    assert_eq!(crowd_of(&app, 5, |_| get("/fails")).await.len(), 5);
}

// ===== Over the wire =====

type Client = hyper::client::conn::http1::SendRequest<Empty<Bytes>>;

async fn connect(address: std::net::SocketAddr) -> Client {
    let stream = TcpStream::connect(address).await.unwrap();
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (client, connection) = handshake.await.unwrap();
    spawn(connection);
    client
}

async fn fetch(client: &mut Client, method: &str, uri: &str) -> (http::response::Parts, Bytes) {
    let request = Request::builder().method(method).uri(uri).header("host", "x.example");
    let response = client.send_request(request.body(Empty::new()).unwrap()).await.unwrap();
    let (head, body) = response.into_parts();
    (head, body.collect().await.unwrap().to_bytes())
}

/// Serves on a free port, with hyper alone.
async fn serve<S, B>(service: S) -> std::net::SocketAddr
where
    S: Service<Request<hyper::body::Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let service = TowerToHyperService::new(service.clone());
            spawn(async move {
                let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                drop(server.serve_connection(TokioIo::new(stream), service).await);
            });
        }
    });
    address
}

#[tokio::test]
async fn it_works_with_plain_hyper_over_tcp() {
    let origin =
        Origin::new(|call| Answer::ok("max-age=60", call.uri()).header("x-a", "1").after(ms(1)));
    let inner = origin.infallible();
    let service = tower::service_fn(move |request: Request<hyper::body::Incoming>| {
        tower::ServiceExt::oneshot(inner.clone(), request.map(Body::new))
    });
    let address = serve(origin_only().http_layer().layer(service)).await;
    let mut client = connect(address).await;
    for cached in [false, true] {
        let (head, body) = fetch(&mut client, "GET", "/report").await;
        assert_eq!((head.status.as_u16(), &*body), (200, &b"/report"[..]));
        assert_eq!(head.headers["content-length"], "7");
        assert_eq!(head.headers["cache-status"].to_str().unwrap().contains("hit"), cached);
    }
    let (head, body) = fetch(&mut client, "HEAD", "/report").await;
    assert_eq!((head.headers["content-length"].to_str().unwrap(), body.len()), ("7", 0));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test]
async fn a_thousand_connections_on_a_cold_key_are_one_computation() {
    // The origin is done when all have arrived: the test depends on no clock.
    let cache = origin_only();
    let (arrived, waiting) = (cache.clone(), std::sync::Arc::new(tokio::sync::Notify::new()));
    let (calls, all_here) =
        (std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0)), waiting.clone());
    let counted = calls.clone();
    let report = on_get(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async move {
            all_here.notified().await;
            ([("cache-control", "max-age=60")], "report")
        }
    });
    let app: Router = Router::new().route("/report/{name}", report).layer(cache.http_layer());
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn(async move { axum::serve(listener, app).await });

    // One after the other, so that no kernel's accept queue plays a part; their
    // requests are all at once.
    let mut connections = Vec::new();
    for _ in 0..1000 {
        connections.push(connect(address).await);
    }
    let clients: Vec<_> = connections
        .into_iter()
        .map(|mut client| spawn(async move { fetch(&mut client, "GET", "/report/x").await }))
        .collect();
    wait_for(|| arrived.stats().waiting == 999).await;
    waiting.notify_one();
    for client in clients {
        let (head, body) = client.await.unwrap();
        assert_eq!((head.status.as_u16(), &*body), (200, &b"report"[..]));
    }
    assert_eq!(calls.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_client_that_hangs_up_over_tcp_leaves_its_computation_to_the_others() {
    let cache = origin_only();
    let (go, calls) = (std::sync::Arc::new(tokio::sync::Notify::new()), report());
    let (wait, counted) = (go.clone(), calls.clone());
    let report = on_get(move |request: axum::extract::Request| async move {
        let response = counted.handle(request).await;
        wait.notified().await;
        response
    });
    let app: Router = Router::new().route("/report", report).layer(cache.http_layer());
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn(async move { axum::serve(listener, app).await });

    let (asked, until) = (calls.clone(), cache.clone());
    let mut first = connect(address).await;
    let hung_up = spawn(async move { fetch(&mut first, "GET", "/report").await });
    wait_for(|| asked.calls() == 1).await;
    let mut second = connect(address).await;
    let served = spawn(async move { fetch(&mut second, "GET", "/report").await });
    wait_for(|| until.stats().waiting == 1).await;
    hung_up.abort();
    drop(hung_up.await);
    go.notify_one();
    assert_eq!(&*served.await.unwrap().1, b"report");
    assert_eq!(calls.calls(), 1);
}

async fn wait_for(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(ms(1)).await;
        }
    };
    tokio::time::timeout(secs(60), waiting).await.expect("it comes to pass");
}

// ===== Behind no layer =====

#[tokio::test(start_paused = true)]
async fn a_route_that_is_added_after_the_layer_says_that_nothing_reads_its_cache_for() {
    const HINT: &str = "a response with CacheFor was dropped before a layer had read it";
    let page = || on_get(async || (CacheFor::new(Duration::from_secs(60)), "page"));
    let log = TextLog::default();
    let _listening = log.listen(Level::WARN);
    let app = Router::new().route("/cached", page()).layer(origin_only().http_layer());
    let app = app.route("/late", page());
    for (method, path) in [("GET", "/cached"), ("HEAD", "/cached"), ("GET", "/cached?x")] {
        send(&app, request(method, path, &[])).await;
        send(&app, request(method, path, &[("upgrade", "x")])).await;
    }
    assert!(!log.text().contains(HINT), "{}", log.text());
    for _ in 0..2 {
        send(&app, get("/late")).await;
    }
    assert_eq!(log.text().matches(HINT).count(), 1, "{}", log.text());
}
