//! The store of this process, bounded by weight.
//!
//! [`LocalStore`] is one of two: a [table](table) with a queue of our own, or [moka](moka) where
//! the application asks for one of its policies. Nothing outside of this room knows which.
//!
//! A library drops entries under its own locks or in any thread that uses it, and an entry's
//! `Drop` is code of the user. So both stores hold entries in a [`Shelved`], which hands the
//! entry to the [`Bin`](crate::garbage::Bin) of the store. Every operation that writes empties
//! the bin and returns its contents.
//!
//! No store expires anything: [`decide`](crate::freshness::decide) alone says whether an entry
//! may be served. [`LocalStore::sweep`] removes an entry within half a minute after its last
//! stale window.

mod ghosts;
#[cfg(feature = "moka")]
mod moka;
mod policy;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "moka")]
use self::moka::MokaStore;
use self::table::TableStore;
use crate::clock::Clock;
use crate::entry::{Entry, TOO_HEAVY};
use crate::flight::ports::{Store, StoreChange};
use crate::garbage::{BinId, EvictionCause, EvictionHook, Garbage};
use crate::key::Key;
use crate::settings::Eviction;

type EntryRef<V> = Arc<Entry<V>>;

/// How many entries a sweep judges before it lets other tasks run.
const SWEEP_BATCH: u32 = 512;

impl Eviction {
    /// Returns what an entry takes beside its value, and beside the heap bytes of key and tags:
    /// the rest of the [`Entry`], and what its store allocates for it.
    pub(crate) fn entry_bytes(self) -> usize {
        match self {
            Self::ByPrice | Self::S3Fifo => table::ENTRY_BYTES,
            #[cfg(feature = "moka")]
            Self::Lru | Self::TinyLfu => moka::ENTRY_BYTES,
        }
    }
}

#[derive(Clone)]
pub(crate) struct LocalSettings<V> {
    #[cfg_attr(not(feature = "moka"), allow(dead_code, reason = "moka asks for it"))]
    pub(crate) name: String,
    pub(crate) max_bytes: u64,
    pub(crate) eviction: Eviction,
    pub(crate) on_eviction: Option<EvictionHook<V>>,
    pub(crate) clock: Clock,
    /// How long an entry is used that stands in the remote too; `None`: as long as it lasts.
    pub(crate) local_ttl: Option<Duration>,
}

pub(crate) struct LocalStore<V> {
    kind: Kind<V>,
    max_bytes: u64,
    copies: Option<(Duration, Clock)>,
}

enum Kind<V> {
    Table(TableStore<V>),
    #[cfg(feature = "moka")]
    Moka(MokaStore<V>),
}

/// Has the store of either kind do it.
macro_rules! of_kind {
    ($self:ident, $store:ident => $do:expr) => {
        match &$self.kind {
            Kind::Table($store) => $do,
            #[cfg(feature = "moka")]
            Kind::Moka($store) => $do,
        }
    };
}

/// An entry in the hands of a library. `None` once the entry was taken out.
#[derive(Debug)]
struct Shelved<V>(Option<EntryRef<V>>);

