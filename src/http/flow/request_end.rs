//! Whether a request was received, and passed on, to its end.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::request::Parts;
use http_body::Body;

/// Says whether the body of a request has been seen to end.
///
/// A server puts one into the extensions of a request, and keeps a clone in the body.
/// When the body has returned its last frame, it calls [`note`](Self::note). The
/// [`HttpLayer`](crate::HttpLayer) reads it where a write ends in an unknown way: the client
/// hangs up, or the service fails. Such a write invalidates only if the whole request was sent.
/// axum's `Body` and bodies that are empty from the beginning need none.
///
/// A clone counts a reference.
///
/// # Examples
///
/// ```
/// use tower_stampede::RequestEnd;
///
/// let end = RequestEnd::new();
/// let mut request = http::Request::post("/report").body("a body of a type of your own").unwrap();
/// request.extensions_mut().insert(end.clone());
/// // In `poll_frame` of the body, where there is no further frame:
/// end.note();
/// assert!(end.is_noted());
/// ```
#[derive(Clone, Debug, Default)]
pub struct RequestEnd(Arc<AtomicBool>);

impl RequestEnd {
    /// Makes one of a body that has not been seen to end.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that the body has been seen to end. It stays said.
    pub fn note(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns whether the body has been seen to end.
    #[must_use]
    pub fn is_noted(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Returns the body with what says whether it has been seen to end; `None` where nothing
    /// can say that.
    pub(super) fn watch<Q: Body + 'static>(parts: &Parts, body: Q) -> (Q, Option<Self>) {
        let end = Self::new();
        if body.is_end_stream() {
            end.note();
            return (body, Some(end));
        }
        if let Some(known) = parts.extensions.get::<Self>() {
            return (body, Some(known.clone()));
        }
        let mut body = Some(body);
        let is_watched = watch_body_of_axum(&mut body, &end);
        let body = body.expect("the body is where it was");
        (body, is_watched.then_some(end))
    }
}

#[cfg(feature = "axum")]
fn watch_body_of_axum(body: &mut dyn Any, end: &RequestEnd) -> bool {
    let Some(body) = body.downcast_mut::<Option<axum::body::Body>>() else { return false };
    let watch = |inner| axum::body::Body::new(WatchedBody { inner, end: end.clone() });
    *body = body.take().map(watch);
    true
}

#[cfg(not(feature = "axum"))]
fn watch_body_of_axum(_: &mut dyn Any, _: &RequestEnd) -> bool {
    false
}

/// A body that notes its end.
#[cfg_attr(not(feature = "axum"), allow(dead_code, reason = "axum's bodies"))]
struct WatchedBody<B> {
    inner: B,
    end: RequestEnd,
}

impl<B: Body + Unpin> Body for WatchedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<B::Data>, B::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx));
        // A reader that knows the length does not ask for what comes after the last frame.
        let is_last = frame.is_none() || matches!(frame, Some(Ok(_))) && self.inner.is_end_stream();
        if is_last {
            self.end.note();
        }
        std::task::Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.inner.size_hint()
    }
}
