//! An origin whose answers a test controls, and clients that look at replies.

#![allow(clippy::needless_pass_by_value, reason = "so that tests read well")]

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Uri, request::Parts};
use http_body_util::BodyExt;
use tokio::time::Instant;
use tower::ServiceExt;
use tower_layer::Layer;
use tower_service::Service;
use tower_stampede::{CacheOutcome, HttpLayer, HttpService, HttpStampede, Stampede};

use crate::kit::spawn;

/// How long the origin works unless an answer says otherwise.
pub(crate) const WORK: Duration = Duration::from_millis(100);

/// What the origin does with one request.
pub(crate) struct Answer {
    after: Duration,
    kind: Kind,
}

enum Kind {
    Response(Box<Response<Body>>),
    Error,
    Panic,
    Never,
}

impl Answer {
    pub(crate) fn status(status: u16) -> Self {
        let response = Response::builder().status(status).body(Body::empty()).unwrap();
        Self { after: WORK, kind: Kind::Response(Box::new(response)) }
    }

    /// 200 with these directives, and `body`.
    pub(crate) fn ok(cache_control: &str, body: impl Into<Body>) -> Self {
        Self::status(200).header("cache-control", cache_control).body(body)
    }

    /// The service itself fails: there is no response.
    pub(crate) fn error() -> Self {
        Self { after: WORK, kind: Kind::Error }
    }

    pub(crate) fn panic() -> Self {
        Self { after: WORK, kind: Kind::Panic }
    }

    pub(crate) fn never() -> Self {
        Self { after: WORK, kind: Kind::Never }
    }

    pub(crate) fn after(mut self, work: Duration) -> Self {
        self.after = work;
        self
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        let name = http::HeaderName::try_from(name).unwrap();
        self.response().headers_mut().append(name, value.parse().unwrap());
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Body>) -> Self {
        *self.response().body_mut() = body.into();
        self
    }

    pub(crate) fn extension<T: Clone + Send + Sync + 'static>(mut self, extension: T) -> Self {
        self.response().extensions_mut().insert(extension);
        self
    }

    fn response(&mut self) -> &mut Response<Body> {
        match &mut self.kind {
            Kind::Response(response) => response,
            _ => panic!("this answer is no response"),
        }
    }
}

/// One request as the origin got it.
#[derive(Clone)]
pub(crate) struct Call {
    /// 0 for the first.
    pub(crate) n: usize,
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
}

impl Call {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.parts.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn uri(&self) -> String {
        self.parts.uri.to_string()
    }
}

#[derive(Debug)]
pub(crate) struct OriginError;

impl fmt::Display for OriginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the origin's own secret error")
    }
}

impl std::error::Error for OriginError {}

type Script = Arc<dyn Fn(&Call) -> Answer + Send + Sync>;

/// A service that counts and remembers what it was asked.
#[derive(Clone)]
pub(crate) struct Origin(Arc<State>);

struct State {
    calls: AtomicUsize,
    seen: Mutex<Vec<Call>>,
    script: Mutex<Script>,
}

impl Origin {
    pub(crate) fn new(script: impl Fn(&Call) -> Answer + Send + Sync + 'static) -> Self {
        let (calls, seen) = (AtomicUsize::new(0), Mutex::default());
        Self(Arc::new(State { calls, seen, script: Mutex::new(Arc::new(script)) }))
    }

    /// From now on answers like this.
    pub(crate) fn answers(&self, script: impl Fn(&Call) -> Answer + Send + Sync + 'static) {
        *self.0.script.lock().unwrap() = Arc::new(script);
    }

    pub(crate) fn calls(&self) -> usize {
        self.0.calls.load(Ordering::SeqCst)
    }

    /// The requests so far, in order.
    pub(crate) fn seen(&self) -> Vec<Call> {
        self.0.seen.lock().unwrap().clone()
    }

