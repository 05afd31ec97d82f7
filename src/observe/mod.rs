//! What an operator sees: counts, events, metrics and spans.

mod count;
mod counter;
mod event;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "metrics_off.rs"]
mod metrics;
#[cfg(feature = "tracing")]
mod spans;
#[cfg(not(feature = "tracing"))]
#[path = "spans_off.rs"]
mod spans;
mod stats;

#[cfg(feature = "http")]
use std::panic::Location;
#[cfg(feature = "http")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::broadcast;

pub use event::Event;
pub use stats::Stats;

#[cfg_attr(
    not(feature = "http"),
    allow(unused_imports, reason = "only HTTP's results arrive")
)]
pub(crate) use spans::going_on;
pub(crate) use spans::{leading, waiting};

use crate::flight::ports::{ComputedEnd, Observe, Occurrence};
use crate::observe::count::Count;
use crate::observe::counter::Counters;
#[cfg(feature = "metrics")]
use crate::observe::metrics::Meters;
#[cfg(not(feature = "metrics"))]
use crate::observe::metrics::MetersOff as Meters;
use crate::outcome::CacheOutcome;

/// Events kept for a reader that falls behind.
const EVENT_BUFFER: usize = 1024;

/// Counts everything, and passes on what somebody listens to.
#[derive(Debug)]
pub(crate) struct Observer {
    cache: String,
    counts: Counters<{ Count::KINDS }>,
    events: broadcast::Sender<Event>,
    meters: Meters,
    #[cfg(feature = "http")]
    warned_of_nesting: AtomicBool,
    #[cfg(feature = "http")]
    warned_of_credentials: AtomicBool,
}

impl Observer {
    pub(crate) fn new(cache: &str) -> Self {
        Self {
            cache: cache.to_owned(),
            counts: Counters::default(),
            events: broadcast::Sender::new(EVENT_BUFFER),
            meters: Meters::new(cache),
            #[cfg(feature = "http")]
            warned_of_nesting: AtomicBool::new(false),
            #[cfg(feature = "http")]
            warned_of_credentials: AtomicBool::new(false),
        }
    }

    /// Counts one answered request.
    #[inline]
    pub(crate) fn answered(&self, outcome: CacheOutcome) {
        self.count(Count::Outcome(outcome));
        self.meters.answered(outcome);
    }

    /// Counts a request that the cache could have answered, and did not
    /// because it only observes.
    pub(crate) fn would_have_answered(&self) {
        self.count(Count::WouldHaveAnswered);
    }

    /// Counts a request that went past the cache, by reason.
    #[cfg(feature = "http")]
    pub(crate) fn bypassed(&self, reason: &'static str) {
        self.answered(CacheOutcome::Bypass);
        self.bypass_reason(reason);
    }

    /// Counts why a request that is counted elsewhere went past the cache.
    #[cfg(feature = "http")]
    pub(crate) fn bypass_reason(&self, reason: &'static str) {
        self.meters.bypassed(reason);
    }

    /// Warns, once, that requests reach one layer of the cache through another.
    #[cfg(feature = "http")]
    pub(crate) fn layer_is_nested(
        &self,
        outer: &Location<'_>,
        inner: &Location<'_>,
        is_alike: bool,
    ) {
        if !self.warned_of_nesting.swap(true, Ordering::Relaxed) {
            spans::layer_is_nested(&self.cache, outer, inner, is_alike);
        }
    }

    /// Warns, once, that a response was not shared because its request carries
    /// this field.
    #[cfg(feature = "http")]
    pub(crate) fn credential_refused(&self, field: &str) {
        if !self.warned_of_credentials.swap(true, Ordering::Relaxed) {
            spans::credential_refused(&self.cache, field);
        }
    }

    /// Counts a call of the service that belongs to no flight.
    pub(crate) fn computed_alone(&self, took: Duration) {
        self.meters.computed("alone", took);
    }

    pub(crate) fn invalidated(&self, kind: &'static str, event: impl FnOnce() -> Event) {
        self.count(Count::Invalidation);
        self.meters.invalidated(kind);
        self.emit(event);
    }

    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        // The event is built only when somebody listens.
        if self.events.receiver_count() > 0 {
            // Fails when the last listener has just left.
            let _ = self.events.send(event());
        }
    }

    /// Sets the gauges.
    pub(crate) fn gauge(&self, stats: &Stats) {
        self.meters.gauge(stats);
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    #[inline]
    fn count(&self, what: Count) {
        self.counts.add_one(what.place());
    }
}

impl Observe for Observer {
    fn happened(&self, what: Occurrence<'_>) {
        match what {
            Occurrence::Computed { took, end, .. } => {
                self.count(Count::Ended(end));
                self.meters.computed(end.as_str(), took);
                self.meters.filled(end);
            }
            Occurrence::FillRefused { .. } => {
                self.count(Count::RefusedFill);
                self.meters.fill_refused();
            }
            Occurrence::Led => {}
            Occurrence::Joined => self.count(Count::Joined),
            Occurrence::Waited { took } => self.meters.waited(took),
            Occurrence::WaitTimedOut { .. } => self.count(Count::WaitTimeout),
            Occurrence::Overloaded { .. } => self.count(Count::Overloaded),
            Occurrence::Held { .. } => self.count(Count::Held),
            Occurrence::Locked { .. } => {}
            Occurrence::Woken { cause } => self.count(Count::Woken(cause)),
            Occurrence::RemoteCalled { error, .. } => {
                self.count(Count::RemoteCall);
                if error.is_some() {
                    self.count(Count::RemoteError);
                }
            }
            Occurrence::Damaged { .. } => self.count(Count::Damaged),
            Occurrence::RemoteAttached
            | Occurrence::RemoteIs { .. }
            | Occurrence::Unshareable { .. } => {}
            Occurrence::InvalidatedElsewhere { .. } => self.meters.invalidated("remote"),
        }
        self.meters.happened(&what);
        spans::happened(&self.cache, &what);
        if let Some(event) = Event::of(&what).filter(|_| self.events.receiver_count() > 0) {
            self.emit(|| event);
        }
    }
}

impl ComputedEnd {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Shared => "shared",
            Self::Declined => "declined",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Panicked => "panicked",
            Self::Dropped => "dropped",
        }
    }
}
