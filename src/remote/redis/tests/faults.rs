//! What goes wrong, and that it heals by itself.

use crate::remote::redis::tests::*;

async fn works(remote: &dyn Remote) {
    fills(remote, &Key::from(fastrand::u64(..))).await;
}

#[tokio::test]
async fn the_first_call_after_a_restart_works() {
    let mut server = Server::start();
    let remote = server.redis().open("c").unwrap();
    works(&*remote).await;
    server.kill();
    assert_eq!(kind(remote.probe(Shard::ONLY).await), RemoteErrorKind::Connection);
    server.restart();
    works(&*remote).await;

    // No caller came while it was away.
    server.kill();
    server.restart();
    works(&*remote).await;
}

#[tokio::test]
async fn a_dead_server_is_refused_at_once() {
    let mut server = Server::start();
    let remote = server.redis().open("c").unwrap();
    works(&*remote).await;
    server.kill();
    for _ in 0..20 {
        let call = tokio::time::timeout(GIVE_UP, remote.probe(Shard::ONLY));
        assert_eq!(kind(call.await.unwrap()), RemoteErrorKind::Connection);
    }
}

#[tokio::test]
async fn a_forgotten_script_is_sent_again() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    works(&*remote).await;
    server.tell(&["SCRIPT", "FLUSH"]).await;
    works(&*remote).await;
}

#[tokio::test]
async fn a_script_is_sent_in_full_once_and_none_is_loaded_when_connecting() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    works(&*remote).await;
    let stats = server.tell(&["INFO", "commandstats"]).await;
    let stats = stats.text().unwrap();
    assert!(stats.contains("cmdstat_eval:calls=2"), "{stats}");
    assert!(!stats.contains("cmdstat_evalsha:"), "{stats}");
    server.tell(&["CONFIG", "RESETSTAT"]).await;
    works(&*remote).await;
    let stats = server.tell(&["INFO", "commandstats"]).await;
    let stats = stats.text().unwrap();
    assert!(stats.contains("cmdstat_evalsha:calls=2"), "{stats}");
    assert!(!stats.contains("cmdstat_eval:") && !stats.contains("cmdstat_script"), "{stats}");
}

#[tokio::test]
async fn a_killed_command_connection_is_replaced() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    works(&*remote).await;
    server.tell(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    works(&*remote).await;
}

#[tokio::test]
async fn a_killed_subscriber_comes_back_and_says_so() {
    let server = Server::start();
    let (remote, notices) = listening(&server.redis(), "c").await;
    let mut listener = push(&*remote).listen(&Key::from("k"));
    server.tell(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    until("noticed", || notices.count(&Notice::Unsubscribed) == 1).await;
    until("back", || notices.count(&Notice::Subscribed) == 2).await;
    assert!(push(&*remote).is_subscribed());
    woken(&mut listener).await;
}

#[tokio::test]
async fn a_frozen_server_is_noticed_by_the_subscriber_and_heals() {
    let server = Server::start();
    let (remote, notices) = listening(&server.redis(), "c").await;
    server.signal("-STOP");
    until("noticed", || !push(&*remote).is_subscribed()).await;
    server.signal("-CONT");
    until("back", || notices.count(&Notice::Subscribed) == 2).await;
}

#[tokio::test]
async fn a_connection_without_answers_is_replaced_after_three_calls() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    remote.probe(Shard::ONLY).await.unwrap();
    let clients = async || {
        let list = server.tell(&["CLIENT", "LIST", "TYPE", "normal"]).await;
        list.text().unwrap().lines().next().unwrap().to_owned()
    };
    let first = clients().await;
    server.signal("-STOP");
    for _ in 0..3 {
        let call = tokio::time::timeout(Duration::from_millis(50), remote.probe(Shard::ONLY)).await;
        assert!(call.is_err(), "frozen");
        remote.suspect(Shard::ONLY, RemoteErrorKind::Timeout);
    }
    server.signal("-CONT");
    until_ok("answers", async || remote.probe(Shard::ONLY).await.ok()).await;
    assert_ne!(clients().await.split(' ').next(), first.split(' ').next(), "another connection");
}

#[tokio::test]
async fn an_answer_in_between_clears_the_suspicion() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    remote.probe(Shard::ONLY).await.unwrap();
    tokio::time::sleep(Duration::from_millis(30)).await;
    for _ in 0..5 {
        remote.suspect(Shard::ONLY, RemoteErrorKind::Timeout);
        remote.suspect(Shard::ONLY, RemoteErrorKind::Timeout);
        remote.probe(Shard::ONLY).await.unwrap();
    }
    let stats = server.tell(&["INFO", "stats"]).await;
    let stats = stats.text().unwrap();
    assert!(stats.contains("total_connections_received:3\r\n"), "{stats}");
}

