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

use std::sync::Arc;
use std::time::Duration;

use crate::entry::Entry;
use crate::freshness::{Lifetimes, Window};
use crate::http::flow::lookup::{HttpCache, HttpCaller, StoredEntry};
use crate::http::stored::fill::index_of;
use crate::http::stored::generation::{Generation, leaf_key};
use crate::http::stored::response::Index;
use crate::key::{Key, UriName};
use crate::lease::grant::Version;

/// How far a leader has looked.
#[derive(Default)]
pub(crate) struct Trail {
    /// What stands at the anchor.
    anchor: Option<StoredEntry>,
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

fn generation_of(entry: &StoredEntry) -> Option<Generation> {
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

impl HttpCaller {
    /// Returns whether the leader looks at an anchor next.
    pub(super) fn is_at_anchor(&self) -> bool {
        self.anchor.is_some() && self.trail.anchor.is_none()
    }

    /// Returns where it looks next.
    pub(super) fn remote_key(&self) -> Key {
        if let Some(anchor) = self.anchor.as_ref().filter(|_| self.is_at_anchor()) {
            return anchor.clone();
        }
        let index = self.trail.index.as_ref().and_then(generation_of);
        match (index, self.predicted()) {
            (Some(generation), Some(variant)) => {
                leaf_key([generation], &self.primary, Some(variant))
            }
            _ => self.remote_primary(),
        }
    }

    /// Returns where the response stands in the remote if it does not vary, or its index.
    pub(super) fn remote_primary(&self) -> Key {
        if self.anchor.is_none() {
            return self.primary.clone();
        }
        leaf_key(self.trail.anchor.as_ref().and_then(generation_of), &self.primary, None)
    }

    /// Goes on from an index.
    pub(super) fn follow(&mut self, index: &StoredEntry) {
        if self.is_at_anchor() {
            self.trail.anchor = Some(Arc::clone(index));
        } else {
            self.trail.index = Some(Arc::clone(index));
        }
    }

    /// Returns the anchor that it has come by, and what stood there.
    pub(super) fn anchor_passed(&self) -> Option<(&Key, &StoredEntry)> {
        self.anchor.as_ref().zip(self.trail.anchor.as_ref())
    }

    /// Makes the index to be filled at an anchor: it leads to responses that are yet to be
    /// computed, and lasts until the first of them prolongs it.
    pub(super) fn new_anchor(&self, version: Version) -> StoredEntry {
        let engine = &self.cache.engine;
        let settings = &engine.settings;
        let lasts = (settings.compute_timeout() + settings.wait_timeout()) * 2;
        let index = Index { generation: Some(Generation::random()), ..Index::default() };
        let window = lasting(engine.clock.now(), lasts.max(Duration::from_secs(60)));
        let entry = Entry::new(index.into(), window, Box::default(), engine.log.seq());
        Arc::new(entry.with_version(Some(version)))
    }
}

/// Returns a window in which an index is of use for so long.
pub(super) fn lasting(now: crate::clock::Tick, lasts: Duration) -> Window {
    let lifetimes =
        Lifetimes { ttl: lasts, stale_for: Duration::ZERO, stale_if_error: Duration::ZERO };
    Window::new(now, lifetimes, Duration::ZERO)
}
