//! moka, for the policies that it has and our own store has not.
//!
//! Its own expiry is not used: it runs on another clock, it costs a timer node per
//! entry, and a hit three tenths of a look-up.
//!
//! moka evicts late: after 64 writes, or 0.3 s. What it has evicted or replaced it frees later
//! still: each thread gathers 64 pieces, and they are freed two epochs later. With values of
//! 1 MiB that is 64 MiB beyond the bound, and as much again per thread. So each operation that
//! writes counts the bytes that it has added or unlinked, and from a thirty-second part of the
//! bound on, and from 16 KiB, it has all of that done at once.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use moka::notification::RemovalCause;
use moka::ops::compute::Op;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use super::{Change, EntryRef, Eviction, LocalSettings, Shelved, removal_cause};
use crate::clock::Clock;
use crate::entry::Entry;
use crate::garbage::{Evicted, EvictionCause, OpenBin};
use crate::key::Key;

type Hasher = foldhash::fast::RandomState;

/// As [`Eviction::entry_bytes`]; measured.
pub(super) const ENTRY_BYTES: usize = 480;

/// The part of the bound after which moka is made to evict and to free, and the least of it.
const SETTLED_PART: u64 = 32;
const LEAST_SETTLED: u64 = 16 << 10;

/// How often the epochs are moved on. Twice is enough, unless another thread is inside the table
/// and does not run at the moment.
const MOST_STEPS: usize = 32;
/// From this step on other threads are let run.
const PATIENT_STEPS: usize = 4;

thread_local! {
    /// The bytes that this thread has added or unlinked, in any store, since it has freed: what
    /// it gathers no other thread can free.
    static GATHERED: Cell<u64> = const { Cell::new(0) };
}

/// Has everything freed that was unlinked so far, by this thread or by one that has handed it
/// on. The freed entries go into the bins.
fn free_unlinked() {
    let _ = GATHERED.try_with(|gathered| gathered.set(0));
    let is_freed = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&is_freed);
    // Freed in order: this after all else.
    crossbeam_epoch::pin().defer(move || noted.store(true, Ordering::Relaxed));
    for step in 0..MOST_STEPS {
        crossbeam_epoch::pin().flush();
        if is_freed.load(Ordering::Relaxed) {
            return;
        }
        if step >= PATIENT_STEPS {
            std::thread::yield_now();
        }
    }
}

pub(super) struct MokaStore<V> {
    cache: Cache<Key, Shelved<V>, Hasher>,
    /// Declared after the cache, and so dropped after it: the cache's last entries go here.
    bin: OpenBin<V>,
    evictions: Arc<AtomicU64>,
    max_bytes: u64,
    /// The bytes that were added or unlinked since moka has evicted and freed.
    unsettled: AtomicU64,
    /// Under shuttle moka's own locks would not let another thread of the model run.
    #[cfg(stampede_model)]
    writing: crate::sync::Mutex<()>,
}

impl<V> Clone for Shelved<V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Says what moka's word means here, where the cache itself ends entries.
fn eviction_cause<V>(cause: RemovalCause, entry: &Entry<V>, clock: &Clock) -> EvictionCause {
    match cause {
        RemovalCause::Size => EvictionCause::Size,
        RemovalCause::Replaced => EvictionCause::Replaced,
        RemovalCause::Expired => EvictionCause::Expired,
        RemovalCause::Explicit => removal_cause(entry, clock),
    }
}

impl<V: Send + Sync + 'static> MokaStore<V> {
    pub(super) fn new(settings: &LocalSettings<V>) -> Self {
        let bin = OpenBin::new(settings.on_eviction.clone());
        let (listened, clock) = (bin.evictions(), settings.clock.clone());
        let evictions = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&evictions);
        let policy = match settings.eviction {
            Eviction::TinyLfu => EvictionPolicy::tiny_lfu(),
            _ => EvictionPolicy::lru(),
        };
        let cache = Cache::builder()
            .name(&settings.name)
            .max_capacity(settings.max_bytes)
            .eviction_policy(policy)
            .weigher(|_, shelved: &Shelved<V>| shelved.entry().map_or(0, |entry| entry.weight))
            .eviction_listener(move |key: Arc<Key>, shelved: Shelved<V>, cause| {
                if cause == RemovalCause::Size {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                if let Some(bin) = &listened
                    && let Some(entry) = shelved.into_entry()
                {
                    let cause = eviction_cause(cause, &entry, &clock);
                    bin.note(Evicted { key: Key::clone(&key), entry, cause });
                }
            })
            .build_with_hasher(Hasher::default());
        Self {
            cache,
            bin,
            evictions,
            max_bytes: settings.max_bytes,
            unsettled: AtomicU64::new(0),
            #[cfg(stampede_model)]
            writing: crate::sync::Mutex::new(()),
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn get(&self, key: &[u8]) -> Option<EntryRef<V>> {
        self.cache.get(key).and_then(Shelved::into_entry)
    }

    pub(super) fn peek(&self, key: &[u8]) -> Option<EntryRef<V>> {
        self.get(key)
    }

    pub(super) fn entries(&self) -> u64 {
        self.cache.entry_count()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.cache.weighted_size()
    }

    pub(super) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    pub(super) fn bin(&self) -> &OpenBin<V> {
        &self.bin
    }

    /// Has moka do its pending work: it evicts, counts, and frees what is evicted.
    pub(super) fn settle(&self) {
        self.unsettled.store(0, Ordering::Relaxed);
        self.cache.run_pending_tasks();
        free_unlinked();
    }

    /// Takes note of bytes that were added or unlinked, and settles when there are many.
    fn settle_after(&self, moved: u32) {
        let moved = u64::from(moved);
        let here = GATHERED.try_with(|gathered| gathered.replace(gathered.get() + moved));
        let unsettled = self.unsettled.fetch_add(moved, Ordering::Relaxed);
        let most = unsettled.max(here.unwrap_or_default()) + moved;
        if most > (self.max_bytes / SETTLED_PART).max(LEAST_SETTLED) {
            self.settle();
        }
    }

    pub(super) fn batches(&self, size: u32) -> impl Iterator<Item = Vec<(Key, Shelved<V>)>> + Send {
        let mut entries = self.cache.iter();
        std::iter::from_fn(move || {
            let batch: Vec<_> = entries
                .by_ref()
                .take(size as usize)
                .map(|(key, shelved)| (Key::clone(&key), shelved))
                .collect();
            (!batch.is_empty()).then_some(batch)
        })
    }

    pub(super) fn clear(&self) {
        self.cache.invalidate_all();
    }

    pub(super) fn compute(
        &self,
        key: &Key,
        change: impl FnOnce(Option<&EntryRef<V>>) -> Change<V>,
    ) -> bool {
        #[cfg(stampede_model)]
        let _writing = self.writing.lock();
        let mut moved = 0;
        let result = self.cache.entry(key.clone()).and_compute_with(|found| {
            let found = found.as_ref().and_then(|found| found.value().entry());
            let before = found.map_or(0, |found| found.weight);
            match change(found) {
                Change::Put(entry) => {
                    moved = entry.weight.max(before);
                    Op::Put(Shelved(Some(entry)))
                }
                Change::Remove => {
                    moved = before;
                    Op::Remove
                }
                Change::Keep => Op::Nop,
            }
        });
        use moka::ops::compute::CompResult::{Inserted, Removed, ReplacedWith};
        let applied = matches!(result, Inserted(_) | ReplacedWith(_) | Removed(_));
        // A reference that is still held here would keep the entry from the bin.
        drop(result);
        self.settle_after(moved);
        applied
    }
}
