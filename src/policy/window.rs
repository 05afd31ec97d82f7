//! The moments between which an entry is fresh or stale.

use std::time::Duration;

use crate::engine::time::Tick;

/// How long an entry is fresh, and for how long after that it may be served
/// stale. Both stale windows begin where the lifetime ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifetimes {
    pub(crate) ttl: Duration,
    pub(crate) stale_for: Duration,
    pub(crate) stale_if_error: Duration,
}

impl Lifetimes {
    /// Shortens the lifetime by up to `jitter` of itself, so that entries
    /// filled together do not end together.
    pub(crate) fn jittered(mut self, jitter: f64, sample: f64) -> Self {
        // What is cut off is never the whole: a product with 1 could overflow.
        let cut = self.ttl.mul_f64((jitter * sample).clamp(0.0, 1.0 - f64::EPSILON));
        self.ttl = self.ttl.saturating_sub(cut);
        self
    }
}

/// When an entry is fresh, stale and expired; frozen when it is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// When the computation started: age counts from here, so that a slow
    /// computation cannot make old data look young.
    pub(crate) started: Tick,
    pub(crate) fresh_until: Tick,
    pub(crate) stale_until: Tick,
    pub(crate) error_until: Tick,
    /// How long the computation took, in nanoseconds; half the size of a
    /// `Duration`, and there is one in every entry.
    computed_nanos: u64,
}

impl Window {
    pub(crate) fn new(started: Tick, lifetimes: Lifetimes, computed_in: Duration) -> Self {
        let fresh_until = started.plus(lifetimes.ttl);
        Self {
            started,
            fresh_until,
            stale_until: fresh_until.plus(lifetimes.stale_for),
            error_until: fresh_until.plus(lifetimes.stale_if_error),
            computed_nanos: u64::try_from(computed_in.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// Returns how long the computation took; early refresh leads by it.
    pub(crate) fn computed_in(&self) -> Duration {
        Duration::from_nanos(self.computed_nanos)
    }

    /// Returns the window of the same entry, stale from `now` on.
    pub(crate) fn stale_from(mut self, now: Tick) -> Self {
        let early_by = self.fresh_until.since(now);
        self.fresh_until = self.fresh_until.minus(early_by);
        self.stale_until = self.stale_until.minus(early_by);
        self.error_until = self.error_until.minus(early_by);
        self
    }

    pub(crate) fn lifetime(&self) -> Duration {
        self.fresh_until.since(self.started)
    }

    /// Returns the moment after which the entry is of no use to anybody.
    pub(crate) fn useful_until(&self) -> Tick {
        self.fresh_until.max(self.stale_until).max(self.error_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn marking_stale_moves_every_window_forward_and_keeps_its_length() {
        let lifetimes =
            Lifetimes { ttl: SECOND * 10, stale_for: SECOND * 5, stale_if_error: SECOND * 20 };
        let window = Window::new(Tick::from_nanos(0), lifetimes, SECOND);
        let marked = window.stale_from(Tick::from_nanos(4_000_000_000));
        assert_eq!(marked.fresh_until, Tick::from_nanos(4_000_000_000));
        assert_eq!(marked.stale_until.since(marked.fresh_until), SECOND * 5);
        assert_eq!(marked.error_until.since(marked.fresh_until), SECOND * 20);
        assert_eq!(window.stale_from(Tick::from_nanos(11_000_000_000)), window, "already stale");
    }

    proptest! {
        #[test]
        fn jitter_only_shortens_and_never_by_more_than_its_share(
            ttl in 0_u64..=u64::MAX / 4, jitter in 0.0_f64..1.0, sample in 0.0_f64..=1.0,
        ) {
            let ttl = Duration::from_nanos(ttl);
            let lifetimes = Lifetimes { ttl, stale_for: SECOND, stale_if_error: SECOND };
            let jittered = lifetimes.jittered(jitter, sample);
            prop_assert!(jittered.ttl <= ttl + SECOND / 1000);
            prop_assert!(jittered.ttl + SECOND / 1000 >= ttl.mul_f64(1.0 - jitter));
            prop_assert_eq!(jittered.stale_for, lifetimes.stale_for);
        }
    }
}
