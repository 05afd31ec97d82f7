//! Whether the cache takes part.

/// Whether the cache takes part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Answers come from the cache where they may.
    #[default]
    On,
    /// Every caller computes for itself. The cache is filled and counts what
    /// it would have done, and answers nobody: for the day somebody doubts it.
    Observe,
    /// Every caller computes for itself, and nothing is stored.
    /// Invalidations still take effect, so switching back on is safe.
    Off,
}

impl Mode {
    #[inline]
    pub(crate) fn from_u8(code: u8) -> Self {
        match code {
            0 => Self::On,
            1 => Self::Observe,
            _ => Self::Off,
        }
    }
}
