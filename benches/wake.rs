//! From the leader's fill to the value in another process, over a real Redis
//! on the loopback interface: our push, beside polling with `GET` as clients
//! without wake-ups do.
//!
//! `cargo bench --bench wake --features full`; needs `redis-server`.

#![allow(clippy::unwrap_used, reason = "a bench, which ends at the first thing wrong")]

use std::process::ExitCode;

#[cfg(not(unix))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}

#[cfg(unix)]
#[path = "../tests/redis_support/mod.rs"]
mod redis_support;

#[cfg(unix)]
fn main() -> ExitCode {
    // A thousand processes have two thousand connections.
    let _ = rlimit::increase_nofile_limit(20_000);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(unix::run());
    ExitCode::SUCCESS
}

#[cfg(unix)]
mod unix {
    use std::time::{Duration, Instant};

    use tokio::sync::watch;
    use tokio::task::JoinHandle;
    use tower_stampede::{Health, Redis, Stampede};

    use super::redis_support::{Resp, Server, eventually};

    type Cache = Stampede<Vec<u8>>;

    const SAMPLES: usize = 500;
    const POLLED: usize = 300;
    const INBOXES: usize = 1000;

    pub(super) async fn run() {
        let server = Server::start();
        println!(
            "from the leader's fill to 1 KiB in the other process, {SAMPLES} samples or more:"
        );
        report("our push", push(&server).await);
        for pause in [10, 50] {
            let pause = Duration::from_millis(pause);
            report(&format!("GET every {pause:?}"), polling(&server, pause).await);
        }
        inboxes(&server).await;
    }

    fn report(what: &str, mut samples: Vec<Duration>) {
        samples.sort_unstable();
        let [p50, p99] = [50, 99].map(|percent| samples[samples.len() * percent / 100]);
        println!("{what:>16}: p50 {p50:>9.1?}  p99 {p99:>9.1?}  ({} samples)", samples.len());
    }

    async fn process(server: &Server) -> Cache {
        let redis = Redis::lazy(&server.url()).unwrap().op_timeout(Duration::from_secs(10));
        let builder = Stampede::builder("wake").ttl(Duration::from_secs(600));
        let builder = builder.lease(Duration::from_secs(40)).wait_timeout(Duration::from_secs(90));
        let cache = builder.max_entries(10_000).redis(redis).build().unwrap();
        assert!(cache.get("nothing is here").await.is_none());
        cache
    }

    async fn listens(caches: &[Cache]) {
        eventually("all listen", || caches.iter().all(|c| c.health() == Health::Up)).await;
    }

    fn registered(server: &Server, key: &str) -> usize {
        let fields = server.cli(&["HKEYS", &format!("stampede:1:wake:{{{key}}}:r")]);
        fields.parts().iter().filter(|field| field.text().starts_with("w:")).count()
    }

    /// Begins a computation that ends when it is told to, and tells when.
    fn lead(
        cache: &Cache,
        key: &str,
    ) -> (watch::Sender<bool>, watch::Receiver<bool>, JoinHandle<Instant>) {
        let (go, mut gone) = watch::channel(false);
        let (begin, begun) = watch::channel(false);
        let (cache, key) = (cache.clone(), key.to_owned());
        let leader = tokio::spawn(async move {
            let (tell, mut ended) = watch::channel(Instant::now());
            let compute = move || async move {
                begin.send_replace(true);
                gone.wait_for(|go| *go).await.unwrap();
                tell.send_replace(Instant::now());
                Ok::<_, std::io::Error>(vec![7; 1024])
            };
            cache.get_or_compute(&*key, compute).await.unwrap();
            *ended.borrow_and_update()
        });
        (go, begun, leader)
    }

    /// Asks as another process, and tells when the value was there.
    fn wait(cache: &Cache, key: &str) -> JoinHandle<Instant> {
        let (cache, key) = (cache.clone(), key.to_owned());
        tokio::spawn(async move {
            let compute = || async { Err::<Vec<u8>, _>(std::io::Error::other("computed twice")) };
            let value = cache.get_or_compute(&*key, compute).await.unwrap();
            let now = Instant::now();
            assert_eq!(value.len(), 1024);
            now
        })
    }

    async fn push(server: &Server) -> Vec<Duration> {
        let caches = [process(server).await, process(server).await];
        listens(&caches).await;
        let mut samples = Vec::new();
        for n in 0..SAMPLES {
            let key = format!("push-{n}");
            let (go, mut begun, leader) = lead(&caches[0], &key);
            begun.wait_for(|begun| *begun).await.unwrap();
            let waiter = wait(&caches[1], &key);
            eventually("it waits", || registered(server, &key) == 1).await;
            go.send_replace(true);
            let filled = leader.await.unwrap();
            samples.push(waiter.await.unwrap().saturating_duration_since(filled));
        }
        let stats = caches[1].stats();
        assert_eq!(stats.wakes_by_push, SAMPLES as u64, "all were pushed: {stats:?}");
        samples
    }

    /// What clients without wake-ups do: ask, sleep, ask again. The fill is a
    /// plain `SET`, at any moment between two looks.
    async fn polling(server: &Server, pause: Duration) -> Vec<Duration> {
        let mut writer = server.connect().unwrap();
        let mut samples = Vec::new();
        for n in 0..POLLED {
            let key = format!("poll-{}-{n}", pause.as_millis());
            let (begin, begun) = std::sync::mpsc::channel();
            let (port, polled) = (server.port(), key.clone());
            let poller = std::thread::spawn(move || {
                let mut reader = Resp::connect(port).unwrap();
                begin.send(()).unwrap();
                while reader.call(&["GET", &polled]).unwrap().is_nil() {
                    std::thread::sleep(pause);
                }
                Instant::now()
            });
            begun.recv().unwrap();
            std::thread::sleep(pause.mul_f64(spread(n)));
            let filled = Instant::now();
            writer.call(&["SET", &key, &"x".repeat(1024)]).unwrap();
            samples.push(poller.join().unwrap().saturating_duration_since(filled));
        }
        samples
    }

    /// Evenly spread, and the same in every run: the golden ratio's multiples.
    fn spread(n: usize) -> f64 {
        (n as f64 * 0.618_033_988_749_895).fract()
    }

    /// A thousand processes wait for one fill.
    async fn inboxes(server: &Server) {
        let mut caches = Vec::new();
        for _ in 0..=INBOXES {
            caches.push(process(server).await);
        }
        listens(&caches).await;
        for round in 0..5 {
            let key = format!("inboxes-{round}");
            let (go, mut begun, leader) = lead(&caches[0], &key);
            begun.wait_for(|begun| *begun).await.unwrap();
            let waiters: Vec<_> = caches[1..].iter().map(|cache| wait(cache, &key)).collect();
            eventually("all wait", || registered(server, &key) == INBOXES).await;
            go.send_replace(true);
            let filled = leader.await.unwrap();
            let mut samples = Vec::new();
            for waiter in waiters {
                samples.push(waiter.await.unwrap().saturating_duration_since(filled));
            }
            let last = samples.iter().max().unwrap();
            println!("{INBOXES} inboxes woken by one fill: the last has it after {last:.1?}");
            report("each of them", samples);
        }
    }
}
