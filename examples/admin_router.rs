//! The router for operators, behind a token: health, keys, a purge, and counts.
//!
//! ```sh
//! cargo run --example admin_router --features admin
//! ```
//!
//! `web_server` mounts it on a server that listens. The feature `metrics` is in the recipe "OpenTelemetry".

use std::process::ExitCode;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::{Router, routing::get};
use tower::ServiceExt;
use tower_stampede::{Stampede, admin};

async fn only_operators(request: Request, next: Next) -> Result<Response, StatusCode> {
    match request.headers().get(header::AUTHORIZATION) {
        Some(token) if token == "Bearer secret" => Ok(next.run(request).await),
        _ => Err(StatusCode::UNAUTHORIZED),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let cache = Stampede::in_memory(Duration::from_secs(60));
    let app = Router::new()
        .route("/report", get(async || "expensive"))
        .layer(cache.http_layer())
        // After the layer, and so outside of it.
        .nest("/admin", admin::router(cache).layer(from_fn(only_operators)));

    for (method, path, body) in [
        ("GET", "/report", ""),
        ("GET", "/report", ""),
        ("GET", "/admin/health", ""),
        ("GET", "/admin/keys?limit=10", ""),
        ("POST", "/admin/purge", r#"{"path": "/report"}"#),
        ("GET", "/admin/stats", ""),
    ] {
        let mut request = Request::builder().method(method).uri(path).header("host", "a.example");
        if path.starts_with("/admin") {
            request = request.header("authorization", "Bearer secret");
        }
        // A router does not fail; it answers.
        let Ok(response) = app.clone().oneshot(request.body(Body::from(body)).unwrap()).await;
        let status = response.status();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap_or_default();
        println!("{method} {path}: {status} {}", String::from_utf8_lossy(&body));
        if !status.is_success() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
