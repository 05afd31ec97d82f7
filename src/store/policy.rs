//! Which entry makes room: S3-FIFO, with lives by the price of an entry.
//!
//! Pure: it knows hashes, weights and prices, and no key, value, clock or lock. A hit never gets
//! here. It counts its uses beside the entry, up to [`MOST_USES`], and they are asked for when
//! the entry comes to the head of its queue.
//!
//! ```text
//!  new ─▶ probation ──used──▶ main ─▶ used, or has lives: once more through main
//!            │ not used         ▲  └─▶ neither: evicted
//!            ▼                  │
//!        evicted, its key ──asked for again
//!        is remembered
//! ```
//!
//! From "FIFO queues are all you need for cache eviction" (Yang and others, SOSP 2023): keys that
//! are asked for once, most keys of a scan, leave through the small queue and cost the others
//! no more than the room of that queue. This crate adds lives: an entry of the main queue whose
//! computation took longer than usual goes through the queue once more for each of its lives.
//!
//! Lives are bounded, because the client chooses what is slow. An entry that was used on probation
//! only may spend them in a small part of the main queue ([`KEPT_PART`]): a client that asks for
//! each of its slow keys twice in a row takes that part from the others, and no more. An entry
//! that was used in the main queue too has no such bound.

use super::ghosts::Ghosts;

/// How many uses of an entry count. It goes through the main queue once more for each.
pub(crate) const MOST_USES: u8 = 3;

/// The most lives.
const MOST_LIVES: u8 = 31;
/// How far a price is above the usual one before it gives lives, on the scale of [`Price`].
const NO_LIVES: u8 = 3;

/// The part of the bound that the entries on probation may take.
const PROBATION_PART: u64 = 10;
/// How many entries may be on probation in any case, as long as they take no more than half of
/// the bound: what was computed a moment ago is not to leave before its callers have read it.
const LEAST_ON_PROBATION: u64 = 64;

/// The part of the main queue that entries may take which stay for their price alone. A smaller
/// part saves less waiting, a larger one gives a client of slow keys more room; the figures are
/// in `docs/decisions/036-own-store.md`.
const KEPT_PART: u64 = 6;

/// How many entries one eviction lets go through a queue once more before it evicts what comes
/// next: other writers wait for it.
const MOST_PASSED_OVER: usize = 1024;

/// Nodes are allocated in pieces: to grow copies none of them.
const PIECE: usize = 512;

const NONE: u32 = u32::MAX;

/// Names the node of an entry, as long as the entry is in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeId(pub(crate) u32);

impl NodeId {
    /// The highest one. A billion entries have nodes of 20 GiB.
    pub(crate) const MOST: u32 = (1 << 30) - 1;
}

/// The computing time of an entry on a scale of quarters of a power of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Price(u8);

impl Price {
    pub(crate) fn of_micros(micros: u64) -> Self {
        let micros = u32::try_from(micros).unwrap_or(u32::MAX).max(1);
        let whole = micros.ilog2();
        // The two bits behind the first one.
        let quarters = ((u64::from(micros) << 2) >> whole) & 3;
        Self((whole * 4) as u8 + quarters as u8)
    }

    fn lives(self, usual: u8) -> u8 {
        self.0.saturating_sub(usual).saturating_sub(NO_LIVES).min(MOST_LIVES)
    }
}

/// What usual entries cost: follows the prices of new entries.
#[derive(Debug, Default)]
struct Usual {
    /// In 256ths of a step of [`Price`].
    level: u32,
    seen: u32,
}

impl Usual {
    /// How many entries it follows.
    const MOST_SEEN: u32 = 1024;

    fn note(&mut self, price: Price) {
        self.seen = (self.seen + 1).min(Self::MOST_SEEN);
        let (new, old) = (i64::from(price.0) * 256, i64::from(self.level));
        self.level = (old + (new - old) / i64::from(self.seen)) as u32;
    }

    fn price(&self) -> u8 {
        (self.level / 256) as u8
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    Probation,
    Main(Merit),
}

/// By what an entry has its place in the main queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Merit {
    /// It was used on probation, or asked for again soon after it had left.
    Promoted,
    /// For its price: it was not used since it was promoted.
    Price,
    /// It was used in the main queue.
    Use,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    hash: u32,
    weight: u32,
    previous: u32,
    next: u32,
    place: Place,
    price: Price,
    /// How often it was used and did not go through the main queue for it yet.
    uses: u8,
    lives: u8,
}

const FREE: Node = Node {
    hash: 0,
    weight: 0,
    previous: NONE,
    next: NONE,
    place: Place::Free,
    price: Price(0),
    uses: 0,
    lives: 0,
};

