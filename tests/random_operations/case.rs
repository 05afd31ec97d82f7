//! A case: settings, a schedule of operations, and how a seed makes both.

use std::collections::BTreeSet;
use std::sync::Arc;

use fastrand::Rng;
use tower_stampede::{Eviction, FailureAction, Mode};

/// Keys from here on belong to the checks at the end of a case.
pub(crate) const SPARE_KEY: usize = 100;

/// Computations ask for other keys at most this deep.
const DEEPEST: u32 = 2;

/// What user code does when the cache calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    Nothing,
    Stats,
    /// `get` of a key, polled once.
    Get,
    /// `invalidate` of a spare key, polled once.
    Invalidate,
    /// `get_or_compute_scoped` of a key, polled once and later polled on.
    Ask,
}

/// Times are in milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) ttl: u64,
    pub(crate) stale_for: u64,
    pub(crate) stale_if_error: u64,
    pub(crate) compute_timeout: u64,
    pub(crate) wait_timeout: u64,
    pub(crate) compute_after_wait: bool,
    pub(crate) hold: u64,
    pub(crate) max_hold: u64,
    pub(crate) uncacheable_for: u64,
    pub(crate) max_waiters: u32,
    pub(crate) max_waiters_in_all: usize,
    pub(crate) max_computations: usize,
    pub(crate) min_computations: Option<usize>,
    pub(crate) max_refreshes: usize,
    pub(crate) cancel_unwanted: Option<f64>,
    /// `None`: room for every key.
    pub(crate) max_entries: Option<u64>,
    pub(crate) eviction: Eviction,
    pub(crate) on_drop: Reaction,
    pub(crate) on_clone: Reaction,
    pub(crate) on_weigh: Reaction,
    pub(crate) on_failure: Reaction,
}

/// How a value is to be kept.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) ttl: Option<u64>,
    pub(crate) tag: bool,
    pub(crate) do_not_store: bool,
    /// Weighs as much as there is.
    pub(crate) heavy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Get,
    Plain,
    With,
    Scoped,
    Refresh,
    /// With `get_many`, as the only key of a batch.
    Batch,
}

#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) key: usize,
    pub(crate) how: How,
    pub(crate) steps: Vec<Step>,
    pub(crate) end: End,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Sleep(u64),
    Yield,
    Ask(Arc<Ask>),
    /// Gives up after so long.
    AskFor(u64, Arc<Ask>),
    Put(usize, Kept),
    Invalidate(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Value(Kept),
    Fail(FailureAction),
    Panic,
    Hang,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamEnd {
    Ends,
    Fails,
    Panics,
    Hangs,
}

/// A producer of so many chunks, each after a pause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamPlan {
    pub(crate) key: usize,
    pub(crate) chunks: usize,
    pub(crate) pause: u64,
    pub(crate) end: StreamEnd,
    pub(crate) keeps: bool,
    /// Only its first chunks have room.
    pub(crate) is_tight: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// A new reader asks for a stream.
    Stream(StreamPlan),
    /// The reader with this number reads so many chunks.
    Read(usize, usize),
    /// The reader goes away.
    Leave(usize),
    /// The stored stream of a key is looked at.
    LookAtStream(usize),
    /// A new caller asks, and is polled once.
    Ask(usize, Arc<Ask>),
    Poll(usize),
    Drop(usize),
    /// Drops the caller while its thread panics, as beside other work that does.
    DropInPanic(usize),
    /// Keeps the caller and polls it no more.
    Silence(usize),
    Resume(usize),
    Put(usize, Kept),
    Invalidate(usize),
    InvalidateTag,
    InvalidateAll,
    MarkStale(usize),
    SetMode(Mode),
    Stats,
    /// Lets spawned tasks run, callers not.
    Yield(u32),
    /// Time passes, everything that is due happens in order.
    Pass(u64),
    /// The clock jumps, as after a process stood still.
    Jump(u64),
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) settings: Settings,
    pub(crate) ops: Vec<Op>,
}

/// What the generator leaves out, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Without(BTreeSet<String>);

impl Without {
    pub(crate) const NAMES: &[&str] = &[
        "nested",
        "silence",
        "drops",
        "modes",
        "reactions",
        "panics",
        "failures",
        "declines",
        "jumps",
        "cuts",
        "puts",
        "refreshes",
        "heavy",
        "stale",
        "scoped",
        "eviction",
        "hangs",
        "work_in_drop",
    ];

    /// Reads names separated by commas.
    ///
    /// # Panics
    ///
    /// If there is no such name.
    pub(crate) fn named(names: &str) -> Self {
        let names = names.split(',').filter(|name| !name.is_empty());
        Self(
            names
                .inspect(|name| {
                    assert!(Self::NAMES.contains(name), "no `{name}` among {:?}", Self::NAMES);
                })
                .map(str::to_owned)
                .collect(),
        )
    }

    fn and_some_more(&self, rng: &mut Rng) -> Self {
        let more = Self::NAMES.iter().filter(|_| rng.u32(..5) == 0);
        Self(self.0.iter().cloned().chain(more.map(|name| (*name).to_owned())).collect())
    }

