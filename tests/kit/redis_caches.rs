//! Many processes on one Redis: caches in this process that share nothing but
//! the server, each with connections of its own.
//!
//! Time is real here. Whatever must happen is waited for, and the bounds are
//! for machines that do other things as well.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tower_stampede::{Builder, Error, Health, Redis, Stampede, ToKey};

use crate::kit::origin::{MINUTE, MS, Origin, SECOND, settings, within};
use crate::kit::redis::{Server, eventually};
use crate::kit::spawn;

pub(crate) type Cache = Stampede<u64>;

/// Nothing in these tests takes longer, however busy the machine is.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);

/// No value ends by itself while a test runs.
fn lasting() -> Builder<u64> {
    settings().ttl(60 * MINUTE).wait_timeout(LIMIT)
}

/// So patient that no call times out on a busy machine: for counts that must
/// be exact.
pub(crate) fn patient() -> Builder<u64> {
    lasting().lease(100 * SECOND)
}

/// How long a call of a patient process may take.
const PATIENT: Duration = Duration::from_secs(30);

/// Gives up early: for servers that are in trouble. A call takes a thousandth
/// of this when all is well.
pub(crate) const OP_TIMEOUT: Duration = SECOND;

/// How long a request may take while Redis is in trouble, on a busy machine: much less than the
/// time for which callers wait, so that a request is not answered only when that is over. How many
/// calls to Redis a request makes is counted, not timed.
pub(crate) const DELAYED: Duration = MINUTE;

/// The settings that go with [`OP_TIMEOUT`].
pub(crate) fn impatient() -> Builder<u64> {
    lasting().lease(4 * SECOND)
}

/// A patient process.
pub(crate) fn process(url: &str) -> Cache {
    patient_on(Redis::lazy(url).unwrap().namespace("stampede"))
}

pub(crate) fn patient_on(redis: Redis) -> Cache {
    patient().redis(redis.op_timeout(PATIENT)).build().unwrap()
}

pub(crate) fn processes(n: usize, url: &str) -> Vec<Cache> {
    (0..n).map(|_| process(url)).collect()
}

/// A process that gives up early.
pub(crate) fn hasty(url: &str) -> Cache {
    hasty_on(Redis::lazy(url).unwrap().namespace("stampede"))
}

pub(crate) fn hasty_on(redis: Redis) -> Cache {
    impatient().redis(redis.op_timeout(OP_TIMEOUT)).build().unwrap()
}

/// Hasty processes that listen already.
pub(crate) async fn hasty_ones(n: usize, url: &str) -> Vec<Cache> {
    let caches: Vec<_> = (0..n).map(|_| hasty(url)).collect();
    all_listen(&caches).await;
    caches
}

/// Lets every process connect, read the invalidation log and listen.
pub(crate) async fn all_listen(caches: &[Cache]) {
    for cache in caches {
        // The first look begins it all.
        assert_eq!(cache.get("nothing is here").await, None);
    }
    all_are_well(caches).await;
}

/// Waits until every process asks its remote and hears from it.
pub(crate) async fn all_are_well(caches: &[Cache]) {
    eventually("every process is well", || caches.iter().all(|cache| cache.health() == Health::Up))
        .await;
}

/// One request; none ever fails.
pub(crate) async fn load(cache: &Cache, origin: &Origin, key: impl ToKey) -> u64 {
    let answer = within(LIMIT, cache.get_or_compute(key, origin.compute())).await;
    answer.expect("no request fails because of Redis")
}

/// One request, and how long it took.
pub(crate) async fn timed(cache: &Cache, origin: &Origin, key: impl ToKey) -> (u64, Duration) {
    let start = Instant::now();
    (load(cache, origin, key).await, start.elapsed())
}

/// So many callers in each of the processes ask for `key`, all at once.
pub(crate) async fn herd(caches: &[Cache], callers: usize, origin: &Origin, key: &str) -> Vec<u64> {
    let mut herd = JoinSet::new();
    for cache in caches {
        for _ in 0..callers {
            let (cache, origin, key) = (cache.clone(), origin.clone(), key.to_owned());
            herd.spawn(async move { load(&cache, &origin, &*key).await });
        }
    }
    within(2 * LIMIT, herd.join_all()).await
}

