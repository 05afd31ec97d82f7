//! A run: processes that read and invalidate the same keys while their servers suffer.
//!
//! # What enters
//!
//! A [`Plan`], and what starts a process: the bench starts itself again, and so does the test.
//!
//! # What leaves
//!
//! [`Findings`]: what was read, what was done to the servers, and what breaks rule P1.
//!
//! # How it goes
//!
//! ```text
//! run ──starts──▶ workers ──address──▶ primary ──▶ replica
//!  └── faults: one after the other ──────▲
//!
//! the workers' records ──▶ judge ──▶ findings
//! ```
//!
//! A value is the moment at which its computation began. Each worker writes down when it last
//! read which value, and when it invalidated what: all moments are of one clock, the system's.
//! Nothing is judged before the end, so no worker needs to hear of another but by the cache.
//!
//! # Reading order
//!
//! - `record`: what a worker writes down.
//! - `worker`: the process.
//! - `faults`: the servers, and what is done to them.
//! - `judge`: rule P1.
//! - `findings`: what is printed.

pub(crate) mod faults;
pub(crate) mod findings;
pub(crate) mod judge;
pub(crate) mod record;
pub(crate) mod worker;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use faults::{Fault, Servers};
use findings::Findings;
use record::Record;
use worker::Settings;

/// How much more the workers read than they are asked for: their clocks begin one by one.
const SURPLUS: f64 = 1.03;

/// Before the first fault, and after the last one.
const QUIET: Duration = Duration::from_secs(3);

/// What a run is to be.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) processes: u32,
    pub(crate) reads: u64,
    pub(crate) keys: u32,
    /// The least time. Each fault comes at least once, however long that takes.
    pub(crate) time: Duration,
    /// The time between two faults.
    pub(crate) rest: Duration,
    /// The mean pause between two invalidations of a process that invalidates.
    pub(crate) invalidate_every: Duration,
    pub(crate) faults: Vec<Fault>,
}

/// Runs it. `program` is the command that starts a process that calls
/// [`worker::work_if_told`] first.
pub(crate) fn run(plan: &Plan, program: impl Fn() -> Command) -> Findings {
    let folder = tempfile::tempdir().expect("a folder for the records");
    let mut servers = Servers::start();
    let reads_per_second = plan.reads as f64 / f64::from(plan.processes) / plan.time.as_secs_f64();
    let settings = Settings {
        redis: servers.address.url(),
        number: 0,
        keys: plan.keys,
        reads_per_second: (reads_per_second * SURPLUS).ceil() as u64,
        invalidate_every: plan.invalidate_every,
        record: folder.path().to_owned(),
    };
    let mut fleet = Fleet { program, settings, folder: folder.path(), begun: 0, running: vec![] };
    for _ in 0..plan.processes {
        fleet.begin();
    }
    let begun = Instant::now();
    while servers.listeners() < fleet.running.len() {
        assert!(begun.elapsed() < 40 * QUIET, "not all processes listen to the server");
        sleep(QUIET / 30);
    }
    let begun = Instant::now();
    sleep(QUIET);
    let (mut episodes, mut records) = (Vec::new(), Vec::new());
    let count = plan.faults.len();
    let is_at_end = |done: usize| done >= count && begun.elapsed() + QUIET >= plan.time;
    for (done, fault) in plan.faults.iter().cycle().enumerate() {
        if is_at_end(done) {
            break;
        }
        let victim = &fleet.running[done % fleet.running.len()].0;
        episodes.push(servers.suffer(*fault, victim));
        if *fault == Fault::ReplaceProcess {
            records.push(fleet.end(done % fleet.running.len()));
            fleet.begin();
        }
        sleep(plan.rest);
    }
    sleep(QUIET);
    while !fleet.running.is_empty() {
        records.push(fleet.end(0));
    }
    let seconds = begun.elapsed().as_secs_f64();
    let verdict = judge::judge(&records, plan.keys);
    Findings { records, episodes, verdict, seconds }
}

/// The workers.
struct Fleet<'a, P> {
    program: P,
    settings: Settings,
    folder: &'a Path,
    begun: u32,
    running: Vec<(Child, Settings)>,
}

impl<P: Fn() -> Command> Fleet<'_, P> {
    fn begin(&mut self) {
        let number = self.begun;
        self.begun += 1;
        let record = self.folder.join(number.to_string());
        let settings = Settings { number, record, ..self.settings.clone() };
        let mut command = (self.program)();
        settings.hand_to(&mut command);
        let process = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        self.running.push((process.expect("a process starts"), settings));
    }

    /// Tells one to end, and returns what it has written down.
    fn end(&mut self, index: usize) -> Record {
        let (mut process, settings) = self.running.remove(index);
        drop(process.stdin.take());
        let status = process.wait().expect("it ends");
        assert!(status.success(), "process {} ended with {status}", settings.number);
        let record = std::fs::read_to_string(&settings.record).expect("its record is there");
        Record::of_text(&record)
    }
}

impl<P> Drop for Fleet<'_, P> {
    fn drop(&mut self) {
        for (process, _) in &mut self.running {
            // It may be dead already: no matter.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
