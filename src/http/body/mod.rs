//! The body of every response that leaves the layer, and how a body is collected
//! to be stored while clients read it.
//!
//! # What enters
//!
//! The body of the service: a stream of frames of any type ([`SourceBody`]).
//!
//! # What leaves
//!
//! A [`ResponseBody`] for each client: stored bytes, the service's own body, or a reader of
//! a body that still arrives. And the whole body as [`Bytes`], to be stored.
//!
//! # The states in between
//!
//! ```text
//! collect ─┬─ Complete ── all is there at once: stored; no task
//!          ├─ Waits ───── a shared body: keeps ─┬─ complete: stored
//!          │                                    └─ too large, too slow, trailers: passes
//!          ├─ Refused ─── not to be stored: straight to the one client
//!          └─ Broken ──── what came, then the error
//! ```
//!
//! How a shared body is kept, and how it passes, says [`crate::stream`]; a reader that reads
//! nothing for `stall_timeout` while another waits loses its body.
//!
//! # Reading order
//!
//! - `mod`: the body that clients get.
//! - `collect`: what of a body is there at once, and the limits.
//! - `shared`: a body that arrives, as a stream that several read.
//! - `pieces`: what holds its bytes: chunks that are shared and not copied.
//! - `part`: a range of a body that arrives.
//! - `stream`: a shared stream, with comments while it is silent; `pace`: when its chunks came.
//! - `error`: why a body ended early.
//! - `request`: a request body that is read to make a key.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::error::BoxError;
use crate::outcome::CacheOutcome;

mod collect;
mod content;
mod error;
mod pace;
mod part;
mod pieces;
mod request;
mod shared;
mod stream;

pub(super) use collect::{CollectEnd, Collection, Limits, collect};
pub(crate) use content::Content;
pub use error::{BodyError, BodyErrorKind};
#[cfg(feature = "remote")]
pub(super) use pace::{MOST_MARKS, PaceMark};
pub(super) use pace::{PaceRecorder, StreamPace};
use part::PartReader;
pub use request::RequestBody;
pub(super) use request::read as read_request;
pub(super) use shared::{Feed, Gathered, Reader, SharedBody};
use stream::StreamReader;

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
    /// Bytes from the cache, whose exact length is known; or the body of the
    /// inner service; or a body that still arrives, and that other clients read too.
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
        // What the response is, where nothing else of it tells: an extension would cost a hit
        // three allocations.
        outcome: Option<CacheOutcome>,
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
        Reading { reader: Reader },
        Part { reader: PartReader },
        Stream { reader: Box<StreamReader> },
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
    #[inline]
    fn of(state: State<B>) -> Self {
        Self { state, outcome: None }
    }

    /// Notes that the response is from the store.
    #[inline]
    pub(crate) fn comes_by(&mut self, outcome: CacheOutcome) {
        self.outcome = Some(outcome);
    }

    pub(crate) fn outcome(&self) -> Option<CacheOutcome> {
        self.outcome
    }

    #[inline]
    pub(crate) fn full(bytes: Bytes) -> Self {
        Self::of(State::Full { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()) })
    }

    pub(crate) fn inner(body: B) -> Self {
        Self::of(State::Inner { body })
    }

    /// What arrives for several.
    pub(crate) fn reading(reader: Reader) -> Self {
        Self::of(State::Reading { reader })
    }

    /// The same from the byte at `skip` on, with a comment after each `heartbeat` of silence.
    pub(crate) fn live(reader: Reader, heartbeat: Option<Duration>, skip: u64) -> Self {
        if heartbeat.is_none() && skip == 0 {
            return Self::reading(reader);
        }
        let reader = Box::new(StreamReader::live(reader, heartbeat, skip));
        Self::of(State::Stream { reader })
    }

    /// A stored stream from the byte at `at` on, at its pace.
    pub(crate) fn paced(bytes: Bytes, pace: StreamPace, at: usize) -> Self {
        let reader = Box::new(StreamReader::stored(bytes, pace, at));
        Self::of(State::Stream { reader })
    }

    /// `length` bytes of it, from the one at `first` on.
    pub(crate) fn reading_part(reader: Reader, first: u64, length: u64) -> Self {
        Self::of(State::Part { reader: PartReader::new(reader, first, length) })
    }

    /// These pieces, and no more.
    pub(crate) fn pieces(pieces: impl Iterator<Item = Bytes>) -> Self {
        let pieces = pieces.filter(|piece| !piece.is_empty()).map(Frame::data);
        Self::of(State::Queue { frames: pieces.collect(), then: Then::End })
    }

    /// First what was collected, then what is left.
    pub(crate) fn streaming(so_far: VecDeque<Frame<Bytes>>, rest: Pin<Box<B>>) -> Self {
        Self::of(State::Queue { frames: so_far, then: Then::Rest(rest) })
    }

    /// First what was collected, then the error.
    pub(crate) fn broken(so_far: VecDeque<Frame<Bytes>>, error: BodyError) -> Self {
        Self::of(State::Queue { frames: so_far, then: Then::Error(error) })
    }
}