    pub(crate) fn last(&self) -> Call {
        self.seen().pop().expect("the origin was asked")
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, OriginError> {
        let n = self.0.calls.fetch_add(1, Ordering::SeqCst);
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let call = Call { n, parts, body };
        self.0.seen.lock().unwrap().push(call.clone());
        let script = Arc::clone(&self.0.script.lock().unwrap());
        let answer = script(&call);
        tokio::time::sleep(answer.after).await;
        match answer.kind {
            Kind::Response(response) => Ok(*response),
            Kind::Error => Err(OriginError),
            Kind::Panic => panic!("the origin panics, as the test told it"),
            Kind::Never => std::future::pending().await,
        }
    }
}

impl Service<Request<Body>> for Origin {
    type Response = Response<Body>;
    type Error = OriginError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, OriginError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), OriginError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().answer(request))
    }
}

/// The same without errors, as axum asks for.
impl Origin {
    pub(crate) async fn handle(self, request: Request<Body>) -> Response<Body> {
        self.answer(request).await.unwrap()
    }

    pub(crate) fn infallible(
        &self,
    ) -> impl Service<
        Request<Body>,
        Response = Response<Body>,
        Error = Infallible,
        Future = impl Future<Output = Result<Response<Body>, Infallible>> + Send,
    > + Clone
    + Send
    + Sync
    + 'static {
        let origin = self.clone();
        tower::service_fn(move |request| {
            let origin = origin.clone();
            async move { Ok(origin.handle(request).await) }
        })
    }
}

/// A cache that stores only what the origin's headers allow.
pub(crate) fn origin_only() -> HttpStampede {
    Stampede::builder("test").origin_only().build().unwrap()
}

/// A cache with a lifetime of its own, not shortened by jitter.
pub(crate) fn with_ttl(secs: u64) -> HttpStampede {
    Stampede::builder("test").ttl(Duration::from_secs(secs)).jitter(0.0).build().unwrap()
}

pub(crate) fn app(origin: &Origin) -> HttpService<Origin> {
    layered(origin_only().http_layer(), origin)
}

/// A layer that stores the responses to POSTs for later GETs.
pub(crate) fn post_storing(cache: &HttpStampede) -> HttpLayer {
    cache.http_layer().store_post_responses(true)
}

pub(crate) fn layered(layer: HttpLayer, origin: &Origin) -> HttpService<Origin> {
    layer.layer(origin.clone())
}

/// A reply as a client got it.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) outcome: Option<CacheOutcome>,
    /// What arrived of the body, and whether it was complete.
    pub(crate) body: Bytes,
    pub(crate) broken: bool,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) declared: Option<u64>,
    /// Until the header section.
    pub(crate) took: Duration,
    pub(crate) has_cache_for: bool,
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }

    pub(crate) fn cache_status(&self) -> &str {
        self.header("cache-status").unwrap_or_default()
    }

    pub(crate) fn is(&self, outcome: CacheOutcome) -> bool {
        self.outcome == Some(outcome)
    }
}

pub(crate) fn get(uri: &str) -> Request<Body> {
    with(uri, &[])
}

/// A GET with these fields.
pub(crate) fn with(uri: &str, fields: &[(&str, &str)]) -> Request<Body> {
    request("GET", uri, fields)
}

pub(crate) fn request(method: &str, uri: &str, fields: &[(&str, &str)]) -> Request<Body> {
    let uri: Uri = uri.parse().unwrap();
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap()
}

/// Sends one request; `Err` is the service's own error.
pub(crate) async fn try_send<S, B>(service: &S, request: Request<Body>) -> Result<Reply, S::Error>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone,
    B: http_body::Body<Data = Bytes>,
{
    let from = Instant::now();
    let response = service.clone().oneshot(request).await?;
    Ok(read(response, from.elapsed()).await)
}

/// Asserts that our `Cache-Status` says of a response that was not shared why.
fn assert_says_why(headers: &HeaderMap) {
    for member in headers.get_all("cache-status") {
        // Others are those of caches before us.
        let member = member.to_str().unwrap_or_default();
        let Some(said) = member.strip_prefix("tower-stampede; ") else { continue };
        let says = |part: &str| said.split("; ").any(|it| it.split('=').next() == Some(part));
        let is_shared = says("hit") || says("stored") || says("collapsed");
        assert_ne!(is_shared, says("detail"), "{member}");
    }
}

