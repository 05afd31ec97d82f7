//! What a crowd of clients waits for at the example `reverse_proxy`, and how
//! often their origin is asked.
//!
//! `cargo bench --bench http_caches` builds the proxy with the same profile,
//! runs it as a process of its own, and prints a table. It takes less than a
//! minute, and fails if a count of requests or of errors is not as it must be;
//! times are printed and not judged. Clients, origin and proxy share the
//! machine.
//!
//! Clients connect and ask at the same moment, and their times begin with it.
//! The floor is p99 of as many clients at a server, another process, that
//! answers without any work; each round of a scenario has one of its own. Each
//! figure is the median of three rounds or five, and the ratio is p99 to one
//! origin time and the floor.

#[path = "../tests/proxy_support/mod.rs"]
mod proxy_support;

use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpSocket;
use tokio::runtime::{Builder, Handle};
use tokio::time::sleep;

use proxy_support::stage::{
    CROWD, FAILURE, FRESH, PRIVATE, SHORT, SMALL_CROWD, STALE_IF_ERROR, STALE_MEANWHILE, Stage,
    VARYING, ask_on, same, variants,
};
use proxy_support::{Answer, Backend, Crowd, Pace, Proxy, Seen, get};

/// What the origin takes, but for the scenarios that say otherwise.
const ORIGIN: Duration = Duration::from_millis(300);

const SLOW_ORIGIN: Duration = Duration::from_secs(7);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("--floor") => floor_process(),
        // Under `cargo test` there is nothing to see.
        _ if !args.iter().any(|arg| arg == "--bench") => ExitCode::SUCCESS,
        _ => run(),
    }
}

#[tokio::main]
async fn run() -> ExitCode {
    build_proxy();
    let floor = Floor::start();
    // The first crowd of a process pays for its memory.
    floor.crowd(CROWD).await;
    println!(
        "{:42} {:>4} {:>6} {:>7} {:>7} {:>7} {:>6}",
        "", "hits", "errors", "p50 ms", "p99 ms", "floor", "ratio"
    );
    let origins = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let origins = origins.expect("a runtime starts");
    let mut is_good = true;
    for scenario in scenarios() {
        is_good &= scenario.run(&floor, origins.handle()).await;
    }
    origins.shutdown_background();
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// An old one would be measured otherwise.
fn build_proxy() {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--profile", "bench", "--example", "reverse_proxy"]);
    // What cargo says of this package to us makes build scripts run anew.
    let names = std::env::vars_os().map(|(name, _)| name);
    let is_of_package = |name: &std::ffi::OsString| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    };
    for name in names.filter(is_of_package) {
        cargo.env_remove(name);
    }
    let built = cargo.status().expect("cargo runs");
    assert!(built.success(), "the example does not compile");
}

/// What came of a scenario.
struct Round {
    hits: usize,
    outcomes: Vec<Result<Seen, String>>,
}

impl Round {
    fn errors(&self) -> usize {
        let is_error = |outcome: &&Result<Seen, String>| match outcome {
            Ok(seen) => seen.status >= 500,
            Err(_) => true,
        };
        self.outcomes.iter().filter(is_error).count()
    }

    fn times(&self, of: fn(&Seen) -> Duration) -> Vec<Duration> {
        let mut times: Vec<_> = self.outcomes.iter().flatten().map(of).collect();
        times.sort_unstable();
        times
    }
}

type Play = fn(Stage) -> Pin<Box<dyn Future<Output = Round>>>;

struct Scenario {
    name: &'static str,
    /// What the origin answers, before the play changes it.
    answer: Answer,
    play: Play,
    clients: usize,
    origin: Duration,
    rounds: usize,
    hits: RangeInclusive<usize>,
    errors: usize,
    of: fn(&Seen) -> Duration,
}

impl Scenario {
    /// One request to the origin, and an error for nobody.
    fn new(name: &'static str, answer: Answer, play: Play) -> Self {
        Self {
            name,
            answer: answer.head(Pace::After(ORIGIN)),
            play,
            clients: CROWD,
            origin: ORIGIN,
            rounds: 3,
            hits: 1..=1,
            errors: 0,
            of: |seen| seen.whole,
        }
    }

    /// One request to the origin for each of a small crowd.
    fn each(name: &'static str, answer: Answer, play: Play) -> Self {
        let hits = SMALL_CROWD..=SMALL_CROWD;
        Self { clients: SMALL_CROWD, hits, ..Self::new(name, answer, play) }
    }

