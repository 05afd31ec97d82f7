//! The chunks of a function's stream: what holds them, and what a caller reads.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::Stream;

use crate::stream::shared::{FedReader, FedStream};
use crate::stream::{CutOff, Held, Medium, StreamError, StreamErrorKind, StreamPart};

/// A chunk, and how many bytes it counts with. Readers share it: the code of the user's `Clone`
/// runs without the lock.
pub(crate) struct Weighed<T> {
    pub(crate) chunk: Arc<T>,
    pub(crate) bytes: u64,
}

// Derived `Clone` would ask for `T: Clone`.
impl<T> Clone for Weighed<T> {
    fn clone(&self) -> Self {
        Self { chunk: Arc::clone(&self.chunk), bytes: self.bytes }
    }
}

/// The chunks of a function's stream, each of a type of the user's.
pub(crate) struct ChunkMedium<T>(PhantomData<T>);

impl<T: Send + Sync + 'static> Medium for ChunkMedium<T> {
    type Chunk = Weighed<T>;
    type Held = ChunkLine<T>;
    type Tail = ();
    type Error = StreamError;

    const WINDOW: u64 = 64;

    fn cut_off(why: CutOff) -> StreamError {
        StreamError::new(match why {
            CutOff::Ended => StreamErrorKind::CutOff,
            CutOff::Stalled => StreamErrorKind::Stalled,
        })
    }
}

pub(crate) type SharedChunks<T> = FedStream<ChunkMedium<T>>;

/// Chunks in their order; counted one by one.
pub(crate) struct ChunkLine<T> {
    start: u64,
    line: VecDeque<Weighed<T>>,
    bytes: u64,
}

impl<T> Default for ChunkLine<T> {
    fn default() -> Self {
        Self { start: 0, line: VecDeque::new(), bytes: 0 }
    }
}

impl<T> ChunkLine<T> {
    /// Returns everything there is, in order.
    pub(super) fn all(&self) -> Arc<[Arc<T>]> {
        self.line.iter().map(|held| Arc::clone(&held.chunk)).collect()
    }
}

impl<T: Send + Sync> Held<Weighed<T>> for ChunkLine<T> {
    fn start(&self) -> u64 {
        self.start
    }

    fn end(&self) -> u64 {
        self.start + self.line.len() as u64
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn push(&mut self, chunk: Weighed<T>) {
        self.bytes = self.bytes.saturating_add(chunk.bytes);
        self.line.push_back(chunk);
    }

    fn next(&self, at: u64) -> Option<(Weighed<T>, u64)> {
        let place = usize::try_from(at.checked_sub(self.start)?).ok()?;
        Some((self.line.get(place)?.clone(), at + 1))
    }

    fn free_before(&mut self, at: u64) -> Vec<Weighed<T>> {
        let over = at.saturating_sub(self.start).min(self.line.len() as u64);
        self.start += over;
        self.line.drain(..over as usize).collect()
    }
}

/// The chunks of a shared stream, from the first one on, of the one producer that all its readers share: what
/// [`EntrySelector::get_or_stream`](crate::EntrySelector::get_or_stream) returns.
///
/// A `Stream` of clones of the chunks. A stream that has failed, or was cut
/// off, ends with one error; what came before it was produced. It wakes its task as soon as there is
/// a chunk. Dropped, it frees its share, and the producer goes on for the others and for the cache.
///
/// # Examples
///
/// See [`Recording`](crate::Recording).
#[must_use = "a stream does nothing unless it is polled"]
pub struct Chunks<T: Send + Sync + 'static> {
    pub(super) state: ChunksState<T>,
}

pub(super) enum ChunksState<T: Send + Sync + 'static> {
    Whole(Arc<[Arc<T>]>, usize),
    Arriving(FedReader<ChunkMedium<T>>),
}

impl<T: Send + Sync + 'static> Chunks<T> {
    /// Returns whether its beginning is gone: the stream was too large to be kept, and this reader
    /// came late.
    pub(crate) fn is_late(&self) -> bool {
        matches!(&self.state, ChunksState::Arriving(reader) if reader.id == u64::MAX)
    }
}

impl<T: Clone + Send + Sync + 'static> Stream for Chunks<T> {
    type Item = Result<T, StreamError>;

    /// Polls for the next chunk, or the one error that ends the stream.
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let chunk = match &mut self.state {
            ChunksState::Whole(chunks, next) => {
                let chunk = chunks.get(*next).cloned();
                *next += usize::from(chunk.is_some());
                chunk
            }
            ChunksState::Arriving(reader) => match ready!(reader.poll_part(cx)) {
                Some(Ok(StreamPart::Chunk(held))) => Some(held.chunk),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(StreamPart::Tail(()))) | None => None,
            },
        };
        Poll::Ready(chunk.map(|chunk| Ok(T::clone(&chunk))))
    }

    /// Exact once the stream is whole.
    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.state {
            ChunksState::Whole(chunks, next) => {
                let left = chunks.len() - next;
                (left, Some(left))
            }
            ChunksState::Arriving(_) => (0, None),
        }
    }
}

impl<T: Send + Sync + 'static> Unpin for Chunks<T> {}

impl<T: Send + Sync + 'static> fmt::Debug for Chunks<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_whole = matches!(self.state, ChunksState::Whole(..));
        f.debug_struct("Chunks").field("is_whole", &is_whole).finish_non_exhaustive()
    }
}
