//! What entries weigh against `max_bytes`: the one place that makes a weight.

use std::fmt;
use std::mem::needs_drop;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::entry::{Entry, TOO_HEAVY};
use crate::key::Key;
#[cfg(feature = "remote")]
use crate::weigh::allocated;
use crate::weigh::{Weigher, recognised};

/// What a value is assumed to hold on the heap where nothing is known of it. The text of
/// `Builder::max_bytes` names the number.
const ASSUMED_HEAP_BYTES: usize = 1024;
/// How many lengths the mean of encoded lengths goes back, about.
#[cfg(feature = "remote")]
const REMEMBERED_LENGTHS: usize = 16;

/// Weighs entries.
pub(crate) struct Weights<V> {
    heap_bytes: Option<Weigher<V>>,
    /// What a value is taken to hold on the heap where `heap_bytes` is `None`: a mean of what
    /// encoded values take, once there are any.
    assumed: Option<Arc<AtomicUsize>>,
    /// What every entry takes in its store.
    every_entry: usize,
    /// What an entry weighs at least: its share where there is a bound on the number.
    least: u32,
    capacity: u64,
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
        // A bound on the number is a choice of the application: nothing is added to it.
        let is_estimated = !is_known && max_entries.is_none();
        let assumed = is_estimated.then(|| Arc::new(ASSUMED_HEAP_BYTES.into()));
        let least = max_entries.map_or(1, |most| (max_bytes / most).max(1));
        let least = u32::try_from(least).unwrap_or(TOO_HEAVY).min(TOO_HEAVY - 1);
        // What is left over would let in one entry more. With fewer bytes than entries the
        // product is above the bound on bytes.
        let of_all = max_entries.map_or(max_bytes, |most| u64::from(least).saturating_mul(most));
        let capacity = of_all.min(max_bytes);
        Self { heap_bytes, assumed, every_entry, least, capacity }
    }

    /// Returns what a value is assumed to hold on the heap, if the weights are estimates.
    pub(crate) fn assumed(&self) -> Option<usize> {
        self.assumed.as_ref().map(|assumed| assumed.load(Ordering::Relaxed))
    }

    /// Returns the bound on all weights together.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Gives an entry its weight. The weigher is code of the user: hold no lock.
    pub(crate) fn weigh(&self, entry: Entry<V>, key: &Key) -> Entry<V> {
        let heap_bytes = match &self.heap_bytes {
            Some(weigh) => weigh(&entry.value),
            None => self.assumed().unwrap_or(0),
        };
        self.weigh_as(entry, heap_bytes, key)
    }

    /// Learns from the length of an encoded value what values hold on the heap, if that is not
    /// known better.
    #[cfg(feature = "remote")]
    pub(crate) fn learn_from(&self, encoded: usize) {
        let Some(assumed) = &self.assumed else { return };
        let old = assumed.load(Ordering::Relaxed);
        // A length that is lost to another thread changes the mean little.
        let mean = (old * (REMEMBERED_LENGTHS - 1)).saturating_add(allocated(encoded));
        assumed.store(mean.div_ceil(REMEMBERED_LENGTHS), Ordering::Relaxed);
    }

    /// The same for a value that holds `heap_bytes`. Runs no code of the user.
    pub(crate) fn weigh_as(&self, entry: Entry<V>, heap_bytes: usize, key: &Key) -> Entry<V> {
        entry.with_weight(self.every_entry, heap_bytes, key, self.least)
    }
}

impl<V> Clone for Weights<V> {
    fn clone(&self) -> Self {
        Self { heap_bytes: self.heap_bytes.clone(), assumed: self.assumed.clone(), ..*self }
    }
}

impl<V> fmt::Debug for Weights<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Weights").field("least", &self.least).finish_non_exhaustive()
    }
}
