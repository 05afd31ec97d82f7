//! Prometheus text of what the handle itself counts, under the names of the feature `metrics`.
//!
//! A few counters and gauges, and no histograms: those come with the feature and a recorder, as
//! `stampede-proxy` has them.

use std::error::Error;
use std::fmt::Write;

use tower_stampede::Stats;

/// Renders what it is given, for the cache of this name.
pub(crate) struct Metrics(&'static str);

impl Metrics {
    pub(crate) fn install(cache: &'static str) -> Result<Self, Box<dyn Error>> {
        Ok(Self(cache))
    }

    pub(crate) fn render(&self, stats: &Stats) -> String {
        let outcomes = [
            ("outcome=\"hit\"", stats.hits),
            ("outcome=\"stale\"", stats.stale),
            ("outcome=\"stale_if_error\"", stats.stale_if_error),
            ("outcome=\"computed\"", stats.computed),
            ("outcome=\"joined\"", stats.joined),
            ("outcome=\"alone\"", stats.alone),
            ("outcome=\"bypass\"", stats.bypassed),
            ("outcome=\"refused\"", stats.refused),
        ];
        let done = stats.computations.saturating_sub(stats.failures);
        let calls = [
            ("reason=\"computed\"", done),
            ("reason=\"failed\"", stats.failures),
            ("reason=\"alone\"", stats.alone),
        ];
        let mut text = String::new();
        let mut metric = |name, kind, values: &[_]| metric(&mut text, self.0, name, kind, values);
        metric("stampede_requests_total", "counter", &outcomes);
        metric("stampede_origin_calls_total", "counter", &calls);
        let refused = [("result=\"refused\"", stats.refused_fills)];
        metric("stampede_fill_total", "counter", &refused);
        for (name, kind, value) in [
            ("stampede_evictions_total", "counter", stats.evictions),
            ("stampede_invalidations_total", "counter", stats.invalidations),
            ("stampede_inflight", "gauge", stats.flights as u64),
            ("stampede_waiters", "gauge", stats.waiting as u64),
            ("stampede_entries", "gauge", stats.entries),
            ("stampede_bytes", "gauge", stats.bytes),
        ] {
            metric(name, kind, &[("", value)]);
        }
        text
    }
}

fn metric(text: &mut String, cache: &str, name: &str, kind: &str, values: &[(&str, u64)]) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "# TYPE {name} {kind}");
    for (label, value) in values {
        let comma = if label.is_empty() { "" } else { "," };
        let _ = writeln!(text, "{name}{{cache=\"{cache}\"{comma}{label}}} {value}");
    }
}
