//! Why a response is not stored. The words are details of `Cache-Status`.

use http::StatusCode;

words! {
    pub(crate) enum DeclineReason {
        /// Only a GET fills.
        Method = "method",
        Status = "status",
        Unreadable = "unreadable-cache-control",
        NoStore = "no-store",
        Private = "private",
        NoCache = "no-cache",
        MustUnderstand = "must-understand",
        VaryAny = "vary-any",
        SetCookie = "set-cookie",
        EventStream = "event-stream",
        TooLarge = "too-large",
        HeadersTooLarge = "headers-too-large",
        /// Its lengths contradict each other.
        Framing = "framing",
        /// No source states a lifetime.
        NoFreshness = "no-freshness",
        /// The request carried credentials, and nothing permits to share.
        Credentials = "credentials",
        /// The response to a POST is not one to a GET (RFC 9110, 9.3.3).
        OtherResource = "other-resource",
        Trailers = "trailers",
        /// Its body did not arrive in time.
        Slow = "slow",
        /// Bodies that arrive take as many bytes as they may.
        NoRoom = "no-room",
        /// It has more tags than an entry may have.
        TooManyTags = "too-many-tags",
        /// Its body ended before its declared length, or after.
        BrokenOff = "broken-off",
        /// It is coded by what its client refuses (RFC 9110, 12.5.3).
        Coding = "coding",
        /// A layer of the same handle further in has other rules.
        Nested = "nested",
    }
}

impl DeclineReason {
    /// Returns whether the next response will hardly be storable either.
    ///
    /// An error and a lack of room concern the moment, credentials and method one request, a
    /// partial response one that asked for it.
    pub(crate) fn marks_uncacheable(self, status: StatusCode) -> bool {
        let concerns_one = matches!(
            self,
            Self::Method
                | Self::Status
                | Self::Credentials
                | Self::OtherResource
                | Self::BrokenOff
                | Self::Coding
                | Self::NoRoom
        );
        let is_error = status.is_client_error() || status.is_server_error();
        !concerns_one && (!is_error || self.concerns_target(status))
    }

    /// Returns whether an error is not shared because of what its URI is: what the server has
    /// not got there varies by everything, or has a long text. That the text is `no-store` or
    /// `private` can be the fault of one request.
    pub(crate) fn concerns_target(self, status: StatusCode) -> bool {
        is_of_target(status) && matches!(self, Self::VaryAny | Self::TooLarge)
    }
}

/// Returns whether the answer to a refresh, which is not stored, ends the response that it was to
/// replace: the service says that there is no such page any more, or that no cache may have it.
/// "Log in", "forbidden" and a temporary redirect say nothing of the page.
pub(crate) fn ends_refreshed(status: StatusCode, why: DeclineReason) -> bool {
    match status.as_u16() {
        200..300 => {
            matches!(why, DeclineReason::NoStore | DeclineReason::Private | DeclineReason::NoCache)
        }
        451 => true,
        _ => is_gone(status),
    }
}

/// Statuses that end a wave as a failure (RFC 5861, 4).
///
/// 408 is not in the RFC's list. Here no client is to blame for it: the body of a request is read
/// before the service is asked. Servers and layers write it where 504 is meant, for a handler
/// that took too long: tower-http's `TimeoutLayer` by default.
pub(crate) fn is_failure(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 500 | 502 | 503 | 504)
}

/// Returns whether a page is not at its URI any more, for all clients.
pub(crate) fn is_gone(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 308 | 404 | 410)
}

/// Returns whether an error concerns the URI, not one request for it: caches may store it
/// without a lifetime from the origin (RFC 9110, 15.1).
pub(crate) fn is_of_target(status: StatusCode) -> bool {
    matches!(status.as_u16(), 404 | 405 | 410 | 414)
}

words! {
    /// Why a response that may be stored is not stored.
    pub(crate) enum UnstoredReason {
        /// It lived no longer than it took to arrive; clients that waited have it, too.
        Expired = "expired",
        /// It was invalidated while it arrived, or the cache was switched off.
        Invalidated = "invalidated",
        /// The store has one that was asked for later, or it weighs too much.
        Superseded = "superseded",
        /// It is a stream that has ended, and is not complete by the layer's rule.
        Incomplete = "incomplete",
        /// It answers a HEAD, and has no body.
        Method = "method",
    }
}
