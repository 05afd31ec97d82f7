//! What is known of each shard of the remote: whether requests ask it, how quickly it answers,
//! and what its clock says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::remote::RemoteSettings;
use crate::remote::breaker::Breaker;
use crate::remote::clock::ServerClock;
use crate::remote::pause::Pause;
use crate::remote::progress::Progress;

/// A part of a remote that answers, or fails, by itself: one server of several that share the
/// keys. It costs what is on it alone when it is away.
///
/// A remote numbers its shards as it likes; a number may come to mean another server. There are
/// at most [`Shard::MOST`] of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(u32);

impl Shard {
    /// The shard of a remote that has only one.
    pub const ONLY: Self = Self(0);

    /// How many shards are told apart.
    pub const MOST: u32 = 1024;

    /// Returns the shard with this number. From [`MOST`](Self::MOST) on, numbers are counted
    /// from zero again.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number % Self::MOST)
    }

    /// Returns its number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// What this process knows of one shard.
pub(super) struct ShardState {
    pub(super) shard: Shard,
    pub(super) breaker: Breaker,
    pub(super) progress: Progress,
    pub(super) clock: ServerClock,
    /// Held by the task that reads the clock where it is not known.
    pub(super) reading_clock: tokio::sync::Mutex<()>,
    pub(super) pace: Mutex<Pace>,
    /// The task that brings it back.
    pub(super) return_task: TaskClaim,
    /// Since when it is not asked.
    pub(super) away_since: Mutex<Option<Instant>>,
}

impl ShardState {
    fn new(shard: Shard, settings: &RemoteSettings) -> Self {
        Self {
            shard,
            breaker: Breaker::new(settings.breaker_failures),
            progress: Progress::new(settings.op_timeout),
            clock: ServerClock::default(),
            reading_clock: tokio::sync::Mutex::new(()),
            pace: Mutex::new(Pace::new()),
            return_task: TaskClaim::default(),
            away_since: Mutex::new(None),
        }
    }

    /// Returns whether it answered last time.
    pub(super) fn answers(&self) -> bool {
        self.breaker.allows()
    }
}

/// Says which task does something of which there is to be one: the number of the runtime that
/// it was begun on, or 0 where there is none. A task on a runtime that stands still is replaced.
#[derive(Debug, Default)]
pub(super) struct TaskClaim(AtomicU64);

impl TaskClaim {
    /// Returns whether the claim was free, or was taken on another runtime.
    pub(super) fn take(&self, runtime: u64) -> bool {
        self.0.swap(runtime, Ordering::AcqRel) != runtime
    }

    /// Gives it up, unless it was taken on another runtime since.
    pub(super) fn give_up(&self, runtime: u64) {
        let _ = self.0.compare_exchange(runtime, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// All shards that were asked for anything, by their numbers.
pub(super) struct Shards {
    states: RwLock<BTreeMap<Shard, Arc<ShardState>>>,
    settings: RemoteSettings,
}

impl Shards {
    pub(super) fn new(settings: RemoteSettings) -> Self {
        Self { states: RwLock::default(), settings }
    }

    pub(super) fn of(&self, shard: Shard) -> Arc<ShardState> {
        if let Some(state) = self.states.read().get(&shard) {
            return Arc::clone(state);
        }
        let new = || Arc::new(ShardState::new(shard, &self.settings));
        Arc::clone(self.states.write().entry(shard).or_insert_with(new))
    }

    pub(super) fn all(&self) -> Vec<Arc<ShardState>> {
        self.states.read().values().cloned().collect()
    }

    pub(super) fn away(&self) -> Vec<Arc<ShardState>> {
        let states = self.states.read();
        states.values().filter(|state| !state.answers()).cloned().collect()
    }

    pub(super) fn all_answer(&self) -> bool {
        self.states.read().values().all(|state| state.answers())
    }
}

/// A shard that fails sooner than this after it was brought back answers probes and little
/// else.
const STEADY_AFTER: Duration = Duration::from_secs(10);

/// Returns the pauses between tries to reach a shard that is away.
pub(super) const fn probe_pause() -> Pause {
    Pause::of_millis(100, 5000)
}

/// How often a shard that is away is probed.
pub(super) struct Pace {
    /// After each probe that failed.
    pub(super) probes: Pause,
    /// Before the first probe, where the last one proved nothing.
    relapses: Pause,
    brought_back: Option<Instant>,
}

impl Pace {
    const fn new() -> Self {
        Self { probes: probe_pause(), relapses: probe_pause(), brought_back: None }
    }

    pub(super) fn was_brought_back(&mut self) {
        self.probes.reset();
        self.brought_back = Some(Instant::now());
    }

    /// Returns how long to wait before the first probe of an outage: one right
    /// after another would let requests ask at once, and fail at once.
    pub(super) fn pause_if_unsteady(&mut self) -> Duration {
        let Some(brought_back) = self.brought_back.take() else { return Duration::ZERO };
        if brought_back.elapsed() < STEADY_AFTER {
            return self.relapses.lengthen();
        }
        self.relapses.reset();
        Duration::ZERO
    }
}
