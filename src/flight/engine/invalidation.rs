//! What the engine does where keys and tags are invalidated.

use std::sync::Arc;

use crate::clock::Tick;
use crate::entry::Entry;
use crate::flight::engine::Engine;
use crate::invalidation::Full;
use crate::key::{Key, Tag, uri_tag_of};
use crate::observe::Occurrence;

impl<V: Send + Sync + 'static> Engine<V> {
    /// Ends the local use of a key that another process invalidated or put.
    #[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "a remote tells of it"))]
    pub(crate) fn invalidated_elsewhere(&self, key: &Key) {
        match uri_tag_of(key.as_bytes()) {
            // Any client may write to any URI: what concerns nothing here is no event.
            Some(tag) if self.invalidate_if_live(&tag).is_none() => return,
            Some(_) => {}
            None => {
                self.drop_here(key);
            }
        }
        self.observer.happened(Occurrence::InvalidatedElsewhere { key });
    }

    /// Makes the value of `key` stale here, and forgets the flight and the hold of the key. Returns
    /// whether there was a value that had not ended, or a flight.
    pub(crate) fn mark_stale(&self, key: &Key) -> bool {
        // In this order: a fill that is not refused is marked.
        let had_flight = self.forget(key);
        let now = self.clock.now();
        let is_of_use =
            |entry: &Arc<Entry<V>>| now < entry.window().kept_until() && self.log.is_alive(entry);
        let found = self.local.peek(key.as_bytes()).filter(is_of_use);
        found.as_ref().inspect(|entry| entry.mark_stale(now)).is_some() || had_flight
    }

    /// Records that everything that started so far with `tag` is dead, and returns the
    /// number of the record. Never waits, but checks the local store when the
    /// log is full: the tidying task, which does so from three quarters of the
    /// bound on, could not keep up, or there is none.
    pub(crate) fn invalidate_tag(&self, tag: Tag, at: Tick) -> u64 {
        let mut appended = self.log.append(tag, at);
        loop {
            match appended {
                Ok(seq) => return seq,
                Err(Full(tag)) => {
                    self.drop_oldest_records();
                    appended = self.log.append(tag, at);
                }
            }
        }
    }

    /// The same for the tag of a URI, if anything in this process carries it.
    ///
    /// A computation that takes the tag up after the look began after the invalidation: it is
    /// not concerned.
    pub(crate) fn invalidate_if_live(&self, tag: &Tag) -> Option<u64> {
        let is_live = self.log.live.is_live(tag);
        // A copy: the log must not keep the tag live.
        let copy = || Tag::from_encoded(tag.as_bytes());
        is_live.then(|| self.invalidate_tag(copy(), self.clock.now()))
    }

    fn drop_oldest_records(&self) {
        let checking = self.log.checking.lock();
        if !self.log.is_full() {
            // Another thread has just done it.
            return;
        }
        let slice = self.log.oldest_slice();
        let garbage = self.local.retain(&|entry| self.log.is_alive(entry));
        self.log.drop_slice(slice);
        drop(checking);
        // Last: the `Drop` of values is code of the user's.
        drop(garbage);
    }
}
