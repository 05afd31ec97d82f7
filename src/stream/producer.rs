//! The stream that a computation returns, and what is asked of it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, poll_fn};
use futures_util::{Stream, TryStreamExt, stream};

use crate::budget::Reservation;
use crate::computed::Computed;
use crate::error::{BoxError, Error};
use crate::stream::chunks::{ChunkMedium, SharedChunks, Weighed};
use crate::stream::recording::{Recording, bytes_of};
use crate::stream::rest::{Drive, Rest, StreamFlight};
use crate::stream::shared::{StreamFeed, Turns};
use crate::stream::{Held, StreamError, StreamErrorKind};
use crate::weigh::{Weigher, recognised};

/// How long one reader may make the others wait, once a stream is not kept.
const STALL: Duration = Duration::from_secs(30);

type ChunkStream<T> = Pin<Box<dyn Stream<Item = Result<T, BoxError>> + Send>>;
type StoreIf<T> = Box<dyn FnOnce(&[Arc<T>]) -> bool + Send>;

/// A stream of chunks, and how it is shared: what the closure of
/// [`get_or_stream`](crate::EntrySelector::get_or_stream) returns. Every stream of `Result`s becomes
/// one.
///
/// # Examples
///
/// A model's answer that is stored only if the model has said that it is complete:
///
/// ```
/// use std::time::Duration;
/// use futures_util::{TryStreamExt, stream};
/// use tower_stampede::{Producer, Recording, Stampede};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let answers: Stampede<Recording<String>> = Stampede::in_memory(Duration::from_secs(60));
/// let ask = || {
///     let tokens = ["Once", " upon"].map(|token| Ok::<_, std::io::Error>(token.to_owned()));
///     Producer::new(stream::iter(tokens))
///         .chunk_timeout(Duration::from_secs(30))
///         .store_if(|tokens| tokens.last().is_some_and(|token| **token == "[DONE]"))
/// };
/// let answer: String = answers.entry("prompt").get_or_stream(ask).await?.try_collect().await?;
/// assert_eq!(answer, "Once upon");
/// assert!(answers.get("prompt").await.is_none());
/// # Ok(()) }
/// ```
#[must_use = "a producer does nothing unless a cache gets it"]
pub struct Producer<T> {
    stream: ChunkStream<T>,
    rules: Rules<T>,
}

struct Rules<T> {
    chunk_timeout: Duration,
    max_bytes: u64,
    store_if: Option<StoreIf<T>>,
    weigh: Option<Weigher<T>>,
}

impl<T: Send + Sync + 'static> Producer<T> {
    /// Takes a stream. It is polled on a task of the cache, one chunk after the other.
    pub fn new<S, E>(stream: S) -> Self
    where
        S: Stream<Item = Result<T, E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let rules = Rules {
            chunk_timeout: Duration::from_secs(30),
            max_bytes: 64 << 20,
            store_if: None,
            weigh: recognised(),
        };
        Self { stream: Box::pin(stream.map_err(Into::into)), rules }
    }

    /// Sets how long the stream may pause between two chunks. The first chunk has the cache's
    /// `compute_timeout`. Then its readers get an error, and nothing is stored. Defaults to 30
    /// seconds.
    pub fn chunk_timeout(mut self, limit: Duration) -> Self {
        self.rules.chunk_timeout = limit;
        self
    }

    /// Sets how many bytes are kept. A stream that is longer is not stored: its readers still get
    /// all of it, at the speed of the slowest of them, and callers that come later begin another
    /// one. The bytes that arrive at one time count in the cache's
    /// [`max_arriving_bytes`](crate::Builder::max_arriving_bytes) too. Defaults to 64 MiB.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.rules.max_bytes = bytes;
        self
    }

    /// Sets how many bytes a chunk holds beside its own size. Known for `Bytes`, `String`,
    /// `Vec<u8>`, `Arc<str>` and the like; otherwise 0.
    pub fn weigh(mut self, heap_bytes: impl Fn(&T) -> usize + Send + Sync + 'static) -> Self {
        self.rules.weigh = Some(Arc::new(heap_bytes));
        self
    }

    /// Sets whether a stream that has ended well is stored: asked once, with all chunks. Defaults
    /// to yes.
    pub fn store_if(mut self, complete: impl FnOnce(&[Arc<T>]) -> bool + Send + 'static) -> Self {
        self.rules.store_if = Some(Box::new(complete));
        self
    }

    /// Waits for the first chunk, and returns the stream as what a computation of the cache
    /// returns: for [`get_or_compute_with`](crate::EntrySelector::get_or_compute_with), a loader, or
    /// a value with its own lifetime and tags. The rest is produced once the cache has it.
    ///
    /// # Errors
    ///
    /// The stream's own, if it fails before its first chunk.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the stream is dropped.
    pub async fn begin(mut self) -> Result<Computed<Recording<T>>, BoxError> {
        let first = self.stream.try_next().await?;
        if first.is_none() {
            // It is over, and must not be polled again.
            self.stream = Box::pin(stream::empty());
        }
        let (shared, feed) = SharedChunks::new(None, None);
        let mut computed = Computed::plain(Recording::arriving(shared.reader()));
        let arriving = Arriving { stream: self.stream, rules: self.rules, feed };
        first.into_iter().for_each(|first| _ = arriving.push(first));
        computed.rest = Some(Rest::new(arriving));
        Ok(computed)
    }
}

