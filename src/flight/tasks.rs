//! Where computations run: on a task of their own, so that a caller that goes away wastes
//! nothing, and until a shutdown at most.

use std::any::Any;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::error::{Error, ErrorKind};
use crate::flight::engine::{Engine, GRACE, PlaceForOne};
use crate::flight::lending;
use crate::flight::phase::Interest;
use crate::key::Key;
use crate::mode::Mode;
use crate::observe::Occurrence;

/// How long a shutdown waits until the tasks that it has cut off are dropped. A task whose
/// computation blocks its thread is not waited for.
const DROP_TIME: Duration = Duration::from_millis(10);

thread_local! {
    static IS_IN_POLL: Cell<bool> = const { Cell::new(false) };
}

/// Marks the polls of a leader's task.
async fn in_poll<F: Future>(work: F) -> F::Output {
    /// Restores the mark after each poll, also after a panic.
    struct Mark(bool);
    impl Drop for Mark {
        fn drop(&mut self) {
            IS_IN_POLL.set(self.0);
        }
    }
    let mut work = pin!(work);
    poll_fn(|context| {
        let _mark = Mark(IS_IN_POLL.replace(true));
        work.as_mut().poll(context)
    })
    .await
}

/// Returns whether a panic of the task unwinds through the caller. A task that is dropped
/// because another part of the program panics, such as its runtime, has not panicked.
pub(super) fn is_panicking_in_poll() -> bool {
    std::thread::panicking() && IS_IN_POLL.get()
}

/// Returns whether a panic says that a task-local value is missing, as tokio's `LocalKey` does,
/// or `unwrap` on its `AccessError`.
pub(super) fn lacks_task_local(panic: &(dyn Any + Send)) -> bool {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.is_some_and(|text| {
        text.starts_with("cannot access a task-local storage value")
            || text.contains("task-local value not set")
            || text.ends_with(": AccessError")
    })
}

/// The caller of a leader that is at work on a task of its own.
///
/// A type without the work's in it: these go into each other, and the compiler of a user's program
/// would carry it through all ways of the caller.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct OnTask<V, T> {
    pub(super) task: JoinHandle<Option<T>>,
    pub(super) interest: Option<Interest<V>>,
}

impl<V, T> Future for OnTask<V, T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = match ready!(Pin::new(&mut self.task).poll(cx)) {
            Ok(Some(result)) => Ok(result),
            Err(failure) if failure.is_panic() => resume_unwind(failure.into_panic()),
            Ok(None) | Err(_) => Err(Error::new(ErrorKind::ShutDown)),
        };
        self.interest = None;
        Poll::Ready(result)
    }
}

