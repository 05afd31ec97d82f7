//! One more leader of a flight whose first leader has failed.
//!
//! A failure may say nothing of the key: the connection broke, or the request of the leader
//! itself made the service fail. Then the flight goes on with one of its waiters as the second
//! leader, and with the second leader's own request. It is the same flight: it keeps its place
//! in the table, its place among the computations and its lease. So the callers of one flight
//! cost two calls of the service at most. Flights of other processes wait for the lease: what the
//! second leader fills answers them. Where it fails too, each of them has two calls of its own.
//!
//! Between the two leaders the flight is *vacant*. It holds the guard of its first leader, and
//! the end that the flight has where no waiter takes the lead. Three things end a vacancy: a
//! waiter takes the lead; the last waiter that may do so goes away; or [`GRACE`] is over, since
//! no waiter that may lead is polled.
//!
//! [`GRACE`]: crate::flight::engine::GRACE

use std::time::Duration;

use crate::flight::end::End;
use crate::flight::leader::Leader;
use crate::flight::request::{FlightRequest, LedFor, Role};
use crate::mode::Mode;
use crate::observe::Occurrence;
use crate::sync::Arc;

/// Which waiter may be the second leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "http"), allow(dead_code, reason = "HTTP's failures"))]
pub(crate) enum Successor {
    /// Any; one whose request differs from the first leader's comes first.
    Any,
    /// One whose request differs from the first leader's in fields that are not keyed.
    OtherRequest,
}

/// A waiter that may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Candidate {
    /// Its request is the first leader's in all fields.
    SameRequest,
    OtherRequest,
}

impl Candidate {
    /// Returns what the caller of `request` is in a flight whose first leader had the fields
    /// `led_with`; none if it may not lead.
    pub(crate) fn of(request: &FlightRequest, led_with: u64) -> Option<Self> {
        match request.role {
            Role::Any if request.traits.unkeyed == led_with => Some(Self::SameRequest),
            Role::Any => Some(Self::OtherRequest),
            Role::LeadOnly | Role::WaitOnly | Role::Neither => None,
        }
    }
}

/// How many candidates wait in a flight.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    same: u32,
    other: u32,
}

impl Candidates {
    pub(super) fn add(&mut self, candidate: Candidate) {
        *self.number_of(candidate) += 1;
    }

    pub(super) fn remove(&mut self, candidate: Candidate) {
        *self.number_of(candidate) -= 1;
    }

    fn number_of(&mut self, candidate: Candidate) -> &mut u32 {
        match candidate {
            Candidate::SameRequest => &mut self.same,
            Candidate::OtherRequest => &mut self.other,
        }
    }

    /// Returns whether one of them may succeed.
    pub(super) fn has(&self, successor: Successor) -> bool {
        self.other > 0 || successor == Successor::Any && self.same > 0
    }

    /// Returns whether this candidate may succeed now: others come first where their requests
    /// differ.
    pub(super) fn may_succeed(&self, candidate: Candidate, successor: Successor) -> bool {
        match candidate {
            Candidate::OtherRequest => true,
            Candidate::SameRequest => successor == Successor::Any && self.other == 0,
        }
    }
}

/// What a vacant flight holds.
pub(crate) trait Vacant<V>: Send {
    fn successor(&self) -> Successor;

    /// Hands out the guard for the next leader.
    fn into_leader(self: Box<Self>) -> Leader<V>
    where
        V: Send + Sync + 'static;

    /// Ends the flight: there is no next leader.
    fn end(self: Box<Self>);
}

impl<V> std::fmt::Debug for dyn Vacant<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vacant").field("successor", &self.successor()).finish_non_exhaustive()
    }
}

/// The guard of the first leader, and the end of the flight where no waiter leads.
struct Vacancy<V: Send + Sync + 'static> {
    leader: Leader<V>,
    end: End<V>,
    successor: Successor,
}

impl<V: Send + Sync + 'static> Vacant<V> for Vacancy<V> {
    fn successor(&self) -> Successor {
        self.successor
    }

    fn into_leader(self: Box<Self>) -> Leader<V> {
        let mut leader = self.leader;
        leader.become_second();
        leader
    }

    fn end(self: Box<Self>) {
        let Self { leader, end, .. } = *self;
        leader.end(end);
    }
}

impl<V: Send + Sync + 'static> Leader<V> {
    /// Leaves the flight to a second leader, if this is the first one and a waiter waits that
    /// may be the second. Where the last such waiter goes away before it leads, the flight has
    /// `end`. Returns the leader and `end` where there is no second leader.
    ///
    /// A refresh has none: its callers have a value. Nor has a computation after a panic, which
    /// was a second one already.
    pub(crate) fn pass_on(self, successor: Successor, end: End<V>) -> Option<(Self, End<V>)> {
        let may_pass = self.led_for == LedFor::Caller
            && !self.is_second
            && self.engine.mode() == Mode::On
            && !self.follows_panic();
        if !may_pass || !self.flight.has_candidate(successor) {
            return Some((self, end));
        }
        let (engine, flight) = (Arc::clone(&self.engine), Arc::clone(&self.flight));
        let took = engine.clock.now().since(self.started.tick);
        let (how, failure) = (end.computation(), self.effect_of_passing(&end));
        let overdue_at = flight.computation.overdue_at();
        // A waiter that may lead is polled before that, or never.
        self.expect_within(Duration::ZERO);
        let vacancy = Box::new(Vacancy { leader: self, end, successor });
        if let Err(vacancy) = flight.vacate(vacancy) {
            engine.places.expect_until(&flight.computation, overdue_at);
            let Vacancy { leader, end, .. } = *vacancy;
            return Some((leader, end));
        }
        flight.wake();
        let key = &flight.key;
        engine.observer.happened(Occurrence::Computed { key, took, end: how, failure });
        None
    }

    /// The same, and ends the flight where there is no second leader.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "HTTP's failures"))]
    pub(crate) fn pass_on_or_end(self, successor: Option<Successor>, end: End<V>) {
        let last = match successor {
            Some(successor) => self.pass_on(successor, end),
            None => Some((self, end)),
        };
        if let Some((leader, end)) = last {
            leader.end(end);
        }
    }
}
