//! Stands in for the spans where the feature is off: costs nothing.

use std::future::Future;
#[cfg(feature = "http")]
use std::panic::Location;

use crate::flight::ports::Occurrence;
use crate::key::Key;

pub(crate) fn leading<F: Future>(_: &str, _: &Key, work: F) -> F {
    work
}

pub(crate) fn going_on<F: Future>(work: F) -> F {
    work
}

pub(crate) fn waiting<F: Future>(_: &str, _: &Key, wait: F) -> F {
    wait
}

pub(super) fn happened(_: &str, _: &Occurrence<'_>) {}

#[cfg(feature = "http")]
pub(super) fn layer_is_nested(_: &str, _: &Location<'_>, _: &Location<'_>, _: bool) {}

#[cfg(feature = "http")]
pub(super) fn credential_refused(_: &str, _: &str) {}
