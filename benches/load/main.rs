//! Loads and faults, and what the origin and the clients have to bear: with the
//! layer, and the same load without.
//!
//! ```sh
//! cargo bench -p tower-stampede-benches --bench load -- --profile quick --out report
//! ```
//!
//! It starts everything itself, on the loopback interface:
//! `stampede-proxy` in processes of their own, `redis-server`, origins that work on
//! few requests at a time, and clients whose requests are sent when they are
//! meant to be, however slow the answers are. A count of origin calls, errors or
//! stuck requests that is not as promised ends it with a failure; times are
//! shown. The quick profile takes about a minute, the full one less than six.

#[path = "../../tests/kit/proxy/mod.rs"]
mod proxy_support;
#[path = "../../tests/kit/redis/mod.rs"]
mod redis_support;
#[path = "../report/mod.rs"]
mod report;

mod arrivals;
mod client;
mod exhibit;
mod flags;
#[path = "../servers/floor.rs"]
mod floor;
mod lab;
mod origin;
mod scenario;
mod scenarios;
mod servers;
mod tally;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use bytes::Bytes;

use flags::Flags;
use lab::Lab;
use report::{Part, redis_version};
use scenario::{Found, Scenario};

/// No scenario takes longer, unless something hangs.
const GIVE_UP: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if args.iter().any(|arg| arg == "--floor") {
        return floor::serve(as_long_as_the_origin);
    }
    // Under `cargo test` there is nothing to see.
    if !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    match flags::parse(args).and_then(prepared) {
        Ok((flags, _)) if flags.help => {
            print!("{}", flags::HELP);
            ExitCode::SUCCESS
        }
        Ok((flags, scenarios)) => run(&flags, scenarios),
        Err(message) => {
            eprintln!("load: {message}");
            ExitCode::from(2)
        }
    }
}

/// What the floor answers; see `Work::new`.
fn as_long_as_the_origin(path: &str) -> Bytes {
    let mut body = format!("{path} ").into_bytes();
    body.resize(body.len() + 1024, b'x');
    body.into()
}

/// The scenarios to run, once all they need is there.
fn prepared(flags: Flags) -> Result<(Flags, Vec<Scenario>), String> {
    let mut scenarios = scenarios::all();
    let is_known = |name: &&String| scenarios.iter().any(|scenario| scenario.name == **name);
    if let Some(name) = flags.only.iter().find(|name| !is_known(name)) {
        let names: Vec<_> = scenarios.iter().map(|scenario| scenario.name).collect();
        return Err(format!("--only {name}: the scenarios are {}", names.join(", ")));
    }
    if !flags.only.is_empty() {
        scenarios.retain(|scenario| flags.only.iter().any(|name| name == scenario.name));
    }
    if !flags.help {
        if redis_version().is_none() {
            return Err("redis-server is not installed, and some scenarios need it".into());
        }
        servers::build_proxy()?;
    }
    Ok((flags, scenarios))
}

#[tokio::main]
async fn run(flags: &Flags, scenarios: Vec<Scenario>) -> ExitCode {
    // A client and the origin's end of a connection are files of this process.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let begin = Instant::now();
    let lab = Lab::new(flags.profile, flags.bare);
    let mut found = Vec::new();
    for scenario in scenarios {
        println!("{:7.1} s  {}", begin.elapsed().as_secs_f64(), scenario.name);
        let Ok(one) = tokio::time::timeout(GIVE_UP, (scenario.play)(&lab)).await else {
            eprintln!("load: {} did not end within {GIVE_UP:?}", scenario.name);
            return ExitCode::FAILURE;
        };
        found.push(one);
    }
    lab.end();
    println!("{:7.1} s  done", begin.elapsed().as_secs_f64());
    let ended = part(flags, &found).finish(flags.out.as_deref());
    match flags.out.as_deref().map(report::page::assemble) {
        Some(Err(error)) => {
            eprintln!("load: the report cannot be put together: {error}");
            ExitCode::FAILURE
        }
        _ => ended,
    }
}

fn part(flags: &Flags, found: &[Found]) -> Part {
    let profile = flags.profile.name();
    let mut command = format!(
        "cargo bench -p tower-stampede-benches --bench load -- --profile {profile} --out report"
    );
    for name in &flags.only {
        command += &format!(" --only {name}");
    }
    let mut part = Part::new("load", "Under load, and when things break", &command);
    part.versions.extend(redis_version().map(|version| ("redis-server".into(), version)));
    part.notes = notes(flags);
    part.figures = found.iter().flat_map(Found::figures).collect();
    part.exhibits = exhibit::all(found);
    part
}

fn notes(flags: &Flags) -> Vec<String> {
    let mut notes = vec![
        "Requests are sent by a schedule that is fixed before the first (open loop); waits count \
         from the scheduled moment, so that a stall counts for each request that it delays."
            .to_owned(),
        "Proxies and the floor are processes with a core of their own beside the clients' where \
         the machine has two or more; clients and origin are one process, on other threads."
            .to_owned(),
        "Everything runs on one machine over the loopback interface: no network, no TLS."
            .to_owned(),
        format!("At most {} connections at once.", arrivals::MAX_CONNECTIONS),
    ];
    notes.extend(flags.profile.note());
    if flags.bare {
        notes
            .push("Run with --bare: the layer was left out, and the bounds must break.".to_owned());
    }
    notes
}
