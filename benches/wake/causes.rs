//! Each cause of a wake-up, brought about many times.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;
use tower_stampede::{Health, Stats};

use crate::polling::spread;
use crate::processes::{
    Cache, KEYS_OF_THE_KILLED, Killable, Leader, key_of_the_killed, listens, process, registered,
    succeed, wait,
};
use crate::redis_support::{Proxy, Server, eventually};
use crate::report::Profile;

/// Where each sample takes up to a second, and many run at the same time.
const SLOW_SAMPLES: usize = 200;

/// Where each sample takes a millisecond.
fn count(profile: Profile) -> usize {
    profile.pick(200, 500)
}

/// How long the waits of one cause took, and what the waiting process counted.
pub(crate) struct Woken {
    pub(crate) samples: Vec<Duration>,
    pub(crate) pushes: u64,
    pub(crate) timers: u64,
    pub(crate) polls: u64,
}

impl Woken {
    fn new(samples: Vec<Duration>, stats: &Stats) -> Self {
        let Stats { wakes_by_push, wakes_by_timer, wakes_by_poll, .. } = *stats;
        Self { samples, pushes: wakes_by_push, timers: wakes_by_timer, polls: wakes_by_poll }
    }
}

async fn two(url: &str) -> [Cache; 2] {
    let caches = [process(url).await, process(url).await];
    listens(&caches).await;
    caches
}

/// Leader and waiter are callers in one process.
pub(crate) async fn in_memory(server: &Server, profile: Profile) -> Woken {
    let cache = process(&server.url()).await;
    let mut samples = Vec::new();
    for n in 0..count(profile) {
        let key = format!("memory-{n}");
        let leader = Leader::begin(&cache, &key).await;
        let waiter = wait(&cache, &key);
        eventually("it waits", || cache.stats().waiting >= 1).await;
        let filled = leader.fill().await;
        samples.push(waiter.await.unwrap().saturating_duration_since(filled));
    }
    Woken::new(samples, &cache.stats())
}

/// The fill pushes a wake-up into the inbox of the waiting process.
pub(crate) async fn push(server: &Server, profile: Profile) -> Woken {
    let [leads, waits] = two(&server.url()).await;
    let mut samples = Vec::new();
    for n in 0..count(profile) {
        let key = format!("push-{n}");
        let leader = Leader::begin(&leads, &key).await;
        let waiter = wait(&waits, &key);
        eventually("it waits", || registered(server, &key) == 1).await;
        let filled = leader.fill().await;
        samples.push(waiter.await.unwrap().saturating_duration_since(filled));
    }
    Woken::new(samples, &waits.stats())
}

/// The leader's caller hangs up, and one of the waiters is elected.
pub(crate) async fn leader_dropped(server: &Server, profile: Profile) -> Woken {
    let [leads, waits] = two(&server.url()).await;
    let mut samples = Vec::new();
    for n in 0..count(profile) {
        let key = format!("dropped-{n}");
        let (begin, mut begun) = tokio::sync::watch::channel(false);
        let (cache, its_key) = (leads.clone(), key.clone());
        let leader = tokio::spawn(async move {
            let compute = || async move {
                begin.send_replace(true);
                std::future::pending::<Result<Vec<u8>, std::io::Error>>().await
            };
            cache.get_or_compute_scoped(&*its_key, compute).await
        });
        begun.wait_for(|begun| *begun).await.unwrap();
        let waiter = succeed(&waits, &key);
        eventually("it waits", || registered(server, &key) == 1).await;
        let dropped = std::time::Instant::now();
        leader.abort();
        samples.push(waiter.await.unwrap().saturating_duration_since(dropped));
    }
    Woken::new(samples, &waits.stats())
}

/// The connection for wake-ups is killed, and the fill comes before there is a
/// new one: when there is, every waiter looks.
pub(crate) async fn connection_killed(server: &Server, profile: Profile) -> Woken {
    let [leads, waits] = two(&server.url()).await;
    let mut samples = Vec::new();
    for n in 0..profile.pick(20, 60) {
        let key = format!("cut-{n}");
        let leader = Leader::begin(&leads, &key).await;
        let waiter = wait(&waits, &key);
        eventually("it waits", || registered(server, &key) == 1).await;
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        let filled = leader.fill().await;
        samples.push(waiter.await.unwrap().saturating_duration_since(filled));
        listens(&[leads.clone(), waits.clone()]).await;
    }
    Woken::new(samples, &waits.stats())
}

/// Redis cannot be subscribed to: the waiter polls, ever more seldom.
pub(crate) async fn no_subscriber(server: &Server) -> Woken {
    let proxy = Proxy::start(server.port());
    let caches = two(&proxy.url()).await;
    proxy.block_subscribers(true);
    let deaf = || caches.iter().all(|cache| cache.health() == Health::Degraded);
    eventually("no process hears anything", deaf).await;
    many(&caches, "deaf").await
}

/// Wake-ups are lost on their way: the waiter looks after a second at most.
pub(crate) async fn pushes_lost(server: &Server) -> Woken {
    let proxy = Proxy::start(server.port());
    let caches = two(&proxy.url()).await;
    proxy.mute_subscribers(true);
    many(&caches, "lost").await
}

/// Fills at any moment of the first second, many at the same time.
async fn many([leads, waits]: &[Cache; 2], name: &str) -> Woken {
    let one = |n: usize| async move {
        let key = format!("{name}-{n}");
        let leader = Leader::begin(leads, &key).await;
        let waiter = wait(waits, &key);
        sleep(Duration::from_millis(50) + Duration::from_secs(1).mul_f64(spread(n))).await;
        let filled = leader.fill().await;
        waiter.await.unwrap().saturating_duration_since(filled)
    };
    Woken::new(join_all((0..SLOW_SAMPLES).map(one)).await, &waits.stats())
}

/// The leader's process is killed: its lease of one second ends by itself.
pub(crate) async fn leader_killed(server: &Server, profile: Profile) -> Woken {
    let waits = process(&server.url()).await;
    listens(std::slice::from_ref(&waits)).await;
    let mut samples = Vec::new();
    for round in 0..profile.pick(1, 3) {
        let round = round.to_string();
        let leader = Killable::start(server, &round);
        let keys: Vec<_> = (0..KEYS_OF_THE_KILLED).map(|n| key_of_the_killed(&round, n)).collect();
        let waiters: Vec<_> = keys.iter().map(|key| succeed(&waits, key)).collect();
        let wait = || keys.iter().all(|key| registered(server, key) == 1);
        eventually("all wait", wait).await;
        let killed = leader.kill();
        for waiter in waiters {
            samples.push(waiter.await.unwrap().saturating_duration_since(killed));
        }
    }
    Woken::new(samples, &waits.stats())
}
