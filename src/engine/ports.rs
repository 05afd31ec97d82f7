//! What the engine needs of the world outside.

use std::sync::Arc;

use crate::entry::Entry;
use crate::key::Key;

/// The store of this process. Fills and removals of one key are serial: what
/// `allowed` says is decided under the same lock as the write it allows.
pub(crate) trait Local<V>: Send + Sync + 'static {
    /// Stores `entry` if `allowed`, and returns whether it did.
    fn fill(&self, key: &Key, entry: Arc<Entry<V>>, allowed: &dyn Fn() -> bool) -> bool;

    /// Removes this very entry.
    fn remove_exactly(&self, key: &Key, entry: &Arc<Entry<V>>);
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
