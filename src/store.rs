//! The store of this process: moka, bounded by weight.
//!
//! moka's own expiry is not used: it runs on another clock, it costs a timer node per
//! entry, and a hit three tenths of a look-up. [`decide`](crate::freshness::decide)
//! alone says whether an entry may be served. [`LocalStore::sweep`] removes an entry within
//! half a minute after its last stale window.
//!
//! moka drops entries under its own locks, and an entry's `Drop` is code of the
//! user. So moka holds entries in a [`Shelved`], which hands the entry to the
//! [`Bin`](crate::garbage::Bin) of the store when moka drops it. Every operation
//! that writes empties the bin and returns its contents.
//!
//! moka evicts late: after 64 writes, or 0.3 s. What it has evicted or replaced it frees later
//! still: each thread gathers 64 pieces, and they are freed two epochs later. With values of
//! 1 MiB that is 64 MiB beyond the bound, and as much again per thread. So each operation that
//! writes counts the bytes that it has added or unlinked, and from a thirty-second part of the
//! bound on, and from 16 KiB, it has all of that done at once.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use moka::notification::RemovalCause;
use moka::ops::compute::Op;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use crate::clock::Clock;
use crate::entry::{Entry, TOO_HEAVY};
use crate::flight::ports::{Store, StoreChange};
use crate::garbage::{Evicted, EvictionCause, EvictionHook, Garbage, OpenBin};
use crate::key::Key;

type Hasher = foldhash::fast::RandomState;
type EntryRef<V> = Arc<Entry<V>>;

/// How many entries a sweep judges before it lets other tasks run.
const SWEEP_BATCH: usize = 512;

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
/// on. What is freed goes into the bins.
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

/// Which entry makes room at the bound on memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Eviction {
    /// The least recently used one.
    #[default]
    Lru,
    /// The least frequently used one, and a new entry is refused while it is
    /// less popular than those held: better against scans, but every key that
    /// is refused is computed again at the next request.
    TinyLfu,
}

#[derive(Clone)]
pub(crate) struct LocalSettings<V> {
    pub(crate) name: String,
    pub(crate) max_bytes: u64,
    pub(crate) eviction: Eviction,
    pub(crate) on_eviction: Option<EvictionHook<V>>,
    pub(crate) clock: Clock,
    /// How long an entry is used that stands in the remote too; `None`: as long as it lasts.
    pub(crate) local_ttl: Option<Duration>,
}

pub(crate) struct LocalStore<V> {
    cache: Cache<Key, Shelved<V>, Hasher>,
    /// Declared after the cache, and so dropped after it: the cache's last entries go here.
    bin: OpenBin<V>,
    evictions: Arc<AtomicU64>,
    max_bytes: u64,
    /// The bytes that were added or unlinked since moka has evicted and freed.
    unsettled: AtomicU64,
    copies: Option<(Duration, Clock)>,
}

/// An entry in moka's hands. `None` once the entry was taken out.
#[derive(Debug)]
struct Shelved<V>(Option<EntryRef<V>>);

impl<V> Shelved<V> {
    fn entry(&self) -> Option<&EntryRef<V>> {
        self.0.as_ref()
    }

    #[inline(always)]
    fn into_entry(mut self) -> Option<EntryRef<V>> {
        let entry = self.0.take();
        // It is empty. Dropping it would cost a hit a call that does nothing.
        std::mem::forget(self);
        entry
    }
}

impl<V> Clone for Shelved<V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<V> Drop for Shelved<V> {
    #[inline]
    fn drop(&mut self) {
        // Of several threads that drop the last references at once, one gets the entry.
        if let Some(entry) = self.0.take().and_then(Arc::into_inner) {
            entry.discard();
        }
    }
}

/// Says what moka's word means here, where expiry is ours.
fn eviction_cause<V>(cause: RemovalCause, entry: &Entry<V>, clock: &Clock) -> EvictionCause {
    match cause {
        RemovalCause::Size => EvictionCause::Size,
        RemovalCause::Replaced => EvictionCause::Replaced,
        RemovalCause::Expired => EvictionCause::Expired,
        RemovalCause::Explicit if clock.now() >= entry.window().useful_until() => {
            EvictionCause::Expired
        }
        RemovalCause::Explicit => EvictionCause::Invalidated,
    }
}

