//! Servers without memory: those that refuse to write, and those that throw
//! away what they like.

use tower_stampede::{Redis, Stampede};

use crate::kit;
use crate::kit::origin::{Origin, SECOND, settings};
use crate::kit::redis::{Server, eventually};
use crate::kit::redis_caches::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_that_evicts_nothing_is_left_alone_until_there_is_room() {
    let server = Server::configured(&["maxmemory-policy noeviction"]);
    let caches = hasty_ones(4, &server.url()).await;
    let held = Held::by(&caches).await;
    let mut breakers: Vec<_> = caches.iter().map(Breaker::of).collect();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..5 {
        assert_unharmed(&caches, &held).await;
    }
    for breaker in &mut breakers {
        breaker.has_opened().await;
    }
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fill_that_finds_no_room_gives_the_lease_up() {
    let server = Server::configured(&["maxmemory-policy noeviction"]);
    let caches = processes(2, &server.url());
    all_listen(&caches).await;
    let (gated, own) = (Gated::new(), Gated::new());
    let leader = gated.lead(&caches[0], "k").await;
    let waiter = own.ask(&caches[1], "k");
    eventually("it waits", || registered(&server, "k") == 1).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    gated.open();
    assert_eq!(answer(leader).await, 1);
    // Woken because the lease was given up, or by its timer.
    eventually("the next one computes", || own.calls() == 1).await;
    own.open();
    assert_eq!(answer(waiter).await, 1);
    assert!(server.cli(&["GET", &record("k", 'l')]).is_nil(), "the lock was given up");
    assert_eq!(load(&caches[0], &gated.origin, "k").await, 1, "kept in the process");
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_healed(&server, &caches).await;
}

/// Values of 20 kB in so little memory that most are gone soon.
async fn under_pressure(policy: &str) {
    let server = Server::configured(&["maxmemory 4mb", &format!("maxmemory-policy {policy}")]);
    let cache = || -> Stampede<String> {
        settings()
            .lease(4 * SECOND)
            .wait_timeout(LIMIT)
            .redis(Redis::lazy(&server.url()).unwrap().namespace("stampede").op_timeout(SECOND))
            .build()
            .unwrap()
    };
    let caches = [cache(), cache(), cache(), cache()];
    let origin = Origin::new();
    for n in 0..300_usize {
        let mut herd = tokio::task::JoinSet::new();
        for cache in &caches {
            let (cache, origin, key) = (cache.clone(), origin.clone(), format!("k{n}"));
            herd.spawn(async move {
                let compute = move || async move {
                    origin.load().await.map(|_| format!("{n}-{}", "x".repeat(20_000)))
                };
                cache.get_or_compute(&*key, compute).await.expect("no request fails")
            });
        }
        let answers = kit::origin::within(LIMIT, herd.join_all()).await;
        assert!(answers.iter().all(|answer| answer.starts_with(&format!("{n}-"))));
    }
    let calls = origin.calls();
    assert!((300..=4 * 300).contains(&calls), "{policy}: {calls} calls");
    let evicted = server.cli(&["INFO", "stats"]).field("evicted_keys").unwrap();
    assert_ne!(evicted, "0", "{policy}: there was no pressure");
    let caches = hasty_ones(3, &server.url()).await;
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_evicts_the_least_used_serves_on() {
    under_pressure("allkeys-lfu").await;
    under_pressure("allkeys-lru").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_evicts_the_shortest_lived_serves_on() {
    under_pressure("volatile-ttl").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_evicts_at_random_serves_on() {
    under_pressure("allkeys-random").await;
    under_pressure("volatile-random").await;
}
