//! The log of a process tells what happened: another process was killed, Redis stood still,
//! Redis came back.

use std::process::{Child, Command, Stdio};

use tower_stampede::{Health, Redis, Stampede};
use tracing::Level;

use crate::kit::log::{TextLog, assert_says};
use crate::kit::origin::{MINUTE, Origin, SECOND};
use crate::kit::redis::Cluster;
use crate::kit::redis::{Proxy, Server, eventually};
use crate::kit::redis_caches::hasty_on;
use crate::kit::redis_caches::{LIMIT, fresh_key, load};
use crate::kit::spawn;

/// Where the other process finds Redis; it is there in that process alone.
const URL: &str = "OPERATOR_LOG_REDIS";

const KEY: &str = "report:7";

fn shop(url: &str) -> Stampede<u64> {
    let redis = Redis::lazy(url).unwrap().namespace("stampede").op_timeout(SECOND);
    let builder = Stampede::builder("shop").ttl(60 * MINUTE).lease(4 * SECOND);
    builder.wait_timeout(LIMIT).redis(redis).build().unwrap()
}

/// A process that runs this test alone, and finds the URL of Redis in a variable.
pub(super) struct OtherProcess(Child);

impl OtherProcess {
    pub(super) fn start(variable: &str, url: &str) -> Self {
        let test = std::thread::current().name().expect("a test's thread has its name").to_owned();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &test]).env(variable, url);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    pub(super) fn kill(&mut self) {
        // SIGKILL: it gives nothing up.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        // It may be dead already: no matter.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for the next line, the `n`th.
async fn line(log: &TextLog, n: usize) -> String {
    eventually("there is another line", || log.lines().len() > n).await;
    log.lines().swap_remove(n)
}

// On one thread: the subscriber is that thread's.
#[tokio::test]
async fn the_log_tells_of_a_killed_leader_of_a_frozen_redis_and_of_its_return() {
    if let Ok(url) = std::env::var(URL) {
        let forever = || std::future::pending::<Result<u64, std::io::Error>>();
        let _ = shop(&url).get_or_compute(KEY, forever).await;
        return;
    }
    let server = Server::configured(&["user operator on >s3cret ~* &* +@all"]);
    let url = format!("redis://operator:s3cret@{}/", server.address());
    let (log, origin) = (TextLog::default(), Origin::new());
    let _listening = log.listen(Level::INFO);
    let cache = shop(&url);
    assert_eq!(cache.get("nothing is here").await, None);
    eventually("it listens", || cache.health() == Health::Up).await;

    let mut other = OtherProcess::start(URL, &url);
    let lock = format!("stampede:2:shop:{{{KEY}}}:l");
    eventually("the other process computes", || server.tell(&format!("EXISTS {lock}")) == ":1")
        .await;
    let reader = {
        let (cache, origin) = (cache.clone(), origin.clone());
        spawn(async move { load(&cache, &origin, KEY).await })
    };
    let slow = line(&log, 0).await;
    other.kill();
    assert_eq!(reader.await.unwrap(), 1, "this process has computed");
    let taken_over = line(&log, 1).await;

    server.freeze();
    // Each request is answered. Some calls to Redis fail; then none is made.
    while cache.health() == Health::Up {
        load(&cache, &origin, &*fresh_key()).await;
    }
    let away = line(&log, 2).await;
    tokio::time::sleep(SECOND).await;
    server.thaw();
    eventually("it is back", || cache.health() == Health::Up).await;
    let back = line(&log, 3).await;

    let text = log.text();
    println!("{text}");
    let hash = format!("key_hash={}", cache.hash_of(KEY));
    assert_says(&slow, &[" INFO tower_stampede: ", "another process still computes this key"]);
    assert_says(&slow, &["has waited", "cache=\"shop\"", &hash, "waited=", "s lease=4s"]);
    assert_says(&taken_over, &[" INFO tower_stampede: ", "the process that computed this key"]);
    assert_says(&taken_over, &["killed, frozen or cut off", "this process computes", &hash]);
    let server_is = format!("server=\"redis://{}\"", server.address());
    assert_says(&away, &[" WARN tower_stampede: ", "the remote is away", "computes for itself"]);
    assert_says(&away, &["cache=\"shop\"", &server_is]);
    // Of a call on an open connection, or of a connection that is not made in time.
    let errors = ["error=\"timeout\"", "error=\"connection\""];
    assert!(errors.iter().any(|error| away.contains(error)), "{away}");
    assert_says(&back, &[" WARN tower_stampede: ", "the remote answers again", &server_is]);
    assert_says(&back, &["away_for="]);
    assert_eq!(text.lines().count(), 4, "one line for each");
    assert!(!text.contains("s3cret") && !text.contains("operator"), "no credentials");
    assert!(!text.contains(KEY), "no keys, unless the application wants them");
    assert!(!text.contains("000000"), "no unrounded numbers: {text}");
}

#[tokio::test]
async fn the_log_names_the_node_of_a_cluster_that_does_not_answer() {
    let cluster = Cluster::start();
    for node in cluster.nodes() {
        // The others go on.
        node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let (log, origin) = (TextLog::default(), Origin::new());
    let _listening = log.listen(Level::INFO);
    let cache = hasty_on(Redis::cluster(cluster.urls()).unwrap().namespace("stampede"));
    load(&cache, &origin, &*fresh_key()).await;
    cluster.nodes()[1].freeze();
    while !log.text().contains("the remote is away") {
        load(&cache, &origin, &*fresh_key()).await;
    }
    let lines = log.lines();
    let frozen = format!("redis://{}", cluster.nodes()[1].address());
    let away = lines.iter().find(|line| line.contains("the remote is away")).unwrap();
    assert_says(away, &["WARN", &format!("server=\"{frozen}\"")]);
    assert_eq!(cache.servers_away(), [frozen]);
    cluster.nodes()[1].thaw();
}

/// Returns what a process says about a server that refuses a command: by `Redis::check`, and in
/// the log once requests were answered.
async fn said_of(server: &Server, line: &str) -> (String, String) {
    said_at(&server.url(), line).await
}

async fn said_at(url: &str, line: &str) -> (String, String) {
    let (log, origin) = (TextLog::default(), Origin::new());
    let listening = log.listen(Level::INFO);
    let cache = hasty_on(Redis::lazy(url).unwrap().namespace("stampede"));
    let until = tokio::time::Instant::now() + MINUTE;
    while !log.text().contains(line) {
        load(&cache, &origin, &*fresh_key()).await;
        tokio::time::sleep(SECOND / 100).await;
        assert!(tokio::time::Instant::now() < until, "nothing says {line:?}: {}", log.text());
    }
    assert_eq!(cache.health(), Health::Degraded);
    drop(listening);
    let checked = Redis::lazy(url).unwrap().namespace("stampede").check().await.unwrap_err();
    (checked.to_string(), log.lines().into_iter().find(|said| said.contains(line)).unwrap())
}

const AWAY: &str = "the remote is away";
const UNHEARD: &str = "messages of other processes do not arrive";

#[tokio::test]
async fn a_server_without_scripts_is_named_by_the_check_and_in_the_log() {
    for command in ["EVAL", "EVALSHA"] {
        let server = Server::configured(&[&format!("rename-command {command} \"\"")]);
        let (checked, line) = said_of(&server, AWAY).await;
        assert!(checked.contains(&format!("the server refuses {command} ")), "{checked}");
        assert_says(&line, &["WARN", "error=\"denied\"", &server.address()]);
    }
    let server = Server::start();
    server.cli(&["ACL", "SETUSER", "default", "-@scripting"]);
    let (checked, line) = said_of(&server, AWAY).await;
    assert_says(&checked, &["the server refuses EVAL ", "NOPERM"]);
    assert_says(&line, &["WARN", "error=\"denied\""]);
}

#[tokio::test]
async fn a_server_without_messages_is_named_by_the_check_and_in_the_log() {
    let without = Server::configured(&["rename-command SUBSCRIBE \"\""]);
    let without_channels = Server::start();
    without_channels.cli(&["ACL", "SETUSER", "default", "resetchannels"]);
    for (server, what) in [(without, "SUBSCRIBE"), (without_channels, "channel")] {
        let (checked, line) = said_of(&server, UNHEARD).await;
        assert!(checked.contains(what), "{checked}");
        assert_says(&line, &["WARN", "error=\"denied\"", "Redis::check", &server.address()]);
    }
}

#[tokio::test]
async fn a_proxy_that_swallows_subscriptions_is_named_in_the_log() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    proxy.mute_subscribers(true);
    let (log, origin) = (TextLog::default(), Origin::new());
    let _listening = log.listen(Level::INFO);
    let cache = hasty_on(Redis::lazy(&proxy.url()).unwrap().namespace("stampede"));
    load(&cache, &origin, &*fresh_key()).await;
    eventually("the log says so", || log.text().contains(UNHEARD)).await;
    let line = log.lines().into_iter().find(|line| line.contains(UNHEARD)).unwrap();
    assert_says(&line, &["WARN", &format!("127.0.0.1:{}", proxy.port())]);
    assert!(!log.text().contains(AWAY), "{}", log.text());
}

#[tokio::test]
async fn a_proxy_that_ends_subscriptions_is_named_in_the_log_once() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    proxy.block_subscribers(true);
    let (log, origin) = (TextLog::default(), Origin::new());
    let _listening = log.listen(Level::INFO);
    let cache = hasty_on(Redis::lazy(&proxy.url()).unwrap().namespace("stampede"));
    let is_said = || log.text().contains(UNHEARD);
    load(&cache, &origin, &*fresh_key()).await;
    eventually("the log says so", is_said).await;
    // Values are shared all the same.
    let other = hasty_on(Redis::lazy(&server.url()).unwrap().namespace("stampede"));
    let key = fresh_key();
    let value = load(&cache, &origin, &*key).await;
    eventually("it is stored", || server.tell("DBSIZE") != ":0").await;
    assert_eq!(load(&other, &origin, &*key).await, value);
    let attempts = proxy.count("SUBSCRIBE");
    eventually("it tries again", || proxy.count("SUBSCRIBE") > attempts).await;
    assert_eq!(log.text().matches(UNHEARD).count(), 1, "{}", log.text());
    proxy.block_subscribers(false);
    eventually("messages arrive", || cache.health() == Health::Up).await;
}

#[tokio::test]
async fn a_policy_that_evicts_locks_is_named_in_the_log() {
    let server = Server::configured(&["maxmemory-policy volatile-ttl"]);
    let (log, origin) = (TextLog::default(), Origin::new());
    let _listening = log.listen(Level::INFO);
    let cache = hasty_on(Redis::lazy(&server.url()).unwrap().namespace("stampede"));
    load(&cache, &origin, &*fresh_key()).await;
    eventually("the log says so", || log.text().contains("may evict refresh locks")).await;
    assert_says(&log.text(), &["WARN", "policy=\"volatile-ttl\"", &server.address()]);
}
