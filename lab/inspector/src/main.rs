//! Compares what running processes serve with the invalidation log in Redis: is anything served
//! that was invalidated, by which process, and for how long?
//!
//! ```sh
//! cargo run --release -p tower-stampede-inspector -- --redis redis://127.0.0.1 --namespace shop \
//!     --cache catalog --process http://10.0.0.7:3000/admin --process http://10.0.0.8:3000/admin
//! cargo run --release -p tower-stampede-inspector -- --help
//! ```
//!
//! Each process must serve `tower_stampede::admin`. `docs/redis.md` says how to read
//! what it prints, and what it costs.
//!
//! A folder, and not one file: the log, the processes and what follows from both are three
//! things, and each is read alone.
//!
//! - `flags`: the command line.
//! - `log`: the invalidation log and the values in Redis; `names`: how both are written; `servers`:
//!   which node of a cluster has them.
//! - `process`: one process, as its admin router shows it.
//! - `judge`: which copies are older than an invalidation.
//! - `show`: what is printed.
//! - `texts` and `values`: how the values of flags are read. These two files are symbolic links: they
//!   belong to the example `web_server`.

use std::collections::HashMap;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::flags::{Command, Flags};
use crate::judge::{Findings, LogWatch};
use crate::log::LogReader;
use crate::names::Names;
use crate::process::Process;

mod flags;
mod judge;
mod log;
mod names;
mod process;
mod servers;
mod show;
#[allow(dead_code, reason = "both servers have more flags")]
mod texts;
mod values;

/// Something could not be asked, or there was nothing to judge: what was not seen may have been
/// wrong.
const NOT_ALL_SEEN: u8 = 3;

/// What was found, so far or in the end.
struct Inspection {
    processes: Vec<(Process, Findings)>,
    watch: LogWatch,
    log: LogReader,
    names: Names,
    rounds: u64,
    /// How often Redis could not be asked, and why the last time.
    redis_failures: Option<(u64, String)>,
    took: Duration,
}

fn main() -> ExitCode {
    let flags = match flags::parse(std::env::args_os()) {
        Ok(Command::Inspect(flags)) => *flags,
        Ok(Command::Help) => {
            print!("{}", flags::HELP);
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("inspector: {message}");
            eprintln!("try `--help`");
            return ExitCode::from(2);
        }
    };
    run(flags)
}

#[tokio::main(flavor = "current_thread")]
async fn run(flags: Flags) -> ExitCode {
    let Flags { redis, namespace, cache, processes, admin_token, keys, .. } = flags;
    let names = Names::new(&namespace, &cache);
    let new = |url| (Process::new(url, admin_token.clone(), keys), Findings::default());
    let mut inspection = Inspection {
        processes: processes.into_iter().map(new).collect(),
        watch: LogWatch::default(),
        log: LogReader::new(redis, names.clone()),
        names,
        rounds: 0,
        redis_failures: None,
        took: Duration::ZERO,
    };
    let is_live = !flags.is_quiet && !flags.is_json;
    let begun = Instant::now();
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let mut ticks = tokio::time::interval(flags.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while begun.elapsed() < flags.time {
        tokio::select! {
            _ = ticks.tick() => inspection.look().await,
            _ = &mut interrupted => break,
        }
        inspection.took = begun.elapsed();
        if is_live {
            print_round(&inspection);
        }
    }
    let summary = match flags.is_json {
        true => format!("{:#}\n", show::json(&inspection)),
        false => show::summary(&inspection),
    };
    // A reader that has gone away has seen enough.
    let _ = std::io::stdout().write_all(summary.as_bytes());
    inspection.exit_code()
}

fn print_round(inspection: &Inspection) {
    let mut text = String::new();
    if inspection.rounds == 1 {
        text += &format!("what was found so far, every round:\n{}\n", show::head());
    }
    for (process, found) in &inspection.processes {
        text += &format!("{}\n", show::line(&process.url, found));
    }
    let _ = std::io::stdout().write_all(text.as_bytes());
}

impl Inspection {
    /// Looks at the log, then at every process, then at the values of what they hold.
    async fn look(&mut self) {
        self.rounds += 1;
        match self.log.read_on().await {
            Ok(announced) => self.watch.take(self.log.header(), announced),
            Err(error) => self.redis_failed(error),
        }
        let asked = self.processes.iter().map(|(process, _)| process.clone());
        let asked = asked.map(|process| tokio::spawn(async move { process.report().await }));
        let mut reports = Vec::new();
        for asked in asked.collect::<Vec<_>>() {
            reports.push(asked.await.unwrap_or_else(|error| Err(error.to_string())));
        }
        let mut remote = HashMap::new();
        let mut wanted: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for copy in reports.iter().flatten().flat_map(|report| &report.copies) {
            if remote.insert(copy.key.clone(), None).is_none() {
                wanted.extend(self.names.value(&copy.key).map(|name| (copy.key.clone(), name)));
            }
        }
        let names: Vec<_> = wanted.iter().map(|(_, name)| name.clone()).collect();
        match self.log.values(&names).await {
            Ok(values) => remote.extend(wanted.into_iter().map(|(key, _)| key).zip(values)),
            Err(error) => self.redis_failed(error),
        }
        let remote = remote.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        for ((_, found), report) in self.processes.iter_mut().zip(reports) {
            match report {
                Ok(report) => found.take(&report, &self.watch, &remote),
                Err(error) => found.failed(error),
            }
        }
    }

    fn redis_failed(&mut self, error: String) {
        let before = self.redis_failures.take().map_or(0, |(count, _)| count);
        self.redis_failures = Some((before + 1, error));
    }

    /// Returns whether Redis and all processes have answered each time.
    fn has_asked_all(&self) -> bool {
        let has_answered = |(_, found): &(_, Findings)| found.unanswered == 0;
        self.redis_failures.is_none() && self.processes.iter().all(has_answered)
    }

    /// Returns why nothing could be judged, if nothing could.
    fn nothing_to_judge(&self) -> Option<&'static str> {
        if self.processes.iter().all(|(_, found)| found.copies == 0) {
            return Some("no process holds a copy; are --cache and --process right?");
        }
        (self.watch.count == 0).then_some("nothing was invalidated meanwhile; look for longer")
    }

    fn is_violated(&self) -> bool {
        self.processes.iter().any(|(_, found)| found.is_violated())
    }

    fn exit_code(&self) -> ExitCode {
        if self.is_violated() {
            ExitCode::FAILURE
        } else if self.has_asked_all() && self.nothing_to_judge().is_none() {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(NOT_ALL_SEEN)
        }
    }
}
