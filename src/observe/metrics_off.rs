//! Stands in for the metrics where the feature is off: costs nothing.

use std::time::Duration;

use crate::flight::ports::{ComputedEnd, Occurrence};
use crate::observe::Stats;
use crate::outcome::CacheOutcome;

#[derive(Debug)]
pub(super) struct MetersOff;

#[expect(clippy::unused_self, reason = "the shape of the real one")]
impl MetersOff {
    pub(super) fn new(_: &str) -> Self {
        Self
    }

    #[inline]
    pub(super) fn answered(&self, _: CacheOutcome) {}

    #[cfg(feature = "http")]
    pub(super) fn bypassed(&self, _: &'static str) {}

    pub(super) fn computed(&self, _: &'static str, _: Duration) {}

    pub(super) fn filled(&self, _: ComputedEnd) {}

    pub(super) fn fill_refused(&self) {}

    pub(super) fn happened(&self, _: &Occurrence<'_>) {}

    pub(super) fn waited(&self, _: Duration) {}

    pub(super) fn invalidated(&self, _: &'static str) {}

    pub(super) fn gauge(&self, _: &Stats) {}
}
