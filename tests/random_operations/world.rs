//! What the cache calls: computations, values, errors, weigher and hook, and the
//! calls of the handle themselves. All of it writes into the [`Record`].

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tower_stampede::{Computed, Error, FailureAction, Stampede};

use crate::case::{Ask, End, How, Kept, Reaction, SPARE_KEY, Settings, Step};
use crate::record::{CallEnd, ComputationEnd, Facts, FailureFacts, Record, Source, What};

/// What a computation panics with.
pub(crate) struct ScriptedPanic;

/// The caller that asks from inside of user code.
pub(crate) const INSIDE: usize = usize::MAX;

pub(crate) struct World {
    record: Mutex<Record>,
    cache: Mutex<Option<Stampede<Value>>>,
    settings: Settings,
    reacts: AtomicBool,
    /// Values and errors that live.
    pub(crate) live: AtomicUsize,
    pub(crate) live_failures: AtomicUsize,
    /// Whether a caller is dropped by a panic that is not of a computation.
    pub(crate) drops_in_panic: AtomicBool,
    /// Callers that user code has begun, to be polled on.
    pub(crate) adopted: Mutex<Vec<BoxFuture<'static, ()>>>,
    /// Wakes the task that polls the callers.
    pub(crate) driver: Arc<Mutex<Option<Waker>>>,
}

/// A value, one count of what it says of itself.
pub(crate) struct Value(Arc<Payload>);

struct Payload {
    facts: Facts,
    world: Arc<World>,
}

/// An error of a computation.
pub(crate) struct Failure {
    facts: FailureFacts,
    world: Arc<World>,
}

impl World {
    pub(crate) fn new(settings: &Settings, keeps_history: bool) -> Arc<Self> {
        Arc::new(Self {
            record: Mutex::new(Record::new(settings.clone(), keeps_history)),
            cache: Mutex::new(None),
            settings: settings.clone(),
            reacts: AtomicBool::new(false),
            live: AtomicUsize::new(0),
            live_failures: AtomicUsize::new(0),
            drops_in_panic: AtomicBool::new(false),
            adopted: Mutex::new(Vec::new()),
            driver: Arc::default(),
        })
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap()
    }

    pub(crate) fn set_cache(&self, cache: Option<Stampede<Value>>) {
        let before = std::mem::replace(&mut *self.cache.lock().unwrap(), cache);
        drop(before);
    }

    pub(crate) fn cache(&self) -> Option<Stampede<Value>> {
        self.cache.lock().unwrap().clone()
    }

    fn computation_panics(&self) -> bool {
        std::thread::panicking() && !self.drops_in_panic.load(SeqCst)
    }

