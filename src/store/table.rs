//! The store by default: a concurrent table, and a queue that hits never touch.
//!
//! A read takes no lock: it looks into the table, counts a use beside the entry, and clones the
//! reference. Writers take turns, of all keys: what stands in the table and what stands in the
//! queue changes together, so what is evicted, counted and cleared is exact. A writer does little
//! while it has its turn: it evicts what its own entry displaces, and no code of the user runs.
//!
//! The table frees what was taken out of it as soon as no reader looks at it any more. It keeps what it
//! cannot free yet in a list of the writing thread. So writers, who take turns, write with owned
//! guards: these are numbered by the first number that is free, and not by their threads. Many threads
//! that write in turn share one list, and the next writer frees what the one before could not.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use papaya::{Equivalent, Guard, HashMap, OwnedGuard, ResizeMode};

use super::policy::{MOST_USES, NodeId, Policy, Price, Stand};
use super::{Change, EntryRef, Eviction, LocalSettings, Shelved, removal_cause};
use crate::clock::Clock;
use crate::entry::Entry;
use crate::garbage::{Bin, Evicted, EvictionCause, OpenBin};
use crate::key::Key;
use crate::sync::Mutex;

/// As [`Eviction::entry_bytes`]: 193 bytes are asked of the allocator in the worst moment, while
/// the table doubles; the rest is what the allocator adds (`tests/resident`).
pub(super) const ENTRY_BYTES: usize = 240;

/// Makes the hashes of keys; see [`Hashed`].
type KeyHasher = crate::sync::RandomState;

/// A key in the table, with what leads from the queue back to it.
struct Slot {
    key: Key,
    hash: u32,
    node: UsedNode,
}

/// The node of an entry, and how often the entry was found since the queue has asked: in one
/// number, for eight bytes less with each entry. The node stays as it is.
struct UsedNode(AtomicU32);

/// Where the uses stand in it; [`NodeId::MOST`] keeps the nodes below.
const USE: u32 = NodeId::MOST + 1;
const _: () = assert!((MOST_USES as u32 * USE).leading_zeros() == 0 && USE.is_power_of_two());

impl UsedNode {
    fn new(node: NodeId, uses: u8) -> Self {
        Self(AtomicU32::new(node.0 + u32::from(uses) * USE))
    }

    fn id(&self) -> NodeId {
        NodeId(self.0.load(Ordering::Relaxed) % USE)
    }

    fn uses(&self) -> u8 {
        (self.0.load(Ordering::Relaxed) / USE) as u8
    }

    /// Counts a use, up to [`MOST_USES`]. One that is lost between two threads is lost to a count
    /// that is full soon.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn count(&self) {
        let now = self.0.load(Ordering::Relaxed);
        if now < u32::from(MOST_USES) * USE {
            self.0.store(now + USE, Ordering::Relaxed);
        }
    }

    /// Returns the uses, and counts anew.
    fn take_uses(&self) -> u8 {
        (self.0.swap(self.id().0, Ordering::Relaxed) / USE) as u8
    }
}

/// A key that is looked for.
struct Wanted<'a> {
    key: &'a [u8],
    hash: u32,
}

/// The hash of a key is made once, and stored beside it: the table neither hashes a key again
/// when it grows, nor does the queue keep keys.
#[derive(Clone, Copy, Default)]
struct Hashed;

#[derive(Default)]
struct Spread(u64);

impl BuildHasher for Hashed {
    type Hasher = Spread;

    #[inline]
    fn build_hasher(&self) -> Spread {
        Spread(0)
    }
}

impl Hasher for Spread {
    fn write(&mut self, _: &[u8]) {
        debug_assert!(false, "hashes are given as numbers");
    }

    /// Spreads 32 bits over 64: the table uses the lowest and the highest ones.
    #[inline]
    fn write_u32(&mut self, hash: u32) {
        self.0 = u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

impl Hash for Slot {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.hash);
    }
}

impl PartialEq for Slot {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Slot {}

impl Hash for Wanted<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.hash);
    }
}

impl Equivalent<Slot> for Wanted<'_> {
    #[inline]
    fn equivalent(&self, slot: &Slot) -> bool {
        self.key == slot.key.as_bytes()
    }
}

impl Hash for Stand {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.hash);
    }
}

impl Equivalent<Slot> for Stand {
    fn equivalent(&self, slot: &Slot) -> bool {
        self.node == slot.node.id()
    }
}

pub(super) struct TableStore<V> {
    table: HashMap<Slot, Shelved<V>, Hashed>,
    hasher: KeyHasher,
    /// Whose turn it is to write. Held while the table changes.
    queue: Mutex<Policy>,
    /// Declared after the table, and so dropped after it: the table's last entries go here.
    bin: OpenBin<V>,
    listened: Option<(Arc<Bin<V>>, Clock)>,
    evictions: AtomicU64,
}

