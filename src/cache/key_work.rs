//! The work of one caller that asks for a key: what it wants, what may answer it, and how it
//! computes.

use std::sync::Arc;

use crate::cache::call_options::{CallContext, Stored};
use crate::cache::computation::Compute;
use crate::cache::fresh_read::FreshRead;
use crate::cache::seat::Seat;
use crate::cache::state::{CacheState, Lookup};
use crate::clock::Tick;
use crate::computed::Computed;
use crate::entry::Entry;
use crate::error::{BoxError, Error, ErrorKind};
use crate::flight::door::{
    Caller, Conclusion, FailureRule, Fit, FlightResult, HoldRule, Judgement, Lead, Patience,
    Question, Remember, Search, Work,
};
use crate::flight::end::Leavings;
use crate::flight::request::FlightRequest;
use crate::freshness::Freshness;
use crate::key::Key;
use crate::lease::grant::Version;

/// The entry that is to be refreshed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplacedEntry {
    version: Option<Version>,
    started: Tick,
}

impl ReplacedEntry {
    pub(crate) fn of<V>(entry: &Entry<V>) -> Self {
        Self { version: entry.version, started: entry.window().started }
    }

    /// Returns whether `found` is this entry, or no newer.
    pub(crate) fn is_no_older_than<V>(self, found: &Entry<V>) -> bool {
        let same = self.version.is_some() && found.version == self.version;
        same || found.window().started <= self.started
    }
}

/// What a caller wants. Small: each waiter holds it.
pub(super) enum Purpose<V> {
    /// Any value that may be served.
    Serve,
    /// A newer value than this one; its caller has a value to go on with.
    Refresh(Arc<Entry<V>>),
    /// The same, and its caller waits for it.
    Newer(Arc<Entry<V>>),
    /// A value whose computation began after the call.
    FreshRead(Box<FreshRead>),
}

impl<V: Clone + Send + Sync + 'static> Purpose<V> {
    /// Returns what may be served in place of a failure. A caller that has asked for a new
    /// value by name is served nothing else.
    pub(super) fn fallback(
        &self,
        state: &CacheState<V>,
        key: &Key,
        in_hand: Option<&Arc<Entry<V>>>,
        context: Option<&CallContext<V>>,
    ) -> Option<Arc<Entry<V>>> {
        match self {
            Self::FreshRead(_) => None,
            Self::Serve | Self::Refresh(_) | Self::Newer(_) => {
                let found = state.fallback(key, in_hand)?;
                context.is_none_or(|call| call.accepts(&found, state.now())).then_some(found)
            }
        }
    }
}

/// A computation that failed, and what its own caller may be served instead.
pub(crate) struct FailedCall<V> {
    pub(super) error: Error,
    pub(super) fallback: Option<Arc<Entry<V>>>,
}

impl<V> FailedCall<V> {
    /// The failure of a caller that computes outside of any flight.
    pub(super) fn alone(error: Error) -> Self {
        Self { error, fallback: None }
    }
}

/// What one caller asks for, and what may answer it.
pub(crate) struct KeyQuestion<V: Clone + Send + Sync + 'static> {
    state: Arc<CacheState<V>>,
    pub(super) key: Key,
    pub(super) purpose: Purpose<V>,
    /// Found by the caller's first look, or on the leader's way.
    pub(super) in_hand: Option<Arc<Entry<V>>>,
    /// Found by the search, and no answer. To a caller that takes any value it may be of use in
    /// place of a failure. For the others it is the entry that the result replaces, and whose tags
    /// the result may inherit. One field for both: each waiter holds it.
    passed_over: Option<Arc<Entry<V>>>,
    /// The caller is one of a batch.
    seat: Option<Arc<Seat>>,
    /// What this call asks for beside the settings of its cache.
    pub(super) context: Option<Arc<CallContext<V>>>,
}

/// A question, and the computation that answers it where nothing else does.
pub(crate) struct KeyWork<V: Clone + Send + Sync + 'static, C> {
    pub(super) question: KeyQuestion<V>,
    pub(super) compute: C,
}

