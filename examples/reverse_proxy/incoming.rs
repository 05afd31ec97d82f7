//! The body of a request as it goes through the cache.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::connection::{Upload, UploadError};
use crate::names::NameFilter;

/// What a client sends, or nothing: to ask again without a condition, the
/// cache makes a request of its own.
pub(crate) struct ClientBody(Option<Received>);

struct Received {
    body: Upload,
    names: &'static NameFilter,
}

impl ClientBody {
    pub(crate) fn new(body: Upload, names: &'static NameFilter) -> Self {
        Self(Some(Received { body, names }))
    }

    pub(crate) fn empty() -> Self {
        Self(None)
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let Some(Received { body, names }) = &mut self.0 else { return Poll::Ready(None) };
        let mut frame = ready!(Pin::new(body).poll_frame(cx));
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            names.apply_to_trailers(trailers);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|received| received.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let received = self.0.as_ref();
        received.map_or(SizeHint::with_exact(0), |received| received.body.size_hint())
    }
}
