//! How responses get into the remote, and from there into this process. `trail` says where they
//! stand.

use std::sync::Arc;
use std::time::Duration;

use crate::entry::Entry;
use crate::http::flow::fill::{self, index_entry, weighed_index};
use crate::http::flow::lookup::{ClientRequest, HttpCaller};
use crate::http::flow::trail::lasting;
use crate::http::rules::codings::Coding;
use crate::http::rules::vary::{Fingerprint, VaryList};
use crate::http::stored::generation::{Generation, leaf_key};
use crate::http::stored::response::{Index, MAX_LISTS, StoredEntry, StoredResponse, index_of};
use crate::key::{Key, is_of_process};
use crate::lease::hold::{FillTarget, Merge};

/// How many times as long as the response behind it an anchor lasts once it is prolonged: so
/// the next few responses find it, and need not prolong it.
const ANCHOR_LASTS: u32 = 4;

impl HttpCaller {
    /// Returns whether `found` is newer than what is in hand.
    pub(super) fn is_news(&self, found: &StoredEntry) -> bool {
        self.stale.as_ref().is_none_or(|stale| stale.window().started < found.window().started)
    }
}

/// Takes over what the remote knows of the variants of a URI. It says where to
/// look, not what is there: an invalidation does not concern it.
pub(super) fn learn(caller: &HttpCaller, found: &StoredEntry) {
    let ClientRequest { cache, rules, primary, .. } = &*caller.request;
    let Some(index) = index_of(found) else { return };
    let change = cache.local.update(primary, |old| {
        let merged = match old.and_then(|old| index_of(old)) {
            // The last fill by any process says which coding to expect.
            Some(ours) => {
                Index { codings: index.codings.merged(ours.codings), ..ours.merged(index) }
            }
            None => Index { generation: None, ..index.clone() },
        };
        let merged = merged.at_most(rules.config.max_variants);
        let entry = index_entry(merged, found, old, Duration::ZERO);
        Some(weighed_index(cache, primary, entry))
    });
    change.finish();
}

/// Stores what the remote has, unless it was invalidated since the look began. Returns the
/// entry as it is in this process.
pub(super) fn adopt(
    caller: &HttpCaller,
    found: &StoredEntry,
    allowed: &dyn Fn(&StoredEntry) -> bool,
) -> StoredEntry {
    let entry = of_this_process(caller, found);
    if let Some(stored) = entry.value.response() {
        // The caller uses it now; in this process it is the first use.
        stored.touch(caller.request.cache.now());
    }
    fill::store(caller, &entry, &|| allowed(&entry)).finish();
    caller.request.cache.adopted(&entry);
    entry
}

/// Returns an entry of the remote with the tags that it has in this process alone.
fn of_this_process(caller: &HttpCaller, found: &StoredEntry) -> StoredEntry {
    let own = caller.request.tags.iter().filter(|tag| is_of_process(tag));
    let tags: Vec<_> =
        found.tags.iter().filter(|tag| !is_of_process(tag)).chain(own).cloned().collect();
    let since = caller.trail.since().map_or(found.started_seq, |at| at.min(found.started_seq));
    let entry = Entry::new(found.value.clone(), found.window(), tags, since);
    fill::weighed(caller, entry.with_version(found.version))
}