impl<V: Clone + Send + Sync + 'static, C> KeyWork<V, C> {
    pub(crate) fn serve(
        state: &Arc<CacheState<V>>,
        key: Key,
        stale: Option<Arc<Entry<V>>>,
        compute: C,
    ) -> Self {
        Self { question: KeyQuestion::serve(state, key, stale), compute }
    }

    /// Makes it the work of a caller in a batch.
    pub(super) fn with_seat(mut self, seat: &Arc<Seat>) -> Self {
        self.question.seat = Some(Arc::clone(seat));
        self
    }

    /// Makes it the work of a call with options.
    pub(super) fn with_context(mut self, context: Option<Arc<CallContext<V>>>) -> Self {
        self.question.context = context;
        self
    }

    /// Makes it the work of a caller that has `seen`, and waits for a newer value.
    pub(super) fn waiting_for_newer(mut self, seen: &Arc<Entry<V>>) -> Self {
        self.question.refresh(seen);
        self.question.purpose = Purpose::Newer(Arc::clone(seen));
        self
    }

    pub(super) fn refreshing(mut self, seen: &Arc<Entry<V>>) -> Self {
        self.question.refresh(seen);
        self
    }

    pub(super) fn reading_fresh(mut self) -> Self {
        self.question.read_fresh();
        self
    }
}

impl<V: Clone + Send + Sync + 'static> KeyQuestion<V> {
    fn serve(state: &Arc<CacheState<V>>, key: Key, stale: Option<Arc<Entry<V>>>) -> Self {
        let (state, purpose) = (Arc::clone(state), Purpose::Serve);
        let (passed_over, seat, context) = (None, None, None);
        Self { state, key, purpose, in_hand: stale, passed_over, seat, context }
    }

    pub(super) fn request(&self) -> FlightRequest {
        let call = self.seat.as_ref().map(|seat| seat.origin_call());
        FlightRequest::of(self.key.clone()).sharing_call(call)
    }

    fn refresh(&mut self, seen: &Arc<Entry<V>>) {
        self.purpose = Purpose::Refresh(Arc::clone(seen));
        self.in_hand = Some(Arc::clone(seen));
        self.passed_over = Some(Arc::clone(seen));
    }

    /// What was to be refreshed is gone, and nothing was computed: its caller asks as one that
    /// has found nothing.
    pub(super) fn forget_replaced(&mut self) {
        self.purpose = Purpose::Serve;
        (self.in_hand, self.passed_over) = (None, None);
    }

    fn read_fresh(&mut self) {
        let from_number = self.state.engine.table.upcoming_number();
        self.purpose = Purpose::FreshRead(Box::new(FreshRead::new(from_number)));
    }

    /// Returns whether `found` is the value to be replaced, or perhaps no newer.
    fn is_replaced(&mut self, found: &Arc<Entry<V>>) -> bool {
        match &mut self.purpose {
            Purpose::Serve => false,
            Purpose::Refresh(seen) | Purpose::Newer(seen) => {
                ReplacedEntry::of(seen).is_no_older_than(found)
            }
            Purpose::FreshRead(read) => !read.covers(found),
        }
    }

    fn judge_value(&mut self, found: &Arc<Entry<V>>) -> Judgement {
        if self.is_replaced(found) {
            self.passed_over = Some(Arc::clone(found));
            return Judgement::Useless;
        }
        match self.state.judge_found(&self.key, found) {
            Freshness::Fresh | Freshness::Early => Judgement::Serves,
            Freshness::Stale if matches!(self.purpose, Purpose::Serve) => Judgement::Serves,
            Freshness::Stale | Freshness::StaleIfError => {
                if matches!(self.purpose, Purpose::Serve) {
                    self.passed_over = Some(Arc::clone(found));
                }
                Judgement::Useless
            }
            Freshness::Expired => Judgement::Useless,
        }
    }
}

