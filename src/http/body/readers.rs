//! The part of a shared body that is under a lock: the bytes that have come, and the
//! position of each reader.

use std::collections::{BTreeMap, HashMap};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use parking_lot::MutexGuard;
use tokio::time::Instant;

use crate::budget::Reservation;
use crate::http::body::buffer::Buffer;
use crate::http::body::shared::Gathered;
use crate::http::body::{BodyError, BodyErrorKind, Next};

/// How far the source may be ahead of the slowest reader once it passes.
const WINDOW: u64 = 64 << 10;

/// Bounds how often all readers are looked at for stalled ones.
const LOOKS_PER_STALL: u32 = 50;

#[derive(Default)]
pub(super) struct BufferState {
    pub(super) buffer: Buffer,
    pub(super) trailers: Option<HeaderMap>,
    pub(super) end: Option<Result<(), BodyError>>,
    /// What the kept bytes count in; none once the body has ended, or passes.
    reserved: Option<Reservation>,
    passes: bool,
    readers: HashMap<u64, Reading, foldhash::fast::RandomState>,
    next_reader: u64,
    /// How many readers stand where: the slowest is found without asking all.
    standing: BTreeMap<u64, usize>,
    /// Of the task that feeds, once it waits for readers or looks after the last one.
    feeder: Option<Waker>,
    /// Since when a reader that has read everything waits for slower readers.
    waited_since: Option<Instant>,
}

struct Reading {
    at: u64,
    /// It has read all there is, and waits.
    waker: Option<Waker>,
    /// When it last read something.
    moved: Instant,
    /// It is the client's whose own request was forwarded.
    takes_trailers: bool,
}

/// Whether the source may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadGate {
    Open,
    /// A reader is too far behind; at the given time it may have stalled.
    Closed(Option<Instant>),
    /// There is no reader any more.
    Deserted,
}

/// What is left to do without the lock: tasks to wake, and memory and wakers to
/// drop, whose code is not ours.
#[derive(Default)]
pub(super) struct Loose {
    woken: Vec<Waker>,
    dropped: Vec<Waker>,
    freed: Vec<Bytes>,
}

impl Loose {
    pub(super) fn after(self, lock: MutexGuard<'_, BufferState>) {
        drop(lock);
        self.woken.into_iter().for_each(Waker::wake);
        drop((self.dropped, self.freed));
    }
}

impl BufferState {
    pub(super) fn new(reserved: Reservation) -> Self {
        Self { reserved: Some(reserved), ..Self::default() }
    }

    pub(super) fn enter(&mut self, takes_trailers: bool) -> u64 {
        let id = self.next_reader;
        self.next_reader += 1;
        let moved = Instant::now();
        self.readers.insert(id, Reading { at: 0, waker: None, moved, takes_trailers });
        *self.standing.entry(0).or_default() += 1;
        id
    }

    /// Takes a reader out. It may have been the last reader, the slowest, or one that
    /// waited.
    pub(super) fn leave(&mut self, id: u64, loose: &mut Loose) {
        self.forget(id, loose);
        if self.passes || self.readers.is_empty() {
            loose.woken.extend(self.feeder.take());
        }
        self.free(loose);
    }

    fn forget(&mut self, id: u64, loose: &mut Loose) {
        if let Some(reading) = self.readers.remove(&id) {
            loose.dropped.extend(reading.waker);
            self.steps_from(reading.at);
        }
    }

    /// Adds bytes. Returns `false` if they are to be kept and there is no room for them.
    pub(super) fn push(&mut self, chunk: Bytes, loose: &mut Loose) -> bool {
        self.buffer.push(chunk);
        self.wake_all(loose);
        let total = self.buffer.end();
        self.passes || self.reserved.as_mut().is_none_or(|reserved| reserved.grow_to(total))
    }

    /// Ends the body, unless it has ended.
    pub(super) fn finish(&mut self, end: Result<(), BodyError>, loose: &mut Loose) {
        self.end.get_or_insert(end);
        self.reserved = None;
        loose.dropped.extend(self.feeder.take());
        self.wake_all(loose);
    }

