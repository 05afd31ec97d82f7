//! A flight between two leaders, as the flight knows it: which waiters may lead next, and what it
//! holds until then. `succession` makes and takes it.

use std::any::Any;

use crate::flight::request::{FlightRequest, Role};

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

/// What a vacant flight holds: the guard of its first leader, which the flight itself does not know.
pub(crate) trait Vacant: Send {
    fn successor(&self) -> Successor;

    /// Ends the flight: there is no next leader.
    fn end(self: Box<Self>);

    /// Hands out what it is, for the one who made it.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl std::fmt::Debug for dyn Vacant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vacant").field("successor", &self.successor()).finish_non_exhaustive()
    }
}
