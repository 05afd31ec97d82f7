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
//! scene ──starts──▶ workers ──address or sentinels──▶ primary ──▶ replica
//!  └── faults: one after the other ────────────────────▲
//!
//! the workers' records ──▶ judge ──▶ findings
//! ```
//!
//! There are two scenes at the same time, each with half of the processes: in one of them an
//! address leads to the primary, in the other one sentinels do.
//!
//! A value is the moment at which its computation began. Each worker writes down when it last
//! read which value, and when it invalidated what: all moments are of one clock, the system's.
//! Nothing is judged before the end, so no worker needs to hear of another but by the cache.
//!
//! # Reading order
//!
//! - `record`: what a worker writes down.
//! - `worker`: the process. `fleet`: all of them.
//! - `faults`: what can be done to the servers. `servers`: how it is done.
//! - `passage`: when each process has gone from one server to another.
//! - `judge`: rule P1.
//! - `findings`: what is printed.

pub(crate) mod faults;
pub(crate) mod findings;
pub(crate) mod fleet;
pub(crate) mod judge;
pub(crate) mod passage;
pub(crate) mod record;
pub(crate) mod servers;
pub(crate) mod worker;

use std::process::Command;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use faults::{Episode, Fault};
use findings::{Findings, Scene};
use fleet::{Fleet, Program};
use passage::Seat;
use servers::Servers;
use worker::Settings;

use crate::kit::redis::{Sentinels, Server};

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

/// Runs it. `program` makes the command that starts a process that calls
/// [`worker::work_if_told`] first.
pub(crate) fn run(plan: &Plan, program: impl Fn() -> Command + Sync) -> Findings {
    let begun = Instant::now();
    let is_of_sentinels = |fault: &Fault| *fault == Fault::PlannedFailover;
    let (with_sentinels, with_address): (Vec<_>, Vec<_>) =
        plan.faults.iter().partition(|fault| is_of_sentinels(fault));
    let parts: Vec<_> =
        [with_address, with_sentinels].into_iter().filter(|faults| !faults.is_empty()).collect();
    let share = u32::try_from(parts.len()).expect("there are two");
    let plan = |faults| Plan {
        processes: (plan.processes / share).max(2),
        reads: plan.reads / u64::from(share),
        faults,
        ..plan.clone()
    };
    let program: Program<'_> = &program;
    let scenes = thread::scope(|scope| {
        let playing: Vec<_> = parts
            .into_iter()
            .map(|faults| scope.spawn(move || Stage::of(&faults).play(&plan(faults), program)))
            .collect();
        playing.into_iter().map(|scene| scene.join().expect("a scene does not panic")).collect()
    });
    Findings { scenes, seconds: begun.elapsed().as_secs_f64() }
}

/// The servers of a scene.
enum Stage {
    Address(Servers),
    Sentinels(Sentinels),
}

impl Stage {
    fn of(faults: &[Fault]) -> Self {
        match faults.contains(&Fault::PlannedFailover) {
            true => Self::Sentinels(Sentinels::start()),
            false => Self::Address(Servers::start()),
        }
    }

    fn url(&self) -> String {
        match self {
            Self::Address(servers) => servers.address.url(),
            Self::Sentinels(sentinels) => sentinels.urls().join(","),
        }
    }

    fn primary(&self) -> &Server {
        match self {
            Self::Address(servers) => &servers.primary,
            Self::Sentinels(sentinels) => sentinels.primary(),
        }
    }

    fn suffer(&mut self, fault: Fault, fleet: &mut Fleet<'_>, victim: usize) -> Episode {
        match self {
            Self::Address(servers) => servers.suffer(fault, fleet, victim),
            Self::Sentinels(sentinels) => servers::fail_over(sentinels, fleet),
        }
    }

    fn play(mut self, plan: &Plan, program: Program<'_>) -> Scene {
        let processes = plan.processes as usize;
        let reads_per_second = plan.reads as f64 / processes as f64 / plan.time.as_secs_f64();
        let mut fleet = Fleet::new(
            program,
            Settings {
                redis: self.url(),
                number: 0,
                keys: plan.keys,
                reads_per_second: (reads_per_second * SURPLUS).ceil() as u64,
                invalidate_every: plan.invalidate_every,
                record: "".into(),
            },
        );
        for _ in 0..processes {
            fleet.begin();
        }
        self.all_listen(processes);
        let begun = Instant::now();
        sleep(QUIET);
        let mut episodes = Vec::new();
        let count = plan.faults.len();
        let is_at_end = |done: usize| done >= count && begun.elapsed() + QUIET >= plan.time;
        for (done, fault) in plan.faults.iter().cycle().enumerate() {
            if is_at_end(done) {
                break;
            }
            episodes.push(self.suffer(*fault, &mut fleet, done % processes));
            sleep(plan.rest);
            // In place of those that have begun meanwhile.
            while fleet.len() > processes {
                fleet.end(0);
            }
        }
        sleep(QUIET);
        while fleet.len() > 0 {
            fleet.end(0);
        }
        let records = std::mem::take(&mut fleet.records);
        let passages: Vec<_> =
            episodes.iter().filter_map(|episode| episode.passage.as_ref()).collect();
        let verdict = judge::judge(&records, plan.keys, &passages);
        Scene { records, episodes, verdict }
    }

    fn all_listen(&self, processes: usize) {
        let begun = Instant::now();
        let mut seat = Seat::new(self.primary().port());
        while seat.workers("pubsub").map_or(0, |workers| workers.len()) < processes {
            assert!(begun.elapsed() < 40 * QUIET, "not all processes listen to the server");
            sleep(QUIET / 30);
        }
    }
}
