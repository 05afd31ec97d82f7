//! One request on its way through the cache: where its answer may stand, which
//! flight it belongs to, and what may answer it.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Uri};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::cache::state::Lookup;
use crate::clock::Tick;
use crate::entry::Entry;
use crate::error::Error;
use crate::flight::client_key::ClientKey;
use crate::flight::door::{Caller, Fit, FlightNumbers, FlightResult};
use crate::flight::request::{FlightRequest, Role};
use crate::freshness::{self, Freshness};
use crate::http::body::{Content, Reader};
use crate::http::flow::forward::Forward;
use crate::http::flow::trail::Trail;

use crate::http::layer::rules::Rules;
use crate::http::rules::codings::Codings;
use crate::http::rules::content::RequestContent;
use crate::http::rules::decline_reason::is_failure;
use crate::http::rules::key::{HostPlace, push_request, push_start, received_uri, resource};
use crate::http::rules::request::{
    BypassReason, Credentials, FieldScan, RequestFacts, RequestMethod, Wishes,
};
use crate::http::rules::steering::GroupOrigin;
use crate::http::rules::target::{absolute_uri, name_of, path_tag};
use crate::http::rules::vary::{Fingerprint, VaryList, codings, fingerprint, variant_key};
use crate::http::stored::response::{
    CachedResponse, HttpCache, Index, Slot, StoredEntry, StoredResponse, selects, variant_of,
};
use crate::key::{Key, KeyBuf, KeyKind, Tag, is_of_process};
use crate::mode::Mode;

/// After so many turns all waiters go on.
const MAX_TURNS: u32 = 8;

/// How keys of flights begin: they are never stored, and need only differ from each other.
const FLIGHT: [u8; 2] = KeyKind::Flight.start();

#[inline]
pub(super) fn scheme<'a>(uri: &'a Uri, rules: &'a Rules) -> &'a str {
    uri.scheme_str().unwrap_or(&rules.config.scheme)
}

/// Writes the primary key of a request, whose fields are `seen`.
#[inline]
pub(super) fn primary_key(
    key: &mut KeyBuf,
    parts: &Parts,
    seen: &FieldScan<'_>,
    rules: &Rules,
) -> Result<(), BypassReason> {
    if rules.bypass.iter().any(|bypass| bypass(parts)) {
        return Err(BypassReason::ByRule);
    }
    request_key(key, parts, seen, rules)?;
    if let Some(content) = RequestContent::of_request(parts) {
        content.push_to(key);
    }
    for rule in &rules.key_rules {
        if !rule(parts, key) {
            return Err(BypassReason::Identity);
        }
    }
    // Once more: what a rule adds may come from the request too.
    let too_long = key.as_bytes().len() > rules.config.max_key_bytes;
    if too_long { Err(BypassReason::KeyTooLong) } else { Ok(()) }
}

/// Writes what names a request, without what the rules of the application add.
#[inline]
fn request_key(
    key: &mut KeyBuf,
    parts: &Parts,
    seen: &FieldScan<'_>,
    rules: &Rules,
) -> Result<(), BypassReason> {
    let uri = received_uri(parts);
    let scheme = scheme(uri, rules);
    match HostPlace::of(uri, seen.host) {
        HostPlace::Field if uri.scheme().is_none() => key.push(&rules.key_start),
        place => push_start(key, place, rules.config.scope.as_deref(), scheme),
    }
    push_request(key, parts, seen, uri, scheme, &rules.config)
}

/// Makes the primary key of a request that is not looked up.
pub(super) fn owned_primary_key(parts: &Parts, rules: &Rules) -> Option<Key> {
    let seen = FieldScan::of(&parts.headers, &rules.config);
    let mut key = KeyBuf::new();
    primary_key(&mut key, parts, &seen, rules).ok().map(|()| key.to_key())
}

/// The tags by which every response to this request is invalidated. From now on those of its
/// URIs are live: to be called before anything is looked for that may be stored.
pub(super) fn automatic_tags(cache: &HttpCache, parts: &Parts, rules: &Rules) -> Box<[Tag]> {
    let mut tags = tags_of(parts, rules);
    for tag in &rules.config.tags {
        if !tags.contains(tag) {
            tags.push(tag.clone());
        }
    }
    take_live(cache, &mut tags);
    tags.into()
}

/// Makes the tags of URIs live.
pub(super) fn take_live(cache: &HttpCache, tags: &mut [Tag]) {
    for tag in tags.iter_mut().filter(|tag| is_of_process(tag)) {
        *tag = cache.engine.log.live.take(tag);
    }
}

