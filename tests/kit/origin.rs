//! What the behaviour tests share: an origin whose answers the test controls,
//! and herds of callers.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower_stampede::{Builder, Stampede};

use crate::kit::spawn;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// What [`Origin::load`] returns, boxed so that callers can name it.
pub(crate) type Loading = Pin<Box<dyn Future<Output = Result<u64, OriginError>> + Send>>;

/// Settings with a `ttl` of a minute and nothing left to chance.
///
/// Lifetimes in these tests are minutes: the store's own expiry runs on real
/// time, and a slow machine must not outlast one.
pub(crate) fn settings<V: Clone + Send + Sync + 'static>() -> Builder<V> {
    Stampede::builder("test").ttl(MINUTE).jitter(0.0)
}

/// How a call of the [`Origin`] ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Answer {
    /// With the number of the call.
    #[default]
    Value,
    Fail,
    Panic,
    /// Never.
    Hang,
}

/// The error of a failing call: its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OriginError(pub(crate) u64);

impl fmt::Display for OriginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {} failed", self.0)
    }
}

impl std::error::Error for OriginError {}

/// An expensive service. Calls are numbered from 1, and the number is the
/// answer, unless the test says otherwise.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin(Arc<State>);

#[derive(Debug, Default)]
struct State {
    calls: AtomicUsize,
    running: AtomicUsize,
    most_at_once: AtomicUsize,
    finished: AtomicUsize,
    dropped: AtomicUsize,
    started_at: Mutex<Vec<Instant>>,
    takes: Mutex<Duration>,
    next: Mutex<VecDeque<Answer>>,
    usual: Mutex<Answer>,
}

impl Origin {
    /// An origin that answers at once.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// An origin that needs `time` for each call.
    pub(crate) fn taking(time: Duration) -> Self {
        let origin = Self::default();
        *origin.0.takes.lock().unwrap() = time;
        origin
    }

    /// Lets the next calls end so, one each.
    pub(crate) fn next(&self, answers: impl IntoIterator<Item = Answer>) -> &Self {
        self.0.next.lock().unwrap().extend(answers);
        self
    }

    /// Lets every further call end so.
    pub(crate) fn usually(&self, answer: Answer) -> &Self {
        *self.0.usual.lock().unwrap() = answer;
        self
    }

    pub(crate) fn calls(&self) -> usize {
        self.0.calls.load(Ordering::SeqCst)
    }

    pub(crate) fn running(&self) -> usize {
        self.0.running.load(Ordering::SeqCst)
    }

    /// The most calls that ever ran at the same time.
    pub(crate) fn most_at_once(&self) -> usize {
        self.0.most_at_once.load(Ordering::SeqCst)
    }

    /// Calls that were dropped before they ended.
    pub(crate) fn dropped(&self) -> usize {
        self.0.dropped.load(Ordering::SeqCst)
    }

    pub(crate) fn started_at(&self) -> Vec<Instant> {
        self.0.started_at.lock().unwrap().clone()
    }

    /// The closure for `get_or_compute` and its like.
    pub(crate) fn compute(&self) -> impl FnOnce() -> Loading + Send + 'static + use<> {
        let origin = self.clone();
        move || origin.load()
    }

    /// One call. It is counted at once.
    pub(crate) fn load(&self) -> Loading {
        let call = Call::begin(&self.0);
        let takes = *self.0.takes.lock().unwrap();
        Box::pin(async move {
            if !takes.is_zero() {
                tokio::time::sleep(takes).await;
            }
            call.end().await
        })
    }
}

/// One call under way; its `Drop` keeps the counts right however it ends.
struct Call {
    state: Arc<State>,
    number: u64,
    answer: Answer,
    ended: bool,
}

impl Call {
    fn begin(state: &Arc<State>) -> Self {
        let number = state.calls.fetch_add(1, Ordering::SeqCst) as u64 + 1;
        let running = state.running.fetch_add(1, Ordering::SeqCst) + 1;
        state.most_at_once.fetch_max(running, Ordering::SeqCst);
        state.started_at.lock().unwrap().push(Instant::now());
        let usual = *state.usual.lock().unwrap();
        let answer = state.next.lock().unwrap().pop_front().unwrap_or(usual);
        Self { state: Arc::clone(state), number, answer, ended: false }
    }

    async fn end(mut self) -> Result<u64, OriginError> {
        if self.answer == Answer::Hang {
            std::future::pending::<()>().await;
        }
        self.ended = true;
        match self.answer {
            Answer::Value => Ok(self.number),
            Answer::Fail => Err(OriginError(self.number)),
            Answer::Panic | Answer::Hang => panic!("call {} panics", self.number),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.state.running.fetch_sub(1, Ordering::SeqCst);
        let counter = if self.ended { &self.state.finished } else { &self.state.dropped };
        counter.fetch_add(1, Ordering::SeqCst);
    }
}

/// Spawns `n` callers, each on its own task.
pub(crate) fn spawn_herd<T, Fut>(n: usize, caller: impl Fn(usize) -> Fut) -> Vec<JoinHandle<T>>
where
    T: Send + 'static,
    Fut: Future<Output = T> + Send + 'static,
{
    (0..n).map(|i| spawn(caller(i))).collect()
}

/// Waits for a herd; a panic of a caller goes on here. No caller may need more
/// than an hour of virtual time.
pub(crate) async fn gather<T>(herd: Vec<JoinHandle<T>>) -> Vec<T> {
    let mut answers = Vec::with_capacity(herd.len());
    for caller in herd {
        answers.push(within(60 * MINUTE, caller).await.expect("a caller does not panic"));
    }
    answers
}

/// Spawns `n` callers and waits for them.
pub(crate) async fn herd<T, Fut>(n: usize, caller: impl Fn(usize) -> Fut) -> Vec<T>
where
    T: Send + 'static,
    Fut: Future<Output = T> + Send + 'static,
{
    gather(spawn_herd(n, caller)).await
}

/// Lets every task run as far as it gets. Paused time moves only when no task
/// can go on, so one millisecond of it is enough.
pub(crate) async fn all_have_run() {
    tokio::time::sleep(MS).await;
}

/// Lets virtual time pass, and everything in it happen.
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Waits for `future`, and fails if it hangs.
pub(crate) async fn within<F: Future>(time: Duration, future: F) -> F::Output {
    tokio::time::timeout(time, future).await.expect("no caller hangs")
}

/// Asserts that nothing is left over: no flight, no waiter, no call.
pub(crate) fn assert_quiet<V: Clone + Send + Sync + 'static>(cache: &Stampede<V>) {
    let stats = cache.stats();
    assert_eq!((stats.flights, stats.waiting), (0, 0), "flights and waiters left over");
}
