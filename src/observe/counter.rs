//! Counters that threads raise without contention.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

/// Stripes that belong to one thread each, as many as [`FREE`] has bits.
const OWN: usize = 32;
/// Stripes that all further threads share.
const SHARED: usize = 8;
const UNCLAIMED: usize = usize::MAX;

/// Counts of `N` kinds on one of several cache lines, chosen by the thread:
/// one shared line would cost a hit more than the look-up.
///
/// While a thread has its stripe to itself, it counts without a locked
/// instruction. Such an instruction waits until all earlier writes of the hit are
/// visible to other processors. The price is memory: of 29 kinds, 10 KiB for each
/// cache.
#[derive(Debug)]
pub(crate) struct Counters<const N: usize>([CachePadded<[AtomicU64; N]>; OWN + SHARED]);

/// A bit for each own stripe that no thread has.
static FREE: AtomicU32 = AtomicU32::new(u32::MAX);

thread_local! {
    static STRIPE: Cell<usize> = const { Cell::new(UNCLAIMED) };
    static CLAIM: Claim = Claim::take();
}

/// The claim of a thread to a stripe of its own, given back when it ends.
struct Claim(Option<u32>);

impl Claim {
    fn take() -> Self {
        let without_lowest = |free: u32| (free != 0).then(|| free & (free - 1));
        // Acquires what the last owner, who released the bit, has counted.
        let before = FREE.fetch_update(Ordering::Acquire, Ordering::Relaxed, without_lowest);
        Self(before.ok().map(u32::trailing_zeros))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // From now on the thread counts on a shared stripe, while it ends.
        STRIPE.set(OWN);
        if let Some(stripe) = self.0 {
            FREE.fetch_or(1 << stripe, Ordering::Release);
        }
    }
}

#[inline]
fn stripe() -> usize {
    let stripe = STRIPE.get();
    if stripe == UNCLAIMED { claim() } else { stripe }
}

#[cold]
fn claim() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // There is no claim any more in a thread that ends.
    let own = CLAIM.try_with(|claim| claim.0).ok().flatten();
    let stripe = match own {
        Some(own) => own as usize,
        None => OWN + NEXT.fetch_add(1, Ordering::Relaxed) % SHARED,
    };
    STRIPE.set(stripe);
    stripe
}

impl<const N: usize> Counters<N> {
    #[inline]
    pub(crate) fn add_one(&self, kind: usize) {
        self.add(kind, 1);
    }

    #[inline]
    pub(crate) fn add(&self, kind: usize, more: u64) {
        self.add_each([(kind, more)]);
    }

    /// Adds to several kinds.
    #[inline]
    pub(crate) fn add_each<const M: usize>(&self, kinds: [(usize, u64); M]) {
        let stripe = stripe();
        let counts = &self.0[stripe];
        for (kind, more) in kinds {
            let count = &counts[kind];
            if stripe < OWN {
                count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
            } else {
                count.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn get(&self, kind: usize) -> u64 {
        self.0.iter().map(|stripe| stripe[kind].load(Ordering::Relaxed)).sum()
    }
}

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        let stripe = || std::array::from_fn(|_| AtomicU64::new(0));
        Self(std::array::from_fn(|_| CachePadded::new(stripe())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_count_is_lost_between_threads_with_a_stripe_of_their_own_and_without() {
        let counters = Counters::<2>::default();
        std::thread::scope(|scope| {
            for _ in 0..OWN * 3 {
                scope.spawn(|| (0..1000).for_each(|_| counters.add_one(1)));
            }
        });
        assert_eq!((counters.get(0), counters.get(1)), (0, OWN as u64 * 3000));
    }

    #[test]
    fn no_count_is_lost_when_a_stripe_goes_from_one_thread_to_the_next() {
        let counters = Counters::<1>::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..OWN {
                        std::thread::scope(|scope| {
                            scope.spawn(|| (0..100).for_each(|_| counters.add_one(0)));
                        });
                    }
                });
            }
        });
        assert_eq!(counters.get(0), 4 * OWN as u64 * 100);
    }

    #[test]
    fn what_a_thread_counts_while_it_ends_is_counted() {
        struct CountsAtTheEnd;
        static COUNTERS: std::sync::LazyLock<Counters<1>> =
            std::sync::LazyLock::new(Counters::default);
        impl Drop for CountsAtTheEnd {
            fn drop(&mut self) {
                COUNTERS.add_one(0);
            }
        }
        thread_local!(static AT_THE_END: CountsAtTheEnd = const { CountsAtTheEnd });
        for first in [true, false] {
            let thread = std::thread::spawn(move || {
                if first {
                    COUNTERS.add_one(0);
                }
                AT_THE_END.with(|_| ());
                COUNTERS.add_one(0);
            });
            thread.join().expect("it only counts");
        }
        assert_eq!(COUNTERS.get(0), 5);
    }
}
