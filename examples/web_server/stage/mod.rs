//! The processes that the page starts, and what its buttons do to them.
//!
//! There are two stages: `solo`, one process without Redis, and `fleet`, several on one Redis.
//! What enters is a request of the page that [`access`](Access) lets in; what leaves is a
//! [`Timeline`] of one key, `/report/demo`, and the counts.
//!
//! - [`routes`]: the requests of the page.
//! - [`access`]: from where they may come.
//! - [`timeline`]: events and counts, bounded.
//! - [`instance`]: one process. It reports what its origin does, and ends with this one.
//! - [`redis_server`]: a Redis server of the page's own, and the keeper that ends it.
//! - [`traffic`]: the clients.
//!
//! A stage stops when no page has looked at it for [`FORGOTTEN`], and its steady stream of
//! requests rests after [`UNSEEN`].

use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::{Mutex as Turn, MutexGuard as TurnGuard, Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use self::access::Access;
use self::instance::Instance;
use self::redis_server::RedisServer;
use self::timeline::{Timeline, What};
use self::traffic::{HttpClient, Target};
use crate::child::{Report, now};

pub(crate) mod access;
mod instance;
pub(crate) mod redis_server;
pub(crate) mod routes;
mod timeline;
mod traffic;

/// Processes at once: with the one of `solo`, the keeper of Redis and Redis itself that is 8.
const MAX_FLEET: usize = 5;
/// Processes that a fleet begins with.
const FIRST: usize = 3;
/// Requests per second of the steady stream, to each process.
const MAX_RATE: u32 = 10;
/// Requests of the steady stream that may be open at once.
const MAX_OPEN: usize = 100;
/// The largest herd.
const MAX_HERD: usize = 300;
/// The herd that meets the leader which is killed.
const WITNESSES: usize = 60;

const TTL: Duration = Duration::from_secs(4);
const STALE: Duration = Duration::from_secs(4);
const STALE_IF_ERROR: Duration = Duration::from_secs(60);
const WORK: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_millis(1500);

/// After how long without a page the steady stream rests, and after how long all processes end.
const UNSEEN: Duration = Duration::from_secs(4);
const FORGOTTEN: Duration = Duration::from_secs(30);
/// How long a killed leader may take to begin.
const BEGIN: Duration = Duration::from_secs(10);
/// How long the processes may take to find a thawed Redis.
const REUNION: Duration = Duration::from_secs(10);

/// Why the page does not get what it asks for.
pub(crate) type Refusal = (StatusCode, String);

/// Both stages, and from where they may be used.
#[derive(Debug)]
pub(crate) struct Stages {
    pub(crate) access: Access,
    pub(crate) solo: Arc<Stage>,
    pub(crate) fleet: Arc<Stage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Solo,
    Fleet,
}

#[derive(Debug)]
pub(crate) struct Stage {
    kind: Kind,
    client: HttpClient,
    /// One button at a time.
    turn: Turn<Option<RedisServer>>,
    live: Mutex<Live>,
    reported: Notify,
    open: Arc<Semaphore>,
    tasks: TaskTracker,
}

/// What changes.
#[derive(Debug)]
struct Live {
    timeline: Timeline,
    instances: Vec<Instance>,
    /// Names are not used twice.
    named: u8,
    /// Counts the starts; a page that sees another number draws anew.
    run: u64,
    is_running: bool,
    is_frozen: bool,
    is_failing: bool,
    rate: u32,
    seen: Instant,
    stop: CancellationToken,
}

impl Stages {
    pub(crate) fn new(access: Access) -> Self {
        Self { access, solo: Stage::new(Kind::Solo), fleet: Stage::new(Kind::Fleet) }
    }

    /// Ends all processes.
    pub(crate) async fn stop(&self) {
        for stage in [&self.solo, &self.fleet] {
            let mut redis = stage.turn.lock().await;
            stage.stop(&mut redis).await;
        }
    }
}

impl Stage {
    fn new(kind: Kind) -> Arc<Self> {
        let live = Live {
            timeline: Timeline::default(),
            instances: Vec::new(),
            named: 0,
            run: 0,
            is_running: false,
            is_frozen: false,
            is_failing: false,
            rate: 3,
            seen: Instant::now(),
            stop: CancellationToken::new(),
        };
        Arc::new(Self {
            kind,
            client: traffic::client(),
            turn: Turn::default(),
            live: Mutex::new(live),
            reported: Notify::new(),
            open: Arc::new(Semaphore::new(MAX_OPEN)),
            tasks: TaskTracker::new(),
        })
    }

    fn live<T>(&self, f: impl FnOnce(&mut Live) -> T) -> T {
        f(&mut self.live.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn take_turn(&self) -> Result<TurnGuard<'_, Option<RedisServer>>, Refusal> {
        self.turn.try_lock().map_err(|_| conflict("another button is at work; wait for it"))
    }

    /// What the page draws; `since` is the first event that it does not know.
    fn state(&self, since: u64) -> Value {
        self.live(|live| {
            live.seen = Instant::now();
            let lane = |instance: &Instance| {
                json!({
                    "name": instance.name,
                    "pid": instance.pid,
                    "port": instance.address.port(),
                    "computing": instance.computing > 0,
                    "redis": instance.reaches_redis,
                })
            };
            json!({
                "now": now(),
                "run": live.run,
                "running": live.is_running,
                "next": live.timeline.next(),
                "events": live.timeline.since(since),
                "lanes": live.instances.iter().map(lane).collect::<Vec<_>>(),
                "max_lanes": self.max_instances(),
                "frozen": live.is_frozen,
                "failing": live.is_failing,
                "rate": live.rate,
                "counts": live.timeline.counts,
                "ttl_ms": TTL.as_millis() as u64,
                "stale_ms": STALE.as_millis() as u64,
                "herd": MAX_HERD,
                "redis_installed": self.kind == Kind::Solo || redis_server::is_installed(),
            })
        })
    }

    fn max_instances(&self) -> usize {
        if self.kind == Kind::Solo { 1 } else { MAX_FLEET }
    }

    /// Starts the first processes, and the steady stream of requests.
    async fn start(self: &Arc<Self>) -> Result<(), Refusal> {
        let mut redis = self.take_turn()?;
        if self.live(|live| live.is_running) {
            return Err(conflict("the processes run already"));
        }
        if self.kind == Kind::Fleet {
            if !redis_server::is_installed() {
                return Err(unavailable("redis-server is not installed"));
            }
            *redis = Some(RedisServer::start().await.map_err(|error| unavailable(&error))?);
        }
        let stop = CancellationToken::new();
        self.live(|live| {
            live.timeline.clear();
            live.run += 1;
            live.named = 0;
            live.is_running = true;
            (live.is_frozen, live.is_failing) = (false, false);
            live.seen = Instant::now();
            live.stop = stop.clone();
        });
        for _ in 0..FIRST.min(self.max_instances()) {
            if let Err(error) = self.add_to(redis.as_ref()).await {
                self.stop(&mut redis).await;
                return Err(error);
            }
        }
        // None of the tasks: `stop` waits for those.
        tokio::spawn(Arc::clone(self).stop_when_forgotten(stop.clone()));
        let stage = Arc::clone(self);
        self.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = stage.run() => {}
            }
        });
        Ok(())
    }

    /// Ends all processes of this stage, and returns when they are gone.
    async fn stop(&self, redis: &mut Option<RedisServer>) {
        self.live(|live| {
            live.is_running = false;
            (live.is_frozen, live.is_failing) = (false, false);
            live.stop.cancel();
            live.instances.iter().for_each(Instance::kill);
        });
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
        if let Some(redis) = redis.take() {
            redis.stop().await;
        }
    }

    async fn add(self: &Arc<Self>) -> Result<(), Refusal> {
        let redis = self.take_turn()?;
        self.must_run()?;
        self.add_to(redis.as_ref()).await
    }

    async fn add_to(self: &Arc<Self>, redis: Option<&RedisServer>) -> Result<(), Refusal> {
        let (running, named) = self.live(|live| (live.instances.len(), live.named));
        if running >= self.max_instances() || named >= 26 {
            return Err(conflict("there are as many processes as this page starts"));
        }
        let name = char::from(b'A' + named).to_string();
        let (instance, process) = Instance::start(name.clone(), &flags(redis))
            .await
            .map_err(|error| unavailable(&error))?;
        let (pid, address) = (instance.pid, instance.address);
        let is_failing = self.live(|live| {
            live.named += 1;
            live.instances.push(instance);
            live.timeline.push(now(), Some(&name), What::Started);
            live.is_failing
        });
        let stage = Arc::clone(self);
        self.tasks.spawn(async move {
            process.follow(|report| stage.note(&name, pid, report)).await;
            stage.live(|live| {
                live.instances.retain(|instance| instance.pid != pid);
                live.timeline.push(now(), Some(&name), What::Gone);
            });
        });
        if is_failing {
            self.post(&[address], "/fail?on=true").await?;
        }
        Ok(())
    }

    /// Takes note of what a process reports.
    fn note(&self, name: &str, pid: u32, report: Report) {
        self.live(|live| {
            let of_it = live.instances.iter_mut().find(|instance| instance.pid == pid);
            let Some(instance) = of_it else { return };
            let (at, what) = match report {
                Report::Began { at, call } => (at, What::Began { call }),
                Report::Ended { at, call, ok } => (at, What::Ended { call, ok }),
                Report::Redis { at, up } => (at, What::Redis { up }),
            };
            match what {
                What::Began { .. } => instance.computing += 1,
                What::Ended { .. } => instance.computing = instance.computing.saturating_sub(1),
                What::Redis { up } => instance.reaches_redis = Some(up),
                _ => {}
            }
            live.timeline.push(at, Some(name), what);
        });
        self.reported.notify_waiters();
    }

    /// Ends all processes once no page looks any more, or returns when they are stopped.
    async fn stop_when_forgotten(self: Arc<Self>, stopped: CancellationToken) {
        loop {
            let rest = FORGOTTEN.saturating_sub(self.live(|live| live.seen.elapsed()));
            if stopped.run_until_cancelled(tokio::time::sleep(rest)).await.is_none() {
                return;
            }
            // A button may be at work. When it is done, a page may look again, or the processes
            // are stopped and others run.
            let mut redis = self.turn.lock().await;
            if stopped.is_cancelled() {
                return;
            }
            if self.live(|live| live.seen.elapsed()) >= FORGOTTEN {
                return self.stop(&mut redis).await;
            }
        }
    }

    /// Sends the steady stream of requests; it rests while no page looks.
    async fn run(self: &Arc<Self>) {
        for n in 0.. {
            let (seen, rate, targets) = self.live(|live| (live.seen, live.rate, live.targets()));
            let rest = 1000 / u64::from(rate.max(1)) / targets.len().max(1) as u64;
            tokio::time::sleep(Duration::from_millis(rest)).await;
            let is_wanted = rate > 0 && seen.elapsed() < UNSEEN && !targets.is_empty();
            if let (true, Ok(place)) = (is_wanted, Arc::clone(&self.open).try_acquire_owned()) {
                let stage = Arc::clone(self);
                tokio::spawn(async move {
                    traffic::trickle(&stage, &targets, n).await;
                    drop(place);
                });
            }
        }
    }

    /// Sends a herd. If the origin works, the stored value is invalidated first.
    async fn herd(self: &Arc<Self>, clients: usize) -> Result<Value, Refusal> {
        let _turn = self.take_turn()?;
        self.must_run()?;
        let targets = self.live(|live| live.targets());
        let is_failing = self.live(|live| live.is_failing);
        let before = self.calls();
        if !is_failing {
            self.invalidate_at(&targets).await?;
        }
        let herd = traffic::herd(self, &targets, clients.max(1)).await;
        let mut told = herd.to_json();
        told["origin_calls"] = json!(self.calls() - before);
        told["processes"] = json!(targets.len());
        told["expired"] = json!(!is_failing);
        Ok(told)
    }

    /// Sends a herd, and kills the process that computes for it.
    async fn kill_leader(self: &Arc<Self>) -> Result<Value, Refusal> {
        let _turn = self.take_turn()?;
        self.must_run()?;
        let targets = self.live(|live| live.targets());
        if targets.len() < 2 {
            return Err(conflict("the last process stays; add another one first"));
        }
        if self.live(|live| live.is_failing) {
            return Err(conflict(
                "the origin fails, so no process leads for long; repair it first",
            ));
        }
        self.invalidate_at(&targets).await?;
        let before = self.calls();
        let (stage, at) = (Arc::clone(self), targets.clone());
        let herd = tokio::spawn(async move { traffic::herd(&stage, &at, WITNESSES).await });
        let leader = tokio::time::timeout(BEGIN, self.leader_since(before)).await;
        let leader = leader.map_err(|_| unavailable("no process began to compute"))?;
        // Long enough to see on the page which process is the leader, and well before its work ends.
        tokio::time::sleep(WORK / 2).await;
        leader.kill();
        let herd = herd.await.map_err(|error| unavailable(&error.to_string()))?;
        let mut told = herd.to_json();
        told["origin_calls"] = json!(self.calls() - before);
        told["killed"] = json!(leader.name);
        told["lease_ms"] = json!(LEASE.as_millis() as u64);
        Ok(told)
    }

    /// Returns the process that computes, once there are more calls than before.
    async fn leader_since(&self, before: u64) -> Instance {
        loop {
            let mut reported = std::pin::pin!(self.reported.notified());
            // From here on no report is missed.
            reported.as_mut().enable();
            let leader = self.live(|live| {
                let is_new = live.timeline.counts.origin_calls > before;
                live.instances.iter().find(|instance| is_new && instance.computing > 0).cloned()
            });
            if let Some(leader) = leader {
                return leader;
            }
            reported.await;
        }
    }

    async fn freeze(&self, on: bool) -> Result<(), Refusal> {
        let mut redis = self.take_turn()?;
        self.must_run()?;
        let Some(server) = redis.as_mut() else { return Err(conflict("there is no Redis here")) };
        server.freeze(on).await.map_err(|error| unavailable(&error))?;
        let is_frozen = server.is_frozen();
        self.live(|live| {
            live.is_frozen = is_frozen;
            live.timeline.push(now(), None, What::Frozen { on });
        });
        if !on {
            // A process that is told late goes on alone for longer; it does no harm.
            let _ = tokio::time::timeout(REUNION, self.all_reach_redis()).await;
        }
        Ok(())
    }

    async fn all_reach_redis(&self) {
        loop {
            let mut reported = std::pin::pin!(self.reported.notified());
            reported.as_mut().enable();
            let all =
                |live: &mut Live| live.instances.iter().all(|it| it.reaches_redis == Some(true));
            if self.live(all) {
                return;
            }
            reported.await;
        }
    }

    async fn fail(&self, on: bool) -> Result<(), Refusal> {
        let _turn = self.take_turn()?;
        self.must_run()?;
        let addresses = self.live(|live| {
            live.is_failing = on;
            live.timeline.push(now(), None, What::Failing { on });
            live.instances.iter().map(|instance| instance.address).collect::<Vec<_>>()
        });
        self.post(&addresses, &format!("/fail?on={on}")).await
    }

    async fn invalidate(&self) -> Result<(), Refusal> {
        let _turn = self.take_turn()?;
        self.must_run()?;
        let targets = self.live(|live| live.targets());
        self.invalidate_at(&targets).await
    }

    /// One process tells the others, through Redis. While Redis is frozen it cannot, and each is
    /// told by its own request.
    async fn invalidate_at(&self, targets: &[Target]) -> Result<(), Refusal> {
        let is_frozen = self.live(|live| {
            live.timeline.push(now(), None, What::Invalidated);
            live.is_frozen
        });
        let told = if is_frozen { targets.len() } else { 1 };
        let told: Vec<_> = targets.iter().take(told).map(|target| target.address).collect();
        self.post(&told, "/invalidate/demo").await
    }

    /// Posts to several processes at once. One that is gone meanwhile does not matter.
    async fn post(&self, to: &[std::net::SocketAddr], path: &str) -> Result<(), Refusal> {
        let posts = to.iter().map(|&to| traffic::post(&self.client, to, path));
        let results = futures_util::future::join_all(posts).await;
        let is_there = |at| self.live(|live| live.instances.iter().any(|it| it.address == at));
        for (result, &at) in results.into_iter().zip(to) {
            if let Err(error) = result
                && is_there(at)
            {
                return Err(unavailable(&error));
            }
        }
        Ok(())
    }

    fn set_rate(&self, rate: u32) {
        self.live(|live| live.rate = rate.min(MAX_RATE));
    }

    fn calls(&self) -> u64 {
        self.live(|live| live.timeline.counts.origin_calls)
    }

    fn must_run(&self) -> Result<(), Refusal> {
        let runs = self.live(|live| live.is_running);
        if runs { Ok(()) } else { Err(conflict("no process runs; start them first")) }
    }
}