/// A computation that goes on until the test opens its door.
#[derive(Clone, Debug)]
pub(crate) struct Gated {
    pub(crate) origin: Origin,
    open: watch::Sender<bool>,
}

impl Gated {
    pub(crate) fn new() -> Self {
        Self::of(&Origin::new())
    }

    /// Counts with another origin.
    pub(crate) fn of(origin: &Origin) -> Self {
        Self { origin: origin.clone(), open: watch::Sender::new(false) }
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    pub(crate) fn calls(&self) -> usize {
        self.origin.calls()
    }

    /// Begins a request.
    pub(crate) fn ask(&self, cache: &Cache, key: &str) -> JoinHandle<Result<u64, Error>> {
        let (cache, key) = (cache.clone(), key.to_owned());
        let (origin, mut open) = (self.origin.clone(), self.open.subscribe());
        spawn(async move {
            let compute = move || {
                let loading = origin.load();
                async move {
                    open.wait_for(|open| *open).await.expect("the door is there");
                    loading.await
                }
            };
            within(LIMIT, cache.get_or_compute(&*key, compute)).await
        })
    }

    /// Begins a request, and returns once it computes.
    pub(crate) async fn lead(&self, cache: &Cache, key: &str) -> JoinHandle<Result<u64, Error>> {
        let before = self.calls();
        let leader = self.ask(cache, key);
        eventually("it computes", || self.calls() > before).await;
        leader
    }
}

/// Waits for a request; it must not fail.
pub(crate) async fn answer(request: JoinHandle<Result<u64, Error>>) -> u64 {
    let answer = within(LIMIT, request).await.expect("no caller panics");
    answer.expect("no request fails because of Redis")
}

/// The names of a key's records, in the namespace and the cache that
/// [`settings`] and `Redis` have when nothing else is said.
pub(crate) fn record(key: &str, ending: char) -> String {
    format!("stampede:2:test:{{{key}}}:{ending}")
}

pub(crate) const LOG: &str = "stampede:2:test:{#test}:tags";

/// How many processes have registered to be woken for `key`.
pub(crate) fn registered(server: &Server, key: &str) -> usize {
    let Ok(fields) = server.try_cli(&["HKEYS", &record(key, 'r')]) else { return 0 };
    let registers = |field: &str| field.starts_with("w:") || field.starts_with("s:");
    fields.parts().iter().filter(|field| registers(&field.text())).count()
}

/// Asserts that all is as it should be: one of the processes computes, all
/// others wait for a push and get its result.
pub(crate) async fn assert_healed(server: &Server, caches: &[Cache]) {
    assert_healed_by(|key| registered(server, key), caches).await;
}

/// The same where a key's server has to be found.
pub(crate) async fn assert_healed_by(registered: impl Fn(&str) -> usize, caches: &[Cache]) {
    let start = Instant::now();
    while !is_healed(&registered, caches).await {
        assert!(start.elapsed() < LIMIT, "they do not find together again");
    }
}

/// Whether one of the processes computes and all others are woken.
async fn is_healed(registered: &impl Fn(&str) -> usize, caches: &[Cache]) -> bool {
    all_are_well(caches).await;
    let (key, gated, others) = (fresh_key(), Gated::new(), caches.len() - 1);
    let pushes = || caches.iter().map(|cache| cache.stats().wakes_by_push).sum::<u64>();
    let before = pushes();
    let herd: Vec<_> = caches.iter().map(|cache| gated.ask(cache, &key)).collect();
    eventually("all others wait, or compute as well", || {
        gated.calls() > 1 || (gated.calls() == 1 && registered(&key) == others)
    })
    .await;
    gated.open();
    for caller in herd {
        answer(caller).await;
    }
    gated.calls() == 1 && pushes() >= before + others as u64
}

/// While Redis is in trouble: requests in every process are answered, no later
/// than [`DELAYED`], and at most one in each process computes. Held copies are
/// served as before.
pub(crate) async fn assert_unharmed(caches: &[Cache], held: &Held) {
    assert_bridged(caches).await;
    held.is_served(caches).await;
}

/// The same without anything held.
pub(crate) async fn assert_bridged(caches: &[Cache]) {
    assert_bridged_with(1, caches).await;
}

/// The same while one server takes the place of another. That tells the processes to ask again:
/// each may have computed before, and once more after.
pub(crate) async fn assert_bridged_over(caches: &[Cache]) {
    assert_bridged_with(2, caches).await;
}

async fn assert_bridged_with(most_each: usize, caches: &[Cache]) {
    let (origin, key) = (Origin::taking(50 * MS), fresh_key());
    let start = Instant::now();
    herd(caches, 20, &origin, &key).await;
    assert!(start.elapsed() < DELAYED, "took {:?}", start.elapsed());
    let (calls, most) = (origin.calls(), most_each * caches.len());
    assert!((1..=most).contains(&calls), "{calls} calls in {} processes", caches.len());
}

/// Asserts that requests of a process whose breaker is open ask Redis nothing. Probes go on beside
/// them, fewer and fewer.
pub(crate) async fn assert_left_alone(cache: &Cache) {
    const REQUESTS: u64 = 50;
    let (origin, before) = (Origin::new(), cache.stats().remote_calls);
    for _ in 0..REQUESTS {
        load(cache, &origin, fresh_key()).await;
    }
    let asked = cache.stats().remote_calls - before;
    assert!(
        asked <= REQUESTS / 5,
        "{REQUESTS} requests behind an open breaker asked {asked} times"
    );
}

/// A key that every process holds a copy of.
pub(crate) struct Held {
    origin: Origin,
    key: String,
}

impl Held {
    pub(crate) async fn by(caches: &[Cache]) -> Self {
        loop {
            let held = Self { origin: Origin::new(), key: fresh_key() };
            for cache in caches {
                load(cache, &held.origin, &*held.key).await;
            }
            // A process that is kept from running for an `op_timeout` computes
            // for itself, and then they hold different copies.
            if held.origin.calls() == 1 {
                return held;
            }
        }
    }

