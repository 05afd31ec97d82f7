//! What the buttons of the page do. No part of a real server.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::Mutex as Turn;

use crate::App;
use crate::herd::{self, Outcome, Reply};
use crate::origin::Lane;
use crate::routes::{bad, last};

/// The report the page is about.
pub(crate) const ID: &str = "demo";
/// The largest herd.
const MAX_HERD: usize = 1000;
/// How many follow the client that hangs up.
const FOLLOWERS: usize = 100;

/// What the page needs beyond the server.
#[derive(Debug)]
pub(crate) struct Demo {
    address: SocketAddr,
    /// One herd at a time in each lane, so that its calls can be told.
    protected: Turn<()>,
    unprotected: Turn<()>,
    report: Mutex<Stored>,
}

/// What must be stored under `/report/demo`.
#[derive(Debug, Default)]
struct Stored {
    began: Option<Instant>,
    invalidated: Option<Instant>,
}

pub(crate) fn router() -> Router<Arc<App>> {
    Router::new()
        .route("/demo/state", get(state))
        .route("/demo/herd", post(herd))
        .route("/demo/hang-up", post(hang_up))
}

impl Demo {
    pub(crate) fn new(listening: SocketAddr) -> Self {
        // A client cannot connect to "every address".
        let ip = match listening.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        Self {
            address: SocketAddr::new(ip, listening.port()),
            protected: Turn::default(),
            unprotected: Turn::default(),
            report: Mutex::default(),
        }
    }

    /// Where our own clients find us.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Takes note of a report that was computed behind the layer.
    pub(crate) fn computed(&self, id: &str, began: Instant) {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        if id == ID && report.invalidated.is_none_or(|at| at < began) {
            report.began = Some(began);
        }
    }

    /// Takes note of an invalidation.
    pub(crate) fn invalidated(&self, id: &str) {
        if id == ID {
            let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
            *report = Stored { began: None, invalidated: Some(Instant::now()) };
        }
    }

    fn age(&self) -> Option<Duration> {
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.began.map(|began| began.elapsed())
    }

    fn turn(&self, lane: Lane) -> &Turn<()> {
        match lane {
            Lane::Protected => &self.protected,
            Lane::Unprotected => &self.unprotected,
        }
    }
}

/// What the page shows live; polled, so it is small.
async fn state(State(app): State<Arc<App>>) -> impl IntoResponse {
    let stats = app.cache.stats();
    let lane = |lane| {
        let calls = app.origin.calls(lane);
        json!({"calls": calls.total(), "requests": calls.requests()})
    };
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let body = json!({
        "protected": lane(Lane::Protected),
        "unprotected": lane(Lane::Unprotected),
        "waiting": stats.waiting,
        "flights": stats.flights,
        "saved_seconds": stats.origin_time_saved.as_secs_f64(),
        "failing": app.origin.is_failing(),
        "age_ms": app.demo.age().map(millis),
        "ttl_ms": millis(app.flags.ttl),
        "stale_ms": millis(app.flags.stale),
        "work_ms": millis(app.flags.work),
    });
    ([(header::CACHE_CONTROL, "no-store")], Json(body))
}

/// `n` clients at once.
async fn herd(
    State(app): State<Arc<App>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, (StatusCode, String)> {
    let (lane, path) = lane_of(&query)?;
    let clients = match last(&query, "n").unwrap_or("500").parse() {
        Ok(clients @ 1..=MAX_HERD) => clients,
        _ => return Err(bad("n is a whole number from 1 to 1000")),
    };
    let _turn = app.demo.turn(lane).try_lock().map_err(|_| busy())?;
    let before = app.origin.calls(lane).of(ID);
    let replies = herd::stampede(app.demo.address, path, clients)
        .await
        .map_err(|error| herd::unreachable(&error))?;
    Ok(Json(told(&replies, app.origin.calls(lane).of(ID) - before)).into_response())
}

/// One client asks for what is not stored, a hundred follow, the first leaves.
async fn hang_up(
    State(app): State<Arc<App>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, (StatusCode, String)> {
    let (lane, path) = lane_of(&query)?;
    let _turn = app.demo.turn(lane).try_lock().map_err(|_| busy())?;
    if lane == Lane::Protected {
        app.cache.invalidate_path(path).await;
        app.demo.invalidated(ID);
    }
    let before = app.origin.calls(lane).of(ID);
    let replies = herd::leader_leaves(app.demo.address, path, FOLLOWERS)
        .await
        .map_err(|error| herd::unreachable(&error))?;
    Ok(Json(told(&replies, app.origin.calls(lane).of(ID) - before)).into_response())
}

fn lane_of(query: &[(String, String)]) -> Result<(Lane, &'static str), (StatusCode, String)> {
    match last(query, "lane") {
        Some("protected") => Ok((Lane::Protected, "/report/demo")),
        Some("unprotected") => Ok((Lane::Unprotected, "/unprotected/demo")),
        _ => Err(bad("lane is `protected` or `unprotected`")),
    }
}

fn busy() -> (StatusCode, String) {
    (StatusCode::CONFLICT, "a herd is on its way already\n".into())
}

/// Sums up what the clients tell.
fn told(replies: &[Reply], origin_calls: u64) -> Value {
    let outcomes: String = replies.iter().map(|reply| letter(reply.outcome)).collect();
    let answered = |reply: &&Reply| reply.outcome != Outcome::Left;
    let mut times: Vec<_> = replies.iter().filter(answered).map(|reply| reply.took).collect();
    times.sort_unstable();
    let share = |percent: usize| {
        let at = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(at).map(|time| time.as_secs_f64() * 1e3)
    };
    json!({
        "requests": replies.len(),
        "origin_calls": origin_calls,
        "outcomes": outcomes,
        "p50_ms": share(50),
        "p99_ms": share(99),
        "max_ms": share(100),
    })
}

fn letter(outcome: Outcome) -> char {
    match outcome {
        Outcome::Called => 'c',
        Outcome::Waited => 'w',
        Outcome::Hit => 'h',
        Outcome::Stale => 's',
        Outcome::CalledInVain => 'F',
        Outcome::Failed => 'f',
        Outcome::Left => 'l',
    }
}
