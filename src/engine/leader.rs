//! The one who computes. A [`Leader`] is a guard: however it goes away, the
//! flight has a verdict, is out of the table, and nobody waits for it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::flight::{Abandonment, Failure, Flight, Verdict};
use super::ports::{ComputedEnd, Happening};
use super::time::Tick;
use super::{Engine, Mode};
use crate::entry::{Entry, Started};
use crate::error::{Error, ErrorKind};
use crate::key::{Key, Tag};

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
    settled: bool,
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
            settled: false,
        }
    }

    pub(crate) fn started(&self) -> Started {
        self.started
    }

    /// Sets what follows the second panic in a row. Defaults to a hold.
    pub(crate) fn on_panic(&mut self, rule: FailureRule) {
        self.panic_rule = rule;
    }

    pub(crate) fn key(&self) -> &Key {
        &self.flight.key
    }

    pub(crate) fn took(&self) -> Duration {
        self.engine.clock.now().since(self.started.tick)
    }

    /// Waits for one of the `max_computations` places, at most `wait_timeout`.
    ///
    /// Not cancel safe in the sense that a dropped leader abandons its flight;
    /// that is what it is for.
    pub(crate) async fn take_place(&mut self) -> Result<(), Error> {
        let place = Arc::clone(&self.engine.computations).acquire_owned();
        match tokio::time::timeout(self.engine.settings.wait_timeout, place).await {
            Ok(Ok(permit)) => {
                self.flight.take_place(permit);
                // Age counts from here, not from the queue.
                self.started.tick = self.engine.clock.now();
                Ok(())
            }
            Ok(Err(_)) => Err(Error::new(ErrorKind::ShutDown)),
            Err(_) => Err(self.engine.overloaded(&self.flight.key)),
        }
    }

    /// Drives `work`, at most `compute_timeout` long; then it is dropped.
    pub(crate) async fn compute<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        let limit = self.engine.settings.compute_timeout;
        self.expect_within(limit);
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

    /// Returns whether a result with `tags` may be stored now. Asked under the
    /// store's lock, so that an invalidation comes before or after, not during.
    pub(crate) fn may_store(&self, tags: &[Tag]) -> bool {
        self.engine.mode() != Mode::Off
            && !self.flight.is_forgotten()
            && !self.engine.log.is_dead(tags, self.started.seq, super::ASKED_NOW)
    }

    /// First phase: hands `entry` to everybody who waits. The flight stays
    /// joinable until it is settled.
    pub(crate) fn publish(&self, entry: Arc<Entry<V>>) {
        self.flight.publish(Verdict::Filled(entry));
    }

    /// Second phase: the result is complete, and stored or not.
    pub(crate) fn settle(mut self, stored: bool) {
        self.end = if stored { ComputedEnd::Stored } else { ComputedEnd::Shared };
        if !stored {
            self.engine.observer.happened(Happening::FillRefused { key: &self.flight.key });
        }
        self.close(|_, mark, _| {
            mark.set_storable();
            mark.end_of_failures()
        });
    }

    /// Both phases at once, with the result stored under the flight's key.
    pub(crate) fn fill(self, entry: &Arc<Entry<V>>, keep: bool) {
        self.publish(Arc::clone(entry));
        let allowed = || self.may_store(&entry.tags);
        let key = &self.flight.key;
        let stored = keep && self.engine.local.fill(key, Arc::clone(entry), &allowed);
        if keep { self.settle(stored) } else { self.shared_only() }
    }

    /// Second phase of a result that was for this wave alone.
    pub(crate) fn shared_only(mut self) {
        self.end = ComputedEnd::Shared;
        self.close(|_, mark, _| mark.end_of_failures());
    }

    /// Ends the flight with what somebody else has computed meanwhile.
    pub(crate) fn stand_down(mut self, entry: Arc<Entry<V>>) {
        self.flight.publish(Verdict::Filled(entry));
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
    /// is uncacheable for a while and the next crowd does not queue.
    pub(crate) fn decline(mut self, remember: bool) {
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

    /// Ends the flight with a failure that is shared.
    pub(crate) fn fail(mut self, error: Error, rule: FailureRule) {
        let timed_out = error.kind() == ErrorKind::ComputeTimeout;
        self.end = if timed_out { ComputedEnd::TimedOut } else { ComputedEnd::Failed };
        self.close(|engine, mark, now| engine.count_failure(mark, now, &error, rule));
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
            self.end = ComputedEnd::Dropped;
            self.close(|_, _, _| None);
            self.flight.publish(Verdict::Abandoned(Abandonment::Lost));
            return;
        }
        self.end = ComputedEnd::Panicked;
        let error = Error::new(ErrorKind::Panicked);
        let mut again = false;
        let rule = self.panic_rule;
        self.close(|engine, mark, now| {
            again = mark.count_panic(now);
            if again { engine.count_failure(mark, now, &error, rule) } else { None }
        });
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
