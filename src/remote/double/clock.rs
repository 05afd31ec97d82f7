//! The server's time: tokio's, from a fixed date on.

use std::time::Duration;

use tokio::time::Instant;

use crate::remote::{ServerTime, Version};

/// 2020-01-01, so that a test's readings are the same every day.
const START: Micros = Micros(1_577_836_800_000_000);

/// The clock of a server.
pub(super) struct ServerClock(Instant);

/// A reading of it, in microseconds since the UNIX epoch.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Micros(u64);

impl ServerClock {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn now(&self) -> Micros {
        START.plus(Instant::now().saturating_duration_since(self.0))
    }
}

impl Micros {
    pub(super) const NEVER: Self = Self(u64::MAX);

    pub(super) fn plus(self, span: Duration) -> Self {
        let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(micros))
    }

    pub(super) const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    pub(super) const fn reading(self) -> ServerTime {
        ServerTime::from_millis(self.0 / 1000)
    }

    /// A version of this time, or the next above `others` if that is later.
    pub(super) fn version_above(self, others: Option<Version>) -> Version {
        let next = others.map_or(0, |version| version.get() + 1);
        // After the last version there is, time begins anew.
        Version::new(next.max(self.0))
            .or_else(|| Version::new(self.0))
            .expect("microseconds since 1970 are versions until the year 2112")
    }
}
