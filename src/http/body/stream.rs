//! A shared stream as a client reads it: live or from the store, from an event on, with comments
//! while it is silent.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::Frame;
use tokio::time::{Instant, Sleep};

use crate::http::body::Next;
use crate::http::body::pace::StreamPace;
use crate::http::body::shared::Reader;
use crate::http::rules::streams::{BYTE_ORDER_MARK, is_between_events};

const COMMENT: &[u8] = b":\n\n";
/// As if blank lines came before it.
const BEGIN: [u8; 3] = *b"\n\n\n";

/// Where the bytes are from.
enum Origin {
    Live(Reader),
    Stored { bytes: Bytes, pace: StreamPace, at: usize, began: Instant },
}

pub(crate) struct StreamReader {
    origin: Origin,
    /// Bytes before the first one that this client gets.
    skip: u64,
    heartbeat: Option<Duration>,
    /// When the next comment is due.
    beats_at: Option<Instant>,
    /// The last bytes of the stream that the client has got.
    tail: [u8; 3],
    /// It has got a comment in their place: a mark of the byte order would be one no more.
    strips_mark: bool,
    timer: Option<Pin<Box<Sleep>>>,
}

impl StreamReader {
    fn new(origin: Origin, heartbeat: Option<Duration>, skip: u64) -> Self {
        let beats_at = heartbeat.and_then(|every| Instant::now().checked_add(every));
        Self { origin, skip, heartbeat, beats_at, tail: BEGIN, strips_mark: false, timer: None }
    }

    pub(super) fn live(reader: Reader, heartbeat: Option<Duration>, skip: u64) -> Self {
        Self::new(Origin::Live(reader), heartbeat, skip)
    }

    /// What lies before `at` has been read, and its time is over.
    pub(super) fn stored(bytes: Bytes, pace: StreamPace, at: usize) -> Self {
        let heartbeat = pace.heartbeat();
        let now = Instant::now();
        let began = now.checked_sub(pace.since_begin(at)).unwrap_or(now);
        Self::new(Origin::Stored { bytes, pace, at, began }, heartbeat, 0)
    }

    fn put_off(&mut self) {
        self.beats_at = self.heartbeat.and_then(|every| Instant::now().checked_add(every));
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        loop {
            let (next, more_at) = self.origin.poll(cx);
            match next {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(chunk) => {
                        let chunk = self.take(chunk);
                        if !chunk.is_empty() {
                            return Poll::Ready(Some(Ok(Frame::data(chunk))));
                        }
                        continue;
                    }
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Poll::Ready(end) => return Poll::Ready(end),
                Poll::Pending => {}
            }
            let Some(due) = more_at.into_iter().chain(self.beats_at).min() else {
                return Poll::Pending;
            };
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
            if timer.deadline() != due {
                timer.as_mut().reset(due);
            }
            ready!(timer.as_mut().poll(cx));
            if self.beats_at.is_some_and(|at| at <= due) {
                self.put_off();
                if is_between_events(&self.tail) {
                    self.strips_mark = self.tail == BEGIN;
                    return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT)))));
                }
            }
        }
    }

    /// Returns what the client gets of a chunk.
    fn take(&mut self, mut chunk: Bytes) -> Bytes {
        let before = usize::try_from(self.skip).unwrap_or(usize::MAX).min(chunk.len());
        chunk.advance(before);
        self.skip -= before as u64;
        if chunk.is_empty() {
            return chunk;
        }
        if std::mem::take(&mut self.strips_mark) && chunk.starts_with(BYTE_ORDER_MARK) {
            chunk.advance(BYTE_ORDER_MARK.len());
        }
        for &byte in &chunk[chunk.len().saturating_sub(3)..] {
            self.tail = [self.tail[1], self.tail[2], byte];
        }
        self.put_off();
        chunk
    }
}

impl Origin {
    /// Returns the next bytes, or when there are more.
    fn poll(&mut self, cx: &Context<'_>) -> (Poll<Next>, Option<Instant>) {
        match self {
            Self::Live(reader) => (reader.poll_frame(cx), None),
            Self::Stored { bytes, at, .. } if *at == bytes.len() => (Poll::Ready(None), None),
            Self::Stored { bytes, pace, at, began } => {
                let (to, after) = pace.next(*at, bytes.len());
                let due = began.checked_add(after).filter(|due| *due > Instant::now());
                if due.is_some() {
                    return (Poll::Pending, due);
                }
                let chunk = bytes.slice(*at..to);
                *at = to;
                (Poll::Ready(Some(Ok(Frame::data(chunk)))), None)
            }
        }
    }
}
