//! What each operation does, once.

use crate::lease::grant::{FillOutcome, Stamp, Token};
use crate::remote::redis::tests::*;

#[tokio::test]
async fn a_value_is_acquired_filled_and_read() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    let key = Key::from("k");
    assert_eq!(remote.get(&key).await.unwrap(), None);

    let ask = ask();
    let grant = granted(&*remote, &key, &ask).await;
    assert_eq!(granted(&*remote, &key, &ask).await.version, grant.version, "the same try");
    let stored = envelope(grant.version, "body");
    assert_eq!(remote.fill(&key, &grant, TTL, stored.clone()).await.unwrap(), FillOutcome::Stored);
    let again = remote.fill(&key, &grant, TTL, stored.clone()).await.unwrap();
    assert_eq!(again, FillOutcome::StoredBefore);

    assert_eq!(remote.get(&key).await.unwrap(), Some(stored.clone()));
    match remote.acquire(&key, &crate::remote::redis::tests::ask()).await.unwrap() {
        AcquireOutcome::Hit { value, now } => {
            assert_eq!(value, stored);
            assert!(now >= grant.now);
        }
        other => panic!("the second look missed it: {other:?}"),
    }
    granted(&*remote, &key, &crate::remote::redis::tests::ask().seen(Some(grant.version))).await;
}

#[tokio::test]
async fn a_lease_keeps_others_out_until_it_is_given_up() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    let key = Key::from("k");
    let first = ask();
    let grant = granted(&*remote, &key, &first).await;
    match remote.acquire(&key, &ask()).await.unwrap() {
        AcquireOutcome::Locked { left, .. } => assert!(left <= LEASE && !left.is_zero()),
        other => panic!("not locked: {other:?}"),
    }
    assert!(remote.renew(&key, &grant, &first).await.unwrap());
    assert!(!remote.abandon(&key, &Token::random(), None).await.unwrap(), "another's");
    assert!(remote.abandon(&key, &grant.token, None).await.unwrap());
    assert!(!remote.renew(&key, &grant, &first).await.unwrap(), "given up");

    let second = granted(&*remote, &key, &ask()).await;
    assert!(second.version > grant.version);
    let late = remote.fill(&key, &grant, TTL, envelope(grant.version, "late")).await.unwrap();
    assert_eq!(late, FillOutcome::Refused);
}

#[tokio::test]
async fn nobody_computes_during_a_hold() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    let key = Key::from("k");
    let grant = granted(&*remote, &key, &ask()).await;
    assert!(remote.abandon(&key, &grant.token, Some(Duration::from_secs(9))).await.unwrap());
    match remote.acquire(&key, &ask()).await.unwrap() {
        AcquireOutcome::Held { left, .. } => assert!(left > Duration::from_secs(8)),
        other => panic!("not held: {other:?}"),
    }
}

#[tokio::test]
async fn an_invalidation_ends_the_value_and_the_right_to_fill() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    let key = Key::from("k");
    assert!(!remote.invalidate(&key).await.unwrap().value);
    let grant = granted(&*remote, &key, &ask()).await;
    let found = remote.invalidate(&key).await.unwrap();
    assert_eq!((found.value, found.lease), (false, true));
    let late = remote.fill(&key, &grant, TTL, envelope(grant.version, "old")).await.unwrap();
    assert_eq!(late, FillOutcome::Refused);
    remote.put(&key, TTL, envelope(None, "new")).await.unwrap();
    let found = remote.invalidate(&key).await.unwrap();
    assert_eq!((found.value, found.lease), (true, false));
    assert_eq!(remote.get(&key).await.unwrap(), None);
}

#[tokio::test]
async fn a_put_stands_above_what_is_being_computed() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    let key = Key::from("k");
    let grant = granted(&*remote, &key, &ask()).await;
    let (now, version) = remote.put(&key, TTL, envelope(None, "put")).await.unwrap();
    assert!(version > grant.version && now >= grant.now);
    assert_eq!(remote.get(&key).await.unwrap(), Some(envelope(version, "put")));
    let late = remote.fill(&key, &grant, TTL, envelope(grant.version, "late")).await.unwrap();
    assert_eq!(late, FillOutcome::Refused);
}

