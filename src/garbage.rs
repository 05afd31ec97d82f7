//! Entries that have left the store, on their way to being dropped.
//!
//! The `Drop` of a value is code of the user: it may sleep, panic, or call the
//! cache again. The store's library drops what it evicts under a lock of its
//! own, and what it replaces wherever its epochs are collected, perhaps inside
//! the store of another cache. So the library never drops an entry. Whatever it
//! lets go of goes into the [`Bin`] of its store, and the operations of the
//! store that write take it out again, as [`Garbage`]:
//!
//! ```text
//! library drops a Shelved ──▶ Bin ──▶ Garbage ──▶ user's Drop
//! (under its locks)                   (no lock is held)
//! ```
//!
//! A read never empties the bin, so a hit runs no `Drop` but that of the entry
//! it has asked for. The next write, `stats()`, or the tidying task does.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::entry::Entry;

/// Entries that one store has let go of.
pub(crate) struct Bin<V> {
    contents: Mutex<Contents<V>>,
}

struct Contents<V> {
    entries: Vec<Entry<V>>,
    /// The store is gone: nobody will empty this bin.
    is_closed: bool,
}

impl<V: Send + Sync + 'static> Bin<V> {
    pub(crate) fn new() -> Arc<Self> {
        let contents = Contents { entries: Vec::new(), is_closed: false };
        Arc::new(Self { contents: Mutex::new(contents) })
    }

    /// Takes over an entry that may not be dropped here. Runs no code of the
    /// user's while a store lives.
    pub(crate) fn put(&self, entry: Entry<V>) {
        let mut contents = self.contents.lock();
        if contents.is_closed {
            drop(contents);
            orphans::put(Box::new(entry));
        } else {
            contents.entries.push(entry);
        }
    }

    /// Takes out what is there, to be dropped by the caller once it holds no
    /// lock.
    pub(crate) fn empty(self: &Arc<Self>) -> Garbage<V> {
        let entries = std::mem::take(&mut self.contents.lock().entries);
        Garbage { entries, orphans: orphans::take(), bin: Some(Arc::clone(self)) }
    }

    /// Says that the store is gone, and empties the bin for the last time.
    pub(crate) fn close(self: &Arc<Self>) -> Garbage<V> {
        self.contents.lock().is_closed = true;
        self.empty()
    }

    fn put_back(&self, entries: Vec<Entry<V>>) {
        // Also into a closed bin: the caller is about to empty it.
        self.contents.lock().entries.extend(entries);
    }

    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// What an operation of the store has left behind. Dropping it runs the `Drop`
/// of values: hold no lock, and publish what others wait for first.
///
/// A panic in a value's `Drop` ends here. It concerns neither the caller, which
/// has perhaps evicted a value of another key, nor the other entries.
#[must_use = "dropping it runs code of the user's: say when"]
pub(crate) struct Garbage<V: Send + Sync + 'static> {
    entries: Vec<Entry<V>>,
    orphans: Vec<orphans::Orphan>,
    bin: Option<Arc<Bin<V>>>,
}

impl<V: Send + Sync + 'static> Garbage<V> {
    /// Garbage of a store that drops its entries itself.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { entries: Vec::new(), orphans: Vec::new(), bin: None }
    }

    /// Takes over what another operation of the same store has left behind.
    pub(crate) fn extend(&mut self, mut other: Self) {
        self.entries.append(&mut other.entries);
        self.orphans.append(&mut other.orphans);
    }
}

impl<V: Send + Sync + 'static> Drop for Garbage<V> {
    fn drop(&mut self) {
        self.orphans.drain(..).for_each(drop_caught);
        let mut entries = std::mem::take(&mut self.entries);
        let Some(bin) = self.bin.take().filter(|_| !entries.is_empty()) else { return };
        // A `Drop` that writes to its own cache gets here again. Its garbage is
        // left to the loop below, further out on this thread: a chain of values
        // that replace each other must not nest on the stack.
        let Some(emptying) = Emptying::begin(bin.id()) else { return bin.put_back(entries) };
        while !entries.is_empty() {
            entries.drain(..).for_each(drop_caught);
            if emptying.is_wanted_again() {
                entries = std::mem::take(&mut bin.contents.lock().entries);
            }
        }
    }
}

fn drop_caught<T>(value: T) {
    // The panic hook has reported it; the payload may panic when dropped, too.
    let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) else { return };
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
}

impl<V: Send + Sync + 'static> fmt::Debug for Garbage<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Garbage").field("entries", &self.entries.len()).finish_non_exhaustive()
    }
}

