//! Records that are lost, damaged, or foreign.

use tower_stampede::{Redis, Stampede};

use crate::kit;
use crate::kit::origin::{Origin, SECOND, settings};
use crate::kit::redis::{Proxy, Server, eventually};
use crate::kit::redis_caches::*;

/// A server, and processes of which the first computes "k" and all others
/// wait for it.
struct Computing {
    server: Server,
    caches: Vec<Cache>,
    /// Of the first.
    leading: Gated,
    leader: Request,
    /// Of the others, should they have to compute. Counts its own calls.
    own: Gated,
    waiters: Vec<Request>,
}

type Request = tokio::task::JoinHandle<Result<u64, tower_stampede::Error>>;

impl Computing {
    async fn start() -> Self {
        let server = Server::start();
        let caches = processes(4, &server.url());
        all_listen(&caches).await;
        let (leading, own) = (Gated::new(), Gated::new());
        own.origin.load().await.unwrap();
        let leader = leading.lead(&caches[0], "k").await;
        let waiters = caches[1..].iter().map(|cache| own.ask(cache, "k")).collect();
        eventually("they wait", || registered(&server, "k") == 3).await;
        Self { server, caches, leading, leader, own, waiters }
    }

    fn lose(&self, record_of: char) {
        let lost = self.server.cli(&["DEL", &record("k", record_of)]);
        assert_eq!(lost.int(), 1, "it was there");
    }

