//! A request body that the layer has read from, as the service gets it.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::poll_fn;
use http_body::{Body, Frame, SizeHint};

use crate::http::body::{plus, poll_data};
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
        poll_data(rest.as_mut(), cx)
    }

    fn is_end_stream(&self) -> bool {
        let has_ended = self.rest.as_ref().is_none_or(|rest| rest.is_end_stream());
        self.read.is_empty() && self.next.is_none() && has_ended
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.as_ref().map_or(SizeHint::with_exact(0), |rest| rest.size_hint());
        plus(rest, self.read.len() as u64)
    }
}

impl<Q: Body> fmt::Debug for RequestBody<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_complete = self.bytes().is_some();
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
    let (mut bytes, mut rest) = (BytesMut::new(), Box::pin(body));
    let end = poll_fn(|cx| {
        for _ in 0..FRAMES_AT_ONCE {
            let next = ready!(poll_data(rest.as_mut(), cx));
            // A broken body and trailers end it too.
            let data = next.as_ref().and_then(|next| next.as_ref().ok()?.data_ref());
            let Some(data) = data else { return Poll::Ready(Ok(next)) };
            bytes.extend_from_slice(data);
            if bytes.len() > most {
                return Poll::Ready(Err(BypassReason::BodyTooLarge));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    });
    let end = tokio::time::timeout(time, end).await;
    let read = bytes.freeze();
    let (next, reason) = match end {
        Ok(Ok(None)) => return (RequestBody::complete(read), None),
        Ok(Ok(Some(next))) => (Some(Box::new(next)), BypassReason::BodyUnreadable),
        Ok(Err(reason)) => (None, reason),
        Err(_) => (None, BypassReason::BodyTooSlow),
    };
    let is_broken = next.as_ref().is_some_and(|next| next.is_err());
    (RequestBody { read, next, rest: Some(rest).filter(|_| !is_broken) }, Some(reason))
}
