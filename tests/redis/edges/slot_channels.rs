//! Wake-ups on a cluster go by the channel of the slot, whatever happens to the slot, to the
//! subscription, and to the right to it.

use tokio::task::JoinHandle;
use tower_stampede::{Error, Redis};

use crate::kit::redis::{Cluster, Server, eventually, slot_of};
use crate::kit::redis_caches::*;

use super::{executed, has_slot_channels};

/// None where the servers have no sharded channels.
fn cluster_for(test: &str) -> Option<Cluster> {
    let cluster = Cluster::start();
    if has_slot_channels(&cluster) {
        return Some(cluster);
    }
    println!("not run: {test}: needs SSUBSCRIBE (Redis 7)");
    None
}

/// One process computes a key, and another waits for it.
struct Wait {
    cluster: Cluster,
    caches: Vec<Cache>,
    gated: Gated,
    key: String,
    callers: Vec<JoinHandle<Result<u64, Error>>>,
}

impl Wait {
    /// Begins, unless the servers are too old.
    async fn begin(test: &str) -> Option<Self> {
        let cluster = cluster_for(test)?;
        let urls = cluster.urls();
        Some(Self::on(cluster, &urls).await)
    }

    async fn on(cluster: Cluster, urls: &[String]) -> Self {
        let caches: Vec<_> = (0..2)
            .map(|_| patient_on(Redis::cluster(urls).unwrap().namespace("stampede")))
            .collect();
        all_listen(&caches).await;
        let (gated, key) = (Gated::new(), fresh_key());
        let leader = gated.lead(&caches[0], &key).await;
        let waiting = gated.ask(&caches[1], &key);
        let wait = Self { cluster, caches, gated, key, callers: vec![leader, waiting] };
        wait.is_registered().await;
        wait
    }

    async fn is_registered(&self) {
        eventually("it is registered", || registered(self.node(), &self.key) == 1).await;
    }

    /// Whether the one that waits has looked again, and not for the time that has passed.
    async fn is_woken(&self) {
        let woken = || self.caches[1].stats().wakes_by_push > 0;
        eventually("it is woken", woken).await;
    }

    fn slot(&self) -> u16 {
        slot_of(&self.cluster, &self.key)
    }

    fn node(&self) -> &Server {
        &self.cluster.nodes()[self.cluster.owner(self.slot())]
    }

    /// Which processes listen to channels of slots on a node.
    fn listeners(node: &Server) -> usize {
        node.cli(&["PUBSUB", "SHARDCHANNELS"]).parts().len()
    }