    fn wake_all(&mut self, loose: &mut Loose) {
        loose.woken.extend(self.readers.values_mut().filter_map(|reading| reading.waker.take()));
    }

    /// From now on no bytes are kept that all readers have read. So none of them count any
    /// longer: a reader that reads nothing must not keep room from bodies that are kept.
    pub(super) fn pass(&mut self, loose: &mut Loose) {
        self.passes = true;
        self.reserved = None;
        // Readers that wait for the whole body wait no more.
        self.wake_all(loose);
        let now = Instant::now();
        self.readers.values_mut().for_each(|reading| reading.moved = now);
        self.free(loose);
    }

    fn free(&mut self, loose: &mut Loose) {
        if self.passes {
            loose.freed.extend(self.buffer.free_before(self.slowest()));
        }
    }

    fn steps_from(&mut self, at: u64) {
        if let Some(count) = self.standing.get_mut(&at) {
            *count -= 1;
            if *count == 0 {
                self.standing.remove(&at);
            }
        }
    }

    fn slowest(&self) -> u64 {
        self.standing.keys().next().copied().unwrap_or(self.buffer.end())
    }

    fn is_open(&self) -> bool {
        self.buffer.end() - self.slowest() < WINDOW
    }

    /// Says whether the source may be read, after stalled readers were evicted;
    /// the feeder is woken when that changes, but not by time.
    pub(super) fn gate(
        &mut self,
        cx: &Context<'_>,
        stall: Duration,
        loose: &mut Loose,
    ) -> ReadGate {
        loose.dropped.extend(self.feeder.replace(cx.waker().clone()));
        loop {
            let gate = self.look(stall);
            let ReadGate::Closed(Some(due)) = gate else { return gate };
            let now = Instant::now();
            if due > now {
                return ReadGate::Closed(Some(due.max(now + stall / LOOKS_PER_STALL)));
            }
            self.evict(now, stall, loose);
            self.free(loose);
        }
    }

