//! Every way in which a leader can end, and the one order of steps.
//!
//! 1. **Under the table's lock:** the marks of the key are brought up to date,
//!    the flight is settled with its verdict, and it leaves the table. A caller that enters
//!    after that finds the marks, and never this flight. A caller that entered before
//!    is a waiter and will be woken. No caller sees one without the other.
//! 2. **The waiters are woken.** From here on nothing that follows can delay them.
//! 3. **The place is returned,** so that the next computation can begin.
//! 4. **The lease is given up,** on a task of its own. A result for the remote was sent there
//!    before this function is called.
//! 5. **The observer is told.** It is the user's code: it may be slow.
//! 6. **What has left the table and the store is dropped.** The `Drop` of an error or a value is
//!    the user's code too.
//!
//! The last two steps are [`Leavings`], and come last: the caller that was woken last stands next in
//! line on the leader's own thread, where no other thread finds it. So a leader that has waiters
//! lets others run first.
//!
//! A result is stored in this process before this function is called: a woken caller that
//! looks into the store finds it there.

use std::time::Duration;

use crate::budget::Reservation;
use crate::clock::Tick;
use crate::entry::Entry;
use crate::error::{Error, ErrorKind};
use crate::flight::computation::Computation;
use crate::flight::evidence::DeclinedFor;
use crate::flight::hold::{FailureCount, FailureRule, HoldRule};
use crate::flight::leader::Leader;
use crate::flight::marks::{Marks, RemovedMarks};
use crate::flight::phase::{Abandonment, SharedFailure, Verdict};
use crate::garbage::{Garbage, drop_caught};
use crate::key::Key;
use crate::lease::hold::FOR_ALL;
use crate::lease::shared_store::UncacheableFor;
use crate::observe::{CallersGot, ComputationEnd, FailureEffect, Observe, Occurrence};
use crate::sync::Arc;

/// How a leader ends.
#[derive(Debug)]
pub(crate) enum End<V> {
    /// The result is stored, or was refused: it was invalidated meanwhile.
    Filled { entry: Arc<Entry<V>>, stored: bool },
    /// The computation has come to an end that is no stored result.
    Concluded(Conclusion<V>),
    /// A value was found elsewhere.
    Found(Arc<Entry<V>>),
    /// The computation panicked.
    Panicked,
    /// The computation has failed elsewhere or before, and is not tried again yet.
    Held { error: Error, noted: Option<Duration> },
    /// Another process refreshes the key; this one looks again after a pause.
    LeftToAnother(Duration),
    /// The computation was cancelled: no caller waited for it.
    Unwanted,
    /// The leader was dropped, at any point.
    Lost,
}

/// What a computation has come to, where no result is stored.
#[derive(Debug)]
pub(crate) enum Conclusion<V> {
    /// The result goes to the callers that wait already.
    Share(Arc<Entry<V>>),
    /// The result may not be shared: every caller computes for itself.
    Decline(Remember),
    /// The result concerns the leader's own request: one of the waiters leads next.
    NotShared,
    /// The result of a refresh may not be stored. The refresh carried fewer fields than the
    /// request of a client, so its result says nothing of the responses that clients get. The
    /// next refresh waits, longer each time. Where it has failed, callers that have a stale value do
    /// not see that.
    DeclineRefresh(Option<Error>),
    /// The computation has failed. What it has returned goes to the callers that wait already,
    /// and may have it.
    Fail { error: Error, rule: FailureRule, result: Option<Arc<Entry<V>>> },
    /// No computation is needed, or this leader may not wait for one any longer.
    Withdraw,
}

/// For whom a declined result marks the key as uncacheable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remember {
    /// For no caller: the next result may be different. No waiter waits for it.
    Nothing,
    /// For no caller, and the waiters whose requests differ from the leader's wait for the next.
    NothingOfOthers,
    /// For the callers of this process.
    Here,
    /// For the callers of all processes.
    Everywhere,
}

/// How the lease ends.
enum LeaseEnd {
    GivenUp { hold: Option<Duration> },
    MarkUncacheable(UncacheableFor),
}

/// An end as the steps need it.
struct Steps<V> {
    verdict: Verdict<V>,
    lease: LeaseEnd,
    /// How the computation ended, if there was one.
    computation: Option<ComputationEnd>,
    /// What it meant for the callers that there is no result.
    failure: Option<FailureEffect>,
    /// For the user's `Drop` to run without the lock.
    replaced: Option<Error>,
}

