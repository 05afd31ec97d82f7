//! One process: a cache on a runtime of its own, whose clock moves when the stage lets it.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower_stampede::remote::{DoubleProcess, RemoteSettings};
use tower_stampede::{Announcement, Computed, Health, Served, Stampede};

use crate::case::{Case, TAGS, What};
use crate::history::{History, ProcessId, Read};
use crate::network::Network;
use crate::wire::Wire;

const MS: Duration = Duration::from_millis(1);

pub(crate) struct Node {
    pub(crate) id: ProcessId,
    /// `None` once it was killed.
    runtime: Option<Runtime>,
    wire: Arc<Wire>,
    actor: Actor,
    started: Instant,
    started_at: u64,
    /// The time by its own clock.
    pub(crate) now: u64,
    pub(crate) frozen_until: u64,
    callers: Vec<JoinHandle<()>>,
}

/// What callers have in hand.
#[derive(Clone)]
struct Actor {
    id: ProcessId,
    cache: Stampede<String>,
    wire: Arc<Wire>,
    history: Arc<History>,
}

pub(crate) fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime")
}

impl Node {
    /// Starts a process at `at`.
    pub(crate) fn start(
        case: &Case,
        network: &Arc<Network>,
        process: Arc<DoubleProcess>,
        at: u64,
    ) -> Self {
        let history = Arc::clone(&network.history);
        let id = history.start_process();
        let runtime = runtime();
        let entered = runtime.enter();
        let wire = Wire::new(id, network, process, at);
        let cache = Stampede::builder("simulation")
            .ttl(case.ttl as u32 * MS)
            .stale_for(case.stale_for as u32 * MS)
            .jitter(0.0)
            .lease(1_500 * MS)
            .compute_timeout(3_000 * MS)
            .remote(Arc::clone(&wire) as _, RemoteSettings::new())
            .build()
            .expect("good settings");
        let started = Instant::now();
        drop(entered);
        let actor = Actor { id, cache, wire: Arc::clone(&wire), history };
        let callers = Vec::new();
        let (now, started_at, frozen_until) = (at, at, 0);
        let runtime = Some(runtime);
        Self { id, runtime, wire, actor, started, started_at, now, frozen_until, callers }
    }

    fn entered<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = self.runtime.as_ref().map(Runtime::enter);
        work()
    }

    /// Lets the process run until `until` by its clock, or until it has sent something.
    pub(crate) fn run_until(&mut self, until: u64) {
        let Some(runtime) = &self.runtime else { return };
        let (wire, deadline) = (&self.wire, self.started + MS * (until - self.started_at) as u32);
        runtime.block_on(async {
            tokio::select! {
                biased;
                () = wire.sent.notified() => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        });
        self.now = self.entered(|| self.wire.now()).max(self.now);
    }

    /// The process stands still until `until`.
    pub(crate) fn stand_still(&mut self, until: u64) {
        let Some(runtime) = &self.runtime else { return };
        let time = until.saturating_sub(self.now);
        self.actor.history.was_frozen(self.id, time);
        runtime.block_on(tokio::time::advance(MS * time as u32));
        self.now = self.entered(|| self.wire.now());
    }

    pub(crate) fn kill(&mut self) {
        for caller in &self.callers {
            caller.abort();
        }
        drop(self.runtime.take());
        self.actor.history.say(|| format!("p{} is killed", self.id));
    }

    pub(crate) fn is_up(&self) -> bool {
        self.entered(|| self.actor.cache.health() == Health::Up)
    }

    /// Lets a caller do something.
    pub(crate) fn begin(&mut self, what: What) {
        let Some(runtime) = &self.runtime else { return };
        let actor = self.actor.clone();
        let caller = match what {
            What::Ask { key, takes, is_scoped, .. } => {
                runtime.spawn(actor.ask(key, takes, is_scoped))
            }
            What::Get { key, .. } => runtime.spawn(actor.get(key)),
            What::Invalidate { key, .. } => runtime.spawn(actor.invalidate(key)),
            What::InvalidateTag { tag, .. } => runtime.spawn(actor.invalidate_tag(tag)),
            What::InvalidateAll { .. } => runtime.spawn(actor.invalidate_tag("*")),
            What::Put { key, .. } => runtime.spawn(actor.put(key)),
            What::MarkStale { key, .. } => runtime.spawn(actor.mark_stale(key)),
            What::MarkTagStale { tag, .. } => runtime.spawn(actor.mark_tag_stale(tag)),
            What::HangUp { .. } | What::Befall(_) => return,
        };
        self.callers.push(caller);
    }

    /// One of the last callers goes away. Returns whether it was still there.
    pub(crate) fn hang_up(&self, nth: usize) -> bool {
        let waiting = self.callers.iter().rev().filter(|caller| !caller.is_finished()).nth(nth);
        if let Some(caller) = waiting {
            caller.abort();
        }
        waiting.is_some()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.callers.iter().all(JoinHandle::is_finished)
    }

    /// Delivers what has arrived for the process, on its runtime.
    pub(crate) fn receive(&self, deliver: impl FnOnce()) {
        self.entered(deliver);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.runtime.take());
    }
}

