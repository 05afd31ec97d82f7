//! The bound on callers that wait.

use crate::sync::{Arc, AtomicUsize, Ordering};

/// One of the `max_waiters_in_all`. A caller keeps it when it enters another flight.
#[derive(Debug)]
pub(crate) struct WaitSlot(Arc<AtomicUsize>);

impl WaitSlot {
    /// Takes a slot if fewer than `max` are taken of those that `taken` counts.
    pub(super) fn take(taken: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let before = taken.fetch_add(1, Ordering::AcqRel);
        let slot = Self(Arc::clone(taken));
        (before < max).then_some(slot)
    }
}

impl Drop for WaitSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