impl<V> Steps<V> {
    fn of(verdict: Verdict<V>, computation: Option<ComputationEnd>) -> Self {
        let lease = LeaseEnd::GivenUp { hold: None };
        Self { verdict, lease, computation, failure: None, replaced: None }
    }
}

/// What is left to do for an ended flight. All of it is code of the user.
#[must_use = "dropping it runs code of the user's: say when"]
pub(crate) struct Leavings<V> {
    report: Option<Report>,
    marks: Option<RemovedMarks>,
    error: Option<Error>,
    garbage: Option<Box<Garbage<V>>>,
    had_waiters: bool,
}

/// What the observer is to be told.
struct Report {
    observer: Arc<dyn Observe>,
    key: Key,
    took: Duration,
    is_refused: bool,
    computation: Option<(ComputationEnd, Option<FailureEffect>)>,
    /// The failure, if the callers are served a stale value in its place, and the computation that
    /// knows whether one of its call was reported.
    hidden: Option<(Error, Arc<Computation>)>,
    /// How old that value is, if it is known and stale already.
    stale: Option<Duration>,
}

impl<V> Leavings<V> {
    /// What a leader leaves whose result is published and whose flight ends elsewhere, or has ended.
    pub(super) fn of_published(leader: &Leader<V>) -> Self
    where
        V: Send + Sync + 'static,
    {
        let (garbage, had_waiters) = (leader.garbage.lock().take(), leader.flight.waiting() > 0);
        Self { report: None, marks: None, error: None, garbage, had_waiters }
    }

    /// Does it once the callers that were woken have had their turn.
    ///
    /// Cancel safe: dropped while it waits, it does it at once.
    pub(crate) async fn after_others(self) {
        if self.had_waiters {
            tokio::task::yield_now().await;
        }
        drop(self);
    }
}

impl Report {
    fn tell(&self) {
        let Self { observer, key, took, .. } = self;
        if self.is_refused {
            observer.happened(Occurrence::FillRefused { key });
        }
        if let Some((end, failure)) = self.computation {
            observer.happened(Occurrence::Computed { key, took: *took, end, failure });
        }
        // Asked here: the keys of a batch are told of in any order, and the lines are limited.
        if let Some((error, computation)) = &self.hidden
            && computation.report_once()
        {
            observer.happened(Occurrence::FailureHidden { key, error, stale: self.stale });
        }
    }
}

impl<V> Drop for Leavings<V> {
    fn drop(&mut self) {
        let report = self.report.take().inspect(Report::tell);
        // A panic in it concerns no caller.
        drop_caught((report, self.marks.take(), self.error.take()));
        drop(self.garbage.take());
    }
}

