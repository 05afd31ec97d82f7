//! Handles through the `metrics` facade, with the name of the cache as their
//! first label.

pub(super) use ::metrics::{Counter, Histogram};
use ::metrics::{Gauge, Label};

type Labels<'a> = &'a [(&'static str, &'a str)];

pub(super) fn counter(cache: &str, name: &'static str, labels: Labels<'_>) -> Counter {
    ::metrics::counter!(name, of(cache, labels))
}

pub(super) fn gauge(cache: &str, name: &'static str, labels: Labels<'_>) -> Gauge {
    ::metrics::gauge!(name, of(cache, labels))
}

pub(super) fn histogram(cache: &str, name: &'static str, labels: Labels<'_>) -> Histogram {
    ::metrics::histogram!(name, of(cache, labels))
}

fn of(cache: &str, labels: Labels<'_>) -> Vec<Label> {
    let labels = [("cache", cache)].into_iter().chain(labels.iter().copied());
    labels.map(|(name, value)| Label::new(name, value.to_owned())).collect()
}
