//! Why the origin gave no response.

use std::error::Error;
use std::fmt;
use std::io;

use http::StatusCode;
use tower_stampede::BoxError;

use crate::connection::UploadError;
use crate::outgoing::BodyError;

/// Why the origin gave no response.
#[derive(Debug)]
pub(crate) struct OriginError {
    kind: Kind,
    source: Option<BoxError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No connection: refused, unreachable, unknown, or not in time.
    Connect,
    /// The connection ended before the header section did.
    BrokenOff,
    /// It was silent for too long.
    Silent,
    /// What it sent is no response, or none that we understand.
    Malformed,
    /// The client broke off its own request.
    Client,
    /// The client sent its request too slowly.
    SlowClient,
}

impl OriginError {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, source: None }
    }

    pub(crate) fn connect(error: io::Error) -> Self {
        Self { kind: Kind::Connect, source: Some(error.into()) }
    }

    pub(crate) fn of_connection(error: hyper::Error) -> Self {
        Self { kind: kind_of(&error), source: Some(error.into()) }
    }

    /// Returns whether the origin could not be reached (RFC 9111, 4.2.4): then
    /// a stale response may be served in its place.
    pub(crate) fn is_disconnected(&self) -> bool {
        matches!(self.kind, Kind::Connect | Kind::BrokenOff)
    }

    /// Returns whether the origin has received nothing of the request.
    pub(crate) fn is_unsent(&self) -> bool {
        self.kind == Kind::Connect
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self.kind {
            Kind::Connect | Kind::BrokenOff | Kind::Malformed => StatusCode::BAD_GATEWAY,
            Kind::Silent => StatusCode::GATEWAY_TIMEOUT,
            Kind::Client => StatusCode::BAD_REQUEST,
            Kind::SlowClient => StatusCode::REQUEST_TIMEOUT,
        }
    }

    /// Returns the word for it in `Cache-Status`.
    pub(crate) fn detail(&self) -> &'static str {
        match self.kind {
            Kind::Connect => "not-reached",
            Kind::BrokenOff => "broken-off",
            Kind::Silent => "origin-timeout",
            Kind::Malformed => "malformed",
            Kind::Client => "client",
            Kind::SlowClient => "slow-client",
        }
    }
}

fn kind_of(error: &(dyn Error + 'static)) -> Kind {
    let mut cause = Some(error);
    while let Some(error) = cause {
        match error.downcast_ref() {
            Some(BodyError::Client(UploadError::TooSlow)) => return Kind::SlowClient,
            Some(_) => return Kind::Client,
            None => {}
        }
        if error.is::<io::Error>() {
            return Kind::BrokenOff;
        }
        if let Some(error) = error.downcast_ref::<hyper::Error>()
            && (error.is_incomplete_message() || error.is_closed() || error.is_canceled())
        {
            return Kind::BrokenOff;
        }
        cause = error.source();
    }
    Kind::Malformed
}

impl fmt::Display for OriginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Connect => "the origin cannot be reached",
            Kind::BrokenOff => "the origin broke off before its response began",
            Kind::Silent => "the origin did not answer in time",
            Kind::Malformed => "the origin's response makes no sense",
            Kind::Client => "the request ended early",
            Kind::SlowClient => "the request arrives too slowly",
        })
    }
}

impl Error for OriginError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}
