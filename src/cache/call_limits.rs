//! Callers that wait for a limited time, and then take a stale value, or an error.
//!
//! The work goes on: a caller that leads does so on a task of its own, and one that waits leaves
//! its flight as a dropped caller does.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, poll_immediate};
use tokio::time::{Instant, timeout, timeout_at};

use crate::cache::call_options::CallContext;
use crate::cache::computation::Compute;
use crate::cache::compute::{Answer, Failed};
use crate::cache::key_work::KeyWork;
use crate::cache::state::{CacheState, Lookup};
use crate::error::Error;
use crate::flight::door::{Lead, LeadOutcome, RunOutcome};
use crate::flight::request::LedFor;
use crate::key::Key;
use crate::mode::Mode;
use crate::outcome::CacheOutcome;

/// For how long a caller waits.
#[derive(Clone, Copy)]
pub(super) struct CallLimits {
    /// If it may be served something stale.
    soft: Option<Duration>,
    hard: Option<Duration>,
}

impl<V: Clone + Send + Sync + 'static> CacheState<V> {
    /// Returns the limits of a call, if it has any. A cache that is not on ends no wait.
    pub(super) fn limits(&self, context: Option<&CallContext<V>>) -> Option<CallLimits> {
        let options = context.map(|call| &call.options);
        let soft = options.and_then(|options| options.soft_timeout);
        let soft = soft.or(self.engine.settings.soft_timeout);
        let hard = options.and_then(|options| options.timeout);
        let has_any = soft.is_some() || hard.is_some();
        (has_any && self.engine.mode() == Mode::On).then_some(CallLimits { soft, hard })
    }

    /// Answers a caller with limits. A stale value is not served before the soft time-out.
    pub(super) async fn answer_in_time<C, LF, RF>(
        self: &Arc<Self>,
        limits: CallLimits,
        work: KeyWork<V, C>,
        mut lookup: Lookup<V>,
        lead_by: impl FnOnce(Lead<V>, KeyWork<V, C>) -> LF + Copy,
        refresh_by: (LedFor, impl FnOnce(Lead<V>, KeyWork<V, C>) -> RF),
    ) -> Result<Answer<V, C::Own>, Error>
    where
        C: Compute<V>,
        LF: Future<Output = LeadOutcome<V, KeyWork<V, C>>>,
        RF: Future<Output = Option<LeadOutcome<V, KeyWork<V, C>>>>,
    {
        let begun = Instant::now();
        let ends_at = |limit: Option<Duration>| begun.checked_add(limit?);
        let (key, context) = (work.question.key.clone(), work.question.context.clone());
        if let Lookup::Unvouched(_) = lookup {
            // Not cut short: an invalidation may be on its way.
            lookup = self.look_vouched(&key).await;
        }
        let answer = match lookup {
            Lookup::Stale(seen) | Lookup::Unvouched(seen) if limits.soft.is_some() => {
                let work = work.waiting_for_newer(&seen);
                Either::Left(self.wait_for_fresh(work, ends_at(limits.soft), lead_by, refresh_by))
            }
            Lookup::Miss(stale) if limits.soft.is_some() => {
                let mut work = work;
                work.question.in_hand = stale;
                Either::Left(self.wait_for_fresh(work, ends_at(limits.soft), lead_by, refresh_by))
            }
            lookup => Either::Right(self.answer_at_once(work, lookup, lead_by, refresh_by)),
        };
        let mut answer = pin!(answer);
        if let Some(answer) = poll_immediate(&mut answer).await {
            return answer;
        }
        // What it waits for; later the key may have another one.
        let computation = self.engine.running(&key);
        let stale_now = || self.stale_now(&key, context.as_deref());
        if let Some(at) = ends_at(limits.soft) {
            if let Ok(answer) = timeout_at(at, &mut answer).await {
                return answer;
            }
            if let Some(served) = stale_now() {
                self.engine.keep_going(key.as_bytes());
                return self.count(Ok(served));
            }
        }
        let Some(at) = ends_at(limits.hard) else { return answer.await };
        if let Ok(answer) = timeout_at(at, &mut answer).await {
            return answer;
        }
        if self.engine.mode() != Mode::On {
            // It was switched meanwhile, and refuses no caller.
            return answer.await;
        }
        self.engine.keep_going(key.as_bytes());
        let error = self.engine.waited_too_long(&key);
        let served = stale_now();
        if let Some(Answer::Entry(entry, _)) = &served {
            self.engine.hide_once(&key, computation.as_deref(), &error, entry);
        }
        self.count(served.ok_or_else(|| Failed::of(error, CacheOutcome::Refused)))
    }

    /// Waits for a fresh value, until `soft` also where the remote has a stale one.
    async fn wait_for_fresh<C, LF, RF>(
        self: &Arc<Self>,
        work: KeyWork<V, C>,
        soft: Option<Instant>,
        lead_by: impl FnOnce(Lead<V>, KeyWork<V, C>) -> LF + Copy,
        refresh_by: (LedFor, impl FnOnce(Lead<V>, KeyWork<V, C>) -> RF),
    ) -> Result<Answer<V, C::Own>, Error>
    where
        C: Compute<V>,
        LF: Future<Output = LeadOutcome<V, KeyWork<V, C>>>,
        RF: Future<Output = Option<LeadOutcome<V, KeyWork<V, C>>>>,
    {
        let outcome = self.run(work, lead_by).await;
        if soft.is_some_and(|at| Instant::now() >= at) {
            return self.answered(outcome, refresh_by).await;
        }
        let outcome = match outcome {
            // The remote has a stale value.
            RunOutcome::Found(seen, work)
            | RunOutcome::Answer(seen, CacheOutcome::Joined, work)
                if self.now() >= seen.window().fresh_until =>
            {
                self.run(work.waiting_for_newer(&seen), lead_by).await
            }
            outcome => outcome,
        };
        self.count(self.conclude(outcome).await)
    }

    /// Returns what a caller is served that waits no longer: what is stored now. What it had in hand
    /// may have been invalidated.
    fn stale_now<T>(&self, key: &Key, context: Option<&CallContext<V>>) -> Option<Answer<V, T>> {
        let (found, now) = (self.fallback(key, None)?, self.now());
        let window = found.window();
        let outcome = match now {
            now if now < window.fresh_until => CacheOutcome::Hit,
            now if now < window.served_until() => CacheOutcome::Stale,
            _ if context.is_some_and(|call| !call.accepts(&found, now)) => return None,
            _ => CacheOutcome::StaleIfError,
        };
        Some(Answer::Entry(found, outcome))
    }

    /// Ends a fresh read at the time-out of its call. What runs goes on.
    pub(super) async fn read_in_time<T>(
        &self,
        key: &Key,
        context: Option<&CallContext<V>>,
        read: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut read = pin!(read);
        let limit = context.and_then(|call| call.options.timeout);
        let Some(limit) = limit else { return read.await };
        match timeout(limit, &mut read).await {
            Ok(answer) => answer,
            Err(_) if self.engine.mode() != Mode::On => read.await,
            Err(_) => {
                self.engine.keep_going(key.as_bytes());
                self.observer.answered(CacheOutcome::Refused);
                Err(self.engine.waited_too_long(key).in_cache(&self.name))
            }
        }
    }
}
