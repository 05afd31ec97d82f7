//! A caller on its way to an answer, before it leads or instead of leading.
//!
//! A [`Resolver`] takes one caller from flight to flight until it has a [`Step`]: an
//! answer, the lead, a computation for this caller alone, or a refusal. The way has an end:
//! each wait ends at the caller's deadline, and results that do not answer the caller's own
//! request are counted.

use std::num::NonZeroU64;
use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;

use crate::entry::Entry;
use crate::error::{Error, ErrorKind};
use crate::flight::admission::Admission;
use crate::flight::computation::Computation;
use crate::flight::end::{Conclusion, End};
use crate::flight::engine::Engine;
use crate::flight::evidence::DeclinedFor;
use crate::flight::hold::HoldCheck;
use crate::flight::leader::Leader;
use crate::flight::phase::{
    Abandonment, Flight, FlightNumbers, Interest, News, SharedFailure, Verdict,
};
use crate::flight::request::FlightRequest;
use crate::flight::vacancy::{Candidate, Vacant};
use crate::flight::wait_slot::WaitSlot;
use crate::key::Key;
use crate::observe::Occurrence;
use crate::outcome::CacheOutcome;
use crate::sync::Arc;

/// After so many results that do not answer its own request a caller still enters again;
/// after one more it computes for itself.
const MAX_REENTRIES: u8 = 2;

/// The same for results that concerned their leader's request alone.
const MAX_ELECTIONS: u8 = 2;
/// A caller waits for so many results that no caller may share.
const MAX_DECLINED: u8 = 2;

/// What the engine has to know of a caller.
pub(crate) trait Caller<V> {
    /// Returns the flight this caller belongs to, as far as it knows now.
    fn flight_request(&mut self) -> FlightRequest;

    /// Looks into the store once more, for a fresh entry this caller may have.
    fn second_look(&mut self) -> Option<Arc<Entry<V>>>;

    /// Judges what its flight has come to: the one place that says what answers this caller. A
    /// result that it takes is its answer: it may begin to read it.
    fn fits(&mut self, result: &FlightResult<'_, V>) -> Fit {
        if result.may_be_taken() { Fit::Takes } else { Fit::Refused }
    }

    /// Returns the number from which on computations are new enough for this caller,
    /// where no other result is of any interest to it.
    fn wants_computation_from(&self) -> Option<u64> {
        None
    }

    /// Returns how many times a caller lets others go first, of so many that wait, where one of
    /// them leads next.
    fn turns_left_to_others(_waiting: u32) -> u32 {
        0
    }

    /// Returns what may be served in place of a failure.
    fn fallback(&self) -> Option<Arc<Entry<V>>>;

    /// The same where it matters what failed.
    fn fallback_for(&self, failure: &Error) -> Option<Arc<Entry<V>>> {
        let _ = failure;
        self.fallback()
    }
}

/// What a flight has come to, as one of its callers finds it.
pub(crate) struct FlightResult<'a, V> {
    pub(crate) entry: &'a Entry<V>,
    pub(crate) numbers: FlightNumbers,
    /// Whether it was invalidated since the caller asked.
    pub(crate) is_dead: bool,
    /// Whether the caller came after it, and it is not fresh any more.
    is_over: bool,
    /// Whether a failed computation has returned it.
    pub(crate) is_failure: bool,
}

impl<V> FlightResult<'_, V> {
    /// Returns whether a caller may have it whose request it answers. A failure is for those that
    /// have waited, whatever was invalidated meanwhile.
    pub(crate) fn may_be_taken(&self) -> bool {
        !self.is_over && (self.is_failure || !self.is_dead)
    }
}

/// How a result fits a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Takes,
    /// It is no answer, and still arrives: the caller enters another flight at once, and not when
    /// it is stored.
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "only HTTP's results arrive"))]
    Leaves,
    Refused,
}

