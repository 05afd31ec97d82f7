//! Whether what the processes saw keeps the rule P1 of the protocol.
//!
//! All moments are of one clock, the system's monotonic one. For an invalidation that was called
//! at C and has returned at R, and a read that began at A and returned a value whose computation
//! began at S:
//!
//! - *own*: in the process that invalidated, S < C and A > R is a violation, whether it returned
//!   `Done` or `Queued`.
//! - *late*: in every other process, S < C and A > R + 2 s is a violation where the invalidation
//!   returned `Done`, and the process was `Up` from before the read until after it. The last
//!   heartbeat that did not show the invalidation was sent before R, and vouches for 2 s.
//! - *adopted*: as *late*, but from R on, where the invalidation was one of a key and the read
//!   asked Redis itself: it was not answered from memory, and no other read of the key was under
//!   way in its process. A key's value is deleted before `Done`. The value of a tag stays in Redis,
//!   and each process judges it by what it has heard of the log: so for tags and everything the
//!   bound is the one of *late*, and what was taken before it is counted as *taken within the
//!   bound*.
//!
//! Where the processes go to a server that lacks what the one before said was done, and both take
//! writes for a while, *late* and *adopted* begin later: in the words of the documentation, others
//! may serve older values until 2 s after the process that invalidated has reached the new server,
//! and as long as they are at the old one. [`Passage`] knows when that is, as the servers say which
//! connections they have. Where both processes were still at the old server when the last such read
//! was answered, or were at the new one before C, nothing changes. A process that has ended at the
//! old server is replaced by the first one that was there 2 s after R and has reached the new one,
//! and that may wait for 1 s more. If there is none, the invalidation is *not covered*, and counted.
//! *Own* has no exception. And a part of *adopted* has none:
//!
//! - *brought back*: as *adopted*, where the process that invalidated was at the old server at R,
//!   and S is before the new one ceased to follow. The value has ended at the old server, and all
//!   that the new one had before is dead.
//!
//! What lies between C and R is judged in favour of the process: the invalidation may take
//! effect at any moment between the two.

use super::passage::Passage;
use super::record::{Invalidation, Moment, Record, Sighting, Target};

/// How long a process may serve a local copy after an invalidation elsewhere.
const BOUND: Moment = 2_000_000_000;

/// Which part of the rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Own,
    Late,
    Adopted,
    BroughtBack,
}

impl Part {
    pub(crate) const ALL: [Self; 4] = [Self::Own, Self::Late, Self::Adopted, Self::BroughtBack];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Own => "served by the process that invalidated",
            Self::Late => "served elsewhere while up, 2 s after `Done`",
            Self::Adopted => "taken from Redis after `Done` of its key",
            Self::BroughtBack => "brought back by another server after `Done` of its key",
        }
    }
}

/// A value that was served although it may not be.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) part: Part,
    pub(crate) key: u32,
    /// The process that served it, and the one that had invalidated it.
    pub(crate) process: usize,
    pub(crate) by: usize,
    pub(crate) invalidation: Invalidation,
    /// How long after the return the two processes were at one server.
    pub(crate) apart: Moment,
    /// How long after the return the last such read began.
    pub(crate) after: Moment,
    /// How long before the call the computation of the newest such value began.
    pub(crate) older: Moment,
}

/// How long after its return an invalidation was not known everywhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) invalidation: Invalidation,
    /// Until the last read that returned an older value; 0: there was none.
    pub(crate) until_all: Moment,
    /// The same for processes that reported `Up`.
    pub(crate) until_all_up: Moment,
    /// Whether some process may have been at another server than the one that invalidated.
    pub(crate) is_split: bool,
    /// Whether no process that is left has announced it to the new server.
    pub(crate) is_uncovered: bool,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<Violation>,
    /// Of the invalidations that returned `Done`.
    pub(crate) spreads: Vec<Spread>,
    /// How long after `Done` values with an invalidated tag were taken from Redis.
    pub(crate) taken_within: Vec<Moment>,
}

/// The values of a key that a process has served, by the start of their computations. Each has
/// the last reads of itself and of all older values.
struct History(Vec<Sighting>);

impl History {
    fn new(mut sightings: Vec<Sighting>) -> Self {
        sightings.sort_unstable_by_key(|seen| seen.started);
        let mut before = None;
        for seen in &mut sightings {
            if let Some(Sighting { last, answered, last_up, last_fetched, .. }) = before {
                seen.last = seen.last.max(last);
                seen.answered = seen.answered.max(answered);
                seen.last_up = seen.last_up.max(last_up);
                seen.last_fetched = seen.last_fetched.max(last_fetched);
            }
            before = Some(*seen);
        }
        Self(sightings)
    }

    /// Returns the last reads of values that are older than `moment`, with the newest of them.
    fn older_than(&self, moment: Moment) -> Option<&Sighting> {
        let count = self.0.partition_point(|seen| seen.started < moment);
        count.checked_sub(1).map(|last| &self.0[last])
    }
}

