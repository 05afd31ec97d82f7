//! The server: connections of clients, and how their requests are answered.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, Version, header};
use http_body_util::{Either, Full};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tower_service::Service;
use tower_stampede::ResponseBody;

use crate::access_log::{self, AccessLog, Begun, Counted};
use crate::alarm::Alarm;
use crate::checks::{self, NotShared};
use crate::connection::{self, Drain, Place, Upload};
use crate::forward;
use crate::incoming::ClientBody;
use crate::limits::Limits;
use crate::live::Live;
use crate::names::NameFilter;
use crate::origin::OriginBody;
use crate::pages::page;
use crate::provenance;
use crate::status::Status;
use crate::tls;
use crate::via::Via;
use crate::wire::{Desk, Wire};

const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

type AnswerBody = Either<ResponseBody<OriginBody>, Full<Bytes>>;

/// The proxy: checks, then the cache, then the origin.
pub(crate) struct Proxy {
    /// What a reload replaces.
    live: RwLock<Arc<Live>>,
    limits: Limits,
    via: Via,
    names: &'static NameFilter,
    pub(crate) tls: Option<tls::Listener>,
    log: Option<AccessLog>,
    status: Arc<Status>,
}

impl Proxy {
    pub(crate) fn new(
        live: Live,
        names: &'static NameFilter,
        tls: Option<tls::Listener>,
        log: Option<AccessLog>,
        status: Arc<Status>,
    ) -> Self {
        let (limits, via) = (live.settings.limits.clone(), live.via.clone());
        Self { live: RwLock::new(Arc::new(live)), limits, via, names, tls, log, status }
    }

    pub(crate) fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Answers the requests that come from now on in another way.
    pub(crate) fn replace(&self, live: Live) {
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(live);
    }

    /// Answers a request, and has it logged.
    async fn answer_and_log(
        &self,
        request: Request<Upload>,
        from: &HeaderValue,
    ) -> Response<Counted<AnswerBody>> {
        let live = self.live();
        let begun = self.log.as_ref().map(|log| {
            let sent = live.settings.trust_forwarded.then(|| request.headers());
            let client = sent.and_then(provenance::address_of_peer);
            let client = client.and_then(|client| HeaderValue::try_from(client.to_string()).ok());
            Begun::new(log, &request, client.as_ref().unwrap_or(from))
        });
        access_log::count(self.answer(&live, request, from).await, begun)
    }

    /// Sends a request of no client. Like that of a refresh, it gets its fields behind the cache.
    pub(crate) async fn load(
        &self,
        request: Request<()>,
    ) -> Result<Response<ResponseBody<OriginBody>>, Unloaded> {
        let (mut parts, ()) = request.into_parts();
        let live = self.live();
        checks::admit(&mut parts, &live.settings, &self.via, self.names).map_err(|_| Unloaded)?;
        let mut service = live.service_for(&mut parts).clone();
        let request = Request::from_parts(parts, ClientBody::None);
        service.call(request).await.map_err(|_| Unloaded)
    }

    /// Answers a request that was received from this address.
    async fn answer(
        &self,
        live: &Live,
        request: Request<Upload>,
        from: &HeaderValue,
    ) -> Response<AnswerBody> {
        let (mut parts, body) = request.into_parts();
        let body = ClientBody::new(body, self.names);
        if let Some(end) = body.end() {
            parts.extensions.insert(end);
        }
        let method = parts.method.clone();
        let settings = &live.settings;
        match checks::admit(&mut parts, settings, &self.via, self.names) {
            Ok(found) => {
                let from = (from, settings.scheme_name());
                forward::write_fields(&mut parts, &body, &found, from, &self.via);
            }
            Err(refusal) => return ours(*refusal, &method),
        }
        let is_apart = parts.extensions.get::<NotShared>().is_some();
        let mut service = live.service_for(&mut parts).clone();
        match service.call(Request::from_parts(parts, body)).await {
            Ok(mut response) => {
                forward::to_client(&mut response, &method);
                response.map(Either::Left)
            }
            Err(error) => {
                let mut page = page(error.status(), &error.to_string());
                // The layer hands the error on; that the request was forwarded is said here.
                let fwd = forwarded_for(&method, is_apart);
                let member = format!("tower-stampede; fwd={fwd}; detail={}", error.detail());
                let member = HeaderValue::try_from(member).expect("words are visible ASCII");
                page.headers_mut().insert(CACHE_STATUS, member);
                ours(page, &method)
            }
        }
    }
}

