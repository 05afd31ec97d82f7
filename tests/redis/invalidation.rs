//! Invalidation across processes: by key, by tag, of everything; during
//! computations, and while Redis is away.

use std::time::Instant;

use tower_stampede::{Announcement, Computed, Health, Redis};

use crate::kit;
use crate::kit::origin::{MINUTE, Origin, SECOND};
use crate::kit::redis::{Proxy, Server, eventually};
use crate::kit::redis_caches::*;
use crate::kit::spawn;

/// What is done to every value in these tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Key,
    Tag,
    All,
}

const EVERY: [How; 3] = [How::Key, How::Tag, How::All];

impl How {
    async fn invalidate(self, cache: &Cache, key: &str) -> Announcement {
        let done = match self {
            Self::Key => cache.invalidate(key).await,
            Self::Tag => cache.invalidate_tag(tag(key)).await,
            Self::All => cache.invalidate_all().await,
        };
        done.remote
    }
}

fn tag(key: &str) -> String {
    format!("tag of {key}")
}

/// A request whose value carries the key's tag.
async fn load_tagged(cache: &Cache, origin: &Origin, key: &str) -> u64 {
    let (loading, tag) = (origin.clone(), tag(key));
    let compute = move || async move { loading.load().await.map(|n| Computed::new(n).tag(tag)) };
    let answer = kit::origin::within(LIMIT, cache.get_or_compute_with(key, compute)).await;
    answer.expect("no request fails because of Redis")
}

/// Waits until a process serves another value than the first, and returns that.
async fn newer_than_1(cache: &Cache, origin: &Origin, key: &str) -> u64 {
    let newer = async {
        loop {
            match load_tagged(cache, origin, key).await {
                1 => tokio::task::yield_now().await,
                newer => return newer,
            }
        }
    };
    kit::origin::within(LIMIT, newer).await
}

async fn listening(n: usize, server: &Server) -> Vec<Cache> {
    let caches = processes(n, &server.url());
    all_listen(&caches).await;
    caches
}

async fn is_filled(server: &Server, key: &str) {
    let value = record(key, 'v');
    eventually("it is filled", || !server.cli(&["GET", &value]).is_nil()).await;
}

