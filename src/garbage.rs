//! Entries that have left the store, on their way to being dropped.
//!
//! The `Drop` of a value is code of the user: it may sleep, panic, or call the
//! cache again. The store's library drops entries under a lock of its
//! own, or wherever entries without a reader are collected, perhaps inside
//! the store of another cache. So the library never drops an entry. An entry that it
//! releases goes into the [`Bin`] of its store, and the operations of the
//! store that write take it out again, as [`Garbage`]:
//!
//! ```text
//! library drops a `Shelved` ──▶ Bin ──▶ Garbage ──▶ user's Drop
//! (under its locks)                     (no lock is held)
//! ```
//!
//! A read never empties the bin, so a hit runs no `Drop` but that of the entry
//! it has asked for. The next write, `stats()`, or the tidying task does.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::entry::Entry;
use crate::error::contain_panic;
use crate::key::Key;

/// Names the bin of one store in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BinId(pub(crate) u32);

impl BinId {
    /// The bin of an entry that no store has held.
    pub(crate) const NONE: Self = Self(0);

    fn next() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }
}

/// Entries that one store has released.
pub(crate) struct Bin<V> {
    contents: Mutex<Contents<V>>,
    on_eviction: Option<EvictionHook<V>>,
}

struct Contents<V> {
    entries: Vec<Entry<V>>,
    /// What the application's hook is told of; nothing where there is none.
    evicted: Vec<Evicted<V>>,
}

/// Told of each entry that leaves the store.
pub(crate) type EvictionHook<V> = Arc<dyn Fn(&Key, &V, EvictionCause) + Send + Sync>;

/// Why an entry has left the store of this process; see
/// [`Builder::on_eviction`](crate::Builder::on_eviction).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EvictionCause {
    /// It made room for other entries, at `max_bytes` or `max_entries`.
    Size,
    /// Its lifetime and its stale windows have ended.
    Expired,
    /// Another entry took its place: a newer value, or the same one marked stale.
    Replaced,
    /// It was invalidated, by key, by tag or with all others.
    Invalidated,
}

/// An entry that has left the store.
pub(crate) struct Evicted<V> {
    pub(crate) key: Key,
    pub(crate) entry: Arc<Entry<V>>,
    pub(crate) cause: EvictionCause,
}

impl<V> Contents<V> {
    const EMPTY: Self = Self { entries: Vec::new(), evicted: Vec::new() };

    fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.evicted.is_empty()
    }

    fn append(&mut self, mut other: Self) {
        self.entries.append(&mut other.entries);
        self.evicted.append(&mut other.evicted);
    }
}

impl<V> Bin<V> {
    fn take(&self) -> Contents<V> {
        std::mem::replace(&mut self.contents.lock(), Contents::EMPTY)
    }
}

/// The bins of the stores that live, by name. An entry knows the name alone, so
/// that it neither grows by a reference nor keeps its bin.
static OPEN: RwLock<Option<HashMap<BinId, Arc<dyn Any + Send + Sync>>>> = RwLock::new(None);

/// Takes over an entry that may not be dropped here. Runs no code of the user's
/// while a store lives.
#[cold]
pub(crate) fn discard<V: Send + Sync + 'static>(entry: Entry<V>) {
    let open = OPEN.read();
    let bin = open.as_ref().and_then(|open| open.get(&entry.bin()));
    match bin.and_then(|bin| bin.downcast_ref::<Bin<V>>()) {
        Some(bin) => bin.contents.lock().entries.push(entry),
        None => {
            drop(open);
            orphans::put(Box::new(entry));
        }
    }
}

/// Entries that an operation of the store has replaced, removed or evicted. Dropping them
/// runs the `Drop` of values: hold no lock, and publish the result that others wait for
/// first.
///
/// A panic in a value's `Drop` ends here. It concerns neither the caller, which
/// has perhaps evicted a value of another key, nor the other entries.
#[must_use = "dropping it runs code of the user's: say when"]
pub(crate) struct Garbage<V> {
    contents: Contents<V>,
    orphans: Vec<orphans::Orphan>,
    bin: Option<(BinId, Arc<Bin<V>>)>,
}

