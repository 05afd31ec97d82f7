//! The occurrences that the engine and its surroundings report.
//!
//! [`table`](super::table) says what becomes of each.

use std::time::Duration;

use crate::key::{Key, Tag};
use crate::mode::Mode;

/// Receives what the engine does. An implementation must neither block nor
/// panic.
pub(crate) trait Observe: Send + Sync + 'static {
    fn happened(&self, what: Occurrence<'_>);
}

/// One thing that happened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Occurrence<'a> {
    /// The computation of a flight ended.
    Computed { key: &'a Key, took: Duration, end: ComputationEnd },
    /// A caller computed for itself, outside any flight. `reason` is a word of
    /// a closed set.
    ComputedAlone { reason: &'static str, took: Duration },
    /// A result was not stored: it was invalidated meanwhile, or its leader was
    /// deposed.
    FillRefused { key: &'a Key },
    /// A caller took the lead.
    Led,
    /// A caller joined a running computation.
    Joined,
    /// A caller stopped waiting after `took`, with or without an answer.
    Waited { took: Duration },
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
    /// This process invalidated a key.
    Invalidated { key: &'a Key },
    /// This process invalidated a tag, or everything.
    TagInvalidated { tag: &'a Tag },
    /// Another process invalidated or put a key.
    InvalidatedElsewhere { key: &'a Key },
    /// The cache was switched.
    ModeChanged { mode: Mode },
    /// The remote answered an acquire.
    Locked { answer: LockAnswer },
    /// A leader that waits for another process looks again.
    Woken { cause: WakeCause },
    /// A call to the remote ended.
    RemoteCalled { op: RemoteCall, took: Duration, error: Option<&'static str> },
    /// The cache was built with a remote.
    RemoteAttached,
    /// The remote is asked again (`up`), or is not asked any more.
    RemoteChanged { up: bool },
    /// A value in the remote cannot be used.
    Damaged { how: &'static str },
    /// A result stays in this process: it is too large or cannot be encoded.
    Unshareable { key: &'a Key },
    /// A response was not shared because its request carries this field.
    CredentialRefused { field: &'a str },
}

/// A kind of call to the remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemoteCall {
    Get,
    Acquire,
    Fill,
    Renew,
    Abandon,
    Invalidate,
    InvalidateTags,
    ReadTags,
    RestoreTags,
    TrimTags,
    Put,
    Probe,
}

impl RemoteCall {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Acquire => "acquire",
            Self::Fill => "fill",
            Self::Renew => "renew",
            Self::Abandon => "abandon",
            Self::Invalidate => "invalidate",
            Self::InvalidateTags => "invalidate_tags",
            Self::ReadTags => "read_tags",
            Self::RestoreTags => "restore_tags",
            Self::TrimTags => "trim_tags",
            Self::Put => "put",
            Self::Probe => "probe",
        }
    }
}

/// The remote's answer to an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockAnswer {
    Acquired,
    Hit,
    Locked,
    Held,
}

impl LockAnswer {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Hit => "hit",
            Self::Locked => "locked",
            Self::Held => "held",
        }
    }
}

/// Why a leader that waits for another process looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeCause {
    /// A wake-up arrived.
    Push,
    /// No wake-up arrived in time.
    Timer,
    /// No wake-up can arrive at the moment.
    Poll,
}

impl WakeCause {
    pub(super) const ALL: [Self; 3] = [Self::Push, Self::Timer, Self::Poll];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Timer => "timer",
            Self::Poll => "poll",
        }
    }
}

/// How the computation of a flight ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ComputationEnd {
    Stored,
    Shared,
    Declined,
    Failed,
    TimedOut,
    Panicked,
    Dropped,
}

impl ComputationEnd {
    /// The words used in metrics, events and log lines, in the order of the
    /// variants.
    pub(super) const WORDS: [&'static str; 7] =
        ["stored", "shared", "declined", "failed", "timed_out", "panicked", "dropped"];

    pub(super) const fn as_str(self) -> &'static str {
        Self::WORDS[self as usize]
    }

    /// From `Failed` on, every end is a failure.
    pub(super) const fn is_failure(self) -> bool {
        self as usize >= Self::Failed as usize
    }
}
