//! D8: what a failed computation leaves on the server ends with its lease.

use std::time::{Duration, Instant};

use tower_stampede::{Builder, Redis};

use crate::kit::origin::{Answer, MINUTE, MS, Origin, SECOND, settings, within};
use crate::kit::redis::{Server, eventually};
use crate::kit::redis_caches::*;

use super::{names, tagged};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_fail_leave_nothing_after_the_lease() {
    const LEASE: Duration = Duration::from_secs(2);
    let server = Server::start();
    let year: Builder<u64> = settings().ttl(365 * 24 * 3600 * SECOND).lease(LEASE);
    let redis = Redis::lazy(&server.url()).unwrap().namespace("stampede").op_timeout(SECOND / 2);
    let cache = year.redis(redis).build().unwrap();
    let origin = Origin::new();
    load(&cache, &origin, "lives for a year").await;
    origin.usually(Answer::Fail);
    for n in 0..20 {
        assert!(cache.get_or_compute(format!("failing-{n}"), origin.compute()).await.is_err());
    }
    // The server itself says when it ends. It says -2 of what is gone meanwhile, and -1 of what
    // has no end. The last lease is given up on a task of its own.
    let end_soon = || {
        let left = names(&server).into_iter().filter(|name| name.contains("failing-"));
        let most = (2 * LEASE + SECOND).as_millis() as i64;
        let mut left = left.map(|name| server.cli(&["PTTL", &name]).int());
        left.all(|left| left == -2 || (0..=most).contains(&left))
    };
    // Without that it would stay for a minute.
    within(20 * SECOND, eventually("what is left ends within two leases", end_soon)).await;
}

async fn is_stored(server: &Server, name: &str) {
    let is_there = || names(server).iter().any(|found| found.ends_with(name));
    eventually("it is stored", is_there).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_says_it_lasts_for_ever_changes_nothing_for_others() {
    const TTL: Duration = Duration::from_secs(5);
    let server = Server::start();
    let redis =
        || Redis::lazy(&server.url()).unwrap().namespace("stampede").op_timeout(30 * SECOND);
    let with = |builder: Builder<u64>| {
        let builder = builder.lease(100 * SECOND).wait_timeout(LIMIT);
        builder.redis(redis()).build().unwrap()
    };
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
    // Their lifetimes are their own. A read that has ended by then was before the end.
    loop {
        let read = tagged(&caches[1], &origin, "short").await;
        if began.elapsed() >= TTL - SECOND {
            break;
        }
        assert_eq!(read, 2);
        tokio::time::sleep(50 * MS).await;
    }
    eventually("it ends", || began.elapsed() > TTL + SECOND).await;
    let last = tagged(&caches[1], &origin, "short").await;
    assert!(last > 2, "it outlives its lifetime");
    // And an invalidation ends both.
    caches[0].invalidate_tag("t").await;
    assert!(tagged(&caches[0], &origin, "for ever").await > last);
    assert!(tagged(&caches[0], &origin, "short").await > last);
}
