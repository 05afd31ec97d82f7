//! How long computations of a cache take.

use std::time::Duration;

use crate::sync::{AtomicU64, Ordering};

/// How many computations the mean goes back, about.
const REMEMBERED: u64 = 16;

/// The mean time of the last computations with a result, in nanoseconds. Zero: there was none yet.
#[derive(Debug)]
pub(crate) struct UsualTime(AtomicU64);

impl UsualTime {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(super) fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos())
            .map_or(u64::MAX / REMEMBERED, |took| took.clamp(1, u64::MAX / REMEMBERED));
        let mean = match self.0.load(Ordering::Relaxed) {
            0 => took,
            old => (old / REMEMBERED * (REMEMBERED - 1) + took / REMEMBERED).max(1),
        };
        // A time that is lost to another thread changes the mean little.
        self.0.store(mean, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Option<Duration> {
        let mean = self.0.load(Ordering::Relaxed);
        (mean > 0).then(|| Duration::from_nanos(mean))
    }
}
