//! Connections to the origin.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::server::default_port;
use crate::tls;
use crate::traffic::Traffic;

/// Connects to the origin in a URI.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    /// `None` where no origin has https.
    tls: Option<Arc<ClientConfig>>,
    timeout: Duration,
}

impl Connector {
    pub(crate) fn new(tls: Option<Arc<ClientConfig>>, timeout: Duration) -> Self {
        Self { tls, timeout }
    }

    /// Connects, TLS included, within the time-out.
    pub(crate) async fn connect(&self, to: &Uri) -> io::Result<OriginStream> {
        match tokio::time::timeout(self.timeout, self.connect_slowly(to)).await {
            Ok(link) => Ok(OriginStream { link: link?, traffic: Traffic::default() }),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    async fn connect_slowly(&self, to: &Uri) -> io::Result<Link> {
        let no_origin = || io::Error::from(io::ErrorKind::InvalidInput);
        let scheme = to.scheme().ok_or_else(no_origin)?;
        // Names are looked up without the brackets that URIs need.
        let host = to.host().ok_or_else(no_origin)?.trim_matches(['[', ']']);
        let port = to.port_u16().unwrap_or_else(|| default_port(scheme));
        let stream = TcpStream::connect((host, port)).await?;
        // A connection that will not have it is used with the delay.
        drop(stream.set_nodelay(true));
        if *scheme != Scheme::HTTPS {
            return Ok(Link::Plain(stream));
        }
        let config = self.tls.as_ref().ok_or_else(no_origin)?;
        Ok(Link::Tls(Box::new(tls::connect(config, host, stream).await?)))
    }
}

/// A connection to an origin.
pub(crate) struct OriginStream {
    link: Link,
    traffic: Traffic,
}

enum Link {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl OriginStream {
    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic.clone()
    }
}

/// Calls a method of the stream that is there.
macro_rules! on_link {
    ($this:ident, $stream:ident => $call:expr) => {
        match &mut $this.link {
            Link::Plain(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Link::Tls(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
        }
    };
}

impl AsyncRead for OriginStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = on_link!(self, stream => stream.poll_read(cx, buffer));
        self.traffic.received(&buffer.filled()[before..]);
        read
    }
}

impl AsyncWrite for OriginStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        on_link!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_link!(self, stream => stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.link {
            Link::Plain(stream) => stream.is_write_vectored(),
            Link::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_link!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_link!(self, stream => stream.poll_shutdown(cx))
    }
}
