//! A counter that threads do not fight over.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

const STRIPES: usize = 16;

/// Counts on one of several cache lines, chosen by the thread: one shared line
/// would cost a hit more than the look-up.
#[derive(Debug, Default)]
pub(crate) struct Counter([CachePadded<AtomicU64>; STRIPES]);

thread_local! {
    static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    STRIPE.with(|stripe| {
        if stripe.get() == usize::MAX {
            stripe.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        stripe.get()
    })
}

impl Counter {
    #[inline]
    pub(crate) fn add_one(&self) {
        self.0[stripe()].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_count_is_lost_between_threads() {
        let counter = Counter::default();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| (0..1000).for_each(|_| counter.add_one()));
            }
        });
        assert_eq!(counter.get(), 20_000);
    }
}
