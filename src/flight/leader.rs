//! The leader: the one caller of a key that computes.
//!
//! A [`Leader`] is a guard. However it goes away, its flight ends in `end.rs`, by a call
//! or by `Drop`: there is a verdict, the flight is out of the table, its place is
//! returned. Before that, a leader takes these steps:
//!
//! 1. it looks into the remote (`flight/clearance.rs`), takes a place, and the lease;
//! 2. [`compute`](Leader::compute) drives the work;
//! 3. in HTTP it says that the head [arrives](Leader::arrive), and publishes an entry
//!    whose body is still to come;
//! 4. [`fill`](Leader::fill) or [`finish`](Leader::finish) stores the result, or
//!    [`end`](Leader::end) says why there is none.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use crate::clock::Tick;
use crate::entry::{ComputationStart, Entry};
use crate::error::{Error, ErrorKind, contain_panic};
use crate::flight::computation::OriginCall;
use crate::flight::end::{End, Leavings};
use crate::flight::engine::{Engine, GRACE};
use crate::flight::evidence::RequestTraits;
use crate::flight::hold::{FailureRule, HeldKey, HoldRule, Requester};
use crate::flight::lending::{self, Scope};
use crate::flight::phase::{Flight, Interest, Verdict};
use crate::flight::places::NoPlace;
use crate::flight::ports::{Destination, Store, StoreChange};
use crate::flight::request::{FlightRequest, LedFor};
use crate::flight::tasks;
use crate::flight::wait_slot::WaitSlot;
use crate::freshness::Window;
use crate::garbage::Garbage;
use crate::key::Key;
use crate::lease::grant::FillOutcome;
use crate::lease::hold::{FillTarget, Lease};
use crate::lease::shared_store::Unavailable;
use crate::mode::Mode;
use crate::observe::Occurrence;
use crate::observe::table::RefreshBound;
use crate::sync::{Arc, Mutex};

pub(crate) struct Leader<V: Send + Sync + 'static> {
    pub(super) engine: Arc<Engine<V>>,
    pub(super) flight: Arc<Flight<V>>,
    pub(super) started: ComputationStart,
    pub(super) led_for: LedFor,
    /// The caller whose request is computed.
    pub(super) traits: RequestTraits,
    /// Whose failure its failure is.
    pub(super) requester: Requester,
    /// Whether another leader of the flight has failed before.
    pub(super) is_second: bool,
    /// The computation in which the leader's caller runs; later the leader's own.
    scope: Option<Arc<Scope>>,
    /// Until when its caller waits, which may have waited already.
    deadline: Option<Instant>,
    /// What follows the second panic in a row.
    pub(super) panic_rule: FailureRule,
    /// The window of what its callers have to go on with, as far as it knows. In a box: a leader is
    /// moved, and most have none.
    pub(super) fallback: Option<Box<Window>>,
    /// The key is held, and the caller has no fallback: the leader only looks for a value
    /// in the remote.
    held: Option<HeldKey>,
    /// Whether the work has begun: before that there is no computation to report.
    pub(super) has_computed: bool,
    pub(super) is_ended: bool,
    /// A failure of it is that of a call which another leader has told of.
    pub(super) is_told: bool,
    /// Given up however the flight ends, unless it is filled.
    pub(super) lease: Option<Box<Lease<V>>>,
    /// Whether a hold that follows a failure concerns other processes.
    pub(super) holds_elsewhere: bool,
    /// The leader's own caller, as long as it waits.
    interest: Option<Interest<V>>,
    /// The slot in which its caller has waited; the queue for a place needs one.
    slot: Option<WaitSlot>,
    /// The cache was not on when it would have taken a place: nothing bounds its work.
    is_unbounded: bool,
    /// Whether it waits for a place. Then it does not begin without a caller.
    is_queued: bool,
    /// What has left the store on its way, and is dropped once it has ended.
    pub(super) garbage: Mutex<Option<Box<Garbage<V>>>>,
}

