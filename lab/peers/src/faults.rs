//! Nine faults, staged for the peers that can share values between processes. Each is one run,
//! in a process and on a server of its own, with the settings that the peer is built with.

mod leader;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::future::{BoxFuture, join_all};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::crowd::{CROWD, PATIENCE};
use crate::origin::Failure;
use crate::peers::{self, StartStaged};
use crate::redis_support::{Proxy, Server};
use crate::report::percentile;
use leader::Leader;

pub(crate) use leader::lead;

/// On every value, where the peer has tags.
pub(crate) const TAG: &str = "staged";

const KEY: u64 = 7;

/// For the time-outs of the peers that have them.
const TIME_OUT: Duration = Duration::from_millis(500);

/// Longer than the longest lease, which is amalgam's of 30 s.
const LEASE_PATIENCE: Duration = Duration::from_secs(45);

/// How long the readers of a lost message are watched.
const WATCHED: Duration = Duration::from_secs(5);

/// Said of a late write that changes nothing.
const REFUSED: &str = "refused";

/// Requests to a cache whose Redis is away, each for a key of its own.
const REQUESTS: u64 = 1600;
const OUTAGE: Duration = Duration::from_secs(4);

pub(crate) struct Stage {
    pub(crate) redis: Option<String>,
    pub(crate) time_out: Option<Duration>,
}

impl Stage {
    fn on(url: String) -> Self {
        Self { redis: Some(url), time_out: None }
    }
}

/// A cache on which a fault is staged.
pub(crate) trait Staged: Send + Sync {
    fn ask(&self, key: u64, work: Work) -> BoxFuture<'static, Result<u64, String>>;

    fn invalidate(&self, key: u64) -> BoxFuture<'static, Result<(), String>>;

    /// None where the peer has no tags.
    fn invalidate_tag(&self) -> Option<BoxFuture<'static, Result<(), String>>>;
}

/// A computation that takes its time and makes a number. Clones count together.
#[derive(Clone)]
pub(crate) struct Work {
    value: u64,
    time: Duration,
    calls: Arc<AtomicUsize>,
}

impl Work {
    fn new(value: u64, millis: u64) -> Self {
        Self { value, time: Duration::from_millis(millis), calls: Arc::default() }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    pub(crate) async fn run(self) -> Result<u64, Failure> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        sleep(self.time).await;
        Ok(self.value)
    }

    pub(crate) fn bytes_of(value: u64) -> Bytes {
        Bytes::copy_from_slice(&value.to_be_bytes())
    }

    pub(crate) fn value_of(mut bytes: Bytes) -> Result<u64, String> {
        bytes.try_get_u64().map_err(|error| error.to_string())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    WorkHangs,
    Invalidated,
    LeaderKilled,
    ConnectionsCut,
    LeaderFrozen,
    RedisFrozen,
    RedisKilled,
    MessageLost,
    MarkersEvicted,
}

impl Fault {
    pub(crate) const ALL: [Self; 9] = [
        Self::WorkHangs,
        Self::Invalidated,
        Self::LeaderKilled,
        Self::ConnectionsCut,
        Self::LeaderFrozen,
        Self::RedisFrozen,
        Self::RedisKilled,
        Self::MessageLost,
        Self::MarkersEvicted,
    ];

    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::WorkHangs => "work_hangs",
            Self::Invalidated => "invalidated",
            Self::LeaderKilled => "leader_killed",
            Self::ConnectionsCut => "connections_cut",
            Self::LeaderFrozen => "leader_frozen",
            Self::RedisFrozen => "redis_frozen",
            Self::RedisKilled => "redis_killed",
            Self::MessageLost => "message_lost",
            Self::MarkersEvicted => "markers_evicted",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::WorkHangs => "the work hangs, time-out of 500 ms",
            Self::Invalidated => "invalidated while the old value is computed: caller; stored",
            Self::LeaderKilled => "the leading process is killed: next answer after",
            Self::ConnectionsCut => "the leader's connections are cut once, 600 ms of work",
            Self::LeaderFrozen => {
                "the leading process is frozen, then writes: its write; its caller"
            }
            Self::RedisFrozen => "Redis frozen for 4 s, 1600 requests: failed; p50/p99 ms",
            Self::RedisKilled => "Redis killed, 1600 requests: failed; p50/p99 ms",
            Self::MessageLost => {
                "message lost / swallowed: another process serves the old value for"
            }
            Self::MarkersEvicted => "marks of an invalidated tag evicted: a new process gets",
        }
    }

    pub(crate) fn named(id: &str) -> Self {
        let fault = Self::ALL.into_iter().find(|fault| fault.id() == id);
        fault.unwrap_or_else(|| panic!("no fault is called {id}"))
    }
}

/// What happened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// The cell of the table.
    pub(crate) said: String,
    /// How many calls, callers or values break a rule. With our crate it must be 0.
    pub(crate) wrong: usize,
}

impl Finding {
    fn new(wrong: usize, said: impl Into<String>) -> Self {
        Self { said: said.into(), wrong }
    }
}

