//! How a complete response gets into the store.

use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderValue};
use http::response::Parts;

use crate::clock::Tick;
use crate::entry::{ComputationStart, Entry};
use crate::flight::door::{Store, StoreChange};
use crate::freshness::{self, Lifetimes, Window};
use crate::garbage::Garbage;
use crate::http::body::Content;
use crate::http::flow::lookup::HttpCaller;
use crate::http::rules::codings::{Accepted, Coding};
use crate::http::rules::fields::CACHE_STATUS;
use crate::http::rules::lifetime::{Source, Times};
use crate::http::rules::storable::Plan;
use crate::http::rules::vary::{Fingerprint, VaryList, accepted, fingerprint, variant_key};
use crate::http::stored::response::{
    self, HttpCache, Index, StoredEntry, StoredResponse, index_of, variant_of,
};
use crate::key::{Key, Tag};
use crate::lease::grant::Version;
use crate::weigh::Weigh;

/// When a response was asked for and came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivalTime {
    pub(crate) started: ComputationStart,
    pub(crate) at: Tick,
    pub(crate) wall: std::time::SystemTime,
}

impl ArrivalTime {
    pub(crate) fn now(cache: &HttpCache, started: ComputationStart) -> Self {
        let clock = &cache.engine.clock;
        Self { started, at: clock.now(), wall: clock.wall() }
    }

    pub(crate) fn times(&self) -> Times {
        Times { response: self.wall, response_delay: self.delay() }
    }

    pub(crate) fn delay(&self) -> Duration {
        self.at.since(self.started.tick)
    }
}

/// Makes the entry of a response.
pub(crate) fn entry(
    caller: &HttpCaller,
    head: &Parts,
    body: Content,
    plan: &Plan,
    tags: Box<[Tag]>,
    received: ArrivalTime,
    version: Option<Version>,
) -> StoredEntry {
    let asked = &caller.request.asked;
    let fingerprint = fingerprint_of(caller, plan);
    let selected = fingerprint.map(|print| (coding_of(caller, plan), print));
    let mut stored =
        response::CachedResponse::new(head, body, plan, asked, selected, received.wall);
    stored.asked_at = Some(received.started.tick);
    make_place(&mut stored.headers);
    // A fill counts as a use: the leader's client uses it.
    stored.touch(received.at);
    let longer = kept_longer(&stored).max(caller.request.rules.config.stale_if_disconnected);
    let window = window(&caller.request.cache, plan, received).kept_longer(longer);
    caller.request.cache.keeps_for(window);
    let entry = Entry::new(stored.into(), window, tags, received.started.seq);
    weighed(caller, entry.with_version(version))
}

pub(crate) fn weighed(caller: &HttpCaller, entry: Entry<StoredResponse>) -> StoredEntry {
    let key = key_of(caller, &entry);
    Arc::new(caller.request.cache.values.weights.weigh(entry, &key))
}

/// Makes the whole entry of one whose body was arriving. `None` if it is no
/// response.
pub(crate) fn completed(
    caller: &HttpCaller,
    entry: &StoredEntry,
    body: Content,
) -> Option<StoredEntry> {
    let stored = entry.value.response()?.completed(body);
    let whole = Entry::new(stored.into(), entry.window(), entry.tags.clone(), entry.started_seq);
    Some(weighed(caller, whole.with_version(entry.version)))
}

/// Has codings select a response without a coding whose URI has coded ones: it stands beside
/// them, and not in their place. Origins that send several codings may not say so in `Vary`.
pub(crate) fn keep_beside_coded(caller: &HttpCaller, plan: &mut Plan) {
    let by_codings = |list: &VaryList| list.contains(&header::ACCEPT_ENCODING);
    if plan.vary.as_ref().is_some_and(by_codings) {
        return;
    }
    let at_primary = caller.request.cache.local.peek(caller.request.primary.as_bytes());
    let now = caller.request.cache.now();
    let is_kept = |entry: &StoredEntry| now < entry.window().kept_until();
    let has_coded = at_primary.filter(is_kept).is_some_and(|entry| {
        index_of(&entry)
            .is_some_and(|index| index.codings.has_coded() && index.lists.iter().any(by_codings))
    });
    if has_coded {
        plan.vary = Some(VaryList::with_codings(plan.vary.as_ref()));
    }
}

/// Returns the variant that a response is to this request.
pub(crate) fn fingerprint_of(caller: &HttpCaller, plan: &Plan) -> Option<Fingerprint> {
    let list = plan.vary.as_ref()?;
    Some(fingerprint(
        list,
        &caller.request.headers,
        &caller.request.rules.config,
        coding_of(caller, plan),
    ))
}

