//! Spans and lines through `tracing`, target `tower_stampede`. Nothing on the
//! path of a hit, nothing at INFO, and a key only as its hash.

use std::future::Future;

use tracing::{Instrument, debug};

use crate::engine::ports::Happening;

/// Makes `work` carry the caller's span onto its own task.
pub(crate) fn in_callers_span<F: Future>(work: F) -> impl Future<Output = F::Output> {
    work.instrument(tracing::debug_span!(target: "tower_stampede", "stampede", role = "leader"))
}

pub(super) fn happened(cache: &str, what: &Happening<'_>) {
    if !tracing::enabled!(target: "tower_stampede", tracing::Level::DEBUG) {
        return;
    }
    match what {
        Happening::Computed { key, took, end } => debug!(
            target: "tower_stampede",
            cache,
            key_hash = format_args!("{:016x}", key.stable_hash()),
            took_ms = took.as_secs_f64() * 1e3,
            end = end.as_str(),
            "computed"
        ),
        Happening::Waited { took } => {
            debug!(target: "tower_stampede", cache, role = "waiter", wait_ms = took.as_secs_f64() * 1e3, "waited");
        }
        Happening::FillRefused { key } => refused(cache, "fill refused", key),
        Happening::WaitTimedOut { key } => refused(cache, "waited too long", key),
        Happening::Overloaded { key } => refused(cache, "overloaded", key),
        Happening::Held { key } => refused(cache, "held", key),
        Happening::Joined => (),
    }
}

fn refused(cache: &str, what: &str, key: &crate::Key) {
    let key_hash = format_args!("{:016x}", key.stable_hash()).to_string();
    debug!(target: "tower_stampede", cache, key_hash, "{what}");
}
