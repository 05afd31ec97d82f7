//! Spans and lines through `tracing`, target `tower_stampede`. Nothing on the
//! path of a hit, nothing at INFO, a WARN when the remote goes or comes back
//! and once for a setting that keeps requests from being shared, and a key only
//! as its hash.

use std::future::Future;
#[cfg(feature = "http")]
use std::panic::Location;

use tracing::field::Empty;
use tracing::{Instrument, Span, debug, debug_span, warn};

use crate::flight::ports::Occurrence;
use crate::key::Key;

/// Runs the work of a leader in a span below its caller's, on whatever task.
pub(crate) fn leading<F: Future>(
    cache: &str,
    key: &Key,
    work: F,
) -> impl Future<Output = F::Output> + use<F> {
    work.instrument(span(cache, key, "leader"))
}

/// Runs what is left of a leader's work in the span it is in.
pub(crate) fn going_on<F: Future>(work: F) -> impl Future<Output = F::Output> + use<F> {
    work.in_current_span()
}

/// Runs a wait in a span of its own, and notes how long it took.
pub(crate) fn waiting<F: Future>(
    cache: &str,
    key: &Key,
    wait: F,
) -> impl Future<Output = F::Output> + use<F> {
    let span = span(cache, key, "waiter");
    let noted = span.clone();
    async move {
        let from = tokio::time::Instant::now();
        let result = wait.await;
        noted.record("wait_ms", from.elapsed().as_secs_f64() * 1e3);
        result
    }
    .instrument(span)
}

fn span(cache: &str, key: &Key, role: &'static str) -> Span {
    // The hash is computed only where somebody looks at it.
    if !tracing::enabled!(target: "tower_stampede", tracing::Level::DEBUG) {
        return Span::none();
    }
    debug_span!(
        target: "tower_stampede",
        "stampede",
        cache,
        role,
        key_hash = format_args!("{:016x}", key.stable_hash()),
        wait_ms = Empty,
    )
}

pub(super) fn happened(cache: &str, what: &Occurrence<'_>) {
    if let Occurrence::RemoteIs { up } = *what {
        return remote_is(cache, up);
    }
    if !tracing::enabled!(target: "tower_stampede", tracing::Level::DEBUG) {
        return;
    }
    match what {
        Occurrence::Computed { key, took, end } => debug!(
            target: "tower_stampede",
            cache,
            key_hash = format_args!("{:016x}", key.stable_hash()),
            took_ms = took.as_secs_f64() * 1e3,
            end = end.as_str(),
            "computed"
        ),
        Occurrence::Waited { took } => {
            debug!(target: "tower_stampede", cache, role = "waiter", wait_ms = took.as_secs_f64() * 1e3, "waited");
        }
        Occurrence::FillRefused { key } => refused(cache, "fill refused", key),
        Occurrence::WaitTimedOut { key } => refused(cache, "waited too long", key),
        Occurrence::Overloaded { key } => refused(cache, "overloaded", key),
        Occurrence::Held { key } => refused(cache, "held", key),
        Occurrence::Led
        | Occurrence::Joined
        | Occurrence::Locked { .. }
        | Occurrence::Woken { .. }
        | Occurrence::RemoteIs { .. }
        | Occurrence::RemoteAttached
        | Occurrence::InvalidatedElsewhere { .. } => (),
        Occurrence::RemoteCalled { op, took, error } => debug!(
            target: "tower_stampede",
            cache,
            op = op.as_str(),
            took_ms = took.as_secs_f64() * 1e3,
            error,
            "asked the remote"
        ),
        Occurrence::Damaged { how } => {
            debug!(target: "tower_stampede", cache, how, "damaged value in the remote");
        }
        Occurrence::Unshareable { key } => refused(cache, "not for the remote", key),
    }
}

/// Once per change, never per request.
fn remote_is(cache: &str, up: bool) {
    if up {
        warn!(target: "tower_stampede", cache, "the remote answers again");
    } else {
        warn!(
            target: "tower_stampede",
            cache,
            "the remote is away: this process goes on with what it has and computes for itself"
        );
    }
}

#[cfg(feature = "http")]
pub(super) fn layer_is_nested(
    cache: &str,
    outer: &Location<'_>,
    inner: &Location<'_>,
    is_alike: bool,
) {
    if is_alike {
        warn!(
            target: "tower_stampede",
            cache,
            outer_created_at = %outer,
            inner_created_at = %inner,
            "two layers of one cache are nested: the inner one passes all requests through, and \
             its lifetimes have no effect; remove one of them"
        );
    } else {
        warn!(
            target: "tower_stampede",
            cache,
            outer_created_at = %outer,
            inner_created_at = %inner,
            "two layers of one cache are nested and differ in what they share: the inner one \
             passes all requests through, and the outer one stores none of their responses; \
             remove one of them"
        );
    }
}

#[cfg(feature = "http")]
pub(super) fn credential_refused(cache: &str, field: &str) {
    warn!(
        target: "tower_stampede",
        cache,
        field,
        "a response was not shared because its request carries a field that counts as a \
         credential; if the field does not say which user asks, exempt it with \
         HttpLayer::not_a_credential({field:?}); if each value of it may have responses of its \
         own, name it in HttpLayer::vary"
    );
}

fn refused(cache: &str, what: &str, key: &Key) {
    let key_hash = format_args!("{:016x}", key.stable_hash()).to_string();
    debug!(target: "tower_stampede", cache, key_hash, "{what}");
}
