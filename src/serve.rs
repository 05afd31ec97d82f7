//! From a look-up to an answer: the path every surface shares.

use std::future::Future;
use std::sync::Arc;

use crate::builder::FailureAction;
use crate::computed::Computed;
use crate::engine::Boarding;
use crate::engine::leader::{FailureRule, HoldRule, Leader};
use crate::engine::time::Tick;
use crate::engine::waiter::{Alone, Caller, Step, Ticket};
use crate::entry::Entry;
use crate::error::{BoxError, Error, ErrorKind};
use crate::inner::{Inner, Look};
use crate::key::Key;
use crate::outcome::CacheOutcome;

/// What a computation hands to its leader: the value to keep, if it may be
/// kept, and what the leader's own caller gets.
pub(crate) type Made<V, T> = (Option<Computed<V>>, T);

/// An answer, from wherever it came.
pub(crate) enum Served<V, T> {
    Entry(Arc<Entry<V>>, CacheOutcome),
    Own(T, CacheOutcome),
}

/// Until when a failed computation leaves its callers something stale.
#[derive(Clone, Copy)]
pub(crate) struct Fallbacks {
    pub(crate) stale_until: Option<Tick>,
}

impl Fallbacks {
    fn rule(self, hold: HoldRule) -> FailureRule {
        FailureRule { hold, stale_until: self.stale_until, each_itself: false }
    }

    fn of<V, C: Caller<V>>(caller: &C) -> Self {
        Self { stale_until: caller.fallback().map(|entry| entry.window.useful_until()) }
    }
}

/// A caller that wants a new computation, however fresh the value is.
pub(crate) struct Recompute<'a>(&'a Key);

impl<'a> Recompute<'a> {
    pub(crate) fn of(key: &'a Key) -> Self {
        Self(key)
    }
}

impl<V> Caller<V> for Recompute<'_> {
    fn boarding(&mut self) -> Boarding {
        Boarding { despite_hold: true, ..Boarding::to(self.0.clone()) }
    }

    fn second_look(&mut self) -> Option<Arc<Entry<V>>> {
        None
    }

    fn reusable(&self, _: &Entry<V>) -> bool {
        true
    }

    fn fallback(&self) -> Option<Arc<Entry<V>>> {
        None
    }
}

/// A caller that is satisfied by any value of its key.
pub(crate) struct KeyCaller<'a, V: Clone + Send + Sync + 'static> {
    inner: &'a Arc<Inner<V>>,
    key: &'a Key,
    stale: Option<Arc<Entry<V>>>,
}

impl<'a, V: Clone + Send + Sync + 'static> KeyCaller<'a, V> {
    pub(crate) fn new(
        inner: &'a Arc<Inner<V>>,
        key: &'a Key,
        stale: Option<Arc<Entry<V>>>,
    ) -> Self {
        Self { inner, key, stale }
    }
}

impl<V: Clone + Send + Sync + 'static> Caller<V> for KeyCaller<'_, V> {
    fn boarding(&mut self) -> Boarding {
        Boarding::to(self.key.clone())
    }

    fn second_look(&mut self) -> Option<Arc<Entry<V>>> {
        match self.inner.look(self.key.as_bytes()) {
            Look::Fresh(entry) | Look::Early(entry) => Some(entry),
            Look::Stale(_) | Look::Miss(_) => None,
        }
    }

    fn reusable(&self, _: &Entry<V>) -> bool {
        true
    }

    fn fallback(&self) -> Option<Arc<Entry<V>>> {
        self.stale.clone().filter(|entry| self.inner.may_stand_in(entry))
    }
}