/// The nodes of all entries. Those of evicted entries are used again.
#[derive(Debug)]
struct Nodes {
    pieces: Vec<Box<[Node; PIECE]>>,
    /// How many were in use at once.
    begun: u32,
    /// The first of those that were in use and are not; they are linked by `next`.
    free: u32,
}

impl Nodes {
    const fn new() -> Self {
        Self { pieces: Vec::new(), begun: 0, free: NONE }
    }

    fn at(&self, id: u32) -> &Node {
        &self.pieces[id as usize / PIECE][id as usize % PIECE]
    }

    fn at_mut(&mut self, id: u32) -> &mut Node {
        &mut self.pieces[id as usize / PIECE][id as usize % PIECE]
    }

    fn take(&mut self, node: Node) -> u32 {
        let id = self.free;
        if id != NONE {
            self.free = self.at(id).next;
            *self.at_mut(id) = node;
            return id;
        }
        let id = self.begun;
        self.begun += 1;
        if id as usize / PIECE == self.pieces.len() {
            self.pieces.push(Box::new([FREE; PIECE]));
        }
        *self.at_mut(id) = node;
        id
    }

    fn free(&mut self, id: u32) {
        *self.at_mut(id) = Node { next: self.free, ..FREE };
        self.free = id;
    }
}

#[derive(Debug)]
struct Queue {
    head: u32,
    tail: u32,
    bytes: u64,
    entries: u64,
}

impl Queue {
    const EMPTY: Self = Self { head: NONE, tail: NONE, bytes: 0, entries: 0 };
}

/// The order in which entries leave.
#[derive(Debug)]
pub(crate) struct Policy {
    nodes: Nodes,
    probation: Queue,
    main: Queue,
    /// The bytes of the entries that are in the main queue for their price.
    kept_bytes: u64,
    ghosts: Ghosts,
    usual: Usual,
    max_bytes: u64,
    /// So many nodes have names.
    max_entries: u64,
    has_lives: bool,
}

/// Where the entry of a node stands: its hash leads to those that could be it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stand {
    pub(crate) hash: u32,
    pub(crate) node: NodeId,
}

