//! A primary that sentinels know.

use crate::remote::redis::tests::*;

async fn replicating(replica: &Server) {
    until_ok("replicates", async || {
        let info = replica.tell(&["INFO", "replication"]).await;
        info.text().unwrap().contains("master_link_status:up").then_some(())
    })
    .await;
}

#[tokio::test]
async fn sentinels_lead_to_the_new_primary_after_a_failover() {
    let mut primary = Server::with(&["--repl-diskless-sync-delay", "0"]);
    let replica = Server::with(&["--replicaof", "127.0.0.1", &primary.port.to_string()]);
    replicating(&replica).await;
    let sentinel = Server::sentinel(primary.port, "");
    until_ok("knows the replica", async || {
        let known = sentinel.tell(&["SENTINEL", "REPLICAS", "main"]).await;
        (known.array().unwrap().len() == 1).then_some(())
    })
    .await;

    // One of the sentinels does not answer.
    let urls = ["redis://127.0.0.1:1".to_owned(), sentinel.url()];
    let redis = Redis::sentinel(&urls, "main").unwrap().namespace("stampede");
    redis.check().await.unwrap();
    let (remote, notices) = listening(&redis, "c").await;
    fills(&*remote, &Key::from("before")).await;
    let clients = primary.tell(&["CLIENT", "LIST"]).await;
    assert!(clients.text().unwrap().lines().count() > 2, "it is the primary that is used");

    primary.kill();
    let key = Key::from("after");
    until_ok("fails over", async || {
        let acquired = remote.acquire(&key, &ask().seen(None)).await;
        matches!(acquired, Ok(AcquireOutcome::Granted(_))).then_some(())
    })
    .await;
    until("listens again", || notices.count(&Notice::Subscribed) == 2).await;
    fills(&*remote, &Key::from("other")).await;
}

#[tokio::test]
async fn a_primary_with_a_password_is_found_by_sentinels_without_one() {
    let primary = Server::with(&["--requirepass", "secret"]);
    let sentinel = Server::sentinel(primary.port, "sentinel auth-pass main secret\n");
    let url = format!("redis://:secret@127.0.0.1:{}/3", sentinel.port);
    let redis = Redis::sentinel([url], "main").unwrap().namespace("stampede");
    fills(&*redis.open("c").unwrap(), &Key::from("k")).await;
    assert!(!format!("{redis:?}").contains("secret"));
    let unknown = Redis::sentinel([sentinel.url()], "other")
        .unwrap()
        .namespace("stampede")
        .open("c")
        .unwrap();
    assert_eq!(kind(unknown.probe(Shard::ONLY).await), RemoteErrorKind::Connection);
}

#[test]
fn there_is_a_sentinel_to_ask() {
    assert_eq!(Redis::sentinel([""; 0], "main").unwrap_err().fields(), ["url"]);
}
