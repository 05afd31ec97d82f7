//! The handles of a cache for its metrics.
//!
//! There is no other way to report one: a handle is asked for by its [`Metric`].

use std::sync::OnceLock;

use crate::observe::labels::{FillResult, LocalLock};
use crate::observe::metrics::{
    CAN_REPORT, Counter, Gauge, Histogram, counter, gauge, has_recorder, histogram,
};
use crate::observe::stats::Stats;
use crate::observe::table::Metric;
use crate::outcome::CacheOutcome;

/// The metrics of one cache. What every caller reports has a handle; all else is found by its
/// name when it is reported.
#[derive(Debug)]
pub(super) struct Meters {
    cache: String,
    at_build: Handles,
    has_found_recorder: bool,
    /// The handles of a recorder that was installed after the cache was built.
    later: OnceLock<Handles>,
}

/// The handles of one recorder, or those that do nothing.
#[derive(Debug)]
pub(super) struct Handles {
    pub(super) requests: [Counter; CacheOutcome::ALL.len()],
    pub(super) origin_duration: Histogram,
    pub(super) wait_duration: Histogram,
    locks: [Counter; LocalLock::ALL.len()],
    fills: [Counter; FillResult::ALL.len()],
}

impl Handles {
    fn of(cache: &str) -> Self {
        let request =
            |it: CacheOutcome| counter(cache, Metric::Requests, &[("outcome", it.as_str())]);
        let lock = |place: usize| {
            let result = LocalLock::ALL[place].as_str();
            counter(cache, Metric::Lock, &[("scope", "local"), ("result", result)])
        };
        let fill = |place: usize| {
            counter(cache, Metric::Fill, &[("result", FillResult::ALL[place].as_str())])
        };
        Self {
            requests: CacheOutcome::ALL.map(request),
            origin_duration: histogram(cache, Metric::OriginDuration, &[]),
            wait_duration: histogram(cache, Metric::WaitDuration, &[]),
            locks: std::array::from_fn(lock),
            fills: std::array::from_fn(fill),
        }
    }

    pub(super) fn lock(&self, what: LocalLock) {
        self.locks[what as usize].increment(1);
    }

    pub(super) fn fill(&self, what: FillResult) {
        self.fills[what as usize].increment(1);
    }
}

impl Meters {
    pub(super) fn new(cache: &str) -> Self {
        Self {
            cache: cache.to_owned(),
            at_build: Handles::of(cache),
            has_found_recorder: has_recorder(),
            later: OnceLock::new(),
        }
    }

    /// Returns the handles as they are known.
    #[inline]
    pub(super) fn handles(&self) -> &Handles {
        if CAN_REPORT { self.later.get().unwrap_or(&self.at_build) } else { &self.at_build }
    }

    /// Returns the handles, of a recorder that was installed later, too. Each report but that
    /// of a hit comes here, and the tidying task: after that, hits are reported as well.
    pub(super) fn current(&self) -> &Handles {
        if !self.has_found_recorder && self.later.get().is_none() && has_recorder() {
            // Made first: the recorder is the user's code, and may report to this cache.
            let handles = Handles::of(&self.cache);
            let _ = self.later.set(handles);
        }
        self.handles()
    }

    pub(super) fn add(&self, metric: Metric, labels: &[(&'static str, &str)]) {
        counter(&self.cache, metric, labels).increment(1);
    }

    pub(super) fn of_store(&self, op: &str) -> Histogram {
        histogram(&self.cache, Metric::StoreDuration, &[("store", "remote"), ("op", op)])
    }

    pub(super) fn store_error(&self, op: &str, kind: &str) {
        self.add(Metric::StoreErrors, &[("store", "remote"), ("op", op), ("kind", kind)]);
    }

    /// Reported only where there is a remote: at zero, it wakes an operator up.
    pub(super) fn store_is(&self, up: bool) {
        self.of(Metric::StoreUp, &[("store", "remote")]).set(f64::from(u8::from(up)));
    }

    fn of(&self, metric: Metric, labels: &[(&'static str, &str)]) -> Gauge {
        gauge(&self.cache, metric, labels)
    }

    /// Sets the gauges.
    #[expect(clippy::cast_precision_loss, reason = "gauges are f64, and no count comes near 2^53")]
    pub(super) fn gauge(&self, stats: &Stats) {
        self.current();
        self.of(Metric::Inflight, &[]).set(stats.flights as f64);
        self.of(Metric::Waiters, &[]).set(stats.waiting as f64);
        self.of(Metric::ComputationLimit, &[]).set(stats.computation_limit as f64);
        self.of(Metric::OldestStale, &[]).set(stats.oldest_stale.as_secs_f64());
        self.of(Metric::Entries, &[]).set(stats.entries as f64);
        self.of(Metric::Bytes, &[]).set(stats.bytes as f64);
        self.of(Metric::ArrivingBytes, &[]).set(stats.arriving_bytes as f64);
        counter(&self.cache, Metric::Evictions, &[]).absolute(stats.evictions);
        let saved = stats.origin_time_saved.as_secs();
        counter(&self.cache, Metric::OriginSecondsSaved, &[]).absolute(saved);
    }
}
