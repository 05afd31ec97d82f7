//! The shards of the server, and what goes wrong with one of them.

use std::collections::HashMap;
use std::time::Duration;

use crate::key::Key;
use crate::remote::double::Double;
use crate::remote::{RemoteErrorKind, Shard};

/// The shards that the keys are on. The invalidation log is on the first.
#[derive(Default)]
pub(super) struct DoubleShards {
    /// One where it is 0.
    count: u32,
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

    fn change(&mut self, shard: Shard, change: impl FnOnce(&mut ShardFault)) {
        change(self.faults.entry(shard).or_default());
    }
}

/// The shards of the server, and their faults.
impl Double {
    /// Starts an empty server of so many shards. The invalidation log is on [`Shard::ONLY`], the
    /// first.
    #[must_use]
    pub fn sharded(count: u32) -> Self {
        let double = Self::new();
        double.0.with(|state, _| state.shards.count = count);
        double
    }

    /// Returns the shard of a key.
    #[must_use]
    pub fn shard_of(&self, key: &Key) -> Shard {
        self.0.with(|state, _| state.shards.shard_of(key))
    }

    /// Lets all calls to a shard fail at once, without being executed.
    pub fn fail_shard(&self, shard: Shard, kind: RemoteErrorKind) {
        self.0.with(|state, _| state.shards.change(shard, |it| it.refuses = Some(kind)));
    }

    /// Stops a shard: calls wait, also calls whose callers have gone.
    pub fn freeze_shard(&self, shard: Shard) {
        self.0.with(|state, _| state.shards.change(shard, |it| it.is_frozen = true));
    }

    /// Ends [`fail_shard`](Self::fail_shard) and [`freeze_shard`](Self::freeze_shard): the shard
    /// goes on with the calls that waited, in order.
    pub fn heal_shard(&self, shard: Shard) {
        self.0.with(|state, _| {
            state.shards.change(shard, |it| (it.refuses, it.is_frozen) = (None, false));
            state.go_on();
        });
    }

    /// Sets by how much the clock of a shard is ahead of the first one's.
    pub fn set_shard_ahead(&self, shard: Shard, ahead: Duration) {
        self.0.with(|state, _| state.shards.change(shard, |it| it.ahead = ahead));
    }
}
