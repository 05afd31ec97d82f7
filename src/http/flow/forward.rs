//! Why the service was asked, and what it answered, as `Cache-Status` says it.

use http::StatusCode;

/// Why the service is asked, in RFC 9211's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forward {
    UriMiss,
    VaryMiss,
    Stale,
    /// The stored response may not answer this request.
    Request,
}

impl Forward {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::UriMiss => "uri-miss",
            Self::VaryMiss => "vary-miss",
            Self::Stale => "stale",
            Self::Request => "request",
        }
    }
}

/// What the service answered, where that is not the status of the response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForwardStatus(pub(super) StatusCode);
