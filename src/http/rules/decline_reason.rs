//! Why a response is not stored.

use http::StatusCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DeclineReason {
    /// Only a GET fills.
    Method,
    Status,
    Unreadable,
    NoStore,
    Private,
    NoCache,
    MustUnderstand,
    VaryAny,
    SetCookie,
    EventStream,
    TooLarge,
    HeadersTooLarge,
    /// Its lengths contradict each other.
    Framing,
    /// No source states a lifetime.
    NoFreshness,
    /// The request carried credentials, and nothing permits to share.
    Credentials,
    /// The response to a POST is not one to a GET (RFC 9110, 9.3.3).
    OtherResource,
    Trailers,
    /// Its body did not arrive in time.
    Slow,
    /// Bodies that arrive take as many bytes as they may.
    NoRoom,
    /// It has more tags than an entry may have.
    TooManyTags,
    /// Its body ended before its declared length, or after.
    BrokenOff,
    /// It comes from behind a layer of the same handle with other rules.
    Nested,
}

impl DeclineReason {
    /// Returns the refusal as a metric's label or a detail of `Cache-Status`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::Status => "status",
            Self::Unreadable => "unreadable-cache-control",
            Self::NoStore => "no-store",
            Self::Private => "private",
            Self::NoCache => "no-cache",
            Self::MustUnderstand => "must-understand",
            Self::VaryAny => "vary-any",
            Self::SetCookie => "set-cookie",
            Self::EventStream => "event-stream",
            Self::TooLarge => "too-large",
            Self::HeadersTooLarge => "headers-too-large",
            Self::Framing => "framing",
            Self::NoFreshness => "no-freshness",
            Self::Credentials => "credentials",
            Self::OtherResource => "other-resource",
            Self::Trailers => "trailers",
            Self::Slow => "slow",
            Self::NoRoom => "no-room",
            Self::TooManyTags => "too-many-tags",
            Self::BrokenOff => "broken-off",
            Self::Nested => "nested",
        }
    }

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
                | Self::NoRoom
        );
        !concerns_one && !status.is_client_error() && !status.is_server_error()
    }
}
