//! D9: a slow server is not an absent one.

use crate::kit::origin::{MS, Origin};
use crate::kit::redis::{Proxy, Server};
use crate::kit::redis_caches::*;
use tower_stampede::Redis;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_start_together_on_a_slow_server_share_a_computation() {
    const PROCESSES: usize = 100;
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    proxy.delay(500 * MS);
    let redis = || Redis::lazy(&proxy.url()).unwrap().namespace("stampede").op_timeout(500 * MS);
    let caches: Vec<Cache> =
        (0..PROCESSES).map(|_| patient().redis(redis()).build().unwrap()).collect();
    let origin = Origin::taking(200 * MS);
    herd(&caches, 1, &origin, "cold").await;
    let calls = origin.calls();
    assert!(calls <= 10, "{calls} computations in {PROCESSES} processes");
}