/// Returns within which groups belong together that the response to a request names.
pub(super) fn group_origin(parts: &Parts, rules: &Rules) -> GroupOrigin {
    let uri = received_uri(parts);
    let scope = rules.config.scope.as_deref();
    match rules.config.cache_groups {
        true => GroupOrigin::of(parts, uri, scheme(uri, rules), scope),
        false => GroupOrigin::default(),
    }
}

/// The tags of a request: of its URI, and of its path.
fn tags_of(parts: &Parts, rules: &Rules) -> Vec<Tag> {
    let uri = received_uri(parts);
    let (scheme, scope) = (scheme(uri, rules), rules.config.scope.as_deref());
    let of_uri = absolute_uri(parts, uri, scheme).ok().map(|absolute| {
        let resource = resource(uri, rules.config.query.as_deref());
        name_of(&absolute, scheme, scope, &resource).tag()
    });
    of_uri.into_iter().chain([path_tag(scope, uri.path())]).collect()
}

/// Returns the stored response that this request selects, however old it is.
#[inline]
fn find(
    cache: &HttpCache,
    rules: &Rules,
    primary: &[u8],
    asked: &RequestFacts,
    headers: &HeaderMap,
) -> Result<StoredEntry, Forward> {
    let alive = |entry: &StoredEntry| cache.engine.log.is_alive(entry);
    let entry = cache.local.get(primary).filter(alive).ok_or(Forward::UriMiss)?;
    match entry.value.slot() {
        Slot::Response(stored) if selects(stored, asked, headers, &rules.config) => Ok(entry),
        Slot::Response(_) => Err(Forward::Request),
        Slot::Index(index) => {
            let found = find_variant(cache, rules, primary, (asked, headers), index);
            let found = found.ok_or(Forward::VaryMiss)?;
            Ok(found)
        }
    }
}

/// Returns the variant that this request selects, however old it is.
fn find_variant(
    cache: &HttpCache,
    rules: &Rules,
    primary: &[u8],
    (asked, headers): (&RequestFacts, &HeaderMap),
    index: &Index,
) -> Option<StoredEntry> {
    let now = cache.now();
    let mut found = None::<(usize, StoredEntry)>;
    for (list, fingerprint) in index.candidates(headers, &rules.config) {
        let entry = cache.local.get(variant_key(primary, fingerprint).as_bytes());
        let is_it = |entry: &StoredEntry| {
            let stored = entry.value.response();
            cache.engine.log.is_alive(entry)
                && stored.is_some_and(|stored| selects(stored, asked, headers, &rules.config))
        };
        let Some(entry) = entry.filter(is_it) else { continue };
        let is_better = found.as_ref().is_none_or(|(of, best)| {
            // RFC 9111, 4.1: of codings, the preferred one that is fresh.
            let is_fresh_already = *of == list && now < best.window().fresh_until;
            // RFC 9111, 4: the most recent one, when responses have named other fields.
            !is_fresh_already && entry.window().started > best.window().started
        });
        if is_better {
            found = Some((list, entry));
        }
    }
    let (_, found) = found?;
    if let Some(stored) = found.value.response() {
        stored.touch(now);
    }
    Some(found)
}

/// Returns what the store has for a request, judged, where the remote vouches for it.
#[inline]
pub(super) fn look(
    cache: &HttpCache,
    rules: &Rules,
    primary: &[u8],
    asked: &RequestFacts,
    headers: &HeaderMap,
    now: Tick,
) -> (Lookup<StoredResponse>, Forward) {
    match look_held(cache, rules, primary, asked, headers, now) {
        (Lookup::Fresh(entry) | Lookup::Early(entry) | Lookup::Stale(entry), forward)
            if !cache.engine.is_vouched(now) =>
        {
            (Lookup::Unvouched(entry), forward)
        }
        (Lookup::Fresh(entry) | Lookup::Early(entry) | Lookup::Stale(entry), _)
            if entry.is_copy_over(now) && cache.is_remote_asked(primary) =>
        {
            (Lookup::Miss(Some(entry)), Forward::Stale)
        }
        found => found,
    }
}

