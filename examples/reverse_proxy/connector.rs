//! Connections to the origin.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tower_service::Service;

use crate::flags::Flags;

/// Connects to the one origin, whatever it is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    host: Arc<str>,
    port: u16,
    timeout: Duration,
}

impl Connector {
    pub(crate) fn new(flags: &Flags) -> Self {
        let origin = flags.origin();
        // Names are looked up without the brackets that URIs need.
        let host = origin.host().trim_matches(['[', ']']);
        let port = origin.port_u16().unwrap_or(80);
        Self { host: host.into(), port, timeout: flags.connect_timeout }
    }

    pub(crate) async fn connect(&self) -> io::Result<TcpStream> {
        let connecting = TcpStream::connect((&*self.host, self.port));
        let stream = match tokio::time::timeout(self.timeout, connecting).await {
            Ok(stream) => stream?,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        };
        // A connection that will not have it is used with the delay.
        drop(stream.set_nodelay(true));
        Ok(stream)
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<OriginStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let stream = connector.connect().await?;
            Ok(TokioIo::new(OriginStream { stream, used: Used::default() }))
        })
    }
}

/// Whether a connection has carried a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Used(Arc<AtomicBool>);

impl Used {
    /// Notes a request on a connection; returns whether there was one before.
    pub(crate) fn again(connection: &Connected) -> bool {
        let mut extras = http::Extensions::new();
        connection.get_extras(&mut extras);
        extras.get::<Self>().is_some_and(|used| used.0.swap(true, Ordering::Relaxed))
    }
}

/// A connection to the origin.
pub(crate) struct OriginStream {
    stream: TcpStream,
    used: Used,
}

impl Connection for OriginStream {
    fn connected(&self) -> Connected {
        Connected::new().extra(self.used.clone())
    }
}

impl AsyncRead for OriginStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for OriginStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
