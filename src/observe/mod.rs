//! What an operator sees: counters, public events, metrics, spans and log lines.
//!
//! # What enters
//!
//! An [`Occurrence`]: the engine and its surroundings report each thing that happens with
//! one call of [`Observe::happened`]. The room knows keys, outcomes and the mode, and
//! nothing further out.
//!
//! # What leaves
//!
//! Up to four things, which the one row of the occurrence in [`table`] names: a counter of
//! [`Stats`], an [`Event`] for the receivers of `Stampede::events`, a metric (feature
//! `metrics`) and a log line.
//!
//! Two things do not pass the table. A request that was answered is counted by
//! [`Observer::answered`] alone: one counter of this crate and one handle of the recorder,
//! nothing else. Spans enclose work instead of reporting it: [`leading`], [`waiting`] and
//! [`going_on`].
//!
//! # The code of the user
//!
//! Metrics recorders and tracing subscribers are the user's code. They are called while no
//! lock of the table or the store is held. They learn of the end of a computation after its
//! verdict is published, so a slow one delays no waiter. A panic ends at [`contain_panic`]: the computation goes on.
//! Hits are the exception: to catch a panic there would cost every hit.
//!
//! # How to add an event
//!
//! All parts of it stand in [`table`]: the metric, the public event, the occurrence, its row and
//! a sample for the tests. A new counter is a line of [`Count`](stats::Count) and a field of
//! [`Stats`], a new log line one of [`lines`]. Then describe what is new in
//! `docs/observability.md`: a test holds the page against the table. `CONTRIBUTING.md` has the
//! steps.
//!
//! # Reading order
//!
//! - `table`: what can happen, all metrics and public events, and what follows from what.
//! - `labels`: the words of labels and fields.
//! - `stats`, `lines`, `meters`: all counts, all log lines, the handles of the metrics.
//! - `counter`: how threads count without contention.
//! - `limit`: how many lines about keys get into the log.
//! - `rounded`: durations as a person reads them.
//! - `metrics`, `spans`, `log`: the two facades. `metrics_off` replaces `metrics` where the feature
//!   is off: a counter without a recorder would still cost each hit a look and a branch.

mod counter;
#[cfg_attr(
    not(all(feature = "http", feature = "remote")),
    allow(dead_code, reason = "some things happen to HTTP or to a remote alone")
)]
#[cfg_attr(
    not(feature = "remote"),
    allow(unreachable_pub, reason = "only the room `remote` exports a word of it")
)]
pub(crate) mod labels;
pub(crate) mod ledger;
mod limit;
pub(crate) mod lines;
mod log;
mod meters;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "metrics_off.rs"]
mod metrics;
mod rounded;
mod spans;
mod stats;
pub(crate) mod table;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::time::Instant;

pub use ledger::Savings;
pub use stats::Stats;
pub use table::Event;

#[cfg(all(feature = "axum", debug_assertions))]
pub(crate) use log::warn_of_unread;
#[cfg(feature = "redis")]
pub(crate) use log::{warn_of_connection, warn_of_policy, warn_of_silence};

#[cfg_attr(
    not(feature = "remote"),
    allow(unused_imports, unreachable_pub, reason = "only a remote is called")
)]
pub use labels::RemoteOp;
pub(crate) use labels::{CallersGot, ComputationEnd, FailureEffect, LockAnswer, WakeCause};
#[cfg_attr(
    not(feature = "http"),
    allow(unused_imports, reason = "only HTTP's results arrive")
)]
pub(crate) use spans::going_on;
pub(crate) use spans::{leading, waiting};
pub(crate) use table::{Observe, Occurrence};

use crate::clock::Tick;
use crate::entry::Entry;
use crate::error::contain_panic;
use crate::key::Key;
use crate::observe::counter::Counters;
use crate::observe::ledger::Ledger;
use crate::observe::lines::{Line, LogMessage};
use crate::observe::log::Log;
use crate::observe::meters::Meters;
use crate::observe::stats::{COUNTERS, Count, Counted, OldestStale};
use crate::outcome::CacheOutcome;

/// Events kept for a reader that falls behind.
const EVENT_BUFFER: usize = 1024;

/// What names a cache in spans, lines and metrics.
#[derive(Clone, Debug)]
pub(crate) struct CacheLabel {
    pub(crate) name: String,
    /// Whether spans and lines carry keys.
    pub(crate) log_keys: bool,
}

/// Hidden failures that a success has ended.
#[derive(Debug)]
struct EndedRow {
    key: Key,
    failures: u64,
    lasted: Duration,
}

/// Counts everything, and passes on the events that have a listener.
#[derive(Debug)]
pub(crate) struct Observer {
    cache: String,
    counts: Counters<COUNTERS>,
    events: broadcast::Sender<Event>,
    meters: Meters,
    log: Log,
    pub(crate) oldest_stale: OldestStale,
    pub(crate) ledger: Ledger,
    /// Failures in a row that a stale value has hidden.
    hidden_failures: AtomicU64,
    /// The key and the time of the first of them.
    first_hidden: Mutex<Option<(Key, Instant)>>,
    /// A row that has ended, and is not told of yet: a success may come under a lock.
    ended_row: Mutex<Option<EndedRow>>,
    has_ended_row: AtomicBool,
    /// A bit for each line that comes once, and has been written.
    written_once: AtomicU64,
}

