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

use std::any::Any;
use std::time::Duration;

use crate::flight::end::End;
use crate::flight::leader::Leader;
use crate::flight::request::LedFor;
use crate::flight::vacancy::{Successor, Vacant};
use crate::mode::Mode;
use crate::observe::Occurrence;
use crate::sync::Arc;

/// The guard of the first leader, and the end of the flight where no waiter leads.
struct Vacancy<V: Send + Sync + 'static> {
    leader: Leader<V>,
    end: End<V>,
    successor: Successor,
}

impl<V: Send + Sync + 'static> Vacant for Vacancy<V> {
    fn successor(&self) -> Successor {
        self.successor
    }

    fn end(self: Box<Self>) {
        let Self { leader, end, .. } = *self;
        leader.end(end);
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl<V: Send + Sync + 'static> Leader<V> {
    /// Takes the guard that a vacant flight of these values has held, for the next leader.
    pub(super) fn of_vacancy(vacancy: Box<dyn Vacant>) -> Self {
        let Ok(vacancy) = vacancy.into_any().downcast::<Vacancy<V>>() else {
            unreachable!("a flight of these values holds the guard of a leader of them");
        };
        let mut leader = vacancy.leader;
        leader.become_second();
        leader
    }

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
        engine.observer.count_computation(how);
        flight.wake();
        let key = &flight.key;
        engine.observer.happened(Occurrence::Computed { key, took, end: how, failure });
        None
    }

    /// The same, and ends the flight where there is no second leader.
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
