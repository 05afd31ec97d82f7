//! A result that arrives: its callers have it already, and its end is yet to come.

#![cfg_attr(not(feature = "http"), allow(dead_code, reason = "only HTTP's results arrive"))]

use std::time::Duration;

use crate::entry::Entry;
use crate::flight::end::Conclusion;
use crate::flight::leader::{Kept, Leader};
use crate::flight::ports::Destination;
use crate::key::Key;
use crate::sync::Arc;

/// A flight whose result is published, and not complete. Dropped, the flight ends as one whose
/// leader is lost.
pub(crate) struct Arrival<V: Send + Sync + 'static, P> {
    leader: Leader<V>,
    entry: Arc<Entry<V>>,
    place: P,
    /// Dropped last: a caller that enters the other flight anew must not find this one.
    beside: Option<Leader<V>>,
}

impl<V: Send + Sync + 'static, P: Destination<V>> Arrival<V, P> {
    pub(super) fn begin(
        leader: Leader<V>,
        entry: Arc<Entry<V>>,
        place: P,
        announce: impl FnOnce(&P, &dyn Fn() -> bool) -> Option<Key>,
    ) -> Self {
        let looked_for_at = announce(&place, &|| leader.may_store(&entry));
        let other = looked_for_at.filter(|key| key != leader.key());
        let beside = other.and_then(|key| leader.lead_beside(key));
        for leader in beside.iter().chain([&leader]) {
            leader.publish(Arc::clone(&entry));
        }
        Self { leader, entry, place, beside }
    }

    pub(crate) fn entry(&self) -> &Arc<Entry<V>> {
        &self.entry
    }

    pub(crate) fn place(&self) -> &P {
        &self.place
    }

    pub(crate) fn key(&self) -> &Key {
        self.leader.key()
    }

    /// Says that more arrives within `limit`, so that no waiter takes it for lost. Callers join as
    /// long as no more than `pause` goes by without more.
    pub(crate) fn goes_on(&self, limit: Duration, pause: Duration) {
        for leader in self.beside.iter().chain([&self.leader]) {
            leader.expect_within(limit);
            leader.join_within(pause);
        }
    }

    /// Says that it has paused: other processes need not wait for it.
    pub(crate) fn pause(&mut self) {
        self.leader.give_up_lease();
    }

    /// Stores the whole result, and ends the flight. That is out of the table when this returns, or
    /// with a remote once it has the result.
    pub(crate) fn complete(self, whole: &Arc<Entry<V>>) -> Kept {
        self.leader.store_at(whole, self.place).0
    }

    /// Ends the flight without the rest.
    pub(crate) fn end(self, conclusion: Conclusion<V>) {
        self.leader.end(conclusion);
    }
}
