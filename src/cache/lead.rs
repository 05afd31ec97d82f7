//! From a look-up to an answer: the path every surface shares.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::cache::builder::FailureAction;
use crate::cache::state::{CacheState, Lookup};
use crate::clock::Tick;
use crate::computed::Computed;
use crate::entry::Entry;
use crate::error::{BoxError, Error, ErrorKind};
use crate::flight::engine::FlightRequest;
use crate::flight::leader::{FailureRule, HoldRule, Leader};
use crate::flight::waiter::{AloneReason, Caller, Resolver, Step};
use crate::freshness::Freshness;
use crate::key::Key;
use crate::lease::acquire::{Clearance, Judgement, Patience, Search};
use crate::lease::grant::Version;
use crate::outcome::CacheOutcome;

/// When a refresh that was left to another process looks again.
pub(crate) const REFRESH_AGAIN: Duration = Duration::from_millis(100);

/// What a computation hands to its leader: the value to keep, if it may be
/// kept, and what the leader's own caller gets.
pub(crate) type ComputationResult<V, T> = (Option<Computed<V>>, T);

/// An answer, from wherever it came.
pub(crate) enum Answer<V, T> {
    Entry(Arc<Entry<V>>, CacheOutcome),
    Own(T, CacheOutcome),
}

/// What became of a leader's way.
pub(crate) enum LeadOutcome<V, T, W> {
    /// It computed.
    Own(T),
    /// The remote has a value; the work is not done.
    Found(Arc<Entry<V>>, W),
}

/// A caller's answer, or what it has to look at once more.
pub(crate) enum Resolution<V, T, W> {
    Served(Answer<V, T>),
    Found(Arc<Entry<V>>, W),
}

/// Until when a failed computation leaves its callers something stale.
#[derive(Clone, Copy)]
pub(crate) struct Fallbacks {
    pub(crate) stale_until: Option<Tick>,
}

impl Fallbacks {
    /// Takes in what the leader has found on its way.
    fn or_of<V>(self, found: Option<&Arc<Entry<V>>>) -> Self {
        Self { stale_until: self.stale_until.max(found.map(|entry| entry.window.useful_until())) }
    }

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
    fn boarding(&mut self) -> FlightRequest {
        FlightRequest { despite_hold: true, ..FlightRequest::to(self.0.clone()) }
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
    inner: &'a Arc<CacheState<V>>,
    key: &'a Key,
    stale: Option<Arc<Entry<V>>>,
}

impl<'a, V: Clone + Send + Sync + 'static> KeyCaller<'a, V> {
    pub(crate) fn new(
        inner: &'a Arc<CacheState<V>>,
        key: &'a Key,
        stale: Option<Arc<Entry<V>>>,
    ) -> Self {
        Self { inner, key, stale }
    }
}

impl<V: Clone + Send + Sync + 'static> Caller<V> for KeyCaller<'_, V> {
    fn boarding(&mut self) -> FlightRequest {
        FlightRequest::to(self.key.clone())
    }

    fn second_look(&mut self) -> Option<Arc<Entry<V>>> {
        match self.inner.look(self.key.as_bytes()) {
            Lookup::Fresh(entry) | Lookup::Early(entry) => Some(entry),
            Lookup::Stale(_) | Lookup::Miss(_) => None,
        }
    }

    fn reusable(&self, _: &Entry<V>) -> bool {
        true
    }

    fn fallback(&self) -> Option<Arc<Entry<V>>> {
        let in_hand = self.stale.clone().filter(|entry| self.inner.may_stand_in(entry));
        // The leader may have found one on its way.
        in_hand.or_else(|| match self.inner.peek(self.key.as_bytes()) {
            Lookup::Miss(stale) => stale,
            Lookup::Fresh(entry) | Lookup::Early(entry) | Lookup::Stale(entry) => Some(entry),
        })
    }
}

/// What a leader is out for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// Any value that may be served.
    Serve,
    /// A newer value than this one; nobody waits.
    Refresh(ReplacedEntry),
    /// A value that is computed from now on.
    Recompute,
}

/// The entry that is to be refreshed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplacedEntry {
    version: Option<Version>,
    started: Tick,
}

impl ReplacedEntry {
    pub(crate) fn of<V>(entry: &Entry<V>) -> Self {
        Self { version: entry.version, started: entry.window.started }
    }

    /// Returns whether `found` is no news.
    pub(crate) fn is_no_older_than<V>(self, found: &Entry<V>) -> bool {
        let same = self.version.is_some() && found.version == self.version;
        same || found.window.started <= self.started
    }
}

