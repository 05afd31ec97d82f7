//! How an answer came about.

/// How an answer came about; also the response extension of the HTTP layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CacheOutcome {
    /// From the store, fresh.
    Hit,
    /// From the store, stale, while it is refreshed in the background.
    Stale,
    /// From the store, stale, in place of a failure.
    StaleIfError,
    /// This caller computed, for everybody.
    Computed,
    /// Another caller computed; this one waited for it.
    Joined,
    /// This caller computed for itself: the answer may not be shared.
    Alone,
    /// The cache was not asked.
    Bypass,
    /// No answer, but a refusal of ours: overloaded, held, waited too long.
    Refused,
}

impl CacheOutcome {
    pub(crate) const ALL: [Self; 8] = [
        Self::Hit,
        Self::Stale,
        Self::StaleIfError,
        Self::Computed,
        Self::Joined,
        Self::Alone,
        Self::Bypass,
        Self::Refused,
    ];

    /// Returns the word used for it in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Stale => "stale",
            Self::StaleIfError => "stale_if_error",
            Self::Computed => "computed",
            Self::Joined => "joined",
            Self::Alone => "alone",
            Self::Bypass => "bypass",
            Self::Refused => "refused",
        }
    }
}
