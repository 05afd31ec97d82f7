//! A body that arrives, and is read by several at once.
//!
//! It has two manners. At first it **keeps** all that came, for it is to be
//! stored: the source runs at its own speed, and a slow reader delays no other
//! reader. Once it is known that nothing will be stored, it **passes**: bytes that all
//! readers have read are freed, and the source waits for the slowest reader.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::SizeHint;
use parking_lot::Mutex;

use crate::budget::Reservation;
use crate::http::body::readers::{BufferState, Loose, ReadGate};
use crate::http::body::{BodyError, BodyErrorKind, Next};

/// The part of a body that has come, and its readers.
pub(crate) struct SharedBody {
    declared: Option<u64>,
    state: Mutex<BufferState>,
}

impl SharedBody {
    /// Makes a body of which nothing has come, and what feeds it. `declared` is
    /// its length, if that is known. Its kept bytes count in `reserved`, which is given back
    /// when the body ends, however that is.
    pub(crate) fn new(declared: Option<u64>, reserved: Reservation) -> (Arc<Self>, Feed) {
        let body = Arc::new(Self { declared, state: Mutex::new(BufferState::new(reserved)) });
        (Arc::clone(&body), Feed(body))
    }

    pub(crate) fn declared(&self) -> Option<u64> {
        self.declared
    }

    /// Returns how many bytes have come.
    pub(crate) fn come(&self) -> u64 {
        self.state.lock().buffer.end()
    }

    /// Returns a reader of the whole body, unless its beginning is gone or it
    /// has failed.
    pub(crate) fn claim(self: &Arc<Self>) -> Option<Reader> {
        let mut state = self.state.lock();
        let has_failed = matches!(state.end, Some(Err(_)));
        if has_failed || state.buffer.start() > 0 {
            return None;
        }
        let id = state.enter(false);
        Some(Reader { body: Arc::clone(self), id, over: false })
    }

    /// Returns a reader; where nothing can be read from the beginning, one that
    /// says so. While a claim is held there is one, and it gets at least what
    /// came before a failure.
    pub(crate) fn reader(self: &Arc<Self>) -> Reader {
        self.reader_from_start(false)
    }

    /// The trailers are for the client alone whose own request was forwarded.
    pub(crate) fn reader_from_start(self: &Arc<Self>, takes_trailers: bool) -> Reader {
        let mut state = self.state.lock();
        let is_gone = state.buffer.start() > 0;
        let id = if is_gone { u64::MAX } else { state.enter(takes_trailers) };
        Reader { body: Arc::clone(self), id, over: false }
    }
}

/// Feeds a body. Dropped before the end, it tells the readers that there will
/// be no more.
pub(crate) struct Feed(Arc<SharedBody>);

impl Feed {
    /// Returns how many bytes have come.
    pub(crate) fn length(&self) -> u64 {
        self.0.state.lock().buffer.end()
    }

    /// Adds bytes. Returns `false` if there is no room to keep them.
    pub(crate) fn push(&self, chunk: Bytes) -> bool {
        chunk.is_empty() || self.0.change(|state, loose| state.push(chunk, loose))
    }

    /// Adds fields that follow the body. There is one section of them (RFC
    /// 9112, 7.1.2): what comes after it could go on for ever.
    pub(crate) fn push_trailers(&self, trailers: HeaderMap) {
        let mut state = self.0.state.lock();
        if state.trailers.is_none() {
            state.trailers = Some(trailers);
        }
    }

    /// Joins what has come into one piece, from which the readers go on.
    pub(crate) fn whole(&self) -> Bytes {
        let chunks = self.0.state.lock().buffer.all();
        // Copied even if it is one chunk: a chunk may keep a whole read
        // buffer alive, and the store would not know.
        let whole = Bytes::from(chunks.concat());
        let before = self.0.state.lock().buffer.replace(whole.clone());
        drop((chunks, before));
        whole
    }

    /// Says that this was all.
    pub(crate) fn end(self) {
        self.0.change(|state, loose| state.finish(Ok(()), loose));
    }

    pub(crate) fn fail(self, error: BodyError) {
        self.0.change(|state, loose| state.finish(Err(error), loose));
    }

    /// From now on no bytes are kept that all readers have read.
    pub(crate) fn pass(&self) {
        self.0.change(BufferState::pass);
    }

    /// Asks whether to read on, and evicts readers that made no progress for
    /// `stall` while another waited for them. The task is woken when the
    /// answer changes, but not by time.
    pub(crate) fn gate(&self, cx: &Context<'_>, stall: Duration) -> ReadGate {
        self.0.change(|state, loose| state.gate(cx, stall, loose))
    }

    /// The task is woken when the last reader goes.
    pub(crate) fn watch(&self, cx: &Context<'_>) {
        self.0.change(|state, loose| state.watch(cx, loose));
    }

    /// Ends the body if there is no reader, and returns whether that is so. No reader can
    /// come after that.
    pub(crate) fn give_up(&self) -> bool {
        self.0.change(BufferState::give_up)
    }
}

impl SharedBody {
    fn change<T>(&self, change: impl FnOnce(&mut BufferState, &mut Loose) -> T) -> T {
        let (mut state, mut loose) = (self.state.lock(), Loose::default());
        let result = change(&mut state, &mut loose);
        loose.after(state);
        result
    }
}

impl fmt::Debug for SharedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBody").field("declared", &self.declared).finish_non_exhaustive()
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let end = Err(BodyError::new(BodyErrorKind::Ended));
        self.0.change(|state, loose| state.finish(end, loose));
    }
}

/// The part of a body that has arrived.
#[derive(Debug)]
pub(crate) enum Gathered {
    /// As much as was asked for; more may come.
    Enough,
    /// All of it, uncopied.
    Whole(Bytes),
    /// It failed, or is not kept.
    Lost,
}

/// A reader of a body, from its beginning on. Dropped, it frees its share.
pub(crate) struct Reader {
    body: Arc<SharedBody>,
    id: u64,
    /// It has got the end.
    over: bool,
}

impl Reader {
    pub(super) fn body(&self) -> &Arc<SharedBody> {
        &self.body
    }

    /// Waits until so many bytes have come, or all of them. Reads none.
    ///
    /// Cancel safe.
    pub(crate) async fn gather(&self, enough: u64) -> Gathered {
        let gather = |state: &mut BufferState, loose: &mut Loose, cx: &Context<'_>| {
            state.gather(self.id, enough, cx, loose)
        };
        poll_fn(|cx| self.body.change(|state, loose| gather(state, loose, cx))).await
    }

    pub(super) fn poll_frame(&mut self, cx: &Context<'_>) -> Poll<Next> {
        if self.over {
            return Poll::Ready(None);
        }
        let polled = self.body.change(|state, loose| state.read(self.id, cx, loose));
        self.over = match &polled {
            Poll::Ready(Some(Ok(frame))) => frame.is_trailers(),
            Poll::Ready(_) => true,
            Poll::Pending => false,
        };
        polled
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.over || self.body.state.lock().is_read(self.id)
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        if self.over {
            return SizeHint::with_exact(0);
        }
        self.body.state.lock().size_hint(self.id, self.body.declared)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.body.change(|state, loose| state.leave(self.id, loose));
    }
}

#[cfg(test)]
mod tests;
