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
use crate::http::rules::streams::{BYTE_ORDER_MARK, COMMENT, StreamTail};

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
    /// Of what the client has got.
    tail: StreamTail,
    /// Nothing of the stream was read, and the client gets it from its first byte on.
    is_at_begin: bool,
    /// The client has got a comment before its first byte: a mark of the byte order would be one no
    /// more. So many bytes of one were held back.
    mark: Option<usize>,
    timer: Option<Pin<Box<Sleep>>>,
    /// They follow what was held back.
    trailers: Option<Frame<Bytes>>,
}

impl StreamReader {
    fn new(origin: Origin, heartbeat: Option<Duration>, skip: u64) -> Self {
        let beats_at = heartbeat.and_then(|every| Instant::now().checked_add(every));
        let is_at_begin = skip == 0 && !matches!(origin, Origin::Stored { at: 1.., .. });
        let (tail, mark, timer) = (StreamTail::default(), None, None);
        Self { origin, skip, heartbeat, beats_at, tail, is_at_begin, mark, timer, trailers: None }
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
        if let Some(trailers) = self.trailers.take() {
            return Poll::Ready(Some(Ok(trailers)));
        }
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
                    Err(trailers) => match self.held_back() {
                        None => return Poll::Ready(Some(Ok(trailers))),
                        held_back => {
                            self.trailers = Some(trailers);
                            return Poll::Ready(held_back);
                        }
                    },
                },
                Poll::Ready(end) => {
                    let held_back = if end.is_none() { self.held_back() } else { None };
                    return Poll::Ready(held_back.or(end));
                }
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
                if self.tail.is_between_events() {
                    if self.is_at_begin {
                        self.mark = Some(0);
                    }
                    return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT)))));
                }
            }
        }
    }

    /// Returns what was held back of a mark of the byte order, where no more of it comes.
    fn held_back(&mut self) -> Next {
        let length = self.mark.take().filter(|length| *length > 0)?;
        Some(Ok(Frame::data(Bytes::from_static(&BYTE_ORDER_MARK[..length]))))
    }

    /// Returns what the client gets of a chunk.
    fn take(&mut self, mut chunk: Bytes) -> Bytes {
        let before = usize::try_from(self.skip).unwrap_or(usize::MAX).min(chunk.len());
        chunk.advance(before);
        self.skip -= before as u64;
        if chunk.is_empty() {
            return chunk;
        }
        self.is_at_begin = false;
        if let Some(known) = self.mark.take() {
            let rest = &BYTE_ORDER_MARK[known..];
            let same = chunk.iter().zip(rest).take_while(|(is, of)| is == of).count();
            if same == chunk.len() && same < rest.len() {
                // There may be more of it.
                self.mark = Some(known + same);
                return Bytes::new();
            }
            if same == rest.len() {
                chunk.advance(same);
            } else if known > 0 {
                chunk = [&BYTE_ORDER_MARK[..known], &*chunk].concat().into();
            }
            if chunk.is_empty() {
                return chunk;
            }
        }
        self.tail.note(&chunk);
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
