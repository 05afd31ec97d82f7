//! The second eye of the oracle: how many calls a crowd costs, and how long it waits.
//!
//! A case is a page, crowds that ask for it after it has expired, and an attacker whose requests
//! have a field because of which their responses are not shared. It runs twice: with the attacker
//! and without. It is a finding if
//! - the clients' requests cost the origin more than two calls for each crowd above those of the
//!   case without the attacker;
//! - a crowd at a page that is not shared takes longer than two leaders in turn and then each
//!   client.
//!
//! All requests of the attacker have one spelling of its field: for several spellings the bound
//! is one on the average, which `http/uncacheable.rs` counts.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use fastrand::Rng;
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::time::Instant;
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_stampede::Stampede;

use crate::search::mix;

/// How the origin answers the attacker.
const ODD: [&[(&str, &str)]; 7] = [
    &[("cache-control", "no-store")],
    &[("cache-control", "private")],
    &[("cache-control", "max-age=9"), ("set-cookie", "a=b")],
    &[("cache-control", "max-age=9"), ("vary", "*")],
    &[("cache-control", "max-age=9"), ("content-type", "text/event-stream")],
    &[("status", "302"), ("location", "/elsewhere")],
    &[("status", "403"), ("cache-control", "no-store")],
];

/// How it answers every other request.
const PAGES: [&str; 5] = [
    "public, max-age=1",
    "public, max-age=1, stale-if-error=60",
    "public, max-age=2, must-revalidate",
    "no-store",
    "private",
];

/// A crowd, and when the attacker asks.
#[derive(Clone, Debug)]
struct Wave {
    /// Milliseconds after the end of the wave before.
    pause: u64,
    clients: usize,
    /// Milliseconds from the begin of the attack; the crowd comes at `ATTACK`.
    attacks: Vec<u64>,
}

/// How long the attack goes on before the crowd comes.
const ATTACK: u64 = 400;

#[derive(Clone, Debug)]
struct CrowdCase {
    odd: usize,
    page: &'static str,
    work: u64,
    /// Each client has a token of its own, and the attacker an invalid one.
    has_tokens: bool,
    are_equal: bool,
    range: bool,
    waves: Vec<Wave>,
}

impl CrowdCase {
    fn random(rng: &mut Rng) -> Self {
        let wave = |rng: &mut Rng| Wave {
            pause: rng.u64(3000..5000),
            clients: rng.usize(6..=16),
            attacks: (0..rng.usize(0..=4)).map(|_| rng.u64(0..2 * ATTACK)).collect(),
        };
        Self {
            odd: rng.usize(..ODD.len()),
            page: PAGES[rng.usize(..PAGES.len())],
            work: [50, 100, 300][rng.usize(..3)],
            has_tokens: rng.u8(..3) == 0,
            are_equal: rng.bool(),
            range: rng.u8(..6) == 0,
            waves: (0..rng.usize(1..=4)).map(|_| wave(rng)).collect(),
        }
    }

    fn is_shared(&self) -> bool {
        self.page.starts_with("public")
    }

    fn request(&self, client: Option<usize>) -> Request<Body> {
        let mut request = Request::get("/page").header("host", "shop.example");
        match client {
            None => request = request.header("x-odd", "1"),
            Some(client) if !self.are_equal => {
                request = request.header("user-agent", client.to_string());
            }
            Some(_) => {}
        }
        if self.has_tokens {
            let token = client.map_or("invalid".into(), |client| client.to_string());
            request = request.header("authorization", token);
        }
        if self.range && client.is_some() {
            request = request.header("range", "bytes=0-1");
        }
        request.body(Body::empty()).expect("the request is good")
    }

    fn answer(&self, is_odd: bool) -> Response<Body> {
        let fields = if is_odd { ODD[self.odd] } else { &[("cache-control", self.page)] };
        let mut response = Response::builder();
        for (name, value) in fields {
            response = match *name {
                "status" => response.status(value.parse::<u16>().expect("a status")),
                name => response.header(name, *value),
            };
        }
        let body = if is_odd { "odd" } else { "page" };
        response.body(Body::from(body)).expect("the response is good")
    }

    fn without_attacker(&self) -> Self {
        let mut case = self.clone();
        case.waves.iter_mut().for_each(|wave| wave.attacks.clear());
        case
    }

