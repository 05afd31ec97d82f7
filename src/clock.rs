//! Time as the engine sees it: readings of one clock, passed in.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

#[cfg(feature = "test-util")]
pub use manual::ManualClock;

/// How far before the start of the process a reading can lie: a hundred years.
/// What comes from elsewhere may be older than this process, and HTTP counts
/// ages to 2^31 seconds.
const BEFORE_START: u64 = 100 * 365 * 24 * 3600 * 1_000_000_000;

/// A reading of a [`Clock`] in nanoseconds. All arithmetic saturates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Tick(u64);

impl Tick {
    pub(crate) const MAX: Self = Self(u64::MAX);

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(crate) const fn as_nanos(self) -> u64 {
        self.0
    }

    pub(crate) fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }

    pub(crate) fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)))
    }

    /// Returns the time from `earlier` to here, zero when `earlier` is later.
    pub(crate) const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

// Not by way of 128 bits: every hit comes through here.
#[inline]
fn nanos(span: Duration) -> u64 {
    span.as_secs().saturating_mul(1_000_000_000).saturating_add(span.subsec_nanos().into())
}

/// Where readings come from. Freshness is judged by this clock alone; waits
/// use tokio's timers, which follow the same clock unless it is a manual one.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// The runtime's clock: monotonic, and paused where a test pauses tokio.
    Runtime(Instant),
    #[cfg(feature = "test-util")]
    Manual(ManualClock),
}

impl Clock {
    pub(crate) fn runtime() -> Self {
        Self::Runtime(Instant::now())
    }

    #[inline]
    pub(crate) fn now(&self) -> Tick {
        match self {
            Self::Runtime(start) => {
                Tick(BEFORE_START).plus(Instant::now().saturating_duration_since(*start))
            }
            #[cfg(feature = "test-util")]
            Self::Manual(clock) => Tick(BEFORE_START).plus(clock.elapsed()),
        }
    }

    /// Returns the calendar time. Used for HTTP dates only, never to compare
    /// two entries or two processes.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only HTTP knows dates"))]
    pub(crate) fn wall(&self) -> SystemTime {
        match self {
            Self::Runtime(_) => SystemTime::now(),
            #[cfg(feature = "test-util")]
            Self::Manual(clock) => clock.wall(),
        }
    }
}

#[cfg(feature = "test-util")]
mod manual {
    use super::{Duration, SystemTime};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A clock that moves only when told to.
    ///
    /// It decides what is fresh, stale and expired. Waits still use tokio's
    /// timers, so a test that also waits pauses tokio's time instead and needs
    /// no `ManualClock`: the crate's own clock follows tokio's.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::{ManualClock, Stampede};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let clock = ManualClock::new();
    /// let cache = Stampede::builder("doc").ttl(Duration::from_secs(60)).clock(&clock).build()?;
    /// cache.put("k", 1).await;
    /// clock.advance(Duration::from_secs(61));
    /// assert_eq!(cache.get("k").await, None);
    /// # Ok(()) }
    /// ```
    #[derive(Clone, Debug, Default)]
    pub struct ManualClock {
        nanos: Arc<AtomicU64>,
    }

    impl ManualClock {
        /// Creates a clock that stands still.
        #[must_use]
        pub fn new() -> Self {
            Self::default()
        }

        /// Moves the clock forward, for every handle built on it. At its end, 584 years after its
        /// start, it stands still.
        pub fn advance(&self, by: Duration) {
            let later = |nanos: u64| Some(nanos.saturating_add(super::nanos(by)));
            let _ = self.nanos.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
        }

        pub(super) fn elapsed(&self) -> Duration {
            Duration::from_nanos(self.nanos.load(Ordering::SeqCst))
        }

        pub(super) fn wall(&self) -> SystemTime {
            // 2020-01-01: any fixed date, so that a test's dates are the same every day.
            SystemTime::UNIX_EPOCH + Duration::from_secs(1_577_836_800) + self.elapsed()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_span_however_long_wraps_a_reading() {
        assert_eq!(Tick(5).plus(Duration::MAX), Tick(u64::MAX));
        assert_eq!(Tick(5).minus(Duration::MAX), Tick(0));
        assert_eq!(Tick(5).since(Tick(7)), Duration::ZERO);
    }

    #[cfg(feature = "test-util")]
    #[test]
    fn a_manual_clock_never_goes_back_however_far_it_is_advanced() {
        let manual = ManualClock::new();
        let clock = Clock::Manual(manual.clone());
        for _ in 0..3 {
            let before = clock.now();
            manual.advance(Duration::MAX / 2);
            manual.advance(Duration::from_secs(u64::MAX / 1_000_000_000 - 1));
            assert!(clock.now() >= before);
        }
        assert_eq!(clock.now(), Tick::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn the_runtime_clock_follows_paused_time() {
        let clock = Clock::runtime();
        let before = clock.now();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock.now().since(before), Duration::from_secs(3));
    }
}
