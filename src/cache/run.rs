//! How a caller's computation is run: on a task of its own, inside the
//! caller, or in the background.

use std::future::Future;
use std::sync::Arc;

use crate::cache::lead::{
    self, Answer, ComputationResult, KeyCaller, Purpose, ReplacedEntry, Resolution,
};
use crate::cache::state::{CacheState, Lookup};
use crate::entry::Entry;
use crate::error::{BoxError, Error};
use crate::flight::engine::{Admission, FlightRequest};
use crate::flight::leader::Leader;
use crate::flight::waiter::AloneReason;
use crate::key::Key;
use crate::mode::Mode;
use crate::outcome::CacheOutcome;

impl<V: Clone + Send + Sync + 'static> CacheState<V> {
    /// Answers a caller that found nothing fresh, with a computation that can
    /// run on its own task.
    pub(crate) async fn serve_detached<T, E, F, Fut>(
        self: &Arc<Self>,
        key: Key,
        look: Lookup<V>,
        work: F,
    ) -> Result<Answer<V, T>, Error>
    where
        T: Send + 'static,
        E: Into<BoxError> + Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<ComputationResult<V, T>, E>> + Send + 'static,
    {
        let result = match look {
            Lookup::Fresh(entry) => Ok(Answer::Entry(entry, CacheOutcome::Hit)),
            Lookup::Early(entry) => {
                self.refresh(key, &entry, work);
                Ok(Answer::Entry(entry, CacheOutcome::Hit))
            }
            Lookup::Stale(entry) => {
                self.refresh(key, &entry, work);
                Ok(Answer::Entry(entry, CacheOutcome::Stale))
            }
            Lookup::Miss(_) if self.engine.mode() != Mode::On => {
                let lead = |l, f, w| self.lead_detached(l, Purpose::Serve, f, w);
                self.off_duty(key, work, lead, alone).await
            }
            Lookup::Miss(stale) => {
                let lead = |l, f, w| self.lead_detached(l, Purpose::Serve, f, w);
                let caller = KeyCaller::new(self, &key, stale);
                match lead::resolve(self, caller, work, lead, alone).await {
                    Ok(Resolution::Served(served)) => Ok(served),
                    Ok(Resolution::Found(entry, work)) => Ok(self.serve_found(key, entry, work)),
                    Err(error) => Err(error),
                }
            }
        };
        self.count(result)
    }

    /// Serves what the remote had.
    fn serve_found<T, E, F, Fut>(
        self: &Arc<Self>,
        key: Key,
        entry: Arc<Entry<V>>,
        work: F,
    ) -> Answer<V, T>
    where
        T: Send + 'static,
        E: Into<BoxError> + Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<ComputationResult<V, T>, E>> + Send + 'static,
    {
        if self.now() < entry.window.fresh_until {
            return Answer::Entry(entry, CacheOutcome::Hit);
        }
        self.refresh(key, &entry, work);
        Answer::Entry(entry, CacheOutcome::Stale)
    }

    /// The same with a computation that runs inside the caller.
    pub(crate) async fn serve_inline<T, E, F, Fut>(
        self: &Arc<Self>,
        key: Key,
        look: Lookup<V>,
        work: F,
    ) -> Result<Answer<V, T>, Error>
    where
        E: Into<BoxError>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<ComputationResult<V, T>, E>>,
    {
        let lead = |leader, fallbacks, work| {
            lead::lead(Arc::clone(self), leader, Purpose::Serve, fallbacks, work)
        };
        let result = match look {
            Lookup::Fresh(entry) => Ok(Answer::Entry(entry, CacheOutcome::Hit)),
            Lookup::Early(entry) => self.refresh_inline(key, entry, CacheOutcome::Hit, work).await,
            Lookup::Stale(entry) => {
                self.refresh_inline(key, entry, CacheOutcome::Stale, work).await
            }
            Lookup::Miss(_) if self.engine.mode() != Mode::On => {
                self.off_duty(key, work, lead, alone).await
            }
            Lookup::Miss(stale) => {
                let caller = KeyCaller::new(self, &key, stale);
                match lead::resolve(self, caller, work, lead, alone).await {
                    Ok(Resolution::Served(served)) => Ok(served),
                    Ok(Resolution::Found(entry, work)) => {
                        self.serve_found_inline(key, entry, work).await
                    }
                    Err(error) => Err(error),
                }
            }
        };
        self.count(result)
    }

    /// Computes for this caller alone, and stores where nobody else computes.
    async fn off_duty<T, W, L, LF, A, AF>(
        self: &Arc<Self>,
        key: Key,
        work: W,
        lead: L,
        alone: A,
    ) -> Result<Answer<V, T>, Error>
    where
        L: FnOnce(Leader<V>, lead::Fallbacks, W) -> LF,
        LF: Future<Output = Result<lead::LeadOutcome<V, T, W>, Error>>,
        A: FnOnce(W) -> AF,
        AF: Future<Output = Result<T, Error>>,
    {
        let fallbacks = lead::Fallbacks { stale_until: None };
        let mut boarding = FlightRequest::to(key).without_waiting();
        boarding.despite_hold = true;
        let own = match self.engine.enter(&boarding, &mut None) {
            Admission::Lead(leader) => match lead(leader, fallbacks, work).await {
                Ok(lead::LeadOutcome::Own(own)) => Ok(own),
                // Switched on meanwhile.
                Ok(lead::LeadOutcome::Found(_, work)) => {
                    self.timed_alone(AloneReason::Off, alone(work)).await
                }
                Err(error) => Err(error),
            },
            _ => self.timed_alone(AloneReason::Off, alone(work)).await,
        };
        own.map(|own| Answer::Own(own, CacheOutcome::Alone))
    }

    pub(crate) async fn recompute<E, F, Fut>(
        self: &Arc<Self>,
        key: Key,
        work: F,
    ) -> Result<Answer<V, V>, Error>
    where
        E: Into<BoxError> + Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<ComputationResult<V, V>, E>> + Send + 'static,
    {
        let lead = |l, f, w| self.lead_detached(l, Purpose::Recompute, f, w);
        let caller = lead::Recompute::of(&key);
        let result = match lead::resolve(self, caller, work, lead, alone).await {
            Ok(Resolution::Served(served)) => Ok(served),
            // Computed by another process since this one asked.
            Ok(Resolution::Found(entry, _)) => Ok(Answer::Entry(entry, CacheOutcome::Joined)),
            Err(error) => Err(error),
        };
        self.count(result)
    }

    async fn lead_detached<T, E, F, Fut>(
        self: &Arc<Self>,
        leader: Leader<V>,
        purpose: Purpose,
        fallbacks: lead::Fallbacks,
        work: F,
    ) -> Result<lead::LeadOutcome<V, T, F>, Error>
    where
        T: Send + 'static,
        E: Into<BoxError> + Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<ComputationResult<V, T>, E>> + Send + 'static,
    {
        let key = leader.key().clone();
        let lead = lead::lead(Arc::clone(self), leader, purpose, fallbacks, work);
        self.engine.detached(&key, lead).await.and_then(std::convert::identity)
    }

    fn refresh<T, E, F, Fut>(self: &Arc<Self>, key: Key, seen: &Arc<Entry<V>>, work: F)
    where
        T: Send + 'static,
        E: Into<BoxError> + Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<ComputationResult<V, T>, E>> + Send + 'static,
    {
        let fallbacks = lead::Fallbacks { stale_until: Some(seen.window.useful_until()) };
        let boarding = FlightRequest::to(key).without_waiting();
        let unchanged = || self.is_still(boarding.key.as_bytes(), seen);
        let purpose = Purpose::Refresh(ReplacedEntry::of(seen));
        self.engine.refresh(&boarding, unchanged, |leader| {
            let lead = lead::lead(Arc::clone(self), leader, purpose, fallbacks, work);
            async move { drop(lead.await) }
        });
    }

    /// Returns whether the store still holds the very entry that was seen.
    pub(crate) fn is_still(&self, key: &[u8], seen: &Arc<Entry<V>>) -> bool {
        self.local.get(key).is_some_and(|entry| Arc::ptr_eq(&entry, seen))
    }

    async fn refresh_inline<T, E, F, Fut>(
        self: &Arc<Self>,
        key: Key,
        seen: Arc<Entry<V>>,
        otherwise: CacheOutcome,
        work: F,
    ) -> Result<Answer<V, T>, Error>
    where
        E: Into<BoxError>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<ComputationResult<V, T>, E>>,
    {
        let boarding = FlightRequest::to(key).without_waiting();
        let may_refresh = self.engine.may_refresh(&boarding.key);
        if may_refresh && let Admission::Lead(leader) = self.engine.enter(&boarding, &mut None) {
            if !self.is_still(boarding.key.as_bytes(), &seen) {
                leader.withdraw();
            } else {
                let fallbacks = lead::Fallbacks { stale_until: Some(seen.window.useful_until()) };
                let purpose = Purpose::Refresh(ReplacedEntry::of(&seen));
                let lead = lead::lead(Arc::clone(self), leader, purpose, fallbacks, work);
                match lead.await {
                    Ok(lead::LeadOutcome::Own(own)) => {
                        return Ok(Answer::Own(own, CacheOutcome::Computed));
                    }
                    Ok(lead::LeadOutcome::Found(entry, _)) => {
                        return Ok(Answer::Entry(entry, CacheOutcome::Hit));
                    }
                    Err(_) => (),
                }
            }
        }
        Ok(Answer::Entry(seen, otherwise))
    }

    async fn serve_found_inline<T, E, F, Fut>(
        self: &Arc<Self>,
        key: Key,
        entry: Arc<Entry<V>>,
        work: F,
    ) -> Result<Answer<V, T>, Error>
    where
        E: Into<BoxError>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<ComputationResult<V, T>, E>>,
    {
        if self.now() < entry.window.fresh_until {
            return Ok(Answer::Entry(entry, CacheOutcome::Hit));
        }
        self.refresh_inline(key, entry, CacheOutcome::Stale, work).await
    }

    fn count<T>(&self, result: Result<Answer<V, T>, Error>) -> Result<Answer<V, T>, Error> {
        let outcome = match &result {
            Ok(Answer::Entry(_, outcome) | Answer::Own(_, outcome)) => *outcome,
            Err(error) if error.kind() == crate::ErrorKind::Inner => CacheOutcome::Computed,
            Err(_) => CacheOutcome::Refused,
        };
        self.observer.answered(outcome);
        result
    }
}

async fn alone<V, T, E, F, Fut>(work: F) -> Result<T, Error>
where
    E: Into<BoxError>,
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<ComputationResult<V, T>, E>>,
{
    work().await.map(|(_, own)| own).map_err(Error::inner_error)
}

impl<V: Clone> Answer<V, V> {
    pub(crate) fn into_value(self) -> V {
        match self {
            Self::Entry(entry, _) => entry.value.clone(),
            Self::Own(value, _) => value,
        }
    }
}
