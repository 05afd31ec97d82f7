//! The shards of the server, and what goes wrong with one of them.

use std::collections::HashMap;
use std::time::Duration;

use crate::key::Key;
use crate::remote::{RemoteErrorKind, Shard};

/// The shards that the keys are on. The invalidation log is on the first.
#[derive(Default)]
pub(super) struct DoubleShards {
    /// One where it is 0.
    pub(super) count: u32,
    faults: HashMap<Shard, ShardFault>,
}

/// What is wrong with one shard.
#[derive(Clone, Copy, Default)]
pub(super) struct ShardFault {
    pub(super) refuses: Option<RemoteErrorKind>,
    pub(super) is_frozen: bool,
    pub(super) ahead: Duration,
}

impl DoubleShards {
    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn shard_of(&self, key: &Key) -> Shard {
        let number = key.stable_hash() % u64::from(self.count.max(1));
        Shard::new(u32::try_from(number).unwrap_or(0))
    }

    pub(super) fn fault(&self, shard: Shard) -> ShardFault {
        self.faults.get(&shard).copied().unwrap_or_default()
    }

    pub(super) fn change(&mut self, shard: Shard, change: impl FnOnce(&mut ShardFault)) {
        change(self.faults.entry(shard).or_default());
    }
}
