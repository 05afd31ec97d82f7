//! Which flight a caller belongs to, and how it enters.

use std::num::NonZeroU64;

use crate::flight::client_key::ClientKey;
use crate::flight::computation::OriginCall;
use crate::flight::evidence::RequestTraits;
use crate::flight::hold::{HoldCheck, Requester};
use crate::key::{Key, Tag};
use crate::sync::Arc;

/// Which part a caller may take in a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It leads or waits.
    Any,
    /// It leads at once or computes alone: it never waits.
    LeadOnly,
    /// It waits or computes alone: the origin's response to it is no answer for others.
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "HTTP's HEAD and ranges"))]
    WaitOnly,
    /// It computes alone, for both reasons.
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "HTTP's HEAD and ranges"))]
    Neither,
}

impl Role {
    pub(super) fn waits(self) -> bool {
        matches!(self, Self::Any | Self::WaitOnly)
    }

    pub(crate) fn leads(self) -> bool {
        matches!(self, Self::Any | Self::LeadOnly)
    }
}

/// The caller that a flight is led for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LedFor {
    /// For a caller that waits, and may wait for a place.
    Caller,
    /// For a caller that has a value in hand: it waits for nothing.
    CallerWithValue,
    /// For no caller, in the background; one of `max_refreshes`.
    Refresh,
}

/// Which flight a caller belongs to, and how it enters.
#[derive(Clone, Debug)]
pub(crate) struct FlightRequest {
    pub(crate) key: Key,
    /// Tags known before the computation.
    pub(crate) tags: Box<[Tag]>,
    pub(crate) role: Role,
    pub(crate) hold: HoldCheck,
    pub(crate) led_for: LedFor,
    /// The caller's rank in the queue for places, if it has waited for one.
    pub(crate) rank: Option<NonZeroU64>,
    /// The flight that the caller has left: what arrives there is not for it. A flight that
    /// it leads takes the place of that one.
    pub(crate) left: Option<NonZeroU64>,
    /// The call of the origin that serves other flights too; none: the flight has its own.
    pub(crate) call: Option<Arc<OriginCall>>,
    /// Callers whose hashes of what is not keyed differ may get different results.
    pub(crate) traits: RequestTraits,
    /// The caller's client, if it is known.
    pub(crate) client: Option<ClientKey>,
}

impl FlightRequest {
    /// Enters the flight of `key`, and waits where another caller leads.
    pub(crate) fn of(key: Key) -> Self {
        Self {
            key,
            tags: Box::default(),
            role: Role::Any,
            hold: HoldCheck::WithFallback,
            led_for: LedFor::Caller,
            rank: None,
            left: None,
            call: None,
            traits: RequestTraits::default(),
            client: None,
        }
    }

    /// Returns whose failure a failure of the caller's computation is.
    pub(crate) fn requester(&self) -> Requester {
        Requester(self.client.map_or(self.traits.unkeyed, ClientKey::get))
    }

    /// Computes as a part of `call`, where the caller leads.
    pub(crate) fn sharing_call(mut self, call: Option<Arc<OriginCall>>) -> Self {
        self.call = call;
        self
    }

    /// Leads at once or computes alone.
    pub(crate) fn without_waiting(mut self) -> Self {
        self.role = if self.role.leads() { Role::LeadOnly } else { Role::Neither };
        self
    }

    /// Computes whatever has failed before.
    pub(crate) fn despite_hold(mut self) -> Self {
        self.hold = HoldCheck::Ignored;
        self
    }

    pub(crate) fn led_for(mut self, led_for: LedFor) -> Self {
        self.led_for = led_for;
        self
    }
}
