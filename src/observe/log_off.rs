//! Replaces log lines where the feature is off: costs nothing.

pub(super) use self::NoLog as Log;
use crate::observe::lines::Line;

#[derive(Debug)]
pub(super) struct NoLog;

#[expect(clippy::unused_self, reason = "the shape of the real one")]
impl NoLog {
    pub(super) fn new(_: bool) -> Self {
        Self
    }

    pub(super) fn write(&self, _: &str, _: &Line<'_>) {}

    pub(super) fn write_limited(&self, _: &str, _: &Line<'_>) {}
}

#[cfg(feature = "redis")]
pub(crate) const fn warn_of_connection(_: &str, _: &str, _: &str) {}
