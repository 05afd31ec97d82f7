//! Until when a process may use what it holds without asking the remote.

use crate::clock::Tick;

/// Until when the local copies are valid: in nanoseconds of the engine's clock, or one of the words
/// below. They are ordered: the smaller one is the more careful one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ValidUntil(u64);

impl ValidUntil {
    /// The remote was not asked yet. Without a remote this is never necessary.
    pub(crate) const UNASKED: Self = Self(u64::MAX);
    /// Without limit, while the remote is away.
    #[cfg(any(feature = "remote", feature = "admin"))]
    pub(crate) const FOR_EVER: Self = Self(u64::MAX - 1);
    /// Not yet.
    #[cfg(feature = "remote")]
    pub(crate) const NOT_YET: Self = Self(0);
    /// No more.
    pub(crate) const NO_MORE: Self = Self(1);

    #[cfg(feature = "remote")]
    pub(crate) fn at(until: Tick) -> Self {
        Self(until.as_nanos().clamp(Self::NO_MORE.0, Self::FOR_EVER.0))
    }

    pub(crate) const fn nanos(self) -> u64 {
        self.0
    }

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    #[inline]
    pub(crate) fn covers(self, now: Tick) -> bool {
        now.as_nanos() < self.0
    }
}
