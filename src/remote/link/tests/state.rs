//! One state of the world: two servers, and processes with two connections each.

use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::lease::grant::Stamp;
use crate::remote::link::{Asked, Link, Rule};

/// What is invalidated: the tag of the value, or its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    Tag,
    Key,
}

/// What a search allows. A process is a bit of `late`, `writers` and `readers`.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorldScope {
    pub(super) name: &'static str,
    pub(super) what: What,
    pub(super) processes: usize,
    /// Those that start after the failover; with `starts_early`, at any time.
    pub(super) late: u8,
    pub(super) starts_early: bool,
    pub(super) writers: u8,
    pub(super) readers: u8,
    pub(super) reads: u8,
    pub(super) writes: u8,
    /// Whether a value is stored in the beginning.
    pub(super) is_stored: bool,
    /// Whether the replica may stop to follow before it is promoted.
    pub(super) lags: bool,
    pub(super) promotes: bool,
    pub(super) demotes: bool,
    /// Whether the connections of a demoted server are closed; `REPLICAOF` by hand leaves them open.
    pub(super) closes_on_demotion: bool,
    /// Whether A may be restarted from an older snapshot.
    pub(super) restarts: bool,
    pub(super) command_cuts: u8,
    pub(super) subscription_cuts: u8,
    /// Whether connections may lead to either primary.
    pub(super) strays: bool,
    /// Whether a heartbeat's reply may arrive late.
    pub(super) has_late_beats: bool,
    /// Whether a command may be sent again over a new connection.
    pub(super) resends: bool,
    /// How often the breaker of the log may open.
    pub(super) opens: u8,
    pub(super) kills: u8,
}

impl WorldScope {
    pub(super) const BASE: Self = Self {
        name: "",
        what: What::Tag,
        processes: 2,
        late: 0,
        starts_early: false,
        writers: 0b1,
        readers: 0b11,
        reads: 2,
        writes: 1,
        is_stored: false,
        lags: false,
        promotes: false,
        demotes: false,
        closes_on_demotion: true,
        restarts: false,
        command_cuts: 0,
        subscription_cuts: 0,
        strays: false,
        has_late_beats: false,
        resends: false,
        opens: 0,
        kills: 0,
    };
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct WorldEntry {
    pub(super) value: u8,
    pub(super) stamp: Option<Stamp>,
    /// How many removals there were before the right to compute it was granted.
    pub(super) version: u64,
}

/// The log of one server. Its items are the one tag or key, and nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct WorldLog {
    pub(super) epoch: u64,
    pub(super) last: u64,
    pub(super) item: u64,
    /// The server that has last written it.
    pub(super) server: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct WorldData {
    pub(super) slot: Option<WorldEntry>,
    /// The process that may fill, and its number from 1 on.
    pub(super) right: usize,
    pub(super) log: WorldLog,
    /// The last invalidation that was announced here.
    pub(super) told: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct WorldServer {
    pub(super) data: WorldData,
    pub(super) is_primary: bool,
    pub(super) id: u64,
    pub(super) snapshot: Option<WorldData>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Life {
    NotYet,
    Runs,
    Killed,
}

/// One caller that wants the value. `is_void`: what it brings may not be kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum WorldReader {
    Idle,
    Asked { is_void: bool },
    Got { entry: WorldEntry, is_void: bool },
    Missed,
    Asking { stamp: Option<Stamp>, is_void: bool },
    Granted { stamp: Option<Stamp>, version: u64, is_void: bool },
    Computed { value: u8, stamp: Option<Stamp>, version: u64, is_void: bool },
}

#[derive(Clone, Copy, Hash, Debug)]
pub(super) enum WorldWriter {
    Idle,
    Begun { value: u8, asked: Asked },
    Removed { value: u8, asked: Asked, version: u64 },
}

/// A reply to a read of the log that is on its way.
#[derive(Clone, Copy, Hash, Debug)]
pub(super) struct WorldBeat {
    pub(super) asked: Asked,
    pub(super) log: WorldLog,
    pub(super) told: u8,
    pub(super) is_of_current: bool,
}

#[derive(Clone, Debug)]
pub(super) struct WorldProcess {
    pub(super) life: Life,
    /// The server that the commands lead to, and how many connections there were.
    pub(super) commands: Option<usize>,
    pub(super) connection: u64,
    pub(super) subscription: Option<usize>,
    pub(super) link: Shared<Link>,
    pub(super) copy: Option<u8>,
    pub(super) reader: WorldReader,
    pub(super) writer: WorldWriter,
    pub(super) beat: Option<WorldBeat>,
    pub(super) inbox: Option<(u64, u64, u8)>,
    /// The last invalidation that it has begun, or heard of.
    pub(super) knows: u8,
    /// The last one whose call has returned.
    pub(super) returned: u8,
    /// The last one that the current primary had when it answered this process's last heartbeat.
    pub(super) floor: u8,
}

/// What states share until it changes: a step changes one process, and mostly not its link.
#[derive(Clone, Debug)]
pub(super) struct Shared<T>(Arc<T>);

impl<T> Shared<T> {
    pub(super) fn new(of: T) -> Self {
        Self(Arc::new(of))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) servers: [WorldServer; 2],
    pub(super) processes: Vec<Shared<WorldProcess>>,
    pub(super) database: u8,
    pub(super) epochs: u64,
    /// How often a key was removed: in place of the time.
    pub(super) removals: u64,
    pub(super) ids: u64,
    pub(super) is_linked: bool,
    pub(super) has_lagged: bool,
    pub(super) is_promoted: bool,
    pub(super) is_demoted: bool,
    pub(super) has_restarted: bool,
    pub(super) reads: u8,
    pub(super) writes: u8,
    pub(super) command_cuts: u8,
    pub(super) subscription_cuts: u8,
    pub(super) opens: u8,
    pub(super) kills: u8,
    /// The last invalidation whose call has returned in any process that has announced it.
    pub(super) done: u8,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, to: &mut H) {
        (self.servers, self.database, self.epochs, self.ids, self.removals).hash(to);
        (self.is_linked, self.has_lagged, self.is_promoted, self.is_demoted).hash(to);
        (self.has_restarted, self.reads, self.writes, self.command_cuts).hash(to);
        (self.subscription_cuts, self.opens, self.kills, self.done).hash(to);
        for it in &self.processes {
            (it.life, it.commands, it.connection, it.subscription, it.copy).hash(to);
            (it.reader, it.writer, it.beat, it.inbox).hash(to);
            (it.knows, it.returned, it.floor).hash(to);
            it.link.fingerprint(to);
        }
    }
}

/// One step of a history.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorldStep {
    pub(super) name: &'static str,
    pub(super) process: Option<usize>,
    pub(super) server: Option<usize>,
}

impl std::fmt::Display for WorldStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(process) = self.process {
            write!(f, "P{process}: ")?;
        }
        f.write_str(self.name)?;
        self.server.map_or(Ok(()), |server| write!(f, " {}", ["A", "B"][server]))
    }
}

pub(super) struct WorldModel {
    pub(super) scope: WorldScope,
    pub(super) without: Vec<Rule>,
}
