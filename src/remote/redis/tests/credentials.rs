//! Users and passwords that change while connections are open.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::remote::redis::credentials::{CredentialsFuture, RedisCredentials};
use crate::remote::redis::tests::*;

/// The password that the provider says, and how often it was asked.
struct Rotation {
    password: Mutex<String>,
    asked: AtomicU32,
}

impl Rotation {
    fn asked(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }

    fn answer(&self, validity: Option<Duration>) -> RedisCredentials {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let credentials = RedisCredentials::new("cache", self.password.lock().clone());
        validity.map_or(credentials.clone(), |validity| credentials.valid_for(validity))
    }
}

/// Makes a user with this password alone, and a handle that asks for it.
async fn rotating(server: &Server, validity: Option<Duration>) -> (Redis, Arc<Rotation>) {
    rotate(server, "first").await;
    let rotation =
        Arc::new(Rotation { password: Mutex::new("first".to_owned()), asked: AtomicU32::new(0) });
    let answers = Arc::clone(&rotation);
    let redis = server.redis().credentials(move || {
        let credentials = answers.answer(validity);
        async move { Ok(credentials) }
    });
    (redis, rotation)
}

/// Replaces the user's password.
async fn rotate(server: &Server, password: &str) {
    let password = format!(">{password}");
    let user = ["ACL", "SETUSER", "cache", "on", "resetpass", &password, "~*", "&*", "+@all"];
    server.tell(&user).await;
}

/// Ends all connections of the user.
async fn disconnect(server: &Server) {
    server.tell(&["CLIENT", "KILL", "USER", "cache"]).await;
}