impl<V: Clone + Send + Sync + 'static> Caller<V> for KeyQuestion<V> {
    fn flight_request(&mut self) -> FlightRequest {
        let request = self.request();
        match self.purpose {
            Purpose::FreshRead(_) => request.despite_hold(),
            Purpose::Serve | Purpose::Refresh(_) | Purpose::Newer(_) => request,
        }
    }

    fn second_look(&mut self) -> Option<Arc<Entry<V>>> {
        if matches!(self.purpose, Purpose::FreshRead(_)) {
            return None;
        }
        match self.state.look(self.key.as_bytes()) {
            Lookup::Fresh(entry) | Lookup::Early(entry) => Some(entry),
            Lookup::Stale(_) | Lookup::Unvouched(_) | Lookup::Miss(_) => None,
        }
    }

    fn fits(&mut self, result: &FlightResult<'_, V>) -> Fit {
        let is_new_enough = match &self.purpose {
            // Without a number the value is from elsewhere, and may be of any age.
            Purpose::FreshRead(read) => {
                result.numbers.computation.is_some_and(|number| number >= read.from_number)
            }
            Purpose::Serve | Purpose::Refresh(_) | Purpose::Newer(_) => true,
        };
        if is_new_enough && result.may_be_taken() { Fit::Takes } else { Fit::Refused }
    }

    fn wants_computation_from(&self) -> Option<u64> {
        match &self.purpose {
            Purpose::FreshRead(read) => Some(read.from_number),
            Purpose::Serve | Purpose::Refresh(_) | Purpose::Newer(_) => None,
        }
    }

    fn fallback(&self) -> Option<Arc<Entry<V>>> {
        let (in_hand, context) = (self.in_hand.as_ref(), self.context.as_deref());
        self.purpose.fallback(&self.state, &self.key, in_hand, context)
    }

    fn fallback_for(&self, failure: &Error) -> Option<Arc<Entry<V>>> {
        if failure.is_answer() { None } else { self.fallback() }
    }
}

impl<V: Clone + Send + Sync + 'static> Search<V> for KeyQuestion<V> {
    fn key(&self) -> &Key {
        &self.key
    }

    fn judge(&mut self, found: &Arc<Entry<V>>) -> Judgement {
        if let Some(call) = &self.context {
            call.note_found(found);
        }
        self.judge_value(found)
    }

    fn looks(&mut self) {
        if let Some(call) = &self.context {
            call.forget_found();
        }
    }

    fn copy_here(&mut self) -> Option<Arc<Entry<V>>> {
        let copy = self.state.local.peek(self.key.as_bytes())?;
        let is_meant = copy.is_copy_over(self.state.now()) && self.state.engine.log.is_alive(&copy);
        (is_meant && self.judge_value(&copy) == Judgement::Serves).then_some(copy)
    }

    fn despite_hold(&self) -> bool {
        matches!(self.purpose, Purpose::FreshRead(_))
    }

    fn is_leased(&mut self) {
        if let Purpose::FreshRead(read) = &mut self.purpose {
            read.is_leased(&self.state.engine.table);
        }
    }

    fn give_way(&mut self) {
        if let Some(seat) = &self.seat {
            seat.decide();
        }
    }

    fn spread(&self) -> f64 {
        self.seat.as_ref().map_or_else(fastrand::f64, |seat| seat.spread())
    }
}

impl<V: Clone + Send + Sync + 'static> Question<V> for KeyQuestion<V> {
    fn patience(&mut self) -> Patience {
        self.looks();
        let goes_on = self.context.as_ref().is_some_and(|call| call.options.goes_on);
        match self.purpose {
            Purpose::Serve | Purpose::Newer(_) if goes_on => Patience::GoOn,
            Purpose::Serve | Purpose::Newer(_) | Purpose::FreshRead(_) => Patience::Wait,
            Purpose::Refresh(_) => Patience::GiveUp,
        }
    }

    fn keep_stand_in(&mut self, lead: &Lead<V>) {
        if !matches!(self.purpose, Purpose::Serve) {
            return;
        }
        let Some(found) = self.passed_over.take() else { return };
        let here = self.state.local.peek(self.key.as_bytes());
        if here.is_none_or(|here| here.window().started < found.window().started) {
            lead.adopt(&found);
            self.in_hand = Some(found);
        }
    }

    fn adopt(&mut self, lead: &Lead<V>, found: Arc<Entry<V>>) -> Arc<Entry<V>> {
        if let Purpose::FreshRead(read) = &self.purpose {
            read.number().into_iter().for_each(|number| lead.set_number(number));
        }
        lead.adopt(&found);
        self.state.adopted(&found);
        found
    }
}

