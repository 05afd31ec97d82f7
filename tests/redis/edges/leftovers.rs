//! D8: what a failed computation leaves on the server ends with its lease.

use std::time::{Duration, Instant};

use tower_stampede::{Builder, Redis};

use crate::kit::origin::{Answer, MINUTE, MS, Origin, SECOND, settings};
use crate::kit::redis::{Server, eventually};
use crate::kit::redis_caches::*;

use super::{names, tagged};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_fail_leave_nothing_after_the_lease() {
    const LEASE: Duration = Duration::from_secs(2);
    let server = Server::start();
    let year: Builder<u64> = settings().ttl(365 * 24 * 3600 * SECOND).lease(LEASE);
    let redis = Redis::lazy(&server.url()).unwrap().op_timeout(SECOND / 2);
    let cache = year.redis(redis).build().unwrap();
    let origin = Origin::new();
    load(&cache, &origin, "lives for a year").await;
    origin.usually(Answer::Fail);
    for n in 0..20 {
        assert!(cache.get_or_compute(format!("failing-{n}"), origin.compute()).await.is_err());
    }
    let failed = Instant::now();
    let left = || -> Vec<_> {
        names(&server).into_iter().filter(|name| name.contains("failing-")).collect()
    };
    while !left().is_empty() && failed.elapsed() < 2 * LEASE + SECOND {
        tokio::time::sleep(50 * Duration::from_millis(1)).await;
    }
    let left = left();
    let longest = left.iter().map(|name| server.cli(&["PTTL", name]).int()).max();
    assert!(left.is_empty(), "{} keys, the longest for {longest:?} ms more", left.len());
}

async fn is_stored(server: &Server, name: &str) {
    let is_there = || names(server).iter().any(|found| found.ends_with(name));
    eventually("it is stored", is_there).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_says_it_lasts_for_ever_changes_nothing_for_others() {
    const TTL: Duration = Duration::from_secs(3);
    let server = Server::start();
    let redis = || Redis::lazy(&server.url()).unwrap().op_timeout(SECOND);
    let with = |builder: Builder<u64>| builder.lease(4 * SECOND).redis(redis()).build().unwrap();
    let hostile = settings().ttl(Duration::MAX).stale_for(Duration::MAX);
    let hostile = with(hostile.stale_if_error(Duration::MAX));
    let caches = [with(settings().ttl(TTL)), with(settings().ttl(TTL))];
    all_listen(&caches).await;
    let origin = Origin::new();
    assert_eq!(tagged(&hostile, &origin, "for ever").await, 1);
    is_stored(&server, "{for ever}:v").await;
    for cache in &caches {
        assert_eq!(tagged(cache, &origin, "for ever").await, 1, "it is adopted");
    }
    let began = Instant::now();
    assert_eq!(tagged(&caches[0], &origin, "short").await, 2);
    is_stored(&server, "{short}:v").await;
    assert_eq!(tagged(&caches[1], &origin, "short").await, 2);
    let limit = (TTL + 5 * MINUTE).as_millis() as i64;
    for name in names(&server).iter().filter(|name| name.contains("{short}")) {
        let left = server.cli(&["PTTL", name]).int();
        assert!((0..limit).contains(&left), "{name} stays for {left} ms");
    }
    // Their lifetimes are their own.
    while began.elapsed() < TTL - SECOND {
        assert_eq!(tagged(&caches[1], &origin, "short").await, 2);
        tokio::time::sleep(50 * MS).await;
    }
    eventually("it ends", || began.elapsed() > TTL + SECOND).await;
    assert_eq!(tagged(&caches[1], &origin, "short").await, 3);
    // And an invalidation ends both.
    caches[0].invalidate_tag("t").await;
    assert_eq!(tagged(&caches[0], &origin, "for ever").await, 4);
    assert_eq!(tagged(&caches[0], &origin, "short").await, 5);
}
