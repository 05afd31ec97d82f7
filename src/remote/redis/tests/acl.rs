//! What is asked of a server before it is used, and what is told of a URL.

use std::error::Error as _;

use crate::lease::grant::Stamp;
use crate::remote::redis::tests::*;
use crate::{ConfigError, RedisLock, Stampede};

/// Makes a user with exactly `rules`, and returns a `Redis` that connects as this user.
async fn user(server: &Server, rules: &str) -> Redis {
    let mut words = vec!["ACL", "SETUSER", "cache", "reset", "on", ">secret"];
    words.extend(rules.split(' '));
    server.tell(&words).await;
    Redis::lazy(&format!("redis://cache:secret@127.0.0.1:{}/0", server.port))
        .unwrap()
        .namespace("shop")
}

#[tokio::test]
async fn a_check_says_that_a_server_takes_no_more_clients() {
    let server = Server::start();
    let _held = std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    server.tell(&["CONFIG", "SET", "maxclients", "1"]).await;
    for _ in 0..30 {
        let error = server.redis().check().await.unwrap_err();
        let said = format!("{error} {:?}", std::error::Error::source(&error));
        assert!(said.contains("max number of clients") || said.contains("maxclients"), "{said}");
    }
}

#[tokio::test]
async fn a_user_with_exactly_the_listed_rights_can_do_everything() {
    let server = Server::start();
    let rules = server.redis().namespace("shop").acl_rules().unwrap();
    let redis = user(&server, &rules).await;
    redis.check().await.unwrap();

    let (remote, notices) = listening(&redis, "c").await;
    let other = redis.open("c").unwrap();
    let key = Key::from("k");
    let grant = granted(&*remote, &key, &ask()).await;
    other.acquire(&key, &ask().register()).await.unwrap();
    assert!(remote.renew(&key, &grant, &ask()).await.unwrap());
    remote.fill(&key, &grant, TTL, envelope(grant.version, "x")).await.unwrap();
    other.invalidate(&key).await.unwrap();
    let items = [tag("t"), LogItem::Key(key.clone()), LogItem::Everything];
    let announced = announce(&*other, &items).await.header;
    until("told", || notices.announced() == items).await;
    let start = Stamp::new(announced.epoch, 0);
    log(&*other).announce(&[tag("u")], Some(start)).await.unwrap();
    let read = log(&*remote).read(Some(start)).await.unwrap().unwrap();
    assert_eq!(read.missed.len(), 3);
    log(&*remote).read(None).await.unwrap();
    let said = log(&*remote).positions(&["t".into(), "u".into()]).await.unwrap().unwrap();
    assert_eq!(said.positions, [1, 4]);
    let (_, put) = remote.put(&key, TTL, envelope(None, "x")).await.unwrap();
    let grant = granted(&*remote, &key, &ask().seen(Some(put))).await;
    assert!(remote.abandon(&key, &grant.token, Some(LEASE)).await.unwrap());
    server.tell(&["SCRIPT", "FLUSH"]).await;
    remote.probe(Shard::ONLY).await.unwrap();

    let log = server.tell(&["ACL", "LOG"]).await;
    assert_eq!(log.array().unwrap(), [], "nothing was refused");
}

#[tokio::test]
async fn every_listed_right_is_needed() {
    let server = Server::start();
    let rules = server.redis().namespace("shop").acl_rules().unwrap();
    // A connection without a name is as good as one with a name.
    let is_needed = |right: &&str| !matches!(*right, "+client|setname" | "resetchannels");
    for right in rules.split(' ').filter(is_needed) {
        let fewer: Vec<_> = rules.split(' ').filter(|other| *other != right).collect();
        let fewer = fewer.join(" ");
        let error = user(&server, &fewer).await.check().await.expect_err(right);
        let told = format!("{error} {:?}", error.source().map(ToString::to_string)).to_lowercase();
        let name = right.trim_start_matches('+').split('|').next().unwrap();
        let named = match &right[..1] {
            "~" => told.contains("key"),
            "&" => told.contains("channel"),
            _ => told.contains(name),
        };
        assert!(named, "{right}: {told}");
    }
}

