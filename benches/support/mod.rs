//! What is compared in the bench of hits: each subject answers from memory.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service};
use tower_stampede::{Cache, HttpService, Stampede};

use crate::report::Role;

const BODY: &[u8] = &[b'x'; 1024];

/// Something that answers a key or a request out of memory.
pub(crate) trait Subject: Send + Sync {
    fn name(&self) -> String;

    /// Answers `times` times, and returns how long that took; making the
    /// requests does not count.
    fn slice(&self, times: usize) -> Duration;

    /// Makes the requests of a slice and forgets them: what making costs, which
    /// is to be taken off counts of a slice. Dropping them is a part of a hit.
    fn make_requests(&self, times: usize) {
        let _ = times;
    }
}

/// Drives a future that is ready at once, as every hit is.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a hit is ready at once"),
    }
}

/// Fills a cache, which takes a runtime.
fn fill<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts").block_on(future)
}

fn order(keys: usize, n: usize) -> u64 {
    // A walk that visits all keys without being the order of insertion.
    (n as u64).wrapping_mul(7919) % keys as u64
}

/// The map look-up alone.
pub(crate) struct Moka {
    cache: moka::sync::Cache<u64, Bytes>,
    keys: usize,
}

impl Moka {
    pub(crate) fn new(keys: usize) -> Self {
        let cache = moka::sync::Cache::builder().max_capacity(1 << 30).build();
        (0..keys as u64).for_each(|key| cache.insert(key, Bytes::from_static(BODY)));
        Self { cache, keys }
    }
}

impl Subject for Moka {
    fn name(&self) -> String {
        "moka get".into()
    }

    fn slice(&self, times: usize) -> Duration {
        let from = Instant::now();
        for n in 0..times {
            black_box(self.cache.get(&order(self.keys, n)));
        }
        from.elapsed()
    }
}

/// Our `get_or_compute`.
pub(crate) struct Generic {
    cache: Stampede<Bytes>,
    keys: usize,
}

impl Generic {
    pub(crate) fn new(keys: usize) -> Self {
        let cache = Stampede::builder("bench").ttl(Duration::from_secs(3600)).max_bytes(1 << 30);
        let cache = cache.build().expect("the settings are good");
        fill(async {
            for key in 0..keys as u64 {
                cache.put(key, Bytes::from_static(BODY)).await;
            }
        });
        Self { cache, keys }
    }
}

impl Subject for Generic {
    fn name(&self) -> String {
        "get_or_compute".into()
    }

    fn slice(&self, times: usize) -> Duration {
        let from = Instant::now();
        for n in 0..times {
            let key = order(self.keys, n);
            let value = self.cache.get_or_compute(key, || async { Err(std::fmt::Error) });
            black_box(block_on(value).expect("the key is warm"));
        }
        from.elapsed()
    }
}

/// The same by a typed cache with a loader.
pub(crate) struct Typed {
    cache: Cache<u64, Bytes, std::fmt::Error>,
    keys: usize,
}

impl Typed {
    pub(crate) fn new(keys: usize) -> Self {
        let Generic { cache, keys } = Generic::new(keys);
        Self { cache: Cache::new(cache, |_| async { Err::<Bytes, _>(std::fmt::Error) }), keys }
    }
}

impl Subject for Typed {
    fn name(&self) -> String {
        "Cache::get".into()
    }

    fn slice(&self, times: usize) -> Duration {
        let from = Instant::now();
        for n in 0..times {
            let value = self.cache.get(order(self.keys, n));
            black_box(block_on(value).expect("the key is warm"));
        }
        from.elapsed()
    }
}

/// The least an HTTP hit can cost: look up, make a response, drain it.
pub(crate) struct Floor {
    cache: moka::sync::Cache<String, Arc<(HeaderMap, Bytes)>>,
    keys: usize,
    arrival: Arrival,
}

/// How requests come to the layer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Just made.
    Bare,
    /// With an extension, as servers and routers put them in: axum's
    /// `ConnectInfo` or `MatchedPath`, hyper's `OnUpgrade`.
    Routed,
}

/// As axum's `ConnectInfo`.
#[derive(Clone)]
struct ConnectedFrom(#[expect(dead_code, reason = "no bench reads it")] SocketAddr);

fn fields() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    headers.insert("etag", HeaderValue::from_static("\"1\""));
    headers
}

fn path(key: u64) -> String {
    format!("/report/{key}")
}

fn requests(keys: usize, times: usize, arrival: Arrival) -> Vec<Request<Full<Bytes>>> {
    let request = |n| {
        let mut request = Request::get(path(order(keys, n))).header("host", "example.org");
        if arrival == Arrival::Routed {
            request = request.extension(ConnectedFrom(([127, 0, 0, 1], 80).into()));
        }
        request.body(Full::default()).expect("the request is good")
    };
    (0..times).map(request).collect()
}

impl Floor {
    pub(crate) fn new(keys: usize, arrival: Arrival) -> Self {
        let cache = moka::sync::Cache::builder().max_capacity(1 << 30).build();
        for key in 0..keys as u64 {
            cache.insert(path(key), Arc::new((fields(), Bytes::from_static(BODY))));
        }
        Self { cache, keys, arrival }
    }
}

