//! The table of events: what can happen, and what follows from it.
//!
//! The table has four parts, in this order:
//!
//! 1. [`Metric`]: each metric with its kind, its name and its labels.
//! 2. [`Event`]: what an application can subscribe to.
//! 3. [`Occurrence`]: what the engine and its surroundings report.
//! 4. [`Observer::record`]: one row per occurrence says which counter of [`Stats`], public
//!    [`Event`], metric and log line follow from it.
//!
//! Tests compare `docs/observability.md` with these parts.
//!
//! Labels of metrics are closed sets, and a key never is one. Log lines carry
//! a key only as its hash, unless `Builder::log_keys` says otherwise. Lines above DEBUG that
//! are about a key are limited.
//!
//! [`Stats`]: super::Stats

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::key::{Key, Tag};
use crate::mode::Mode;
use crate::observe::Observer;
use crate::observe::labels::{
    CallersGot, ComputationEnd, FailureEffect, FillResult, InvalidationKind, LocalLock, LockAnswer,
    RemoteOp, WakeCause,
};
use crate::observe::lines::{self, Line, LogMessage};
use crate::observe::stats::Count;

/// What kind of number a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "for the tests that hold the page against it"))]
pub(crate) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

macro_rules! metrics {
    ($($variant:ident: $kind:ident $name:literal [$($label:ident $(: $words:ident)?)*];)+) => {
        /// A metric.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(
            not(all(feature = "http", feature = "remote")),
            allow(dead_code, reason = "some things happen to HTTP or to a remote alone")
        )]
        pub(crate) enum Metric {
            $($variant,)+
        }

        #[cfg_attr(
            not(all(test, feature = "metrics")),
            allow(dead_code, reason = "for the tests that hold the page against it")
        )]
        impl Metric {
            pub(crate) const ALL: &[Self] = &[$(Self::$variant,)+];

            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            pub(crate) const fn kind(self) -> MetricKind {
                match self {
                    $(Self::$variant => MetricKind::$kind,)+
                }
            }

            /// Returns the names of its labels, beside `cache`.
            pub(crate) const fn labels(self) -> &'static [&'static str] {
                match self {
                    $(Self::$variant => &[$(stringify!($label)),*],)+
                }
            }

            /// Returns the values of a label, where its row names them.
            #[cfg(test)]
            pub(crate) fn words(self, label: &str) -> Option<Vec<&'static str>> {
                let words: &[(&str, Vec<&'static str>)] = match self {
                    $(Self::$variant => &[$($(
                        (stringify!($label), $words::ALL.iter().map(|it| it.as_str()).collect()),
                    )?)*],)+
                };
                words.iter().find(|(name, _)| *name == label).map(|(_, words)| words.clone())
            }
        }
    };
}

metrics! {
    Requests: Counter "stampede_requests_total" [outcome];
    WouldHaveAnswered: Counter "stampede_would_have_answered_total" [];
    OriginCalls: Counter "stampede_origin_calls_total" [reason];
    OriginDuration: Histogram "stampede_origin_duration_seconds" [];
    BatchCalls: Counter "stampede_batch_calls_total" [];
    WaitDuration: Histogram "stampede_wait_duration_seconds" [];
    Lock: Counter "stampede_lock_total" [scope result];
    Fill: Counter "stampede_fill_total" [result: FillResult];
    Invalidations: Counter "stampede_invalidations_total" [kind: InvalidationKind];
    Bypass: Counter "stampede_bypass_total" [reason];
    Revalidations: Counter "stampede_revalidations_total" [result: RevalidationResult];
    RefreshesPutOff: Counter "stampede_refreshes_put_off_total" [bound: RefreshBound];
    Inflight: Gauge "stampede_inflight" [];
    Waiters: Gauge "stampede_waiters" [];
    ComputationLimit: Gauge "stampede_computation_limit" [];
    OldestStale: Gauge "stampede_oldest_stale_seconds" [];
    Entries: Gauge "stampede_entries" [];
    Bytes: Gauge "stampede_bytes" [];
    ArrivingBytes: Gauge "stampede_arriving_bytes" [];
    OriginSecondsSaved: Counter "stampede_origin_seconds_saved_total" [];
    Evictions: Counter "stampede_evictions_total" [];
    Wake: Counter "stampede_wake_total" [cause: WakeCause];
    StoreUp: Gauge "stampede_store_up" [store];
    StoreErrors: Counter "stampede_store_errors_total" [store op kind];
    StoreDuration: Histogram "stampede_store_duration_seconds" [store op: RemoteOp];
}