/// Returns the numbers of the user's connections.
async fn connections(server: &Server) -> Vec<String> {
    let list = server.tell(&["CLIENT", "LIST"]).await;
    let lines = list.text().unwrap().lines().filter(|line| line.contains(" user=cache "));
    lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn each_connection_is_opened_with_the_password_of_the_moment() {
    let server = Server::start();
    let (redis, rotation) = rotating(&server, None).await;
    let (remote, notices) = listening(&redis, "c").await;
    fills(&*remote, &Key::from("k")).await;
    assert_eq!(rotation.asked(), 2, "commands and messages");

    rotate(&server, "second").await;
    *rotation.password.lock() = "second".to_owned();
    assert!(remote.get(&Key::from("k")).await.unwrap().is_some(), "open connections go on");
    disconnect(&server).await;
    until_ok("connected", async || remote.get(&Key::from("k")).await.ok().flatten()).await;
    until("subscribed", || notices.count(&Notice::Subscribed) == 2).await;
}

#[tokio::test]
async fn open_connections_are_authorized_anew_before_the_expiry() {
    let server = Server::start();
    let (redis, rotation) = rotating(&server, Some(Duration::from_secs(1))).await;
    let (remote, notices) = listening(&redis, "c").await;
    remote.probe(Shard::ONLY).await.unwrap();
    let before = connections(&server).await;
    assert_eq!(before.len(), 2);
    server.tell(&["CONFIG", "RESETSTAT"]).await;

    rotate(&server, "second").await;
    *rotation.password.lock() = "second".to_owned();
    until_ok("both have sent it twice", async || {
        let stats = server.tell(&["INFO", "commandstats"]).await;
        let stats = stats.text().unwrap();
        let auth = stats.lines().find_map(|line| line.strip_prefix("cmdstat_auth:calls="))?;
        let (calls, _) = auth.split_once(',')?;
        assert!(!auth.contains("failed_calls=1"), "{auth}");
        (calls.parse::<u32>().unwrap() >= 4).then_some(())
    })
    .await;
    assert_eq!(connections(&server).await, before, "the same connections");
    let there = server.redis().open("c").unwrap();
    announce(&*there, &[LogItem::Key("k".into())]).await;
    until("told", || notices.announced() == [LogItem::Key("k".into())]).await;
    assert_eq!(notices.count(&Notice::Subscribed), 1, "without a gap");
}

#[tokio::test]
async fn what_the_provider_says_wrongly_leaves_open_connections_as_they_are() {
    let server = Server::start();
    let (redis, rotation) = rotating(&server, Some(Duration::from_secs(1))).await;
    let remote = redis.open("c").unwrap();
    remote.probe(Shard::ONLY).await.unwrap();
    *rotation.password.lock() = "wrong".to_owned();
    until("asked again after a refusal", || rotation.asked() >= 4).await;
    fills(&*remote, &Key::from("k")).await;
}

#[tokio::test]
async fn a_connection_that_is_gone_is_not_authorized_any_more() {
    let server = Server::start();
    let (redis, rotation) = rotating(&server, Some(Duration::from_secs(1))).await;
    let remote = redis.open("c").unwrap();
    remote.probe(Shard::ONLY).await.unwrap();
    drop((remote, redis));
    until_ok("closed", async || connections(&server).await.is_empty().then_some(())).await;
    assert_eq!(Arc::strong_count(&rotation), 1, "nothing is left that would ask");
}

#[tokio::test]
async fn a_provider_that_fails_or_hangs_costs_no_request_more_than_its_deadline() {
    use crate::Stampede;

    let answers: [fn() -> CredentialsFuture<'static>; 3] = [
        || Box::pin(async { Err("no token".into()) }),
        || Box::pin(std::future::pending()),
        || panic!("no token"),
    ];
    let server = Server::start();
    for answer in answers {
        let redis = server.redis().credentials(answer).op_timeout(Duration::from_millis(50));
        let cache = Stampede::builder("c").ttl(TTL).redis(redis).build().unwrap();
        for key in 0..50_u32 {
            let value = cache.get_or_compute(key, || async { Ok::<_, std::io::Error>(7_u32) });
            assert_eq!(value.await.unwrap(), 7);
        }
        // A few calls until the breaker opens, and probes: not one for each request.
        let asked = cache.stats().remote_calls;
        assert!(asked < 25, "50 requests asked {asked} times");
    }
}

#[tokio::test]
async fn a_provider_that_works_again_brings_the_remote_back() {
    let server = Server::start();
    let fails = Arc::new(AtomicU32::new(3));
    let left = Arc::clone(&fails);
    let redis = server.redis().credentials(move || {
        let failed =
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        async move {
            match failed {
                Ok(_) => Err("no token yet".into()),
                Err(_) => Ok(RedisCredentials::new("default", "")),
            }
        }
    });
    let remote = redis.open("c").unwrap();
    assert_eq!(kind(remote.probe(Shard::ONLY).await), RemoteErrorKind::Connection);
    until_ok("back", async || remote.probe(Shard::ONLY).await.ok()).await;
}

#[tokio::test]
async fn the_user_and_the_database_of_an_applications_client_are_used() {
    let server = Server::start();
    rotate(&server, "first").await;
    let url = format!("redis://cache:first@127.0.0.1:{}/3", server.port);
    let redis = Redis::from_client(&redis::Client::open(url).unwrap()).namespace("shop");
    redis.check().await.unwrap();
    fills(&*redis.open("c").unwrap(), &Key::from("k")).await;
    assert_eq!(connections(&server).await.len(), 1);
    assert_eq!(server.tell(&["DBSIZE"]).await.int().unwrap(), 0, "database 0");
    assert!(!format!("{redis:?}").contains("first"));
}

#[tokio::test]
async fn a_refused_password_is_told_as_a_refusal() {
    let server = Server::start();
    let (redis, rotation) = rotating(&server, None).await;
    *rotation.password.lock() = "wrong".to_owned();
    assert_eq!(kind(redis.open("c").unwrap().probe(Shard::ONLY).await), RemoteErrorKind::Denied);
}

#[cfg(feature = "redis-legacy-lock")]
#[tokio::test]
async fn locks_use_the_provider_too() {
    use crate::remote::redis::{LegacyLock, RedisLock};

    let server = Server::start();
    server.tell(&["CONFIG", "SET", "requirepass", "secret"]).await;
    let open = Redis::lazy(&server.url()).unwrap().namespace("stampede");
    let redis = open.clone().credentials(|| async { Ok(RedisCredentials::default_user("secret")) });
    assert!(RedisLock::new(&open, "a").unwrap().try_acquire().await.is_err());
    assert!(RedisLock::new(&redis, "a").unwrap().try_acquire().await.unwrap().is_some());
    assert!(LegacyLock::new(&redis, "b").unwrap().try_acquire().await.unwrap().is_some());
}
