//! The lock alone, against a real server.

use std::time::{Duration, Instant};

use tower_stampede::remote::RemoteErrorKind;
use tower_stampede::{Redis, RedisLock, RedisLockGuard};

use crate::kit::redis::{Proxy, Server, eventually};
use crate::kit::spawn;

/// Longer than any of these tests waits.
const LEASE: Duration = Duration::from_secs(600);
/// How long anything may take that must happen, on a busy machine: much less than a lease.
const SOON: Duration = Duration::from_secs(120);
/// How long a call may take.
const OP_TIMEOUT: Duration = Duration::from_secs(30);

/// A lock that lasts for as long as it is told to, on a handle of its own.
fn lock(server: &Server) -> RedisLock {
    let redis = Redis::lazy(&server.url()).unwrap().namespace("stampede").op_timeout(OP_TIMEOUT);
    RedisLock::new(&redis, "orders:42").unwrap().lease(LEASE).auto_extend(false)
}

async fn taken(lock: &RedisLock) -> RedisLockGuard {
    lock.try_acquire().await.unwrap().expect("nobody has it")
}

#[tokio::test]
async fn one_holder_at_a_time() {
    let server = Server::start();
    let (here, there) = (lock(&server), lock(&server));
    let guard = taken(&here).await;
    assert!(!guard.is_lost());
    assert!(there.try_acquire().await.unwrap().is_none());
    assert!(here.clone().try_acquire().await.unwrap().is_none(), "nor the same lock twice");
    assert!(guard.release().await.unwrap());
    taken(&there).await.release().await.unwrap();
}

#[tokio::test]
async fn the_name_is_the_key_and_other_languages_can_hold_it() {
    let server = Server::start();
    let lock = lock(&server);
    let guard = taken(&lock).await;
    assert_eq!(server.tell("SET orders:42 uuid NX PX 10000"), "$-1");
    let left: u64 = server.tell("PTTL orders:42")[1..].parse().unwrap();
    assert!(left > 300_000 && left <= 600_000, "{left}");
    guard.release().await.unwrap();
    assert_eq!(server.tell("SET orders:42 uuid NX PX 10000"), "+OK");
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert_eq!(server.tell("DEL orders:42"), ":1");
    assert_eq!(server.tell("LPUSH orders:42 x"), ":1");
    assert!(lock.try_acquire().await.unwrap().is_none(), "whatever it is, it is not ours");
}

#[tokio::test]
async fn a_dropped_guard_gives_the_lock_back() {
    let server = Server::start();
    let lock = lock(&server);
    drop(taken(&lock).await);
    eventually("given back", || server.tell("EXISTS orders:42") == ":0").await;
}

#[test]
fn a_guard_dropped_outside_a_runtime_gives_the_lock_back_or_leaves_it_to_the_lease() {
    let server = Server::start();
    let lock = lock(&server);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    drop(runtime.block_on(taken(&lock)));
    runtime.block_on(eventually("given back", || server.tell("EXISTS orders:42") == ":0"));
    let guard = runtime.block_on(taken(&lock));
    drop(runtime);
    drop(guard);
    assert_eq!(server.tell("EXISTS orders:42"), ":1");
}

#[tokio::test]
async fn a_lock_that_was_lost_is_neither_extended_nor_taken_from_the_next() {
    let server = Server::start();
    let guard = taken(&lock(&server)).await;
    server.tell("DEL orders:42");
    server.tell("SET orders:42 next PX 10000");
    assert!(!guard.is_lost(), "nothing told us");
    assert!(!guard.extend(LEASE).await.unwrap());
    assert!(guard.is_lost());
    assert!(!guard.release().await.unwrap());
    assert_eq!(server.tell("EXISTS orders:42"), ":1");
}

#[tokio::test]
async fn a_lease_is_over_when_it_is_over() {
    let server = Server::start();
    let guard = taken(&lock(&server).lease(Duration::from_millis(50))).await;
    eventually("lost", || guard.is_lost()).await;
    eventually("over", || server.tell("EXISTS orders:42") == ":0").await;
    assert!(!guard.extend(LEASE).await.unwrap());
}

