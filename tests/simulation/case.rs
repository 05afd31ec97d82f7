//! A case: what the processes do and what befalls them, and how a seed makes that.

use std::fmt;

use fastrand::Rng;
use tower_stampede::remote::Record;

pub(crate) const PROCESSES: usize = 3;
pub(crate) const KEYS: usize = 3;

/// The tags of each key.
pub(crate) const TAGS: [&[&str]; KEYS] = [&["a"], &["a", "b"], &[]];

/// Times are in milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    /// Whether anything befalls the server, the network or a process.
    pub(crate) has_faults: bool,
    pub(crate) ttl: u64,
    pub(crate) stale_for: u64,
    /// The longest way of a command to the server, and back.
    pub(crate) way: u64,
    /// How many tags and keys the log keeps.
    pub(crate) log_bound: usize,
    pub(crate) ops: Vec<Op>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    /// How long nothing else is begun before.
    pub(crate) pause: u64,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Ask {
        process: usize,
        key: usize,
        takes: u64,
        is_scoped: bool,
    },
    Get {
        process: usize,
        key: usize,
    },
    Invalidate {
        process: usize,
        key: usize,
    },
    InvalidateTag {
        process: usize,
        tag: &'static str,
    },
    InvalidateAll {
        process: usize,
    },
    Put {
        process: usize,
        key: usize,
    },
    MarkStale {
        process: usize,
        key: usize,
    },
    MarkTagStale {
        process: usize,
        tag: &'static str,
    },
    /// A caller that still waits goes away.
    HangUp {
        nth: usize,
    },
    Befall(Fault),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Ways take up to so long.
    Slow {
        way: u64,
        lasts: u64,
    },
    /// So many of a hundred commands are lost, and their callers hear nothing.
    LoseCommands {
        share: u32,
        lasts: u64,
    },
    /// So many of a hundred commands are executed, and the replies are lost.
    LoseReplies {
        share: u32,
        lasts: u64,
    },
    /// So many of a hundred commands are executed, and their callers get an error.
    CutReplies {
        share: u32,
        lasts: u64,
    },
    /// So many of a hundred notices and wake-ups are lost.
    LoseMessages {
        share: u32,
        lasts: u64,
    },
    /// The server is away: it refuses, or is silent.
    Away {
        is_silent: bool,
        lasts: u64,
    },
    /// The server stands still, and executes later what it was sent.
    FreezeServer {
        lasts: u64,
    },
    /// One process does not reach the server.
    Partition {
        process: usize,
        is_silent: bool,
        lasts: u64,
    },
    FreezeProcess {
        process: usize,
        lasts: u64,
    },
    /// A process is killed and started again.
    Kill {
        process: usize,
    },
    Evict {
        key: usize,
        record: Record,
    },
    EvictLog,
    EvictKeysOfLog,
    FlushAll,
    /// A node that has not the log loses its data.
    FlushKeys,
    /// Another server has the log from now on, and lacks its last items.
    FailOver {
        lost: u64,
    },
    ClockForward {
        by: u64,
    },
    ClockBack {
        by: u64,
    },
    OutOfMemory {
        lasts: u64,
    },
}

/// Returns the key and the number in the first value in `bytes`. Checksums and epochs, which stand
/// before it, may begin like a value.
pub(crate) fn find(bytes: &[u8]) -> Option<(usize, usize)> {
    let begins = |from: &usize| bytes[*from..].starts_with(b"<k");
    (0..bytes.len()).filter(begins).find_map(|from| {
        let to = from + bytes[from..].iter().position(|byte| *byte == b'>')?;
        parse(std::str::from_utf8(&bytes[from..=to]).ok()?)
    })
}

/// Returns the key and the number of a value.
pub(crate) fn parse(value: &str) -> Option<(usize, usize)> {
    let (key, number) = value.strip_prefix("<k")?.strip_suffix('>')?.split_once('c')?;
    Some((key.parse().ok()?, number.parse().ok()?))
}

impl Case {
    pub(crate) fn generate(seed: u64) -> Self {
        let mut dice = Dice(Rng::with_seed(seed));
        let has_faults = dice.0.u32(..5) > 0;
        let length = dice.0.usize(8..30);
        let mut ops = Vec::new();
        while ops.len() < length {
            if has_faults && dice.0.u32(..12) == 0 {
                match dice.0.u32(..4) {
                    0 => dice.reuse_positions(&mut ops),
                    _ => dice.miss_invalidations(&mut ops),
                }
            } else {
                ops.push(dice.op(has_faults));
            }
        }
        Self {
            seed,
            has_faults,
            ttl: if has_faults { dice.of(&[300, 60_000, 60_000]) } else { 60_000 },
            stale_for: if has_faults { dice.of(&[0, 0, 2_000]) } else { 0 },
            way: if has_faults { dice.of(&[1, 5, 15, 40]) } else { dice.of(&[1, 5, 15]) },
            log_bound: dice.of(&[2, 100, 100]),
            ops,
        }
    }
}

struct Dice(Rng);