/// How a caller goes on.
#[derive(Debug)]
pub(crate) enum Step<V: Send + Sync + 'static> {
    Answer(Arc<Entry<V>>, CacheOutcome),
    Lead(Leader<V>),
    /// Compute for this caller alone; nothing is stored.
    Alone(AloneReason),
    Refuse(Error),
    /// A failure that is an answer, from before.
    Remembered(Error),
}

words! {
    /// Why a caller computes for itself.
    pub(crate) enum AloneReason {
        /// The result of the flight may not be shared.
        Declined = "declined",
        /// The answers of the key are known not to be shared, or the caller never waits.
        Passed = "passed",
        /// The computation failed, and each waiter computes for itself.
        EachComputes = "each_computes",
        /// Too many results did not fit the caller's own request.
        ReentriesExhausted = "reentries_exhausted",
        /// Too many results concerned their leaders' requests alone.
        ElectionsExhausted = "elections_exhausted",
        /// The request asks for something that no flight is for.
        #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "HTTP's requests"))]
        Bypass = "bypass",
        /// Waited too long, and the policy allows a computation.
        WaitTimeout = "wait_timeout",
        /// The handle only observes.
        Observe = "observe",
        /// The handle is switched off or shut down.
        Off = "off",
    }
}

/// One caller's place in one flight.
pub(crate) struct Waiter<V> {
    pub(super) flight: Arc<Flight<V>>,
    /// Joined after the answer was published, or had begun to arrive: to this caller it
    /// is a look-up, and subject to freshness like any other.
    is_late: bool,
    /// Whether it may be the second leader.
    candidate: Option<Candidate>,
}

impl<V> Waiter<V> {
    /// Takes a place if fewer than `max` callers wait. Called under the lock of the
    /// flight's shard.
    pub(super) fn join(flight: &Arc<Flight<V>>, request: &FlightRequest, max: u32) -> Option<Self> {
        let (is_late, candidate) = (flight.has_arrived(), flight.candidate(request));
        let is_taken = flight.add_waiter(max, candidate);
        is_taken.then(|| Self { flight: Arc::clone(flight), is_late, candidate })
    }
}

impl<V> Drop for Waiter<V> {
    fn drop(&mut self) {
        self.flight.remove_waiter(self.candidate);
    }
}

/// Why a caller gets no verdict.
enum NoVerdict {
    /// It leads next.
    Lead(Box<dyn Vacant>),
    /// The flight waits for the computation in which the caller runs.
    Circular,
}

/// One caller on its way to an answer: the facts that it keeps from flight to flight.
pub(crate) struct Resolver<'a, V: Send + Sync + 'static> {
    engine: &'a Arc<Engine<V>>,
    deadline: Instant,
    /// Sequence number of the invalidation log when the caller asked.
    asked: u64,
    reentries: u8,
    elections: u8,
    slot: Option<WaitSlot>,
    /// The best rank in the queue for places of any leader that it has waited for.
    rank: Option<NonZeroU64>,
    hold: Option<HoldCheck>,
    /// The flight that it has left because what arrives there is not for it.
    left: Option<NonZeroU64>,
    /// It has waited for a computation that began too early, and its patience begins anew.
    has_begun_anew: bool,
    has_caught_up: bool,
}

