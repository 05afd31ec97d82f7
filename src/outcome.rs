//! How an answer came about.

/// How an answer came about. Of a response of the HTTP layer, `CacheOutcome::of` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CacheOutcome {
    /// From the store, fresh.
    Hit,
    /// From the store, stale, while it is refreshed.
    Stale,
    /// From the store, stale, in place of a failure.
    StaleIfError,
    /// This caller led the computation, for all callers of the key. A stored response
    /// that the origin has confirmed with a 304 counts as computed too: the origin was asked.
    Computed,
    /// Another caller led the computation; this caller waited for it.
    Joined,
    /// This caller computed for itself, outside of any flight: for example because the
    /// answer may not be shared, or while the mode is not `On`.
    Alone,
    /// The cache was not asked.
    Bypass,
    /// No answer, but an error of the cache: overloaded, held, waited too long, the
    /// computation took too long, panicked, or waits for itself.
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
