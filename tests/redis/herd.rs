//! Any number of processes on one Redis compute once.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::kit;
use crate::kit::origin::{MS, Origin, within};
use crate::kit::redis::{Server, eventually};
use crate::kit::redis_caches::*;

/// So many processes, none of which has said a word to Redis before.
async fn a_cold_key(processes: usize, callers: usize) {
    let (server, origin) = (Server::start(), Origin::taking(200 * MS));
    let caches = kit::redis_caches::processes(processes, &server.url());
    let answers = herd(&caches, callers, &origin, "k").await;
    assert_eq!(answers.len(), processes * callers);
    assert!(answers.iter().all(|answer| *answer == 1));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_with_hundreds_of_callers_computes_once() {
    a_cold_key(1, 500).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_with_hundreds_of_callers_each_compute_once() {
    a_cold_key(4, 500).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_processes_with_hundreds_of_callers_each_compute_once() {
    a_cold_key(16, 300).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_processes_with_a_thousand_callers_each_compute_once() {
    a_cold_key(64, 1000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_wait_are_woken_by_a_push() {
    let server = Server::start();
    let caches = processes(16, &server.url());
    all_listen(&caches).await;
    assert_healed(&server, &caches).await;
}

/// Every process asks for every key, each in an order of its own.
async fn two_hundred_keys(caches: &[Cache], origin: &Origin) {
    let mut herd = JoinSet::new();
    for (n, cache) in caches.iter().enumerate() {
        for i in 0..200 {
            let (cache, origin) = (cache.clone(), origin.clone());
            let key = format!("key-{}", (i + 37 * n) % 200);
            herd.spawn(async move { (load(&cache, &origin, &*key).await, key) });
        }
    }
    let mut answers = within(2 * LIMIT, herd.join_all()).await;
    answers.sort_by(|a, b| a.1.cmp(&b.1));
    for same_key in answers.chunk_by(|a, b| a.1 == b.1) {
        assert_eq!(same_key.len(), caches.len());
        assert!(same_key.iter().all(|(answer, _)| *answer == same_key[0].0), "one value each");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_keys_at_once_in_32_processes_are_200_computations() {
    let (server, origin) = (Server::start(), Origin::taking(100 * MS));
    let caches = processes(32, &server.url());
    two_hundred_keys(&caches, &origin).await;
    assert_eq!(origin.calls(), 200);
}

/// Kills subscribers and forgets scripts, all the time.
fn pester(server: &Arc<Server>) -> Meanwhile {
    let server = Arc::clone(server);
    Meanwhile::blocking(10 * MS, move || {
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        server.cli(&["SCRIPT", "FLUSH"]);
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_subscribers_and_forgotten_scripts_cost_no_computation() {
    let (server, origin) = (Arc::new(Server::start()), Origin::taking(100 * MS));
    let caches = processes(32, &server.url());
    let pestering = pester(&server);
    eventually("it has begun", || pestering.rounds() > 0).await;
    two_hundred_keys(&caches, &origin).await;
    assert_eq!(origin.calls(), 200);
    for n in 0..5 {
        herd(&caches, 20, &origin, &format!("another-{n}")).await;
    }
    assert_eq!(origin.calls(), 205);
    assert!(pestering.end().await > 10);
    assert_healed(&server, &caches).await;
}
