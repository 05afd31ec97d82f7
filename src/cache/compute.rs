//! The work of a caller that asks for a key: `get_or_compute` and the methods like it, and
//! the layer for any tower service.

use std::future::{Future, ready};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either};

use crate::cache::call_options::CallContext;
use crate::cache::computation::{Compute, LentClosure, TakeCall, TakenCall};
use crate::cache::key_work::{FailedCall, KeyWork, ReplacedEntry};
use crate::cache::state::{CacheState, Lookup};
use crate::entry::Entry;
use crate::error::{Absent, Error, ErrorKind, FailureAction};
use crate::flight::door::{self, Lead, LeadOutcome, RunOutcome, Work};
use crate::flight::engine::PlaceForOne;
use crate::flight::hold::{FailureRule, HoldRule};
use crate::flight::request::LedFor;
use crate::flight::waiter::{AloneReason, Caller};
use crate::freshness::Freshness;
use crate::key::Key;
use crate::mode::Mode;
use crate::observe::{Observe, Observer, Occurrence};
use crate::outcome::CacheOutcome;

/// An answer: a stored entry, or the result of the caller's own computation.
#[derive(Clone, Debug)]
pub(crate) enum Answer<V, T> {
    Entry(Arc<Entry<V>>, CacheOutcome),
    Own(T, CacheOutcome),
}

impl<V, T> Answer<V, T> {
    pub(super) fn outcome(&self) -> CacheOutcome {
        let (Self::Entry(_, outcome) | Self::Own(_, outcome)) = self;
        *outcome
    }
}

impl<V: Clone> Answer<V, V> {
    pub(crate) fn into_value(self) -> V {
        match self {
            Self::Entry(entry, _) => entry.value.clone(),
            Self::Own(value, _) => value,
        }
    }
}

/// A caller that gets an error, and how that came about.
pub(super) struct Failed {
    error: Error,
    outcome: CacheOutcome,
}

impl Failed {
    /// A failure of the computation is an answer; the cache makes all other errors.
    pub(super) fn of(error: Error, outcome: CacheOutcome) -> Self {
        let is_answer = error.kind() == ErrorKind::Inner;
        Self { error, outcome: if is_answer { outcome } else { CacheOutcome::Refused } }
    }
}

/// Counts the request of a caller whose computation panics: the panic leaves by no way that counts.
async fn counted<F: Future>(observer: Arc<Observer>, outcome: CacheOutcome, work: F) -> F::Output {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|panic| {
        observer.answered(outcome);
        resume_unwind(panic)
    })
}

