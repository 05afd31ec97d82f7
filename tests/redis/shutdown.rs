//! A process that ends right after its last computation.

use tokio::runtime::Runtime;

use crate::kit::origin::Origin;
use crate::kit::redis::Server;
use crate::kit::redis_caches::*;

#[test]
fn a_process_that_shuts_down_before_it_ends_leaves_its_last_value_and_no_lock() {
    let server = Server::start();
    let process_that_ends = Runtime::new().unwrap();
    process_that_ends.block_on(async {
        let (cache, gated) = (process(&server.url()), Gated::new());
        let leader = gated.lead(&cache, "k").await;
        // The caller has its answer while the fill is still under way.
        server.cli(&["CLIENT", "PAUSE", "2000", "WRITE"]);
        gated.open();
        assert_eq!(answer(leader).await, 1);
        assert_eq!(cache.shutdown(LIMIT).await, 0);
    });
    process_that_ends.shutdown_background();

    assert!(server.cli(&["GET", &record("k", 'l')]).is_nil(), "the lock is given back");
    Runtime::new().unwrap().block_on(async {
        let (next, origin) = (process(&server.url()), Origin::new());
        assert_eq!(load(&next, &origin, "k").await, 1);
        assert_eq!(origin.calls(), 0, "the next process reads the value");
    });
}
