//! One of the processes: it reads, computes and invalidates, and writes down what it saw.

use std::future::poll_fn;
use std::io::BufRead;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;
use tower_stampede::{
    Announcement, CacheOutcome, Computed, Error, Event, Health, Redis, Served, Stampede,
};

use crate::kit::redis::Sentinels;

use super::record::{Invalidation, Moment, Record, Sighting, TAGS, Target, now, tags_of};

/// Makes a process a worker; holds its settings.
const SETTINGS: &str = "CONSISTENCY_WORKER";

/// So often a second a cold key is read: it is seldom in memory, and Redis is asked.
const COLD_READS: u64 = 40;

/// Of so many keys one is not cold.
const WARM_SHARE: u32 = 5;

/// What the names of its connections at the server begin with; its number follows.
pub(crate) const CLIENT: &str = "worker-";

/// Reads are made in bursts, so often.
const BURST_EVERY: Duration = Duration::from_millis(2);

/// At most so many reads follow each other before other tasks run.
const BURST: u64 = 2000;

/// Reads of a key that may wait at a time. Beyond it other keys are read.
const MAX_WAITING: u32 = 16;

/// When a computation began, and in which process.
type Value = (Moment, u32);

/// What a worker is told at its start.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The URL of the server, or those of the sentinels with commas between them.
    pub(crate) redis: String,
    pub(crate) number: u32,
    pub(crate) keys: u32,
    pub(crate) reads_per_second: u64,
    /// The mean pause between two invalidations.
    pub(crate) invalidate_every: Duration,
    /// Where the record goes.
    pub(crate) record: PathBuf,
}

impl Settings {
    /// Makes `command` a worker.
    pub(crate) fn hand_to(&self, command: &mut Command) {
        let Self { redis, number, keys, reads_per_second, invalidate_every, record } = self;
        let (pause, record) = (invalidate_every.as_millis(), record.display());
        let text = format!("{redis}\n{number}\n{keys}\n{reads_per_second}\n{pause}\n{record}");
        command.env(SETTINGS, text);
    }

    /// Returns whether this process invalidates. Every second one never does: an announcement brings
    /// home what was missed, and these are to learn of it by messages and heartbeats alone.
    pub(crate) fn invalidates(&self) -> bool {
        self.number.is_multiple_of(2)
    }

    fn servers(&self) -> Redis {
        let urls: Vec<_> = self.redis.split(',').collect();
        let redis = match urls[..] {
            [url] => Redis::lazy(url),
            _ => Redis::sentinel(urls, Sentinels::NAME),
        };
        let redis = redis.expect("a URL").namespace("consistency");
        redis.client_name(&format!("{CLIENT}{}", self.number)).expect("a name")
    }

    /// Returns what this process was told; `None`: it is no worker.
    fn of_environment() -> Option<Self> {
        let text = std::env::var(SETTINGS).ok()?;
        let mut parts = text.split('\n');
        let mut next = || parts.next().expect("a setting");
        Some(Self {
            redis: next().to_owned(),
            number: next().parse().expect("a number"),
            keys: next().parse().expect("a number"),
            reads_per_second: next().parse().expect("a number"),
            invalidate_every: Duration::from_millis(next().parse().expect("a number")),
            record: next().into(),
        })
    }
}

/// Works, if this process was started as a worker, until its input ends. Returns whether it was.
pub(crate) fn work_if_told() -> bool {
    let Some(settings) = Settings::of_environment() else { return false };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime starts").block_on(async {
        let worker = Arc::new(Worker::new(settings));
        let invalidating = tokio::spawn(Arc::clone(&worker).invalidate_on());
        let reading = tokio::spawn(Arc::clone(&worker).read_on());
        let input = tokio::task::spawn_blocking(|| std::io::stdin().lock().lines().count());
        let _ = input.await;
        worker.is_over.store(true, Relaxed);
        reading.await.expect("the reader does not panic");
        invalidating.abort();
        let record = worker.record();
        std::fs::write(&worker.settings.record, record.to_text()).expect("the record is written");
    });
    true
}

struct Worker {
    cache: Stampede<Value>,
    settings: Settings,
    keys: Vec<KeyRecord>,
    invalidations: Mutex<Vec<Invalidation>>,
    is_over: AtomicBool,
    reads: AtomicU64,
    failures: AtomicU64,
    first_failure: OnceLock<String>,
    computations: AtomicU64,
    up_nanos: AtomicU64,
    degraded_nanos: AtomicU64,
    dips: Mutex<Dips>,
}

