//! What the process says of itself: `/healthz`, `/metrics`.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use axum::body::Body;
use http::{HeaderValue, Response, StatusCode, header};
use tower_stampede::Stats;

use crate::access_log::Counts;
use crate::metrics::Metrics;

/// What is counted beside the cache.
pub(crate) struct Status {
    metrics: Metrics,
    is_loading: AtomicBool,
    is_draining: AtomicBool,
    connections: AtomicU64,
    pub(crate) failed_handshakes: AtomicU64,
    pub(crate) reloads: AtomicU64,
    pub(crate) failed_reloads: AtomicU64,
    pub(crate) log: Arc<Counts>,
}

/// A connection that is open.
pub(crate) struct Counted<'s>(&'s AtomicU64);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Status {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self {
            metrics,
            is_loading: AtomicBool::new(true),
            is_draining: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            failed_handshakes: AtomicU64::new(0),
            reloads: AtomicU64::new(0),
            failed_reloads: AtomicU64::new(0),
            log: Arc::default(),
        }
    }

    pub(crate) fn count_connection(&self) -> Counted<'_> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        Counted(&self.connections)
    }

    /// The process was told to stop.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// Clients are answered from now on.
    pub(crate) fn end_loading(&self) {
        self.is_loading.store(false, Ordering::Relaxed);
    }

    /// Returns the answer of `/healthz`.
    pub(crate) fn health(&self) -> Response<Body> {
        let is = |state: &AtomicBool| state.load(Ordering::Relaxed);
        match (is(&self.is_draining), is(&self.is_loading)) {
            (true, _) => plain(StatusCode::SERVICE_UNAVAILABLE, "draining\n".into()),
            (false, true) => plain(StatusCode::SERVICE_UNAVAILABLE, "loading\n".into()),
            (false, false) => plain(StatusCode::OK, "ok\n".into()),
        }
    }

    /// Returns the answer of `/metrics`, in the text format of Prometheus.
    pub(crate) fn metrics(&self, stats: &Stats) -> Response<Body> {
        let mut text = self.metrics.render(stats);
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        for (name, kind, value) in [
            (
                "reverse_proxy_draining",
                "gauge",
                u64::from(self.is_draining.load(Ordering::Relaxed)),
            ),
            ("reverse_proxy_connections", "gauge", read(&self.connections)),
            ("reverse_proxy_failed_handshakes_total", "counter", read(&self.failed_handshakes)),
            ("reverse_proxy_reloads_total", "counter", read(&self.reloads)),
            ("reverse_proxy_failed_reloads_total", "counter", read(&self.failed_reloads)),
            ("reverse_proxy_access_log_lines_total", "counter", read(&self.log.written)),
            ("reverse_proxy_access_log_dropped_total", "counter", read(&self.log.dropped)),
        ] {
            // Writing to a string does not fail.
            let _ = writeln!(text, "# TYPE {name} {kind}\n{name} {value}");
        }
        plain(StatusCode::OK, text)
    }
}

fn plain(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
