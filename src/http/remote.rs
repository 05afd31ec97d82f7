//! Where the responses of a URI stand in the remote, and what a leader looks
//! for there.

use std::sync::Arc;

use super::answer::is_failure;
use super::fill::{self, index_entry, index_of};
use super::lookup::{Cache, HttpCaller, Stored, is_validated_by_each, must_be_validated};
use super::stored::{Index, MAX_LISTS, Slot, StoredResponse, selects};
use super::validate::validators;
use super::vary::variant_key;
use crate::engine::lease::{Merge, Place};
use crate::engine::remote_leader::{Judged, Patience, Wanted};
use crate::engine::waiter::Caller;
use crate::entry::Entry;
use crate::key::Key;
use crate::policy::Freshness;
use crate::serve::Seen;

/// What the leader of an HTTP flight is out for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// A response that answers this request.
    Answer,
    /// A newer one than this; nobody waits.
    Refresh(Seen),
}

impl Purpose {
    pub(super) fn patience(self, caller: &mut HttpCaller) -> Patience {
        match self {
            Self::Refresh(_) => Patience::GiveUp,
            // Answers are not shared: the lease is for who may store one.
            Self::Answer if caller.validates_itself() => Patience::GoOn,
            // In the remote there is one lock for all: whose answers are known
            // to be for them alone must not keep it from those who share.
            Self::Answer if caller.boarding().never_wait && caller.is_not_shared() => {
                Patience::Apart
            }
            // Answers are not known to be shared with such credentials.
            Self::Answer if caller.boarding().never_wait => Patience::GoOn,
            Self::Answer => Patience::Wait,
        }
    }
}

/// A request, in the remote.
pub(super) struct HttpWanted<'a> {
    caller: &'a HttpCaller,
    key: Key,
    purpose: Purpose,
    /// Found on the way: may stand in for a failure, or be validated.
    pub(super) stand_in: Option<Stored>,
    /// Whether something good stands there, also what this request may not be
    /// answered with.
    pub(super) occupied: bool,
}

impl<'a> HttpWanted<'a> {
    pub(super) fn new(caller: &'a HttpCaller, purpose: Purpose) -> Self {
        Self { caller, key: caller.store_key(), purpose, stand_in: None, occupied: false }
    }

    fn follow(&mut self, found: &Stored) -> Judged {
        let max_variants = self.caller.rules.config.max_variants;
        learn(&self.caller.cache, &self.caller.primary, found, max_variants);
        let key = self.caller.store_key();
        if key == self.key {
            return Judged::Useless;
        }
        self.key = key;
        Judged::Elsewhere
    }

    fn judge_response(&mut self, found: &Stored) -> Judged {
        let serves = match self.purpose {
            Purpose::Answer => true,
            Purpose::Refresh(seen) if seen.is_no_older_than(found) => return Judged::Useless,
            Purpose::Refresh(_) => false,
        };
        let (wishes, now) = (self.caller.wishes, self.caller.cache.now());
        let freshness = match self.caller.cache.judge(found, now) {
            _ if must_be_validated(found) => Freshness::Expired,
            freshness => freshness,
        };
        let meets = wishes.are_met_by(found, now);
        match freshness {
            Freshness::Fresh | Freshness::Early if meets => Judged::Serves,
            Freshness::Stale if serves && wishes.demand.is_none() => Judged::Serves,
            Freshness::Fresh | Freshness::Early | Freshness::Stale | Freshness::StaleIfError => {
                self.stand_in = serves.then(|| Arc::clone(found));
                Judged::Useless
            }
            Freshness::Expired => {
                let stored = found.value.response();
                let may_be_validated = stored.is_some_and(|stored| validators(stored).is_some());
                self.stand_in = may_be_validated.then(|| Arc::clone(found));
                if is_validated_by_each(found) { Judged::ForEach } else { Judged::Expired }
            }
        }
    }
}

impl Wanted<StoredResponse> for HttpWanted<'_> {
    fn key(&self) -> &Key {
        &self.key
    }

    fn judge(&mut self, found: &Stored) -> Judged {
        let HttpCaller { asked, headers, rules, .. } = self.caller;
        match found.value.slot() {
            Slot::Index(_) => self.follow(found),
            Slot::Response(stored) => {
                self.occupied = !is_failure(stored.status) && self.caller.cache.may_stand_in(found);
                if selects(stored, asked, headers, &rules.config) {
                    self.judge_response(found)
                } else {
                    Judged::Useless
                }
            }
        }
    }
}

impl HttpCaller {
    /// Returns whether `found` is newer than what is in hand.
    pub(super) fn is_news(&self, found: &Stored) -> bool {
        self.stale.as_ref().is_none_or(|stale| stale.window.started < found.window.started)
    }
}

/// Takes over what the remote knows of the variants of a URI. It says where to
/// look, not what is there: an invalidation does not concern it.
fn learn(cache: &Cache, primary: &Key, found: &Stored, max_variants: usize) {
    let Some(index) = index_of(found) else { return };
    let change = cache.local.update(primary, |old| {
        let merged = match old.and_then(|old| index_of(old)) {
            Some(ours) => ours.merged(index),
            None => index.clone(),
        };
        let merged = merged.at_most(max_variants);
        Some(Arc::new(index_entry(merged, found, old, std::time::Duration::ZERO)))
    });
    change.finish();
}

/// Stores what the remote has, unless it was invalidated meanwhile.
pub(super) fn adopt(caller: &HttpCaller, entry: &Stored, allowed: &dyn Fn() -> bool) {
    if let Some(stored) = entry.value.response() {
        // By the one who asked; here nobody used it before.
        stored.touch(caller.cache.now());
    }
    fill::store(caller, entry, allowed).finish();
    caller.cache.adopted(entry);
}

/// Returns where a stored response and the index to it go in the remote.
pub(super) fn places(caller: &HttpCaller, entry: &Stored) -> Vec<Place<StoredResponse>> {
    let facts = entry.value.response().map(|stored| &stored.facts);
    let Some(selected) = facts.and_then(|facts| facts.fingerprint) else {
        let place = Place::new(caller.primary.clone(), Arc::clone(entry));
        return vec![place.merging(newer(entry))];
    };
    let variant = variant_key(caller.primary.as_bytes(), selected);
    let mut places = vec![Place::new(variant, Arc::clone(entry)).merging(newer(entry))];
    let index = caller.cache.local.get(caller.primary.as_bytes());
    if let Some(index) = index.filter(|entry| index_of(entry).is_some()) {
        let merge = merge_index(&index, caller.rules.config.max_variants);
        places.push(Place::new(caller.primary.clone(), index).merging(merge));
    }
    places
}

/// Replaces what is older.
fn newer(entry: &Stored) -> Merge<StoredResponse> {
    let entry = Arc::clone(entry);
    Box::new(move |found| (found.window.started < entry.window.started).then(|| Arc::clone(&entry)))
}

/// Adds to what other processes know of the variants of a URI, where that says
/// anything new.
fn merge_index(ours: &Stored, max_variants: usize) -> Merge<StoredResponse> {
    let ours = Arc::clone(ours);
    Box::new(move |found: &Arc<Entry<StoredResponse>>| {
        let (Some(index), Some(theirs)) = (index_of(&ours), index_of(found)) else {
            return Some(Arc::clone(&ours));
        };
        let lasts = found.window.useful_until() >= ours.window.useful_until();
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
