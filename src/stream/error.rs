//! Why a stream ended before its end.

use std::error::Error as StdError;
use std::fmt;

use crate::error::Error;

/// Why a shared stream ended early. Cheap to clone: all readers of one stream get the same error.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use futures_util::{StreamExt, stream};
/// use tower_stampede::{Recording, Stampede, StreamErrorKind};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let answers: Stampede<Recording<&str>> = Stampede::in_memory(Duration::from_secs(60));
/// let chunks = || stream::iter([Ok("Once"), Err(std::io::Error::other("the model is away"))]);
/// let mut answer = answers.entry("prompt").get_or_stream(chunks).await?;
/// assert_eq!(answer.next().await.unwrap()?, "Once");
/// let error = answer.next().await.unwrap().unwrap_err();
/// assert_eq!(error.kind(), StreamErrorKind::Inner);
/// assert!(error.inner::<std::io::Error>().is_some());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct StreamError {
    kind: StreamErrorKind,
    source: Option<Error>,
}

/// What went wrong with a shared stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StreamErrorKind {
    /// The stream of the producer has returned an error, which is its own.
    Inner,
    /// No chunk came for the `chunk_timeout` of the producer.
    ChunkTimeout,
    /// This reader made no progress for 30 seconds while another waited for it. Only a stream that
    /// is too large to be kept lets one reader wait for another.
    Stalled,
    /// The producer was cut off, by a shutdown or a panic.
    CutOff,
}

impl StreamErrorKind {
    const fn text(self) -> &'static str {
        match self {
            Self::Inner => "the stream failed",
            Self::ChunkTimeout => "the next chunk of the stream did not come in time",
            Self::Stalled => "the stream was read too slowly while others waited",
            Self::CutOff => "the stream was cut off",
        }
    }
}

impl StreamError {
    pub(crate) fn of_producer(error: &Error) -> Self {
        Self { kind: StreamErrorKind::Inner, source: Some(error.clone()) }
    }

    pub(crate) fn new(kind: StreamErrorKind) -> Self {
        Self { kind, source: None }
    }

    /// Returns what went wrong.
    #[must_use]
    pub fn kind(&self) -> StreamErrorKind {
        self.kind
    }

    /// Returns the error of the producer's stream if it is a `T`.
    #[must_use]
    pub fn inner<T: StdError + 'static>(&self) -> Option<&T> {
        self.source.as_ref()?.inner()
    }
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.text())
    }
}

impl fmt::Debug for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamError")
            .field("kind", &self.kind)
            .field("source", &self.source().map(ToString::to_string))
            .finish()
    }
}

impl StdError for StreamError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref()?.source()
    }
}
