//! One running computation of one key, and the phase it is in.
//!
//! | phase | what holds |
//! |---|---|
//! | `Waiting` | the leader looks elsewhere for a value, or waits for a place |
//! | `Computing` | the origin is being called |
//! | `Arriving` | the head of the result is there; a caller that joins now makes a look-up |
//! | `Vacant` | the first leader has failed; a waiter may lead next |
//! | `Published` | there is a verdict; the leader may still be at work |
//! | `Settled` | the flight is out of the table and its result is stored, or never will be |
//!
//! Phases only go forward, but for `Vacant`: with its second leader a flight goes through
//! `Waiting`, `Computing` and `Arriving` once more. The leader moves its flight from phase to phase. A waiter, or the
//! next caller of the key, may settle the flight of a silent leader. Beside the phase there is
//! one more fact: a flight that was *forgotten* (its key was invalidated or put, or its leader
//! was replaced) goes on for the callers that wait already, and its result is not stored.

use std::future::Future;

use crate::clock::Tick;
use crate::entry::Entry;
use crate::error::Error;
use crate::flight::computation::Computation;
use crate::flight::evidence::DeclinedFor;
use crate::flight::hold::Requester;
use crate::flight::lending::Wait;
use crate::flight::places::Places;
use crate::flight::request::FlightRequest;
use crate::flight::vacancy::{Candidate, Candidates, Successor, Vacant};
use crate::garbage::drop_caught;
use crate::key::{Key, Tag};
use crate::sync::{Arc, AtomicU64, Mutex, Notify, OnceLock, Ordering, Weak};

/// How the callers of a flight go on. A leader leaves one, however it ends.
#[derive(Debug)]
pub(crate) enum Verdict<V> {
    /// Computed, may be shared.
    Filled(Arc<Entry<V>>),
    /// Computed, may not be shared: the callers that it concerns go to the origin alone.
    Declined(DeclinedFor),
    /// The computation failed or took too long.
    Failed(SharedFailure<V>),
    /// There is no result: the waiters look again, and the first of them leads.
    Abandoned(Abandonment),
}

// Derived `Clone` would ask for `V: Clone`.
impl<V> Clone for Verdict<V> {
    fn clone(&self) -> Self {
        match self {
            Self::Filled(entry) => Self::Filled(Arc::clone(entry)),
            Self::Declined(whom) => Self::Declined(*whom),
            Self::Failed(failure) => Self::Failed(failure.clone()),
            Self::Abandoned(why) => Self::Abandoned(*why),
        }
    }
}

/// A failure as waiters see it.
#[derive(Debug)]
pub(crate) struct SharedFailure<V> {
    pub(crate) error: Error,
    /// Whether each waiter computes for itself instead of sharing the failure.
    pub(crate) each_computes: bool,
    /// What the failed computation returned, for the waiters that may have it.
    pub(crate) result: Option<Arc<Entry<V>>>,
    /// Set once a waiter has told of the failure that a stale value has hidden from it; none where the
    /// leader tells.
    pub(crate) is_told: Option<Arc<OnceLock<()>>>,
}

impl<V> SharedFailure<V> {
    pub(crate) fn of(error: Error) -> Self {
        Self { error, each_computes: false, result: None, is_told: None }
    }

    /// The failure of a leader that tells of nothing.
    pub(super) fn untold(error: Error) -> Self {
        Self { is_told: Some(Arc::new(OnceLock::new())), ..Self::of(error) }
    }
}

// Derived `Clone` would ask for `V: Clone`.
impl<V> Clone for SharedFailure<V> {
    fn clone(&self) -> Self {
        let (error, result) = (self.error.clone(), self.result.clone());
        Self { error, each_computes: self.each_computes, result, is_told: self.is_told.clone() }
    }
}

/// What a waiter learns.
#[derive(Debug)]
pub(crate) enum News<V> {
    Verdict(Verdict<V>),
    /// The waiter is the second leader, and has what the flight held.
    Lead(Box<dyn Vacant>),
}

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abandonment {
    /// The leader is gone without a result.
    Lost,
    /// The result concerns the leader's own request only.
    NotShared,
}

#[derive(Debug)]
pub(crate) enum Phase {
    Waiting,
    Computing,
    Arriving,
    Vacant(Box<dyn Vacant>),
    Published,
    Settled,
}

/// When a flight and its computation began, counted by one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlightNumbers {
    pub(crate) flight: u64,
    /// None before it begins, and where the result was found elsewhere.
    pub(crate) computation: Option<u64>,
}

