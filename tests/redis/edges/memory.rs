//! A server without memory still takes invalidations.

use crate::kit::origin::Origin;
use crate::kit::redis::{Server, eventually};
use crate::kit::redis_caches::*;

use super::{names, tagged};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_memory_takes_invalidations() {
    let server = Server::configured(&["maxmemory-policy noeviction"]);
    let caches = hasty_ones(2, &server.url()).await;
    let origin = Origin::new();
    for cache in &caches {
        assert_eq!(tagged(cache, &origin, "the-entry").await, 1);
    }
    eventually("the entry is stored", || {
        names(&server).iter().any(|name| name.contains("the-entry"))
    })
    .await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    caches[0].invalidate_tag("t").await;
    let new = hasty(&server.url());
    assert_ne!(tagged(&new, &origin, "the-entry").await, 1, "a new process serves the old value");
    let mut served = 1;
    eventually("the other process has heard of it", || {
        served = futures_util::FutureExt::now_or_never(caches[1].get("the-entry"))
            .flatten()
            .unwrap_or(0);
        served != 1
    })
    .await;
}
