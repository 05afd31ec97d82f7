//! The one who computes. A [`Leader`] is a guard: however it goes away, the
//! flight has a verdict, is out of the table, and nobody waits for it.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::flight::{Abandonment, Failure, Flight, Verdict};
use super::grant::{Ask, Filled, Grant, Version};
use super::lease::{Attempt, Lease, Place};
use super::ports::{ComputedEnd, Happening};
use super::shared::Away;
use super::time::Tick;
use super::{Boarding, Engine, Mode};
use crate::entry::{Entry, Started};
use crate::error::{Error, ErrorKind};
use crate::key::Key;

/// After how many failures in a row a key is left alone for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldRule {
    Never,
    After(u32),
}

/// How the failure of a computation is treated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailureRule {
    pub(crate) hold: HoldRule,
    /// Until when the callers have something stale to go on with.
    pub(crate) stale_until: Option<Tick>,
    /// Whether every waiter tries for itself.
    pub(crate) each_itself: bool,
}

pub(crate) struct Leader<V: Send + Sync + 'static> {
    engine: Arc<Engine<V>>,
    flight: Arc<Flight<V>>,
    started: Started,
    /// What follows the second panic in a row.
    panic_rule: FailureRule,
    /// What `Drop` reports unless a verdict was given.
    end: ComputedEnd,
    /// Until then there is no computation to report.
    computes: AtomicBool,
    settled: bool,
    /// Given up however the flight ends, unless it is filled.
    lease: Option<Box<Lease<V>>>,
    /// How long its caller waits, who may have waited already.
    deadline: Option<Instant>,
    /// Whether a hold that follows a failure concerns other processes.
    holds_elsewhere: bool,
    /// Whether what is stored is for each caller alone.
    for_each: bool,
}

