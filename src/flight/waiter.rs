//! Those who do not compute: how a caller comes by its answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use crate::entry::Entry;
use crate::error::{Error, ErrorKind};
use crate::flight::engine::{Admission, Engine, FlightRequest};
use crate::flight::leader::Leader;
use crate::flight::phase::{Abandonment, Flight, Verdict};
use crate::observe::Occurrence;
use crate::outcome::CacheOutcome;

/// How often a caller whose own request the result does not fit looks again
/// before it computes for itself.
const MAX_REENTRIES: u8 = 2;

/// How often a caller stands for election after results that concerned their
/// leader's request alone.
const MAX_ELECTIONS: u8 = 2;

/// What the engine asks of a caller.
pub(crate) trait Caller<V> {
    /// Returns the flight this caller belongs to, as far as it knows now.
    fn boarding(&mut self) -> FlightRequest;

    /// Looks into the store once more, for a fresh entry this caller may have.
    fn second_look(&mut self) -> Option<Arc<Entry<V>>>;

    /// Returns whether `entry` is an answer to this caller's own request.
    fn reusable(&self, entry: &Entry<V>) -> bool;

    /// Takes a part in a result that still arrives. Returns whether there was
    /// one: what comes may be gone for those who have not begun.
    fn claim(&mut self, _: &Entry<V>) -> bool {
        true
    }

    /// Returns whether `entry`, the result of a flight with this number, is new
    /// enough for this caller. Flights are numbered as they take off.
    fn is_new_enough(&self, _flight: u64, _entry: &Entry<V>) -> bool {
        true
    }

    /// Returns what may be served in place of a failure.
    fn fallback(&self) -> Option<Arc<Entry<V>>>;

    /// The same where it matters what failed.
    fn fallback_for(&self, failure: &Error) -> Option<Arc<Entry<V>>> {
        let _ = failure;
        self.fallback()
    }
}

/// How a caller goes on.
#[derive(Debug)]
pub(crate) enum Step<V: Send + Sync + 'static> {
    Answer(Arc<Entry<V>>, CacheOutcome),
    Lead(Leader<V>),
    /// Compute for this caller alone; nothing is stored.
    Alone(AloneReason),
    Refuse(Error),
}

/// Why a caller computes for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AloneReason {
    /// The answers of this key are not shared.
    Declined,
    /// Waited too long, and the policy allows an own computation.
    WaitTimeout,
    /// The handle is switched off or shut down.
    Off,
}

impl AloneReason {
    /// Returns the word used in metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Declined => "declined",
            Self::WaitTimeout => "wait_timeout",
            Self::Off => "off",
        }
    }
}

/// A place among those who wait, in all flights together; travels along when
/// its holder re-enters.
pub(crate) struct WaitSlot<V: Send + Sync + 'static>(Arc<Engine<V>>);

impl<V: Send + Sync + 'static> WaitSlot<V> {
    pub(super) fn take(engine: &Arc<Engine<V>>) -> Option<Self> {
        let taken = engine.waiting.fetch_add(1, Ordering::AcqRel);
        let seat = Self(Arc::clone(engine));
        (taken < engine.settings.max_waiters_in_all).then_some(seat)
    }
}

impl<V: Send + Sync + 'static> Drop for WaitSlot<V> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One caller's place in one flight.
pub(crate) struct Waiter<V> {
    flight: Arc<Flight<V>>,
    /// Joined after the answer was published, or had begun to arrive: to this
    /// caller it is a look-up, and subject to freshness like any other.
    late: bool,
}

impl<V> Waiter<V> {
    /// Takes a place if fewer than `max` callers wait. Called under the lock
    /// of the flight's shard.
    pub(super) fn join(flight: &Arc<Flight<V>>, max: u32) -> Option<Self> {
        let late = flight.is_arriving() || flight.verdict().is_some();
        let waiter = Self { flight: Arc::clone(flight), late };
        (flight.waiters.fetch_add(1, Ordering::AcqRel) < max).then_some(waiter)
    }
}

impl<V> Drop for Waiter<V> {
    fn drop(&mut self) {
        self.flight.waiters.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One caller on its way to an answer: what it takes along from flight to
/// flight.
pub(crate) struct Resolver<V: Send + Sync + 'static> {
    engine: Arc<Engine<V>>,
    deadline: Instant,
    /// Sequence number of the invalidation log when the caller asked.
    pub(crate) asked: u64,
    reentries: u8,
    elections: u8,
    pub(super) seat: Option<WaitSlot<V>>,
}

impl<V: Send + Sync + 'static> Resolver<V> {
    pub(crate) fn new(engine: &Arc<Engine<V>>, asked: u64) -> Self {
        Self {
            engine: Arc::clone(engine),
            deadline: Instant::now() + engine.settings.wait_timeout,
            asked,
            reentries: 0,
            elections: 0,
            seat: None,
        }
    }