#[tokio::test]
async fn a_lock_needs_the_same_rights_on_its_name_and_its_record() {
    let server = Server::start();
    let rules = server.redis().namespace("shop").acl_rules().unwrap();
    let redis = user(&server, &format!("{rules} ~orders:* ~{{orders:*")).await;
    let lock = RedisLock::new(&redis, "orders:42").unwrap().lease(LEASE);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let waiter = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire(KEEP).await.unwrap().unwrap() }
    });
    until_ok("registered", async || {
        let fields = server.tell(&["HKEYS", "{orders:42}:stampede-lock"]).await;
        (fields.array().unwrap().len() == 3).then_some(())
    })
    .await;
    assert!(guard.extend(LEASE).await.unwrap());
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    let log = server.tell(&["ACL", "LOG"]).await;
    assert_eq!(log.array().unwrap(), [], "nothing was refused");
}

/// Returns how many connections the server lists by this name.
async fn named(server: &Server, name: &str) -> usize {
    let list = server.tell(&["CLIENT", "LIST"]).await;
    // The connection that asks has our name too.
    let others = list.text().unwrap().lines().filter(|line| !line.contains("cmd=client"));
    others.filter(|line| line.contains(&format!(" name={name} "))).count()
}

#[tokio::test]
async fn the_connections_for_commands_and_for_messages_have_the_name_that_is_set() {
    let server = Server::start();
    let (remote, _notices) = listening(&server.redis(), "c").await;
    remote.probe(Shard::ONLY).await.unwrap();
    assert_eq!(named(&server, "tower-stampede").await, 2);
    let shop = server.redis().client_name("shop:front").unwrap();
    let (shop, _more) = listening(&shop, "c").await;
    shop.probe(Shard::ONLY).await.unwrap();
    assert_eq!(named(&server, "shop:front").await, 2);
}

#[tokio::test]
async fn a_user_who_may_not_name_a_connection_connects_and_listens() {
    let server = Server::start();
    let rules = server.redis().namespace("shop").acl_rules().unwrap();
    let redis = user(&server, &rules.replace(" +client|setname", "")).await;
    redis.check().await.unwrap();
    let (remote, _notices) = listening(&redis, "c").await;
    fills(&*remote, &Key::from("k")).await;
    assert_eq!(named(&server, "tower-stampede").await, 0);
}

#[test]
fn a_client_name_that_redis_refuses_is_refused_with_its_character() {
    let redis = || Redis::lazy("redis://127.0.0.1").unwrap().namespace("stampede");
    for odd in ["a b", "a\nb", "caf\u{e9}"] {
        let error = redis().client_name(odd).expect_err(odd);
        assert_eq!(error.fields(), ["client_name"]);
        assert!(error.to_string().contains("character"), "{error}");
    }
    assert!(redis().client_name(&"x".repeat(129)).unwrap_err().to_string().contains("129"));
    drop(redis().client_name(&"x".repeat(128)).unwrap());
    drop(redis().client_name("").unwrap());
}

#[tokio::test]
async fn a_server_that_speaks_only_resp2_sends_messages_too() {
    let server = Server::with(&["--rename-command", "HELLO", ""]);
    let (here, notices) = listening(&server.redis(), "c").await;
    let there = server.redis().open("c").unwrap();
    announce(&*there, &[LogItem::Key("k".into())]).await;
    until("told", || notices.announced() == [LogItem::Key("k".into())]).await;
    here.probe(Shard::ONLY).await.unwrap();
}

#[tokio::test]
async fn a_refused_right_is_denied_and_not_a_broken_connection() {
    let server = Server::start();
    let rules = server.redis().namespace("shop").acl_rules().unwrap();
    let remote = user(&server, &rules.replace(" +hset", "")).await.open("c").unwrap();
    let refused = remote.acquire(&Key::from("k"), &ask()).await;
    assert_eq!(kind(refused), RemoteErrorKind::Denied);
    assert_eq!(remote.get(&Key::from("k")).await.unwrap(), None);
}

#[tokio::test]
async fn without_a_namespace_nothing_is_built_and_the_error_names_the_remedy() {
    // No server is asked for it.
    let redis = Redis::lazy("redis://127.0.0.1:1").unwrap();
    let cache = Stampede::<u64>::builder("c").ttl(TTL).redis(redis.clone()).build();
    let checked = redis.check().await.unwrap_err();
    let checked = checked.source().unwrap().downcast_ref::<ConfigError>().unwrap().clone();
    let errors = [
        cache.err().unwrap(),
        checked,
        redis.acl_rules().unwrap_err(),
        RedisLock::new(&redis, "a").err().unwrap(),
        #[cfg(feature = "redis-legacy-lock")]
        crate::LegacyLock::new(&redis, "a").err().unwrap(),
    ];
    for error in errors {
        assert_eq!(error.fields(), ["namespace"]);
        let said = error.to_string();
        assert!(said.contains("all applications of a server"), "{said}");
        assert!(said.contains(".namespace(\"shop\")"), "{said}");
    }
}

