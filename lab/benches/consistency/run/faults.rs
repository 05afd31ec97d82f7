//! What is done to the servers, to the connections, or to one of the processes.

use std::time::Duration;

use super::passage::Passage;
use super::record::Moment;

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// `SIGKILL`; a second later an empty server stands in its place.
    KillServer,
    /// `SIGKILL`; the server starts again from a snapshot of two seconds before.
    OldSnapshot,
    /// `SIGSTOP` for three seconds.
    FreezeServer,
    FlushAll,
    /// The primary is killed; the replica, which has everything, takes its place.
    FailOver,
    /// The same with a replica that has not heard of the last two seconds.
    FailOverToLaggingReplica,
    /// The address leads to a replica that has not heard of the last second. The old primary takes
    /// writes meanwhile. Running processes move three seconds later: first their commands.
    CommandsMove,
    /// The same; their subscriptions move first.
    SubscriptionsMove,
    /// Sentinels make the replica the primary. The old primary takes writes meanwhile.
    PlannedFailover,
    /// `maxmemory` is reached: the server may evict any record of the crate, and the log.
    Evict,
    /// Every connection is closed.
    CutConnections,
    /// No message arrives for three seconds; everything else is answered.
    LoseMessages,
    /// A worker process gets `SIGSTOP` for four seconds.
    FreezeProcess,
    /// A worker process ends, and a new one takes its place.
    ReplaceProcess,
}

impl Fault {
    pub(crate) const ALL: [Self; 14] = [
        Self::KillServer,
        Self::OldSnapshot,
        Self::FreezeServer,
        Self::FlushAll,
        Self::FailOver,
        Self::FailOverToLaggingReplica,
        Self::CommandsMove,
        Self::SubscriptionsMove,
        Self::PlannedFailover,
        Self::Evict,
        Self::CutConnections,
        Self::LoseMessages,
        Self::FreezeProcess,
        Self::ReplaceProcess,
    ];

    /// Returns what the flag `--faults` calls it, and how it is printed.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::KillServer => ("kill", "server killed, back empty"),
            Self::OldSnapshot => ("snapshot", "server killed, back from a snapshot"),
            Self::FreezeServer => ("freeze", "server frozen for 3 s"),
            Self::FlushAll => ("flush", "FLUSHALL"),
            Self::FailOver => ("failover", "failed over, replica in step"),
            Self::FailOverToLaggingReplica => ("lagging", "failed over, replica 2 s behind"),
            Self::CommandsMove => ("commands-move", "address moves, commands first"),
            Self::SubscriptionsMove => ("subscriptions-move", "address moves, subscriptions first"),
            Self::PlannedFailover => ("planned", "planned failover of sentinels"),
            Self::Evict => ("evict", "evicting anything for 3 s"),
            Self::CutConnections => ("cut", "connections cut"),
            Self::LoseMessages => ("mute", "messages lost for 3 s"),
            Self::FreezeProcess => ("freeze-process", "process frozen for 4 s"),
            Self::ReplaceProcess => ("replace-process", "process replaced"),
        }
    }

    pub(crate) const fn word(self) -> &'static str {
        self.names().0
    }

    pub(crate) const fn name(self) -> &'static str {
        self.names().1
    }
}

/// When a fault began and ended.
#[derive(Clone, Debug)]
pub(crate) struct Episode {
    pub(crate) fault: Fault,
    pub(crate) from: Moment,
    pub(crate) to: Moment,
    /// Where the processes went to a server that lacks what another one had said was done.
    pub(crate) passage: Option<Passage>,
}
