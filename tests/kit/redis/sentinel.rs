//! A primary and a replica that sentinels watch.

use super::{Reply, Server, wait_until};

/// One primary, one replica, and the sentinels that watch them.
pub(crate) struct Sentinels {
    data: [Server; 2],
    sentinels: Vec<Server>,
}

const NAME: &str = Sentinels::NAME;

impl Sentinels {
    /// What the sentinels call the primary.
    pub(crate) const NAME: &str = "main";

    /// Starts three sentinels and waits until each knows all others and the
    /// replica.
    pub(crate) fn start() -> Self {
        Self::with(3)
    }

    /// Starts so many sentinels; most of them must agree.
    pub(crate) fn with(count: usize) -> Self {
        let primary = Server::start();
        let replica = Server::replica_of(&primary);
        let sentinels: Vec<_> =
            (0..count).map(|_| Server::sentinel(&watch(&primary, count / 2 + 1))).collect();
        let sentinels = Self { data: [primary, replica], sentinels };
        // To get acquainted takes a tenth of a second instead of seconds. At
        // that pace a failover is undone by sentinels that have yet to hear of
        // it.
        sentinels.set_periods([100, 100, 100]);
        sentinels.wait_until_known();
        sentinels.set_periods([10_000, 2000, 1000]);
        sentinels
    }

    /// Older servers know no such command, and take longer.
    fn set_periods(&self, millis: [u32; 3]) {
        for sentinel in &self.sentinels {
            for (what, millis) in ["info", "publish", "ping"].iter().zip(millis) {
                let period = format!("{what}-period");
                sentinel.cli(&["SENTINEL", "DEBUG", &period, &millis.to_string()]);
            }
        }
    }

    fn wait_until_known(&self) {
        let others = (self.sentinels.len() - 1).to_string();
        for sentinel in &self.sentinels {
            wait_until("the sentinels know each other and the replica", || {
                let state = sentinel.cli(&["SENTINEL", "MASTER", NAME]);
                let field = |name| field(&state, name);
                field("num-slaves") == "1" && field("num-other-sentinels") == others
            });
        }
    }

    /// The sentinels' addresses.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    pub(crate) fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The server that the first sentinel calls the primary.
    pub(crate) fn primary(&self) -> &Server {
        let port = primary_port(&self.sentinels[0]);
        self.data.iter().find(|server| server.port() == port).expect("one of ours")
    }

    /// The other one.
    pub(crate) fn replica(&self) -> &Server {
        let port = self.primary().port();
        self.data.iter().find(|server| server.port() != port).expect("two servers")
    }

    /// Makes the replica the primary, as an operator does. Returns once all
    /// sentinels say so and it takes writes.
    pub(crate) fn failover(&self) {
        let next = self.replica();
        wait_until("the failover is done", || {
            // Refused where the sentinel finds no replica good enough, and while a failover is under
            // way. One that takes too long on a busy machine is given up, and has to be asked for again.
            let is_done = primary_port(&self.sentinels[0]) == next.port();
            if !is_done {
                self.sentinels[0].cli(&["SENTINEL", "FAILOVER", NAME]);
            }
            is_done
        });
        self.wait_for_primary(next);
    }

    /// Kills the primary and waits as [`failover`](Self::failover) does.
    /// Returns the dead server.
    pub(crate) fn kill_primary(&self) -> &Server {
        let (dead, next) = (self.primary(), self.replica());
        dead.kill();
        // Until now a primary that is busy for a while was not taken for dead.
        for sentinel in &self.sentinels {
            sentinel.cli(&["SENTINEL", "SET", NAME, "down-after-milliseconds", "500"]);
        }
        self.wait_for_primary(next);
        dead
    }

    fn wait_for_primary(&self, next: &Server) {
        for sentinel in &self.sentinels {
            wait_until("the sentinels name the new primary", || {
                primary_port(sentinel) == next.port()
            });
        }
        wait_until("the new primary takes writes", || {
            next.cli(&["INFO", "replication"]).field("role").as_deref() == Some("master")
        });
    }
}

fn watch(primary: &Server, quorum: usize) -> Vec<String> {
    vec![
        format!("sentinel monitor {NAME} 127.0.0.1 {} {quorum}", primary.port()),
        format!("sentinel down-after-milliseconds {NAME} 20000"),
        format!("sentinel failover-timeout {NAME} 6000"),
    ]
}

fn primary_port(sentinel: &Server) -> u16 {
    let address = sentinel.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
    address.parts().get(1).and_then(|port| port.text().parse().ok()).expect("a primary")
}

/// A value of a flat list of names and values.
fn field(list: &Reply, name: &str) -> String {
    let mut pairs = list.parts().chunks_exact(2);
    pairs.find(|pair| pair[0].text() == name).map(|pair| pair[1].text()).unwrap_or_default()
}
