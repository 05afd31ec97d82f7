//! One call of the origin for several keys.
//!
//! Each key of a batch goes the way of every caller: it has a flight, a lease and a hold of
//! its own. What the keys share is the call of the origin, and the place for it. So nothing
//! that holds for one key has to hold for a batch once more.
//!
//! A caller takes a [`Seat`] in a [`Round`]. Where it leads, its computation is
//! [`Seat::load`]: it adds its key to the round and waits for the round's one call. The call
//! begins when the round is closed:
//!
//! - a round of `get_many` closes when each of its callers has come to a decision: its key is
//!   in the round, or it does not lead (any more), or it waits for another process;
//! - a round of single callers closes `batch_window` after its first key;
//! - every round closes when it has `max_batch` keys.
//!
//! A caller that leads when its round is closed is late: it has waited for another caller or
//! process whose computation came to nothing, or its round was full. Late callers share a
//! round of their own. Those that know that they are late share its call, and its place, from
//! the start. Those that learn it only when they have a place bring that with them, unless
//! others need it or the later call has one.
//!
//! The call is a [`Shared`] future, driven by every leader that waits for it. It goes on as
//! long as one of them does, and is dropped with the last: then each has ended by
//! `compute_timeout`, or by a shutdown. Nothing else holds it: a caller that waits for other
//! keys does not keep it alive.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::cache::state::CacheState;
use crate::computed::Computed;
use crate::error::{Absent, Error, LoadFailure};
use crate::flight::computation::{Computation, OriginCall, WorkTime};
use crate::flight::lending;
use crate::garbage::drop_caught;
use crate::key::{Key, ToKey};
use crate::observe::{Observe, Occurrence};

/// How long the first of several late callers waits for the others.
const LATE_WINDOW: Duration = Duration::from_millis(5);

/// What a loader returns: the values that it has found, in any order.
pub(crate) type LoadedPairs<K, V> = Vec<(K, Computed<V>)>;
pub(crate) type BatchLoad<K, V> =
    Arc<dyn Fn(Vec<K>) -> BoxFuture<'static, Result<LoadedPairs<K, V>, Error>> + Send + Sync>;

/// Brings callers together in rounds.
pub(crate) struct Batcher<K, V> {
    load: BatchLoad<K, V>,
    max_batch: usize,
    window: Duration,
    /// Makes the error of a key that the loader returned nothing for.
    absent: AbsentError<K>,
    /// The round of single callers and of late callers, as long as one of them has a seat.
    open: Mutex<Weak<Round<K, V>>>,
}

pub(crate) type AbsentError<K> = Arc<dyn Fn(&K) -> Error + Send + Sync>;

/// Returns the error of an absent key where the application has not set any.
pub(crate) fn absent_error<K>() -> AbsentError<K> {
    Arc::new(|_| Error::inner_error(Absent::new()))
}

/// The keys of one call, and the call.
pub(crate) struct Round<K, V> {
    keys: Arc<RoundKeys<K>>,
    call: Mutex<RoundCall<V>>,
}

type SharedCall<V> = Shared<BoxFuture<'static, Arc<LoadResult<V>>>>;

