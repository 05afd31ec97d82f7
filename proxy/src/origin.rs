//! The origin, as a service: what stands behind the cache.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap};
use http::{Request, Response, StatusCode, Version, request};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;
use tokio::time::Sleep;
use tower_service::Service;
use tower_stampede::BoxError;

use crate::connection::Place;
use crate::connector::{Connector, Used};
use crate::failure::{Kind, OriginError};
use crate::forward::{self, is_chunked, members};
use crate::incoming::ClientBody;
use crate::outgoing::{GateKey, Outgoing};
use crate::settings::Settings;
use crate::upgrade;
use crate::via::Via;
use crate::wire::Teller;

/// How long an idle connection is kept.
const IDLE: Duration = Duration::from_secs(60);

/// The most idle connections that are kept.
const MAX_IDLE: usize = 1024;

/// How long we wait with a request's body for an origin that was asked whether
/// it wants it. Many never say (RFC 9110, 10.1.1).
const EXPECT_PATIENCE: Duration = Duration::from_secs(2);

/// The cache's own time-out goes first: it knows what may stand in.
const AFTER_THE_CACHE: Duration = Duration::from_millis(250);

/// A service that asks the origin of the request's host.
#[derive(Clone)]
pub(crate) struct Origin(Arc<Shared>);

struct Shared {
    client: Client<Connector, Outgoing>,
    connector: Connector,
    settings: Arc<Settings>,
    via: Via,
    silence: Duration,
}

impl Origin {
    pub(crate) fn new(settings: Arc<Settings>, tls: Option<Arc<ClientConfig>>, via: Via) -> Self {
        let connector = Connector::new(tls, settings.connect_timeout);
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new());
        builder.pool_idle_timeout(IDLE).pool_max_idle_per_host(MAX_IDLE);
        // Twice the usual number; we set `Host` ourselves.
        builder.http1_max_headers(200).set_host(false);
        let client = builder.build(connector.clone());
        let silence = settings.compute_timeout.saturating_add(AFTER_THE_CACHE);
        Self(Arc::new(Shared { client, connector, settings, via, silence }))
    }
}

impl Service<Request<ClientBody>> for Origin {
    type Response = Response<OriginBody>;
    type Error = OriginError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, OriginError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), OriginError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move { shared.ask(request).await })
    }
}

impl Shared {
    async fn ask(
        &self,
        mut request: Request<ClientBody>,
    ) -> Result<Response<OriginBody>, OriginError> {
        let front = hyper::upgrade::on(&mut request);
        let (mut parts, body) = request.into_parts();
        let teller = parts.extensions.get::<Teller>().cloned();
        let place = parts.extensions.get::<Arc<Place>>().cloned();
        // Where a reload has taken the host away, there is none.
        let server = self.settings.origins.of(parts.headers.get(header::HOST));
        let server = server.ok_or_else(|| OriginError::new(Kind::Connect))?;
        forward::to_origin(&mut parts, &body, (&self.settings, server), &self.via);
        // What is left in there is of this process.
        parts.extensions = http::Extensions::new();
        let mut response = if parts.headers.contains_key(header::UPGRADE) {
            let request = Request::from_parts(parts, body);
            let asking = upgrade::ask(&self.connector, request, front, place, &self.settings);
            match tokio::time::timeout(self.silence, asking).await {
                Ok(response) => response?,
                Err(_) => return Err(OriginError::new(Kind::Silent)),
            }
        } else {
            self.ask_pooled(parts, body, teller.as_ref()).await?
        };
        let version = response.version();
        self.via.add_to(response.headers_mut(), version);
        Ok(response)
    }

    /// Asks on a connection of the pool. An idle one may have been closed by
    /// the origin while the request was on its way: then, where asking again
    /// does no harm, it is asked once more (RFC 9110, 9.2.2).
    async fn ask_pooled(
        &self,
        parts: request::Parts,
        body: ClientBody,
        teller: Option<&Teller>,
    ) -> Result<Response<OriginBody>, OriginError> {
        let again = parts.method.is_idempotent() && body.is_end_stream();
        let again = again.then(|| parts.clone());
        let body = Some(body).filter(|body| !body.is_end_stream());
        let failed = match self.attempt(parts, body, teller).await {
            Ok(response) => return Ok(response),
            Err(failed) => failed,
        };
        match again.filter(|_| failed.reused && failed.error.is_disconnected()) {
            Some(parts) => self.attempt(parts, None, teller).await.map_err(|failed| failed.error),
            None => Err(failed.error),
        }
    }

