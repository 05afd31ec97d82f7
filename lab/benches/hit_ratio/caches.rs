//! Caches that hold so many entries, and are asked for one key after the other.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;

use crate::store::policy::{MOST_USES, NodeId, Policy, Price};

type Map<V> = HashMap<u64, V, foldhash::fast::FixedState>;

pub(crate) trait Cache {
    /// Returns whether the key is held. If not, it is taken in, and was computed in so many
    /// microseconds.
    fn ask(&mut self, key: u64, micros: u64) -> bool;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Lru,
    TinyLfu,
    QuickCache,
    Sieve,
    S3Fifo,
    Ours,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] =
        [Self::Lru, Self::TinyLfu, Self::QuickCache, Self::Sieve, Self::S3Fifo, Self::Ours];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lru => "LRU",
            Self::TinyLfu => "moka, TinyLFU",
            Self::QuickCache => "quick_cache",
            Self::Sieve => "SIEVE",
            Self::S3Fifo => "S3-FIFO",
            Self::Ours => "ours, by price",
        }
    }

    pub(crate) fn with(self, entries: usize) -> Box<dyn Cache> {
        match self {
            Self::Lru => Box::new(Lru { held: Map::default(), order: VecDeque::new(), entries }),
            Self::TinyLfu => {
                Box::new(Moka(moka::sync::Cache::builder().max_capacity(entries as u64).build(), 0))
            }
            Self::QuickCache => Box::new(QuickCache(quick_cache::unsync::Cache::new(entries))),
            Self::Sieve => Box::new(Sieve::new(entries)),
            Self::S3Fifo => Box::new(Ours::new(entries, false)),
            Self::Ours => Box::new(Ours::new(entries, true)),
        }
    }
}

/// The exact order of uses. Older uses of a key stay in the queue until they are at its head.
struct Lru {
    held: Map<u64>,
    order: VecDeque<(u64, u64)>,
    entries: usize,
}

impl Cache for Lru {
    fn ask(&mut self, key: u64, _: u64) -> bool {
        let turn = self.order.back().map_or(0, |(_, turn)| turn + 1);
        self.order.push_back((key, turn));
        let is_held = self.held.insert(key, turn).is_some();
        while self.held.len() > self.entries {
            let (key, turn) = self.order.pop_front().expect("one use for each that is held");
            if self.held.get(&key) == Some(&turn) {
                self.held.remove(&key);
            }
        }
        is_held
    }
}

/// moka tidies up by itself now and then; a cache that is asked without pause has to be told.
struct Moka(moka::sync::Cache<u64, ()>, u32);

impl Cache for Moka {
    fn ask(&mut self, key: u64, _: u64) -> bool {
        let is_held = self.0.get(&key).is_some();
        if !is_held {
            self.0.insert(key, ());
        }
        self.1 += 1;
        if self.1.is_multiple_of(16) {
            self.0.run_pending_tasks();
        }
        is_held
    }
}

struct QuickCache(quick_cache::unsync::Cache<u64, ()>);

impl Cache for QuickCache {
    fn ask(&mut self, key: u64, _: u64) -> bool {
        let is_held = self.0.get(&key).is_some();
        if !is_held {
            self.0.insert(key, ());
        }
        is_held
    }
}

/// "SIEVE is simpler than LRU" (Zhang and others, NSDI 2024): one queue, and a hand that goes
/// from the oldest entry to the newest and evicts the first that was not visited.
struct Sieve {
    slots: Vec<SieveSlot>,
    held: Map<usize>,
    oldest: usize,
    newest: usize,
    hand: usize,
    entries: usize,
}

struct SieveSlot {
    key: u64,
    is_visited: bool,
    newer: usize,
    older: usize,
}

const NONE: usize = usize::MAX;

impl Sieve {
    fn new(entries: usize) -> Self {
        let held = Map::default();
        Self { slots: Vec::new(), held, oldest: NONE, newest: NONE, hand: NONE, entries }
    }

    /// Takes one entry out, and returns its slot.
    fn evict(&mut self) -> usize {
        let mut at = if self.hand == NONE { self.oldest } else { self.hand };
        while std::mem::take(&mut self.slots[at].is_visited) {
            at = if self.slots[at].newer == NONE { self.oldest } else { self.slots[at].newer };
        }
        let SieveSlot { key, newer, older, .. } = self.slots[at];
        self.hand = newer;
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older].newer = newer,
        }
        self.held.remove(&key);
        at
    }
}

impl Cache for Sieve {
    fn ask(&mut self, key: u64, _: u64) -> bool {
        if let Some(at) = self.held.get(&key) {
            self.slots[*at].is_visited = true;
            return true;
        }
        let is_full = self.held.len() == self.entries;
        let free = is_full.then(|| self.evict());
        let slot = SieveSlot { key, is_visited: false, newer: NONE, older: self.newest };
        let at = match free {
            Some(at) => {
                self.slots[at] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        match self.newest {
            NONE => self.oldest = at,
            newest => self.slots[newest].newer = at,
        }
        self.newest = at;
        self.held.insert(key, at);
        false
    }
}

/// The product's policy, with a map for its table. An entry weighs 1.
struct Ours {
    policy: Policy,
    held: Map<(NodeId, u8)>,
    /// The key of each node.
    keys: Vec<u64>,
}

impl Ours {
    fn new(entries: usize, has_lives: bool) -> Self {
        let policy = Policy::new(entries as u64, has_lives);
        Self { policy, held: Map::default(), keys: Vec::new() }
    }
}

impl Cache for Ours {
    fn ask(&mut self, key: u64, micros: u64) -> bool {
        if let Some((_, uses)) = self.held.get_mut(&key) {
            *uses = (*uses + 1).min(MOST_USES);
            return true;
        }
        let hash = foldhash::fast::FixedState::default().hash_one(key) as u32;
        let node = self.policy.insert(hash, 1, Price::of_micros(micros));
        let at = node.0 as usize;
        self.keys.resize(self.keys.len().max(at + 1), 0);
        self.keys[at] = key;
        self.held.insert(key, (node, 0));
        let (keys, held) = (&self.keys, &mut self.held);
        let evicted = self.policy.evict(node, |stand| {
            let held = held.get_mut(&keys[stand.node.0 as usize]);
            held.map_or(0, |(_, uses)| std::mem::take(uses))
        });
        if let Some(evicted) = evicted {
            self.held.remove(&self.keys[evicted.node.0 as usize]);
        }
        false
    }
}
