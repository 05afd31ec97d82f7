//! What the cache costs over HTTP: hits of the example `web_server` and
//! of `stampede-proxy` under wrk, beside a bare axum handler that answers the same
//! bytes, and beside nginx where it is installed.
//!
//! `cargo bench -p tower-stampede-benches --bench over_http [-- --profile quick] [--out DIR] [--slices N] [--require-wrk]`
//! builds the examples and takes about three minutes; `--profile quick` leaves out bodies of
//! unusual sizes. Without wrk it measures nothing and says so; with `--require-wrk` that is a
//! failure.
//!
//! Every server is a process of its own, all on one core where there are two,
//! one after the other; wrk has the other core. A slice is one second of 64
//! connections that ask as fast as they are answered; in each of eleven rounds (nine with
//! `--profile quick`) every server has one, and the ratio is of slices in one round.

mod bare;
mod findings;
mod load;
#[path = "../../tests/kit/proxy/mod.rs"]
mod proxy_support;
#[path = "../report/mod.rs"]
mod report;
#[path = "../servers/mod.rs"]
mod servers;

use std::net::SocketAddr;
use std::process::ExitCode;

use http::header::{self, HeaderValue};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use bare::{App, Origin, PATH, Sample};
use findings::{Findings, Group};
use load::{Target, Wrk};
use proxy_support::{Client, Seen, get};
use report::Profile;
use servers::nginx::{Nginx, Settings};
use servers::{Cores, PROXY, Server, WEB_SERVER};

/// 1 KiB, and what is smaller and larger than usual.
const SIZES: [usize; 3] = [100, 1 << 10, 64 << 10];

/// Directives that make hits of nginx as fast as they can be here.
const NGINX_HITS: [&str; 2] = ["proxy_cache_valid 200 1h;", "proxy_cache_lock on;"];

/// Requests, one after the other: seconds.
const MOST_TO_WARM: usize = 10_000;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some(flag) if App::of(flag).is_some() => {
            bare::process(App::of(flag).expect("just seen"), &args[2]);
            ExitCode::SUCCESS
        }
        // Under `cargo test` there is nothing to see.
        _ if !args.iter().any(|arg| arg == "--bench") => ExitCode::SUCCESS,
        _ => run(&args),
    }
}

fn run(args: &[String]) -> ExitCode {
    let (out, profile) = (report::out_directory(args), Profile::among(args));
    let cores = Cores::found();
    let mut findings = Findings::new(cores, profile);
    let Some(wrk) = Wrk::found(cores) else {
        eprintln!("wrk is not installed: nothing is measured");
        let written = Findings::without_wrk(profile).finish(out.as_deref());
        let is_required = args.iter().any(|arg| arg == "--require-wrk");
        return if is_required { ExitCode::FAILURE } else { written };
    };
    WEB_SERVER.build();
    PROXY.build();
    let runtime = Runtime::new().expect("a runtime starts");
    let bench = Bench { runtime, wrk, cores, rounds: rounds(args, profile) };
    findings.add(bench.application());
    findings.add(bench.web_server());
    for &size in profile.pick(&SIZES[1..2], &SIZES) {
        findings.add(bench.proxies(size));
    }
    findings.part(&bench.wrk).finish(out.as_deref())
}

/// Fewer are enough to see whether it works.
fn rounds(args: &[String], profile: Profile) -> usize {
    let Some(flag) = args.iter().position(|arg| arg == "--slices") else {
        return profile.pick(9, 11);
    };
    args.get(flag + 1).and_then(|n| n.parse().ok()).expect("--slices names a number")
}

struct Bench {
    runtime: Runtime,
    wrk: Wrk,
    cores: Cores,
    rounds: usize,
}

impl Bench {
    /// The layer at its two places in a small application.
    fn application(&self) -> Group {
        let sample = Sample::of_application(1 << 10);
        let in_front = self.server(App::InFront, &sample);
        let routed = self.server(App::RouteLayer, &sample);
        let hit = self.runtime.block_on(warm(in_front.server.address));
        self.runtime.block_on(warm(routed.server.address));
        let bare = self.bare(&hit);
        let servers = [&bare, &in_front, &routed].map(|own| Target::from(&own.server));
        let mut found = self.wrk.paired(&servers, self.rounds).into_iter();
        Group {
            id: "in_front",
            body: hit.body.len(),
            bare: found.next().expect("one for each server"),
            ours: found.next().expect("one for each server"),
            routed: found.next(),
            nginx: None,
            calls_too_many: 0.0,
        }
    }