pub(crate) async fn run(peer: &str, fault: Fault) -> Finding {
    let start = peers::staged(peer).expect("the peer takes part in faults");
    match fault {
        Fault::WorkHangs => work_hangs(start).await,
        Fault::Invalidated => invalidated(start).await,
        Fault::LeaderKilled => leader_killed(peer, start).await,
        Fault::ConnectionsCut => connections_cut(start).await,
        Fault::LeaderFrozen => leader_frozen(peer, start).await,
        Fault::RedisFrozen => outage(start, Server::freeze, Server::thaw).await,
        Fault::RedisKilled => outage(start, Server::kill, |_| ()).await,
        Fault::MessageLost => message_lost(start).await,
        Fault::MarkersEvicted => markers_evicted(start).await,
    }
}

async fn work_hangs(start: StartStaged) -> Finding {
    let cache = start(Stage { redis: None, time_out: Some(TIME_OUT) }).await;
    let work = Work::new(1, 3_600_000);
    let began = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..CROWD {
        callers.spawn(cache.ask(KEY, work.clone()));
    }
    let mut last = Duration::ZERO;
    let mut answered = 0;
    while let Ok(Some(_)) =
        timeout(PATIENCE.saturating_sub(began.elapsed()), callers.join_next()).await
    {
        (answered, last) = (answered + 1, began.elapsed());
    }
    let calls = work.calls();
    let stuck = CROWD - answered;
    let said = match stuck {
        0 => format!("all answered after {} ms", last.as_millis()),
        stuck => format!("{stuck} stuck"),
    };
    Finding::new(stuck + calls.abs_diff(1), format!("{}, {said}", counted(calls)))
}

async fn invalidated(start: StartStaged) -> Finding {
    let cache = start(Stage { redis: None, time_out: None }).await;
    let first = tokio::spawn(cache.ask(KEY, Work::new(1, 300)));
    sleep(Duration::from_millis(100)).await;
    cache.invalidate(KEY).await.expect("memory does not fail");
    let caller = cache.ask(KEY, Work::new(2, 10)).await;
    first.await.expect("the work does not panic").expect("the work does not fail");
    // A store may be written after the caller has its answer.
    sleep(Duration::from_millis(50)).await;
    let stored = cache.ask(KEY, Work::new(3, 10)).await;
    let got = [age(caller), age(stored)];
    Finding::new(not_new(&got), got.join("; "))
}

/// The value 1 is from before the fault.
fn age(answer: Result<u64, String>) -> &'static str {
    match answer {
        Ok(1) => "old",
        Ok(_) => "new",
        Err(_) => "error",
    }
}

fn not_new(got: &[&str]) -> usize {
    got.iter().filter(|&&age| age != "new").count()
}

async fn leader_killed(peer: &str, start: StartStaged) -> Finding {
    let server = Server::start();
    let cache = started(start, server.url()).await;
    let leader = Leader::start(peer, &server.url(), Duration::from_secs(60));
    drop(leader);
    let from = Instant::now();
    match timeout(LEASE_PATIENCE, cache.ask(KEY, Work::new(2, 10))).await {
        Ok(answer) => {
            let answer = age(answer);
            let seconds = from.elapsed().as_secs_f64();
            Finding::new(not_new(&[answer]), format!("{answer}, {seconds:.2} s"))
        }
        Err(_) => Finding::new(1, format!("none in {} s", LEASE_PATIENCE.as_secs())),
    }
}

async fn connections_cut(start: StartStaged) -> Finding {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leading = started(start, proxy.url()).await;
    let other = started(start, server.url()).await;
    let work = Work::new(2, 600);
    let began = Instant::now();
    let mut callers = JoinSet::new();
    callers.spawn(leading.ask(KEY, work.clone()));
    while work.calls() == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    for n in 0..200 {
        let cache = if n % 2 == 0 { &leading } else { &other };
        callers.spawn(cache.ask(KEY, work.clone()));
    }
    sleep_until(began + Duration::from_millis(200)).await;
    proxy.cut();
    let all = timeout(LEASE_PATIENCE, callers.join_all()).await;
    let calls = work.calls();
    let Ok(all) = all else {
        let said = format!("{}, not all in {} s", counted(calls), LEASE_PATIENCE.as_secs());
        return Finding::new(1, said);
    };
    let failed = all.iter().filter(|answer| answer.is_err()).count();
    let last = began.elapsed().as_millis();
    let said = format!("{}, {failed} failed, all answered after {last} ms", counted(calls));
    Finding::new(failed + calls.abs_diff(1), said)
}

fn counted(calls: usize) -> String {
    format!("{calls} {}", if calls == 1 { "call" } else { "calls" })
}

