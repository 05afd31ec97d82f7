//! Why a remote did not do what it was asked.

use std::error::Error as StdError;
use std::fmt;

use crate::error::BoxError;

/// Why a call to a remote failed. A request never fails because of it.
#[derive(Debug)]
pub struct RemoteError {
    kind: RemoteErrorKind,
    source: Option<BoxError>,
}

/// What was wrong with a remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemoteErrorKind {
    /// No answer within the call's deadline.
    Timeout,
    /// No connection, or it broke.
    Connection,
    /// The server takes no writes: a replica.
    ReadOnly,
    /// The server is out of memory.
    OutOfMemory,
    /// Wrong password, or a right is missing.
    Denied,
    /// The server is there and not ready: loading, busy, cluster down.
    Unavailable,
    /// The keys are on their way from one server of a cluster to another (`TRYAGAIN`): it says
    /// nothing of the health of either.
    TryAgain,
    /// A reply that makes no sense, or any other refusal.
    Protocol,
}

impl RemoteErrorKind {
    #[cfg(test)]
    pub(crate) const ALL: &[Self] = &[
        Self::Timeout,
        Self::Connection,
        Self::ReadOnly,
        Self::OutOfMemory,
        Self::Denied,
        Self::Unavailable,
        Self::TryAgain,
        Self::Protocol,
    ];

    /// Returns the name that metrics use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Connection => "connection",
            Self::ReadOnly => "read_only",
            Self::OutOfMemory => "out_of_memory",
            Self::Denied => "denied",
            Self::Unavailable => "unavailable",
            Self::TryAgain => "try_again",
            Self::Protocol => "protocol",
        }
    }

    /// Returns whether a call that fails like this says nothing of the health of the server.
    #[cfg(feature = "remote")]
    pub(crate) const fn says_nothing_of_health(self) -> bool {
        matches!(self, Self::TryAgain)
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Timeout => "no answer in time",
            Self::Connection => "no connection",
            Self::ReadOnly => "the server takes no writes",
            Self::OutOfMemory => "the server is out of memory",
            Self::Denied => "the server refuses this user",
            Self::Unavailable => "the server is not ready",
            Self::TryAgain => "the keys are on their way to another server",
            Self::Protocol => "the server's reply makes no sense",
        }
    }
}

impl RemoteError {
    /// Makes an error without a cause of its own.
    #[must_use]
    pub const fn new(kind: RemoteErrorKind) -> Self {
        Self { kind, source: None }
    }

    /// Makes an error that keeps its cause.
    #[must_use]
    pub fn caused(kind: RemoteErrorKind, source: impl Into<BoxError>) -> Self {
        Self { kind, source: Some(source.into()) }
    }

    /// Returns what was wrong.
    #[must_use]
    pub const fn kind(&self) -> RemoteErrorKind {
        self.kind
    }
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.text())
    }
}

impl StdError for RemoteError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_error_says_what_is_wrong_and_keeps_its_cause() {
        let cause = std::io::Error::other("cut");
        let error = RemoteError::caused(RemoteErrorKind::Connection, cause);
        assert_eq!(error.to_string(), "no connection");
        assert_eq!(error.source().unwrap().to_string(), "cut");
        assert!(RemoteError::new(RemoteErrorKind::Timeout).source().is_none());
    }
}