impl Policy {
    pub(crate) fn new(max_bytes: u64, has_lives: bool) -> Self {
        Self {
            nodes: Nodes::new(),
            probation: Queue::EMPTY,
            main: Queue::EMPTY,
            kept_bytes: 0,
            ghosts: Ghosts::default(),
            usual: Usual::default(),
            max_bytes,
            max_entries: NodeId::MOST.into(),
            has_lives,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.probation.bytes + self.main.bytes
    }

    pub(crate) fn entries(&self) -> u64 {
        self.probation.entries + self.main.entries
    }

    /// Takes a new entry in.
    pub(crate) fn insert(&mut self, hash: u32, weight: u32, price: Price) -> NodeId {
        self.usual.note(price);
        let id = self.nodes.take(Node { hash, weight, price, ..FREE });
        let is_known = self.ghosts.take(hash);
        self.enter(id, if is_known { Place::Main(Merit::Promoted) } else { Place::Probation });
        NodeId(id)
    }

    /// Notes that another value has taken the place of an entry.
    pub(crate) fn replace(&mut self, node: NodeId, weight: u32, price: Price) {
        self.usual.note(price);
        let node = self.nodes.at_mut(node.0);
        let before = std::mem::replace(&mut node.weight, weight);
        node.price = price;
        let place = node.place;
        let shifted = |bytes: u64| bytes - u64::from(before) + u64::from(weight);
        let queue = self.queue(place);
        queue.bytes = shifted(queue.bytes);
        if place == Place::Main(Merit::Price) {
            self.kept_bytes = shifted(self.kept_bytes);
        }
    }

    /// Takes an entry out that leaves for a reason of its own.
    pub(crate) fn remove(&mut self, node: NodeId) {
        self.unlink(node.0);
        self.nodes.free(node.0);
    }

    pub(crate) fn clear(&mut self) {
        self.nodes = Nodes::new();
        (self.probation, self.main, self.kept_bytes) = (Queue::EMPTY, Queue::EMPTY, 0);
        self.ghosts.clear();
    }

    /// Takes out the entry that makes room, if a bound is passed; never `newest`. `take_uses`
    /// returns how often an entry was used since it was asked before.
    pub(crate) fn evict(
        &mut self,
        newest: NodeId,
        mut take_uses: impl FnMut(Stand) -> u8,
    ) -> Option<Stand> {
        if self.bytes() <= self.max_bytes && self.entries() <= self.max_entries {
            return None;
        }
        for passed_over in 0.. {
            let id = self.leaving(newest)?;
            let place = self.nodes.at(id).place;
            let stand = Stand { hash: self.nodes.at(id).hash, node: NodeId(id) };
            self.unlink(id);
            if stand.node == newest {
                self.enter(id, place);
                continue;
            }
            let used = take_uses(stand);
            if passed_over < MOST_PASSED_OVER
                && let Some(merit) = self.merit(id, place, used)
            {
                self.enter(id, Place::Main(merit));
                continue;
            }
            if place == Place::Probation {
                self.ghosts.put(stand.hash, self.entries() as usize);
            }
            self.nodes.free(id);
            return Some(stand);
        }
        None
    }

    /// Returns the entries of up to `most` nodes from `from` on, and where to go on; `None` after
    /// the last one.
    pub(crate) fn walk(&self, from: u32, most: u32) -> Option<(Vec<Stand>, u32)> {
        let until = from.saturating_add(most).min(self.nodes.begun);
        let held = (from..until).filter(|id| self.nodes.at(*id).place != Place::Free);
        let of = |id| Stand { hash: self.nodes.at(id).hash, node: NodeId(id) };
        (from < until).then(|| (held.map(of).collect(), until))
    }

    /// Returns the head of the queue that is next, if it has another entry than `newest`.
    fn leaving(&self, newest: NodeId) -> Option<u32> {
        let least = self.bytes() / self.entries().max(1) * LEAST_ON_PROBATION;
        let share = (self.max_bytes / PROBATION_PART).max(least.min(self.max_bytes / 2));
        let has_others =
            |queue: &Queue| queue.head != NONE && (queue.head, queue.tail) != (newest.0, newest.0);
        match (has_others(&self.probation), has_others(&self.main)) {
            (true, true) if self.probation.bytes > share => Some(self.probation.head),
            (_, true) => Some(self.main.head),
            (true, false) => Some(self.probation.head),
            (false, false) => None,
        }
    }

    /// Judges an entry that was at the head of its queue. Returns by what it deserves a place in
    /// the main queue, if it does.
    fn merit(&mut self, id: u32, place: Place, used: u8) -> Option<Merit> {
        let (usual, has_lives) = (self.usual.price(), self.has_lives);
        let room = (self.main.bytes / KEPT_PART).saturating_sub(self.kept_bytes);
        let node = self.nodes.at_mut(id);
        let uses = (node.uses + used).min(MOST_USES);
        if uses > 0 {
            node.lives = if has_lives { node.price.lives(usual) } else { 0 };
            // To be taken over is the use that got it there.
            let (left, merit) = match place {
                Place::Main(_) => (uses - 1, Merit::Use),
                Place::Probation | Place::Free => (0, Merit::Promoted),
            };
            node.uses = left;
            return Some(merit);
        }
        let merit = match place {
            Place::Main(Merit::Use) => Merit::Use,
            Place::Main(_) if u64::from(node.weight) <= room => Merit::Price,
            Place::Main(_) | Place::Probation | Place::Free => return None,
        };
        node.lives = node.lives.checked_sub(1)?;
        Some(merit)
    }

    fn queue(&mut self, place: Place) -> &mut Queue {
        match place {
            Place::Main(_) => &mut self.main,
            Place::Probation | Place::Free => &mut self.probation,
        }
    }

    /// Appends a node that is in no queue.
    fn enter(&mut self, id: u32, place: Place) {
        let tail = self.queue(place).tail;
        let node = self.nodes.at_mut(id);
        (node.previous, node.next, node.place) = (tail, NONE, place);
        let weight = u64::from(node.weight);
        if tail != NONE {
            self.nodes.at_mut(tail).next = id;
        }
        let queue = self.queue(place);
        queue.tail = id;
        if tail == NONE {
            queue.head = id;
        }
        queue.bytes += weight;
        queue.entries += 1;
        if place == Place::Main(Merit::Price) {
            self.kept_bytes += weight;
        }
    }

    fn unlink(&mut self, id: u32) {
        let Node { previous, next, place, weight, .. } = *self.nodes.at(id);
        if previous != NONE {
            self.nodes.at_mut(previous).next = next;
        }
        if next != NONE {
            self.nodes.at_mut(next).previous = previous;
        }
        let queue = self.queue(place);
        if previous == NONE {
            queue.head = next;
        }
        if next == NONE {
            queue.tail = previous;
        }
        queue.bytes -= u64::from(weight);
        queue.entries -= 1;
        if place == Place::Main(Merit::Price) {
            self.kept_bytes -= u64::from(weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_never_more_entries_than_names_of_nodes() {
        let mut policy = Policy::new(u64::MAX, true);
        policy.max_entries = 4;
        for hash in 0..100 {
            let node = policy.insert(hash, 1, Price::default());
            while policy.evict(node, |_| MOST_USES).is_some() {}
            assert!(policy.entries() <= 4 && node.0 <= 4, "{hash}: {node:?}");
        }
        assert_eq!(policy.entries(), 4);
    }
}