impl<V: Send + Sync + 'static> Leader<V> {
    pub(super) fn new(engine: Arc<Engine<V>>, flight: Arc<Flight<V>>, now: Tick) -> Self {
        let started = Started { tick: now, seq: flight.seq };
        Self {
            engine,
            flight,
            started,
            panic_rule: FailureRule {
                hold: HoldRule::After(1),
                stale_until: None,
                each_itself: false,
            },
            end: ComputedEnd::Dropped,
            computes: AtomicBool::new(false),
            settled: false,
            lease: None,
            deadline: None,
            holds_elsewhere: true,
            for_each: false,
        }
    }

    pub(super) fn engine(&self) -> &Arc<Engine<V>> {
        &self.engine
    }

    /// Sets how long it may wait for others. Defaults to `wait_timeout` from
    /// when it begins to.
    pub(super) fn wait_until(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline.unwrap_or_else(|| Instant::now() + self.engine.settings.wait_timeout)
    }

    pub(crate) fn started(&self) -> Started {
        self.started
    }

    /// Sets what follows the second panic in a row. Defaults to a hold.
    pub(crate) fn on_panic(&mut self, rule: FailureRule) {
        self.panic_rule = rule;
    }

    /// Says that a failure of this computation is no word about anybody else's:
    /// in the remote, where there is one lock for all, it holds nobody back.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "HTTP's credentials"))]
    pub(crate) fn hold_here_alone(&mut self) {
        self.holds_elsewhere = false;
    }

    pub(crate) fn key(&self) -> &Key {
        &self.flight.key
    }

    pub(crate) fn took(&self) -> Duration {
        self.engine.clock.now().since(self.started.tick)
    }

    /// Waits for one of the `max_computations` places.
    ///
    /// Not cancel safe in the sense that a dropped leader abandons its flight;
    /// that is what it is for.
    pub(super) async fn take_place(&mut self, deadline: Instant) -> Result<(), Error> {
        let place = Arc::clone(&self.engine.computations).acquire_owned();
        match tokio::time::timeout_at(deadline, place).await {
            Ok(Ok(permit)) => {
                self.flight.take_place(permit);
                // Age counts from here, not from the queue.
                self.started.tick = self.engine.clock.now();
                self.starts_now();
                Ok(())
            }
            Ok(Err(_)) => Err(Error::new(ErrorKind::ShutDown)),
            Err(_) => Err(self.engine.overloaded(&self.flight.key)),
        }
    }

    /// Takes a place if one is free now.
    pub(crate) fn try_place(&mut self) -> bool {
        let place = self.engine.try_place();
        let is_free = place.is_some();
        if let Some(place) = place {
            self.flight.take_place(place);
            self.started.tick = self.engine.clock.now();
            self.starts_now();
        }
        is_free
    }

    /// Whatever was invalidated until now does not concern what is computed
    /// from now on.
    fn starts_now(&mut self) {
        self.started.seq = self.engine.log.seq();
    }

    pub(super) fn leave_place(&self) {
        self.flight.leave_place();
    }

    /// `over_value` says that the lease is for replacing a value that may yet
    /// be of use.
    pub(super) fn take_lease(
        &mut self,
        attempt: Attempt<V>,
        grant: Grant,
        ask: &Ask,
        over_value: bool,
    ) {
        self.starts_now();
        let watch = &self.engine.watch;
        let lease = attempt.was_granted(grant, ask, over_value, &self.flight, watch);
        self.lease = Some(Box::new(lease));
    }

    /// Returns the version under which the result will stand in the remote.
    pub(crate) fn version(&self) -> Option<Version> {
        self.lease.as_ref().map(|lease| lease.grant.version)
    }

    /// Drives `work`, at most `compute_timeout` long; then it is dropped.
    pub(crate) async fn compute<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        let limit = self.engine.settings.compute_timeout;
        self.expect_within(limit);
        self.computes.store(true, Ordering::Relaxed);
        let timed = tokio::time::timeout(limit, work).await;
        timed.map_err(|_| Error::new(ErrorKind::ComputeTimeout))
    }

    /// Says that the result has begun to arrive: those who join from now on
    /// get it only as long as it is fresh.
    pub(crate) fn arrives(&self) {
        self.flight.arrives();
    }

    /// Says that the flight ends within `limit`, so that waiters do not depose
    /// a leader that is still at work.
    pub(crate) fn expect_within(&self, limit: Duration) {
        self.flight.expect_until(self.engine.watch.now().plus(limit).plus(super::GRACE));
    }

    /// Returns whether the result may be stored now. Asked under the store's
    /// lock, so that an invalidation comes before or after, not during.
    pub(crate) fn may_store(&self, entry: &Entry<V>) -> bool {
        // With a lease the remote knows of what may have been missed here.
        let vouched = self.lease.is_some() || !self.engine.log.is_doubted(self.started.seq);
        self.engine.mode() != Mode::Off
            && vouched
            && !self.flight.is_forgotten()
            && self.engine.log.admits(entry, self.started.seq)
    }

    /// Stores what the remote has, unless it was invalidated since this leader
    /// asked.
    pub(crate) fn adopt(&self, entry: &Arc<Entry<V>>) -> bool {
        let allowed = || self.may_adopt(entry);
        self.engine.local.fill(&self.flight.key, Arc::clone(entry), &allowed).finish()
    }

    /// Returns whether an entry of the remote may be stored now.
    pub(crate) fn may_adopt(&self, entry: &Entry<V>) -> bool {
        self.engine.mode() != Mode::Off
            && !self.flight.is_forgotten()
            && !self.engine.log.is_doubted(entry.started_seq)
            && self.engine.log.admits(entry, entry.started_seq)
    }

    /// First phase: hands `entry` to everybody who waits. The flight stays
    /// joinable until it is settled.
    pub(crate) fn publish(&self, entry: Arc<Entry<V>>) {
        self.flight.publish(Verdict::Filled(entry));
    }

    /// Takes the lead of another key too, unless somebody has it: for those
    /// who will look there for this leader's result.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only HTTP's results arrive"))]
    pub(crate) fn beside(&self, key: Key) -> Option<Self> {
        let engine = &self.engine;
        let boarding = Boarding { tags: self.flight.tags.clone(), ..Boarding::to(key) };
        let mut shard = engine.table.shard(&boarding.key).lock();
        let is_free = engine.current_flight(&shard, &boarding).is_none();
        is_free.then(|| engine.take_off(&mut shard, &boarding, engine.clock.now()))
    }

    /// Second phase: the result is complete, and stored or not.
    pub(crate) fn settle(mut self, stored: bool) {
        self.end = if stored { ComputedEnd::Stored } else { ComputedEnd::Shared };
        if !stored {
            self.engine.observer.happened(Happening::FillRefused { key: &self.flight.key });
        }
        let is_shared = !self.for_each;
        self.close(|_, mark, _| {
            if is_shared {
                mark.set_storable();
            }
            mark.end_of_failures()
        });
    }

    /// Both phases at once, with the result stored under the flight's key.
    pub(crate) fn fill(self, entry: &Arc<Entry<V>>, keep: bool) {
        self.publish(Arc::clone(entry));
        if !keep {
            return self.shared_only();
        }
        let allowed = || self.may_store(entry);
        let key = &self.flight.key;
        let change = self.engine.local.fill(key, Arc::clone(entry), &allowed);
        let (local, key, entry) = (Arc::clone(&self.engine.local), key.clone(), Arc::clone(entry));
        let unstore = (key.clone(), Arc::clone(&entry));
        self.finish(change.applied, vec![Place::new(key, entry)], move || {
            drop(local.remove_exactly(&unstore.0, &unstore.1));
        });
        // Last: the `Drop` of values is code of the user's.
        drop(change.garbage);
    }

    /// Second phase of a result that is stored in this process, or not. With a
    /// lease it goes to the remote too, on a task of its own: nobody waits for
    /// that. Where the remote refuses it, `unstore` takes it back.
    ///
    /// Also what may not be stored here is offered: an invalidation that came
    /// before the lease was granted ends nothing of it, and one that came after
    /// has ended the right to fill. Only the remote knows which it was.
    pub(crate) fn finish(
        mut self,
        stored: bool,
        places: Vec<Place<V>>,
        unstore: impl FnOnce() + Send + 'static,
    ) {
        match self.lease.take() {
            Some(lease) if self.engine.mode() != Mode::Off => {
                self.leave_place();
                let errands = lease.errands().clone();
                errands.run(self.share(lease, stored, places, unstore));
            }
            _ => self.settle(stored),
        }
    }

    async fn share(
        self,
        lease: Box<Lease<V>>,
        stored: bool,
        places: Vec<Place<V>>,
        unstore: impl FnOnce(),
    ) {
        let stands = match lease.share(places).await {
            Ok(filled) => filled != Filled::Refused,
            // The remote cannot say; what may have been missed decides.
            Err(Away) => stored && !self.engine.log.is_doubted(self.started.seq),
        };
        if !stands {
            unstore();
        }
        self.settle(stands);
    }

    /// Second phase of a result that was for this wave alone.
    pub(crate) fn shared_only(mut self) {
        self.end = ComputedEnd::Shared;
        self.close(|_, mark, _| mark.end_of_failures());
    }

    /// Ends the flight with what somebody else has computed meanwhile.
    pub(crate) fn stand_down(mut self, entry: Arc<Entry<V>>) {
        self.flight.publish(Verdict::Filled(entry));
        self.is_shared_again();
        self.leave();
    }

    /// Ends the flight without a computation: nobody needs one any more.
    pub(crate) fn withdraw(mut self) {
        self.leave();
        self.flight.publish(Verdict::Abandoned(Abandonment::Lost));
    }

    /// Takes the flight out of the table; nothing was computed.
    fn leave(&mut self) {
        self.settled = true;
        let mut shard = self.engine.table.shard(&self.flight.key).lock();
        self.engine.table.remove(&mut shard, &self.flight);
        drop(shard);
        self.flight.settle();
    }

    /// Ends the flight: the result may not be shared. With `remember` the key
    /// is uncacheable for a while and the next crowd does not queue, here and
    /// in the other processes.
    pub(crate) fn decline(mut self, remember: bool) {
        if let Some(lease) = self.lease.take().filter(|_| remember) {
            lease.mark_uncacheable(self.engine.settings.uncacheable_for);
        }
        self.decline_here(remember);
    }

    /// The same where it says nothing to other processes.
    pub(crate) fn decline_here(mut self, remember: bool) {
        self.end = ComputedEnd::Declined;
        self.flight.publish(Verdict::Declined);
        self.close(|engine, mark, now| {
            if remember {
                mark.set_uncacheable(now.plus(engine.settings.uncacheable_for));
            }
            mark.end_of_failures()
        });
    }

    /// Ends the flight: the result concerns this request alone, and one of
    /// the waiters tries next.
    pub(crate) fn own_affair(mut self) {
        self.end = ComputedEnd::Declined;
        self.close(|_, mark, _| mark.end_of_failures());
        // Only now: whoever wakes must not find this flight again.
        self.flight.publish(Verdict::Abandoned(Abandonment::OwnAffair));
    }

    /// Ends a refresh whose result may not be stored. It carried less than the
    /// request of a client, so it says nothing of what clients get: a waiter
    /// tries next. The next refresh waits, longer each time.
    pub(crate) fn decline_refresh(mut self) {
        self.end = ComputedEnd::Declined;
        self.close(|engine, mark, now| {
            mark.pause_refreshes(now, engine.settings.hold);
            None
        });
        // Only now: a waiter that wakes must not find this flight again.
        self.flight.publish(Verdict::Abandoned(Abandonment::OwnAffair));
    }

    /// Sends everybody else on their own way, now and until then: another
    /// process has found that the answers of this key are not shared. This
    /// leader goes on, since the next answer may be one that is.
    pub(super) fn let_others_pass(&self, until: Tick) {
        self.note(|mark| mark.set_uncacheable(until));
        self.flight.publish(Verdict::Declined);
    }

    /// First phase of a result that is stored and yet handed to nobody: each
    /// caller asks the service about it, now and for a while.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "HTTP's validation"))]
    pub(crate) fn leave_to_each(&mut self) {
        let now = self.engine.clock.now();
        self.for_each = true;
        self.let_others_pass(now.plus(self.engine.settings.uncacheable_for));
    }

    /// Says that what stands in the remote is of no use any more, though it
    /// was when the lease was granted.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "HTTP's validation"))]
    pub(crate) fn replaces_nothing_good(&mut self) {
        if let Some(lease) = &mut self.lease {
            lease.replaces_nothing_good();
        }
    }

    /// Ends the flight: the computation has failed in another process, and is
    /// not tried again for so long.
    pub(crate) fn hold_back(mut self, rest: Duration) -> Error {
        let error = Error::held(rest, None);
        let until = self.engine.clock.now().plus(rest);
        self.note(|mark| mark.hold_until(until));
        self.leave();
        let failure = Failure { error: error.clone(), each_itself: false };
        self.flight.publish(Verdict::Failed(failure));
        self.engine.observer.happened(Happening::Held { key: &self.flight.key });
        error
    }

    /// Ends the flight of a refresh that another process is at; this one looks
    /// again after `pause`.
    pub(crate) fn leave_to_another(self, pause: Duration) {
        let until = self.engine.clock.now().plus(pause);
        self.note(|mark| mark.no_refresh_before(until));
        self.withdraw();
    }

    /// What was found says more of the key than what is remembered of it.
    fn is_shared_again(&self) {
        let mut shard = self.engine.table.shard(&self.flight.key).lock();
        if let Some(mark) = shard.marks.get_mut(&self.flight.key) {
            mark.set_storable();
        }
    }

    fn note(&self, note: impl FnOnce(&mut super::mark::Mark)) {
        let mut shard = self.engine.table.shard(&self.flight.key).lock();
        note(shard.marks.of(&self.flight.key, self.engine.clock.now()));
    }

    /// Ends the flight with a failure that is shared.
    pub(crate) fn fail(mut self, error: Error, rule: FailureRule) {
        let timed_out = error.kind() == ErrorKind::ComputeTimeout;
        self.end = if timed_out { ComputedEnd::TimedOut } else { ComputedEnd::Failed };
        let mut hold = None;
        self.close(|engine, mark, now| {
            let counted = engine.count_failure(mark, now, &error, rule);
            hold = counted.hold;
            counted.replaced
        });
        if let Some(lease) = self.lease.take() {
            lease.give_up(hold.filter(|_| self.holds_elsewhere));
        }
        let failure = Failure { error, each_itself: rule.each_itself };
        self.flight.publish(Verdict::Failed(failure));
    }

    /// Notes whether answers under this key may be shared between callers with
    /// credentials of this class.
    pub(crate) fn remember_shared(&self, shared: bool, until: Tick) {
        let mut shard = self.engine.table.shard(&self.flight.key).lock();
        shard.marks.of(&self.flight.key, self.started.tick).set_shared(shared, until);
    }

    /// Takes the flight out of the table and updates the key's mark, in one
    /// critical section: nobody leads before the mark is there.
    fn close(
        &mut self,
        update: impl FnOnce(&Engine<V>, &mut super::mark::Mark, Tick) -> Option<Error>,
    ) {
        self.settled = true;
        let engine = &*self.engine;
        let now = engine.clock.now();
        let end = self.end;
        let mut shard = engine.table.shard(&self.flight.key).lock();
        let current = shard.flights.get(&self.flight.key);
        let is_current = current.is_some_and(|current| current.id == self.flight.id);
        let mark = match end {
            // A flight that was forgotten says nothing of the key any more.
            _ if !is_current => None,
            ComputedEnd::Stored | ComputedEnd::Shared | ComputedEnd::Dropped => {
                shard.marks.get_mut(&self.flight.key)
            }
            _ => Some(shard.marks.of(&self.flight.key, now)),
        };
        let replaced = mark.and_then(|mark| update(engine, mark, now));
        engine.table.remove(&mut shard, &self.flight);
        drop(shard);
        // An error's `Drop` is the user's code: not under the lock.
        drop(replaced);
        self.flight.settle();
        let took = now.since(self.started.tick);
        engine.observer.happened(Happening::Computed { key: &self.flight.key, took, end });
    }

    /// The way out of a leader that gave no verdict.
    fn abandon(&mut self) {
        if !std::thread::panicking() {
            if !self.computes.load(Ordering::Relaxed) {
                self.leave();
                self.flight.publish(Verdict::Abandoned(Abandonment::Lost));
                return;
            }
            self.end = ComputedEnd::Dropped;
            self.close(|_, _, _| None);
            self.flight.publish(Verdict::Abandoned(Abandonment::Lost));
            return;
        }
        self.end = ComputedEnd::Panicked;
        let error = Error::new(ErrorKind::Panicked);
        let (mut again, mut hold) = (false, None);
        let rule = self.panic_rule;
        self.close(|engine, mark, now| {
            again = mark.count_panic(now);
            let counted = again.then(|| engine.count_failure(mark, now, &error, rule))?;
            hold = counted.hold;
            counted.replaced
        });
        if let Some(lease) = self.lease.take() {
            lease.give_up(hold);
        }
        let verdict = if again {
            Verdict::Failed(Failure { error, each_itself: false })
        } else {
            Verdict::Abandoned(Abandonment::Lost)
        };
        self.flight.publish(verdict);
    }
}

impl<V: Send + Sync + 'static> Drop for Leader<V> {
    fn drop(&mut self) {
        if !self.settled {
            // Also when a verdict was given: dropped between the two phases.
            self.abandon();
        }
        debug_assert!(self.flight.verdict().is_some(), "a leader leaves a verdict");
    }
}

impl<V: Send + Sync + 'static> std::fmt::Debug for Leader<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leader").field("key", &self.flight.key).finish_non_exhaustive()
    }
}
