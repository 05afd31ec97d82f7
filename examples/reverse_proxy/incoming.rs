//! The body of a request as it goes through the cache.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// What a client sends, or nothing: to ask again without a condition, the
/// cache makes a request of its own.
pub(crate) struct ClientBody(Option<Incoming>);

impl ClientBody {
    pub(crate) fn empty() -> Self {
        Self(None)
    }
}

impl From<Incoming> for ClientBody {
    fn from(body: Incoming) -> Self {
        Self(Some(body))
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.0 else { return Poll::Ready(None) };
        Pin::new(body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}
