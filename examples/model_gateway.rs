//! A gateway in front of a language model: clients with one prompt share an answer from its first
//! token on, and later clients get it again. An answer that was cut is not stored.
//!
//! ```sh
//! cargo run --example model_gateway
//! ```

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use axum::response::{IntoResponse, Sse, sse::Event};
use axum::{Router, body::Bytes, http::Request, http::request::Parts, routing::post};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use tokio::time::{Duration, sleep};
use tower::ServiceExt;
use tower_stampede::{BoxError, HttpStampede, Stampede, StreamRule};

static CALLS: AtomicU32 = AtomicU32::new(0);

/// The fake model: a token each 100 ms, and an answer that breaks off where the prompt says so.
async fn model(body: String) -> impl IntoResponse {
    CALLS.fetch_add(1, Relaxed);
    let tokens = ["Once", "upon", "a", "time", "[DONE]"];
    let said = stream::iter(tokens).take(if body.contains("break off") { 2 } else { 5 });
    Sse::new(said.then(async |token| {
        sleep(Duration::from_millis(100)).await;
        Ok::<_, BoxError>(Event::default().data(token))
    }))
}

/// What of a request counts: its prompt, and not its user.
fn key(_: &Parts, body: &Bytes) -> Option<String> {
    let request: Value = serde_json::from_slice(body).ok()?;
    Some(request.get("prompt")?.to_string())
}

async fn ask(app: &Router, after: u64, user: &str, prompt: &str) -> Result<(), BoxError> {
    sleep(Duration::from_millis(after)).await;
    let request = Request::post("/chat").body(json!({"user": user, "prompt": prompt}).to_string());
    let mut events = app.clone().oneshot(request?).await?.into_body().into_data_stream();
    while let Some(some) = events.try_next().await? {
        let tokens = String::from_utf8_lossy(&some).replace("data:", "").replace('\n', "");
        println!("{user}:{tokens}");
    }
    println!("{user} has it all, calls of the model: {}", CALLS.load(Relaxed));
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    let answers = StreamRule::end_mark("data: [DONE]").ttl(Duration::from_secs(3600));
    let layer = cache.http_layer().cache_posts(|head| head.uri.path() == "/chat").post_key(key);
    let app = Router::new().route("/chat", post(model)).layer(layer.share_streams(answers));
    tokio::try_join!(ask(&app, 0, "Ada", "a tale"), ask(&app, 250, "Ben", "a tale"))?;
    ask(&app, 0, "Cem", "a tale").await?;
    ask(&app, 0, "Dee", "break off").await?;
    ask(&app, 0, "Eve", "break off").await
}
