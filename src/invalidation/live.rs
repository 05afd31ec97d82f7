//! Which tags of URIs something in this process carries.
//!
//! A tag that is taken from here is one piece of memory with a count, and so is every clone of
//! it: in an entry, a flight, a hold, a caller. While there is a clone, the tag is live. So nothing
//! has to be told when an entry is evicted or a flight ends.
//!
//! A caller takes its tag before it looks for anything and before it reads the number of the
//! log. So a write that finds the tag not live comes before all that the caller reads.

use std::collections::HashSet;
use std::hash::BuildHasher;

use crate::key::Tag;
use crate::sync::{Mutex, RandomState};

const SHARDS: usize = if cfg!(stampede_model) { 1 } else { 64 };

/// A shard below this size is not worth a look for tags that are not live any more.
const LEAST_SWEPT: usize = 64;

#[derive(Debug)]
pub(crate) struct LiveTags {
    shards: Box<[Mutex<LiveShard>]>,
    hasher: RandomState,
}

/// Not of `crate::sync`: the models do not check how clones are counted.
type Counted = std::sync::Arc<[u8]>;

#[derive(Debug)]
struct LiveShard {
    tags: HashSet<Counted, RandomState>,
    /// At which size it is looked through next.
    sweep_at: usize,
}

impl Default for LiveShard {
    fn default() -> Self {
        Self { tags: HashSet::default(), sweep_at: LEAST_SWEPT }
    }
}

impl Default for LiveTags {
    fn default() -> Self {
        let shards = std::iter::repeat_with(Mutex::default).take(SHARDS).collect();
        Self { shards, hasher: RandomState::default() }
    }
}

impl LiveTags {
    fn shard(&self, tag: &[u8]) -> &Mutex<LiveShard> {
        &self.shards[self.hasher.hash_one(tag) as usize % SHARDS]
    }

    /// Returns the tag as it is counted here. It is live until the last clone is dropped.
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "HTTP's URIs"))]
    pub(crate) fn take(&self, tag: &Tag) -> Tag {
        let mut shard = self.shard(tag.as_bytes()).lock();
        if let Some(known) = shard.tags.get(tag.as_bytes()) {
            return Tag::counted(Counted::clone(known));
        }
        let counted = Counted::from(tag.as_bytes());
        shard.tags.insert(Counted::clone(&counted));
        if shard.tags.len() >= shard.sweep_at {
            shard.sweep();
        }
        Tag::counted(counted)
    }

    pub(crate) fn is_live(&self, tag: &Tag) -> bool {
        let shard = self.shard(tag.as_bytes()).lock();
        shard.tags.get(tag.as_bytes()).is_some_and(is_carried)
    }

    /// Forgets the tags that are not live.
    pub(crate) fn sweep(&self) {
        self.shards.iter().for_each(|shard| shard.lock().sweep());
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().tags.len()).sum()
    }
}

impl LiveShard {
    /// The next look comes when the shard has doubled: so each tag costs a few looks.
    fn sweep(&mut self) {
        self.tags.retain(is_carried);
        self.sweep_at = (self.tags.len() * 2).max(LEAST_SWEPT);
        self.tags.shrink_to(self.sweep_at);
    }
}

/// Returns whether there is a clone outside of the shard. Only the shard makes the first one,
/// under its lock.
fn is_carried(tag: &Counted) -> bool {
    Counted::strong_count(tag) > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_live_as_long_as_a_clone_is_carried() {
        let (live, tag) = (LiveTags::default(), Tag::from("a"));
        assert!(!live.is_live(&tag));
        let taken = live.take(&tag);
        assert_eq!(taken, tag);
        let clone = taken.clone();
        drop(taken);
        assert!(live.is_live(&tag));
        drop(clone);
        assert!(!live.is_live(&tag));
    }

    #[test]
    fn tags_that_are_not_live_take_bounded_memory() {
        let live = LiveTags::default();
        let kept: Vec<_> = (0..1000_u32).map(|n| live.take(&n.into())).collect();
        for n in 0..1_000_000_u32 {
            drop(live.take(&n.into()));
        }
        assert!(live.len() <= 2 * kept.len() + SHARDS * LEAST_SWEPT, "{}", live.len());
        live.sweep();
        assert_eq!(live.len(), kept.len());
        drop(kept);
        live.sweep();
        assert_eq!(live.len(), 0);
    }
}
