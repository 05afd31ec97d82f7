//! A fleet: thousands of processes start together on one cold key, with default time-outs, at a
//! server that takes one command after the other.
//!
//! Each process is a whole cache. The server is `remote::Double` behind a queue: a command is
//! executed once the commands before it have had their time. The times were measured: processor
//! time of a Redis 7.0 server for each command with its network input and output, from fifty
//! connections, on two cores with other load. `FLEET` sets the number of processes.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;
use tower_stampede::remote::{
    AcquireOutcome, Call, Double, DoubleProcess, FillOutcome, Grant, InvalidatedRecords,
    LeaseRequest, Listener, LogItem, LogPositions, LogReply, OnNotice, Remote, RemoteError,
    RemoteErrorKind, RemoteLog, RemoteOp, RemotePush, RemoteSettings, ServerTime, Shard, Stamp,
    Token, Version,
};
use tower_stampede::{Computed, Key, Stampede, Tag};

/// How many processes the suite starts.
const IN_SUITE: u64 = 2_000;

/// How many servers a cluster has on which the heartbeats of 10,000 processes are counted.
const CLUSTER: u32 = 100;

const SECOND: Duration = Duration::from_secs(1);

/// Server time of one command, in microseconds.
const fn cost(op: RemoteOp) -> u64 {
    match op {
        RemoteOp::Get => 9,
        RemoteOp::ReadLog | RemoteOp::ReadPositions => 10,
        RemoteOp::Probe => 16,
        RemoteOp::Fill | RemoteOp::Put | RemoteOp::Invalidate | RemoteOp::Abandon => 24,
        _ => 37,
    }
}

/// The same for the wake-up of one waiting process.
const WAKE_UP: u64 = 6;

struct Queue {
    busy_until: Instant,
    calls: BTreeMap<RemoteOp, (u32, Duration)>,
    waiting: u64,
}

impl Queue {
    /// Returns when the server has executed a command that arrives now.
    fn enter(&mut self, op: RemoteOp) -> Instant {
        let wake_ups = if op == RemoteOp::Fill { std::mem::take(&mut self.waiting) } else { 0 };
        let time = Duration::from_micros(cost(op) + wake_ups * WAKE_UP);
        let (count, spent) = self.calls.entry(op).or_default();
        (*count, *spent) = (*count + 1, *spent + time);
        self.busy_until = self.busy_until.max(Instant::now()) + time;
        self.busy_until
    }
}

/// The client of one process: its commands queue at the server.
struct QueuedClient {
    process: Arc<DoubleProcess>,
    queue: Arc<Mutex<Queue>>,
    reads_of_values: AtomicUsize,
}

impl QueuedClient {
    async fn call<T: Send + 'static, F>(
        &self,
        op: RemoteOp,
        run: impl FnOnce(Arc<DoubleProcess>) -> F,
    ) -> Result<T, RemoteError>
    where
        F: Future<Output = Result<T, RemoteError>> + Send + 'static,
    {
        if matches!(op, RemoteOp::Get | RemoteOp::Acquire) {
            self.reads_of_values.fetch_add(1, Ordering::Relaxed);
        }
        let executed = self.queue.lock().enter(op);
        let command = run(Arc::clone(&self.process));
        // Executed also where the caller does not wait any more.
        let command = tokio::spawn(async move {
            tokio::time::sleep_until(executed).await;
            command.await
        });
        command.await.unwrap_or_else(|_| Err(RemoteError::new(RemoteErrorKind::Connection)))
    }
}

impl Remote for QueuedClient {
    fn get<'a>(&'a self, key: &'a Key) -> Call<'a, Option<Bytes>> {
        let key = key.clone();
        Box::pin(
            self.call(
                RemoteOp::Get,
                move |to: Arc<DoubleProcess>| async move { to.get(&key).await },
            ),
        )
    }

    fn acquire<'a>(&'a self, key: &'a Key, ask: &'a LeaseRequest) -> Call<'a, AcquireOutcome> {
        let (key, ask, queue) = (key.clone(), *ask, Arc::clone(&self.queue));
        Box::pin(self.call(RemoteOp::Acquire, move |to: Arc<DoubleProcess>| async move {
            let outcome = to.acquire(&key, &ask).await;
            if let Ok(AcquireOutcome::Locked { waiting, .. }) = outcome {
                queue.lock().waiting = u64::from(waiting);
            }
            outcome
        }))
    }

    fn fill<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        ttl: Duration,
        envelope: Bytes,
    ) -> Call<'a, FillOutcome> {
        let (key, grant) = (key.clone(), *grant);
        Box::pin(self.call(RemoteOp::Fill, move |to| async move {
            to.fill(&key, &grant, ttl, envelope).await
        }))
    }

    fn renew<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        ask: &'a LeaseRequest,
    ) -> Call<'a, bool> {
        let (key, grant, ask) = (key.clone(), *grant, *ask);
        let run = move |to: Arc<DoubleProcess>| async move { to.renew(&key, &grant, &ask).await };
        Box::pin(self.call(RemoteOp::Renew, run))
    }

    fn abandon<'a>(
        &'a self,
        key: &'a Key,
        token: &'a Token,
        hold: Option<Duration>,
    ) -> Call<'a, bool> {
        let (key, token) = (key.clone(), *token);
        let run = move |to: Arc<DoubleProcess>| async move { to.abandon(&key, &token, hold).await };
        Box::pin(self.call(RemoteOp::Abandon, run))
    }

    fn invalidate<'a>(&'a self, key: &'a Key) -> Call<'a, InvalidatedRecords> {
        let key = key.clone();
        Box::pin(self.call(RemoteOp::Invalidate, move |to: Arc<DoubleProcess>| async move {
            to.invalidate(&key).await
        }))
    }

    fn put<'a>(
        &'a self,
        key: &'a Key,
        ttl: Duration,
        envelope: Bytes,
    ) -> Call<'a, (ServerTime, Version)> {
        let key = key.clone();
        let run = move |to: Arc<DoubleProcess>| async move { to.put(&key, ttl, envelope).await };
        Box::pin(self.call(RemoteOp::Put, run))
    }

    fn probe(&self, shard: Shard) -> Call<'_, ServerTime> {
        Box::pin(self.call(RemoteOp::Probe, move |to: Arc<DoubleProcess>| async move {
            to.probe(shard).await
        }))
    }

    fn log(&self) -> Option<&dyn RemoteLog> {
        Some(self)
    }

    fn push(&self) -> Option<&dyn RemotePush> {
        Some(self)
    }

    fn suspect(&self, _: Shard, _: RemoteErrorKind) {}
}