#[tokio::test]
async fn extending_never_shortens() {
    let server = Server::start();
    let guard = taken(&lock(&server)).await;
    assert!(guard.extend(2 * LEASE).await.unwrap());
    assert!(guard.extend(Duration::from_millis(1)).await.unwrap());
    let left: u64 = server.tell("PTTL orders:42")[1..].parse().unwrap();
    assert!(left > 600_000, "{left}: longer than the first lease");
    assert!(guard.extend(Duration::MAX).await.unwrap());
    assert!(!guard.is_lost());
}

#[tokio::test]
async fn a_living_guard_extends_itself_and_a_dead_one_does_not() {
    let server = Server::start();
    // Extended each two seconds: a pause of four is no loss.
    let short = lock(&server).lease(Duration::from_secs(6)).auto_extend(true);
    let guard = taken(&short).await;
    let (mut last, mut rises) = (0, 0);
    eventually("prolonged, again and again", || {
        let left: u32 = server.tell("PTTL orders:42")[1..].parse().expect("still there");
        rises += u32::from(left > last);
        last = left;
        rises == 3
    })
    .await;
    assert!(!guard.is_lost());

    server.tell("SET orders:42 next");
    eventually("noticed", || guard.is_lost()).await;
    drop(guard);
    assert_eq!(server.tell("PTTL orders:42"), ":-1", "another's is left alone");
}

#[tokio::test]
async fn who_waits_gets_the_lock_or_nothing() {
    let server = Server::start();
    let lock = lock(&server);
    let guard = taken(&lock).await;
    assert!(lock.acquire(Duration::from_millis(60)).await.unwrap().is_none());
    assert!(lock.acquire(Duration::ZERO).await.unwrap().is_none());
    let waiting = spawn({
        let lock = lock.clone();
        async move { lock.acquire(SOON).await.unwrap().expect("in time") }
    });
    guard.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
}

/// The record beside the lock.
const RECORD: &str = "{orders:42}:stampede-lock";

async fn is_registered(server: &Server) {
    // Number, token, length of the lease, and the process that waits.
    eventually("registered", || server.tell(&format!("HLEN {RECORD}")) == ":4").await;
}

fn waiting(lock: RedisLock) -> tokio::task::JoinHandle<RedisLockGuard> {
    spawn(async move { lock.acquire(2 * SOON).await.unwrap().expect("in time") })
}

#[tokio::test]
async fn who_waits_is_told_of_the_release_and_does_not_poll() {
    let server = Server::start();
    let (here, there) = (lock(&server), lock(&server));
    // The connection for messages is open from here on.
    let guard = taken(&here).await;
    assert!(there.acquire(Duration::from_millis(300)).await.unwrap().is_none());
    let waiter = waiting(there);
    is_registered(&server).await;
    server.tell("CONFIG RESETSTAT");
    let since = Instant::now();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let stats = server.tell("INFO commandstats");
    let tries = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    let tries = tries.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap());
    let most = 2 + since.elapsed().as_secs();
    assert!(tries <= most, "{tries} tries within {:?}: one each second", since.elapsed());
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();

    // The timer behind the message is at a second from the registration, and so is every round
    // without the message. On a busy machine some rounds take long; not all do.
    let mut quickest = Duration::MAX;
    for _ in 0..10 {
        let guard = taken(&here).await;
        let waiter = waiting(lock(&server));
        is_registered(&server).await;
        let released = Instant::now();
        guard.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
        quickest = quickest.min(released.elapsed());
    }
    assert!(quickest < Duration::from_millis(500), "{quickest:?}");
}