/// Returns what the store has for a request, judged, whether or not the remote vouches for it.
#[inline]
pub(super) fn look_held(
    cache: &HttpCache,
    rules: &Rules,
    primary: &[u8],
    asked: &RequestFacts,
    headers: &HeaderMap,
    now: Tick,
) -> (Lookup<StoredResponse>, Forward) {
    let entry = match find(cache, rules, primary, asked, headers) {
        Ok(entry) => entry,
        Err(forward) => return (Lookup::Miss(None), forward),
    };
    if must_be_validated(&entry) {
        return (Lookup::Miss(Some(entry)), Forward::Stale);
    }
    let look = match cache.judge(&entry, now) {
        Freshness::Fresh => Lookup::Fresh(entry),
        Freshness::Early => Lookup::Early(entry),
        Freshness::Stale => Lookup::Stale(entry),
        // Kept in hand even when expired: it may be validated, and says which
        // credentials permit sharing.
        Freshness::StaleIfError | Freshness::Expired => Lookup::Miss(Some(entry)),
    };
    (look, Forward::Stale)
}

/// Returns whether a stored response answers no request before the service has
/// confirmed it (RFC 9111, 5.2.2.4).
#[inline]
pub(super) fn must_be_validated(entry: &Entry<StoredResponse>) -> bool {
    entry.value.response().is_some_and(|stored| stored.facts.directives.no_cache)
}

/// Returns whether each request has to validate an entry for itself.
pub(super) fn is_validated_by_each(entry: &Entry<StoredResponse>) -> bool {
    let window = entry.window();
    let answers_no_request = window.is_never_fresh() && window.stale_until <= window.fresh_until;
    answers_no_request || must_be_validated(entry)
}

/// Returns whether a response is an answer only to requests that came before its own was sent
/// to the origin. An error without a lifetime is none of these: it is for all that wait.
fn answers_fresh_reads_only(entry: &Entry<StoredResponse>) -> bool {
    let is_error = |stored: &CachedResponse| stored.status.as_u16() >= 400;
    is_validated_by_each(entry) && !entry.value.response().is_some_and(is_error)
}

/// What a background refresh is to replace.
pub(super) struct RefreshedEntry {
    pub(super) entry: StoredEntry,
    /// The refresh carries no field of its client that is not in the key, so that its answer is
    /// the one that every client would have got.
    pub(super) is_for_all: bool,
}

/// What a request asks for, and of which layer. It does not change on its way.
#[derive(Clone)]
pub(crate) struct ClientRequest {
    pub(crate) cache: Arc<HttpCache>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) asked: RequestFacts,
    pub(super) wishes: Wishes,
    /// No computation that begins after the request came has a lower number.
    pub(super) not_before: u64,
    /// As received; the request itself may have gone to the service.
    pub(crate) headers: HeaderMap,
    pub(crate) primary: Key,
    /// The body, where that is part of the key.
    pub(super) content: Option<Bytes>,
    pub(super) tags: Box<[Tag]>,
    /// The key in the remote that leads to its responses, where the primary key does not.
    pub(super) anchor: Option<Key>,
    /// Within which groups of one name belong together.
    pub(super) group_origin: GroupOrigin,
    /// The credential because of which its answer may be for it alone.
    pub(super) credential: Option<HeaderName>,
    /// Whose it is, for the places.
    pub(super) client: Option<ClientKey>,
    /// Whether the service may be asked for the whole on behalf of this range.
    pub(super) may_fill_from_range: bool,
    /// Its flight now, where that is to go on without it.
    pub(super) asks_in: Option<Arc<Mutex<Key>>>,
}

/// A request without a fresh answer, as the engine sees it: what it asks for, and how far it has
/// come.
pub(crate) struct HttpCaller {
    pub(crate) request: Arc<ClientRequest>,
    /// How far it has looked in the remote.
    pub(super) trail: Trail,
    /// Where it looks there now.
    pub(super) key: Key,
    /// Found there: may be served in place of a failure, or be validated.
    pub(super) stand_in: Option<StoredEntry>,
    /// The same, once it is in this process.
    pub(super) adopted: Option<StoredEntry>,
    /// Whether something good stands there, also what this request may not be answered with.
    pub(super) is_occupied: bool,
    pub(super) stale: Option<StoredEntry>,
    pub(super) forward: Forward,
    /// The place at the beginning of a body that arrives.
    pub(super) claim: Option<Reader>,
    /// It has left a flight of its own variant whose body arrives. That flight has the lease.
    pub(super) has_left: bool,
    /// It belongs to a flight apart from that one, which stays there for other callers.
    pub(super) is_apart: bool,
    /// By which fields the response is selected that arrives in a flight it has left. The
    /// index says so only where it replaces no usable response.
    pub(super) learned: Option<VaryList>,
    /// What a background refresh is to replace.
    pub(super) refreshed: Option<RefreshedEntry>,
    /// A hash of what the request has besides its key, once it goes to a flight; zero: nothing.
    pub(super) unkeyed: u64,
    /// Until when it waits for a new response, though it may be served a stale one.
    pub(super) soft_until: Option<Instant>,
}

