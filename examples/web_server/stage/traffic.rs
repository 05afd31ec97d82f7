//! The clients of a stage: a steady stream of requests, and herds.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::HeaderMap;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::Stage;
use super::timeline::{Answers, Served, What};
use crate::child::{self, now};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a connection may be idle before it is closed.
const IDLE: Duration = Duration::from_secs(5);

/// The report that the page is about.
pub(super) const REPORT: &str = "/report/demo";

/// A client that keeps its connections.
pub(super) type HttpClient = Client<HttpConnector, Empty<Bytes>>;

pub(super) fn client() -> HttpClient {
    Client::builder(TokioExecutor::new()).pool_idle_timeout(IDLE).build_http()
}

/// Sends a POST without a body; the answer must be a success.
pub(super) async fn post(client: &HttpClient, to: SocketAddr, path: &str) -> Result<(), String> {
    let request = hyper::Request::post(format!("http://{to}{path}")).body(Empty::new());
    let sent = client.request(request.map_err(|error| error.to_string())?);
    match tokio::time::timeout(PATIENCE, sent).await {
        Ok(Ok(response)) if response.status().is_success() => Ok(()),
        Ok(Ok(response)) => Err(format!("{path} at {to}: {}", response.status())),
        Ok(Err(error)) => Err(format!("{path} at {to}: {error}")),
        Err(_) => Err(format!("{path} at {to}: no answer")),
    }
}

/// A process that may be asked.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) lane: String,
    pub(super) address: SocketAddr,
}

/// The outcome of one request at one process.
#[derive(Clone, Debug)]
struct Attempt {
    lane: String,
    from: u64,
    at: u64,
    outcome: String,
    value: Option<Served>,
}

/// The outcomes of a herd.
#[derive(Debug, Default)]
pub(super) struct Herd {
    requests: usize,
    failures: usize,
    moved: usize,
    longest: Duration,
    outcomes: BTreeMap<String, usize>,
}

impl Herd {
    pub(super) fn to_json(&self) -> Value {
        json!({
            "requests": self.requests,
            "answered": self.requests - self.failures,
            "failures": self.failures,
            "moved": self.moved,
            "max_ms": self.longest.as_secs_f64() * 1e3,
            "outcomes": self.outcomes,
        })
    }
}

/// Sends one request to the first target; where that one is gone, to the next, as a load
/// balancer does.
async fn ask(client: &HttpClient, targets: &[Target]) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for target in targets {
        let from = now();
        let answer = tokio::time::timeout(PATIENCE, get(client, target.address)).await;
        let (outcome, value) = match answer {
            Ok(Ok(answer)) => answer,
            // The process may still answer: this request is not to be sent twice.
            Err(_) => ("lost".to_owned(), None),
            Ok(Err(_)) => ("moved".to_owned(), None),
        };
        let is_over = outcome != "moved";
        attempts.push(Attempt { lane: target.lane.clone(), from, at: now(), outcome, value });
        if is_over {
            return attempts;
        }
    }
    // There was no other process to go to.
    if let Some(last) = attempts.last_mut() {
        last.outcome = "lost".into();
    }
    attempts
}

async fn get(
    client: &HttpClient,
    to: SocketAddr,
) -> Result<(String, Option<Served>), Box<dyn std::error::Error + Send + Sync>> {
    let response = client.get(format!("http://{to}{REPORT}").parse()?).await?;
    let (head, body) = response.into_parts();
    let body = body.collect().await?.to_bytes();
    let outcome = outcome_of(&head.headers);
    if head.status.is_success() {
        return Ok((outcome.to_owned(), value_of(&body)));
    }
    // An error that the cache gave, or one of the origin.
    let outcome = if outcome == "refused" { outcome } else { "failed" };
    Ok((outcome.to_owned(), None))
}

fn outcome_of(headers: &HeaderMap) -> &str {
    headers.get(child::OUTCOME).and_then(|value| value.to_str().ok()).unwrap_or("hit")
}

fn value_of(body: &[u8]) -> Option<Served> {
    let report: Value = serde_json::from_slice(body).ok()?;
    let number = |name: &str| report[name].as_u64();
    let (version, pid) = (number("version")?, number("pid")?);
    Some(Served { version, pid, computed_at: number("computed_at")? })
}

/// The targets in the order in which request `n` tries them.
fn order(targets: &[Target], n: usize) -> Vec<Target> {
    let mut targets = targets.to_vec();
    let first = n % targets.len().max(1);
    targets.rotate_left(first);
    targets
}

/// One request of the steady stream.
pub(super) async fn trickle(stage: &Arc<Stage>, targets: &[Target], n: usize) {
    let attempts = ask(&stage.client, &order(targets, n)).await;
    let mut herd = Herd::default();
    record(stage, vec![attempts], &mut herd);
}

/// `clients` requests at once, spread over the targets.
pub(super) async fn herd(stage: &Arc<Stage>, targets: &[Target], clients: usize) -> Herd {
    let start = Arc::new(Barrier::new(clients));
    let mut asking = JoinSet::new();
    for n in 0..clients {
        let (client, targets, start) = (stage.client.clone(), order(targets, n), start.clone());
        asking.spawn(async move {
            start.wait().await;
            let began = Instant::now();
            (ask(&client, &targets).await, began.elapsed())
        });
    }
    let mut herd = Herd::default();
    let mut all = Vec::with_capacity(clients);
    for (attempts, took) in asking.join_all().await {
        herd.longest = herd.longest.max(took);
        all.push(attempts);
    }
    record(stage, all, &mut herd);
    herd
}

/// Counts requests, and puts what came together into one event.
fn record(stage: &Stage, requests: Vec<Vec<Attempt>>, herd: &mut Herd) {
    let mut groups: BTreeMap<(String, String), (u64, Answers)> = BTreeMap::new();
    for attempts in requests {
        let Some(last) = attempts.last() else { continue };
        herd.requests += 1;
        herd.failures += usize::from(["failed", "refused", "lost"].contains(&&*last.outcome));
        herd.moved += usize::from(attempts.len() > 1);
        *herd.outcomes.entry(last.outcome.clone()).or_default() += 1;
        for attempt in attempts {
            let key = (attempt.lane, attempt.outcome.clone());
            let (outcome, value) = (attempt.outcome, attempt.value);
            let new = Answers { from: attempt.from, outcome, n: 0, value };
            let (at, answers) = groups.entry(key).or_insert((attempt.at, new));
            *at = attempt.at.max(*at);
            answers.from = attempt.from.min(answers.from);
            answers.n += 1;
            answers.value = value.or(answers.value);
        }
    }
    stage.live(|live| {
        live.timeline.counts.requests += herd.requests as u64;
        live.timeline.counts.failures += herd.failures as u64;
        live.timeline.counts.moved += herd.moved as u64;
        for ((lane, _), (at, answers)) in groups {
            live.timeline.push(at, Some(&lane), What::Answers(answers));
        }
    });
}
