//! A subscriber that comes and goes does not cost the copies of a process.

use std::time::{Duration, Instant};

use crate::kit::origin::Origin;
use crate::kit::redis::{Proxy, Server, eventually};
use crate::kit::redis_caches::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flapping_subscriber_does_not_drop_local_copies() {
    const ENTRIES: usize = 20;
    const CUTS: usize = 5;
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let cache = hasty(&proxy.url());
    all_listen(std::slice::from_ref(&cache)).await;
    let origin = Origin::new();
    let keys: Vec<_> = (0..ENTRIES).map(|_| fresh_key()).collect();
    for key in &keys {
        load(&cache, &origin, &**key).await;
    }
    let (mut from_remote, accepted) = (0, proxy.accepted());
    for cut in 1..=CUTS {
        proxy.cut_subscribers();
        eventually("it subscribes again", || proxy.accepted() >= accepted + cut).await;
        all_are_well(std::slice::from_ref(&cache)).await;
        let (before, since) = (cache.stats().remote_calls, Instant::now());
        for key in &keys {
            load(&cache, &origin, &**key).await;
        }
        let asked = cache.stats().remote_calls - before;
        // The log is read once a second, however slow the machine is.
        from_remote += asked.saturating_sub(2 * since.elapsed().as_secs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(origin.calls(), ENTRIES);
    // A few calls of upkeep may fall into the time.
    let bound = (ENTRIES / 2) as u64;
    assert!(from_remote <= bound, "{from_remote} calls for {ENTRIES} copies and {CUTS} cuts");
}