impl Dice {
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.0.usize(..choices.len())]
    }

    fn op(&mut self, has_faults: bool) -> Op {
        let pause = match self.0.u32(..20) {
            0..10 => self.0.u64(0..15),
            10..16 => self.0.u64(0..80),
            16..19 => self.0.u64(0..500),
            _ => self.0.u64(0..2500),
        };
        let is_fault = has_faults && self.0.u32(..6) == 0;
        let what = if is_fault { What::Befall(self.fault()) } else { self.what() };
        Op { pause, what }
    }

    /// A process has a copy and hears nothing for a while, in which others invalidate; then its
    /// callers ask. Operations drawn one by one rarely meet in this way.
    fn miss_invalidations(&mut self, ops: &mut Vec<Op>) {
        let (process, key) = (self.0.usize(..PROCESSES), self.0.usize(..KEYS));
        let ask = What::Ask { process, key, takes: 5, is_scoped: false };
        let (is_silent, lasts) = (self.0.bool(), self.of(&[300, 1_500, 2_500, 3_500]));
        let fault = match self.0.u32(..4) {
            0 => Fault::LoseMessages { share: 100, lasts },
            1..3 => Fault::FreezeProcess { process, lasts },
            _ => Fault::Partition { process, is_silent, lasts },
        };
        let mut op = |pause, what| ops.push(Op { pause, what });
        op(self.0.u64(0..20), ask);
        op(self.0.u64(80..300), What::Befall(fault));
        let other = (process + 1) % PROCESSES;
        for _ in 0..self.0.usize(1..5) {
            let cut = match self.0.u32(..5) {
                0..2 => What::Invalidate { process: other, key: self.of(&[key, 0, 1]) },
                2..4 => What::InvalidateTag { process: other, tag: self.of(&["a", "b"]) },
                _ => What::InvalidateAll { process: other },
            };
            op(self.0.u64(0..60), cut);
        }
        if self.0.u32(..3) == 0 {
            let lost = self.of(&[0, 0, 1]);
            let faults = [
                Fault::EvictLog,
                Fault::EvictKeysOfLog,
                Fault::FlushAll,
                Fault::FailOver { lost },
                Fault::Kill { process: other },
            ];
            op(self.0.u64(50..150), What::Befall(self.of(&faults)));
        }
        let pause = self.of(&[50, 400, 1_200, 2_600]) + self.0.u64(0..400);
        for pause in [pause, 40, 1_200] {
            op(pause, What::Get { process, key });
        }
    }

    /// A process has applied an item that a failover loses; the next item has its position.
    fn reuse_positions(&mut self, ops: &mut Vec<Op>) {
        let process = self.0.usize(..PROCESSES);
        let (other, key) = ((process + 1) % PROCESSES, 0);
        let ask = What::Ask { process, key, takes: 5, is_scoped: false };
        let fault = Fault::FailOver { lost: 1 };
        let cut = self.of(&[
            What::InvalidateTag { process: other, tag: "a" },
            What::Invalidate { process: other, key },
        ]);
        for (pause, what) in [
            (20, What::InvalidateTag { process, tag: "b" }),
            (100, ask),
            (self.0.u64(80..300), What::Befall(fault)),
            (self.0.u64(0..100), cut),
            (self.0.u64(50..400), What::Get { process, key }),
            (1_300, What::Get { process, key }),
        ] {
            ops.push(Op { pause, what });
        }
    }

    fn what(&mut self) -> What {
        let (process, key) = (self.0.usize(..PROCESSES), self.0.usize(..KEYS));
        let tag = self.of(&["a", "b"]);
        match self.0.u32(..40) {
            0..18 => {
                let takes = if self.0.u32(..8) == 0 { 400 } else { self.0.u64(0..40) };
                What::Ask { process, key, takes, is_scoped: self.0.u32(..3) == 0 }
            }
            18..26 => What::Get { process, key },
            26..29 => What::Invalidate { process, key },
            29..33 => What::InvalidateTag { process, tag },
            33 => What::InvalidateAll { process },
            34..36 => What::Put { process, key },
            36 => What::MarkStale { process, key },
            37 => What::MarkTagStale { process, tag },
            _ => What::HangUp { nth: self.0.usize(..4) },
        }
    }

    fn fault(&mut self) -> Fault {
        let (process, key) = (self.0.usize(..PROCESSES), self.0.usize(..KEYS));
        let (share, is_silent) = (self.of(&[20, 50, 100]), self.0.bool());
        let lasts = match self.0.u32(..4) {
            0..3 => self.0.u64(20..600),
            _ => self.0.u64(600..4_000),
        };
        let by = self.of(&[50, 2_500, 100_000]);
        match self.0.u32(..21) {
            0 => Fault::Slow { way: self.of(&[60, 150, 400]), lasts },
            1 => Fault::LoseCommands { share, lasts },
            2 => Fault::LoseReplies { share, lasts },
            3 => Fault::CutReplies { share, lasts },
            4..6 => Fault::LoseMessages { share, lasts },
            6 => Fault::Away { is_silent, lasts },
            7 => Fault::FreezeServer { lasts },
            8..10 => Fault::Partition { process, is_silent, lasts },
            10..12 => Fault::FreezeProcess { process, lasts },
            12 => Fault::Kill { process },
            13 => {
                let record = self.of(&[Record::Value, Record::Lock, Record::Right]);
                Fault::Evict { key, record }
            }
            14 => Fault::EvictLog,
            15 => Fault::EvictKeysOfLog,
            16 => self.of(&[Fault::FlushAll, Fault::FlushKeys]),
            17..19 => Fault::FailOver { lost: self.of(&[0, 0, 0, 1, 2]) },
            19 => self.of(&[Fault::ClockForward { by }, Fault::ClockBack { by }]),
            _ => Fault::OutOfMemory { lasts },
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, ttl, stale_for, way, log_bound, .. } = self;
        writeln!(
            f,
            "seed {seed}, times in milliseconds: ttl {ttl}, stale_for {stale_for}, ways up to {way}, the log keeps {log_bound} tags"
        )?;
        for op in &self.ops {
            writeln!(f, "  after {:>4}  {:?}", op.pause, op.what)?;
        }
        Ok(())
    }
}
