//! A shared stream as a client reads it: live or from the store, from an event on, with comments
//! while it is silent.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::http::body::Next;
use crate::http::body::content::Content;
use crate::http::body::pace::StreamPace;
use crate::http::body::shared::Reader;
use crate::http::rules::streams::{BYTE_ORDER_MARK, is_between_events};

const COMMENT: &[u8] = b":\n\n";

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
    tail: ([u8; 3], usize),
    has_beaten: bool,
    timer: Option<Pin<Box<Sleep>>>,
}

impl StreamReader {
    fn new(origin: Origin, heartbeat: Option<Duration>, skip: u64) -> Self {
        let mut reader = Self {
            origin,
            skip,
            heartbeat,
            beats_at: None,
            tail: ([0; 3], 0),
            has_beaten: false,
            timer: None,
        };
        reader.put_off();
        reader
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

    /// Returns what other answers can be made of, if it is read from its beginning.
    pub(super) fn content(&self) -> Option<Content> {
        let reader = self.reader().filter(|_| self.skip == 0)?;
        Some(Content::Arriving(reader.shared.clone(), self.heartbeat))
    }

    pub(super) fn reader(&self) -> Option<&Reader> {
        match &self.origin {
            Origin::Live(reader) => Some(reader),
            Origin::Stored { .. } => None,
        }
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
                if is_between_events(&self.tail.0[3 - self.tail.1..]) {
                    self.has_beaten = true;
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
        if self.has_beaten && self.tail.1 == 0 && chunk.starts_with(BYTE_ORDER_MARK) {
            // It is one at the very beginning only.
            chunk.advance(BYTE_ORDER_MARK.len());
        }
        for &byte in &chunk[chunk.len().saturating_sub(3)..] {
            self.tail.0.rotate_left(1);
            self.tail.0[2] = byte;
            self.tail.1 = 3.min(self.tail.1 + 1);
        }
        self.put_off();
        chunk
    }

    pub(super) fn is_end_stream(&self) -> bool {
        match &self.origin {
            Origin::Live(reader) => reader.is_end_stream(),
            Origin::Stored { bytes, at, .. } => *at == bytes.len(),
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let (hint, skip) = match &self.origin {
            Origin::Live(reader) => (reader.size_hint(), self.skip),
            Origin::Stored { bytes, at, .. } => {
                (SizeHint::with_exact((bytes.len() - at) as u64), 0)
            }
        };
        let mut left = SizeHint::new();
        match hint.exact().filter(|_| self.heartbeat.is_none() || self.is_end_stream()) {
            Some(all) => left.set_exact(all.saturating_sub(skip)),
            None => left.set_lower(hint.lower().saturating_sub(skip)),
        }
        left
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
