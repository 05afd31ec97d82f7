//! An answer that comes word by word, as a language model's does, and the readers that the page
//! sends to it. No part of a real server but [`site`].

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{Request, StatusCode, header};
use axum::response::{IntoResponse, Sse, sse::Event};
use axum::routing::get;
use axum::{BoxError, Json, Router};
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::Mutex as Turn;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower_stampede::{ConfigError, HttpStampede, Stampede, StreamRule};

use crate::App;
use crate::herd::{self, Client};
use crate::routes::last;

const PATH: &str = "/answer";
const TEXT: &str = "One producer sends these words, and a hundred clients read them. A client that \
     comes late begins with the first word, and no client waits for a slow one. [DONE]";
/// How long a word takes.
const WORD: Duration = Duration::from_millis(120);
const READERS: usize = 100;
/// After which time the next reader comes.
const NEXT: Duration = Duration::from_millis(20);
/// Each tenth reader pauses so long after each read.
const SLOW: Duration = Duration::from_millis(200);

/// What the page shows of the last stream.
pub(crate) struct StreamDemo {
    /// Of its own: what it computes is not the report.
    cache: HttpStampede,
    turn: Turn<()>,
    producers: AtomicUsize,
    produced: AtomicUsize,
    /// How many words each reader has.
    read: Mutex<Vec<usize>>,
}

impl StreamDemo {
    pub(crate) fn new() -> Result<Self, ConfigError> {
        Ok(Self {
            cache: Stampede::builder("answers").origin_only().build()?,
            turn: Turn::default(),
            producers: AtomicUsize::new(0),
            produced: AtomicUsize::new(0),
            read: Mutex::default(),
        })
    }

    fn reads<T>(&self, f: impl FnOnce(&mut Vec<usize>) -> T) -> T {
        f(&mut self.read.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn shown(&self) -> Value {
        let read = self.reads(|read| read.clone());
        let words: Vec<_> = TEXT.split(' ').collect();
        let most = read.iter().max().map_or(0, |most| words.len().min(*most));
        json!({
            "producers": self.producers.load(Relaxed),
            "produced": self.produced.load(Relaxed),
            "words": words.len(),
            "said": words[..most].join(" "),
            "read": read,
        })
    }
}

/// The handler behind a layer that shares its stream, and what the page asks.
pub(crate) fn site(app: &Arc<App>) -> Router<Arc<App>> {
    let complete = StreamRule::end_mark("data: [DONE]").ttl(Duration::from_secs(60));
    let layer = app.stream.cache.http_layer().share_streams(complete);
    let answer = Router::new().route(PATH, get(answer)).layer(layer);
    answer.merge(Router::new().route("/demo/stream", get(state).post(send_readers)))
}

async fn answer(State(app): State<Arc<App>>) -> impl IntoResponse {
    app.stream.producers.fetch_add(1, Relaxed);
    let words = stream::iter(TEXT.split(' ')).then(move |word| {
        let app = Arc::clone(&app);
        async move {
            sleep(WORD).await;
            app.stream.produced.fetch_add(1, Relaxed);
            Ok::<_, BoxError>(Event::default().data(word))
        }
    });
    Sse::new(words)
}

async fn state(State(app): State<Arc<App>>) -> impl IntoResponse {
    ([(header::CACHE_CONTROL, "no-store")], Json(app.stream.shown()))
}

/// A hundred readers, one after the other: of a new stream, or of the one that is stored.
async fn send_readers(
    State(app): State<Arc<App>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Json<Value>, (StatusCode, String)> {
    let demo = &app.stream;
    let busy = |_| (StatusCode::CONFLICT, "readers are on their way already\n".into());
    let _turn = demo.turn.try_lock().map_err(busy)?;
    if last(&query, "again") != Some("true") {
        demo.cache.invalidate_path(PATH).await;
    }
    let to = app.demo.address();
    let clients = herd::connect(to, READERS).await.map_err(|error| herd::unreachable(&error))?;
    demo.producers.store(0, Relaxed);
    demo.produced.store(0, Relaxed);
    demo.reads(|read| *read = vec![0; READERS]);
    let mut readers = JoinSet::new();
    for (place, client) in clients.into_iter().enumerate() {
        let (app, host) = (Arc::clone(&app), to.to_string());
        readers.spawn(async move {
            sleep(NEXT * u32::try_from(place).unwrap_or_default()).await;
            read(&app, client, place, &host).await
        });
    }
    let failed = readers.join_all().await.into_iter().filter(Result::is_err).count();
    let mut shown = demo.shown();
    shown["failed"] = failed.into();
    Ok(Json(shown))
}

/// Reads the answer to its end, and counts its words.
async fn read(app: &App, mut client: Client, place: usize, host: &str) -> Result<(), BoxError> {
    let request = Request::get(PATH).header(header::HOST, host).body(Body::empty())?;
    let mut body = client.sender.send_request(request).await?.into_body();
    let mut lines = 0;
    while let Some(frame) = body.frame().await {
        let bytes = frame?.into_data().unwrap_or_default();
        // Each word is a line, and a blank one.
        lines += bytes.iter().filter(|byte| **byte == b'\n').count();
        app.stream.reads(|read| read[place] = lines / 2);
        if place % 10 == 9 {
            sleep(SLOW).await;
        }
    }
    Ok(())
}
