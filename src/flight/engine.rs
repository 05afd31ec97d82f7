//! Flights: one computation per key, and everybody else waits for its verdict.
//!
//! The engine knows neither HTTP nor Redis nor the store it fills; it sees
//! them through [`ports`]. Time is a parameter.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::{Clock, Tick};
use crate::error::{Error, ErrorKind};
use crate::flight::hold_policy::HoldPolicy;
use crate::flight::leader::{FailureRule, HoldRule, Leader};
use crate::flight::mark::Mark;
use crate::flight::phase::{Failure, Flight, Verdict};
use crate::flight::ports::Store;
use crate::flight::table::{Shard, Table};
use crate::flight::waiter::{AloneReason, WaitSlot, Waiter};
pub(crate) use crate::invalidation::{ASKED_NOW, InvalidationLog};
use crate::key::{Key, Tag};
use crate::lease::shared_store::SharedStore;
use crate::mode::Mode;
use crate::observe::{Observe, Occurrence};

/// How long past its own time-out a leader is left in peace. Its own timer
/// comes first; only a leader that is not polled any more gets here.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// The settings the engine itself goes by; all checked when the handle is built.
#[derive(Clone, Debug)]
pub(crate) struct EngineSettings {
    /// Labels spans.
    pub(crate) name: String,
    pub(crate) compute_timeout: Duration,
    pub(crate) wait_timeout: Duration,
    pub(crate) compute_after_wait: bool,
    pub(crate) hold: HoldPolicy,
    pub(crate) uncacheable_for: Duration,
    pub(crate) max_waiters: u32,
    pub(crate) max_waiters_in_all: usize,
    pub(crate) max_computations: usize,
    pub(crate) max_refreshes: usize,
    pub(crate) max_logged_tags: usize,
}

/// Which flight a caller belongs to, and how it enters.
#[derive(Clone, Debug)]
pub(crate) struct FlightRequest {
    pub(crate) key: Key,
    /// Tags known before the computation.
    pub(crate) tags: Box<[Tag]>,
    /// Whether to lead at once or go alone, and never to wait.
    pub(crate) never_wait: bool,
    /// Whether to join or go alone, and never to lead: what this caller is
    /// answered is no answer for others.
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "HTTP's HEAD and ranges"))]
    pub(crate) never_lead: bool,
    /// Whether to let a hold pass: for a refresh somebody asked for by name.
    pub(crate) despite_hold: bool,
}

impl FlightRequest {
    /// Boards the flight of `key`, waiting where somebody else leads.
    pub(crate) fn to(key: Key) -> Self {
        Self {
            key,
            tags: Box::default(),
            never_wait: false,
            never_lead: false,
            despite_hold: false,
        }
    }

    /// Leads at once or goes alone.
    pub(crate) fn without_waiting(mut self) -> Self {
        self.never_wait = true;
        self
    }
}

pub(crate) enum Admission<V: Send + Sync + 'static> {
    Lead(Leader<V>),
    Join(Waiter<V>),
    Alone(AloneReason),
    Held(Error),
    Overloaded(Error),
}

/// What a failure did to the mark of its key.
pub(crate) struct FailureCount {
    /// Dropped without the lock: an error's `Drop` is the user's code.
    pub(crate) replaced: Option<Error>,
    pub(crate) hold: Option<Duration>,
}

/// What the table has for a caller, found under its lock.
enum TableAnswer<V: Send + Sync + 'static> {
    Passed,
    Joined(Waiter<V>),
    Full,
    Held(Duration, Option<Error>),
    Led(Leader<V>),
}

