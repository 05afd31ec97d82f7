//! The body of a request as it goes through the cache.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tower_stampede::{RequestBody, RequestEnd};

use crate::connection::{Upload, UploadError};
use crate::names::NameFilter;

/// What a client sends, or what the cache has read of it: a QUERY is keyed by its body. To ask
/// again without a condition, the cache makes a request of its own.
pub(crate) enum ClientBody {
    Received(Received),
    Read(Box<RequestBody<Self>>),
    /// That of a request of no client.
    None,
}

pub(crate) struct Received {
    body: Upload,
    names: &'static NameFilter,
    /// What the cache reads where a write ends in an unknown way.
    end: RequestEnd,
}

impl ClientBody {
    pub(crate) fn new(body: Upload, names: &'static NameFilter) -> Self {
        Self::Received(Received { body, names, end: RequestEnd::new() })
    }

    /// Returns what says whether the body has been read to its end, unless it is empty.
    pub(crate) fn end(&self) -> Option<RequestEnd> {
        match self {
            Self::Received(it) if !it.body.is_end_stream() => Some(it.end.clone()),
            Self::Received(_) | Self::Read(_) | Self::None => None,
        }
    }

    pub(crate) fn of_read(body: RequestBody<Self>) -> Self {
        Self::Read(Box::new(body))
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let Received { body, names, end } = match &mut *self {
            Self::Received(received) => received,
            Self::Read(body) => return Pin::new(body).poll_frame(cx),
            Self::None => return Poll::Ready(None),
        };
        let mut frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        if frame.as_ref().is_none_or(|frame| frame.is_ok() && body.is_end_stream()) {
            end.note();
        }
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            names.apply_to_trailers(trailers);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Received(received) => received.body.is_end_stream(),
            Self::Read(body) => body.is_end_stream(),
            Self::None => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Received(received) => received.body.size_hint(),
            Self::Read(body) => body.size_hint(),
            Self::None => SizeHint::with_exact(0),
        }
    }
}