impl<V: Send + Sync + 'static> LocalStore<V> {
    pub(crate) fn new(settings: &LocalSettings<V>) -> Self {
        let bin = OpenBin::new(settings.on_eviction.clone());
        let (listened, clock) = (bin.evictions(), settings.clock.clone());
        let evictions = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&evictions);
        let policy = match settings.eviction {
            Eviction::Lru => EvictionPolicy::lru(),
            Eviction::TinyLfu => EvictionPolicy::tiny_lfu(),
        };
        let cache = Cache::builder()
            .name(&settings.name)
            .max_capacity(settings.max_bytes)
            .eviction_policy(policy)
            .weigher(|_, shelved: &Shelved<V>| shelved.entry().map_or(0, |entry| entry.weight))
            .eviction_listener(move |key, shelved: Shelved<V>, cause| {
                if cause == RemovalCause::Size {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                if let Some(bin) = &listened
                    && let Some(entry) = shelved.into_entry()
                {
                    let cause = eviction_cause(cause, &entry, &clock);
                    bin.note(Evicted { key, entry, cause });
                }
            })
            .build_with_hasher(Hasher::default());
        let unsettled = AtomicU64::new(0);
        let copies = settings.local_ttl.map(|ttl| (ttl, settings.clock.clone()));
        Self { cache, bin, evictions, max_bytes: settings.max_bytes, unsettled, copies }
    }

    /// Never empties the bin: a hit runs no `Drop` of another entry.
    #[inline(always)]
    pub(crate) fn get(&self, key: &[u8]) -> Option<EntryRef<V>> {
        self.cache.get(key).and_then(Shelved::into_entry)
    }

    /// Returns whether an entry of this weight can be stored: an entry heavier than the
    /// bound on all entries would only clear the store.
    pub(crate) fn is_storable(&self, entry: &Entry<V>) -> bool {
        entry.weight != TOO_HEAVY && u64::from(entry.weight) <= self.max_bytes
    }

    /// Replaces the entry by the one that `change` makes of it, serial with fills.
    /// `change` must not run code of the user, nor own the last reference to
    /// an entry: the key is locked.
    pub(crate) fn update(
        &self,
        key: &Key,
        change: impl FnOnce(Option<&EntryRef<V>>) -> Option<EntryRef<V>>,
    ) -> StoreChange<V> {
        let applied = self.compute(key, |found| {
            match change(found).filter(|entry| self.is_storable(entry)) {
                Some(entry) => {
                    entry.belongs_to(self.bin.id());
                    if let Some((ttl, clock)) = &self.copies {
                        entry.keep_copy_until(clock.now().plus(*ttl));
                    }
                    Op::Put(Shelved(Some(entry)))
                }
                None => Op::Nop,
            }
        });
        StoreChange { applied, garbage: self.bin.empty() }
    }

    /// Stores `entry` if `allowed`, unless what stands there is kept.
    pub(crate) fn fill_unless(
        &self,
        key: &Key,
        entry: &EntryRef<V>,
        allowed: &dyn Fn() -> bool,
        is_kept: &dyn Fn(&EntryRef<V>) -> bool,
    ) -> StoreChange<V> {
        let may_replace = |old: Option<&EntryRef<V>>| !old.is_some_and(is_kept);
        let mut change =
            self.update(key, |old| (may_replace(old) && allowed()).then(|| Arc::clone(entry)));
        // Once more: a `clear` between the first time and the insertion has not
        // seen the entry.
        if change.applied && !allowed() {
            change.applied = false;
            change.garbage.extend(self.remove_exactly(key, entry));
        }
        change
    }

    pub(crate) fn entries(&self) -> u64 {
        self.cache.entry_count()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.cache.weighted_size()
    }

    pub(crate) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Has moka do its pending work: it evicts, counts, and frees what is evicted.
    pub(crate) fn settle(&self) -> Garbage<V> {
        self.run_moka();
        self.bin.empty()
    }

    fn run_moka(&self) {
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
            self.run_moka();
        }
    }

    /// Removes and drops the entries that are dead. moka evicts only while it is
    /// used; without this a quiet cache would keep entries that no caller may have.
    ///
    /// Cancel safe: stops between two entries.
    pub(crate) async fn sweep(&self, is_dead: impl Fn(&Entry<V>) -> bool) {
        for (n, (key, shelved)) in self.cache.iter().enumerate() {
            self.remove_unless(&key, &shelved, &|entry| !is_dead(entry));
            if n % SWEEP_BATCH == SWEEP_BATCH - 1 {
                drop(self.bin.empty());
                tokio::task::yield_now().await;
            }
        }
        drop(self.settle());
    }

    /// Goes through the entries, in no particular order. Counts as no use of them.
    #[cfg(feature = "admin")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, EntryRef<V>)> {
        let entries = self.cache.iter();
        entries.filter_map(|(key, shelved)| Some(((*key).clone(), shelved.into_entry()?)))
    }

    fn remove_unless(&self, key: &Key, shelved: &Shelved<V>, keep: &dyn Fn(&Entry<V>) -> bool) {
        if let Some(entry) = shelved.entry().filter(|entry| !keep(entry)) {
            self.take_exactly(key, entry);
        }
    }

    /// Removes this very entry; it goes into the bin.
    fn take_exactly(&self, key: &Key, entry: &EntryRef<V>) {
        let is_it = |found: &EntryRef<V>| Arc::ptr_eq(found, entry);
        self.compute(key, |found| if found.is_some_and(is_it) { Op::Remove } else { Op::Nop });
    }

    /// Changes what stands under the key, and returns whether there was a change. What moka
    /// releases is in the bin.
    fn compute(
        &self,
        key: &Key,
        change: impl FnOnce(Option<&EntryRef<V>>) -> Op<Shelved<V>>,
    ) -> bool {
        let mut moved = 0;
        let result = self.cache.entry(key.clone()).and_compute_with(|found| {
            let found = found.as_ref().and_then(|found| found.value().entry());
            let before = found.map_or(0, |found| found.weight);
            let op = change(found);
            moved = match &op {
                Op::Put(shelved) => shelved.entry().map_or(0, |entry| entry.weight).max(before),
                Op::Remove => before,
                Op::Nop => 0,
            };
            op
        });
        use moka::ops::compute::CompResult::{Inserted, Removed, ReplacedWith};
        let applied = matches!(result, Inserted(_) | ReplacedWith(_) | Removed(_));
        // A reference that is still held here would keep the entry from the bin.
        drop(result);
        self.settle_after(moved);
        applied
    }
}