fn price<V>(entry: &Entry<V>) -> Price {
    let micros = entry.computed_in().as_micros();
    Price::of_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

impl<V: Send + Sync + 'static> TableStore<V> {
    pub(super) fn new(settings: &LocalSettings<V>) -> Self {
        let bin = OpenBin::new(settings.on_eviction.clone());
        let listened = bin.evictions().map(|bin| (bin, settings.clock.clone()));
        let has_lives = settings.eviction == Eviction::ByPrice;
        let table = HashMap::builder()
            .hasher(Hashed)
            // One writer at a time: the copying is done by the one that finds it necessary.
            .resize_mode(ResizeMode::default())
            // What was taken out is freed at once, and not by the batch.
            .collector(seize::Collector::new().batch_size(1))
            .build();
        Self {
            table,
            hasher: KeyHasher::default(),
            queue: Mutex::new(Policy::new(settings.max_bytes, has_lives)),
            bin,
            listened,
            evictions: AtomicU64::new(0),
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wanted<'a>(&self, key: &'a [u8]) -> Wanted<'a> {
        Wanted { key, hash: self.hasher.hash_one(key) as u32 }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn get(&self, key: &[u8]) -> Option<EntryRef<V>> {
        let guard = self.table.guard();
        let (slot, held) = self.table.get_key_value(&self.wanted(key), &guard)?;
        slot.node.count();
        held.entry().map(Arc::clone)
    }

    pub(super) fn peek(&self, key: &[u8]) -> Option<EntryRef<V>> {
        let guard = self.table.guard();
        self.table.get(&self.wanted(key), &guard)?.entry().map(Arc::clone)
    }

    pub(super) fn entries(&self) -> u64 {
        self.queue.lock().entries()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.queue.lock().bytes()
    }

    pub(super) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    pub(super) fn bin(&self) -> &OpenBin<V> {
        &self.bin
    }

    pub(super) fn compute(
        &self,
        key: &Key,
        change: impl FnOnce(Option<&EntryRef<V>>) -> Change<V>,
    ) -> bool {
        let wanted = self.wanted(key.as_bytes());
        let mut queue = self.queue.lock();
        let guard = self.table.owned_guard();
        let found = self.table.get_key_value(&wanted, &guard);
        match change(found.and_then(|(_, held)| held.entry())) {
            Change::Keep => false,
            Change::Put(entry) => {
                let (weight, price) = (entry.weight, price(&entry));
                let (node, uses) = match found {
                    Some((slot, held)) => {
                        self.note(slot, held, |_, _| EvictionCause::Replaced);
                        queue.replace(slot.node.id(), weight, price);
                        (slot.node.id(), slot.node.uses())
                    }
                    None => (queue.insert(wanted.hash, weight, price), 0),
                };
                let used = UsedNode::new(node, uses);
                let slot = Slot { key: key.clone(), hash: wanted.hash, node: used };
                self.table.insert(slot, Shelved(Some(entry)), &guard);
                self.make_room(&mut queue, node, &guard);
                true
            }
            Change::Remove => {
                let Some((slot, held)) = found else { return false };
                self.note(slot, held, removal_cause);
                queue.remove(slot.node.id());
                self.table.remove(&wanted, &guard);
                true
            }
        }
    }

    /// Evicts until the bound holds again.
    fn make_room(&self, queue: &mut Policy, newest: NodeId, guard: &OwnedGuard<'_>) {
        let take_uses = |stand: Stand| {
            self.table.get_key_value(&stand, guard).map_or(0, |(slot, _)| slot.node.take_uses())
        };
        while let Some(victim) = queue.evict(newest, take_uses) {
            if let Some((slot, held)) = self.table.remove_entry(&victim, guard) {
                self.note(slot, held, |_, _| EvictionCause::Size);
            }
            self.evictions.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn clear(&self) {
        let mut queue = self.queue.lock();
        let guard = self.table.owned_guard();
        if self.listened.is_some() {
            for (slot, held) in self.table.iter(&guard) {
                self.note(slot, held, removal_cause);
            }
        }
        self.table.clear(&guard);
        queue.clear();
    }

    /// Frees what a writer could not free because a reader still looked at it.
    pub(super) fn settle(&self) {
        let _queue = self.queue.lock();
        self.table.owned_guard().flush();
    }

    /// Goes through the entries, `size` at a time: writers wait for no more than that.
    pub(super) fn batches(&self, size: u32) -> impl Iterator<Item = Vec<(Key, Shelved<V>)>> + Send {
        let mut from = 0;
        std::iter::from_fn(move || {
            let queue = self.queue.lock();
            let (stands, next) = queue.walk(from, size)?;
            from = next;
            let guard = self.table.guard();
            let found = |stand| {
                let (slot, held) = self.table.get_key_value(&stand, &guard)?;
                Some((slot.key.clone(), Shelved(Some(Arc::clone(held.entry()?)))))
            };
            Some(stands.into_iter().filter_map(found).collect())
        })
    }

    /// Tells the application of an entry that leaves, if it asks.
    fn note(
        &self,
        slot: &Slot,
        held: &Shelved<V>,
        cause: impl FnOnce(&Entry<V>, &Clock) -> EvictionCause,
    ) {
        if let Some((bin, clock)) = &self.listened
            && let Some(entry) = held.entry()
        {
            let (key, entry) = (slot.key.clone(), Arc::clone(entry));
            let cause = cause(&entry, clock);
            bin.note(Evicted { key, entry, cause });
        }
    }
}

impl<V> fmt::Debug for TableStore<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableStore").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_counted_up_to_the_most_and_leave_the_node_as_it_is() {
        for id in [0, 1, NodeId::MOST] {
            let node = UsedNode::new(NodeId(id), 0);
            for uses in 1..=MOST_USES + 2 {
                node.count();
                assert_eq!((node.id(), node.uses()), (NodeId(id), uses.min(MOST_USES)));
            }
            assert_eq!((node.take_uses(), node.id(), node.uses()), (MOST_USES, NodeId(id), 0));
        }
    }
}
