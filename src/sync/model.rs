//! The primitives under shuttle: each operation is a point at which shuttle may let
//! another thread run.
//!
//! shuttle runs every atomic operation in one order for all threads (as `SeqCst`), so the
//! models say nothing of weaker orderings.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::{Pin, pin};
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

pub(crate) use shuttle::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
pub(crate) use shuttle::sync::{Arc, Weak};
use shuttle::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// Always the same: a schedule is replayed only if each map has the same order again.
pub(crate) type RandomState = foldhash::fast::FixedState;

/// As `parking_lot`'s: a panic does not poison it.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T: ?Sized>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As `parking_lot`'s: a panic does not poison it.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T: ?Sized>(shuttle::sync::RwLock<T>);

impl<T: ?Sized> RwLock<T> {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As std's: the touch of an atomic number before each operation is the point at which another
/// thread may run.
#[derive(Debug)]
pub(crate) struct OnceLock<T> {
    order: AtomicU32,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    pub(crate) fn new() -> Self {
        Self { order: AtomicU32::new(0), value: std::sync::OnceLock::new() }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.order.load(Ordering::SeqCst);
        self.value.get()
    }

    pub(crate) fn take(&mut self) -> Option<T> {
        self.value.take()
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        self.order.fetch_add(1, Ordering::SeqCst);
        self.value.set(value)
    }
}

/// As tokio's, of which it has what we use. tokio's own belongs to the thread of the system, and
/// shuttle runs all tasks on one, which may change within a poll.
macro_rules! task_local {
    (static $name:ident: $value:ty;) => {
        shuttle::thread_local! {
            static OF_TASK: std::cell::RefCell<Option<$value>> = std::cell::RefCell::new(None);
        }
        static $name: crate::sync::TaskLocal<$value> = crate::sync::TaskLocal::new(&OF_TASK);
    };
}
pub(crate) use task_local;

/// A value that belongs to a task, see [`task_local`].
pub(crate) struct TaskLocal<T: 'static>(&'static shuttle::thread::LocalKey<RefCell<Option<T>>>);

/// Puts back at its end what the task had before.
struct Swapped<'a, T: 'static>(&'static TaskLocal<T>, &'a mut Option<T>);

impl<'a, T> Swapped<'a, T> {
    fn new(local: &'static TaskLocal<T>, value: &'a mut Option<T>) -> Self {
        local.swap(value);
        Self(local, value)
    }
}

impl<T> Drop for Swapped<'_, T> {
    fn drop(&mut self) {
        self.0.swap(self.1);
    }
}

impl<T> TaskLocal<T> {
    pub(crate) const fn new(key: &'static shuttle::thread::LocalKey<RefCell<Option<T>>>) -> Self {
        Self(key)
    }

    fn swap(&self, value: &mut Option<T>) {
        // The task may be at its end, which has dropped what it had.
        let _ = self.0.try_with(|own| mem::swap(&mut *own.borrow_mut(), value));
    }

    pub(crate) fn try_with<R>(&self, read: impl FnOnce(&T) -> R) -> Result<R, ()> {
        let read = self.0.try_with(|own| own.borrow().as_ref().map(read));
        read.ok().flatten().ok_or(())
    }

    pub(crate) async fn scope<F: Future>(&'static self, value: T, work: F) -> F::Output {
        let mut value = Some(value);
        let mut work = pin!(work);
        poll_fn(|context| {
            let _swapped = Swapped::new(self, &mut value);
            work.as_mut().poll(context)
        })
        .await
    }
}

/// As tokio's, of which it has what we use:
///
/// - [`notify_one`](Self::notify_one) wakes the future that was polled first, or stores
///   one permit for the next one that is polled;
/// - [`notify_waiters`](Self::notify_waiters) stores nothing, and wakes every future that
///   was created before it, polled or not;
/// - a future that is dropped after `notify_one` has chosen it passes the permit on.
#[derive(Debug, Default)]
pub(crate) struct Notify(Mutex<NotifyState>);

#[derive(Debug, Default)]
struct NotifyState {
    has_permit: bool,
    /// How often all were notified.
    broadcasts: u64,
    last_id: u64,
    /// Futures that were polled, the oldest first.
    waiting: VecDeque<(u64, Waker)>,
    /// Futures that were notified alone, and were not polled since.
    chosen: Vec<u64>,
}

impl NotifyState {
    fn notify_one(&mut self) -> Option<Waker> {
        let Some((id, waker)) = self.waiting.pop_front() else {
            self.has_permit = true;
            return None;
        };
        self.chosen.push(id);
        Some(waker)
    }

    fn take_choice(&mut self, id: u64) -> bool {
        let at = self.chosen.iter().position(|chosen| *chosen == id);
        at.map(|at| self.chosen.swap_remove(at)).is_some()
    }
}

impl Notify {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn notify_one(&self) {
        let waker = self.0.lock().notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn notify_waiters(&self) {
        let mut state = self.0.lock();
        state.broadcasts += 1;
        let woken = mem::take(&mut state.waiting);
        drop(state);
        woken.into_iter().for_each(|(_, waker)| waker.wake());
    }

    pub(crate) fn notified(&self) -> Notified<'_> {
        let created_at = self.0.lock().broadcasts;
        Notified { notify: self, created_at, state: NotifiedState::Created }
    }
}

/// Waits for a [`Notify`].
#[derive(Debug)]
pub(crate) struct Notified<'a> {
    notify: &'a Notify,
    created_at: u64,
    state: NotifiedState,
}

#[derive(Clone, Copy, Debug)]
enum NotifiedState {
    Created,
    Waiting(u64),
    Done,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.notify.0.lock();
        let is_done = match self.state {
            NotifiedState::Done => true,
            NotifiedState::Created if state.broadcasts != self.created_at => true,
            NotifiedState::Created => mem::take(&mut state.has_permit),
            NotifiedState::Waiting(id) => {
                state.take_choice(id) || state.broadcasts != self.created_at
            }
        };
        let next = if is_done {
            NotifiedState::Done
        } else if let NotifiedState::Waiting(id) = self.state {
            for (_, waker) in state.waiting.iter_mut().filter(|(waiting, _)| *waiting == id) {
                waker.clone_from(cx.waker());
            }
            self.state
        } else {
            state.last_id += 1;
            let id = state.last_id;
            state.waiting.push_back((id, cx.waker().clone()));
            NotifiedState::Waiting(id)
        };
        drop(state);
        self.state = next;
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        let NotifiedState::Waiting(id) = self.state else { return };
        let mut state = self.notify.0.lock();
        state.waiting.retain(|(waiting, _)| *waiting != id);
        let passed_on = if state.take_choice(id) { state.notify_one() } else { None };
        drop(state);
        if let Some(waker) = passed_on {
            waker.wake();
        }
    }
}
