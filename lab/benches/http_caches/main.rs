//! What a crowd of clients waits for at `stampede-proxy`, and how
//! often their origin is asked; beside it nginx, where it is installed.
//!
//! `cargo bench -p tower-stampede-lab --bench http_caches [-- --profile quick] [--out DIR]` builds
//! the proxy with the same profile, runs it as a process of its own, and prints a table. It takes
//! two to three minutes. `--profile quick` leaves out nginx, and plays a scenario without a goal
//! once. It fails if a count of requests or of errors is not as it must be; times are shown and do
//! not end it. Clients, origin and proxy share the machine.
//!
//! Clients connect and ask at the same moment, and their times begin with it.
//! The floor is p99 of as many clients at a server, another process, that
//! answers without any work; each round of a scenario has one of its own. Each
//! figure is the median of the rounds, and the ratio is p99 to one origin time
//! and the floor of the same round: of nine rounds where there is a goal for it.

mod findings;
mod floor;
mod plays;
#[path = "../../../tests/kit/proxy/mod.rs"]
mod proxy_support;
#[path = "../../../benches/report/mod.rs"]
mod report;
mod scenarios;
#[path = "../../../benches/servers/mod.rs"]
mod servers;
#[path = "../../../benches/servers/floor.rs"]
mod without_work;

use std::process::ExitCode;

use bytes::Bytes;
use tokio::runtime::{Builder, Handle};

use findings::{Found, Rounds};
use floor::Floor;
use plays::Cache;
use proxy_support::stage::CROWD;
use report::Profile;
use scenarios::Scenario;
use servers::PROXY;
use servers::nginx::Nginx;

const STRICT: [&str; 1] = ["proxy_cache_lock on;"];
const LENIENT: [&str; 3] = [
    "proxy_cache_lock on;",
    "proxy_cache_use_stale error timeout updating http_500 http_502 http_503 http_504;",
    "proxy_cache_background_update on;",
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("--floor") => without_work::serve(|_| Bytes::from_static(b"answer 1 to all")),
        // Under `cargo test` there is nothing to see.
        _ if !args.iter().any(|arg| arg == "--bench") => ExitCode::SUCCESS,
        _ => run(&args),
    }
}

#[tokio::main]
async fn run(args: &[String]) -> ExitCode {
    let profile = Profile::among(args);
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    PROXY.build();
    let floor = Floor::start();
    // The first crowd of a process pays for its memory.
    floor.crowd(CROWD).await;
    println!(
        "{:48} {:>4} {:>6} {:>7} {:>7} {:>7} {:>6}",
        "", "hits", "errors", "p50 ms", "p99 ms", "floor", "ratio"
    );
    let origins = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let origins = origins.expect("a runtime starts");
    let nginx = profile.pick(None, Nginx::version());
    let mut found = Vec::new();
    for scenario in scenarios::all(profile) {
        let one = play(scenario, &floor, origins.handle(), nginx.is_some()).await;
        println!("{}", one.line());
        found.push(one);
    }
    origins.shutdown_background();
    findings::part(profile, &found, nginx).finish(report::out_directory(args).as_deref())
}

async fn play(scenario: Scenario, floor: &Floor, origins: &Handle, has_nginx: bool) -> Found {
    let (mut ours, mut floors) = (Rounds::default(), Vec::new());
    for _ in 0..scenario.rounds {
        floors.push(findings::floor_of(&floor.crowd(scenario.clients).await));
        let cache = Cache::ours(origins, &scenario.answer).await;
        ours.add(&(scenario.play)(cache).await, &scenario);
    }
    let is_asked = has_nginx && scenario.nginx_rounds > 0;
    let nginx = if is_asked { Some(at_nginx(&scenario, origins).await) } else { None };
    Found { scenario, ours, nginx, floors }
}

async fn at_nginx(scenario: &Scenario, origins: &Handle) -> Rounds {
    let location: &[&str] = if scenario.permits_stale() { &LENIENT } else { &STRICT };
    let mut rounds = Rounds::default();
    for _ in 0..scenario.nginx_rounds {
        let cache = Cache::nginx(origins, &scenario.answer, location).await;
        rounds.add(&(scenario.play)(cache).await, scenario);
    }
    rounds
}