/// The call of a round. Its waiters hold it.
enum RoundCall<V> {
    /// No key has been added yet.
    New(SharedCall<V>),
    Begun(WeakShared<BoxFuture<'static, Arc<LoadResult<V>>>>),
    /// Every caller that waited for it has gone.
    Gone,
}

impl<V> RoundCall<V> {
    fn join(&mut self) -> Option<SharedCall<V>> {
        let call = match self {
            Self::New(call) => Some(call.clone()),
            Self::Begun(call) => call.upgrade(),
            Self::Gone => None,
        };
        *self = match call.as_ref().and_then(Shared::downgrade) {
            Some(weak) => Self::Begun(weak),
            None => Self::Gone,
        };
        call
    }
}

struct RoundKeys<K> {
    gate: Arc<Gate>,
    max: usize,
    added: Mutex<AddedKeys<K>>,
}

struct AddedKeys<K> {
    /// Until the call begins.
    parts: Vec<Part<K>>,
    encoded: HashSet<Key>,
}

/// What a caller has added to a round.
struct Part<K> {
    key: K,
    encoded: Key,
    /// The caller's time begins with the call.
    time: Arc<WorkTime>,
}

/// Tells when the keys of a round are complete.
struct Gate {
    /// The call that the flights of the round have in common.
    call: Arc<OriginCall>,
    /// At which moment its callers look again that wait for other processes: at the same one,
    /// so that they are late together.
    spread: f64,
    state: Mutex<GateState>,
    closed: Notify,
}

struct GateState {
    /// Those that may yet add a key: callers that lead, and the one that seats them.
    undecided: usize,
    /// How many of its callers lead or have led.
    led: usize,
    is_closed: bool,
}

enum LoadResult<V> {
    Values(Mutex<HashMap<Key, Computed<V>>>),
    Failed(Error),
    /// One of the leaders gets what the loader panicked with.
    Panicked(Mutex<Option<Box<dyn Any + Send>>>),
}

impl Gate {
    fn is_open(&self) -> bool {
        !self.state.lock().is_closed
    }

    fn enter(&self) -> bool {
        let mut state = self.state.lock();
        if !state.is_closed {
            state.undecided += 1;
            state.led += 1;
        }
        !state.is_closed
    }

    fn leave(&self) {
        let mut state = self.state.lock();
        state.undecided -= 1;
        self.close_if_complete(&mut state);
    }

    fn close_if_complete(&self, state: &mut GateState) {
        if state.undecided == 0 {
            self.close(state);
        }
    }

    fn close(&self, state: &mut GateState) {
        state.is_closed = true;
        // The call alone waits for it; where none waits yet, it finds the gate closed.
        self.closed.notify_one();
    }

    /// Waits until the gate is closed, at most for `window`, and closes it.
    async fn wait(&self, window: Option<Duration>) {
        let closed = async {
            while self.is_open() {
                self.closed.notified().await;
            }
        };
        match window {
            Some(window) => {
                let _ = tokio::time::timeout(window, closed).await;
            }
            None => closed.await,
        }
        self.state.lock().is_closed = true;
    }
}

/// What a loader has returned may be dropped here, which is code of the user.
impl<V> Drop for LoadResult<V> {
    fn drop(&mut self) {
        if let Self::Values(values) = self {
            // Of keys that were not asked for, or whose leaders have gone.
            std::mem::take(values.get_mut()).into_values().for_each(drop_caught);
        }
    }
}

impl<K, V> Round<K, V> {
    /// Adds a key, and returns the call. Returns the key where it comes too late, or stands
    /// here already: then it was invalidated since, and belongs to a later call.
    fn add(&self, key: K, encoded: &Key, time: &Arc<WorkTime>) -> Result<SharedCall<V>, K> {
        let gate = &self.keys.gate;
        let mut state = gate.state.lock();
        let mut added = self.keys.added.lock();
        if state.is_closed || added.encoded.contains(encoded) {
            return Err(key);
        }
        let Some(call) = self.call.lock().join() else {
            gate.close(&mut state);
            return Err(key);
        };
        added.encoded.insert(encoded.clone());
        added.parts.push(Part { key, encoded: encoded.clone(), time: Arc::clone(time) });
        if added.parts.len() >= self.keys.max {
            gate.close(&mut state);
        }
        gate.close_if_complete(&mut state);
        Ok(call)
    }
}

impl<K, V> Round<K, V>
where
    K: ToKey + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Makes a round that `undecided` keep open, or, where there is a window, that ends with
    /// it.
    fn new(
        state: &CacheState<V>,
        batcher: &Batcher<K, V>,
        undecided: usize,
        window: Option<Duration>,
    ) -> Arc<Self> {
        let gate = Arc::new(Gate {
            call: state.engine.shared_call(),
            spread: fastrand::f64(),
            state: Mutex::new(GateState { undecided, led: 0, is_closed: false }),
            closed: Notify::new(),
        });
        let added = Mutex::new(AddedKeys { parts: Vec::new(), encoded: HashSet::new() });
        let keys = Arc::new(RoundKeys { gate, max: batcher.max_batch, added });
        let (of_call, load) = (Arc::clone(&keys), Arc::clone(&batcher.load));
        let (observer, watch) = (Arc::clone(&state.observer), state.engine.watch.clone());
        let scope = state.engine.scope_of(&keys.gate.call);
        let call = lending::within(scope, async move {
            of_call.gate.wait(window).await;
            let parts = std::mem::take(&mut of_call.added.lock().parts);
            let now = watch.now();
            let begin = |part: Part<K>| {
                part.time.begin(now);
                part.key
            };
            let keys: Vec<K> = parts.into_iter().map(begin).collect();
            let (from, count) = (tokio::time::Instant::now(), keys.len() as u64);
            let loading = async {
                let mut values = HashMap::new();
                for (key, value) in load(keys).await? {
                    drop_caught(values.insert(key.to_key(), value));
                }
                Ok(values)
            };
            let loaded = AssertUnwindSafe(loading).catch_unwind().await;
            observer.happened(Occurrence::BatchCalled { keys: count, took: from.elapsed() });
            Arc::new(match loaded {
                Ok(Ok(values)) => LoadResult::Values(Mutex::new(values)),
                Ok(Err(error)) => LoadResult::Failed(error),
                Err(panic) => LoadResult::Panicked(Mutex::new(Some(panic))),
            })
        });
        Arc::new(Self { keys, call: Mutex::new(RoundCall::New(call.boxed().shared())) })
    }
}

