//! What arrives in parts and is read by several at once, from its beginning: the body of a
//! response, and the chunks of a function's stream.
//!
//! # The two manners
//!
//! At first it *keeps* all that came, for it is to be stored: the source runs at its own speed,
//! and a slow reader delays no other reader. Once it is known that nothing will be stored, it
//! *passes*: what all readers have read is freed, and the source waits for the slowest reader. A
//! reader that reads nothing for the stall time-out while another waits is cut off. So no reader
//! decides how much memory a stream takes.
//!
//! The state is under one lock. Wakers and chunks are woken, cloned and dropped after the lock:
//! their code is the user's.
//!
//! # Reading order
//!
//! - `mod`: what is asked of a kind of stream.
//! - `shared`: a stream that arrives, its feed and its readers.
//! - `readers`: the part of it that is under the lock.
//! - `chunks`: the stream of a function: what holds its chunks, and what a caller reads.
//! - `recording`: the value that a cache stores.
//! - `rest`: what is missing from such a value, and the flight that waits for it.
//! - `producer`: the stream that a computation returns, and what is asked of it.
//! - `error`: why a stream ended early.
//! - `model`: readers, the source and its end under a scheduler that tries many orders.

mod chunks;
mod error;
#[cfg(all(test, stampede_model))]
mod model;
mod producer;
pub(crate) mod readers;
mod recording;
pub(crate) mod rest;
pub(crate) mod shared;

pub use chunks::Chunks;
pub use error::{StreamError, StreamErrorKind};
pub use producer::Producer;
pub use recording::Recording;

/// A kind of stream: what its chunks are, and how it ends.
pub(crate) trait Medium: 'static {
    type Chunk: Send + Sync;
    type Held: Held<Self::Chunk>;
    /// What follows the chunks, for one reader.
    type Tail: Clone + Send + Sync;
    type Error: Clone + Send + Sync;

    /// How far the source may be ahead of the slowest reader once the stream passes, as
    /// [`Held::end`] counts.
    const WINDOW: u64;

    fn cut_off(why: CutOff) -> Self::Error;
}

/// Why a reader gets no more, where the source has not failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutOff {
    /// The source is gone, by a shutdown or a panic.
    Ended,
    /// The reader made no progress while others waited for it.
    Stalled,
}

/// What has arrived of a stream, from `start` to `end`.
pub(crate) trait Held<C>: Default + Send + Sync {
    fn start(&self) -> u64;
    fn end(&self) -> u64;

    /// Returns how many bytes are held.
    fn bytes(&self) -> u64;

    fn push(&mut self, chunk: C);

    /// Returns the next chunk from `at` on, if there is one, and where the one after it begins.
    fn next(&self, at: u64) -> Option<(C, u64)>;

    /// Gives up what ends before `at`. It is returned so that it is dropped without a lock.
    #[must_use = "to be dropped without the lock"]
    fn free_before(&mut self, at: u64) -> Vec<C>;
}

/// What a reader gets.
pub(crate) enum StreamPart<M: Medium> {
    Chunk(M::Chunk),
    Tail(M::Tail),
}

pub(crate) type NextPart<M> = Option<Result<StreamPart<M>, <M as Medium>::Error>>;
