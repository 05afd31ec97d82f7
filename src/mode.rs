//! Whether the cache takes part.

/// Whether the cache takes part; see [`Stampede::set_mode`](crate::Stampede::set_mode).
///
/// In `Observe` and `Off` every new caller computes for itself at once. No bound and no
/// time-out of the cache applies to it: not `max_computations`, `max_waiters`,
/// `wait_timeout`, `compute_timeout` or `hold`. No stale value takes the place of a failure. The
/// service gets the traffic that it would get
/// without a cache. The remote is asked for no value and no lease. Invalidations take
/// effect in every mode, here and in the remote, so switching back on is safe. Callers that
/// wait at the switch go on waiting, at most until their `wait_timeout`; then they compute for
/// themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Mode {
    /// Answers come from the cache where they may.
    #[default]
    On,
    /// Every caller computes for itself. The cache answers no caller. It stores
    /// what one caller of a key at a time computes within `compute_timeout`, and counts what it could have
    /// answered (`Stats::would_have_answered`): to see what a cache would do.
    Observe,
    /// Every caller computes for itself, and nothing is stored: the kill switch. A
    /// `put` acts as an invalidation.
    Off,
}

impl Mode {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Observe => "observe",
            Self::Off => "off",
        }
    }

    #[inline]
    pub(crate) fn from_u8(code: u8) -> Self {
        match code {
            0 => Self::On,
            1 => Self::Observe,
            _ => Self::Off,
        }
    }
}