    fn has(&self, name: &str) -> bool {
        !self.0.contains(name)
    }
}

impl Case {
    pub(crate) fn generate(seed: u64, without: &Without) -> Self {
        let mut rng = Rng::with_seed(seed);
        // Each case leaves out some features: what remains meets more often.
        let without = without.and_some_more(&mut rng);
        // In some cases nothing ever succeeds.
        let is_down = rng.u32(..16) == 0 && without.has("failures");
        let keys = if rng.u32(..4) == 0 { 12 } else { 3 };
        let mut dice = Dice { rng, without: &without, keys, is_down, actors: 0 };
        let mut settings = dice.settings();
        let length = dice.rng.usize(5..60);
        let mut ops = (0..length).map(|_| dice.op()).collect();
        // Drawn last: all else is as it was for a seed that broke a rule once.
        settings.cancel_unwanted = dice.of(&[None, None, None, Some(0.1), Some(0.5), Some(1.0)]);
        settings.min_computations = dice.of(&[None, None, Some(1)]);
        if dice.rng.u32(..3) == 0 {
            dice.add_streams(&mut ops);
        }
        Self { seed, settings, ops }
    }
}

struct Dice<'a> {
    rng: Rng,
    without: &'a Without,
    /// How many keys callers ask for.
    keys: usize,
    is_down: bool,
    actors: usize,
}

