//! What is counted.

use crate::flight::ports::{ComputedEnd, WakeCause};
use crate::outcome::CacheOutcome;

pub(super) const ENDS: [ComputedEnd; 7] = [
    ComputedEnd::Stored,
    ComputedEnd::Shared,
    ComputedEnd::Declined,
    ComputedEnd::Failed,
    ComputedEnd::TimedOut,
    ComputedEnd::Panicked,
    ComputedEnd::Dropped,
];

/// One thing that is counted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    Outcome(CacheOutcome),
    Ended(ComputedEnd),
    Woken(WakeCause),
    WouldHaveAnswered,
    RefusedFill,
    Joined,
    WaitTimeout,
    Overloaded,
    Held,
    Invalidation,
    RemoteCall,
    RemoteError,
    Damaged,
}

const ENDED: usize = CacheOutcome::ALL.len();
const WOKEN: usize = ENDED + ENDS.len();
const SINGLE: usize = WOKEN + 3;

impl Count {
    pub(super) const KINDS: usize = SINGLE + 10;

    /// Returns its place among all of them.
    #[inline]
    pub(super) const fn place(self) -> usize {
        match self {
            Self::Outcome(outcome) => outcome as usize,
            Self::Ended(end) => ENDED + end as usize,
            Self::Woken(cause) => WOKEN + cause as usize,
            Self::WouldHaveAnswered => SINGLE,
            Self::RefusedFill => SINGLE + 1,
            Self::Joined => SINGLE + 2,
            Self::WaitTimeout => SINGLE + 3,
            Self::Overloaded => SINGLE + 4,
            Self::Held => SINGLE + 5,
            Self::Invalidation => SINGLE + 6,
            Self::RemoteCall => SINGLE + 7,
            Self::RemoteError => SINGLE + 8,
            Self::Damaged => SINGLE + 9,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_has_a_place_of_its_own() {
        let wakes = [WakeCause::Push, WakeCause::Timer, WakeCause::Poll];
        let all = CacheOutcome::ALL.map(Count::Outcome).into_iter();
        let all = all.chain(ENDS.map(Count::Ended)).chain(wakes.map(Count::Woken));
        let all = all.chain([
            Count::WouldHaveAnswered,
            Count::RefusedFill,
            Count::Joined,
            Count::WaitTimeout,
            Count::Overloaded,
            Count::Held,
            Count::Invalidation,
            Count::RemoteCall,
            Count::RemoteError,
            Count::Damaged,
        ]);
        let mut places: Vec<usize> = all.map(Count::place).collect();
        places.sort_unstable();
        assert_eq!(places, (0..Count::KINDS).collect::<Vec<_>>());
    }
}
