//! What Redis is asked, command by command.
//!
//! Setting up (connecting, loading scripts, reading the clock and the
//! invalidation log) and the subscriber's pings are not counted.

use std::time::{Duration, Instant};

use tower_stampede::Computed;

use crate::kit::origin::{MS, Origin};
use crate::kit::redis::{Monitor, Proxy, Server, eventually};
use crate::kit::redis_caches::*;

/// Processes that reach the server through a proxy each, which counts what
/// they send.
struct Counted {
    server: Server,
    monitor: Monitor,
    proxies: Vec<Proxy>,
    caches: Vec<Cache>,
}

impl Counted {
    async fn start(processes: usize) -> Self {
        let server = Server::start();
        let proxies: Vec<_> = (0..processes).map(|_| Proxy::start(server.port())).collect();
        let caches: Vec<_> = proxies.iter().map(|proxy| process(&proxy.url())).collect();
        all_listen(&caches).await;
        let monitor = server.monitor();
        let counted = Self { server, monitor, proxies, caches };
        counted.is_set_up().await;
        counted.forget();
        counted
    }

    /// Waits until no process has anything to send any more.
    async fn is_set_up(&self) {
        let (mut sent, mut since) = (0, Instant::now());
        eventually("all is quiet", || {
            let now = (0..self.proxies.len()).map(|n| self.sent(n).len()).sum();
            if now != sent {
                (sent, since) = (now, Instant::now());
            }
            since.elapsed() > Duration::from_millis(300)
        })
        .await;
    }

    fn forget(&self) {
        self.monitor.forget();
        self.proxies.iter().for_each(Proxy::forget_commands);
    }

    /// What process `n` sent, but for pings and heartbeats. The first call of a script sends it in
    /// full.
    fn sent(&self, n: usize) -> Vec<String> {
        let sent = self.proxies[n].commands().into_iter().filter(is_counted);
        sent.map(|sent| if sent == "EVAL" { S.to_owned() } else { sent }).collect()
    }

    /// What the server got from all processes, but for those.
    fn arrived(&self) -> Vec<String> {
        self.monitor.commands().into_iter().filter(is_counted).collect()
    }

    /// Waits for what is sent when no caller waits any more: fills.
    async fn has_sent(&self, n: usize, commands: &[&str]) {
        eventually("it was sent", || self.sent(n).len() >= commands.len()).await;
        self.is_set_up().await;
        assert_eq!(self.sent(n), commands);
    }
}

/// The log is read by plain commands, once a second.
fn is_counted(sent: &String) -> bool {
    !matches!(&**sent, "PING" | "ZRANGEBYSCORE" | "ZREVRANGEBYSCORE")
}

