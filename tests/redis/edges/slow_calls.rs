//! Slow replies do not open the breaker; silence does.

use tower_stampede::{Health, Redis};

use crate::kit::origin::{MS, Origin};
use crate::kit::redis::{Proxy, Server};
use crate::kit::redis_caches::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_slow_calls_at_once_do_not_open_the_breaker() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let redis = Redis::lazy(&proxy.url()).unwrap().op_timeout(100 * MS);
    let cache: Cache = patient().redis(redis).build().unwrap();
    all_listen(std::slice::from_ref(&cache)).await;
    let mut events = cache.events();
    proxy.delay(150 * MS);
    let origin = Origin::new();
    tokio::join!(
        load(&cache, &origin, fresh_key()),
        load(&cache, &origin, fresh_key()),
        load(&cache, &origin, fresh_key()),
    );
    let mut went_away = false;
    while let Ok(event) = events.try_recv() {
        went_away |= matches!(event, tower_stampede::Event::RemoteChanged { up: false, .. });
    }
    assert!(!went_away, "the server answers after 150 ms");
    assert_eq!(cache.health(), Health::Up);
}
