//! The lock of the time before `SET NX PX`, against a real server: what it
//! does, and what it cannot.

use std::time::{Duration, SystemTime};

use tower_stampede::remote::RemoteErrorKind;
use tower_stampede::{LegacyLock, LegacyLockGuard, Redis};

use crate::kit::redis::{Server, eventually};
use crate::kit::spawn;

/// How long anything may take that must happen, on a busy machine.
const SOON: Duration = Duration::from_secs(120);

const KEY: &str = "shop:legacy:orders:42";

fn redis(server: &Server) -> Redis {
    Redis::lazy(&server.url()).unwrap().namespace("shop").op_timeout(Duration::from_secs(10))
}

fn lock(server: &Server) -> LegacyLock {
    LegacyLock::new(&redis(server), "orders:42").unwrap().lease(Duration::from_secs(300))
}

async fn taken(lock: &LegacyLock) -> LegacyLockGuard {
    lock.try_acquire().await.unwrap().expect("nobody has it")
}

fn in_millis(ahead: i64) -> i64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as i64 + ahead
}

async fn gone(server: &Server) {
    eventually("given back", || server.tell(&format!("EXISTS {KEY}")) == ":0").await;
}

#[tokio::test]
async fn one_holder_at_a_time_and_only_old_commands() {
    let server = Server::start();
    let monitor = server.monitor();
    let (here, there) = (lock(&server), lock(&server));
    let guard = taken(&here).await;
    let mark = server.tell(&format!("GET {KEY}"));
    assert!(there.try_acquire().await.unwrap().is_none());
    assert_eq!(server.tell(&format!("GET {KEY}")), mark, "not even prolonged");
    let until: i64 = mark.split_once(':').unwrap().0.parse().unwrap();
    assert!(until > in_millis(100_000) && until <= in_millis(300_000));
    assert!(guard.release().await.unwrap());
    drop(taken(&there).await);
    gone(&server).await;
    // `EXISTS` is the test's.
    let old = ["SETNX", "GET", "GETSET", "DEL", "EXISTS"];
    let sent = monitor.commands();
    assert!(sent.contains(&"SETNX".to_owned()));
    for command in sent {
        assert!(old.contains(&&*command), "{command}");
    }
}

#[tokio::test]
async fn who_waits_gets_the_lock_when_it_is_given_back_or_nothing_in_time() {
    let server = Server::start();
    let guard = taken(&lock(&server)).await;
    let begun = std::time::Instant::now();
    assert!(lock(&server).acquire(Duration::from_millis(80)).await.unwrap().is_none());
    assert!(begun.elapsed() >= Duration::from_millis(80));
    assert!(lock(&server).acquire(Duration::ZERO).await.unwrap().is_none());
    let waiting = spawn({
        let lock = lock(&server);
        async move { lock.acquire(SOON).await.unwrap().expect("in time") }
    });
    guard.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn who_waits_takes_over_a_lease_that_ends() {
    let server = Server::start();
    server.tell(&format!("SET {KEY} {}:dead", in_millis(3000)));
    assert!(lock(&server).try_acquire().await.unwrap().is_none());
    assert!(lock(&server).acquire(SOON).await.unwrap().is_some());
}

#[tokio::test]
async fn who_waits_outlasts_a_server_that_is_away_and_not_a_key_of_another_kind() {
    let away = Redis::lazy("redis://127.0.0.1:1").unwrap().namespace("stampede");
    let begun = std::time::Instant::now();
    let error =
        LegacyLock::new(&away, "x").unwrap().acquire(Duration::from_millis(80)).await.unwrap_err();
    assert_eq!(error.kind(), RemoteErrorKind::Connection);
    assert!(begun.elapsed() >= Duration::from_millis(80), "tried again");
    let server = Server::start();
    server.tell(&format!("SET {KEY} uuid"));
    let error = lock(&server).acquire(SOON).await.unwrap_err();
    assert_eq!(error.kind(), RemoteErrorKind::Protocol);
}

#[tokio::test]
async fn a_lease_that_is_over_is_taken_over() {
    let server = Server::start();
    server.tell(&format!("SET {KEY} {}:dead", in_millis(-1)));
    let guard = taken(&lock(&server)).await;
    assert!(!guard.is_lost());
    assert!(lock(&server).try_acquire().await.unwrap().is_none());
    assert!(guard.release().await.unwrap());
}

#[tokio::test]
async fn of_many_that_take_over_at_once_one_wins() {
    let server = Server::start();
    for _ in 0..20 {
        server.tell(&format!("SET {KEY} {}:dead", in_millis(-1)));
        let tries: Vec<_> = (0..8)
            .map(|_| {
                let lock = lock(&server);
                spawn(async move { lock.try_acquire().await.unwrap() })
            })
            .collect();
        let mut guards = Vec::new();
        for one in tries {
            guards.extend(one.await.unwrap());
        }
        assert_eq!(guards.len(), 1);
        assert!(guards.pop().unwrap().release().await.unwrap());
    }
}

#[tokio::test]
async fn it_is_given_back_only_while_the_lease_has_a_margin_left() {
    let server = Server::start();
    // The margin is twenty seconds: two calls.
    let guard = taken(&lock(&server).lease(Duration::from_secs(3))).await;
    assert!(!guard.release().await.unwrap());
    assert_eq!(server.tell(&format!("EXISTS {KEY}")), ":1", "left to run out");
}

#[tokio::test]
async fn what_another_kind_of_lock_wrote_is_not_touched() {
    let server = Server::start();
    server.tell(&format!("SET {KEY} uuid"));
    let error = lock(&server).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), RemoteErrorKind::Protocol);
    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert!(reason.contains("delete the key, or give the lock another name"), "{reason}");
    assert_eq!(server.tell(&format!("GET {KEY}")), "uuid");
}

#[tokio::test]
async fn the_flaw_a_clock_that_is_ahead_takes_a_lock_that_is_held() {
    let server = Server::start();
    // Held for another second, by a clock that is a minute behind ours.
    server.tell(&format!("SET {KEY} {}:alive", in_millis(1000 - 60_000)));
    assert!(lock(&server).try_acquire().await.unwrap().is_some());
}

#[test]
fn a_guard_that_outlives_its_runtime_is_dropped_quietly() {
    let server = Server::start();
    let lock = lock(&server);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let guard = runtime.block_on(taken(&lock));
    drop(runtime);
    drop(guard);
    let shown = format!("{lock:?}");
    assert!(!shown.contains("orders"), "{shown}");
}
