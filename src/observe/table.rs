//! The table of events: one row per occurrence says which counter of [`Stats`],
//! public [`Event`], metric and log line follow from it.
//!
//! Labels of metrics are closed sets, and a key never is one. Log lines carry
//! a key only as its hash, unless `Builder::log_keys` says otherwise. Lines above DEBUG that
//! are about a key are limited.
//!
//! [`Stats`]: super::Stats

use std::sync::atomic::Ordering;

use crate::observe::lines::{Line, LogMessage};
use crate::observe::meters::{FillResult, InvalidationKind, LocalLock, Metric};
use crate::observe::occurrence::{CallersGot, ComputationEnd, FailureEffect, Occurrence};
use crate::observe::stats::Count;
use crate::observe::{Event, Observer};

impl Observer {
    /// Passes an occurrence on. Every row has the same order: counter, event,
    /// and then the user's code: metric and log line.
    pub(super) fn record(&self, what: Occurrence<'_>) {
        let meters = &self.meters;
        let write = |line: Line<'_>| self.log.write(&self.cache, &line);
        let write_limited = |line: Line<'_>| self.log.write_limited(&self.cache, &line);
        match what {
            Occurrence::Computed { key, took, end, failure } => {
                self.count(end);
                self.emit(|| {
                    let (key, how) = (key.clone(), end.as_str());
                    let shared = end != ComputationEnd::Declined;
                    match end.is_failure() {
                        true => Event::Failed { key, took, how },
                        false => Event::Computed { key, took, shared },
                    }
                });
                meters.add(Metric::OriginCalls, &[("reason", end.as_str())]);
                meters.current().origin_duration.record(took);
                match end {
                    ComputationEnd::Stored => meters.current().fill(FillResult::Stored),
                    ComputationEnd::Shared | ComputationEnd::Declined => {}
                    _ => meters.current().fill(FillResult::Failed),
                }
                let (key, took) = (Some(key), Some(took));
                let line = |message| Line { key, took, ..Line::of(message) };
                write(Line { end: Some(end.as_str()), ..line(LogMessage::Computed) });
                if let Some(FailureEffect { callers_got, held_for, is_refresh }) = failure {
                    let callers_got = Some(callers_got.as_str());
                    let with = |message| Line { callers_got, held_for, ..line(message) };
                    match end {
                        _ if is_refresh => write_limited(Line {
                            end: Some(end.as_str()),
                            ..with(LogMessage::RefreshFailed)
                        }),
                        ComputationEnd::TimedOut => {
                            write_limited(with(LogMessage::ComputationTimedOut));
                        }
                        ComputationEnd::Panicked => {
                            write_limited(with(LogMessage::ComputationPanicked));
                        }
                        _ => {}
                    }
                }
            }
            Occurrence::Deposed { key } => {
                let callers_got = Some(CallersGot::Failure.as_str());
                let line = Line::of(LogMessage::Deposed);
                write_limited(Line { key: Some(key), callers_got, ..line });
            }
            Occurrence::ComputedAlone { key, reason, took, timed_out } => {
                let reason = format!("alone_{reason}");
                meters.add(Metric::OriginCalls, &[("reason", &reason)]);
                meters.current().origin_duration.record(took);
                if timed_out {
                    let (key, took) = (Some(key), Some(took));
                    let callers_got = Some(CallersGot::Failure.as_str());
                    let line = Line::of(LogMessage::ComputationTimedOut);
                    write_limited(Line { key, took, callers_got, ..line });
                }
            }
            Occurrence::BatchCalled { keys, took } => {
                self.count(Count::BatchCall);
                meters.add(Metric::BatchCalls, &[]);
                let (keys, took) = (Some(keys), Some(took));
                write(Line { keys, took, ..Line::of(LogMessage::BatchCalled) });
            }
            Occurrence::FillRefused { key } => {
                self.count(Count::RefusedFill);
                self.emit(|| Event::FillRefused { key: key.clone() });
                meters.current().fill(FillResult::Refused);
                write(Line { key: Some(key), ..Line::of(LogMessage::FillRefused) });
            }
            Occurrence::BodyRefused { key } => {
                self.count(Count::RefusedBody);
                self.emit(|| Event::BodyRefused { key: key.clone() });
                meters.current().fill(FillResult::NoRoom);
                write(Line { key: Some(key), ..Line::of(LogMessage::BodyRefused) });
            }
            Occurrence::Led => meters.current().lock(LocalLock::Acquired),
            Occurrence::Joined => {
                self.count(Count::Joined);
                meters.current().lock(LocalLock::Joined);
            }
            Occurrence::Waited { took } => {
                meters.current().wait_duration.record(took);
                let line = Line::of(LogMessage::Waited);
                write(Line { role: Some("waiter"), waited: Some(took), ..line });
            }
            Occurrence::WaitTimedOut { key } => {
                self.count(Count::WaitTimeout);
                self.emit(|| Event::WaitTimedOut { key: key.clone() });
                write(Line { key: Some(key), ..Line::of(LogMessage::WaitTimedOut) });
            }
            Occurrence::Overloaded { key } => {
                self.count(Count::Overloaded);
                self.emit(|| Event::Overloaded { key: key.clone() });
                meters.current().lock(LocalLock::Overloaded);
                write(Line { key: Some(key), ..Line::of(LogMessage::Overloaded) });
            }
            Occurrence::Held { key } => {
                self.count(Count::Held);
                self.emit(|| Event::Held { key: key.clone() });
                meters.current().lock(LocalLock::Held);
                write(Line { key: Some(key), ..Line::of(LogMessage::Held) });
            }
            Occurrence::WouldHaveAnswered => self.count(Count::WouldHaveAnswered),
            Occurrence::Bypassed { reason } => meters.add(Metric::Bypass, &[("reason", reason)]),
            Occurrence::Invalidated { key } => {
                self.count(Count::Invalidation);
                self.emit(|| Event::Invalidated { key: key.clone() });
                self.invalidation(InvalidationKind::Key);
            }
            Occurrence::TagInvalidated { tag } => {
                self.count(Count::Invalidation);
                self.emit(|| match tag.marked() {
                    None => Event::TagInvalidated { tag: tag.clone() },
                    Some(tag) => Event::TagMarkedStale { tag },
                });
                self.invalidation(if tag.concerns_all() {
                    InvalidationKind::All
                } else {
                    InvalidationKind::Tag
                });
            }
            Occurrence::InvalidatedElsewhere { key } => {
                self.emit(|| Event::Invalidated { key: key.clone() });
                self.invalidation(InvalidationKind::Remote);
            }
            Occurrence::ModeChanged { mode } => self.emit(|| Event::ModeChanged { mode }),
            Occurrence::WaitsLong { key, waited, lease } => {
                let (key, waited, lease) = (Some(key), Some(waited), Some(lease));
                write_limited(Line { key, waited, lease, ..Line::of(LogMessage::WaitsLong) });
            }
            Occurrence::TookOver { key, waited, lease } => {
                let (key, waited, lease) = (Some(key), Some(waited), Some(lease));
                write_limited(Line { key, waited, lease, ..Line::of(LogMessage::TookOver) });
            }
            Occurrence::Locked { answer } => {
                meters.add(Metric::Lock, &[("scope", "remote"), ("result", answer.as_str())]);
            }
            Occurrence::Woken { cause } => {
                self.count(cause);
                meters.add(Metric::Wake, &[("cause", cause.as_str())]);
            }
            Occurrence::RemoteCalled { op, took, error } => {
                self.count(Count::RemoteOp);
                meters.of_store(op.as_str()).record(took);
                if let Some(kind) = error {
                    self.count(Count::RemoteError);
                    meters.store_error(op.as_str(), kind);
                }
                let (op, took) = (Some(op.as_str()), Some(took));
                write(Line { op, took, error, ..Line::of(LogMessage::RemoteCalled) });
            }
            Occurrence::RemoteAttached => meters.store_is(true),
            Occurrence::RemoteAway { server, failure } => {
                self.emit(|| Event::RemoteChanged { up: false });
                meters.store_is(false);
                let (op, error) = failure.map(|(op, kind)| (op.as_str(), kind)).unzip();
                let line = Line::of(LogMessage::RemoteAway);
                write(Line { server: Some(server), op, error, ..line });
            }
            Occurrence::RemoteBack { server, away_for, is_last } => {
                if is_last {
                    self.emit(|| Event::RemoteChanged { up: true });
                    meters.store_is(true);
                }
                let (server, away_for) = (Some(server), Some(away_for));
                write(Line { server, away_for, ..Line::of(LogMessage::RemoteBack) });
            }
            Occurrence::Damaged { how } => {
                self.count(Count::Damaged);
                meters.store_error("read", how);
                write(Line { how: Some(how), ..Line::of(LogMessage::Damaged) });
            }
            Occurrence::Unshareable { key } => {
                self.emit(|| Event::Unshareable { key: key.clone() });
                write(Line { key: Some(key), ..Line::of(LogMessage::Unshareable) });
            }
            Occurrence::Unweighed { type_name, max_entries } => {
                let (type_name, max_entries) = (Some(type_name), Some(max_entries));
                write(Line { type_name, max_entries, ..Line::of(LogMessage::Unweighed) });
            }
            Occurrence::BodyTypeUnknown { type_name } => {
                write(Line { type_name: Some(type_name), ..Line::of(LogMessage::BodyTypeUnknown) });
            }
            Occurrence::CredentialRefused { field } => {
                if self.has_warned_of_credentials.swap(true, Ordering::Relaxed) {
                    return;
                }
                write(Line { field: Some(field), ..Line::of(LogMessage::CredentialRefused) });
            }
            Occurrence::NoWriteSeen => write(Line::of(LogMessage::NoWriteSeen)),
        }
    }

    fn invalidation(&self, kind: InvalidationKind) {
        self.meters.add(Metric::Invalidations, &[("kind", kind.as_str())]);
    }
}