#[tokio::test]
async fn a_caller_that_goes_away_does_not_take_the_connection_along() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    server.signal("-STOP");
    for _ in 0..3 {
        let call = tokio::time::timeout(Duration::from_millis(20), remote.probe(Shard::ONLY)).await;
        assert!(call.is_err(), "frozen");
    }
    server.signal("-CONT");
    remote.probe(Shard::ONLY).await.unwrap();
    let stats = server.tell(&["INFO", "stats"]).await;
    let stats = stats.text().unwrap().to_owned();
    // The one that looked for the server, ours, and the one that asks.
    assert!(stats.contains("total_connections_received:3\r\n"), "{stats}");
}

#[tokio::test]
async fn a_wrong_password_is_denied_and_never_shown() {
    let server = Server::with(&["--requirepass", "right"]);
    let url = |password: &str| format!("redis://:{password}@127.0.0.1:{}", server.port);
    let redis = Redis::lazy(&url("wrong-secret")).unwrap().namespace("stampede");
    let error = redis.open("c").unwrap().probe(Shard::ONLY).await.unwrap_err();
    assert_eq!(error.kind(), RemoteErrorKind::Denied);
    assert!(!format!("{error:?} {redis:?}").contains("secret"));
    let none = Redis::lazy(&server.url()).unwrap().namespace("stampede").open("c").unwrap();
    assert_eq!(kind(none.probe(Shard::ONLY).await), RemoteErrorKind::Denied);
    works(&*Redis::lazy(&url("right")).unwrap().namespace("stampede").open("c").unwrap()).await;
}

#[tokio::test]
async fn a_replica_takes_no_writes_until_it_is_promoted() {
    let primary = Server::start();
    let port = primary.port.to_string();
    let replica = Server::with(&["--replicaof", "127.0.0.1", &port]);
    let remote = replica.redis().open("c").unwrap();
    let key = Key::from("k");
    assert_eq!(kind(remote.acquire(&key, &ask()).await), RemoteErrorKind::ReadOnly);
    assert_eq!(kind(remote.probe(Shard::ONLY).await), RemoteErrorKind::ReadOnly);
    assert_eq!(kind(remote.invalidate(&key).await), RemoteErrorKind::ReadOnly);
    let stats = replica.tell(&["INFO", "stats"]).await;
    let stats = stats.text().unwrap().to_owned();
    // A connection for each, since another may lead elsewhere; the one that
    // looked for the server, and the one that asks.
    assert!(stats.contains("total_connections_received:5\r\n"), "{stats}");
    replica.tell(&["REPLICAOF", "NO", "ONE"]).await;
    works(&*remote).await;
}

#[tokio::test]
async fn a_primary_that_has_lost_its_replicas_is_left_as_a_replica_is() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    works(&*remote).await;
    server.tell(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    let before = remote.connection(Shard::ONLY);
    assert_eq!(kind(remote.invalidate(&Key::from("k")).await), RemoteErrorKind::ReadOnly);
    assert_eq!(kind(log(&*remote).announce(&[tag("t")], None).await), RemoteErrorKind::ReadOnly);
    assert_eq!(remote.connection(Shard::ONLY), before + 1, "another may lead to the new primary");
    server.tell(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    works(&*remote).await;
}

#[tokio::test]
async fn a_server_without_memory_says_so() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    let key = Key::from("k");
    remote.put(&key, TTL, envelope(None, "old")).await.unwrap();
    let grant = granted(&*remote, &Key::from("other"), &ask()).await;
    server.tell(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!(kind(remote.probe(Shard::ONLY).await), RemoteErrorKind::OutOfMemory);
    assert_eq!(kind(remote.acquire(&Key::from("l"), &ask()).await), RemoteErrorKind::OutOfMemory);
    let put = remote.put(&key, TTL, envelope(None, "new")).await;
    assert_eq!(kind(put), RemoteErrorKind::OutOfMemory);
    assert_eq!(remote.get(&key).await.unwrap(), None, "the old value is wrong");
    assert!(remote.abandon(&Key::from("other"), &grant.token, Some(LEASE)).await.unwrap());
    server.tell(&["CONFIG", "SET", "maxmemory", "0"]).await;
    works(&*remote).await;
}

#[test]
fn a_remote_outlives_the_runtime_that_it_first_ran_on() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    for _ in 0..2 {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(works(&*remote));
    }
    drop(remote);
}

#[test]
fn a_call_outside_a_runtime_fails_and_does_not_panic() {
    let remote =
        Redis::lazy("redis://127.0.0.1:1").unwrap().namespace("stampede").open("c").unwrap();
    let call = futures_util::FutureExt::now_or_never(remote.probe(Shard::ONLY));
    assert_eq!(kind(call.unwrap()), RemoteErrorKind::Connection);
}
