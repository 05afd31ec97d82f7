//! Until when the remote vouches for what this process holds.

use crate::clock::Tick;
use crate::flight::engine::Engine;
use crate::sync::Ordering;

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
        (1..=now.as_nanos()).contains(&until)
    }

    /// Returns until when the remote vouches for the local copies; `None`: without limit.
    #[cfg(feature = "admin")]
    pub(crate) fn vouched_until(&self) -> Option<Tick> {
        let until = self.vouched_until.load(Ordering::Relaxed);
        (until < u64::MAX).then(|| Tick::from_nanos(until))
    }

    #[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "a remote vouches"))]
    pub(crate) fn vouch_until(&self, until: Tick) {
        self.vouched_until.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// Has the remote vouch for the local copies, if it answers in time.
    #[cold]
    pub(crate) async fn vouch(&self) {
        if let Some(shared) = self.shared.get() {
            shared.vouch().await;
        }
    }
}