impl<V: Send + Sync + 'static> Engine<V> {
    /// Drives the work of a caller that computes alone, at most `compute_timeout` long. A
    /// cache that is not on ends no work.
    pub(crate) async fn compute_alone<F: Future>(
        &self,
        work: F,
        place: Option<PlaceForOne<V>>,
    ) -> Result<F::Output, Error> {
        let work = async {
            match &place {
                Some(place) => lending::within(place.scope(), work).await,
                None => work.await,
            }
        };
        let mut work = pin!(work);
        let (limit, begun_in) = (self.settings.compute_timeout(), self.mode());
        loop {
            match tokio::time::timeout(limit, work.as_mut()).await {
                Ok(output) => return Ok(output),
                Err(_) if begun_in != Mode::On || self.mode() != Mode::On => {}
                Err(_) => return Err(Error::new(ErrorKind::ComputeTimeout)),
            }
        }
    }

    /// Waits for what happens to a flight that is led on a task of another caller, perhaps on a
    /// runtime that stands still. Fails where its leader is silent; then the flight has ended: with
    /// `ComputeTimeout`, or with `ShutDown` where the work has no time-out, and its caller asks anew.
    pub(crate) async fn watched<F: Future>(
        &self,
        interest: Option<Interest<V>>,
        outcome: F,
    ) -> Result<F::Output, Error> {
        let mut outcome = pin!(outcome);
        let Some(flight) = interest.as_ref().map(Interest::flight) else {
            return Ok(outcome.await);
        };
        let mut least = Duration::from_millis(1);
        loop {
            let left = flight.computation.overdue_at().since(self.watch.now());
            match tokio::time::timeout(left.max(least), outcome.as_mut()).await {
                Ok(outcome) => return Ok(outcome),
                Err(_) if flight.is_overdue(self.watch.now()) => {
                    let has_limit = self.mode() == Mode::On && !flight.is_unbounded();
                    if !has_limit && least < GRACE {
                        // The clock may have jumped: then the leader is polled now, and goes on.
                        least = GRACE;
                        continue;
                    }
                    self.depose(flight);
                    let kind =
                        if has_limit { ErrorKind::ComputeTimeout } else { ErrorKind::ShutDown };
                    return Err(Error::new(kind));
                }
                Err(_) => {}
            }
        }
    }

    pub(super) fn spawn<T, F>(&self, key: &Key, work: F) -> JoinHandle<Option<T>>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        self.note_runtime();
        let stop = self.stop.clone();
        let work = async move { stop.run_until_cancelled_owned(in_poll(work)).await };
        self.tasks.spawn(crate::observe::leading(&self.label, key, work))
    }

    /// Goes on with a leader's work on a task of its own, in the span in which it is.
    pub(crate) fn go_on(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        let work = async move { stop.run_until_cancelled_owned(in_poll(work)).await };
        drop(self.tasks.spawn(crate::observe::going_on(work)));
    }

    /// Drives keys of a batch on a task of its own. A shutdown ends what they lead, not the task.
    pub(crate) fn drive(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.note_runtime();
        drop(tokio::spawn(crate::observe::going_on(in_poll(work))));
    }

    /// Returns whether a refresh may start: no other process refreshed the key a moment ago,
    /// and the last refresh was not declined a moment ago.
    pub(crate) fn may_refresh(&self, key: &Key) -> bool {
        let now = self.clock.now();
        self.table.read_marks(key, |marks| marks.refresh_pause.is_over(now)).unwrap_or(true)
    }

    /// Runs work that must be done also if its caller goes away.
    ///
    /// Cancel safe: when the caller is dropped, the errand goes on.
    pub(crate) async fn errand<T: Send + 'static>(
        &self,
        errand: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.note_runtime();
        self.tasks.spawn(errand).await.ok()
    }

    /// The same where no caller waits. Outside of a runtime it runs on the one that has used the
    /// cache first. Without any, and where that has ended, the errand is dropped.
    pub(crate) fn errand_in_background<T: Send + 'static>(
        &self,
        errand: impl Future<Output = T> + Send + 'static,
    ) {
        let runtime = Handle::try_current().ok().or_else(|| self.runtime.get().cloned());
        if let Some(runtime) = runtime {
            drop(self.tasks.spawn_on(errand, &runtime));
        }
    }

    /// Remembers the runtime that the caller runs in.
    pub(crate) fn note_runtime(&self) {
        self.runtime.get_or_init(Handle::current);
    }

    /// Ends all work: new callers compute for themselves, running computations have until
    /// `deadline`. Returns how many were cut off.
    pub(crate) async fn shut_down(&self, deadline: Duration) -> usize {
        if self.switch_off_for_good() {
            self.observer.happened(Occurrence::ModeChanged { mode: Mode::Off });
        }
        let finished = tokio::time::timeout(deadline, self.tasks.wait()).await;
        let left = if finished.is_ok() { 0 } else { self.tasks.len() };
        self.stop.cancel();
        // A task that blocks its thread may take for ever.
        let _ = tokio::time::timeout(DROP_TIME, self.tasks.wait()).await;
        left
    }
}
