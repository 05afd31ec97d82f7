//! An address leads to another server than before, which has not all of what the first one said was
//! done: a replica that lags behind takes over, or both take writes for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use tokio::sync::watch;
use tower_stampede::{Announcement, Health, Redis};

use crate::kit::origin::{Origin, OriginError, SECOND};
use crate::kit::redis::{Cluster, Proxy, Server, eventually, wait_until};
use crate::kit::redis_caches::*;
use crate::kit::spawn;

use super::{names, tagged};

/// A primary, a replica that is fed by a line which can be held up, and an address that leads to
/// one of the two.
struct Pair {
    primary: Server,
    replica: Server,
    line: Proxy,
    address: Proxy,
}

impl Pair {
    fn start() -> Self {
        let (primary, replica) = (Server::start(), Server::start());
        let (line, address) = (Proxy::start(primary.port()), Proxy::start(primary.port()));
        replica.tell(&format!("REPLICAOF 127.0.0.1 {}", line.port()));
        wait_until("the replica is in step", || {
            let info = replica.cli(&["INFO", "replication"]);
            info.field("master_link_status").as_deref() == Some("up")
        });
        Self { primary, replica, line, address }
    }

    async fn is_replicated(&self, key: &str) {
        eventually("the replica has the value", || {
            names(&self.replica).iter().any(|name| name.contains(key))
        })
        .await;
    }

    fn promote(&self) {
        self.replica.tell("REPLICAOF NO ONE");
    }
}

/// What is invalidated when the replica has heard nothing for a while.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Key,
    Tag,
}

