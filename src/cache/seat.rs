//! What one key of a batch knows of the call that it is for. This is all that its question needs.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::flight::computation::OriginCall;
use crate::flight::lending::Scope;

/// A key of the application, of which the type is forgotten. The loader knows it.
pub(crate) type AppKey = Arc<dyn Any + Send + Sync>;

/// The call that a round of keys is for.
pub(crate) struct RoundCall {
    /// The flights of the round have it in common.
    pub(super) origin_call: Arc<OriginCall>,
    /// The loader runs within it.
    pub(super) scope: Arc<Scope>,
    /// At which moment the leaders look again that wait for other processes: at the same one, so
    /// that they are late together.
    spread: f64,
    is_closed: AtomicBool,
}

impl RoundCall {
    pub(super) fn new(origin_call: Arc<OriginCall>, scope: Arc<Scope>) -> Self {
        Self { origin_call, scope, spread: fastrand::f64(), is_closed: AtomicBool::new(false) }
    }

    /// Returns whether no more keys belong to the round.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }
}

/// Hands out the call of the keys that belong to no batch, or are too late for it.
pub(super) trait OpenCall: Send + Sync {
    fn open_call(&self) -> Arc<RoundCall>;
}

/// One key's seat in a round.
pub(crate) struct Seat {
    pub(super) app_key: AppKey,
    round: Mutex<Arc<RoundCall>>,
    open: Arc<dyn OpenCall>,
    /// Whether the call of its batch waits for the key.
    is_awaited: AtomicBool,
}

impl Seat {
    pub(super) fn new(app_key: AppKey, round: Arc<RoundCall>, open: Arc<dyn OpenCall>) -> Self {
        Self { app_key, round: Mutex::new(round), open, is_awaited: AtomicBool::new(false) }
    }

    /// Returns the call that a flight of the key is a part of, if its caller leads now.
    pub(crate) fn origin_call(&self) -> Arc<OriginCall> {
        let mut round = self.round.lock();
        if round.is_closed() {
            *round = self.open.open_call();
        }
        Arc::clone(&round.origin_call)
    }

    /// Returns at which moment its leader looks again, where it waits for another process.
    pub(crate) fn spread(&self) -> f64 {
        self.round.lock().spread
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Acquire)
    }

    pub(super) fn await_decision(&self) {
        self.is_awaited.store(true, Ordering::Release);
    }

    /// The key has come to a decision: the call waits for it no more. Returns whether it did.
    pub(crate) fn decide(&self) -> bool {
        self.is_awaited.swap(false, Ordering::AcqRel)
    }
}
