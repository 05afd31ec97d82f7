//! An origin of a fixed capacity, which works less well the more calls it has at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// How many calls the origin works on without any of them being slower.
pub(crate) const WORKERS: f64 = 20.0;
/// The mean time of a call, up to that concurrency.
pub(crate) const MEAN: Duration = Duration::from_millis(100);
/// Up to so many calls for each worker share the workers without a loss.
const SHARED: f64 = 2.0;
/// Above that, the throughput is divided by 1 + this, times the calls that are too many for each worker.
const THRASH: f64 = 0.25;

/// The calls in a second that the origin can bear.
pub(crate) fn capacity() -> f64 {
    WORKERS / MEAN.as_secs_f64()
}

/// Calls share the workers equally. The work that is done for each of them since the beginning is one
/// number, and a call ends when it has grown by what the call demands.
pub(crate) struct Origin {
    state: Mutex<State>,
    has_changed: Notify,
}

struct State {
    /// In seconds of one worker.
    work_of_each: f64,
    since: Instant,
    /// By the end, in nanoseconds of `work_of_each`, and by number.
    calls: BTreeMap<(u64, u64), oneshot::Sender<()>>,
    begun: u64,
    most_at_once: usize,
}

impl State {
    fn speed(&self) -> f64 {
        let calls = self.calls.len() as f64;
        if calls <= WORKERS {
            return 1.0;
        }
        WORKERS / (1.0 + THRASH * (calls / WORKERS - SHARED).max(0.0)) / calls
    }

    fn advance(&mut self, now: Instant) {
        self.work_of_each += (now - self.since).as_secs_f64() * self.speed();
        self.since = now;
    }
}

impl Origin {
    pub(crate) fn start() -> Arc<Self> {
        let state = State {
            work_of_each: 0.0,
            since: Instant::now(),
            calls: BTreeMap::new(),
            begun: 0,
            most_at_once: 0,
        };
        let origin = Arc::new(Self { state: Mutex::new(state), has_changed: Notify::new() });
        tokio::spawn(Arc::clone(&origin).work());
        origin
    }

    /// Works on a call until it ends, also when the caller has gone: most databases do not notice.
    pub(crate) fn call(&self, demand: Duration) -> oneshot::Receiver<()> {
        self.numbered_call(demand).1
    }

    /// The same, with the number of the call, from one on.
    pub(crate) fn numbered_call(&self, demand: Duration) -> (u64, oneshot::Receiver<()>) {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        state.advance(Instant::now());
        state.begun += 1;
        let ends = ((state.work_of_each + demand.as_secs_f64()) * 1e9) as u64;
        let number = state.begun;
        state.calls.insert((ends, number), sender);
        state.most_at_once = state.most_at_once.max(state.calls.len());
        drop(state);
        self.has_changed.notify_one();
        (number, receiver)
    }

    /// Returns how many calls have begun.
    #[cfg(unix)]
    pub(crate) fn begun(&self) -> usize {
        self.state.lock().begun as usize
    }

    pub(crate) fn most_at_once(&self) -> usize {
        self.state.lock().most_at_once
    }

    async fn work(self: Arc<Self>) {
        loop {
            let next = {
                let mut state = self.state.lock();
                state.advance(Instant::now());
                let done = (state.work_of_each * 1e9) as u64;
                while let Some(first) = state.calls.first_entry()
                    && first.key().0 <= done + 1000
                {
                    // The caller may be gone.
                    let _ = first.remove().send(());
                }
                let next = state.calls.first_key_value().map(|((ends, _), _)| *ends);
                next.map(|ends| (ends - done.min(ends)) as f64 / 1e9 / state.speed())
            };
            let changed = self.has_changed.notified();
            match next {
                None => changed.await,
                Some(pause) => {
                    let pause = Duration::from_secs_f64(pause);
                    let _ = tokio::time::timeout(pause, changed).await;
                }
            }
        }
    }
}
