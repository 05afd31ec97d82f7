//! The part of a shared stream that is under a lock: what has come, and the position of each
//! reader.

use std::collections::{BTreeMap, HashMap};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::MutexGuard;
use tokio::time::Instant;

use crate::budget::Reservation;
use crate::stream::{CutOff, Held, Medium, NextPart, StreamPart};

/// Bounds how often all readers are looked at for stalled ones.
const LOOKS_PER_STALL: u32 = 50;

pub(crate) struct StreamState<M: Medium> {
    pub(crate) held: M::Held,
    pub(crate) tail: Option<M::Tail>,
    pub(crate) end: Option<Result<(), M::Error>>,
    /// What the kept bytes count in; none once the stream has ended, or passes.
    reserved: Option<Reservation>,
    passes: bool,
    /// It has ended because there was no reader.
    pub(super) is_deserted: bool,
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
    /// It gets what follows the chunks.
    takes_tail: bool,
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

/// What is left to do without the lock: tasks to wake, and chunks and wakers to drop, whose code
/// is the user's.
pub(crate) struct Loose<M: Medium> {
    woken: Vec<Waker>,
    dropped: Vec<Waker>,
    freed: Vec<M::Chunk>,
}

impl<M: Medium> Default for Loose<M> {
    fn default() -> Self {
        Self { woken: Vec::new(), dropped: Vec::new(), freed: Vec::new() }
    }
}

impl<M: Medium> Loose<M> {
    pub(super) fn after(self, lock: MutexGuard<'_, StreamState<M>>) {
        drop(lock);
        self.woken.into_iter().for_each(Waker::wake);
        drop((self.dropped, self.freed));
    }
}

impl<M: Medium> StreamState<M> {
    pub(super) fn new(reserved: Option<Reservation>) -> Self {
        Self {
            held: M::Held::default(),
            tail: None,
            end: None,
            reserved,
            passes: false,
            is_deserted: false,
            readers: HashMap::default(),
            next_reader: 0,
            standing: BTreeMap::new(),
            feeder: None,
            waited_since: None,
        }
    }

    /// Counts what is kept from now on. Returns `false` if there is no room for what came.
    pub(super) fn count_in(&mut self, mut reserved: Reservation) -> bool {
        let has_room = reserved.grow_to(self.held.bytes());
        self.reserved = Some(reserved);
        has_room
    }

    pub(super) fn enter(&mut self, takes_tail: bool) -> u64 {
        let id = self.next_reader;
        self.next_reader += 1;
        let moved = Instant::now();
        self.readers.insert(id, Reading { at: 0, waker: None, moved, takes_tail });
        *self.standing.entry(0).or_default() += 1;
        id
    }

    /// Takes a reader out. It may have been the last reader, the slowest, or one that
    /// waited.
    pub(super) fn leave(&mut self, id: u64, loose: &mut Loose<M>) {
        self.forget(id, loose);
        if self.passes || self.readers.is_empty() {
            loose.woken.extend(self.feeder.take());
        }
        self.free(loose);
    }

    fn forget(&mut self, id: u64, loose: &mut Loose<M>) {
        if let Some(reading) = self.readers.remove(&id) {
            loose.dropped.extend(reading.waker);
            self.steps_from(reading.at);
        }
    }

    /// Adds a chunk. Returns `false` if it is to be kept and there is no room for it.
    pub(super) fn push(&mut self, chunk: M::Chunk, loose: &mut Loose<M>) -> bool {
        self.held.push(chunk);
        self.wake_all(loose);
        let total = self.held.bytes();
        self.passes || self.reserved.as_mut().is_none_or(|reserved| reserved.grow_to(total))
    }

    /// Ends the stream, unless it has ended.
    pub(super) fn finish(&mut self, end: Result<(), M::Error>, loose: &mut Loose<M>) {
        self.end.get_or_insert(end);
        self.reserved = None;
        loose.dropped.extend(self.feeder.take());
        self.wake_all(loose);
    }

    fn wake_all(&mut self, loose: &mut Loose<M>) {
        loose.woken.extend(self.readers.values_mut().filter_map(|reading| reading.waker.take()));
    }

    /// From now on no chunks are kept that all readers have read. So none of them count any
    /// longer: a reader that reads nothing must not keep room from streams that are kept.
    pub(super) fn pass(&mut self, loose: &mut Loose<M>) {
        self.passes = true;
        self.reserved = None;
        // Readers that wait for the whole wait no more.
        self.wake_all(loose);
        let now = Instant::now();
        self.readers.values_mut().for_each(|reading| reading.moved = now);
        self.free(loose);
    }

