//! A case as text, for the reader of a failure.

use std::fmt::{Display, Formatter, Result};

use crate::case::{Ask, Case, End, How, Kept, Op, Step};

impl Display for Case {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "seed {}, times in milliseconds", self.seed)?;
        writeln!(f, "{:#?}", self.settings)?;
        for (number, op) in self.ops.iter().enumerate() {
            writeln!(f, "{number:>4}  {op}")?;
        }
        Ok(())
    }
}

impl Display for Op {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Stream(plan) => write!(f, "a reader asks for a stream: {plan:?}"),
            Self::Read(reader, chunks) => write!(f, "reader {reader} reads {chunks} chunks"),
            Self::Leave(reader) => write!(f, "reader {reader} leaves"),
            Self::LookAtStream(key) => write!(f, "look at the stored stream of key {key}"),
            Self::Ask(actor, ask) => write!(f, "caller {actor}: {ask}"),
            Self::Poll(actor) => write!(f, "poll caller {actor}"),
            Self::Drop(actor) => write!(f, "drop caller {actor}"),
            Self::DropInPanic(actor) => write!(f, "a panic elsewhere drops caller {actor}"),
            Self::Silence(actor) => write!(f, "poll caller {actor} no more"),
            Self::Resume(actor) => write!(f, "poll caller {actor} again"),
            Self::Put(key, kept) => write!(f, "put key {key}{kept}"),
            Self::Invalidate(key) => write!(f, "invalidate key {key}"),
            Self::InvalidateTag => write!(f, "invalidate the tag"),
            Self::InvalidateAll => write!(f, "invalidate all"),
            Self::MarkStale(key) => write!(f, "mark key {key} stale"),
            Self::SetMode(mode) => write!(f, "switch to {mode:?}"),
            Self::Stats => write!(f, "read the stats"),
            Self::Yield(times) => write!(f, "yield {times} times"),
            Self::Pass(time) => write!(f, "{time} pass"),
            Self::Jump(time) => write!(f, "the clock jumps by {time}"),
        }
    }
}

impl Display for Ask {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let how = match self.how {
            How::Get => return write!(f, "get key {}", self.key),
            How::Plain => "get_or_compute",
            How::With => "get_or_compute_with",
            How::Scoped => "get_or_compute_scoped",
            How::Refresh => "refresh",
            How::Batch => "get_many of",
        };
        write!(f, "{how} key {} (", self.key)?;
        for step in &self.steps {
            write!(f, "{step}, ")?;
        }
        match self.end {
            End::Value(kept) => write!(f, "return{kept})"),
            End::Fail(action) => write!(f, "fail: {action:?})"),
            End::Panic => write!(f, "panic)"),
            End::Hang => write!(f, "never end)"),
        }
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Sleep(time) => write!(f, "sleep {time}"),
            Self::Yield => write!(f, "yield"),
            Self::Ask(ask) => write!(f, "{ask}"),
            Self::AskFor(time, ask) => write!(f, "for at most {time}: {ask}"),
            Self::Put(key, kept) => write!(f, "put key {key}{kept}"),
            Self::Invalidate(key) => write!(f, "invalidate key {key}"),
        }
    }
}

impl Display for Kept {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if let Some(ttl) = self.ttl {
            write!(f, " ttl {ttl}")?;
        }
        let flags =
            [(self.tag, "tagged"), (self.do_not_store, "not stored"), (self.heavy, "heavy")];
        for (_, name) in flags.iter().filter(|(is_set, _)| *is_set) {
            write!(f, " {name}")?;
        }
        Ok(())
    }
}
