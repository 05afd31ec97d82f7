//! The door of the room, and the one orchestrator behind it: from a caller without a fresh answer
//! to its answer.
//!
//! Generic or HTTP, detached or inline, miss or refresh: all go through here.
//!
//! - [`Work`] is what a caller brings: a [`Question`] (the key it looks for, and what may answer
//!   it), and the call of the origin. There are two: `cache::key_work::KeyWork` and
//!   `http::flow::work::HttpWork`.
//! - [`run`] takes a caller that found nothing fresh: it waits, leads, computes alone or is
//!   refused.
//! - [`begin_refresh`] takes the lead for a caller that has a value in hand.
//! - [`try_lead`] takes the lead for one that has a value already, and asks no other.
//! - [`lead`] is the way of a leader from its lead to its end. Whether it runs on a task of
//!   its own or inside the caller is up to the closure that `run` is given.
//!
//! What stands here is all that `http` sees of the room. A flight is ended behind the door: see
//! [`Lead`].

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Tick;
use crate::entry::Entry;
use crate::error::{Error, ErrorKind};
use crate::flight::admission::Admission;
use crate::flight::clearance::Clearance;
pub(crate) use crate::flight::clearance::{Judgement, Patience, Search};
pub(crate) use crate::flight::end::{Conclusion, Remember};
use crate::flight::end::{End, Leavings};
use crate::flight::engine::Engine;
pub(crate) use crate::flight::engine::PlaceForOne;
use crate::flight::hold::HeldKey;
pub(crate) use crate::flight::hold::{FailureRule, HoldRule};
pub(crate) use crate::flight::lead::{FlightFacts, Lead};
pub(crate) use crate::flight::lending::within;
use crate::flight::request::{FlightRequest, LedFor};
pub(crate) use crate::flight::waiter::{AloneReason, Caller, Fit, FlightResult, stand_in};
use crate::flight::waiter::{Resolver, Step};
#[cfg(feature = "http")]
pub(crate) use crate::flight::{
    arrival::Arrival,
    evidence::RequestTraits,
    forwarding::{ForwardBound, ForwardPlace},
    leader::Kept,
    phase::FlightNumbers,
    ports::{Destination, Store, StoreChange},
    vacancy::Successor,
};
use crate::mode::Mode;
use crate::outcome::CacheOutcome;

/// When a refresh that was left to another process looks again.
const REFRESH_AGAIN: Duration = Duration::from_millis(100);

/// What a caller asks for, and what may answer it. No computation is part of it, so it has no
/// type of the user's: the ways of waiters and of leaders are compiled once for each of the two.
pub(crate) trait Question<V: Send + Sync + 'static>: Caller<V> + Search<V> {
    /// Returns what a leader does while another process holds the lease.
    fn patience(&mut self) -> Patience;

    /// Prepares the leader before it begins.
    fn prepare(&mut self, _: &mut Lead<V>) {}

    /// Keeps a value that the search has found and that may be served in place of a failure.
    fn keep_stand_in(&mut self, lead: &Lead<V>);

    /// Stores a value that the search has found and that answers the callers. Returns it as
    /// they get it.
    fn adopt(&mut self, lead: &Lead<V>, found: Arc<Entry<V>>) -> Arc<Entry<V>>;

    /// Returns until when something stale may be served in place of a failure.
    fn stale_until(&self) -> Option<Tick> {
        self.fallback().map(|entry| entry.window().useful_until())
    }
}

/// What a caller brings: a question, and the call of the origin.
pub(crate) trait Work<V: Send + Sync + 'static>: Sized {
    type Question: Question<V>;

    /// What the leader's own caller gets from the origin.
    type Output;

    fn question(&mut self) -> &mut Self::Question;

    /// Asks the origin, and ends the leader.
    fn call(self, lead: Lead<V>) -> impl Future<Output = Self::Output>;
}

