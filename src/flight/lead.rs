//! What a caller has that leads, as the rest of the crate sees it.
//!
//! The guard of the flight stays in this room. A computation takes the [`FlightFacts`] of its flight from
//! its [`Lead`], is driven by it, and gives it back with what it has come to: a [`Conclusion`], or
//! a result and the [`Destination`] where that stands. What happens to the flight, to its place among the
//! computations and to the lease is decided here. However a lead goes away, its flight ends.

#![cfg_attr(not(feature = "http"), allow(dead_code, reason = "HTTP asks more of a flight"))]

use std::any::Any;
use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::clock::Tick;
use crate::entry::{ComputationStart, Entry};
use crate::error::Error;
use crate::flight::arrival::Arrival;
use crate::flight::computation::OriginCall;
use crate::flight::end::{Conclusion, End, Leavings};
use crate::flight::engine::Engine;
use crate::flight::hold::FailureRule;
use crate::flight::leader::{Kept, Leader};
use crate::flight::lending::Scope;
use crate::flight::phase::Interest;
use crate::flight::places::NoPlace;
use crate::flight::ports::Destination;
use crate::flight::tasks::OnTask;
use crate::flight::vacancy::Successor;
use crate::freshness::Window;
use crate::garbage::Garbage;
use crate::key::Key;
use crate::lease::grant::Version;
use crate::sync::Arc;

/// The lead of a flight.
#[must_use = "dropped, it ends its flight without a result"]
#[derive(Debug)]
pub(crate) struct Lead<V: Send + Sync + 'static>(pub(super) Leader<V>);

/// What a computation may know of its flight. It does not change once that is cleared.
#[derive(Debug)]
pub(crate) struct FlightFacts<V> {
    pub(crate) key: Key,
    pub(crate) started: ComputationStart,
    /// Under which the result will stand in the remote.
    pub(crate) version: Option<Version>,
    /// Whether another leader of the flight has failed before. Then this one has not looked
    /// into the remote itself.
    pub(crate) is_second: bool,
    /// The key in the remote that it has the lease of.
    pub(crate) leased_key: Option<Key>,
    /// Whether the lease is for replacing a value that may yet be of use.
    pub(crate) replaces_value: bool,
    /// What stood under the keys in the remote that led to the leased one: of a second leader,
    /// when the first one looked.
    pub(crate) way: Box<[Arc<Entry<V>>]>,
}

