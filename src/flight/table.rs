//! The table of running flights: who leads, who joins, who is turned away.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::clock::Tick;
use crate::flight::mark::{Mark, Marks};
use crate::flight::phase::Flight;
use crate::key::Key;

const SHARDS: usize = 64;

/// Marks kept per shard, about 16,000 in all.
const MARKS_PER_SHARD: usize = 256;

pub(crate) struct Table<V> {
    shards: Box<[Mutex<Shard<V>>]>,
    hasher: foldhash::fast::RandomState,
    next_id: AtomicU64,
    running: AtomicUsize,
}

pub(crate) struct Shard<V> {
    pub(crate) flights: HashMap<Key, Arc<Flight<V>>, foldhash::fast::RandomState>,
    pub(crate) marks: Marks,
}

impl<V> Table<V> {
    pub(crate) fn new() -> Self {
        let shard = || {
            Mutex::new(Shard { flights: HashMap::default(), marks: Marks::new(MARKS_PER_SHARD) })
        };
        Self {
            shards: std::iter::repeat_with(shard).take(SHARDS).collect(),
            hasher: foldhash::fast::RandomState::default(),
            next_id: AtomicU64::new(0),
            running: AtomicUsize::new(0),
        }
    }

    /// The lock of a key's flight and mark. Held for a few lines at a time,
    /// never over an await and never around code of the user's.
    pub(crate) fn shard(&self, key: &Key) -> &Mutex<Shard<V>> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Flights that take off from now on have this number or a higher one.
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "HTTP's directives"))]
    pub(crate) fn upcoming_id(&self) -> u64 {
        self.next_id.load(Ordering::Relaxed)
    }

    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Puts a flight into its shard; one that it replaces is forgotten.
    pub(crate) fn insert(&self, shard: &mut Shard<V>, flight: Arc<Flight<V>>) {
        match shard.flights.insert(flight.key.clone(), flight) {
            Some(replaced) => replaced.forget(),
            None => {
                self.running.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Takes a flight out, if it is still the one in the table: a late leader
    /// must not close a newer flight.
    pub(crate) fn remove(&self, shard: &mut Shard<V>, flight: &Flight<V>) {
        let ours = shard.flights.get(&flight.key).is_some_and(|current| current.id == flight.id);
        if ours {
            shard.flights.remove(&flight.key);
            self.running.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Forgets the flight of `key`: nobody joins it, its result is not stored.
    pub(crate) fn forget(&self, key: &Key) -> bool {
        let mut shard = self.shard(key).lock();
        let Some(flight) = shard.flights.get(key).cloned() else { return false };
        flight.forget();
        self.remove(&mut shard, &flight);
        true
    }

    /// Forgets every flight that took off before `seq`.
    pub(crate) fn forget_before(&self, seq: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let old: Vec<_> =
                shard.flights.values().filter(|flight| flight.seq < seq).cloned().collect();
            for flight in old {
                flight.forget();
                self.remove(&mut shard, &flight);
            }
        }
    }

    pub(crate) fn read_mark<T>(&self, key: &Key, read: impl FnOnce(&Mark) -> T) -> Option<T> {
        self.shard(key).lock().marks.get(key).map(read)
    }

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
