//! Runs a case: polls callers by hand on a paused clock, and checks at the end
//! that the cache is at rest.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, future};
use tokio::runtime::Handle;
use tower_stampede::{Mode, Stampede};

use crate::case::{Ask, Case, End, How, Kept, Op, SPARE_KEY, Step};
use crate::panics;
use crate::record::{Record, Violation, What};
use crate::streams::Streams;
use crate::world::{ScriptedPanic, Value, World};

/// Longer than any call, and than the interval at which the cache tidies up.
const DRAIN: Duration = Duration::from_secs(32);

/// Longer than failures are remembered, and than the cache takes to tidy up.
const FORGOTTEN: Duration = Duration::from_secs(160);

/// Callers that are not of the schedule are numbered from here on.
const EXTRA: usize = 1_000_000;

/// The result of a case.
pub(crate) struct Outcome {
    pub(crate) violations: Vec<Violation>,
    pub(crate) history: Vec<String>,
    pub(crate) computations: usize,
}

pub(crate) fn run(case: &Case, keeps_history: bool) -> Outcome {
    fastrand::seed(case.seed);
    panics::forget();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime starts");
    let world = {
        let _inside = runtime.enter();
        World::new(&case.settings, keeps_history)
    };
    // A panic of the crate's own is noted by the hook, and ends the case.
    let played = catch_unwind(AssertUnwindSafe(|| runtime.block_on(play(case, &world))));
    if played.is_err() {
        world.set_cache(None);
    }
    drop(runtime);
    let mut record = world.record();
    for panic in panics::forget() {
        record.violate("the crate does not panic", panic);
    }
    Outcome {
        violations: std::mem::take(&mut record.violations),
        history: record.history.take().unwrap_or_default(),
        computations: record.computations.len(),
    }
}

async fn play(case: &Case, world: &Arc<World>) {
    let cache = world.build();
    let events = cache.events();
    let mut stage = Stage {
        world: Arc::clone(world),
        cache,
        callers: BTreeMap::new(),
        streams: Streams::new(&case.settings),
        rng: Rng::with_seed(!case.seed),
        extra: EXTRA,
    };
    for op in &case.ops {
        stage.take(op).await;
    }
    stage.drain().await;
    stage.check_failures().await;
    stage.check_places().await;
    stage.check_rest().await;
    drop(events);
    check_gone(stage).await;
}

/// A caller: a future that is polled by hand.
struct Caller {
    future: BoxFuture<'static, ()>,
    bell: Arc<Bell>,
    is_silent: bool,
}

/// Notes that a caller wants to be polled, and wakes the driver.
struct Bell {
    rings: AtomicBool,
    world: Arc<World>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rings.store(true, SeqCst);
        self.world.wake_driver();
    }
}

struct Stage {
    world: Arc<World>,
    cache: Stampede<Value>,
    callers: BTreeMap<usize, Caller>,
    streams: Streams,
    rng: Rng,
    extra: usize,
}

impl Stage {
    async fn take(&mut self, op: &Op) {
        match op {
            Op::Ask(caller, ask) => {
                self.begin(*caller, self.world.ask(*caller, None, Arc::clone(ask)).map(drop));
            }
            Op::Stream(plan) => self.streams.begin(*plan),
            Op::Read(reader, chunks) => self.streams.read(*reader, *chunks),
            Op::Leave(reader) => self.streams.leave(*reader),
            Op::LookAtStream(key) => self.streams.check_stored(*key).await,
            Op::Poll(caller) => self.poll(*caller),
            Op::Drop(caller) => drop(self.callers.remove(caller)),
            Op::DropInPanic(caller) => self.drop_in_panic(*caller),
            Op::Silence(caller) => {
                if let Some(silenced) = self.callers.get_mut(caller) {
                    silenced.is_silent = true;
                    self.world.record().silent_ever.insert(*caller);
                }
            }
            Op::Resume(caller) => {
                if let Some(resumed) = self.callers.get_mut(caller) {
                    resumed.is_silent = false;
                }
            }
            Op::Put(key, kept) => self.world.put(*key, *kept).await,
            Op::Invalidate(key) => {
                self.world.invalidate(*key).await;
                self.streams.cut();
                self.streams.cache.invalidate(crate::world::key_of(*key).as_str()).await;
                self.streams.invalidated([*key]);
            }
            Op::InvalidateTag => {
                let cut = self.world.record().cut_begins(What::Tag);
                self.cache.invalidate_tag("t").await;
                self.world.record().cut_ends(cut);
                self.streams.cut();
                self.streams.cache.invalidate_tag("t").await;
                self.streams.invalidated(0..SPARE_KEY);
            }
            Op::InvalidateAll => {
                let cut = self.world.record().cut_begins(What::All);
                self.cache.invalidate_all().await;
                self.world.record().cut_ends(cut);
                self.streams.cut();
                self.streams.cache.invalidate_all().await;
                self.streams.invalidated(0..SPARE_KEY);
            }
            Op::MarkStale(key) => {
                let cut = self.world.record().cut_begins(What::Stale(*key));
                self.cache.mark_stale(crate::world::key_of(*key).as_str()).await;
                self.world.record().cut_ends(cut);
                self.streams.cut();
                self.streams.cache.mark_stale(crate::world::key_of(*key).as_str()).await;
                self.streams.cut();
            }
            Op::SetMode(mode) => {
                self.world.record().set_mode(*mode);
                self.cache.set_mode(*mode);
                self.streams.switch(*mode);
            }
            Op::Stats => self.check_bounds(),
            Op::Yield(times) => {
                for _ in 0..*times {
                    tokio::task::yield_now().await;
                }
            }
            Op::Pass(time) => self.pass(Duration::from_millis(*time)).await,
            Op::Jump(time) => {
                let time = Duration::from_millis(*time);
                self.world.record().jumped += time;
                self.streams.jump();
                tokio::time::advance(time).await;
            }
        }
        self.adopt();
    }