impl<V: Send + Sync + 'static> Lead<V> {
    pub(crate) fn engine(&self) -> &Arc<Engine<V>> {
        self.0.engine()
    }

    pub(crate) fn key(&self) -> &Key {
        self.0.key()
    }

    pub(crate) fn facts(&self) -> FlightFacts<V> {
        let lease = self.0.lease.as_ref();
        FlightFacts {
            key: self.0.key().clone(),
            started: self.0.started,
            version: lease.map(|lease| lease.grant.version),
            is_second: self.0.is_second,
            leased_key: lease.map(|lease| lease.attempt.key.clone()),
            replaces_value: lease.is_some_and(|lease| lease.over_value),
            way: lease.map(|lease| lease.way.clone()).unwrap_or_default(),
        }
    }

    // --- Where it runs ----------------------------------------------------

    /// Runs the work of a leader on a task of its own. Its caller waits for it.
    ///
    /// Begins at once. A future that held the work until it is polled would be as large as
    /// the work, also in the futures of waiters, which never lead.
    ///
    /// Cancel safe: when the caller is dropped, the task goes on, unless it still waits for
    /// a place and no other caller waits for it.
    pub(crate) fn on_task<T, F>(mut self, work: impl FnOnce(Self) -> F) -> OnTask<V, T>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let (engine, key) = (Arc::clone(self.engine()), self.key().clone());
        let interest = self.part_from_caller();
        OnTask { task: engine.spawn(&key, work(self)), interest }
    }

    /// The same where no caller waits. Returns the task.
    pub(crate) fn in_background<F>(
        mut self,
        work: impl FnOnce(Self) -> F,
    ) -> JoinHandle<Option<F::Output>>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        let (engine, key) = (Arc::clone(self.engine()), self.key().clone());
        drop(self.part_from_caller());
        engine.spawn(&key, work(self))
    }

    /// Hands out its caller, which waits where the lead is not.
    pub(crate) fn part_from_caller(&mut self) -> Option<Interest<V>> {
        self.0.move_to_task()
    }

    /// Returns the scope of the computation, for what belongs to it and comes later.
    pub(crate) fn scope(&self) -> Arc<Scope> {
        self.0.scope()
    }

    // --- Before it computes -----------------------------------------------

    /// Returns whether an entry of the remote may be stored now.
    pub(crate) fn may_adopt(&self, entry: &Entry<V>) -> bool {
        self.0.may_adopt(entry)
    }

    /// Stores an entry of the remote, unless it was invalidated since this leader asked.
    pub(crate) fn adopt(&self, entry: &Arc<Entry<V>>) {
        self.0.adopt(entry);
    }

    /// Says that the value which it has found began after the computation with this number.
    pub(crate) fn set_number(&self, number: u64) {
        self.0.flight.set_number(number);
    }

    /// Says that a failure of this computation says nothing about other callers. So it makes
    /// no hold in the remote, where one lock serves all callers.
    pub(crate) fn keep_hold_local(&mut self) {
        self.0.holds_elsewhere = false;
    }

    /// Ends with a value that was found elsewhere.
    pub(crate) fn end_found(self, found: Arc<Entry<V>>) -> Leavings<V> {
        self.0.end_with_leavings(End::Found(found))
    }

    // --- While it computes ------------------------------------------------

    /// Says what its callers have to go on with.
    pub(crate) fn set_fallback(&mut self, fallback: Option<Window>) {
        self.0.fallback = fallback.map(Box::new);
    }

    /// Sets what follows the second panic in a row. Defaults to a hold.
    pub(crate) fn on_panic(&mut self, rule: FailureRule) {
        self.0.panic_rule = rule;
    }

    /// Drives `work`, at most `compute_timeout` long, see [`Leader::compute`].
    ///
    /// # Panics
    ///
    /// When the work does; the flight has ended before that.
    pub(crate) async fn compute<F: Future>(&mut self, work: F) -> Result<F::Output, Error> {
        self.0.compute(work).await
    }

    /// Says that the head of the result is there: callers that join from now on get it
    /// only as long as it is fresh.
    pub(crate) fn has_head(&self) {
        self.0.flight.arrive();
    }

    /// Returns whether its flight is the one in the table: no later computation of the key
    /// has begun, and the key was not invalidated.
    pub(crate) fn is_current(&self) -> bool {
        self.0.is_current()
    }

    /// Notes that results under this key may be shared between callers with credentials of this
    /// class.
    pub(crate) fn note_shared(&self, until: Tick) {
        self.0.note_shared(until);
    }

    /// Says that the value in the remote is of no use any more, though it was when the
    /// lease was granted.
    pub(crate) fn discard_remote_value(&mut self) {
        if let Some(lease) = &mut self.0.lease {
            lease.over_value = false;
        }
    }

    /// Keeps what has left the store until the flight has ended.
    pub(crate) fn keep_garbage(&self, garbage: Garbage<V>) {
        self.0.keep_garbage(garbage);
    }

    // --- As a part of a call with others ----------------------------------

    /// Makes its computation a part of another call, and waits for the place of that as long as
    /// its caller may.
    ///
    /// Cancel safe: a leader that is dropped gives up its part.
    pub(crate) async fn move_to_call(&mut self, call: &Arc<OriginCall>) -> Result<(), NoPlace> {
        self.0.move_to_call(call).await
    }

    /// The call begins.
    pub(crate) fn begin(&mut self) {
        self.0.begin();
    }

    /// Says that the flight ends within `limit`.
    pub(crate) fn expect_within(&self, limit: Duration) {
        self.0.expect_within(limit);
    }

    /// Says that the failure is that of a call which another leader tells of.
    pub(crate) fn is_told_of(&mut self) {
        self.0.is_told = true;
    }

    /// Returns whether its work is to begin: a caller wants the result, or none needs to.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.is_wanted() || self.0.is_in_background()
    }

    /// Returns whether it has no place, and its work no time-out: the cache is not on.
    pub(crate) fn is_unbounded(&self) -> bool {
        self.0.is_unbounded()
    }

    /// Returns whether the work is of no use, see [`Leader::is_needless`].
    pub(crate) fn is_needless(&self) -> bool {
        self.0.is_needless()
    }

    /// Ends the flight of work that was of no use, and is dropped.
    pub(crate) fn cancel(self) {
        self.0.end(End::Unwanted);
    }

    /// Waits until the work is of no use any more.
    pub(crate) async fn wait_until_needless(&self) {
        self.0.wait_until_needless().await;
    }

    /// Says that the result is for the callers that wait already: its data is too old to be
    /// stored.
    pub(crate) fn forget(&self) {
        self.0.flight.forget();
    }

    // --- Its end ----------------------------------------------------------

    /// Ends the flight. Returns what is left to do.
    pub(crate) fn conclude(self, conclusion: Conclusion<V>) -> Leavings<V> {
        self.0.end_with_leavings(End::Concluded(conclusion))
    }

    /// The same, and does that at once.
    pub(crate) fn end(self, conclusion: Conclusion<V>) {
        drop(self.conclude(conclusion));
    }

    /// Hands a result that is not stored to the waiters. The flight ends later.
    pub(crate) fn share_now(&self, entry: &Arc<Entry<V>>) {
        self.0.publish(Arc::clone(entry));
        self.0.leave_place();
    }

    /// Hands out a result that arrives. The flight ends later. Returns what is left to do.
    pub(crate) fn publish(&self, entry: &Arc<Entry<V>>) -> Leavings<V> {
        let leavings = Leavings::of_published(&self.0);
        self.0.publish(Arc::clone(entry));
        leavings
    }

    /// Stores the result under the flight's key, and ends the flight.
    pub(crate) fn store(self, entry: &Arc<Entry<V>>) -> Leavings<V> {
        self.0.fill(entry)
    }

    /// The same at a place of its own. Returns whether it is kept.
    pub(crate) fn store_at(self, entry: &Arc<Entry<V>>, place: impl Destination<V>) -> Kept {
        self.0.store_at(entry, place).0
    }

    /// Hands out a result that arrives: see [`Arrival`]. `announce` says in the store that it is on
    /// its way, if it may yet be stored, and returns the key under which later callers look for
    /// this flight.
    pub(crate) fn arrive<P: Destination<V>>(
        self,
        entry: Arc<Entry<V>>,
        place: P,
        announce: impl FnOnce(&P, &dyn Fn() -> bool) -> Option<Key>,
    ) -> Arrival<V, P> {
        Arrival::begin(self.0, entry, place, announce)
    }

    /// Returns whether the result may be stored now.
    pub(crate) fn may_store(&self, entry: &Entry<V>) -> bool {
        self.0.may_store(entry)
    }

    /// Leaves the flight to another leader, if there is one: see [`Leader::pass_on`]. Where that one
    /// goes away before it leads, the flight ends with `conclusion`.
    pub(crate) fn pass_on(self, to: Successor, conclusion: Conclusion<V>) -> Option<Self> {
        self.0.pass_on(to, End::Concluded(conclusion)).map(|(leader, _)| Self(leader))
    }

    /// The same, and ends the flight where there is no other leader.
    pub(crate) fn pass_on_or_end(self, to: Option<Successor>, conclusion: Conclusion<V>) {
        self.0.pass_on_or_end(to, End::Concluded(conclusion));
    }

    /// Ends the flight of work that has panicked.
    pub(crate) fn end_panicked(self, panic: &(dyn Any + Send)) {
        self.0.end_panicked(panic);
    }
}
