//! The body of every response that leaves the layer, and how one is collected
//! to be stored.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, timeout_at};

use super::refusal::Refusal;
use crate::error::BoxError;

mod error;

pub use error::{BodyError, BodyErrorKind};

/// What the layer asks of the service's bodies: they may move between threads,
/// and need not be shared by them.
pub(super) trait SourceBody: Body<Error: Into<BoxError>> + Send + 'static {}

impl<B> SourceBody for B
where
    B: Body + Send + 'static,
    B::Error: Into<BoxError>,
{
}

pin_project! {
    /// The body of a response that went through the HTTP layer.
    ///
    /// Either bytes from the cache, whose exact length is known, or the body
    /// of the inner service.
    ///
    /// # Examples
    ///
    /// ```
    /// use http_body::Body;
    /// use http_body_util::Full;
    /// use tower_stampede::ResponseBody;
    /// use bytes::Bytes;
    ///
    /// let body: ResponseBody<Full<Bytes>> = ResponseBody::default();
    /// assert_eq!(body.size_hint().exact(), Some(0));
    /// ```
    pub struct ResponseBody<B>
    where
        B: Body,
    {
        #[pin]
        state: State<B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<B>
    where
        B: Body,
    {
        Full { bytes: Option<Bytes> },
        Queue { frames: VecDeque<Frame<Bytes>>, then: Then<B> },
        Inner { #[pin] body: B },
    }
}

/// What follows the frames that were collected.
enum Then<B: Body> {
    End,
    Rest(Pin<Box<B>>),
    Error(BodyError),
}

impl<B: Body> ResponseBody<B> {
    pub(crate) fn full(bytes: Bytes) -> Self {
        Self { state: State::Full { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()) } }
    }

    pub(crate) fn inner(body: B) -> Self {
        Self { state: State::Inner { body } }
    }

    /// First what was collected, then what is left.
    pub(crate) fn streaming(so_far: VecDeque<Frame<Bytes>>, rest: Option<Pin<Box<B>>>) -> Self {
        let then = rest.map_or(Then::End, Then::Rest);
        Self { state: State::Queue { frames: so_far, then } }
    }

    /// First what was collected, then the error.
    pub(crate) fn broken(so_far: VecDeque<Frame<Bytes>>, error: BodyError) -> Self {
        Self { state: State::Queue { frames: so_far, then: Then::Error(error) } }
    }
}

impl<B: Body> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::full(Bytes::new())
    }
}

impl<B: Body> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.state {
            State::Full { .. } => "Full",
            State::Queue { .. } => "Queue",
            State::Inner { .. } => "Inner",
        };
        f.debug_tuple("ResponseBody").field(&kind).finish()
    }
}

type Next = Option<Result<Frame<Bytes>, BodyError>>;