    fn drop_in_panic(&mut self, caller: usize) {
        let Some(caller) = self.callers.remove(&caller) else { return };
        self.world.drops_in_panic.store(true, SeqCst);
        let panics = catch_unwind(AssertUnwindSafe(move || {
            let _caller = caller;
            std::panic::resume_unwind(Box::new(ScriptedPanic))
        }));
        let _: Result<(), _> = panics.map_err(drop);
        self.world.drops_in_panic.store(false, SeqCst);
    }

    fn begin(&mut self, number: usize, future: impl Future<Output = ()> + Send + 'static) {
        let bell = Arc::new(Bell { rings: AtomicBool::new(true), world: Arc::clone(&self.world) });
        let caller = Caller { future: future.boxed(), bell, is_silent: false };
        self.callers.insert(number, caller);
        self.poll(number);
    }

    /// Takes over the callers that user code has begun.
    fn adopt(&mut self) {
        let adopted = std::mem::take(&mut *self.world.adopted.lock().unwrap());
        for future in adopted {
            self.extra += 1;
            self.begin(self.extra, future);
        }
    }

    fn poll(&mut self, number: usize) {
        let Some(caller) = self.callers.get_mut(&number) else { return };
        if caller.is_silent {
            return;
        }
        caller.bell.rings.store(false, SeqCst);
        let waker = Waker::from(Arc::clone(&caller.bell));
        let mut context = Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| caller.future.poll_unpin(&mut context)));
        match polled {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(())) => {}
            // Any other panic is noted by the hook.
            Err(panic) => drop(panic.downcast::<ScriptedPanic>()),
        }
        drop(self.callers.remove(&number));
    }

    /// Polls the callers that want to be, in random order, once each.
    fn poll_ready(&mut self) -> bool {
        let wants = |(number, caller): (&usize, &Caller)| {
            (caller.bell.rings.load(SeqCst) && !caller.is_silent).then_some(*number)
        };
        let mut ready: Vec<_> = self.callers.iter().filter_map(wants).collect();
        self.rng.shuffle(&mut ready);
        for number in &ready {
            self.poll(*number);
        }
        self.adopt();
        !ready.is_empty()
    }

    /// Lets time pass. Whatever is due in it happens, at its own moment.
    async fn pass(&mut self, time: Duration) {
        let mut sleep = pin!(tokio::time::sleep(time));
        poll_fn(|context| {
            *self.world.driver.lock().unwrap() = Some(context.waker().clone());
            while self.poll_ready() {}
            sleep.as_mut().poll(context)
        })
        .await;
        *self.world.driver.lock().unwrap() = None;
    }

    fn check_bounds(&mut self) {
        let stats = self.cache.stats();
        let mut record = self.world.record();
        let most = record.settings.max_waiters_in_all;
        if stats.waiting > most {
            let detail = format!("{} wait, the bound is {most}", stats.waiting);
            record.violate("at most `max_waiters_in_all` wait", detail);
        }
        let settings = &record.settings;
        let bound = settings.max_computations + most + settings.max_refreshes;
        if stats.flights > bound && counts_flights(&record) {
            let detail = format!("{} flights, the bound is {bound}", stats.flights);
            record.violate("leaders that queue count as waiting", detail);
        }
    }

    /// Ends what runs: everything that can end does so now.
    async fn drain(&mut self) {
        self.take(&Op::SetMode(Mode::On)).await;
        self.take(&Op::Stats).await;
        self.streams.let_read();
        self.pass(DRAIN).await;
        self.streams.check_rest();
        let broken = self.streams.broken();
        let mut record = self.world.record();
        broken.into_iter().for_each(|(rule, detail)| record.violate(rule, detail));
        let unfinished: Vec<_> = record
            .calls
            .iter()
            .enumerate()
            .filter(|(_, call)| {
                call.ended.is_none()
                    && !record.silent_ever.contains(&call.actor)
                    && !record.was_off_since(call.asked)
            })
            .map(|(number, call)| format!("call {number}: {call:?}"))
            .collect();
        if !unfinished.is_empty() {
            record.violate("every call ends", unfinished.join("; "));
        }
    }

    /// As many new computations as there are places begin at once.
    async fn check_places(&mut self) {
        let wanted = self.cache.stats().computation_limit;
        let before = self.world.record().computations.len();
        let first = self.extra + 1;
        for place in 0..wanted {
            self.extra += 1;
            let ask = Ask {
                key: SPARE_KEY + 1 + place,
                how: How::Scoped,
                steps: vec![Step::Sleep(1)],
                end: End::Value(Kept::default()),
            };
            let asking = self.world.ask(self.extra, None, Arc::new(ask)).map(drop);
            self.begin(self.extra, asking);
        }
        let begun = self.world.record().computations.len() - before;
        if begun < wanted {
            let detail = format!("{begun} of {wanted} begin although nothing else runs");
            self.world.record().violate("every place is free in the end", detail);
        }
        self.pass(Duration::from_secs(2)).await;
        for number in first..=self.extra {
            drop(self.callers.remove(&number));
        }
    }

    async fn check_rest(&mut self) {
        drop(std::mem::take(&mut self.callers));
        self.pass(Duration::from_millis(1)).await;
        let stats = self.cache.stats();
        let held = self.world.record().held;
        if stats.held > held {
            let detail = format!("{} are counted, {held} were refused", stats.held);
            self.world.record().violate("who is served stale is not counted as held", detail);
        }
        if (stats.flights, stats.waiting) != (0, 0) {
            let detail = format!("{} flights, {} waiting", stats.flights, stats.waiting);
            self.world.record().violate("nothing is left over", detail);
        }
    }

    /// Errors go even if no value ever came. Most cases do without: the wait is
    /// as long as everything else.
    async fn check_failures(&mut self) {
        let is_settled = self.callers.is_empty();
        if !is_settled || self.rng.u32(..8) > 0 {
            return;
        }
        self.pass(FORGOTTEN).await;
        let failures = self.world.live_failures.load(SeqCst);
        if failures > 0 {
            let detail = format!("{failures} errors are left after {FORGOTTEN:?}");
            self.world.record().violate("failures are forgotten", detail);
        }
    }
}

