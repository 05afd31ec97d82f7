//! The body of a response as a stream that several read.

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};

use crate::http::body::pieces::Pieces;
use crate::http::body::{self, BodyError, BodyErrorKind};
use crate::stream::readers::{Loose, StreamState};
use crate::stream::{CutOff, Held, Medium, StreamPart, shared};

/// The body of a response.
pub(crate) enum BodyMedium {}

impl Medium for BodyMedium {
    type Chunk = Bytes;
    type Held = Pieces;
    type Tail = HeaderMap;
    type Error = BodyError;

    const WINDOW: u64 = 64 << 10;

    fn cut_off(why: CutOff) -> BodyError {
        BodyError::new(match why {
            CutOff::Ended => BodyErrorKind::Ended,
            CutOff::Stalled => BodyErrorKind::Stalled,
        })
    }
}

pub(crate) type SharedBody = shared::FedStream<BodyMedium>;
pub(crate) type Feed = shared::StreamFeed<BodyMedium>;
pub(crate) type Reader = shared::FedReader<BodyMedium>;

impl SharedBody {
    /// Returns what has arrived, in order; nothing where its beginning is gone.
    pub(crate) fn so_far(&self) -> Vec<Bytes> {
        let all = |state: &mut StreamState<BodyMedium>| state.held.all();
        self.change(|state, _| if state.held.start() > 0 { Vec::new() } else { all(state) })
    }
}

impl Feed {
    /// Joins what has come into one piece, from which the readers go on.
    pub(crate) fn whole(&self) -> Bytes {
        let chunks = self.0.change(|state, _| state.held.all());
        // Copied even if it is one chunk: a chunk may keep a whole read
        // buffer alive, and the store would not know.
        let whole = Bytes::from(chunks.concat());
        let before = self.0.change(|state, _| state.held.replace(whole.clone()));
        drop((chunks, before));
        whole
    }
}

/// The part of a body that has arrived.
#[derive(Debug)]
pub(crate) enum Gathered {
    /// As much as was asked for; more may come.
    Enough,
    /// All of it, uncopied.
    Whole(Bytes),
    /// It failed, or is not kept.
    Lost,
}

impl Reader {
    /// Waits until so many bytes have come, or all of them. Reads none.
    ///
    /// Cancel safe.
    pub(crate) async fn gather(&self, enough: u64) -> Gathered {
        poll_fn(|cx| self.shared.change(|state, loose| self.poll_gather(state, enough, cx, loose)))
            .await
    }

    fn poll_gather(
        &self,
        state: &mut StreamState<BodyMedium>,
        enough: u64,
        cx: &Context<'_>,
        loose: &mut Loose<BodyMedium>,
    ) -> Poll<Gathered> {
        let come = state.held.end();
        match &state.end {
            _ if !state.is_kept_for(self.id) => Poll::Ready(Gathered::Lost),
            Some(Ok(())) => {
                let whole = state.held.next(0).map(|(whole, _)| whole).unwrap_or_default();
                // A body that ends is joined into one piece first.
                let is_whole = whole.len() as u64 == come;
                Poll::Ready(if is_whole { Gathered::Whole(whole) } else { Gathered::Lost })
            }
            Some(Err(_)) => Poll::Ready(Gathered::Lost),
            None if come >= enough => Poll::Ready(Gathered::Enough),
            None => {
                state.wait(self.id, cx, loose);
                Poll::Pending
            }
        }
    }

    pub(super) fn poll_frame(&mut self, cx: &Context<'_>) -> Poll<body::Next> {
        let to_frame = |part| match part {
            StreamPart::Chunk(chunk) => Frame::data(chunk),
            StreamPart::Tail(trailers) => Frame::trailers(trailers),
        };
        self.poll_part(cx).map_ok(to_frame)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.over || self.shared.look(|state| state.is_read(self.id))
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        if self.over {
            return SizeHint::with_exact(0);
        }
        self.shared.look(|state| {
            let Some(at) = state.position(self.id) else { return SizeHint::default() };
            let here = state.held.end() - at;
            let mut hint = SizeHint::new();
            match (&state.end, self.shared.declared) {
                (Some(Ok(())), _) => hint.set_exact(here),
                (_, Some(declared)) => hint.set_exact(declared.saturating_sub(at)),
                _ => hint.set_lower(here),
            }
            hint
        })
    }
}

#[cfg(test)]
mod tests;
