//! Pauses between tries.

use std::time::Duration;

/// A pause that doubles, each up to a fifth longer or shorter, so that processes do not try together.
#[derive(Clone, Debug)]
pub(crate) struct Pause {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Pause {
    pub(crate) const fn of_millis(first: u64, longest: u64) -> Self {
        let (first, longest) = (Duration::from_millis(first), Duration::from_millis(longest));
        Self { first, longest, next: first }
    }

    /// Returns how long to wait now: after one more failure.
    pub(crate) fn lengthen(&mut self) -> Duration {
        self.lengthen_by(fastrand::f64())
    }

    fn lengthen_by(&mut self, sample: f64) -> Duration {
        let pause = self.next.mul_f64(0.8 + 0.4 * sample);
        self.next = (self.next * 2).min(self.longest);
        pause
    }

    /// Begins again, after a try that succeeded.
    pub(crate) const fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_five_seconds_and_begin_again_after_a_reset() {
        let mut pause = Pause::of_millis(100, 5000);
        let waits: Vec<_> = (0..8).map(|_| pause.lengthen_by(0.5).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        pause.reset();
        assert_eq!(pause.lengthen_by(0.5), Duration::from_millis(100));
    }

    #[test]
    fn a_wait_is_up_to_a_fifth_shorter_or_longer() {
        assert_eq!(Pause::of_millis(100, 5000).lengthen_by(0.0), Duration::from_millis(80));
        assert_eq!(Pause::of_millis(100, 5000).lengthen_by(1.0), Duration::from_millis(120));
        let waits: Vec<_> = (0..100).map(|_| Pause::of_millis(100, 5000).lengthen()).collect();
        assert!(waits.iter().all(|wait| (80..=120).contains(&wait.as_millis())));
        assert!(waits.iter().any(|wait| *wait != waits[0]));
    }
}