/// Time in the log has milliseconds: what starts in the same one as an
/// invalidation is dead. Waits until the server's clock has moved on.
async fn a_millisecond_later(server: &Server) {
    let now = || {
        server
            .cli(&[
                "EVAL",
                "local t = redis.call('time') return t[1] * 1000 + math.floor(t[2] / 1000)",
                "0",
            ])
            .int()
    };
    let then = now();
    eventually("time passes", || now() > then).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_process_invalidates_no_process_serves_once_it_has_heard() {
    let server = Server::start();
    let caches = listening(4, &server).await;
    for how in EVERY {
        let (key, origin) = (fresh_key(), Origin::new());
        for cache in &caches {
            assert_eq!(load_tagged(cache, &origin, &key).await, 1);
            is_filled(&server, &key).await;
        }
        a_millisecond_later(&server).await;
        assert_eq!(how.invalidate(&caches[0], &key).await, Announcement::Done);
        a_millisecond_later(&server).await;
        assert_eq!(load_tagged(&caches[0], &origin, &key).await, 2, "{how:?}: at once here");
        is_filled(&server, &key).await;
        for cache in &caches[1..] {
            // A process that has not heard yet serves what it holds.
            assert_eq!(newer_than_1(cache, &origin, &key).await, 2, "{how:?}");
        }
        assert_eq!(origin.calls(), 2, "{how:?}: computed once for all");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalidation_during_a_computation_keeps_its_result_from_later_callers() {
    let server = Server::start();
    let caches = listening(3, &server).await;
    for how in EVERY {
        // By the process that computes, by one that waits, by a third.
        for by in 0..3 {
            let (key, origin) = (fresh_key(), Origin::new());
            let old = Tagged::new(&origin);
            let leader = old.ask(&caches[0], &key);
            eventually("it computes", || origin.calls() == 1).await;
            a_millisecond_later(&server).await;
            how.invalidate(&caches[by], &key).await;
            a_millisecond_later(&server).await;
            let (cache, asked, of) = (caches[by].clone(), origin.clone(), key.clone());
            let newer = spawn(async move { load_tagged(&cache, &asked, &of).await });
            if how == How::Key {
                // The lease has ended: no caller waits for the old computation.
                eventually("it is computed anew", || origin.calls() == 2).await;
            }
            old.open();
            assert_eq!(leader.await.unwrap(), 1, "its own caller gets its result");
            assert!(newer.await.unwrap() >= 2, "{how:?} by {by}: asked later");
            let fresh = process(&server.url());
            let now = load_tagged(&fresh, &origin, &key).await;
            assert!(now >= 2, "{how:?} by {by}: the old result is served");
            for cache in &caches {
                newer_than_1(cache, &origin, &key).await;
            }
        }
    }
}

/// A computation of a tagged value behind a door.
struct Tagged {
    origin: Origin,
    open: tokio::sync::watch::Sender<bool>,
}

impl Tagged {
    fn new(origin: &Origin) -> Self {
        Self { origin: origin.clone(), open: tokio::sync::watch::Sender::new(false) }
    }

    fn open(&self) {
        self.open.send_replace(true);
    }

    fn ask(&self, cache: &Cache, key: &str) -> tokio::task::JoinHandle<u64> {
        let (cache, key, tag) = (cache.clone(), key.to_owned(), tag(key));
        let (origin, mut open) = (self.origin.clone(), self.open.subscribe());
        spawn(async move {
            let compute = move || {
                let loading = origin.load();
                async move {
                    open.wait_for(|open| *open).await.expect("the door is there");
                    loading.await.map(|n| Computed::new(n).tag(tag))
                }
            };
            kit::origin::within(LIMIT, cache.get_or_compute_with(&*key, compute)).await.unwrap()
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_reaches_every_process() {
    let server = Server::start();
    let caches = listening(3, &server).await;
    let origin = Origin::new();
    for cache in &caches {
        assert_eq!(load(cache, &origin, "k").await, 1);
    }
    caches[0].put("k", 77).await;
    assert_eq!(load(&caches[0], &origin, "k").await, 77);
    for cache in &caches[1..] {
        assert_eq!(newer_than_1(cache, &origin, "k").await, 77);
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_invalidated_while_redis_is_away_does_not_come_back_with_it() {
    for how in EVERY {
        let server = Server::start();
        let caches = hasty_ones(2, &server.url()).await;
        let (key, origin) = (fresh_key(), Origin::new());
        for cache in &caches {
            assert_eq!(load_tagged(cache, &origin, &key).await, 1);
            is_filled(&server, &key).await;
        }
        a_millisecond_later(&server).await;
        // Frozen: the old value is still there afterwards.
        server.freeze();
        assert_eq!(how.invalidate(&caches[0], &key).await, Announcement::Queued, "{how:?}");
        assert_eq!(caches[0].health(), Health::Degraded);
        let newer = load_tagged(&caches[0], &origin, &key).await;
        assert!(newer >= 2, "{how:?}: the old value while Redis is away");
        assert_eq!(load_tagged(&caches[1], &origin, &key).await, 1, "it cannot have heard");
        server.thaw();
        for _ in 0..50 {
            let seen = load_tagged(&caches[0], &origin, &key).await;
            assert!(seen >= 2, "{how:?}: the old value came back");
            tokio::time::sleep(kit::origin::MS).await;
        }
        all_are_well(&caches).await;
        let seen = load_tagged(&caches[0], &origin, &key).await;
        assert!(seen >= 2, "{how:?}: the old value came back");
        eventually("the other process hears of it", || {
            caches[1].health() == Health::Up && caches[0].health() == Health::Up
        })
        .await;
        newer_than_1(&caches[1], &origin, &key).await;
        let fresh = hasty(&server.url());
        assert!(load_tagged(&fresh, &origin, &key).await >= 2, "{how:?}: for a new process");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_was_marked_is_stale_in_all_processes_and_in_those_that_start_later() {
    let server = Server::start();
    let stale = || {
        let redis = Redis::lazy(&server.url()).unwrap().namespace("stampede").op_timeout(LIMIT);
        patient()
            .lease(LIMIT * 4)
            .wait_timeout(LIMIT * 8)
            .stale_for(60 * MINUTE)
            .redis(redis)
            .build()
            .unwrap()
    };
    let mut caches = vec![stale(), stale()];
    all_listen(&caches).await;
    let (key, origin) = (fresh_key(), Origin::new());
    for cache in &caches {
        assert_eq!(load(cache, &origin, &key).await, 1);
        is_filled(&server, &key).await;
    }
    assert_eq!(caches[0].mark_stale(&key).await.remote, Announcement::Done);
    let is_fresh = |cache: &Cache| cache.lookup(&key).is_some_and(|it| !it.ttl_left.is_zero());
    assert!(!is_fresh(&caches[0]));
    eventually("the other process hears of it", || !is_fresh(&caches[1])).await;
    caches.push(stale());
    assert_eq!(load(&caches[2], &origin, &key).await, 1, "served stale");
    for cache in &caches {
        while load(cache, &origin, &key).await == 1 {
            tokio::time::sleep(kit::origin::MS).await;
        }
        assert!(is_fresh(cache));
    }
    assert_eq!(origin.calls(), 2);
    caches.push(stale());
    assert_eq!(load(&caches[3], &origin, &key).await, 2);
    assert!(is_fresh(&caches[3]));
}

/// One process beside a proxy, and one behind it, that holds "k".
async fn one_is_deaf() -> (Server, Proxy, [Cache; 2], Origin) {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let caches = [process(&server.url()), process(&proxy.url())];
    all_listen(&caches).await;
    let origin = Origin::new();
    for cache in &caches {
        assert_eq!(load_tagged(cache, &origin, "k").await, 1);
        is_filled(&server, "k").await;
    }
    a_millisecond_later(&server).await;
    (server, proxy, caches, origin)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_hears_nothing_uses_its_copies_no_longer_than_the_local_ttl() {
    for how in EVERY {
        let (server, proxy, caches, origin) = one_is_deaf().await;
        proxy.block_subscribers(true);
        eventually("it hears nothing", || caches[1].health() == Health::Degraded).await;
        how.invalidate(&caches[0], "k").await;
        a_millisecond_later(&server).await;
        let start = Instant::now();
        while load_tagged(&caches[1], &origin, "k").await == 1 {
            assert!(start.elapsed() < 60 * SECOND, "{how:?}: sixty times the local ttl");
            tokio::time::sleep(kit::origin::MS).await;
        }
        assert_eq!(origin.calls(), 2, "{how:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_missed_between_two_subscriptions_is_dropped_after_the_second() {
    for how in EVERY {
        let (server, proxy, caches, origin) = one_is_deaf().await;
        // Nothing arrives, and no process notices, until the connection is cut.
        proxy.mute_subscribers(true);
        how.invalidate(&caches[0], "k").await;
        a_millisecond_later(&server).await;
        assert_eq!(load_tagged(&caches[1], &origin, "k").await, 1, "{how:?}: it cannot know");
        proxy.pass();
        proxy.cut_subscribers();
        let start = Instant::now();
        while load_tagged(&caches[1], &origin, "k").await == 1 {
            assert!(start.elapsed() < LIMIT, "{how:?}: the old copy stays");
            tokio::time::sleep(kit::origin::MS).await;
        }
        assert_eq!(origin.calls(), 2, "{how:?}");
    }
}

/// Waits until every process has the value.
async fn eventually_all(caches: &[Cache], origin: &Origin, key: &str, value: u64) {
    let start = Instant::now();
    for cache in caches {
        while load_tagged(cache, origin, key).await != value {
            assert!(start.elapsed() < LIMIT, "the old copy stays");
            tokio::time::sleep(kit::origin::MS).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_invalidated_before_the_log_was_lost_is_dead_to_a_new_process() {
    let server = Server::start();
    let caches = listening(2, &server).await;
    let (key, origin) = (fresh_key(), Origin::new());
    load_tagged(&caches[0], &origin, &key).await;
    is_filled(&server, &key).await;
    How::Tag.invalidate(&caches[0], &key).await;
    server.cli(&["DEL", LOG]);
    let fresh = process(&server.url());
    assert_eq!(load_tagged(&fresh, &origin, &key).await, 2, "V is there, and dead");
    is_filled(&server, &key).await;
    eventually_all(&caches, &origin, &key, 2).await;
    assert_eq!(origin.calls(), 2, "one computation for all");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_empty_server_begins_a_new_log_and_everything_is_well() {
    let server = Server::start();
    let caches = hasty_ones(2, &server.url()).await;
    let (key, origin) = (fresh_key(), Origin::new());
    load_tagged(&caches[0], &origin, &key).await;
    How::All.invalidate(&caches[0], &key).await;
    server.restart();
    eventually("there is a log again", || {
        server.try_cli(&["EXISTS", LOG]).is_ok_and(|found| found.int() == 1)
    })
    .await;
    assert_healed(&server, &caches).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_and_caches_of_other_names_do_not_see_each_other() {
    let server = Server::start();
    let redis =
        || Redis::lazy(&server.url()).unwrap().namespace("stampede").op_timeout(30 * SECOND);
    let build = |name: &str, redis: Redis| -> Cache {
        let builder = Cache::builder(name).ttl(60 * kit::origin::MINUTE).jitter(0.0);
        builder.lease(100 * SECOND).wait_timeout(LIMIT).redis(redis).build().unwrap()
    };
    let strangers = [
        build("a", redis()),
        build("b", redis()),
        build("a", redis().namespace("shop")),
        build("b", redis().namespace("shop")),
    ];
    let sibling = build("a", redis());
    all_listen(&strangers).await;
    all_listen(std::slice::from_ref(&sibling)).await;
    let origins: Vec<_> = strangers.iter().map(|_| Origin::new()).collect();
    for (cache, origin) in strangers.iter().zip(&origins) {
        assert_eq!(load_tagged(cache, origin, "k").await, 1);
        assert_eq!(origin.calls(), 1, "nobody else's value");
    }
    eventually("a's is filled", || !server.cli(&["GET", "stampede:2:a:{k}:v"]).is_nil()).await;
    assert_eq!(load_tagged(&sibling, &origins[0], "k").await, 1);
    assert_eq!(origins[0].calls(), 1, "the same cache in another process");
    a_millisecond_later(&server).await;
    for how in EVERY {
        how.invalidate(&strangers[0], "k").await;
    }
    eventually("the sibling has heard", || {
        sibling.stats().entries == 0 || sibling.stats().invalidations > 0
    })
    .await;
    for (cache, origin) in strangers[1..].iter().zip(&origins[1..]) {
        assert_eq!(load_tagged(cache, origin, "k").await, 1);
        assert_eq!(origin.calls(), 1, "another cache's invalidation");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_process_marks_stale_is_stale_in_all_and_for_those_that_come_later() {
    let (server, origin) = (Server::start(), Origin::new());
    let caches = listening(2, &server).await;
    for cache in &caches {
        assert_eq!(load_tagged(cache, &origin, "k").await, 1);
        is_filled(&server, "k").await;
    }
    a_millisecond_later(&server).await;
    assert_eq!(caches[0].mark_tag_stale(tag("k")).await.remote, Announcement::Done);
    let later = listening(1, &server).await;
    load_tagged(&later[0], &origin, "k").await;
    for cache in caches.iter().chain(&later) {
        // Fresh nowhere: stale, or refreshed already.
        let is_marked = || match cache.lookup("k") {
            Some(info) => info.ttl_left.is_zero() || origin.calls() > 1,
            None => true,
        };
        eventually("it is stale", is_marked).await;
    }
    assert_eq!(load_tagged(&caches[1], &origin, "k").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_tags_in_one_call_are_told_in_scripts_of_bounded_size() {
    const TAGS: usize = 20_000;
    let server = Server::start();
    let caches = listening(2, &server).await;
    let origin = Origin::new();
    assert_eq!(load_tagged(&caches[1], &origin, "k").await, 1);
    server.cli(&["CONFIG", "SET", "slowlog-log-slower-than", "10000"]);
    let told = spawn({
        let cache = caches[0].clone();
        let tags = (1..TAGS).map(|n| n.to_string()).chain([tag("k")]);
        async move { cache.invalidate_tags(tags).await.remote }
    });
    // Other callers of the process wait for it meanwhile, and do not hand it to the journal.
    for n in 0..20_u64 {
        load(&caches[0], &origin, n).await;
    }
    assert_eq!(told.await.unwrap(), Announcement::Done);
    newer_than_1(&caches[1], &origin, "k").await;
    assert_eq!(server.cli(&["ZCARD", LOG]), kit::redis::Reply::Int(TAGS as i64 + 1));
    let slow = server.cli(&["SLOWLOG", "GET", "100"]);
    let micros = |entry: &kit::redis::Reply| match entry.parts()[2] {
        kit::redis::Reply::Int(micros) => micros,
        _ => panic!("{entry:?}"),
    };
    let slowest = slow.parts().iter().map(micros).max().unwrap_or_default();
    println!("slowest command: {slowest} µs");
    assert!(slowest < 500_000, "{slowest} µs");
}