/// Which requests of a variant a flight is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlightKind {
    /// All that want the response to a GET.
    Gets = 0,
    /// Those that have left such a flight because of what arrives there.
    Apart = 1,
    /// HEADs: the response has no body, and answers no other request.
    Heads = 2,
}

impl HttpCaller {
    pub(super) fn new(request: Arc<ClientRequest>, forward: Forward) -> Self {
        Self {
            key: request.primary.clone(),
            request,
            trail: Trail::default(),
            stand_in: None,
            adopted: None,
            is_occupied: false,
            stale: None,
            forward,
            claim: None,
            has_left: false,
            is_apart: false,
            learned: None,
            refreshed: None,
            unkeyed: 0,
            soft_until: None,
        }
    }

    /// Has the remote vouch for what a look has found, and looks again. What the remote says
    /// nothing of is served: it is all there is.
    #[cold]
    pub(super) async fn look_vouched(&mut self) -> Lookup<StoredResponse> {
        let ClientRequest { cache, rules, asked, headers, primary, wishes, .. } = &*self.request;
        cache.engine.vouch(true).await;
        let now = cache.now();
        let found = look_held(cache, rules, primary.as_bytes(), asked, headers, now);
        let (look, forward) = wishes.judge(found, headers, now);
        self.forward = forward;
        look
    }

    /// Returns whether the key depends on something that may read any field.
    pub(super) fn may_be_keyed_by_any_field(&self) -> bool {
        !self.request.rules.key_rules.is_empty()
    }

    /// Returns the key of the flight: the predicted variant and whether
    /// credentials are carried tell flights apart, not entries.
    pub(super) fn flight_key(&self) -> Key {
        self.flight_key_of(self.predicted(), self.flight_kind())
    }

    /// Returns the key of the flight that requests of this kind look for now, by
    /// what is known of variants: a refresh is of the variant that it replaces.
    pub(super) fn expected_flight_key(&self) -> Key {
        self.flight_key_of(self.newest_prediction(), FlightKind::Gets)
    }

    fn flight_kind(&self) -> FlightKind {
        match self.request.asked.method {
            RequestMethod::Head if !self.joins_gets() => FlightKind::Heads,
            _ if self.is_apart => FlightKind::Apart,
            _ => FlightKind::Gets,
        }
    }

    /// Returns whether this HEAD waits for a GET: one runs, or the service has just failed to
    /// answer one.
    fn joins_gets(&self) -> bool {
        let gets = FlightRequest::of(self.flight_key_of(self.predicted(), FlightKind::Gets));
        let engine = &self.request.cache.engine;
        let is_shared = || engine.has_flight(&gets) && !self.is_known_unshared(&gets.key);
        !self.has_left && (is_shared() || engine.has_hold(&gets.key))
    }

    fn flight_key_of(&self, predicted: Option<Fingerprint>, kind: FlightKind) -> Key {
        flight_key(self.credentials(), predicted, kind, self.request.primary.as_bytes()).to_key()
    }

    /// Returns the credentials of the requests that a flight of this caller is
    /// for: a refresh is for requests like the first one.
    fn credentials(&self) -> Credentials {
        let refreshed = self.refreshed.as_ref().and_then(|seen| seen.entry.value.response());
        refreshed.map_or(self.request.asked.credentials, |stored| stored.facts.from)
    }

    pub(super) fn predicted(&self) -> Option<Fingerprint> {
        if let Some(refreshed) = &self.refreshed {
            // Not what the newest list of the index says: this very entry.
            return variant_of(&refreshed.entry);
        }
        self.newest_prediction()
    }

    fn newest_prediction(&self) -> Option<Fingerprint> {
        let (headers, config) = (&self.request.headers, &self.request.rules.config);
        let found = self.request.cache.local.peek(self.request.primary.as_bytes());
        match found.as_ref().map(|entry| entry.value.slot()) {
            Some(Slot::Index(index)) => index.prediction(headers, config),
            _ => {
                let list = self.learned.as_ref()?;
                let coding = codings(list, headers, config, Codings::NONE).iter().next()?;
                Some(fingerprint(list, headers, config, coding))
            }
        }
    }