#[tokio::test]
async fn a_value_of_another_type_is_an_envelope_without_bytes_and_is_overwritten() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    let key = Key::from("k");
    server.tell(&["LPUSH", "stampede:2:c:{k}:v", "x"]).await;
    server.tell(&["LPUSH", "stampede:2:c:{k}:r", "x"]).await;
    assert_eq!(remote.get(&key).await.unwrap(), Some(Bytes::new()));
    let grant = granted(&*remote, &key, &ask()).await;
    let stored = envelope(grant.version, "right");
    assert_eq!(remote.fill(&key, &grant, TTL, stored.clone()).await.unwrap(), FillOutcome::Stored);
    assert_eq!(remote.get(&key).await.unwrap(), Some(stored));
}

#[tokio::test]
async fn a_key_that_nobody_computes_or_waits_for_leaves_nothing_after_an_abandon() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    let key = Key::from("k");
    let ask = LeaseRequest::new(LEASE, Duration::from_secs(1_000_000));
    let grant = granted(&*remote, &key, &ask).await;
    assert!(remote.abandon(&key, &grant.token, None).await.unwrap());
    assert_eq!(server.tell(&["KEYS", "*"]).await.array().unwrap(), []);
    let next = granted(&*remote, &key, &ask).await;
    assert!(next.version > grant.version);
    let late = remote.fill(&key, &grant, TTL, envelope(grant.version, "late")).await.unwrap();
    assert_eq!(late, FillOutcome::Refused);

    // A hold and its length are all that is left of a computation that failed.
    assert!(remote.abandon(&key, &next.token, Some(LEASE)).await.unwrap());
    let left = server.tell(&["KEYS", "*"]).await;
    let left = left.array().unwrap();
    assert_eq!(left.len(), 2, "{left:?}");
    for name in left {
        let millis = server.tell(&["PTTL", name.text().unwrap()]).await.number().unwrap();
        assert!(Duration::from_millis(millis) <= LEASE, "{millis}");
    }
}

#[tokio::test]
async fn the_log_has_no_time_to_live_and_no_name_of_a_key() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    announce(&*remote, &[tag("t"), LogItem::Key("k".into())]).await;
    let found = server.tell(&["KEYS", "*"]).await;
    let mut names: Vec<_> = found.array().unwrap().iter().map(|n| n.text().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["stampede:2:c:{#c}:keys", "stampede:2:c:{#c}:tags"]);
    for name in names {
        let ttl = server.tell(&["TTL", name]).await;
        assert_eq!(
            ttl.int().unwrap(),
            -1,
            "an eviction of what has a time to live may take {name}"
        );
    }
}

#[tokio::test]
async fn a_heartbeat_is_one_plain_command() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    let header = announce(&*remote, &[tag("a"), LogItem::Key("k".into())]).await.header;
    server.tell(&["CONFIG", "RESETSTAT"]).await;
    log(&*remote).read(Some(Stamp::new(header.epoch, header.last))).await.unwrap();
    announce_elsewhere(&server).await;
    let reply = log(&*remote).read(Some(Stamp::new(header.epoch, header.last))).await;
    assert_eq!(reply.unwrap().unwrap().missed, [(3, tag("b"))]);
    let stats = server.tell(&["INFO", "commandstats"]).await;
    let calls = |command: &str| {
        let line = stats.text().unwrap().lines().find(|line| line.starts_with(command));
        line.map(|line| line.split([':', ',']).nth(1).unwrap().to_owned())
    };
    assert_eq!(calls("cmdstat_zrangebyscore:").as_deref(), Some("calls=2"), "{stats:?}");
    assert_eq!(calls("cmdstat_zadd:").as_deref(), Some("calls=2"), "{stats:?}");
}

/// A tag, announced by a process that knows nothing of the log.
async fn announce_elsewhere(server: &Server) {
    announce(&*server.redis().open("c").unwrap(), &[tag("b")]).await;
}