    /// Prints a line; returns whether the counts are as they must be.
    async fn run(&self, floor: &Floor, origins: &Handle) -> bool {
        let (mut halves, mut ends, mut floors) = (Vec::new(), Vec::new(), Vec::new());
        let (mut hits, mut errors) = (Vec::new(), Vec::new());
        for _ in 0..self.rounds {
            floors.push(percentile(&floor.crowd(self.clients).await, 99));
            let round = (self.play)(stage(origins, &self.answer).await).await;
            let times = round.times(self.of);
            halves.push(percentile(&times, 50));
            ends.push(percentile(&times, 99));
            hits.push(round.hits);
            errors.push(round.errors());
        }
        let (p50, p99, floor) = (median(halves), median(ends), median(floors));
        let ratio = p99.as_secs_f64() / (self.origin + floor).as_secs_f64();
        let is_good = hits.iter().all(|hits| self.hits.contains(hits))
            && errors.iter().all(|&errors| errors == self.errors);
        println!(
            "{:42} {:>4} {:>6} {:>7.1} {:>7.1} {:>7.1} {ratio:>6.2}{}",
            self.name,
            hits.iter().max().expect("there are rounds"),
            errors.iter().max().expect("there are rounds"),
            milliseconds(p50),
            milliseconds(p99),
            milliseconds(floor),
            if is_good { "" } else { "  must not be" },
        );
        is_good
    }
}

fn scenarios() -> Vec<Scenario> {
    let none = Duration::ZERO;
    vec![
        Scenario { rounds: 5, ..Scenario::new("cold", FRESH, |stage| Box::pin(cold(stage))) },
        Scenario::new("expired, nothing stale allowed", SHORT, |stage| Box::pin(expired(stage))),
        Scenario::new("refresh answers 500, stale-if-error", STALE_IF_ERROR, |stage| {
            Box::pin(refresh_fails(stage))
        }),
        Scenario {
            origin: none,
            hits: 0..=0,
            ..Scenario::new("origin refuses, stale-if-error", STALE_IF_ERROR, |stage| {
                Box::pin(origin_refuses(stage))
            })
        },
        Scenario {
            errors: CROWD,
            rounds: 5,
            ..Scenario::new("cold, origin answers 500", FAILURE, |stage| Box::pin(cold(stage)))
        },
        Scenario {
            // Seen by those who come 50 ms later.
            origin: Duration::from_millis(250),
            ..Scenario::new("first client hangs up after 50 ms", FRESH, |stage| {
                Box::pin(first_hangs_up(stage))
            })
        },
        Scenario::each("private, 50 clients", PRIVATE, |stage| Box::pin(small(stage))),
        Scenario::each("private, the next 50", PRIVATE, |stage| Box::pin(small_again(stage))),
        Scenario::each("Vary, 50 variants", VARYING, |stage| Box::pin(variants_of_50(stage))),
        Scenario::each("Vary, the next 50 variants", VARYING, |stage| {
            Box::pin(next_variants(stage))
        }),
        Scenario {
            clients: SMALL_CROWD,
            origin: SLOW_ORIGIN,
            rounds: 1,
            ..Scenario::new("origin takes 7 s, 50 clients", FRESH, |stage| Box::pin(slow(stage)))
        },
        Scenario {
            of: |seen| seen.first,
            rounds: 5,
            ..Scenario::new("stream, 1 s of body: first byte", FRESH, |stage| {
                Box::pin(stream(stage))
            })
        },
        Scenario {
            clients: SMALL_CROWD,
            origin: none,
            rounds: 1,
            hits: 1..=9,
            ..Scenario::new(
                "origin dead 3 s, 50 clients again and again",
                STALE_IF_ERROR,
                |stage| Box::pin(outage(stage)),
            )
        },
        Scenario {
            clients: SMALL_CROWD,
            origin: none,
            ..Scenario::new("next request after something stale", STALE_MEANWHILE, |stage| {
                Box::pin(after_stale(stage))
            })
        },
    ]
}

/// A proxy in front of an origin with a thread of its own: the clients shall not
/// keep it from answering.
async fn stage(origins: &Handle, answer: &Answer) -> Stage {
    let backend = origins.spawn(Backend::start(answer.clone())).await;
    let backend = backend.expect("an origin starts");
    Stage { proxies: vec![Proxy::start_at(&backend.url(), &[])], backend }
}

/// Ends a round; requests before `crowd` do not count.
async fn round(stage: &Stage, before: usize, crowd: Crowd) -> Round {
    let outcomes = crowd.outcomes().await;
    Round { hits: stage.backend.hits() - before, outcomes }
}

async fn cold(stage: Stage) -> Round {
    round(&stage, 0, stage.crowd(same(CROWD))).await
}

