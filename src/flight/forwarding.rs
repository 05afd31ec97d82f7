//! A bound on the calls of an origin that are outside of any flight.
//!
//! Places, queue and loans are as those of the computations, with which such calls do not count.

use std::future::Future;

use tokio::time::Instant;

use crate::clock::Tick;
use crate::flight::client_key::ClientKey;
use crate::flight::computation::{Computation, OriginCall};
use crate::flight::engine::Engine;
use crate::flight::lending::{self, Scope};
use crate::flight::places::{NoPlace, Places};
use crate::mode::Mode;
use crate::sync::Arc;

/// The bound. Its copies are one.
#[derive(Clone, Debug)]
pub(crate) struct ForwardBound(Arc<Places>);

/// One of the places of a bound, or the right to go without.
#[must_use = "the place returns when this is dropped"]
pub(crate) struct ForwardPlace<V: Send + Sync + 'static>(Option<Taken<V>>);

/// No place was free in time, or too many callers wait.
#[derive(Debug)]
pub(crate) struct Overloaded;

struct Taken<V: Send + Sync + 'static> {
    places: Arc<Places>,
    computation: Arc<Computation>,
    engine: Arc<Engine<V>>,
}

impl<V: Send + Sync + 'static> Drop for Taken<V> {
    fn drop(&mut self) {
        self.places.release(&self.computation, self.engine.watch.now());
    }
}

impl ForwardBound {
    pub(crate) fn new(max: usize) -> Self {
        Self(Arc::new(Places::new(None, max)))
    }

    /// Waits for a place as long as the handle's `wait_timeout`. A cache that is not on bounds
    /// nothing.
    ///
    /// Cancel safe: a request that is dropped leaves the queue.
    pub(crate) async fn take<V: Send + Sync + 'static>(
        &self,
        engine: &Arc<Engine<V>>,
        client: impl FnOnce() -> Option<ClientKey>,
    ) -> Result<ForwardPlace<V>, Overloaded> {
        if engine.mode() != Mode::On {
            return Ok(ForwardPlace::NOT_NEEDED);
        }
        let Self(places) = self;
        let (id, never) = (engine.table.next_number(), Tick::from_nanos(u64::MAX));
        let call = Arc::new(OriginCall::new(id, None).for_client(client()));
        let computation = Arc::new(Computation::of_call(id, never, call));
        let taken = Taken {
            places: Arc::clone(places),
            computation: Arc::clone(&computation),
            engine: Arc::clone(engine),
        };
        let lender = lending::computation_of_caller(places);
        let _offer = lender.map(|lender| places.offer(&lender, &computation));
        if places.try_take(&computation, engine.watch.now()) {
            return Ok(ForwardPlace(Some(taken)));
        }
        let mut slot = Some(engine.take_slot().ok_or(Overloaded)?);
        places.join_queue(&computation, &mut slot, engine.watch.now());
        let deadline = Instant::now() + engine.settings.wait_timeout();
        let gives_up = || (engine.mode() != Mode::On).then_some(NoPlace::NotNeeded);
        match places.wait(&computation, deadline, &engine.watch, gives_up).await {
            Ok(()) => Ok(ForwardPlace(Some(taken))),
            Err(NoPlace::NotNeeded) => Ok(ForwardPlace::NOT_NEEDED),
            Err(NoPlace::TimedOut | NoPlace::Unwanted) => Err(Overloaded),
        }
    }
}

impl<V: Send + Sync + 'static> ForwardPlace<V> {
    /// For a request that counts elsewhere, or has no bound.
    pub(crate) const NOT_NEEDED: Self = Self(None);

    /// Drives the call of the service, and returns the place.
    pub(crate) async fn drive<F: Future>(self, call: F) -> F::Output {
        let Some(Taken { places, computation, .. }) = &self.0 else { return call.await };
        let scope = Scope::new(places, computation, lending::scope_of_caller());
        lending::within(scope, call).await
    }
}
