//! The table of running flights and of marks, in shards.
//!
//! A shard's lock is held for a few lines at a time, never over an await, and no code
//! of the user runs under it: whatever leaves a shard is handed out as [`Removed`] and
//! dropped afterwards.

use std::collections::HashMap;
use std::hash::BuildHasher;

use crate::clock::Tick;
use crate::error::Error;
use crate::flight::marks::{MarkMap, Marks};
use crate::flight::phase::Flight;
use crate::flight::queue::shrink;
use crate::key::{Key, primary_of};
use crate::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering, RandomState};

const SHARDS: usize = if cfg!(stampede_model) { 1 } else { 64 };

/// Keys with marks per shard, about 16,000 in all.
const MARKS_PER_SHARD: usize = 256;

pub(crate) struct Table<V> {
    shards: Box<[Mutex<TableShard<V>>]>,
    hasher: RandomState,
    /// Numbers flights and computations; none is zero.
    next_number: AtomicU64,
    running: AtomicUsize,
}

pub(crate) struct TableShard<V> {
    flights: HashMap<Key, Arc<Flight<V>>, RandomState>,
    pub(crate) marks: MarkMap,
}

/// A flight or an error that left a shard under its lock, to be dropped without it.
#[must_use = "to be dropped without the shard's lock"]
pub(crate) struct Removed<V> {
    pub(crate) flight: Option<Arc<Flight<V>>>,
    _error: Option<Error>,
}

impl<V> Default for Removed<V> {
    fn default() -> Self {
        Self { flight: None, _error: None }
    }
}

impl<V> TableShard<V> {
    pub(crate) fn flight(&self, key: &[u8]) -> Option<&Arc<Flight<V>>> {
        self.flights.get(key)
    }

    /// Returns whether the flight is the one in the table.
    pub(crate) fn is_current(&self, flight: &Flight<V>) -> bool {
        self.flight(flight.key.as_bytes()).is_some_and(|current| current.id == flight.id)
    }
}

impl<V> Table<V> {
    pub(crate) fn new() -> Self {
        let shard = || {
            let marks = MarkMap::new(MARKS_PER_SHARD);
            Mutex::new(TableShard { flights: HashMap::default(), marks })
        };
        Self {
            shards: std::iter::repeat_with(shard).take(SHARDS).collect(),
            hasher: RandomState::default(),
            next_number: AtomicU64::new(1),
            running: AtomicUsize::new(0),
        }
    }

    /// The lock of a key's flight and marks.
    pub(crate) fn shard(&self, key: &Key) -> &Mutex<TableShard<V>> {
        self.shard_of(key.as_bytes())
    }

    pub(crate) fn shard_of(&self, key: &[u8]) -> &Mutex<TableShard<V>> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Flights and computations that begin from now on have this number or a higher one.
    pub(crate) fn upcoming_number(&self) -> u64 {
        self.next_number.load(Ordering::Relaxed)
    }

    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Puts a flight into its shard. One that it replaces is forgotten.
    pub(crate) fn insert(&self, shard: &mut TableShard<V>, flight: Arc<Flight<V>>) -> Removed<V> {
        let replaced = shard.flights.insert(flight.key.clone(), flight);
        match &replaced {
            Some(replaced) => replaced.forget(),
            None => {
                self.running.fetch_add(1, Ordering::Relaxed);
            }
        }
        Removed { flight: replaced, ..Removed::default() }
    }

    /// Takes a flight out, if it is still the one in the table: a late leader must not
    /// close a newer flight.
    pub(crate) fn remove(&self, shard: &mut TableShard<V>, flight: &Flight<V>) -> Removed<V> {
        if !shard.is_current(flight) {
            return Removed::default();
        }
        let flight = shard.flights.remove(&flight.key);
        self.running.fetch_sub(1, Ordering::Relaxed);
        shrink(&mut shard.flights);
        Removed { flight, ..Removed::default() }
    }

    /// Says that the data of `key` has changed: no caller joins its flight, the result is
    /// not stored, and a hold is over. Returns whether there was a flight.
    pub(crate) fn forget(&self, key: &Key) -> (bool, Removed<V>) {
        let mut shard = self.shard(key).lock();
        let error = shard.marks.end_hold(key);
        let Some(flight) = shard.flights.get(key).cloned() else {
            return (false, Removed { flight: None, _error: error });
        };
        flight.forget();
        (true, Removed { _error: error, ..self.remove(&mut shard, &flight) })
    }

    /// The same for the flights whose results would stand under an entry's key of the HTTP
    /// layer, or beside it: they have keys of their own.
    pub(crate) fn forget_related(&self, key: &Key) -> bool {
        let Some(primary) = primary_of(key.as_bytes()) else { return false };
        let related = |flight: &Flight<V>| primary_of(flight.key.as_bytes()) == Some(primary);
        self.forget_all(related)
    }

    /// Forgets every flight that began before `seq` of the invalidation log.
    pub(crate) fn forget_before(&self, seq: u64) {
        self.forget_all(|flight| flight.seq < seq);
    }

    /// Forgets the flights that are `meant`. Returns whether there was one.
    fn forget_all(&self, meant: impl Fn(&Flight<V>) -> bool) -> bool {
        let mut had_one = false;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let flights = shard.flights.values().filter(|flight| meant(flight));
            let flights: Vec<_> = flights.cloned().collect();
            let forget = |flight: &Arc<Flight<V>>| {
                flight.forget();
                self.remove(&mut shard, flight)
            };
            let removed: Vec<_> = flights.iter().map(forget).collect();
            drop(shard);
            had_one |= !flights.is_empty();
            drop((flights, removed));
        }
        had_one
    }

    pub(crate) fn read_marks<T>(&self, key: &Key, read: impl FnOnce(&Marks) -> T) -> Option<T> {
        self.shard(key).lock().marks.get(key).map(read)
    }

    /// Forgets the marks that say nothing any more.
    pub(crate) fn sweep(&self, now: Tick) {
        for shard in &self.shards {
            let idle = shard.lock().marks.sweep(now);
            drop(idle);
        }
    }
}

impl<V> std::fmt::Debug for Table<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("running", &self.running()).finish_non_exhaustive()
    }
}
