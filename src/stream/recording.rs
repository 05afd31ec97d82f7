//! A stream as the value of a cache.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::stream::chunks::{ChunkMedium, Chunks, ChunksState, SharedChunks};
use crate::stream::shared::FedReader;
use crate::weigh::{Weigh, allocated, recognised};

/// The chunks of a stream, as the value of a cache: `Stampede<Recording<T>>`. Cheap to clone.
///
/// [`get_or_stream`](crate::EntrySelector::get_or_stream) shares one producer's stream between all
/// callers of a key while it arrives, each from the first chunk on, and stores the whole once it has
/// ended well. Chunks are `Bytes`, or any type that is `Clone + Send + Sync`.
///
/// Only whole streams are stored, here and in a remote: one that was cut, has failed or panicked, or
/// that the producer does not want kept ([`Producer::store_if`](crate::Producer::store_if)) is not. Do
/// not `put` one that still arrives under another key: a cache that does not
/// [`weigh`](crate::Builder::weigh) its recordings takes it, and if the stream fails, its readers get
/// that error.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use futures_util::{TryStreamExt, stream};
/// use tower_stampede::{Recording, Stampede};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let answers: Stampede<Recording<&str>> = Stampede::in_memory(Duration::from_secs(60));
/// let ask = || stream::iter(["Once", " upon", " a time"].map(Ok::<_, std::io::Error>));
/// let (one, two) = tokio::join!(
///     answers.entry("prompt").get_or_stream(ask),
///     answers.entry("prompt").get_or_stream(ask),
/// );
/// assert_eq!(one?.try_collect::<String>().await?, "Once upon a time");
/// assert_eq!(two?.try_collect::<String>().await?, "Once upon a time");
/// assert_eq!(answers.stats().computations, 1);
/// # Ok(()) }
/// ```
pub struct Recording<T: Send + Sync + 'static>(pub(super) Recorded<T>);

pub(super) enum Recorded<T: Send + Sync + 'static> {
    Whole {
        chunks: Arc<[Arc<T>]>,
        heap_bytes: usize,
    },
    /// With a reader for the caller whose own stream it is: that finds its beginning, whatever
    /// happens before it reads.
    Arriving(Arc<SharedChunks<T>>, Mutex<Option<FedReader<ChunkMedium<T>>>>),
}

impl<T: Send + Sync + 'static> Recording<T> {
    pub(super) fn whole(chunks: Arc<[Arc<T>]>, heap_bytes: usize) -> Self {
        Self(Recorded::Whole { chunks, heap_bytes })
    }

    pub(super) fn arriving(reader: FedReader<ChunkMedium<T>>) -> Self {
        Self(Recorded::Arriving(Arc::clone(&reader.shared), Mutex::new(Some(reader))))
    }

    /// Returns the chunks as a stream, from the first one on. Those that are there come at once.
    pub fn stream(&self) -> Chunks<T> {
        let state = match &self.0 {
            Recorded::Whole { chunks, .. } => ChunksState::Whole(Arc::clone(chunks), 0),
            Recorded::Arriving(shared, own) => {
                let own = own.lock().take();
                ChunksState::Arriving(own.unwrap_or_else(|| shared.reader()))
            }
        };
        Chunks { state }
    }

    /// Returns the chunks, unless the stream still arrives. What a cache has stored is whole.
    #[must_use]
    pub fn chunks(&self) -> Option<impl ExactSizeIterator<Item = &T>> {
        match &self.0 {
            Recorded::Whole { chunks, .. } => Some(chunks.iter().map(|chunk| &**chunk)),
            Recorded::Arriving(..) => None,
        }
    }
}

// Derived `Clone` would ask for `T: Clone`.
impl<T: Send + Sync + 'static> Clone for Recording<T> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Recorded::Whole { chunks, heap_bytes } => {
                Recorded::Whole { chunks: Arc::clone(chunks), heap_bytes: *heap_bytes }
            }
            Recorded::Arriving(shared, _) => {
                Recorded::Arriving(Arc::clone(shared), Mutex::default())
            }
        })
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Recording<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Recording");
        match &self.0 {
            Recorded::Whole { chunks, .. } => shown.field("chunks", &chunks.len()).finish(),
            Recorded::Arriving(shared, _) => {
                shown.field("come", &shared.come()).finish_non_exhaustive()
            }
        }
    }
}

/// A whole recording.
impl<T: Send + Sync + 'static> FromIterator<T> for Recording<T> {
    fn from_iter<I: IntoIterator<Item = T>>(chunks: I) -> Self {
        let weigh = recognised::<T>();
        let mut heap_bytes = 0_usize;
        let weighed = |chunk: T| {
            let heap = weigh.as_ref().map_or(0, |weigh| weigh(&chunk));
            heap_bytes = heap_bytes.saturating_add(bytes_of::<T>(heap));
            Arc::new(chunk)
        };
        let chunks = chunks.into_iter().map(weighed).collect();
        Self::whole(chunks, heap_bytes)
    }
}

/// Returns what a chunk takes that holds so many bytes on the heap.
pub(super) fn bytes_of<T>(heap: usize) -> usize {
    const POINTER: usize = size_of::<usize>();
    allocated(size_of::<T>() + 2 * POINTER).saturating_add(POINTER).saturating_add(heap)
}

/// The sum of what its chunks take: see [`Producer::weigh`](crate::Producer::weigh). One that still
/// arrives is too heavy for any cache.
impl<T: Send + Sync + 'static> Weigh for Recording<T> {
    fn heap_bytes(&self) -> usize {
        match &self.0 {
            Recorded::Whole { heap_bytes, .. } => *heap_bytes,
            Recorded::Arriving(..) => usize::MAX,
        }
    }
}

/// As a sequence of its chunks. One that still arrives is an error.
#[cfg(feature = "remote")]
impl<T: serde::Serialize + Send + Sync + 'static> serde::Serialize for Recording<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.chunks() {
            Some(chunks) => serializer.collect_seq(chunks),
            None => Err(serde::ser::Error::custom("the stream still arrives")),
        }
    }
}

#[cfg(feature = "remote")]
impl<'de, T: serde::Deserialize<'de> + Send + Sync + 'static> serde::Deserialize<'de>
    for Recording<T>
{
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A length from another process is believed no further than its bytes go: `Vec` does so.
        Vec::deserialize(deserializer).map(|chunks: Vec<T>| chunks.into_iter().collect())
    }
}
