//! Where the responses of a URI stand in the remote, and how they get there.

use std::sync::Arc;

use crate::entry::Entry;
use crate::http::flow::lookup::{HttpCache, HttpCaller, StoredEntry};
use crate::http::rules::vary::variant_key;
use crate::http::stored::fill::{self, index_entry, index_of, weighed_index};
use crate::http::stored::response::{Index, MAX_LISTS, StoredResponse};
use crate::key::Key;
use crate::lease::hold::{FillTarget, Merge};

impl HttpCaller {
    /// Returns whether `found` is newer than what is in hand.
    pub(super) fn is_news(&self, found: &StoredEntry) -> bool {
        self.stale.as_ref().is_none_or(|stale| stale.window().started < found.window().started)
    }
}

/// Takes over what the remote knows of the variants of a URI. It says where to
/// look, not what is there: an invalidation does not concern it.
pub(super) fn learn(cache: &HttpCache, primary: &Key, found: &StoredEntry, max_variants: usize) {
    let Some(index) = index_of(found) else { return };
    let change = cache.local.update(primary, |old| {
        let merged = match old.and_then(|old| index_of(old)) {
            Some(ours) => ours.merged(index),
            None => index.clone(),
        };
        let merged = merged.at_most(max_variants);
        let entry = index_entry(merged, found, old, std::time::Duration::ZERO);
        Some(weighed_index(cache, primary, entry))
    });
    change.finish();
}

/// Stores what the remote has, unless it was invalidated meanwhile.
pub(super) fn adopt(caller: &HttpCaller, entry: &StoredEntry, allowed: &dyn Fn() -> bool) {
    if let Some(stored) = entry.value.response() {
        // The caller uses it now; in this process it is the first use.
        stored.touch(caller.cache.now());
    }
    fill::store(caller, entry, allowed).finish();
    caller.cache.adopted(entry);
}

/// Returns where a stored response and the index to it go in the remote.
pub(super) fn fill_targets(
    caller: &HttpCaller,
    entry: &StoredEntry,
) -> Vec<FillTarget<StoredResponse>> {
    let facts = entry.value.response().map(|stored| &stored.facts);
    let Some(selected) = facts.and_then(|facts| facts.fingerprint) else {
        let place = FillTarget::new(caller.primary.clone(), Arc::clone(entry));
        return vec![place.merging(newer(entry))];
    };
    let variant = variant_key(caller.primary.as_bytes(), selected);
    let mut places = vec![FillTarget::new(variant, Arc::clone(entry)).merging(newer(entry))];
    let index = caller.cache.local.get(caller.primary.as_bytes());
    if let Some(index) = index.filter(|entry| index_of(entry).is_some()) {
        let merge = merge_index(&index, caller.rules.config.max_variants);
        places.push(FillTarget::new(caller.primary.clone(), index).merging(merge));
    }
    places
}

/// Replaces what is older.
fn newer(entry: &StoredEntry) -> Merge<StoredResponse> {
    let entry = Arc::clone(entry);
    Box::new(move |found| {
        (found.window().started < entry.window().started).then(|| Arc::clone(&entry))
    })
}

/// Adds to what other processes know of the variants of a URI, where that says
/// anything new.
fn merge_index(ours: &StoredEntry, max_variants: usize) -> Merge<StoredResponse> {
    let ours = Arc::clone(ours);
    Box::new(move |found: &Arc<Entry<StoredResponse>>| {
        let (Some(index), Some(theirs)) = (index_of(&ours), index_of(found)) else {
            return Some(Arc::clone(&ours));
        };
        let lasts = found.window().useful_until() >= ours.window().useful_until();
        if lasts && theirs.knows_all_of(index) {
            return None;
        }
        let merged = index.merged(theirs).at_most(max_variants);
        Some(Arc::new(index_entry(merged, &ours, Some(found), std::time::Duration::ZERO)))
    })
}

impl Index {
    /// Returns the index with what another process knows, own knowledge first.
    pub(super) fn merged(&self, other: &Self) -> Self {
        let mut merged = self.clone();
        merged.lists.extend(other.lists.iter().filter(|list| !self.lists.contains(list)).cloned());
        let new = other.variants.iter().filter(|variant| !self.variants.contains(variant));
        merged.variants.extend(new.copied());
        merged.lists.truncate(MAX_LISTS);
        merged
    }

    fn knows_all_of(&self, other: &Self) -> bool {
        other.lists.iter().all(|list| self.lists.contains(list))
            && other.variants.iter().all(|variant| self.variants.contains(variant))
    }
}