fn accepted_by(caller: &HttpCaller, plan: &Plan) -> Option<Accepted> {
    accepted(plan.vary.as_ref()?, &caller.request.headers, &caller.request.rules.config)
}

/// Returns as which coding a response to this request is selected.
fn coding_of(caller: &HttpCaller, plan: &Plan) -> Coding {
    match accepted_by(caller, plan) {
        Some(accepted) => plan.selected_as.unwrap_or_else(|| accepted.chosen(plan.coding)),
        None => Coding::Other,
    }
}

/// Returns whether a request refuses what its own response is coded by.
pub(crate) fn is_refused(caller: &HttpCaller, plan: &Plan) -> bool {
    accepted_by(caller, plan).is_some_and(|accepted| accepted.refuses(plan.coding))
}

/// Makes a place for the two fields that every hit writes: before all others,
/// where a hit finds it first.
fn make_place(headers: &mut HeaderMap) {
    let Ok(mut placed) = HeaderMap::try_with_capacity(headers.keys_len() + 2) else { return };
    placed.insert(header::AGE, HeaderValue::from_static("0"));
    if !headers.contains_key(CACHE_STATUS) {
        placed.insert(CACHE_STATUS, HeaderValue::from_static(""));
    }
    headers.remove(header::AGE);
    placed.extend(std::mem::take(headers));
    *headers = placed;
}

fn window(cache: &HttpCache, plan: &Plan, received: ArrivalTime) -> Window {
    let terms = plan.terms;
    let lifetimes = Lifetimes {
        ttl: terms.lifetime,
        stale_for: terms.stale_while_revalidate,
        stale_if_error: terms.stale_if_error,
    };
    // The origin's word is kept as it is; only what we chose is shortened.
    let lifetimes = match terms.source {
        Source::Layer => lifetimes.jittered(cache.values.jitter, freshness::sample()),
        Source::CacheFor | Source::Origin | Source::Heuristic => lifetimes,
    };
    // `Age` counts from the request, no matter who chose the lifetime: a slow
    // service cannot make old data look young.
    let born = received.at.minus(terms.initial_age).min(received.started.tick);
    let from = match terms.source {
        Source::CacheFor | Source::Layer => received.at,
        // RFC 9111, 4.2.3: what the response took is part of its age.
        Source::Origin | Source::Heuristic => born,
    };
    Window::counted_from(from, born, lifetimes, received.delay())
}

/// For how long after its last window a response is kept that may yet be
/// confirmed.
const VALIDATED_FOR: Duration = Duration::from_secs(600);

fn kept_longer(stored: &response::CachedResponse) -> Duration {
    if stored.validators().is_some() { VALIDATED_FOR } else { Duration::ZERO }
}

/// Returns what a response would replace: what stands in its place, or what
/// its index would stand in place of.
pub(crate) fn place(caller: &HttpCaller, plan: &Plan) -> Option<StoredEntry> {
    let primary = caller.request.primary.as_bytes();
    let at_primary = caller.request.cache.local.peek(primary);
    match fingerprint_of(caller, plan) {
        Some(selected) => at_primary
            .filter(|entry| index_of(entry).is_none())
            .or_else(|| caller.request.cache.local.peek(variant_key(primary, selected).as_bytes())),
        None => at_primary,
    }
}

/// Stores `entry` where later requests of its kind look, if `allowed`. What was asked for
/// later stays: several flights fill one place, and a body may take longer than a newer one.
pub(crate) fn store(
    caller: &HttpCaller,
    entry: &StoredEntry,
    allowed: &dyn Fn() -> bool,
) -> StoreChange<StoredResponse> {
    let facts = entry.value.response().map(|stored| &stored.facts);
    let varies =
        facts.and_then(|facts| Some((facts.vary.clone()?, facts.coding, facts.fingerprint?)));
    let (local, engine) = (&caller.request.cache.local, &caller.request.cache.engine);
    let asked_at = entry.value.when_asked();
    let is_newer = |old: &StoredEntry| {
        let is_later = asked_at.is_some_and(|at| old.value.when_asked() > Some(at));
        is_later && engine.log.is_alive(old)
    };
    let Some((list, coding, selected)) = varies else {
        return local.fill_unless(&caller.request.primary, entry, allowed, &is_newer);
    };
    let variant = variant_key(caller.request.primary.as_bytes(), selected);
    let mut change = local.fill_unless(&variant, entry, allowed, &is_newer);
    if !change.applied {
        return change;
    }
    let remembered = engine.settings.uncacheable_for();
    let indexed = local.update(&caller.request.primary, |old| {
        if old.is_some_and(|old| index_of(old).is_none() && is_newer(old)) {
            return None;
        }
        let old_index = old.and_then(|old| index_of(old));
        let index = old_index.cloned().unwrap_or_default();
        let index = index.with(&list, coding, selected).asked_at(asked_at);
        let index = index_entry(index, entry, old, remembered);
        allowed().then(|| weighed_index(&caller.request.cache, &caller.request.primary, index))
    });
    change.garbage.extend(indexed.garbage);
    make_room(caller, selected, &mut change.garbage);
    change
}

