//! A cluster of three primaries.

use super::server::{Environment, USUAL_BUS, starts_with};
use super::{Reply, Server, wait_until};

const NODES: usize = 3;
const SLOTS: u16 = 16_384;

/// Three primaries that share the slots evenly.
pub(crate) struct Cluster {
    nodes: Vec<Server>,
    /// Names of the nodes, in the same order.
    ids: Vec<String>,
}

impl Cluster {
    /// Starts the nodes and waits until each sees all slots served.
    pub(crate) fn start() -> Self {
        Self::configured(&[])
    }

    /// The same with more lines in the configuration of each node.
    pub(crate) fn configured(more: &[&str]) -> Self {
        Self::of((0..NODES).map(|_| node_with(Environment::new(), more)).collect())
    }

    /// The same with one node whose clock is off, by `+0.4s` for example. None where
    /// libfaketime is not installed, or the server does not start under it (Debian's of 7.0).
    pub(crate) fn with_a_clock_ahead(ahead: usize, by: &str) -> Option<Self> {
        let library = ["x86_64", "aarch64"]
            .map(|cpu| format!("/usr/lib/{cpu}-linux-gnu/faketime/libfaketimeMT.so.1"))
            .into_iter()
            .find(|path| std::path::Path::new(path).exists())?;
        let clock =
            [("LD_PRELOAD", &*library), ("FAKETIME", by), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()));
        if !starts_with(&clock) {
            return None;
        }
        let nodes = (0..NODES).map(|n| match n == ahead {
            true => node(clock.to_vec()),
            false => node(Environment::new()),
        });
        let cluster = Self::of(nodes.collect());
        let seconds = |node: &Server| {
            let time = node.cli(&["TIME"]);
            let [seconds, micros] = [0, 1].map(|n| time.parts()[n].text().parse::<f64>().unwrap());
            seconds + micros / 1e6
        };
        let other = &cluster.nodes[(ahead + 1) % NODES];
        let skew = seconds(&cluster.nodes[ahead]) - seconds(other);
        assert!(skew.abs() > 0.3, "the clock is off by {skew} s only");
        Some(cluster)
    }

    fn of(nodes: Vec<Server>) -> Self {
        let share = SLOTS.div_ceil(NODES as u16);
        for (n, node) in (0_u16..).zip(&nodes) {
            let (first, last) = (n * share, ((n + 1) * share).min(SLOTS) - 1);
            ok(&node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(n + 1).to_string()]));
            // ADDSLOTSRANGE came with Redis 7.
            let slots = (first..=last).map(|slot| slot.to_string());
            let command: Vec<_> =
                ["CLUSTER", "ADDSLOTS"].map(str::to_owned).into_iter().chain(slots).collect();
            ok(&node.cli(&command));
        }
        for node in &nodes[1..] {
            let bus = bus_port(node);
            ok(&nodes[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string(), &bus]));
        }
        let ids = nodes.iter().map(|node| node.cli(&["CLUSTER", "MYID"]).text()).collect();
        let cluster = Self { nodes, ids };
        cluster.wait_until_ok();
        cluster
    }

    /// Kills a node, and waits until the others have agreed that it is dead. Until then a node that
    /// is busy for a while is not taken for dead.
    pub(crate) fn kill_node(&self, dead: usize) {
        self.nodes[dead].kill();
        let others = || self.nodes.iter().enumerate().filter(|(n, _)| *n != dead);
        for (_, node) in others() {
            ok(&node.cli(&["CONFIG", "SET", "cluster-node-timeout", "2000"]));
        }
        for (_, node) in others() {
            wait_until("the others know", || {
                let nodes = node.cli(&["CLUSTER", "NODES"]).text();
                nodes.lines().any(|line| line.contains(" master,fail "))
            });
        }
    }

    /// Starts a replica of a node, and waits until it is in step.
    pub(crate) fn replica_of(&self, primary: usize) -> Server {
        let (replica, first) = (node(Environment::new()), &self.nodes[primary]);
        let port = first.port().to_string();
        ok(&replica.cli(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port(first)]));
        wait_until("it knows the others", || {
            let nodes = replica.cli(&["CLUSTER", "NODES"]).text();
            self.ids.iter().all(|id| nodes.contains(id)) && !nodes.contains("handshake")
        });
        ok(&replica.cli(&["CLUSTER", "REPLICATE", &self.ids[primary]]));
        wait_until("it is in step", || {
            let info = replica.cli(&["INFO", "replication"]);
            info.field("master_link_status").as_deref() == Some("up")
        });
        let id = replica.cli(&["CLUSTER", "MYID"]).text();
        for node in &self.nodes {
            wait_until("the others know it", || {
                let nodes = node.cli(&["CLUSTER", "NODES"]).text();
                nodes.lines().any(|line| line.starts_with(&id) && line.contains("slave"))
            });
        }
        replica
    }

    /// Ends the replication of a node: what is written from now on does not reach its replica.
    pub(crate) fn hold_up(&self, primary: usize, replica: &Server) {
        for setting in ["masteruser", "masterauth"] {
            ok(&replica.cli(&["CONFIG", "SET", setting, "nobody"]));
        }
        self.nodes[primary].cli(&["CLIENT", "KILL", "TYPE", "replica"]);
        wait_until("the line is down", || {
            let info = replica.cli(&["INFO", "replication"]);
            info.field("master_link_status").as_deref() == Some("down")
        });
    }

    /// Waits until every node sees every other and all slots served.
    pub(crate) fn wait_until_ok(&self) {
        for node in &self.nodes {
            wait_until("the cluster is up", || {
                let info = node.cli(&["CLUSTER", "INFO"]);
                let all = info.field("cluster_known_nodes") == Some(NODES.to_string())
                    && info.field("cluster_slots_ok") == Some(SLOTS.to_string());
                all && info.field("cluster_state").as_deref() == Some("ok")
            });
        }
    }

    pub(crate) fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// The place in [`nodes`](Self::nodes) of the primary that serves `slot`.
    pub(crate) fn owner(&self, slot: u16) -> usize {
        let serves = |node: &Server| {
            let slots = node.cli(&["CLUSTER", "SLOTS"]);
            slots.parts().iter().any(|range| {
                let [first, last, primary, ..] = range.parts() else { return false };
                let here =
                    primary.parts().get(1).is_some_and(|p| p.int() == i64::from(node.port()));
                here && (first.int()..=last.int()).contains(&i64::from(slot))
            })
        };
        self.nodes.iter().position(serves).expect("a slot is served")
    }

    /// Hands `slot` over to the node `to`, with its keys.
    pub(crate) fn migrate_slot(&self, slot: u16, to: usize) {
        let migration = self.begin_migration(slot, to);
        migration.move_keys();
        migration.finish();
    }

    /// Begins to hand over: keys that are not at the owner any more are
    /// answered with `ASK`.
    pub(crate) fn begin_migration(&self, slot: u16, to: usize) -> Migration<'_> {
        let from = self.owner(slot);
        assert_ne!(from, to, "it serves the slot already");
        let slot = slot.to_string();
        let set = |node: usize, state: &str, other: usize| {
            ok(&self.nodes[node].cli(&["CLUSTER", "SETSLOT", &slot, state, &self.ids[other]]));
        };
        set(to, "IMPORTING", from);
        set(from, "MIGRATING", to);
        Migration { cluster: self, slot, from, to }
    }
}