impl<K> RoundKeys<K> {
    /// Removes the key of a caller that has gone before the call began. Returns the part, to be
    /// dropped without the lock.
    fn remove(&self, encoded: &Key) -> Option<Part<K>> {
        let mut added = self.added.lock();
        let at = added.parts.iter().position(|part| part.encoded == *encoded)?;
        added.encoded.remove(encoded);
        Some(added.parts.remove(at))
    }
}

/// A caller that waits for a round. Dropped before the call has begun, its key is not loaded.
struct Membership<K> {
    keys: Arc<RoundKeys<K>>,
    encoded: Key,
}

impl<K> Drop for Membership<K> {
    fn drop(&mut self) {
        drop(self.keys.remove(&self.encoded));
    }
}

impl<K, V> Round<K, V> {
    /// Returns whether callers that lead from now on can be expected to be in time.
    fn has_seats(&self) -> bool {
        let state = self.keys.gate.state.lock();
        !state.is_closed && state.led < self.keys.max
    }
}

impl<K, V> Batcher<K, V>
where
    K: ToKey + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    pub(crate) fn new(
        load: BatchLoad<K, V>,
        absent: AbsentError<K>,
        max_batch: usize,
        window: Duration,
    ) -> Arc<Self> {
        Arc::new(Self { load, absent, max_batch, window, open: Mutex::new(Weak::new()) })
    }

    /// Returns the largest number of keys of one call.
    pub(crate) fn max_batch(&self) -> usize {
        self.max_batch
    }

    /// Begins a round for callers that are seated one after the other. It stays open until the
    /// guard is dropped.
    pub(crate) fn begin_round(self: &Arc<Self>, state: &Arc<CacheState<V>>) -> OpenRound<K, V> {
        OpenRound {
            round: Round::new(state, self, 1, None),
            batcher: Arc::clone(self),
            state: Arc::clone(state),
        }
    }

    /// Seats one caller: in the open round where there is a window, or in a round of its own.
    pub(crate) fn seat(self: &Arc<Self>, state: &Arc<CacheState<V>>, key: &K) -> Seat<K, V> {
        let round = match self.window {
            Duration::ZERO => Round::new(state, self, 0, None),
            _ => self.open_round(state),
        };
        Seat::in_round(self, &round, state, key.clone())
    }

    fn open_round(&self, state: &CacheState<V>) -> Arc<Round<K, V>> {
        let mut open = self.open.lock();
        if let Some(round) = open.upgrade().filter(|round| round.has_seats()) {
            return round;
        }
        // Nothing decides for callers of which none knows the others: the window does.
        let window = self.window.max(LATE_WINDOW);
        let round = Round::new(state, self, 1, Some(window));
        *open = Arc::downgrade(&round);
        round
    }

    /// Gives out no more seats in this round.
    fn forget(&self, round: &Arc<Round<K, V>>) {
        let mut open = self.open.lock();
        if std::ptr::eq(open.as_ptr(), Arc::as_ptr(round)) {
            *open = Weak::new();
        }
    }
}

