//! Until when the remote vouches for what this process holds.

use crate::clock::Tick;
use crate::flight::engine::Engine;
use crate::sync::Ordering;

/// Before the remote vouches. Without a remote this is never necessary.
pub(super) const UNASKED: u64 = u64::MAX;

/// In place of a moment: without limit, while the remote is away.
#[cfg(any(feature = "remote", feature = "admin"))]
const FOR_EVER: u64 = u64::MAX - 1;

/// In place of a moment: not yet.
#[cfg(feature = "remote")]
const NOT_YET: u64 = 0;

/// In place of a moment: no more.
const NO_MORE: u64 = 1;

impl<V: Send + Sync + 'static> Engine<V> {
    /// Returns whether local copies may be served now: whether this process knows what other
    /// processes have ended.
    #[inline]
    pub(crate) fn is_vouched(&self, now: Tick) -> bool {
        now.as_nanos() < self.vouched_until.load(Ordering::Relaxed)
    }

    /// Returns whether the remote has vouched, and does so no more. Before it has for the first time,
    /// no computation here is older than what it would say.
    pub(crate) fn was_vouched_until_before(&self, now: Tick) -> bool {
        let until = self.vouched_until.load(Ordering::Relaxed);
        (NO_MORE..=now.as_nanos()).contains(&until)
    }

    /// Returns until when the remote vouches for the local copies; `None`: without limit.
    #[cfg(feature = "admin")]
    pub(crate) fn vouched_until(&self) -> Option<Tick> {
        let until = self.vouched_until.load(Ordering::Relaxed);
        (until < FOR_EVER).then(|| Tick::from_nanos(until))
    }

    #[cfg(feature = "remote")]
    pub(crate) fn vouch_until(&self, until: Tick) {
        self.vouched_until.store(until.as_nanos().clamp(NO_MORE, FOR_EVER), Ordering::Relaxed);
    }

    /// Lets local copies be served without limit: the remote is away.
    #[cfg(feature = "remote")]
    pub(crate) fn vouch_for_ever(&self) {
        self.vouched_until.store(FOR_EVER, Ordering::Relaxed);
    }

    /// Says that the remote vouches no more, or not yet.
    #[cfg(feature = "remote")]
    pub(crate) fn withdraw_vouch(&self) {
        let withdrawn = |until| match until {
            UNASKED | NOT_YET => Some(NOT_YET),
            _ => Some(NO_MORE),
        };
        let _ = self.vouched_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, withdrawn);
    }

    /// Has the remote vouch for the local copies, if it answers in time. That is soon where the
    /// caller `has_value` to serve.
    #[cold]
    pub(crate) async fn vouch(&self, has_value: bool) {
        if let Some(shared) = self.shared.get() {
            shared.vouch(has_value).await;
        }
    }
}
