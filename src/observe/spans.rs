//! Spans through `tracing`, target `tower_stampede`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::time::Instant;
use tracing::field::{Empty, display};
use tracing::{Level, Span, debug_span, enabled};

use crate::error::contain_panic;
use crate::key::Key;
use crate::observe::CacheLabel;
use crate::observe::log::{escaped, hash};
use crate::observe::rounded::Rounded;

/// Runs the work of a leader in a span below its caller's, on whatever task. Where no subscriber
/// reads that span, it runs in its caller's own: another task would have none.
pub(crate) fn leading<F: Future>(cache: &CacheLabel, key: &Key, work: F) -> SpanScope<F> {
    let span = || {
        let own = span(cache, key, "leader");
        if own.is_disabled() { Span::current() } else { own }
    };
    SpanScope::new(span, work, false)
}

/// Runs the rest of a leader's work in the current span.
pub(crate) fn going_on<F: Future>(work: F) -> SpanScope<F> {
    SpanScope::new(Span::current, work, false)
}

/// Runs a wait in its own span, and records in it how long the wait took.
pub(crate) fn waiting<F: Future>(cache: &CacheLabel, key: &Key, wait: F) -> SpanScope<F> {
    SpanScope::new(|| span(cache, key, "waiter"), wait, true)
}

fn span(cache: &CacheLabel, key: &Key, role: &'static str) -> Span {
    // The hash is computed only where a subscriber reads it.
    if !enabled!(target: "tower_stampede", Level::DEBUG) {
        return Span::none();
    }
    debug_span!(
        target: "tower_stampede",
        "stampede",
        cache = cache.name,
        role,
        key_hash = hash(key),
        key = cache.log_keys.then(|| escaped(key)),
        waited = Empty,
    )
}

/// A span that a subscriber reads. It is in a box, because most waiting callers have none.
struct Watched {
    span: Span,
    waits_from: Option<Instant>,
}

pin_project! {
    /// A future that runs, and is dropped, in a span. Unlike tracing's own, it
    /// survives a subscriber that panics: the work goes on without the span.
    pub(crate) struct SpanScope<F> {
        #[pin]
        work: Option<F>,
        watched: Option<Box<Watched>>,
    }

    impl<F> PinnedDrop for SpanScope<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            let entered = Entered::new(this.watched);
            this.work.set(None);
            drop(entered);
            contain_panic(|| drop(this.watched.take()));
        }
    }
}

impl<F: Future> SpanScope<F> {
    fn new(span: impl FnOnce() -> Span, work: F, waits: bool) -> Self {
        let span = contain_panic(span).filter(|span| !span.is_none());
        let waits_from = || waits.then(Instant::now);
        let watched = span.map(|span| Box::new(Watched { waits_from: waits_from(), span }));
        Self { work: Some(work), watched }
    }
}

impl<F: Future> Future for SpanScope<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        // It is there until the drop.
        let Some(work) = this.work.as_pin_mut() else { return Poll::Pending };
        let _entered = Entered::new(&*this.watched);
        let result = work.poll(cx);
        if let (Poll::Ready(_), Some(watched)) = (&result, &*this.watched) {
            watched.record_wait();
        }
        result
    }
}

impl Watched {
    fn record_wait(&self) {
        let Some(from) = self.waits_from else { return };
        let waited = display(Rounded(from.elapsed()));
        contain_panic(|| self.span.record("waited", waited).is_none());
    }
}

/// A stay in a span.
struct Entered<'a>(Option<tracing::span::Entered<'a>>);

impl<'a> Entered<'a> {
    fn new(watched: &'a Option<Box<Watched>>) -> Self {
        Self(watched.as_ref().and_then(|watched| contain_panic(|| watched.span.enter())))
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        contain_panic(|| drop(self.0.take()));
    }
}