impl<V, C> Work<V> for KeyWork<V, C>
where
    V: Clone + Send + Sync + 'static,
    C: Compute<V>,
{
    type Question = KeyQuestion<V>;
    type Output = Result<C::Own, FailedCall<V>>;

    fn question(&mut self) -> &mut KeyQuestion<V> {
        &mut self.question
    }

    async fn call(self, mut lead: Lead<V>) -> Self::Output {
        let Self { question, compute } = self;
        let begun = question.begin(&mut lead);
        let result = lead.compute(async { compute.call().await }).await;
        match told_apart(result) {
            Ok((mut computed, own)) => {
                let rest = computed.as_mut().and_then(|computed| computed.rest.take());
                let leavings = match (computed, rest) {
                    (Some(computed), Some(rest)) => begun.end_arriving(lead, computed, rest).await,
                    (computed, _) => begun.end_computed(lead, computed).await,
                };
                leavings.after_others().await;
                Ok(own)
            }
            Err(failure) => {
                let (failed, leavings) = begun.end_failed(lead, failure).await;
                leavings.after_others().await;
                Err(failed)
            }
        }
    }
}

/// A call that has begun, and what its leader's end needs.
pub(super) struct BegunCall<V: Clone + Send + Sync + 'static> {
    pub(super) state: Arc<CacheState<V>>,
    key: Key,
    purpose: Purpose<V>,
    in_hand: Option<Arc<Entry<V>>>,
    /// What the result replaces.
    replaced: Option<Arc<Entry<V>>>,
    context: Option<Arc<CallContext<V>>>,
    /// What follows a failure of which nothing is known.
    shared: FailureRule,
}

impl<V: Clone + Send + Sync + 'static> KeyQuestion<V> {
    pub(super) fn begin(self, lead: &mut Lead<V>) -> BegunCall<V> {
        let fallback = self.fallback().map(|entry| entry.window());
        lead.set_fallback(fallback);
        let stale_until = fallback.map(|window| window.useful_until());
        let shared = FailureRule { hold: HoldRule::Never, stale_until, each_computes: false };
        let Self { state, key, purpose, in_hand, passed_over, context, .. } = self;
        // What stands there now, and not when the caller asked: another computation may
        // have stored a value with other tags since.
        let here = state.local.peek(key.as_bytes());
        let replaced = here.filter(|entry| state.engine.log.is_alive(entry)).or(passed_over);
        // It may have no room here, and still stand in the remote.
        let replaced = replaced.or_else(|| in_hand.clone());
        // Also a cache that only fails has something to forget.
        state.tidy_from_now_on();
        let begun = BegunCall { state, key, purpose, in_hand, replaced, context, shared };
        if let Some(call) = &begun.context {
            call.show(begun.stored());
        }
        begun
    }
}

