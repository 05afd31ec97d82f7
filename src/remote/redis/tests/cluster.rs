//! Redis Cluster.

use crate::remote::redis::tests::server::is_since;
use crate::remote::redis::tests::*;

/// Starts three nodes that share the slots.
async fn cluster() -> Vec<Server> {
    let nodes: Vec<_> = (0..3).map(|_| Server::node()).collect();
    for (node, slots) in nodes.iter().zip(["0 5460", "5461 10922", "10923 16383"]) {
        let (from, to) = slots.split_once(' ').unwrap();
        let (from, to): (u16, u16) = (from.parse().unwrap(), to.parse().unwrap());
        let slots: Vec<_> = (from..=to).map(|slot| slot.to_string()).collect();
        let slots = slots.iter().map(String::as_str);
        node.tell(&["CLUSTER", "ADDSLOTS"].into_iter().chain(slots).collect::<Vec<_>>()).await;
        let bus = node.tell(&["CONFIG", "GET", "cluster-port"]).await;
        let bus = bus.array().unwrap().get(1).map(|bus| bus.text().unwrap().to_owned());
        let bus = bus.unwrap_or_else(|| (node.port + 10_000).to_string());
        let port = node.port.to_string();
        nodes[0].tell(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await;
    }
    for node in &nodes {
        until_ok("the cluster is complete", async || {
            let info = node.tell(&["CLUSTER", "INFO"]).await;
            let info = info.text().unwrap();
            (info.contains("cluster_state:ok") && info.contains("known_nodes:3")).then_some(())
        })
        .await;
    }
    nodes
}

fn urls(servers: &[Server]) -> Vec<String> {
    servers.iter().map(Server::url).collect()
}

#[tokio::test]
async fn a_cluster_serves_keys_of_every_slot_and_hears_every_node() {
    let nodes = cluster().await;
    let redis = Redis::cluster(urls(&nodes)).unwrap().namespace("stampede");
    redis.check().await.unwrap();
    let (remote, notices) = listening(&redis, "c").await;
    let other = Redis::cluster(urls(&nodes[2..])).unwrap().namespace("stampede").open("c").unwrap();
    for n in 0..50_u32 {
        let key = Key::from(n);
        fills(&*remote, &key).await;
        other.invalidate(&key).await.unwrap();
        let item = LogItem::Key(key);
        announce(&*other, std::slice::from_ref(&item)).await;
        until("told", || notices.announced().last() == Some(&item)).await;
    }
    let announced = announce(&*other, &[tag("t")]).await;
    assert_eq!(announced.header.last, 51);
    let said = log(&*remote).positions(&["t".into()]).await.unwrap().unwrap();
    assert_eq!((said.header, said.positions), (announced.header, vec![51]));
    other.probe(Shard::ONLY).await.unwrap();
    for node in &nodes {
        node.tell(&["SCRIPT", "FLUSH"]).await;
    }
    for n in 0..10_u32 {
        fills(&*remote, &Key::from(n)).await;
    }
}

#[tokio::test]
async fn a_handle_for_one_server_at_a_node_of_a_cluster_fails_its_check_each_time() {
    let nodes = cluster().await;
    for node in nodes.iter().cycle().take(30) {
        let error = node.redis().check().await.unwrap_err();
        assert!(error.to_string().contains("`Redis::cluster`"), "{error}");
    }
}

#[tokio::test]
async fn a_check_of_a_cluster_names_the_dead_node_each_time() {
    let mut nodes = cluster().await;
    nodes[1].kill();
    for _ in 0..30 {
        let error =
            Redis::cluster(urls(&nodes)).unwrap().namespace("shop").check().await.unwrap_err();
        assert_eq!(error.to_string(), format!("{}: cannot connect", nodes[1].url()));
    }
}

#[tokio::test]
async fn a_check_of_a_cluster_asks_each_node_for_each_right() {
    let nodes = cluster().await;
    for node in &nodes {
        let open = ["ACL", "SETUSER", "default", "+zadd"];
        let closed = ["ACL", "SETUSER", "default", "-zadd"];
        node.tell(&closed).await;
        let error =
            Redis::cluster(urls(&nodes)).unwrap().namespace("shop").check().await.unwrap_err();
        assert!(error.to_string().starts_with(&node.url()), "{error}");
        assert!(error.to_string().contains("zadd"), "{error}");
        node.tell(&open).await;
    }
    Redis::cluster(urls(&nodes)).unwrap().namespace("shop").check().await.unwrap();
}

#[tokio::test]
async fn a_user_of_a_cluster_needs_no_more_than_is_listed() {
    let nodes = cluster().await;
    let rules = Redis::cluster(urls(&nodes)).unwrap().namespace("shop").acl_rules().unwrap();
    let mut words = vec!["ACL", "SETUSER", "cache", "reset", "on", ">secret"];
    // What came with Redis 7 is welcome and not needed.
    let is_known = |right: &&str| is_since(7) || !matches!(*right, "+ssubscribe" | "+spublish");
    words.extend(rules.split(' ').filter(is_known));
    for node in &nodes {
        node.tell(&words).await;
    }
    let urls = nodes.iter().map(|node| format!("redis://cache:secret@127.0.0.1:{}", node.port));
    let redis = Redis::cluster(urls).unwrap().namespace("shop");
    redis.check().await.unwrap();
    let remote = redis.open("c").unwrap();
    for n in 0..10_u32 {
        fills(&*remote, &Key::from(n)).await;
    }
    announce(&*remote, &[tag("t")]).await;
    assert!(log(&*remote).read(None).await.unwrap().is_some());
}

#[tokio::test]
async fn the_nodes_of_a_cluster_that_live_are_served_while_another_is_frozen_or_dead() {
    let mut nodes = cluster().await;
    for node in &nodes {
        node.tell(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).await;
    }
    let remote = Redis::cluster(urls(&nodes)).unwrap().namespace("stampede").open("c").unwrap();
    remote.probe(Shard::ONLY).await.ok();
    nodes[1].signal("-STOP");
    let live = async |key: &Key| {
        let acquired = remote.acquire(key, &ask()).await;
        matches!(acquired, Ok(AcquireOutcome::Granted(_))).then_some(())
    };
    // `foo` has slot 12182, `b` slot 3300.
    until_ok("served", async || live(&Key::from("foo")).await).await;
    until_ok("served", async || live(&Key::from("b")).await).await;

    // From the beginning, with the frozen node among those to ask first.
    let late = Redis::cluster(urls(&nodes)).unwrap().namespace("stampede").open("c").unwrap();
    let found = async || late.get(&Key::from("foo")).await.ok();
    until_ok("found beside a frozen node", found).await;
    nodes[1].signal("-CONT");
    nodes[1].kill();
    until_ok("found beside a dead node", found).await;
}

/// Gives an empty slot to another node, and returns the number of that one.
async fn move_slot(nodes: &[Server], slot: u16) -> usize {
    let slot = slot.to_string();
    let mut from = nodes.len();
    for (n, node) in nodes.iter().enumerate() {
        let id = node.tell(&["CLUSTER", "MYID"]).await;
        let lines = node.tell(&["CLUSTER", "NODES"]).await;
        let own = lines.text().unwrap().lines().find(|line| line.contains("myself")).unwrap();
        assert!(own.starts_with(id.text().unwrap()));
        let has = |range: &str| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let [first, last] = [first, last].map(|end| end.parse::<u16>().unwrap_or(u16::MAX));
            (first..=last).contains(&slot.parse().unwrap())
        };
        if own.split(' ').skip(8).any(has) {
            from = n;
            node.tell(&["FLUSHALL"]).await;
        }
    }
    let to = (from + 1) % nodes.len();
    let id = nodes[to].tell(&["CLUSTER", "MYID"]).await;
    for node in [to, from].into_iter().chain((0..nodes.len()).filter(|n| ![to, from].contains(n))) {
        nodes[node].tell(&["CLUSTER", "SETSLOT", &slot, "NODE", id.text().unwrap()]).await;
    }
    to
}

