//! What happened so far: the sequential model's memory. Every entry is made at
//! the moment when it happens, in the one order in which one thread does it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Arguments;
use std::time::Duration;

use tokio::time::Instant;
use tower_stampede::{ErrorKind, FailureAction, Mode};

use crate::case::{How, Kept, Settings};

/// A moment: its place in the order of events, and the time of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) order: u64,
    pub(crate) at: Duration,
}

impl Moment {
    pub(crate) fn is_before(self, other: Self) -> bool {
        self.order < other.order
    }
}

/// What a value says of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) key: usize,
    pub(crate) source: Source,
    pub(crate) begun: Moment,
    pub(crate) ended: Moment,
    pub(crate) ttl: Duration,
    pub(crate) tagged: bool,
    pub(crate) do_not_store: bool,
    pub(crate) heavy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The call whose computation made it.
    Call(usize),
    /// The cut that a `put` is.
    Put(usize),
}

/// What an error of a computation says of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailureFacts {
    pub(crate) key: usize,
    pub(crate) computation: usize,
    pub(crate) action: FailureAction,
}

/// One call of the handle that may compute, or a `get`.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) key: usize,
    pub(crate) how: How,
    /// The caller at whose root it is.
    pub(crate) actor: usize,
    /// The computation that asks.
    pub(crate) parent: Option<usize>,
    pub(crate) asked: Moment,
    /// How far the clock had jumped in all.
    pub(crate) jumped: Duration,
    /// Its own computation.
    pub(crate) own: Option<usize>,
    pub(crate) ended: Option<Moment>,
    pub(crate) dropped: bool,
}

/// How a call ended.
#[derive(Clone, Debug)]
pub(crate) enum CallEnd {
    Value(Facts),
    Nothing,
    Refused(ErrorKind, Option<FailureFacts>),
    Panicked,
    Dropped,
}

#[derive(Clone, Debug)]
pub(crate) struct Computation {
    pub(crate) key: usize,
    pub(crate) call: usize,
    pub(crate) begun: Moment,
    pub(crate) ended: Option<(Moment, ComputationEnd)>,
    /// How many calls of its own it waits for now.
    pub(crate) asks: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ComputationEnd {
    Value,
    Failed(FailureAction),
    Panicked,
    /// After its `compute_timeout`.
    TimedOut,
    Dropped,
}

impl ComputationEnd {
    /// Returns whether callers are held off after it.
    pub(crate) fn holds(self) -> bool {
        matches!(self, Self::Failed(FailureAction::Hold) | Self::Panicked | Self::TimedOut)
    }
}

/// Something that ends or replaces values: an invalidation, a `put`, a mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) what: What,
    pub(crate) begun: Moment,
    pub(crate) ended: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Key(usize),
    Tag,
    All,
    Put(usize),
    Stale(usize),
}

impl What {
    pub(crate) fn concerns(self, key: usize, tagged: bool) -> bool {
        match self {
            Self::Key(own) | Self::Put(own) | Self::Stale(own) => own == key,
            Self::Tag => tagged,
            Self::All => true,
        }
    }
}

/// What the store holds of a key, as far as it is certain.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Shelf {
    #[default]
    Empty,
    Unknown,
    Holds(Facts),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct KeyState {
    pub(crate) shelf: Shelf,
    /// Whether its answers were ever left to each caller.
    pub(crate) is_each_callers: bool,
    /// Whether a value of it ever had the tag. A later one may have inherited it.
    pub(crate) was_tagged: bool,
    /// The youngest value that came from the store, and when it did.
    pub(crate) newest: Option<(Facts, Moment)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) rule: &'static str,
    pub(crate) detail: String,
}

#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) settings: Settings,
    start: Instant,
    order: u64,
    pub(crate) jumped: Duration,
    pub(crate) mode: Mode,
    /// When the mode last came to be another one than `On` or stopped to be.
    pub(crate) left_on: u64,
    pub(crate) came_on: u64,
    pub(crate) left_off: u64,
    pub(crate) calls: Vec<Call>,
    pub(crate) computations: Vec<Computation>,
    pub(crate) cuts: Vec<Cut>,
    pub(crate) keys: BTreeMap<usize, KeyState>,
    pub(crate) silent_ever: BTreeSet<usize>,
    /// Calls of computations that ended while what they waited for ran on.
    pub(crate) deserted: usize,
    /// Callers that were refused by a hold.
    pub(crate) held: u64,
    pub(crate) violations: Vec<Violation>,
    /// The history as text, where it is wanted.
    pub(crate) history: Option<Vec<String>>,
}