impl<V: Send + Sync + 'static> Store<V> for LocalStore<V> {
    fn fill(&self, key: &Key, entry: EntryRef<V>, allowed: &dyn Fn() -> bool) -> StoreChange<V> {
        self.fill_unless(key, &entry, allowed, &|_| false)
    }

    fn remove(&self, key: &Key) -> StoreChange<V> {
        let applied = self.compute(key, |found| found.map_or(Op::Nop, |_| Op::Remove));
        StoreChange { applied, garbage: self.bin.empty() }
    }

    fn clear(&self) -> Garbage<V> {
        self.cache.invalidate_all();
        self.bin.empty()
    }

    fn remove_exactly(&self, key: &Key, entry: &EntryRef<V>) -> Garbage<V> {
        self.take_exactly(key, entry);
        self.bin.empty()
    }

    fn retain(&self, keep: &dyn Fn(&Entry<V>) -> bool) -> Garbage<V> {
        for (key, shelved) in &self.cache {
            self.remove_unless(&key, &shelved, keep);
        }
        self.bin.empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::freshness::{Lifetimes, Window};

    fn store(max_bytes: u64) -> (LocalStore<u32>, Clock) {
        let clock = Clock::runtime();
        let settings = LocalSettings {
            name: "test".into(),
            max_bytes,
            eviction: Eviction::default(),
            on_eviction: None,
            clock: clock.clone(),
            local_ttl: None,
        };
        (LocalStore::new(&settings), clock)
    }

    fn entry(clock: &Clock, value: u32, weight: u32) -> EntryRef<u32> {
        let lifetimes = Lifetimes {
            ttl: Duration::from_secs(60),
            stale_for: Duration::ZERO,
            stale_if_error: Duration::ZERO,
        };
        let window = Window::new(clock.now(), lifetimes, Duration::ZERO);
        let mut entry = Entry::new(value, window, Box::default(), 0);
        entry.weight = weight;
        Arc::new(entry)
    }

    #[test]
    fn a_fill_that_is_not_allowed_leaves_what_was_there() {
        let (store, clock) = store(100);
        let key = Key::from("k");
        assert!(store.fill(&key, entry(&clock, 1, 1), &|| true).finish());
        assert!(!store.fill(&key, entry(&clock, 2, 1), &|| false).finish());
        assert_eq!(store.get(key.as_bytes()).unwrap().value, 1);
    }

    #[test]
    fn a_new_entry_is_always_taken_and_the_least_recently_used_one_goes() {
        let (store, clock) = store(10);
        for n in 0..100_u32 {
            store.fill(&n.into(), entry(&clock, n, 1), &|| true).finish();
            drop(store.settle());
            assert!(store.get(Key::from(n).as_bytes()).is_some(), "entry {n}");
        }
        assert_eq!(store.entries(), 10);
        assert_eq!(store.evictions(), 90);
    }

    #[tokio::test]
    async fn a_sweep_removes_what_is_dead_and_nothing_else() {
        let (store, clock) = store(10_000);
        for n in 0..2000_u32 {
            store.fill(&n.into(), entry(&clock, n, 1), &|| true).finish();
        }
        store.sweep(|entry| entry.value % 2 == 0).await;
        assert_eq!(store.entries(), 1000);
        assert!(store.get(Key::from(1_u32).as_bytes()).is_some());
        assert!(store.get(Key::from(2_u32).as_bytes()).is_none());
    }
}