#[tokio::test]
async fn members_of_the_log_that_make_no_sense_hide_no_others() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    let header = announce(&*remote, &[tag("a"), LogItem::Key("k".into())]).await.header;
    let [tags, keys] = ["stampede:2:c:{#c}:tags", "stampede:2:c:{#c}:keys"];
    server
        .tell(&["ZADD", tags, "-inf", "x", "inf", "y", "0.25", "h:", "0.5", "", "1.5", "tz"])
        .await;
    server.tell(&["ZADD", keys, "0.5", "x", "1", "", "-5", "ky"]).await;
    let reply = log(&*remote).read(Some(Stamp::new(header.epoch, 0))).await.unwrap().unwrap();
    assert_eq!(reply.missed, [(1, tag("a")), (2, LogItem::Key("k".into()))]);
    assert_eq!(reply.header, header);
}

#[tokio::test]
async fn a_log_of_another_type_is_none_and_is_overwritten() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    for name in ["stampede:2:c:{#c}:tags", "stampede:2:c:{#c}:keys"] {
        let old = announce(&*remote, &[tag("a"), LogItem::Key("k".into())]).await.header;
        server.tell(&["DEL", name]).await;
        server.tell(&["SET", name, "x"]).await;
        let after = Some(Stamp::new(old.epoch, old.last));
        let new = log(&*remote).announce(&[LogItem::Key("l".into())], after).await.unwrap();
        assert!(new.header.epoch != old.epoch || new.header.dropped >= 2, "{new:?}");
        let read = log(&*remote).read(Some(Stamp::new(new.header.epoch, new.previous))).await;
        assert_eq!(read.unwrap().unwrap().missed, [(new.header.last, LogItem::Key("l".into()))]);
    }
}

#[tokio::test]
async fn a_log_begins_again_after_a_restart_from_the_disk() {
    let mut server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let remote = server.redis().open("c").unwrap();
    let old = announce(&*remote, &[tag("a")]).await.header;
    server.kill();
    server.restart();
    let read = until_ok("answers", async || log(&*remote).read(None).await.ok()).await.unwrap();
    assert_eq!(read.header.epoch, old.epoch, "the server has read it from its disk");
    assert_ne!(announce(&*remote, &[]).await.header.epoch, old.epoch);
}

#[tokio::test]
async fn a_probe_reads_the_clock() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    let first = remote.probe(Shard::ONLY).await.unwrap();
    let wall = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    assert!(wall.abs_diff(first.as_millis()) < 60_000);
    assert!(remote.probe(Shard::ONLY).await.unwrap() >= first);
}

#[tokio::test]
async fn caches_of_other_names_or_namespaces_share_nothing() {
    let server = Server::start();
    let key = Key::from("k");
    let first = server.redis().open("c").unwrap();
    first.put(&key, TTL, envelope(None, "x")).await.unwrap();
    let other_name = server.redis().open("d").unwrap();
    let other_space = server.redis().namespace("shop").open("c").unwrap();
    assert_eq!(other_name.get(&key).await.unwrap(), None);
    assert_eq!(other_space.get(&key).await.unwrap(), None);
    assert!(server.redis().open("c").unwrap().get(&key).await.unwrap().is_some());
}

#[tokio::test]
async fn hashed_names_show_no_key_and_are_found_and_invalidated_by_it() {
    let server = Server::start();
    let hashed = |secret: u8| server.redis().hash_names(&[secret; 32]).open("c").unwrap();
    let key = Key::from("user:7");
    hashed(1).put(&key, TTL, envelope(None, "x")).await.unwrap();
    assert!(hashed(1).get(&key).await.unwrap().is_some());
    assert_eq!(hashed(2).get(&key).await.unwrap(), None);
    let names = format!("{:?}", server.tell(&["KEYS", "*"]).await);
    assert!(names.contains("stampede:2:c:{#") && !names.contains("user"), "{names}");
    hashed(1).invalidate(&key).await.unwrap();
    assert_eq!(hashed(1).get(&key).await.unwrap(), None);
}

#[tokio::test]
async fn durations_without_an_end_are_taken() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    let key = Key::from("k");
    let grant = granted(&*remote, &key, &LeaseRequest::new(Duration::MAX, Duration::MAX)).await;
    let stored = envelope(grant.version, "x");
    assert_eq!(
        remote.fill(&key, &grant, Duration::MAX, stored).await.unwrap(),
        FillOutcome::Stored
    );
    let grant =
        granted(&*remote, &key, &LeaseRequest::new(Duration::ZERO, KEEP).seen(Some(grant.version)))
            .await;
    assert!(grant.version > version(1));
}

