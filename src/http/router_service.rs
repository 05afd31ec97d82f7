//! A router behind the layer, as a service whose responses are axum's own.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::Router;
use axum::body::Body;
use axum::routing::IntoMakeService;
use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::error::BoxError;
use crate::http::body::ResponseBody;
use crate::http::flow::future::HttpFuture;
use crate::http::flow::service::HttpService;
use crate::http::layer::HttpLayer;

impl HttpLayer {
    /// Puts the layer in front of a whole router, as a service that `axum::serve` takes.
    ///
    /// `Router::layer` and `Router::route_layer` put a layer behind the router: axum finds the
    /// route first, and copies each request's parts into boxes for it. In front, a hit is answered
    /// before there is any routing, and costs less than a handler without a cache. What changes:
    ///
    /// - **A hit runs nothing of the router's**: no middleware of a route or of the router,
    ///   *authorization included*, no handler, no fallback. Who may see a response must follow
    ///   from what the cache sees: `Authorization` and cookies (see
    ///   [HTTP](crate::guide::http)), or [`identity`](Self::identity). Put what
    ///   has to see each request around this service.
    /// - The key is made of the URI as the client sent it, and there is no `MatchedPath` yet.
    /// - Requests that no route matches pass the cache too: a 404 is stored like one of a
    ///   handler.
    ///
    /// [`route_rules`](Self::route_rules) gives routes settings of their own, by the path.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use axum::{Router, routing::get};
    /// use tower_stampede::Stampede;
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let cache = Stampede::in_memory(Duration::from_secs(60));
    /// let app: Router = Router::new().route("/report", get(|| async { "expensive" }));
    /// let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    /// axum::serve(listener, cache.http_layer().in_front_of(app).into_make_service()).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn in_front_of(&self, router: Router) -> RouterService {
        RouterService { inner: self.layer(router) }
    }
}

/// A router with the HTTP layer in front of it; see [`HttpLayer::in_front_of`].
///
/// A clone costs two references and a clone of the router. Never fails, and is always ready.
#[derive(Clone)]
pub struct RouterService {
    inner: HttpService<Router>,
}

impl RouterService {
    /// Makes what `axum::serve` takes: a service that answers each connection with a clone of
    /// this one.
    ///
    /// `axum::ServiceExt` has the same with the address of the client:
    /// `into_make_service_with_connect_info`.
    #[must_use]
    pub fn into_make_service(self) -> IntoMakeService<Self> {
        axum::ServiceExt::<Request<Body>>::into_make_service(self)
    }
}

impl<Q> Service<Request<Q>> for RouterService
where
    Q: http_body::Body<Data = Bytes> + Send + 'static,
    Q::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = RouterFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> RouterFuture {
        RouterFuture { inner: self.inner.call(request) }
    }
}

impl fmt::Debug for RouterService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouterService").finish_non_exhaustive()
    }
}

pin_project! {
    /// The future of [`RouterService`].
    ///
    /// # Cancel safety
    ///
    /// As [`HttpFuture`].
    #[must_use = "futures do nothing unless polled"]
    pub struct RouterFuture {
        #[pin]
        inner: HttpFuture<Body, Infallible>,
    }
}

impl Future for RouterFuture {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Ok(response) = ready!(self.project().inner.poll(cx));
        Poll::Ready(Ok(response.map(Body::from)))
    }
}

impl fmt::Debug for RouterFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouterFuture").finish_non_exhaustive()
    }
}

/// The service's own body as it is; stored bytes in one box.
impl From<ResponseBody<Self>> for Body {
    fn from(body: ResponseBody<Self>) -> Self {
        match body.into_inner() {
            Ok(inner) => inner,
            Err(ours) => Self::new(ours),
        }
    }
}