impl RemoteLog for QueuedClient {
    fn announce<'a>(&'a self, items: &'a [LogItem], from: Option<Stamp>) -> Call<'a, LogReply> {
        let items = items.to_vec();
        let run = move |to: Arc<DoubleProcess>| async move { to.announce(&items, from).await };
        Box::pin(self.call(RemoteOp::Announce, run))
    }

    fn read(&self, from: Option<Stamp>) -> Call<'_, Option<LogReply>> {
        let run = move |to: Arc<DoubleProcess>| async move { to.read(from).await };
        Box::pin(self.call(RemoteOp::ReadLog, run))
    }

    fn positions<'a>(&'a self, tags: &'a [Tag]) -> Call<'a, Option<LogPositions>> {
        let tags = tags.to_vec();
        let run = move |to: Arc<DoubleProcess>| async move { to.positions(&tags).await };
        Box::pin(self.call(RemoteOp::ReadPositions, run))
    }
}

impl RemotePush for QueuedClient {
    fn listen(&self, key: &Key) -> Listener {
        self.process.listen(key)
    }

    fn is_subscribed(&self) -> bool {
        self.process.is_subscribed()
    }

    fn attach(&self, listener: Weak<dyn OnNotice>) {
        self.process.attach(listener);
    }
}

#[test]
fn processes_that_start_together_compute_a_cold_key_at_most_ten_times() {
    let count = crate::number("FLEET").unwrap_or(IN_SUITE) as u32;
    fastrand::seed(1);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(start_together(count));
}

async fn start_together(count: u32) {
    let double = Double::new();
    let (calls, waiting) = (BTreeMap::new(), 0);
    let queue = Arc::new(Mutex::new(Queue { busy_until: Instant::now(), calls, waiting }));
    let start = || {
        let (process, queue) = (double.process(), Arc::clone(&queue));
        let client = Arc::new(QueuedClient { process, queue, reads_of_values: 0.into() });
        let builder = Stampede::<u64>::builder("fleet").ttl(60 * SECOND).max_entries(100);
        let remote = Arc::clone(&client) as _;
        (builder.remote(remote, RemoteSettings::new()).build().unwrap(), client)
    };
    // Processes that never ask for the key.
    let others: Vec<_> = (0..20).map(|_| start()).collect();
    for (other, _) in &others {
        other.get("another key").await;
    }
    let reads = || others.iter().map(|(_, client)| client.reads_of_values.load(Ordering::Relaxed));
    let reads_before: usize = reads().sum();

    let fleet: Vec<_> = (0..count).map(|_| start()).collect();
    let computations = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let callers: Vec<_> = fleet
        .iter()
        .map(|(cache, _)| {
            let (cache, computations) = (cache.clone(), Arc::clone(&computations));
            tokio::spawn(async move {
                let compute = || async move {
                    computations.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(SECOND / 10).await;
                    Ok::<_, std::io::Error>(Computed::new(7).tag("tag"))
                };
                cache.get_or_compute_with("cold", compute).await
            })
        })
        .collect();
    for caller in callers {
        assert_eq!(caller.await.unwrap().unwrap(), 7);
    }
    let (took, computations) = (began.elapsed(), computations.load(Ordering::Relaxed));
    println!("{count} processes: {computations} computations, the last caller after {took:?}");
    println!("commands and server time: {:?}", queue.lock().calls);
    assert!(computations <= 10, "{computations} computations");
    assert_eq!(reads().sum::<usize>(), reads_before, "a fill wakes those alone that wait");

    // What the fleet costs where nothing happens.
    tokio::time::sleep(3 * SECOND).await;
    queue.lock().calls.clear();
    tokio::time::sleep(30 * SECOND).await;
    let calls = queue.lock().calls.clone();
    let spent: Duration = calls.values().map(|(_, spent)| *spent).sum();
    let share = spent.as_secs_f64() / 30.0 / f64::from(count + 20) * 10_000.0;
    println!(
        "heartbeats of 10,000 processes: {:.1} % of a core at the node of the log, {:.2} % on \
         average over {CLUSTER} nodes: {calls:?}",
        share * 100.0,
        share * 100.0 / f64::from(CLUSTER)
    );
    assert!(share <= 0.4, "at the node of the log: {share}");
    assert!(share / f64::from(CLUSTER) <= 0.02, "on average: {share}");
}
