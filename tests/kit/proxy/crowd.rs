//! Many clients at once, each on a connection of its own.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::soon;

/// What a client asks for.
pub(crate) type Ask = Request<Empty<Bytes>>;

pub(crate) fn get(path: &str) -> Ask {
    Request::get(path).header("host", "a").body(Empty::new()).unwrap()
}

pub(crate) fn get_with(path: &str, name: &str, value: &str) -> Ask {
    let request = Request::get(path).header("host", "a").header(name, value);
    request.body(Empty::new()).unwrap()
}

/// What a client saw.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) status: u16,
    pub(crate) fields: HeaderMap,
    pub(crate) body: String,
    /// From its first step to the first byte of the body.
    pub(crate) first: Duration,
    /// From its first step to the end of the body.
    pub(crate) whole: Duration,
}

impl Seen {
    /// Returns whether it is what the cache had beyond its lifetime.
    pub(crate) fn is_stale(&self) -> bool {
        let status = self.fields.get("cache-status");
        status.is_some_and(|status| status.to_str().unwrap().contains("hit; ttl=-"))
    }
}

/// How far clients have come.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    sent: usize,
    begun: usize,
}

type Progress = Arc<watch::Sender<Steps>>;

/// One client with its connection.
pub(crate) struct Client {
    sender: SendRequest<Empty<Bytes>>,
    progress: Progress,
    _connection: AbortOnDropHandle<()>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::connect_noting(address, Progress::default()).await.unwrap()
    }

    async fn connect_noting(address: SocketAddr, progress: Progress) -> Result<Self, String> {
        let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let noting = Noting { stream, progress: Some(Arc::clone(&progress)) };
        let (sender, connection) =
            http1::handshake(TokioIo::new(noting)).await.map_err(|error| error.to_string())?;
        let connection = tokio::spawn(async {
            // The next request on the connection learns of its end.
            let _ = connection.await;
        });
        Ok(Self { sender, progress, _connection: AbortOnDropHandle::new(connection) })
    }

    /// Asks, and reads the whole response.
    pub(crate) async fn ask(&mut self, request: Ask) -> Result<Seen, String> {
        self.ask_since(Instant::now(), request).await
    }

    async fn ask_since(&mut self, from: Instant, request: Ask) -> Result<Seen, String> {
        self.sender.ready().await.map_err(|error| error.to_string())?;
        let response = self.sender.send_request(request).await;
        let (head, mut incoming) = response.map_err(|error| error.to_string())?.into_parts();
        let (mut body, mut first) = (Vec::new(), None);
        while let Some(frame) = incoming.frame().await {
            let frame = frame.map_err(|error| error.to_string())?;
            if let Some(data) = frame.data_ref() {
                body.extend_from_slice(data);
                first.get_or_insert_with(|| {
                    self.progress.send_modify(|steps| steps.begun += 1);
                    from.elapsed()
                });
            }
        }
        let whole = from.elapsed();
        Ok(Seen {
            status: head.status.as_u16(),
            fields: head.headers,
            body: String::from_utf8(body).map_err(|error| error.to_string())?,
            first: first.unwrap_or(whole),
            whole,
        })
    }
}

/// Clients that ask at once.
pub(crate) struct Crowd {
    clients: JoinSet<Result<Seen, String>>,
    size: usize,
    progress: Progress,
}

impl Crowd {
    /// Each connects to one of `addresses` and asks.
    pub(crate) fn ask(addresses: &[SocketAddr], requests: impl IntoIterator<Item = Ask>) -> Self {
        let progress = Progress::default();
        let mut clients = JoinSet::new();
        let from = Instant::now();
        for (request, &address) in requests.into_iter().zip(addresses.iter().cycle()) {
            let progress = Arc::clone(&progress);
            clients.spawn(async move {
                let mut client = Client::connect_noting(address, progress).await?;
                client.ask_since(from, request).await
            });
        }
        Self { size: clients.len(), clients, progress }
    }

    /// Waits until each has written its request.
    pub(crate) async fn has_asked(&self) {
        let mut steps = self.progress.subscribe();
        let all = steps.wait_for(|steps| steps.sent == self.size);
        soon("all clients to have asked", all).await.unwrap();
    }

    /// Waits until each has read a part of its body.
    pub(crate) async fn has_begun(&self) {
        let mut steps = self.progress.subscribe();
        let all = steps.wait_for(|steps| steps.begun == self.size);
        soon("the first bytes for all clients", all).await.unwrap();
    }

    /// Waits until each has its whole response, or an error.
    pub(crate) async fn outcomes(self) -> Vec<Result<Seen, String>> {
        self.clients.join_all().await
    }

    /// The same where none may have an error.
    pub(crate) async fn seen(self) -> Vec<Seen> {
        let outcomes = soon("all responses", self.outcomes()).await;
        outcomes.into_iter().map(|outcome| outcome.expect("a response")).collect()
    }
}

/// A client's connection that notes when the request is written.
struct Noting {
    stream: TcpStream,
    /// None once it is.
    progress: Option<Progress>,
}

impl AsyncRead for Noting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Noting {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        // A head as small as ours is written at once.
        if written.is_ready()
            && let Some(progress) = self.progress.take()
        {
            progress.send_modify(|steps| steps.sent += 1);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
