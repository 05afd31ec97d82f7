//! What processes hear of each other.

use futures_util::FutureExt;

use crate::remote::redis::tests::*;

#[tokio::test]
async fn a_fill_wakes_those_who_wait_in_another_process() {
    let server = Server::start();
    let (leader, waiter) = (server.redis().open("c").unwrap(), server.redis());
    let (waiter, _notices) = listening(&waiter, "c").await;
    let key = Key::from("k");
    let grant = granted(&*leader, &key, &ask()).await;

    let mut listener = push(&*waiter).listen(&key);
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
        let mut listeners = [push(&*one).listen(&key), push(&*other).listen(&key)];
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
async fn other_processes_hear_of_an_announcement_and_this_one_does_not() {
    let server = Server::start();
    let (here, own) = listening(&server.redis(), "c").await;
    let (_there, other) = listening(&server.redis(), "c").await;
    let (_elsewhere, stranger) = listening(&server.redis(), "d").await;
    here.invalidate(&Key::from("alone")).await.unwrap();
    let items = [LogItem::Key(Key::from(&b"\0\xff"[..])), tag("t")];
    let first = announce(&*here, &items).await;
    announce(&*here, &[LogItem::EverythingStale]).await;
    let epoch = first.header.epoch;
    let told = [
        Notice::Subscribed,
        Notice::Announced(LogUpdate { epoch, previous: 0, items: items.to_vec() }),
        Notice::Announced(LogUpdate { epoch, previous: 2, items: vec![LogItem::EverythingStale] }),
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
    let mut listener = push(&*waiter).listen(&key);
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
    let fields = server.tell(&["HKEYS", "stampede:2:c:{k}:r"]).await;
    let registered = fields.array().unwrap().iter().any(|f| f.text().unwrap().starts_with("w:"));
    assert!(!registered);
}

#[tokio::test]
async fn messages_that_make_no_sense_are_a_hint_or_nothing() {
    let server = Server::start();
    let (remote, notices) = listening(&server.redis(), "c").await;
    let mut listener = push(&*remote).listen(&Key::from("k"));
    let head = "1L0123456700000000000000ff0000000000001234";
    let cut = format!("{head}\0\0\0\u{9}ta");
    let old = "1I01234567k";
    for garbage in ["", "1", "1L", old, &head[..30], &cut, &head.replacen('1', "2", 1)] {
        server.tell(&["PUBLISH", "stampede:2:c:inv", garbage]).await;
    }
    let whole = format!("{head}\0\0\0\u{2}ta");
    server.tell(&["PUBLISH", "stampede:2:c:inv", &whole]).await;
    until("told", || notices.announced() == [tag("a")]).await;
    assert_eq!(notices.0.lock().len(), 2, "nothing else");

    let inboxes = server.tell(&["PUBSUB", "CHANNELS", "stampede:2:c:in:*"]).await;
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