/// How a leader's way ended.
pub(crate) enum LeadOutcome<V, W: Work<V>>
where
    V: Send + Sync + 'static,
{
    /// The origin was asked.
    Called(W::Output),
    /// The remote has a value; the origin was not asked.
    Found(Arc<Entry<V>>, W),
    /// There is no value. The work is gone where its task was cut off.
    Refused(Error, Option<W>),
}

/// How a caller goes on.
pub(crate) enum RunOutcome<V, W: Work<V>>
where
    V: Send + Sync + 'static,
{
    Answer(Arc<Entry<V>>, CacheOutcome, W),
    /// It led, and asked the origin.
    Called(W::Output, CacheOutcome),
    /// The remote has a value, which may be stale.
    Found(Arc<Entry<V>>, W),
    /// It computes for itself. A caller whose patience is over has one of the places for
    /// computations; others need none: that is the traffic there would be without a cache.
    Alone(AloneReason, Option<PlaceForOne<V>>, W),
    Refused(Error, Option<W>),
    /// A failure that is an answer, from before.
    Remembered(Error, W),
}

/// Answers a caller that found nothing fresh. `lead_by` runs [`lead`].
///
/// No `async fn`: that would hold the work twice, in the future of each waiter.
pub(crate) fn run<V, W, LF>(
    engine: &Arc<Engine<V>>,
    mut work: W,
    lead_by: impl FnOnce(Lead<V>, W) -> LF,
) -> impl Future<Output = RunOutcome<V, W>>
where
    V: Send + Sync + 'static,
    W: Work<V>,
    LF: Future<Output = LeadOutcome<V, W>>,
{
    let mut resolver = Resolver::new(engine);
    async move {
        let step = resolver.resolve(work.question()).await;
        // Moved as a whole: what is taken apart here would keep its room in the future.
        let leading = match next(engine, step, work, lead_by) {
            Ok(outcome) => return outcome,
            Err(leading) => leading,
        };
        match leading.await.for_caller(CacheOutcome::Computed) {
            RunOutcome::Refused(error, work) => refuse_unless_off(engine, error, work),
            outcome => outcome,
        }
    }
}

/// Returns the result for a caller, or the way of the leader that it is, in a box of its own: a
/// waiter does not lead.
fn next<V, W, LF>(
    engine: &Arc<Engine<V>>,
    step: Step<V>,
    mut work: W,
    lead_by: impl FnOnce(Lead<V>, W) -> LF,
) -> Result<RunOutcome<V, W>, Pin<Box<LF>>>
where
    V: Send + Sync + 'static,
    W: Work<V>,
{
    Ok(match step {
        Step::Lead(leader) => return Err(Box::pin(lead_by(Lead(leader), work))),
        Step::Answer(entry, outcome) => RunOutcome::Answer(entry, outcome, work),
        Step::Refuse(error) => refuse_unless_off(engine, error, Some(work)),
        Step::Remembered(error) => RunOutcome::Remembered(error, work),
        Step::Alone(reason @ AloneReason::WaitTimeout) => {
            let request = work.question().flight_request();
            match engine.try_place(request.client) {
                Some(place) => RunOutcome::Alone(reason, Some(place), work),
                None => {
                    let error = engine.overloaded(&request.key);
                    refuse_unless_off(engine, error, Some(work))
                }
            }
        }
        Step::Alone(reason) => RunOutcome::Alone(reason, None, work),
    })
}

/// Refuses a caller. A cache that was switched meanwhile refuses no caller: it computes for
/// itself, unless it shares the failure of a computation.
fn refuse_unless_off<V, W>(engine: &Engine<V>, error: Error, work: Option<W>) -> RunOutcome<V, W>
where
    V: Send + Sync + 'static,
    W: Work<V>,
{
    let is_ours =
        matches!(error.kind(), ErrorKind::Held | ErrorKind::Overloaded | ErrorKind::WaitTimeout);
    match (engine.mode(), work) {
        (Mode::Observe, Some(work)) if is_ours => {
            RunOutcome::Alone(AloneReason::Observe, None, work)
        }
        (Mode::Off, Some(work)) if is_ours => RunOutcome::Alone(AloneReason::Off, None, work),
        (_, work) => RunOutcome::Refused(error, work),
    }
}

