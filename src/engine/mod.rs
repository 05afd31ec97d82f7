//! Flights: one computation per key, and everybody else waits for its verdict.
//!
//! The engine knows neither HTTP nor Redis nor the store it fills; it sees
//! them through [`ports`]. Time is a parameter.

pub(crate) mod flight;
#[cfg_attr(
    not(feature = "remote"),
    allow(dead_code, unreachable_pub, reason = "a public part of the remote, if there is one")
)]
pub(crate) mod grant;
pub(crate) mod invalidation;
pub(crate) mod leader;
pub(crate) mod lease;
mod mark;
#[cfg_attr(
    not(all(feature = "remote", feature = "metrics", feature = "tracing")),
    allow(dead_code, reason = "some things happen to a remote alone, or are only told")
)]
pub(crate) mod ports;
pub(crate) mod remote_leader;
mod run;
#[cfg_attr(
    not(feature = "remote"),
    allow(dead_code, reason = "nobody implements it without a remote")
)]
pub(crate) mod shared;
mod table;
pub(crate) mod time;
pub(crate) mod waiter;
#[cfg_attr(
    not(feature = "remote"),
    allow(dead_code, unreachable_pub, reason = "a public part of the remote, if there is one")
)]
pub(crate) mod wakes;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::flight::{Failure, Flight, Verdict};
use self::invalidation::{ASKED_NOW, InvalidationLog};
use self::leader::{FailureRule, HoldRule, Leader};
use self::mark::Mark;
use self::ports::{Happening, Local, Observe};
use self::shared::Shared;
use self::table::{Shard, Table};
use self::time::{Clock, Tick};
use self::waiter::{Alone, Seat, Waiter};
use crate::error::{Error, ErrorKind};
use crate::key::{Key, Tag};
use crate::policy::HoldPolicy;

/// How long past its own time-out a leader is left in peace. Its own timer
/// comes first; only a leader that is not polled any more gets here.
const GRACE: Duration = Duration::from_secs(1);

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

/// Whether the cache takes part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Answers come from the cache where they may.
    #[default]
    On,
    /// Every caller computes for itself. The cache is filled and counts what
    /// it would have done, and answers nobody: for the day somebody doubts it.
    Observe,
    /// Every caller computes for itself, and nothing is stored.
    /// Invalidations still take effect, so switching back on is safe.
    Off,
}

impl Mode {
    fn from_u8(code: u8) -> Self {
        match code {
            0 => Self::On,
            1 => Self::Observe,
            _ => Self::Off,
        }
    }
}

/// Which flight a caller belongs to, and how it enters.
#[derive(Clone, Debug)]
pub(crate) struct Boarding {
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

impl Boarding {
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

pub(crate) enum Entered<V: Send + Sync + 'static> {
    Lead(Leader<V>),
    Join(Waiter<V>),
    Alone(Alone),
    Held(Error),
    Overloaded(Error),
}

/// What a failure did to the mark of its key.
struct Counted {
    /// Dropped without the lock: an error's `Drop` is the user's code.
    replaced: Option<Error>,
    hold: Option<Duration>,
}

/// What the table has for a caller, found under its lock.
enum Place<V: Send + Sync + 'static> {
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
    pub(crate) local: Arc<dyn Local<V>>,
    /// Set once while the handle is built, if there is one.
    pub(crate) shared: OnceLock<Arc<dyn Shared<V>>>,
    pub(crate) observer: Arc<dyn Observe>,
    computations: Arc<Semaphore>,
    refreshes: Arc<Semaphore>,
    waiting: AtomicUsize,
    mode: AtomicU8,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl<V: Send + Sync + 'static> Engine<V> {
    pub(crate) fn new(
        settings: EngineSettings,
        clock: Clock,
        local: Arc<dyn Local<V>>,
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
        boarding: &Boarding,
        seat: &mut Option<Seat<V>>,
    ) -> Entered<V> {
        if self.mode() == Mode::Off {
            return Entered::Alone(Alone::Off);
        }
        // What is observed is told without the lock: listeners are not ours.
        match self.find_place(boarding, seat) {
            Place::Passed => Entered::Alone(Alone::Declined),
            Place::Joined(waiter) => {
                self.observer.happened(Happening::Joined);
                Entered::Join(waiter)
            }
            Place::Full => Entered::Overloaded(self.overloaded(&boarding.key)),
            Place::Held(rest, error) => {
                self.observer.happened(Happening::Held { key: &boarding.key });
                Entered::Held(Error::held(rest, error))
            }
            Place::Led(leader) => {
                self.observer.happened(Happening::Led);
                Entered::Lead(leader)
            }
        }
    }