    async fn attempt(
        &self,
        parts: request::Parts,
        body: Option<ClientBody>,
        teller: Option<&Teller>,
    ) -> Result<Response<OriginBody>, Failed> {
        let (key, gate) = expected(&parts, body.is_some()).unzip();
        let body = Outgoing::new(body, gate);
        let progress = body.progress();
        let mut request = Request::from_parts(parts, body);
        self.listen_for_informational(&mut request, key.clone(), teller.cloned());
        let connection = capture_connection(&mut request);

        let patience = async {
            if let Some(key) = &key {
                tokio::time::sleep(EXPECT_PATIENCE).await;
                key.open();
            }
            progress.silence(self.silence).await;
        };
        let response = tokio::select! {
            response = self.client.request(request) => response.map_err(OriginError::of_client),
            () = patience => Err(OriginError::new(Kind::Silent)),
        };
        let reused = note_use(&connection);
        let response = response.map_err(|error| Failed { error, reused })?;
        if !is_plain(&response) {
            poison(&connection);
        }
        check(&response).map_err(|error| Failed { error, reused })?;
        Ok(response.map(|body| OriginBody {
            _key: key,
            ..OriginBody::new(body, self.settings.origin_idle)
        }))
    }

    /// Passes 1xx on. Only a 100 is left out: what it says opens the gate, and
    /// the server says it to the client once the body is asked for.
    fn listen_for_informational(
        &self,
        request: &mut Request<Outgoing>,
        key: Option<GateKey>,
        teller: Option<Teller>,
    ) {
        if key.is_none() && teller.is_none() {
            return;
        }
        let via = self.via.clone();
        hyper::ext::on_informational(request, move |response| {
            if response.status() == StatusCode::CONTINUE {
                key.iter().for_each(GateKey::open);
            } else if let Some(teller) = &teller {
                let mut headers = response.headers().clone();
                forward::end_hop_by_hop(&mut headers);
                via.add_to(&mut headers, response.version());
                teller.tell(response.status(), &headers);
            }
        });
    }
}

/// An attempt that failed.
struct Failed {
    error: OriginError,
    /// Its connection had carried a request before.
    reused: bool,
}

/// Returns a gate for a body that the client holds back.
fn expected(
    parts: &request::Parts,
    has_body: bool,
) -> Option<(GateKey, tokio::sync::oneshot::Receiver<()>)> {
    let mut expectations = members(&parts.headers, &header::EXPECT);
    let waits = expectations.any(|member| member.eq_ignore_ascii_case(b"100-continue"));
    (waits && has_body).then(GateKey::new)
}

fn note_use(connection: &CaptureConnection) -> bool {
    connection.connection_metadata().as_ref().is_some_and(Used::again)
}

fn poison(connection: &CaptureConnection) {
    if let Some(connection) = connection.connection_metadata().as_ref() {
        connection.poison();
    }
}

/// Returns whether the connection may be used again once the body has ended:
/// one way to read where that is, and an origin that knows our framing.
fn is_plain(response: &Response<Incoming>) -> bool {
    let headers = response.headers();
    let says_two_things = headers.contains_key(header::TRANSFER_ENCODING)
        && headers.contains_key(header::CONTENT_LENGTH);
    response.version() == Version::HTTP_11 && !says_two_things && !has_length_twice(headers)
}

fn has_length_twice(headers: &HeaderMap) -> bool {
    members(headers, &header::CONTENT_LENGTH).nth(1).is_some()
}

/// Refuses what we cannot pass on as it was meant.
fn check(response: &Response<Incoming>) -> Result<(), OriginError> {
    let mut codings = members(response.headers(), &header::TRANSFER_ENCODING);
    let is_read = codings.next().is_none_or(is_chunked) && codings.next().is_none();
    // The request asked for no other protocol.
    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if is_read && !switches { Ok(()) } else { Err(OriginError::new(Kind::Malformed)) }
}

/// The body of a response as the origin sends it, without too long a pause.
pub(crate) struct OriginBody {
    body: Incoming,
    idle: Duration,
    pause: Option<Pin<Box<Sleep>>>,
    // While the response is read, the connection must live, even if the
    // request's body was never wanted.
    _key: Option<GateKey>,
}

impl OriginBody {
    pub(crate) fn new(body: Incoming, idle: Duration) -> Self {
        Self { body, idle, pause: None, _key: None }
    }
}

impl Body for OriginBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.pause = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let pause = this.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(this.idle)));
        ready!(pause.as_mut().poll(cx));
        Poll::Ready(Some(Err("the origin pauses for too long".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
