//! D3: one shard is dead, or hands a slot over. Keys elsewhere must not notice.

use tower_stampede::{Health, Redis};

use crate::kit::origin::{MS, Origin, SECOND};
use crate::kit::redis::{Cluster, eventually, slot_of};
use crate::kit::redis_caches::*;

const KEYS: usize = 20;

/// Untagged keys are computed once for all processes; a few calls more are allowed while
/// the processes find out.
async fn assert_shared(caches: &[Cache], mut next: impl FnMut() -> String) {
    let origin = Origin::taking(5 * MS);
    for _ in 0..KEYS {
        let key = next();
        for cache in caches {
            load(cache, &origin, &*key).await;
        }
    }
    let calls = origin.calls();
    assert!(calls <= KEYS + 2, "{calls} computations of {KEYS} keys in {} processes", caches.len());
}

fn fresh_on(cluster: &Cluster, is: impl Fn(usize) -> bool) -> String {
    let fits = |key: &String| is(cluster.owner(slot_of(cluster, key)));
    std::iter::repeat_with(fresh_key).find(fits).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_shard_costs_its_own_keys_only() {
    let cluster = Cluster::start();
    for node in cluster.nodes() {
        node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let caches: Vec<_> = (0..2)
        .map(|_| hasty_on(Redis::cluster(cluster.urls()).unwrap().namespace("stampede")))
        .collect();
    all_listen(&caches).await;
    const DEAD: usize = 0;
    let victim = fresh_on(&cluster, |node| node == DEAD);
    let keys: Vec<_> = (0..KEYS).map(|_| fresh_on(&cluster, |node| node != DEAD)).collect();
    cluster.kill_node(DEAD);
    // Stays in the journal.
    caches[0].invalidate(&*victim).await;
    let mut keys = keys.into_iter();
    assert_shared(&caches, || keys.next().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_under_way_costs_its_own_keys_only() {
    let cluster = Cluster::start();
    let caches: Vec<_> = (0..2)
        .map(|_| hasty_on(Redis::cluster(cluster.urls()).unwrap().namespace("stampede")))
        .collect();
    all_listen(&caches).await;
    let (origin, victim) = (Origin::new(), fresh_key());
    load(&caches[0], &origin, &*victim).await;
    let slot = slot_of(&cluster, &victim);
    let from = cluster.owner(slot);
    let keys = || cluster.nodes()[from].cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]);
    eventually("the entry is stored", || keys().int() > 0).await;
    let migration = cluster.begin_migration(slot, (from + 1) % 3);
    // The commands for several of its keys are answered with TRYAGAIN.
    caches[0].invalidate(&*victim).await;
    assert_shared(&caches, fresh_key).await;
    migration.finish();
    eventually("all are well", || caches.iter().all(|cache| cache.health() == Health::Up)).await;
}

/// Keys are handed over together with the log of invalidations: commands for both of its names are
/// answered with TRYAGAIN as long as one of them does not exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slot_of_the_log_under_way_costs_no_key_of_another_node() {
    let cluster = Cluster::start();
    let slot = slot_of(&cluster, LOG);
    let owner = cluster.owner(slot);
    let caches: Vec<_> = (0..2)
        .map(|_| hasty_on(Redis::cluster(cluster.urls()).unwrap().namespace("stampede")))
        .collect();
    all_listen(&caches).await;
    let migration = cluster.begin_migration(slot, (owner + 1) % 3);
    // So that the log is checked at once, and not within 15 s.
    for node in cluster.nodes() {
        node.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    tokio::time::sleep(3 * SECOND).await;
    assert_shared(&caches, || fresh_on(&cluster, |node| node != owner)).await;
    migration.finish();
    eventually("all are well", || caches.iter().all(|cache| cache.health() == Health::Up)).await;
}

/// An operator has it forget the others. They go on without noticing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_knows_its_own_slots_only_costs_its_own_keys_only() {
    let cluster = Cluster::start();
    for node in cluster.nodes() {
        node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let sick = (cluster.owner(slot_of(&cluster, LOG)) + 1) % 3;
    let keys: Vec<_> = (0..KEYS).map(|_| fresh_on(&cluster, |node| node != sick)).collect();
    let mut urls = cluster.urls();
    for (n, node) in cluster.nodes().iter().enumerate().filter(|(n, _)| *n != sick) {
        let id = node.cli(&["CLUSTER", "MYID"]).text();
        let forgotten = cluster.nodes()[sick].cli(&["CLUSTER", "FORGET", &id]);
        assert!(!forgotten.is_error(), "node {n}: {forgotten:?}");
    }
    urls.swap(0, sick);
    let caches: Vec<_> =
        (0..2).map(|_| hasty_on(Redis::cluster(&urls).unwrap().namespace("stampede"))).collect();
    for cache in &caches {
        cache.get("nothing is here").await;
    }
    let mut keys = keys.into_iter();
    assert_shared(&caches, || keys.next().unwrap()).await;
}