/// A response that could not be loaded: the first client that wants it asks the origin.
pub(crate) struct Unloaded;

/// Returns why a request was forwarded, in RFC 9211's words (2.2).
fn forwarded_for(method: &Method, is_apart: bool) -> &'static str {
    match method.as_str() {
        _ if is_apart => "bypass",
        "GET" | "HEAD" | "QUERY" => "miss",
        _ => "method",
    }
}

fn ours(page: Response<Bytes>, method: &Method) -> Response<AnswerBody> {
    let mut response = page.map(Full::new);
    // Our page says whether the connection ends; the response to the client says the same.
    let connection = response.headers_mut().remove(header::CONNECTION);
    forward::to_client(&mut response, method);
    if let Some(connection) = connection {
        response.headers_mut().insert(header::CONNECTION, connection);
    }
    response.map(Either::Right)
}

/// Accepts connections until `stop`, then lets open requests end.
pub(crate) async fn serve(
    listener: TcpListener,
    proxy: Arc<Proxy>,
    stop: impl Future<Output = ()>,
    drain: Drain,
) {
    let limits = proxy.limits.clone();
    let serve = |stream, address, place, stopping| {
        let proxy = Arc::clone(&proxy);
        async move { serve_one(&proxy, stream, address, &place, stopping).await }
    };
    connection::accept_all(listener, &limits, stop, drain, serve).await;
}

async fn serve_one(
    proxy: &Arc<Proxy>,
    stream: TcpStream,
    client: SocketAddr,
    place: &Arc<Place>,
    stopping: CancellationToken,
) {
    let _counted = proxy.status.count_connection();
    let Some(tls) = &proxy.tls else {
        return serve_stream(proxy, stream, client, place, stopping).await;
    };
    // A client that is slow with the handshake is slow with the head of its first request.
    let accepting = tokio::time::timeout(proxy.limits.header, tls.accept(stream));
    let accepted = tokio::select! {
        accepted = accepting => accepted.ok().and_then(Result::ok),
        // Without a request it is an idle connection, and holds the end up no longer.
        () = last_handshakes(&stopping) => None,
    };
    match accepted {
        // Apart: else each connection without TLS would be as large.
        Some(stream) => Box::pin(serve_stream(proxy, stream, client, place, stopping)).await,
        None => {
            proxy.status.failed_handshakes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// How long a handshake may take once the proxy was told to stop.
const LAST_HANDSHAKE: Duration = Duration::from_secs(1);

async fn last_handshakes(stopping: &CancellationToken) {
    stopping.cancelled().await;
    tokio::time::sleep(LAST_HANDSHAKE).await;
}

async fn serve_stream<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    proxy: &Arc<Proxy>,
    stream: I,
    client: SocketAddr,
    place: &Arc<Place>,
    stopping: CancellationToken,
) {
    let address = client.ip().to_canonical().to_string();
    let address = HeaderValue::try_from(address).expect("an address is visible ASCII");
    let wire = Wire::new(stream);
    let desk = wire.desk();
    let answer = |mut request: Request<Upload>| {
        let (proxy, desk, address) = (Arc::clone(proxy), desk.clone(), address.clone());
        if request.headers().contains_key(header::UPGRADE) {
            // The upgraded connection still holds its place.
            request.extensions_mut().insert(Arc::clone(place));
        }
        async move { exchange(&proxy, request, &address, &desk).await }
    };
    let limits = &proxy.limits;
    connection::drive(&server(limits), wire, limits, place, stopping, answer).await;
}

fn server(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut server = auto::Builder::new(TokioExecutor::new());
    let fields = u32::try_from(limits.header_bytes).unwrap_or(u32::MAX);
    server
        .http1()
        .timer(Alarm::default())
        .header_read_timeout(limits.header)
        // Room for the request line besides the fields.
        .max_buf_size(limits.header_bytes.saturating_add(connection::LEAST_BUFFER));
    server
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(connection::PING)
        .max_header_list_size(fields);
    server
}

/// Answers one request; the origin's informational responses go before.
async fn exchange(
    proxy: &Proxy,
    mut request: Request<Upload>,
    address: &HeaderValue,
    desk: &Desk,
) -> Response<Counted<AnswerBody>> {
    if request.version() != Version::HTTP_11 {
        return proxy.answer_and_log(request, address).await;
    }
    let exchange = desk.open();
    request.extensions_mut().insert(exchange.teller());
    // Pinned here: a call has room for its argument, and for what it awaits.
    let answer = pin!(proxy.answer_and_log(request, address));
    exchange.carry(answer).await
}