/// Judges what the processes have written down about `keys` keys.
pub(crate) fn judge(records: &[Record], keys: u32, passages: &[&Passage]) -> Verdict {
    let mut histories: Vec<Vec<History>> = Vec::new();
    for record in records {
        let mut of_keys = vec![Vec::new(); keys as usize];
        for seen in &record.sightings {
            of_keys[seen.key as usize].push(*seen);
        }
        histories.push(of_keys.into_iter().map(History::new).collect());
    }
    let mut verdict = Verdict::default();
    for (by, record) in records.iter().enumerate() {
        for invalidation in &record.invalidations {
            let passages = passages.iter().copied();
            let passages: Vec<_> =
                passages.filter(|passage| passage.concerns(invalidation)).collect();
            let mut spread = Spread {
                invalidation: *invalidation,
                until_all: 0,
                until_all_up: 0,
                is_split: !passages.is_empty(),
                is_uncovered: passages
                    .iter()
                    .any(|passage| passage.reached_by(invalidation, record.number) == Moment::MAX),
            };
            for key in (0..keys).filter(|key| invalidation.target.concerns(*key)) {
                for (process, of_keys) in histories.iter().enumerate() {
                    let old = of_keys[key as usize].older_than(invalidation.called);
                    let Some(old) = old else { continue };
                    let numbers = [record.number, records[process].number];
                    let at = Place { key, process, by, numbers, passages: &passages };
                    verdict.violations.extend(at.violations(invalidation, old));
                    for passage in &passages {
                        let before = invalidation.called.min(passage.since);
                        let old = of_keys[key as usize].older_than(before);
                        let is_at_old = invalidation.returned < passage.left_by(record.number);
                        let old = old.filter(|_| is_at_old);
                        verdict
                            .violations
                            .extend(old.and_then(|old| at.brought_back(invalidation, old)));
                    }
                    let after = |last: Moment| last.saturating_sub(invalidation.returned);
                    let taken = after(old.last_fetched);
                    let is_of_tag = !at.is_of_key(invalidation) && passages.is_empty();
                    if invalidation.is_done && is_of_tag && taken > 0 {
                        verdict.taken_within.push(taken);
                    }
                    spread.until_all = spread.until_all.max(after(old.last));
                    spread.until_all_up = spread.until_all_up.max(after(old.last_up));
                }
            }
            verdict.spreads.extend(invalidation.is_done.then_some(spread));
        }
    }
    verdict
}

#[derive(Clone, Copy)]
struct Place<'a> {
    key: u32,
    process: usize,
    by: usize,
    /// The numbers of the process that invalidated and of the one that read.
    numbers: [u32; 2],
    passages: &'a [&'a Passage],
}

impl Place<'_> {
    fn is_of_key(self, invalidation: &Invalidation) -> bool {
        invalidation.target == Target::Key(self.key)
    }

    /// Returns from when on the reader must have heard of it, if its last read of an older value was
    /// answered then.
    fn heard_from(self, invalidation: &Invalidation, answered: Moment) -> Moment {
        let [by, reader] = self.numbers;
        let heard = |passage: &&Passage| passage.heard_from(invalidation, by, reader, answered);
        self.passages.iter().map(heard).max().unwrap_or(invalidation.returned)
    }

    /// What was stored before the new server ceased to follow is dead there, and has ended at the
    /// old one: no process takes it from either.
    fn brought_back(self, invalidation: &Invalidation, old: &Sighting) -> Option<Violation> {
        let is_judged = invalidation.is_done && self.is_of_key(invalidation);
        (is_judged && old.last_fetched > invalidation.returned).then(|| Violation {
            part: Part::BroughtBack,
            key: self.key,
            process: self.process,
            by: self.by,
            invalidation: *invalidation,
            apart: 0,
            after: old.last_fetched - invalidation.returned,
            older: invalidation.called - old.started,
        })
    }

    fn violations(self, invalidation: &Invalidation, old: &Sighting) -> Vec<Violation> {
        let Self { key, process, by, .. } = self;
        let returned = invalidation.returned;
        let is_elsewhere = process != by && invalidation.is_done;
        let heard = self.heard_from(invalidation, old.answered);
        // What the announcer says again to the new server ends there while the reader asks.
        let until_ended = if heard == returned { 0 } else { BOUND };
        let checks = [
            (Part::Own, process == by, old.last, returned, 0),
            (Part::Late, is_elsewhere, old.last_up, heard, BOUND),
            (
                Part::Adopted,
                invalidation.is_done && self.is_of_key(invalidation),
                old.last_fetched,
                heard,
                until_ended,
            ),
        ];
        let broken = checks.into_iter().filter(|(_, is_judged, last, from, bound)| {
            *is_judged && *last > from.saturating_add(*bound)
        });
        let violation = |(part, _, last, from, _)| Violation {
            part,
            key,
            process,
            by,
            invalidation: *invalidation,
            apart: from - returned,
            after: last - returned,
            older: invalidation.called - old.started,
        };
        broken.map(violation).collect()
    }
}
