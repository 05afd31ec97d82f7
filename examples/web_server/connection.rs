//! Connections of clients within their [`Limits`]; both servers among the examples have these.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderValue, Request, Response, StatusCode, Version, header};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::limits::{Exchange, Limits, Meter, Patience};
use crate::listen;

/// The smallest read buffer that hyper accepts.
pub(crate) const LEAST_BUFFER: usize = 8 << 10;

/// How often an HTTP/2 client is asked whether it is still there.
pub(crate) const PING: Duration = Duration::from_secs(20);

/// How long to rest when a connection cannot be accepted for lack of files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// How long connections that have begun are still accepted: a handshake takes a round trip.
const LAST_ACCEPTS: Duration = Duration::from_millis(100);

/// How long a connection of HTTP/1 must have been idle before a server that stops closes it. The
/// next request on it may be on its way, and would be lost; its response says `close` instead.
const LINGER: Duration = Duration::from_millis(500);

/// How long the head of a last request may take, once its connection ends with it.
const LAST_HEAD: Duration = Duration::from_secs(1);

/// How long a connection that is too old may take to end its requests.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// The most of a body that HTTP/2 gets at once: what is under way when the body ends is out of
/// sight.
const PIECE: usize = 16 << 10;

/// One of the places for connections, and since when it is taken.
#[derive(Debug)]
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
    since: Instant,
}

impl Place {
    /// Returns when its connection is too old.
    pub(crate) fn ends_at(&self, limits: &Limits) -> Option<Instant> {
        limits.lifetime.and_then(|lifetime| self.since.checked_add(lifetime))
    }
}

/// How a server stops.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    /// How long connections are still accepted.
    pub(crate) delay: Duration,
    /// How long open requests may take to end after that.
    pub(crate) timeout: Duration,
}

