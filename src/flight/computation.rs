//! A computation, and the call of the origin that it is a part of.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use crate::clock::Tick;
use crate::flight::client_key::ClientKey;
use crate::sync::{Arc, AtomicU64, Mutex, Notify, OnceLock, Ordering};

/// One call of the origin, for one flight or several.
#[derive(Debug)]
pub(crate) struct OriginCall {
    pub(super) id: u64,
    /// The client that it is for, if that is known.
    pub(super) client: Option<ClientKey>,
    /// Its rank in the queue; the lower, the earlier. Zero: none yet.
    rank: AtomicU64,
    /// What its work waits for.
    pub(super) needs: Needs,
    /// Set once a failure of it that a stale value hides was reported.
    is_reported: OnceLock<()>,
}

/// The computations, of any handle, that the work of a call waits for now, and how often: by the
/// addresses of the computations, which live here.
#[derive(Default)]
pub(super) struct Needs(Mutex<BTreeMap<usize, (Arc<Computation>, u32)>>);

impl Needs {
    pub(super) fn add(&self, computation: &Arc<Computation>) {
        let mut needs = self.0.lock();
        let need = needs.entry(Arc::as_ptr(computation).addr());
        need.or_insert_with(|| (Arc::clone(computation), 0)).1 += 1;
    }

    pub(super) fn remove(&self, computation: &Arc<Computation>) {
        let mut needs = self.0.lock();
        let at = Arc::as_ptr(computation).addr();
        if let Some((_, times)) = needs.get_mut(&at) {
            *times -= 1;
            if *times == 0 {
                needs.remove(&at);
            }
        }
    }

    /// Returns the calls of the computations that have begun.
    pub(super) fn calls(&self) -> Vec<Arc<OriginCall>> {
        self.0.lock().values().filter_map(|(computation, _)| computation.begun_call()).collect()
    }
}

// Calls may wait for each other in a circle.
impl std::fmt::Debug for Needs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Needs").finish_non_exhaustive()
    }
}

impl OriginCall {
    pub(crate) fn new(id: u64, rank: Option<NonZeroU64>) -> Self {
        let rank = AtomicU64::new(rank.map_or(0, NonZeroU64::get));
        Self { id, client: None, rank, needs: Needs::default(), is_reported: OnceLock::new() }
    }

    pub(crate) fn for_client(self, client: Option<ClientKey>) -> Self {
        Self { client, ..self }
    }

    pub(super) fn rank(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.rank.load(Ordering::Relaxed))
    }

    /// Sets its rank, unless it has one.
    pub(super) fn take_rank(&self, rank: u64) {
        let _ = self.rank.compare_exchange(0, rank, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The part of one flight in a call of the origin.
#[derive(Debug)]
pub(crate) struct Computation {
    pub(super) id: u64,
    /// Changes only under the lock of the places.
    call: Mutex<Arc<OriginCall>>,
    /// When other calls may take its place.
    overdue_at: AtomicU64,
    /// Wakes the leader that waits for a place.
    wake: Notify,
    /// Wakes work that goes on only as long as a caller wants it.
    unwanted: Notify,
    /// Set once its work has begun.
    begun: OnceLock<()>,
}

impl Computation {
    /// Makes a computation with a call of its own, for no client.
    #[cfg(all(test, stampede_model))]
    pub(crate) fn new(id: u64, overdue_at: Tick, rank: Option<NonZeroU64>) -> Self {
        Self::of_call(id, overdue_at, Arc::new(OriginCall::new(id, rank)))
    }

    /// Makes a computation of a call that may have others.
    pub(crate) fn of_call(id: u64, overdue_at: Tick, call: Arc<OriginCall>) -> Self {
        let overdue_at = AtomicU64::new(overdue_at.as_nanos());
        let (call, wake, unwanted) = (Mutex::new(call), Notify::new(), Notify::new());
        Self { id, call, overdue_at, wake, unwanted, begun: OnceLock::new() }
    }

    pub(super) fn call(&self) -> Arc<OriginCall> {
        Arc::clone(&self.call.lock())
    }

    /// Its work begins.
    pub(super) fn begin(&self) {
        let _ = self.begun.set(());
    }

    /// Returns its call, if its work has begun. A computation that waits for a place, or for another
    /// process, may yet go to another call.
    pub(super) fn begun_call(&self) -> Option<Arc<OriginCall>> {
        self.begun.get().map(|()| self.call())
    }

    /// Returns whether a failure of its call that a stale value hides is to be reported: at the
    /// first question only, whether callers gave up waiting for it or it has failed.
    pub(crate) fn report_once(&self) -> bool {
        self.call().is_reported.set(()).is_ok()
    }

    pub(super) fn set_call(&self, call: &Arc<OriginCall>) {
        *self.call.lock() = Arc::clone(call);
    }

    pub(crate) fn overdue_at(&self) -> Tick {
        Tick::from_nanos(self.overdue_at.load(Ordering::Acquire))
    }

    pub(super) fn set_overdue_at(&self, at: Tick) {
        self.overdue_at.store(at.as_nanos(), Ordering::Release);
    }

    /// Returns whether its leader should have ended it by now. A leader in a future
    /// that is not polled any more never does.
    pub(crate) fn is_overdue(&self, now: Tick) -> bool {
        now >= self.overdue_at()
    }

    /// Returns the client that it is for.
    pub(super) fn client(&self) -> Option<ClientKey> {
        self.call().client
    }

    /// Returns its rank in the queue, if it has ever waited.
    pub(crate) fn rank(&self) -> Option<NonZeroU64> {
        self.call().rank()
    }

    /// Makes the leader look around: it has a place, or no caller any more.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Says that no caller wants the result any more.
    pub(super) fn tell_unwanted(&self) {
        self.wake.notify_one();
        self.unwanted.notify_one();
    }

    pub(super) async fn told_unwanted(&self) {
        self.unwanted.notified().await;
    }
}