/// How often the process has begun to go without Redis. A moment later it may be back: a look
/// before a read and one after it do not see that.
struct Dips {
    events: Receiver<Event>,
    count: u64,
}

impl Dips {
    fn count(&mut self) -> u64 {
        loop {
            match self.events.try_recv() {
                Ok(Event::RemoteChanged { up: false, .. }) => self.count += 1,
                Ok(_) => (),
                // One may be among those that were lost.
                Err(TryRecvError::Lagged(_)) => self.count += 1,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return self.count,
            }
        }
    }
}

#[derive(Default)]
struct KeyRecord {
    sightings: Mutex<Vec<Sighting>>,
    waiting: AtomicU32,
}

/// A read, from its beginning.
#[derive(Clone, Copy)]
struct Read {
    key: u32,
    asked: Moment,
    /// Whether the process reported `Up` before, and how often it had not.
    was_up: bool,
    dips: u64,
    /// No other read of the key was under way.
    is_alone: bool,
}

type ReadResult = Result<Served<Value>, Error>;

type Reading = Pin<Box<dyn Future<Output = ReadResult> + Send>>;

impl Worker {
    fn new(settings: Settings) -> Self {
        let cache = Stampede::builder("values")
            .ttl(Duration::from_secs(10))
            .stale_for(Duration::from_secs(20))
            .lease(Duration::from_secs(1))
            .wait_timeout(Duration::from_secs(5))
            .compute_timeout(Duration::from_secs(2))
            .redis(settings.servers())
            .build()
            .expect("the settings fit");
        let dips = Dips { events: cache.events(), count: 0 };
        Self {
            cache,
            dips: Mutex::new(dips),
            keys: (0..settings.keys).map(|_| KeyRecord::default()).collect(),
            settings,
            invalidations: Mutex::default(),
            is_over: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            first_failure: OnceLock::new(),
            computations: AtomicU64::new(0),
            up_nanos: AtomicU64::new(0),
            degraded_nanos: AtomicU64::new(0),
        }
    }

    fn is_up(&self) -> bool {
        self.cache.health() == Health::Up
    }

    /// Reads until the end, as often as a second is to have reads. What a pause has kept it
    /// from is made up for.
    async fn read_on(self: Arc<Self>) {
        let begun = Instant::now();
        let mut done = 0;
        let mut before = begun;
        loop {
            let is_over = self.is_over.load(Relaxed);
            let at = Instant::now();
            let time = u64::try_from(at.duration_since(before).as_nanos()).unwrap_or(u64::MAX);
            before = at;
            let counter = if self.is_up() { &self.up_nanos } else { &self.degraded_nanos };
            counter.fetch_add(time, Relaxed);
            let due = begun.elapsed().as_secs_f64() * self.settings.reads_per_second as f64;
            let due = due as u64;
            let until = due.min(done + BURST);
            while done < until {
                let Some(key) = self.free_key() else { break };
                self.read(key).await;
                done += 1;
            }
            if done == until && done < due {
                tokio::task::yield_now().await;
            } else if is_over && done == due {
                return;
            } else {
                tokio::time::sleep(BURST_EVERY).await;
            }
        }
    }

    /// Returns a key that not too many reads wait for.
    fn free_key(&self) -> Option<u32> {
        let Settings { keys, reads_per_second, .. } = self.settings;
        let is_cold = fastrand::u64(..reads_per_second.max(COLD_READS)) < COLD_READS;
        let warm = keys / WARM_SHARE;
        let part = if is_cold { warm..keys } else { 0..warm };
        let mut keys = std::iter::repeat_with(|| fastrand::u32(part.clone())).take(10);
        keys.find(|key| self.keys[*key as usize].waiting.load(Relaxed) < MAX_WAITING)
    }