/// A read that ends also where its caller goes away.
struct OpenRead {
    read: Read,
    history: Arc<History>,
}

impl Drop for OpenRead {
    fn drop(&mut self) {
        self.history.drop_read(&self.read);
    }
}

/// A computation that ends also where it is dropped.
struct OpenComputation {
    value: String,
    history: Arc<History>,
    is_abandoned: bool,
}

impl Drop for OpenComputation {
    fn drop(&mut self) {
        self.history.end_computation(&self.value, self.is_abandoned);
    }
}

impl Actor {
    fn is_up(&self) -> bool {
        self.cache.health() == Health::Up
    }

    fn open(&self, key: usize, how: &str) -> OpenRead {
        let read = self.history.begin_read(self.id, key, self.wire.now(), self.is_up(), how);
        OpenRead { read, history: Arc::clone(&self.history) }
    }

    fn close(&self, open: &OpenRead, answer: Result<Option<&str>, String>) {
        self.history.end_read(open.read, answer, self.is_up(), self.wire.now());
    }

    async fn compute(self, key: usize, takes: u64) -> Result<Computed<String>, std::io::Error> {
        let value = self.history.begin_computation(self.id, key);
        let history = Arc::clone(&self.history);
        let mut open = OpenComputation { value: value.clone(), history, is_abandoned: true };
        if takes > 0 {
            tokio::time::sleep(MS * takes as u32).await;
        }
        open.is_abandoned = false;
        Ok(TAGS[key].iter().fold(Computed::new(value), |computed, tag| computed.tag(*tag)))
    }

    async fn ask(self, key: usize, takes: u64, is_scoped: bool) {
        let open = self.open(key, "asks for");
        let actor = self.clone();
        let compute = move || actor.compute(key, takes);
        let answer = match is_scoped {
            true => {
                let answer = self.cache.entry(key).get_or_compute_scoped(compute).await;
                answer.map(Served::into_value)
            }
            false => self.cache.get_or_compute_with(key, compute).await,
        };
        let answer = answer.map_err(|error| error.to_string());
        self.close(&open, answer.as_ref().map(|value| Some(value.as_str())).map_err(Clone::clone));
    }

    async fn get(self, key: usize) {
        let open = self.open(key, "looks for");
        let answer = self.cache.get(key).await;
        self.close(&open, Ok(answer.as_deref()));
    }

    async fn invalidate(self, key: usize) {
        let cut = self.history.begin_cut(self.id, vec![key], true, &format!("invalidates k{key}"));
        let told = self.cache.invalidate(key).await.remote;
        self.history.end_cut(cut, told == Announcement::Done, &format!("{told:?}"));
    }

    async fn invalidate_tag(self, tag: &'static str) {
        let keys: Vec<_> =
            (0..TAGS.len()).filter(|key| tag == "*" || TAGS[*key].contains(&tag)).collect();
        let what = format!("invalidates the tag {tag} (keys {keys:?})");
        let cut = self.history.begin_cut(self.id, keys, false, &what);
        let told = self.cache.invalidate_tag(tag).await.remote;
        self.history.end_cut(cut, told == Announcement::Done, &format!("{told:?}"));
    }

    async fn put(self, key: usize) {
        let (value, cut) = self.history.begin_put(self.id, key);
        let computed = TAGS[key].iter().fold(Computed::new(value), |each, tag| each.tag(*tag));
        self.cache.put_with(key, computed).await;
        self.history.end_cut(cut, false, "");
    }

    async fn mark_stale(self, key: usize) {
        self.history.say(|| format!("p{} marks k{key} stale", self.id));
        self.cache.mark_stale(key).await;
    }

    async fn mark_tag_stale(self, tag: &'static str) {
        self.history.say(|| format!("p{} marks the tag {tag} stale", self.id));
        self.cache.mark_tag_stale(tag).await;
    }
}