/// Says by which fields the responses of this URI are selected, before the first one is
/// complete: a request for another variant need not wait for its body. The index replaces
/// no usable response: this body may yet break off.
pub(crate) fn announce(caller: &HttpCaller, entry: &StoredEntry, allowed: &dyn Fn() -> bool) {
    let facts = entry.value.response().map(|stored| &stored.facts);
    let Some(facts) = facts else { return };
    let Some(list) = facts.vary.as_ref() else { return };
    let cache = &caller.request.cache;
    let is_usable = |old: &StoredEntry| {
        index_of(old).is_none() && cache.engine.log.is_alive(old) && cache.may_stand_in(old)
    };
    let remembered = cache.engine.settings.uncacheable_for();
    let change = cache.local.update(&caller.request.primary, |old| {
        if old.is_some_and(is_usable) || !allowed() {
            return None;
        }
        let index = old.and_then(|old| index_of(old)).cloned().unwrap_or_default();
        let index = index_entry(index.announcing(list, facts.coding), entry, old, remembered);
        Some(weighed_index(cache, &caller.request.primary, index))
    });
    change.finish();
}

/// Takes back what was stored, if it still stands there.
pub(crate) fn unstore(caller: &HttpCaller, entry: &StoredEntry) {
    drop(caller.request.cache.local.remove_exactly(&key_of(caller, entry), entry));
}

/// Returns where an entry stands.
pub(crate) fn key_of(caller: &HttpCaller, entry: &Entry<StoredResponse>) -> Key {
    match variant_of(entry) {
        Some(selected) => variant_key(caller.request.primary.as_bytes(), selected),
        None => caller.request.primary.clone(),
    }
}

/// An index lives `longer` than the variant that lives longest: it tells the
/// crowd at its end apart. It carries no tags: it says where to look, not what
/// is there.
pub(crate) fn index_entry(
    index: Index,
    newest: &StoredEntry,
    old: Option<&StoredEntry>,
    longer: Duration,
) -> Entry<StoredResponse> {
    let mut window = newest.window().kept_longer(Duration::ZERO);
    window.error_until = newest.window().kept_until().plus(longer);
    if let Some(old) = old.filter(|old| index_of(old).is_some()) {
        window.error_until = window.error_until.max(old.window().kept_until());
    }
    Entry::new(index.into(), window, Box::default(), newest.started_seq)
}

/// Weighs an index without the application's weigher: the key is locked.
pub(crate) fn weighed_index(
    cache: &HttpCache,
    key: &Key,
    index: Entry<StoredResponse>,
) -> StoredEntry {
    let heap_bytes = index.value.heap_bytes();
    Arc::new(cache.values.weights.weigh_as(index, heap_bytes, key))
}

/// Removes the least recently used variants of a URI that has too many.
fn make_room(caller: &HttpCaller, newest: Fingerprint, garbage: &mut Garbage<StoredResponse>) {
    let cap = caller.request.rules.config.max_variants.max(1);
    let local = &caller.request.cache.local;
    let key = |fingerprint| variant_key(caller.request.primary.as_bytes(), fingerprint);
    let last_used = |fingerprint: &Fingerprint| {
        let found = local.peek(key(*fingerprint).as_bytes());
        found.and_then(|entry| Some(entry.value.response()?.last_used()))
    };
    // Until it fits: two fills at once may have chosen the same victim.
    while let Some(entry) = local.peek(caller.request.primary.as_bytes()) {
        let index = index_of(&entry).filter(|index| index.variants.len() > cap);
        let Some(index) = index else { return };
        let others = index.variants.iter().filter(|variant| **variant != newest);
        let victim = others.min_by_key(|variant| last_used(variant)).copied();
        let Some(victim) = victim else { return };
        let change = local.update(&caller.request.primary, |old| {
            let old = old?;
            let index = index_of(old)?.without(victim);
            let index = index_entry(index, old, Some(old), Duration::ZERO);
            Some(weighed_index(&caller.request.cache, &caller.request.primary, index))
        });
        garbage.extend(change.garbage);
        garbage.extend(local.remove(&key(victim)).garbage);
    }
}