#[tokio::test]
async fn many_callers_share_one_connection() {
    let server = Server::start();
    let redis = server.redis();
    let calls: Vec<_> = (0..100_u32)
        .map(|n| {
            let remote = redis.clone().open(&format!("c{}", n % 5)).unwrap();
            tokio::spawn(async move { remote.probe(Shard::ONLY).await.unwrap() })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    let clients = server.tell(&["CLIENT", "LIST", "TYPE", "normal"]).await;
    assert_eq!(clients.text().unwrap().lines().count(), 2, "ours, and the one that asks");
}

/// Returns how many bytes the server has sent.
async fn sent_bytes(server: &Server) -> usize {
    let stats = server.tell(&["INFO", "stats"]).await;
    let sent = stats
        .text()
        .unwrap()
        .lines()
        .find_map(|line| line.strip_prefix("total_net_output_bytes:")?.parse().ok());
    sent.unwrap()
}

#[tokio::test]
async fn a_value_that_is_too_large_is_carried_once_and_not_by_an_acquire() {
    const MOST: usize = 1_000_000;

    let server = Server::start();
    let remote = server.redis().max_value_bytes(MOST).open("c").unwrap();
    let (key, name) = (Key::from("k"), "stampede:2:c:{k}:v");
    let large = String::from_utf8(envelope(version(7), &"x".repeat(MOST)).to_vec()).unwrap();
    server.tell(&["SET", name, &large]).await;

    let first = remote.get(&key).await.unwrap().unwrap();
    assert_eq!(first.len(), large.len(), "its size is not known before");
    let before = sent_bytes(&server).await;
    for _ in 0..5 {
        let head = remote.get(&key).await.unwrap().unwrap();
        assert_eq!(head, large.as_bytes()[..20], "its version, and no more");
    }
    // Another process, that knows no more than that there is something.
    let other = server.redis().max_value_bytes(MOST).open("c").unwrap();
    let grant = granted(&*other, &key, &ask()).await;
    let sent = sent_bytes(&server).await - before;
    assert!(sent < 50_000, "{sent} bytes");

    let stored = envelope(grant.version, "small");
    other.fill(&key, &grant, TTL, stored.clone()).await.unwrap();
    assert_eq!(remote.get(&key).await.unwrap(), Some(stored), "read whole again");
}

#[tokio::test]
async fn a_value_of_exactly_the_most_bytes_is_read_each_time() {
    let server = Server::start();
    let remote = server.redis().max_value_bytes(1000).open("c").unwrap();
    let key = Key::from("k");
    let grant = granted(&*remote, &key, &ask()).await;
    let stored = envelope(grant.version, &"x".repeat(980));
    assert_eq!(stored.len(), 1000);
    remote.fill(&key, &grant, TTL, stored.clone()).await.unwrap();
    for _ in 0..2 {
        assert_eq!(remote.get(&key).await.unwrap(), Some(stored.clone()));
    }
    let hit = remote.acquire(&key, &ask()).await.unwrap();
    assert!(matches!(hit, AcquireOutcome::Hit { value, .. } if value == stored));
}

#[tokio::test]
async fn an_announcement_in_one_database_is_not_heard_in_another() {
    let server = Server::start();
    let redis = |database: u8| {
        Redis::lazy(&format!("{}/{database}", server.url())).unwrap().namespace("shop")
    };
    let (_one, heard_in_0) = listening(&redis(0), "c").await;
    let (_two, heard_in_1) = listening(&redis(1), "c").await;
    let item = |key: &str| LogItem::Key(key.into());
    announce(&*redis(1).open("c").unwrap(), &[item("in 1")]).await;
    announce(&*redis(0).open("c").unwrap(), &[item("in 0")]).await;
    until("told", || heard_in_0.announced() == [item("in 0")]).await;
    until("told", || heard_in_1.announced() == [item("in 1")]).await;
}
