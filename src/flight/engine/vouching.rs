//! Until when the remote vouches for what this process holds.

use crate::clock::Tick;
use crate::flight::engine::Engine;
use crate::lease::validity::ValidUntil;
use crate::sync::Ordering;

impl<V: Send + Sync + 'static> Engine<V> {
    #[inline]
    fn valid_until(&self) -> ValidUntil {
        ValidUntil::from_nanos(self.valid_until.load(Ordering::Relaxed))
    }

    /// Returns whether local copies may be served now: whether this process knows what other
    /// processes have ended.
    #[inline]
    pub(crate) fn is_vouched(&self, now: Tick) -> bool {
        self.valid_until().covers(now)
    }

    /// Returns whether the remote has vouched, and does so no more. Before it has for the first time,
    /// no computation here is older than what it would say.
    pub(crate) fn was_vouched_until_before(&self, now: Tick) -> bool {
        let until = self.valid_until();
        until >= ValidUntil::NO_MORE && !until.covers(now)
    }

    /// Returns until when the remote vouches for the local copies; `None`: without limit.
    #[cfg(feature = "admin")]
    pub(crate) fn vouched_until(&self) -> Option<Tick> {
        let until = self.valid_until();
        (until < ValidUntil::FOR_EVER).then(|| Tick::from_nanos(until.nanos()))
    }

    /// Takes the smaller one of this and what is known.
    #[cfg(feature = "remote")]
    pub(crate) fn is_valid_at_most(&self, until: ValidUntil) {
        self.valid_until.fetch_min(until.nanos(), Ordering::AcqRel);
    }

    #[cfg(feature = "remote")]
    pub(crate) fn is_valid_until(&self, until: ValidUntil) {
        self.valid_until.store(until.nanos(), Ordering::Release);
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
