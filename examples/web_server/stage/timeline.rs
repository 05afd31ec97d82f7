//! What happened to the one key, in the order in which it became known, and the counts.

use std::collections::VecDeque;

use serde::Serialize;

use crate::child::now;

/// How many events are kept. A page that asks every 250 ms misses none.
const MAX_EVENTS: usize = 2000;
/// How old an event may be that a new page still gets.
const MAX_AGE_MS: u64 = 40_000;

/// Something that happened in a lane, or in all of them.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Event {
    /// Counts the events of this server.
    pub(crate) seq: u64,
    /// When it happened; of answers, when the last of them was complete.
    pub(crate) at: u64,
    /// Which process; none for all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lane: Option<String>,
    #[serde(flatten)]
    pub(crate) what: What,
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum What {
    Started,
    /// The process is gone: killed by a button, or for another reason.
    Gone,
    /// The origin begins to compute.
    Began {
        call: u64,
    },
    Ended {
        call: u64,
        ok: bool,
    },
    /// What the clients of one process got.
    Answers(Answers),
    /// Whether the process reaches Redis.
    Redis {
        up: bool,
    },
    Frozen {
        on: bool,
    },
    Failing {
        on: bool,
    },
    Invalidated,
}

/// Answers of one kind that one process gave to requests that came together.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Answers {
    /// When the first of them was sent.
    pub(crate) from: u64,
    /// A word of the library, or `failed` (an error of the origin), `moved` (the connection
    /// broke, and the client asked another process) or `lost` (no process answered).
    pub(crate) outcome: String,
    pub(crate) n: usize,
    /// Which value it was, and when its computation ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<Served>,
}

/// A value, as a report names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Served {
    pub(crate) version: u64,
    pub(crate) pid: u64,
    pub(crate) computed_at: u64,
}

/// What the servers have counted since the start of the processes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Counts {
    /// Begun computations of all processes, those of killed ones included.
    pub(crate) origin_calls: u64,
    pub(crate) requests: u64,
    /// Requests that got an error, or no answer.
    pub(crate) failures: u64,
    /// Requests that another process answered, because the first one was gone.
    pub(crate) moved: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Timeline {
    events: VecDeque<Event>,
    next: u64,
    pub(crate) counts: Counts,
}

impl Timeline {
    /// Forgets all that happened.
    pub(crate) fn clear(&mut self) {
        self.events.clear();
        self.counts = Counts::default();
    }

    pub(crate) fn push(&mut self, at: u64, lane: Option<&str>, what: What) {
        if matches!(what, What::Began { .. }) {
            self.counts.origin_calls += 1;
        }
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        let lane = lane.map(str::to_owned);
        self.events.push_back(Event { seq: self.next, at, lane, what });
        self.next += 1;
    }

    /// The number of the next event.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the events from `seq` on, without those that are too old to be drawn.
    pub(crate) fn since(&self, seq: u64) -> Vec<Event> {
        let oldest = now().saturating_sub(MAX_AGE_MS);
        let is_wanted = |event: &&Event| event.seq >= seq && event.at >= oldest;
        self.events.iter().filter(is_wanted).cloned().collect()
    }
}