impl Record {
    pub(crate) fn new(settings: Settings, keeps_history: bool) -> Self {
        Self {
            settings,
            start: Instant::now(),
            order: 0,
            jumped: Duration::ZERO,
            mode: Mode::On,
            left_on: 0,
            came_on: 0,
            left_off: 0,
            calls: Vec::new(),
            computations: Vec::new(),
            cuts: Vec::new(),
            keys: BTreeMap::new(),
            silent_ever: BTreeSet::new(),
            deserted: 0,
            held: 0,
            violations: Vec::new(),
            history: keeps_history.then(Vec::new),
        }
    }

    pub(crate) fn now(&mut self) -> Moment {
        self.order += 1;
        Moment { order: self.order, at: self.start.elapsed() }
    }

    pub(crate) fn note(&mut self, now: Moment, what: Arguments<'_>) {
        if let Some(history) = &mut self.history {
            history.push(format!("{:>6} ms  {what}", now.at.as_millis()));
        }
    }

    pub(crate) fn violate(&mut self, rule: &'static str, detail: String) {
        let now = self.now();
        self.note(now, format_args!("!!! {rule}: {detail}"));
        self.violations.push(Violation { rule, detail });
    }

    pub(crate) fn key(&mut self, key: usize) -> &mut KeyState {
        self.keys.entry(key).or_default()
    }

    pub(crate) fn set_mode(&mut self, mode: Mode) {
        let now = self.now();
        self.note(now, format_args!("switched to {mode:?}"));
        match (self.mode == Mode::On, mode == Mode::On) {
            (true, false) => self.left_on = now.order,
            (false, true) => self.came_on = now.order,
            _ => {}
        }
        if self.mode != Mode::On {
            self.left_off = now.order;
        }
        self.mode = mode;
    }

    /// Returns whether the mode has been `On` all the time since.
    pub(crate) fn is_on_since(&self, then: Moment) -> bool {
        self.mode == Mode::On && self.came_on <= then.order
    }

    /// Returns whether the mode has never been `On` since.
    pub(crate) fn is_not_on_since(&self, then: Moment) -> bool {
        self.mode != Mode::On && self.left_on <= then.order
    }

    pub(crate) fn was_off_since(&self, then: Moment) -> bool {
        self.mode != Mode::On || self.left_off > then.order
    }

    pub(crate) fn facts(
        &self,
        key: usize,
        source: Source,
        begun: Moment,
        ended: Moment,
        kept: Kept,
    ) -> Facts {
        let ttl = Duration::from_millis(kept.ttl.unwrap_or(self.settings.ttl));
        Facts {
            key,
            source,
            begun,
            ended,
            ttl,
            tagged: kept.tag,
            do_not_store: kept.do_not_store,
            heavy: kept.heavy,
        }
    }

    /// Returns from when on a value is not fresh any more for a caller that asked
    /// then, marks included.
    pub(crate) fn fresh_until(&self, facts: &Facts, asked: Moment) -> Duration {
        let marks = self.cuts.iter().filter(|cut| {
            cut.what == What::Stale(facts.key)
                && facts.ended.is_before(cut.begun)
                && cut.ended.is_some_and(|ended| ended.is_before(asked))
        });
        marks.map(|cut| cut.begun.at).fold(facts.ended.at + facts.ttl, Duration::min)
    }

    /// Returns whether the computation is past the time that it may take, or
    /// one that waits for it is.
    pub(crate) fn is_overdue(&self, computation: &Computation, now: Moment) -> bool {
        let limit = Duration::from_millis(self.settings.compute_timeout);
        let parent = self.calls[computation.call].parent;
        now.at >= computation.begun.at + limit
            || parent.is_some_and(|parent| self.is_overdue(&self.computations[parent], now))
    }

    /// Returns whether a call has waited as long as it may.
    pub(crate) fn has_waited(&self, call: &Call, now: Moment) -> bool {
        now.at >= call.asked.at + Duration::from_millis(self.settings.wait_timeout)
    }
}
