//! Why a body ended before its end.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::error::BoxError;

/// Why a body ended early. Cheap to clone: all readers of one body get
/// the same error.
///
/// # Examples
///
/// ```
/// use bytes::Bytes;
/// use futures_util::stream;
/// use http_body::Frame;
/// use http_body_util::{BodyExt, StreamBody};
/// use tower::ServiceExt;
/// use tower_layer::Layer;
/// use tower_stampede::{BodyErrorKind, Stampede};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let origin = tower::service_fn(|_: http::Request<String>| async {
///     let frames = [Ok(Frame::data(Bytes::from("re"))), Err(std::io::Error::other("reset"))];
///     Ok::<_, std::io::Error>(http::Response::new(StreamBody::new(stream::iter(frames))))
/// });
/// let cache = Stampede::in_memory(std::time::Duration::from_secs(60));
/// let request = http::Request::new(String::new());
/// let response = cache.http_layer().layer(origin).oneshot(request).await.unwrap();
/// let error = response.into_body().collect().await.unwrap_err();
/// assert_eq!(error.kind(), BodyErrorKind::Inner);
/// assert!(error.inner::<std::io::Error>().is_some());
/// # }
/// ```
#[derive(Clone)]
pub struct BodyError {
    kind: BodyErrorKind,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// What went wrong with a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BodyErrorKind {
    /// The body of the inner service failed; the error is its own.
    Inner,
    /// The body was shorter or longer than its declared length.
    BrokenOff,
    /// This reader made no progress for `stall_timeout` while another waited
    /// for it.
    Stalled,
    /// The computation was cut off, by a shutdown or a panic.
    Ended,
}

impl BodyErrorKind {
    const fn text(self) -> &'static str {
        match self {
            Self::Inner => "the service's body failed",
            Self::BrokenOff => "the body has another length than declared",
            Self::Stalled => "the body was read too slowly while others waited",
            Self::Ended => "the body was cut off",
        }
    }
}

impl BodyError {
    pub(super) fn of_service(error: impl Into<BoxError>) -> Self {
        Self { kind: BodyErrorKind::Inner, source: Some(Arc::from(error.into())) }
    }

    pub(crate) fn new(kind: BodyErrorKind) -> Self {
        Self { kind, source: None }
    }

    /// Returns what went wrong.
    #[must_use]
    pub fn kind(&self) -> BodyErrorKind {
        self.kind
    }

    /// Returns the error of the service's body if it is a `T`.
    #[must_use]
    pub fn inner<T: StdError + 'static>(&self) -> Option<&T> {
        self.source.as_ref()?.downcast_ref()
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().text())
    }
}

impl fmt::Debug for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyError")
            .field("kind", &self.kind())
            .field("source", &self.source().map(ToString::to_string))
            .finish()
    }
}

impl StdError for BodyError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&**self.source.as_ref()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_services_own_error_is_the_source_and_the_kinds_have_texts() {
        let error = BodyError::of_service(std::io::Error::other("reset"));
        assert_eq!(error.to_string(), "the service's body failed");
        assert_eq!(error.source().unwrap().to_string(), "reset");
        assert!(error.inner::<std::io::Error>().is_some());
        assert!(error.inner::<fmt::Error>().is_none());
        for kind in [BodyErrorKind::BrokenOff, BodyErrorKind::Stalled, BodyErrorKind::Ended] {
            let error = BodyError::new(kind);
            assert_eq!((error.kind(), error.to_string().as_str()), (kind, kind.text()));
            assert!(error.source().is_none());
        }
    }
}
