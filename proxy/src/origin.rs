//! The origin, as a service: what stands behind the cache.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap};
use http::{Method, Request, Response, StatusCode, Uri, Version, request};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use rustls::ClientConfig;
use tokio::time::Sleep;
use tower_service::Service;
use tower_stampede::BoxError;

use crate::connection::Place;
use crate::connector::Connector;
use crate::failure::{Kind, OriginError};
use crate::forward::{self, is_chunked, members};
use crate::incoming::ClientBody;
use crate::outgoing::{GateKey, Outgoing};
use crate::pool::{OriginConnection, Pool};
use crate::settings::Settings;
use crate::upgrade;
use crate::via::Via;
use crate::wire::Teller;

/// How long we wait with a request's body for an origin that was asked whether
/// it wants it. Many never say (RFC 9110, 10.1.1).
const EXPECT_PATIENCE: Duration = Duration::from_secs(2);

/// The cache's own time-out goes first: it knows what may stand in.
const AFTER_THE_CACHE: Duration = Duration::from_millis(250);

/// A service that asks the origin of the request's host.
#[derive(Clone)]
pub(crate) struct Origin(Arc<Shared>);

struct Shared {
    pool: Arc<Pool>,
    connector: Connector,
    settings: Arc<Settings>,
    via: Via,
    silence: Duration,
}

