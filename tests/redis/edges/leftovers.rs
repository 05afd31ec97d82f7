//! D8: what a failed computation leaves on the server ends with its lease.

use std::time::{Duration, Instant};

use tower_stampede::{Builder, Redis};

use crate::kit::origin::{Answer, Origin, SECOND, settings};
use crate::kit::redis::Server;
use crate::kit::redis_caches::*;

use super::names;

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