words! {
    /// What the service answered to a request about a stored response.
    pub(crate) enum RevalidationResult {
        /// 304: the stored response is still good.
        Confirmed = "confirmed",
        /// A new response.
        Changed = "changed",
        /// A response with a status from 500 on.
        Failed = "failed",
        /// 304, but about another response, or the stored one has been invalidated meanwhile.
        /// The service is asked again without a condition.
        Mismatched = "mismatched",
    }
}

words! {
    /// The setting whose bound a refresh has met.
    pub(crate) enum RefreshBound {
        Refreshes = "max_refreshes",
        Computations = "max_computations",
    }
}

/// An event in the cache; see [`Stampede::events`](crate::Stampede::events). Hits are
/// counted, and are no events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A computation ended and its result is stored or shared.
    #[non_exhaustive]
    Computed {
        /// The key that was computed.
        key: Key,
        /// How long the computation took.
        took: Duration,
        /// Whether the result may be shared and was not out of date already.
        shared: bool,
    },
    /// A computation failed, took too long, panicked, was dropped, or was cancelled since no caller
    /// waited for it any more.
    #[non_exhaustive]
    Failed {
        /// The key that was to be computed.
        key: Key,
        /// How long it took.
        took: Duration,
        /// One of `failed`, `timed_out`, `panicked`, `dropped`, `cancelled`.
        how: &'static str,
    },
    /// A result was not stored, because it was invalidated while it was computed.
    #[non_exhaustive]
    FillRefused {
        /// The key that was computed.
        key: Key,
    },
    /// A response was passed on unshared, because the bodies that arrive took as many bytes
    /// as `max_arriving_bytes` permits.
    #[non_exhaustive]
    BodyRefused {
        /// The key that was computed.
        key: Key,
    },
    /// The service was asked whether a stored response is still good, and answered.
    #[non_exhaustive]
    Revalidated {
        /// The key of the response.
        key: Key,
        /// One of `confirmed`, `changed`, `failed`, `mismatched`.
        how: &'static str,
    },
    /// A value was due for a refresh, and at a bound the refresh did not begin. The next reader
    /// tries again.
    #[non_exhaustive]
    RefreshPutOff {
        /// The key of the value.
        key: Key,
        /// The setting: `max_refreshes` or `max_computations`.
        bound: &'static str,
    },
    /// A caller gave up waiting.
    #[non_exhaustive]
    WaitTimedOut {
        /// The key that it waited for.
        key: Key,
    },
    /// A caller was refused at a bound on waiters or computations.
    #[non_exhaustive]
    Overloaded {
        /// The key that it asked for.
        key: Key,
    },
    /// A caller was refused because the key failed a moment ago.
    #[non_exhaustive]
    Held {
        /// The key that it asked for.
        key: Key,
    },
    /// A key was invalidated, by this process or another.
    #[non_exhaustive]
    Invalidated {
        /// The key.
        key: Key,
    },
    /// A tag, or everything, was invalidated.
    #[non_exhaustive]
    TagInvalidated {
        /// The tag; see [`Tag::is_everything`].
        tag: Tag,
    },
    /// What carries a tag, or everything, was made stale by this process.
    #[non_exhaustive]
    TagMarkedStale {
        /// The tag; see [`Tag::is_everything`].
        tag: Tag,
    },
    /// The remote is asked again, or not any more.
    #[non_exhaustive]
    RemoteChanged {
        /// Whether it is asked from now on.
        up: bool,
    },
    /// A result stays in this process: it is too large for the remote, has too
    /// many tags, or cannot be encoded.
    #[non_exhaustive]
    Unshareable {
        /// The key that was computed.
        key: Key,
    },
    /// The cache was switched.
    #[non_exhaustive]
    ModeChanged {
        /// The new mode.
        mode: Mode,
    },
}

/// Receives what the engine does. An implementation must neither block nor
/// panic.
pub(crate) trait Observe: Send + Sync + 'static {
    fn happened(&self, what: Occurrence<'_>);

    /// Counts the end of a computation. That is no code of the user: it is counted before its callers
    /// have their answers, and told after them.
    fn count_computation(&self, _: ComputationEnd) {}

    /// Ends the row of hidden failures: a computation has succeeded, here or elsewhere. No code of
    /// the user.
    fn note_success(&self) {}
}

