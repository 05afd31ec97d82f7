//! A request body that the layer has read from, as the service gets it.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::future::poll_fn;
use http_body::{Body, Frame, SizeHint};

use crate::http::rules::request::BypassReason;

/// A request body that the layer has read: the bytes, and what followed them.
///
/// A QUERY is keyed by its body, so the layer reads the body before the service gets the
/// request. [`HttpLayer::request_body`](crate::HttpLayer::request_body) says how the service's
/// own body type is made of this one. Most often it is complete; a body that is too long for a
/// key has a rest, which is read from the client while the service reads this one.
///
/// # Examples
///
/// ```
/// use axum::body::Body;
/// use tower_stampede::RequestBody;
///
/// fn make(body: RequestBody<Body>) -> Body {
///     Body::new(body)
/// }
/// ```
pub struct RequestBody<Q: Body> {
    read: Bytes,
    /// What came behind the bytes: an error, or a frame that is not data.
    next: Option<Box<Result<Frame<Bytes>, Q::Error>>>,
    rest: Option<Pin<Box<Q>>>,
}

impl<Q: Body> RequestBody<Q> {
    /// Makes a complete one.
    pub(crate) fn complete(bytes: Bytes) -> Self {
        Self { read: bytes, next: None, rest: None }
    }

    /// Returns the bytes, if there is nothing else.
    pub(crate) fn bytes(&self) -> Option<Bytes> {
        (self.next.is_none() && self.rest.is_none()).then(|| self.read.clone())
    }

    /// Returns the bytes, if there is nothing else.
    pub(crate) fn into_complete(self) -> Option<Bytes> {
        (self.next.is_none() && self.rest.is_none()).then_some(self.read)
    }
}

impl<Q: Body> Body for RequestBody<Q> {
    type Data = Bytes;
    type Error = Q::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Q::Error>>> {
        if !self.read.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.read)))));
        }
        if let Some(next) = self.next.take() {
            return Poll::Ready(Some(*next));
        }
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        let frame = ready!(rest.as_mut().poll_frame(cx));
        Poll::Ready(
            frame.map(|frame| Ok(frame?.map_data(|mut data| data.copy_to_bytes(data.remaining())))),
        )
    }

    fn is_end_stream(&self) -> bool {
        let has_ended = self.rest.as_ref().is_none_or(|rest| rest.is_end_stream());
        self.read.is_empty() && self.next.is_none() && has_ended
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.as_ref().map_or(SizeHint::with_exact(0), |rest| rest.size_hint());
        let read = self.read.len() as u64;
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(read));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(read)) {
            hint.set_upper(upper);
        }
        hint
    }
}

impl<Q: Body> fmt::Debug for RequestBody<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_complete = self.next.is_none() && self.rest.is_none();
        let mut shown = f.debug_struct("RequestBody");
        shown.field("read", &self.read.len()).field("is_complete", &is_complete).finish()
    }
}

/// How many frames are read without a pause: a body that is always ready must not keep its
/// thread from others.
const FRAMES_AT_ONCE: usize = 64;

/// Reads a body to its end, if that is at most `most` bytes away and comes within `time`.
/// Otherwise returns why not, and what was read before the rest.
pub(crate) async fn read<Q: Body>(
    body: Q,
    most: usize,
    time: Duration,
) -> (RequestBody<Q>, Option<BypassReason>) {
    let mut reading = Reading { bytes: BytesMut::new(), rest: Box::pin(body), most };
    let end = tokio::time::timeout(time, poll_fn(|cx| reading.poll(cx))).await;
    let Reading { bytes, rest, .. } = reading;
    let read = bytes.freeze();
    match end {
        Ok(ReadEnd::Complete) => (RequestBody::complete(read), None),
        Ok(ReadEnd::TooLarge) => {
            let body = RequestBody { read, next: None, rest: Some(rest) };
            (body, Some(BypassReason::BodyTooLarge))
        }
        Ok(ReadEnd::Other(next)) => {
            let rest = next.is_ok().then_some(rest);
            let body = RequestBody { read, next: Some(Box::new(next)), rest };
            (body, Some(BypassReason::BodyUnreadable))
        }
        Err(_) => {
            let body = RequestBody { read, next: None, rest: Some(rest) };
            (body, Some(BypassReason::BodyTooSlow))
        }
    }
}

struct Reading<Q> {
    bytes: BytesMut,
    rest: Pin<Box<Q>>,
    most: usize,
}

/// Why no more is read.
enum ReadEnd<E> {
    Complete,
    TooLarge,
    /// A broken body, or trailers.
    Other(Result<Frame<Bytes>, E>),
}

impl<Q: Body> Reading<Q> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ReadEnd<Q::Error>> {
        for _ in 0..FRAMES_AT_ONCE {
            let Some(frame) = ready!(self.rest.as_mut().poll_frame(cx)) else {
                return Poll::Ready(ReadEnd::Complete);
            };
            let mut frame = match frame {
                Ok(frame) => frame.map_data(|mut data| data.copy_to_bytes(data.remaining())),
                Err(error) => return Poll::Ready(ReadEnd::Other(Err(error))),
            };
            let Some(data) = frame.data_mut() else {
                return Poll::Ready(ReadEnd::Other(Ok(frame)));
            };
            self.bytes.extend_from_slice(data);
            if self.bytes.len() > self.most {
                return Poll::Ready(ReadEnd::TooLarge);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
