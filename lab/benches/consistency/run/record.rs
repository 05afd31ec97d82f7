//! What a process writes down, as lines of text.

use std::fmt::Write as _;

/// Tags of the first kind: key `k` has `k % 16`.
const NARROW_TAGS: u32 = 16;

/// Tags of the second kind, which more keys have.
const WIDE_TAGS: u32 = 4;

/// All tags are numbers below this.
pub(crate) const TAGS: u32 = NARROW_TAGS + WIDE_TAGS;

/// Nanoseconds of the system's monotonic clock, which all processes share.
pub(crate) type Moment = u64;

pub(crate) fn now() -> Moment {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).expect("the clock counts from the start");
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).expect("no negative part")
}

pub(crate) fn tags_of(key: u32) -> [u32; 2] {
    [key % NARROW_TAGS, NARROW_TAGS + key / NARROW_TAGS % WIDE_TAGS]
}

/// What is invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Key(u32),
    Tag(u32),
    Everything,
}

impl Target {
    pub(crate) fn concerns(self, key: u32) -> bool {
        match self {
            Self::Key(own) => own == key,
            Self::Tag(tag) => tags_of(key).contains(&tag),
            Self::Everything => true,
        }
    }
}

/// An invalidation, from its call to its return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invalidation {
    pub(crate) target: Target,
    pub(crate) called: Moment,
    pub(crate) returned: Moment,
    /// Whether it returned `Done`; else `Queued`.
    pub(crate) is_done: bool,
}

/// A value as one process has served it. The moments are those at which reads began; 0: none.
///
/// The last read of a value is all that the rules need: an earlier one breaks no rule that the
/// last one keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) key: u32,
    /// When its computation began, and in which process.
    pub(crate) started: Moment,
    pub(crate) by: u32,
    /// The last read.
    pub(crate) last: Moment,
    /// When the last of its reads was answered.
    pub(crate) answered: Moment,
    /// The last read from before which until after it the process was `Up`.
    pub(crate) last_up: Moment,
    /// The last one of these that was not answered from memory, while no other read of the key
    /// was under way: it has asked Redis itself.
    pub(crate) last_fetched: Moment,
}

/// All that one process has written down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) number: u32,
    pub(crate) invalidations: Vec<Invalidation>,
    pub(crate) sightings: Vec<Sighting>,
    pub(crate) reads: u64,
    /// Reads that were answered with an error of the cache, for example after `wait_timeout`.
    pub(crate) failures: u64,
    /// The first of these errors.
    pub(crate) first_failure: Option<String>,
    pub(crate) computations: u64,
    /// Milliseconds in which the process reported `Up`, and those in which it did not.
    pub(crate) up_ms: u64,
    pub(crate) degraded_ms: u64,
}

impl Record {
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for Invalidation { target, called, returned, is_done } in &self.invalidations {
            let (kind, number) = match target {
                Target::Key(key) => ('k', *key),
                Target::Tag(tag) => ('t', *tag),
                Target::Everything => ('e', 0),
            };
            let is_done = u8::from(*is_done);
            writeln!(text, "i {kind} {number} {called} {returned} {is_done}").unwrap();
        }
        for seen in &self.sightings {
            let Sighting { key, started, by, last, answered, last_up, last_fetched } = seen;
            writeln!(text, "s {key} {started} {by} {last} {answered} {last_up} {last_fetched}")
                .unwrap();
        }
        if let Some(error) = &self.first_failure {
            writeln!(text, "e {}", error.replace('\n', " ")).unwrap();
        }
        let Self { number, reads, failures, computations, up_ms, degraded_ms, .. } = self;
        writeln!(text, "c {number} {reads} {failures} {computations} {up_ms} {degraded_ms}")
            .unwrap();
        text
    }

    /// Reads what [`to_text`](Self::to_text) has written. Panics at anything else.
    pub(crate) fn of_text(text: &str) -> Self {
        let mut record = Self::default();
        let mut is_whole = false;
        for line in text.lines() {
            let (kind, rest) = line.split_once(' ').expect("a line has a kind");
            if kind == "e" {
                record.first_failure = Some(rest.to_owned());
                continue;
            }
            let is_invalidation = kind == "i";
            let (what, rest) =
                if is_invalidation { rest.split_once(' ').expect("a target") } else { ("", rest) };
            let numbers: Vec<u64> =
                rest.split(' ').map(|number| number.parse().expect("a number")).collect();
            let small = |number: u64| u32::try_from(number).expect("a small number");
            match (kind, &*numbers) {
                ("i", &[number, called, returned, is_done]) => {
                    let target = match what {
                        "k" => Target::Key(small(number)),
                        "t" => Target::Tag(small(number)),
                        _ => Target::Everything,
                    };
                    let is_done = is_done == 1;
                    let invalidation = Invalidation { target, called, returned, is_done };
                    record.invalidations.push(invalidation);
                }
                ("s", &[key, started, by, last, answered, last_up, last_fetched]) => {
                    let (key, by) = (small(key), small(by));
                    let seen = Sighting { key, started, by, last, answered, last_up, last_fetched };
                    record.sightings.push(seen);
                }
                ("c", &[number, reads, failures, computations, up_ms, degraded_ms]) => {
                    (record.reads, record.failures) = (reads, failures);
                    (record.computations, record.up_ms) = (computations, up_ms);
                    (record.number, record.degraded_ms) = (small(number), degraded_ms);
                    is_whole = true;
                }
                _ => panic!("no line of a record: {line}"),
            }
        }
        assert!(is_whole, "the record has no last line: its process was killed");
        record
    }
}
