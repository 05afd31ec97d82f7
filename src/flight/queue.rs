//! The queue for places, with a line for each client.
//!
//! Free places are handed out round-robin: each client in its turn, and within a client by rank.
//! A client whose line was empty gets the last turn, as does one that has just been served. So a
//! client waits for at most one computation of each other client in the queue, however many
//! keys the others ask for.
//!
//! A client has at most seven eighths of the places, so that one client never has all of them.
//! Computations without a client share one line, and have no such bound.
//!
//! A client is known here as long as it has a place or waits for one. Each step costs
//! O(log n), for n lines and calls in the queue.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

use crate::flight::client_key::ClientKey;
use crate::sync::RandomState;

/// Maps smaller than this are not worth shrinking.
const LEAST_CAPACITY: usize = 64;

pub(super) fn shrink<K: Eq + Hash, T>(map: &mut HashMap<K, T, RandomState>) {
    let len = map.len();
    if map.capacity() > LEAST_CAPACITY.max(len * 4) {
        map.shrink_to(len * 2);
    }
}

/// Returns how many of `max` places a client may have.
fn max_of_client(max: usize) -> usize {
    (max - max.div_ceil(8)).max(1)
}

/// A call in the queue: its rank, and its id.
pub(super) type Waiting = (u64, u64);

/// The calls that wait for a place, and how many places each client has.
#[derive(Debug)]
pub(super) struct Queue {
    /// The most places of one client.
    max_of_client: usize,
    lines: HashMap<Option<ClientKey>, Line, RandomState>,
    /// The clients that wait and may have one more place, the next one first.
    turns: BTreeMap<u64, Option<ClientKey>>,
    last_turn: u64,
}

#[derive(Debug, Default)]
struct Line {
    waiting: BTreeSet<Waiting>,
    /// The places of the client.
    placed: usize,
    /// Its turn, if it is among `turns`.
    turn: Option<u64>,
}

impl Queue {
    /// Makes the queue for `max` places.
    pub(super) fn new(max: usize) -> Self {
        Self {
            max_of_client: max_of_client(max),
            lines: HashMap::default(),
            turns: BTreeMap::new(),
            last_turn: 0,
        }
    }

    /// Makes it the queue for `max` places. A client that has more than its share keeps them. Costs
    /// a step for each client.
    pub(super) fn resize(&mut self, max: usize) {
        self.max_of_client = max_of_client(max);
        let clients: Vec<Option<ClientKey>> = self.lines.keys().copied().collect();
        clients.into_iter().for_each(|client| self.change(client, |_, _| {}));
    }

    fn has_room(&self, client: Option<ClientKey>, placed: usize) -> bool {
        client.is_none() || placed < self.max_of_client
    }

    /// Returns whether a call may have a free place now: its client has room, and no other call
    /// comes before it.
    pub(super) fn admits(&self, client: Option<ClientKey>, id: u64) -> bool {
        let placed = self.lines.get(&client).map_or(0, |line| line.placed);
        self.has_room(client, placed) && self.first().is_none_or(|(_, (_, first))| first == id)
    }

    fn first(&self) -> Option<(Option<ClientKey>, Waiting)> {
        let (_, client) = self.turns.first_key_value()?;
        let first = self.lines.get(client)?.waiting.first()?;
        Some((*client, *first))
    }

    /// Takes the next call out of the queue. Its client has the last turn now.
    pub(super) fn pop_first(&mut self) -> Option<Waiting> {
        let (client, waiting) = self.first()?;
        self.change(client, |line, turns| {
            line.turn.take().map(|turn| turns.remove(&turn));
            line.waiting.remove(&waiting);
        });
        Some(waiting)
    }

    pub(super) fn insert(&mut self, client: Option<ClientKey>, waiting: Waiting) {
        self.change(client, |line, _| {
            line.waiting.insert(waiting);
        });
    }

    pub(super) fn remove(&mut self, client: Option<ClientKey>, waiting: Waiting) {
        self.change(client, |line, _| {
            line.waiting.remove(&waiting);
        });
    }

    /// Counts a place that the client has now.
    pub(super) fn take_place(&mut self, client: Option<ClientKey>) {
        self.change(client, |line, _| line.placed += 1);
    }

    /// Counts a place that the client has no more.
    pub(super) fn return_place(&mut self, client: Option<ClientKey>) {
        self.change(client, |line, _| line.placed = line.placed.saturating_sub(1));
    }

    /// Changes the line of a client. Then it has a turn if it waits and has room, and is
    /// forgotten if it neither waits nor has a place.
    fn change(
        &mut self,
        client: Option<ClientKey>,
        change: impl FnOnce(&mut Line, &mut BTreeMap<u64, Option<ClientKey>>),
    ) {
        let mut line = self.lines.remove(&client).unwrap_or_default();
        change(&mut line, &mut self.turns);
        let is_due = !line.waiting.is_empty() && self.has_room(client, line.placed);
        match line.turn {
            Some(turn) if !is_due => {
                self.turns.remove(&turn);
                line.turn = None;
            }
            None if is_due => {
                self.last_turn += 1;
                self.turns.insert(self.last_turn, client);
                line.turn = Some(self.last_turn);
            }
            _ => {}
        }
        if line.placed > 0 || !line.waiting.is_empty() {
            self.lines.insert(client, line);
        }
    }

