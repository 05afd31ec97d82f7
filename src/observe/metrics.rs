//! Handles through the `metrics` facade, with the name of the cache as their
//! first label.

use ::metrics::Label;
pub(super) use ::metrics::{Counter, Gauge, Histogram};

use crate::observe::table::Metric;

pub(super) const CAN_REPORT: bool = true;

type Labels<'a> = &'a [(&'static str, &'a str)];

pub(super) fn counter(cache: &str, metric: Metric, labels: Labels<'_>) -> Counter {
    ::metrics::counter!(metric.name(), of(cache, labels))
}

pub(super) fn gauge(cache: &str, metric: Metric, labels: Labels<'_>) -> Gauge {
    ::metrics::gauge!(metric.name(), of(cache, labels))
}

pub(super) fn histogram(cache: &str, metric: Metric, labels: Labels<'_>) -> Histogram {
    ::metrics::histogram!(metric.name(), of(cache, labels))
}

/// Returns whether a recorder is installed. One without any state cannot be told from none:
/// it must be there when the cache is built.
pub(super) fn has_recorder() -> bool {
    ::metrics::with_recorder(|recorder| size_of_val(recorder) > 0)
}

fn of(cache: &str, labels: Labels<'_>) -> Vec<Label> {
    let labels = [("cache", cache)].into_iter().chain(labels.iter().copied());
    labels.map(|(name, value)| Label::new(name, value.to_owned())).collect()
}
