//! The requests of the page: `GET /demo/stage/{stage}?since=N`, and a POST per button.

use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::{MAX_HERD, Refusal, Stage, Stages};
use crate::routes::{bad, last};

type Pairs = Query<Vec<(String, String)>>;

/// The routes; each request has to pass [`Access`](super::Access). Of paths that do
/// not exist it says nothing.
pub(crate) fn router(stages: Arc<Stages>) -> Router {
    let of = |name: &str, stage: &Arc<Stage>| {
        Router::new()
            .route(&format!("/demo/stage/{name}"), get(state))
            .route(&format!("/demo/stage/{name}/{{button}}"), post(press))
            .with_state(Arc::clone(stage))
    };
    of("solo", &stages.solo)
        .merge(of("fleet", &stages.fleet))
        .route_layer(from_fn_with_state(stages, check))
}

async fn check(
    State(stages): State<Arc<Stages>>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    stages.access.check(request.headers())?;
    Ok(next.run(request).await)
}

async fn state(
    State(stage): State<Arc<Stage>>,
    Query(query): Pairs,
) -> Result<impl IntoResponse, Refusal> {
    let since = last(&query, "since").unwrap_or("0").parse();
    let since = since.map_err(|_| bad("since is the number of an event"))?;
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(stage.state(since))))
}

async fn press(
    State(stage): State<Arc<Stage>>,
    Path(button): Path<String>,
    Query(query): Pairs,
) -> Result<Json<Value>, Refusal> {
    // A client that hangs up does not leave a button half pressed.
    let pressed = tokio::spawn(async move { act(&stage, &button, &query).await });
    let told =
        pressed.await.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    told.map(Json)
}

async fn act(
    stage: &Arc<Stage>,
    button: &str,
    query: &[(String, String)],
) -> Result<Value, Refusal> {
    match button {
        "start" => stage.start().await?,
        "stop" => {
            let mut redis = stage.take_turn()?;
            stage.stop(&mut redis).await;
        }
        "add" => stage.add().await?,
        "herd" => return stage.herd(number(query, "n", MAX_HERD)?).await,
        "kill-leader" => return stage.kill_leader().await,
        "freeze" => stage.freeze(switch(query)?).await?,
        "fail" => stage.fail(switch(query)?).await?,
        "invalidate" => stage.invalidate().await?,
        "rate" => {
            let rate = number(query, "per_second", super::MAX_RATE as usize)?;
            stage.set_rate(rate as u32);
        }
        _ => return Err((StatusCode::NOT_FOUND, "there is no such button\n".into())),
    }
    Ok(json!({}))
}

fn switch(query: &[(String, String)]) -> Result<bool, Refusal> {
    match last(query, "on") {
        Some("true") => Ok(true),
        Some("false") => Ok(false),
        _ => Err(bad("say `on=true` or `on=false`")),
    }
}

fn number(query: &[(String, String)], name: &str, most: usize) -> Result<usize, Refusal> {
    let given = last(query, name).and_then(|text| text.parse().ok()).filter(|n| *n <= most);
    given.ok_or_else(|| bad(&format!("{name} is a whole number up to {most}")))
}
