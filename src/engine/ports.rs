//! What the engine needs of the world outside.

use std::sync::Arc;

use crate::entry::Entry;
use crate::garbage::Garbage;
use crate::key::Key;

/// The store of this process. Fills and removals of one key are serial: what
/// `allowed` says is decided under the same lock as the write it allows.
///
/// No operation drops an entry: each hands out what it has replaced, removed or
/// evicted, and the caller drops it when it holds no lock and has published what
/// others wait for.
pub(crate) trait Local<V: Send + Sync + 'static>: Send + Sync + 'static {
    /// Stores `entry` if `allowed`, unless it is too heavy to be stored.
    fn fill(&self, key: &Key, entry: Arc<Entry<V>>, allowed: &dyn Fn() -> bool) -> StoreChange<V>;

    /// Removes whatever stands there.
    fn remove(&self, key: &Key) -> StoreChange<V>;

    /// Removes everything.
    fn clear(&self) -> Garbage<V>;

    /// Removes this very entry.
    fn remove_exactly(&self, key: &Key, entry: &Arc<Entry<V>>) -> Garbage<V>;

    /// Shows every entry to `keep`, and removes those that it does not keep.
    /// What is filled meanwhile may be shown or not.
    fn retain(&self, keep: &dyn Fn(&Entry<V>) -> bool) -> Garbage<V>;
}

/// What an operation of the store did.
#[derive(Debug)]
#[must_use = "dropping it runs code of the user's: say when"]
pub(crate) struct StoreChange<V: Send + Sync + 'static> {
    /// Whether the entry was stored, or an entry removed.
    pub(crate) applied: bool,
    /// What the operation has left behind, whether it was applied or not.
    pub(crate) garbage: Garbage<V>,
}

impl<V: Send + Sync + 'static> StoreChange<V> {
    /// Drops the garbage now, and returns whether the change was applied.
    pub(crate) fn finish(self) -> bool {
        let Self { applied, garbage } = self;
        drop(garbage);
        applied
    }
}

/// Sees what the engine does. Nothing here may block or panic.
pub(crate) trait Observe: Send + Sync + 'static {
    fn happened(&self, what: Happening<'_>);
}

/// One thing worth counting.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Happening<'a> {
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
    Asked { op: RemoteOp, took: std::time::Duration, error: Option<&'static str> },
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
pub(crate) enum RemoteOp {
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

impl RemoteOp {
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
