//! The HTTP layer in many processes with one remote.
//!
//! The remote is the double in memory, and time is paused; the same with real
//! processes on a real server is in `tests/redis/processes.rs`.

mod codings;
mod ended;
mod failures;
mod privacy;
mod query;
mod shapes;
mod sharing;
mod spy;
mod streaming;
mod unknown_variants;
mod variants;
mod writes;
mod writes_model;

use axum::body::Body;
use http::Request;
use tower_layer::Layer;
use tower_stampede::remote::{Double, RemoteSettings};
use tower_stampede::{Builder, HttpService, HttpStampede, Stampede, StoredResponse};

use crate::kit::http::{Origin, Reply, try_send};
use crate::kit::spawn;

type App = HttpService<Origin>;

fn settings() -> Builder<StoredResponse> {
    Stampede::builder("web").origin_only()
}

/// One more process.
fn joined(double: &Double, settings: Builder<StoredResponse>) -> HttpStampede {
    settings.remote(double.process(), RemoteSettings::new()).build().unwrap()
}

/// One more process in front of the origin.
fn process(double: &Double, origin: &Origin) -> App {
    joined(double, settings()).http_layer().layer(origin.clone())
}

fn processes(double: &Double, origin: &Origin, n: usize) -> Vec<App> {
    (0..n).map(|_| process(double, origin)).collect()
}

/// Starts `n` clients at each of the processes at once, and waits for all.
async fn everywhere(
    apps: &[App],
    n: usize,
    request: impl Fn(usize) -> Request<Body>,
) -> Vec<Reply> {
    let clients: Vec<_> = (0..n)
        .flat_map(|i| apps.iter().map(move |app| (i, app)))
        .map(|(i, app)| {
            let (app, request) = (app.clone(), request(i));
            spawn(async move { try_send(&app, request).await })
        })
        .collect();
    let mut replies = Vec::new();
    for client in clients {
        replies.push(client.await.unwrap().expect("a response"));
    }
    replies
}