/// Returns whether each flight of the case is one that runs or waits. A jump of the clock can
/// carry a leader in the queue so far past its time that another caller ends its wait, with its
/// slot, before it is polled.
fn counts_flights(record: &Record) -> bool {
    record.came_on == 0
        && record.jumped < Duration::from_secs(1)
        && record.left_on == 0
        && record.silent_ever.is_empty()
        && record.calls.iter().all(|call| call.parent.is_none())
}

/// Lets the handle go, and with it everything it holds.
async fn check_gone(stage: Stage) {
    let Stage { world, cache, streams, .. } = stage;
    drop(streams);
    world.set_cache(None);
    drop(cache);
    tokio::time::sleep(DRAIN).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    if tasks > 0 {
        world.record().violate("no task outlives the handle", format!("{tasks} tasks"));
    }
    collect(&world);
    let live = world.live.load(SeqCst) + world.live_failures.load(SeqCst);
    if live > 0 {
        let detail = format!("{live} values and errors are left");
        world.record().violate("the handle keeps nothing alive", detail);
    }
    future::ready(()).await;
}

/// Works with other caches until what the store's library put off is done: it
/// frees memory some time after its last use, in whatever thread uses it.
fn collect(world: &World) {
    for _ in 0..200 {
        if world.live.load(SeqCst) == 0 {
            return;
        }
        let other: moka::sync::Cache<u32, u32> = moka::sync::Cache::new(1);
        for n in 0..100 {
            other.insert(n, n);
        }
        other.run_pending_tasks();
    }
}