/// A slot between two nodes.
pub(crate) struct Migration<'a> {
    cluster: &'a Cluster,
    slot: String,
    from: usize,
    to: usize,
}

impl Migration<'_> {
    /// Moves the keys there are. Returns how many.
    pub(crate) fn move_keys(&self) -> usize {
        let [from, to] = [self.from, self.to].map(|n| &self.cluster.nodes[n]);
        let mut moved = 0;
        loop {
            let keys = from.cli(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "100"]);
            if keys.parts().is_empty() {
                return moved;
            }
            let port = to.port().to_string();
            let mut command = ["MIGRATE", "127.0.0.1", &port, "", "0", "60000", "KEYS"]
                .map(|word| word.as_bytes().to_vec())
                .to_vec();
            moved += keys.parts().len();
            command.extend(keys.parts().iter().map(|key| match key {
                Reply::Bulk(key) => key.clone(),
                other => panic!("no key: {other:?}"),
            }));
            // A key may have expired in the meantime: NOKEY.
            assert!(!from.cli(&command).is_error());
        }
    }

    /// Makes the new node the owner, for every node.
    pub(crate) fn finish(self) {
        self.move_keys();
        let others = (0..NODES).filter(|n| *n != self.to && *n != self.from);
        for node in [self.to, self.from].into_iter().chain(others) {
            let id = &self.cluster.ids[self.to];
            ok(&self.cluster.nodes[node].cli(&["CLUSTER", "SETSLOT", &self.slot, "NODE", id]));
        }
    }
}

/// The slot of a key, hash tag and all.
pub(crate) fn slot_of(cluster: &Cluster, key: impl AsRef<[u8]>) -> u16 {
    let reply = cluster.nodes[0].cli(&[b"CLUSTER", &b"KEYSLOT"[..], key.as_ref()]);
    reply.int().try_into().expect("a slot")
}

fn node(environment: Environment) -> Server {
    node_with(environment, &[])
}

fn node_with(environment: Environment, more: &[&str]) -> Server {
    Server::launch_with_bus(environment, |bus| {
        let mut lines =
            vec!["cluster-enabled yes".to_owned(), "cluster-node-timeout 20000".to_owned()];
        if let Some(port) = bus {
            lines.push(format!("cluster-port {port}"));
            // Came with Redis 7 as well; before, every client may debug.
            lines.push("enable-debug-command local".to_owned());
        }
        lines.extend(more.iter().map(|line| (*line).to_owned()));
        lines
    })
}

/// The port of the node's cluster bus.
fn bus_port(node: &Server) -> String {
    let setting = node.cli(&["CONFIG", "GET", "cluster-port"]);
    let port = setting.parts().get(1).map(Reply::text);
    port.unwrap_or_else(|| (node.port() + USUAL_BUS).to_string())
}

fn ok(reply: &Reply) {
    assert_eq!(*reply, Reply::Status("OK".to_owned()));
}