/// A round in which callers are being seated.
pub(crate) struct OpenRound<K, V>
where
    V: Clone + Send + Sync + 'static,
{
    round: Arc<Round<K, V>>,
    batcher: Arc<Batcher<K, V>>,
    state: Arc<CacheState<V>>,
}

impl<K, V> OpenRound<K, V>
where
    K: ToKey + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    pub(crate) fn seat(&self, key: K) -> Seat<K, V> {
        Seat::in_round(&self.batcher, &self.round, &self.state, key)
    }
}

impl<K, V> Drop for OpenRound<K, V>
where
    V: Clone + Send + Sync + 'static,
{
    fn drop(&mut self) {
        self.round.keys.gate.leave();
    }
}

/// A computation that the caller of a batch has.
#[derive(Clone)]
enum OwnComputation {
    OfFlight(Arc<Computation>),
    /// Outside of any flight: only its place counts.
    Alone(Arc<Computation>),
}

/// What a caller's work knows of its seat.
pub(crate) struct BoardingPass {
    gate: Arc<Gate>,
    later: Arc<dyn LaterCall>,
    /// Whether the round waits for this caller.
    is_awaited: AtomicBool,
    /// What the caller computes with, which becomes a part of the round's call.
    computation: Mutex<Option<OwnComputation>>,
    /// The time of a computation outside of any flight.
    time: Arc<WorkTime>,
}

impl BoardingPass {
    /// Returns the call that the caller's flight is a part of, if it leads now: that of its
    /// round, or where it is late, that of the round for late callers.
    pub(crate) fn call(&self) -> Arc<OriginCall> {
        if self.gate.is_open() { Arc::clone(&self.gate.call) } else { self.later.call() }
    }

    /// Returns at which moment it looks again, where it waits for another process.
    pub(crate) fn spread(&self) -> f64 {
        self.gate.spread
    }

    /// The caller leads: the round waits for its decision.
    pub(crate) fn lead(&self) {
        if self.gate.enter() && self.is_awaited.swap(true, Ordering::AcqRel) {
            // It was awaited before.
            self.gate.leave();
        }
    }

    /// The caller computes as the leader of a flight.
    pub(crate) fn compute_in_flight(&self, computation: &Arc<Computation>) {
        *self.computation.lock() = Some(OwnComputation::OfFlight(Arc::clone(computation)));
    }

    /// The caller computes outside of any flight, with a place.
    pub(crate) fn compute_alone(&self, computation: &Arc<Computation>) {
        *self.computation.lock() = Some(OwnComputation::Alone(Arc::clone(computation)));
    }

    /// Returns the time of a computation outside of any flight.
    pub(crate) fn time(&self) -> &WorkTime {
        &self.time
    }

    /// The round does not wait for this caller any more.
    pub(crate) fn step_aside(&self) {
        if self.is_awaited.swap(false, Ordering::AcqRel) {
            self.gate.leave();
        }
    }
}

/// The call of late callers.
trait LaterCall: Send + Sync {
    fn call(&self) -> Arc<OriginCall>;
}

/// How a caller finds the round of late callers.
struct Later<K, V>
where
    V: Clone + Send + Sync + 'static,
{
    batcher: Arc<Batcher<K, V>>,
    state: Arc<CacheState<V>>,
    found: Mutex<Option<Arc<Round<K, V>>>>,
}

impl<K, V> LaterCall for Later<K, V>
where
    K: ToKey + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    fn call(&self) -> Arc<OriginCall> {
        let mut found = self.found.lock();
        let round = found.take().filter(|round| round.keys.gate.is_open());
        let round = round.unwrap_or_else(|| self.batcher.open_round(&self.state));
        Arc::clone(&found.insert(round).keys.gate.call)
    }
}

