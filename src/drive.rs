//! How a caller's computation is run: on a task of its own, inside the
//! caller, or in the background.

use std::future::Future;
use std::sync::Arc;

use crate::engine::leader::Leader;
use crate::engine::{Boarding, Entered, Mode};
use crate::entry::Entry;
use crate::error::{BoxError, Error};
use crate::inner::{Inner, Look};
use crate::key::Key;
use crate::outcome::CacheOutcome;
use crate::serve::{self, KeyCaller, Made, Served};

impl<V: Clone + Send + Sync + 'static> Inner<V> {
    /// Answers a caller that found nothing fresh, with a computation that can
    /// run on its own task.
    pub(crate) async fn serve_detached<T, E, F, Fut>(
        self: &Arc<Self>,
        key: Key,
        look: Look<V>,
        work: F,
    ) -> Result<Served<V, T>, Error>
    where
        T: Send + 'static,
        E: Into<BoxError> + Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Made<V, T>, E>> + Send + 'static,
    {
        let result = match look {
            Look::Fresh(entry) => Ok(Served::Entry(entry, CacheOutcome::Hit)),
            Look::Early(entry) => {
                self.refresh(key, &entry, work);
                Ok(Served::Entry(entry, CacheOutcome::Hit))
            }
            Look::Stale(entry) => {
                self.refresh(key, &entry, work);
                Ok(Served::Entry(entry, CacheOutcome::Stale))
            }
            Look::Miss(_) if self.engine.mode() != Mode::On => {
                self.off_duty(key, work, |l, f, w| self.lead_detached(l, f, w), alone).await
            }
            Look::Miss(stale) => {
                let caller = KeyCaller::new(self, &key, stale);
                serve::resolve(self, caller, work, |l, f, w| self.lead_detached(l, f, w), alone)
                    .await
            }
        };
        self.count(result)
    }

    /// The same with a computation that runs inside the caller.
    pub(crate) async fn serve_inline<T, E, F, Fut>(
        self: &Arc<Self>,
        key: Key,
        look: Look<V>,
        work: F,
    ) -> Result<Served<V, T>, Error>
    where
        E: Into<BoxError>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<Made<V, T>, E>>,
    {
        let lead = |leader, fallbacks, work| serve::lead(Arc::clone(self), leader, fallbacks, work);
        let result = match look {
            Look::Fresh(entry) => Ok(Served::Entry(entry, CacheOutcome::Hit)),
            Look::Early(entry) => self.refresh_inline(key, entry, CacheOutcome::Hit, work).await,
            Look::Stale(entry) => self.refresh_inline(key, entry, CacheOutcome::Stale, work).await,
            Look::Miss(_) if self.engine.mode() != Mode::On => {
                self.off_duty(key, work, lead, alone).await
            }
            Look::Miss(stale) => {
                let caller = KeyCaller::new(self, &key, stale);
                serve::resolve(self, caller, work, lead, alone).await
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
    ) -> Result<Served<V, T>, Error>
    where
        L: FnOnce(Leader<V>, serve::Fallbacks, W) -> LF,
        LF: Future<Output = Result<T, Error>>,
        A: FnOnce(W) -> AF,
        AF: Future<Output = Result<T, Error>>,
    {
        let fallbacks = serve::Fallbacks { stale_until: None };
        let mut boarding = Boarding::to(key).without_waiting();
        boarding.despite_hold = true;
        let own = match self.engine.enter(&boarding, &mut None) {
            Entered::Lead(leader) => lead(leader, fallbacks, work).await,
            _ => self.timed_alone(alone(work)).await,
        };
        own.map(|own| Served::Own(own, CacheOutcome::Alone))
    }

    pub(crate) async fn recompute<E, F, Fut>(
        self: &Arc<Self>,
        key: Key,
        work: F,
    ) -> Result<Served<V, V>, Error>
    where
        E: Into<BoxError> + Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Made<V, V>, E>> + Send + 'static,
    {
        let caller = serve::Recompute::of(&key);
        let result =
            serve::resolve(self, caller, work, |l, f, w| self.lead_detached(l, f, w), alone);
        let result = result.await;
        self.count(result)
    }

    async fn lead_detached<T, E, F, Fut>(
        self: &Arc<Self>,
        leader: Leader<V>,
        fallbacks: serve::Fallbacks,
        work: F,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        E: Into<BoxError> + Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Made<V, T>, E>> + Send + 'static,
    {
        let key = leader.key().clone();
        let lead = serve::lead(Arc::clone(self), leader, fallbacks, work);
        self.engine.detached(&key, lead).await.and_then(std::convert::identity)
    }

    fn refresh<T, E, F, Fut>(self: &Arc<Self>, key: Key, seen: &Arc<Entry<V>>, work: F)
    where
        T: Send + 'static,
        E: Into<BoxError> + Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Made<V, T>, E>> + Send + 'static,
    {
        let fallbacks = serve::Fallbacks { stale_until: Some(seen.window.useful_until()) };
        let boarding = Boarding::to(key).without_waiting();
        let unchanged = || self.is_still(boarding.key.as_bytes(), seen);
        self.engine.refresh(&boarding, unchanged, |leader| {
            let lead = serve::lead(Arc::clone(self), leader, fallbacks, work);
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
    ) -> Result<Served<V, T>, Error>
    where
        E: Into<BoxError>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<Made<V, T>, E>>,
    {
        let boarding = Boarding::to(key).without_waiting();
        if let Entered::Lead(leader) = self.engine.enter(&boarding, &mut None) {
            if !self.is_still(boarding.key.as_bytes(), &seen) {
                leader.withdraw();
            } else {
                let fallbacks = serve::Fallbacks { stale_until: Some(seen.window.useful_until()) };
                let lead = serve::lead(Arc::clone(self), leader, fallbacks, work);
                if let Ok(own) = lead.await {
                    return Ok(Served::Own(own, CacheOutcome::Computed));
                }
            }
        }
        Ok(Served::Entry(seen, otherwise))
    }

    fn count<T>(&self, result: Result<Served<V, T>, Error>) -> Result<Served<V, T>, Error> {
        let outcome = match &result {
            Ok(Served::Entry(_, outcome) | Served::Own(_, outcome)) => *outcome,
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
    Fut: Future<Output = Result<Made<V, T>, E>>,
{
    work().await.map(|(_, own)| own).map_err(Error::inner_error)
}

impl<V: Clone> Served<V, V> {
    pub(crate) fn into_value(self) -> V {
        match self {
            Self::Entry(entry, _) => entry.value.clone(),
            Self::Own(value, _) => value,
        }
    }
}