impl Purpose {
    const fn patience(self) -> Patience {
        match self {
            Self::Serve | Self::Recompute => Patience::Wait,
            Self::Refresh(_) => Patience::GiveUp,
        }
    }
}

/// A leader of the flight of one key, in the remote.
struct KeySearch<'a, V: Clone + Send + Sync + 'static> {
    inner: &'a CacheState<V>,
    key: Key,
    purpose: Purpose,
    /// The version that was there, or none, when a recomputation began.
    first: Option<Option<Version>>,
    stand_in: Option<Arc<Entry<V>>>,
}

impl<V: Clone + Send + Sync + 'static> KeySearch<'_, V> {
    /// Returns whether the value is the one that is to be replaced.
    fn is_seen(&mut self, found: &Entry<V>) -> bool {
        match self.purpose {
            Purpose::Serve => false,
            Purpose::Refresh(seen) => seen.is_no_older_than(found),
            Purpose::Recompute => *self.first.get_or_insert(found.version) == found.version,
        }
    }
}

impl<V: Clone + Send + Sync + 'static> Search<V> for KeySearch<'_, V> {
    fn key(&self) -> &Key {
        &self.key
    }

    fn judge(&mut self, found: &Arc<Entry<V>>) -> Judgement {
        if self.is_seen(found) {
            return Judgement::Useless;
        }
        match self.inner.judge_found(&self.key, found) {
            Freshness::Fresh | Freshness::Early => Judgement::Serves,
            Freshness::Stale if matches!(self.purpose, Purpose::Serve) => Judgement::Serves,
            Freshness::Stale | Freshness::StaleIfError => {
                let serves = matches!(self.purpose, Purpose::Serve);
                self.stand_in = serves.then(|| Arc::clone(found));
                Judgement::Useless
            }
            Freshness::Expired => Judgement::Useless,
        }
    }

    fn found_nothing(&mut self, version: Option<Version>) {
        // What comes after this was computed meanwhile.
        self.first.get_or_insert(version);
    }

    fn despite_hold(&self) -> bool {
        matches!(self.purpose, Purpose::Recompute)
    }
}

/// Finds an answer for one that found nothing fresh: waits, leads with `run`,
/// or goes alone with `alone`.
pub(crate) async fn resolve<V, C, T, W, L, LF, A, AF>(
    inner: &Arc<CacheState<V>>,
    mut caller: C,
    work: W,
    lead: L,
    alone: A,
) -> Result<Resolution<V, T, W>, Error>
where
    V: Clone + Send + Sync + 'static,
    C: Caller<V>,
    L: FnOnce(Leader<V>, Fallbacks, W) -> LF,
    LF: Future<Output = Result<LeadOutcome<V, T, W>, Error>>,
    A: FnOnce(W) -> AF,
    AF: Future<Output = Result<T, Error>>,
{
    let mut ticket = Resolver::new(&inner.engine, inner.engine.log.seq());
    let (own, outcome) = match ticket.resolve(&mut caller).await {
        Step::Answer(entry, outcome) => return Ok(Answer::Entry(entry, outcome).into()),
        Step::Refuse(error) => return Err(error),
        Step::Alone(why) => {
            let _place = inner.place_to_go_alone(why, &caller.boarding().key)?;
            (inner.timed_alone(why, alone(work)).await, CacheOutcome::Alone)
        }
        Step::Lead(leader) => match lead(leader, Fallbacks::of(&caller), work).await {
            Ok(LeadOutcome::Found(entry, work)) => return Ok(Resolution::Found(entry, work)),
            Ok(LeadOutcome::Own(own)) => (Ok(own), CacheOutcome::Computed),
            Err(error) => (Err(error), CacheOutcome::Computed),
        },
    };
    own_or_stale(own, outcome, &caller).map(Resolution::Served)
}

impl<V, T, W> From<Answer<V, T>> for Resolution<V, T, W> {
    fn from(served: Answer<V, T>) -> Self {
        Self::Served(served)
    }
}

fn own_or_stale<V, T, C: Caller<V>>(
    own: Result<T, Error>,
    outcome: CacheOutcome,
    caller: &C,
) -> Result<Answer<V, T>, Error> {
    match own {
        Ok(own) => Ok(Answer::Own(own, outcome)),
        Err(error) => match caller.fallback() {
            Some(entry) => Ok(Answer::Entry(entry, CacheOutcome::StaleIfError)),
            None => Err(error),
        },
    }
}