impl<V> Garbage<V> {
    /// Garbage of a store that drops its entries itself.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { contents: Contents::EMPTY, orphans: Vec::new(), bin: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.contents.is_empty() && self.orphans.is_empty()
    }

    /// Takes over the garbage of another operation of the same store.
    #[cfg_attr(
        not(any(feature = "http", feature = "moka")),
        allow(dead_code, reason = "who does two operations")
    )]
    pub(crate) fn extend(&mut self, mut other: Self) {
        self.contents.append(std::mem::replace(&mut other.contents, Contents::EMPTY));
        self.orphans.append(&mut other.orphans);
    }
}

impl<V> Drop for Garbage<V> {
    fn drop(&mut self) {
        self.orphans.drain(..).for_each(drop_caught);
        let mut contents = std::mem::replace(&mut self.contents, Contents::EMPTY);
        let Some((id, bin)) = self.bin.take().filter(|_| !contents.is_empty()) else { return };
        // A `Drop` that writes to its own cache gets here again. Its garbage is
        // left to the loop below, further out on this thread: a chain of values
        // that replace each other must not nest on the stack.
        let Some(emptying) = Emptying::begin(id) else {
            return bin.contents.lock().append(contents);
        };
        while !contents.is_empty() {
            for evicted in contents.evicted.drain(..) {
                if let Some(hook) = &bin.on_eviction {
                    let Evicted { key, entry, cause } = &evicted;
                    contain_panic(|| hook(key, &entry.value, *cause));
                }
                drop_caught(evicted);
            }
            contents.entries.drain(..).for_each(drop_caught);
            if emptying.is_wanted_again() {
                contents = bin.take();
            }
        }
    }
}

/// Drops a value of the user, whose `Drop` may panic.
pub(crate) fn drop_caught<T>(value: T) {
    contain_panic(|| drop(value));
}

impl<V> fmt::Debug for Garbage<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Garbage")
            .field("entries", &self.contents.entries.len())
            .finish_non_exhaustive()
    }
}

thread_local! {
    /// The bins whose garbage this thread is dropping, and whether a `Drop` has
    /// put more into them.
    static EMPTYING: RefCell<Vec<(BinId, bool)>> = const { RefCell::new(Vec::new()) };
}

/// The claim of this thread to drop the garbage of one bin.
struct Emptying(BinId);

impl Emptying {
    /// `None` if this thread does so already, further out.
    fn begin(bin: BinId) -> Option<Self> {
        let begun = EMPTYING.try_with(|emptying| {
            let mut emptying = emptying.borrow_mut();
            if let Some((_, again)) = emptying.iter_mut().find(|(id, _)| *id == bin) {
                *again = true;
                return None;
            }
            emptying.push((bin, false));
            Some(Self(bin))
        });
        // In a thread that ends nothing can be noted: then they nest.
        begun.unwrap_or_else(|_| Some(Self(bin)))
    }

    fn is_wanted_again(&self) -> bool {
        let wanted = EMPTYING.try_with(|emptying| {
            let mut emptying = emptying.borrow_mut();
            let found = emptying.iter_mut().find(|(id, _)| *id == self.0);
            found.is_some_and(|(_, again)| std::mem::take(again))
        });
        wanted.unwrap_or(false)
    }
}

impl Drop for Emptying {
    fn drop(&mut self) {
        // In a thread that ends there is nothing to take back.
        let _ = EMPTYING.try_with(|emptying| {
            emptying.borrow_mut().retain(|(id, _)| *id != self.0);
        });
    }
}

/// Entries whose store was gone before the library dropped them. Another store
/// of this process empties them; while there is none, no lock of a store can be
/// held, and they are dropped at once.
mod orphans {
    use super::{AtomicBool, Mutex, Ordering};

