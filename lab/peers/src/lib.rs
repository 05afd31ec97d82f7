//! The same load on tower-stampede and on the crates one would otherwise take.
//!
//! `cargo run --release -- --out DIR` in this folder takes about four minutes
//! and writes `DIR/parts/peers.json`. Where it says `--docs FILE`, it also
//! writes the tables anew into a text that has places for them; with `--from
//! PART` it does only that, from a part that was measured before.
//! `--only PEER,PEER` is for developers that change something here: what it
//! writes is incomplete.
//!
//! Each measurement is a process of its own, with the time it may take.

mod child;
mod crowd;
mod docs;
mod exhibits;
mod faults;
mod figures;
mod hits;
mod origin;
mod peers;
#[allow(clippy::unwrap_used, reason = "made for tests")]
#[path = "../../../tests/kit/redis/mod.rs"]
mod redis_support;
#[path = "../../../benches/report/mod.rs"]
mod report;
mod run;
mod subject;
mod versions;

use std::path::PathBuf;
use std::process::ExitCode;

use lexopt::prelude::*;
use tokio::runtime::{Builder, Runtime};

use crowd::Scenario;
use faults::Fault;
use report::Part;

/// What the command line says.
#[derive(Default)]
struct Flags {
    out: Option<PathBuf>,
    docs: Option<PathBuf>,
    from: Option<PathBuf>,
    only: Option<Vec<String>>,
    play: Option<(String, String)>,
    fault: Option<(String, String)>,
    lead: Option<(String, String)>,
    hits: Option<String>,
    redis: Option<String>,
}

/// The program.
pub fn run() -> ExitCode {
    let flags = match flags() {
        Ok(flags) => flags,
        Err(error) => {
            eprintln!("peers: {error}");
            return ExitCode::from(2);
        }
    };
    if let Some((peer, scenario)) = &flags.play {
        play(peer, Scenario::named(scenario), flags.redis.as_deref());
    }
    if let Some((peer, fault)) = &flags.fault {
        print(&runtime().block_on(faults::run(peer, Fault::named(fault))));
    }
    if let (Some((peer, millis)), Some(url)) = (&flags.lead, &flags.redis) {
        let millis = millis.parse().expect("the work has its length in milliseconds");
        runtime().block_on(faults::lead(peer, millis, url));
        std::process::exit(0);
    }
    if let Some(peer) = &flags.hits {
        print(&hits::measure(&peers::named(peer)));
    }
    let part = match &flags.from {
        Some(from) => stored(from),
        None => run::everything(flags.only.as_deref()),
    };
    if let Some(text) = &flags.docs {
        docs::renew(text, &part).expect("the text can be written");
    }
    match flags.from {
        Some(_) => ExitCode::SUCCESS,
        None => part.finish(flags.out.as_deref()),
    }
}

/// Allocations of one hit, by a counter of all of them.
pub fn allocations(peer: &str, count: impl Fn() -> usize) -> f64 {
    hits::allocations(&peers::named(peer), count)
}

fn flags() -> Result<Flags, lexopt::Error> {
    let mut flags = Flags::default();
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Long("out") => flags.out = Some(args.value()?.into()),
            Long("docs") => flags.docs = Some(args.value()?.into()),
            Long("from") => flags.from = Some(args.value()?.into()),
            Long("only") => {
                let names = args.value()?.string()?;
                flags.only = Some(names.split(',').map(str::to_owned).collect());
            }
            Long("play") => flags.play = Some((args.value()?.string()?, args.value()?.string()?)),
            Long("fault") => flags.fault = Some((args.value()?.string()?, args.value()?.string()?)),
            Long("lead") => flags.lead = Some((args.value()?.string()?, args.value()?.string()?)),
            Long("hits") => flags.hits = Some(args.value()?.string()?),
            Long("redis") => flags.redis = Some(args.value()?.string()?),
            other => return Err(other.unexpected()),
        }
    }
    Ok(flags)
}

fn stored(from: &PathBuf) -> Part {
    let text = std::fs::read_to_string(from).expect("the part can be read");
    serde_json::from_str(&text).expect("it is a part")
}

fn play(peer: &str, scenario: Scenario, redis: Option<&str>) -> ! {
    if scenario == Scenario::Panics {
        // The scenario wants the panic, so it is not reported.
        std::panic::set_hook(Box::new(|_| {}));
    }
    print(&runtime().block_on(crowd::run(&peers::named(peer), scenario, redis)))
}

fn runtime() -> Runtime {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime starts")
}

/// And leaves: a runtime in which something spins would not end.
fn print(found: &impl serde::Serialize) -> ! {
    println!("{}", serde_json::to_string(found).expect("it is plain data"));
    std::process::exit(0)
}
