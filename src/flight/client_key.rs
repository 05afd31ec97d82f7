//! Which client a computation is for.

use std::hash::{BuildHasher, Hash};
use std::num::NonZeroU64;
use std::sync::LazyLock;

/// The client that a computation is for: a hash under a key of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClientKey(pub(super) NonZeroU64);

impl ClientKey {
    pub(crate) const fn get(self) -> u64 {
        self.0.get()
    }

    /// No client can choose a name that stands for another client: the hash has a secret key.
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "HTTP names clients"))]
    pub(crate) fn of(name: impl Hash) -> Self {
        static SECRET: LazyLock<std::hash::RandomState> = LazyLock::new(Default::default);
        Self(NonZeroU64::new(SECRET.hash_one(name)).unwrap_or(NonZeroU64::MIN))
    }
}