/// The leader's way from its lead to its verdict. Every exit gives one: by
/// name here, or by the guard when this future is dropped or panics.
pub(crate) async fn lead<V, T, E, W, Fut>(
    inner: Arc<CacheState<V>>,
    mut leader: Leader<V>,
    purpose: Purpose,
    fallbacks: Fallbacks,
    work: W,
) -> Result<LeadOutcome<V, T, W>, Error>
where
    V: Clone + Send + Sync + 'static,
    E: Into<BoxError>,
    W: FnOnce() -> Fut,
    Fut: Future<Output = Result<ComputationResult<V, T>, E>>,
{
    let key = leader.key().clone();
    let mut wanted = KeySearch { inner: &inner, key, purpose, first: None, stand_in: None };
    let cleared = leader.clear(&mut wanted, purpose.patience()).await;
    let stand_in = wanted.stand_in;
    if let Some(entry) = stand_in.as_ref().filter(|entry| inner.is_news(leader.key(), entry)) {
        leader.adopt(entry);
    }
    match cleared {
        Clearance::Compute => {
            let fallbacks = fallbacks.or_of(stand_in.as_ref());
            compute(inner, leader, fallbacks, work).await.map(LeadOutcome::Own)
        }
        Clearance::Found(entry) => {
            leader.adopt(&entry);
            inner.adopted(&entry);
            leader.stand_down(Arc::clone(&entry));
            Ok(LeadOutcome::Found(entry, work))
        }
        Clearance::Held(rest) => Err(leader.hold_back(rest)),
        Clearance::LeftToAnother(left) => {
            leader.leave_to_another(left.min(REFRESH_AGAIN));
            Err(Error::new(ErrorKind::WaitTimeout))
        }
        Clearance::TimedOut => time_out(inner, leader, fallbacks, work).await,
        Clearance::Refused(error) => {
            // Says nothing about the service: no hold.
            leader.fail(error.clone(), fallbacks.rule(HoldRule::Never));
            Err(error)
        }
    }
}

/// The end of the leader's own patience; those who wait elect another, by
/// their own deadlines.
async fn time_out<V, T, E, W, Fut>(
    inner: Arc<CacheState<V>>,
    mut leader: Leader<V>,
    fallbacks: Fallbacks,
    work: W,
) -> Result<LeadOutcome<V, T, W>, Error>
where
    V: Clone + Send + Sync + 'static,
    E: Into<BoxError>,
    W: FnOnce() -> Fut,
    Fut: Future<Output = Result<ComputationResult<V, T>, E>>,
{
    let nothing_stale = fallbacks.stale_until.is_none();
    if inner.engine.settings.compute_after_wait && nothing_stale && leader.try_place() {
        return compute(inner, leader, fallbacks, work).await.map(LeadOutcome::Own);
    }
    let error = inner.engine.waited_too_long(leader.key());
    leader.withdraw();
    Err(error)
}

async fn compute<V, T, E, Fut>(
    inner: Arc<CacheState<V>>,
    leader: Leader<V>,
    fallbacks: Fallbacks,
    work: impl FnOnce() -> Fut,
) -> Result<T, Error>
where
    V: Clone + Send + Sync + 'static,
    E: Into<BoxError>,
    Fut: Future<Output = Result<ComputationResult<V, T>, E>>,
{
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

impl<V: Clone + Send + Sync + 'static> CacheState<V> {
    /// Judges what the remote has. A copy of it that is here may have been
    /// marked stale: then that counts.
    pub(crate) fn judge_found(&self, key: &Key, found: &Entry<V>) -> Freshness {
        let here = self.local.get(key.as_bytes());
        let copy = here.filter(|here| {
            ReplacedEntry::of(here).is_no_older_than(found)
                && here.window.fresh_until < found.window.fresh_until
        });
        self.judge(copy.as_deref().unwrap_or(found), self.now())
    }

    /// Returns whether what the remote has is newer than what is here.
    fn is_news(&self, key: &Key, entry: &Entry<V>) -> bool {
        let here = self.local.get(key.as_bytes());
        here.is_none_or(|here| here.window.started < entry.window.started)
    }

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
        why: AloneReason,
        key: &Key,
    ) -> Result<Option<tokio::sync::OwnedSemaphorePermit>, Error> {
        match why {
            AloneReason::Declined | AloneReason::Off => Ok(None),
            AloneReason::WaitTimeout => match self.engine.try_place() {
                Some(place) => Ok(Some(place)),
                None => Err(self.engine.overloaded(key)),
            },
        }
    }

    pub(crate) async fn timed_alone<T>(
        &self,
        why: AloneReason,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let limit = self.engine.settings.compute_timeout;
        let from = self.engine.clock.now();
        let result = tokio::time::timeout(limit, work).await;
        self.observer.computed_alone(self.engine.clock.now().since(from), why.as_str());
        result.unwrap_or_else(|_| Err(Error::new(ErrorKind::ComputeTimeout)))
    }
}
