//! The server's time: tokio's, from a fixed date on.

use std::time::Duration;

use tokio::time::Instant;

use crate::remote::{ServerTime, Version};

/// 2020-01-01, so that a test's readings are the same every day.
const START: Micros = Micros(1_577_836_800_000_000);

/// The clock of a server.
pub(super) struct DoubleClock {
    started: Instant,
    newest: Micros,
    /// By how much it was set forward and back since.
    forward: Duration,
    back: Duration,
}

/// A point in time, in microseconds since the UNIX epoch.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Micros(u64);

/// When a command is executed.
#[derive(Clone, Copy)]
pub(super) struct Now {
    time: Micros,
    /// The time, but later than of every command before: a paused clock stands
    /// still, and no server executes two in one microsecond.
    stamp: Micros,
}

impl Default for DoubleClock {
    fn default() -> Self {
        let (forward, back) = (Duration::ZERO, Duration::ZERO);
        Self { started: Instant::now(), newest: Micros::default(), forward, back }
    }
}

impl DoubleClock {
    pub(super) fn now(&mut self) -> Now {
        let passed = Instant::now().saturating_duration_since(self.started);
        let time = START.plus(passed).plus(self.forward).minus(self.back);
        self.newest = time.max(Micros(self.newest.0 + 1));
        Now { time, stamp: self.newest }
    }

    pub(super) fn set_forward(&mut self, by: Duration) {
        self.forward = self.forward.saturating_add(by);
    }

    pub(super) fn set_back(&mut self, by: Duration) {
        self.back = self.back.saturating_add(by);
    }
}

impl Micros {
    pub(super) const NEVER: Self = Self(u64::MAX);

    fn plus(self, span: Duration) -> Self {
        let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(micros))
    }

    fn minus(self, span: Duration) -> Self {
        let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(micros))
    }
}

impl Now {
    /// Returns the same moment by a clock that is ahead.
    pub(super) fn ahead(self, by: Duration) -> Self {
        Self { time: self.time.plus(by), stamp: self.stamp.plus(by) }
    }

    pub(super) const fn reading(self) -> ServerTime {
        ServerTime::from_millis(self.time.0 / 1000)
    }

    pub(super) fn plus(self, span: Duration) -> Micros {
        self.time.plus(span)
    }

    pub(super) fn is_past(self, until: Micros) -> bool {
        until <= self.time
    }

    /// Returns how long it is until then.
    pub(super) const fn until(self, then: Micros) -> Duration {
        Duration::from_micros(then.0.saturating_sub(self.time.0))
    }

    /// A version of this time, or the next above `others` if that is later.
    pub(super) fn version_above(self, others: Option<Version>) -> Version {
        let next = others.map_or(0, |version| version.get() + 1);
        // After the last version there is, time begins anew.
        Version::new(next.max(self.stamp.0))
            .or_else(|| Version::new(self.stamp.0))
            .expect("microseconds since 1970 are versions until the year 2112")
    }
}