impl<'a, V: Send + Sync + 'static> Resolver<'a, V> {
    pub(crate) fn new(engine: &'a Arc<Engine<V>>) -> Self {
        Self {
            engine,
            deadline: Instant::now() + engine.settings.wait_timeout(),
            asked: engine.log.seq(),
            reentries: 0,
            elections: 0,
            slot: None,
            rank: None,
            hold: None,
            left: None,
            has_begun_anew: false,
            has_caught_up: false,
        }
    }

    /// Returns whether the remote is to vouch before this caller joins a computation that runs,
    /// as for a local copy. Where the process stood still, the computation may have begun long ago.
    fn is_to_catch_up(&self) -> bool {
        !self.has_caught_up && self.engine.was_vouched_until_before(self.engine.clock.now())
    }

    #[cold]
    async fn catch_up(&mut self) {
        self.has_caught_up = true;
        self.engine.vouch(false).await;
        // What it has learned of came before this caller.
        self.asked = self.engine.log.seq();
    }

    /// Goes from flight to flight until the caller knows how to go on.
    ///
    /// Cancel safe: a dropped caller gives up its places. If it has just been made the
    /// leader, the leader's guard hands the lead over.
    pub(crate) async fn resolve<C: Caller<V>>(&mut self, caller: &mut C) -> Step<V> {
        let mut joined_at = None;
        let mut waited_for: Option<Arc<Computation>> = None;
        let step = loop {
            // The one deadline of the caller ends every round.
            if let Some(computation) = &waited_for
                && Instant::now() >= self.deadline
            {
                let key = caller.flight_request().key;
                break self.timed_out(caller, &key, computation);
            }
            // What it has learned in earlier flights goes into the next request: its rank in the queue, which
            // end of a hold is for it, and which flight it has left.
            let mut request = caller.flight_request();
            request.rank = self.rank;
            request.hold = self.hold.unwrap_or(request.hold);
            request.left = self.left;
            // It waits behind the match: a leader that it might have been, and is not, would
            // take up its place in the future all the while.
            let waiter = match self.engine.enter(&request, &mut self.slot) {
                Admission::Join(waiter) => waiter,
                Admission::Lead(leader) => match self.lead(leader, caller) {
                    Some(step) => break step,
                    None => continue,
                },
                Admission::Alone(reason) => break Step::Alone(reason),
                Admission::Held(held) => {
                    if let Some(answer) = held.answer() {
                        break Step::Remembered(answer.clone());
                    }
                    let error = Error::held(held.rest, held.error.clone());
                    if let Some(entry) = caller.fallback_for(&error) {
                        break Step::Answer(entry, CacheOutcome::StaleIfError);
                    }
                    if self.hold.is_some() {
                        break Step::Refuse(self.engine.held(&request.key, held));
                    }
                    // The later end of a hold is not for a caller without a fallback.
                    self.hold = Some(HoldCheck::WithoutFallback);
                    continue;
                }
                Admission::Overloaded => {
                    let error = self.engine.overloaded(&request.key);
                    break self.stale_or_refuse(caller, &request.key, error);
                }
            };
            if self.is_to_catch_up() {
                Box::pin(self.catch_up()).await;
                if waiter.flight.is_forgotten() {
                    continue;
                }
            }
            joined_at.get_or_insert_with(Instant::now);
            waited_for = Some(Arc::clone(&waiter.flight.computation));
            let label = &self.engine.label;
            let wait = self.await_verdict::<C>(&waiter, &request);
            let verdict = match crate::observe::waiting(label, &request.key, wait).await {
                Ok(verdict) => verdict,
                Err(NoVerdict::Lead(vacancy)) => {
                    break self.succeed(vacancy, &waiter, (caller, &request));
                }
                Err(NoVerdict::Circular) => {
                    let error = Error::circular(&request.key);
                    break self.stale_or_refuse(caller, &request.key, error);
                }
            };
            // It has waited so long already: its own computation does not begin at the end of the queue.
            self.rank = self.rank.into_iter().chain(waiter.flight.computation.rank()).min();
            let leads_next = matches!(verdict, Some(Verdict::Declined(_) | Verdict::Abandoned(_)));
            if let Some(step) = self.judge(caller, &waiter, verdict, &request) {
                break step;
            }
            if leads_next {
                self.let_others_go_first::<C>(&waiter, &request).await;
            }
            // A caller that belongs elsewhere by now need not wait for what this flight stores.
            let has_left = self.left.is_some_and(|left| left.get() == waiter.flight.id);
            if !has_left && caller.flight_request().key == request.key {
                // At the deadline the next round ends the wait.
                let settled = waiter.flight.wait_settled();
                let _ = tokio::time::timeout_at(self.deadline, settled).await;
            }
        };
        self.slot = None;
        if let Some(at) = joined_at {
            let computed_in = match &step {
                Step::Answer(entry, _) => Some(entry.computed_in()),
                _ => None,
            };
            let (key, took) = (&caller.flight_request().key, at.elapsed());
            self.engine.observer.happened(Occurrence::Waited { key, took, computed_in });
        }
        step
    }

    /// Lets other waiters go first where one of them leads next, by likeness to the last request
    /// that was shared, else by chance.
    async fn let_others_go_first<C: Caller<V>>(&self, waiter: &Waiter<V>, request: &FlightRequest) {
        if self.engine.is_like_shared(request) {
            return;
        }
        for _ in 0..C::turns_left_to_others(waiter.flight.waiting()) {
            tokio::task::yield_now().await;
        }
    }

    /// Waits for the verdict, deposes a leader that is overdue, and returns `None` at
    /// this caller's own deadline. Returns the vacancy where this caller leads next.
    ///
    /// No `async fn`: that would hold the arguments twice, in the future of each waiter.
    #[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
    fn await_verdict<'b, C: Caller<V>>(
        &'b self,
        waiter: &'b Waiter<V>,
        request: &'b FlightRequest,
    ) -> impl Future<Output = Result<Option<Verdict<V>>, NoVerdict>> + use<'a, 'b, V, C> {
        async move {
            let flight = &waiter.flight;
            let wait = self.engine.wait_for(flight);
            // Also where the verdict is there: what arrives would have to be read to its end.
            if wait.is_circular() {
                return Err(NoVerdict::Circular);
            }
            loop {
                if waiter.candidate.is_some() && flight.is_vacant() {
                    Box::pin(self.let_others_go_first::<C>(waiter, request)).await;
                }
                // Before the look: news that come in between wake this caller.
                let mut woken = pin!(flight.woken());
                match flight.news_for(waiter.candidate) {
                    Some(News::Verdict(verdict)) => return Ok(Some(verdict)),
                    Some(News::Lead(vacancy)) => return Err(NoVerdict::Lead(vacancy)),
                    // A vacant flight is overdue earlier than before.
                    None => {}
                }
                let now = self.engine.watch.now();
                let patience = flight.computation.overdue_at().since(now);
                let patience = patience.max(Duration::from_millis(1));
                let until = Instant::now().checked_add(patience);
                let until = until.map_or(self.deadline, |until| until.min(self.deadline));
                if tokio::time::timeout_at(until, woken.as_mut()).await.is_ok() {
                    continue;
                }
                if Instant::now() >= self.deadline {
                    return Ok(None);
                }
                if flight.is_overdue(self.engine.watch.now()) {
                    self.engine.depose(flight);
                }
            }
        }
    }

    /// The second look: a value may have come between the first look and the lead. Returns
    /// `None` if that showed that this caller belongs to another flight.
    fn lead<C: Caller<V>>(&mut self, mut leader: Leader<V>, caller: &mut C) -> Option<Step<V>> {
        if let Some(entry) = caller.second_look() {
            leader.end(End::Found(Arc::clone(&entry)));
            return Some(Step::Answer(entry, CacheOutcome::Hit));
        }
        if caller.flight_request().key != *leader.key() {
            leader.end(Conclusion::Withdraw);
            return None;
        }
        leader.wait_until(self.deadline, self.slot.take());
        match leader.enter_queue() {
            Ok(()) => Some(Step::Lead(leader)),
            Err(error) => {
                let key = leader.key().clone();
                leader.end(Conclusion::Withdraw);
                Some(self.stale_or_refuse(caller, &key, error))
            }
        }
    }

    /// Takes the lead of the flight in which this caller has waited, and whose first leader has
    /// failed.
    fn succeed<C: Caller<V>>(
        &mut self,
        vacancy: Box<dyn Vacant>,
        waiter: &Waiter<V>,
        (caller, request): (&mut C, &FlightRequest),
    ) -> Step<V> {
        let mut leader = Leader::of_vacancy(vacancy);
        let interest = Interest::in_flight(&waiter.flight, self.engine.wait_for(&waiter.flight));
        leader.lead_for(request, interest);
        if let Some(entry) = caller.second_look() {
            leader.end(End::Found(Arc::clone(&entry)));
            return Step::Answer(entry, CacheOutcome::Hit);
        }
        leader.wait_until(self.deadline, self.slot.take());
        self.engine.observer.happened(Occurrence::Led);
        Step::Lead(leader)
    }

    /// Returns how to go on after `verdict`, or `None` to look again.
    fn judge<C: Caller<V>>(
        &mut self,
        caller: &mut C,
        waiter: &Waiter<V>,
        verdict: Option<Verdict<V>>,
        request: &FlightRequest,
    ) -> Option<Step<V>> {
        let Some(verdict) = verdict else {
            self.engine.observer.happened(Occurrence::WaitTimedOut { key: &request.key });
            return Some(self.timed_out(caller, &request.key, &waiter.flight.computation));
        };
        let numbers = waiter.flight.numbers();
        let is_before = |from| numbers.computation.is_none_or(|number| number < from);
        let is_too_old = caller.wants_computation_from().is_some_and(is_before);
        match verdict {
            // The end of a computation that began too early says nothing; a value from
            // another process may still be new enough.
            Verdict::Filled(entry) if is_too_old => {
                let fit = self.fit(caller, waiter, &entry, false);
                if fit == Fit::Takes {
                    return Some(Step::Answer(entry, CacheOutcome::Joined));
                }
                self.begin_anew(numbers);
                // Where it has not left, it waits for the end of the flight.
                if fit == Fit::Leaves { self.reenter() } else { None }
            }
            _ if is_too_old => {
                self.begin_anew(numbers);
                None
            }
            Verdict::Filled(entry) => match self.fit(caller, waiter, &entry, false) {
                Fit::Takes => Some(Step::Answer(entry, CacheOutcome::Joined)),
                Fit::Leaves | Fit::Refused => self.reenter(),
            },
            Verdict::Declined(whom) => self.elect_after(whom, request),
            Verdict::Failed(failure) if failure.each_computes => {
                Some(Step::Alone(AloneReason::EachComputes))
            }
            // The leader was held and has looked for a value; this caller is not.
            Verdict::Failed(failure)
                if failure.error.kind() == ErrorKind::Held
                    && !self.engine.is_held(request)
                    && caller.fallback_for(&failure.error).is_none() =>
            {
                None
            }
            Verdict::Failed(failure) => Some(self.take_failure(caller, waiter, failure)),
            Verdict::Abandoned(Abandonment::Lost) => None,
            Verdict::Abandoned(Abandonment::NotShared) => self.elect(),
        }
    }

    /// Counts a result that concerned its leader's request alone.
    fn elect(&mut self) -> Option<Step<V>> {
        self.elections += 1;
        (self.elections > MAX_ELECTIONS).then_some(Step::Alone(AloneReason::ElectionsExhausted))
    }

    /// The same where the result says something of the callers that it concerns.
    fn elect_after(&mut self, whom: DeclinedFor, request: &FlightRequest) -> Option<Step<V>> {
        let exhausted = self.elect();
        let is_concerned = match whom {
            DeclinedFor::All => true,
            DeclinedFor::Equal(unkeyed) => {
                unkeyed == request.traits.unkeyed && !self.engine.is_like_shared(request)
            }
            DeclinedFor::ByEvidence => false,
        };
        let passes = is_concerned || self.elections >= MAX_DECLINED;
        if passes || self.engine.lets_pass(&request.key, request.traits) {
            return Some(Step::Alone(AloneReason::Declined));
        }
        exhausted
    }

    /// Counts a result that was no answer to this caller's own request.
    fn reenter(&mut self) -> Option<Step<V>> {
        self.reentries += 1;
        (self.reentries > MAX_REENTRIES).then_some(Step::Alone(AloneReason::ReentriesExhausted))
    }

    /// Lets the caller judge a result.
    fn fit<C: Caller<V>>(
        &mut self,
        caller: &mut C,
        waiter: &Waiter<V>,
        entry: &Entry<V>,
        is_failure: bool,
    ) -> Fit {
        let (log, started) = (&self.engine.log, entry.started_seq);
        let fit = caller.fits(&FlightResult {
            entry,
            numbers: waiter.flight.numbers(),
            is_dead: log.is_dead(&entry.tags, started, self.asked)
                || log.is_doubted_by(started, self.asked),
            is_over: waiter.is_late && self.engine.clock.now() >= entry.window().fresh_until,
            is_failure,
        });
        if fit == Fit::Leaves {
            self.left = NonZeroU64::new(waiter.flight.id);
        }
        fit
    }

    /// The caller has waited for another computation than the one that it wants. There is one
    /// such computation; a leader that came to none is no reason to wait on.
    fn begin_anew(&mut self, numbers: FlightNumbers) {
        if numbers.computation.is_some() && !self.has_begun_anew {
            self.has_begun_anew = true;
            self.deadline = Instant::now() + self.engine.settings.wait_timeout();
        }
    }

    /// Returns something stale, what the failed computation returned, or the failure.
    fn take_failure<C: Caller<V>>(
        &mut self,
        caller: &mut C,
        waiter: &Waiter<V>,
        failure: SharedFailure<V>,
    ) -> Step<V> {
        let SharedFailure { error, result, is_unreported, .. } = failure;
        let entry = match is_unreported {
            true => {
                let Flight { key, computation, .. } = &*waiter.flight;
                stand_in_once(self.engine, caller, (key, computation), &error)
            }
            false => caller.fallback_for(&error),
        };
        if let Some(entry) = entry {
            return Step::Answer(entry, CacheOutcome::StaleIfError);
        }
        match result {
            Some(entry) if self.fit(caller, waiter, &entry, true) == Fit::Takes => {
                Step::Answer(entry, CacheOutcome::Joined)
            }
            _ => Step::Refuse(error),
        }
    }

    fn timed_out<C: Caller<V>>(&self, caller: &C, key: &Key, computation: &Computation) -> Step<V> {
        let error = Error::retry_in(ErrorKind::WaitTimeout, self.engine.settings.hold());
        match stand_in_once(self.engine, caller, (key, computation), &error) {
            Some(entry) => Step::Answer(entry, CacheOutcome::StaleIfError),
            None if self.engine.settings.compute_after_wait == Some(true) => {
                Step::Alone(AloneReason::WaitTimeout)
            }
            None => Step::Refuse(error),
        }
    }

    fn stale_or_refuse<C: Caller<V>>(&self, caller: &C, key: &Key, error: Error) -> Step<V> {
        match stand_in(self.engine, caller, key, &error) {
            Some(entry) => Step::Answer(entry, CacheOutcome::StaleIfError),
            None => Step::Refuse(error),
        }
    }
}

/// Returns what a caller is served in place of a failure that no computation of this process has
/// reported, and reports it: each of those passes here.
pub(crate) fn stand_in<V: Send + Sync + 'static>(
    engine: &Engine<V>,
    caller: &impl Caller<V>,
    key: &Key,
    error: &Error,
) -> Option<Arc<Entry<V>>> {
    caller.fallback_for(error).inspect(|entry| engine.report_hidden(key, error, entry))
}

/// The same for a failure of which many callers may learn, before the computation has ended or
/// after it: the first of them reports it.
pub(super) fn stand_in_once<V: Send + Sync + 'static>(
    engine: &Engine<V>,
    caller: &impl Caller<V>,
    (key, computation): (&Key, &Computation),
    error: &Error,
) -> Option<Arc<Entry<V>>> {
    caller
        .fallback_for(error)
        .inspect(|entry| engine.hide_once(key, Some(computation), error, entry))
}
