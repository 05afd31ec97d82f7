//! What processes hear of each other.

use futures_util::FutureExt;

use crate::key::Tag;
use crate::lease::grant::ServerTime;
use crate::remote::redis::tests::*;

#[tokio::test]
async fn a_fill_wakes_those_who_wait_in_another_process() {
    let server = Server::start();
    let (leader, waiter) = (server.redis().open("c").unwrap(), server.redis());
    let (waiter, _notices) = listening(&waiter, "c").await;
    let key = Key::from("k");
    let grant = granted(&*leader, &key, &ask()).await;

    let mut listener = waiter.listen(&key);
    let locked = waiter.acquire(&key, &ask().register()).await.unwrap();
    assert!(matches!(locked, AcquireOutcome::Locked { .. }));
    assert!(listener.woken().now_or_never().is_none());
    leader.fill(&key, &grant, TTL, envelope(grant.version, "x")).await.unwrap();
    woken(&mut listener).await;
}

#[tokio::test]
async fn an_abandoned_lease_wakes_one_process_and_a_hold_all() {
    let server = Server::start();
    let leader = server.redis().open("c").unwrap();
    let (one, _first) = listening(&server.redis(), "c").await;
    let (other, _second) = listening(&server.redis(), "c").await;
    let key = Key::from("k");
    for (hold, woken) in [(None, 1), (Some(LEASE), 2)] {
        let grant = granted(&*leader, &key, &ask()).await;
        let mut listeners = [one.listen(&key), other.listen(&key)];
        one.acquire(&key, &ask().register()).await.unwrap();
        other.acquire(&key, &ask().register()).await.unwrap();
        leader.abandon(&key, &grant.token, hold).await.unwrap();
        let mut seen = 0;
        until("woken", || {
            seen += listeners.iter_mut().filter_map(|one| one.woken().now_or_never()).count();
            seen == woken
        })
        .await;
    }
}

#[tokio::test]
async fn other_processes_hear_of_an_invalidation_and_this_one_does_not() {
    let server = Server::start();
    let (here, own) = listening(&server.redis(), "c").await;
    let (_there, other) = listening(&server.redis(), "c").await;
    let (_elsewhere, stranger) = listening(&server.redis(), "d").await;
    let (key, tag) = (Key::from(&b"\0\xff"[..]), Tag::from("t"));

    here.invalidate(&key).await.unwrap();
    here.put(&Key::from("put"), TTL, envelope(None, "x")).await.unwrap();
    let now = here.invalidate_tags(std::slice::from_ref(&tag)).await.unwrap();
    let told = [
        Notice::Subscribed,
        Notice::Invalidated(key),
        Notice::Invalidated(Key::from("put")),
        Notice::TagsInvalidated(vec![tag], now),
    ];
    until("told in order", || *other.0.lock() == told).await;
    assert_eq!(*own.0.lock(), [Notice::Subscribed]);
    assert_eq!(*stranger.0.lock(), [Notice::Subscribed]);
}

#[tokio::test]
async fn a_put_wakes_those_who_wait() {
    let server = Server::start();
    let (waiter, _notices) = listening(&server.redis(), "c").await;
    let key = Key::from("k");
    let other = server.redis().open("c").unwrap();
    granted(&*other, &key, &ask()).await;
    let mut listener = waiter.listen(&key);
    waiter.acquire(&key, &ask().register()).await.unwrap();
    other.put(&key, TTL, envelope(None, "x")).await.unwrap();
    woken(&mut listener).await;
}

#[tokio::test]
async fn who_does_not_listen_registers_nothing() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    let key = Key::from("k");
    granted(&*remote, &key, &ask()).await;
    remote.acquire(&key, &ask().register()).await.unwrap();
    let fields = server.tell(&["HKEYS", "stampede:1:c:{k}:r"]).await;
    let registered = fields.array().unwrap().iter().any(|f| f.text().unwrap().starts_with("w:"));
    assert!(!registered);
}

#[tokio::test]
async fn messages_that_make_no_sense_are_a_hint_or_nothing() {
    let server = Server::start();
    let (remote, notices) = listening(&server.redis(), "c").await;
    let mut listener = remote.listen(&Key::from("k"));
    for garbage in ["", "1", "1T", "1T0123456799999999999999999999999", "2I01234567k"] {
        server.tell(&["PUBLISH", "stampede:1:c:inv", garbage]).await;
    }
    server.tell(&["PUBLISH", "stampede:1:c:inv", "1I01234567k"]).await;
    until("told", || notices.count(&Notice::Invalidated(Key::from("k"))) == 1).await;
    assert_eq!(notices.0.lock().len(), 2, "nothing else");

    let inboxes = server.tell(&["PUBSUB", "CHANNELS", "stampede:1:c:in:*"]).await;
    let inbox = inboxes.array().unwrap()[0].text().unwrap().to_owned();
    server.tell(&["PUBLISH", &inbox, "garbage"]).await;
    woken(&mut listener).await;
}

#[tokio::test]
async fn a_dropped_remote_stops_listening() {
    let server = Server::start();
    let (remote, _notices) = listening(&server.redis(), "c").await;
    drop(remote);
    until_ok("unsubscribed", async || {
        let left = server.tell(&["PUBSUB", "CHANNELS"]).await;
        left.array().unwrap().is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_time_of_a_tag_is_that_of_the_server() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    let before = remote.probe().await.unwrap();
    let now = remote.invalidate_tags(&[Tag::from("t")]).await.unwrap();
    assert!(before <= now && now <= remote.probe().await.unwrap());
    assert!(now > ServerTime::from_millis(0));
}
