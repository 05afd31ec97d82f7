//! Where a leader looks in the remote next.

use std::sync::Arc;
use std::time::Duration;

use crate::entry::Entry;
use crate::http::flow::lookup::HttpCaller;
use crate::http::flow::trail::{generation_of, lasting};
use crate::http::stored::generation::{Generation, leaf_key};
use crate::http::stored::response::{Index, StoredEntry};
use crate::key::Key;
use crate::lease::grant::Version;

impl HttpCaller {
    /// Returns whether the leader looks at an anchor next.
    pub(super) fn is_at_anchor(&self) -> bool {
        self.request.anchor.is_some() && self.trail.anchor.is_none()
    }

    /// Returns where it looks next.
    pub(super) fn remote_key(&self) -> Key {
        if let Some(anchor) = self.request.anchor.as_ref().filter(|_| self.is_at_anchor()) {
            return anchor.clone();
        }
        let index = self.trail.index.as_ref().and_then(generation_of);
        match (index, self.predicted()) {
            (Some(generation), Some(variant)) => {
                leaf_key([generation], &self.request.primary, Some(variant))
            }
            _ => self.remote_primary(),
        }
    }

    /// Returns where the response stands in the remote if it does not vary, or its index.
    pub(super) fn remote_primary(&self) -> Key {
        if self.request.anchor.is_none() {
            return self.request.primary.clone();
        }
        leaf_key(self.trail.anchor.as_ref().and_then(generation_of), &self.request.primary, None)
    }

    /// Returns the anchor that it has come by, and what stood there.
    pub(super) fn anchor_passed(&self) -> Option<(&Key, &StoredEntry)> {
        self.request.anchor.as_ref().zip(self.trail.anchor.as_ref())
    }

    /// Makes the index to be filled at an anchor: it leads to responses that are yet to be
    /// computed, and lasts until the first of them prolongs it.
    pub(super) fn new_anchor(&self, version: Version) -> StoredEntry {
        let engine = &self.request.cache.engine;
        let settings = &engine.settings;
        let lasts = (settings.compute_timeout() + settings.wait_timeout()) * 2;
        let index = Index { generation: Some(Generation::random()), ..Index::default() };
        let window = lasting(engine.clock.now(), lasts.max(Duration::from_secs(60)));
        let entry = Entry::new(index.into(), window, Box::default(), engine.log.seq());
        Arc::new(entry.with_version(Some(version)))
    }
}
