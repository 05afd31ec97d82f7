//! The store of this process: moka, bounded by weight.
//!
//! moka's own expiry is not used: its clock is not ours, it costs a timer node
//! an entry, and a hit three tenths of a look-up. [`decide`](crate::freshness::decide)
//! alone says what may be served. What is past its last stale window makes room
//! for others, and [`LocalStore::sweep`] frees it within half a minute.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use moka::notification::RemovalCause;
use moka::ops::compute::Op;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use crate::entry::Entry;
use crate::flight::ports::Store;
use crate::key::Key;

type Hasher = foldhash::fast::RandomState;
type MokaEntry<V> = Arc<Entry<V>>;

/// How many entries a sweep judges before it lets other tasks run.
const SWEEP_BATCH: usize = 512;

/// Which entry makes room at the bound on memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

#[derive(Clone, Debug)]
pub(crate) struct LocalSettings {
    pub(crate) name: String,
    pub(crate) max_bytes: u64,
    pub(crate) eviction: Eviction,
}

#[derive(Debug)]
pub(crate) struct LocalStore<V: Send + Sync + 'static> {
    cache: Cache<Key, MokaEntry<V>, Hasher>,
    evictions: Arc<AtomicU64>,
}

impl<V: Send + Sync + 'static> LocalStore<V> {
    pub(crate) fn new(settings: &LocalSettings) -> Self {
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
            .weigher(|_, entry: &MokaEntry<V>| entry.weight)
            .eviction_listener(move |_, _, cause| {
                if cause == RemovalCause::Size {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            })
            .build_with_hasher(Hasher::default());
        Self { cache, evictions }
    }

    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<MokaEntry<V>> {
        self.cache.get(key)
    }

    /// Replaces the entry by what `change` makes of it, serial with fills.
    /// `change` must not run code of the user's: the key is locked.
    pub(crate) fn update(
        &self,
        key: &Key,
        change: impl FnOnce(Option<&MokaEntry<V>>) -> Option<MokaEntry<V>>,
    ) -> bool {
        let result = self.cache.entry(key.clone()).and_compute_with(|found| {
            match change(found.as_ref().map(moka::Entry::value)) {
                Some(entry) => Op::Put(entry),
                None => Op::Nop,
            }
        });
        use moka::ops::compute::CompResult::{Inserted, ReplacedWith};
        matches!(result, Inserted(_) | ReplacedWith(_))
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

    /// Applies what moka has put off: evictions, expiry, counts.
    pub(crate) fn settle(&self) {
        self.cache.run_pending_tasks();
    }

    /// Removes what `is_dead` says. moka evicts only while it is used; without
    /// this a quiet cache would keep what nobody may be served.
    ///
    /// Cancel safe: stops between two entries.
    pub(crate) async fn sweep(&self, is_dead: impl Fn(&Entry<V>) -> bool) {
        for (n, (key, entry)) in self.cache.iter().enumerate() {
            if is_dead(&entry) {
                self.remove_exactly(&key, &entry);
            }
            if n % SWEEP_BATCH == SWEEP_BATCH - 1 {
                tokio::task::yield_now().await;
            }
        }
        self.settle();
    }
}

impl<V: Send + Sync + 'static> Store<V> for LocalStore<V> {
    fn fill(&self, key: &Key, entry: MokaEntry<V>, allowed: &dyn Fn() -> bool) -> bool {
        if !self.update(key, |_| allowed().then_some(Arc::clone(&entry))) {
            return false;
        }
        // Once more: a `clear` between the first time and the insertion has not
        // seen the entry.
        let stays = allowed();
        if !stays {
            self.remove_exactly(key, &entry);
        }
        stays
    }

    fn remove(&self, key: &Key) -> bool {
        let result = self.cache.entry(key.clone()).and_compute_with(|found| match found {
            Some(_) => Op::Remove,
            None => Op::Nop,
        });
        matches!(result, moka::ops::compute::CompResult::Removed(_))
    }

    fn clear(&self) {
        self.cache.invalidate_all();
    }

    fn remove_exactly(&self, key: &Key, entry: &MokaEntry<V>) {
        self.cache.entry(key.clone()).and_compute_with(|found| match found {
            Some(found) if Arc::ptr_eq(found.value(), entry) => Op::Remove,
            _ => Op::Nop,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock;
    use crate::freshness::{Lifetimes, Window};

    fn store(max_bytes: u64) -> (LocalStore<u32>, Clock) {
        let clock = Clock::runtime();
        let settings =
            LocalSettings { name: "test".into(), max_bytes, eviction: Eviction::default() };
        (LocalStore::new(&settings), clock)
    }

    fn entry(clock: &Clock, value: u32, weight: usize) -> MokaEntry<u32> {
        let lifetimes = Lifetimes {
            ttl: Duration::from_secs(60),
            stale_for: Duration::ZERO,
            stale_if_error: Duration::ZERO,
        };
        let window = Window::new(clock.now(), lifetimes, Duration::ZERO);
        Arc::new(Entry::new(value, window, Box::default(), 0).with_weight(weight, 1))
    }

    #[test]
    fn a_fill_that_is_not_allowed_leaves_what_was_there() {
        let (store, clock) = store(100);
        let key = Key::from("k");
        assert!(store.fill(&key, entry(&clock, 1, 1), &|| true));
        assert!(!store.fill(&key, entry(&clock, 2, 1), &|| false));
        assert_eq!(store.get(key.as_bytes()).unwrap().value, 1);
    }

    #[test]
    fn a_new_entry_is_always_taken_and_the_least_recently_used_one_goes() {
        let (store, clock) = store(10);
        for n in 0..100_u32 {
            store.fill(&n.into(), entry(&clock, n, 1), &|| true);
            store.settle();
            assert!(store.get(Key::from(n).as_bytes()).is_some(), "entry {n}");
        }
        assert_eq!(store.entries(), 10);
        assert_eq!(store.evictions(), 90);
    }

    #[tokio::test]
    async fn a_sweep_removes_what_is_dead_and_nothing_else() {
        let (store, clock) = store(10_000);
        for n in 0..2000_u32 {
            store.fill(&n.into(), entry(&clock, n, 1), &|| true);
        }
        store.sweep(|entry| entry.value % 2 == 0).await;
        assert_eq!(store.entries(), 1000);
        assert!(store.get(Key::from(1_u32).as_bytes()).is_some());
        assert!(store.get(Key::from(2_u32).as_bytes()).is_none());
    }
}