    /// Returns the calls of the origin for the clients, and how long the slowest client waited.
    async fn play(&self) -> (usize, Duration) {
        let cache = Stampede::builder("crowds").origin_only().jitter(0.0).build();
        let cache = cache.expect("the settings are good");
        let calls = Arc::new(AtomicUsize::new(0));
        let origin = {
            let (case, calls) = (Arc::new(self.clone()), Arc::clone(&calls));
            service_fn(move |request: Request<Body>| {
                let (case, calls) = (Arc::clone(&case), Arc::clone(&calls));
                async move {
                    let is_odd = request.headers().contains_key("x-odd");
                    calls.fetch_add(usize::from(!is_odd), Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(case.work)).await;
                    Ok::<_, Infallible>(case.answer(is_odd))
                }
            })
        };
        let app = cache.http_layer().layer(origin);
        let ask = |client: Option<usize>, at: u64| {
            let (app, request) = (app.clone(), self.request(client));
            async move {
                tokio::time::sleep(Duration::from_millis(at)).await;
                let begun = Instant::now();
                let response = app.oneshot(request).await.expect("the origin answers");
                let body = response.into_body().collect().await.expect("the body is whole");
                let _ = body.to_bytes();
                begun.elapsed()
            }
        };
        // Before the first crowd the page is known.
        ask(Some(0), 0).await;
        let mut slowest = Duration::ZERO;
        for (n, wave) in self.waves.iter().enumerate() {
            tokio::time::sleep(Duration::from_millis(wave.pause)).await;
            let attacks: Vec<_> =
                wave.attacks.iter().map(|at| tokio::spawn(ask(None, *at))).collect();
            let clients = (0..wave.clients)
                .map(|client| tokio::spawn(ask(Some(1 + n * 100 + client), ATTACK)));
            for took in join_all(clients).await {
                slowest = slowest.max(took.expect("no client panics"));
            }
            for attack in attacks {
                attack.await.expect("no attack panics");
            }
        }
        (calls.load(Ordering::Relaxed), slowest)
    }

    /// Returns what is wrong, if anything.
    async fn judge(&self) -> Option<String> {
        let (calls, slowest) = self.play().await;
        if self.is_shared() {
            let (least, _) = self.without_attacker().play().await;
            let most = least + 2 * self.waves.len();
            return (calls > most).then(|| format!("{calls} calls, at most {most}"));
        }
        // A range that leads asks for the whole first, and then for its own part.
        let rounds = if self.range { 4 } else { 3 };
        let most = Duration::from_millis(self.work * rounds + 1);
        (slowest > most).then(|| format!("{slowest:?}, at most {most:?}"))
    }

    fn exchanges(&self) -> u64 {
        let sizes = self.waves.iter().map(|wave| wave.clients + wave.attacks.len());
        1 + sizes.sum::<usize>() as u64
    }
}

/// A case with a finding, made small.
pub(crate) struct CrowdFinding {
    seed: u64,
    case: CrowdCase,
    what: String,
}

impl fmt::Display for CrowdFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "FINDING of a crowd, case {}: {}", self.seed, self.what)?;
        write!(f, "  {:?}, odd: {:?}", self.case, ODD[self.case.odd])
    }
}

/// Runs cases until so many exchanges are done. Returns how many were, and the first finding.
pub(crate) fn search(seed: u64, exchanges: u64) -> (u64, Option<CrowdFinding>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
    let judge = |seed, case: &CrowdCase| {
        fastrand::seed(seed);
        runtime.block_on(case.judge())
    };
    let mut done = 0;
    for n in 0.. {
        if done >= exchanges {
            break;
        }
        let seed = mix(seed, n);
        let case = CrowdCase::random(&mut Rng::with_seed(seed));
        done += case.exchanges();
        if let Some(what) = judge(seed, &case) {
            let (case, what) = shrink(case, what, |case| judge(seed, case));
            return (done, Some(CrowdFinding { seed, case, what }));
        }
    }
    (done, None)
}

/// Leaves out crowds and attacks that the finding does not need.
fn shrink(
    mut case: CrowdCase,
    mut what: String,
    judge: impl Fn(&CrowdCase) -> Option<String>,
) -> (CrowdCase, String) {
    'smaller: loop {
        for wave in 0..case.waves.len() {
            for attack in 0..=case.waves[wave].attacks.len() {
                let mut smaller = case.clone();
                match attack.checked_sub(1) {
                    None => drop(smaller.waves.remove(wave)),
                    Some(attack) => drop(smaller.waves[wave].attacks.remove(attack)),
                }
                if let Some(same) = judge(&smaller) {
                    (case, what) = (smaller, same);
                    continue 'smaller;
                }
            }
        }
        return (case, what);
    }
}