/// Accepts connections until `stop` and for the delay of `drain`, then lets open requests end.
///
/// The responses after `stop` tell their clients to use other connections.
pub(crate) async fn accept_all<F>(
    listener: TcpListener,
    limits: &Limits,
    stop: impl Future<Output = ()>,
    drain: Drain,
    serve: impl Fn(TcpStream, SocketAddr, Arc<Place>, CancellationToken) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
    let (stopping, connections) = (CancellationToken::new(), TaskTracker::new());
    let cut = CancellationToken::new();
    let accepting = async {
        loop {
            let permit = Arc::clone(&places).acquire_owned().await;
            let permit = permit.expect("the semaphore is never closed");
            let (stream, address) = accept(&listener).await;
            // A connection that will not have it is served with the delay.
            drop(stream.set_nodelay(true));
            let place = Arc::new(Place { _permit: permit, since: Instant::now() });
            let serving = serve(stream, address, place, stopping.clone());
            let cut = cut.clone();
            connections.spawn(async move {
                tokio::select! {
                    () = serving => {}
                    () = cut.cancelled() => {}
                }
            });
        }
    };
    let mut accepting = Box::pin(accepting);
    tokio::select! {
        () = stop => {}
        () = accepting.as_mut() => {}
    }
    stopping.cancel();
    drop(tokio::time::timeout(drain.delay, accepting.as_mut()).await);
    listen::close_the_door(&listener);
    drop(tokio::time::timeout(LAST_ACCEPTS, accepting.as_mut()).await);
    drop(accepting);
    drop(listener);
    connections.close();
    // Whatever is not done by then is cut off, and has ended when this returns.
    if tokio::time::timeout(drain.timeout, connections.wait()).await.is_err() {
        cut.cancel();
        connections.wait().await;
    }
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

/// Serves one connection, HTTP/1.1 or HTTP/2 as it begins, within the limits.
pub(crate) async fn drive<I, F, B>(
    server: &auto::Builder<TokioExecutor>,
    stream: I,
    limits: &Limits,
    place: &Place,
    stopping: CancellationToken,
    answer: impl Fn(Request<Upload>) -> F,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let meter = Meter::new(limits.clone());
    let stream = TokioIo::new(MeteredStream::new(stream, Arc::clone(&meter)));
    let service = service_fn(|request: Request<Incoming>| {
        let is_http2 = request.version() == Version::HTTP_2;
        let exchange = meter.open(is_http2);
        let answer = answer(request.map(|body| Upload::new(body, limits.reading())));
        let stopping = stopping.clone();
        // No `async` block: it would have room for the answer twice, and each request is moved with that.
        answer.map(move |mut response| {
            let is_last = stopping.is_cancelled() && !is_http2;
            if is_last && response.status() != StatusCode::SWITCHING_PROTOCOLS {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            Ok::<_, Infallible>(response.map(|body| Download::new(body, exchange, is_http2)))
        })
    });
    let mut serving = pin!(server.serve_connection_with_upgrades(stream, service));
    let mut over = pin!(meter.over());
    let mut too_old = pin!(sleep_until(place.ends_at(limits)));
    let (mut stops, mut ends, mut is_old) = (false, false, false);
    let mut next_look = pin!(sleep_until(None));
    loop {
        tokio::select! {
            // Whatever has come, a request may have begun with it.
            biased;
            // What goes wrong on a client's connection is told to the client.
            _ = serving.as_mut() => return,
            () = over.as_mut() => return,
            () = too_old.as_mut() => {
                if is_old {
                    return;
                }
                serving.as_mut().graceful_shutdown();
                (is_old, ends) = (true, true);
                too_old.set(sleep_until(Some(Instant::now() + LAST_WORDS)));
            }
            () = stopping.cancelled(), if !stops => {
                stops = true;
                let rest = if ends { LAST_HEAD } else { Duration::ZERO };
                next_look.set(sleep_until(Some(Instant::now() + rest)));
            }
            () = next_look.as_mut() => {
                let now = Instant::now();
                let pause = if ends {
                    // What is left of an idle connection is a head that was sent in part. One of
                    // HTTP/2 ends by itself: its responses may wait in it for the client.
                    if !meter.is_http2() && meter.is_idle_for(now, LAST_HEAD) {
                        return;
                    }
                    LAST_HEAD
                } else if meter.is_http2() || meter.is_idle_for(now, LINGER) {
                    // HTTP/2 tells its client which requests it will answer still.
                    serving.as_mut().graceful_shutdown();
                    ends = true;
                    LAST_HEAD
                } else {
                    LINGER / 10
                };
                next_look.set(sleep_until(Some(now + pause)));
            }
        }
    }
}

/// Never ends without a moment to end at.
pub(crate) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// A stream that says when the client takes nothing more.
struct MeteredStream<I> {
    stream: I,
    meter: Arc<Meter>,
    patience: Patience,
    waits_since: Option<Instant>,
}

impl<I> MeteredStream<I> {
    fn new(stream: I, meter: Arc<Meter>) -> Self {
        Self { stream, patience: meter.writing(), meter, waits_since: None }
    }

    fn note(&mut self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Pending if self.waits_since.is_none() => {
                let now = Instant::now();
                self.waits_since = Some(now);
                self.meter.stream_waits(now, self.patience.left());
            }
            Poll::Ready(Ok(bytes)) => {
                if let Some(since) = self.waits_since.take() {
                    let now = Instant::now();
                    self.patience.waited(now - since);
                    self.meter.stream_moved(now);
                }
                self.patience.moved(*bytes);
            }
            Poll::Pending | Poll::Ready(Err(_)) => {}
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for MeteredStream<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for MeteredStream<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.note(match flushed {
            Poll::Pending => &Poll::Pending,
            Poll::Ready(_) => &Poll::Ready(Ok(0)),
        });
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The body of a request, which ends with an error when it arrives too slowly.
#[derive(Debug)]
pub(crate) struct Upload {
    body: Incoming,
    patience: Patience,
    waits: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Upload {
    fn new(body: Incoming, patience: Patience) -> Self {
        Self { body, patience, waits: None }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                if let Some((since, _)) = this.waits.take() {
                    this.patience.waited(since.elapsed());
                }
                if let Some(Ok(frame)) = &frame {
                    this.patience.moved(frame.data_ref().map_or(0, Bytes::len));
                }
                Poll::Ready(frame.map(|frame| frame.map_err(UploadError::Broken)))
            }
            Poll::Pending => {
                let left = this.patience.left();
                let (_, sleep) = this
                    .waits
                    .get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(left))));
                ready!(sleep.as_mut().poll(cx));
                Poll::Ready(Some(Err(UploadError::TooSlow)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Why a request's body ended early.
#[derive(Debug)]
pub(crate) enum UploadError {
    /// The client broke off.
    Broken(hyper::Error),
    TooSlow,
}

impl fmt::Display for UploadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Broken(_) => "the client broke off its request",
            Self::TooSlow => "the client sends its request too slowly",
        })
    }
}

impl std::error::Error for UploadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Broken(error) => Some(error),
            Self::TooSlow => None,
        }
    }
}

pin_project! {
    /// The body of a response. In HTTP/2 it says when the client does not take it; in HTTP/1
    /// the stream does.
    pub(crate) struct Download<B> {
        #[pin]
        body: B,
        exchange: Exchange,
        // In HTTP/2.
        patience: Option<Patience>,
        given: Option<(Instant, usize)>,
        rest: Bytes,
    }
}

impl<B> Download<B> {
    fn new(body: B, exchange: Exchange, is_http2: bool) -> Self {
        let patience = is_http2.then(|| exchange.patience());
        Self { body, exchange, patience, given: None, rest: Bytes::new() }
    }
}

impl<B: Body<Data = Bytes>> Body for Download<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let Some(patience) = this.patience else { return this.body.poll_frame(cx) };
        if let Some((since, bytes)) = this.given.take() {
            patience.waited(since.elapsed());
            patience.moved(bytes);
            this.exchange.moved();
        }
        if this.rest.is_empty() {
            match ready!(this.body.poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => *this.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        let piece = this.rest.split_to(this.rest.len().min(PIECE));
        let now = Instant::now();
        *this.given = Some((now, piece.len()));
        this.exchange.waits(now, patience.left());
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let upper = hint.upper();
        // The upper bound first: it is never below the other.
        if let Some(upper) = upper {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}