pub(crate) async fn read<B>(response: Response<B>, took: Duration) -> Reply
where
    B: http_body::Body<Data = Bytes>,
{
    let (head, body) = response.into_parts();
    assert_says_why(&head.headers);
    let declared = body.size_hint().exact();
    let (mut bytes, mut broken, mut trailers) = (Vec::new(), false, None);
    let mut body = Box::pin(body);
    while let Some(frame) = body.frame().await {
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(data)) => bytes.extend_from_slice(&data),
            Ok(Err(other)) => trailers = other.into_trailers().ok(),
            Err(_) => {
                broken = true;
                break;
            }
        }
    }
    Reply {
        status: head.status.as_u16(),
        outcome: outcome_of(&head),
        headers: head.headers,
        body: bytes.into(),
        broken,
        trailers,
        declared,
        took,
        has_cache_for: head.extensions.get::<tower_stampede::CacheFor>().is_some(),
    }
}

/// How a response came about: a hit says so in `Cache-Status` alone.
pub(crate) fn outcome_of(head: &http::response::Parts) -> Option<CacheOutcome> {
    let says_hit = |value: &HeaderValue| {
        let member = value.to_str().unwrap_or_default().rsplit(',').next().unwrap_or_default();
        member.contains("; hit; ttl=") && !member.contains("ttl=-")
    };
    let status = head.headers.get_all("cache-status").iter().next_back();
    let hit = status.is_some_and(says_hit).then_some(CacheOutcome::Hit);
    head.extensions.get().copied().or(hit)
}

pub(crate) async fn send<S, B>(service: &S, request: Request<Body>) -> Reply
where
    S: Service<Request<Body>, Response = Response<B>> + Clone,
    S::Error: fmt::Debug,
    B: http_body::Body<Data = Bytes>,
{
    try_send(service, request).await.expect("a response")
}

/// What one of a crowd got.
#[derive(Debug)]
pub(crate) enum Got<E> {
    Reply(Box<Reply>),
    Error(E),
    Panicked,
}

impl<E: fmt::Debug> Got<E> {
    pub(crate) fn reply(self) -> Reply {
        match self {
            Self::Reply(reply) => *reply,
            other => panic!("no reply: {other:?}"),
        }
    }
}

/// Starts `n` clients at once, in order, and waits for all.
pub(crate) fn crowd_of<S, B>(
    service: &S,
    n: usize,
    request: impl Fn(usize) -> Request<Body>,
) -> impl Future<Output = Vec<Got<S::Error>>>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
{
    // Made here, and not where the crowd is started: that is compiled once for each service, and not
    // for each request.
    let requests: Vec<_> = (0..n).map(request).collect();
    crowd_with(service, requests)
}

async fn crowd_with<S, B>(service: &S, requests: Vec<Request<Body>>) -> Vec<Got<S::Error>>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
{
    let mut all = Vec::with_capacity(requests.len());
    let clients: Vec<_> = requests
        .into_iter()
        .map(|request| {
            let service = service.clone();
            spawn(async move { try_send(&service, request).await })
        })
        .collect();
    for client in clients {
        all.push(match client.await {
            Ok(Ok(reply)) => Got::Reply(Box::new(reply)),
            Ok(Err(error)) => Got::Error(error),
            Err(_) => Got::Panicked,
        });
    }
    all
}

/// The same where every client gets a response.
pub(crate) async fn crowd<S, B>(
    service: &S,
    n: usize,
    request: impl Fn(usize) -> Request<Body>,
) -> Vec<Reply>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: fmt::Debug + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
{
    crowd_of(service, n, request).await.into_iter().map(Got::reply).collect()
}

pub(crate) fn slowest(replies: &[Reply]) -> Duration {
    replies.iter().map(|reply| reply.took).max().unwrap_or_default()
}

pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