    /// Lets the leader fill, and waits for the answers.
    async fn end(self) -> (Cluster, Vec<Cache>) {
        self.gated.open();
        for caller in self.callers {
            answer(caller).await;
        }
        assert_eq!(self.gated.calls(), 1);
        (self.cluster, self.caches)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fill_is_told_on_the_channel_of_the_slot_and_to_no_other_node() {
    let Some(wait) =
        Wait::begin("a_fill_is_told_on_the_channel_of_the_slot_and_to_no_other_node").await
    else {
        return;
    };
    let plain = executed(wait.cluster.nodes(), "publish");
    assert_eq!(Wait::listeners(wait.node()), 1, "the process that waits");
    let (cluster, caches) = wait.end().await;
    assert_eq!(executed(cluster.nodes(), "publish"), plain);
    assert_eq!(executed(cluster.nodes(), "spublish"), 1);
    assert!(caches[1].stats().wakes_by_push >= 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_wait_in_a_slot_subscribes_no_more() {
    let Some(wait) = Wait::begin("the_second_wait_in_a_slot_subscribes_no_more").await else {
        return;
    };
    let before = executed(wait.cluster.nodes(), "ssubscribe");
    assert_eq!(before, 1);
    let key = wait.key.clone();
    let (cluster, caches) = wait.end().await;
    caches[0].invalidate(&*key).await;
    let again = Gated::new();
    let leader = again.lead(&caches[0], &key).await;
    let scripts = || executed(cluster.nodes(), "eval") + executed(cluster.nodes(), "evalsha");
    let asked = scripts();
    let waiting = again.ask(&caches[1], &key);
    eventually("it has asked for the lease", || scripts() > asked).await;
    again.open();
    for caller in [leader, waiting] {
        answer(caller).await;
    }
    assert_eq!(again.calls(), 1);
    assert_eq!(executed(cluster.nodes(), "ssubscribe"), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_in_a_slot_that_moves_registers_at_the_new_node() {
    let Some(wait) = Wait::begin("who_waits_in_a_slot_that_moves_registers_at_the_new_node").await
    else {
        return;
    };
    let (from, slot) = (wait.cluster.owner(wait.slot()), wait.slot());
    let to = (from + 1) % 3;
    wait.cluster.migrate_slot(slot, to);
    eventually("it listens at the new node", || {
        Wait::listeners(&wait.cluster.nodes()[to]) == 1
            && Wait::listeners(&wait.cluster.nodes()[from]) == 0
    })
    .await;
    wait.is_registered().await;
    wait.is_woken().await;
    let (cluster, _) = wait.end().await;
    assert!(executed([&cluster.nodes()[to]], "spublish") >= 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_is_cut_is_made_anew_by_who_waits() {
    let Some(wait) = Wait::begin("a_subscription_that_is_cut_is_made_anew_by_who_waits").await
    else {
        return;
    };
    let before = executed(wait.cluster.nodes(), "ssubscribe");
    for node in wait.cluster.nodes() {
        node.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    eventually("it has subscribed again", || {
        executed(wait.cluster.nodes(), "ssubscribe") > before && Wait::listeners(wait.node()) == 1
    })
    .await;
    wait.is_woken().await;
    wait.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_right_to_it_messages_go_by_the_channel_of_the_process() {
    let Some(cluster) = cluster_for("without_the_right_to_it_messages_go...") else { return };
    let mut urls = Vec::new();
    for node in cluster.nodes() {
        let rules = ["ACL", "SETUSER", "cache", "on", ">secret", "~*", "&*", "+@all"];
        node.cli(&[&rules[..], &["-ssubscribe", "-spublish"]].concat());
        urls.push(node.url().replace("redis://", "redis://cache:secret@"));
    }
    let wait = Wait::on(cluster, &urls).await;
    assert_eq!(Wait::listeners(wait.node()), 0);
    let (cluster, caches) = wait.end().await;
    assert!(caches[1].stats().wakes_by_push >= 1);
    assert_eq!(executed(cluster.nodes(), "spublish"), 0);
    // It is not asked for at each wait.
    let asked = |node: &Server| node.cli(&["ACL", "LOG"]).parts().len();
    let refused: usize = cluster.nodes().iter().map(asked).sum();
    assert_eq!(refused, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_resp3_is_not_connected_to_at_each_wait() {
    let cluster = Cluster::configured(&["rename-command HELLO no-such-command"]);
    let urls = cluster.urls();
    // Each connection that is to hear messages asks for RESP3 first.
    let refused = |cluster: &Cluster| {
        let of = |node: &Server| {
            let stats = node.cli(&["INFO", "errorstats"]).text();
            let count = stats.lines().find_map(|line| line.strip_prefix("errorstat_ERR:count="));
            count.map_or(0, |count| count.trim().parse::<usize>().unwrap())
        };
        cluster.nodes().iter().map(of).sum::<usize>()
    };
    let (cluster, caches) = Wait::on(cluster, &urls).await.end().await;
    let before = refused(&cluster);
    assert!(before > 0);
    for _ in 0..5 {
        let (gated, key) = (Gated::new(), fresh_key());
        let leader = gated.lead(&caches[0], &key).await;
        let waiting = gated.ask(&caches[1], &key);
        let node = &cluster.nodes()[cluster.owner(slot_of(&cluster, &key))];
        eventually("it is registered", || registered(node, &key) == 1).await;
        gated.open();
        for caller in [leader, waiting] {
            answer(caller).await;
        }
    }
    assert_eq!(refused(&cluster), before);
}
