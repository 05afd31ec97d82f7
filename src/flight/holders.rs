//! The computations that have a part in one call, as the places see them.

use std::collections::BTreeMap;

use crate::clock::Tick;
use crate::flight::computation::Computation;
use crate::sync::Arc;

/// The computations of a call that have a part in its place, or in its wait for one.
/// Nearly every call has one, for which nothing is allocated.
#[derive(Debug)]
pub(super) struct Holders {
    first: Arc<Computation>,
    others: BTreeMap<u64, Arc<Computation>>,
}

impl Holders {
    pub(super) fn of(computation: &Arc<Computation>) -> Self {
        Self { first: Arc::clone(computation), others: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, computation: &Arc<Computation>) {
        if self.first.id != computation.id {
            self.others.insert(computation.id, Arc::clone(computation));
        }
    }

    pub(super) fn is_only(&self, computation: &Computation) -> bool {
        self.first.id == computation.id && self.others.is_empty()
    }

    pub(super) fn contains(&self, computation: &Computation) -> bool {
        self.first.id == computation.id || self.others.contains_key(&computation.id)
    }

    /// Removes one. Returns whether it was the last.
    pub(super) fn remove(&mut self, computation: &Computation) -> bool {
        if self.first.id != computation.id {
            self.others.remove(&computation.id);
            return false;
        }
        match self.others.pop_first() {
            Some((_, next)) => {
                self.first = next;
                false
            }
            None => true,
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Computation>> {
        std::iter::once(&self.first).chain(self.others.values())
    }

    pub(super) fn wake(&self) {
        self.all().for_each(|computation| computation.wake());
    }

    /// Returns when every leader should have ended its part.
    pub(super) fn overdue_at(&self) -> Tick {
        self.others.values().fold(self.first.overdue_at(), |at, other| at.max(other.overdue_at()))
    }
}
