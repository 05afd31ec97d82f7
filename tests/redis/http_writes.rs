//! Writes over HTTP on a real Redis server: what they end, and that they leave nothing there.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use http::{Request, Response};
use tower::{Service, ServiceExt, service_fn};
use tower_layer::Layer;
use tower_stampede::{CacheOutcome, Event, HttpStampede, Redis, Stampede};

use crate::kit::redis::{Server, eventually};

/// Counts the GETs, and answers them with their number.
fn origin(
    gets: &Arc<AtomicUsize>,
) -> impl Service<
    Request<Body>,
    Response = Response<Body>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<Body>, Infallible>> + Send,
> + Clone
+ Send
+ 'static {
    let gets = Arc::clone(gets);
    service_fn(move |request: Request<Body>| {
        let body = match *request.method() {
            http::Method::GET => gets.fetch_add(1, Ordering::SeqCst).to_string(),
            _ => String::new(),
        };
        let response = Response::builder().header("cache-control", "max-age=600");
        let response = response.header("vary", "accept-language");
        async move { Ok(response.body(body.into()).unwrap()) }
    })
}

fn process(server: &Server) -> HttpStampede {
    // So patient that no call times out on a busy machine.
    let redis = Redis::lazy(&server.url())
        .unwrap()
        .namespace("stampede")
        .op_timeout(Duration::from_secs(30));
    let cache = Stampede::builder("web").origin_only().lease(Duration::from_secs(100));
    cache.wait_timeout(Duration::from_secs(180)).redis(redis).build().unwrap()
}

fn region(parts: &Parts) -> Option<Vec<u8>> {
    Some(parts.headers.get("x-region")?.as_bytes().to_vec())
}

async fn ask<S>(app: S, method: &str, uri: &str, fields: &[(&str, &str)]) -> (String, bool)
where
    S: Service<Request<Body>, Error = Infallible>,
    S::Response: Into<Response<tower_stampede::ResponseBody<Body>>>,
{
    let request = Request::builder().method(method).uri(uri);
    let request =
        fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let response = app.oneshot(request.body(Body::empty()).unwrap()).await.unwrap().into();
    let is_hit = CacheOutcome::of(&response) == Some(CacheOutcome::Hit);
    let body = axum::body::to_bytes(Body::new(response.into_body()), 99).await.unwrap();
    (String::from_utf8(body.into()).unwrap(), is_hit)
}

/// How many writes are sent. `HTTP_WRITES=100200` takes minutes.
fn writes() -> usize {
    std::env::var("HTTP_WRITES").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000)
}

/// For each of two schemes.
const MESSAGES: usize = 2;

const PAGE: &str = "http://x/page";

/// Whether by the layer with keys; the URI; the fields.
type Asked = (bool, &'static str, &'static [(&'static str, &'static str)]);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_ends_each_variant_each_key_and_both_schemes_at_another_process() {
    let server = Server::start();
    let gets = Arc::new(AtomicUsize::new(0));
    let caches = [process(&server), process(&server)];
    let plain = caches.each_ref().map(|cache| cache.http_layer().layer(origin(&gets)));
    let keyed = caches.each_ref().map(|cache| cache.http_layer().key(region).layer(origin(&gets)));
    let asked: [Asked; 6] = [
        (false, PAGE, &[("accept-language", "de")]),
        (false, PAGE, &[("accept-language", "en")]),
        (false, "https://x/page", &[]),
        (true, PAGE, &[("x-region", "eu"), ("accept-language", "de")]),
        (true, PAGE, &[("x-region", "eu")]),
        (true, "https://x/page", &[("x-region", "us")]),
    ];
    let read = async |process: usize, n: usize| {
        let (is_keyed, uri, fields) = asked[n];
        let app = if is_keyed { &keyed[process] } else { &plain[process] };
        ask(app.clone(), "GET", uri, fields).await
    };
    for round in 0..3 {
        let first = round * asked.len();
        for n in 0..asked.len() {
            let (text, _) = read(round % 2, n).await;
            assert_eq!(text, (first + n).to_string());
            // What is filled in the background is there before another process looks.
            let is_done = || caches[round % 2].stats().flights == 0;
            eventually("it is filled", is_done).await;
        }
        for n in 0..asked.len() {
            let (text, _) = read(1 - round % 2, n).await;
            assert_eq!(text, (first + n).to_string(), "it finds what the other one has shared");
            assert!(read(1 - round % 2, n).await.1, "and keeps it");
        }
        // The process that computes next learns of the write by an item for each URI.
        let mut events = caches[1 - round % 2].events();
        ask(plain[round % 2].clone(), "POST", "/page", &[("host", "x")]).await;
        for _ in 0..MESSAGES {
            while !matches!(events.recv().await.unwrap(), Event::Invalidated { .. }) {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_to_other_uris_leave_a_bounded_log_in_redis_and_end_no_page() {
    let server = Server::start();
    let gets = Arc::new(AtomicUsize::new(0));
    let cache = process(&server);
    let app = cache.http_layer().layer(origin(&gets));
    for n in 0..20 {
        ask(app.clone(), "GET", &format!("http://x/{n}"), &[]).await;
    }
    let keys = || server.cli(&["DBSIZE"]).int();
    eventually("all pages are shared", || keys() >= 40).await;
    let used = || {
        let info = server.cli(&["INFO", "memory"]).text();
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        line.unwrap().trim().parse::<i64>().unwrap()
    };
    // Buffers of the connections have grown by then.
    let flood = async |range: std::ops::Range<usize>| {
        let tasks = range.step_by(100).map(|from| {
            let app = app.clone();
            async move {
                for n in from..from + 100 {
                    ask(app.clone(), "POST", &format!("http://x/other{n}"), &[]).await;
                }
            }
        });
        let tasks = futures_util::stream::iter(tasks);
        futures_util::StreamExt::for_each_concurrent(tasks, 16, |task| task).await;
    };
    // Each names two URIs, and the log keeps 4,096.
    flood(0..4000).await;
    let (before, memory) = (keys(), used());
    flood(4000..writes()).await;
    assert!(keys() <= before, "{} keys, {before} before", keys());
    let grown = used() - memory;
    assert!(grown < 64 << 10, "{grown} bytes");
    for n in 0..20 {
        ask(app.clone(), "GET", &format!("http://x/{n}"), &[]).await;
    }
    assert_eq!(gets.load(Ordering::SeqCst), 20);
}