#[derive(Debug)]
struct Progress {
    phase: Phase,
    is_forgotten: bool,
    /// The work has no time-out: it began while the cache was not on.
    is_unbounded: bool,
    /// The waiters that may lead.
    candidates: Candidates,
}

/// What a flight did not need when it was settled. Its drop asks for the locks of table and flight.
#[derive(Debug)]
#[must_use = "to be dropped without the locks of table and flight"]
pub(crate) struct Leftover<V> {
    /// The verdict, where another one was published before.
    pub(crate) verdict: Option<Verdict<V>>,
    /// A leader may have left it a moment ago.
    _vacancy: Option<Box<dyn Vacant>>,
}

impl Progress {
    fn take_vacancy(&mut self) -> Option<Box<dyn Vacant>> {
        match std::mem::replace(&mut self.phase, Phase::Waiting) {
            Phase::Vacant(vacancy) => Some(vacancy),
            phase => {
                self.phase = phase;
                None
            }
        }
    }
}

/// One caller that waits, in what a flight counts.
const WAITER: u64 = 1;

/// One leader's own caller, in what a flight counts.
const LEADERS_CALLER: u64 = 1 << 32;

#[derive(Debug)]
pub(crate) struct Flight<V> {
    /// Tells the flight from an earlier or later flight of the same key.
    pub(crate) id: u64,
    pub(crate) key: Key,
    /// Tags known before the computation.
    pub(crate) tags: Box<[Tag]>,
    /// Sequence number of the invalidation log when the flight began.
    pub(crate) seq: u64,
    pub(crate) computation: Arc<Computation>,
    /// From when on no caller joins, since the result that arrives has paused.
    joinable_until: AtomicU64,
    /// The flight of the same key that has paused, and that this one goes beside.
    beside: Option<Weak<Flight<V>>>,
    /// A hash of the fields of the first leader's request that are not keyed.
    led_with: u64,
    /// Whose failure a failure of the leader is.
    pub(crate) requester: Requester,
    progress: Mutex<Progress>,
    /// Set under the lock of `progress`, and read without it: a crowd that wakes does not
    /// queue for one lock.
    verdict: OnceLock<Verdict<V>>,
    /// The number of the computation; zero until it begins. Flights and computations
    /// are numbered from one counter.
    began: AtomicU64,
    /// How many callers wait here, in units of [`WAITER`], and how many leaders' own callers,
    /// in units of [`LEADERS_CALLER`]. Without any of them a leader in the queue leaves it.
    interest: AtomicU64,
    wake: Notify,
    places: Arc<Places>,
}

impl<V> Flight<V> {
    pub(crate) fn new(
        id: u64,
        request: &FlightRequest,
        seq: u64,
        computation: Arc<Computation>,
        places: Arc<Places>,
        beside: Option<&Arc<Self>>,
    ) -> Self {
        let progress = Progress {
            phase: Phase::Waiting,
            is_forgotten: false,
            is_unbounded: false,
            candidates: Candidates::default(),
        };
        Self {
            id,
            key: request.key.clone(),
            tags: request.tags.clone(),
            seq,
            computation,
            joinable_until: AtomicU64::new(u64::MAX),
            beside: beside.map(Arc::downgrade),
            led_with: request.traits.unkeyed,
            requester: request.requester(),
            progress: Mutex::new(progress),
            verdict: OnceLock::new(),
            began: AtomicU64::new(0),
            interest: AtomicU64::new(0),
            wake: Notify::new(),
            places,
        }
    }

    /// The computation begins, with a number of its own.
    pub(crate) fn compute(&self, number: u64, is_unbounded: bool) {
        let mut progress = self.progress.lock();
        progress.is_unbounded = is_unbounded;
        if matches!(progress.phase, Phase::Waiting) {
            progress.phase = Phase::Computing;
        }
        self.set_number(number);
    }

    /// The result is from elsewhere, and counts as one of the computation with this number.
    pub(crate) fn set_number(&self, number: u64) {
        self.began.store(number, Ordering::Release);
    }

    pub(crate) fn numbers(&self) -> FlightNumbers {
        let began = self.began.load(Ordering::Acquire);
        FlightNumbers { flight: self.id, computation: Some(began).filter(|number| *number > 0) }
    }

    /// The head of the result is there.
    pub(crate) fn arrive(&self) {
        let mut progress = self.progress.lock();
        if matches!(progress.phase, Phase::Waiting | Phase::Computing) {
            progress.phase = Phase::Arriving;
        }
    }

