//! Processes that share one Redis: this very program, started again. Each is
//! told by a line on its standard input what to do, and answers with a line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncBufReadExt;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower_stampede::{Builder, Health, Redis, Remotable, Stampede, Stats};

/// The argument that makes this program a client.
pub(crate) const FLAG: &str = "--client";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Opens another cache: on Redis, and listens, or in memory alone.
    Open { name: String, ttl_ms: u64, shared: bool },
    /// Asks for all keys at once. A leader computes for so long, and makes a
    /// value of so many bytes.
    Ask { keys: Vec<String>, hold_ms: u64, bytes: usize },
    /// Asks for one of so many keys so often a second, whether the last
    /// request is answered or not.
    Load { keys: u64, per_second: u64, seconds: u64, hold_ms: u64 },
}

/// What a client has done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) requests: u64,
    pub(crate) computed: u64,
    pub(crate) errors: u64,
    /// Commands sent to Redis.
    pub(crate) commands: u64,
    /// Woken by Redis, not by a timer.
    pub(crate) pushed: u64,
    /// When it asked for the first time, in nanoseconds of the wall clock,
    /// which all processes of a machine share.
    pub(crate) asked_at: u64,
    /// When its last computation ended.
    pub(crate) filled_at: u64,
    /// When it had the last value.
    pub(crate) had_at: u64,
    /// From the question to the last value.
    pub(crate) took_ns: u64,
}

/// Bytes that leave the process as they are.
#[derive(Clone)]
pub(crate) struct Page(Bytes);

impl Remotable for Page {
    fn encode(&self) -> Option<Bytes> {
        Some(self.0.clone())
    }

    fn decode(bytes: Bytes) -> Option<Self> {
        Some(Self(bytes))
    }
}

pub(crate) fn page(bytes: usize) -> Page {
    Page(Bytes::from(vec![7; bytes]))
}

/// A cache on `url` that never gives up within a measurement.
pub(crate) async fn open(url: &str, name: &str, ttl: Duration) -> Stampede<Page> {
    let redis = Redis::lazy(url)
        .expect("the address is one")
        .namespace("stampede")
        .op_timeout(Duration::from_secs(10));
    let builder = settings(name, ttl).redis(redis.max_value_bytes(64 << 20));
    let cache = builder.build().expect("the settings are good");
    assert!(cache.get("nothing is here").await.is_none());
    while cache.health() != Health::Up {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    cache
}

fn alone(name: &str, ttl: Duration) -> Stampede<Page> {
    settings(name, ttl).build().expect("the settings are good")
}

fn settings(name: &str, ttl: Duration) -> Builder<Page> {
    let builder = Stampede::builder(name).ttl(ttl).jitter(0.0).weigher(|page: &Page| page.0.len());
    builder.lease(Duration::from_secs(40)).wait_timeout(Duration::from_secs(60))
}

/// The life of one client: ends when its parent sends it no more tasks.
pub(crate) fn run(url: &str) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts").block_on(async {
        let mut cache = open(url, "lasting", Duration::from_secs(600)).await;
        answer(&Done::default());
        // Awaited and not read: what runs in the background goes on meanwhile.
        let mut lines = tokio::io::BufReader::new(tokio::io::stdin()).lines();
        while let Some(line) = lines.next_line().await.expect("a line is text") {
            let task = serde_json::from_str(&line).expect("a line is a task");
            answer(&perform(url, &mut cache, task).await);
        }
    });
    ExitCode::SUCCESS
}

fn answer(done: &Done) {
    let line = serde_json::to_string(done).expect("numbers are text");
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("the bench listens");
}

async fn perform(url: &str, cache: &mut Stampede<Page>, task: Task) -> Done {
    match task {
        Task::Open { name, ttl_ms, shared } => {
            let ttl = Duration::from_millis(ttl_ms);
            *cache = if shared { open(url, &name, ttl).await } else { alone(&name, ttl) };
            Done::default()
        }
        Task::Ask { keys, hold_ms, bytes } => {
            let mut work = Work::new(cache, hold_ms, bytes);
            keys.into_iter().for_each(|key| work.begin(key));
            work.end().await
        }
        Task::Load { keys, per_second, seconds, hold_ms } => {
            let mut work = Work::new(cache, hold_ms, 1024);
            // All processes ask for a key as often, and none at the moment of
            // another.
            let turn = Duration::from_secs(keys).div_f64(per_second as f64);
            let from = Instant::now() + turn.mul_f64(phase());
            for n in 0..per_second * seconds {
                tokio::time::sleep_until(from + Duration::from_secs(n).div_f64(per_second as f64))
                    .await;
                work.begin(format!("load-{}", n.wrapping_mul(7919) % keys));
                work.collect();
            }
            work.end().await
        }
    }
}

