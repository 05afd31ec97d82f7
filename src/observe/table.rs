//! The table of events: one row per occurrence says which counter of [`Stats`],
//! public [`Event`], metric and log line follow from it.
//!
//! Labels of metrics are closed sets, and a key never is one. Log lines carry
//! a key only as its hash. The level WARN is for a remote that goes or comes
//! back, and, once, for a setting that keeps requests from being shared; all
//! other lines are at DEBUG.
//!
//! [`Stats`]: super::Stats

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::key::Key;
use crate::observe::metrics::{Counter, Histogram, counter, gauge, histogram};
use crate::observe::occurrence::{ComputationEnd, Occurrence};
use crate::observe::spans::{debug, warn};
use crate::observe::stats::{Count, Stats};
use crate::observe::{Event, Observer};
use crate::outcome::CacheOutcome;

impl Observer {
    /// Passes an occurrence on. Every row has the same order: counter, event,
    /// and then the user's code: metric and log line.
    pub(super) fn record(&self, what: Occurrence<'_>) {
        let (cache, meters) = (&self.cache, &self.meters);
        match what {
            Occurrence::Computed { key, took, end } => {
                self.count(end);
                self.emit(|| {
                    let (key, how) = (key.clone(), end.as_str());
                    let shared = end != ComputationEnd::Declined;
                    match end.is_failure() {
                        true => Event::Failed { key, took, how },
                        false => Event::Computed { key, took, shared },
                    }
                });
                meters.add("stampede_origin_calls_total", &[("reason", end.as_str())]);
                meters.origin_duration.record(took);
                match end {
                    ComputationEnd::Stored => meters.fill_stored.increment(1),
                    ComputationEnd::Shared | ComputationEnd::Declined => {}
                    _ => meters.fill_failed.increment(1),
                }
                let end = Some(end.as_str());
                debug(cache, &Line { key: Some(key), took: Some(took), end, ..line("computed") });
            }
            Occurrence::ComputedAlone { reason, took } => {
                let reason = format!("alone_{reason}");
                meters.add("stampede_origin_calls_total", &[("reason", &reason)]);
                meters.origin_duration.record(took);
            }
            Occurrence::FillRefused { key } => {
                self.count(Count::RefusedFill);
                self.emit(|| Event::FillRefused { key: key.clone() });
                meters.fill_refused.increment(1);
                debug(cache, &Line { key: Some(key), ..line("fill refused") });
            }
            Occurrence::Led => meters.local_acquired.increment(1),
            Occurrence::Joined => {
                self.count(Count::Joined);
                meters.local_joined.increment(1);
            }
            Occurrence::Waited { took } => {
                meters.wait_duration.record(took);
                debug(cache, &Line { role: Some("waiter"), waited: Some(took), ..line("waited") });
            }
            Occurrence::WaitTimedOut { key } => {
                self.count(Count::WaitTimeout);
                self.emit(|| Event::WaitTimedOut { key: key.clone() });
                debug(cache, &Line { key: Some(key), ..line("waited too long") });
            }
            Occurrence::Overloaded { key } => {
                self.count(Count::Overloaded);
                self.emit(|| Event::Overloaded { key: key.clone() });
                meters.local_overloaded.increment(1);
                debug(cache, &Line { key: Some(key), ..line("overloaded") });
            }
            Occurrence::Held { key } => {
                self.count(Count::Held);
                self.emit(|| Event::Held { key: key.clone() });
                meters.local_held.increment(1);
                debug(cache, &Line { key: Some(key), ..line("held") });
            }
            Occurrence::WouldHaveAnswered => self.count(Count::WouldHaveAnswered),
            Occurrence::Bypassed { reason } => {
                meters.add("stampede_bypass_total", &[("reason", reason)]);
            }
            Occurrence::Invalidated { key } => {
                self.count(Count::Invalidation);
                self.emit(|| Event::Invalidated { key: key.clone() });
                meters.add("stampede_invalidations_total", &[("kind", "key")]);
            }
            Occurrence::TagInvalidated { tag } => {
                self.count(Count::Invalidation);
                self.emit(|| Event::TagInvalidated { tag: tag.clone() });
                let kind = if tag.is_everything() { "all" } else { "tag" };
                meters.add("stampede_invalidations_total", &[("kind", kind)]);
            }
            Occurrence::InvalidatedElsewhere { key } => {
                self.emit(|| Event::Invalidated { key: key.clone() });
                meters.add("stampede_invalidations_total", &[("kind", "remote")]);
            }
            Occurrence::ModeChanged { mode } => self.emit(|| Event::ModeChanged { mode }),
            Occurrence::Locked { answer } => {
                let labels = [("scope", "remote"), ("result", answer.as_str())];
                meters.add("stampede_lock_total", &labels);
            }
            Occurrence::Woken { cause } => {
                self.count(cause);
                meters.add("stampede_wake_total", &[("cause", cause.as_str())]);
            }
            Occurrence::RemoteCalled { op, took, error } => {
                self.count(Count::RemoteCall);
                let labels = [("store", "remote"), ("op", op.as_str())];
                histogram(cache, "stampede_store_duration_seconds", &labels).record(took);
                if let Some(kind) = error {
                    self.count(Count::RemoteError);
                    meters.remote_error(op.as_str(), kind);
                }
                let (op, took) = (Some(op.as_str()), Some(took));
                debug(cache, &Line { op, took, error, ..line("asked the remote") });
            }
            Occurrence::RemoteAttached => meters.remote_is(true),
            Occurrence::RemoteChanged { up } => {
                self.emit(|| Event::RemoteChanged { up });
                meters.remote_is(up);
                warn(
                    cache,
                    &line(match up {
                        true => "the remote answers again",
                        false => {
                            "the remote is away: this process goes on with what it has and computes \
                         for itself"
                        }
                    }),
                );
            }
            Occurrence::Damaged { how } => {
                self.count(Count::Damaged);
                meters.remote_error("read", how);
                debug(cache, &Line { how: Some(how), ..line("damaged value in the remote") });
            }
            Occurrence::Unshareable { key } => {
                self.emit(|| Event::Unshareable { key: key.clone() });
                debug(cache, &Line { key: Some(key), ..line("not for the remote") });
            }
            Occurrence::CredentialRefused { field } => {
                if self.has_warned_of_credentials.swap(true, Ordering::Relaxed) {
                    return;
                }
                let message = format!(
                    "a response was not shared because its request carries a field that counts \
                     as a credential; if the field does not say which user asks, exempt it with \
                     HttpLayer::not_a_credential({field:?}); if each value of it may have \
                     responses of its own, name it in HttpLayer::vary"
                );
                warn(cache, &Line { field: Some(field), ..line(&message) });
            }
        }
    }
}