    /// Wakes the feeder when the last reader goes.
    pub(super) fn watch(&mut self, cx: &Context<'_>, loose: &mut Loose) {
        if !self.feeder.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            loose.dropped.extend(self.feeder.replace(cx.waker().clone()));
        }
    }

    /// Ends the body if there is no reader; from then on there can be none.
    pub(super) fn give_up(&mut self, loose: &mut Loose) -> bool {
        let is_deserted = self.readers.is_empty();
        if is_deserted {
            let end = Err(BodyError::new(BodyErrorKind::Ended));
            self.finish(end, loose);
        }
        is_deserted
    }

    fn look(&mut self, stall: Duration) -> ReadGate {
        if self.readers.is_empty() {
            return ReadGate::Deserted;
        }
        if self.is_open() {
            self.waited_since = None;
            return ReadGate::Open;
        }
        if self.readers.values().all(|reading| reading.waker.is_none()) {
            self.waited_since = None;
            return ReadGate::Closed(None);
        }
        let since = *self.waited_since.get_or_insert_with(Instant::now);
        ReadGate::Closed(self.behind().filter_map(|(_, reading)| reading.due(since, stall)).min())
    }

    /// The readers that the source waits for.
    fn behind(&self) -> impl Iterator<Item = (u64, &Reading)> {
        let line = self.buffer.end().saturating_sub(WINDOW);
        let readers = self.readers.iter().filter(move |(_, reading)| reading.at <= line);
        readers.map(|(id, reading)| (*id, reading))
    }

    fn evict(&mut self, now: Instant, stall: Duration, loose: &mut Loose) {
        let since = self.waited_since.unwrap_or(now);
        let is_due = |reading: &Reading| reading.due(since, stall).is_some_and(|due| due <= now);
        let stalled = self.behind().filter(|(_, reading)| is_due(reading));
        let stalled = stalled.map(|(id, _)| id).collect::<Vec<_>>();
        for id in stalled {
            self.forget(id, loose);
        }
    }

    /// Returns the next frame for a reader.
    pub(super) fn read(&mut self, id: u64, cx: &Context<'_>, loose: &mut Loose) -> Poll<Next> {
        let Some(reading) = self.readers.get(&id) else {
            // It was there once, so it was evicted.
            let evicted = id < self.next_reader;
            let kind = if evicted { BodyErrorKind::Stalled } else { BodyErrorKind::Ended };
            return Poll::Ready(Some(Err(BodyError::new(kind))));
        };
        if let Some(piece) = self.buffer.at(reading.at) {
            self.advance(id, piece.len() as u64, loose);
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        match &self.end {
            Some(Ok(())) => {
                // They belong to one exchange: other clients read the body without them.
                let trailers = self.trailers.clone().filter(|_| reading.takes_trailers);
                Poll::Ready(trailers.map(|fields| Ok(Frame::trailers(fields))))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error.clone()))),
            None => {
                self.wait(id, cx, loose);
                Poll::Pending
            }
        }
    }

    /// Says what a reader that waits at the beginning has of the body, once it is so much or
    /// all of it.
    pub(super) fn gather(
        &mut self,
        id: u64,
        enough: u64,
        cx: &Context<'_>,
        loose: &mut Loose,
    ) -> Poll<Gathered> {
        let is_kept = !self.passes && self.buffer.start() == 0 && self.readers.contains_key(&id);
        let come = self.buffer.end();
        match &self.end {
            _ if !is_kept => Poll::Ready(Gathered::Lost),
            Some(Ok(())) => {
                let whole = self.buffer.at(0).unwrap_or_default();
                // A body that ends is joined into one piece first.
                let is_whole = whole.len() as u64 == come;
                Poll::Ready(if is_whole { Gathered::Whole(whole) } else { Gathered::Lost })
            }
            Some(Err(_)) => Poll::Ready(Gathered::Lost),
            None if come >= enough => Poll::Ready(Gathered::Enough),
            None => {
                self.wait(id, cx, loose);
                Poll::Pending
            }
        }
    }

    fn advance(&mut self, id: u64, by: u64, loose: &mut Loose) {
        let was_open = self.is_open();
        let Some(reading) = self.readers.get_mut(&id) else { return };
        let from = reading.at;
        reading.at += by;
        if self.passes {
            reading.moved = Instant::now();
        }
        *self.standing.entry(from + by).or_default() += 1;
        self.steps_from(from);
        if self.passes && !was_open && self.is_open() {
            loose.woken.extend(self.feeder.take());
        }
        self.free(loose);
    }

    /// Notes that a reader waits. If it is for slower ones, the feeder looks
    /// after these from now on.
    fn wait(&mut self, id: u64, cx: &Context<'_>, loose: &mut Loose) {
        let Some(reading) = self.readers.get_mut(&id) else { return };
        if !reading.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            loose.dropped.extend(reading.waker.replace(cx.waker().clone()));
        }
        if self.passes && self.waited_since.is_none() && !self.is_open() {
            loose.woken.extend(self.feeder.take());
        }
    }

    pub(super) fn size_hint(&self, id: u64, declared: Option<u64>) -> SizeHint {
        let Some(reading) = self.readers.get(&id) else { return SizeHint::default() };
        let here = self.buffer.end() - reading.at;
        let mut hint = SizeHint::new();
        match (&self.end, declared) {
            (Some(Ok(())), _) => hint.set_exact(here),
            (_, Some(declared)) => hint.set_exact(declared.saturating_sub(reading.at)),
            _ => hint.set_lower(here),
        }
        hint
    }

    pub(super) fn is_read(&self, id: u64) -> bool {
        let is_over = |reading: &Reading| {
            let has_trailers = reading.takes_trailers && self.trailers.is_some();
            reading.at == self.buffer.end() && !has_trailers
        };
        matches!(self.end, Some(Ok(()))) && self.readers.get(&id).is_some_and(is_over)
    }
}

impl Reading {
    /// Returns when it has stalled, if others wait for it since then; never if
    /// that is beyond all time.
    fn due(&self, waited_since: Instant, stall: Duration) -> Option<Instant> {
        self.moved.max(waited_since).checked_add(stall)
    }
}