impl<V: Send + Sync + 'static> Leader<V> {
    pub(super) fn new(
        engine: Arc<Engine<V>>,
        flight: Arc<Flight<V>>,
        now: Tick,
        (led_for, traits): (LedFor, RequestTraits),
    ) -> Self {
        let started = ComputationStart { tick: now, seq: flight.seq };
        let requester = flight.requester;
        let hold = HoldRule::After(1);
        Self {
            engine,
            flight,
            started,
            led_for,
            traits,
            requester,
            is_second: false,
            // A refresh in the background has no caller that waits for it, and lends nothing.
            scope: if led_for == LedFor::Refresh { None } else { lending::scope_of_caller() },
            deadline: None,
            panic_rule: FailureRule { hold, stale_until: None, each_computes: false },
            fallback: None,
            held: None,
            has_computed: false,
            is_ended: false,
            is_told: false,
            lease: None,
            holds_elsewhere: true,
            interest: None,
            slot: None,
            is_queued: false,
            is_unbounded: false,
            garbage: Mutex::default(),
        }
    }

    pub(super) fn with(mut self, interest: Option<Interest<V>>) -> Self {
        self.interest = interest;
        self
    }

    /// Becomes the second leader of its flight: what belongs to the first one alone is over.
    pub(super) fn become_second(&mut self) {
        self.is_second = true;
        self.has_computed = false;
        self.holds_elsewhere = true;
    }

    /// Leads for this caller from now on. Two different requesters that fail one after the other
    /// show that it is not what one asks; two requests of one show nothing.
    pub(super) fn lead_for(&mut self, request: &FlightRequest, interest: Interest<V>) {
        self.traits = request.traits;
        if request.requester() != self.requester {
            self.requester = Requester::default();
        }
        self.interest = Some(interest);
        self.scope = lending::scope_of_caller();
    }

    pub(super) fn set_held(&mut self, held: Option<HeldKey>) {
        self.held = held;
    }

    /// Sets until when it may wait, and the slot its caller has waited in.
    pub(super) fn wait_until(&mut self, deadline: Instant, slot: Option<WaitSlot>) {
        self.deadline = Some(deadline);
        self.slot = slot;
    }

    /// Says that the leader runs on a task of its own, and hands out its caller, which
    /// waits outside of the task.
    pub(crate) fn move_to_task(&mut self) -> Option<Interest<V>> {
        self.interest.take()
    }

    pub(crate) fn engine(&self) -> &Arc<Engine<V>> {
        &self.engine
    }

    pub(crate) fn key(&self) -> &Key {
        &self.flight.key
    }

    /// Returns until when it may wait for others: `wait_timeout` unless its caller has
    /// waited already.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline.unwrap_or_else(|| Instant::now() + self.engine.settings.wait_timeout())
    }

    /// Returns the scope of the computation, for what belongs to it and comes later.
    pub(crate) fn scope(&self) -> Arc<Scope> {
        let (places, computation) = (&self.engine.places, &self.flight.computation);
        self.scope.clone().unwrap_or_else(|| Scope::new(places, computation, None))
    }

    /// Returns whether its flight is the one in the table: no later computation of the key
    /// has begun, and the key was not invalidated.
    pub(crate) fn is_current(&self) -> bool {
        self.engine.table.shard(&self.flight.key).lock().is_current(&self.flight)
    }

    /// Returns whether any caller still wants the result.
    pub(crate) fn is_wanted(&self) -> bool {
        self.flight.is_wanted()
    }

    /// Returns why it may only look for a value, if so.
    pub(crate) fn held(&self) -> Option<&HeldKey> {
        self.held.as_ref()
    }

    /// Returns whether its callers have a value in hand, and learn nothing of a failure.
    pub(super) fn is_refresh(&self) -> bool {
        match self.led_for {
            LedFor::Caller => false,
            // Without bounds it computes for a caller of a cache that only observes.
            LedFor::CallerWithValue => !self.is_unbounded,
            LedFor::Refresh => true,
        }
    }

    /// Takes one of the `max_computations` places, or enters the queue for them where the
    /// caller has nothing else to do. Where the bound on waiters is reached, the caller is
    /// refused before any task is spawned for it. With a remote the leader looks there first.
    pub(super) fn enter_queue(&mut self) -> Result<(), Error> {
        if self.engine.remote(self.key()).is_some() || self.held.is_some() {
            return Ok(());
        }
        self.join_queue().map(drop)
    }

    /// Returns whether there is a place.
    fn join_queue(&mut self) -> Result<bool, Error> {
        if self.try_place() {
            return Ok(true);
        }
        if self.led_for != LedFor::Caller {
            let (key, bound) = (self.key(), RefreshBound::Computations);
            self.engine.observer.happened(Occurrence::RefreshPutOff { key, bound });
            return Err(Error::new(ErrorKind::Overloaded));
        }
        let (places, computation) = (&self.engine.places, &self.flight.computation);
        if places.share_queue(computation) {
            self.is_queued = true;
            return Ok(false);
        }
        if !self.is_queued {
            self.take_wait_slot()?;
        }
        let (places, computation) = (&self.engine.places, &self.flight.computation);
        let has_place = places.join_queue(computation, &mut self.slot, self.engine.watch.now());
        self.is_queued = !has_place;
        Ok(has_place)
    }

    /// Counts the leader as a waiter, until it computes: for a place, or for another process.
    pub(crate) fn take_wait_slot(&mut self) -> Result<(), Error> {
        self.slot = self.slot.take().or_else(|| self.engine.take_slot());
        match self.slot {
            Some(_) => Ok(()),
            None => Err(self.engine.overloaded(&self.flight.key)),
        }
    }

    /// Takes a place, and waits for one where its caller has nothing else to do.
    ///
    /// Cancel safe: a leader that is dropped leaves the queue.
    pub(crate) async fn take_place(&mut self) -> Result<(), Error> {
        let was_queued = self.is_queued;
        if self.join_queue()? && !was_queued {
            return Ok(());
        }
        let deadline = self.deadline();
        let (places, computation) = (&self.engine.places, &self.flight.computation);
        let gives_up = || match () {
            () if !self.flight.is_wanted() => Some(NoPlace::Unwanted),
            () if self.engine.mode() != Mode::On => Some(NoPlace::NotNeeded),
            () => None,
        };
        match places.wait(computation, deadline, &self.engine.watch, gives_up).await {
            Ok(()) => {
                self.is_queued = false;
                self.start_now();
                Ok(())
            }
            Err(NoPlace::NotNeeded) => {
                (self.is_queued, self.is_unbounded) = (false, true);
                self.start_now();
                Ok(())
            }
            Err(NoPlace::TimedOut) => Err(self.engine.overloaded(&self.flight.key)),
            // There is no caller to be told.
            Err(NoPlace::Unwanted) => Err(Error::new(ErrorKind::Overloaded)),
        }
    }

    /// Takes a place if one is free now. A cache that only observes bounds nothing.
    pub(crate) fn try_place(&mut self) -> bool {
        self.is_unbounded = self.engine.mode() != Mode::On;
        if self.is_unbounded {
            // It may have had one before the switch.
            self.leave_place();
            self.start_now();
            return true;
        }
        let (places, computation) = (&self.engine.places, &self.flight.computation);
        let has_place = places.try_take(computation, self.engine.watch.now());
        if has_place {
            self.start_now();
        }
        has_place
    }

    /// Returns the place: the leader waits for another process.
    pub(crate) fn leave_place(&self) {
        self.engine.places.release(&self.flight.computation, self.engine.watch.now());
    }

    /// Age counts from here, not from the queue. Invalidations until now do not concern a
    /// computation that begins now.
    fn start_now(&mut self) {
        // It waits no more in the queue, perhaps for the remote.
        self.slot = None;
        self.expect_within(self.engine.settings.wait_timeout());
        self.started.tick = self.engine.clock.now();
        self.started.seq = self.engine.log.seq();
    }

    /// Makes its computation a part of another call, and waits for the place of that as long as
    /// its caller may.
    ///
    /// Cancel safe: a leader that is dropped gives up its part.
    pub(crate) async fn move_to_call(&mut self, call: &Arc<OriginCall>) -> Result<(), NoPlace> {
        if self.is_unbounded {
            return Ok(());
        }
        let deadline = self.deadline();
        self.expect_within(deadline.saturating_duration_since(Instant::now()));
        let is_wanted = || self.flight.is_wanted() || self.is_in_background();
        let computation = &self.flight.computation;
        match self.engine.move_to_call(computation, call, deadline, is_wanted).await {
            Err(NoPlace::NotNeeded) => self.is_unbounded = true,
            placed => placed?,
        }
        self.expect_within(self.engine.settings.compute_timeout());
        Ok(())
    }

    /// Returns whether it has no place, and its work no time-out: the cache is not on.
    pub(crate) fn is_unbounded(&self) -> bool {
        self.is_unbounded
    }

    /// Returns whether no caller waits for it.
    pub(crate) fn is_in_background(&self) -> bool {
        self.led_for == LedFor::Refresh
    }

    /// The work begins.
    pub(crate) fn begin(&mut self) {
        self.has_computed = true;
        self.flight.computation.begin();
        self.flight.compute(self.engine.table.next_number(), self.is_unbounded);
    }

    /// Ends the flight of work that has panicked.
    pub(crate) fn end_panicked(mut self, panic: &(dyn Any + Send)) {
        self.conclude_panicked(panic);
    }

    fn conclude_panicked(&mut self, panic: &(dyn Any + Send)) {
        drop(self.conclude(End::Panicked));
        if self.interest.is_none() && tasks::lacks_task_local(panic) {
            self.engine.observer.happened(Occurrence::TaskLocalMissing);
        }
    }

    /// Drives `work`, at most `compute_timeout` long; then it is dropped.
    ///
    /// Work that began while the cache was not on has no place, and no time-out: it is
    /// dropped when no caller waits for it, as it would be without the cache.
    ///
    /// # Panics
    ///
    /// When the work does; the flight has ended before that.
    pub(crate) async fn compute<F: Future>(&mut self, work: F) -> Result<F::Output, Error> {
        self.begin();
        let (places, computation) = (&self.engine.places, &self.flight.computation);
        let has_place = !self.is_unbounded;
        let scope = Scope::new(places, computation, self.scope.take());
        self.scope = Some(Arc::clone(&scope));
        let work = AssertUnwindSafe(lending::within(scope, work)).catch_unwind();
        let mut work = std::pin::pin!(Some(work));
        let limit = self.engine.settings.compute_timeout();
        while let Some(driven) = work.as_mut().as_pin_mut() {
            self.expect_within(limit);
            match tokio::time::timeout(limit, self.or_needless(driven)).await {
                Ok(Some(Ok(output))) => return Ok(output),
                Ok(Some(Err(panic))) => {
                    self.conclude_panicked(&*panic);
                    std::panic::resume_unwind(panic)
                }
                // Dropped before its place returns: what comes next does not run beside it. A panic in
                // that is none of the computation.
                Ok(None) => drop(contain_panic(|| work.set(None))),
                // It goes on for its callers; for others its data is too old.
                Err(_) if !has_place || self.engine.mode() != Mode::On => self.flight.forget(),
                Err(_) => return Err(Error::new(ErrorKind::ComputeTimeout)),
            }
        }
        drop(self.conclude(End::Unwanted));
        Err(Error::new(ErrorKind::ShutDown))
    }

    /// Drives work as long as that is of use.
    async fn or_needless<F: Future + Unpin>(&self, mut work: F) -> Option<F::Output> {
        let may_stop = self.is_unbounded || self.engine.settings.cancel_unwanted.is_some();
        let mut needless = std::pin::pin!(self.wait_until_needless());
        poll_fn(|cx| match work.poll_unpin(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if may_stop => needless.as_mut().poll(cx).map(|()| None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Waits until the work is of no use. Only one leader of a flight waits for that.
    ///
    /// Cancel safe: a dropped wait leaves nothing behind.
    pub(super) async fn wait_until_needless(&self) {
        while !self.is_needless() {
            self.flight.computation.told_unwanted().await;
        }
    }

    /// Returns whether no caller wants the result, and the work need not go on without one: it has no
    /// time-out, or has not run long enough for what is lost to be worth its rest.
    pub(super) fn is_needless(&self) -> bool {
        let is_cancelled = || {
            let share = self.engine.settings.cancel_unwanted.filter(|_| !self.is_in_background());
            // A value that was put has taken no time.
            let fallback = self.fallback.as_ref().map(|window| window.computed_in());
            let fallback = fallback.filter(|took| !took.is_zero());
            let expected = fallback.or_else(|| self.engine.usual_time.get());
            let has_run = self.engine.clock.now().since(self.started.tick);
            share.is_some_and(|share| expected.is_none_or(|it| has_run < it.mul_f64(share)))
        };
        !self.flight.is_wanted() && (self.is_unbounded || is_cancelled())
    }

    /// Says that the flight ends within `limit`, so that waiters do not depose a leader
    /// that is still at work.
    pub(crate) fn expect_within(&self, limit: Duration) {
        let overdue_at = self.engine.watch.now().plus(limit).plus(GRACE);
        self.engine.places.expect_until(&self.flight.computation, overdue_at);
    }

    /// Says that more of the result arrives within `pause`: then no more callers join.
    pub(crate) fn join_within(&self, pause: Duration) {
        self.flight.join_until(self.engine.watch.now().plus(pause));
    }

    /// Gives up the lease: the result that arrives has paused, and other processes need not
    /// wait for it.
    pub(crate) fn give_up_lease(&mut self) {
        drop(self.lease.take());
    }

    /// Takes the lead of another key too, unless a flight of it runs: later callers will look
    /// under that key for this leader's result.
    pub(crate) fn lead_beside(&self, key: Key) -> Option<Self> {
        let tags = self.flight.tags.clone();
        self.engine.lead_beside(&FlightRequest { tags, ..FlightRequest::of(key) })
    }

    /// Returns whether the result may be stored now. Asked under the store's lock, so that
    /// an invalidation comes before or after, not during.
    pub(crate) fn may_store(&self, entry: &Entry<V>) -> bool {
        // With most leases the remote knows of invalidations that this process has missed.
        let vouched = self.lease.as_ref().is_some_and(|lease| lease.way.is_empty())
            || !self.engine.log.is_doubted(self.started.seq);
        // A leader that was not polled for a while has data of any age.
        let is_in_time = !self.flight.is_overdue(self.engine.watch.now());
        self.engine.mode() != Mode::Off
            && vouched
            && is_in_time
            && !self.flight.is_forgotten()
            && self.engine.log.admits(entry, self.started.seq)
    }

    /// Returns whether an entry of the remote may be stored now.
    pub(crate) fn may_adopt(&self, entry: &Entry<V>) -> bool {
        self.engine.mode() != Mode::Off
            && !self.flight.is_forgotten()
            && !self.engine.log.is_doubted(entry.started_seq)
            && self.engine.log.admits(entry, entry.started_seq)
    }

    /// Stores the value of the remote, unless it was invalidated since this leader asked.
    pub(crate) fn adopt(&self, entry: &Arc<Entry<V>>) -> bool {
        let allowed = || self.may_adopt(entry);
        let change = self.engine.local.fill(&self.flight.key, Arc::clone(entry), &allowed);
        self.keep_garbage(change.garbage);
        change.applied
    }

    /// Keeps what has left the store until the flight has ended: its `Drop` is code of the user, and
    /// the callers of the flight need not wait for it.
    pub(crate) fn keep_garbage(&self, garbage: Garbage<V>) {
        if garbage.is_empty() {
            return;
        }
        match &mut *self.garbage.lock() {
            Some(kept) => kept.extend(garbage),
            kept => *kept = Some(Box::new(garbage)),
        }
    }

    /// Hands `entry` to the waiters. The flight stays joinable until it ends.
    pub(crate) fn publish(&self, entry: Arc<Entry<V>>) {
        self.flight.publish(Verdict::Filled(entry));
    }

    /// Notes that results under this key may be shared between callers with credentials of this
    /// class.
    pub(crate) fn note_shared(&self, until: Tick) {
        let unkeyed = self.traits.unkeyed;
        self.engine.note(&self.flight.key, |marks| marks.evidence.share(unkeyed, until));
    }

    /// Stores the result under the flight's key, and ends the flight. Returns what is left to do.
    pub(crate) fn fill(self, entry: &Arc<Entry<V>>) -> Leavings<V> {
        let own = OwnKey { key: self.flight.key.clone(), local: Arc::clone(&self.engine.local) };
        self.store_at(entry, own).1
    }

    /// Stores the result at its place in this process, if it may be, and ends the flight. With a
    /// lease it goes to the remote too, on a task of its own: no caller waits for that.
    ///
    /// A result that may not be stored here is sent as well. An invalidation before the lease
    /// was granted does not concern it, and an invalidation after that has ended the right to
    /// fill. Only the remote knows which of the two happened.
    pub(super) fn store_at(
        mut self,
        entry: &Arc<Entry<V>>,
        place: impl Destination<V>,
    ) -> (Kept, Leavings<V>) {
        let StoreChange { applied, garbage } = place.store(entry, &|| self.may_store(entry));
        self.keep_garbage(garbage);
        let kept = match applied {
            true => Kept::Stored,
            false if self.may_store(entry) => Kept::Superseded,
            false => Kept::Invalidated,
        };
        let leavings = match self.lease.take() {
            Some(lease) if self.engine.mode() != Mode::Off => {
                let leavings = Leavings::of_published(&self);
                self.publish(Arc::clone(entry));
                self.leave_place();
                let (errands, targets) =
                    (lease.attempt.errands.clone(), place.targets(entry, &lease.attempt.key));
                errands.run(self.share(lease, Arc::clone(entry), applied, targets, place));
                leavings
            }
            _ => self.end_with_leavings(End::Filled { entry: Arc::clone(entry), stored: applied }),
        };
        (kept, leavings)
    }

    async fn share(
        self,
        lease: Box<Lease<V>>,
        entry: Arc<Entry<V>>,
        stored: bool,
        targets: Vec<FillTarget<V>>,
        place: impl Destination<V>,
    ) {
        let stands = match lease.share(targets).await {
            Ok(filled) => filled != FillOutcome::Refused,
            // The remote does not answer: then missed invalidations decide.
            Err(Unavailable) => stored && !self.engine.log.is_doubted(self.started.seq),
        };
        if !stands {
            place.unstore(&entry);
        }
        self.end(End::Filled { entry, stored: stands });
    }

    /// Ends the flight.
    pub(crate) fn end(self, end: impl Into<End<V>>) {
        drop(self.end_with_leavings(end.into()));
    }

    /// Ends the flight. Returns what is left to do.
    pub(crate) fn end_with_leavings(mut self, end: End<V>) -> Leavings<V> {
        self.conclude(end)
    }

    /// Returns whether a panic of the computation unwinds through the leader.
    fn is_panicking(&self) -> bool {
        self.has_computed && tasks::is_panicking_in_poll()
    }
}

/// Whether a result is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Stored,
    /// What stands there was asked for later, or there is no room.
    Superseded,
    Invalidated,
}

/// The place of a result that stands under the key of its flight.
struct OwnKey<V> {
    key: Key,
    local: Arc<dyn Store<V>>,
}

impl<V: Send + Sync + 'static> Destination<V> for OwnKey<V> {
    fn store(&self, entry: &Arc<Entry<V>>, allowed: &dyn Fn() -> bool) -> StoreChange<V> {
        self.local.fill(&self.key, Arc::clone(entry), allowed)
    }

    fn targets(&self, entry: &Arc<Entry<V>>, _: &Key) -> Vec<FillTarget<V>> {
        vec![FillTarget::new(self.key.clone(), Arc::clone(entry))]
    }

    fn unstore(&self, entry: &Arc<Entry<V>>) {
        drop(self.local.remove_exactly(&self.key, entry));
    }
}

impl<V: Send + Sync + 'static> Drop for Leader<V> {
    fn drop(&mut self) {
        if !self.is_ended {
            drop(self.conclude(if self.is_panicking() { End::Panicked } else { End::Lost }));
        }
        debug_assert!(self.flight.verdict().is_some(), "a leader leaves a verdict");
    }
}

impl<V: Send + Sync + 'static> std::fmt::Debug for Leader<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leader").field("key", &self.flight.key).finish_non_exhaustive()
    }
}