#[tokio::test]
async fn who_waits_gets_the_lock_of_a_dead_holder_when_its_lease_ends() {
    let server = Server::start();
    let begun = Instant::now();
    let dead = taken(&lock(&server).lease(Duration::from_millis(700))).await;
    std::mem::forget(dead);
    // Long before a lease of its own would end.
    let guard = waiting(lock(&server)).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(700), "{:?}", begun.elapsed());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn who_waits_gets_the_lock_of_a_program_that_tells_nobody() {
    let server = Server::start();
    server.tell("SET orders:42 uuid NX PX 60000");
    let there = lock(&server);
    assert!(there.acquire(Duration::from_millis(300)).await.unwrap().is_none());
    assert_eq!(server.tell(&format!("EXISTS {RECORD}")), ":0", "nobody would read it");
    let waiter = waiting(there);
    server.tell("DEL orders:42");
    waiter.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn who_waits_looks_again_when_messages_may_have_been_missed() {
    let server = Server::start();
    let guard = taken(&lock(&server)).await;
    let waiter = waiting(lock(&server));
    is_registered(&server).await;
    server.tell(&format!("DEL {RECORD}"));
    server.tell("CLIENT KILL TYPE pubsub");
    guard.release().await.unwrap();
    // It would wait for longer than its patience, until the lease ends, were it not to look.
    waiter.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn each_holder_gets_a_higher_fencing_token() {
    let server = Server::start();
    let mut last = 0;
    for _ in 0..20 {
        for lock in [lock(&server), lock(&server)] {
            let guard = taken(&lock).await;
            assert!(guard.fencing_token() > last);
            last = guard.fencing_token();
            guard.release().await.unwrap();
        }
    }
    // A lease that ends, and one that is revoked.
    let paused = taken(&lock(&server)).await;
    server.tell("DEL orders:42");
    assert!(taken(&lock(&server)).await.fencing_token() > paused.fencing_token());
}

#[tokio::test]
async fn fencing_tokens_rise_over_a_loss_of_all_data_and_over_a_clock_that_is_set_back() {
    let server = Server::start();
    let before = taken(&lock(&server)).await.fencing_token();
    server.tell("FLUSHALL");
    let after = taken(&lock(&server)).await.fencing_token();
    assert!(after > before, "the clock goes on");
    // As if the clock had been an hour ahead until now.
    server.tell("DEL orders:42");
    let ahead = after + 3_600_000_000;
    server.tell(&format!("HSET {RECORD} n {ahead:016}"));
    let guard = taken(&lock(&server)).await;
    assert_eq!(guard.fencing_token(), ahead + 1, "the record counts");
    guard.release().await.unwrap();
    let left: u64 = server.tell(&format!("PTTL {RECORD}"))[1..].parse().unwrap();
    assert!((600_001..=660_000).contains(&left), "{left}: the lease and a minute");
}

#[tokio::test]
async fn a_record_of_another_kind_is_left_alone() {
    let server = Server::start();
    server.tell(&format!("SET {RECORD} theirs"));
    let guard = taken(&lock(&server)).await;
    assert!(guard.fencing_token() > 0);
    let waiter = waiting(lock(&server));
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    assert_eq!(server.tell(&format!("GET {RECORD}")), "theirs");
}

#[tokio::test]
async fn a_name_without_a_sure_slot_has_no_record_and_works() {
    let server = Server::start();
    let redis = Redis::lazy(&server.url()).unwrap().namespace("stampede").op_timeout(OP_TIMEOUT);
    let odd = RedisLock::new(&redis, "a}b").unwrap();
    let guard = taken(&odd).await;
    assert!(guard.fencing_token() > 0);
    assert_eq!(server.tell("DBSIZE"), ":1");
    let waiter = waiting(odd);
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn many_who_wait_have_it_one_after_the_other() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    let server = Server::start();
    let inside = Arc::new(AtomicU32::new(0));
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let (lock, inside) = (lock(&server), Arc::clone(&inside));
            spawn(async move {
                let guard = lock.acquire(SOON).await.unwrap().unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                tokio::time::sleep(Duration::from_millis(5)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                assert!(guard.release().await.unwrap());
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
}

#[tokio::test]
async fn a_call_that_took_too_long_gives_back_what_it_took() {
    let server = Server::start();
    let redis = Redis::lazy(&server.url())
        .unwrap()
        .namespace("stampede")
        .op_timeout(Duration::from_secs(2));
    let lock = RedisLock::new(&redis, "orders:42").unwrap().lease(LEASE);
    taken_soon(&lock).await;

    server.tell("CLIENT PAUSE 600000 WRITE");
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), RemoteErrorKind::Timeout);
    server.tell("CLIENT UNPAUSE");
    taken_soon(&lock).await;
}

#[tokio::test]
async fn an_acquire_that_is_dropped_takes_nothing() {
    let server = Server::start();
    let lock = lock(&server);
    taken(&lock).await.release().await.unwrap();
    server.tell("CLIENT PAUSE 600000 WRITE");
    let dropped = tokio::time::timeout(Duration::from_millis(30), lock.try_acquire()).await;
    assert!(dropped.is_err());
    server.tell("CLIENT UNPAUSE");
    taken_soon(&lock).await;
}

async fn taken_soon(lock: &RedisLock) {
    let guard = lock.acquire(SOON).await.unwrap().expect("long before the lease ends");
    // A call that takes too long is given up, and the lock is given back all the same.
    let _ = guard.release().await;
}

#[tokio::test]
async fn a_server_that_is_away_is_waited_for_only_in_an_acquire_with_patience() {
    let redis = Redis::lazy("redis://127.0.0.1:1").unwrap().namespace("stampede");
    let lock = RedisLock::new(&redis, "orders:42").unwrap();
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), RemoteErrorKind::Connection);
    let error = lock.acquire(Duration::from_millis(80)).await.unwrap_err();
    assert_eq!(error.kind(), RemoteErrorKind::Connection);
}

#[test]
fn neither_name_nor_token_nor_password_is_shown() {
    let redis = Redis::lazy("redis://:secret@host").unwrap().namespace("stampede");
    let lock = RedisLock::new(&redis, "private").unwrap();
    let shown = format!("{lock:?}");
    assert!(!shown.contains("secret") && !shown.contains("private"), "{shown}");
}

// The lease of a dead holder, on a server whose clock was set back by an hour: it has an hour more.
#[tokio::test]
async fn a_dead_holders_lease_ends_in_time_though_the_clock_was_set_back() {
    let server = Server::start();
    let dead = taken(&lock(&server).lease(Duration::from_secs(3)).auto_extend(false)).await;
    std::mem::forget(dead);
    assert_eq!(server.tell("PEXPIRE orders:42 3603000"), ":1");
    let got = lock(&server).acquire(SOON).await.unwrap();
    got.expect("the lock outlives its dead holder by an hour").release().await.unwrap();
}

#[tokio::test]
async fn others_respect_a_lease_that_was_extended_by_hand() {
    let server = Server::start();
    const FIRST: Duration = Duration::from_secs(2);
    const PATIENCE: Duration = Duration::from_millis(2200);
    let guard = taken(&lock(&server).lease(FIRST).auto_extend(false)).await;
    assert!(guard.extend(LEASE).await.unwrap());
    assert!(lock(&server).acquire(PATIENCE).await.unwrap().is_none());
    assert!(!guard.is_lost() && guard.release().await.unwrap());

    // A full server does not note how long it may last.
    let guard = taken(&lock(&server).lease(FIRST).auto_extend(false)).await;
    server.tell("CONFIG SET maxmemory 1");
    assert!(guard.extend(LEASE).await.unwrap());
    server.tell("CONFIG SET maxmemory 0");
    assert!(lock(&server).acquire(PATIENCE).await.unwrap().is_none());
    assert!(guard.release().await.unwrap());
}

// The script has run, and only its reply is lost: it is sent again on a new connection.
#[tokio::test]
async fn a_release_whose_reply_was_lost_does_not_say_that_the_lock_was_lost() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let redis = Redis::lazy(&proxy.url()).unwrap().namespace("stampede").op_timeout(OP_TIMEOUT);
    let lock = RedisLock::new(&redis, "orders:42").unwrap().lease(LEASE).auto_extend(false);
    // The script is known to the server from here on.
    assert!(taken(&lock).await.release().await.unwrap());
    let guard = taken(&lock).await;
    proxy.lose_replies();
    let released = spawn(guard.release());
    eventually("released", || server.tell("EXISTS orders:42") == ":0").await;
    proxy.pass();
    proxy.cut();
    let was_ours = released.await.unwrap().unwrap();
    assert!(was_ours, "it was this guard's, and nobody else has had it");
}