/// Each end returns what is left to do. That is code of the user, as is the `Drop` of what this holds,
/// and the task may have other callers to answer first.
impl<V: Clone + Send + Sync + 'static> BegunCall<V> {
    /// Returns what the computation may renew.
    pub(super) fn stored(&self) -> Option<Stored<V>> {
        self.state.renewable(self.context.as_deref(), self.replaced.as_ref())
    }

    pub(super) async fn end_computed(
        &self,
        lead: Lead<V>,
        computed: Option<Computed<V>>,
    ) -> Leavings<V> {
        let declined = Conclusion::Decline(Remember::Everywhere);
        let Some(computed) = computed else {
            // The adapter of a service says of a response only that it may not be shared. That need
            // not be a better answer than the older value.
            return lead.conclude(declined);
        };
        if !computed.storable {
            return self.end_unstored(lead, declined).await;
        }
        match self.state.entry(self.with_options(computed), &lead.facts()) {
            (entry, true) => lead.store(&entry),
            (entry, false) => self.end_unstored(lead, Conclusion::Share(entry)).await,
        }
    }

    /// Adds what the call asks for, and what the result keeps of the value that it replaces.
    pub(super) fn with_options(&self, computed: Computed<V>) -> Computed<V> {
        let computed = computed.with_tags_of(self.replaced.as_deref());
        match &self.context {
            Some(call) => computed.with_options(&call.options),
            None => computed,
        }
    }

    /// Ends with a result that is not stored. It is newer than the value that it was to replace, so
    /// that value ends, here and in the remote.
    async fn end_unstored(&self, lead: Lead<V>, end: Conclusion<V>) -> Leavings<V> {
        let is_current = lead.is_current();
        let older = self.replaced.as_ref().filter(|_| is_current);
        if let Purpose::FreshRead(_) = self.purpose {
            if let Some(older) = older {
                self.state.remove_older_here(&lead, older);
            }
            let leavings = lead.conclude(end);
            if is_current {
                // The caller has said that any older value is out of date, also one that was not
                // seen.
                self.state.revoke(self.key.clone()).await;
            }
            return leavings;
        }
        let errand = older.and_then(|older| self.state.remove_older(&lead, older));
        if errand.is_some()
            && let Conclusion::Share(entry) = &end
        {
            // No waiter waits for the remote.
            lead.share_now(entry);
        }
        self.state.tell(errand).await;
        lead.conclude(end)
    }

    pub(super) async fn end_failed(
        &self,
        lead: Lead<V>,
        failure: KeyFailure,
    ) -> (FailedCall<V>, Leavings<V>) {
        let (error, rule) = match failure {
            KeyFailure::Computation(error) => {
                let error = error.in_cache(&self.state.name);
                let rule = self.state.rule_for(&error, self.shared);
                if let HoldRule::Remember(_) = rule.hold {
                    let error = error.into_answer();
                    let older = self.replaced.as_ref().filter(|_| lead.is_current());
                    let errand = older.and_then(|older| self.state.remove_older(&lead, older));
                    self.state.tell(errand).await;
                    let end = Conclusion::Fail { error: error.clone(), rule, result: None };
                    let leavings = lead.conclude(end);
                    return (FailedCall { error, fallback: None }, leavings);
                }
                (error, rule)
            }
            KeyFailure::Engine(error) => {
                // A lack of places says nothing of the key.
                let is_late = error.kind() == ErrorKind::ComputeTimeout;
                let hold = if is_late { HoldRule::After(1) } else { HoldRule::Never };
                (error, FailureRule { hold, ..self.shared })
            }
        };
        let end = Conclusion::Fail { error: error.clone(), rule, result: None };
        let leavings = lead.conclude(end);
        let (in_hand, context) = (self.in_hand.as_ref(), self.context.as_deref());
        let fallback = self.purpose.fallback(&self.state, &self.key, in_hand, context);
        (FailedCall { error, fallback }, leavings)
    }
}

/// Why a call has no result.
pub(super) enum KeyFailure {
    /// The computation has failed.
    Computation(Error),
    /// The engine has ended it, or it has found no place for its call in time.
    Engine(Error),
}

impl KeyFailure {
    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Computation(error) | Self::Engine(error) => error,
        }
    }
}

fn told_apart<T, E: Into<BoxError>>(result: Result<Result<T, E>, Error>) -> Result<T, KeyFailure> {
    let result = result.map_err(KeyFailure::Engine)?;
    result.map_err(|error| KeyFailure::Computation(Error::of_computation(error)))
}