    pub(super) type Orphan = Box<dyn Send + Sync>;

    struct Orphans {
        stores: usize,
        entries: Vec<Orphan>,
    }

    static ORPHANS: Mutex<Orphans> = Mutex::new(Orphans { stores: 0, entries: Vec::new() });
    /// Spares the lock where there are none, which is nearly always.
    static SOME: AtomicBool = AtomicBool::new(false);

    pub(super) fn put(entry: Orphan) {
        let mut orphans = ORPHANS.lock();
        if orphans.stores > 0 {
            orphans.entries.push(entry);
            SOME.store(true, Ordering::Relaxed);
        } else {
            drop(orphans);
            super::drop_caught(entry);
        }
    }

    pub(super) fn take() -> Vec<Orphan> {
        if !SOME.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut orphans = ORPHANS.lock();
        SOME.store(false, Ordering::Relaxed);
        std::mem::take(&mut orphans.entries)
    }

    /// One store more that takes orphans out.
    pub(super) fn open() {
        ORPHANS.lock().stores += 1;
    }

    /// One store less. The last one takes out what is left.
    pub(super) fn close() -> Vec<Orphan> {
        let mut orphans = ORPHANS.lock();
        orphans.stores -= 1;
        if orphans.stores > 0 { Vec::new() } else { std::mem::take(&mut orphans.entries) }
    }
}

/// The bin of a store that lives. Declared after the library's cache, so that
/// the last entries of the cache are in it.
pub(crate) struct OpenBin<V> {
    id: BinId,
    bin: Arc<Bin<V>>,
}

impl<V: Send + Sync + 'static> OpenBin<V> {
    pub(crate) fn new(on_eviction: Option<EvictionHook<V>>) -> Self {
        let bin = Arc::new(Bin { contents: Mutex::new(Contents::EMPTY), on_eviction });
        let id = BinId::next();
        orphans::open();
        OPEN.write().get_or_insert_default().insert(id, Arc::clone(&bin) as _);
        Self { id, bin }
    }

    pub(crate) fn id(&self) -> BinId {
        self.id
    }

    /// Returns where to note what leaves the store, if the application is told of it.
    pub(crate) fn evictions(&self) -> Option<Arc<Bin<V>>> {
        self.bin.on_eviction.is_some().then(|| Arc::clone(&self.bin))
    }
}

impl<V> Bin<V> {
    pub(crate) fn note(&self, evicted: Evicted<V>) {
        self.contents.lock().evicted.push(evicted);
    }
}

impl<V> OpenBin<V> {
    /// Takes out all entries, to be dropped by the caller once it holds no
    /// lock.
    pub(crate) fn empty(&self) -> Garbage<V> {
        let (contents, orphans) = (self.bin.take(), orphans::take());
        Garbage { contents, orphans, bin: Some((self.id, Arc::clone(&self.bin))) }
    }
}

impl<V> Drop for OpenBin<V> {
    fn drop(&mut self) {
        // Outside of the lock: the bin is not empty yet.
        let closed = OPEN.write().as_mut().and_then(|open| open.remove(&self.id));
        let mut garbage = self.empty();
        garbage.orphans.append(&mut orphans::close());
        drop((closed, garbage));
    }
}