impl<V: Send + Sync + 'static> Leader<V> {
    pub(super) fn conclude(&mut self, end: End<V>) -> Leavings<V> {
        if std::mem::replace(&mut self.is_ended, true) {
            return Leavings::of_published(self);
        }
        // Everything under one lock of the shard: marks, verdict, and the way out of the table. So a caller
        // finds either the flight with its verdict, or what it has left.
        let (engine, flight) = (&*self.engine, &self.flight);
        let now = engine.clock.now();
        let is_refused = matches!(end, End::Filled { stored: false, .. });
        let failure = end.failure();
        // Without a lock: it asks for the text of the user's error.
        let error_bytes = failure.as_ref().filter(|_| end.keeps_error()).map(Error::weight);

        let mut shard = engine.table.shard(&flight.key).lock();
        // A flight that was forgotten says nothing of the key any more.
        let is_current = shard.is_current(flight);
        let (mut unheard, mut evicted) = (Marks::default(), RemovedMarks::default());
        let mut room = None;
        if let Some(bytes) = error_bytes.filter(|_| is_current) {
            (room, evicted) = shard.marks.room_for_error(&engine.errors, bytes, now);
        }
        // Marks are made only for what is worth remembering: most keys have none.
        let marks = if !is_current {
            &mut unheard
        } else if end.is_worth_marks() {
            let (marks, removed) = shard.marks.of(&flight.key, now);
            evicted.extend(removed);
            marks
        } else {
            shard.marks.get_mut(&flight.key).unwrap_or(&mut unheard)
        };
        let steps = self.steps(end, marks, now, room);
        let leftover = flight.settle(steps.verdict);
        let removed = engine.table.remove(&mut shard, flight);
        drop(shard);

        // From here without a lock. A caller that has an answer finds its computation counted.
        if let Some(end) = steps.computation {
            engine.observer.count_computation(end);
            if let ComputationEnd::Stored | ComputationEnd::Shared = end {
                engine.usual_time.note(now.since(self.started.tick));
            }
            // A failure may come fast from an origin that is overloaded.
            if !self.is_unbounded() && (end.has_result() || end == ComputationEnd::TimedOut) {
                engine.places.note_time(now.since(self.started.tick), engine.watch.now());
            }
        }
        // The waiters first: nothing below is of use to them.
        let had_waiters = flight.waiting() > 0;
        flight.wake();

        engine.release(&flight.computation);

        if let Some(lease) = self.lease.take() {
            match steps.lease {
                LeaseEnd::GivenUp { hold } => {
                    lease.give_up(hold.filter(|_| is_current && self.holds_elsewhere));
                }
                LeaseEnd::MarkUncacheable(whom) => {
                    let took = now.since(self.started.tick);
                    lease.mark_uncacheable(whom, engine.settings.uncacheable_for(), took);
                }
            }
        }

        let computation = steps.computation.map(|end| (end, steps.failure));
        let effect = steps.failure.map(|effect| effect.callers_got);
        let is_hidden =
            |error: &Error| effect == Some(CallersGot::StaleValue) && !error.is_answer();
        let hidden = failure.filter(is_hidden);
        let report = (is_refused || computation.is_some()).then(|| Report {
            observer: Arc::clone(&engine.observer),
            key: flight.key.clone(),
            took: now.since(self.started.tick),
            is_refused,
            computation,
            hidden: hidden.map(|error| (error, Arc::clone(&flight.computation))),
            stale: self.fallback.as_ref().and_then(|window| window.stale_age(now)),
        });
        // What has left the maps holds values of the user. What is told to the user comes last, after
        // the waiters have had their turn.
        drop_caught((removed, unheard, leftover));
        let garbage = self.garbage.lock().take();
        let (marks, error) = (Some(evicted), steps.replaced);
        Leavings { report, marks, error, garbage, had_waiters }
    }

    /// Updates the marks of the key, and says how the steps go.
    fn steps(
        &self,
        end: End<V>,
        marks: &mut Marks,
        now: Tick,
        room: Option<Reservation>,
    ) -> Steps<V> {
        match end {
            End::Filled { entry, stored } => {
                marks.set_storable(self.traits.unkeyed, self.seen_until(&entry, now));
                let how = if stored { ComputationEnd::Stored } else { ComputationEnd::Shared };
                let replaced = marks.hold.end_row();
                Steps { replaced, ..Steps::of(Verdict::Filled(entry), Some(how)) }
            }
            End::Found(entry) => {
                marks.set_storable(self.traits.unkeyed, self.seen_until(&entry, now));
                // A stale value says nothing of the origin.
                let is_fresh = now < entry.window().fresh_until;
                if is_fresh {
                    self.engine.observer.note_success();
                }
                let replaced = if is_fresh { marks.hold.end_row() } else { None };
                Steps { replaced, ..Steps::of(Verdict::Filled(entry), None) }
            }
            End::Concluded(conclusion) => self.concluded(conclusion, marks, now, room),
            End::Panicked => {
                let error = Error::new(ErrorKind::Panicked);
                // A second leader is the last one of its flight.
                if marks.hold.count_panic(now) || self.is_second {
                    let how = ComputationEnd::Panicked;
                    self.failed((error, room), self.panic_rule, marks, now, how)
                } else {
                    let verdict = Verdict::Abandoned(Abandonment::Lost);
                    let failure = Some(self.failure_effect(CallersGot::NewComputation, None));
                    Steps { failure, ..Steps::of(verdict, Some(ComputationEnd::Panicked)) }
                }
            }
            End::Held { error, noted } => {
                let replaced = noted.and_then(|rest| {
                    let seq = self.engine.log.seq();
                    marks.hold.adopt(now, seq, rest, self.engine.settings.hold_policy())
                });
                Steps { replaced, ..Steps::of(Verdict::Failed(SharedFailure::of(error)), None) }
            }
            End::LeftToAnother(pause) => {
                marks.refresh_pause.pause_until(now.plus(pause));
                Steps::of(Verdict::Abandoned(Abandonment::Lost), None)
            }
            End::Unwanted => {
                let verdict = Verdict::Abandoned(Abandonment::Lost);
                Steps::of(verdict, Some(ComputationEnd::Cancelled))
            }
            End::Lost => {
                let how = self.has_computed.then_some(ComputationEnd::Dropped);
                Steps::of(Verdict::Abandoned(Abandonment::Lost), how)
            }
        }
    }

    fn concluded(
        &self,
        conclusion: Conclusion<V>,
        marks: &mut Marks,
        now: Tick,
        room: Option<Reservation>,
    ) -> Steps<V> {
        match conclusion {
            Conclusion::Share(entry) => {
                marks.evidence.share(self.traits.unkeyed, self.seen_until(&entry, now));
                let replaced = marks.hold.end_row();
                let steps = Steps::of(Verdict::Filled(entry), Some(ComputationEnd::Shared));
                // Other processes see that the lease has ended, and that there is no result.
                Steps { replaced, lease: LeaseEnd::GivenUp { hold: FOR_ALL }, ..steps }
            }
            Conclusion::Decline(remember) => {
                let unkeyed = self.traits.unkeyed;
                if matches!(remember, Remember::Here | Remember::Everywhere) {
                    let until = now.plus(self.engine.settings.uncacheable_for());
                    marks.evidence.decline(self.traits, until, now);
                }
                // Equal requests alone go on for themselves at once; the others wait for one more leader, where
                // the evidence does not say more.
                let whom = match remember {
                    Remember::Nothing => DeclinedFor::All,
                    _ => DeclinedFor::Equal(unkeyed),
                };
                let steps = Steps::of(Verdict::Declined(whom), Some(ComputationEnd::Declined));
                let replaced = marks.hold.end_row();
                match remember {
                    // Other processes learn it with the end of the lease.
                    Remember::Everywhere => {
                        let whom = match marks.evidence.lets_all_pass(self.traits, now) {
                            true => UncacheableFor::AllRequests,
                            false => UncacheableFor::EqualRequests(unkeyed),
                        };
                        Steps { replaced, lease: LeaseEnd::MarkUncacheable(whom), ..steps }
                    }
                    _ => Steps { replaced, ..steps },
                }
            }
            Conclusion::NotShared => {
                let verdict = Verdict::Abandoned(Abandonment::NotShared);
                let replaced = marks.hold.end_row();
                Steps { replaced, ..Steps::of(verdict, Some(ComputationEnd::Declined)) }
            }
            // Its callers have the stale value. The next refresh comes later.
            Conclusion::DeclineRefresh(failure) => {
                marks.refresh_pause.decline(now, self.engine.settings.hold_policy());
                let steps = Steps::of(Verdict::Abandoned(Abandonment::NotShared), None);
                if failure.is_none() {
                    return Steps { computation: Some(ComputationEnd::Declined), ..steps };
                }
                let served_until = self.fallback.as_ref().map(|window| window.served_until());
                let callers_got = match served_until.is_some_and(|until| now < until) {
                    true => CallersGot::StaleValue,
                    false => CallersGot::NewComputation,
                };
                let failure = Some(FailureEffect { callers_got, held_for: None });
                Steps { computation: Some(ComputationEnd::Failed), failure, ..steps }
            }
            Conclusion::Fail { error, rule, result } => {
                marks.hold.end_panics();
                let is_late = error.kind() == ErrorKind::ComputeTimeout;
                let how = if is_late { ComputationEnd::TimedOut } else { ComputationEnd::Failed };
                let mut steps = self.failed((error, room), rule, marks, now, how);
                if let Verdict::Failed(failure) = &mut steps.verdict {
                    failure.result = result;
                }
                steps
            }
            Conclusion::Withdraw => Steps::of(Verdict::Abandoned(Abandonment::Lost), None),
        }
    }

    fn failed(
        &self,
        (error, room): (Error, Option<Reservation>),
        rule: FailureRule,
        marks: &mut Marks,
        now: Tick,
        how: ComputationEnd,
    ) -> Steps<V> {
        let policy = self.engine.settings.hold_policy();
        let began = (now, self.started.seq);
        let tags = &self.flight.tags;
        let FailureCount { replaced, hold, is_for_all } =
            marks.hold.count_failure(began, self.requester, tags, (&error, room), rule, policy);
        let held_for = hold;
        // One hold stands in the remote for all: the one of callers without a fallback.
        let hold = hold.filter(|_| is_for_all).map(|hold| hold.min(policy.first));
        let callers_got = match rule.each_computes {
            true => CallersGot::OwnComputations,
            false if rule.stale_until.is_some() => CallersGot::StaleValue,
            false => CallersGot::Failure,
        };
        let effect = Some(self.failure_effect(callers_got, held_for));
        let failure =
            SharedFailure { each_computes: rule.each_computes, ..SharedFailure::of(error) };
        let steps = Steps::of(Verdict::Failed(failure), Some(how));
        Steps { replaced, lease: LeaseEnd::GivenUp { hold }, failure: effect, ..steps }
    }

    /// Returns until when a result that may be shared counts as seen lately.
    fn seen_until(&self, entry: &Entry<V>, now: Tick) -> Tick {
        entry.window().served_until().max(now).plus(self.engine.settings.uncacheable_for())
    }

    /// Returns whether the computation before this one has panicked.
    pub(super) fn follows_panic(&self) -> bool {
        let now = self.engine.clock.now();
        let has_panicked = |marks: &Marks| marks.hold.has_panicked(now);
        self.engine.table.read_marks(&self.flight.key, has_panicked).unwrap_or(false)
    }

    /// Returns what the end of a first leader means for the callers where a second one
    /// follows.
    pub(super) fn effect_of_passing(&self, end: &End<V>) -> Option<FailureEffect> {
        let is_failure = end.computation() == ComputationEnd::Failed;
        is_failure.then(|| self.failure_effect(CallersGot::NextResult, None))
    }

    /// The callers of a refresh, and those of whom the leader knows that they have a value in
    /// hand, get that.
    fn failure_effect(&self, otherwise: CallersGot, held_for: Option<Duration>) -> FailureEffect {
        let has_value = self.fallback.is_some();
        let callers_got = if has_value { CallersGot::StaleValue } else { otherwise };
        FailureEffect { callers_got, held_for }
    }
}

