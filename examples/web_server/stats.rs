//! The figures for scripts and for Prometheus.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use serde_json::{Value, json};

use crate::origin::Lane;
use crate::{App, redis};

/// `GET /stats`
pub(crate) async fn show(State(app): State<Arc<App>>) -> impl IntoResponse {
    let stats = app.cache.stats();
    let body = json!({
        "origin_calls": {
            "protected": calls(&app, Lane::Protected),
            "unprotected": calls(&app, Lane::Unprotected),
        },
        "hits": stats.hits,
        "stale": stats.stale + stats.stale_if_error,
        "waiters": stats.waiting,
        "flights": stats.flights,
        "refused_fills": stats.refused_fills,
        "origin_seconds_saved": stats.origin_time_saved.as_secs_f64(),
        "remote": redis::state(&app.cache, app.flags.redis.as_ref()),
    });
    ([(header::CACHE_CONTROL, "no-store")], Json(body))
}

fn calls(app: &App, lane: Lane) -> Value {
    let counted = app.origin.calls(lane).snapshot();
    json!({"total": counted.total, "per_id": counted.per_id})
}

/// `GET /metrics`
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    // Reading the counts also sets the gauges.
    let stats = app.cache.stats();
    let text = app.metrics.render(&stats);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
