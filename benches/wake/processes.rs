//! Processes that lead, and processes that wait.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tower_stampede::{Health, Redis, Stampede};

use crate::redis_support::{Server, eventually};

pub(crate) type Cache = Stampede<Vec<u8>>;

/// How many keys a leader holds that is killed.
pub(crate) const KEYS_OF_THE_KILLED: usize = 40;

/// The lease of a leader that is killed.
const SHORT_LEASE: Duration = Duration::from_secs(1);

/// A process where no caller but the leader may compute a value.
pub(crate) async fn process(url: &str) -> Cache {
    process_with_lease(url, Duration::from_secs(40)).await
}

async fn process_with_lease(url: &str, lease: Duration) -> Cache {
    // Renewed at a third, which may take that long.
    let redis = Redis::lazy(url).unwrap().namespace("stampede").op_timeout(lease / 4);
    let builder = Stampede::builder("wake").ttl(Duration::from_secs(600));
    let builder = builder.lease(lease).wait_timeout(Duration::from_secs(90));
    let cache = builder.max_entries(10_000).redis(redis).build().unwrap();
    assert!(cache.get("nothing is here").await.is_none());
    cache
}

pub(crate) async fn listens(caches: &[Cache]) {
    eventually("all listen", || caches.iter().all(|c| c.health() == Health::Up)).await;
}

/// How many processes wait for the key and have said so.
pub(crate) fn registered(server: &Server, key: &str) -> usize {
    let fields = server.cli(&["HKEYS", &format!("stampede:2:wake:{{{key}}}:r")]);
    fields.parts().iter().filter(|field| field.text().starts_with("w:")).count()
}

/// A computation that ends when it is told to.
pub(crate) struct Leader {
    go: watch::Sender<bool>,
    task: JoinHandle<Instant>,
}

impl Leader {
    /// Returns when it has begun.
    pub(crate) async fn begin(cache: &Cache, key: &str) -> Self {
        let (go, mut gone) = watch::channel(false);
        let (begin, mut begun) = watch::channel(false);
        let (cache, key) = (cache.clone(), key.to_owned());
        let task = tokio::spawn(async move {
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
        begun.wait_for(|begun| *begun).await.unwrap();
        Self { go, task }
    }

    /// Lets it end, and returns when the computation did.
    pub(crate) async fn fill(self) -> Instant {
        self.go.send_replace(true);
        self.task.await.unwrap()
    }
}

/// Asks as another caller, and tells when the value was there.
pub(crate) fn wait(cache: &Cache, key: &str) -> JoinHandle<Instant> {
    let (cache, key) = (cache.clone(), key.to_owned());
    tokio::spawn(async move {
        let compute = || async { Err::<Vec<u8>, _>(std::io::Error::other("computed twice")) };
        let value = cache.get_or_compute(&*key, compute).await.unwrap();
        let now = Instant::now();
        assert_eq!(value.len(), 1024);
        now
    })
}

/// Asks as another process, and tells when it was elected.
pub(crate) fn succeed(cache: &Cache, key: &str) -> JoinHandle<Instant> {
    let (cache, key) = (cache.clone(), key.to_owned());
    tokio::spawn(async move {
        let (tell, told) = watch::channel(None);
        let compute = || async move {
            tell.send_replace(Some(Instant::now()));
            Ok::<_, std::io::Error>(vec![7; 1024])
        };
        cache.get_or_compute(&*key, compute).await.unwrap();
        let elected = *told.borrow();
        elected.expect("the former leader computes nothing")
    })
}

pub(crate) fn key_of_the_killed(round: &str, n: usize) -> String {
    format!("killed-{round}-{n}")
}

/// A process of its own, which leads on many keys until it is killed.
pub(crate) struct Killable(Child);

impl Killable {
    pub(crate) fn start(server: &Server, round: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        let mut process = command
            .args(["--leader", &server.url(), round])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "leads\n");
        Self(process)
    }

    pub(crate) fn kill(mut self) -> Instant {
        let now = Instant::now();
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        now
    }
}

/// The process that is killed.
pub(crate) async fn lead_for_ever(url: &str, round: &str) -> ExitCode {
    let cache = process_with_lease(url, SHORT_LEASE).await;
    let mut leaders = Vec::new();
    for n in 0..KEYS_OF_THE_KILLED {
        leaders.push(Leader::begin(&cache, &key_of_the_killed(round, n)).await);
    }
    println!("leads");
    std::io::stdout().flush().unwrap();
    std::future::pending().await
}
