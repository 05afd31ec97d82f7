//! One running computation, and the place where those who wait for it look.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::clock::Tick;
use crate::entry::Entry;
use crate::error::Error;
use crate::key::{Key, Tag};

/// What a leader leaves behind, in every case.
#[derive(Debug)]
pub(crate) enum Verdict<V> {
    /// Computed, may be shared.
    Filled(Arc<Entry<V>>),
    /// Computed, may not be shared: everybody goes to the service alone.
    Declined,
    /// The computation failed or took too long.
    Failed(Failure),
    /// There is no result: everybody looks again, and the first one leads.
    Abandoned(Abandonment),
}

// Derived `Clone` would ask for `V: Clone`.
impl<V> Clone for Verdict<V> {
    fn clone(&self) -> Self {
        match self {
            Self::Filled(entry) => Self::Filled(Arc::clone(entry)),
            Self::Declined => Self::Declined,
            Self::Failed(failure) => Self::Failed(failure.clone()),
            Self::Abandoned(why) => Self::Abandoned(*why),
        }
    }
}

/// A failure as waiters see it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// Whether each waiter tries for itself instead of sharing the failure.
    pub(crate) each_itself: bool,
}

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abandonment {
    /// The leader's future was dropped; or the first panic in a row.
    Lost,
    /// The result concerns the leader's own request only.
    OwnAffair,
}

#[derive(Debug)]
pub(crate) struct Flight<V> {
    /// Told apart from an earlier or later flight of the same key.
    pub(crate) id: u64,
    pub(crate) key: Key,
    /// Tags known before the computation.
    pub(crate) tags: Box<[Tag]>,
    /// Sequence number of the invalidation log at take-off.
    pub(crate) seq: u64,
    forgotten: AtomicBool,
    /// What is computed has begun to arrive.
    arriving: AtomicBool,
    /// When waiters may depose the leader; see [`Flight::is_overdue`].
    overdue_at: AtomicU64,
    pub(crate) waiters: AtomicU32,
    verdict: OnceLock<Verdict<V>>,
    settled: AtomicBool,
    /// The leader's place among the computations. It lies here so that it
    /// comes free when the flight ends, also where its leader does not.
    place: Mutex<Option<OwnedSemaphorePermit>>,
    wake: Notify,
}

impl<V> Flight<V> {
    pub(crate) fn new(id: u64, key: Key, tags: Box<[Tag]>, seq: u64, overdue_at: Tick) -> Self {
        Self {
            id,
            key,
            tags,
            seq,
            forgotten: AtomicBool::new(false),
            arriving: AtomicBool::new(false),
            overdue_at: AtomicU64::new(overdue_at.as_nanos()),
            waiters: AtomicU32::new(0),
            verdict: OnceLock::new(),
            settled: AtomicBool::new(false),
            place: Mutex::new(None),
            wake: Notify::new(),
        }
    }

    /// Publishes the verdict unless there is one, and wakes everybody. Returns
    /// whether this was the one.
    pub(crate) fn publish(&self, verdict: Verdict<V>) -> bool {
        let first = self.verdict.set(verdict).is_ok();
        self.wake.notify_waiters();
        first
    }

    pub(crate) fn verdict(&self) -> Option<&Verdict<V>> {
        self.verdict.get()
    }

    /// Waits for the verdict.
    ///
    /// Cancel safe: a dropped wait leaves nothing behind.
    pub(crate) async fn wait(&self) -> &Verdict<V> {
        loop {
            // Registered before looking: a verdict in between wakes us.
            let woken = self.wake.notified();
            if let Some(verdict) = self.verdict.get() {
                return verdict;
            }
            woken.await;
        }
    }

    pub(crate) fn take_place(&self, place: OwnedSemaphorePermit) {
        *self.place.lock() = Some(place);
    }

    pub(crate) fn leave_place(&self) {
        let place = self.place.lock().take();
        drop(place);
    }

    /// Says that the result is stored or not, and the flight out of the table.
    pub(crate) fn settle(&self) {
        self.leave_place();
        self.settled.store(true, Ordering::Release);
        self.wake.notify_waiters();
    }

    /// Waits until the flight is settled: who looks again before would find
    /// this very flight, and not yet what it stored.
    ///
    /// Cancel safe: a dropped wait leaves nothing behind.
    pub(crate) async fn wait_settled(&self) {
        loop {
            let woken = self.wake.notified();
            if self.settled.load(Ordering::Acquire) {
                return;
            }
            woken.await;
        }
    }

    /// From now on whoever joins asks for what is there, not for what will be.
    pub(crate) fn arrives(&self) {
        self.arriving.store(true, Ordering::Release);
    }

    pub(crate) fn is_arriving(&self) -> bool {
        self.arriving.load(Ordering::Acquire)
    }

    /// From now on the result belongs to those who wait already: it is not
    /// stored, and nobody joins.
    pub(crate) fn forget(&self) {
        self.forgotten.store(true, Ordering::Release);
    }

    pub(crate) fn is_forgotten(&self) -> bool {
        self.forgotten.load(Ordering::Acquire)
    }

    pub(crate) fn expect_until(&self, overdue_at: Tick) {
        self.overdue_at.store(overdue_at.as_nanos(), Ordering::Release);
    }

    pub(crate) fn overdue_at(&self) -> Tick {
        Tick::from_nanos(self.overdue_at.load(Ordering::Acquire))
    }

    /// Returns whether the leader should have ended by itself. One that runs
    /// in a future nobody polls any more never does, and is deposed.
    pub(crate) fn is_overdue(&self, now: Tick) -> bool {
        now >= self.overdue_at()
    }
}
