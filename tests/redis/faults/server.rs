//! Servers that die, freeze, pause or are not there: requests are served, each
//! process computes a key at most once, and all is well again afterwards.

use std::time::Instant;

use tower_stampede::{Health, Redis};

use crate::kit::origin::{MS, Origin, SECOND};
use crate::kit::redis::{Server, eventually};
use crate::kit::redis_caches::*;
use crate::kit::spawn;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_delays_nobody_and_an_empty_one_is_taken_over() {
    let server = Server::start();
    let caches = hasty_ones(4, &server.url()).await;
    let held = Held::by(&caches).await;
    server.kill();
    for _ in 0..5 {
        assert_unharmed(&caches, &held).await;
    }
    for cache in &caches {
        assert_eq!(cache.health(), Health::Degraded);
        assert_left_alone(cache).await;
    }
    server.restart();
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_delays_requests_until_the_breaker_opens_and_then_not_at_all() {
    let server = Server::start();
    let caches = hasty_ones(1, &server.url()).await;
    let (cache, origin) = (&caches[0], Origin::new());
    let held = Held::by(&caches).await;
    let mut breaker = Breaker::of(cache);
    server.freeze();
    for n in 1..=3 {
        let asked = cache.stats().remote_calls;
        load(cache, &origin, fresh_key()).await;
        let asked = cache.stats().remote_calls - asked;
        assert!(asked <= 3, "a look, or a lease and its end: {asked} calls for a request");
        assert_eq!(origin.calls(), n, "one per key");
        held.is_served(&caches).await;
    }
    breaker.has_opened().await;
    assert_left_alone(cache).await;
    held.is_served(&caches).await;
    server.thaw();
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_costs_one_computation_per_process_and_key() {
    let server = Server::start();
    let caches = hasty_ones(4, &server.url()).await;
    let held = Held::by(&caches).await;
    server.freeze();
    for _ in 0..5 {
        assert_unharmed(&caches, &held).await;
    }
    server.thaw();
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_in_mid_computation_lets_those_who_wait_compute() {
    let server = Server::start();
    // Its death ends the connections: no call has to time out.
    let caches = processes(4, &server.url());
    all_listen(&caches).await;
    let (gated, own) = (Gated::new(), Origin::new());
    let leader = gated.lead(&caches[0], "k").await;
    let waiting: Vec<_> = caches[1..]
        .iter()
        .map(|cache| {
            let (cache, own) = (cache.clone(), own.clone());
            spawn(async move { timed(&cache, &own, "k").await })
        })
        .collect();
    eventually("they wait", || registered(&server, "k") == 3).await;
    server.kill();
    for waiter in waiting {
        let (_, took) = waiter.await.unwrap();
        assert!(took < DELAYED, "waited {took:?} for a wake-up that cannot come");
    }
    assert_eq!(own.calls(), 3, "each for itself");
    gated.open();
    assert_eq!(answer(leader).await, 1);
    assert_eq!(load(&caches[0], &own, "k").await, 1, "kept in the process");
    server.restart();
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_freezes_in_mid_computation_holds_nobody_back() {
    let server = Server::start();
    let caches = hasty_ones(4, &server.url()).await;
    let (gated, own) = (Gated::new(), Gated::new());
    let leader = gated.lead(&caches[0], "k").await;
    let waiting: Vec<_> = caches[1..].iter().map(|cache| own.ask(cache, "k")).collect();
    eventually("they wait", || registered(&server, "k") == 3).await;
    server.freeze();
    eventually("each computes for itself", || own.calls() == 3).await;
    gated.open();
    assert_eq!(answer(leader).await, 1, "the fill hangs, and no caller waits for it");
    own.open();
    for waiter in waiting {
        answer(waiter).await;
    }
    assert_eq!(own.calls(), 3);
    server.thaw();
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_clients_are_as_good_as_a_frozen_server() {
    let server = Server::start();
    let caches = hasty_ones(4, &server.url()).await;
    let held = Held::by(&caches).await;
    // It has an end: the command that ends it would be paused as well.
    server.cli(&["CLIENT", "PAUSE", "8000", "ALL"]);
    for _ in 0..4 {
        assert_unharmed(&caches, &held).await;
    }
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_of_writes_is_bridged_too() {
    let server = Server::start();
    let caches = hasty_ones(4, &server.url()).await;
    let held = Held::by(&caches).await;
    server.cli(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    for _ in 0..8 {
        assert_unharmed(&caches, &held).await;
    }
    // Values can be read all the time, and leases cannot be had.
    for cache in &caches {
        assert_left_alone(cache).await;
    }
    server.cli(&["CLIENT", "UNPAUSE"]);
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_of_either_kind_cost_nothing() {
    let server = Server::start();
    let caches = processes(4, &server.url());
    all_listen(&caches).await;
    let mut events: Vec<_> = caches.iter().map(Cache::events).collect();
    for kind in ["normal", "pubsub"] {
        for round in 0..3 {
            server.cli(&["CLIENT", "KILL", "TYPE", kind]);
            let (origin, key) = (Origin::taking(50 * MS), fresh_key());
            herd(&caches, 20, &origin, &key).await;
            let told =
                events.iter_mut().map(|events| std::iter::from_fn(|| events.try_recv().ok()));
            let told: Vec<Vec<_>> = told.map(Iterator::collect).collect();
            assert_eq!(origin.calls(), 1, "round {round} of {kind}: {told:#?}");
        }
    }
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_killed_while_they_wait_look_again() {
    let server = Server::start();
    let caches = processes(4, &server.url());
    all_listen(&caches).await;
    let gated = Gated::new();
    let leader = gated.lead(&caches[0], "k").await;
    let waiting: Vec<_> = caches[1..].iter().map(|cache| gated.ask(cache, "k")).collect();
    eventually("they wait", || registered(&server, "k") == 3).await;
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    gated.open();
    for request in waiting.into_iter().chain([leader]) {
        assert_eq!(answer(request).await, 1);
    }
    assert_eq!(gated.calls(), 1);
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_cost_nothing() {
    let server = Server::start();
    let caches = processes(4, &server.url());
    all_listen(&caches).await;
    let gated = Gated::new();
    let leader = gated.lead(&caches[0], "k").await;
    let waiting: Vec<_> = caches[1..].iter().map(|cache| gated.ask(cache, "k")).collect();
    eventually("they wait", || registered(&server, "k") == 3).await;
    server.cli(&["SCRIPT", "FLUSH"]);
    gated.open();
    for request in waiting.into_iter().chain([leader]) {
        assert_eq!(answer(request).await, 1);
    }
    server.cli(&["SCRIPT", "FLUSH"]);
    assert_healed(&server, &caches).await;
}

/// Every process has held all of these keys before the outage.
async fn held_keys(caches: &[Cache], origin: &Origin) -> Vec<String> {
    let keys: Vec<_> = (0..50).map(|_| fresh_key()).collect();
    for key in &keys {
        // A process that is kept from running for an `op_timeout` computes for itself, and then
        // the key is invalidated and they begin anew.
        loop {
            let before = origin.calls();
            for cache in caches {
                load(cache, origin, &**key).await;
            }
            if origin.calls() == before + 1 {
                break;
            }
            caches[0].invalidate(&**key).await;
        }
    }
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_each_key_is_computed_once_for_all_processes() {
    let (server, origin) = (Server::start(), Origin::taking(20 * MS));
    let caches = hasty_ones(4, &server.url()).await;
    let keys = held_keys(&caches, &origin).await;
    let before = origin.calls();
    server.restart();
    assert_healed(&server, &caches).await;
    for key in &keys {
        herd(&caches, 5, &origin, key).await;
    }
    let again = origin.calls() - before;
    assert!(again <= keys.len(), "{again} computations of {} keys", keys.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_freeze_nothing_is_computed_again() {
    let (server, origin) = (Server::start(), Origin::new());
    let caches = hasty_ones(4, &server.url()).await;
    let keys = held_keys(&caches, &origin).await;
    let before = origin.calls();
    let mut breaker = Breaker::of(&caches[0]);
    server.freeze();
    for _ in 0..3 {
        assert_bridged(&caches).await;
    }
    breaker.has_opened().await;
    server.thaw();
    assert_healed(&server, &caches).await;
    for key in &keys {
        herd(&caches, 5, &origin, key).await;
    }
    assert_eq!(origin.calls(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_come_up_after_the_application() {
    let server = Server::start();
    server.kill();
    let caches: Vec<_> = (0..4).map(|_| hasty(&server.url())).collect();
    let origin = Origin::taking(50 * MS);
    for key in ["a", "b", "c"] {
        herd(&caches, 20, &origin, key).await;
    }
    assert_eq!(origin.calls(), 12, "each process for itself");
    assert!(caches.iter().all(|cache| cache.health() == Health::Degraded));
    server.restart();
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_wrong_password_the_application_starts_and_connecting_says_so() {
    let server = Server::configured(&["requirepass right"]);
    let wrong = format!("redis://:mistaken@{}", server.address());
    for url in [wrong, format!("redis://{}", server.address())] {
        let error = Redis::connect(&url).await.unwrap_err();
        let told = format!("{error} {error:?}");
        assert!(told.contains("password") || told.contains("NOAUTH"), "{told}");
        assert!(!told.contains("mistaken"));

        let caches = [hasty(&url), hasty(&url)];
        let origin = Origin::taking(50 * MS);
        for n in 1..=4 {
            herd(&caches, 20, &origin, &fresh_key()).await;
            assert_eq!(origin.calls(), 2 * n, "each process for itself");
        }
        eventually("it says so", || caches.iter().all(|c| c.health() == Health::Degraded)).await;
    }
    let caches = hasty_ones(2, &server.url()).await;
    assert_healed(&server, &caches).await;
}

/// All rights but one.
fn rules_without(right: &str) -> String {
    let rules =
        Redis::lazy("redis://localhost").unwrap().namespace("stampede").acl_rules().unwrap();
    assert!(rules.contains(&format!(" +{right}")), "{right} is needed at all");
    rules.split(' ').filter(|rule| *rule != format!("+{right}")).collect::<Vec<_>>().join(" ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_is_named_when_asked_and_otherwise_only_costs_computations() {
    let rights = ["get", "evalsha", "set", "hset", "subscribe", "zrangebyscore", "publish"];
    futures_util::future::join_all(rights.map(without)).await;
}

async fn without(right: &str) {
    let server = Server::start();
    let user = |rules: &str| {
        let mut command = vec!["ACL", "SETUSER", "cache", "reset", "on", ">pass"];
        command.extend(rules.split(' '));
        assert!(!server.cli(&command).is_error());
    };
    user(&rules_without(right));
    let url = format!("redis://cache:pass@{}", server.address());
    let redis = Redis::lazy(&url).unwrap().namespace("stampede");
    let error = redis.check().await.unwrap_err().to_string().to_lowercase();
    assert!(error.contains(right), "{right}: {error}");

    let caches = [hasty(&url), hasty(&url)];
    let origin = Origin::new();
    // Without the right to publish no waiter is woken: that takes its time.
    for n in 1..=if right == "publish" { 3 } else { 100 } {
        herd(&caches, 3, &origin, &fresh_key()).await;
        assert!(origin.calls() <= 2 * n, "{right}: each process for itself");
    }
    // A probe that needs less may have just closed a breaker: a few failures
    // open it again.
    let is_away = |cache: &Cache| cache.health() == Health::Degraded;
    let until = Instant::now() + 60 * SECOND;
    while right != "publish" && !caches.iter().all(is_away) {
        herd(&caches, 3, &origin, &fresh_key()).await;
        assert!(Instant::now() < until, "without {right} it is not well");
    }
    user(&redis.acl_rules().unwrap());
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_probes_and_nothing_else_is_asked_less_and_less() {
    let server = Server::start();
    let cache = &hasty_ones(1, &server.url()).await[0];
    // Probes are scripts.
    server.cli(&["ACL", "SETUSER", "default", "-get"]);
    let (origin, before) = (Origin::new(), cache.stats().remote_errors);
    let start = Instant::now();
    while start.elapsed() < 3 * SECOND {
        load(cache, &origin, fresh_key()).await;
        tokio::time::sleep(MS).await;
    }
    // Three at once, then after 0.1, 0.2, 0.4, 0.8 and 1.6 seconds.
    let errors = cache.stats().remote_errors - before;
    assert!(errors <= 30, "{errors} of {} requests asked in vain", origin.calls());
    server.cli(&["ACL", "SETUSER", "default", "+get"]);
    assert_healed(&server, std::slice::from_ref(cache)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_address_is_told_when_connecting() {
    let error = Redis::connect("redis://127.0.0.1:1").await.unwrap_err();
    assert_eq!(error.to_string(), "cannot connect");
    let cache = hasty("redis://127.0.0.1:1");
    let origin = Origin::new();
    for n in 1..=5 {
        let (value, took) = timed(&cache, &origin, fresh_key()).await;
        assert_eq!(value, n);
        assert!(took < DELAYED);
    }
    assert_eq!(cache.health(), Health::Degraded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_host_delays_by_no_more_than_a_call() {
    // An address that swallows packets: no refusal, no answer.
    let cache = hasty("redis://192.0.2.1:6379");
    let origin = Origin::new();
    for _ in 0..3 {
        let (_, took) = timed(&cache, &origin, fresh_key()).await;
        assert!(took < 5 * SECOND, "took {took:?}");
    }
    eventually("it says so", || cache.health() == Health::Degraded).await;
}