#[tokio::test]
async fn connecting_says_what_is_wrong() {
    let server = Server::start();
    Redis::connect(&server.url()).await.unwrap().namespace("shop").check().await.unwrap();
    let error = Redis::connect("redis://127.0.0.1:1").await.unwrap_err();
    assert_eq!(error.kind(), Some(RemoteErrorKind::Connection));
    assert_eq!(error.to_string(), "cannot connect");
    let error = Redis::connect("http://127.0.0.1").await.unwrap_err();
    assert!(error.source().unwrap().to_string().contains("scheme"));
    let error = server.redis().namespace("a b").check().await.unwrap_err();
    assert!(error.source().unwrap().to_string().contains("`namespace`"));
}

#[tokio::test]
async fn connecting_names_a_missing_command_and_leaves_names_for_later() {
    let server = Server::start();
    let everywhere = server.redis().namespace("shop").acl_rules().unwrap().replace("shop:2:", "");
    let url = format!("redis://cache:secret@127.0.0.1:{}/0", server.port);
    for command in ["get", "hset", "publish", "zrangebyscore", "zadd", "subscribe"] {
        let right = format!("+{command}");
        let fewer: Vec<_> = everywhere.split(' ').filter(|other| *other != right).collect();
        drop(user(&server, &fewer.join(" ")).await);
        let error = Redis::connect(&url).await.expect_err(command);
        assert!(error.to_string().to_lowercase().contains(command), "{command}: {error}");
    }
    // A user of one namespace, which is said after connecting.
    let rules = server.redis().namespace("shop").acl_rules().unwrap();
    drop(user(&server, &rules).await);
    let redis = Redis::connect(&url).await.unwrap();
    assert!(redis.check().await.is_err());
    redis.namespace("shop").check().await.unwrap();
}

/// The user of the page, whose rights are below `shop:2:*` alone.
#[tokio::test]
async fn connecting_names_a_command_that_a_user_of_one_namespace_may_not_send() {
    let server = Server::start();
    let rules = server.redis().namespace("shop").acl_rules().unwrap();
    let url = format!("redis://cache:secret@127.0.0.1:{}", server.port);
    for command in ["hset", "get", "publish", "evalsha", "subscribe", "zrangebyscore", "set"] {
        let right = format!("+{command}");
        let fewer: Vec<_> = rules.split(' ').filter(|other| *other != right).collect();
        drop(user(&server, &fewer.join(" ")).await);
        let error = Redis::connect(&url).await.expect_err(command);
        assert!(error.to_string().to_lowercase().contains(command), "{command}: {error}");
    }
    drop(user(&server, &rules).await);
    Redis::connect(&url).await.unwrap().namespace("shop").check().await.unwrap();
}

#[test]
fn a_url_that_makes_no_sense_is_refused_without_being_quoted() {
    let urls = [
        "",
        "host:6379",
        "http://secret@host",
        "redis://:secret@",
        "redis://host:secret",
        "redis://:secret@host/db",
        "redis://host:99999",
    ];
    for url in urls {
        let error = Redis::lazy(url).expect_err(url);
        assert_eq!(error.fields(), ["url"]);
        assert!(!format!("{error} {error:?}").contains("secret"), "{url}");
    }
}

#[test]
fn a_url_is_shown_without_user_and_password() {
    for url in ["redis://joe:secret@host:7000/3", "valkey://joe:secret@host:7000"] {
        let shown = format!("{:?}", Redis::lazy(url).unwrap().namespace("shop"));
        assert_eq!(shown, r#"Redis { servers: "redis://host:7000", namespace: "shop", .. }"#);
    }
    let shown = format!(
        "{:?}",
        Redis::lazy("unix:///joe?user=joe&pass=secret").unwrap().namespace("stampede")
    );
    assert!(shown.contains("unix") && !shown.contains("joe") && !shown.contains("secret"));
}