/// A script.
const S: &str = "EVALSHA";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_miss_is_a_look_a_lease_and_a_fill() {
    let (counted, origin) = (Counted::start(1).await, Origin::new());
    load(&counted.caches[0], &origin, "k").await;
    counted.has_sent(0, &["GET", S, S]).await;
    assert_eq!(counted.arrived(), ["GET", S, S]);
    let lines = counted.monitor.lines();
    let about = lines.iter().filter(|line| line.contains("{k}")).count();
    assert_eq!(about, 3, "{lines:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_herd_in_one_process_costs_what_one_request_costs() {
    let (counted, origin) = (Counted::start(1).await, Origin::taking(200 * MS));
    herd(&counted.caches, 1000, &origin, "k").await;
    counted.has_sent(0, &["GET", S, S]).await;
    assert_eq!(counted.arrived(), ["GET", S, S]);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hit_in_the_process_costs_nothing() {
    let (counted, origin) = (Counted::start(1).await, Origin::new());
    load(&counted.caches[0], &origin, "k").await;
    counted.has_sent(0, &["GET", S, S]).await;
    counted.forget();
    herd(&counted.caches, 1000, &origin, "k").await;
    assert!(counted.caches[0].get("k").await.is_some());
    counted.has_sent(0, &[]).await;
    assert_eq!(counted.arrived(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hit_in_redis_costs_a_look() {
    let (counted, origin) = (Counted::start(2).await, Origin::new());
    load(&counted.caches[0], &origin, "k").await;
    counted.has_sent(0, &["GET", S, S]).await;
    herd(&counted.caches[1..], 1000, &origin, "k").await;
    counted.has_sent(1, &["GET"]).await;
    assert_eq!(counted.arrived(), ["GET", S, S, "GET"]);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_waits_looks_asks_for_the_lease_and_looks_again() {
    let (counted, gated) = (Counted::start(5).await, Gated::new());
    let [leader, waiters @ ..] = &*counted.caches else { panic!("five") };
    let leading = gated.lead(leader, "k").await;
    let mut waiting = Vec::new();
    for cache in waiters {
        // Of a herd, the first waits for the other process, and all others
        // for the first.
        waiting.extend((0..100).map(|_| gated.ask(cache, "k")));
    }
    eventually("all wait", || registered(&counted.server, "k") == waiters.len()).await;
    gated.open();
    assert_eq!(answer(leading).await, 1);
    for waiter in waiting {
        assert_eq!(answer(waiter).await, 1);
    }
    counted.has_sent(0, &["GET", S, S]).await;
    for n in 1..=waiters.len() {
        counted.has_sent(n, &["GET", S, "GET"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_done_by_name_is_at_most_two_commands_each() {
    let (counted, origin) = (Counted::start(2).await, Origin::new());
    let cache = &counted.caches[0];
    load(cache, &origin, "k").await;
    counted.has_sent(0, &["GET", S, S]).await;

    counted.forget();
    cache.invalidate("k").await;
    counted.has_sent(0, &[S, S]).await;
    counted.forget();
    cache.invalidate_tag("t").await;
    counted.has_sent(0, &[S]).await;
    counted.forget();
    cache.invalidate_all().await;
    counted.has_sent(0, &[S]).await;
    counted.forget();
    cache.put("k", 7).await;
    counted.has_sent(0, &[S, S]).await;
    assert_eq!(counted.arrived(), [S, S]);
    assert_eq!(counted.sent(1), [""; 0], "the other process is told, and asks nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_computation_by_name_is_a_look_a_lease_and_a_fill_too() {
    let origin = Origin::new();
    let counted = Counted::start(2).await;
    let cache = &counted.caches[0];
    load(cache, &origin, "k").await;
    counted.has_sent(0, &["GET", S, S]).await;
    counted.forget();
    let refreshed = cache.refresh("k", origin.compute()).await.unwrap();
    assert_eq!(refreshed, 2);
    counted.has_sent(0, &["GET", S, S]).await;
    assert_eq!(load(&counted.caches[1], &origin, "k").await, 2);
    counted.has_sent(1, &["GET"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_positions_of_a_thousand_tags_are_read_in_one_script_by_two_commands() {
    let (server, origin) = (Server::start(), Origin::new());
    let first = process(&server.url());
    all_listen(std::slice::from_ref(&first)).await;
    let compute = origin.compute();
    let tagged = |n| (0..999_u32).fold(Computed::new(n), Computed::tag);
    let compute = move || async move { compute().await.map(tagged) };
    assert_eq!(first.get_or_compute_with("k", compute).await.unwrap(), 1);
    eventually("it is stored", || !server.cli(&["GET", &record("k", 'v')]).is_nil()).await;
    // Later than the value, so that a process which starts now does not know its tags.
    first.invalidate_tag("other").await;

    let second = process(&server.url());
    all_listen(std::slice::from_ref(&second)).await;
    assert_eq!(second.get("k").await, Some(1));
    let stats = server.cli(&["INFO", "commandstats"]);
    let of = |name: &str| stats.field(&format!("cmdstat_{name}")).unwrap_or_default();
    println!("commands of the script: {}", of("zmscore"));
    // The tags and the key, as many stale marks, and the record of all marks of keys.
    assert!(of("zmscore").starts_with("calls=2,"), "{}", of("zmscore"));
    assert_eq!(of("zscore"), "");
}