impl<B> Body for ResponseBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Next> {
        match self.project().state.project() {
            StateProj::Full { bytes } => Poll::Ready(bytes.take().map(Frame::data).map(Ok)),
            StateProj::Inner { body } => poll_bytes(body, cx),
            StateProj::Queue { frames, then } => match frames.pop_front() {
                Some(frame) => Poll::Ready(Some(Ok(frame))),
                None => then.poll(cx),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            State::Full { bytes } => bytes.is_none(),
            State::Queue { frames, then } => frames.is_empty() && then.is_end(),
            State::Inner { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.state {
            State::Full { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            State::Queue { frames, then } => {
                let queued =
                    frames.iter().filter_map(Frame::data_ref).map(Bytes::len).sum::<usize>();
                plus(then.size_hint(), queued as u64)
            }
            State::Inner { body } => body.size_hint(),
        }
    }
}

impl<B: Body> Then<B> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Next>
    where
        B::Error: Into<BoxError>,
    {
        if let Self::Rest(body) = self {
            let next = ready!(poll_bytes(body.as_mut(), cx));
            if next.is_none() {
                *self = Self::End;
            }
            return Poll::Ready(next);
        }
        match std::mem::replace(self, Self::End) {
            Self::Error(error) => Poll::Ready(Some(Err(error))),
            _ => Poll::Ready(None),
        }
    }

    fn is_end(&self) -> bool {
        match self {
            Self::End => true,
            Self::Rest(body) => body.is_end_stream(),
            Self::Error(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::End => SizeHint::with_exact(0),
            Self::Rest(body) => body.size_hint(),
            Self::Error(_) => SizeHint::default(),
        }
    }
}

fn poll_bytes<B>(body: Pin<&mut B>, cx: &mut Context<'_>) -> Poll<Next>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let to_bytes = |mut data: B::Data| data.copy_to_bytes(data.remaining());
    let frame = ready!(body.poll_frame(cx));
    let frame = frame.map(|frame| frame.map(|frame| frame.map_data(to_bytes)));
    Poll::Ready(frame.map(|frame| frame.map_err(BodyError::of_service)))
}

fn plus(hint: SizeHint, more: u64) -> SizeHint {
    let mut sum = SizeHint::new();
    sum.set_lower(hint.lower().saturating_add(more));
    if let Some(upper) = hint.upper() {
        sum.set_upper(upper.saturating_add(more));
    }
    sum
}

/// How much of a body is collected, and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) bytes: usize,
    /// The length that the head declares.
    pub(crate) declared: Option<u64>,
    /// Between two frames.
    pub(crate) idle: Duration,
    /// In all.
    pub(crate) until: Instant,
}

/// The outcome of [`collect`]. Whatever it is, the client whose request was
/// forwarded gets every frame.
pub(crate) enum Collected<B: Body> {
    Complete(Bytes),
    /// Not to be stored. There is no rest if the body has ended.
    Streams {
        so_far: VecDeque<Frame<Bytes>>,
        rest: Option<Pin<Box<B>>>,
        why: Refusal,
    },
    Broken {
        so_far: VecDeque<Frame<Bytes>>,
        error: BodyError,
    },
}

impl<B: Body> Collected<B> {
    /// Makes the body for the client whose request was forwarded.
    pub(crate) fn into_body(self) -> ResponseBody<B> {
        match self {
            Self::Complete(bytes) => ResponseBody::full(bytes),
            Self::Streams { so_far, rest, .. } => ResponseBody::streaming(so_far, rest),
            Self::Broken { so_far, error } => ResponseBody::broken(so_far, error),
        }
    }
}

/// Collects a body that is to be stored.
///
/// # Cancel safety
///
/// Dropping the future drops the body.
pub(crate) async fn collect<B: SourceBody>(body: B, limits: Limits) -> Collected<B> {
    let mut collecting = Collecting { so_far: VecDeque::new(), bytes: 0 };
    let is_too_large = body.size_hint().lower() > limits.bytes as u64;
    let mut rest = Box::pin(body);
    let mut refusal = is_too_large.then_some(Refusal::TooLarge);
    while refusal.is_none() {
        let frame = timeout_at(limits.deadline(), poll_fn(|cx| poll_bytes(rest.as_mut(), cx)));
        match frame.await {
            Ok(Some(Ok(frame))) => refusal = collecting.push(frame, &limits),
            Ok(Some(Err(error))) => {
                return Collected::Broken { so_far: collecting.so_far, error };
            }
            Ok(None) => return collecting.finish(&limits),
            Err(_) => refusal = Some(Refusal::Slow),
        }
    }
    let why = refusal.unwrap_or(Refusal::Slow);
    Collected::Streams { so_far: collecting.so_far, rest: Some(rest), why }
}

impl Limits {
    fn deadline(&self) -> Instant {
        let idle = Instant::now().checked_add(self.idle);
        idle.map_or(self.until, |idle| idle.min(self.until))
    }
}

struct Collecting {
    so_far: VecDeque<Frame<Bytes>>,
    bytes: usize,
}

impl Collecting {
    /// Takes a frame; says why the body is not to be stored, if so.
    fn push(&mut self, frame: Frame<Bytes>, limits: &Limits) -> Option<Refusal> {
        let length = frame.data_ref().map(Bytes::len);
        if length != Some(0) {
            self.so_far.push_back(frame);
        }
        self.bytes = self.bytes.saturating_add(length.unwrap_or(0));
        match length {
            None => Some(Refusal::Trailers),
            Some(_) if self.bytes > limits.bytes => Some(Refusal::TooLarge),
            // A body that is always ready would never let the timer speak.
            Some(_) => (Instant::now() >= limits.until).then_some(Refusal::Slow),
        }
    }

    fn finish<B: Body>(self, limits: &Limits) -> Collected<B> {
        if limits.declared.is_some_and(|declared| declared != self.bytes as u64) {
            let why = Refusal::BrokenOff;
            return Collected::Streams { so_far: self.so_far, rest: None, why };
        }
        // Copied even if it is one chunk: a chunk may keep a whole read
        // buffer alive, and the store would not know.
        let mut whole = Vec::with_capacity(self.bytes);
        let chunks = self.so_far.iter().filter_map(Frame::data_ref);
        chunks.for_each(|chunk| whole.extend_from_slice(chunk));
        Collected::Complete(whole.into())
    }
}

#[cfg(test)]
mod tests;