async fn end(cache: &Cache, what: Ends) {
    let told = match what {
        Ends::Key => cache.invalidate("the-key").await,
        Ends::Tag => cache.invalidate_tag("t").await,
    };
    assert_eq!(told.remote, Announcement::Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lagging_replica_that_takes_over_brings_nothing_back_also_before_it_is_listened_to() {
    for what in [Ends::Key, Ends::Tag] {
        let (pair, origin) = (Pair::start(), Origin::new());
        let caches = hasty_ones(2, &pair.address.url()).await;
        assert_eq!(tagged(&caches[0], &origin, "the-key").await, 1);
        assert_eq!(tagged(&caches[1], &origin, "the-key").await, 1);
        pair.is_replicated("the-key").await;
        pair.line.stall();
        end(&caches[0], what).await;
        eventually("the other process has heard of it", || caches[1].lookup("the-key").is_none())
            .await;
        pair.promote();
        // Commands find the new primary at once, and nothing is listened to any more.
        pair.address.block_subscribers(true);
        pair.address.lead_to(pair.replica.port());
        for cache in &caches {
            assert_ne!(tagged(cache, &origin, "the-key").await, 1, "{what:?}: it was invalidated");
        }
        pair.address.block_subscribers(false);
        drop(pair.primary);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_has_started_since_takes_nothing_older_from_a_lagging_replica() {
    let (pair, origin) = (Pair::start(), Origin::new());
    let old = hasty_ones(1, &pair.address.url()).await;
    assert_eq!(load(&old[0], &origin, "the-key").await, 1);
    pair.is_replicated("the-key").await;
    pair.line.stall();
    end(&old[0], Ends::Key).await;
    // It has heard of nothing, and nothing fails: its next command is sent over a new connection.
    let new = hasty_ones(1, &pair.address.url()).await;
    assert_eq!(new[0].get("nothing").await, None);
    pair.promote();
    pair.address.block_subscribers(true);
    pair.address.lead_to(pair.replica.port());
    assert_ne!(load(&new[0], &origin, "the-key").await, 1, "it was invalidated");
    pair.address.block_subscribers(false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_starts_from_an_old_snapshot_brings_nothing_back() {
    for what in [Ends::Key, Ends::Tag] {
        let (server, origin) = (Server::start(), Origin::new());
        let address = Proxy::start(server.port());
        let caches = hasty_ones(2, &address.url()).await;
        assert_eq!(tagged(&caches[0], &origin, "the-key").await, 1);
        assert_eq!(tagged(&caches[1], &origin, "the-key").await, 1);
        eventually("the value is stored", || {
            names(&server).iter().any(|name| name.contains("the-key"))
        })
        .await;
        server.tell("SAVE");
        end(&caches[0], what).await;
        eventually("the other process has heard of it", || caches[1].lookup("the-key").is_none())
            .await;
        address.block_subscribers(true);
        server.kill();
        server.restart();
        for cache in &caches {
            assert_ne!(tagged(cache, &origin, "the-key").await, 1, "{what:?}: it was invalidated");
        }
        address.block_subscribers(false);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_invalidated_on_a_primary_that_is_given_up_ends_on_its_successor_too() {
    for what in [Ends::Key, Ends::Tag] {
        let pair = Pair::start();
        let old = process(&pair.address.url());
        all_listen(std::slice::from_ref(&old)).await;
        assert_eq!(tagged(&old, &Origin::new(), "another").await, 1);
        pair.is_replicated("another").await;
        pair.promote();
        // A process that starts now finds the new primary, and computes from the database of now.
        let other_address = Proxy::start(pair.replica.port());
        let new = process(&other_address.url());
        all_listen(std::slice::from_ref(&new)).await;
        let (database, reads) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
        let (open, opened) = watch::channel(false);
        let read = |cache: &Cache, waits: bool| {
            let (cache, database, reads) =
                (cache.clone(), Arc::clone(&database), Arc::clone(&reads));
            let mut opened = opened.clone();
            let compute = move || async move {
                let value = database.load(SeqCst);
                reads.fetch_add(1, SeqCst);
                if waits {
                    let _ = opened.wait_for(|is_open| *is_open).await;
                }
                Ok::<_, OriginError>(tower_stampede::Computed::new(value).tag("t"))
            };
            async move { cache.get_or_compute_with("the-key", compute).await.unwrap() }
        };
        let slow = spawn(read(&new, true));
        eventually("it has read the database", || reads.load(SeqCst) == 1).await;
        // The database is written, and the primary that is to be given up says that it is done.
        database.store(2, SeqCst);
        end(&old, what).await;
        open.send_replace(true);
        assert_eq!(slow.await.unwrap(), 1, "it began before");
        eventually("the old value is shared", || {
            names(&pair.replica).iter().any(|name| name.contains("the-key"))
        })
        .await;
        pair.address.lead_to(pair.replica.port());
        for _ in 0..3 {
            assert_eq!(read(&old, false).await, 2, "{what:?}: this process has invalidated it");
        }
        eventually("the process is well", || old.health() == Health::Up).await;
        let mut seen = 0;
        for _ in 0..600 {
            seen = read(&new, false).await;
            if seen == 2 {
                break;
            }
            tokio::time::sleep(crate::kit::origin::MS * 50).await;
        }
        assert_eq!(seen, 2, "{what:?}: the process on the successor hears of it");
    }
}

/// How the replica of a cluster's node takes over.
#[derive(Clone, Copy, Debug)]
enum Takeover {
    AfterKill,
    WhileAlive,
    Forced,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lagging_replica_that_takes_over_the_log_of_a_cluster_brings_nothing_back() {
    for (how, what) in [
        (Takeover::AfterKill, Ends::Tag),
        (Takeover::AfterKill, Ends::Key),
        (Takeover::WhileAlive, Ends::Tag),
        (Takeover::WhileAlive, Ends::Key),
        (Takeover::Forced, Ends::Tag),
    ] {
        takes_over(how, what, true).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lagging_replica_that_takes_over_keys_brings_none_back_to_the_process_that_ended_them() {
    takes_over(Takeover::AfterKill, Ends::Key, false).await;
    takes_over(Takeover::WhileAlive, Ends::Key, false).await;
}

/// The replica of the node with the log, or of another node.
async fn takes_over(how: Takeover, what: Ends, is_of_log: bool) {
    const KEYS: u64 = 20;
    let (cluster, origin) = (Cluster::start(), Origin::new());
    for node in cluster.nodes() {
        node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let cache = || hasty_on(Redis::cluster(cluster.urls()).unwrap().namespace("stampede"));
    let caches = [cache(), cache()];
    all_listen(&caches).await;
    // With its first invalidation each node shows whether it has the log.
    end(&caches[0], Ends::Tag).await;
    let has_log = |node: &Server| names(node).iter().any(|name| name.ends_with(":tags"));
    let log = cluster.nodes().iter().position(has_log).unwrap();
    let node = if is_of_log { log } else { (log + 1) % 3 };
    // All keys are on that node.
    let slots = cluster.nodes()[node].cli(&["CLUSTER", "SLOTS"]);
    let own = i64::from(cluster.nodes()[node].port());
    let range = slots.parts().iter().find(|range| range.parts()[2].parts()[1].int() == own);
    let [from, to] = [0, 1].map(|n| range.unwrap().parts()[n].int());
    let is_there = |key: &String| {
        let slot = cluster.nodes()[node].cli(&["CLUSTER", "KEYSLOT", key]).int();
        (from..=to).contains(&slot)
    };
    let keys: Vec<_> = (0..).map(|n| format!("key-{n}")).filter(is_there).take(20).collect();
    let replica = cluster.replica_of(node);
    for key in &keys {
        for cache in &caches {
            assert!(tagged(cache, &origin, key).await <= KEYS);
        }
    }
    eventually("the replica has the values", || {
        keys.iter()
            .all(|key| names(&replica).iter().any(|name| name.contains(&format!("{{{key}}}"))))
    })
    .await;
    cluster.hold_up(node, &replica);
    match what {
        Ends::Tag => end(&caches[0], Ends::Tag).await,
        Ends::Key => {
            for key in &keys {
                assert_eq!(caches[0].invalidate(&**key).await.remote, Announcement::Done);
            }
        }
    }
    let done = std::time::Instant::now();
    match how {
        Takeover::AfterKill => cluster.nodes()[node].kill(),
        Takeover::WhileAlive | Takeover::Forced => {}
    }
    let word = if matches!(how, Takeover::Forced) { "FORCE" } else { "TAKEOVER" };
    assert!(!replica.cli(&["CLUSTER", "FAILOVER", word]).is_error());
    let mut rounds_after = 0;
    while rounds_after < 100 {
        let has_taken_over =
            replica.cli(&["INFO", "replication"]).field("role").as_deref() == Some("master");
        rounds_after += usize::from(has_taken_over && done.elapsed() > 3 * SECOND);
        for key in &keys {
            let value = tagged(&caches[0], &origin, key).await;
            assert!(value > KEYS, "{how:?}, {what:?}: {value} of {key} was invalidated here");
            // It may have the value of before for as long as it has had no heartbeat.
            let began = done.elapsed();
            let value = tagged(&caches[1], &origin, key).await;
            let is_known = is_of_log && began > 2 * SECOND;
            assert!(value > KEYS || !is_known, "{how:?}, {what:?}: {value} of {key} elsewhere");
        }
    }
    eventually("all is well", || caches.iter().all(|cache| cache.health() == Health::Up)).await;
}
