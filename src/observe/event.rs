//! The public events: what an application can subscribe to.

use std::time::Duration;

use crate::key::{Key, Tag};
use crate::mode::Mode;

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
    /// A computation failed, took too long, panicked or was dropped.
    #[non_exhaustive]
    Failed {
        /// The key that was to be computed.
        key: Key,
        /// How long it took.
        took: Duration,
        /// One of `failed`, `timed_out`, `panicked`, `dropped`.
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
