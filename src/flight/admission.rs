//! The entrance: which caller leads, joins a flight, computes alone, or is refused.

use crate::clock::Tick;
use crate::flight::engine::Engine;
use crate::flight::hold::{HeldKey, HoldCheck};
use crate::flight::leader::Leader;
use crate::flight::phase::{Flight, Interest};
use crate::flight::request::{FlightRequest, LedFor};
use crate::flight::table::{Removed, TableShard};
use crate::flight::wait_slot::WaitSlot;
use crate::flight::waiter::{AloneReason, Waiter};
use crate::mode::Mode;
use crate::observe::Occurrence;
use crate::observe::table::RefreshBound;
use crate::sync::Arc;

pub(crate) enum Admission<V: Send + Sync + 'static> {
    Lead(Leader<V>),
    Join(Waiter<V>),
    Alone(AloneReason),
    /// Held; not yet told to the observer, since the caller may have a fallback.
    Held(HeldKey),
    /// A bound on waiters is reached; for a refresh in the background, which never waits, the
    /// bound on refreshes.
    Overloaded,
}

impl<V: Send + Sync + 'static> Engine<V> {
    /// Enters the table: the first caller of a key leads, the others join.
    pub(crate) fn enter(
        self: &Arc<Self>,
        request: &FlightRequest,
        slot: &mut Option<WaitSlot>,
    ) -> Admission<V> {
        if self.mode() == Mode::Off {
            return Admission::Alone(AloneReason::Off);
        }
        let mut removed = Removed::default();
        let now = self.clock.now();
        let mut shard = self.table.shard(&request.key).lock();
        let admission = self.admit(&mut shard, request, slot, now, &mut removed);
        // The observer is told without the lock: it is the user's code.
        drop(shard);
        self.retire(removed, request.left);
        match &admission {
            Admission::Lead(_) => self.observer.happened(Occurrence::Led),
            Admission::Join(_) => self.observer.happened(Occurrence::Joined),
            Admission::Overloaded if request.led_for == LedFor::Refresh => {
                let bound = RefreshBound::Refreshes;
                self.observer.happened(Occurrence::RefreshPutOff { key: &request.key, bound });
            }
            Admission::Alone(_) | Admission::Held(_) | Admission::Overloaded => {}
        }
        admission
    }

    fn admit(
        self: &Arc<Self>,
        shard: &mut TableShard<V>,
        request: &FlightRequest,
        slot: &mut Option<WaitSlot>,
        now: Tick,
        removed: &mut Removed<V>,
    ) -> Admission<V> {
        let marks = shard.marks.get(&request.key);
        let lets_pass = marks.is_some_and(|marks| marks.evidence.lets_pass(request.traits, now));
        if let Some(flight) = self.current_flight(shard, request) {
            // A caller that has asked for a new value by name wants it stored.
            let passes = lets_pass && request.hold != HoldCheck::Ignored;
            if !request.role.waits() || passes {
                return Admission::Alone(AloneReason::Passed);
            }
            return self
                .join(&flight, request, slot)
                .map_or(Admission::Overloaded, Admission::Join);
        }
        let held = marks
            .and_then(|marks| marks.hold.check(now, request.hold, request.requester(), &self.log));
        if let Some(held) = &held
            && (held.answer().is_some() || !self.may_look_elsewhere(request))
        {
            return Admission::Held(held.clone());
        }
        // To look elsewhere is no computation: a caller whose response is for it alone may.
        if held.is_none() && !request.role.leads() {
            return Admission::Alone(AloneReason::Passed);
        }
        let computation = self.new_computation(request);
        let is_refresh = request.led_for == LedFor::Refresh;
        if is_refresh && !self.refreshes.try_take(&computation, self.watch.now()) {
            return Admission::Overloaded;
        }
        let flight = self.begin_flight(shard, request, computation, removed);
        let mut leader = self.lead(flight, request, now);
        leader.set_held(held);
        Admission::Lead(leader)
    }

    /// Returns whether a caller that is held may find a value in the remote: another
    /// process may have computed one since.
    fn may_look_elsewhere(&self, request: &FlightRequest) -> bool {
        request.hold == HoldCheck::WithoutFallback
            && request.role.waits()
            && self.remote(&request.key).is_some()
    }

    fn lead(
        self: &Arc<Self>,
        flight: Arc<Flight<V>>,
        request: &FlightRequest,
        now: Tick,
    ) -> Leader<V> {
        let FlightRequest { led_for, traits, .. } = *request;
        // A refresh in the background has no caller that waits.
        let interest = (led_for != LedFor::Refresh)
            .then(|| Interest::in_flight(&flight, self.wait_for(&flight)));
        Leader::new(Arc::clone(self), flight, now, (led_for, traits)).with(interest)
    }

    /// Takes the lead of another key as well, unless a flight of it runs.
    pub(crate) fn lead_beside(self: &Arc<Self>, request: &FlightRequest) -> Option<Leader<V>> {
        let mut removed = Removed::default();
        let mut shard = self.table.shard(&request.key).lock();
        if self.current_flight(&shard, request).is_some() {
            return None;
        }
        let computation = self.new_computation(request);
        let flight = self.begin_flight(&mut shard, request, computation, &mut removed);
        drop(shard);
        self.retire(removed, None);
        let of = (request.led_for, request.traits);
        Some(Leader::new(Arc::clone(self), flight, self.clock.now(), of))
    }

    fn join(
        self: &Arc<Self>,
        flight: &Arc<Flight<V>>,
        request: &FlightRequest,
        slot: &mut Option<WaitSlot>,
    ) -> Option<Waiter<V>> {
        if slot.is_none() {
            *slot = self.take_slot();
        }
        slot.as_ref().and_then(|_| Waiter::join(flight, request, self.settings.max_waiters()))
    }
}
