//! When the processes go from one server to another that lacks what the first one said was done.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use super::record::{Invalidation, Moment, now};
use super::worker::CLIENT;
use crate::kit::redis::Resp;

/// How often it is looked where the processes are.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// By when all processes must be at the new server, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// By when a process has heard of an invalidation, if by a heartbeat alone.
const HEARD_WITHIN: Moment = 2_000_000_000;

/// How long a process waits at most that announces again what it has only heard.
const SPREAD: Moment = 1_000_000_000;

/// When a process has gone from one server to the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crossing {
    /// Until then its commands have gone to the old server.
    pub(crate) left: Moment,
    /// From then on they go to the new one; `Moment::MAX`: never.
    pub(crate) reached: Moment,
}

/// The way of all processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passage {
    /// What was done before this is known to the new server.
    pub(crate) since: Moment,
    pub(crate) crossings: BTreeMap<u32, Crossing>,
    /// The processes that ran when the new server ceased to follow the old one.
    pub(crate) witnesses: BTreeSet<u32>,
}

impl Passage {
    /// Returns whether an invalidation may have been announced to one of the two servers only.
    pub(crate) fn concerns(&self, invalidation: &Invalidation) -> bool {
        let reached = self.crossings.values().map(|crossing| crossing.reached);
        invalidation.returned >= self.since
            && reached.max().is_some_and(|reached| invalidation.called <= reached)
    }

    /// Returns from when on process `reader`, whose last read of an older value was answered at
    /// `answered`, must have heard of an invalidation by process `by`; `Moment::MAX`: never.
    ///
    /// Where both were at one server, that is when the invalidation returned. Else it is when both
    /// are at the new one.
    pub(crate) fn heard_from(
        &self,
        invalidation: &Invalidation,
        by: u32,
        reader: u32,
        answered: Moment,
    ) -> Moment {
        let [announcer, other] = [by, reader].map(|number| self.crossing(number));
        let reached = self.reached_by(invalidation, by).max(other.reached);
        let are_at_old = answered < announcer.left.min(other.left);
        let are_at_new = invalidation.called > reached;
        match are_at_old || are_at_new || !self.concerns(invalidation) {
            true => invalidation.returned,
            false => invalidation.returned.max(reached),
        }
    }

    /// Returns when an invalidation is known to the new server; `Moment::MAX`: perhaps never. A
    /// process that has ended before is replaced by one that has heard of it.
    pub(crate) fn reached_by(&self, invalidation: &Invalidation, by: u32) -> Moment {
        let reached = self.crossing(by).reached;
        if reached < Moment::MAX {
            return reached;
        }
        let others = self.crossings.iter().filter(|(number, crossing)| {
            let has_heard = crossing.left >= invalidation.returned + HEARD_WITHIN;
            **number != by && self.witnesses.contains(number) && has_heard
        });
        let first = others.map(|(_, crossing)| crossing.reached).min();
        first.map_or(Moment::MAX, |first| first.saturating_add(SPREAD))
    }

    /// Returns until when the commands of a process have gone to the old server.
    pub(crate) fn left_by(&self, number: u32) -> Moment {
        self.crossing(number).left
    }

    /// A process that is not known has begun when all others were at the new server.
    fn crossing(&self, number: u32) -> Crossing {
        self.crossings.get(&number).copied().unwrap_or(Crossing { left: 0, reached: 0 })
    }
}

/// Looks again and again where the commands of each process go: the servers are asked, not the
/// processes.
pub(crate) struct Watch {
    is_over: Arc<AtomicBool>,
    arrived: Arc<Mutex<BTreeSet<u32>>>,
    thread: JoinHandle<BTreeMap<u32, Crossing>>,
    since: Moment,
    witnesses: BTreeSet<u32>,
}

impl Watch {
    /// Begins to look at two servers, by their ports. Without an old one, all have left it now.
    /// `since` is when the new one ceased to follow, or was saved.
    pub(crate) fn begin(since: Moment, old: Option<u16>, new: u16, running: &[u32]) -> Self {
        let begun = now();
        let witnesses: BTreeSet<_> = running.iter().copied().collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let arrived: Arc<Mutex<BTreeSet<u32>>> = Arc::default();
        let (over, all) = (Arc::clone(&is_over), Arc::clone(&arrived));
        let still_at_old = Crossing { left: begun, reached: Moment::MAX };
        let mut crossings: BTreeMap<_, _> =
            running.iter().map(|number| (*number, still_at_old)).collect();
        let thread = thread::spawn(move || {
            let (mut old, mut new) = (old.map(Seat::new), Seat::new(new));
            while !over.load(Relaxed) {
                sleep(LOOK_EVERY);
                let before = now();
                let at_old = match &mut old {
                    // Its connections were closed: the next look tells.
                    Some(old) => old.workers("normal"),
                    None => Ok(BTreeSet::new()),
                };
                let (Ok(at_old), Ok(at_new)) = (at_old, new.workers("normal")) else { continue };
                let after = now();
                let mut arrived = all.lock().unwrap();
                for number in &at_old {
                    crossings.insert(*number, Crossing { left: before, reached: Moment::MAX });
                    arrived.remove(number);
                }
                for number in at_new.difference(&at_old) {
                    let crossing = crossings.entry(*number).or_insert(still_at_old);
                    crossing.reached = crossing.reached.min(after);
                    arrived.insert(*number);
                }
            }
            crossings
        });
        Self { is_over, arrived, thread, since, witnesses }
    }

    /// Waits until these are at the new server.
    pub(crate) fn end(self, running: &[u32]) -> Passage {
        let begun = Instant::now();
        let are_all_there = || {
            let arrived = self.arrived.lock().unwrap();
            running.iter().all(|number| arrived.contains(number))
        };
        while !are_all_there() {
            assert!(begun.elapsed() < PATIENCE, "not all processes reach the new server");
            sleep(LOOK_EVERY);
        }
        self.is_over.store(true, Relaxed);
        let crossings = self.thread.join().expect("the look-out does not panic");
        Passage { since: self.since, crossings, witnesses: self.witnesses }
    }
}

/// A connection to a server, by which it is asked for its clients.
pub(crate) struct Seat {
    port: u16,
    connection: Option<Resp>,
}

impl Seat {
    pub(crate) fn new(port: u16) -> Self {
        Self { port, connection: None }
    }

    /// Returns the numbers of the processes that have a connection of this kind.
    pub(crate) fn workers(&mut self, kind: &str) -> io::Result<BTreeSet<u32>> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Resp::connect(self.port)?,
        };
        let list = connection.call(&["CLIENT", "LIST", "TYPE", kind])?;
        self.connection = Some(connection);
        let text = list.text();
        let names = text.split_whitespace().filter_map(|field| field.strip_prefix("name="));
        Ok(names.filter_map(|name| name.strip_prefix(CLIENT)?.parse().ok()).collect())
    }
}