    /// Asserts that every process still answers, without delay; each may have
    /// computed once more. A server that took the place of another tells the
    /// processes to ask again, and may know less.
    pub(crate) async fn is_answered(&self, caches: &[Cache]) {
        for cache in caches {
            let (_, took) = timed(cache, &self.origin, &*self.key).await;
            assert!(took < DELAYED, "took {took:?}");
        }
        let calls = self.origin.calls();
        assert!(calls <= 1 + caches.len(), "{calls} calls in {} processes", caches.len());
    }

    /// Asserts that it is still served, from the process's own memory: no process computes it.
    pub(crate) async fn is_served(&self, caches: &[Cache]) {
        for cache in caches {
            let (value, took) = timed(cache, &self.origin, &*self.key).await;
            assert_eq!(value, 1);
            assert!(took < DELAYED, "a local copy took {took:?}");
        }
        assert_eq!(self.origin.calls(), 1);
    }
}

/// Waits until no request of this process asks Redis any more.
pub(crate) struct Breaker(tokio::sync::broadcast::Receiver<tower_stampede::Event>);

impl Breaker {
    pub(crate) fn of(cache: &Cache) -> Self {
        Self(cache.events())
    }

    pub(crate) async fn has_opened(&mut self) {
        use tower_stampede::Event::RemoteChanged;
        let opened = async {
            while !matches!(self.0.recv().await.unwrap(), RemoteChanged { up: false, .. }) {}
        };
        within(LIMIT, opened).await;
    }
}

/// A key that no process has used.
pub(crate) fn fresh_key() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("fresh-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Does something again and again, until dropped.
pub(crate) struct Meanwhile {
    rounds: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Meanwhile {
    pub(crate) fn every<F>(pause: Duration, mut again: impl FnMut() -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let rounds = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&rounds);
        let task = spawn(async move {
            loop {
                again().await;
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(pause).await;
            }
        });
        Self { rounds, task }
    }

    /// The same with something that blocks for milliseconds.
    pub(crate) fn blocking(pause: Duration, again: impl Fn() + Send + Sync + 'static) -> Self {
        let again = Arc::new(again);
        Self::every(pause, move || {
            let again = Arc::clone(&again);
            async move { tokio::task::spawn_blocking(move || again()).await.unwrap() }
        })
    }

    /// How often it was done.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.load(Ordering::SeqCst)
    }

    /// Ends it, and waits for the round under way.
    pub(crate) async fn end(self) -> usize {
        self.task.abort();
        let _ = self.task.await;
        tokio::time::sleep(MS).await;
        self.rounds.load(Ordering::SeqCst)
    }
}
