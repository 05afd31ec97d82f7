//! The refresh lock and the plain one of other programs, in other languages,
//! exclude each other: `SET NX PX` with a token, compare-and-delete in Lua.

use tower_stampede::Redis;

use crate::kit;
use crate::kit::origin::{Origin, SECOND, settings};
use crate::kit::redis::{Reply, Resp, Server, eventually};
use crate::kit::redis_caches::*;
use crate::kit::spawn;

const COMPARE_AND_DELETE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

const COMPARE_AND_SET: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
     redis.call('set', KEYS[2], ARGV[2]) return redis.call('del', KEYS[1]) else return 0 end";

/// A program that knows nothing of us but the name of the lock.
struct Stranger {
    connection: Resp,
    token: String,
}

impl Stranger {
    fn new(server: &Server, token: &str) -> Self {
        Self { connection: server.connect().unwrap(), token: token.to_owned() }
    }

    fn locks(&mut self, key: &str) -> bool {
        let command = ["SET", &record(key, 'l'), &self.token, "NX", "PX", "60000"];
        !self.connection.call(&command).unwrap().is_nil()
    }

    fn unlocks(&mut self, key: &str) -> bool {
        let command = ["EVAL", COMPARE_AND_DELETE, "1", &record(key, 'l'), &self.token];
        self.connection.call(&command).unwrap() == Reply::Int(1)
    }

    fn writes_and_unlocks(&mut self, key: &str, value: &str) -> bool {
        let (lock, record) = (record(key, 'l'), record(key, 'v'));
        let command = ["EVAL", COMPARE_AND_SET, "2", &lock, &record, &self.token, value];
        self.connection.call(&command).unwrap() == Reply::Int(1)
    }
}

async fn start() -> (Server, Vec<Cache>, [Stranger; 2]) {
    let server = Server::start();
    let caches = processes(2, &server.url());
    all_listen(&caches).await;
    let strangers = [Stranger::new(&server, "one"), Stranger::new(&server, "another")];
    (server, caches, strangers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_stranger_has_the_lock_nobody_of_ours_computes() {
    let (server, caches, [mut one, mut other]) = start().await;
    assert!(one.locks("k"));
    assert!(!other.locks("k"));
    let gated = Gated::new();
    gated.open();
    let ours: Vec<_> = caches.iter().map(|cache| gated.ask(cache, "k")).collect();
    eventually("ours wait", || registered(&server, "k") == 2).await;
    // They have looked again, and more than once.
    eventually("they look again", || caches.iter().all(|cache| cache.stats().wakes_by_timer >= 2))
        .await;
    assert_eq!(gated.calls(), 0);
    assert!(!other.unlocks("k"), "not its own");
    assert!(one.unlocks("k"));
    for caller in ours {
        assert_eq!(answer(caller).await, 1);
    }
    assert_eq!(gated.calls(), 1, "then one of ours");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_one_of_ours_computes_no_stranger_gets_the_lock() {
    let (_server, caches, [mut one, mut other]) = start().await;
    let gated = Gated::new();
    let leader = gated.lead(&caches[0], "k").await;
    for stranger in [&mut one, &mut other] {
        assert!(!stranger.locks("k"));
        assert!(!stranger.unlocks("k"));
    }
    gated.open();
    assert_eq!(answer(leader).await, 1);
    eventually("the lock is free", || one.locks("k")).await;
    assert!(!other.locks("k"));
    assert!(one.unlocks("k"));
    assert!(other.locks("k"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_and_ours_take_turns_and_never_overlap() {
    let (server, caches, _) = start().await;
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let rounds = 20;
    let strangers: Vec<_> = ["one", "another"]
        .map(|token| {
            let (mut stranger, inside) = (Stranger::new(&server, token), inside.clone());
            tokio::task::spawn_blocking(move || {
                for _ in 0..rounds {
                    while !stranger.locks("k") {
                        std::thread::sleep(kit::origin::MS);
                    }
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    std::thread::sleep(2 * kit::origin::MS);
                    assert_eq!(inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst), 1);
                    assert!(stranger.unlocks("k"));
                    std::thread::sleep(2 * kit::origin::MS);
                }
            })
        })
        .into();
    let ours: Vec<_> = caches
        .iter()
        .map(|cache| {
            let (cache, inside) = (cache.clone(), inside.clone());
            spawn(async move {
                for _ in 0..rounds / 4 {
                    let inside = inside.clone();
                    let compute = move || async move {
                        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        tokio::time::sleep(2 * kit::origin::MS).await;
                        assert_eq!(inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst), 1);
                        // Over when it begins: the next round computes again.
                        let brief = tower_stampede::Computed::new(1).ttl(kit::origin::MS);
                        Ok::<_, kit::origin::OriginError>(brief)
                    };
                    cache.get_or_compute_with("k", compute).await.unwrap();
                }
            })
        })
        .collect();
    for ours in ours {
        kit::origin::within(LIMIT, ours).await.unwrap();
    }
    for stranger in strangers {
        kit::origin::within(LIMIT, stranger).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalidation_ends_a_strangers_lock() {
    let (_server, caches, [mut one, mut other]) = start().await;
    assert!(one.locks("k"));
    caches[0].invalidate("k").await;
    assert!(!one.writes_and_unlocks("k", "old data"), "what it read is out of date");
    assert!(other.locks("k"));
    assert!(other.unlocks("k"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_ends_a_strangers_lock() {
    let (_server, caches, [mut one, _]) = start().await;
    assert!(one.locks("k"));
    caches[0].put("k", 7).await;
    assert!(!one.writes_and_unlocks("k", "old data"));
    assert_eq!(load(&caches[1], &Origin::new(), "k").await, 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_stranger_wrote_ends_the_right_of_a_late_leader() {
    let (server, caches, [mut one, _]) = start().await;
    let gated = Gated::new();
    let leader = gated.lead(&caches[0], "k").await;
    // The lock is lost, and a stranger gets it and writes something of its own.
    server.cli(&["DEL", &record("k", 'l')]);
    assert!(one.locks("k"));
    assert!(one.writes_and_unlocks("k", "written by somebody who knows only the lock"));
    gated.open();
    assert_eq!(answer(leader).await, 1);
    eventually("its fill is refused", || caches[0].stats().refused_fills == 1).await;
    let text = server.cli(&["GET", &record("k", 'v')]).text();
    assert!(text.starts_with("written by"), "{text}");
    assert_eq!(load(&caches[1], &gated.origin, "k").await, 2, "unreadable, so computed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_without_an_end_fails_no_request() {
    let server = Server::start();
    let cache = |_| {
        let builder = settings().lease(2 * SECOND).compute_timeout(LIMIT).wait_timeout(LIMIT);
        let redis = Redis::lazy(&server.url()).unwrap().namespace("stampede");
        builder.redis(redis.op_timeout(SECOND / 2)).build().unwrap()
    };
    let caches: Vec<Cache> = (0..2).map(cache).collect();
    all_listen(&caches).await;
    server.cli(&["SET", &record("k", 'l'), "a program that was killed"]);
    let origin = Origin::new();
    for cache in &caches {
        let (_, took) = timed(cache, &origin, "k").await;
        assert!((2 * SECOND..LIMIT / 4).contains(&took), "{took:?}");
    }
    assert_eq!(origin.calls(), 2, "once in each process");
    assert!(!server.cli(&["GET", &record("k", 'l')]).is_nil(), "it is not ours to remove");
    caches[0].invalidate("k").await;
    let (_, took) = timed(&caches[0], &origin, "k").await;
    assert!(took < 2 * SECOND, "the invalidation has ended it: {took:?}");
}