impl<V> fmt::Debug for OpenBin<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenBin").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;
    use crate::clock::Tick;
    use crate::freshness::{Lifetimes, Window};

    type Value = Box<dyn Fn() + Send + Sync>;

    /// Calls its closure when it is dropped.
    struct OnDrop(Value);

    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0();
        }
    }

    /// Drops, as the library would, an entry of the store with this bin.
    fn discard_in(bin: BinId, on_drop: impl Fn() + Send + Sync + 'static) {
        let lifetimes = Lifetimes {
            ttl: Duration::from_secs(1),
            stale_for: Duration::ZERO,
            stale_if_error: Duration::ZERO,
        };
        let window = Window::new(Tick::from_nanos(0), lifetimes, Duration::ZERO);
        let entry = Entry::new(OnDrop(Box::new(on_drop)), window, Box::default(), 0);
        entry.belongs_to(bin);
        discard(entry);
    }

    fn counting() -> (Arc<AtomicUsize>, impl Fn() + Send + Sync + Clone + 'static) {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        (count, move || {
            counted.fetch_add(1, Ordering::SeqCst);
        })
    }

    #[test]
    fn values_whose_drop_empties_the_bin_again_do_not_nest_on_the_stack() {
        fn chain(bin: &Arc<OpenBin<OnDrop>>, length: usize, count: &Arc<AtomicUsize>) {
            let (next, counted) = (Arc::clone(bin), Arc::clone(count));
            discard_in(bin.id(), move || {
                counted.fetch_add(1, Ordering::SeqCst);
                if length > 1 {
                    chain(&next, length - 1, &counted);
                }
            });
            drop(bin.empty());
        }
        let (count, _) = counting();
        chain(&Arc::new(OpenBin::new(None)), 100_000, &count);
        assert_eq!(count.load(Ordering::SeqCst), 100_000);
    }

    #[test]
    fn a_panic_ends_at_its_value_and_the_others_are_dropped() {
        let (count, counted) = counting();
        let bin = OpenBin::<OnDrop>::new(None);
        for n in 0..9 {
            let counted = counted.clone();
            discard_in(bin.id(), move || {
                counted();
                assert_ne!(n % 3, 0, "a value's own");
            });
        }
        assert_eq!(count.load(Ordering::SeqCst), 0, "nothing is dropped before");
        drop(bin.empty());
        assert_eq!(count.load(Ordering::SeqCst), 9);
        discard_in(bin.id(), counted);
        drop(bin.empty());
        assert_eq!(count.load(Ordering::SeqCst), 10, "the bin works on");
    }

    #[test]
    fn a_panic_of_the_caller_loses_no_garbage() {
        let (count, counted) = counting();
        let bin = OpenBin::<OnDrop>::new(None);
        discard_in(bin.id(), counted);
        let garbage = bin.empty();
        let ended = catch_unwind(AssertUnwindSafe(move || {
            let _garbage = garbage;
            panic!("the caller's own");
        }));
        assert!(ended.is_err());
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_store_that_ends_drops_what_is_in_its_bin() {
        let (count, counted) = counting();
        let bin = OpenBin::<OnDrop>::new(None);
        discard_in(bin.id(), counted);
        drop(bin);
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn what_comes_after_its_store_is_gone_waits_for_another_store() {
        let (count, counted) = counting();
        let another = OpenBin::<u32>::new(None);
        let gone = OpenBin::<OnDrop>::new(None);
        let id = gone.id();
        drop(gone);
        discard_in(id, counted);
        drop(another.empty());
        // Another test's store may have taken it, and drop it only now.
        for _ in 0..1_000 {
            if count.load(Ordering::SeqCst) == 1 {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("it was not dropped");
    }

    #[test]
    fn a_store_may_end_while_its_garbage_is_dropped() {
        let (count, counted) = counting();
        let store = OpenBin::<OnDrop>::new(None);
        let (id, garbage) = (store.id(), |store: &OpenBin<OnDrop>| store.empty());
        discard_in(id, counted.clone());
        let last = Arc::new(Mutex::new(None));
        let taken = Arc::clone(&last);
        discard_in(id, move || {
            discard_in(id, counted.clone());
            let store = taken.lock().take();
            drop(store);
        });
        let garbage = garbage(&store);
        *last.lock() = Some(store);
        drop(garbage);
        assert_eq!(count.load(Ordering::SeqCst), 2);
        assert!(OPEN.read().as_ref().is_some_and(|open| !open.contains_key(&id)));
    }
}