/// Lets a caller compute for itself while the handle observes or is switched off. It is
/// neither delayed nor refused. An observing handle stores the result, unless another
/// caller computes already.
pub(crate) async fn run_unprotected<V, W, LF>(
    engine: &Arc<Engine<V>>,
    mut work: W,
    lead_by: impl FnOnce(Lead<V>, W) -> LF,
) -> RunOutcome<V, W>
where
    V: Send + Sync + 'static,
    W: Work<V>,
    LF: Future<Output = LeadOutcome<V, W>>,
{
    let request = work.question().flight_request().without_waiting().despite_hold();
    let request = request.led_for(LedFor::CallerWithValue);
    match engine.enter(&request, &mut None) {
        Admission::Lead(leader) => {
            match lead_by(Lead(leader), work).await.for_caller(CacheOutcome::Alone) {
                // Switched on in this moment, or a bound that does not hold here.
                RunOutcome::Found(_, work) | RunOutcome::Refused(_, Some(work)) => {
                    RunOutcome::Alone(AloneReason::Observe, None, work)
                }
                outcome => outcome,
            }
        }
        Admission::Alone(AloneReason::Off) => RunOutcome::Alone(AloneReason::Off, None, work),
        _ => RunOutcome::Alone(AloneReason::Observe, None, work),
    }
}

impl<V: Send + Sync + 'static, W: Work<V>> LeadOutcome<V, W> {
    /// Changes the work that comes back.
    pub(crate) fn map_work<X>(self, change: impl FnOnce(W) -> X) -> LeadOutcome<V, X>
    where
        X: Work<V, Output = W::Output>,
    {
        match self {
            Self::Called(output) => LeadOutcome::Called(output),
            Self::Found(entry, work) => LeadOutcome::Found(entry, change(work)),
            Self::Refused(error, work) => LeadOutcome::Refused(error, work.map(change)),
        }
    }

    fn for_caller(self, outcome: CacheOutcome) -> RunOutcome<V, W> {
        match self {
            Self::Called(output) => RunOutcome::Called(output, outcome),
            Self::Found(entry, work) => RunOutcome::Found(entry, work),
            Self::Refused(error, work) => RunOutcome::Refused(error, work),
        }
    }
}

/// Makes an outcome of a task's result. The task may have been cut off by a shutdown.
pub(crate) async fn from_task<V, W>(
    task: impl Future<Output = Result<LeadOutcome<V, W>, Error>>,
) -> LeadOutcome<V, W>
where
    V: Send + Sync + 'static,
    W: Work<V>,
{
    task.await.unwrap_or_else(|error| LeadOutcome::Refused(error, None))
}

/// Takes the lead of a refresh, unless a computation of the key runs here or did so
/// elsewhere a moment ago, the key is held, or `max_refreshes` are under way.
/// `is_still_wanted` is asked once the lead is taken.
pub(crate) fn begin_refresh<V: Send + Sync + 'static>(
    engine: &Arc<Engine<V>>,
    request: FlightRequest,
    led_for: LedFor,
    is_still_wanted: impl FnOnce() -> bool,
) -> Option<Lead<V>> {
    if !engine.may_refresh(&request.key) {
        return None;
    }
    let lead = try_lead(engine, request.led_for(led_for))?;
    if is_still_wanted() {
        return Some(lead);
    }
    lead.end(Conclusion::Withdraw);
    None
}

/// Takes the lead without waiting, unless a computation of the key runs, or none may begin now.
pub(crate) fn try_lead<V: Send + Sync + 'static>(
    engine: &Arc<Engine<V>>,
    request: FlightRequest,
) -> Option<Lead<V>> {
    match engine.enter(&request.without_waiting(), &mut None) {
        Admission::Lead(leader) => Some(Lead(leader)),
        _ => None,
    }
}

