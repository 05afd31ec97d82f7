//! A bound on bytes that several owners hold at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many bytes, and how many of them are taken.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    bound: u64,
    taken: AtomicU64,
}

impl ByteBudget {
    pub(crate) fn new(bound: u64) -> Arc<Self> {
        Arc::new(Self { bound, taken: AtomicU64::new(0) })
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes `bytes`, if they are left.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        self.take(bytes).then(|| Reservation { budget: Arc::clone(self), bytes })
    }

    fn take(&self, bytes: u64) -> bool {
        let fits = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= self.bound);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }
}

/// Bytes of a budget. Dropped, it gives them back.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<ByteBudget>,
    bytes: u64,
}

impl Reservation {
    /// Takes what is missing to `total`. Returns `false`, and takes nothing, if that is not left.
    #[must_use]
    pub(crate) fn grow_to(&mut self, total: u64) -> bool {
        let missing = total.saturating_sub(self.bytes);
        let fits = missing == 0 || self.budget.take(missing);
        self.bytes += if fits { missing } else { 0 };
        fits
    }

    /// Gives back what is beyond `total`.
    fn shrink_to(&mut self, total: u64) {
        let beyond = self.bytes.saturating_sub(total);
        self.bytes -= beyond;
        self.budget.taken.fetch_sub(beyond, Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is_and_all_of_it_comes_back() {
        let budget = ByteBudget::new(100);
        let mut one = budget.reserve(40).expect("it fits");
        let two = budget.reserve(60).expect("it fits exactly");
        assert!(budget.reserve(1).is_none());
        assert!(!one.grow_to(41));
        assert!(one.grow_to(30), "it has as much already");
        drop(two);
        assert!(one.grow_to(100));
        assert!(!one.grow_to(u64::MAX));
        one.shrink_to(10);
        assert_eq!(budget.taken(), 10);
        drop(one);
        assert_eq!(budget.taken(), 0);
    }
}
