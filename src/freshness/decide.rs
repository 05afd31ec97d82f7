//! When an entry may be used: pure functions of a reading of the clock.
//!
//! [`decide`] is the only judge of fresh, early, stale and expired. The store
//! may forget an entry sooner, to save memory; nothing but this module says
//! that one may be served.

use super::{EarlyRefresh, Window};
use crate::clock::Tick;

/// How an entry may be used at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// To be served as it is.
    Fresh,
    /// To be served as it is, and this reader has drawn the early refresh.
    Early,
    /// To be served at once, and refreshed in the background.
    Stale,
    /// To be served only in place of a failure.
    StaleIfError,
    /// Not to be served.
    Expired,
}

/// Judges an entry at `now`. One that is fresh is asked for its window only with early refresh.
/// `sample` draws from (0, 1]; it is asked only
/// when early refresh is on and the end of the lifetime is near.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn decide(
    fresh_until: Tick,
    window: impl FnOnce() -> Window,
    now: Tick,
    early: Option<&EarlyRefresh>,
    sample: impl FnOnce() -> f64,
) -> Freshness {
    if now < fresh_until {
        return match early {
            Some(early) if early.is_due(&window(), now, sample) => Freshness::Early,
            _ => Freshness::Fresh,
        };
    }
    let window = window();
    if now < window.stale_until {
        Freshness::Stale
    } else if now < window.error_until {
        Freshness::StaleIfError
    } else {
        Freshness::Expired
    }
}

/// Draws from (0, 1], never 0: a logarithm is taken of it.
pub(crate) fn sample() -> f64 {
    1.0 - fastrand::f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::freshness::Lifetimes;
    use std::time::Duration;

    /// The window of a computation from 0 s to 1 s.
    fn window() -> Window {
        let lifetimes = Lifetimes {
            ttl: Duration::from_secs(10),
            stale_for: Duration::from_secs(5),
            stale_if_error: Duration::from_secs(20),
        };
        Window::new(Tick::from_nanos(0), lifetimes, Duration::from_secs(1))
    }

    fn judge(now: Tick, early: Option<&EarlyRefresh>, sample: impl FnOnce() -> f64) -> Freshness {
        decide(window().fresh_until, window, now, early, sample)
    }

    #[test]
    fn an_entry_goes_from_fresh_to_stale_to_expired_at_the_stated_moments() {
        for (millis, expected) in [
            (1_000, Freshness::Fresh),
            (10_999, Freshness::Fresh),
            (11_000, Freshness::Stale),
            (15_999, Freshness::Stale),
            (16_000, Freshness::StaleIfError),
            (30_999, Freshness::StaleIfError),
            (31_000, Freshness::Expired),
        ] {
            let now = Tick::from_nanos(millis * 1_000_000);
            assert_eq!(judge(now, None, sample), expected, "at {millis} ms");
        }
    }

    #[test]
    fn without_early_refresh_no_sample_is_drawn() {
        judge(Tick::from_nanos(10_999_000_000), None, || panic!("drawn"));
    }

    #[test]
    fn far_from_the_end_no_sample_is_drawn() {
        let early = EarlyRefresh { beta: 1.0, max_share: 0.25 };
        judge(Tick::from_nanos(8_000_000_000), Some(&early), || panic!("drawn"));
    }
}