impl Live {
    fn targets(&self) -> Vec<Target> {
        let target = |it: &Instance| Target { lane: it.name.clone(), address: it.address };
        self.instances.iter().map(target).collect()
    }
}

/// This program, to be started once more. Ctrl-C in a terminal does not reach it: it ends when
/// its stdin closes, and has something to end before.
fn own_program() -> std::io::Result<Command> {
    let mut program = Command::new(std::env::current_exe()?);
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    #[cfg(unix)]
    program.process_group(0);
    Ok(program)
}

/// The flags of a process.
fn flags(redis: Option<&RedisServer>) -> Vec<String> {
    let mut flags = Vec::new();
    for (flag, time) in [
        ("--ttl-ms", TTL),
        ("--stale-ms", STALE),
        ("--stale-if-error-ms", STALE_IF_ERROR),
        ("--work-ms", WORK),
        ("--lease-ms", LEASE),
    ] {
        flags.extend([flag.to_owned(), time.as_millis().to_string()]);
    }
    if let Some(redis) = redis {
        flags.extend(["--redis".into(), redis.url(), "--namespace".into(), "page".into()]);
    }
    flags
}

fn conflict(reason: &str) -> Refusal {
    (StatusCode::CONFLICT, format!("{reason}\n"))
}

fn unavailable(reason: &str) -> Refusal {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"))
}