impl Origin {
    pub(crate) fn new(settings: Arc<Settings>, tls: Option<Arc<ClientConfig>>, via: Via) -> Self {
        let connector = Connector::new(tls, settings.connect_timeout);
        let pool = Pool::new(connector.clone());
        let silence = settings.compute_timeout.saturating_add(AFTER_THE_CACHE);
        Self(Arc::new(Shared { pool, connector, settings, via, silence }))
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
    /// does no harm, it is asked once more (RFC 9110, 9.2.2). That is on a new
    /// connection, since the others of the pool may be closed, too.
    async fn ask_pooled(
        &self,
        parts: request::Parts,
        body: ClientBody,
        teller: Option<&Teller>,
    ) -> Result<Response<OriginBody>, OriginError> {
        let again = parts.method.is_idempotent() && body.is_end_stream();
        let again = again.then(|| parts.clone());
        let body = Some(body).filter(|body| !body.is_end_stream());
        let failed = match self.attempt(parts, body, teller, ConnectionKind::Kept).await {
            Ok(response) => return Ok(response),
            Err(failed) => failed,
        };
        let again = again.filter(|_| failed.reused && failed.error.is_disconnected());
        let Some(parts) = again else { return Err(failed.error) };
        self.attempt(parts, None, teller, ConnectionKind::New).await.map_err(|failed| failed.error)
    }

    async fn attempt(
        &self,
        parts: request::Parts,
        body: Option<ClientBody>,
        teller: Option<&Teller>,
        kind: ConnectionKind,
    ) -> Result<Response<OriginBody>, Failed> {
        let (key, gate) = expected(&parts, body.is_some()).unzip();
        let is_head = parts.method == Method::HEAD;
        let body = Outgoing::new(body, gate);
        let progress = body.progress();
        let mut request = Request::from_parts(parts, body);
        self.listen_for_informational(&mut request, key.clone(), teller.cloned());

        let patience = async {
            if let Some(key) = &key {
                tokio::time::sleep(EXPECT_PATIENCE).await;
                key.open();
            }
            progress.silence(self.silence).await;
        };
        let (response, connection) = tokio::select! {
            answer = self.send(request, kind) => answer?,
            () = patience => return Err(OriginError::new(Kind::Silent).into()),
        };
        check(&response)?;
        let carrier = Carrier {
            watches_length: !is_head && has_length(&response),
            pool: is_plain(&response).then(|| Arc::clone(&self.pool)),
            connection,
        };
        Ok(response.map(|body| OriginBody {
            _key: key,
            ..OriginBody::on(carrier, body, self.settings.origin_idle)
        }))
    }

    /// Sends a request, on another connection if nothing of it went over the first.
    async fn send(
        &self,
        mut request: Request<Outgoing>,
        kind: ConnectionKind,
    ) -> Result<(Response<Incoming>, OriginConnection), Failed> {
        let to = request.uri().clone();
        *request.uri_mut() = forward::origin_form(&to);
        loop {
            let mut connection = self.connection(&to, kind).await?;
            let mut failed = match connection.send(request).await {
                Ok(response) => return Ok((response, connection)),
                Err(failed) => failed,
            };
            let reused = connection.is_reused();
            request = match failed.take_message() {
                Some(unsent) if reused => unsent,
                _ => {
                    let error = OriginError::of_connection(failed.into_error());
                    return Err(Failed { error, reused });
                }
            };
        }
    }

    async fn connection(
        &self,
        to: &Uri,
        kind: ConnectionKind,
    ) -> Result<OriginConnection, OriginError> {
        match kind {
            ConnectionKind::Kept => self.pool.take(to).await,
            ConnectionKind::New => self.pool.connect(to).await,
        }
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

/// Which connection a request takes.
#[derive(Clone, Copy, Debug)]
enum ConnectionKind {
    /// One of the pool, if there is one.
    Kept,
    New,
}

/// An attempt that failed.
struct Failed {
    error: OriginError,
    /// Its connection had carried a request before.
    reused: bool,
}

/// Where it does not matter whether the connection was used before.
impl From<OriginError> for Failed {
    fn from(error: OriginError) -> Self {
        Self { error, reused: false }
    }
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

/// Returns whether the response has a body that ends after a stated number of bytes.
fn has_length(response: &Response<Incoming>) -> bool {
    let has_no_body =
        matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    !has_no_body && response.body().size_hint().exact().is_some()
}

/// Refuses what we cannot pass on as it was meant.
fn check(response: &Response<Incoming>) -> Result<(), OriginError> {
    let mut codings = members(response.headers(), &header::TRANSFER_ENCODING);
    let is_read = codings.next().is_none_or(is_chunked) && codings.next().is_none();
    // The request asked for no other protocol.
    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if is_read && !switches { Ok(()) } else { Err(OriginError::new(Kind::Malformed)) }
}

/// The connection that a response comes on.
struct Carrier {
    connection: OriginConnection,
    /// Where it goes afterwards, unless it ends.
    pool: Option<Arc<Pool>>,
    /// Whether a body that goes on behind its length can be told.
    watches_length: bool,
}

/// The body of a response as the origin sends it, without too long a pause.
///
/// If more bytes have come than the stated length, an empty section of trailers follows the body:
/// clients get the response as it is, and the cache does not store it. The length may be wrong, and
/// the body cut off.
pub(crate) struct OriginBody {
    body: Incoming,
    idle: Duration,
    pause: Option<Pin<Box<Sleep>>>,
    /// Until the body has ended.
    carrier: Option<Carrier>,
    length: u64,
    has_excess: bool,
    // While the response is read, the connection must live, even if the
    // request's body was never wanted.
    _key: Option<GateKey>,
}

impl OriginBody {
    pub(crate) fn new(body: Incoming, idle: Duration) -> Self {
        let (pause, carrier) = (None, None);
        Self { body, idle, pause, carrier, length: 0, has_excess: false, _key: None }
    }

    fn on(carrier: Carrier, body: Incoming, idle: Duration) -> Self {
        let mut this = Self { carrier: Some(carrier), ..Self::new(body, idle) };
        if this.body.is_end_stream() {
            this.leave_connection();
        }
        this
    }

    /// Gives the connection back, the body having ended.
    fn leave_connection(&mut self) {
        let Some(Carrier { connection, pool, watches_length }) = self.carrier.take() else {
            return;
        };
        self.has_excess = watches_length && connection.has_more_than(self.length);
        if let Some(pool) = pool.filter(|_| !self.has_excess) {
            pool.give_back(connection);
        }
    }

    fn end(&mut self) -> Option<Result<Frame<Bytes>, BoxError>> {
        let has_excess = std::mem::take(&mut self.has_excess);
        has_excess.then(|| Ok(Frame::trailers(HeaderMap::new())))
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
        // At once: the cache does not wait for the end of a body that has its length.
        if this.body.is_end_stream() {
            return Poll::Ready(this.end());
        }
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.pause = None;
            let frame = frame.transpose()?;
            this.length += frame.as_ref().and_then(Frame::data_ref).map_or(0, Bytes::len) as u64;
            // A body with a length has ended with its last byte: the cache may not ask for more.
            if this.body.is_end_stream() || frame.as_ref().is_none_or(Frame::is_trailers) {
                this.leave_connection();
            }
            return Poll::Ready(frame.map(Ok));
        }
        let pause = this.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(this.idle)));
        ready!(pause.as_mut().poll(cx));
        Poll::Ready(Some(Err("the origin pauses for too long".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && !self.has_excess
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