impl Observer {
    pub(crate) fn new(label: &CacheLabel) -> Self {
        let CacheLabel { name, log_keys } = label;
        Self {
            cache: name.clone(),
            counts: Counters::default(),
            events: broadcast::Sender::new(EVENT_BUFFER),
            meters: Meters::new(name),
            log: Log::new(*log_keys),
            oldest_stale: OldestStale::default(),
            ledger: Ledger::default(),
            hidden_failures: AtomicU64::new(0),
            first_hidden: Mutex::default(),
            ended_row: Mutex::default(),
            has_ended_row: AtomicBool::new(false),
            written_once: AtomicU64::new(0),
        }
    }

    /// Counts one answered request.
    #[inline]
    pub(crate) fn answered(&self, outcome: CacheOutcome) {
        self.count(outcome);
        contain_panic(|| self.meters.current().requests[outcome as usize].increment(1));
    }

    /// Counts a request that is answered by the fresh entry of `key`, at once.
    #[inline]
    pub(crate) fn hit<V>(&self, key: &[u8], entry: &Entry<V>) {
        if entry.count_use() {
            self.ledger.note_use(key, entry);
        }
        let (hit, saved) = (CacheOutcome::Hit, Count::SavedMicros);
        self.counts.add_each([(hit.place(), 1), (saved.place(), entry.computed_micros().into())]);
        self.meters.handles().requests[hit as usize].increment(1);
    }

    /// Notes what a caller is saved that gets an entry, and the age of that, if it is stale. What is
    /// served in place of a failure saves nothing. A fresh hit does not come here.
    pub(crate) fn served<V>(&self, entry: &Entry<V>, outcome: CacheOutcome, now: Tick) {
        if let CacheOutcome::Hit | CacheOutcome::Stale | CacheOutcome::Joined = outcome {
            self.counts.add(Count::SavedMicros.place(), entry.computed_micros().into());
        }
        let window = entry.window();
        // A result without a lifetime is no old value for those that have waited for it.
        let is_stored = matches!(outcome, CacheOutcome::Stale | CacheOutcome::StaleIfError);
        let age = window.stale_age(now).filter(|_| is_stored || !window.is_never_fresh());
        age.inspect(|age| self.oldest_stale.note(*age));
    }

    /// Sets the gauges; that of the remote where there is one.
    pub(crate) fn gauge(&self, stats: &Stats, is_remote_up: Option<bool>) {
        contain_panic(|| {
            self.tell_ended_row();
            self.meters.gauge(stats);
            is_remote_up.map(|up| self.meters.store_is(up))
        });
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Writes the line of a row of hidden failures that has ended.
    fn tell_ended_row(&self) {
        if self.has_ended_row.load(Ordering::Relaxed) {
            self.has_ended_row.store(false, Ordering::Relaxed);
            let row = self.ended_row.lock().take();
            if let Some(EndedRow { key, failures, lasted }) = row {
                let (key, hidden, lasted) = (Some(&key), Some(failures), Some(lasted));
                let line = Line { key, hidden, lasted, ..Line::of(LogMessage::FailuresEnded) };
                self.log.write_limited(&self.cache, &line);
            }
        }
    }

    fn emit(&self, event: impl FnOnce() -> Event) {
        // The event is built only when there is a receiver.
        if self.events.receiver_count() > 0 {
            // Fails when the last listener has just left.
            let _ = self.events.send(event());
        }
    }

    #[inline]
    fn count(&self, what: impl Counted) {
        self.counts.add_one(what.place());
    }
}

#[cfg(feature = "http")]
impl Observer {
    /// Counts a request that was forwarded uncached, by reason.
    pub(crate) fn bypassed(&self, reason: &'static str) {
        self.answered(CacheOutcome::Bypass);
        self.bypass_reason(reason);
    }

    /// Counts why a request that is counted elsewhere was forwarded uncached.
    pub(crate) fn bypass_reason(&self, reason: &'static str) {
        self.happened(Occurrence::Bypassed { reason });
    }
}

impl Observe for Observer {
    fn happened(&self, what: Occurrence<'_>) {
        contain_panic(|| self.record(what));
    }

    fn count_computation(&self, end: ComputationEnd) {
        self.count(end);
        if end.has_result() {
            self.note_success();
        }
    }

    fn note_success(&self) {
        // Most successes follow a success.
        if self.hidden_failures.load(Ordering::Relaxed) > 0 {
            let failures = self.hidden_failures.swap(0, Ordering::Relaxed);
            if let Some((key, began)) = self.first_hidden.lock().take() {
                let row = EndedRow { key, failures, lasted: began.elapsed() };
                *self.ended_row.lock() = Some(row);
                self.has_ended_row.store(true, Ordering::Relaxed);
            }
        }
    }
}