    /// Returns whether the service's answer to this request, as the client has sent it, is no
    /// answer for a GET of the whole.
    pub(super) fn wants_less(&self) -> bool {
        let ClientRequest { asked, wishes, .. } = &*self.request;
        asked.method == RequestMethod::Head || wishes.range || wishes.last_event
    }

    pub(super) fn lacks_event(&self, entry: &Entry<StoredResponse>) -> bool {
        self.request.wishes.lacks_event(&self.request.headers, entry)
    }

    /// Returns whether the service may be asked on behalf of others: with a range, for the
    /// whole. Of what is known not to be shared, the client gets its part straight from the
    /// service.
    fn may_lead(&self, kind: FlightKind) -> bool {
        match self.request.asked.method {
            // The service may answer with what follows an event.
            _ if self.request.wishes.last_event => false,
            RequestMethod::Get if self.request.wishes.range => {
                self.request.may_fill_from_range && !self.is_not_shared()
            }
            RequestMethod::Get => true,
            RequestMethod::Head => kind == FlightKind::Heads,
        }
    }

    /// Returns the entry that this caller has found so far, if it may be served in place
    /// of a failure.
    pub(super) fn in_hand(&self) -> Option<StoredEntry> {
        self.stale.clone().filter(|entry| self.may_stand_in(entry))
    }

    fn may_stand_in(&self, entry: &StoredEntry) -> bool {
        // A stored failure is no better than a new one.
        let is_good = entry.value.response().is_some_and(|stored| !is_failure(stored.status));
        // Switched off or observing, the cache answers no request.
        is_good
            && !self.lacks_event(entry)
            && self.request.cache.engine.mode() == Mode::On
            && self.request.cache.may_stand_in(entry)
            && !must_be_validated(entry)
    }

    /// Returns whether no answer counts whose origin request was sent before this request
    /// came: the client wants a new one, or the stored response must be validated for each
    /// request. See the decision on fresh reads.
    pub(super) fn reads_fresh(&self) -> bool {
        self.request.wishes.demand.is_some_and(|demand| demand.accepts_nothing_stored())
            || self.stale.as_deref().is_some_and(is_validated_by_each)
    }

    /// Looks again for the response to be validated: another caller may have stored or
    /// removed it since the first look.
    pub(super) fn look_again(&mut self) {
        self.stale = self.found();
    }

    /// Returns what the store has for this request, however old.
    pub(super) fn found(&self) -> Option<StoredEntry> {
        let ClientRequest { cache, rules, asked, headers, primary, .. } = &*self.request;
        find(cache, rules, primary.as_bytes(), asked, headers).ok()
    }
}

pub(super) fn flight_key(
    credentials: Credentials,
    predicted: Option<Fingerprint>,
    kind: FlightKind,
    primary: &[u8],
) -> KeyBuf {
    let mut key = KeyBuf::new();
    key.push(&FLIGHT);
    key.push(&[credentials.class(), kind as u8]);
    key.push(&[u8::from(predicted.is_some())]);
    key.push(predicted.as_ref().map_or(&[0; 16], |fingerprint| fingerprint.as_bytes()));
    key.push(primary);
    key
}

impl Caller<StoredResponse> for HttpCaller {
    fn flight_request(&mut self) -> FlightRequest {
        let kind = self.flight_kind();
        let key = self.flight_key_of(self.predicted(), kind);
        if let Some(asks_in) = &self.request.asks_in {
            asks_in.lock().clone_from(&key);
        }
        let waits = self.may_share(&key);
        let role = match (waits, self.may_lead(kind)) {
            (true, true) => Role::Any,
            (true, false) => Role::WaitOnly,
            (false, true) => Role::LeadOnly,
            (false, false) => Role::Neither,
        };
        let (client, traits) = (self.request.client, self.traits());
        FlightRequest {
            tags: self.request.tags.clone(),
            role,
            client,
            traits,
            ..FlightRequest::of(key)
        }
    }

    /// Looks once more for a fresh response.
    fn second_look(&mut self) -> Option<StoredEntry> {
        let ClientRequest { cache, rules, asked, headers, primary, wishes, .. } = &*self.request;
        let now = cache.now();
        match look(cache, rules, primary.as_bytes(), asked, headers, now).0 {
            Lookup::Fresh(entry) | Lookup::Early(entry) => {
                let is_met = |entry: &StoredEntry| {
                    wishes.are_met_by(entry, now) && !wishes.lacks_event(headers, entry)
                };
                Some(entry).filter(is_met)
            }
            Lookup::Stale(_) | Lookup::Unvouched(_) | Lookup::Miss(_) => None,
        }
    }

