//! Collects the part of a body that is there at once.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use tokio::time::Instant;

use crate::http::body::{BodyError, BodyErrorKind, ResponseBody, SourceBody, poll_bytes};
use crate::http::rules::decline_reason::DeclineReason;

/// How many frames are taken without a pause: a body that is always ready
/// must not keep its thread from others.
const FRAMES_AT_ONCE: usize = 1024;

/// What is asked of a body that is to be stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) bytes: usize,
    /// The length that the head declares.
    pub(crate) declared: Option<u64>,
    /// How long it may pause.
    pub(crate) idle: Duration,
    /// How long it may pause until no more requests join it.
    pub(crate) join: Duration,
    /// How long one reader may make the others wait, once it is not stored.
    pub(crate) stall: Duration,
}

impl Limits {
    /// Returns when a body that goes on now has paused too long; never if that
    /// is beyond all time.
    pub(crate) fn idle_until(&self) -> Option<Instant> {
        Instant::now().checked_add(self.idle)
    }

    /// Returns when no more requests join a body that goes on now.
    pub(crate) fn pauses_at(&self) -> Option<Instant> {
        Instant::now().checked_add(self.join)
    }

    pub(crate) fn is_over(&self, length: u64) -> bool {
        length > self.bytes as u64
    }

    pub(crate) fn is_declared(&self, length: u64) -> bool {
        self.declared == Some(length)
    }

    /// Returns whether a body of this length contradicts the head; it may go
    /// on unless it `has_ended`.
    pub(crate) fn is_broken(&self, length: u64, has_ended: bool) -> bool {
        let breaks = |declared| length > declared || has_ended && length < declared;
        self.declared.is_some_and(breaks)
    }
}

/// The outcome of [`collect`]. Whatever it is, the client whose request was
/// forwarded gets every frame.
pub(crate) struct Collection<B> {
    pub(crate) so_far: VecDeque<Frame<Bytes>>,
    pub(crate) bytes: u64,
    pub(crate) rest: Pin<Box<B>>,
    pub(crate) end: CollectEnd,
}

/// Why no more is collected.
pub(crate) enum CollectEnd {
    Complete,
    /// There will be more.
    Waits,
    /// Not to be stored.
    Refused(DeclineReason),
    Broken(BodyError),
}

/// Collects what is there of a body that is to be stored, without waiting.
pub(crate) async fn collect<B: SourceBody>(body: B, limits: &Limits) -> Collection<B> {
    let (so_far, rest, end) = (VecDeque::new(), Box::pin(body), CollectEnd::Waits);
    let mut collected = Collection { so_far, bytes: 0, rest, end };
    let end = poll_fn(|cx| Poll::Ready(collected.poll(cx, limits))).await;
    Collection { end, ..collected }
}

impl<B: SourceBody> Collection<B> {
    /// Makes the body for the client whose request was forwarded.
    pub(crate) fn into_body(self) -> ResponseBody<B> {
        match self.end {
            CollectEnd::Complete => ResponseBody::full(self.joined()),
            CollectEnd::Waits | CollectEnd::Refused(_) => {
                ResponseBody::streaming(self.so_far, self.rest)
            }
            CollectEnd::Broken(error) => ResponseBody::broken(self.so_far, error),
        }
    }

    /// Returns the bytes as one piece. Copied even if it is one chunk: a chunk may keep a whole
    /// read buffer alive, and the store would not know.
    pub(crate) fn joined(&self) -> Bytes {
        let mut whole = Vec::with_capacity(usize::try_from(self.bytes).unwrap_or(0));
        let chunks = self.so_far.iter().filter_map(Frame::data_ref);
        chunks.for_each(|chunk| whole.extend_from_slice(chunk));
        whole.into()
    }

    fn poll(&mut self, cx: &mut Context<'_>, limits: &Limits) -> CollectEnd {
        if limits.is_over(self.rest.size_hint().lower()) {
            return CollectEnd::Refused(DeclineReason::TooLarge);
        }
        for _ in 0..FRAMES_AT_ONCE {
            let stop = match poll_bytes(self.rest.as_mut(), cx) {
                Poll::Ready(Some(Ok(frame))) => self.push(frame, limits),
                Poll::Ready(Some(Err(error))) => Some(CollectEnd::Broken(error)),
                Poll::Ready(None) if limits.is_broken(self.bytes, true) => {
                    Some(CollectEnd::Broken(BodyError::new(BodyErrorKind::BrokenOff)))
                }
                Poll::Ready(None) => Some(CollectEnd::Complete),
                Poll::Pending if limits.is_declared(self.bytes) => Some(CollectEnd::Complete),
                Poll::Pending => Some(CollectEnd::Waits),
            };
            if let Some(stop) = stop {
                return stop;
            }
        }
        CollectEnd::Waits
    }

    /// Takes a frame; says why it is the last, if so.
    fn push(&mut self, frame: Frame<Bytes>, limits: &Limits) -> Option<CollectEnd> {
        let length = frame.data_ref().map(Bytes::len);
        if length != Some(0) {
            self.so_far.push_back(frame);
        }
        self.bytes = self.bytes.saturating_add(length.unwrap_or(0) as u64);
        if length.is_none() {
            return Some(CollectEnd::Refused(DeclineReason::Trailers));
        }
        limits.is_over(self.bytes).then_some(CollectEnd::Refused(DeclineReason::TooLarge))
    }
}
