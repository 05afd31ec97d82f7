//! An accepted connection on which informational responses (1xx) are written.
//!
//! hyper's server cannot send them. It does tell its connection, though, when
//! it has written all it had: it calls `poll_flush` only then. So a whole
//! message written at that moment stands between two messages of hyper's, and
//! if the request in hand is not answered yet, that is where an informational
//! response to it belongs. The service, in turn, returns the final response
//! only once all that was told before is written.
//!
//! Nothing is written for HTTP/1.0, which does not know such responses, nor
//! for HTTP/2, whose messages are frames.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use http::StatusCode;
use http::header::HeaderMap;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The most that may wait to be written; what comes on top is dropped.
const MAX_WAITING: usize = 64 << 10;

/// An accepted connection.
pub(crate) struct Wire {
    stream: TcpStream,
    desk: Desk,
}

/// Where informational responses are handed in.
#[derive(Clone, Default)]
pub(crate) struct Desk(Arc<Mutex<Told>>);

#[derive(Default)]
struct Told {
    /// The request that is being answered; requests are counted.
    open: Option<u64>,
    requests: u64,
    waiting: VecDeque<u8>,
    /// How much of `waiting` belongs to a message already begun: it must be
    /// finished whatever becomes of the request.
    begun: usize,
    /// Sizes of the whole messages in `waiting`, the begun one excluded.
    messages: VecDeque<usize>,
    /// The task of the connection.
    waker: Option<Waker>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, desk: Desk::default() }
    }

    pub(crate) fn desk(&self) -> Desk {
        self.desk.clone()
    }

    /// Writes what was handed in: all of it, or only the message begun.
    fn poll_told(&mut self, cx: &mut Context<'_>, only_begun: bool) -> Poll<io::Result<()>> {
        let mut told = self.desk.lock();
        while told.begin(only_begun) {
            let (first, _) = told.waiting.as_slices();
            let part = &first[..first.len().min(told.begun)];
            match ready!(Pin::new(&mut self.stream).poll_write(cx, part))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => told.wrote(n),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Told {
    /// Returns whether there is a message to go on with.
    fn begin(&mut self, only_begun: bool) -> bool {
        if self.begun == 0 && !only_begun {
            self.begun = self.messages.pop_front().unwrap_or(0);
        }
        self.begun > 0
    }

    fn wrote(&mut self, n: usize) {
        self.waiting.drain(..n);
        self.begun -= n;
        if self.waiting.is_empty() {
            self.wake();
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the desk for the request that has just arrived. HTTP/1.1 has one
    /// at a time.
    pub(crate) fn open(&self) -> Exchange {
        let mut told = self.lock();
        told.requests += 1;
        told.open = Some(told.requests);
        Exchange { desk: self.clone(), request: told.requests }
    }
}

/// A request that is being answered; dropped, nothing is told any more.
pub(crate) struct Exchange {
    desk: Desk,
    request: u64,
}

impl Exchange {
    pub(crate) fn teller(&self) -> Teller {
        Teller { desk: self.desk.clone(), request: self.request }
    }

    /// Waits for the final response, and until all that was told before it is
    /// written.
    pub(crate) async fn carry<F: Future>(self, answer: F) -> F::Output {
        let mut answer = pin!(answer);
        let answer = poll_fn(|cx| {
            self.desk.lock().waker = Some(cx.waker().clone());
            answer.as_mut().poll(cx)
        });
        let answer = answer.await;
        poll_fn(|cx| {
            let mut told = self.desk.lock();
            told.waker = Some(cx.waker().clone());
            if told.waiting.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        answer
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let mut told = self.desk.lock();
        if told.open == Some(self.request) {
            told.open = None;
            told.messages.clear();
            let begun = told.begun;
            told.waiting.truncate(begun);
        }
    }
}

/// Tells one request's client what the origin says meanwhile.
#[derive(Clone)]
pub(crate) struct Teller {
    desk: Desk,
    request: u64,
}

impl Teller {
    /// Hands in an informational response, if the request is still open.
    pub(crate) fn tell(&self, status: StatusCode, headers: &HeaderMap) {
        let message = message(status, headers);
        let mut told = self.desk.lock();
        if told.open != Some(self.request) || told.waiting.len() + message.len() > MAX_WAITING {
            return;
        }
        told.messages.push_back(message.len());
        told.waiting.extend(message);
        told.wake();
    }
}

fn message(status: StatusCode, headers: &HeaderMap) -> Vec<u8> {
    let reason = status.canonical_reason().unwrap_or("");
    let mut text = format!("HTTP/1.1 {} {reason}\r\n", status.as_str()).into_bytes();
    for (name, value) in headers {
        let line = [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"];
        line.into_iter().for_each(|part| text.extend_from_slice(part));
    }
    text.extend_from_slice(b"\r\n");
    text
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_told(cx, true))?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_told(cx, true))?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called when hyper has written all it had.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_told(cx, false))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_told(cx, true))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