    fn free(&mut self, loose: &mut Loose<M>) {
        if self.passes {
            loose.freed.extend(self.held.free_before(self.slowest()));
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
        self.standing.keys().next().copied().unwrap_or(self.held.end())
    }

    fn is_open(&self) -> bool {
        self.held.end() - self.slowest() < M::WINDOW
    }

    /// Says whether the source may be read, after stalled readers were evicted;
    /// the feeder is woken when that changes, but not by time.
    pub(super) fn gate(
        &mut self,
        cx: &Context<'_>,
        stall: Duration,
        loose: &mut Loose<M>,
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
    pub(super) fn watch(&mut self, cx: &Context<'_>, loose: &mut Loose<M>) {
        if !self.feeder.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            loose.dropped.extend(self.feeder.replace(cx.waker().clone()));
        }
    }

    /// Ends the stream if there is no reader; from then on there can be none.
    pub(super) fn give_up(&mut self, loose: &mut Loose<M>) -> bool {
        let is_deserted = self.readers.is_empty();
        if is_deserted {
            self.is_deserted = true;
            self.finish(Err(M::cut_off(CutOff::Ended)), loose);
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
        let line = self.held.end().saturating_sub(M::WINDOW);
        let readers = self.readers.iter().filter(move |(_, reading)| reading.at <= line);
        readers.map(|(id, reading)| (*id, reading))
    }

    fn evict(&mut self, now: Instant, stall: Duration, loose: &mut Loose<M>) {
        let since = self.waited_since.unwrap_or(now);
        let is_due = |reading: &Reading| reading.due(since, stall).is_some_and(|due| due <= now);
        let stalled = self.behind().filter(|(_, reading)| is_due(reading));
        let stalled = stalled.map(|(id, _)| id).collect::<Vec<_>>();
        for id in stalled {
            self.forget(id, loose);
        }
    }

    /// Returns the next part for a reader.
    pub(super) fn read(
        &mut self,
        id: u64,
        cx: &Context<'_>,
        loose: &mut Loose<M>,
    ) -> Poll<NextPart<M>> {
        let Some(reading) = self.readers.get(&id) else {
            // It was there once, so it was evicted.
            let evicted = id < self.next_reader;
            let why = if evicted { CutOff::Stalled } else { CutOff::Ended };
            return Poll::Ready(Some(Err(M::cut_off(why))));
        };
        if let Some((chunk, next)) = self.held.next(reading.at) {
            self.advance(id, next, loose);
            return Poll::Ready(Some(Ok(StreamPart::Chunk(chunk))));
        }
        match &self.end {
            Some(Ok(())) => {
                // It belongs to one exchange: other readers get the stream without it.
                let tail = self.tail.clone().filter(|_| reading.takes_tail);
                Poll::Ready(tail.map(|tail| Ok(StreamPart::Tail(tail))))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error.clone()))),
            None => {
                self.wait(id, cx, loose);
                Poll::Pending
            }
        }
    }

    /// Returns whether a reader can have the whole from its beginning once that has come.
    pub(crate) fn is_kept_for(&self, id: u64) -> bool {
        !self.passes && self.held.start() == 0 && self.readers.contains_key(&id)
    }

    /// Returns where a reader stands.
    pub(crate) fn position(&self, id: u64) -> Option<u64> {
        self.readers.get(&id).map(|reading| reading.at)
    }

    fn advance(&mut self, id: u64, to: u64, loose: &mut Loose<M>) {
        let was_open = self.is_open();
        let Some(reading) = self.readers.get_mut(&id) else { return };
        let from = std::mem::replace(&mut reading.at, to);
        if self.passes {
            reading.moved = Instant::now();
        }
        *self.standing.entry(to).or_default() += 1;
        self.steps_from(from);
        if self.passes && !was_open && self.is_open() {
            loose.woken.extend(self.feeder.take());
        }
        self.free(loose);
    }

    /// Notes that a reader waits. If it is for slower ones, the feeder looks
    /// after these from now on.
    pub(crate) fn wait(&mut self, id: u64, cx: &Context<'_>, loose: &mut Loose<M>) {
        let Some(reading) = self.readers.get_mut(&id) else { return };
        if !reading.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            loose.dropped.extend(reading.waker.replace(cx.waker().clone()));
        }
        if self.passes && self.waited_since.is_none() && !self.is_open() {
            loose.woken.extend(self.feeder.take());
        }
    }

    pub(crate) fn is_read(&self, id: u64) -> bool {
        let is_over = |reading: &Reading| {
            let has_tail = reading.takes_tail && self.tail.is_some();
            reading.at == self.held.end() && !has_tail
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
