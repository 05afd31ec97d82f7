//! Metrics through the `metrics` facade. Labels are closed sets; a key never
//! is one. Handles are made once, when the cache is built: the recorder must
//! be installed before.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::flight::ports::{ComputedEnd, Occurrence, RemoteCall};
use crate::observe::Stats;
use crate::outcome::CacheOutcome;

#[derive(Debug)]
pub(super) struct Meters {
    cache: String,
    requests: [Counter; CacheOutcome::ALL.len()],
    wait: Histogram,
    compute: Histogram,
    locks: [Counter; 4],
    remote_locks: [Counter; 4],
    wakes: [Counter; 3],
    remote: [Histogram; RemoteCall::ALL.len()],
    /// Only where there is a remote: at zero, it wakes somebody up.
    remote_up: OnceLock<Gauge>,
    fills_stored: Counter,
    fills_refused: Counter,
    fills_failed: Counter,
    inflight: Gauge,
    waiters: Gauge,
    entries: Gauge,
    bytes: Gauge,
    evictions: Counter,
}

impl Meters {
    pub(super) fn new(cache: &str) -> Self {
        let cache = cache.to_owned();
        let requests = CacheOutcome::ALL.map(|outcome| {
            counter!("stampede_requests_total", "cache" => cache.clone(), "outcome" => outcome.as_str())
        });
        let fills = |result: &'static str| counter!("stampede_fill_total", "cache" => cache.clone(), "result" => result);
        let locked = |scope: &'static str, result: &'static str| counter!("stampede_lock_total", "cache" => cache.clone(), "scope" => scope, "result" => result);
        let locks =
            ["acquired", "joined", "held", "overloaded"].map(|result| locked("local", result));
        let remote_locks =
            ["acquired", "hit", "locked", "held"].map(|result| locked("remote", result));
        let wakes = ["push", "timer", "poll"].map(
            |cause| counter!("stampede_wake_total", "cache" => cache.clone(), "cause" => cause),
        );
        let remote = RemoteCall::ALL.map(|op| {
            histogram!("stampede_store_duration_seconds", "cache" => cache.clone(), "store" => "remote", "op" => op.as_str())
        });
        Self {
            requests,
            locks,
            remote_locks,
            wakes,
            remote,
            remote_up: OnceLock::new(),
            wait: histogram!("stampede_wait_duration_seconds", "cache" => cache.clone()),
            compute: histogram!("stampede_origin_duration_seconds", "cache" => cache.clone()),
            fills_stored: fills("stored"),
            fills_refused: fills("refused"),
            fills_failed: fills("failed"),
            inflight: gauge!("stampede_inflight", "cache" => cache.clone()),
            waiters: gauge!("stampede_waiters", "cache" => cache.clone()),
            entries: gauge!("stampede_entries", "cache" => cache.clone()),
            bytes: gauge!("stampede_bytes", "cache" => cache.clone()),
            evictions: counter!("stampede_evictions_total", "cache" => cache.clone()),
            cache,
        }
    }

    #[inline]
    pub(super) fn answered(&self, outcome: CacheOutcome) {
        self.requests[outcome as usize].increment(1);
    }

    #[cfg(feature = "http")]
    pub(super) fn bypassed(&self, reason: &'static str) {
        counter!("stampede_bypass_total", "cache" => self.cache.clone(), "reason" => reason)
            .increment(1);
    }

    pub(super) fn computed(&self, reason: &'static str, took: Duration) {
        counter!("stampede_origin_calls_total", "cache" => self.cache.clone(), "reason" => reason)
            .increment(1);
        self.compute.record(took);
    }

    pub(super) fn filled(&self, end: ComputedEnd) {
        match end {
            ComputedEnd::Stored => self.fills_stored.increment(1),
            ComputedEnd::Shared | ComputedEnd::Declined => (),
            _ => self.fills_failed.increment(1),
        }
    }

    pub(super) fn fill_refused(&self) {
        self.fills_refused.increment(1);
    }

    pub(super) fn happened(&self, what: &Occurrence<'_>) {
        match *what {
            Occurrence::Led => self.locks[0].increment(1),
            Occurrence::Joined => self.locks[1].increment(1),
            Occurrence::Held { .. } => self.locks[2].increment(1),
            Occurrence::Overloaded { .. } => self.locks[3].increment(1),
            Occurrence::Locked { answer } => self.remote_locks[answer as usize].increment(1),
            Occurrence::Woken { cause } => self.wakes[cause as usize].increment(1),
            Occurrence::RemoteCalled { op, took, error } => self.asked(op, took, error),
            Occurrence::RemoteAttached => self.remote_is(true),
            Occurrence::RemoteIs { up } => self.remote_is(up),
            Occurrence::Damaged { how } => self.failed_to_read(how),
            _ => {}
        }
    }

    fn remote_is(&self, up: bool) {
        let gauge = self.remote_up.get_or_init(
            || gauge!("stampede_store_up", "cache" => self.cache.clone(), "store" => "remote"),
        );
        gauge.set(f64::from(u8::from(up)));
    }

    fn asked(&self, op: RemoteCall, took: Duration, error: Option<&'static str>) {
        self.remote[op as usize].record(took);
        if let Some(kind) = error {
            counter!("stampede_store_errors_total", "cache" => self.cache.clone(), "store" => "remote", "op" => op.as_str(), "kind" => kind)
                .increment(1);
        }
    }

    fn failed_to_read(&self, how: &'static str) {
        counter!("stampede_store_errors_total", "cache" => self.cache.clone(), "store" => "remote", "op" => "read", "kind" => how)
            .increment(1);
    }

    pub(super) fn waited(&self, took: Duration) {
        self.wait.record(took);
    }

    pub(super) fn invalidated(&self, kind: &'static str) {
        counter!("stampede_invalidations_total", "cache" => self.cache.clone(), "kind" => kind)
            .increment(1);
    }

    /// Sets the gauges; called with every reading of the counts and every sweep.
    #[expect(clippy::cast_precision_loss, reason = "gauges are f64, and no count comes near 2^53")]
    pub(super) fn gauge(&self, stats: &Stats) {
        self.inflight.set(stats.flights as f64);
        self.waiters.set(stats.waiting as f64);
        self.entries.set(stats.entries as f64);
        self.bytes.set(stats.bytes as f64);
        self.evictions.absolute(stats.evictions);
    }
}
