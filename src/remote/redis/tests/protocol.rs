//! What each operation does, once.

use crate::key::Tag;
use crate::lease::grant::{FillOutcome, ServerTime, Token};
use crate::remote::InvalidatedRecords;
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
        AcquireOutcome::Hit { envelope, now } => {
            assert_eq!(envelope, stored);
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
    assert_eq!(remote.invalidate(&key).await.unwrap(), InvalidatedRecords::default());
    let grant = granted(&*remote, &key, &ask()).await;
    let found = remote.invalidate(&key).await.unwrap();
    assert_eq!(found, InvalidatedRecords { value: false, lease: true });
    let late = remote.fill(&key, &grant, TTL, envelope(grant.version, "old")).await.unwrap();
    assert_eq!(late, FillOutcome::Refused);
    remote.put(&key, TTL, envelope(None, "new")).await.unwrap();
    let found = remote.invalidate(&key).await.unwrap();
    assert_eq!(found, InvalidatedRecords { value: true, lease: false });
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
    server.tell(&["LPUSH", "stampede:1:c:{k}:v", "x"]).await;
    server.tell(&["LPUSH", "stampede:1:c:{k}:r", "x"]).await;
    assert_eq!(remote.get(&key).await.unwrap(), Some(Bytes::new()));
    let grant = granted(&*remote, &key, &ask()).await;
    let stored = envelope(grant.version, "right");
    assert_eq!(remote.fill(&key, &grant, TTL, stored.clone()).await.unwrap(), FillOutcome::Stored);
    assert_eq!(remote.get(&key).await.unwrap(), Some(stored));
}

#[tokio::test]
async fn the_log_keeps_the_latest_time_of_each_tag() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    let (a, b) = (Tag::from("a"), Tag::from(&b"\0\xff b"[..]));
    let now = remote.invalidate_tags(&[a.clone(), b.clone()]).await.unwrap();
    let mut log = remote.read_tags().await.unwrap();
    log.sort_by_key(|(tag, _)| tag.as_bytes().to_vec());
    assert_eq!(log, [(b.clone(), now), (a.clone(), now)]);

    let later = ServerTime::from_millis(now.as_millis() + 5000);
    let earlier = ServerTime::from_millis(now.as_millis() - 5000);
    remote.restore_tags(&[]).await.unwrap();
    remote.restore_tags(&[(a.clone(), later), (b.clone(), earlier)]).await.unwrap();
    let again = remote.invalidate_tags(std::slice::from_ref(&a)).await.unwrap();
    assert!(again < later);
    let mut log = remote.read_tags().await.unwrap();
    log.sort_by_key(|(_, time)| *time);
    assert_eq!(log, [(b, now), (a.clone(), later)], "never backwards");

    remote.trim_tags(later).await.unwrap();
    assert_eq!(remote.read_tags().await.unwrap(), [(a, later)]);
}

#[tokio::test]
async fn what_cannot_be_a_time_in_the_log_is_left_out() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    let zadd = ["ZADD", "stampede:1:c:tags", "inf", "x", "-5", "y", "7", "z"];
    server.tell(&zadd).await;
    assert_eq!(remote.read_tags().await.unwrap(), [(Tag::from("z"), ServerTime::from_millis(7))]);
}

#[tokio::test]
async fn a_probe_reads_the_clock() {
    let server = Server::start();
    let remote = server.redis().open("c").unwrap();
    let first = remote.probe().await.unwrap();
    let wall = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    assert!(wall.abs_diff(first.as_millis()) < 60_000);
    assert!(remote.probe().await.unwrap() >= first);
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
            tokio::spawn(async move { remote.probe().await.unwrap() })
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
    let (key, name) = (Key::from("k"), "stampede:1:c:{k}:v");
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
    assert!(matches!(hit, AcquireOutcome::Hit { envelope, .. } if envelope == stored));
}