    /// Goes from flight to flight until the caller knows how to go on.
    ///
    /// Cancel safe: a dropped caller gives up its places. If it has just been
    /// made the leader, the leader's guard hands the lead over.
    pub(crate) async fn resolve<C: Caller<V>>(&mut self, caller: &mut C) -> Step<V> {
        let mut joined_at = None;
        let step = loop {
            if joined_at.is_some() && Instant::now() >= self.deadline {
                break self.timed_out(caller);
            }
            let boarding = caller.boarding();
            match self.engine.enter(&boarding, &mut self.seat) {
                Admission::Lead(mut leader) => {
                    leader.wait_until(self.deadline);
                    if let Some(step) = lead(leader, caller) {
                        break step;
                    }
                }
                Admission::Join(waiter) => {
                    joined_at.get_or_insert_with(Instant::now);
                    let name = &self.engine.settings.name;
                    let wait = self.await_verdict(&waiter);
                    let verdict = crate::observe::waiting(name, &boarding.key, wait).await;
                    if let Some(step) = self.judge(caller, &waiter, verdict, &boarding) {
                        break step;
                    }
                    // Who belongs elsewhere by now need not wait for what this
                    // flight stores.
                    if caller.boarding().key == boarding.key {
                        // At the deadline the next round ends the wait.
                        let settled = waiter.flight.wait_settled();
                        let _ = tokio::time::timeout_at(self.deadline, settled).await;
                    }
                }
                Admission::Alone(why) => break Step::Alone(why),
                Admission::Held(error) | Admission::Overloaded(error) => {
                    break stale_or_refuse(caller, error);
                }
            }
        };
        self.seat = None;
        if let Some(at) = joined_at {
            self.engine.observer.happened(Occurrence::Waited { took: at.elapsed() });
        }
        step
    }

    /// Waits for the verdict, deposes a leader that is overdue, and returns
    /// `None` at this caller's own deadline.
    async fn await_verdict(&self, waiter: &Waiter<V>) -> Option<Verdict<V>> {
        loop {
            let now = self.engine.watch.now();
            let patience = waiter.flight.overdue_at().since(now).max(Duration::from_millis(1));
            let until = self.deadline.min(Instant::now() + patience);
            if let Ok(verdict) = tokio::time::timeout_at(until, waiter.flight.wait()).await {
                return Some(verdict.clone());
            }
            if Instant::now() >= self.deadline {
                return None;
            }
            if waiter.flight.is_overdue(self.engine.watch.now()) {
                self.engine.depose(&waiter.flight);
            }
        }
    }

    /// Returns how to go on after `verdict`, or `None` to look again.
    fn judge<C: Caller<V>>(
        &mut self,
        caller: &mut C,
        waiter: &Waiter<V>,
        verdict: Option<Verdict<V>>,
        boarding: &FlightRequest,
    ) -> Option<Step<V>> {
        match verdict {
            Some(Verdict::Filled(entry)) => self.take(caller, waiter, entry),
            Some(Verdict::Declined) => Some(Step::Alone(AloneReason::Declined)),
            Some(Verdict::Failed(failure)) if failure.each_itself => {
                Some(Step::Alone(AloneReason::Declined))
            }
            Some(Verdict::Failed(failure)) => Some(stale_or_refuse(caller, failure.error)),
            Some(Verdict::Abandoned(Abandonment::Lost)) => None,
            Some(Verdict::Abandoned(Abandonment::OwnAffair)) => {
                self.elections += 1;
                (self.elections > MAX_ELECTIONS).then_some(Step::Alone(AloneReason::Declined))
            }
            None => {
                self.engine.observer.happened(Occurrence::WaitTimedOut { key: &boarding.key });
                Some(self.timed_out(caller))
            }
        }
    }

    fn take<C: Caller<V>>(
        &mut self,
        caller: &mut C,
        waiter: &Waiter<V>,
        entry: Arc<Entry<V>>,
    ) -> Option<Step<V>> {
        if self.may_have(caller, waiter, &entry) && caller.claim(&entry) {
            return Some(Step::Answer(entry, CacheOutcome::Joined));
        }
        self.reentries += 1;
        (self.reentries > MAX_REENTRIES).then_some(Step::Alone(AloneReason::Declined))
    }

    fn may_have<C: Caller<V>>(&self, caller: &C, waiter: &Waiter<V>, entry: &Entry<V>) -> bool {
        let fresh_enough = !waiter.late || self.engine.clock.now() < entry.window.fresh_until;
        fresh_enough
            && !self.engine.log.is_dead(&entry.tags, entry.started_seq, self.asked)
            && caller.reusable(entry)
            && caller.is_new_enough(waiter.flight.id, entry)
    }

    fn timed_out<C: Caller<V>>(&self, caller: &C) -> Step<V> {
        if let Some(entry) = caller.fallback() {
            return Step::Answer(entry, CacheOutcome::StaleIfError);
        }
        if self.engine.settings.compute_after_wait {
            return Step::Alone(AloneReason::WaitTimeout);
        }
        Step::Refuse(Error::retry_in(ErrorKind::WaitTimeout, self.engine.settings.hold.first))
    }
}

fn stale_or_refuse<V: Send + Sync + 'static, C: Caller<V>>(caller: &C, error: Error) -> Step<V> {
    match caller.fallback_for(&error) {
        Some(entry) => Step::Answer(entry, CacheOutcome::StaleIfError),
        None => Step::Refuse(error),
    }
}

/// The second look: somebody may have filled between our look and our lead.
/// Returns `None` if that showed that this caller belongs to another flight.
fn lead<V: Send + Sync + 'static, C: Caller<V>>(
    leader: Leader<V>,
    caller: &mut C,
) -> Option<Step<V>> {
    if let Some(entry) = caller.second_look() {
        leader.stand_down(Arc::clone(&entry));
        return Some(Step::Answer(entry, CacheOutcome::Hit));
    }
    if caller.boarding().key != *leader.key() {
        leader.withdraw();
        return None;
    }
    Some(Step::Lead(leader))
}
