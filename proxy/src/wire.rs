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
//!
//! hyper answers HTTP/1.0 in kind, and a server says its own version (RFC 9112, 2.3): the first
//! bytes of a connection, where its first response begins, are changed to HTTP/1.1. Later
//! responses of a kept connection stay as they are: where they begin is not told here.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use http::StatusCode;
use http::header::HeaderMap;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const OLD_VERSION: &[u8] = b"HTTP/1.0";
const OUR_VERSION: &[u8] = b"HTTP/1.1";

/// The most that may wait to be written; what comes on top is dropped.
const MAX_WAITING: usize = 64 << 10;

/// An accepted connection.
pub(crate) struct Wire<I> {
    stream: I,
    desk: Desk,
    /// How much of the first response's version is written.
    version: usize,
}

/// Where informational responses are handed in.
#[derive(Clone, Default)]
pub(crate) struct Desk(Arc<Mutex<Announcement>>);

#[derive(Default)]
struct Announcement {
    /// The request that is being answered; requests are counted.
    open: Option<u64>,
    requests: u64,
    waiting: VecDeque<u8>,
    /// How much of `waiting` belongs to a message already begun: it must be
    /// finished whether or not the request goes on.
    begun: usize,
    /// Sizes of the whole messages in `waiting`, the begun one excluded.
    messages: VecDeque<usize>,
    /// The task of the connection.
    waker: Option<Waker>,
}

impl<I: AsyncWrite + Unpin> Wire<I> {
    pub(crate) fn new(stream: I) -> Self {
        Self { stream, desk: Desk::default(), version: 0 }
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

impl<I: AsyncWrite + Unpin> Wire<I> {
    /// Writes the first bytes of the connection: ours, where they are the version of a
    /// response to HTTP/1.0.
    fn poll_write_version(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = Pin::new(&mut self.stream);
        if bytes.is_empty() || !bytes.starts_with(&OLD_VERSION[self.version..]) {
            self.version = OLD_VERSION.len();
            return stream.poll_write(cx, bytes);
        }
        let written = ready!(stream.poll_write(cx, &OUR_VERSION[self.version..]))?;
        self.version += written;
        Poll::Ready(Ok(written))
    }
}

impl Announcement {
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

    /// Returns whether nothing waits, and has the task woken when there is
    /// something new to write or all is written.
    fn is_all_written(&mut self, cx: &Context<'_>) -> bool {
        self.waker = Some(cx.waker().clone());
        self.waiting.is_empty()
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Announcement> {
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
            let answer = answer.as_mut().poll(cx);
            // Most are ready at once, and need no waker. What was told before
            // there was one is written with the flush after this poll.
            if answer.is_pending() {
                self.desk.lock().is_all_written(cx);
            }
            answer
        });
        let answer = answer.await;
        poll_fn(|cx| {
            let is_done = self.desk.lock().is_all_written(cx);
            if is_done { Poll::Ready(()) } else { Poll::Pending }
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

impl<I: AsyncRead + Unpin> AsyncRead for Wire<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Wire<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_told(cx, true))?;
        if self.version < OLD_VERSION.len() {
            return self.poll_write_version(cx, bytes);
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_told(cx, true))?;
        if self.version < OLD_VERSION.len() {
            let first = slices.iter().find(|slice| !slice.is_empty());
            return self.poll_write_version(cx, first.map_or(&[][..], |slice| slice));
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpSocket, TcpStream};

    const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";

    /// A server's end, with little room, and its client's.
    async fn pair() -> (Wire<TcpStream>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let client = socket.connect(listener.local_addr().unwrap()).await.unwrap();
        (Wire::new(listener.accept().await.unwrap().0), client)
    }

    fn hint(teller: &Teller) {
        let mut headers = HeaderMap::new();
        headers.insert("link", "</a>".parse().unwrap());
        teller.tell(StatusCode::EARLY_HINTS, &headers);
    }

    async fn rest(wire: Wire<TcpStream>, mut client: TcpStream) -> String {
        drop(wire);
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn what_is_told_stands_behind_what_was_written_before_the_flush() {
        let (mut wire, client) = pair().await;
        let exchange = wire.desk().open();
        hint(&exchange.teller());
        wire.write_all(b"the end of ").await.unwrap();
        let slices = [io::IoSlice::new(b"the response before\n")];
        assert_eq!(wire.write_vectored(&slices).await.unwrap(), 20);
        wire.flush().await.unwrap();
        wire.write_all(b"more").await.unwrap();
        let expected = format!("the end of the response before\n{HINTS}more");
        assert_eq!(rest(wire, client).await, expected);
    }

    #[tokio::test]
    async fn the_final_response_waits_until_all_is_written_that_was_told_before() {
        let (mut wire, client) = pair().await;
        let exchange = wire.desk().open();
        let teller = exchange.teller();
        let mut answer = pin!(exchange.carry(async {
            hint(&teller);
            "final"
        }));
        poll_fn(|cx| {
            assert!(answer.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        wire.flush().await.unwrap();
        let answer = answer.await;
        wire.write_all(answer.as_bytes()).await.unwrap();
        assert_eq!(rest(wire, client).await, format!("{HINTS}final"));
    }

    #[tokio::test]
    async fn nothing_is_told_of_a_request_that_has_its_answer() {
        let (mut wire, client) = pair().await;
        let first = wire.desk().open();
        let late = first.teller();
        hint(&late);
        drop(first);
        hint(&late);
        let second = wire.desk().open();
        hint(&late);
        wire.flush().await.unwrap();
        drop(second);
        assert_eq!(rest(wire, client).await, "");
    }

    #[tokio::test]
    async fn a_message_begun_is_finished_whatever_becomes_of_its_request() {
        let (mut wire, mut client) = pair().await;
        let desk = wire.desk();
        let exchange = desk.open();
        let mut headers = HeaderMap::new();
        headers.insert("x", "y".repeat(40 << 10).parse().unwrap());
        let whole = message(StatusCode::EARLY_HINTS, &headers);
        // Until one went in only in part.
        let mut read = Vec::new();
        loop {
            exchange.teller().tell(StatusCode::EARLY_HINTS, &headers);
            let flush = poll_fn(|cx| Poll::Ready(Pin::new(&mut wire).poll_flush(cx))).await;
            match desk.lock().begun {
                n if n > 0 && n < whole.len() => break,
                _ if flush.is_ready() => continue,
                _ => {}
            }
            client.read_buf(&mut read).await.unwrap();
        }
        drop(exchange);
        let writing = tokio::spawn(async move {
            wire.write_all(b"final").await.unwrap();
        });
        client.read_to_end(&mut read).await.unwrap();
        writing.await.unwrap();
        let told = read.strip_suffix(b"final").expect("the final response");
        assert!(told.chunks(whole.len()).all(|message| message == whole), "whole messages only");
    }

    #[tokio::test]
    async fn what_waits_is_bounded() {
        let (wire, _client) = pair().await;
        let exchange = wire.desk().open();
        for _ in 0..10_000 {
            hint(&exchange.teller());
        }
        assert!(wire.desk().lock().waiting.len() <= MAX_WAITING);
    }
}
