//! The servers, and what is done to them.

use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::record::{Moment, now};
use crate::kit::redis::{Proxy, Server};

const SECOND: Duration = Duration::from_secs(1);

/// What is done to the servers, to the connections, or to one of the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// `SIGKILL`; a second later an empty server stands in its place.
    KillServer,
    /// `SIGSTOP` for three seconds.
    FreezeServer,
    FlushAll,
    /// The primary is killed; the replica, which has everything, takes its place.
    FailOver,
    /// The same with a replica that has not heard of the last two seconds.
    FailOverToLaggingReplica,
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
    pub(crate) const ALL: [Self; 10] = [
        Self::KillServer,
        Self::FreezeServer,
        Self::FlushAll,
        Self::FailOver,
        Self::FailOverToLaggingReplica,
        Self::Evict,
        Self::CutConnections,
        Self::LoseMessages,
        Self::FreezeProcess,
        Self::ReplaceProcess,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::KillServer => "server killed, back empty",
            Self::FreezeServer => "server frozen for 3 s",
            Self::FlushAll => "FLUSHALL",
            Self::FailOver => "failed over, replica in step",
            Self::FailOverToLaggingReplica => "failed over, replica 2 s behind",
            Self::Evict => "evicting anything for 3 s",
            Self::CutConnections => "connections cut",
            Self::LoseMessages => "messages lost for 3 s",
            Self::FreezeProcess => "process frozen for 4 s",
            Self::ReplaceProcess => "process replaced",
        }
    }
}

/// When a fault began and ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Episode {
    pub(crate) fault: Fault,
    pub(crate) from: Moment,
    pub(crate) to: Moment,
}

/// A primary, its replica, and the address that always leads to the primary.
pub(crate) struct Servers {
    primary: Server,
    replica: Server,
    pub(crate) address: Proxy,
}

impl Servers {
    pub(crate) fn start() -> Self {
        let primary = Server::start();
        let replica = Server::replica_of(&primary);
        let address = Proxy::start(primary.port());
        Self { primary, replica, address }
    }

    /// Returns how many processes listen for messages.
    pub(crate) fn listeners(&self) -> usize {
        self.primary.clients("pubsub")
    }

    /// Does it and undoes it. `process` is the one that a fault of a process is done to.
    pub(crate) fn suffer(&mut self, fault: Fault, process: &Child) -> Episode {
        let from = now();
        match fault {
            Fault::KillServer => {
                self.primary.kill();
                sleep(SECOND);
                self.primary.restart();
            }
            Fault::FreezeServer => {
                self.primary.freeze();
                sleep(3 * SECOND);
                self.primary.thaw();
            }
            Fault::FlushAll => {
                self.primary.cli(&["FLUSHALL"]);
            }
            Fault::FailOver => self.fail_over(Duration::ZERO),
            Fault::FailOverToLaggingReplica => self.fail_over(2 * SECOND),
            Fault::Evict => self.evict(),
            Fault::CutConnections => self.address.cut(),
            Fault::LoseMessages => {
                self.address.mute_subscribers(true);
                sleep(3 * SECOND);
                self.address.mute_subscribers(false);
            }
            Fault::FreezeProcess => {
                let process = Pid::from_child(process);
                kill_process(process, Signal::STOP).expect("the process is there");
                sleep(4 * SECOND);
                kill_process(process, Signal::CONT).expect("the process is there");
            }
            // The caller has the processes.
            Fault::ReplaceProcess => {}
        }
        self.address.forget_commands();
        Episode { fault, from, to: now() }
    }

    /// The replica hears of nothing for so long; then the primary is killed, and the replica
    /// takes its place. It gets a replica of its own.
    fn fail_over(&mut self, lag: Duration) {
        let is_lagging = !lag.is_zero();
        if is_lagging {
            self.replica.cli(&["REPLICAOF", "NO", "ONE"]);
            sleep(lag);
        }
        self.primary.kill();
        sleep(SECOND / 3);
        if !is_lagging {
            self.replica.cli(&["REPLICAOF", "NO", "ONE"]);
        }
        self.address.lead_to(self.replica.port());
        let replica = Server::replica_of(&self.replica);
        self.primary = std::mem::replace(&mut self.replica, replica);
    }

    fn evict(&self) {
        let set = |name: &str, value: &str| {
            self.primary.cli(&["CONFIG", "SET", name, value]);
        };
        let used = self.primary.cli(&["INFO", "memory"]).field("used_memory");
        let used: u64 = used.expect("a field of INFO").parse().expect("a number");
        set("maxmemory-policy", "allkeys-random");
        set("maxmemory", &(used + (256 << 10)).to_string());
        let mut connection = self.primary.connect().expect("the server answers");
        let until = Instant::now() + 3 * SECOND;
        let other = "x".repeat(1000);
        let mut number = 0;
        while Instant::now() < until {
            for _ in 0..50 {
                number += 1;
                let name = format!("other:{number}");
                connection.call(&["SET", &name, &other, "PX", "2000"]).expect("an answer");
            }
            sleep(Duration::from_millis(10));
        }
        set("maxmemory", "0");
        set("maxmemory-policy", "noeviction");
    }
}
