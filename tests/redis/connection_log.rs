//! The log says why there is no connection to Redis, and what to do about it.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tower_stampede::{Health, Redis, RedisCredentials};
use tracing::Level;

use crate::kit::log::{TextLog, assert_says};
use crate::kit::origin::{Origin, SECOND};
use crate::kit::redis::{Server, eventually};
use crate::kit::redis_caches::{assert_bridged, fresh_key, hasty_on, load};

/// A certificate for `localhost`, and its key. The keys protect nothing.
struct Certificate {
    pem: &'static str,
    key: &'static str,
}

macro_rules! certificate {
    ($name:literal) => {{
        Certificate {
            pem: include_str!(concat!("../../src/remote/redis/tests/certificates/", $name, ".pem")),
            key: include_str!(concat!("../../src/remote/redis/tests/certificates/", $name, ".key")),
        }
    }};
}

const MESSAGE: &str = "no connection to the remote can be made";

/// A server that shows a certificate, and asks clients for one of the same if `asks`. None where
/// the server was built without TLS.
fn tls_server(own: &Certificate, asks: bool) -> Option<(Server, String, tempfile::TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    let [cert, key] = ["cert", "key"].map(|name| folder.path().join(name).display().to_string());
    std::fs::write(&cert, own.pem).unwrap();
    std::fs::write(&key, own.key).unwrap();
    let server = Server::start();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let asks = if asks { "yes" } else { "no" };
    let set = ["CONFIG", "SET", "tls-cert-file", &cert, "tls-key-file", &key, "tls-ca-cert-file"];
    let set = set.into_iter().chain([&*cert, "tls-auth-clients", asks]).collect::<Vec<_>>();
    // A server may hang up where it was built without TLS.
    let has_tls = server.try_cli(&set).is_ok_and(|reply| !reply.is_error());
    if !has_tls || server.tell(&format!("CONFIG SET tls-port {port}")) != "+OK" {
        println!("not run: the server has no TLS");
        return None;
    }
    Some((server, format!("rediss://localhost:{port}"), folder))
}

/// Uses Redis until the log says why it cannot, and for a while after that. Returns that line.
async fn complaint(redis: Redis) -> String {
    let log = TextLog::default();
    let listening = log.listen(Level::INFO);
    let caches = [hasty_on(redis)];
    let complaints = || {
        let lines = log.lines().into_iter();
        lines.filter(|line| line.contains(MESSAGE)).collect::<Vec<_>>()
    };
    while complaints().is_empty() {
        assert_bridged(&caches).await;
    }
    // Both connections are tried again and again.
    tokio::time::sleep(SECOND).await;
    assert_bridged(&caches).await;
    let mut lines = complaints();
    assert_eq!(lines.len(), 1, "one line for each: {lines:#?}");
    drop(listening);
    assert!(!log.text().contains("s3cret"), "{}", log.text());
    lines.remove(0)
}

#[tokio::test]
async fn the_log_says_what_is_wrong_with_a_certificate() {
    let (localhost, expired) = (certificate!("localhost"), certificate!("expired"));
    for (shown, trusted, asks, cause) in [
        (&expired, &expired, false, "xpired"),
        (&localhost, &expired, false, "UnknownIssuer"),
        (&localhost, &localhost, true, "ertificate"),
    ] {
        let Some((_server, url, _folder)) = tls_server(shown, asks) else { return };
        let redis = Redis::lazy(&url)
            .unwrap()
            .namespace("stampede")
            .root_certificates(trusted.pem)
            .unwrap();
        let line = complaint(redis).await;
        assert_says(&line, &["WARN", "server=\"rediss://localhost:", "cause=\"", cause]);
        assert_says(&line, &["remedy=\"renew the certificate, or give `Redis::root_certificates`"]);
    }
}

#[tokio::test]
async fn the_log_says_what_is_wrong_with_a_user() {
    let user = "user shop on >right ~* &* +@all";
    let server = Server::configured(&[user, "requirepass other"]);
    for login in ["shop:s3cret@", ""] {
        let redis = Redis::lazy(&format!("redis://{login}{}", server.address()))
            .unwrap()
            .namespace("stampede");
        let line = complaint(redis).await;
        assert_says(&line, &["cause=\"", "remedy=\"correct user and password"]);
        assert!(!line.contains("shop"), "{line}");
    }
}

#[tokio::test]
async fn the_log_says_which_right_to_give_and_not_to_whom() {
    let server = Server::configured(&["user joe on >s3cret ~* resetchannels +@all"]);
    let redis = Redis::lazy(&format!("redis://joe:s3cret@{}", server.address()))
        .unwrap()
        .namespace("stampede");
    let (log, origin) = (TextLog::default(), Origin::new());
    let _listening = log.listen(Level::WARN);
    let cache = hasty_on(redis);
    load(&cache, &origin, &*fresh_key()).await;
    eventually("it is said", || log.text().contains("NOPERM")).await;
    assert_says(&log.text(), &[MESSAGE, "cause=\"NOPERM\"", "`Redis::acl_rules`"]);
    assert!(!log.text().contains("joe"), "{}", log.text());
}

#[tokio::test]
async fn the_log_says_how_a_credentials_provider_fails_and_says_it_again_after_it_has_worked() {
    let server = Server::start();
    let fails = |reason: &'static str| {
        let server = server.url();
        async move {
            let redis = Redis::lazy(&server).unwrap().namespace("stampede");
            complaint(match reason {
                "panicked" => redis.credentials(|| async { panic!("no token") }),
                "took longer than 5s" => redis.credentials(std::future::pending),
                _ => redis.credentials(|| async { Err("the vault is closed".into()) }),
            })
            .await
        }
    };
    for reason in ["failed: the vault is closed", "panicked", "took longer than 5s"] {
        let line = fails(reason).await;
        let cause = format!("cause=\"the credentials provider {reason}\"");
        assert_says(&line, &[&cause, "remedy=\"mend the credentials provider"]);
    }

    let works = Arc::new(AtomicBool::new(false));
    let answers = Arc::clone(&works);
    let redis =
        Redis::lazy(&server.url()).unwrap().namespace("stampede").credentials(move || {
            let works = answers.load(Ordering::SeqCst);
            async move {
                works.then(|| RedisCredentials::new("default", "")).ok_or_else(|| "closed".into())
            }
        });
    let log = TextLog::default();
    let _listening = log.listen(Level::WARN);
    let cache = hasty_on(redis);
    let said = || log.lines().iter().filter(|line| line.contains(MESSAGE)).count();
    let asked = async |times: usize| {
        while said() < times {
            assert_bridged(std::slice::from_ref(&cache)).await;
        }
    };
    asked(1).await;
    works.store(true, Ordering::SeqCst);
    eventually("it is up", || cache.health() == Health::Up).await;
    works.store(false, Ordering::SeqCst);
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    asked(2).await;
}
