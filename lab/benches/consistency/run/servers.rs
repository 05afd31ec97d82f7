//! A primary with its replica behind one address, and what is done to them.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use super::faults::{Episode, Fault, SECOND};
use super::fleet::Fleet;
use super::passage::{Passage, Watch};
use super::record::now;
use crate::kit::redis::{Proxy, Server, wait_until};

/// A primary, its replica, and the address that always leads to the primary.
pub(crate) struct Servers {
    pub(crate) primary: Server,
    replica: Server,
    pub(crate) address: Proxy,
}

impl Servers {
    pub(crate) fn start() -> Self {
        let primary = Server::start();
        let replica = replica_of(&primary);
        let address = Proxy::start(primary.port());
        Self { primary, replica, address }
    }

    /// Does it and undoes it. Processes begin while a server is replaced. `victim` is the place of
    /// the one that a fault of a process is done to.
    pub(crate) fn suffer(&mut self, fault: Fault, fleet: &mut Fleet<'_>, victim: usize) -> Episode {
        let (from, mut passage) = (now(), None);
        match fault {
            Fault::KillServer => {
                self.primary.forget_snapshot();
                self.primary.kill();
                fleet.begin();
                sleep(SECOND);
                self.primary.restart();
            }
            Fault::OldSnapshot => passage = Some(self.return_to_snapshot(fleet)),
            Fault::FreezeServer => {
                self.primary.freeze();
                fleet.begin();
                sleep(3 * SECOND);
                self.primary.thaw();
            }
            Fault::FlushAll => {
                self.primary.cli(&["FLUSHALL"]);
            }
            Fault::FailOver => self.fail_over(Duration::ZERO, fleet),
            Fault::FailOverToLaggingReplica => self.fail_over(2 * SECOND, fleet),
            Fault::CommandsMove | Fault::SubscriptionsMove => {
                passage = Some(self.move_address(fault, fleet));
            }
            Fault::PlannedFailover => unreachable!("there are no sentinels here"),
            Fault::Evict => self.evict(),
            Fault::CutConnections => self.address.cut(),
            Fault::LoseMessages => {
                self.address.mute_subscribers(true);
                sleep(3 * SECOND);
                self.address.mute_subscribers(false);
            }
            Fault::FreezeProcess => {
                let process = fleet.pid(victim);
                kill_process(process, Signal::STOP).expect("the process is there");
                sleep(4 * SECOND);
                kill_process(process, Signal::CONT).expect("the process is there");
            }
            Fault::ReplaceProcess => {
                fleet.end(victim);
                fleet.begin();
            }
        }
        self.address.forget_commands();
        Episode { fault, from, to: now(), passage }
    }

    /// The replica hears of nothing for so long; then the primary is killed, and the replica
    /// takes its place. It gets a replica of its own.
    fn fail_over(&mut self, lag: Duration, fleet: &mut Fleet<'_>) {
        is_in_step(&self.replica);
        let is_lagging = !lag.is_zero();
        if is_lagging {
            self.replica.cli(&["REPLICAOF", "NO", "ONE"]);
            sleep(lag);
        }
        self.primary.kill();
        fleet.begin();
        sleep(SECOND / 3);
        if !is_lagging {
            self.replica.cli(&["REPLICAOF", "NO", "ONE"]);
        }
        self.address.lead_to(self.replica.port());
        self.succeed();
    }

    fn succeed(&mut self) {
        let replica = replica_of(&self.replica);
        self.primary = std::mem::replace(&mut self.replica, replica);
    }

    /// The replica hears of nothing for a second, and takes writes then. Processes that begin find
    /// it, and the others stay with the old primary for three seconds. Then one of their two
    /// connections goes to the replica, and the other one a second later.
    fn move_address(&mut self, first: Fault, fleet: &mut Fleet<'_>) -> Passage {
        is_in_step(&self.replica);
        let (since, running) = (now(), fleet.numbers());
        self.replica.cli(&["REPLICAOF", "NO", "ONE"]);
        let [old, new] = [&self.primary, &self.replica].map(Server::port);
        let watch = Watch::begin(since, Some(old), new, &running);
        sleep(SECOND);
        self.address.lead_next_to(new);
        fleet.begin();
        fleet.begin();
        sleep(3 * SECOND);
        // What was sent to the old server is sent again, and answered before the new one is known.
        self.address.delay(SECOND / 20);
        if first == Fault::CommandsMove {
            self.address.block_subscribers(true);
            self.address.cut();
            sleep(SECOND);
            self.address.block_subscribers(false);
        } else {
            self.address.cut_subscribers();
            sleep(SECOND);
            self.address.cut();
        }
        let passage = watch.end(&fleet.numbers());
        self.address.delay(Duration::ZERO);
        self.succeed();
        passage
    }

    /// The server is killed two seconds after it was saved, and restarted as it was then.
    fn return_to_snapshot(&self, fleet: &mut Fleet<'_>) -> Passage {
        let (since, running) = (now(), fleet.numbers());
        assert!(!self.primary.cli(&["SAVE"]).is_error(), "it is saved");
        sleep(2 * SECOND);
        let watch = Watch::begin(since, None, self.primary.port(), &running);
        self.primary.kill();
        fleet.begin();
        fleet.begin();
        self.primary.restart();
        watch.end(&fleet.numbers())
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

/// Starts a replica. Its configuration does not say that it is one: as a primary it may be restarted.
fn replica_of(primary: &Server) -> Server {
    let replica = Server::start();
    replica.tell(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    is_in_step(&replica);
    replica
}

fn is_in_step(replica: &Server) {
    wait_until("the replica is in step", || {
        let info = replica.cli(&["INFO", "replication"]);
        info.field("master_link_status").as_deref() == Some("up")
    });
}

/// Has sentinels make the replica the primary. They leave the old primary as it is for about ten
/// seconds, and running processes stay with it. Of these one that invalidates ends meanwhile, and
/// processes that begin find the new primary.
pub(crate) fn fail_over(
    sentinels: &crate::kit::redis::Sentinels,
    fleet: &mut Fleet<'_>,
) -> Episode {
    let (from, running) = (now(), fleet.numbers());
    let [old, new] = [sentinels.primary(), sentinels.replica()].map(Server::port);
    let watch = Watch::begin(from, Some(old), new, &running);
    sentinels.failover();
    fleet.begin();
    fleet.begin();
    sleep(4 * SECOND);
    fleet.end_announcer();
    let passage = watch.end(&fleet.numbers());
    Episode { fault: Fault::PlannedFailover, from, to: now(), passage: Some(passage) }
}