impl<T, S, E> From<S> for Producer<T>
where
    T: Send + Sync + 'static,
    S: Stream<Item = Result<T, E>> + Send + 'static,
    E: Into<BoxError> + 'static,
{
    fn from(stream: S) -> Self {
        Self::new(stream)
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rules { chunk_timeout, max_bytes, .. } = &self.rules;
        f.debug_struct("Producer")
            .field("chunk_timeout", chunk_timeout)
            .field("max_bytes", max_bytes)
            .finish_non_exhaustive()
    }
}

/// A stream whose first chunk is there.
pub(crate) struct Arriving<T: Send + Sync + 'static> {
    stream: ChunkStream<T>,
    rules: Rules<T>,
    feed: StreamFeed<ChunkMedium<T>>,
}

/// How the part of a stream that is kept ends.
enum KeptEnd {
    Complete,
    Failed(Error),
    Late,
    /// There is no room to keep it.
    TooLarge,
    /// There is no reader, and the stream is of no use to the cache.
    Deserted,
}

impl<T: Send + Sync + 'static> Drive<Recording<T>> for Arriving<T> {
    fn drive(
        self: Box<Self>,
        flight: Option<Box<dyn StreamFlight<Recording<T>>>>,
        reserved: Option<Reservation>,
    ) -> BoxFuture<'static, ()> {
        Box::pin(self.run(flight, reserved))
    }
}

type Flight<T> = Option<Box<dyn StreamFlight<Recording<T>>>>;

