//! The counters, and their values at one moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::observe::Observer;
use crate::observe::labels::{ComputationEnd, WakeCause};
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
    /// Requests that led a computation, for all callers of the key, also if it failed.
    pub computed: u64,
    /// Requests that waited for another caller's computation and got its result,
    /// or shared its failure.
    pub joined: u64,
    /// Requests that computed for themselves, also if that failed. While the cache
    /// observes, these are all; those that led count among the `computations`, too.
    pub alone: u64,
    /// Requests that were forwarded uncached.
    pub bypassed: u64,
    /// Requests that got an error of the cache: overloaded, held, waited too long, the
    /// computation took longer than `compute_timeout`, panicked, or waits for itself.
    pub refused: u64,
    /// Requests the cache could have answered from its store while it only observed. Those
    /// that it would have let wait for another caller are not known.
    pub would_have_answered: u64,
    /// Computations of flights that ended, in any way, background refreshes included.
    /// Computations outside flights do not count here; see `alone`.
    pub computations: u64,
    /// Those among them that failed, took too long, panicked or were dropped.
    pub failures: u64,
    /// Calls of batch loaders. Each key of a call counts among the `computations`, or the
    /// `alone`.
    pub batch_calls: u64,
    /// Results not stored because they were invalidated meanwhile, or their leader was
    /// deposed.
    pub refused_fills: u64,
    /// Responses passed on unshared, because the bodies that arrive took as many bytes as
    /// `max_arriving_bytes` permits.
    pub refused_bodies: u64,
    /// Callers that gave up waiting.
    pub wait_timeouts: u64,
    /// Callers refused at a bound on waiters or computations.
    pub overloaded: u64,
    /// Callers refused by a hold. A caller that is served a stale value during a hold
    /// does not count.
    pub held: u64,
    /// Invalidations by key, by tag and of everything.
    pub invalidations: u64,
    /// Looks of leaders that waited for another process: after a wake-up.
    pub wakes_by_push: u64,
    /// The same after a timer: no wake-up came.
    pub wakes_by_timer: u64,
    /// The same by polling: no wake-up could come.
    pub wakes_by_poll: u64,
    /// Calls to the remote, those in the background included.
    pub remote_calls: u64,
    /// Calls to the remote that failed or took longer than `op_timeout`.
    pub remote_errors: u64,
    /// Values in the remote that could not be used: damaged, foreign, of
    /// another `schema`, too large.
    pub damaged: u64,
    /// Entries that made room for others.
    pub evictions: u64,
    /// Entries held now; a store of moka's applies its counts with a delay.
    pub entries: u64,
    /// The memory that they take, in bytes; see
    /// [`Builder::max_bytes`](crate::Builder::max_bytes).
    pub bytes: u64,
    /// Bytes of bodies that arrive now, as counted against `max_arriving_bytes`.
    pub arriving_bytes: u64,
    /// Flights now: keys that a leader computes, or waits to compute.
    pub flights: usize,
    /// Callers that wait now, with the leaders that queue for one of the
    /// `max_computations` places.
    pub waiting: usize,
    /// How many computations may run at once now. It changes with
    /// [`min_computations`](crate::Builder::min_computations); else it is `max_computations`.
    pub computation_limit: usize,
    /// The time that the origin would have worked for the requests that were answered from the store
    /// or that waited for the computation of another: for each the time that the computation of its
    /// value took. What was served in place of a failure does not count. Exact to a microsecond a
    /// request; see [`Stampede::top`](crate::Stampede::top) for where it comes from.
    pub origin_time_saved: Duration,
    /// The age of the oldest value that was served after its `ttl`, in the last half minute to
    /// minute; zero if none was. An age as that of [`EntryInfo`](crate::EntryInfo), at the moment
    /// of serving. It grows during an outage that `stale_if_error` hides.
    pub oldest_stale: Duration,
}

/// The age of the oldest stale value that was served since the last turn, and in the time between
/// that and the turn before it, in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct OldestStale {
    now: AtomicU64,
    before: AtomicU64,
}

impl OldestStale {
    pub(super) fn note(&self, age: Duration) {
        let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX).max(1);
        // A look first: most values are not the oldest, and need not write.
        if millis > self.now.load(Ordering::Relaxed) {
            self.now.fetch_max(millis, Ordering::Relaxed);
        }
    }

    pub(super) fn get(&self) -> Duration {
        let [now, before] = [&self.now, &self.before].map(|age| age.load(Ordering::Relaxed));
        Duration::from_millis(now.max(before))
    }

    /// Forgets what was served before the last turn.
    pub(crate) fn turn(&self) {
        self.before.store(self.now.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Something that has a counter, at a place among the counters of a cache.
pub(super) trait Counted: Copy {
    fn place(self) -> usize;
}

impl Counted for CacheOutcome {
    #[inline]
    fn place(self) -> usize {
        self as usize
    }
}

impl Counted for ComputationEnd {
    fn place(self) -> usize {
        ENDS + self as usize
    }
}

impl Counted for WakeCause {
    fn place(self) -> usize {
        WAKES + self as usize
    }
}

/// The counters of single events.
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    WouldHaveAnswered,
    BatchCall,
    RefusedFill,
    RefusedBody,
    Joined,
    WaitTimeout,
    Overloaded,
    Held,
    Invalidation,
    RemoteOp,
    RemoteError,
    Damaged,
    SavedMicros,
    /// No counter, but how many there are.
    Total,
}

impl Counted for Count {
    fn place(self) -> usize {
        SINGLES + self as usize
    }
}

const ENDS: usize = CacheOutcome::ALL.len();
const WAKES: usize = ENDS + ComputationEnd::ALL.len();
const SINGLES: usize = WAKES + WakeCause::ALL.len();
pub(super) const COUNTERS: usize = SINGLES + Count::Total as usize;

impl Observer {
    /// Returns the counts; the caller adds what the store and the table know.
    pub(crate) fn stats(&self) -> Stats {
        let ended = |from| (from..WAKES).map(|place| self.counts.get(place)).sum();
        Stats {
            hits: self.counted(CacheOutcome::Hit),
            stale: self.counted(CacheOutcome::Stale),
            stale_if_error: self.counted(CacheOutcome::StaleIfError),
            computed: self.counted(CacheOutcome::Computed),
            joined: self.counted(CacheOutcome::Joined),
            alone: self.counted(CacheOutcome::Alone),
            bypassed: self.counted(CacheOutcome::Bypass),
            refused: self.counted(CacheOutcome::Refused),
            would_have_answered: self.counted(Count::WouldHaveAnswered),
            computations: ended(ENDS),
            failures: ended(ComputationEnd::Failed.place()),
            batch_calls: self.counted(Count::BatchCall),
            refused_fills: self.counted(Count::RefusedFill),
            refused_bodies: self.counted(Count::RefusedBody),
            wait_timeouts: self.counted(Count::WaitTimeout),
            overloaded: self.counted(Count::Overloaded),
            held: self.counted(Count::Held),
            invalidations: self.counted(Count::Invalidation),
            remote_calls: self.counted(Count::RemoteOp),
            remote_errors: self.counted(Count::RemoteError),
            damaged: self.counted(Count::Damaged),
            origin_time_saved: Duration::from_micros(self.counted(Count::SavedMicros)),
            wakes_by_push: self.counted(WakeCause::Push),
            wakes_by_timer: self.counted(WakeCause::Timer),
            wakes_by_poll: self.counted(WakeCause::Poll),
            oldest_stale: self.oldest_stale.get(),
            ..Stats::default()
        }
    }

    fn counted(&self, what: impl Counted) -> u64 {
        self.counts.get(what.place())
    }
}
