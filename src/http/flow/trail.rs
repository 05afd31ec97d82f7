//! The way of a leader to where its response stands in the remote.
//!
//! A write to a URI knows the URI, and not what else tells its responses apart. So what
//! it removes from the remote is what leads to them:
//!
//! ```text
//! primary key ── a response, or an index ── variants
//! anchor ─────── an index ─┬─ a response, or an index ── variants
//!                          └─ ...
//! ```
//!
//! A response with nothing in its primary key but the URI stands there itself. Where a request
//! has more in its key (a part that the application adds, a keyed field, a rewritten URI), the way begins at the *anchor* of the URI. An index holds a random number, its
//! *generation*, which is a part of the keys that it leads to. Once an index is removed,
//! nothing leads to the entries behind it, whichever process fills it.
//!
//! # Which leader fills an index
//!
//! Only the grant of its own key allows to fill an index where none stands. An anchor's is
//! filled at once by the leader that is granted the anchor. An index of variants is
//! filled by the leader that computes the first response under the primary key. The leader of
//! another key may change an index that stands there with the generation that it has come by
//! ([`FillTarget::over`](crate::lease::hold::FillTarget::over)), and never make one: a write may
//! have removed it. A second leader has the lease of the first, and its way.
//!
//! # How a look is ordered
//!
//! A leader begins each look at the start of the way, also after it has waited for another
//! process: the index may have gone. What it finds at the end counts as read when the look
//! began: an invalidation that this process learns of during the look ends it.
//!
//! Entries of this process have no generation: their tags end them.

use std::time::Duration;

use crate::freshness::{Lifetimes, Window};
use crate::http::stored::generation::Generation;
use crate::http::stored::response::{HttpCache, StoredEntry, index_of};
use crate::key::{Key, UriName};

/// How far a leader has looked.
#[derive(Default)]
pub(crate) struct Trail {
    /// What stands at the anchor.
    pub(super) anchor: Option<StoredEntry>,
    /// The index of variants.
    pub(super) index: Option<StoredEntry>,
}

/// Returns the anchor on the way to the responses of a request; none where the way begins at its
/// primary key, or where there is no remote.
pub(super) fn anchor(cache: &HttpCache, primary: &[u8]) -> Option<Key> {
    if cache.engine.shared.get().is_none() || UriName::is_all_of(primary) {
        return None;
    }
    UriName::of_key(primary).map(|name| name.anchor())
}

pub(super) fn generation_of(entry: &StoredEntry) -> Option<Generation> {
    index_of(entry)?.generation
}

impl Trail {
    /// Returns the way that the first leader of a flight has gone. The second one fills under
    /// its lease, and nothing but what that lease was granted for.
    pub(super) fn of_way(way: &[StoredEntry], has_anchor: bool) -> Self {
        let (anchor, index) = way.split_at(usize::from(has_anchor).min(way.len()));
        Self { anchor: anchor.first().cloned(), index: index.first().cloned() }
    }

    /// Returns what it has come by.
    pub(super) fn way(&self) -> Box<[StoredEntry]> {
        self.anchor.iter().chain(&self.index).cloned().collect()
    }

    /// Returns the number of the invalidation log when the look began.
    pub(super) fn since(&self) -> Option<u64> {
        self.anchor.iter().chain(&self.index).map(|entry| entry.started_seq).min()
    }
}

/// Returns a window in which an index is of use for so long.
pub(super) fn lasting(now: crate::clock::Tick, lasts: Duration) -> Window {
    let lifetimes =
        Lifetimes { ttl: lasts, stale_for: Duration::ZERO, stale_if_error: Duration::ZERO };
    Window::new(now, lifetimes, Duration::ZERO)
}