thread_local! {
    /// The bins whose garbage this thread is dropping, and whether a `Drop` has
    /// put more into them.
    static EMPTYING: RefCell<Vec<(usize, bool)>> = const { RefCell::new(Vec::new()) };
}

/// The claim of this thread to drop the garbage of one bin.
struct Emptying(usize);

impl Emptying {
    /// `None` if this thread does so already, further out.
    fn begin(bin: usize) -> Option<Self> {
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

/// A bin that is open as long as its store is there. Declared after the
/// library's cache, so that what the cache drops last is in it.
#[derive(Debug)]
pub(crate) struct OpenBin<V: Send + Sync + 'static>(Arc<Bin<V>>);

impl<V: Send + Sync + 'static> OpenBin<V> {
    pub(crate) fn new() -> Self {
        orphans::open();
        Self(Bin::new())
    }
}

impl<V: Send + Sync + 'static> std::ops::Deref for OpenBin<V> {
    type Target = Arc<Bin<V>>;

    fn deref(&self) -> &Arc<Bin<V>> {
        &self.0
    }
}

impl<V: Send + Sync + 'static> Drop for OpenBin<V> {
    fn drop(&mut self) {
        let mut garbage = self.0.close();
        garbage.orphans.append(&mut orphans::close());
        drop(garbage);
    }
}

impl<V> fmt::Debug for Bin<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bin").field("entries", &self.contents.lock().entries.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;
    use crate::engine::time::Tick;
    use crate::policy::{Lifetimes, Window};

    type Value = Box<dyn Fn() + Send + Sync>;

    /// Calls its closure when it is dropped.
    struct OnDrop(Value);

    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0();
        }
    }

    fn entry(on_drop: impl Fn() + Send + Sync + 'static) -> Entry<OnDrop> {
        let lifetimes = Lifetimes {
            ttl: Duration::from_secs(1),
            stale_for: Duration::ZERO,
            stale_if_error: Duration::ZERO,
        };
        let window = Window::new(Tick::from_nanos(0), lifetimes, Duration::ZERO);
        Entry::new(OnDrop(Box::new(on_drop)), window, Box::default(), 0)
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
        fn chain(bin: &Arc<Bin<OnDrop>>, length: usize, count: &Arc<AtomicUsize>) {
            let (next, counted) = (Arc::clone(bin), Arc::clone(count));
            bin.put(entry(move || {
                counted.fetch_add(1, Ordering::SeqCst);
                if length > 1 {
                    chain(&next, length - 1, &counted);
                }
            }));
            drop(bin.empty());
        }
        let (count, _) = counting();
        chain(&Bin::new(), 100_000, &count);
        assert_eq!(count.load(Ordering::SeqCst), 100_000);
    }

    #[test]
    fn a_panic_ends_at_its_value_and_the_others_are_dropped() {
        let (count, counted) = counting();
        let bin = Bin::new();
        for n in 0..9 {
            let counted = counted.clone();
            bin.put(entry(move || {
                counted();
                assert_ne!(n % 3, 0, "a value's own");
            }));
        }
        drop(bin.empty());
        assert_eq!(count.load(Ordering::SeqCst), 9);
        bin.put(entry(counted));
        drop(bin.empty());
        assert_eq!(count.load(Ordering::SeqCst), 10, "the bin works on");
    }

    #[test]
    fn a_panic_of_the_caller_loses_no_garbage() {
        let (count, counted) = counting();
        let bin = Bin::new();
        bin.put(entry(counted));
        let garbage = bin.empty();
        let ended = catch_unwind(AssertUnwindSafe(move || {
            let _garbage = garbage;
            panic!("the caller's own");
        }));
        assert!(ended.is_err());
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn what_comes_after_its_store_is_gone_waits_for_another_store() {
        let (count, counted) = counting();
        let another = OpenBin::<OnDrop>::new();
        let gone = OpenBin::<OnDrop>::new();
        let bin = Arc::clone(&gone);
        drop(gone);
        bin.put(entry(counted));
        // Another test's store may have emptied it, but not this call.
        drop(another.empty());
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
        let store = OpenBin::<OnDrop>::new();
        let bin = Arc::clone(&store);
        let store = Mutex::new(Some(store));
        bin.put(entry(counted.clone()));
        let inner = Arc::clone(&bin);
        bin.put(entry(move || {
            inner.put(entry(counted.clone()));
            let store = store.lock().take();
            drop(store);
        }));
        drop(bin.empty());
        assert_eq!(count.load(Ordering::SeqCst), 2);
        assert_eq!(Arc::strong_count(&bin), 1, "an entry keeps its bin");
    }
}