impl<V> Shelved<V> {
    fn entry(&self) -> Option<&EntryRef<V>> {
        self.0.as_ref()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn into_entry(mut self) -> Option<EntryRef<V>> {
        let entry = self.0.take();
        // It is empty. Dropping it would cost a hit a call that does nothing.
        std::mem::forget(self);
        entry
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

/// What stands under a key after a change.
enum Change<V> {
    Keep,
    Put(EntryRef<V>),
    Remove,
}

/// Why an entry leaves that is taken out by name.
fn removal_cause<V>(entry: &Entry<V>, clock: &Clock) -> EvictionCause {
    if clock.now() >= entry.window().useful_until() {
        EvictionCause::Expired
    } else {
        EvictionCause::Invalidated
    }
}

impl<V: Send + Sync + 'static> LocalStore<V> {
    pub(crate) fn new(settings: &LocalSettings<V>) -> Self {
        let kind = match settings.eviction {
            Eviction::ByPrice | Eviction::S3Fifo => Kind::Table(TableStore::new(settings)),
            #[cfg(feature = "moka")]
            Eviction::Lru | Eviction::TinyLfu => Kind::Moka(MokaStore::new(settings)),
        };
        let copies = settings.local_ttl.map(|ttl| (ttl, settings.clock.clone()));
        Self { kind, max_bytes: settings.max_bytes, copies }
    }

    /// Returns the entry for a caller, and counts that as a use. Never empties the bin: a hit runs
    /// no `Drop` of another entry.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn get(&self, key: &[u8]) -> Option<EntryRef<V>> {
        of_kind!(self, store => store.get(key))
    }

    /// Returns the entry for the cache's own work: bookkeeping must not make an entry look
    /// popular. (moka knows no such look-up; it counts this one too.)
    pub(crate) fn peek(&self, key: &[u8]) -> Option<EntryRef<V>> {
        of_kind!(self, store => store.peek(key))
    }

    /// Returns whether an entry of this weight can be stored: an entry heavier than the
    /// bound on all entries would only clear the store.
    pub(crate) fn is_storable(&self, entry: &Entry<V>) -> bool {
        entry.weight != TOO_HEAVY && u64::from(entry.weight) <= self.max_bytes
    }

    /// Replaces the entry by the one that `change` makes of it, serial with fills.
    /// `change` must not run code of the user, ask this store, nor own the last reference to
    /// an entry: the store is locked.
    pub(crate) fn update(
        &self,
        key: &Key,
        change: impl FnOnce(Option<&EntryRef<V>>) -> Option<EntryRef<V>>,
    ) -> StoreChange<V> {
        let bin = self.bin();
        let applied = self.compute(key, |found| {
            match change(found).filter(|entry| self.is_storable(entry)) {
                Some(entry) => {
                    entry.belongs_to(bin);
                    found.into_iter().for_each(|found| entry.inherit_uses(found.uses()));
                    if let Some((ttl, clock)) = &self.copies {
                        entry.keep_copy_until(clock.now().plus(*ttl));
                    }
                    Change::Put(entry)
                }
                None => Change::Keep,
            }
        });
        StoreChange { applied, garbage: self.empty_bin() }
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
        #[allow(unused_mut, reason = "moka's `clear` is not serial with fills")]
        let mut change =
            self.update(key, |old| (may_replace(old) && allowed()).then(|| Arc::clone(entry)));
        // Once more: a `clear` between the first time and the insertion has not
        // seen the entry.
        #[cfg(feature = "moka")]
        if matches!(self.kind, Kind::Moka(_)) && change.applied && !allowed() {
            change.applied = false;
            change.garbage.extend(self.remove_exactly(key, entry));
        }
        change
    }

    pub(crate) fn entries(&self) -> u64 {
        of_kind!(self, store => store.entries())
    }

    pub(crate) fn bytes(&self) -> u64 {
        of_kind!(self, store => store.bytes())
    }

    pub(crate) fn evictions(&self) -> u64 {
        of_kind!(self, store => store.evictions())
    }

    /// Does what the store has put off: it evicts, counts, and frees what is evicted.
    pub(crate) fn settle(&self) -> Garbage<V> {
        of_kind!(self, store => store.settle());
        self.empty_bin()
    }

    /// Removes and drops the entries that are dead. Without this a quiet cache would keep
    /// entries that no caller may have.
    ///
    /// Cancel safe: stops between two entries.
    pub(crate) async fn sweep(&self, is_dead: impl Fn(&Entry<V>) -> bool) {
        for batch in self.batches() {
            for (key, shelved) in batch {
                if let Some(entry) = shelved.entry().filter(|entry| is_dead(entry)) {
                    self.take_exactly(&key, entry);
                }
            }
            drop(self.empty_bin());
            tokio::task::yield_now().await;
        }
        drop(self.settle());
    }

    /// Goes through the entries, in no particular order. Counts as no use of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, EntryRef<V>)> {
        self.batches().flatten().filter_map(|(key, shelved)| Some((key, shelved.into_entry()?)))
    }

    /// Each entry is in a shelf of its own: where the store lets go of it meanwhile, the shelf
    /// brings it into the bin.
    fn batches(&self) -> Box<dyn Iterator<Item = Vec<(Key, Shelved<V>)>> + Send + '_> {
        of_kind!(self, store => Box::new(store.batches(SWEEP_BATCH)))
    }

    fn bin(&self) -> BinId {
        of_kind!(self, store => store.bin().id())
    }

    fn empty_bin(&self) -> Garbage<V> {
        of_kind!(self, store => store.bin().empty())
    }

    /// Removes this very entry; it goes into the bin.
    fn take_exactly(&self, key: &Key, entry: &EntryRef<V>) {
        let is_it = |found: &EntryRef<V>| Arc::ptr_eq(found, entry);
        self.compute(
            key,
            |found| {
                if found.is_some_and(is_it) { Change::Remove } else { Change::Keep }
            },
        );
    }

    /// Changes what stands under the key, and returns whether there was a change. A
    /// released entry is in the bin.
    fn compute(&self, key: &Key, change: impl FnOnce(Option<&EntryRef<V>>) -> Change<V>) -> bool {
        of_kind!(self, store => store.compute(key, change))
    }
}

impl<V: Send + Sync + 'static> Store<V> for LocalStore<V> {
    fn fill(&self, key: &Key, entry: EntryRef<V>, allowed: &dyn Fn() -> bool) -> StoreChange<V> {
        self.fill_unless(key, &entry, allowed, &|_| false)
    }

    fn remove(&self, key: &Key) -> StoreChange<V> {
        let applied =
            self.compute(key, |found| if found.is_some() { Change::Remove } else { Change::Keep });
        StoreChange { applied, garbage: self.empty_bin() }
    }

    fn peek(&self, key: &[u8]) -> Option<EntryRef<V>> {
        Self::peek(self, key)
    }

    fn clear(&self) -> Garbage<V> {
        of_kind!(self, store => store.clear());
        self.empty_bin()
    }

    fn remove_exactly(&self, key: &Key, entry: &EntryRef<V>) -> Garbage<V> {
        self.take_exactly(key, entry);
        self.empty_bin()
    }

    fn retain(&self, keep: &dyn Fn(&Entry<V>) -> bool) -> Garbage<V> {
        for (key, shelved) in self.batches().flatten() {
            if let Some(entry) = shelved.entry().filter(|entry| !keep(entry)) {
                self.take_exactly(&key, entry);
            }
        }
        self.empty_bin()
    }
}