impl<V: Clone + Send + Sync + 'static> CacheState<V> {
    /// Answers a caller with a computation that can run on its own task: a stale value is
    /// served at once, and refreshed in the background.
    pub(crate) fn answer_detached<'a>(
        self: &'a Arc<Self>,
        key: Key,
        lookup: Lookup<V>,
        later: &'a mut dyn TakeCall<V>,
        context: Option<Arc<CallContext<V>>>,
    ) -> Pin<Box<impl Future<Output = Result<Answer<V, V>, Error>> + Send + use<'a, V>>> {
        let work = KeyWork::serve(self, key, None, LentClosure(later)).with_context(context);
        let on_task = move |lead, work| self.lead_deferred(lead, work);
        let in_background = move |lead: Lead<V>, work: KeyWork<V, LentClosure<'a, V>>| {
            let KeyWork { question, compute: LentClosure(later) } = work;
            let compute = TakenCall(later.take_call());
            let work = KeyWork { question, compute };
            drop(lead.in_background(|lead| door::lead(lead, work)));
            ready(None)
        };
        Box::pin(self.answer(work, lookup, on_task, (LedFor::Refresh, in_background)))
    }

    /// Lets `lead_by` compute what no caller has asked for, in place of `seen` or where nothing is:
    /// unless that has changed, a computation runs, or none may run now.
    pub(super) fn begin_upkeep<C, T>(
        self: &Arc<Self>,
        work: KeyWork<V, C>,
        seen: Option<&Arc<Entry<V>>>,
        lead_by: impl FnOnce(Lead<V>, KeyWork<V, C>) -> T,
    ) -> Option<T> {
        let key = work.question.key.as_bytes();
        let is_still_wanted = || match seen {
            Some(seen) => self.is_still(key, seen),
            None => matches!(self.peek(key), Lookup::Miss(_)),
        };
        let (request, led_for) = (work.question.request(), LedFor::Refresh);
        let lead = door::begin_refresh(&self.engine, request, led_for, is_still_wanted)?;
        let work = match seen {
            Some(seen) => work.refreshing(seen),
            None => work,
        };
        Some(lead_by(lead, work))
    }

    /// Answers a caller whose computation has a type of its own, as that of a tower service.
    pub(crate) fn answer_owned<C>(
        self: &Arc<Self>,
        key: Key,
        lookup: Lookup<V>,
        compute: C,
    ) -> impl Future<Output = Result<Answer<V, C::Own>, Error>> + Send
    where
        C: Compute<V, Own: Send, Error: Send, Call: Send> + Send + 'static,
        C::Own: 'static,
    {
        let work = KeyWork::serve(self, key, None, compute);
        let on_task = move |lead, work| self.lead_on_task(lead, work);
        let in_background = move |lead: Lead<V>, work| {
            drop(lead.in_background(|lead| door::lead(lead, work)));
            ready(None)
        };
        self.answer(work, lookup, on_task, (LedFor::Refresh, in_background))
    }

    /// Leads on a task. A call that was not polled comes back to its caller.
    fn lead_deferred<'a>(
        self: &Arc<Self>,
        lead: Lead<V>,
        work: KeyWork<V, LentClosure<'a, V>>,
    ) -> impl Future<Output = LeadOutcome<V, KeyWork<V, LentClosure<'a, V>>>> + Send + use<'a, V>
    {
        let KeyWork { question, compute: LentClosure(later) } = work;
        let compute = TakenCall(later.take_call());
        let task = self.lead_on_task(lead, KeyWork { question, compute });
        task.map(move |outcome| {
            outcome.map_work(|KeyWork { question, compute: TakenCall(call) }| {
                later.give_back(call);
                KeyWork { question, compute: LentClosure(later) }
            })
        })
    }

    fn lead_on_task<C>(
        &self,
        lead: Lead<V>,
        work: KeyWork<V, C>,
    ) -> impl Future<Output = LeadOutcome<V, KeyWork<V, C>>> + Send + use<V, C>
    where
        C: Compute<V, Own: Send, Error: Send, Call: Send> + Send + 'static,
        C::Own: 'static,
    {
        let task = door::from_task(lead.on_task(|lead| door::lead(lead, work)));
        self.counting_panics(task)
    }

    /// Answers a caller with a computation that runs inside it. Nothing can run in the
    /// background for such a caller: the first that finds a stale value refreshes it.
    pub(crate) async fn answer_inline<C>(
        self: &Arc<Self>,
        key: Key,
        lookup: Lookup<V>,
        compute: C,
        context: Option<Arc<CallContext<V>>>,
    ) -> Result<Answer<V, C::Own>, Error>
    where
        C: Compute<V>,
    {
        let work = KeyWork::serve(self, key, None, compute).with_context(context);
        let lead = |lead, work| self.counting_panics(door::lead(lead, work));
        let inside = |led, work| async move { Some(lead(led, work).await) };
        // Without limits: a computation inside its caller would be lost at their end.
        self.answer_at_once(work, lookup, lead, (LedFor::CallerWithValue, inside)).await
    }

    /// Answers with a value whose computation began after the call.
    pub(crate) fn answer_fresh<'a>(
        self: &'a Arc<Self>,
        key: Key,
        later: &'a mut dyn TakeCall<V>,
        context: Option<Arc<CallContext<V>>>,
    ) -> BoxFuture<'a, Result<Answer<V, V>, Error>> {
        Box::pin(async move {
            let work = KeyWork::serve(self, key.clone(), None, LentClosure(later));
            let on_task = |lead, work| self.lead_deferred(lead, work);
            let read = self.read_fresh(work.with_context(context.clone()), on_task);
            self.read_in_time(&key, context.as_deref(), read).await
        })
    }

    pub(super) async fn read_fresh<C, LF>(
        self: &Arc<Self>,
        work: KeyWork<V, C>,
        lead_by: impl FnOnce(Lead<V>, KeyWork<V, C>) -> LF,
    ) -> Result<Answer<V, C::Own>, Error>
    where
        C: Compute<V>,
        LF: Future<Output = LeadOutcome<V, KeyWork<V, C>>>,
    {
        let result = match self.run(work.reading_fresh(), lead_by).await {
            // Computed by another process since the call.
            RunOutcome::Found(entry, _) => Ok(Answer::Entry(entry, CacheOutcome::Joined)),
            outcome => self.conclude(outcome).await,
        };
        self.count(result)
    }

    /// Lets a leader work for its own caller.
    pub(super) fn counting_panics<F: Future>(
        &self,
        work: F,
    ) -> impl Future<Output = F::Output> + use<V, F> {
        let is_on = self.engine.mode() == Mode::On;
        let outcome = if is_on { CacheOutcome::Computed } else { CacheOutcome::Alone };
        counted(Arc::clone(&self.observer), outcome, work)
    }

    /// The way of every caller. A fresh entry is served. A stale entry is served and
    /// refreshed. Without either, the caller waits or computes.
    ///
    /// No `async fn`: that would hold the work twice, in the future of each waiter.
    pub(super) fn answer<C, LF, RF>(
        self: &Arc<Self>,
        work: KeyWork<V, C>,
        lookup: Lookup<V>,
        lead_by: impl FnOnce(Lead<V>, KeyWork<V, C>) -> LF + Copy,
        refresh_by: (LedFor, impl FnOnce(Lead<V>, KeyWork<V, C>) -> RF),
    ) -> impl Future<Output = Result<Answer<V, C::Own>, Error>>
    where
        C: Compute<V>,
        LF: Future<Output = LeadOutcome<V, KeyWork<V, C>>>,
        RF: Future<Output = Option<LeadOutcome<V, KeyWork<V, C>>>>,
    {
        match self.limits(work.question.context.as_deref()) {
            Some(limits) => Either::Left(Box::pin(
                self.answer_in_time(limits, work, lookup, lead_by, refresh_by),
            )),
            None => Either::Right(self.answer_at_once(work, lookup, lead_by, refresh_by)),
        }
    }

    /// The same for a caller that has no limits of its own: it gets a stale value at once.
    pub(super) fn answer_at_once<C, LF, RF>(
        self: &Arc<Self>,
        mut work: KeyWork<V, C>,
        mut lookup: Lookup<V>,
        lead_by: impl FnOnce(Lead<V>, KeyWork<V, C>) -> LF,
        refresh_by: (LedFor, impl FnOnce(Lead<V>, KeyWork<V, C>) -> RF),
    ) -> impl Future<Output = Result<Answer<V, C::Own>, Error>>
    where
        C: Compute<V>,
        LF: Future<Output = LeadOutcome<V, KeyWork<V, C>>>,
        RF: Future<Output = Option<LeadOutcome<V, KeyWork<V, C>>>>,
    {
        if let Lookup::Miss(stale) = lookup {
            work.question.in_hand = stale;
            let run = self.run(work, lead_by);
            return Either::Left(run.then(move |outcome| self.answered(outcome, refresh_by)));
        }
        // The rare case is in a box: each caller that waits keeps what stands here.
        Either::Right(Box::pin(async move {
            if let Lookup::Unvouched(_) = lookup {
                lookup = self.look_vouched(&work.question.key).await;
            }
            let result = match lookup {
                Lookup::Fresh(entry) => Ok(Answer::Entry(entry, CacheOutcome::Hit)),
                Lookup::Early(entry) => {
                    self.refresh(work, entry, CacheOutcome::Hit, refresh_by).await
                }
                Lookup::Stale(entry) | Lookup::Unvouched(entry) => {
                    self.refresh(work, entry, CacheOutcome::Stale, refresh_by).await
                }
                Lookup::Miss(stale) => {
                    work.question.in_hand = stale;
                    let outcome = self.run(work, lead_by).await;
                    return self.answered(outcome, refresh_by).await;
                }
            };
            self.count(result)
        }))
    }

    /// Answers a caller by what its run has come to.
    pub(super) fn answered<C, RF>(
        self: &Arc<Self>,
        outcome: RunOutcome<V, KeyWork<V, C>>,
        refresh_by: (LedFor, impl FnOnce(Lead<V>, KeyWork<V, C>) -> RF),
    ) -> impl Future<Output = Result<Answer<V, C::Own>, Error>>
    where
        C: Compute<V>,
        RF: Future<Output = Option<LeadOutcome<V, KeyWork<V, C>>>>,
    {
        let result = match outcome {
            RunOutcome::Answer(entry, outcome, _) => Ok(Answer::Entry(entry, outcome)),
            RunOutcome::Called(Ok(own), outcome) => Ok(Answer::Own(own, outcome)),
            outcome => {
                let rest = async move { self.count(self.go_on(outcome, refresh_by).await) };
                return Either::Right(Box::pin(rest));
            }
        };
        Either::Left(ready(self.count(result)))
    }

    /// The way of a caller that has not got its answer from a flight.
    async fn go_on<C, RF>(
        self: &Arc<Self>,
        outcome: RunOutcome<V, KeyWork<V, C>>,
        refresh_by: (LedFor, impl FnOnce(Lead<V>, KeyWork<V, C>) -> RF),
    ) -> Result<Answer<V, C::Own>, Failed>
    where
        C: Compute<V>,
        RF: Future<Output = Option<LeadOutcome<V, KeyWork<V, C>>>>,
    {
        match outcome {
            RunOutcome::Found(entry, _) if self.now() < entry.window().fresh_until => {
                Ok(Answer::Entry(entry, CacheOutcome::Hit))
            }
            RunOutcome::Found(entry, work) => {
                self.refresh(work, entry, CacheOutcome::Stale, refresh_by).await
            }
            outcome => self.conclude(outcome).await,
        }
    }

    pub(super) fn run<W: Work<V>, LF>(
        self: &Arc<Self>,
        work: W,
        lead_by: impl FnOnce(Lead<V>, W) -> LF,
    ) -> impl Future<Output = RunOutcome<V, W>>
    where
        LF: Future<Output = LeadOutcome<V, W>>,
    {
        if self.engine.mode() == Mode::On {
            Either::Left(door::run(&self.engine, work, lead_by))
        } else {
            Either::Right(Box::pin(door::run_unprotected(&self.engine, work, lead_by)))
        }
    }

    pub(super) async fn conclude<C>(
        &self,
        outcome: RunOutcome<V, KeyWork<V, C>>,
    ) -> Result<Answer<V, C::Own>, Failed>
    where
        C: Compute<V>,
    {
        let (FailedCall { error, fallback }, outcome) = match outcome {
            RunOutcome::Answer(entry, outcome, _) => return Ok(Answer::Entry(entry, outcome)),
            RunOutcome::Found(entry, _) => return Ok(Answer::Entry(entry, CacheOutcome::Hit)),
            RunOutcome::Called(Ok(own), outcome) => return Ok(Answer::Own(own, outcome)),
            RunOutcome::Called(Err(failed), outcome) => (failed, outcome),
            RunOutcome::Alone(reason, place, work) => {
                let KeyWork { question, compute } = work;
                if let Some(call) = &question.context {
                    call.show(self.renewable(Some(call), question.in_hand.as_ref()));
                }
                match self.compute_alone((&question.key, reason), place, compute).await {
                    Ok(own) => {
                        self.observer.note_success();
                        return Ok(Answer::Own(own, CacheOutcome::Alone));
                    }
                    Err(error) => {
                        // Also where others would remember the failure: this caller has computed
                        // outside of any flight.
                        let fallback =
                            door::stand_in(&self.engine, &question, &question.key, &error);
                        (FailedCall { error, fallback }, CacheOutcome::Alone)
                    }
                }
            }
            RunOutcome::Remembered(error, _) => {
                return Err(Failed { error, outcome: CacheOutcome::Hit });
            }
            RunOutcome::Refused(error, work) => {
                let fallback = work.and_then(|work| work.question.fallback_for(&error));
                (FailedCall { error, fallback }, CacheOutcome::Joined)
            }
        };
        // Chosen when the call failed; the caller may come to it much later.
        match fallback.filter(|entry| self.may_stand_in(entry)) {
            Some(entry) => Ok(Answer::Entry(entry, CacheOutcome::StaleIfError)),
            None => Err(Failed::of(error, outcome)),
        }
    }

    /// Serves `seen`, and takes the lead of its refresh where no other caller has it.
    async fn refresh<C, RF>(
        self: &Arc<Self>,
        work: KeyWork<V, C>,
        seen: Arc<Entry<V>>,
        otherwise: CacheOutcome,
        refresh_by: (LedFor, impl FnOnce(Lead<V>, KeyWork<V, C>) -> RF),
    ) -> Result<Answer<V, C::Own>, Failed>
    where
        C: Compute<V>,
        RF: Future<Output = Option<LeadOutcome<V, KeyWork<V, C>>>>,
    {
        let key = work.question.key.clone();
        let request = work.question.request();
        let is_unchanged = || self.is_still(key.as_bytes(), &seen);
        let (led_for, refresh_by) = refresh_by;
        let lead = door::begin_refresh(&self.engine, request, led_for, is_unchanged);
        let Some(lead) = lead else {
            return Ok(Answer::Entry(seen, otherwise));
        };
        let (error, not_computed) = match refresh_by(lead, work.refreshing(&seen)).await {
            None => return Ok(Answer::Entry(seen, otherwise)),
            Some(LeadOutcome::Called(Ok(own))) => {
                return Ok(Answer::Own(own, CacheOutcome::Computed));
            }
            Some(LeadOutcome::Found(entry, _)) => {
                return Ok(Answer::Entry(entry, CacheOutcome::Hit));
            }
            Some(LeadOutcome::Called(Err(failed))) => (failed.error, None),
            Some(LeadOutcome::Refused(error, work)) => (error, Some(work.map(Box::new))),
        };
        // Time has passed: the stale entry may not be served any more.
        match self.look_held(key.as_bytes()) {
            Lookup::Fresh(entry) | Lookup::Early(entry) => {
                Ok(Answer::Entry(entry, CacheOutcome::Hit))
            }
            Lookup::Stale(entry) | Lookup::Unvouched(entry) => {
                Ok(Answer::Entry(entry, CacheOutcome::Stale))
            }
            Lookup::Miss(Some(entry)) => Ok(Answer::Entry(entry, CacheOutcome::StaleIfError)),
            Lookup::Miss(None) => match not_computed {
                // Evicted meanwhile, and no newer value was tried.
                Some(_) if self.may_stand_in(&seen) => Ok(Answer::Entry(seen, otherwise)),
                // Invalidated meanwhile.
                Some(Some(work)) => Box::pin(self.ask_anew(work)).await,
                Some(None) | None => Err(Failed::of(error, CacheOutcome::Computed)),
            },
        }
    }

    /// The way of a caller whose stale entry has ended while it was to be refreshed. That was done
    /// in its own future, and so is this.
    async fn ask_anew<C>(
        self: &Arc<Self>,
        mut work: Box<KeyWork<V, C>>,
    ) -> Result<Answer<V, C::Own>, Failed>
    where
        C: Compute<V>,
    {
        work.question.forget_replaced();
        let outcome = self.run(*work, door::lead).await;
        self.conclude(outcome).await
    }

    /// Computes for one caller. While the cache is not on, nothing limits the time.
    async fn compute_alone<C>(
        &self,
        (key, reason): (&Key, AloneReason),
        mut place: Option<PlaceForOne<V>>,
        mut compute: C,
    ) -> Result<C::Own, Error>
    where
        C: Compute<V>,
    {
        let from = self.engine.clock.now();
        let result = match compute.takes_place(&mut place) {
            true => {
                let call = counted(Arc::clone(&self.observer), CacheOutcome::Alone, compute.call());
                Ok(call.await)
            }
            false => {
                let work = self.engine.compute_alone(async { compute.call().await }, place);
                counted(Arc::clone(&self.observer), CacheOutcome::Alone, work).await
            }
        };
        let took = self.engine.clock.now().since(from);
        let (reason, timed_out) = (reason.as_str(), result.is_err());
        self.observer.happened(Occurrence::ComputedAlone { key, reason, took, timed_out });
        let (computed, own) = result?.map_err(Error::of_computation)?;
        if let Some(rest) = computed.and_then(|computed| computed.rest) {
            self.drive_alone(rest);
        }
        Ok(own)
    }

    /// Judges an entry of the remote. This process may have marked its own copy stale: then
    /// the copy counts.
    pub(crate) fn judge_found(&self, key: &Key, found: &Entry<V>) -> Freshness {
        let here = self.local.peek(key.as_bytes());
        let copy = here.filter(|here| {
            ReplacedEntry::of(here).is_no_older_than(found)
                && here.window().fresh_until < found.window().fresh_until
        });
        self.judge(copy.as_deref().unwrap_or(found), self.now())
    }

    pub(super) fn rule_for(&self, error: &Error, shared: FailureRule) -> FailureRule {
        let hook = || Some(self.values.on_failure.as_ref()?(error.cause()?));
        // An absent key is no failure of the loader: the next caller may ask again.
        let by_default = match error.inner::<Absent>() {
            Some(_) => FailureAction::ShareOnly,
            None => FailureAction::default(),
        };
        let action = error.action().or_else(hook).unwrap_or(by_default);
        let hold = match action {
            FailureAction::Hold => HoldRule::After(1),
            FailureAction::Remember(span) => HoldRule::Remember(span),
            FailureAction::ShareOnly | FailureAction::EachItself => HoldRule::Never,
        };
        FailureRule { hold, each_computes: action == FailureAction::EachItself, ..shared }
    }

    pub(super) fn count<T>(
        &self,
        result: Result<Answer<V, T>, Failed>,
    ) -> Result<Answer<V, T>, Error> {
        let outcome = result.as_ref().map_or_else(|failed| failed.outcome, Answer::outcome);
        if let Ok(Answer::Entry(entry, outcome)) = &result {
            self.observer.served(entry, *outcome, self.now());
        }
        self.observer.answered(outcome);
        result.map_err(|failed| failed.error.in_cache(&self.name))
    }
}
