//! Our own responses, in place of a response that the cache could not get.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Response, StatusCode};

use crate::error::{Error, ErrorKind};

/// Makes our own response.
pub(super) type Make<'a> = &'a dyn Fn(&Refusal) -> Response<Bytes>;

/// Why a client gets a response of the cache in place of the service's; see
/// [`HttpLayer::on_refusal`](crate::HttpLayer::on_refusal).
#[derive(Clone, Debug)]
pub struct Refusal {
    error: Error,
}

impl Refusal {
    pub(super) fn new(error: Error) -> Self {
        Self { error }
    }

    /// Returns what went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// Returns the status: 502 for a service that failed, its own 408, 500, 502,
    /// 503 or 504, 504 for a time-out and where the stored response must be
    /// validated (RFC 9111, 5.2.2.2), 500 for a panic and for a service that waits
    /// for itself, and 503 where the cache refuses.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match (self.error.kind(), self.error.inner()) {
            (ErrorKind::ComputeTimeout, _) | (_, Some(OriginFailure::MustRevalidate)) => {
                StatusCode::GATEWAY_TIMEOUT
            }
            (ErrorKind::Inner, Some(OriginFailure::Status(status))) => *status,
            (ErrorKind::Inner, _) => StatusCode::BAD_GATEWAY,
            (ErrorKind::Panicked | ErrorKind::Cycle, _) => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns after how long asking again makes sense.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.error.retry_after().unwrap_or(Duration::from_secs(1))
    }

    pub(super) fn reason(&self) -> RefusalReason {
        match self.error.kind() {
            _ if self.error.inner() == Some(&OriginFailure::MustRevalidate) => {
                RefusalReason::MustRevalidate
            }
            ErrorKind::Inner => RefusalReason::Failed,
            ErrorKind::ComputeTimeout => RefusalReason::ComputeTimeout,
            ErrorKind::Panicked => RefusalReason::Panicked,
            ErrorKind::Overloaded => RefusalReason::Overloaded,
            ErrorKind::Held => RefusalReason::Held,
            ErrorKind::WaitTimeout => RefusalReason::WaitTimeout,
            ErrorKind::ShutDown => RefusalReason::ShutDown,
            ErrorKind::Cycle => RefusalReason::Cycle,
        }
    }

    /// Returns whether the service was asked, by this client or by one it
    /// waited for.
    pub(super) fn was_forwarded(&self) -> bool {
        use ErrorKind::{ComputeTimeout, Cycle, Inner, Panicked, WaitTimeout};
        matches!(self.error.kind(), Inner | ComputeTimeout | Panicked | WaitTimeout | Cycle)
    }

    /// Makes the response, with `Retry-After` and `Cache-Control: no-store`.
    pub(super) fn response(&self, make: Option<Make<'_>>) -> Response<Bytes> {
        let mut response = make.map_or_else(|| self.plain(), |make| make(self));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        let secs = self.retry_after().as_secs_f64().ceil() as u64;
        headers.insert(header::RETRY_AFTER, HeaderValue::from(secs.max(1)));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    fn plain(&self) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from(format!("{}\n", self.error)));
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, text);
        response
    }
}

words! {
    /// Why there is no response of the service to hand over, as a detail of `Cache-Status`.
    pub(crate) enum RefusalReason {
        Failed = "failed",
        ComputeTimeout = "compute-timeout",
        Panicked = "panicked",
        MustRevalidate = "must-revalidate",
        OnlyIfCached = "only-if-cached",
        Overloaded = "overloaded",
        Held = "held",
        WaitTimeout = "wait-timeout",
        ShutDown = "shut-down",
        Cycle = "cycle",
    }
}

/// Why the service has given no response to hand over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OriginFailure {
    /// The status of a failed response, as waiters learn it: nothing else of it.
    Status(StatusCode),
    /// Stands for an error of the inner service, which only its own caller gets.
    Transport,
    /// Stands for an error that says the service was not reached, or broke off
    /// before its header section ended.
    Disconnected,
    /// The service is out of reach, and the stored response must not be served stale.
    MustRevalidate,
}

impl fmt::Display for OriginFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Status(status) => return write!(f, "the service answered {status}"),
            Self::Transport => "the service failed",
            Self::Disconnected => "the service cannot be reached",
            Self::MustRevalidate => {
                "the service cannot be reached, and what is stored must be validated"
            }
        })
    }
}

impl std::error::Error for OriginFailure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_failure_has_its_status() {
        let origin = OriginFailure::Status(StatusCode::BAD_GATEWAY);
        for (error, status) in [
            (Error::inner_error(OriginFailure::Transport), 502),
            (Error::inner_error(origin), 502),
            (Error::inner_error(OriginFailure::Status(StatusCode::INTERNAL_SERVER_ERROR)), 500),
            (Error::inner_error(OriginFailure::MustRevalidate), 504),
            (Error::new(ErrorKind::ComputeTimeout), 504),
            (Error::new(ErrorKind::Panicked), 500),
            (Error::circular(&"k".into()), 500),
            (Error::new(ErrorKind::Overloaded), 503),
            (Error::new(ErrorKind::Held), 503),
            (Error::new(ErrorKind::WaitTimeout), 503),
        ] {
            assert_eq!(Refusal::new(error.clone()).status(), status, "{error:?}");
        }
    }

    #[test]
    fn a_refusal_says_when_to_come_back_and_is_not_stored_downstream() {
        let error = Error::retry_in(ErrorKind::Held, Duration::from_millis(1500));
        let response = Refusal::new(error).response(None);
        assert_eq!(response.headers()["retry-after"], "2");
        assert_eq!(response.headers()["cache-control"], "no-store");
    }
}
