//! The three lines that put a shared cache before an axum router, and a herd
//! that shows what they do.
//!
//! ```sh
//! cargo run --example quick_start
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use axum::{Router, body::Body, http::Request, routing::get};
use tower::ServiceExt;
use tower_stampede::Stampede;

static CALLS: AtomicU32 = AtomicU32::new(0);

/// Slow, and the same for every client.
async fn report() -> &'static str {
    CALLS.fetch_add(1, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(300)).await;
    "expensive"
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quick_start: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    // Keep what says nothing itself for a minute; one request computes it.
    let cache = Stampede::in_memory(Duration::from_secs(60));
    let app: Router = Router::new().route("/report", get(report)).layer(cache.http_layer());

    for name in ["cold", "warm"] {
        let began = Instant::now();
        let herd = (0..1000).map(|_| tokio::spawn(ask(app.clone())));
        for client in herd.collect::<Vec<_>>() {
            client.await??;
        }
        let (calls, took) = (CALLS.load(Ordering::Relaxed), began.elapsed());
        println!("{name}: 1000 requests answered in {took:.0?}, {calls} call so far");
    }
    Ok(())
}

async fn ask(app: Router) -> Result<(), axum::http::Error> {
    let request = Request::get("/report").body(Body::empty())?;
    // A router does not fail; it answers.
    let Ok(response) = app.oneshot(request).await;
    assert!(response.status().is_success());
    Ok(())
}