    /// Calls beside the leader's.
    fn more_calls(&self) -> usize {
        self.own.calls() - 1
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_in_mid_computation_costs_one_more_and_the_old_fill_is_refused() {
    let computing = Computing::start().await;
    computing.server.cli(&["FLUSHALL"]);
    eventually("one of them takes over", || computing.more_calls() == 1).await;
    eventually("the others wait for it", || registered(&computing.server, "k") == 2).await;
    computing.leading.open();
    let Computing { server, caches, leading, leader, own, waiters } = computing;
    assert_eq!(answer(leader).await, 1, "a leader's caller gets its result");
    eventually("its fill is refused", || caches[0].stats().refused_fills == 1).await;
    assert!(server.cli(&["GET", &record("k", 'v')]).is_nil());
    own.open();
    for waiter in waiters {
        assert_eq!(answer(waiter).await, 2, "the new leader's result");
    }
    assert_eq!((leading.calls(), own.calls()), (1, 2), "one more");
    assert_eq!(load(&caches[0], &leading.origin, "k").await, 2, "the old one is not kept");
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_lost_costs_at_most_one_more() {
    let computing = Computing::start().await;
    computing.lose('l');
    eventually("another is granted the lease", || computing.more_calls() == 1).await;
    computing.own.open();
    let Computing { server, caches, leading, leader, own, waiters } = computing;
    for waiter in waiters {
        assert_eq!(answer(waiter).await, 2);
    }
    leading.open();
    assert_eq!(answer(leader).await, 1);
    eventually("its fill is refused", || caches[0].stats().refused_fills == 1).await;
    assert_eq!((leading.calls(), own.calls()), (1, 2), "one more");
    for cache in &caches {
        assert_eq!(load(cache, &own.origin, "k").await, 2);
    }
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lock_is_taken_again_by_the_next_renewal() {
    let server = Server::start();
    let caches = hasty_ones(2, &server.url()).await;
    let gated = Gated::new();
    let leader = gated.lead(&caches[0], "k").await;
    let lock = record("k", 'l');
    let token = server.cli(&["GET", &lock]);
    server.cli(&["DEL", &lock]);
    eventually("it is renewed", || server.cli(&["GET", &lock]) == token).await;
    let waiter = gated.ask(&caches[1], "k");
    eventually("the other waits", || registered(&server, "k") == 1).await;
    gated.open();
    assert_eq!(answer(leader).await, 1);
    assert_eq!(answer(waiter).await, 1);
    assert_eq!(gated.calls(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_list_of_those_who_wait_costs_no_computation() {
    let computing = Computing::start().await;
    let timers = |caches: &[Cache]| caches.iter().map(|c| c.stats().wakes_by_timer).sum::<u64>();
    let before = timers(&computing.caches);
    computing.lose('r');
    computing.leading.open();
    let Computing { server, caches, leading, leader, own, waiters } = computing;
    for request in waiters.into_iter().chain([leader]) {
        assert_eq!(answer(request).await, 1);
    }
    assert_eq!((leading.calls(), own.calls()), (1, 1));
    assert!(timers(&caches) > before, "nobody could wake them");
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_wake_up_is_made_up_for_by_a_timer() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let caches = [process(&server.url()), process(&proxy.url())];
    all_listen(&caches).await;
    let gated = Gated::new();
    let leader = gated.lead(&caches[0], "k").await;
    let waiter = gated.ask(&caches[1], "k");
    eventually("it waits", || registered(&server, "k") == 1).await;
    proxy.mute_subscribers(true);
    gated.open();
    assert_eq!(answer(leader).await, 1);
    assert_eq!(answer(waiter).await, 1);
    assert_eq!(gated.calls(), 1);
    let stats = caches[1].stats();
    assert_eq!(stats.wakes_by_push, 0);
    assert!(stats.wakes_by_timer > 0);
    proxy.pass();
    assert_healed(&server, &caches).await;
}

/// What makes a value useless, by what is done to its record.
type Damage = (&'static str, fn(&Server, &str));

const DAMAGES: &[Damage] = &[
    ("empty", |server, v| _ = server.cli(&["SET", v, ""])),
    ("one byte", |server, v| _ = server.cli(&["SET", v, "x"])),
    ("foreign", |server, v| _ = server.cli(&["SET", v, "{\"a\": \"value of something else\"}"])),
    ("long and foreign", |server, v| _ = server.cli(&["SET", v, &"x".repeat(100_000)])),
    ("wrong magic", |server, v| _ = server.cli(&["SETRANGE", v, "0", "X"])),
    ("another format", |server, v| _ = server.cli(&["SETRANGE", v, "3", "\u{7f}"])),
    ("a flipped payload", |server, v| {
        let len = server.cli(&["STRLEN", v]).int();
        let at = (len - 1).to_string();
        let last = server.cli(&["GETRANGE", v, "-1", "-1"]).text();
        server.cli(&["SETRANGE", v, &at, if last == "x" { "y" } else { "x" }]);
    }),
    ("cut in the head", |server, v| cut(server, v, 30)),
    ("cut behind the version", |server, v| cut(server, v, 20)),
    ("cut in the version", |server, v| cut(server, v, 9)),
    ("one byte short", |server, v| cut(server, v, server.cli(&["STRLEN", v]).int() - 1)),
    ("one byte longer", |server, v| _ = server.cli(&["APPEND", v, "x"])),
    ("a version near 2^53", |server, v| {
        server.cli(&["SETRANGE", v, "4", "9007199254740993"]);
        server.cli(&["APPEND", v, "x"]);
    }),
    ("a version of nines", |server, v| {
        server.cli(&["SETRANGE", v, "4", "9999999999999999"]);
        server.cli(&["APPEND", v, "x"]);
    }),
    ("no digits for a version", |server, v| {
        server.cli(&["SETRANGE", v, "4", "-00000000000001x"]);
        server.cli(&["APPEND", v, "x"]);
    }),
    ("a list", |server, v| other_type(server, &["RPUSH", v, "x"])),
    ("a hash", |server, v| other_type(server, &["HSET", v, "t", "x"])),
    ("a set", |server, v| other_type(server, &["SADD", v, "x"])),
    ("a stream", |server, v| other_type(server, &["XADD", v, "*", "a", "b"])),
];

fn cut(server: &Server, name: &str, len: i64) {
    let whole = server.cli(&["GETRANGE", name, "0", &(len - 1).to_string()]);
    let kit::redis::Reply::Bulk(bytes) = whole else { panic!("no string") };
    server.cli(&[b"SET", name.as_bytes(), &bytes]);
}

fn other_type(server: &Server, command: &[&str]) {
    server.cli(&["DEL", command[1]]);
    assert!(!server.cli(command).is_error());
}

async fn filled(server: &Server, key: &str) {
    let value = record(key, 'v');
    eventually("it is filled", || !server.cli(&["GET", &value]).is_nil()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_value_is_a_miss_and_is_replaced_by_one_computation() {
    let server = Server::start();
    let writer = process(&server.url());
    let readers = processes(3, &server.url());
    let last = process(&server.url());
    for (what, damage) in DAMAGES {
        let (key, origin) = (fresh_key(), Origin::new());
        load(&writer, &origin, &*key).await;
        filled(&server, &key).await;
        damage(&server, &record(&key, 'v'));
        let damaged = || readers.iter().map(|cache| cache.stats().damaged).sum::<u64>();
        let before = damaged();
        let answers = herd(&readers, 10, &origin, &key).await;
        assert!(answers.iter().all(|answer| *answer == 2), "{what}: {answers:?}");
        assert_eq!(origin.calls(), 2, "{what}: one computes anew");
        assert!(damaged() > before, "{what}: it is counted");
        eventually("it is replaced", || {
            server.cli(&["TYPE", &record(&key, 'v')]).text() == "string"
        })
        .await;
        assert_eq!(load(&last, &origin, &*key).await, 2, "{what}: the fill replaced it");
        assert_eq!(origin.calls(), 2, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_of_another_key_is_a_miss() {
    let server = Server::start();
    let (writer, reader) = (process(&server.url()), process(&server.url()));
    let (other, origin) = (Origin::new(), Origin::new());
    load(&writer, &other, "theirs").await;
    filled(&server, "theirs").await;
    origin.load().await.unwrap();
    server.cli(&["COPY", &record("theirs", 'v'), &record("ours", 'v')]);
    assert_eq!(load(&reader, &origin, "ours").await, 2);
    assert_eq!(reader.stats().damaged, 1);
    assert_eq!(load(&reader, &origin, "theirs").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_of_another_schema_is_a_miss_and_is_replaced() {
    let server = Server::start();
    let redis =
        || Redis::lazy(&server.url()).unwrap().namespace("stampede").op_timeout(30 * SECOND);
    let (old, origin) = (process(&server.url()), Origin::new());
    let new = patient().schema(2).redis(redis()).build().unwrap();
    load(&old, &origin, "k").await;
    filled(&server, "k").await;
    assert_eq!(load(&new, &origin, "k").await, 2);
    let another = patient().schema(2).redis(redis()).build().unwrap();
    eventually("it is replaced", || new.stats().flights == 0).await;
    assert_eq!(load(&another, &origin, "k").await, 2);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_over_the_bound_stays_in_its_process_and_is_not_read() {
    let server = Server::start();
    let cache = |max: usize| -> Stampede<String> {
        let redis =
            Redis::lazy(&server.url()).unwrap().namespace("stampede").op_timeout(30 * SECOND);
        let builder = settings().lease(100 * SECOND).wait_timeout(LIMIT);
        builder.redis(redis.max_value_bytes(max)).build().unwrap()
    };
    let (small, large, other) = (cache(1000), cache(1_000_000), cache(1000));
    for cache in [&small, &large, &other] {
        assert_eq!(cache.get("nothing is here").await, None);
        eventually("it listens", || cache.health() == tower_stampede::Health::Up).await;
    }
    let origin = Origin::new();
    let ask = async |cache: &Stampede<String>| {
        let origin = origin.clone();
        let compute =
            move || async move { origin.load().await.map(|n| format!("{n}{}", "x".repeat(5000))) };
        cache.get_or_compute("k", compute).await.unwrap()[..1].to_owned()
    };
    assert_eq!(ask(&small).await, "1");
    eventually("the lease is given up", || server.cli(&["GET", &record("k", 'l')]).is_nil()).await;
    let kept = server.cli(&["STRLEN", &record("k", 'v')]).int();
    assert!((1..1000).contains(&kept), "a marker of {kept} bytes, and no value");
    assert_eq!(ask(&small).await, "1", "kept in the process");

    assert_eq!(ask(&large).await, "2");
    // The marker is there already.
    let stored = || server.cli(&["STRLEN", &record("k", 'v')]).int();
    eventually("the large value is stored", || stored() > 5000).await;
    assert_eq!(ask(&other).await, "3", "too large to read");
    assert_eq!(other.stats().damaged, 1);
    assert_eq!(ask(&other).await, "3");
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_records_beside_a_value_do_not_stop_fills() {
    let server = Server::start();
    let caches = processes(2, &server.url());
    all_listen(&caches).await;
    for command in [["SET", "r", "x"], ["RPUSH", "r", "x"], ["SADD", "r", "x"]] {
        let (key, origin) = (fresh_key(), Origin::new());
        server.cli(&[command[0], &record(&key, 'r'), command[2]]);
        herd(&caches, 10, &origin, &key).await;
        assert_eq!(origin.calls(), 1, "{} as the right to fill", command[0]);
    }
    server.cli(&["SET", LOG, "x"]);
    caches[0].invalidate_tag("t").await;
    server.cli(&["DEL", LOG]);
    assert_healed(&server, &caches).await;
}