/// Finds an answer for one that found nothing fresh: waits, leads with `run`,
/// or goes alone with `alone`.
pub(crate) async fn resolve<V, C, T, W, L, LF, A, AF>(
    inner: &Arc<Inner<V>>,
    mut caller: C,
    work: W,
    lead: L,
    alone: A,
) -> Result<Served<V, T>, Error>
where
    V: Clone + Send + Sync + 'static,
    C: Caller<V>,
    L: FnOnce(Leader<V>, Fallbacks, W) -> LF,
    LF: Future<Output = Result<T, Error>>,
    A: FnOnce(W) -> AF,
    AF: Future<Output = Result<T, Error>>,
{
    let mut ticket = Ticket::new(&inner.engine, inner.engine.log.seq());
    match ticket.resolve(&mut caller).await {
        Step::Answer(entry, outcome) => Ok(Served::Entry(entry, outcome)),
        Step::Refuse(error) => Err(error),
        Step::Alone(why) => {
            let _place = inner.place_to_go_alone(why, &caller.boarding().key)?;
            let own = inner.timed_alone(alone(work)).await;
            own_or_stale(own, CacheOutcome::Alone, &caller)
        }
        Step::Lead(leader) => {
            let own = lead(leader, Fallbacks::of(&caller), work).await;
            own_or_stale(own, CacheOutcome::Computed, &caller)
        }
    }
}

fn own_or_stale<V, T, C: Caller<V>>(
    own: Result<T, Error>,
    outcome: CacheOutcome,
    caller: &C,
) -> Result<Served<V, T>, Error> {
    match own {
        Ok(own) => Ok(Served::Own(own, outcome)),
        Err(error) => match caller.fallback() {
            Some(entry) => Ok(Served::Entry(entry, CacheOutcome::StaleIfError)),
            None => Err(error),
        },
    }
}

/// The leader's way from its place to its verdict. Every exit gives one: by
/// name here, or by the guard when this future is dropped or panics.
pub(crate) async fn lead<V, T, E, Fut>(
    inner: Arc<Inner<V>>,
    mut leader: Leader<V>,
    fallbacks: Fallbacks,
    work: impl FnOnce() -> Fut,
) -> Result<T, Error>
where
    V: Clone + Send + Sync + 'static,
    E: Into<BoxError>,
    Fut: Future<Output = Result<Made<V, T>, E>>,
{
    if let Err(error) = leader.take_place().await {
        // Says nothing about the service: no hold.
        leader.fail(error.clone(), fallbacks.rule(HoldRule::Never));
        return Err(error);
    }
    match leader.compute(async { work().await }).await {
        Ok(Ok((Some(computed), own))) if computed.storable => {
            let (entry, keep) = inner.entry(computed, &leader);
            leader.fill(&entry, keep);
            Ok(own)
        }
        Ok(Ok((_, own))) => {
            leader.decline(true);
            Ok(own)
        }
        Ok(Err(error)) => {
            let error = error.into();
            let rule = inner.rule_for(&*error, fallbacks);
            let error = Error::inner_error(error);
            leader.fail(error.clone(), rule);
            Err(error)
        }
        Err(timeout) => {
            leader.fail(timeout.clone(), fallbacks.rule(HoldRule::After(1)));
            Err(timeout)
        }
    }
}

impl<V: Clone + Send + Sync + 'static> Inner<V> {
    fn rule_for(
        &self,
        error: &(dyn std::error::Error + Send + Sync + 'static),
        fallbacks: Fallbacks,
    ) -> FailureRule {
        let action =
            self.values.on_failure.as_ref().map_or_else(Default::default, |hook| hook(error));
        let hold = match action {
            FailureAction::Hold => HoldRule::After(1),
            FailureAction::ShareOnly | FailureAction::EachItself => HoldRule::Never,
        };
        FailureRule { each_itself: action == FailureAction::EachItself, ..fallbacks.rule(hold) }
    }

    /// Takes one of the places for computations, for a caller whose patience
    /// is at its end. Who goes alone because answers are not shared needs none:
    /// that is the traffic there would be without a cache.
    pub(crate) fn place_to_go_alone(
        &self,
        why: Alone,
        key: &Key,
    ) -> Result<Option<tokio::sync::OwnedSemaphorePermit>, Error> {
        match why {
            Alone::Declined | Alone::Off => Ok(None),
            Alone::WaitTimeout => match self.engine.try_place() {
                Some(place) => Ok(Some(place)),
                None => Err(self.engine.overloaded(key)),
            },
        }
    }

    pub(crate) async fn timed_alone<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let limit = self.engine.settings.compute_timeout;
        let from = self.engine.clock.now();
        let result = tokio::time::timeout(limit, work).await;
        self.observer.computed_alone(self.engine.clock.now().since(from));
        result.unwrap_or_else(|_| Err(Error::new(ErrorKind::ComputeTimeout)))
    }
}