pub(crate) struct Engine<V: Send + Sync + 'static> {
    pub(crate) settings: EngineSettings,
    pub(crate) clock: Clock,
    /// Tells when a leader is overdue: always the timers' own clock, which a
    /// test that sets the time by hand does not move.
    pub(crate) watch: Clock,
    pub(crate) log: InvalidationLog,
    pub(crate) table: Table<V>,
    pub(crate) local: Arc<dyn Store<V>>,
    /// Set once while the handle is built, if there is one.
    pub(crate) shared: OnceLock<Arc<dyn SharedStore<V>>>,
    pub(crate) observer: Arc<dyn Observe>,
    pub(crate) computations: Arc<Semaphore>,
    pub(crate) refreshes: Arc<Semaphore>,
    pub(crate) waiting: AtomicUsize,
    mode: AtomicU8,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl<V: Send + Sync + 'static> Engine<V> {
    pub(crate) fn new(
        settings: EngineSettings,
        clock: Clock,
        local: Arc<dyn Store<V>>,
        observer: Arc<dyn Observe>,
    ) -> Self {
        Self {
            computations: Arc::new(Semaphore::new(settings.max_computations)),
            refreshes: Arc::new(Semaphore::new(settings.max_refreshes)),
            log: InvalidationLog::new(settings.max_logged_tags),
            settings,
            clock,
            watch: Clock::runtime(),
            table: Table::new(),
            local,
            shared: OnceLock::new(),
            observer,
            waiting: AtomicUsize::new(0),
            mode: AtomicU8::new(Mode::On as u8),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    #[inline]
    pub(crate) fn mode(&self) -> Mode {
        Mode::from_u8(self.mode.load(Ordering::Relaxed))
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        if !self.stop.is_cancelled() && !self.tasks.is_closed() {
            self.mode.store(mode as u8, Ordering::Relaxed);
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Enters the table: the first of a key leads, the others join.
    pub(crate) fn enter(
        self: &Arc<Self>,
        boarding: &FlightRequest,
        seat: &mut Option<WaitSlot<V>>,
    ) -> Admission<V> {
        if self.mode() == Mode::Off {
            return Admission::Alone(AloneReason::Off);
        }
        // What is observed is told without the lock: listeners are not ours.
        match self.find_place(boarding, seat) {
            TableAnswer::Passed => Admission::Alone(AloneReason::Declined),
            TableAnswer::Joined(waiter) => {
                self.observer.happened(Occurrence::Joined);
                Admission::Join(waiter)
            }
            TableAnswer::Full => Admission::Overloaded(self.overloaded(&boarding.key)),
            TableAnswer::Held(rest, error) => {
                self.observer.happened(Occurrence::Held { key: &boarding.key });
                Admission::Held(Error::held(rest, error))
            }
            TableAnswer::Led(leader) => {
                self.observer.happened(Occurrence::Led);
                Admission::Lead(leader)
            }
        }
    }

    fn find_place(
        self: &Arc<Self>,
        boarding: &FlightRequest,
        seat: &mut Option<WaitSlot<V>>,
    ) -> TableAnswer<V> {
        let now = self.clock.now();
        let mut shard = self.table.shard(&boarding.key).lock();
        let mark = shard.marks.get(&boarding.key);
        let passes = boarding.never_wait || mark.is_some_and(|mark| mark.is_uncacheable(now));
        let hold = mark.and_then(|mark| mark.hold(now)).filter(|_| !boarding.despite_hold);
        match (self.current_flight(&shard, boarding), hold) {
            (Some(_), _) if passes => TableAnswer::Passed,
            (Some(flight), _) => {
                self.join(&flight, seat).map_or(TableAnswer::Full, TableAnswer::Joined)
            }
            (None, Some((rest, error))) => TableAnswer::Held(rest, error),
            (None, None) if boarding.never_lead => TableAnswer::Passed,
            (None, None) => TableAnswer::Led(self.take_off(&mut shard, boarding, now)),
        }
    }

    /// Returns the flight a caller may join: not one whose result is known to
    /// be dead for it, nor one whose leader is gone without a word.
    pub(crate) fn current_flight(
        &self,
        shard: &Shard<V>,
        boarding: &FlightRequest,
    ) -> Option<Arc<Flight<V>>> {
        let flight = shard.flights.get(&boarding.key)?;
        // Once it is published, its tags are known although it is not settled.
        let published_dead = match flight.verdict() {
            Some(Verdict::Filled(entry)) => {
                self.log.is_dead(&entry.tags, entry.started_seq, ASKED_NOW)
            }
            _ => false,
        };
        let dead = published_dead || self.log.is_dead(&flight.tags, flight.seq, ASKED_NOW);
        (!dead && !flight.is_overdue(self.watch.now())).then(|| Arc::clone(flight))
    }

    pub(crate) fn take_off(
        self: &Arc<Self>,
        shard: &mut Shard<V>,
        boarding: &FlightRequest,
        now: Tick,
    ) -> Leader<V> {
        // Until it computes, a leader may wait for a place that long.
        let overdue_at = self.watch.now().plus(self.settings.wait_timeout).plus(GRACE);
        let flight = Arc::new(Flight::new(
            self.table.next_id(),
            boarding.key.clone(),
            boarding.tags.clone(),
            self.log.seq(),
            overdue_at,
        ));
        self.table.insert(shard, Arc::clone(&flight));
        Leader::new(Arc::clone(self), flight, now)
    }

    fn join(
        self: &Arc<Self>,
        flight: &Arc<Flight<V>>,
        seat: &mut Option<WaitSlot<V>>,
    ) -> Option<Waiter<V>> {
        if seat.is_none() {
            *seat = WaitSlot::take(self);
        }
        seat.as_ref().and_then(|_| Waiter::join(flight, self.settings.max_waiters))
    }

    #[cfg(test)]
    pub(crate) fn try_places(&self) -> usize {
        self.computations.available_permits()
    }

    /// Takes a place for a computation if one is free now.
    pub(crate) fn try_place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.computations).try_acquire_owned().ok()
    }

    pub(crate) fn overloaded(&self, key: &Key) -> Error {
        self.observer.happened(Occurrence::Overloaded { key });
        Error::retry_in(ErrorKind::Overloaded, self.settings.hold.first)
    }

    /// Ends the flight of a leader that will not end it itself.
    pub(crate) fn depose(&self, flight: &Arc<Flight<V>>) {
        flight.forget();
        let error = Error::new(ErrorKind::ComputeTimeout);
        let mut shard = self.table.shard(&flight.key).lock();
        self.table.remove(&mut shard, flight);
        drop(shard);
        flight.settle();
        flight.publish(Verdict::Failed(Failure { error, each_itself: false }));
    }

    /// Ends the local use of a key that another process invalidated or put.
    #[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "a remote tells of it"))]
    pub(crate) fn invalidated_elsewhere(&self, key: &Key) {
        // In this order: a fill that is not refused is removed.
        self.table.forget(key);
        self.local.remove(key);
        self.observer.happened(Occurrence::InvalidatedElsewhere { key });
    }

    pub(crate) fn count_failure(
        &self,
        mark: &mut Mark,
        now: Tick,
        error: &Error,
        rule: FailureRule,
    ) -> FailureCount {
        let HoldRule::After(least) = rule.hold else {
            // Not part of a row that ends in a hold; it interrupts one.
            return FailureCount { replaced: mark.end_of_failures(), hold: None };
        };
        let (failures, replaced) = mark.count_failure(now, error);
        let mut hold = None;
        if failures >= least {
            let policy = self.settings.hold;
            let serves_stale = rule.stale_until.is_some();
            let until = now.plus(policy.after(failures, serves_stale, crate::freshness::sample()));
            // A longer hold is for those who are served meanwhile: it ends
            // with what they are served.
            let until = rule.stale_until.map_or(until, |end| until.min(end));
            mark.hold_until(until);
            hold = Some(until.since(now));
        }
        FailureCount { replaced, hold }
    }

    /// Forgets what is remembered about old failures and old invalidations.
    pub(crate) fn sweep(&self, longest_kept: Duration) {
        let now = self.clock.now();
        self.table.sweep(now);
        let running = self.settings.compute_timeout * 2 + self.settings.wait_timeout;
        self.log.trim(now, longest_kept.saturating_add(running));
    }
}

impl<V: Send + Sync + 'static> std::fmt::Debug for Engine<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("table", &self.table).finish_non_exhaustive()
    }
}
