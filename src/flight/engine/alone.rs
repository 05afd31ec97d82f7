//! Callers that compute alone, outside of any flight.

use tokio::time::Instant;

use crate::flight::client_key::ClientKey;
use crate::flight::computation::{Computation, OriginCall};
use crate::flight::engine::{Engine, GRACE};
use crate::flight::lending::{self, Scope, Wait};
use crate::flight::places::NoPlace;
use crate::mode::Mode;
use crate::sync::Arc;

impl<V: Send + Sync + 'static> Engine<V> {
    /// Takes a place for a caller that computes alone because its patience is over, if
    /// one is free now.
    pub(crate) fn try_place(self: &Arc<Self>, client: Option<ClientKey>) -> Option<PlaceForOne<V>> {
        let (now, id) = (self.watch.now(), self.table.next_number());
        let overdue_at = now.plus(self.settings.compute_timeout()).plus(GRACE);
        let client = client.or_else(|| self.client_of_caller());
        let call = Arc::new(OriginCall::new(id, None).for_client(client));
        let computation = Arc::new(Computation::of_call(id, overdue_at, call));
        let wait = Wait::new(&self.places, &computation);
        let is_placed = self.places.try_take(&computation, now);
        computation.begin();
        let engine = Arc::clone(self);
        is_placed.then(|| PlaceForOne { engine, computation, needs_place: true, wait })
    }

    /// Makes a caller that computes alone, and needs no place, a part of a call. Returns nothing where
    /// the caller runs in no computation: then nothing has to know of it.
    pub(crate) fn join_without_place(
        self: &Arc<Self>,
        call: &Arc<OriginCall>,
    ) -> Option<PlaceForOne<V>> {
        let longest = self.settings.wait_timeout() + self.settings.compute_timeout() + GRACE;
        let (now, id) = (self.watch.now(), self.table.next_number());
        let call = Arc::clone(call);
        let computation = Arc::new(Computation::of_call(id, now.plus(longest), call));
        computation.begin();
        let wait = Wait::new(&self.places, &computation);
        if !wait.is_inside() {
            return None;
        }
        self.borrow(&computation);
        Some(PlaceForOne { engine: Arc::clone(self), computation, needs_place: false, wait })
    }

    /// Lends the place around a computation that takes none of the places: what it asks for may need
    /// that.
    fn borrow(&self, computation: &Arc<Computation>) {
        if self.mode() == Mode::On {
            self.places.borrow(computation);
        }
    }
}

/// The place of a caller that computes alone, or its part in a call that needs none.
pub(crate) struct PlaceForOne<V: Send + Sync + 'static> {
    engine: Arc<Engine<V>>,
    computation: Arc<Computation>,
    needs_place: bool,
    /// The caller waits for it, perhaps in a computation.
    wait: Wait,
}

impl<V: Send + Sync + 'static> PlaceForOne<V> {
    /// Hands out that the caller waits, which may end before the call does. What a call has borrowed
    /// that needs no place returns then.
    pub(crate) fn take_wait(&mut self) -> AloneWait<V> {
        let borrowed = (!self.needs_place).then(|| Arc::clone(&self.computation));
        let wait = std::mem::take(&mut self.wait);
        AloneWait { engine: Arc::clone(&self.engine), borrowed, _wait: wait }
    }

    /// Makes it the place of another call, or waits for the place that this has. A caller that needs
    /// none goes on without one.
    pub(crate) async fn move_to_call(&self, call: &Arc<OriginCall>) -> Result<(), NoPlace> {
        if !self.needs_place {
            self.engine.move_to_call_now(&self.computation, call);
            self.engine.borrow(&self.computation);
            return Ok(());
        }
        let deadline = Instant::now() + self.engine.settings.wait_timeout();
        match self.engine.move_to_call(&self.computation, call, deadline, || true).await {
            Err(NoPlace::NotNeeded) => Ok(()),
            placed => placed,
        }
    }

    /// Runs work that may lend the place to what it asks for.
    pub(in crate::flight) fn scope(&self) -> Arc<Scope> {
        Scope::new(&self.engine.places, &self.computation, lending::scope_of_caller())
    }
}

/// Says that the caller of a computation alone waits for it, as long as this lives.
pub(crate) struct AloneWait<V: Send + Sync + 'static> {
    engine: Arc<Engine<V>>,
    borrowed: Option<Arc<Computation>>,
    _wait: Wait,
}

impl<V: Send + Sync + 'static> Drop for AloneWait<V> {
    fn drop(&mut self) {
        self.borrowed.iter().for_each(|computation| self.engine.release(computation));
    }
}

impl<V: Send + Sync + 'static> Drop for PlaceForOne<V> {
    fn drop(&mut self) {
        // A call may have a share of the refreshes, too.
        self.engine.release(&self.computation);
    }
}