impl<V> Conclusion<V> {
    /// Hands what a failed computation returned to the callers that wait.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "HTTP's failures"))]
    pub(crate) fn with_result(self, shared: Arc<Entry<V>>) -> Self {
        match self {
            Self::Fail { error, rule, .. } => Self::Fail { error, rule, result: Some(shared) },
            conclusion => conclusion,
        }
    }
}

impl<V> From<Conclusion<V>> for End<V> {
    fn from(conclusion: Conclusion<V>) -> Self {
        Self::Concluded(conclusion)
    }
}

impl<V> End<V> {
    /// Returns how the computation of a leader ended that leaves its flight to another.
    pub(super) fn computation(&self) -> ComputationEnd {
        match self {
            Self::Concluded(Conclusion::Fail { .. } | Conclusion::DeclineRefresh(Some(_))) => {
                ComputationEnd::Failed
            }
            _ => ComputationEnd::Declined,
        }
    }

    /// Returns how the computation has failed, if it has.
    fn failure(&self) -> Option<Error> {
        match self {
            Self::Concluded(
                Conclusion::Fail { error, .. } | Conclusion::DeclineRefresh(Some(error)),
            ) => Some(error.clone()),
            Self::Panicked => Some(Error::new(ErrorKind::Panicked)),
            _ => None,
        }
    }

    /// Returns whether a hold may repeat the failure.
    fn keeps_error(&self) -> bool {
        match self {
            Self::Concluded(Conclusion::Fail { rule, .. }) => rule.hold != HoldRule::Never,
            Self::Concluded(_) => false,
            _ => true,
        }
    }

    /// Returns whether marks are made for a key that has none: only an end that is not a
    /// success is worth remembering.
    fn is_worth_marks(&self) -> bool {
        match self {
            Self::Concluded(conclusion) => match conclusion {
                Conclusion::Decline(remember) => {
                    matches!(remember, Remember::Here | Remember::Everywhere)
                }
                Conclusion::DeclineRefresh(_) | Conclusion::Fail { .. } => true,
                Conclusion::Share(_) | Conclusion::NotShared | Conclusion::Withdraw => false,
            },
            Self::Panicked | Self::Held { noted: Some(_), .. } | Self::LeftToAnother(_) => true,
            Self::Filled { .. }
            | Self::Found(_)
            | Self::Held { noted: None, .. }
            | Self::Unwanted
            | Self::Lost => false,
        }
    }
}