/// The way of a leader from its lead to its end. Every exit ends it: by name here, or by
/// the guard when this future is dropped or panics.
pub(crate) async fn lead<V, W>(lead: Lead<V>, mut work: W) -> LeadOutcome<V, W>
where
    V: Send + Sync + 'static,
    W: Work<V>,
{
    match clear(lead, work.question()).await {
        Cleared::Call(lead) => LeadOutcome::Called(work.call(lead).await),
        Cleared::Found(found, leavings) => {
            leavings.after_others().await;
            LeadOutcome::Found(found, work)
        }
        Cleared::Refused(error) => LeadOutcome::Refused(error, Some(work)),
    }
}

/// What a leader does once it is cleared.
pub(crate) enum Cleared<V: Send + Sync + 'static> {
    /// It asks the origin.
    Call(Lead<V>),
    /// The remote has a value. The leader has ended.
    Found(Arc<Entry<V>>, Leavings<V>),
    /// There is no value. The leader has ended.
    Refused(Error),
}

/// The way of a leader until it asks the origin, or ends without that.
pub(crate) async fn clear<V, Q>(mut lead: Lead<V>, question: &mut Q) -> Cleared<V>
where
    V: Send + Sync + 'static,
    Q: Question<V>,
{
    // What its caller has in hand decides how long it waits, and what a failure means.
    question.prepare(&mut lead);
    let patience = question.patience();
    let clearance = lead.0.clear(question, patience).await;
    question.keep_stand_in(&lead);
    let may_call = matches!(clearance, Clearance::Compute | Clearance::TimedOut);
    if !may_call {
        // Its caller may not be polled any more: others must not wait for what it does next.
        question.give_way();
    }
    match clearance {
        Clearance::Compute => Cleared::Call(lead),
        Clearance::Found(found) => {
            // Stored before it is handed over, like a computed value.
            let found = question.adopt(&lead, found);
            let leavings = lead.end_found(Arc::clone(&found));
            Cleared::Found(found, leavings)
        }
        Clearance::Held(held) => {
            let error = lead.engine().held(lead.key(), held);
            lead.0.end(End::Held { error: error.clone(), noted: None });
            Cleared::Refused(error)
        }
        // The failure was in another process: its error is not known here, its rest is believed within
        // the bounds of this process.
        Clearance::HeldElsewhere(rest) => {
            let rest = lead.engine().settings.hold_policy().believed(rest);
            let held = HeldKey { rest, error: None };
            let error = lead.engine().held(lead.key(), held);
            drop(stand_in(lead.engine(), question, lead.key(), &error));
            lead.0.end(End::Held { error: error.clone(), noted: Some(rest) });
            Cleared::Refused(error)
        }
        Clearance::LeftToAnother(left) => {
            lead.0.end(End::LeftToAnother(left.min(REFRESH_AGAIN)));
            Cleared::Refused(Error::new(ErrorKind::WaitTimeout))
        }
        // It has waited for another process. Where the settings allow it, and no stale value serves, one
        // caller of each process computes without the lease.
        Clearance::TimedOut => {
            let settings = &lead.engine().settings;
            let may_compute =
                settings.compute_after_wait == Some(true) && question.stale_until().is_none();
            if may_compute && lead.0.try_place() {
                return Cleared::Call(lead);
            }
            question.give_way();
            let error = lead.engine().waited_too_long(lead.key());
            drop(stand_in(lead.engine(), question, lead.key(), &error));
            lead.end(Conclusion::Withdraw);
            Cleared::Refused(error)
        }
        // Its waiters have a patience of their own: the next of them leads. A refresh was put off.
        Clearance::Refused(error) => {
            if !lead.0.is_refresh() {
                drop(stand_in(lead.engine(), question, lead.key(), &error));
            }
            lead.end(Conclusion::Withdraw);
            Cleared::Refused(error)
        }
    }
}