    fn web_server(&self) -> Group {
        let flags = ["--ttl-ms", "3600000", "--work-ms", "1"];
        let server = Server::program(self.cores.server, WEB_SERVER, &flags);
        let hit = self.runtime.block_on(warm(server.address));
        let bare = self.bare(&hit);
        let servers = [Target::from(&bare.server), Target::from(&server)];
        let mut found = self.wrk.paired(&servers, self.rounds).into_iter();
        let stats = self.runtime.block_on(ask(server.address, "/stats")).body;
        let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
        let calls = stats["origin_calls"]["protected"]["total"].as_u64().expect("a count");
        Group {
            id: "web_server",
            body: hit.body.len(),
            bare: found.next().expect("one for each server"),
            ours: found.next().expect("one for each server"),
            routed: None,
            nginx: None,
            calls_too_many: calls as f64 - 1.0,
        }
    }

    fn proxies(&self, size: usize) -> Group {
        let origin = self.runtime.block_on(Origin::start(size));
        let url = format!("http://{}", origin.address);
        let proxy = Server::program(self.cores.server, PROXY, &["--origin", &url]);
        let hit = self.runtime.block_on(warm(proxy.address));
        let bare = self.bare(&hit);
        let mut servers = vec![Target::from(&bare.server), Target::from(&proxy)];
        // It has an origin of its own: the calls of each are counted.
        let nginx = Nginx::version().map(|_| self.nginx(size));
        let of_nginx = |nginx: &WarmNginx| Target { address: nginx.server.address, server: None };
        servers.extend(nginx.as_ref().map(of_nginx));
        let mut found = self.wrk.paired(&servers, self.rounds).into_iter();
        let too_many = nginx.as_ref().map_or(0, WarmNginx::calls_too_many);
        Group {
            id: "reverse_proxy",
            body: size,
            bare: found.next().expect("one for each server"),
            ours: found.next().expect("one for each server"),
            routed: None,
            nginx: found.next(),
            calls_too_many: too_many as f64 + origin.calls() as f64 - 1.0,
        }
    }

    /// The response is there before nginx has it in a file: it is asked until
    /// the origin is not.
    fn nginx(&self, size: usize) -> WarmNginx {
        let (core, origin) = (self.cores.server, self.runtime.block_on(Origin::start(size)));
        let settings = Settings { origin: origin.address, core, location: &NGINX_HITS };
        let server = Nginx::start(settings);
        for calls in 0..MOST_TO_WARM {
            self.runtime.block_on(ask(server.address, PATH));
            if calls > 0 && origin.calls() == calls {
                return WarmNginx { server, origin, calls };
            }
        }
        panic!("nginx still asks its origin after {MOST_TO_WARM} requests");
    }

    fn bare(&self, hit: &Seen) -> OwnServer {
        let bare = self.server(App::Bare, &Sample::of(hit));
        let same = self.runtime.block_on(ask(bare.server.address, PATH));
        assert_eq!(same.body, hit.body, "the bodies are the same");
        assert_eq!(size(&same), size(hit), "so many bytes of fields: {same:?}, not {hit:?}");
        bare
    }

    fn server(&self, app: App, sample: &Sample) -> OwnServer {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("sample.json");
        sample.write(&file);
        let file = file.to_str().expect("a path of text");
        let server = Server::ourselves(self.cores.server, &[app.flag(), file]);
        OwnServer { server, _folder: folder }
    }
}

struct WarmNginx {
    server: Nginx,
    origin: Origin,
    /// What it asked until it was warm.
    calls: usize,
}

impl WarmNginx {
    fn calls_too_many(&self) -> usize {
        self.origin.calls() - self.calls
    }
}

/// This program as a server, with the file it was started with.
struct OwnServer {
    server: Server,
    _folder: TempDir,
}

async fn ask(server: SocketAddr, path: &str) -> Seen {
    let mut client = Client::connect(server).await;
    let mut request = get(path);
    // As wrk says it: the host is a part of what is stored under.
    let host = HeaderValue::from_str(&server.to_string()).expect("an address is ASCII");
    request.headers_mut().insert(header::HOST, host);
    let seen = client.ask(request).await.expect("a response");
    assert_eq!(seen.status, 200, "{seen:?}");
    seen
}

/// Has a response stored, and returns a hit.
async fn warm(server: SocketAddr) -> Seen {
    ask(server, PATH).await;
    let hit = ask(server, PATH).await;
    let status = hit.fields.get("cache-status").expect("it says what it did");
    assert!(status.to_str().expect("visible ASCII").contains("; hit"), "{status:?}");
    hit
}

fn size(seen: &Seen) -> usize {
    seen.fields.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}
