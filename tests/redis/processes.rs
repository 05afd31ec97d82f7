//! Real processes of the example server on a real Redis server: what they
//! compute together, and what happens to it when one of them is stopped or
//! killed, or Redis is.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::examples::program;
use crate::kit::redis::{Server, eventually};
use crate::kit::spawn;

/// For counts that must be exact: no call to Redis times out on a busy machine, and no lease ends.
const PATIENT: [&str; 6] =
    ["--op-timeout-ms", "30000", "--lease-ms", "100000", "--wait-timeout-ms", "180000"];

/// The same with leases that end while a test waits for that.
const SHORT_LEASE: [&str; 6] =
    ["--op-timeout-ms", "1300", "--lease-ms", "4000", "--wait-timeout-ms", "180000"];

/// How long anything may take that must happen, on a busy machine.
const GIVE_UP: Duration = Duration::from_secs(120);

/// One process of the example, on a port of its own.
struct Instance {
    process: Child,
    url: String,
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl Instance {
    fn start(redis: &Server, flags: &[&str]) -> Self {
        let mut process = Command::new(program("web_server"))
            .args(["--listen", "127.0.0.1:0", "--redis", &redis.url(), "--ttl-ms", "3600000"])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").expect("it listens").to_owned();
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { process, url, client }
    }

    fn start_four(redis: &Server, flags: &[&str]) -> Vec<Self> {
        (0..4).map(|_| Self::start(redis, flags)).collect()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Stops it with `SIGSTOP`, and returns once it has stopped.
    fn freeze(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
        waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap();
    }

    fn thaw(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    fn get(&self, path: &str) -> JoinHandle<Got> {
        let (client, uri) = (self.client.clone(), format!("{}{path}", self.url));
        spawn(async move {
            let response = client.get(uri.parse().unwrap()).await.map_err(|e| e.to_string())?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.map_err(|e| e.to_string())?;
            let body = String::from_utf8(body.to_bytes().into()).unwrap();
            Ok(Reply { status, body })
        })
    }

    async fn json(&self, path: &str) -> Value {
        let reply = self.get(path).await.unwrap().unwrap();
        serde_json::from_str(&reply.body).unwrap()
    }

    /// Makes the request of a button of the page.
    #[cfg(target_os = "linux")]
    async fn button(&self, method: &str, path: &str) -> hyper::Request<Empty<Bytes>> {
        let page = self.get("/").await.unwrap().unwrap().body;
        let (_, token) = page.split_once("name=\"page-token\" content=\"").expect("a token");
        let (token, _) = token.split_once('"').unwrap();
        let request = hyper::Request::builder().method(method).uri(format!("{}{path}", self.url));
        request.header("x-page-token", token).body(Empty::new()).unwrap()
    }

    /// Does what a button of the page does, or asks what the page draws.
    #[cfg(target_os = "linux")]
    async fn press(&self, method: &str, path: &str) -> Value {
        let response = self.client.request(self.button(method, path).await).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(status, 200, "{path}: {}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }

    /// How often this process has begun to compute `id`.
    async fn calls(&self, id: &str) -> u64 {
        let stats = self.json("/stats").await;
        stats["origin_calls"]["protected"]["per_id"][id].as_u64().unwrap_or_default()
    }

    /// Waits until `/stats` is as it should be.
    async fn until(&self, what: &str, is: impl Fn(&Value) -> bool) {
        let give_up = Instant::now() + GIVE_UP;
        while !is(&self.json("/stats").await) {
            assert!(Instant::now() < give_up, "waited in vain: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // It may be dead already: no matter.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[derive(Debug)]
struct Reply {
    status: u16,
    body: String,
}

type Got = Result<Reply, String>;

/// `n` clients at each instance, all at once.
fn crowd(instances: &[Instance], n: usize, path: &str) -> Vec<JoinHandle<Got>> {
    (0..n).flat_map(|_| instances.iter().map(|instance| instance.get(path))).collect()
}

/// Every client was answered; returns the answers.
async fn answers(crowd: Vec<JoinHandle<Got>>) -> Vec<Reply> {
    let mut replies = Vec::new();
    for client in crowd {
        let reply = client.await.unwrap().expect("an answer");
        assert_eq!(reply.status, 200, "{reply:?}");
        replies.push(reply);
    }
    replies
}

fn with<'a>(flags: [&'a str; 6], more: &[&'a str]) -> Vec<&'a str> {
    [&flags, more].concat()
}

async fn calls_in_all(instances: &[Instance], id: &str) -> u64 {
    let mut calls = 0;
    for instance in instances {
        calls += instance.calls(id).await;
    }
    calls
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_requests_at_four_processes_are_one_call() {
    let redis = Server::start();
    let instances = Instance::start_four(&redis, &PATIENT);
    for instance in &instances {
        assert_eq!(instance.json("/stats").await["remote"], "up");
    }
    for id in ["a", "b", "c"] {
        let replies = answers(crowd(&instances, 100, &format!("/report/{id}"))).await;
        assert!(replies.iter().all(|reply| reply.body == replies[0].body));
        assert_eq!(calls_in_all(&instances, id).await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalidation_at_one_process_is_one_new_call_for_all() {
    let redis = Server::start();
    let instances = Instance::start_four(&redis, &with(PATIENT, &["--work-ms", "50"]));
    let old = answers(crowd(&instances, 5, "/report/a")).await;
    let post = hyper::Request::post(format!("{}/invalidate/a", instances[0].url));
    let post = post.body(Empty::new()).unwrap();
    assert_eq!(instances[0].client.request(post).await.unwrap().status(), 200);
    // Elsewhere it is known one message later.
    for instance in &instances {
        let give_up = Instant::now() + GIVE_UP;
        while instance.get("/report/a").await.unwrap().unwrap().body == old[0].body {
            assert!(Instant::now() < give_up);
        }
    }
    assert_eq!(calls_in_all(&instances, "a").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_stopped_past_its_lease_is_replaced_by_one_and_its_fill_is_refused() {
    let redis = Server::start();
    let mut others = Instance::start_four(&redis, &SHORT_LEASE);
    let leader = others.remove(0);
    let path = "/report/a?work_ms=4500";
    let late = leader.get(path);
    leader
        .until("it computes", |stats| {
            stats["flights"] == 1 && stats["origin_calls"]["protected"]["total"] == 1
        })
        .await;
    let waiting = crowd(&others, 50, path);
    leader.freeze();
    let replies = answers(waiting).await;
    assert!(replies.iter().all(|reply| reply.body == replies[0].body));
    assert_eq!(calls_in_all(&others, "a").await, 1);

    leader.thaw();
    let late = late.await.unwrap().unwrap();
    assert_eq!(late.status, 200);
    assert_ne!(late.body, replies[0].body, "its own client has its own result");
    leader.until("its fill is refused", |stats| stats["refused_fills"] == 1).await;
    // What the others have is what it serves from now on.
    for instance in others.iter().chain([&leader]) {
        assert_eq!(instance.get(path).await.unwrap().unwrap().body, replies[0].body);
    }
    assert_eq!(calls_in_all(&others, "a").await + leader.calls("a").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_killed_is_replaced_by_one_after_its_lease() {
    let redis = Server::start();
    let mut others = Instance::start_four(&redis, &SHORT_LEASE);
    let mut leader = others.remove(0);
    let path = "/report/a?work_ms=3000";
    let lost = leader.get(path);
    leader.until("it computes", |stats| stats["origin_calls"]["protected"]["total"] == 1).await;
    let waiting = crowd(&others, 100, path);
    leader.process.kill().unwrap();
    leader.process.wait().unwrap();
    let replies = answers(waiting).await;
    assert!(replies.iter().all(|reply| reply.body == replies[0].body));
    assert_eq!(calls_in_all(&others, "a").await, 1);
    assert!(lost.await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_redis_is_killed_and_comes_back() {
    let redis = Server::start();
    // Its death ends the connections: no call has to time out.
    let instances = Instance::start_four(&redis, &with(PATIENT, &["--work-ms", "20"]));
    all_are(&instances, "up").await;
    answers(crowd(&instances, 1, "/report/held")).await;
    // All processes share one computation; then each may have its own. One that meets the empty
    // server drops what it has computed alone, and may compute once more: the requests of a round
    // come before and after that.
    rounds(&instances, "before", 1).await;
    redis.kill();
    rounds(&instances, "killed", 4).await;
    all_are(&instances, "down").await;
    rounds(&instances, "away", 4).await;
    redis.restart();
    rounds(&instances, "restarted", 8).await;
    all_are(&instances, "up").await;
    rounds(&instances, "after", 1).await;
}

async fn all_are(instances: &[Instance], state: &str) {
    for instance in instances {
        instance.until(state, |stats| stats["remote"] == state).await;
    }
}

/// Twenty rounds, in each of which all processes are asked for a new report and for one that each
/// has. A round begins while the ones before it go on.
async fn rounds(instances: &[Instance], phase: &str, most_calls: u64) {
    const ROUNDS: usize = 20;
    let mut all = Vec::new();
    for round in 0..ROUNDS {
        all.extend(crowd(instances, 5, &format!("/report/{phase}-{round}")));
        all.extend(crowd(instances, 5, "/report/held"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(answers(all).await.len(), ROUNDS * 40);
    for round in 0..ROUNDS {
        let calls = calls_in_all(instances, &format!("{phase}-{round}")).await;
        assert!((1..=most_calls).contains(&calls), "{calls} calls in round {round}: {phase}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_down_is_no_reason_not_to_start() {
    let redis = Server::start();
    redis.kill();
    // The first request waits for Redis as long as a call may take.
    let instance = Instance::start(&redis, &with(SHORT_LEASE, &["--work-ms", "20"]));
    assert_eq!(instance.json("/stats").await["remote"], "down");
    let slow = instance.get("/report/a").await.unwrap().unwrap();
    assert_eq!(slow.status, 200);
    redis.restart();
    instance.until("Redis is there", |stats| stats["remote"] == "up").await;
    eventually("it is linked", || redis.clients("pubsub") > 0).await;
    let other = Instance::start(&redis, &with(SHORT_LEASE, &["--work-ms", "20"]));
    let both = [instance, other];
    answers(crowd(&both, 20, "/report/b")).await;
    assert_eq!(calls_in_all(&both, "b").await, 1);
}

/// Returns the port of the Redis server that the page of a process has started.
#[cfg(target_os = "linux")]
async fn port_of_page_redis(page: &Instance) -> u16 {
    let pid = page.press("GET", "/demo/stage/fleet").await["lanes"][0]["pid"].to_string();
    let args = std::fs::read(format!("/proc/{pid}/cmdline")).expect("the process runs");
    let args = String::from_utf8(args).unwrap();
    let (_, url) = args.split_once("redis://127.0.0.1:").expect("it has a Redis server");
    url.split('\0').next().unwrap().parse().unwrap()
}

/// Whether the system wakes the keeper of the server first decides the scheduler, so this is done
/// several times.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn the_redis_of_a_page_ends_with_a_process_that_is_killed_although_it_is_frozen() {
    use std::io::Write;
    use std::net::TcpStream;

    let redis = Server::start();
    for freeze in [false, true, true, true, true] {
        let mut page = Instance::start(&redis, &[]);
        page.press("POST", "/demo/stage/fleet/start").await;
        page.press("POST", &format!("/demo/stage/fleet/freeze?on={freeze}")).await;
        let port = port_of_page_redis(&page).await;
        let herd = page.button("POST", "/demo/stage/fleet/herd?n=300").await;
        let herd = spawn(page.client.request(herd));
        let computes = |lane: &Value| lane["computing"] == true;
        let lanes = async || page.press("GET", "/demo/stage/fleet").await["lanes"].take();
        while !lanes().await.as_array().unwrap().iter().any(computes) {}
        page.process.kill().unwrap();
        page.process.wait().unwrap();
        let _ = herd.await.unwrap();
        let give_up = Instant::now() + GIVE_UP;
        while let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)) {
            if Instant::now() > give_up {
                // Not to leave it behind.
                let _ = server.write_all(b"SHUTDOWN NOSAVE\r\n");
                panic!("the server is left behind; frozen: {freeze}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[test]
fn flags_that_cannot_be_followed_end_with_2_and_show_no_password() {
    for flags in [
        &["--redis", "http://user:hidden@127.0.0.1"][..],
        &["--redis", "no url with hidden in it"],
        &["--redis", ""],
        &["--redis"],
        &["--redis", "redis://127.0.0.1", "--namespace", "a{b"],
        &["--redis", "redis://127.0.0.1", "--lease-ms", "5000", "--wait-timeout-ms", "5000"],
    ] {
        let output = Command::new(program("web_server")).args(flags).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains("--") && !said.contains("hidden"), "{flags:?}: {said}");
    }
}
