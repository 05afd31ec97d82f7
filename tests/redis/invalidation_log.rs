//! The log of invalidations: a process reads it on a second runtime as on the
//! first.

use tokio::runtime::Runtime;
use tower_stampede::{Health, Redis, Stampede};

use crate::kit::origin::{MINUTE, MS, Origin, SECOND, settings, within};
use crate::kit::redis::{Server, eventually};

fn process(server: &Server) -> Stampede<u64> {
    let redis = Redis::lazy(&server.url()).unwrap().namespace("stampede").op_timeout(30 * SECOND);
    let builder = settings().ttl(60 * MINUTE).lease(100 * SECOND).wait_timeout(3 * MINUTE);
    builder.redis(redis).build().unwrap()
}

#[test]
fn invalidations_are_heard_of_on_the_next_runtime_as_well() {
    let (server, origin) = (Server::start(), Origin::new());
    let (one, other) = (process(&server), process(&server));
    let first = Runtime::new().unwrap();
    first.block_on(async {
        assert_eq!(one.get_or_compute("k", origin.compute()).await.unwrap(), 1);
        eventually("it listens", || one.health() == Health::Up).await;
    });
    drop(first);
    Runtime::new().unwrap().block_on(async {
        other.invalidate("k").await;
        assert_eq!(one.get_or_compute("k", origin.compute()).await.unwrap(), 2);
        // And from now on while it runs.
        eventually("it listens", || one.health() == Health::Up).await;
        other.invalidate("k").await;
        let is_new = async {
            while one.get_or_compute("k", origin.compute()).await.unwrap() == 2 {
                tokio::time::sleep(MS).await;
            }
        };
        within(3 * MINUTE, is_new).await;
        assert_eq!(origin.calls(), 3);
    });
}