#[tokio::test]
async fn a_server_that_stood_still_for_a_while_has_no_lock_without_a_holder() {
    for _ in 0..3 {
        let server = Server::start();
        let locks: Vec<_> = (0..4)
            .map(|_| {
                // Each waiter gives up several calls while the server stands still.
                let redis = Redis::lazy(&server.url()).unwrap().namespace("stampede");
                let redis = redis.op_timeout(Duration::from_millis(400));
                RedisLock::new(&redis, "orders:42").unwrap().lease(LEASE)
            })
            .collect();
        for lock in &locks {
            taken_soon(lock).await;
        }
        server.freeze();
        let waiters: Vec<_> = locks
            .into_iter()
            .map(|lock| {
                spawn(async move {
                    let guard = lock.acquire(SOON).await.unwrap();
                    let guard = guard.expect("nobody has it");
                    let _ = guard.release().await;
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(2500)).await;
        server.thaw();
        for waiter in waiters {
            waiter.await.unwrap();
        }
    }
}

/// How many scripts the server has run.
fn scripts(server: &Server) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]).text();
    let calls = |line: &str| {
        let rest = line.strip_prefix("cmdstat_eval")?.trim_start_matches("sha");
        rest.strip_prefix(":calls=")?.split(',').next()?.parse::<u64>().ok()
    };
    stats.lines().filter_map(calls).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_callers_of_one_process_ask_one_after_the_other() {
    const CALLERS: u64 = 1000;
    let server = Server::start();
    let lock = lock(&server);
    server.cli(&["CONFIG", "RESETSTAT"]);
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let lock = lock.clone();
            spawn(async move {
                let guard = lock.acquire(SOON).await.unwrap().expect("in time");
                guard.release().await.unwrap();
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    let scripts = scripts(&server);
    println!("{scripts} scripts for {CALLERS} callers");
    assert!(scripts <= CALLERS * 5, "{scripts}");
}

#[tokio::test]
async fn a_caller_whose_time_is_over_before_its_turn_gets_nothing() {
    let server = Server::start();
    let lock = lock(&server);
    let _held = taken(&lock).await;
    let patient = spawn({
        let lock = lock.clone();
        async move { lock.acquire(SOON).await }
    });
    eventually("it waits", || server.tell(&format!("HLEN {RECORD}")) != ":3").await;
    assert!(lock.acquire(Duration::from_millis(50)).await.unwrap().is_none());
    patient.abort();
}

#[tokio::test]
async fn answers_that_take_longer_than_the_time_out_are_waited_for() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let redis = Redis::lazy(&proxy.url())
        .unwrap()
        .namespace("stampede")
        .op_timeout(Duration::from_millis(300));
    let lock = RedisLock::new(&redis, "orders:42").unwrap().lease(LEASE);
    let begun = Instant::now();
    proxy.delay(Duration::from_millis(305));
    for _ in 0..3 {
        let guard = lock.acquire(SOON).await.unwrap().expect("the lock is free");
        assert!(guard.release().await.unwrap());
    }
    assert!(begun.elapsed() >= Duration::from_millis(1830), "six calls");
}

#[tokio::test]
async fn a_lock_is_taken_though_answers_take_longer_than_the_time_out_from_now_on() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let redis = Redis::lazy(&proxy.url())
        .unwrap()
        .namespace("stampede")
        .op_timeout(Duration::from_millis(200));
    let lock = RedisLock::new(&redis, "orders:42").unwrap().lease(LEASE);
    for _ in 0..8 {
        assert!(taken(&lock).await.release().await.unwrap());
    }
    // Calls are given up, and no answer of one that was is of use to the next.
    proxy.delay(Duration::from_millis(500));
    assert!(lock.try_acquire().await.is_err());
    let guard = lock.acquire(SOON).await.unwrap().expect("the lock is free");
    assert!(guard.release().await.unwrap());
}
