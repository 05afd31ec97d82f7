//! D6: processes that look whether a server is back must not wake each other.

use crate::kit::redis::Server;
use crate::kit::redis_caches::*;
use crate::kit::spawn;

use super::published;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_publishes_to_no_process() {
    let server = Server::start();
    let caches = hasty_ones(8, &server.url()).await;
    let before = published([&server]);
    let mut breakers: Vec<_> = caches.iter().map(Breaker::of).collect();
    server.freeze();
    for (cache, breaker) in caches.iter().zip(&mut breakers) {
        let looks = {
            let cache = cache.clone();
            spawn(async move {
                loop {
                    cache.get(fresh_key()).await;
                    // With the breaker open it answers at once.
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
            })
        };
        breaker.has_opened().await;
        looks.abort();
    }
    server.thaw();
    all_are_well(&caches).await;
    let messages = published([&server]) - before;
    assert_eq!(messages, 0, "messages by {} processes that came back", caches.len());
}
