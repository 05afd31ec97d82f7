//! What entries weigh against `max_bytes`: the one place that makes a weight.

use std::fmt;
use std::mem::needs_drop;

use crate::entry::{Entry, TOO_HEAVY};
use crate::key::Key;
use crate::weigh::{Weigher, recognised};

/// How many entries a cache holds at most that can neither weigh its values nor has a bound
/// on their number.
pub(crate) const MOST_UNWEIGHED: u64 = 10_000;

/// Weighs entries.
pub(crate) struct Weights<V> {
    heap_bytes: Option<Weigher<V>>,
    /// What every entry takes in its store.
    every_entry: usize,
    /// What an entry weighs at least: its share where there is a bound on the number.
    least: u32,
    capacity: u64,
    is_complete: bool,
}

impl<V: 'static> Weights<V> {
    /// `heap_bytes` is what the application has set; `every_entry` what an entry takes in its
    /// store beside that.
    pub(crate) fn new(
        heap_bytes: Option<Weigher<V>>,
        every_entry: usize,
        max_bytes: u64,
        max_entries: Option<u64>,
    ) -> Self {
        let heap_bytes = heap_bytes.or_else(recognised);
        let is_known = heap_bytes.is_some() || !needs_drop::<V>();
        let is_complete = is_known || max_entries.is_some();
        let most = if is_complete { max_entries } else { Some(MOST_UNWEIGHED) };
        let least = most.map_or(1, |most| (max_bytes / most).max(1));
        let least = u32::try_from(least).unwrap_or(TOO_HEAVY).min(TOO_HEAVY - 1);
        // What is left over would let in one entry more. With fewer bytes than entries the
        // product is above the bound on bytes.
        let of_all = most.map_or(max_bytes, |most| u64::from(least).saturating_mul(most));
        let capacity = of_all.min(max_bytes);
        Self { heap_bytes, every_entry, least, capacity, is_complete }
    }

    /// Returns whether the weights, or a bound on the number, bound the memory as the
    /// application has chosen.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the bound on all weights together.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Gives an entry its weight. The weigher is code of the user: hold no lock.
    pub(crate) fn weigh(&self, entry: Entry<V>, key: &Key) -> Entry<V> {
        let heap_bytes = self.heap_bytes.as_ref().map_or(0, |weigh| weigh(&entry.value));
        self.weigh_as(entry, heap_bytes, key)
    }

    /// The same for a value that holds `heap_bytes`. Runs no code of the user.
    pub(crate) fn weigh_as(&self, entry: Entry<V>, heap_bytes: usize, key: &Key) -> Entry<V> {
        entry.with_weight(self.every_entry, heap_bytes, key, self.least)
    }
}

impl<V> Clone for Weights<V> {
    fn clone(&self) -> Self {
        Self { heap_bytes: self.heap_bytes.clone(), ..*self }
    }
}

impl<V> fmt::Debug for Weights<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Weights").field("least", &self.least).finish_non_exhaustive()
    }
}