impl Subject for Floor {
    fn name(&self) -> String {
        match self.arrival {
            Arrival::Bare => "moka get + response".into(),
            Arrival::Routed => "moka get + response, routed requests".into(),
        }
    }

    fn slice(&self, times: usize) -> Duration {
        let requests = requests(self.keys, times, self.arrival);
        let from = Instant::now();
        for request in requests {
            let found = self.cache.get(request.uri().path()).expect("the key is warm");
            let mut response = Response::new(Full::new(found.1.clone()));
            *response.headers_mut() = found.0.clone();
            drain(response);
        }
        from.elapsed()
    }

    fn make_requests(&self, times: usize) {
        std::mem::forget(requests(self.keys, times, self.arrival));
    }
}

fn drain<B: http_body::Body + Unpin>(response: Response<B>) {
    let mut body = response.into_body();
    while let Some(Ok(frame)) = block_on(body.frame()) {
        black_box(frame.is_data());
    }
}

/// A service that answers 1 KiB at once.
#[derive(Clone)]
pub(crate) struct Bare;

impl Service<Request<Full<Bytes>>> for Bare {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Full<Bytes>>) -> Self::Future {
        let mut response = Response::new(Full::new(Bytes::from_static(BODY)));
        *response.headers_mut() = fields();
        ready(Ok(response))
    }
}

enum Kind {
    Bare,
    Layered(HttpService<Bare>),
}

/// A service of HTTP requests, with or without our layer.
pub(crate) struct Http {
    name: &'static str,
    kind: Kind,
    keys: usize,
    arrival: Arrival,
}

impl Http {
    pub(crate) fn bare(keys: usize) -> Self {
        Self { name: "bare service", kind: Kind::Bare, keys, arrival: Arrival::Bare }
    }

    /// Without `Age` and `Cache-Status`.
    pub(crate) fn plain(keys: usize) -> Self {
        Self::layered("HTTP layer, fields off", keys, false, false)
    }

    /// As it comes.
    pub(crate) fn usual(keys: usize) -> Self {
        Self::layered("HTTP layer", keys, true, false)
    }

    /// With the extension that names the outcome.
    pub(crate) fn outcome(keys: usize) -> Self {
        Self::layered("HTTP layer, outcome_on_hits(true)", keys, true, true)
    }

    /// As it comes, behind a server or router that gives requests extensions.
    pub(crate) fn routed(keys: usize) -> Self {
        let layered = Self::layered("HTTP layer, routed requests", keys, true, false);
        Self { arrival: Arrival::Routed, ..layered }
    }

    fn layered(name: &'static str, keys: usize, with_fields: bool, extension: bool) -> Self {
        let cache = Stampede::builder("bench").ttl(Duration::from_secs(3600)).max_bytes(1 << 30);
        let cache = cache.build().expect("the settings are good");
        let mut layer = cache.http_layer().age(with_fields).outcome_on_hits(extension);
        if !with_fields {
            layer = layer.cache_status("");
        }
        let mut service = layer.layer(Bare);
        fill(async {
            for request in requests(keys, keys, Arrival::Bare) {
                let Ok(response) = service.call(request).await;
                assert_eq!(response.status(), 200);
            }
        });
        Self { name, kind: Kind::Layered(service), keys, arrival: Arrival::Bare }
    }
}

impl Subject for Http {
    fn name(&self) -> String {
        self.name.into()
    }

    fn slice(&self, times: usize) -> Duration {
        let requests = requests(self.keys, times, self.arrival);
        let from = Instant::now();
        match &self.kind {
            Kind::Bare => {
                for request in requests {
                    let Ok(response) = block_on(Bare.call(request));
                    drain(response);
                }
            }
            Kind::Layered(service) => {
                let mut service = service.clone();
                for request in requests {
                    let Ok(response) = block_on(service.call(request));
                    drain(response);
                }
            }
        }
        from.elapsed()
    }

    fn make_requests(&self, times: usize) {
        std::mem::forget(requests(self.keys, times, self.arrival));
    }
}

/// What is compared, and how figures and the page call it.
pub(crate) struct Candidate {
    pub(crate) slug: &'static str,
    #[allow(dead_code, reason = "not every bench draws its subjects")]
    pub(crate) role: Role,
    pub(crate) subject: Arc<dyn Subject>,
}

impl Candidate {
    fn new(slug: &'static str, role: Role, subject: impl Subject + 'static) -> Self {
        Self { slug, role, subject: Arc::new(subject) }
    }
}

pub(crate) fn candidates(keys: usize) -> Vec<Candidate> {
    vec![
        Candidate::new("moka", Role::Without, Moka::new(keys)),
        Candidate::new("generic", Role::Ours, Generic::new(keys)),
        Candidate::new("typed", Role::Ours, Typed::new(keys)),
        Candidate::new("bare", Role::Without, Http::bare(keys)),
        Candidate::new("http", Role::Ours, Http::usual(keys)),
        Candidate::new("floor", Role::Without, Floor::new(keys, Arrival::Bare)),
        Candidate::new("http_outcome", Role::Ours, Http::outcome(keys)),
        Candidate::new("http_plain", Role::Ours, Http::plain(keys)),
        Candidate::new("http_routed", Role::Ours, Http::routed(keys)),
        Candidate::new("floor_routed", Role::Without, Floor::new(keys, Arrival::Routed)),
    ]
}
