//! How long a hold lasts.

use std::time::Duration;

use crate::settings::Settings;

/// Where this process holds no key, others may.
const LEAST_BELIEVED: Duration = Duration::from_secs(1);

/// How long no caller computes after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldPolicy {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
}

impl Settings {
    pub(crate) fn hold_policy(&self) -> HoldPolicy {
        HoldPolicy { first: self.hold(), longest: self.max_hold() }
    }
}

impl HoldPolicy {
    /// Returns the hold after `failures` failures in a row. It doubles only
    /// while stale data can be served: with nothing to serve, every second of
    /// hold is a second of refusals. `sample` shortens it by up to a tenth, so
    /// that keys that failed together are not tried together.
    pub(crate) fn after(&self, failures: u32, can_serve_stale: bool, sample: f64) -> Duration {
        if !can_serve_stale {
            return self.first;
        }
        let doublings = failures.saturating_sub(1).min(20);
        let hold = self.first.saturating_mul(1 << doublings).min(self.longest.max(self.first));
        hold.mul_f64(1.0 - 0.1 * sample.clamp(0.0, 1.0))
    }

    /// Returns how long a hold is believed that the remote tells of: then it is asked again.
    pub(crate) fn believed(&self, left: Duration) -> Duration {
        left.min(self.longest.max(self.first).max(LEAST_BELIEVED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: HoldPolicy =
        HoldPolicy { first: Duration::from_secs(1), longest: Duration::from_secs(60) };

    #[test]
    fn the_hold_doubles_up_to_the_longest_while_stale_data_can_be_served() {
        let secs: Vec<u64> = (1..=9).map(|n| POLICY.after(n, true, 0.0).as_secs()).collect();
        assert_eq!(secs, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(POLICY.after(u32::MAX, true, 0.0).as_secs(), 60);
    }

    #[test]
    fn with_nothing_to_serve_the_hold_stays_short() {
        assert_eq!(POLICY.after(9, false, 0.0).as_secs(), 1);
    }

    #[test]
    fn what_the_remote_says_of_a_hold_is_believed_no_longer_than_a_hold_lasts_here() {
        let second = Duration::from_secs(1);
        assert_eq!(POLICY.believed(Duration::MAX), second * 60);
        assert_eq!(POLICY.believed(second / 2), second / 2);
        let none = HoldPolicy { first: Duration::ZERO, longest: Duration::ZERO };
        assert_eq!(none.believed(Duration::MAX), second);
    }

    #[test]
    fn jitter_shortens_by_a_tenth_at_most() {
        assert_eq!(POLICY.after(1, true, 1.0), Duration::from_millis(900));
    }
}
