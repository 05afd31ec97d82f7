//! Stands in for the spans where the feature is off: costs nothing.

use std::future::Future;

use crate::engine::ports::Happening;

pub(crate) fn in_callers_span<F: Future>(work: F) -> F {
    work
}

pub(super) fn happened(_: &str, _: &Happening<'_>) {}
