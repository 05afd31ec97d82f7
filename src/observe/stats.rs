//! The counts at one moment.

use crate::flight::ports::{ComputedEnd, WakeCause};
use crate::observe::Observer;
use crate::observe::count::{Count, ENDS};
use crate::outcome::CacheOutcome;

/// What the cache has done since it was built, and what it holds now; see
/// [`Stampede::stats`](crate::Stampede::stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests answered from the store, fresh.
    pub hits: u64,
    /// Requests answered stale, in a window for it.
    pub stale: u64,
    /// Requests answered stale in place of a failure.
    pub stale_if_error: u64,
    /// Requests that computed, for everybody.
    pub computed: u64,
    /// Requests that waited for another one's computation and got its result.
    pub joined: u64,
    /// Requests that computed for themselves.
    pub alone: u64,
    /// Requests that went past the cache.
    pub bypassed: u64,
    /// Requests that were refused: overloaded, held, waited too long.
    pub refused: u64,
    /// Requests the cache could have answered while it only observed.
    pub would_have_answered: u64,
    /// Computations that ended, in any way, background refreshes included and
    /// those outside flights not.
    pub computations: u64,
    /// Computations that failed, took too long, panicked or were dropped.
    pub failures: u64,
    /// Results not stored because they were invalidated meanwhile.
    pub refused_fills: u64,
    /// Callers that gave up waiting.
    pub wait_timeouts: u64,
    /// Callers turned away at a bound.
    pub overloaded: u64,
    /// Callers turned away by a hold.
    pub held: u64,
    /// Invalidations by key, by tag and of everything.
    pub invalidations: u64,
    /// Looks of leaders that waited for another process: after a wake-up.
    pub wakes_by_push: u64,
    /// The same after a timer: no wake-up came.
    pub wakes_by_timer: u64,
    /// The same by polling: no wake-up could come.
    pub wakes_by_poll: u64,
    /// Calls to the remote, in the background too.
    pub remote_calls: u64,
    /// Those that failed or took longer than `op_timeout`.
    pub remote_errors: u64,
    /// Values in the remote that could not be used: damaged, foreign, of
    /// another `schema`, too large.
    pub damaged: u64,
    /// Entries that made room for others.
    pub evictions: u64,
    /// Entries held now; moka applies its counts with a delay.
    pub entries: u64,
    /// Their weight in bytes.
    pub bytes: u64,
    /// Computations under way now.
    pub flights: usize,
    /// Callers that wait now.
    pub waiting: usize,
}

impl Observer {
    /// Returns the counts; the caller adds what the store and the table know.
    pub(crate) fn stats(&self) -> Stats {
        let count = |what: Count| self.counts.get(what.place());
        let outcome = |outcome| count(Count::Outcome(outcome));
        let ends = |ends: &[ComputedEnd]| ends.iter().map(|end| count(Count::Ended(*end))).sum();
        Stats {
            hits: outcome(CacheOutcome::Hit),
            stale: outcome(CacheOutcome::Stale),
            stale_if_error: outcome(CacheOutcome::StaleIfError),
            computed: outcome(CacheOutcome::Computed),
            joined: outcome(CacheOutcome::Joined),
            alone: outcome(CacheOutcome::Alone),
            bypassed: outcome(CacheOutcome::Bypass),
            refused: outcome(CacheOutcome::Refused),
            would_have_answered: count(Count::WouldHaveAnswered),
            computations: ends(&ENDS),
            failures: ends(&ENDS[3..]),
            refused_fills: count(Count::RefusedFill),
            wait_timeouts: count(Count::WaitTimeout),
            overloaded: count(Count::Overloaded),
            held: count(Count::Held),
            invalidations: count(Count::Invalidation),
            remote_calls: count(Count::RemoteCall),
            remote_errors: count(Count::RemoteError),
            damaged: count(Count::Damaged),
            wakes_by_push: count(Count::Woken(WakeCause::Push)),
            wakes_by_timer: count(Count::Woken(WakeCause::Timer)),
            wakes_by_poll: count(Count::Woken(WakeCause::Poll)),
            ..Stats::default()
        }
    }
}