async fn leader_frozen(peer: &str, start: StartStaged) -> Finding {
    let server = Server::start();
    let cache = started(start, server.url()).await;
    let mut leader = Leader::start(peer, &server.url(), Duration::from_secs(1));
    leader.freeze();
    let answer = timeout(LEASE_PATIENCE, cache.ask(KEY, Work::new(2, 10))).await;
    leader.thaw();
    let caller = leader.answer();
    sleep(Duration::from_millis(500)).await;
    let fresh = started(start, server.url()).await;
    let stored = fresh.ask(KEY, Work::new(3, 10)).await;
    let write = match (answer, stored) {
        (Ok(Ok(2)), Ok(2)) => REFUSED,
        (Ok(Ok(2)), Ok(1)) => "overwrites",
        (Err(_), _) => "the next caller waits on",
        _ => "lost with the newer value",
    };
    let wrong = usize::from(write != REFUSED) + usize::from(caller != leader::ITS_VALUE);
    Finding::new(wrong, format!("{write}; {caller}"))
}

async fn outage(start: StartStaged, begin: fn(&Server), end: fn(&Server)) -> Finding {
    let server = Arc::new(Server::start());
    let cache = started(start, server.url()).await;
    begin(&server);
    let began = Instant::now();
    let ending = tokio::spawn({
        let server = Arc::clone(&server);
        async move {
            sleep_until(began + OUTAGE).await;
            end(&server);
        }
    });
    let pause = OUTAGE / REQUESTS as u32;
    let requests = (0..REQUESTS).map(|n| {
        let asked = cache.ask(1000 + n, Work::new(n, 0));
        tokio::spawn(async move {
            sleep_until(began + pause * n as u32).await;
            let from = Instant::now();
            let is_good = matches!(timeout(Duration::from_secs(20), asked).await, Ok(Ok(_)));
            (is_good, from.elapsed().as_secs_f64() * 1e3)
        })
    });
    let all = join_all(requests.collect::<Vec<_>>()).await;
    let all: Vec<_> = all.into_iter().map(|one| one.expect("a request does not panic")).collect();
    ending.await.expect("the server is there");
    let failed = all.iter().filter(|(is_good, _)| !is_good).count();
    let mut times: Vec<_> = all.iter().map(|(_, time)| *time).collect();
    times.sort_by(f64::total_cmp);
    let [p50, p99] = [50.0, 99.0].map(|percent| percentile(&times, percent).unwrap_or_default());
    Finding::new(failed, format!("{failed}; {p50:.0}/{p99:.0}"))
}

async fn message_lost(start: StartStaged) -> Finding {
    let lost = stale_after(start, Proxy::cut_subscribers).await;
    let swallowed = stale_after(start, |proxy| proxy.mute_subscribers(true)).await;
    let said = [lost, swallowed].map(|stale| match stale {
        Some(stale) => format!("{} ms", stale.as_millis()),
        None => format!("more than {} s", WATCHED.as_secs()),
    });
    let wrong = [lost, swallowed].iter().filter(|stale| stale.is_none()).count();
    Finding::new(wrong, said.join(" / "))
}

/// How long a process whose messages are lost serves what another has invalidated; none if it
/// still does when the watch ends.
async fn stale_after(start: StartStaged, lose: fn(&Proxy)) -> Option<Duration> {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let invalidating = started(start, server.url()).await;
    let reading = started(start, proxy.url()).await;
    for cache in [&invalidating, &reading] {
        cache.ask(KEY, Work::new(1, 1)).await.expect("the server answers");
    }
    // What they do after an answer is done by then.
    sleep(Duration::from_secs(1)).await;
    lose(&proxy);
    invalidating.invalidate(KEY).await.expect("the server answers");
    let from = Instant::now();
    while from.elapsed() < WATCHED {
        if age(reading.ask(KEY, Work::new(2, 1)).await) != "old" {
            return Some(from.elapsed());
        }
        sleep(Duration::from_millis(2)).await;
    }
    None
}

/// Removes from the server all that the invalidation has written, as an eviction may.
async fn markers_evicted(start: StartStaged) -> Finding {
    let server = Server::start();
    let cache = started(start, server.url()).await;
    cache.ask(KEY, Work::new(1, 1)).await.expect("the server answers");
    sleep(Duration::from_millis(500)).await;
    let values = keys(&server);
    let Some(invalidation) = cache.invalidate_tag() else {
        return Finding::new(0, "no tags");
    };
    invalidation.await.expect("the server answers");
    sleep(Duration::from_millis(500)).await;
    for mark in keys(&server).iter().filter(|key| !values.contains(key)) {
        server.cli(&["DEL", mark]);
    }
    let fresh = started(start, server.url()).await;
    let got = age(fresh.ask(KEY, Work::new(2, 1)).await);
    Finding::new(not_new(&[got]), if got == "old" { "the invalidated value" } else { got })
}

fn keys(server: &Server) -> Vec<String> {
    server.cli(&["KEYS", "*"]).parts().iter().map(|key| key.text()).collect()
}

/// With its connections open.
async fn started(start: StartStaged, url: String) -> Arc<dyn Staged> {
    let cache = start(Stage::on(url)).await;
    cache.ask(u64::MAX, Work::new(0, 1)).await.expect("the server answers");
    cache
}
