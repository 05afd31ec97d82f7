//! D9: a slow server is not an absent one.

use crate::kit::origin::{MS, Origin, SECOND, settings};
use crate::kit::redis::{Proxy, Server, eventually};
use crate::kit::redis_caches::*;
use tokio::task::JoinSet;
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

#[tokio::test]
async fn a_process_that_starts_with_thousands_of_keys_shares_them_or_says_that_it_does_not() {
    const KEYS: u64 = 1000;
    let server = Server::start();
    let cache = process_with_places(&server, KEYS);
    let origin = Origin::new();
    let keys: JoinSet<_> = (0..KEYS)
        .map(|n| {
            let (cache, origin) = (cache.clone(), origin.clone());
            async move {
                // A slow build: the one thread is busy until all have asked.
                std::thread::sleep(MS);
                load(&cache, &origin, n).await
            }
        })
        .collect();
    keys.join_all().await;
    eventually("all flights have ended", || cache.stats().flights == 0).await;
    let stored = server.cli(&["KEYS", "*}:v"]).parts().len() as u64;
    let errors = cache.stats().remote_errors;
    println!("{stored} of {KEYS} are shared, {errors} errors");
    assert!(stored == KEYS || errors > 0, "{} are not shared", KEYS - stored);
}

fn process_with_places(server: &Server, places: u64) -> Cache {
    let places = usize::try_from(places).unwrap();
    let builder = settings().lease(5 * SECOND).max_computations(places);
    builder.redis(Redis::lazy(&server.url()).unwrap().namespace("stampede")).build().unwrap()
}