    pub(crate) fn wake_driver(&self) {
        let driver = self.driver.lock().unwrap().clone();
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Makes the cache of the case.
    pub(crate) fn build(self: &Arc<Self>) -> Stampede<Value> {
        let settings = &self.settings;
        let ms = Duration::from_millis;
        let (weighing, failing) = (settings.on_weigh, settings.on_failure);
        let mut builder = Stampede::builder("random")
            .ttl(ms(settings.ttl))
            .jitter(0.0)
            .stale_for(ms(settings.stale_for))
            .stale_if_error(ms(settings.stale_if_error))
            .compute_timeout(ms(settings.compute_timeout))
            .wait_timeout(ms(settings.wait_timeout))
            .hold(ms(settings.hold))
            .max_hold(ms(settings.max_hold))
            .uncacheable_for(ms(settings.uncacheable_for))
            .eviction(settings.eviction)
            .max_waiters(settings.max_waiters)
            .max_waiters_in_all(settings.max_waiters_in_all)
            .max_computations(settings.max_computations)
            .max_refreshes(settings.max_refreshes)
            .weigher(move |value: &Value| {
                value.0.world.react(weighing);
                if value.0.facts.heavy { usize::MAX } else { 8 }
            })
            .on_failure(move |error| match error.downcast_ref::<Failure>() {
                Some(failure) => {
                    failure.world.react(failing);
                    failure.facts.action
                }
                None => FailureAction::Hold,
            });
        if let Some(most) = settings.max_entries {
            builder = builder.max_entries(most);
        }
        if let Some(share) = settings.cancel_unwanted {
            builder = builder.cancel_unwanted(share);
        }
        if let Some(least) = settings.min_computations {
            builder = builder.min_computations(least);
        }
        if settings.compute_after_wait {
            builder = builder.compute_after_wait();
        }
        let cache = builder.build().expect("the settings fit together");
        self.set_cache(Some(cache.clone()));
        cache
    }

    /// Does what user code does when the cache calls it, never within itself.
    fn react(self: &Arc<Self>, reaction: Reaction) {
        if reaction == Reaction::Nothing || self.reacts.swap(true, SeqCst) {
            return;
        }
        if let Some(cache) = self.cache() {
            match reaction {
                Reaction::Nothing => {}
                Reaction::Stats => drop(cache.stats()),
                Reaction::Get => {
                    drop(poll_once(&mut self.ask(INSIDE, None, look(0)).boxed()));
                }
                Reaction::Invalidate => {
                    let _ = poll_once(&mut cache.invalidate(key_of(SPARE_KEY)).boxed());
                }
                Reaction::Ask => self.ask_from_inside(),
            }
        }
        self.reacts.store(false, SeqCst);
    }

    fn ask_from_inside(self: &Arc<Self>) {
        let ask = Ask {
            key: 0,
            how: How::Scoped,
            steps: vec![Step::Sleep(3)],
            end: End::Value(Kept::default()),
        };
        let asking = self.ask(INSIDE, None, Arc::new(ask)).map(drop);
        let mut asking = asking.boxed();
        if poll_once(&mut asking).is_none() {
            self.adopted.lock().unwrap().push(asking);
            self.wake_driver();
        }
    }

    /// Calls the handle as a caller does, or as a computation.
    pub(crate) fn ask(
        self: &Arc<Self>,
        actor: usize,
        parent: Option<usize>,
        ask: Arc<Ask>,
    ) -> impl Future<Output = Result<Option<Value>, Error>> + Send + 'static + use<> {
        let world = Arc::clone(self);
        async move {
            let Some(cache) = world.cache() else { return Ok(None) };
            let call = CallGuard::new(&world, actor, parent, &ask);
            let (number, key) = (call.number, key_of(ask.key));
            let how = ask.how;
            let compute = move || Arc::clone(&world).compute(number, Arc::clone(&ask));
            let answer = match how {
                How::Get => Ok(cache.get(key.as_str()).await),
                How::Plain => cache.get_or_compute(key.as_str(), compute).await.map(Some),
                How::Scoped => cache.get_or_compute_scoped(key.as_str(), compute).await.map(Some),
                How::Refresh => cache.refresh(key.as_str(), compute).await.map(Some),
                How::Batch => {
                    let load = move |mut keys: Vec<String>| {
                        let computing = compute();
                        async move {
                            let key = keys.pop().expect("the one that was asked for");
                            computing.await.map(|value| [(key, value)])
                        }
                    };
                    let mut batch = cache.get_many([key.clone()], load).await;
                    match batch.failures.remove(&key) {
                        Some(error) => Err(error),
                        None => Ok(batch.values.remove(&key)),
                    }
                }
                How::With => {
                    let compute = move || compute().map(|made| made.map(Value::into_computed));
                    cache.get_or_compute_with(key.as_str(), compute).await.map(Some)
                }
            };
            call.end(&answer);
            answer
        }
    }

    /// Begins a computation for a call.
    fn compute(
        self: Arc<Self>,
        call: usize,
        ask: Arc<Ask>,
    ) -> BoxFuture<'static, Result<Value, Failure>> {
        let actor = self.record().calls[call].actor;
        let computation = ComputationGuard::new(&self, call);
        async move {
            for step in &ask.steps {
                self.take(actor, computation.number, step).await;
            }
            match ask.end {
                End::Value(kept) => Ok(computation.end_with(kept)),
                End::Fail(action) => Err(computation.fail(action)),
                End::Panic => std::panic::resume_unwind(Box::new(ScriptedPanic)),
                End::Hang => std::future::pending().await,
            }
        }
        .boxed()
    }

    async fn take(self: &Arc<Self>, actor: usize, computation: usize, step: &Step) {
        match step {
            Step::Sleep(time) => tokio::time::sleep(Duration::from_millis(*time)).await,
            Step::Yield => tokio::task::yield_now().await,
            Step::Ask(ask) => drop(self.ask(actor, Some(computation), Arc::clone(ask)).await),
            Step::AskFor(time, ask) => {
                let until = Instant::now() + Duration::from_millis(*time);
                let asking = self.ask(actor, Some(computation), Arc::clone(ask));
                drop(tokio::time::timeout_at(until, asking).await);
            }
            Step::Put(key, kept) => self.put(*key, *kept).await,
            Step::Invalidate(key) => self.invalidate(*key).await,
        }
    }

    pub(crate) async fn put(self: &Arc<Self>, key: usize, kept: Kept) {
        let Some(cache) = self.cache() else { return };
        let (cut, facts) = {
            let mut record = self.record();
            let cut = record.cut_begins(What::Put(key));
            let begun = record.cuts[cut].begun;
            (cut, record.facts(key, Source::Put(cut), begun, begun, kept))
        };
        let value = Value::new(self, facts).into_computed();
        cache.put_with(key_of(key).as_str(), value).await;
        let mut record = self.record();
        record.cut_ends(cut);
        record.shelve_put(facts);
    }

    pub(crate) async fn invalidate(self: &Arc<Self>, key: usize) {
        let Some(cache) = self.cache() else { return };
        let cut = self.record().cut_begins(What::Key(key));
        cache.invalidate(key_of(key).as_str()).await;
        self.record().cut_ends(cut);
    }
}

