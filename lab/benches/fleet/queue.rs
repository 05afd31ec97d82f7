//! Virtual time: what happens next, and when.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Nanoseconds since the simulation began.
pub(crate) type Moment = u64;

pub(crate) const MICROSECOND: Moment = 1_000;
pub(crate) const MILLISECOND: Moment = 1_000_000;
pub(crate) const SECOND: Moment = 1_000_000_000;

#[allow(clippy::cast_precision_loss, reason = "a simulation is shorter than 2^53 ns, 104 days")]
pub(crate) fn seconds(span: Moment) -> f64 {
    span as f64 / SECOND as f64
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "never below 0")]
pub(crate) fn moment(seconds: f64) -> Moment {
    (seconds * SECOND as f64) as Moment
}

/// Events in the order of their time; of those at one moment, in the order in
/// which they were noted. So one seed has one course.
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Reverse<Noted<E>>>,
    pub(crate) now: Moment,
    noted: u64,
}

struct Noted<E> {
    at: Moment,
    number: u64,
    event: E,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), now: 0, noted: 0 }
    }

    pub(crate) fn note(&mut self, at: Moment, event: E) {
        assert!(at >= self.now, "nothing happens in the past");
        self.noted += 1;
        self.heap.push(Reverse(Noted { at, number: self.noted, event }));
    }

    /// Goes on to the next event, if there is one before `end`.
    pub(crate) fn next_before(&mut self, end: Moment) -> Option<E> {
        if self.heap.peek()?.0.at >= end {
            return None;
        }
        let Reverse(next) = self.heap.pop()?;
        self.now = next.at;
        Some(next.event)
    }
}

impl<E> Ord for Noted<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<E> PartialOrd for Noted<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Noted<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for Noted<E> {}