/// One caller's seat in a round. Dropped, it is a decision not to load.
pub(crate) struct Seat<K, V>
where
    V: Clone + Send + Sync + 'static,
{
    key: K,
    round: Arc<Round<K, V>>,
    later: Arc<Later<K, V>>,
    pass: Arc<BoardingPass>,
}

impl<K, V> Seat<K, V>
where
    K: ToKey + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    fn in_round(
        batcher: &Arc<Batcher<K, V>>,
        round: &Arc<Round<K, V>>,
        state: &Arc<CacheState<V>>,
        key: K,
    ) -> Self {
        let later = Arc::new(Later {
            batcher: Arc::clone(batcher),
            state: Arc::clone(state),
            found: Mutex::new(None),
        });
        let pass = Arc::new(BoardingPass {
            gate: Arc::clone(&round.keys.gate),
            later: Arc::clone(&later) as Arc<dyn LaterCall>,
            is_awaited: AtomicBool::new(false),
            computation: Mutex::new(None),
            time: Arc::default(),
        });
        Self { key, round: Arc::clone(round), later, pass }
    }

    pub(crate) fn pass(&self) -> Arc<BoardingPass> {
        Arc::clone(&self.pass)
    }

    /// Adds the key to a round, and waits for the value that its call returns.
    ///
    /// # Panics
    ///
    /// When the loader does.
    pub(crate) async fn load(self) -> Result<Computed<V>, LoadFailure> {
        let encoded = self.key.to_key();
        let state = Arc::clone(&self.later.state);
        let own = self.pass.computation.lock().clone();
        let (computation, time) = match own {
            Some(OwnComputation::OfFlight(own)) => {
                let time = Arc::clone(own.time());
                time.wait();
                (Some(own), time)
            }
            Some(OwnComputation::Alone(own)) => (Some(own), Arc::clone(&self.pass.time)),
            None => (None, Arc::clone(&self.pass.time)),
        };
        let (call, round) = self.enter_round(&encoded, &time);
        let membership = Membership { keys: Arc::clone(&round.keys), encoded: encoded.clone() };
        // The rounds live, for others to find them, as long as they have seats or this.
        let (key, batcher) = (self.key.clone(), Arc::clone(&self.later.batcher));
        let own_round = Arc::clone(&self.round);
        drop(self);
        if let Some(computation) = &computation {
            let placed = state.engine.move_to_call(computation, &round.keys.gate.call).await;
            placed.map_err(|_| LoadFailure(state.engine.overloaded(&encoded)))?;
        }
        let loaded = call.await;
        drop((membership, round, own_round));
        match &*loaded {
            LoadResult::Values(values) => {
                let found = values.lock().remove(&encoded);
                found.ok_or_else(|| LoadFailure((batcher.absent)(&key)))
            }
            LoadResult::Failed(error) => Err(LoadFailure(error.clone())),
            LoadResult::Panicked(panic) => {
                let panic = panic.lock().take();
                resume_unwind(panic.unwrap_or_else(|| Box::new("the loader of a batch panicked")))
            }
        }
    }

    /// Adds the key to the seat's round, or to the open one. Returns the call and its round.
    fn enter_round(
        &self,
        encoded: &Key,
        time: &Arc<WorkTime>,
    ) -> (SharedCall<V>, Arc<Round<K, V>>) {
        let mut key = match self.round.add(self.key.clone(), encoded, time) {
            Ok(call) => return (call, Arc::clone(&self.round)),
            Err(key) => key,
        };
        let Later { batcher, state, found } = &*self.later;
        let mut round = found.lock().take().unwrap_or_else(|| batcher.open_round(state));
        loop {
            match round.add(key, encoded, time) {
                Ok(call) => return (call, round),
                Err(back) => key = back,
            }
            batcher.forget(&round);
            round = batcher.open_round(state);
        }
    }
}

impl<K, V> Drop for Seat<K, V>
where
    V: Clone + Send + Sync + 'static,
{
    fn drop(&mut self) {
        self.pass.step_aside();
    }
}