impl<T: Send + Sync + 'static> Arriving<T> {
    fn push(&self, chunk: T) -> bool {
        let heap = self.rules.weigh.as_ref().map_or(0, |weigh| weigh(&chunk));
        let bytes = bytes_of::<T>(heap) as u64;
        self.feed.push(Weighed { chunk: Arc::new(chunk), bytes })
    }

    fn is_too_large(&self) -> bool {
        self.feed.0.look(|state| state.held.bytes()) > self.rules.max_bytes
    }

    /// Dropped at any point, it leaves no reader waiting. However the stream ends, its flight ends
    /// first: a reader that learns of the end must not find it.
    async fn run(self, flight: Flight<T>, reserved: Option<Reservation>) {
        // In this order: what is dropped first is the flight.
        let (mut arriving, mut flight) = (self, flight);
        let keeps = flight.is_some();
        let has_room = reserved.is_some_and(|reserved| arriving.feed.count_in(reserved));
        let end = match keeps && has_room && !arriving.is_too_large() {
            true => arriving.keep(&mut flight).await,
            false => KeptEnd::TooLarge,
        };
        let flight = flight.take();
        match (end, flight) {
            (KeptEnd::TooLarge, flight) => {
                if let Some(flight) = flight {
                    flight.decline().await;
                }
                arriving.pass().await;
            }
            (KeptEnd::Deserted, flight) => drop(flight),
            (end, None) => arriving.finish(end),
            (KeptEnd::Complete, Some(flight)) => {
                let (chunks, bytes) =
                    arriving.feed.0.look(|state| (state.held.all(), state.held.bytes()));
                let keeps = arriving.rules.store_if.take().is_none_or(|complete| complete(&chunks));
                let whole = Recording::whole(chunks, usize::try_from(bytes).unwrap_or(usize::MAX));
                flight.complete(whole, keeps).await;
                arriving.finish(KeptEnd::Complete);
            }
            (KeptEnd::Failed(error), Some(flight)) => {
                flight.fail(error.clone()).await;
                arriving.finish(KeptEnd::Failed(error));
            }
            (KeptEnd::Late, Some(flight)) => {
                flight.is_late().await;
                arriving.finish(KeptEnd::Late);
            }
        }
    }

    fn finish(self, end: KeptEnd) {
        match end {
            KeptEnd::Complete => self.feed.end(),
            KeptEnd::Failed(error) => self.feed.fail(StreamError::of_producer(&error)),
            KeptEnd::Late => self.feed.fail(StreamError::new(StreamErrorKind::ChunkTimeout)),
            KeptEnd::TooLarge | KeptEnd::Deserted => (),
        }
    }

    /// Reads at the stream's own speed, and keeps what comes. Without a reader it goes on only
    /// while the whole would be of use.
    async fn keep(&mut self, flight: &mut Flight<T>) -> KeptEnd {
        let mut turns = Turns::default();
        loop {
            let limit = self.rules.chunk_timeout;
            flight.iter().for_each(|flight| flight.goes_on(limit));
            let Self { stream, feed, .. } = &mut *self;
            let next = poll_fn(|cx: &mut Context<'_>| {
                // In this order: a last reader that goes after the look wakes the task.
                feed.watch(cx);
                let is_of_use = flight.as_mut().is_some_and(|flight| flight.is_of_use());
                if !is_of_use && feed.give_up() {
                    return Poll::Ready(None);
                }
                stream.as_mut().poll_next(cx).map(Some)
            });
            let has_room = match tokio::time::timeout(limit, next).await {
                Ok(Some(Some(Ok(chunk)))) => self.push(chunk),
                Ok(Some(Some(Err(error)))) => return KeptEnd::Failed(Error::of_computation(error)),
                Ok(Some(None)) => return KeptEnd::Complete,
                Ok(None) => return KeptEnd::Deserted,
                Err(_) => return KeptEnd::Late,
            };
            if !has_room || self.is_too_large() {
                return KeptEnd::TooLarge;
            }
            turns.let_others_run().await;
        }
    }

    /// Reads at the speed of the slowest reader, as long as there is one.
    async fn pass(mut self) {
        self.feed.pass();
        let (mut turns, limit) = (Turns::default(), self.rules.chunk_timeout);
        let mut stalls = Box::pin(tokio::time::sleep(STALL));
        loop {
            let Self { stream, feed, .. } = &mut self;
            // It runs only while the stream is asked.
            let mut late = None;
            let next = poll_fn(|cx| {
                let poll = |cx: &mut Context<'_>| {
                    if let Poll::Ready(next) = stream.as_mut().poll_next(cx) {
                        return Poll::Ready(Ok(next));
                    }
                    let late = late.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
                    late.as_mut().poll(cx).map(Err)
                };
                feed.poll_gated(STALL, stalls.as_mut(), cx, poll)
            });
            match next.await {
                Some(Ok(Some(Ok(chunk)))) => _ = self.push(chunk),
                Some(Ok(Some(Err(error)))) => {
                    return self.finish(KeptEnd::Failed(Error::of_computation(error)));
                }
                Some(Ok(None)) => return self.finish(KeptEnd::Complete),
                Some(Err(())) => return self.finish(KeptEnd::Late),
                None => return,
            }
            turns.let_others_run().await;
        }
    }
}
