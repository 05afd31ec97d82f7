//! What the engine needs of the world outside.

use std::sync::Arc;

use crate::entry::Entry;
use crate::key::Key;

/// The store of this process. Fills and removals of one key are serial: what
/// `allowed` says is decided under the same lock as the write it allows.
pub(crate) trait Store<V>: Send + Sync + 'static {
    /// Stores `entry` if `allowed`, and returns whether it did.
    fn fill(&self, key: &Key, entry: Arc<Entry<V>>, allowed: &dyn Fn() -> bool) -> bool;

    /// Removes whatever stands there, and returns whether something did.
    fn remove(&self, key: &Key) -> bool;

    /// Removes everything.
    fn clear(&self);

    /// Removes this very entry.
    fn remove_exactly(&self, key: &Key, entry: &Arc<Entry<V>>);
}

/// Sees what the engine does. Nothing here may block or panic.
pub(crate) trait Observe: Send + Sync + 'static {
    fn happened(&self, what: Occurrence<'_>);
}

/// One thing worth counting.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Occurrence<'a> {
    /// A computation ended, and how.
    Computed { key: &'a Key, took: std::time::Duration, end: ComputedEnd },
    /// A result was not stored: invalidated, or its leader was deposed.
    FillRefused { key: &'a Key },
    /// A caller took the lead.
    Led,
    /// A caller joined a computation under way.
    Joined,
    /// A caller stopped waiting, after so long.
    Waited { took: std::time::Duration },
    /// A caller gave up waiting.
    WaitTimedOut { key: &'a Key },
    /// A caller was turned away at a bound.
    Overloaded { key: &'a Key },
    /// A caller was turned away by a hold.
    Held { key: &'a Key },
    /// The remote's answer to an acquire.
    Locked { answer: LockAnswer },
    /// A leader that waits for another process looks again.
    Woken { cause: WakeCause },
    /// A call to the remote ended.
    RemoteCalled { op: RemoteCall, took: std::time::Duration, error: Option<&'static str> },
    /// There is a remote, and it is asked.
    RemoteAttached,
    /// The remote is asked again, or not any more.
    RemoteIs { up: bool },
    /// What stands in the remote cannot be used.
    Damaged { how: &'static str },
    /// A result stays in this process: too large, or not to be encoded.
    Unshareable { key: &'a Key },
    /// Another process invalidated or put a key.
    InvalidatedElsewhere { key: &'a Key },
}

/// What the remote is asked for.
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
    pub(crate) const ALL: [Self; 12] = [
        Self::Get,
        Self::Acquire,
        Self::Fill,
        Self::Renew,
        Self::Abandon,
        Self::Invalidate,
        Self::InvalidateTags,
        Self::ReadTags,
        Self::RestoreTags,
        Self::TrimTags,
        Self::Put,
        Self::Probe,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
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

/// What the remote says to one who asks for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockAnswer {
    Acquired,
    Hit,
    Locked,
    Held,
}

/// Why a leader that waits for another process looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeCause {
    /// It was told to.
    Push,
    /// It was not told, and looks to be safe.
    Timer,
    /// It cannot be told at the moment.
    Poll,
}

/// How a computation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ComputedEnd {
    Stored,
    Shared,
    Declined,
    Failed,
    TimedOut,
    Panicked,
    Dropped,
}
