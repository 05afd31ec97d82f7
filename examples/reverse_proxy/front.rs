//! The server: connections of clients, and what becomes of their requests.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, Version, header};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_layer::Layer;
use tower_service::Service;
use tower_stampede::{HttpLayer, HttpService, ResponseBody};

use crate::alarm::Alarm;
use crate::checks::{self, NotShared};
use crate::flags::Flags;
use crate::forward;
use crate::incoming::ClientBody;
use crate::names::NameFilter;
use crate::origin::{Origin, OriginBody};
use crate::pages::page;
use crate::via::Via;
use crate::wire::{Desk, Wire};

/// The smallest read buffer that hyper accepts.
const LEAST_BUFFER: usize = 8 << 10;

/// How often an HTTP/2 client is asked whether it is still there.
const PING: Duration = Duration::from_secs(20);

/// How long to rest when a connection cannot be accepted for lack of files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

type AnswerBody = Either<ResponseBody<OriginBody>, Full<Bytes>>;

/// The proxy: checks, then the cache, then the origin.
pub(crate) struct Proxy {
    service: HttpService<Origin>,
    flags: Flags,
    via: Via,
    names: &'static NameFilter,
}

impl Proxy {
    pub(crate) fn new(layer: HttpLayer, flags: Flags, names: &'static NameFilter) -> Self {
        let via = Via::new();
        let layer = flags
            .tune(layer)
            .bypass(|parts| parts.extensions.get::<NotShared>().is_some())
            .request_body(ClientBody::of_read);
        let service = layer.layer(Origin::new(&flags, via.clone()));
        Self { service, flags, via, names }
    }

    /// Answers a request that was received from this address.
    async fn answer(&self, request: Request<Incoming>, from: &HeaderValue) -> Response<AnswerBody> {
        let (mut parts, body) = request.into_parts();
        let body = ClientBody::new(body, self.names);
        if let Some(end) = body.end() {
            parts.extensions.insert(end);
        }
        let method = parts.method.clone();
        match checks::admit(&mut parts, &self.flags, &self.via, self.names) {
            Ok(found) => forward::write_fields(&mut parts, &body, &found, from, &self.via),
            Err(refusal) => return ours(*refusal, &method),
        }
        let request = Request::from_parts(parts, body);
        match self.service.clone().call(request).await {
            Ok(mut response) => {
                forward::to_client(&mut response, &method);
                response.map(Either::Left)
            }
            Err(error) => ours(page(error.status(), &error.to_string()), &method),
        }
    }
}

fn ours(page: Response<Bytes>, method: &Method) -> Response<AnswerBody> {
    let mut response = page.map(Full::new);
    // What a page of ours says of the connection is said of this one.
    let connection = response.headers_mut().remove(header::CONNECTION);
    forward::to_client(&mut response, method);
    if let Some(connection) = connection {
        response.headers_mut().insert(header::CONNECTION, connection);
    }
    response.map(Either::Right)
}

/// Accepts connections until `stop`, then lets open requests end for at most
/// `drain`.
pub(crate) async fn serve(
    listener: TcpListener,
    proxy: Proxy,
    stop: impl Future<Output = ()>,
    drain: Duration,
) {
    let places = Arc::new(Semaphore::new(proxy.flags.max_connections.min(Semaphore::MAX_PERMITS)));
    let proxy = Arc::new(proxy);
    let (stopping, connections) = (CancellationToken::new(), TaskTracker::new());
    let accepting = async {
        loop {
            let place = Arc::clone(&places).acquire_owned().await;
            let place = place.expect("the semaphore is never closed");
            let (stream, address) = accept(&listener).await;
            let (proxy, stopping) = (Arc::clone(&proxy), stopping.clone());
            connections.spawn(async move {
                connection(&proxy, stream, address, stopping).await;
                drop(place);
            });
        }
    };
    tokio::select! {
        () = stop => {}
        () = accepting => {}
    }
    drop(listener);
    stopping.cancel();
    connections.close();
    // Whoever is not done by then is cut off.
    drop(tokio::time::timeout(drain, connections.wait()).await);
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // Of this one connection, which is gone already.
            Err(error) if is_of_one_connection(&error) => {}
            Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Serves one connection, HTTP/1.1 or HTTP/2 as it begins.
async fn connection(
    proxy: &Arc<Proxy>,
    stream: TcpStream,
    client: SocketAddr,
    stopping: CancellationToken,
) {
    // A connection that will not have it is served with the delay.
    drop(stream.set_nodelay(true));
    let address = client.ip().to_canonical().to_string();
    let address = HeaderValue::try_from(address).expect("an address is visible ASCII");
    let wire = Wire::new(stream);
    let (desk, begun) = (wire.desk(), Arc::new(AtomicBool::new(false)));
    let has_begun = Arc::clone(&begun);
    let service = service_fn(move |request: Request<Incoming>| {
        has_begun.store(true, Ordering::Relaxed);
        let (proxy, desk, address) = (Arc::clone(proxy), desk.clone(), address.clone());
        async move { Ok::<_, Infallible>(exchange(&proxy, request, &address, &desk).await) }
    });
    let server = server(&proxy.flags);
    let serving = server.serve_connection_with_upgrades(TokioIo::new(wire), service);
    let mut serving = pin!(serving);
    // hyper's own time-out begins once it knows which protocol it is.
    let too_late = tokio::time::sleep(proxy.flags.header_timeout);
    let mut too_late = pin!(too_late);
    let mut never_begun = pin!(poll_fn(|cx| match begun.load(Ordering::Relaxed) {
        true => Poll::Pending,
        false => too_late.as_mut().poll(cx),
    }));
    let mut stops = false;
    loop {
        tokio::select! {
            // Whatever has come, a request may have begun with it.
            biased;
            // What goes wrong on a client's connection is told to the client.
            _ = serving.as_mut() => return,
            () = &mut never_begun => return,
            () = stopping.cancelled(), if !stops => {
                serving.as_mut().graceful_shutdown();
                stops = true;
            }
        }
    }
}

fn server(flags: &Flags) -> auto::Builder<TokioExecutor> {
    let mut server = auto::Builder::new(TokioExecutor::new());
    let fields = u32::try_from(flags.max_header_bytes).unwrap_or(u32::MAX);
    server
        .http1()
        .timer(Alarm::default())
        .header_read_timeout(flags.header_timeout)
        // Room for the request line besides the fields.
        .max_buf_size(flags.max_header_bytes.saturating_add(LEAST_BUFFER));
    server.http2().timer(TokioTimer::new()).keep_alive_interval(PING).max_header_list_size(fields);
    server
}

/// Answers one request; the origin's informational responses go before.
async fn exchange(
    proxy: &Proxy,
    mut request: Request<Incoming>,
    address: &HeaderValue,
    desk: &Desk,
) -> Response<AnswerBody> {
    if request.version() != Version::HTTP_11 {
        return proxy.answer(request, address).await;
    }
    let exchange = desk.open();
    request.extensions_mut().insert(exchange.teller());
    exchange.carry(proxy.answer(request, address)).await
}