/// A line of the log, and the fields it can have.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(feature = "tracing"), expect(dead_code, reason = "only tracing writes lines"))]
pub(super) struct Line<'a> {
    pub(super) message: &'a str,
    pub(super) key: Option<&'a Key>,
    pub(super) took: Option<Duration>,
    pub(super) waited: Option<Duration>,
    pub(super) role: Option<&'static str>,
    pub(super) end: Option<&'static str>,
    pub(super) op: Option<&'static str>,
    pub(super) error: Option<&'static str>,
    pub(super) how: Option<&'static str>,
    pub(super) field: Option<&'a str>,
}

fn line(message: &str) -> Line<'_> {
    Line { message, ..Line::default() }
}

/// Metrics. What every caller reports has a handle that is made when the cache
/// is built, so the recorder must be installed before. All else is found by
/// its name when it is reported.
#[derive(Debug)]
pub(super) struct Meters {
    cache: String,
    pub(super) requests: [Counter; CacheOutcome::ALL.len()],
    origin_duration: Histogram,
    wait_duration: Histogram,
    local_acquired: Counter,
    local_joined: Counter,
    local_held: Counter,
    local_overloaded: Counter,
    fill_stored: Counter,
    fill_refused: Counter,
    fill_failed: Counter,
}

impl Meters {
    pub(super) fn new(cache: &str) -> Self {
        let request = |it: CacheOutcome| {
            counter(cache, "stampede_requests_total", &[("outcome", it.as_str())])
        };
        let lock = |result| {
            let labels = [("scope", "local"), ("result", result)];
            counter(cache, "stampede_lock_total", &labels)
        };
        let fill = |result| counter(cache, "stampede_fill_total", &[("result", result)]);
        Self {
            requests: CacheOutcome::ALL.map(request),
            origin_duration: histogram(cache, "stampede_origin_duration_seconds", &[]),
            wait_duration: histogram(cache, "stampede_wait_duration_seconds", &[]),
            local_acquired: lock("acquired"),
            local_joined: lock("joined"),
            local_held: lock("held"),
            local_overloaded: lock("overloaded"),
            fill_stored: fill("stored"),
            fill_refused: fill("refused"),
            fill_failed: fill("failed"),
            cache: cache.to_owned(),
        }
    }

    fn add(&self, name: &'static str, labels: &[(&'static str, &str)]) {
        counter(&self.cache, name, labels).increment(1);
    }

    fn remote_error(&self, op: &str, kind: &str) {
        let labels = [("store", "remote"), ("op", op), ("kind", kind)];
        self.add("stampede_store_errors_total", &labels);
    }

    /// Reported only where there is a remote: at zero, it wakes an operator up.
    fn remote_is(&self, up: bool) {
        let labels = [("store", "remote")];
        gauge(&self.cache, "stampede_store_up", &labels).set(f64::from(u8::from(up)));
    }

    /// Sets the gauges; called with every reading of the counts and every sweep.
    #[expect(clippy::cast_precision_loss, reason = "gauges are f64, and no count comes near 2^53")]
    pub(super) fn gauge(&self, stats: &Stats) {
        let set = |name, value| gauge(&self.cache, name, &[]).set(value);
        set("stampede_inflight", stats.flights as f64);
        set("stampede_waiters", stats.waiting as f64);
        set("stampede_entries", stats.entries as f64);
        set("stampede_bytes", stats.bytes as f64);
        counter(&self.cache, "stampede_evictions_total", &[]).absolute(stats.evictions);
    }
}
