//! Where computations run: on a task of their own, so that a caller that goes
//! away wastes nothing, and until a shutdown at most.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::flight::engine::{Admission, Engine, FlightRequest};
use crate::flight::leader::Leader;
use crate::key::Key;
use crate::mode::Mode;

impl<V: Send + Sync + 'static> Engine<V> {
    /// Runs `work` on its own task and waits for its result. A panic of the
    /// task goes on in the caller.
    ///
    /// Begins at once: a future that held the work until it is polled would be
    /// as large as the work, also in those who wait and never lead.
    ///
    /// Cancel safe: when the caller is dropped, the task goes on.
    pub(crate) fn detached<T, F>(
        &self,
        key: &Key,
        work: F,
    ) -> impl Future<Output = Result<T, Error>> + Send + use<V, T, F>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let task = self.spawn(key, work);
        async {
            match task.await {
                Ok(Some(result)) => Ok(result),
                Ok(None) => Err(Error::new(ErrorKind::ShutDown)),
                Err(failure) if failure.is_panic() => {
                    std::panic::resume_unwind(failure.into_panic())
                }
                Err(_) => Err(Error::new(ErrorKind::ShutDown)),
            }
        }
    }

    fn spawn<T, F>(&self, key: &Key, work: F) -> tokio::task::JoinHandle<Option<T>>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let stop = self.stop.clone();
        let work = async move { stop.run_until_cancelled_owned(work).await };
        self.tasks.spawn(crate::observe::leading(&self.settings.name, key, work))
    }

    /// Goes on with a leader's work on a task of its own, in the span in which
    /// it is.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only HTTP's results arrive"))]
    pub(crate) fn go_on(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        let work = async move { stop.run_until_cancelled_owned(work).await };
        drop(self.tasks.spawn(crate::observe::going_on(work)));
    }

    /// Starts a refresh that nobody waits for, unless one of the key runs here
    /// or did so elsewhere a moment ago, the key is held, or `max_refreshes` are under way. `still_wanted` is asked
    /// once the lead is taken.
    pub(crate) fn refresh<F>(
        self: &Arc<Self>,
        boarding: &FlightRequest,
        still_wanted: impl FnOnce() -> bool,
        work: impl FnOnce(Leader<V>) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        if !self.may_refresh(&boarding.key) {
            return;
        }
        let Ok(place) = Arc::clone(&self.refreshes).try_acquire_owned() else { return };
        let Admission::Lead(leader) = self.enter(boarding, &mut None) else { return };
        if !still_wanted() {
            leader.withdraw();
            return;
        }
        let work = work(leader);
        drop(self.spawn(&boarding.key, async move {
            work.await;
            drop(place);
        }));
    }

    /// Returns whether no other process was found at a refresh a moment ago, and
    /// the last refresh was not declined a moment ago.
    pub(crate) fn may_refresh(&self, key: &Key) -> bool {
        let now = self.clock.now();
        self.table.read_mark(key, |mark| mark.may_refresh(now)).unwrap_or(true)
    }

    /// Runs what must be done also if whoever asked for it goes away.
    ///
    /// Cancel safe: when the caller is dropped, the errand goes on.
    pub(crate) async fn errand<T: Send + 'static>(
        &self,
        errand: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.tasks.spawn(errand).await.ok()
    }

    /// The same where nobody waits, perhaps outside of a runtime.
    pub(crate) fn errand_unseen(&self, errand: impl Future<Output = ()> + Send + 'static) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(self.tasks.spawn_on(errand, &runtime));
        }
    }

    /// Ends all work: new callers compute for themselves, running computations
    /// have until `deadline`. Returns how many were cut off.
    pub(crate) async fn shut_down(&self, deadline: Duration) -> usize {
        self.set_mode(Mode::Off);
        self.tasks.close();
        let finished = tokio::time::timeout(deadline, self.tasks.wait()).await;
        let left = if finished.is_ok() { 0 } else { self.tasks.len() };
        self.stop.cancel();
        self.tasks.wait().await;
        left
    }
}
