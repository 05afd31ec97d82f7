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
use crate::serve::{self, KeyCaller, Made, Purpose, Resolved, Seen, Served};

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
                let lead = |l, f, w| self.lead_detached(l, Purpose::Serve, f, w);
                self.off_duty(key, work, lead, alone).await
            }
            Look::Miss(stale) => {
                let lead = |l, f, w| self.lead_detached(l, Purpose::Serve, f, w);
                let caller = KeyCaller::new(self, &key, stale);
                match serve::resolve(self, caller, work, lead, alone).await {
                    Ok(Resolved::Served(served)) => Ok(served),
                    Ok(Resolved::Found(entry, work)) => Ok(self.serve_found(key, entry, work)),
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
    ) -> Served<V, T>
    where
        T: Send + 'static,
        E: Into<BoxError> + Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Made<V, T>, E>> + Send + 'static,
    {
        if self.now() < entry.window.fresh_until {
            return Served::Entry(entry, CacheOutcome::Hit);
        }
        self.refresh(key, &entry, work);
        Served::Entry(entry, CacheOutcome::Stale)
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
        let lead = |leader, fallbacks, work| {
            serve::lead(Arc::clone(self), leader, Purpose::Serve, fallbacks, work)
        };
        let result = match look {
            Look::Fresh(entry) => Ok(Served::Entry(entry, CacheOutcome::Hit)),
            Look::Early(entry) => self.refresh_inline(key, entry, CacheOutcome::Hit, work).await,
            Look::Stale(entry) => self.refresh_inline(key, entry, CacheOutcome::Stale, work).await,
            Look::Miss(_) if self.engine.mode() != Mode::On => {
                self.off_duty(key, work, lead, alone).await
            }
            Look::Miss(stale) => {
                let caller = KeyCaller::new(self, &key, stale);
                match serve::resolve(self, caller, work, lead, alone).await {
                    Ok(Resolved::Served(served)) => Ok(served),
                    Ok(Resolved::Found(entry, work)) => {
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
    ) -> Result<Served<V, T>, Error>
    where
        L: FnOnce(Leader<V>, serve::Fallbacks, W) -> LF,
        LF: Future<Output = Result<serve::Led<V, T, W>, Error>>,
        A: FnOnce(W) -> AF,
        AF: Future<Output = Result<T, Error>>,
    {
        let fallbacks = serve::Fallbacks { stale_until: None };
        let mut boarding = Boarding::to(key).without_waiting();
        boarding.despite_hold = true;
        let own = match self.engine.enter(&boarding, &mut None) {
            Entered::Lead(leader) => match lead(leader, fallbacks, work).await {
                Ok(serve::Led::Own(own)) => Ok(own),
                // Switched on meanwhile.
                Ok(serve::Led::Found(_, work)) => self.timed_alone(alone(work)).await,
                Err(error) => Err(error),
            },
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
        let lead = |l, f, w| self.lead_detached(l, Purpose::Recompute, f, w);
        let caller = serve::Recompute::of(&key);
        let result = match serve::resolve(self, caller, work, lead, alone).await {
            Ok(Resolved::Served(served)) => Ok(served),
            // Computed by another process since this one asked.
            Ok(Resolved::Found(entry, _)) => Ok(Served::Entry(entry, CacheOutcome::Joined)),
            Err(error) => Err(error),
        };
        self.count(result)
    }

    async fn lead_detached<T, E, F, Fut>(
        self: &Arc<Self>,
        leader: Leader<V>,
        purpose: Purpose,
        fallbacks: serve::Fallbacks,
        work: F,
    ) -> Result<serve::Led<V, T, F>, Error>
    where
        T: Send + 'static,
        E: Into<BoxError> + Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Made<V, T>, E>> + Send + 'static,
    {
        let key = leader.key().clone();
        let lead = serve::lead(Arc::clone(self), leader, purpose, fallbacks, work);
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
        let purpose = Purpose::Refresh(Seen::of(seen));
        self.engine.refresh(&boarding, unchanged, |leader| {
            let lead = serve::lead(Arc::clone(self), leader, purpose, fallbacks, work);
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
        let may_refresh = self.engine.may_refresh(&boarding.key);
        if may_refresh && let Entered::Lead(leader) = self.engine.enter(&boarding, &mut None) {
            if !self.is_still(boarding.key.as_bytes(), &seen) {
                leader.withdraw();
            } else {
                let fallbacks = serve::Fallbacks { stale_until: Some(seen.window.useful_until()) };
                let purpose = Purpose::Refresh(Seen::of(&seen));
                let lead = serve::lead(Arc::clone(self), leader, purpose, fallbacks, work);
                match lead.await {
                    Ok(serve::Led::Own(own)) => {
                        return Ok(Served::Own(own, CacheOutcome::Computed));
                    }
                    Ok(serve::Led::Found(entry, _)) => {
                        return Ok(Served::Entry(entry, CacheOutcome::Hit));
                    }
                    Err(_) => (),
                }
            }
        }
        Ok(Served::Entry(seen, otherwise))
    }

    async fn serve_found_inline<T, E, F, Fut>(
        self: &Arc<Self>,
        key: Key,
        entry: Arc<Entry<V>>,
        work: F,
    ) -> Result<Served<V, T>, Error>
    where
        E: Into<BoxError>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<Made<V, T>, E>>,
    {
        if self.now() < entry.window.fresh_until {
            return Ok(Served::Entry(entry, CacheOutcome::Hit));
        }
        self.refresh_inline(key, entry, CacheOutcome::Stale, work).await
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
