//! A stream that arrives, and is read by several at once. The two manners in which it is held
//! say [`crate::stream`].

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Sleep;

use crate::budget::Reservation;
use crate::stream::readers::{Loose, ReadGate, StreamState};
use crate::stream::{CutOff, Held, Medium, NextPart, StreamPart};

/// The part of a stream that has come, and its readers.
pub(crate) struct FedStream<M: Medium> {
    pub(crate) declared: Option<u64>,
    state: Mutex<StreamState<M>>,
}

impl<M: Medium> FedStream<M> {
    /// Makes a stream of which nothing has come, and what feeds it. `declared` is its length, if
    /// that is known. Kept chunks count in `reserved`, which is given back when the stream ends,
    /// however that is.
    pub(crate) fn new(
        declared: Option<u64>,
        reserved: impl Into<Option<Reservation>>,
    ) -> (Arc<Self>, StreamFeed<M>) {
        let state = Mutex::new(StreamState::new(reserved.into()));
        let shared = Arc::new(Self { declared, state });
        (Arc::clone(&shared), StreamFeed(shared))
    }

    /// Returns how much has come.
    pub(crate) fn come(&self) -> u64 {
        self.look(|state| state.held.end())
    }

    /// Returns a reader of the whole, unless its beginning is gone or it has failed.
    pub(crate) fn claim(self: &Arc<Self>) -> Option<FedReader<M>> {
        let mut state = self.state.lock();
        let has_failed = matches!(state.end, Some(Err(_)));
        if has_failed || state.held.start() > 0 {
            return None;
        }
        let id = state.enter(false);
        Some(FedReader { shared: Arc::clone(self), id, over: false })
    }

    /// Returns a reader; where nothing can be read from the beginning, one that says so. While a
    /// claim is held there is one, and it gets at least what came before a failure.
    pub(crate) fn reader(self: &Arc<Self>) -> FedReader<M> {
        self.reader_from_start(false)
    }

    /// What follows the chunks is for the one reader whose own request was forwarded.
    pub(crate) fn reader_from_start(self: &Arc<Self>, takes_tail: bool) -> FedReader<M> {
        let mut state = self.state.lock();
        let is_gone = state.held.start() > 0 || state.is_deserted;
        let id = if is_gone { u64::MAX } else { state.enter(takes_tail) };
        FedReader { shared: Arc::clone(self), id, over: false }
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&StreamState<M>) -> T) -> T {
        look(&self.state.lock())
    }

    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut StreamState<M>, &mut Loose<M>) -> T,
    ) -> T {
        let (mut state, mut loose) = (self.state.lock(), Loose::default());
        let result = change(&mut state, &mut loose);
        loose.after(state);
        result
    }
}

impl<M: Medium> fmt::Debug for FedStream<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FedStream").field("declared", &self.declared).finish_non_exhaustive()
    }
}

/// Feeds a stream. Dropped before the end, it tells the readers that there will be no more.
pub(crate) struct StreamFeed<M: Medium>(pub(crate) Arc<FedStream<M>>);

impl<M: Medium> StreamFeed<M> {
    /// Returns how much has come.
    pub(crate) fn length(&self) -> u64 {
        self.0.come()
    }

    /// Counts what is kept from now on. Returns `false` if there is no room for what came.
    pub(crate) fn count_in(&self, reserved: Reservation) -> bool {
        self.0.change(|state, _| state.count_in(reserved))
    }

    /// Adds a chunk. Returns `false` if there is no room to keep it.
    pub(crate) fn push(&self, chunk: M::Chunk) -> bool {
        self.0.change(|state, loose| state.push(chunk, loose))
    }

    /// Adds what follows the chunks, once: what comes after it could go on for ever.
    pub(crate) fn push_tail(&self, tail: M::Tail) {
        self.0.change(|state, _| {
            state.tail.get_or_insert(tail);
        });
    }

    /// Says that this was all.
    pub(crate) fn end(self) {
        self.0.change(|state, loose| state.finish(Ok(()), loose));
    }

    pub(crate) fn fail(self, error: M::Error) {
        self.0.change(|state, loose| state.finish(Err(error), loose));
    }

    /// From now on nothing is kept that all readers have read.
    pub(crate) fn pass(&self) {
        self.0.change(StreamState::pass);
    }

    /// Asks whether to read on, and cuts readers off that made no progress for `stall` while
    /// another waited for them. The task is woken when the answer changes, but not by time.
    pub(crate) fn gate(&self, cx: &Context<'_>, stall: Duration) -> ReadGate {
        self.0.change(|state, loose| state.gate(cx, stall, loose))
    }

    /// The task is woken when the last reader goes.
    pub(crate) fn watch(&self, cx: &Context<'_>) {
        self.0.change(|state, loose| state.watch(cx, loose));
    }

    /// Ends the stream if there is no reader, and returns whether that is so. No reader can
    /// come after that.
    pub(crate) fn give_up(&self) -> bool {
        self.0.change(StreamState::give_up)
    }

    /// Polls the source if the readers are ready for more; returns `None` if there are none.
    /// `stalls` is the timer of a reader that is too slow.
    pub(crate) fn poll_gated<T>(
        &self,
        stall: Duration,
        mut stalls: Pin<&mut Sleep>,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<Option<T>> {
        loop {
            match self.gate(cx, stall) {
                ReadGate::Deserted => return Poll::Ready(None),
                ReadGate::Open => return poll(cx).map(Some),
                ReadGate::Closed(None) => return Poll::Pending,
                ReadGate::Closed(Some(at)) => {
                    stalls.as_mut().reset(at);
                    ready!(stalls.as_mut().poll(cx));
                }
            }
        }
    }
}

impl<M: Medium> Drop for StreamFeed<M> {
    fn drop(&mut self) {
        let end = Err(M::cut_off(CutOff::Ended));
        self.0.change(|state, loose| state.finish(end, loose));
    }
}

/// Lets other tasks run now and then: a source that is always ready must not keep its thread
/// from them.
#[derive(Default)]
pub(crate) struct Turns(u32);

impl Turns {
    const AT_ONCE: u32 = 64;

    pub(crate) async fn let_others_run(&mut self) {
        self.0 += 1;
        if self.0 >= Self::AT_ONCE {
            self.0 = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// A reader of a stream, from its beginning on. Dropped, it frees its share.
pub(crate) struct FedReader<M: Medium> {
    pub(crate) shared: Arc<FedStream<M>>,
    pub(crate) id: u64,
    /// It has got the end.
    pub(crate) over: bool,
}

impl<M: Medium> FedReader<M> {
    pub(crate) fn poll_part(&mut self, cx: &Context<'_>) -> Poll<NextPart<M>> {
        if self.over {
            return Poll::Ready(None);
        }
        let polled = self.shared.change(|state, loose| state.read(self.id, cx, loose));
        self.over = match &polled {
            Poll::Ready(Some(Ok(part))) => matches!(part, StreamPart::Tail(_)),
            Poll::Ready(_) => true,
            Poll::Pending => false,
        };
        polled
    }
}

impl<M: Medium> Drop for FedReader<M> {
    fn drop(&mut self) {
        self.shared.change(|state, loose| state.leave(self.id, loose));
    }
}
