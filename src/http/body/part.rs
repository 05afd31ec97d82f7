//! A part of a body that arrives.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::http::body::Next;
use crate::http::body::shared::Reader;

/// Reads some of the bytes of a body, and nothing after them.
pub(crate) struct PartReader {
    reader: Reader,
    /// Bytes before the part.
    skip: u64,
    /// Bytes of the part that are still to come.
    left: u64,
}

impl PartReader {
    pub(super) fn new(reader: Reader, skip: u64, left: u64) -> Self {
        Self { reader, skip, left }
    }

    pub(super) fn poll_frame(&mut self, cx: &Context<'_>) -> Poll<Next> {
        while self.left > 0 {
            let Some(frame) = ready!(self.reader.poll_frame(cx)?) else { break };
            // Trailers belong to the whole.
            let Ok(chunk) = frame.into_data() else { break };
            let chunk = self.cut(chunk);
            if !chunk.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
        }
        Poll::Ready(None)
    }

    fn cut(&mut self, mut chunk: Bytes) -> Bytes {
        let before = at_most(self.skip, &chunk);
        let mut rest = chunk.split_off(before);
        rest.truncate(at_most(self.left, &rest));
        self.skip -= before as u64;
        self.left -= rest.len() as u64;
        rest
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

fn at_most(n: u64, chunk: &Bytes) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX).min(chunk.len())
}
