//! How long the invalidation log must be kept: as long as the entry lives that
//! lives longest, also one that another process stored, or one before it.
//!
//! The log says so itself, under a name and with a number that no tag has. A
//! process that trims it asks the log, not its own memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::key::Tag;
use crate::observe::RemoteCall;
use crate::remote::ServerTime;
use crate::remote::coordinator::EntryRemote;

/// Records younger than this stay, however short the lifetimes.
const LEAST: Duration = Duration::from_secs(24 * 3600);

/// Times of the log lie far below, so this survives every trimming.
const ABOVE_ALL_TIMES: u64 = 1 << 52;

/// Tags that users write are escaped where they begin with a zero.
const NAME: &[u8] = b"\0longest-kept";

/// The longest lifetime that the log tells of, in ms.
#[derive(Debug, Default)]
pub(super) struct LogRetention(AtomicU64);

impl<V: Send + Sync + 'static> EntryRemote<V> {
    /// Returns how long records of the log are of use.
    pub(super) fn log_kept(&self) -> Duration {
        self.longest_kept().saturating_mul(2).max(LEAST)
    }

    /// Takes the lifetime out of the log as it was read.
    pub(super) fn learn_longest(&self, log: &mut Vec<(Tag, ServerTime)>) {
        let mut told = 0;
        log.retain(|(tag, at)| {
            let millis = at.as_millis().checked_sub(ABOVE_ALL_TIMES);
            let millis = millis.filter(|_| tag.as_bytes() == NAME);
            told = told.max(millis.unwrap_or_default());
            millis.is_none()
        });
        self.told.0.store(told, Ordering::Relaxed);
        self.keeps_for(Duration::from_millis(told));
    }

    /// Writes into the log how long it must be kept, where it does not say so:
    /// before anything is stored that lives so long.
    pub(super) async fn tell_longest(&self) {
        let longest = u64::try_from(self.longest_kept().as_millis()).unwrap_or(u64::MAX);
        let kept_anyway = self.log_kept() <= LEAST;
        if kept_anyway || longest <= self.told.0.load(Ordering::Relaxed) {
            return;
        }
        // Rounded up: jitter makes every other lifetime the longest so far.
        let longest = longest.checked_next_power_of_two().unwrap_or(ABOVE_ALL_TIMES);
        let longest = longest.min(ABOVE_ALL_TIMES / 2);
        let record =
            [(Tag::from_encoded(NAME), ServerTime::from_millis(ABOVE_ALL_TIMES + longest))];
        let tell = || self.remote().restore_tags(&record);
        if self.gate.call(RemoteCall::RestoreTags, 0, tell).await.is_ok() {
            self.told.0.fetch_max(longest, Ordering::Relaxed);
        }
    }
}