impl<B: Body> ResponseBody<B> {
    /// Returns what a part can be cut out of: bytes that are there, or that arrive for several
    /// clients.
    pub(crate) fn content(&self) -> Option<Content> {
        match &self.state {
            State::Full { bytes } => Some(Content::Whole(bytes.clone().unwrap_or_default())),
            State::Reading { reader } => Some(Content::Arriving(Arc::clone(&reader.shared), None)),
            _ => None,
        }
    }

    /// Returns the body of the service, if that is what it is.
    #[cfg(feature = "axum")]
    pub(crate) fn into_inner(self) -> Result<B, Self> {
        match self.state {
            State::Inner { body } => Ok(body),
            state => Err(Self { state, outcome: self.outcome }),
        }
    }

    /// Returns the reader of a body that arrives.
    pub(crate) fn reader(&self) -> Option<&Reader> {
        match &self.state {
            State::Reading { reader } => Some(reader),
            _ => None,
        }
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
            State::Reading { .. } => "Reading",
            State::Part { .. } => "Part",
            State::Stream { .. } => "Stream",
            State::Inner { .. } => "Inner",
        };
        f.debug_tuple("ResponseBody").field(&kind).finish()
    }
}

pub(crate) type Next = Option<Result<Frame<Bytes>, BodyError>>;

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
            StateProj::Reading { reader } => reader.poll_frame(cx),
            StateProj::Part { reader } => reader.poll_frame(cx),
            StateProj::Stream { reader } => reader.poll_frame(cx),
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
            State::Reading { reader } => reader.is_end_stream(),
            State::Part { reader } => reader.is_end_stream(),
            State::Stream { .. } => false,
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
            State::Reading { reader } => reader.size_hint(),
            State::Part { reader } => reader.size_hint(),
            State::Stream { .. } => SizeHint::default(),
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

/// Polls for the next frame, with its data as bytes and its error as ours.
pub(crate) fn poll_bytes<B>(body: Pin<&mut B>, cx: &mut Context<'_>) -> Poll<Next>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    poll_data(body, cx).map_err(BodyError::of_service)
}

/// Polls for the next frame, with its data as bytes.
fn poll_data<B: Body>(body: Pin<&mut B>, cx: &mut Context<'_>) -> PolledFrame<B> {
    let to_bytes = |mut data: B::Data| data.copy_to_bytes(data.remaining());
    let frame = ready!(body.poll_frame(cx));
    Poll::Ready(frame.map(|frame| Ok(frame?.map_data(to_bytes))))
}

type PolledFrame<B> = Poll<Option<Result<Frame<Bytes>, <B as Body>::Error>>>;

fn plus(hint: SizeHint, more: u64) -> SizeHint {
    let mut sum = SizeHint::new();
    sum.set_lower(hint.lower().saturating_add(more));
    if let Some(upper) = hint.upper() {
        sum.set_upper(upper.saturating_add(more));
    }
    sum
}

#[cfg(test)]
mod tests;
