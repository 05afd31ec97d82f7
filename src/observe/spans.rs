//! Spans and log lines through `tracing`, target `tower_stampede`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::time::Instant;
use tracing::field::{Empty, display};
use tracing::{Level, Span, debug_span, enabled, event};

use crate::key::Key;
use crate::observe::contain_panic;
use crate::observe::table::Line;

/// Runs the work of a leader in a span below its caller's, on whatever task.
pub(crate) fn leading<F: Future>(cache: &str, key: &Key, work: F) -> SpanScope<F> {
    SpanScope::new(|| span(cache, key, "leader"), work, None)
}

/// Runs the rest of a leader's work in the current span.
pub(crate) fn going_on<F: Future>(work: F) -> SpanScope<F> {
    SpanScope::new(Span::current, work, None)
}

/// Runs a wait in its own span, and records in it how long the wait took.
pub(crate) fn waiting<F: Future>(cache: &str, key: &Key, wait: F) -> SpanScope<F> {
    SpanScope::new(|| span(cache, key, "waiter"), wait, Some(Instant::now()))
}

fn span(cache: &str, key: &Key, role: &'static str) -> Span {
    // The hash is computed only where a subscriber reads it.
    if !enabled!(target: "tower_stampede", Level::DEBUG) {
        return Span::none();
    }
    debug_span!(
        target: "tower_stampede",
        "stampede",
        cache,
        role,
        key_hash = hash(key),
        wait_ms = Empty,
    )
}

fn hash(key: &Key) -> impl tracing::Value + use<> {
    display(format!("{:016x}", key.stable_hash()))
}

pub(super) fn debug(cache: &str, line: &Line<'_>) {
    if !enabled!(target: "tower_stampede", Level::DEBUG) {
        return;
    }
    event!(
        target: "tower_stampede",
        Level::DEBUG,
        cache,
        role = line.role,
        key_hash = line.key.map(hash),
        op = line.op,
        took_ms = line.took.map(|took| took.as_secs_f64() * 1e3),
        wait_ms = line.waited.map(|waited| waited.as_secs_f64() * 1e3),
        end = line.end,
        error = line.error,
        how = line.how,
        "{}",
        line.message
    );
}

pub(super) fn warn(cache: &str, line: &Line<'_>) {
    event!(
        target: "tower_stampede",
        Level::WARN,
        cache,
        field = line.field,
        "{}",
        line.message
    );
}

pin_project! {
    /// A future that runs, and is dropped, in a span. Unlike tracing's own, it
    /// survives a subscriber that panics: the work goes on without the span.
    pub(crate) struct SpanScope<F> {
        #[pin]
        work: Option<F>,
        span: Span,
        waits_from: Option<Instant>,
    }

    impl<F> PinnedDrop for SpanScope<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            let entered = Entered::new(this.span);
            this.work.set(None);
            drop(entered);
            contain_panic(|| drop(std::mem::replace(this.span, Span::none())));
        }
    }
}

impl<F: Future> SpanScope<F> {
    fn new(span: impl FnOnce() -> Span, work: F, waits_from: Option<Instant>) -> Self {
        let span = contain_panic(span).unwrap_or_else(Span::none);
        Self { work: Some(work), span, waits_from }
    }
}

impl<F: Future> Future for SpanScope<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        // It is there until the drop.
        let Some(work) = this.work.as_pin_mut() else { return Poll::Pending };
        let _entered = Entered::new(this.span);
        let result = work.poll(cx);
        if let (Poll::Ready(_), Some(from)) = (&result, this.waits_from) {
            let waited = from.elapsed().as_secs_f64() * 1e3;
            contain_panic(|| this.span.record("wait_ms", waited).is_none());
        }
        result
    }
}

/// A stay in a span.
struct Entered<'a>(Option<tracing::span::Entered<'a>>);

impl<'a> Entered<'a> {
    fn new(span: &'a Span) -> Self {
        Self(contain_panic(|| span.enter()))
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        contain_panic(|| drop(self.0.take()));
    }
}