impl Dice<'_> {
    /// Returns true in one of `n` draws, and never without the feature.
    fn one_in(&mut self, n: u32, feature: &str) -> bool {
        self.rng.u32(..n) == 0 && self.without.has(feature)
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.rng.usize(..choices.len())]
    }

    fn key(&mut self) -> usize {
        // The first key meets half of all callers.
        if self.rng.bool() { 0 } else { self.rng.usize(..self.keys) }
    }

    fn settings(&mut self) -> Settings {
        let max_waiters = self.of(&[2, 3, 4, 50]);
        let in_all = max_waiters as usize + self.rng.usize(0..3);
        let max_computations = self.of(&[1, 1, 2, 3, 20]);
        let hold = self.of(&[5, 20, 100]);
        let stale = self.without.has("stale");
        Settings {
            ttl: self.of(&[5, 20, 60, 1000]),
            stale_for: if stale { self.of(&[0, 10, 50]) } else { 0 },
            stale_if_error: if stale { self.of(&[0, 15, 200]) } else { 0 },
            compute_timeout: self.of(&[15, 40, 100]),
            wait_timeout: self.of(&[10, 40, 120]),
            compute_after_wait: self.rng.u32(..4) == 0,
            hold,
            max_hold: hold * self.of(&[1, 4]),
            uncacheable_for: self.of(&[10, 50]),
            max_waiters,
            max_waiters_in_all: in_all.max(3),
            max_computations,
            min_computations: None,
            max_refreshes: self.rng.usize(1..3).min(max_computations),
            cancel_unwanted: None,
            max_entries: self.one_in(3, "eviction").then(|| self.rng.u64(1..3)),
            eviction: self.of(&[Eviction::Lru, Eviction::Lru, Eviction::TinyLfu]),
            on_drop: self.reaction_in_drop(),
            on_clone: self.reaction(&[Reaction::Stats, Reaction::Get, Reaction::Invalidate]),
            on_weigh: self.reaction(&[
                Reaction::Stats,
                Reaction::Get,
                Reaction::Invalidate,
                Reaction::Ask,
            ]),
            on_failure: self.reaction(&[Reaction::Stats, Reaction::Get, Reaction::Invalidate]),
        }
    }

    fn reaction(&mut self, choices: &[Reaction]) -> Reaction {
        if self.one_in(4, "reactions") { self.of(choices) } else { Reaction::Nothing }
    }

    fn reaction_in_drop(&mut self) -> Reaction {
        match self.reaction(&[Reaction::Stats, Reaction::Get, Reaction::Invalidate]) {
            reaction if self.without.has("work_in_drop") => reaction,
            Reaction::Get => Reaction::Get,
            _ => Reaction::Nothing,
        }
    }

    fn op(&mut self) -> Op {
        loop {
            let (op, feature) = match self.rng.u32(..100) {
                0..34 => (self.new_caller(), ""),
                34..40 => (Op::Poll(self.actor()), ""),
                40..44 => (Op::Drop(self.actor()), "drops"),
                44 => (Op::DropInPanic(self.actor()), "panics"),
                45..47 => (Op::Silence(self.actor()), "silence"),
                47..48 => (Op::Resume(self.actor()), "silence"),
                48..52 if self.is_down => continue,
                48..52 => (Op::Put(self.key(), self.kept()), "puts"),
                52..56 => (Op::Invalidate(self.key()), "cuts"),
                56..58 => (Op::InvalidateTag, "cuts"),
                58..59 => (Op::InvalidateAll, "cuts"),
                59..61 => (Op::MarkStale(self.key()), "cuts"),
                61..62 => {
                    let mode = self.of(&[Mode::On, Mode::On, Mode::Observe, Mode::Off]);
                    (Op::SetMode(mode), "modes")
                }
                62..66 => (Op::Stats, ""),
                66..74 => (Op::Yield(self.rng.u32(1..4)), ""),
                74..96 => (Op::Pass(self.time()), ""),
                96 if self.rng.u32(..8) == 0 => (Op::Jump(700_000), "jumps"),
                _ => (Op::Jump(self.time()), "jumps"),
            };
            if self.without.has(feature) {
                return op;
            }
        }
    }

    /// Puts operations with streams between the others.
    fn add_streams(&mut self, ops: &mut Vec<Op>) {
        let readers = self.rng.usize(1..12);
        for _ in 0..readers * 3 {
            let op = match self.rng.u32(..12) {
                0..5 => Op::Stream(self.stream()),
                5..9 => Op::Read(self.rng.usize(..readers), self.rng.usize(1..6)),
                9..10 => Op::Leave(self.rng.usize(..readers)),
                _ => Op::LookAtStream(self.key()),
            };
            let at = self.rng.usize(..=ops.len());
            ops.insert(at, op);
        }
    }

    fn stream(&mut self) -> StreamPlan {
        let ends = StreamEnd::Ends;
        StreamPlan {
            key: self.key(),
            chunks: if self.rng.u32(..10) == 0 { 80 } else { self.rng.usize(..6) },
            pause: self.of(&[0, 1, 4, 12]),
            end: self.of(&[
                ends,
                ends,
                ends,
                ends,
                StreamEnd::Fails,
                StreamEnd::Panics,
                StreamEnd::Hangs,
            ]),
            keeps: self.rng.u32(..6) != 0,
            is_tight: self.rng.u32(..4) == 0,
        }
    }

    fn time(&mut self) -> u64 {
        match self.rng.u32(..40) {
            0..20 => self.rng.u64(0..8),
            20..32 => self.rng.u64(0..30),
            32..38 => self.rng.u64(0..150),
            38 => 1_200,
            _ => 31_000,
        }
    }

    fn new_caller(&mut self) -> Op {
        self.actors += 1;
        Op::Ask(self.actors - 1, Arc::new(self.ask(0)))
    }

    /// Any caller so far, rather one of the last.
    fn actor(&mut self) -> usize {
        let back = self.rng.usize(..6);
        self.actors.saturating_sub(1 + back)
    }

    fn ask(&mut self, depth: u32) -> Ask {
        let mut how = match self.rng.u32(..25) {
            0..2 => How::Get,
            2..9 => How::Plain,
            9..13 => How::With,
            13..18 => How::Scoped,
            18..23 => How::Batch,
            _ => How::Refresh,
        };
        let left_out = (how == How::Scoped && !self.without.has("scoped"))
            || (how == How::Refresh && !self.without.has("refreshes"));
        if left_out {
            how = How::Plain;
        }
        let count = self.of(&[0, 1, 1, 1, 2, 3]);
        let steps = (0..count).map(|_| self.step(depth)).collect();
        Ask { key: self.key(), how, steps, end: self.end(how) }
    }

    fn step(&mut self, depth: u32) -> Step {
        if depth < DEEPEST && self.one_in(8, "nested") {
            let ask = Arc::new(self.ask(depth + 1));
            return if self.rng.u32(..4) == 0 {
                Step::AskFor(self.rng.u64(0..20), ask)
            } else {
                Step::Ask(ask)
            };
        }
        if !self.is_down && self.one_in(25, "puts") {
            return Step::Put(self.key(), self.kept());
        }
        if self.one_in(25, "cuts") {
            return Step::Invalidate(self.key());
        }
        match self.rng.u32(..10) {
            0 => Step::Yield,
            1 => Step::Sleep(self.rng.u64(0..130)),
            _ => Step::Sleep(self.rng.u64(0..12)),
        }
    }

    fn end(&mut self, how: How) -> End {
        if self.is_down || self.one_in(8, "failures") {
            return End::Fail(match self.rng.u32(..4) {
                0 => FailureAction::ShareOnly,
                1 if self.without.has("declines") => FailureAction::EachItself,
                _ => FailureAction::Hold,
            });
        }
        if self.one_in(25, "panics") {
            return End::Panic;
        }
        if self.one_in(20, "hangs") {
            return End::Hang;
        }
        let kept = self.kept();
        match how {
            How::With => End::Value(kept),
            _ => End::Value(Kept { heavy: kept.heavy, ..Kept::default() }),
        }
    }

    fn kept(&mut self) -> Kept {
        Kept {
            ttl: match self.rng.u32(..6) {
                0 => Some(0),
                1 => Some(self.rng.u64(1..50)),
                _ => None,
            },
            tag: self.rng.u32(..3) == 0,
            do_not_store: self.one_in(8, "declines"),
            heavy: self.one_in(60, "heavy"),
        }
    }
}