    /// Returns whether a caller that joins now makes a look-up: it may have the result
    /// only as long as it is fresh.
    pub(crate) fn has_arrived(&self) -> bool {
        let progress = self.progress.lock();
        !matches!(progress.phase, Phase::Waiting | Phase::Computing | Phase::Vacant(_))
    }

    /// Publishes `verdict` unless there is one, and wakes the waiters. The flight stays
    /// in the table.
    pub(crate) fn publish(&self, verdict: Verdict<V>) {
        let mut progress = self.progress.lock();
        let unused = self.verdict.set(verdict).err();
        if unused.is_none() {
            progress.phase = Phase::Published;
        }
        // What is not used is dropped without the lock.
        drop(progress);
        if unused.is_none() {
            self.wake();
        }
    }

    /// Ends the flight with `verdict`, or with the one that was published before. Returns what is
    /// left over. Does not wake the waiters: the caller does so after the lock.
    pub(crate) fn settle(&self, verdict: Verdict<V>) -> Leftover<V> {
        let mut progress = self.progress.lock();
        let vacancy = progress.take_vacancy();
        progress.phase = Phase::Settled;
        Leftover { verdict: self.verdict.set(verdict).err(), _vacancy: vacancy }
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_waiters();
    }

    pub(crate) fn is_decided(&self) -> bool {
        self.verdict.get().is_some()
    }

    pub(crate) fn verdict(&self) -> Option<Verdict<V>> {
        self.verdict.get().cloned()
    }

    /// Waits for the verdict.
    ///
    /// Cancel safe: a dropped wait leaves nothing behind.
    #[cfg(all(test, stampede_model))]
    pub(crate) async fn wait(&self) -> Verdict<V> {
        loop {
            // Registered before looking: a verdict in between wakes us.
            let woken = self.wake.notified();
            if let Some(verdict) = self.verdict() {
                return verdict;
            }
            woken.await;
        }
    }

    /// Returns what ends with the next wake-up.
    pub(super) fn woken(&self) -> impl Future<Output = ()> {
        self.wake.notified()
    }

    /// Returns the verdict, or the lead where the waiter is a `candidate` and it is its turn.
    pub(super) fn news_for(&self, candidate: Option<Candidate>) -> Option<News<V>> {
        if let Some(verdict) = self.verdict() {
            return Some(News::Verdict(verdict));
        }
        let mut progress = self.progress.lock();
        let Phase::Vacant(vacancy) = &progress.phase else { return None };
        let (candidate, successor) = (candidate?, vacancy.successor());
        if !progress.candidates.may_succeed(candidate, successor) {
            return None;
        }
        progress.take_vacancy().map(News::Lead)
    }

    /// Returns whether the first leader has failed and none of the waiters leads yet.
    pub(super) fn is_vacant(&self) -> bool {
        !self.is_decided() && matches!(self.progress.lock().phase, Phase::Vacant(_))
    }

    /// Returns whether a waiter may be the second leader.
    pub(super) fn has_candidate(&self, successor: Successor) -> bool {
        self.progress.lock().candidates.has(successor)
    }

