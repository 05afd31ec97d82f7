//! The log of invalidations: a process reads it on a second runtime as on the
//! first, and however long it is.

use tokio::runtime::Runtime;
use tower_stampede::{Health, Redis, Stampede};

use crate::kit::origin::{MINUTE, MS, Origin, SECOND, settings, within};
use crate::kit::redis::{Server, eventually};

fn process(server: &Server) -> Stampede<u64> {
    settings().ttl(10 * MINUTE).redis(Redis::lazy(&server.url()).unwrap()).build().unwrap()
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
        tokio::time::sleep(300 * MS).await;
        other.invalidate("k").await;
        tokio::time::sleep(300 * MS).await;
        assert_eq!(one.get_or_compute("k", origin.compute()).await.unwrap(), 3);
    });
}

/// Invalidates so many tags, as other processes did over a day.
fn long_log(server: &Server, tags: usize) {
    let script = "local now = redis.call('time')[1] * 1000
        for i = 1, ARGV[1] do redis.call('zadd', KEYS[1], now - i, 'tag' .. i) end
        return redis.call('zcard', KEYS[1])";
    let count = tags.to_string();
    let reply = server.cli(&["EVAL", script, "1", "stampede:1:test:tags", &count]);
    assert_eq!(reply.int(), tags as i64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_takes_longer_to_read_than_other_calls_is_read() {
    let server = Server::start();
    long_log(&server, 100_000);
    let one = process(&server);
    let share = async {
        while server.cli(&["EXISTS", "stampede:1:test:{k}:v"]).int() == 0 {
            one.put("k", 1).await;
            tokio::time::sleep(500 * MS).await;
        }
    };
    within(20 * SECOND, share).await;
}