    fn find_place(self: &Arc<Self>, boarding: &Boarding, seat: &mut Option<Seat<V>>) -> Place<V> {
        let now = self.clock.now();
        let mut shard = self.table.shard(&boarding.key).lock();
        let mark = shard.marks.get(&boarding.key);
        let passes = boarding.never_wait || mark.is_some_and(|mark| mark.is_uncacheable(now));
        let hold = mark.and_then(|mark| mark.hold(now)).filter(|_| !boarding.despite_hold);
        match (self.current_flight(&shard, boarding), hold) {
            (Some(_), _) if passes => Place::Passed,
            (Some(flight), _) => self.join(&flight, seat).map_or(Place::Full, Place::Joined),
            (None, Some((rest, error))) => Place::Held(rest, error),
            (None, None) if boarding.never_lead => Place::Passed,
            (None, None) => Place::Led(self.take_off(&mut shard, boarding, now)),
        }
    }

    /// Returns the flight a caller may join: not one whose result is known to
    /// be dead for it, nor one whose leader is gone without a word.
    fn current_flight(&self, shard: &Shard<V>, boarding: &Boarding) -> Option<Arc<Flight<V>>> {
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

    fn take_off(
        self: &Arc<Self>,
        shard: &mut Shard<V>,
        boarding: &Boarding,
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
        seat: &mut Option<Seat<V>>,
    ) -> Option<Waiter<V>> {
        if seat.is_none() {
            *seat = Seat::take(self);
        }
        seat.as_ref().and_then(|_| Waiter::join(flight, self.settings.max_waiters))
    }

    #[cfg(test)]
    fn try_places(&self) -> usize {
        self.computations.available_permits()
    }

    /// Takes a place for a computation if one is free now.
    pub(crate) fn try_place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.computations).try_acquire_owned().ok()
    }

    pub(crate) fn overloaded(&self, key: &Key) -> Error {
        self.observer.happened(Happening::Overloaded { key });
        Error::retry_in(ErrorKind::Overloaded, self.settings.hold.first)
    }

    /// Ends the flight of a leader that will not end it itself.
    fn depose(&self, flight: &Arc<Flight<V>>) {
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
        drop(self.local.remove(key));
        self.observer.happened(Happening::InvalidatedElsewhere { key });
    }

    fn count_failure(
        &self,
        mark: &mut Mark,
        now: Tick,
        error: &Error,
        rule: FailureRule,
    ) -> Counted {
        let HoldRule::After(least) = rule.hold else {
            // Not part of a row that ends in a hold; it interrupts one.
            return Counted { replaced: mark.end_of_failures(), hold: None };
        };
        let (failures, replaced) = mark.count_failure(now, error);
        let mut hold = None;
        if failures >= least {
            let policy = self.settings.hold;
            let serves_stale = rule.stale_until.is_some();
            let until = now.plus(policy.after(failures, serves_stale, crate::policy::sample()));
            // A longer hold is for those who are served meanwhile: it ends
            // with what they are served.
            let until = rule.stale_until.map_or(until, |end| until.min(end));
            mark.hold_until(until);
            hold = Some(until.since(now));
        }
        Counted { replaced, hold }
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