    /// Makes the flight vacant, unless it has a verdict, or no waiter may lead.
    pub(super) fn vacate<T: Vacant + 'static>(&self, vacancy: Box<T>) -> Result<(), Box<T>> {
        let mut progress = self.progress.lock();
        if self.is_decided() || !progress.candidates.has(vacancy.successor()) {
            return Err(vacancy);
        }
        progress.phase = Phase::Vacant(vacancy);
        Ok(())
    }

    /// Ends the vacancy, if there is one. The caller ends what it returns, without a lock.
    pub(super) fn take_vacancy(&self) -> Option<Box<dyn Vacant>> {
        self.progress.lock().take_vacancy()
    }

    /// Waits until the flight is settled. A caller that enters again before that would
    /// find this very flight, and not yet the value that it stored.
    ///
    /// Cancel safe: a dropped wait leaves nothing behind.
    pub(crate) async fn wait_settled(&self) {
        loop {
            let woken = self.wake.notified();
            if !self.runs() {
                return;
            }
            woken.await;
        }
    }

    /// From now on the result belongs to the callers that wait already: it is not stored,
    /// and no caller joins.
    pub(crate) fn forget(&self) {
        self.progress.lock().is_forgotten = true;
    }

    pub(crate) fn is_forgotten(&self) -> bool {
        self.progress.lock().is_forgotten
    }

    /// Returns whether the work may take for ever: it began while the cache was not on.
    pub(crate) fn is_unbounded(&self) -> bool {
        self.progress.lock().is_unbounded
    }

    /// Returns whether the leader should have ended by itself.
    pub(crate) fn is_overdue(&self, now: Tick) -> bool {
        self.computation.is_overdue(now)
    }

    /// Says that more of the result is expected before `until`: callers join until then.
    pub(crate) fn join_until(&self, until: Tick) {
        self.joinable_until.store(until.as_nanos(), Ordering::Release);
    }

    /// Returns whether the result that arrives has paused for so long that a caller that comes
    /// now leads another flight. There is one flight beside a paused one: the next begins when
    /// that has ended.
    pub(crate) fn has_paused(&self, now: Tick) -> bool {
        let has_paused = now.as_nanos() >= self.joinable_until.load(Ordering::Acquire);
        has_paused && !self.beside.as_ref().and_then(Weak::upgrade).is_some_and(|it| it.runs())
    }

    fn runs(&self) -> bool {
        !matches!(self.progress.lock().phase, Phase::Settled)
    }

    /// Returns whether any caller still wants the result.
    pub(crate) fn is_wanted(&self) -> bool {
        self.interest.load(Ordering::Acquire) > 0
    }

    /// Lets the work go on without any caller.
    pub(super) fn keep_wanted(&self) {
        self.interest.fetch_add(LEADERS_CALLER, Ordering::AcqRel);
    }

    /// Returns how many callers wait.
    pub(super) fn waiting(&self) -> u32 {
        waiters_in(self.interest.load(Ordering::Relaxed))
    }

    /// Takes a place among the waiters if there are fewer than `max`.
    pub(crate) fn add_waiter(&self, max: u32, candidate: Option<Candidate>) -> bool {
        let add = |interest| (waiters_in(interest) < max).then_some(interest + WAITER);
        let taken = self.interest.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        if let (Ok(_), Some(candidate)) = (taken, candidate) {
            self.progress.lock().candidates.add(candidate);
        }
        taken.is_ok()
    }

    pub(crate) fn remove_waiter(&self, candidate: Option<Candidate>) {
        // A flight with a verdict has no leader any more.
        if let Some(candidate) = candidate.filter(|_| !self.is_decided()) {
            self.remove_candidate(candidate);
        }
        self.lose_interest(WAITER);
    }

    /// A vacant flight ends with its last candidate. With the last one that comes first, it is
    /// the others' turn.
    fn remove_candidate(&self, candidate: Candidate) {
        let mut progress = self.progress.lock();
        progress.candidates.remove(candidate);
        let Phase::Vacant(vacancy) = &progress.phase else { return };
        if progress.candidates.has(vacancy.successor()) {
            drop(progress);
            return self.wake();
        }
        let vacancy = progress.take_vacancy();
        drop(progress);
        vacancy.into_iter().for_each(Vacant::end);
    }

    /// Returns which candidate the caller of `request` is here.
    pub(crate) fn candidate(&self, request: &FlightRequest) -> Option<Candidate> {
        Candidate::of(request, self.led_with)
    }

    fn lose_interest(&self, of: u64) {
        if self.interest.fetch_sub(of, Ordering::AcqRel) == of {
            self.places.leave_queue(&self.computation);
        }
    }
}

impl<V> Drop for Flight<V> {
    /// The last one that had the flight must not get a panic of the value's `Drop`: no caller has taken
    /// that value.
    fn drop(&mut self) {
        drop_caught(self.verdict.take());
    }
}

/// Returns how many of those that a flight counts wait.
fn waiters_in(interest: u64) -> u32 {
    u32::try_from(interest % LEADERS_CALLER).unwrap_or(u32::MAX)
}

/// The leader's own caller, as long as it waits for the leader.
#[derive(Debug)]
pub(crate) struct Interest<V> {
    flight: Arc<Flight<V>>,
    /// Says so to the computation in which the caller runs.
    _wait: Wait,
}

impl<V> Interest<V> {
    pub(crate) fn in_flight(flight: &Arc<Flight<V>>, wait: Wait) -> Self {
        flight.interest.fetch_add(LEADERS_CALLER, Ordering::AcqRel);
        Self { flight: Arc::clone(flight), _wait: wait }
    }

    pub(super) fn flight(&self) -> &Arc<Flight<V>> {
        &self.flight
    }
}

impl<V> Drop for Interest<V> {
    fn drop(&mut self) {
        self.flight.lose_interest(LEADERS_CALLER);
    }
}
