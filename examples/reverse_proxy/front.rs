//! The server: connections of clients, and what becomes of their requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, Version, header};
use http_body_util::{Either, Full};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tower_layer::Layer;
use tower_service::Service;
use tower_stampede::{HttpLayer, HttpService, ResponseBody};

use crate::alarm::Alarm;
use crate::checks::{self, NotShared};
use crate::connection::{self, Place, Upload};
use crate::flags::Flags;
use crate::forward;
use crate::incoming::ClientBody;
use crate::limits::Limits;
use crate::names::NameFilter;
use crate::origin::{Origin, OriginBody};
use crate::pages::page;
use crate::via::Via;
use crate::wire::{Desk, Wire};

const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

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
    async fn answer(&self, request: Request<Upload>, from: &HeaderValue) -> Response<AnswerBody> {
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
        let is_apart = parts.extensions.get::<NotShared>().is_some();
        let request = Request::from_parts(parts, body);
        match self.service.clone().call(request).await {
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
    let proxy = Arc::new(proxy);
    let limits = proxy.flags.limits.clone();
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
    let address = client.ip().to_canonical().to_string();
    let address = HeaderValue::try_from(address).expect("an address is visible ASCII");
    let wire = Wire::new(stream);
    let desk = wire.desk();
    let answer = |mut request: Request<Upload>| {
        let (proxy, desk, address) = (Arc::clone(proxy), desk.clone(), address.clone());
        if request.headers().contains_key(header::UPGRADE) {
            // What becomes of the connection then still has its place.
            request.extensions_mut().insert(Arc::clone(place));
        }
        async move { exchange(&proxy, request, &address, &desk).await }
    };
    let limits = &proxy.flags.limits;
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
) -> Response<AnswerBody> {
    if request.version() != Version::HTTP_11 {
        return proxy.answer(request, address).await;
    }
    let exchange = desk.open();
    request.extensions_mut().insert(exchange.teller());
    exchange.carry(proxy.answer(request, address)).await
}
