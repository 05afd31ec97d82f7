//! Early refresh: each reader near the end draws whether to refresh now.
//!
//! The draw is XFetch (Vattani, Chierichetti, Lowenstein: "Optimal
//! Probabilistic Cache Stampede Prevention", PVLDB 8, 2015): refresh when
//! `now + computed_in * beta * -ln(sample) >= end of the lifetime`. A costly
//! entry is refreshed earlier than a cheap one, and the more readers there are
//! the earlier one of them draws it.

use std::time::Duration;

use crate::clock::Tick;
use crate::freshness::Window;

/// How eager readers are to refresh before the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EarlyRefresh {
    /// 1 is the paper's optimum; larger is earlier.
    pub(crate) beta: f64,
    /// The part of the lifetime before its end in which refreshes may fall. A
    /// computation nearly as long as the lifetime would otherwise never rest.
    pub(crate) max_share: f64,
}

impl EarlyRefresh {
    #[inline]
    pub(super) fn is_due(&self, window: &Window, now: Tick, sample: impl FnOnce() -> f64) -> bool {
        let left = window.fresh_until.since(now);
        left <= window.lifetime().mul_f64(self.max_share)
            && left <= self.lead(window.computed_in(), sample())
    }

    fn lead(&self, computed_in: Duration, sample: f64) -> Duration {
        let factor = self.beta * -sample.ln();
        Duration::try_from_secs_f64(computed_in.as_secs_f64() * factor).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::freshness::{Freshness, Lifetimes, decide};

    const EULER_GAMMA: f64 = 0.577_215_664_9;

    /// One cycle of reads at `rate` per second under `decide` alone: no flight
    /// keeps a second reader from recomputing while the first one does.
    /// Returns the recomputations and by how much the first led the end.
    fn cycle(rng: &mut fastrand::Rng, early: EarlyRefresh, rate: f64, delta: f64) -> (u32, f64) {
        let ttl = 600.0;
        let lifetimes = Lifetimes {
            ttl: Duration::from_secs_f64(ttl),
            stale_for: Duration::ZERO,
            stale_if_error: Duration::ZERO,
        };
        let window = Window::new(Tick::from_nanos(0), lifetimes, Duration::from_secs_f64(delta));
        let end = delta + ttl;
        // Reads before this are never early: the chance is below e^-20.
        let mut at = end - 25.0 * early.beta * delta;
        let (mut recomputations, mut lead, mut refreshed_at) = (0, 0.0, f64::INFINITY);
        while at < refreshed_at {
            let now = Tick::from_nanos((at * 1e9) as u64);
            if decide(window.fresh_until, || window, now, Some(&early), || 1.0 - rng.f64())
                != Freshness::Fresh
            {
                recomputations += 1;
                if recomputations == 1 {
                    lead = end - at;
                    refreshed_at = at + delta;
                }
            }
            at += -(1.0 - rng.f64()).ln() / rate;
        }
        (recomputations, lead)
    }

    fn simulate(beta: f64) -> (f64, f64, u32) {
        let early = EarlyRefresh { beta, max_share: 1.0 };
        let mut rng = fastrand::Rng::with_seed(7);
        let cycles = 2500;
        let runs: Vec<_> = (0..cycles).map(|_| cycle(&mut rng, early, 200.0, 0.5)).collect();
        let mean = |sum: f64| sum / f64::from(cycles);
        let mut counts: Vec<u32> = runs.iter().map(|run| run.0).collect();
        counts.sort_unstable();
        let recomputations = mean(counts.iter().map(|n| f64::from(*n)).sum());
        (recomputations, mean(runs.iter().map(|run| run.1).sum()), counts[counts.len() * 99 / 100])
    }

    #[test]
    fn without_flights_a_cycle_has_e_to_the_one_over_beta_recomputations() {
        for beta in [1.0, 2.0] {
            let (recomputations, _, _) = simulate(beta);
            let expected = (1.0 / beta).exp();
            assert!(
                (recomputations / expected - 1.0).abs() < 0.08,
                "beta {beta}: {recomputations} recomputations, expected {expected}"
            );
        }
    }

    #[test]
    fn the_99th_percentile_at_beta_one_is_eleven_recomputations() {
        let (_, _, p99) = simulate(1.0);
        assert!((9..=13).contains(&p99), "p99 is {p99}");
    }

    #[test]
    fn the_mean_lead_is_the_gumbel_mean() {
        for beta in [1.0, 2.0] {
            let (_, lead, _) = simulate(beta);
            let scale = beta * 0.5;
            let expected = scale * ((200.0 * scale).ln() + EULER_GAMMA);
            assert!((lead / expected - 1.0).abs() < 0.05, "beta {beta}: {lead}, not {expected}");
        }
    }

    #[test]
    fn a_computation_longer_than_the_lifetime_is_led_by_no_more_than_the_share() {
        let lifetimes = Lifetimes {
            ttl: Duration::from_secs(8),
            stale_for: Duration::ZERO,
            stale_if_error: Duration::ZERO,
        };
        let window = Window::new(Tick::from_nanos(0), lifetimes, Duration::from_secs(60));
        let early = EarlyRefresh { beta: 1.0, max_share: 0.25 };
        let at = |secs: u64| {
            decide(
                window.fresh_until,
                || window,
                Tick::from_nanos(secs * 1_000_000_000),
                Some(&early),
                || 1e-9,
            )
        };
        assert_eq!(at(65), Freshness::Fresh);
        assert_eq!(at(66), Freshness::Early);
    }
}