async fn small(stage: Stage) -> Round {
    round(&stage, 0, stage.crowd(same(SMALL_CROWD))).await
}

async fn small_again(stage: Stage) -> Round {
    stage.crowd(same(SMALL_CROWD)).outcomes().await;
    round(&stage, SMALL_CROWD, stage.crowd(same(SMALL_CROWD))).await
}

async fn variants_of_50(stage: Stage) -> Round {
    round(&stage, 0, stage.crowd(variants(0, SMALL_CROWD))).await
}

async fn next_variants(stage: Stage) -> Round {
    stage.crowd(variants(0, SMALL_CROWD)).outcomes().await;
    round(&stage, SMALL_CROWD, stage.crowd(variants(SMALL_CROWD, SMALL_CROWD))).await
}

async fn expired(stage: Stage) -> Round {
    stage.store_and_expire().await;
    round(&stage, 1, stage.crowd(same(CROWD))).await
}

async fn refresh_fails(stage: Stage) -> Round {
    stage.store_and_expire().await;
    stage.backend.answers(FAILURE.head(Pace::After(ORIGIN)));
    round(&stage, 1, stage.crowd(same(CROWD))).await
}

async fn origin_refuses(mut stage: Stage) -> Round {
    stage.store_and_expire().await;
    stage.backend.refuse().await;
    round(&stage, 1, stage.crowd(same(CROWD))).await
}

async fn first_hangs_up(stage: Stage) -> Round {
    let first = stage.crowd(same(1));
    stage.backend.until_hits(1).await;
    sleep(Duration::from_millis(50)).await;
    let others = stage.crowd(same(CROWD - 1));
    drop(first);
    round(&stage, 0, others).await
}

async fn slow(stage: Stage) -> Round {
    stage.backend.answers(FRESH.head(Pace::After(SLOW_ORIGIN)));
    round(&stage, 0, stage.crowd(same(SMALL_CROWD))).await
}

async fn stream(stage: Stage) -> Round {
    let pieces = FRESH.then(10, Pace::After(Duration::from_millis(100)));
    stage.backend.answers(pieces.head(Pace::After(ORIGIN)));
    round(&stage, 0, stage.crowd(same(CROWD))).await
}

async fn outage(stage: Stage) -> Round {
    stage.store_and_expire().await;
    stage.backend.cut().await;
    let outcomes = ask_on(&stage, Duration::from_secs(3)).await;
    Round { hits: stage.backend.hits() - 1, outcomes }
}

/// Each client asks twice on its connection; the second request counts. Its
/// refresh takes longer than they do.
async fn after_stale(stage: Stage) -> Round {
    stage.backend.let_go(1);
    let mut first = stage.client().await;
    first.ask(get("/")).await.expect("an origin that answers");
    stage.backend.answers(STALE_MEANWHILE.head(Pace::After(Duration::from_secs(2))));
    while !first.ask(get("/")).await.expect("what is stored").is_stale() {
        sleep(Duration::from_millis(5)).await;
    }
    let mut outcomes = Vec::new();
    for _ in 0..SMALL_CROWD {
        let mut client = stage.client().await;
        let stale = client.ask(get("/")).await.expect("what is stored");
        assert!(stale.is_stale(), "the refresh takes longer");
        outcomes.push(client.ask(get("/")).await);
    }
    Round { hits: stage.backend.hits() - 1, outcomes }
}

/// A process of our own that answers without any work.
struct Floor {
    process: Child,
    address: SocketAddr,
}

impl Floor {
    fn start() -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut process = Command::new(program)
            .arg("--floor")
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs");
        let mut line = String::new();
        let output = process.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("it says where it listens");
        Self { process, address: line.trim().parse().expect("an address") }
    }

    async fn crowd(&self, clients: usize) -> Vec<Duration> {
        let outcomes = Crowd::ask(&[self.address], same(clients)).outcomes().await;
        Round { hits: 0, outcomes }.times(|seen| seen.whole)
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        // It may have ended already: no matter.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::main]
async fn floor_process() -> ExitCode {
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let listener = socket.listen(8192).expect("a listener");
    println!("{}", listener.local_addr().expect("it is bound"));
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        stream.set_nodelay(true).expect("a connection of TCP");
        tokio::spawn(async move {
            let service = service_fn(|_| async {
                let body = Full::new(Bytes::from_static(b"answer 1 to all"));
                Ok::<_, Infallible>(Response::new(body))
            });
            // The client leaves when it has its answer.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * percent / 100).copied().unwrap_or_default()
}

fn median(mut durations: Vec<Duration>) -> Duration {
    durations.sort_unstable();
    percentile(&durations, 50)
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