/// Returns the key with this number. One is too long to be kept in place.
pub(crate) fn key_of(number: usize) -> String {
    match number {
        2 => "the key that is longer than thirty-eight bytes".into(),
        number => format!("key {number}"),
    }
}

pub(crate) fn look(key: usize) -> Arc<Ask> {
    Arc::new(Ask { key, how: How::Get, steps: Vec::new(), end: End::Hang })
}

fn poll_once<T>(future: &mut BoxFuture<'_, T>) -> Option<T> {
    match future.poll_unpin(&mut Context::from_waker(Waker::noop())) {
        std::task::Poll::Ready(result) => Some(result),
        std::task::Poll::Pending => None,
    }
}

/// Records the end of a call however it ends.
struct CallGuard {
    world: Arc<World>,
    number: usize,
    has_ended: bool,
}

impl CallGuard {
    fn new(world: &Arc<World>, actor: usize, parent: Option<usize>, ask: &Ask) -> Self {
        let number = world.record().call_begins(ask.key, ask.how, actor, parent);
        Self { world: Arc::clone(world), number, has_ended: false }
    }

    fn end(mut self, answer: &Result<Option<Value>, Error>) {
        self.has_ended = true;
        let end = match answer {
            Ok(Some(value)) => CallEnd::Value(value.0.facts),
            Ok(None) => CallEnd::Nothing,
            Err(error) => {
                let failure = error.inner::<Failure>().map(|failure| failure.facts);
                CallEnd::Refused(error.kind(), failure)
            }
        };
        self.world.record().call_ends(self.number, &end);
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if !self.has_ended {
            let panics = self.world.computation_panics();
            let end = if panics { CallEnd::Panicked } else { CallEnd::Dropped };
            self.world.record().call_ends(self.number, &end);
        }
    }
}

/// Records the end of a computation however it ends.
struct ComputationGuard {
    world: Arc<World>,
    number: usize,
    has_ended: bool,
}

impl ComputationGuard {
    fn new(world: &Arc<World>, call: usize) -> Self {
        let number = world.record().computation_begins(call);
        Self { world: Arc::clone(world), number, has_ended: false }
    }

    fn end_with(mut self, kept: Kept) -> Value {
        self.has_ended = true;
        let end = ComputationEnd::Value;
        let facts = self.world.record().computation_ends(self.number, end, kept);
        Value::new(&self.world, facts)
    }

    fn fail(mut self, action: FailureAction) -> Failure {
        self.has_ended = true;
        let end = ComputationEnd::Failed(action);
        let kept = Kept::default();
        let key = self.world.record().computation_ends(self.number, end, kept).key;
        self.world.live_failures.fetch_add(1, SeqCst);
        let facts = FailureFacts { key, computation: self.number, action };
        Failure { facts, world: Arc::clone(&self.world) }
    }
}

impl Drop for ComputationGuard {
    fn drop(&mut self) {
        if !self.has_ended {
            let panics = self.world.computation_panics();
            let end = if panics { ComputationEnd::Panicked } else { ComputationEnd::Dropped };
            self.world.record().computation_ends(self.number, end, Kept::default());
        }
    }
}

impl Value {
    fn new(world: &Arc<World>, facts: Facts) -> Self {
        world.live.fetch_add(1, SeqCst);
        Self(Arc::new(Payload { facts, world: Arc::clone(world) }))
    }

    fn into_computed(self) -> Computed<Self> {
        let facts = self.0.facts;
        let mut computed = Computed::new(self).ttl(facts.ttl);
        if facts.tagged {
            computed = computed.tag("t");
        }
        if facts.do_not_store {
            computed = computed.do_not_store();
        }
        computed
    }
}

impl Clone for Value {
    fn clone(&self) -> Self {
        let value = Self(Arc::clone(&self.0));
        self.0.world.react(self.0.world.settings.on_clone);
        value
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        self.world.live.fetch_sub(1, SeqCst);
        self.world.react(self.world.settings.on_drop);
    }
}

impl Drop for Failure {
    fn drop(&mut self) {
        self.world.live_failures.fetch_sub(1, SeqCst);
        self.world.react(self.world.settings.on_drop);
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failure of computation {}", self.facts.computation)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "computation {} failed", self.facts.computation)
    }
}

impl std::error::Error for Failure {}