/// Between 0 and 1, another for each process: multiples of the golden ratio
/// lie far from each other, those of neighbours too.
fn phase() -> f64 {
    (f64::from(std::process::id()) * 0.618_033_988_749_895).fract()
}

/// Requests under way, and counts of earlier ones.
struct Work {
    cache: Stampede<Page>,
    hold: Duration,
    page: Page,
    counts: Arc<Counts>,
    asked: u64,
    requests: JoinSet<()>,
    asked_at: u64,
    from: Instant,
    before: Stats,
}

#[derive(Default)]
struct Counts {
    computed: AtomicU64,
    errors: AtomicU64,
    filled_at: AtomicU64,
    had_at: AtomicU64,
}

impl Work {
    fn new(cache: &Stampede<Page>, hold_ms: u64, bytes: usize) -> Self {
        Self {
            before: cache.stats(),
            cache: cache.clone(),
            hold: Duration::from_millis(hold_ms),
            page: page(bytes),
            counts: Arc::default(),
            asked: 0,
            requests: JoinSet::new(),
            asked_at: now(),
            from: Instant::now(),
        }
    }

    fn begin(&mut self, key: String) {
        self.asked += 1;
        let (cache, hold, page) = (self.cache.clone(), self.hold, self.page.clone());
        let counts = Arc::clone(&self.counts);
        self.requests.spawn(async move {
            let origin = Arc::clone(&counts);
            let compute = move || async move {
                origin.computed.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(hold).await;
                origin.filled_at.fetch_max(now(), Ordering::Relaxed);
                Ok::<_, std::fmt::Error>(page)
            };
            let errors = u64::from(cache.get_or_compute(key, compute).await.is_err());
            counts.had_at.fetch_max(now(), Ordering::Relaxed);
            counts.errors.fetch_add(errors, Ordering::Relaxed);
        });
    }

    /// Forgets the requests that have ended.
    fn collect(&mut self) {
        while let Some(ended) = self.requests.try_join_next() {
            ended.expect("a request does not panic");
        }
    }

    async fn end(mut self) -> Done {
        while let Some(ended) = self.requests.join_next().await {
            ended.expect("a request does not panic");
        }
        let took = self.from.elapsed();
        // The leader's caller is answered before others can read the value.
        while self.cache.stats().flights > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let after = self.cache.stats();
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Done {
            requests: self.asked,
            computed: count(&self.counts.computed),
            errors: count(&self.counts.errors),
            commands: after.remote_calls - self.before.remote_calls,
            pushed: after.wakes_by_push - self.before.wakes_by_push,
            asked_at: self.asked_at,
            filled_at: count(&self.counts.filled_at),
            had_at: count(&self.counts.had_at),
            took_ns: took.as_nanos() as u64,
        }
    }
}

/// Nanoseconds of the wall clock.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    since.as_nanos() as u64
}

/// Clients as this process sees them.
pub(crate) struct Fleet {
    url: String,
    clients: Vec<Client>,
}

struct Client {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Fleet {
    pub(crate) fn on(url: String) -> Self {
        Self { url, clients: Vec::new() }
    }

    /// Starts clients until there are so many, each listening to Redis.
    pub(crate) fn grow_to(&mut self, count: usize) {
        let from = self.clients.len();
        while self.clients.len() < count {
            self.clients.push(Client::start(&self.url));
        }
        for client in &mut self.clients[from..] {
            client.done();
        }
    }

    /// Gives all the same task at once.
    pub(crate) fn all(&mut self, task: &Task) -> Vec<Done> {
        Self::tell(&mut self.clients, task)
    }

    /// Gives it to the first one.
    pub(crate) fn first(&mut self, task: &Task) -> Done {
        Self::tell(&mut self.clients[..1], task).remove(0)
    }

    /// Gives it to all but the first one.
    pub(crate) fn others(&mut self, task: &Task) -> Vec<Done> {
        Self::tell(&mut self.clients[1..], task)
    }

    fn tell(clients: &mut [Client], task: &Task) -> Vec<Done> {
        let line = serde_json::to_string(task).expect("a task is text");
        for client in &mut *clients {
            writeln!(client.to, "{line}").expect("the client lives");
        }
        clients.iter_mut().map(Client::done).collect()
    }
}

impl Client {
    fn start(url: &str) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command.args([FLAG, url]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("this program starts again");
        let to = process.stdin.take().expect("it is piped");
        let from = BufReader::new(process.stdout.take().expect("it is piped"));
        Self { process, to, from }
    }

    fn done(&mut self) -> Done {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("the client lives");
        serde_json::from_str(&line).expect("the client says what it has done")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended already: no matter.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
