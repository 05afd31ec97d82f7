//! Which copies are older than an invalidation, and for how long they were served.
//!
//! Only certain findings count. A copy is *older* than an announcement if its computation began
//! before a moment at which the announcement did not stand in the log yet; or if the same copy
//! was listed before that moment. It was served *for* the time from the moment at which the
//! announcement stood in the log to the one at which the copy was listed last. So each time is
//! too short by up to an interval, and never too long. No clocks of two machines are compared.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::log::{Announced, Ended, Header, RemoteValue};
use crate::names::{concern_of, text_of};
use crate::process::{LocalCopy, Report};

/// How long a process that reports `up` may serve what was invalidated elsewhere.
pub(crate) const BOUND: Duration = Duration::from_secs(2);

/// Two listings of one copy can differ by so much in what follows from its age.
const SAME: Duration = Duration::from_millis(100);

/// Announcements that are remembered. Older ones concern what has been replaced since, or was
/// reported already.
const MOST_ANNOUNCED: usize = 20_000;

/// What was found of one process.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) rounds: u64,
    /// Rounds in which it could not be asked, and why the last time.
    pub(crate) unanswered: u64,
    pub(crate) last_error: Option<String>,
    pub(crate) health: String,
    pub(crate) not_up: u64,
    pub(crate) copies: u64,
    /// Copies whose value in Redis is newer.
    pub(crate) older_than_remote: u64,
    /// Copies that were listed after an invalidation that they are older than.
    pub(crate) invalidated: u64,
    /// For how long at most one was served, whatever the process reported.
    pub(crate) longest: Duration,
    /// The same while it reported `up`.
    pub(crate) longest_up: Duration,
    /// The key of that one.
    pub(crate) worst_key: Option<String>,
    /// Since when it has not applied what stands in the log, and for how long at most.
    behind_since: Option<Instant>,
    pub(crate) longest_behind: Duration,
    known: HashMap<Vec<u8>, Known>,
}

/// A copy that was listed before.
#[derive(Debug)]
struct Known {
    started: Instant,
    version: Option<u64>,
    since: Instant,
}

impl Findings {
    /// Returns whether it served something invalidated for longer than it may.
    pub(crate) fn is_violated(&self) -> bool {
        self.longest_up > BOUND
    }

    pub(crate) fn failed(&mut self, error: String) {
        self.rounds += 1;
        self.unanswered += 1;
        self.health = "no answer".into();
        self.last_error = Some(error);
        self.behind_since = None;
    }

    /// Takes what the process said in this round.
    pub(crate) fn take(
        &mut self,
        report: &Report,
        log: &LogWatch,
        remote: &HashMap<Vec<u8>, RemoteValue>,
    ) {
        self.rounds += 1;
        self.health.clone_from(&report.health);
        let is_up = report.health == "up";
        self.not_up += u64::from(!is_up);
        self.take_position(report, log);
        let mut known = HashMap::new();
        for copy in &report.copies {
            self.copies += 1;
            let newest = remote.get(&copy.key).map(|value| value.version);
            let is_older = copy.version.zip(newest).is_some_and(|(own, newest)| own < newest);
            self.older_than_remote += u64::from(is_older);
            let since = self.known_since(copy).unwrap_or(report.answered);
            let (started, version) = (copy.started, copy.version);
            known.insert(copy.key.clone(), Known { started, version, since });
            // A copy that is not vouched for is not served before the log was read.
            if !report.is_vouched {
                continue;
            }
            let Some(served) = log.served_since(copy, since) else { continue };
            let time = report.asked.saturating_duration_since(served);
            self.invalidated += 1;
            self.longest = self.longest.max(time);
            if is_up && time > self.longest_up {
                self.longest_up = time;
                self.worst_key = Some(text_of(&copy.key));
            }
        }
        self.known = known;
    }

    /// Returns since when this very copy is known.
    fn known_since(&self, copy: &LocalCopy) -> Option<Instant> {
        let known = self.known.get(&copy.key)?;
        let [early, late] = [known.started.min(copy.started), known.started.max(copy.started)];
        let is_same = known.version == copy.version && late.duration_since(early) <= SAME;
        is_same.then_some(known.since)
    }

    fn take_position(&mut self, report: &Report, log: &LogWatch) {
        let is_behind = match (&report.applied, &log.header) {
            (Some((epoch, position)), Some(header)) => {
                *epoch != header.epoch || *position < header.last
            }
            _ => false,
        };
        match self.behind_since {
            Some(since) if is_behind => {
                let time = report.asked.saturating_duration_since(since);
                self.longest_behind = self.longest_behind.max(time);
            }
            _ => self.behind_since = is_behind.then_some(report.asked),
        }
    }
}

/// What was announced since we look.
#[derive(Debug, Default)]
pub(crate) struct LogWatch {
    pub(crate) header: Option<Header>,
    /// Each with the first announcement that was seen, and the last.
    keys: HashMap<Vec<u8>, Vec<Announced>>,
    tags: HashMap<Vec<u8>, Vec<Announced>>,
    everything: Vec<Announced>,
    pub(crate) count: usize,
}

impl LogWatch {
    pub(crate) fn take(&mut self, header: Option<&Header>, announced: Vec<Announced>) {
        self.header = header.cloned();
        self.count += announced.len();
        for one in announced {
            let list = match &one.ended {
                Ended::Key(key) => self.keys.entry(concern_of(key).to_vec()).or_default(),
                Ended::Tag(tag) => self.tags.entry(tag.clone()).or_default(),
                Ended::Everything => &mut self.everything,
            };
            list.push(one);
        }
        if self.keys.len() + self.tags.len() > MOST_ANNOUNCED {
            self.keys.clear();
            self.tags.clear();
        }
    }

    /// Returns since when at the latest a copy must not be served: when the first announcement
    /// that ends it stood in the log. `since`: when the copy was first listed.
    fn served_since(&self, copy: &LocalCopy, since: Instant) -> Option<Instant> {
        let of_key = self.keys.get(concern_of(&copy.key));
        let of_tags = copy.tags.iter().filter_map(|tag| self.tags.get(tag));
        let all = of_key.into_iter().chain(of_tags).chain([&self.everything]).flatten();
        let is_older = |announced: &&Announced| {
            since <= announced.not_before
                || (!copy.is_response && copy.started < announced.not_before)
        };
        all.filter(is_older).map(|announced| announced.seen).min()
    }
}
