//! Web sockets: the one upgrade that is passed on, on a connection of its own.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{self, HeaderValue};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connection::{Place, sleep_until};
use crate::connector::Connector;
use crate::failure::{Kind, OriginError};
use crate::forward::{self, members};
use crate::incoming::ClientBody;
use crate::origin::OriginBody;
use crate::settings::Settings;

/// Asks the origin to switch, and if it does, copies both ways until one of
/// the two closes.
pub(crate) async fn ask(
    connector: &Connector,
    mut request: Request<ClientBody>,
    client: OnUpgrade,
    place: Option<Arc<Place>>,
    settings: &Settings,
) -> Result<Response<OriginBody>, OriginError> {
    let stream = connector.connect(request.uri()).await.map_err(OriginError::connect)?;
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(OriginError::of_connection)?;
    // It ends with the response, or becomes the tunnel.
    tokio::spawn(connection.with_upgrades());
    *request.uri_mut() = forward::origin_form(request.uri());
    let response = sender.send_request(request).await.map_err(OriginError::of_connection)?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return switch(response, client, place, settings);
    }
    Ok(response.map(|body| OriginBody::new(body, settings.origin_idle)))
}

fn switch(
    mut response: Response<Incoming>,
    client: OnUpgrade,
    place: Option<Arc<Place>>,
    settings: &Settings,
) -> Result<Response<OriginBody>, OriginError> {
    let is_asked_for = |protocol: &[u8]| protocol.eq_ignore_ascii_case(b"websocket");
    if !members(response.headers(), &header::UPGRADE).all(is_asked_for) {
        return Err(OriginError::new(Kind::Malformed));
    }
    let origin = hyper::upgrade::on(&mut response);
    let idle = settings.websocket_idle;
    let ends_at = place.as_ref().and_then(|place| place.ends_at(&settings.limits));
    tokio::spawn(async move {
        // It counts as a connection until it ends.
        let _place = place;
        let (Ok(client), Ok(origin)) = tokio::join!(client, origin) else { return };
        let moved = Moved::default();
        let mut client = Tunnel { stream: TokioIo::new(client), moved: moved.clone() };
        let mut origin = TokioIo::new(origin);
        tokio::select! {
            // Whichever end breaks off has ended it for both.
            _ = tokio::io::copy_bidirectional(&mut client, &mut origin) => {}
            () = moved.silence(idle) => {}
            () = sleep_until(ends_at) => {}
        }
    });
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    Ok(response.map(|body| OriginBody::new(body, idle)))
}

/// Counts the bytes of a tunnel, both ways.
#[derive(Clone, Default)]
struct Moved(Arc<AtomicU64>);

impl Moved {
    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Ends once nothing has moved for `limit`, or up to a quarter longer.
    async fn silence(&self, limit: Duration) {
        let (mut before, mut ticks) = (self.0.load(Ordering::Relaxed), 0);
        while ticks < 4 {
            tokio::time::sleep(limit / 4).await;
            let now = self.0.load(Ordering::Relaxed);
            ticks = if now == before { ticks + 1 } else { 0 };
            before = now;
        }
    }
}

/// The client's end of a tunnel.
struct Tunnel<I> {
    stream: I,
    moved: Moved,
}

impl<I: AsyncRead + Unpin> AsyncRead for Tunnel<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.moved.add(buffer.filled().len() - before);
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Tunnel<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(bytes)) = written {
            self.moved.add(bytes);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