#[tokio::test]
async fn another_node_counts_as_another_connection_where_it_has_the_log_and_only_there() {
    use crate::remote::redis::cluster::slot_of;
    use crate::remote::redis::names::Names;

    let nodes = cluster().await;
    let remote = Redis::cluster(urls(&nodes)).unwrap().namespace("shop").open("c").unwrap();
    let connection = || remote.connection(log(&*remote).shard());
    announce(&*remote, &[tag("t")]).await;
    let names = Names::new("stampede", "c").unwrap();
    let log_slot = slot_of(names.log().tags.as_bytes());
    let first = connection();
    for n in 0..20_u32 {
        let key = Key::from(n);
        let slot = slot_of(&names.value(&key));
        if slot != log_slot {
            move_slot(&nodes, slot).await;
            until_ok("followed", async || remote.get(&key).await.ok()).await;
        }
    }
    // The map was read again meanwhile.
    assert_eq!(connection(), first);
    move_slot(&nodes, log_slot).await;
    announce(&*remote, &[tag("t")]).await;
    assert_ne!(connection(), first);
}

#[tokio::test]
async fn a_node_that_knows_of_no_slots_does_not_say_where_keys_are() {
    let nodes = cluster().await;
    // Reset, or begun anew without its file: it answers, and first.
    let stranger = Server::node();
    let urls = [&[stranger.url()], &*urls(&nodes)].concat();
    let remote = Redis::cluster(urls).unwrap().namespace("stampede").open("c").unwrap();
    for n in 0..10_u32 {
        remote.get(&Key::from(n)).await.unwrap();
    }
}