    /// Returns the ids of all calls in the queue.
    pub(super) fn ids(&self) -> impl Iterator<Item = u64> {
        self.lines.values().flat_map(|line| line.waiting.iter().map(|(_, id)| *id))
    }

    /// Returns whether each client with room has a turn, and each known client has a request.
    #[cfg(all(test, stampede_model))]
    pub(super) fn assert_consistent(&self, own: &[Option<ClientKey>]) {
        for (client, line) in &self.lines {
            let placed = own.iter().filter(|other| *other == client).count();
            assert_eq!(line.placed, placed, "a place counts for another client");
            assert!(self.has_room(*client, placed.saturating_sub(1)), "more than its share");
            let is_due = !line.waiting.is_empty() && self.has_room(*client, placed);
            assert_eq!(line.turn.is_some(), is_due, "a line and its turn differ");
            let turn = line.turn.map(|turn| self.turns.get(&turn));
            assert!(turn.is_none_or(|turn| turn == Some(client)), "the turn of another client");
            assert!(placed > 0 || !line.waiting.is_empty(), "a client is known in vain");
        }
        assert!(own.iter().all(|client| self.lines.contains_key(client)), "a line is lost");
        let due = self.lines.values().filter(|line| line.turn.is_some()).count();
        assert_eq!(self.turns.len(), due, "a turn without a line");
    }

    /// Returns whether a call could have a free place now.
    #[cfg(all(test, stampede_model))]
    pub(super) fn is_due(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Returns memory after a crowd has gone.
    pub(super) fn shrink(&mut self) {
        shrink(&mut self.lines);
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    const A: Option<ClientKey> = Some(ClientKey(NonZeroU64::MIN));
    const B: Option<ClientKey> = Some(ClientKey(NonZeroU64::MAX));

    /// A queue for 8 places, with calls of these clients in this order.
    fn queue(clients: &[Option<ClientKey>]) -> Queue {
        let mut queue = Queue::new(8);
        for (client, id) in clients.iter().zip(1..) {
            queue.insert(*client, (id, id));
        }
        queue
    }

    fn order(queue: &mut Queue) -> Vec<u64> {
        std::iter::from_fn(|| queue.pop_first().map(|(_, id)| id)).collect()
    }

    #[test]
    fn clients_are_served_in_turns_and_each_by_rank() {
        assert_eq!(order(&mut queue(&[A, A, A, B, None, B])), [1, 4, 5, 2, 6, 3]);
        let mut late = queue(&[A, A]);
        late.insert(A, (0, 9));
        assert_eq!(order(&mut late), [9, 1, 2], "an old rank comes first");
    }

    #[test]
    fn a_new_client_comes_after_those_that_wait_already() {
        let mut queue = queue(&[A, A, A]);
        assert_eq!(queue.pop_first(), Some((1, 1)));
        queue.insert(B, (9, 9));
        assert_eq!(order(&mut queue), [2, 9, 3]);
    }

    #[test]
    fn a_client_with_seven_of_eight_places_has_no_turn_until_it_returns_one() {
        let mut queue = queue(&[A, A]);
        (0..7).for_each(|_| queue.take_place(A));
        assert!(!queue.admits(A, 1), "seven are all that it may have");
        assert!(queue.admits(B, 9) && queue.admits(None, 9));
        assert_eq!(queue.pop_first(), None);
        queue.return_place(A);
        assert!(queue.admits(A, 1) && !queue.admits(B, 9));
        assert_eq!(queue.pop_first(), Some((1, 1)));
    }

    #[test]
    fn a_client_with_more_than_its_share_of_fewer_places_waits_until_it_has_less() {
        let mut queue = queue(&[A, A]);
        (0..4).for_each(|_| queue.take_place(A));
        queue.resize(4);
        assert_eq!(queue.pop_first(), None, "three of four are all that it may have");
        queue.resize(8);
        assert_eq!(queue.pop_first(), Some((1, 1)));
        queue.resize(4);
        (0..2).for_each(|_| queue.return_place(A));
        assert_eq!(queue.pop_first(), Some((2, 2)));
    }

    #[test]
    fn computations_without_a_client_may_have_all_places() {
        let mut queue = queue(&[None]);
        (0..8).for_each(|_| queue.take_place(None));
        assert_eq!(queue.pop_first(), Some((1, 1)));
    }

    #[test]
    fn each_client_may_have_one_place_whatever_the_bound() {
        for (max, of_client) in [(1, 1), (2, 1), (8, 7), (9, 7), (16, 14), (1024, 896)] {
            assert_eq!(Queue::new(max).max_of_client, of_client, "{max}");
        }
    }

    #[test]
    fn a_client_without_calls_is_forgotten() {
        let mut queue = queue(&[A, B]);
        queue.take_place(A);
        queue.remove(B, (2, 2));
        queue.pop_first();
        assert_eq!(queue.lines.len(), 1);
        queue.return_place(A);
        assert!(queue.lines.is_empty() && queue.turns.is_empty());
    }
}