/// Returns where a stored response and the indexes that lead to it go in the remote. `leased` is
/// the key that the leader has the lease of.
pub(super) fn fill_targets(
    caller: &HttpCaller,
    entry: &StoredEntry,
    leased: &Key,
) -> Vec<FillTarget<StoredResponse>> {
    let primary = caller.remote_primary();
    let index = caller.trail.index.as_ref().filter(|_| primary != *leased);
    if index.is_none() && primary != *leased {
        // Nothing that it may change leads to what it would fill.
        return Vec::new();
    }
    let facts = entry.value.response().map(|stored| &stored.facts);
    let varies =
        facts.and_then(|facts| Some((facts.vary.as_ref()?, facts.coding, facts.fingerprint?)));
    let mut targets = match (varies, index) {
        (None, None) => vec![FillTarget::new(primary, Arc::clone(entry)).merging(newer(entry))],
        // It takes the place of the index, if that still stands there.
        (None, Some(index)) => {
            vec![FillTarget::over(primary, index, of_generation(index, newer(entry)))]
        }
        (Some((list, coding, selected)), index) => {
            let generation = index.and_then(|index| index_of(index)?.generation);
            let new = generation.unwrap_or_else(Generation::random);
            let variant = leaf_key([new], &caller.request.primary, Some(selected));
            let ours = index_to(caller, entry, (list, coding, selected), new);
            let at_primary = match index {
                Some(index) => {
                    let merge = merge_index(ours, caller.request.rules.config.max_variants);
                    FillTarget::over(primary, index, of_generation(index, merge))
                }
                None => FillTarget::new(primary, ours),
            };
            vec![FillTarget::new(variant, Arc::clone(entry)).merging(newer(entry)), at_primary]
        }
    };
    if let Some((anchor, stands)) = caller.anchor_passed() {
        let merge = of_generation(stands, prolong(entry));
        targets.push(FillTarget::over(anchor.clone(), stands, merge));
    }
    targets
}

/// Replaces what is older.
fn newer(entry: &StoredEntry) -> Merge<StoredResponse> {
    let entry = Arc::clone(entry);
    Box::new(move |found| {
        let is_older = index_of(found).is_some() || found.window().started < entry.window().started;
        is_older.then(|| Arc::clone(&entry))
    })
}

/// Merges with an index of the same generation only: another one does not lead to what this
/// leader has filled.
fn of_generation(seen: &StoredEntry, mut merge: Merge<StoredResponse>) -> Merge<StoredResponse> {
    let generation = index_of(seen).and_then(|index| index.generation);
    Box::new(move |found| {
        let is_same = generation.is_some() && index_of(found)?.generation == generation;
        if is_same { merge(found) } else { None }
    })
}

/// Makes the index that leads to a new variant. In a new generation it is the only one.
fn index_to(
    caller: &HttpCaller,
    entry: &StoredEntry,
    (list, coding, selected): (&VaryList, Coding, Fingerprint),
    generation: Generation,
) -> StoredEntry {
    let local = caller.request.cache.local.peek(caller.request.primary.as_bytes());
    let known = local.as_ref().and_then(|entry| index_of(entry));
    let lists = known.map(|known| known.lists.clone()).unwrap_or_default();
    let index = Index { lists, generation: Some(generation), ..Index::default() };
    let remembered = caller.request.cache.engine.settings.uncacheable_for();
    Arc::new(index_entry(index.with(list, coding, selected), entry, None, remembered))
}

/// Adds to what other processes know of the variants of a URI, where that says
/// anything new.
fn merge_index(ours: StoredEntry, max_variants: usize) -> Merge<StoredResponse> {
    Box::new(move |found: &Arc<Entry<StoredResponse>>| {
        let (index, theirs) = (index_of(&ours)?, index_of(found)?);
        let lasts = found.window().useful_until() >= ours.window().useful_until();
        if lasts && theirs.knows_all_of(index) {
            return None;
        }
        let merged = index.merged(theirs).at_most(max_variants);
        Some(Arc::new(index_entry(merged, &ours, Some(found), Duration::ZERO)))
    })
}

/// Lets an anchor last longer, where it would end before the response behind it.
fn prolong(entry: &StoredEntry) -> Merge<StoredResponse> {
    let (started, until) = (entry.window().started, entry.window().kept_until());
    Box::new(move |found| {
        let index = index_of(found)?.clone();
        if found.window().kept_until() >= until {
            return None;
        }
        let lasts = until.since(started).saturating_mul(ANCHOR_LASTS);
        let window = lasting(started, lasts);
        Some(Arc::new(Entry::new(index.into(), window, Box::default(), found.started_seq)))
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
        merged.codings = self.codings.merged(other.codings);
        merged
    }

    fn knows_all_of(&self, other: &Self) -> bool {
        other.lists.iter().all(|list| self.lists.contains(list))
            && other.variants.iter().all(|variant| self.variants.contains(variant))
            && self.codings.has_all_of(other.codings)
    }
}
