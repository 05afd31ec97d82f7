//! The public events: what an application can subscribe to.

use std::time::Duration;

use crate::key::{Key, Tag};
use crate::mode::Mode;

/// Something that happened in the cache; see
/// [`Stampede::events`](crate::Stampede::events). Hits are not events: they
/// are counted, nothing more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A computation ended and its result is stored or shared.
    #[non_exhaustive]
    Computed {
        /// What was computed.
        key: Key,
        /// How long it took.
        took: Duration,
        /// Whether the result may be shared and was not out of date already.
        shared: bool,
    },
    /// A computation failed, took too long, panicked or was dropped.
    #[non_exhaustive]
    Failed {
        /// What was to be computed.
        key: Key,
        /// How long it took.
        took: Duration,
        /// One of `failed`, `timed_out`, `panicked`, `dropped`.
        how: &'static str,
    },
    /// A result was not stored, because it was invalidated while it was computed.
    #[non_exhaustive]
    FillRefused {
        /// What was computed.
        key: Key,
    },
    /// A caller gave up waiting.
    #[non_exhaustive]
    WaitTimedOut {
        /// What it waited for.
        key: Key,
    },
    /// A caller was turned away at a bound on waiters or computations.
    #[non_exhaustive]
    Overloaded {
        /// What it asked for.
        key: Key,
    },
    /// A caller was turned away because the key failed a moment ago.
    #[non_exhaustive]
    Held {
        /// What it asked for.
        key: Key,
    },
    /// A key was invalidated, by this process or another.
    #[non_exhaustive]
    Invalidated {
        /// Which.
        key: Key,
    },
    /// A tag, or everything, was invalidated.
    #[non_exhaustive]
    TagInvalidated {
        /// Which; see [`Tag::is_everything`].
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
        /// What was computed.
        key: Key,
    },
    /// The cache was switched.
    #[non_exhaustive]
    ModeChanged {
        /// To what.
        mode: Mode,
    },
}
