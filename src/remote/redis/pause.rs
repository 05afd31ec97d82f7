//! Pauses between tries.

use std::time::Duration;

/// A pause that doubles, each up to a fifth longer or shorter, so that processes do not try together.
pub(super) struct Pause {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Pause {
    pub(super) const fn of_millis(first: u64, longest: u64) -> Self {
        let (first, longest) = (Duration::from_millis(first), Duration::from_millis(longest));
        Self { first, longest, next: first }
    }

    /// Returns how long to wait after one more failure.
    pub(super) fn lengthen(&mut self) -> Duration {
        let pause = self.next.mul_f64(0.8 + 0.4 * fastrand::f64());
        self.next = (self.next * 2).min(self.longest);
        pause
    }

    pub(super) const fn reset(&mut self) {
        self.next = self.first;
    }
}
