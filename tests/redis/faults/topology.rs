//! More servers than one: replicas, sentinels, clusters.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tower_stampede::{Health, Redis, RedisLock};

use crate::kit::origin::{MS, Origin, SECOND};
use crate::kit::redis::{Cluster, Sentinels, Server, eventually, slot_of, wait_until};
use crate::kit::redis_caches::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_of_no_use_until_it_is_promoted() {
    let primary = Server::start();
    let replica = Server::replica_of(&primary);
    let caches: Vec<_> = (0..4).map(|_| hasty(&replica.url())).collect();
    for _ in 0..5 {
        assert_bridged(&caches).await;
    }
    assert!(caches.iter().all(|cache| cache.health() == Health::Degraded));
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    assert_healed(&replica, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_becomes_a_replica_is_noticed() {
    let (other, server) = (Server::start(), Server::start());
    let caches = hasty_ones(4, &server.url()).await;
    let held = Held::by(&caches).await;
    let mut breakers: Vec<_> = caches.iter().map(Breaker::of).collect();
    server.cli(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    for _ in 0..5 {
        assert_unharmed(&caches, &held).await;
    }
    for breaker in &mut breakers {
        breaker.has_opened().await;
    }
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    assert_healed(&server, &caches).await;
}

fn by_sentinels(sentinels: &Sentinels) -> Redis {
    Redis::sentinel(sentinels.urls(), Sentinels::NAME).unwrap().namespace("stampede")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordered_failover_leads_to_the_new_primary() {
    let sentinels = Arc::new(Sentinels::start());
    let caches: Vec<_> = (0..4).map(|_| hasty_on(by_sentinels(&sentinels))).collect();
    all_listen(&caches).await;
    assert_healed(sentinels.primary(), &caches).await;
    let held = Held::by(&caches).await;
    let failing = Arc::clone(&sentinels);
    let failover = tokio::task::spawn_blocking(move || failing.failover());
    while !failover.is_finished() {
        assert_bridged_over(&caches).await;
        held.is_answered(&caches).await;
    }
    failover.await.unwrap();
    assert_bridged_over(&caches).await;
    held.is_answered(&caches).await;
    assert_healed(sentinels.primary(), &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_primary_is_replaced_by_its_replica() {
    let sentinels = Arc::new(Sentinels::start());
    let caches: Vec<_> = (0..4).map(|_| hasty_on(by_sentinels(&sentinels))).collect();
    all_listen(&caches).await;
    let held = Held::by(&caches).await;
    let dying = Arc::clone(&sentinels);
    let death = tokio::task::spawn_blocking(move || _ = dying.kill_primary());
    while !death.is_finished() {
        assert_bridged_over(&caches).await;
        held.is_answered(&caches).await;
    }
    death.await.unwrap();
    assert_bridged_over(&caches).await;
    held.is_answered(&caches).await;
    assert_healed(sentinels.primary(), &caches).await;
}

/// Names that another process's keys have in the cluster, and where they are.
fn slot(cluster: &Cluster, key: &str) -> u16 {
    slot_of(cluster, record(key, 'v'))
}

fn registered_in(cluster: &Cluster, key: &str) -> usize {
    let owner = cluster.owner(slot(cluster, key));
    registered(&cluster.nodes()[owner], key)
}

fn in_cluster(cluster: &Cluster) -> Cache {
    hasty_on(Redis::cluster(cluster.urls()).unwrap().namespace("stampede"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_computes_each_key_once_whichever_node_it_is_on() {
    let (cluster, origin) = (Cluster::start(), Origin::taking(50 * MS));
    let caches: Vec<_> = (0..8)
        .map(|_| patient_on(Redis::cluster(cluster.urls()).unwrap().namespace("stampede")))
        .collect();
    let mut nodes = HashSet::new();
    for n in 1..=20 {
        let key = fresh_key();
        nodes.insert(cluster.owner(slot(&cluster, &key)));
        herd(&caches, 20, &origin, &key).await;
        assert_eq!(origin.calls(), n, "one per key");
    }
    assert_eq!(nodes.len(), 3, "the keys lie everywhere");
    assert_healed_by(|key| registered_in(&cluster, key), &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_under_load_cost_no_request() {
    let cluster = Arc::new(Cluster::start());
    let caches: Vec<_> = (0..4).map(|_| in_cluster(&cluster)).collect();
    all_listen(&caches).await;
    let held = Held::by(&caches).await;
    let moving = Arc::clone(&cluster);
    let keys: Vec<_> = (0..6).map(|n| format!("moved-{n}")).collect();
    let slots: Vec<_> = keys.iter().map(|key| slot(&cluster, key)).collect();
    let seen = Arc::new(AtomicUsize::new(0));
    let rounds_seen = Arc::clone(&seen);
    let migrations = tokio::task::spawn_blocking(move || {
        for round in 0..4 {
            for slot in &slots {
                let to = (moving.owner(*slot) + 1 + round % 2) % 3;
                let migration = moving.begin_migration(*slot, to);
                migration.move_keys();
                // Until all have been asked while some keys are here and some there.
                let asked = rounds_seen.load(Ordering::SeqCst) + 1;
                wait_until("a round of requests", || rounds_seen.load(Ordering::SeqCst) > asked);
                migration.finish();
            }
        }
    });
    let origin = Origin::taking(10 * MS);
    let mut rounds = 0;
    while !migrations.is_finished() {
        rounds += 1;
        seen.store(rounds, Ordering::SeqCst);
        let before = origin.calls();
        for key in &keys {
            herd(&caches, 10, &origin, key).await;
        }
        let calls = origin.calls() - before;
        assert!(calls <= keys.len() * caches.len(), "{calls} calls");
        caches[rounds % 4].invalidate_tag("nobody's").await;
        for key in &keys {
            caches[rounds % 4].invalidate(&**key).await;
        }
        assert_unharmed(&caches, &held).await;
    }
    migrations.await.unwrap();
    cluster.wait_until_ok();
    assert_healed_by(|key| registered_in(&cluster, key), &caches).await;
    for key in &keys {
        caches[0].invalidate(&**key).await;
    }
    eventually("nothing is queued", || caches.iter().all(|c| c.health() == Health::Up)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_while_a_value_is_computed_is_filled_where_it_is_then() {
    let cluster = Cluster::start();
    let caches: Vec<_> = (0..2)
        .map(|_| patient_on(Redis::cluster(cluster.urls()).unwrap().namespace("stampede")))
        .collect();
    all_listen(&caches).await;
    let (gated, key) = (Gated::new(), fresh_key());
    let leader = gated.lead(&caches[0], &key).await;
    let slot = slot(&cluster, &key);
    cluster.migrate_slot(slot, (cluster.owner(slot) + 1) % 3);
    gated.open();
    assert_eq!(answer(leader).await, 1);
    assert_eq!(load(&caches[1], &gated.origin, &*key).await, 1);
    assert_eq!(gated.calls(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_on_its_way_to_another_node_is_found_there() {
    let (cluster, origin) = (Cluster::start(), Origin::new());
    let caches: Vec<_> = (0..2)
        .map(|_| patient_on(Redis::cluster(cluster.urls()).unwrap().namespace("stampede")))
        .collect();
    all_listen(&caches).await;
    let key = fresh_key();
    load(&caches[0], &origin, &*key).await;
    let slot = slot(&cluster, &key);
    let owner = &cluster.nodes()[cluster.owner(slot)];
    eventually("it is filled", || !owner.cli(&["GET", &record(&key, 'v')]).is_nil()).await;
    let migration = cluster.begin_migration(slot, (cluster.owner(slot) + 1) % 3);
    assert_eq!(migration.move_keys(), 1);
    assert!(owner.cli(&["GET", &record(&key, 'v')]).text().starts_with("ASK"));
    assert_eq!(load(&caches[1], &origin, &*key).await, 1);
    assert_eq!(origin.calls(), 1);
    migration.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_node_of_a_cluster_delays_its_own_keys_at_most() {
    let cluster = Cluster::start();
    let caches: Vec<_> = (0..2).map(|_| in_cluster(&cluster)).collect();
    all_listen(&caches).await;
    cluster.nodes()[1].freeze();
    for _ in 0..6 {
        assert_bridged(&caches).await;
    }
    cluster.nodes()[1].thaw();
    cluster.wait_until_ok();
    assert_healed_by(|key| registered_in(&cluster, key), &caches).await;
}

/// The other nodes have given its slots to one of them, as after a failover. The lock's handle has no
/// cache that would find that out for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_leaves_a_frozen_node_for_the_one_that_has_taken_over() {
    let cluster = Cluster::start();
    for node in cluster.nodes() {
        node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    // A call that finds the frozen node is given up after this time.
    let redis =
        Redis::cluster(cluster.urls()).unwrap().namespace("stampede").op_timeout(2 * SECOND);
    let lock = RedisLock::new(&redis, "orders:42").unwrap().lease(20 * SECOND);
    lock.try_acquire().await.unwrap().expect("nobody has it").release().await.unwrap();
    let slot = slot_of(&cluster, "orders:42");
    let frozen = cluster.owner(slot);
    cluster.nodes()[frozen].freeze();
    let [heir, other] = [1, 2].map(|n| &cluster.nodes()[(frozen + n) % 3]);
    let id = heir.cli(&["CLUSTER", "MYID"]).text();
    for node in [heir, other] {
        node.cli(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id]);
    }
    eventually("the slot is served", || !heir.cli(&["GET", "orders:42"]).is_error()).await;
    let taken = lock.acquire(LIMIT).await;
    assert!(matches!(taken, Ok(Some(_))), "{taken:?}");
    cluster.nodes()[frozen].thaw();
}