#[tokio::test]
async fn a_node_that_knows_of_no_slots_is_not_listened_to() {
    let nodes = cluster().await;
    let stranger = Server::node();
    let all = [&[stranger.url()], &*urls(&nodes)].concat();
    let (_remote, notices) =
        listening(&Redis::cluster(all).unwrap().namespace("stampede"), "c").await;
    let other = Redis::cluster(urls(&nodes)).unwrap().namespace("stampede").open("c").unwrap();
    let item = LogItem::Key(Key::from("k"));
    announce(&*other, std::slice::from_ref(&item)).await;
    until("told", || notices.announced().last() == Some(&item)).await;
}

#[test]
fn nodes_that_differ_in_more_than_their_address_are_refused() {
    let urls = ["redis://joe:secret@a", "redis://joe:other@b"];
    let error = Redis::cluster(urls).unwrap_err();
    assert!(!error.to_string().contains("secret"));
    assert_eq!(Redis::cluster(["unix:///x"]).unwrap_err().fields(), ["url"]);
    assert_eq!(Redis::cluster([""; 0]).unwrap_err().fields(), ["url"]);
}

#[tokio::test]
async fn the_connections_to_a_cluster_are_authorized_anew_before_their_credentials_expire() {
    use std::sync::atomic::{AtomicU32, Ordering};

    use crate::remote::redis::RedisCredentials;

    let nodes = cluster().await;
    let rotate = async |password: &str| {
        let password = format!(">{password}");
        for node in &nodes {
            let user =
                ["ACL", "SETUSER", "cache", "on", "resetpass", &password, "~*", "&*", "+@all"];
            node.tell(&user).await;
        }
    };
    rotate("first").await;
    let said = Arc::new((Mutex::new("first"), AtomicU32::new(0)));
    let saying = Arc::clone(&said);
    let redis =
        Redis::cluster(urls(&nodes)).unwrap().namespace("stampede").credentials(move || {
            saying.1.fetch_add(1, Ordering::SeqCst);
            let credentials = RedisCredentials::new("cache", *saying.0.lock());
            async move { Ok(credentials.valid_for(Duration::from_secs(1))) }
        });
    let remote = redis.open("c").unwrap();
    fills(&*remote, &Key::from("k")).await;

    rotate("second").await;
    *said.0.lock() = "second";
    let asked = said.1.load(Ordering::SeqCst);
    until("asked twice", || said.1.load(Ordering::SeqCst) >= asked + 2).await;
    // New connections are opened with what is right by now.
    for node in &nodes {
        node.tell(&["CLIENT", "KILL", "USER", "cache"]).await;
    }
    for n in 0..20_u32 {
        let key = Key::from(n);
        until_ok("works", async || remote.get(&key).await.ok()).await;
    }
}

#[tokio::test]
async fn a_lock_on_a_cluster_has_a_record_and_tells_of_its_release() {
    use crate::remote::redis::RedisLock;

    let nodes = cluster().await;
    for name in ["orders:1", "{orders}:2", "3"] {
        let redis = || {
            Redis::cluster(urls(&nodes))
                .unwrap()
                .namespace("stampede")
                .op_timeout(Duration::from_secs(2))
        };
        let (here, there) =
            (RedisLock::new(&redis(), name).unwrap(), RedisLock::new(&redis(), name).unwrap());
        let guard = here.try_acquire().await.unwrap().unwrap();
        let before = guard.fencing_token();
        let waiter = tokio::spawn(async move { there.acquire(KEEP).await.unwrap().unwrap() });
        guard.release().await.unwrap();
        let next = waiter.await.unwrap();
        assert!(next.fencing_token() > before);
        next.release().await.unwrap();
    }
}
