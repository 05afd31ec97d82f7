//! Asks one process after the other, and makes a part of what they say.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::child;
use crate::crowd::{Scenario, Wave};
use crate::faults::{Fault, Finding};
use crate::hits::Hits;
use crate::peers::{self, Peer};
use crate::redis_support::Server;
use crate::report::Part;
use crate::{exhibits, figures, versions};

#[cfg(not(feature = "pingora"))]
const COMMAND: &str = "cargo run --release -p peers -- --out report";
#[cfg(feature = "pingora")]
const COMMAND: &str = "cargo run --release -p peers --features pingora -- --out report";

/// What one peer did. An error says what the measurement died of.
pub(crate) struct Found {
    pub(crate) peer: Peer,
    pub(crate) waves: Vec<(Scenario, Result<Wave, String>)>,
    /// None for peers that take no part.
    pub(crate) faults: Vec<(Fault, Result<Finding, String>)>,
    pub(crate) hits: Result<Hits, String>,
    pub(crate) allocations: Result<f64, String>,
}

impl Found {
    pub(crate) fn wave(&self, scenario: Scenario) -> Option<&Wave> {
        let wave = self.waves.iter().find(|(of, _)| *of == scenario);
        wave.and_then(|(_, wave)| wave.as_ref().ok())
    }
}

pub(crate) fn everything(only: Option<&[String]>) -> Part {
    let programs = Programs::build();
    let redis = has_redis().then(Server::start);
    let is_wanted = |peer: &Peer| only.is_none_or(|only| only.iter().any(|name| name == peer.id));
    let found: Vec<_> = peers::all()
        .into_iter()
        .filter(is_wanted)
        .map(|peer| programs.ask(peer, redis.as_ref().map(Server::url).as_deref()))
        .collect();
    let title = "Other crates under the same load";
    let mut part = Part::new("peers", title, COMMAND);
    part.versions = versions(&found);
    part.notes = notes(redis.is_some());
    if !cfg!(feature = "pingora") {
        part.notes.push("pingora-cache is not here: built without the feature pingora.".to_owned());
    }
    part.notes.extend(found.iter().flat_map(troubles));
    part.figures = found.iter().flat_map(figures::of).collect();
    part.exhibits = exhibits::of(&found);
    part
}

struct Programs {
    this: PathBuf,
    allocations: PathBuf,
}

impl Programs {
    /// The counter of allocations is another program: `cargo run` has built
    /// this one only.
    fn build() -> Self {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        cargo.args(["build", "--quiet", "--locked", "--bin", "allocations", "--manifest-path"]);
        cargo.arg(manifest);
        if cfg!(feature = "pingora") {
            cargo.args(["--features", "pingora"]);
        }
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        let built = cargo.status().expect("cargo runs");
        assert!(built.success(), "the counter of allocations does not compile");
        let this = std::env::current_exe().expect("this program has a path");
        Self { allocations: this.with_file_name("allocations"), this }
    }

    fn ask(&self, peer: Peer, redis: Option<&str>) -> Found {
        let is_possible = |scenario: &Scenario| {
            scenario.suits(&peer) && (*scenario != Scenario::TwoProcesses || redis.is_some())
        };
        let play = |scenario: Scenario| {
            let mut args = vec!["--play", peer.id, scenario.id()];
            if let Some(url) = redis {
                args.extend(["--redis", url]);
            }
            let wave = child::ask(&self.this, &args);
            println!("{}, {}: {wave:?}", peer.name, scenario.id());
            (scenario, wave)
        };
        let waves = Scenario::ALL.into_iter().filter(is_possible).map(play).collect();
        let has_part = redis.is_some() && peers::staged(peer.id).is_some();
        let faults = Fault::ALL.into_iter().filter(|_| has_part).map(|fault| {
            let found = child::ask(&self.this, &["--fault", peer.id, fault.id()]);
            println!("{}, {}: {found:?}", peer.name, fault.id());
            (fault, found)
        });
        let faults = faults.collect();
        let hits = child::ask(&self.this, &["--hits", peer.id]);
        let allocations = child::ask(&self.allocations, &[peer.id]);
        println!("{}: {hits:?}, allocations {allocations:?}", peer.name);
        Found { waves, faults, hits, allocations, peer }
    }
}

fn has_redis() -> bool {
    let found = Command::new("redis-server").arg("--version").output().is_ok();
    if !found {
        eprintln!("peers: redis-server is not installed: no two processes");
    }
    found
}

fn versions(found: &[Found]) -> Vec<(String, String)> {
    let mut names: Vec<_> = found.iter().flat_map(|found| found.peer.crates).copied().collect();
    names.extend(["tokio", "tower"]);
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| (name.to_owned(), versions::of(name))).collect()
}

fn notes(has_redis: bool) -> Vec<String> {
    let mut notes = vec![
        "Each measurement is a process of its own, with two worker threads.".to_owned(),
        "1000 callers ask for one key at once; the work takes 100 ms. Counts are the worst of \
         five rounds, times the median, from the first question to the answer or the error, over \
         the 100 ms."
            .to_owned(),
        "Who has no answer after 3 s is counted as stuck; a round with one is the last.".to_owned(),
        "A hit: 1 KiB; the median of 15 paired slices, in turn with the least that such a hit \
         could cost, in one process. Making the request does not count, reading the response and \
         dropping both does."
            .to_owned(),
        "Two processes are two caches in one process, which share nothing but a Redis server."
            .to_owned(),
    ];
    if !has_redis {
        notes.push("redis-server was not installed: nothing about two processes.".to_owned());
    }
    notes
}

fn troubles(found: &Found) -> Vec<String> {
    let waves = found
        .waves
        .iter()
        .filter_map(|(scenario, wave)| Some((scenario.id(), wave.as_ref().err()?)));
    let faults = found.faults.iter();
    let faults = faults.filter_map(|(fault, found)| Some((fault.id(), found.as_ref().err()?)));
    let hits = found.hits.as_ref().err().map(|error| ("hits", error));
    let allocations = found.allocations.as_ref().err().map(|error| ("allocations", error));
    let all = waves.chain(faults).chain(hits).chain(allocations);
    all.map(|(what, error)| format!("{}, {what}: not measured, {error}.", found.peer.name))
        .collect()
}