    /// Judges what the flight has come to.
    fn fits(&mut self, result: &FlightResult<'_, StoredResponse>) -> Fit {
        let FlightResult { entry, numbers, .. } = *result;
        let Some(stored) = entry.value.response() else { return Fit::Refused };
        let is_answer = result.may_be_taken()
            && selects(
                stored,
                &self.request.asked,
                &self.request.headers,
                &self.request.rules.config,
            )
            && self.is_new_enough(numbers, entry)
            && !self.lacks_event(entry);
        match stored.body {
            // The last condition: from here on it is a reader.
            _ if is_answer && self.claim(stored) => Fit::Takes,
            Content::Arriving(..) if !result.is_failure => self.refuse(stored, result),
            Content::HeadOnly if !result.is_failure => {
                // The next flight is for this variant alone.
                self.learned.clone_from(&stored.facts.vary);
                Fit::Refused
            }
            _ => Fit::Refused,
        }
    }

    /// Returns the number from which on computations are new enough.
    fn wants_computation_from(&self) -> Option<u64> {
        self.reads_fresh().then_some(self.request.not_before)
    }

    fn turns_left_to_others(waiting: u32) -> u32 {
        // By chance, not by order: a client whose requests are never shared must not be the next
        // leader because it came early. In each turn half a waiter goes on, on the average.
        let turn = freshness::sample() * f64::from(waiting) * 2.0;
        (turn as u32 + 1).min(MAX_TURNS)
    }

    /// Returns what may be served in place of a failure.
    fn fallback(&self) -> Option<StoredEntry> {
        // The leader may have found one on its way.
        self.in_hand().or_else(|| self.found().filter(|entry| self.may_stand_in(entry)))
    }

    fn fallback_for(&self, failure: &Error) -> Option<StoredEntry> {
        self.stands_in_for(failure)
    }
}

impl HttpCaller {
    /// Becomes a reader of a body that arrives. Returns whether that was possible: its beginning
    /// may be gone already.
    fn claim(&mut self, stored: &CachedResponse) -> bool {
        if let (Content::Arriving(body, _), RequestMethod::Get) =
            (&stored.body, self.request.asked.method)
        {
            self.claim = body.claim();
            return self.claim.is_some();
        }
        true
    }

    /// Takes note of a body that arrives for others.
    fn refuse(
        &mut self,
        stored: &CachedResponse,
        result: &FlightResult<'_, StoredResponse>,
    ) -> Fit {
        let FlightResult { entry, is_dead, .. } = *result;
        // One that has never been fresh is waited for: the whole may be validated, or served stale.
        // Without a lifetime, nothing bounds how many would lead otherwise.
        let is_fresh = self.request.cache.now() < entry.window().fresh_until;
        let is_over = !is_fresh && !entry.window().is_never_fresh() && !must_be_validated(entry);
        if is_dead {
            // Every caller is to leave that flight.
            self.has_left = true;
        } else if is_fresh || is_over || self.request.wishes.last_event {
            let before = self.newest_prediction();
            self.learned.clone_from(&stored.facts.vary);
            self.has_left = self.newest_prediction() == before;
            self.is_apart = self.has_left;
        } else {
            return Fit::Refused;
        }
        Fit::Leaves
    }

    fn is_new_enough(&self, numbers: FlightNumbers, entry: &Entry<StoredResponse>) -> bool {
        // Without a computation the result is from elsewhere, and may be of any age.
        let is_fresh_read =
            numbers.computation.is_some_and(|number| number >= self.request.not_before);
        is_fresh_read
            || !answers_fresh_reads_only(entry)
                && self.request.wishes.are_met_by(entry, self.request.cache.now())
    }

    /// Sets until when the request waits for a new response where it may be served a stale one.
    pub(super) fn wait_softly(&mut self) -> Option<Instant> {
        let ClientRequest { cache, wishes, .. } = &*self.request;
        let takes_stale = !wishes.no_store && wishes.demand.is_none();
        if takes_stale && cache.engine.mode() == Mode::On {
            let limit = cache.engine.settings.soft_timeout;
            self.soft_until = limit.and_then(|limit| Instant::now().checked_add(limit));
        }
        self.soft_until
    }

    /// Returns whether a stale response of the remote is none for this request. One that has a stale
    /// response in hand is served that, and its work goes on to the new one.
    pub(super) fn waits_softly(&self) -> bool {
        self.soft_until.is_some_and(|at| self.stale.is_some() || Instant::now() < at)
    }
}