macro_rules! occurrences {
    ($($(#[$doc:meta])* $name:ident $({ $($field:ident: $type:ty),+ })?,)+) => {
        /// One thing that happened.
        #[derive(Clone, Copy, Debug)]
        #[cfg_attr(
            not(all(feature = "http", feature = "remote")),
            allow(dead_code, reason = "some things happen to HTTP or to a remote alone")
        )]
        pub(crate) enum Occurrence<'a> {
            $($(#[$doc])* $name $({ $($field: $type),+ })?,)+
        }

        #[cfg(test)]
        pub(super) const OCCURRENCES: &[&str] = &[$(stringify!($name)),+];
    };
}

occurrences! {
    /// The computation of a flight ended.
    Computed { key: &'a Key, took: Duration, end: ComputationEnd, failure: Option<FailureEffect> },
    /// A stale value of this age, or one that is not stale yet, hides a failure: of a computation,
    /// or of a wait.
    FailureHidden { key: &'a Key, error: &'a Error, stale: Option<Duration> },
    /// The leader was neither polled nor dropped for longer than its time-out: it was given up.
    Deposed { key: &'a Key },
    /// A caller computed for itself, outside any flight. `reason` is a word of
    /// a closed set. With `timed_out` it got an error.
    ComputedAlone { key: &'a Key, reason: &'static str, took: Duration, timed_out: bool },
    /// One call for several keys ended.
    BatchCalled { keys: u64, took: Duration },
    /// A result was not stored: it was invalidated meanwhile, or its leader was
    /// deposed.
    FillRefused { key: &'a Key },
    /// A response was passed on unshared: bodies that arrive take as many bytes as they may.
    BodyRefused { key: &'a Key },
    /// A caller took the lead.
    Led,
    /// A caller joined a running computation.
    Joined,
    /// A caller stopped waiting after `took`, with or without an answer.
    Waited { key: &'a Key, took: Duration, computed_in: Option<Duration> },
    /// A caller gave up waiting.
    WaitTimedOut { key: &'a Key },
    /// A caller was refused at a bound on waiters or computations.
    Overloaded { key: &'a Key },
    /// A caller was refused by a hold.
    Held { key: &'a Key },
    /// The cache could have answered, and did not because it only observes.
    WouldHaveAnswered,
    /// A request was forwarded uncached. `reason` is a word of a closed set.
    Bypassed { reason: &'static str },
    /// The service answered a request about a stored response.
    Revalidated { key: &'a Key, result: RevalidationResult },
    /// A refresh did not begin, because as many refreshes or computations run as may.
    RefreshPutOff { key: &'a Key, bound: RefreshBound },
    /// This process invalidated a key.
    Invalidated { key: &'a Key },
    /// This process invalidated a tag, or everything, or made it stale: then `tag` is a mark.
    TagInvalidated { tag: &'a Tag },
    /// Another process invalidated or put a key.
    InvalidatedElsewhere { key: &'a Key },
    /// The cache was switched.
    ModeChanged { mode: Mode },
    /// Another process still computes the key, after a wait of more than `lease`.
    WaitsLong { key: &'a Key, waited: Duration, lease: Duration },
    /// The lease ended because its holder did not renew it, and this process has it now.
    TookOver { key: &'a Key, waited: Duration, lease: Duration },
    /// The remote answered an acquire.
    Locked { answer: LockAnswer },
    /// A leader that waits for another process looks again.
    Woken { cause: WakeCause },
    /// A call to the remote ended.
    RemoteCalled { op: RemoteOp, took: Duration, error: Option<&'static str> },
    /// The cache was built with a remote.
    RemoteAttached,
    /// The remote is not asked any more: the last call failed so, if a call was made.
    RemoteAway { server: &'a str, failure: Option<(RemoteOp, &'static str)> },
    /// The remote is asked again. `is_last`: no other server of it is away.
    RemoteBack { server: &'a str, away_for: Duration, is_last: bool },
    /// A value in the remote cannot be used.
    Damaged { how: &'static str },
    /// That value was written as another type, by another codec or with another schema.
    TypeDiffers { type_name: &'a str },
    /// Values of this type do not come back from the remote as they are.
    ValuesAltered { type_name: &'a str },
    /// A result stays in this process: it is too large or cannot be encoded.
    Unshareable { key: &'a Key },
    /// A cache is full that can only estimate what its values weigh.
    WeightsEstimated { type_name: &'a str, assumed_bytes: usize },
    /// A request was not read, because the layer cannot make a body of this type.
    BodyTypeUnknown { type_name: &'a str },
    /// A response was not shared because its request carries this field.
    CredentialRefused { field: &'a str },
    /// The first responses of a layer with an identity were not shared because of this field.
    IdentityUncovered { field: &'a str },
    /// Many responses were stored, and no write has passed a layer of the handle.
    NoWriteSeen,
    /// A handle has the name of another one that lives in this process.
    NameShared,
    /// An HTTP layer is inside of another one of the same handle.
    LayerNested,
    /// A computation on a task of its own has panicked for want of a task-local value.
    TaskLocalMissing,
}

impl Observer {
    /// Passes an occurrence on. Every row has the same order: counter, event,
    /// and then the user's code: metric and log line.
    pub(super) fn record(&self, what: Occurrence<'_>) {
        let meters = &self.meters;
        let write = |line: Line<'_>| self.log.write(&self.cache, &line);
        let write_limited = |line: Line<'_>| self.log.write_limited(&self.cache, &line);
        let write_once = |line: Line<'_>| {
            let bit = 1 << line.message as u64;
            if self.written_once.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
                write(line);
            }
        };
        self.tell_ended_row();
        // In this order: computations, callers, invalidations, other processes, the remote, and what
        // is said once.
        match what {
            Occurrence::Computed { key, took, end, failure } => {
                self.emit(|| {
                    let (key, how) = (key.clone(), end.as_str());
                    let shared = end != ComputationEnd::Declined;
                    match end.has_result() {
                        true => Event::Computed { key, took, shared },
                        false => Event::Failed { key, took, how },
                    }
                });
                meters.add(Metric::OriginCalls, &[("reason", end.as_str())]);
                meters.current().origin_duration.record(took);
                match end {
                    ComputationEnd::Stored => meters.current().fill(FillResult::Stored),
                    ComputationEnd::Shared
                    | ComputationEnd::Declined
                    | ComputationEnd::Cancelled => {}
                    _ => meters.current().fill(FillResult::Failed),
                }
                let (key, took) = (Some(key), Some(took));
                let line = |message| Line { key, took, ..Line::of(message) };
                write(Line { end: Some(end.as_str()), ..line(LogMessage::Computed) });
                if let Some(FailureEffect { callers_got, held_for }) = failure {
                    let callers_got = Some(callers_got.as_str());
                    let with = |message| Line { callers_got, held_for, ..line(message) };
                    match end {
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
            Occurrence::FailureHidden { key, error, stale } => {
                stale.inspect(|age| self.oldest_stale.note(*age));
                let failures = self.hidden_failures.fetch_add(1, Ordering::Relaxed) + 1;
                if failures == 1 {
                    *self.first_hidden.lock() = Some((key.clone(), Instant::now()));
                }
                if failures.is_power_of_two() {
                    let (cause, remedy) = lines::explain(error);
                    let (key, failures, cause) = (Some(key), Some(failures), Some(&*cause));
                    let oldest_stale = Some(self.oldest_stale.get()).filter(|age| !age.is_zero());
                    let line = Line { key, failures, cause, ..Line::of(LogMessage::FailureHidden) };
                    write_limited(Line { oldest_stale, remedy: Some(remedy), ..line });
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
            Occurrence::Waited { key, took, computed_in } => {
                self.ledger.note_wait(key.as_bytes(), took, computed_in);
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
            Occurrence::WouldHaveAnswered => {
                self.count(Count::WouldHaveAnswered);
                meters.add(Metric::WouldHaveAnswered, &[]);
            }
            Occurrence::Bypassed { reason } => meters.add(Metric::Bypass, &[("reason", reason)]),
            Occurrence::Revalidated { key, result } => {
                let how = result.as_str();
                self.emit(|| Event::Revalidated { key: key.clone(), how });
                meters.add(Metric::Revalidations, &[("result", how)]);
            }
            Occurrence::RefreshPutOff { key, bound } => {
                let bound = bound.as_str();
                self.emit(|| Event::RefreshPutOff { key: key.clone(), bound });
                meters.add(Metric::RefreshesPutOff, &[("bound", bound)]);
            }
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
            Occurrence::ModeChanged { mode } => {
                self.emit(|| Event::ModeChanged { mode });
                write(Line { mode: Some(mode.as_str()), ..Line::of(LogMessage::ModeChanged) });
            }
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
            Occurrence::TypeDiffers { type_name } => {
                write_once(Line {
                    type_name: Some(type_name),
                    ..Line::of(LogMessage::TypeDiffers)
                });
            }
            Occurrence::ValuesAltered { type_name } => {
                write_once(Line {
                    type_name: Some(type_name),
                    ..Line::of(LogMessage::ValuesAltered)
                });
            }
            Occurrence::Unshareable { key } => {
                self.emit(|| Event::Unshareable { key: key.clone() });
                write(Line { key: Some(key), ..Line::of(LogMessage::Unshareable) });
            }
            Occurrence::WeightsEstimated { type_name, assumed_bytes } => {
                let (type_name, assumed_bytes) = (Some(type_name), Some(assumed_bytes));
                let message = LogMessage::WeightsEstimated;
                write_once(Line { type_name, assumed_bytes, ..Line::of(message) });
            }
            Occurrence::BodyTypeUnknown { type_name } => {
                write(Line { type_name: Some(type_name), ..Line::of(LogMessage::BodyTypeUnknown) });
            }
            Occurrence::CredentialRefused { field } => {
                write_once(Line { field: Some(field), ..Line::of(LogMessage::CredentialRefused) });
            }
            Occurrence::IdentityUncovered { field } => {
                write(Line { field: Some(field), ..Line::of(LogMessage::IdentityUncovered) });
            }
            Occurrence::NoWriteSeen => write(Line::of(LogMessage::NoWriteSeen)),
            Occurrence::NameShared => write(Line::of(LogMessage::NameShared)),
            Occurrence::LayerNested => write(Line::of(LogMessage::LayerNested)),
            Occurrence::TaskLocalMissing => write_once(Line::of(LogMessage::TaskLocalMissing)),
        }
    }

    fn invalidation(&self, kind: InvalidationKind) {
        self.meters.add(Metric::Invalidations, &[("kind", kind.as_str())]);
    }
}

/// At least one sample of each occurrence, and one for each way in which a line or a metric
/// follows from it. A test fails if an occurrence has none.
#[cfg(all(test, feature = "metrics"))]
pub(super) fn samples<'a>(key: &'a Key, tag: &'a Tag, error: &'a Error) -> Vec<Occurrence<'a>> {
    const SECOND: Duration = Duration::from_secs(1);
    let (took, waited, lease) = (SECOND, SECOND, SECOND);
    let callers_got = CallersGot::Failure;
    let computed = |end: &ComputationEnd| {
        let effect = FailureEffect { callers_got, held_for: Some(SECOND) };
        let failure = (!end.has_result()).then_some(effect);
        Occurrence::Computed { key, took, end: *end, failure }
    };
    let mut samples: Vec<_> = ComputationEnd::ALL.iter().map(computed).collect();
    samples.extend([
        Occurrence::ComputedAlone { key, reason: "off", took, timed_out: true },
        Occurrence::Deposed { key },
        Occurrence::FailureHidden { key, error, stale: Some(SECOND) },
        Occurrence::BatchCalled { keys: 7, took },
        Occurrence::FillRefused { key },
        Occurrence::BodyRefused { key },
        Occurrence::WeightsEstimated { type_name: "T", assumed_bytes: 10 },
        Occurrence::Led,
        Occurrence::Joined,
        Occurrence::Waited { key, took, computed_in: Some(SECOND) },
        Occurrence::WaitTimedOut { key },
        Occurrence::Overloaded { key },
        Occurrence::Held { key },
        Occurrence::WouldHaveAnswered,
        Occurrence::Bypassed { reason: "method" },
        Occurrence::Revalidated { key, result: RevalidationResult::Confirmed },
        Occurrence::RefreshPutOff { key, bound: RefreshBound::Refreshes },
        Occurrence::Invalidated { key },
        Occurrence::TagInvalidated { tag },
        Occurrence::InvalidatedElsewhere { key },
        Occurrence::ModeChanged { mode: Mode::Off },
        Occurrence::WaitsLong { key, waited, lease },
        Occurrence::TookOver { key, waited, lease },
        Occurrence::Locked { answer: LockAnswer::Hit },
        Occurrence::Woken { cause: WakeCause::Push },
        Occurrence::RemoteCalled { op: RemoteOp::Get, took, error: Some("timeout") },
        Occurrence::RemoteAttached,
        Occurrence::RemoteAway { server: "r", failure: Some((RemoteOp::Get, "timeout")) },
        Occurrence::RemoteBack { server: "r", away_for: SECOND, is_last: true },
        Occurrence::Damaged { how: "short" },
        Occurrence::TypeDiffers { type_name: "u8" },
        Occurrence::ValuesAltered { type_name: "u8" },
        Occurrence::Unshareable { key },
        Occurrence::CredentialRefused { field: "x-user" },
        Occurrence::IdentityUncovered { field: "authorization" },
        Occurrence::NoWriteSeen,
        Occurrence::NameShared,
        Occurrence::LayerNested,
        Occurrence::TaskLocalMissing,
        Occurrence::BodyTypeUnknown { type_name: "B" },
    ]);
    samples
}
