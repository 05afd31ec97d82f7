//! Two processes of the shop on one Redis, of which one is killed while it reads.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

/// A process that is killed when it goes out of scope, and what it says.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Reads lines until one has `text` in it.
    async fn says(&mut self, text: &str) -> String {
        let line = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if line.contains(text) {
                    return line;
                }
            }
            panic!("the process ended before it said '{text}'");
        };
        timeout(Duration::from_secs(20), line).await.expect(text)
    }

    /// Starts a shop whose queries take `delay`; returns the address, too.
    async fn shop(database: &Path, redis: &str, delay: Duration) -> (Self, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trial"));
        command.arg(database).arg(redis).arg(delay.as_millis().to_string());
        let mut shop = Self::start(&mut command);
        let address = shop.says("http://").await;
        (shop, address)
    }
}

/// Starts `redis-server`, which has to be installed, on a socket in the folder.
async fn start_redis(folder: &Path) -> (Process, String) {
    let socket = folder.join("redis.sock");
    let binary = std::env::var_os("TOWER_STAMPEDE_REDIS_SERVER");
    let mut command = Command::new(binary.as_deref().unwrap_or("redis-server".as_ref()));
    command.args(["--port", "0", "--save", "", "--appendonly", "no"]);
    command.arg("--unixsocket").arg(&socket).arg("--dir").arg(folder);
    let mut redis = Process::start(&mut command);
    // Newer servers begin the sentence with `Ready`.
    redis.says("eady to accept connections").await;
    (redis, format!("unix://{}", socket.display()))
}

async fn get(url: String) -> StatusCode {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    client.get(url.parse().unwrap()).await.map_or(StatusCode::BAD_GATEWAY, |answer| answer.status())
}

#[tokio::test]
async fn a_process_takes_over_from_one_that_was_killed_while_it_read() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("shop.db");
    let (_redis, redis_url) = start_redis(folder.path()).await;
    let hour = Duration::from_secs(3600);
    let (mut first, first_url) = Process::shop(&database, &redis_url, hour).await;
    let (mut second, second_url) =
        Process::shop(&database, &redis_url, Duration::from_millis(1)).await;

    let lost = tokio::spawn(get(format!("{first_url}/products/1")));
    first.says("query").await;
    let waiter = tokio::spawn(get(format!("{second_url}/products/1")));
    // Longer than the lease: the first process renews it, and the second one waits.
    sleep(Duration::from_millis(1500)).await;
    assert!(!waiter.is_finished(), "the second process did not wait for the first");

    let killed = Instant::now();
    first.child.kill().await.unwrap();
    assert_eq!(waiter.await.unwrap(), StatusCode::OK);
    assert!(killed.elapsed() < Duration::from_secs(3), "{:?}", killed.elapsed());
    second.says("query").await;
    assert_eq!(lost.await.unwrap(), StatusCode::BAD_GATEWAY);
}

#[tokio::test]
async fn two_processes_read_a_product_once() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("shop.db");
    let (_redis, redis_url) = start_redis(folder.path()).await;
    let delay = Duration::from_millis(300);
    let (mut first, first_url) = Process::shop(&database, &redis_url, delay).await;
    let (mut second, second_url) = Process::shop(&database, &redis_url, delay).await;

    let requests: Vec<_> = [&first_url, &second_url]
        .into_iter()
        .cycle()
        .take(20)
        .map(|url| tokio::spawn(get(format!("{url}/products/1"))))
        .collect();
    for request in requests {
        assert_eq!(request.await.unwrap(), StatusCode::OK);
    }
    let mut queries = 0;
    for shop in [&mut first, &mut second] {
        shop.child.kill().await.unwrap();
        while let Some(line) = shop.lines.next_line().await.unwrap() {
            queries += usize::from(line == "query");
        }
    }
    assert_eq!(queries, 1);
}