    /// Reads a key. A read that has to wait goes on beside the next ones.
    async fn read(self: &Arc<Self>, key: u32) {
        self.reads.fetch_add(1, Relaxed);
        let waiting = &self.keys[key as usize].waiting;
        let is_alone = waiting.load(Relaxed) == 0;
        let dips = self.dips.lock().unwrap().count();
        let mut read = Read { key, asked: 0, was_up: self.is_up(), dips, is_alone };
        read.asked = now();
        let mut reading: Reading = Box::pin(Arc::clone(self).get(key));
        match poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await {
            Poll::Ready(served) => self.note(read, served, false),
            Poll::Pending => {
                waiting.fetch_add(1, Relaxed);
                let worker = Arc::clone(self);
                tokio::spawn(async move {
                    let served = reading.await;
                    worker.note(read, served, true);
                    worker.keys[key as usize].waiting.fetch_sub(1, Relaxed);
                });
            }
        }
    }

    async fn get(self: Arc<Self>, key: u32) -> ReadResult {
        let worker = Arc::clone(&self);
        let compute = move || async move {
            let value = (now(), worker.settings.number);
            worker.computations.fetch_add(1, Relaxed);
            tokio::time::sleep(Duration::from_micros(fastrand::u64(..10_000))).await;
            let [narrow, wide] = tags_of(key);
            Ok::<_, std::io::Error>(Computed::new(value).tag(narrow).tag(wide))
        };
        self.cache.entry(key).get_or_compute(compute).await
    }

    fn note(&self, read: Read, served: ReadResult, has_waited: bool) {
        let served = match served {
            Ok(served) => served,
            Err(error) => {
                self.failures.fetch_add(1, Relaxed);
                self.first_failure.get_or_init(|| error.to_string());
                return;
            }
        };
        let Read { key, asked, was_up, dips, is_alone } = read;
        let (started, by) = *served;
        let is_stale = matches!(served.outcome(), CacheOutcome::Stale | CacheOutcome::StaleIfError);
        let is_up = was_up && self.is_up() && self.dips.lock().unwrap().count() == dips;
        let is_fetched = is_up && has_waited && is_alone && !is_stale;
        let mut sightings = self.keys[key as usize].sightings.lock().unwrap();
        let known =
            sightings.iter_mut().rev().find(|seen| (seen.started, seen.by) == (started, by));
        let last_up = if is_up { asked } else { 0 };
        let last_fetched = if is_fetched { asked } else { 0 };
        match known {
            Some(seen) => {
                seen.last = seen.last.max(asked);
                seen.answered = now();
                seen.last_up = seen.last_up.max(last_up);
                seen.last_fetched = seen.last_fetched.max(last_fetched);
            }
            None => {
                let (last, answered) = (asked, now());
                let seen = Sighting { key, started, by, last, answered, last_up, last_fetched };
                sightings.push(seen);
            }
        }
    }

    /// Invalidates until the end.
    async fn invalidate_on(self: Arc<Self>) {
        if !self.settings.invalidates() {
            return;
        }
        loop {
            let mean = self.settings.invalidate_every.as_secs_f64();
            let pause = -mean * (1.0 - fastrand::f64()).ln();
            tokio::time::sleep(Duration::from_secs_f64(pause)).await;
            let target = match fastrand::u32(..100) {
                0 => Target::Everything,
                1..20 => Target::Tag(fastrand::u32(..TAGS)),
                _ => Target::Key(fastrand::u32(..self.settings.keys)),
            };
            let called = now();
            let done = match target {
                Target::Key(key) => self.cache.invalidate(key).await,
                Target::Tag(tag) => self.cache.invalidate_tag(tag).await,
                Target::Everything => self.cache.invalidate_all().await,
            };
            let (returned, is_done) = (now(), done.remote == Announcement::Done);
            let invalidation = Invalidation { target, called, returned, is_done };
            self.invalidations.lock().unwrap().push(invalidation);
        }
    }

    fn record(&self) -> Record {
        let sightings = self.keys.iter().flat_map(|key| key.sightings.lock().unwrap().clone());
        let [reads, failures, computations, up, degraded] =
            [&self.reads, &self.failures, &self.computations, &self.up_nanos, &self.degraded_nanos]
                .map(|count| count.load(Relaxed));
        Record {
            number: self.settings.number,
            invalidations: self.invalidations.lock().unwrap().clone(),
            sightings: sightings.collect(),
            reads,
            failures,
            first_failure: self.first_failure.get().cloned(),
            computations,
            up_ms: up / 1_000_000,
            degraded_ms: degraded / 1_000_000,
        }
    }
}
