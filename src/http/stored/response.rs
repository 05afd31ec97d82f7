//! The stored response of a URI, or the index of its variants.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{StatusCode, response::Parts};

use crate::cache::state::CacheState;
use crate::clock::Tick;
use crate::entry::Entry;
use crate::http::body::Content;
use crate::http::config::HttpConfig;
use crate::http::rules::codings::{Coding, Codings};
use crate::http::rules::directives::Directives;
use crate::http::rules::fields::strip_for_storage;
use crate::http::rules::lifetime::Source;
use crate::http::rules::request::{Credentials, RequestFacts};
use crate::http::rules::storable::Plan;
use crate::http::rules::validation::Validators;
use crate::http::rules::vary::{Fingerprint, VaryList, accepted, codings, fingerprint};
use crate::http::stored::etag;
use crate::http::stored::generation::Generation;
use crate::weigh::{Weigh, allocated};

/// Lists of fields that an index remembers.
pub(crate) const MAX_LISTS: usize = 4;
/// What a place in a map of fields takes, whether a field stands there or not.
const FIELD_BYTES: usize = 104;
/// What each further value of a field takes besides its text: the list grows by doubling.
const FURTHER_VALUE_BYTES: usize = 2 * 72;

pub(crate) type HttpCache = CacheState<StoredResponse>;
pub(crate) type StoredEntry = Arc<Entry<StoredResponse>>;

/// A response as the HTTP layer stores it.
///
/// Opaque: it is made and read by the layer alone. It appears in signatures
/// because the handle of an HTTP cache is a
/// `Stampede<StoredResponse>`. A clone counts a reference.
///
/// # Examples
///
/// ```
/// use tower_stampede::StoredResponse;
///
/// fn is_shared_between_threads<T: Clone + Send + Sync + 'static>() {}
/// is_shared_between_threads::<StoredResponse>();
/// ```
#[derive(Clone)]
pub struct StoredResponse(Arc<Slot>);

/// What stands under a key.
#[derive(Debug)]
pub(crate) enum Slot {
    Response(CachedResponse),
    /// The responses of this URI vary; they stand under keys of their own.
    Index(Index),
}

impl StoredResponse {
    /// Returns when this process asked for it, or for the newest variant of an index.
    pub(crate) fn when_asked(&self) -> Option<Tick> {
        match self.slot() {
            Slot::Response(stored) => stored.asked_at,
            Slot::Index(index) => index.asked_at,
        }
    }

    #[inline]
    pub(crate) fn slot(&self) -> &Slot {
        &self.0
    }

    /// Returns the response, unless this is an index.
    #[inline]
    pub(crate) fn response(&self) -> Option<&CachedResponse> {
        match self.slot() {
            Slot::Response(stored) => Some(stored),
            Slot::Index(_) => None,
        }
    }
}

impl Weigh for StoredResponse {
    fn heap_bytes(&self) -> usize {
        let held = match self.slot() {
            Slot::Response(stored) => stored.heap_bytes(),
            Slot::Index(index) => index.heap_bytes(),
        };
        allocated(size_of::<Slot>() + 2 * size_of::<usize>()) + held
    }
}

impl From<CachedResponse> for StoredResponse {
    fn from(stored: CachedResponse) -> Self {
        Self(Arc::new(Slot::Response(stored)))
    }
}

impl From<Index> for StoredResponse {
    fn from(index: Index) -> Self {
        Self(Arc::new(Slot::Index(index)))
    }
}

impl fmt::Debug for StoredResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("StoredResponse");
        match self.slot() {
            Slot::Response(stored) => shown.field("status", &stored.status),
            Slot::Index(index) => shown.field("variants", &index.variants.len()),
        };
        shown.finish_non_exhaustive()
    }
}

/// A response without what belongs to one exchange.
#[derive(Debug)]
pub(crate) struct CachedResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Content,
    pub(crate) facts: Facts,
    /// When this process asked for it; none where another process did. It orders responses.
    /// The window cannot: what it counts from includes the `Age` of the response.
    pub(crate) asked_at: Option<Tick>,
    /// The cache made its entity tag: the origin does not know it.
    pub(crate) has_own_etag: bool,
    /// When a variant was last used, for making room among its siblings.
    used: AtomicU64,
}

/// What must be known of a stored response to answer with it.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) directives: Directives,
    pub(crate) permits: Credentials,
    /// What the request carried that it answered first.
    pub(crate) from: Credentials,
    pub(crate) explicit: bool,
    pub(crate) source: Source,
    pub(crate) status: StatusCode,
    pub(crate) vary: Option<VaryList>,
    /// As which coding it is selected; [`Coding::Other`] where codings select nothing.
    pub(crate) coding: Coding,
    /// The values of the fields in `vary`.
    pub(crate) fingerprint: Option<Fingerprint>,
}

impl CachedResponse {
    /// Returns its validators. Only a 200 is validated: a 304 is an answer to nothing else
    /// (RFC 9110, 13.2.1).
    pub(crate) fn validators(&self) -> Option<Validators> {
        // The origin does not know an entity tag that we made, and such a response has no other
        // validator.
        let is_asked = self.status == StatusCode::OK && !self.has_own_etag;
        is_asked.then(|| Validators::of(&self.headers)).flatten()
    }

    /// Makes what `plan` says of a response. `selected_as` is how the request selects it by
    /// the fields of `plan.vary`.
    pub(crate) fn new(
        head: &Parts,
        body: Content,
        plan: &Plan,
        asked: &RequestFacts,
        selected_as: Option<(Coding, Fingerprint)>,
        received: SystemTime,
    ) -> Self {
        let mut headers = head.headers.clone();
        if plan.strip_set_cookie {
            headers.remove(header::SET_COOKIE);
        }
        strip_for_storage(&mut headers, &plan.withheld, received);
        write_length(&mut headers, head.status, &body);
        if plan.makes_etag {
            etag::write(&mut headers, &body);
        }
        own_values(&mut headers);
        let (coding, fingerprint) = selected_as.unzip();
        let facts = Facts {
            directives: plan.directives,
            permits: plan.permits,
            from: asked.credentials,
            explicit: plan.explicit,
            source: plan.terms.source,
            status: head.status,
            vary: plan.vary.clone(),
            coding: coding.unwrap_or(Coding::Other),
            fingerprint,
        };
        let used = AtomicU64::new(0);
        let has_own_etag = plan.makes_etag;
        Self { status: head.status, headers, body, facts, asked_at: None, has_own_etag, used }
    }

    /// Makes what another process stored. It has not been used here.
    #[cfg(feature = "remote")]
    pub(crate) fn from_wire(headers: HeaderMap, body: Bytes, facts: Facts) -> Self {
        let (body, used) = (Content::Whole(body), AtomicU64::new(0));
        let (status, asked_at, has_own_etag) = (facts.status, None, false);
        Self { status, headers, body, facts, asked_at, has_own_etag, used }
    }

    /// Makes the same with its whole body.
    pub(crate) fn completed(&self, body: Content) -> Self {
        let mut headers = self.headers.clone();
        write_length(&mut headers, self.status, &body);
        if self.has_own_etag {
            etag::write(&mut headers, &body);
            own_values(&mut headers);
        }
        let (facts, used) = (self.facts.clone(), AtomicU64::new(self.last_used()));
        Self { headers, body, facts, used, ..*self }
    }

    pub(crate) fn touch(&self, now: Tick) {
        self.used.store(now.as_nanos(), Ordering::Relaxed);
    }

    pub(crate) fn last_used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn heap_bytes(&self) -> usize {
        let selected_by = self.facts.vary.as_ref().map_or(0, VaryList::heap_bytes);
        let pace = if let Content::Paced(_, pace) = &self.body { pace.heap_bytes() } else { 0 };
        self.body.whole().map_or(0, shared_bytes) + pace + field_bytes(&self.headers) + selected_by
    }
}

/// Returns what bytes take that have several users: they are counted in a place of their own.
fn shared_bytes(bytes: &Bytes) -> usize {
    bytes.heap_bytes() + allocated(3 * size_of::<usize>())
}

/// Returns what a map takes whose values are in one piece, as [`own_values`] leaves them.
fn field_bytes(headers: &HeaderMap) -> usize {
    let places = headers.capacity();
    // A quarter of the hash table stays free; it is a power of two long.
    let table = allocated((places + places / 3).next_power_of_two() * size_of::<u32>());
    let further = headers.len().saturating_sub(headers.keys_len()) * FURTHER_VALUE_BYTES;
    let names = headers.keys().map(|name| allocated(name.as_str().len())).sum::<usize>();
    let values = allocated(headers.values().map(HeaderValue::len).sum());
    allocated(places * FIELD_BYTES) + table + further + names + values
}

/// Copies the values: each may be a part of a connection's read buffer, which it
/// would keep alive as a whole, and the store would not know.
///
/// All into one piece of memory, so that a hit, which counts a user of each,
/// counts in one place.
fn own_values(headers: &mut HeaderMap) {
    let all: Vec<u8> = headers.values().flat_map(HeaderValue::as_bytes).copied().collect();
    let (all, mut at) = (Bytes::from(all), 0);
    for value in headers.values_mut() {
        let (from, is_sensitive) = (at, value.is_sensitive());
        at += value.len();
        if let Ok(own) = HeaderValue::from_maybe_shared(all.slice(from..at)) {
            *value = own;
            value.set_sensitive(is_sensitive);
        }
    }
}

/// Writes the length of a body that is known: once here, because a server would
/// write it again at every hit.
fn write_length(headers: &mut HeaderMap, status: StatusCode, body: &Content) {
    let Some(bytes) = body.whole() else { return };
    // RFC 9110, 8.6: neither status has one, and that of a 304 would be of a body that is not here.
    // Comments may come between the events of a stream.
    let has_none = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || matches!(body, Content::Paced(..));
    if has_none || status.is_informational() {
        headers.remove(header::CONTENT_LENGTH);
        return;
    }
    // A map that is full to the brim goes without.
    let _ = headers.try_insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
}

/// Returns whether a stored response is the one that a request selects: the one judge for
/// hits and waiters, RFC 9111, 4. Whether it must be validated first, is not asked here.
#[inline]
pub(crate) fn selects(
    stored: &CachedResponse,
    asked: &RequestFacts,
    request_headers: &HeaderMap,
    config: &HttpConfig,
) -> bool {
    let facts = &stored.facts;
    let matches = |list| {
        let accepted = accepted(list, request_headers, config);
        accepted.is_none_or(|accepted| accepted.is_answered_by(facts.coding))
            && Some(fingerprint(list, request_headers, config, facts.coding)) == facts.fingerprint
    };
    may_answer(facts, asked)
        && knows_our_fields(facts, config)
        && facts.vary.as_ref().is_none_or(matches)
}

/// Returns whether a response was selected by all fields that the layer names in
/// `vary`. A layer or a process with other settings may have stored it.
#[inline]
fn knows_our_fields(facts: &Facts, config: &HttpConfig) -> bool {
    let knows = |name| facts.vary.as_ref().is_some_and(|list| list.contains(name));
    config.vary.is_empty() || config.vary.iter().all(knows)
}

/// The variants of a URI. In the remote also what leads from a URI to the responses for its
/// several keys: then there are no variants.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    /// By which fields they were selected, newest first.
    pub(crate) lists: Vec<VaryList>,
    /// Newest first.
    pub(crate) variants: Vec<Fingerprint>,
    /// Codings of the variants.
    pub(crate) codings: Codings,
    /// When the newest variant was asked for, if this process did.
    pub(crate) asked_at: Option<Tick>,
    /// A part of the keys of the variants in the remote; none in the store of this process.
    pub(crate) generation: Option<Generation>,
}

impl Index {
    /// Returns the index after a response with `list` and `coding` was filled under
    /// `fingerprint`.
    pub(crate) fn with(&self, list: &VaryList, coding: Coding, fingerprint: Fingerprint) -> Self {
        let mut index = self.announcing(list, coding);
        index.variants = moved_to_front(&self.variants, &fingerprint);
        index
    }

    /// Returns the index as it says where to look once a response with `list` and `coding`
    /// has come; no variant stands there yet.
    pub(crate) fn announcing(&self, list: &VaryList, coding: Coding) -> Self {
        let mut lists = moved_to_front(&self.lists, list);
        lists.truncate(MAX_LISTS);
        let by_coding = list.contains(&header::ACCEPT_ENCODING);
        let codings = if by_coding { self.codings.with(coding) } else { self.codings };
        Self { lists, codings, ..self.clone() }
    }

    /// Says when a variant was asked for.
    pub(crate) fn asked_at(mut self, asked_at: Option<Tick>) -> Self {
        self.asked_at = self.asked_at.max(asked_at);
        self
    }

    /// Returns the index without one variant.
    pub(crate) fn without(&self, variant: Fingerprint) -> Self {
        let variants = self.variants.iter().filter(|other| **other != variant);
        let variants = variants.copied().collect();
        Self { variants, ..self.clone() }
    }

    /// Returns the index without what is beyond its bounds.
    pub(crate) fn at_most(mut self, max_variants: usize) -> Self {
        self.lists.truncate(MAX_LISTS);
        self.variants.truncate(max_variants.max(1));
        self
    }

    /// Returns where a request may find its response, the likeliest first, and the position
    /// of the list that says so.
    pub(crate) fn candidates(
        &self,
        request_headers: &HeaderMap,
        config: &HttpConfig,
    ) -> impl Iterator<Item = (usize, Fingerprint)> {
        self.lists.iter().enumerate().flat_map(move |(at, list)| {
            let codings = codings(list, request_headers, config, self.codings);
            let print = move |coding| (at, fingerprint(list, request_headers, config, coding));
            codings.iter().map(print)
        })
    }

    /// Returns where the response to a request is expected.
    pub(crate) fn prediction(
        &self,
        request_headers: &HeaderMap,
        config: &HttpConfig,
    ) -> Option<Fingerprint> {
        self.candidates(request_headers, config).next().map(|(_, fingerprint)| fingerprint)
    }

    fn heap_bytes(&self) -> usize {
        let lists = self.lists.iter().map(VaryList::heap_bytes);
        lists.sum::<usize>() + self.variants.len() * size_of::<Fingerprint>()
    }
}

fn moved_to_front<T: Clone + PartialEq>(all: &[T], first: &T) -> Vec<T> {
    let others = all.iter().filter(|other| *other != first);
    std::iter::once(first).chain(others).cloned().collect()
}

/// Returns whether a stored response may answer a request with these
/// credentials (RFC 9111, 3.5).
#[inline]
pub(crate) fn may_answer(stored: &Facts, asked: &RequestFacts) -> bool {
    if asked.credentials.is_anonymous() {
        return true;
    }
    // "Log in first" is no answer for a client that has logged in.
    if matches!(stored.status.as_u16(), 401 | 403 | 407) {
        return false;
    }
    // The response to an anonymous request holds no data of one client, if the origin
    // knows of caches at all: then a cookie makes no difference.
    let holds_no_data =
        stored.from.is_anonymous() && stored.explicit && stored.source == Source::Origin;
    let free = if holds_no_data { Credentials::COOKIE } else { Credentials::NONE };
    stored.permits.contains(asked.credentials.without(free))
}

/// Returns which variant an entry is.
pub(crate) fn variant_of(entry: &Entry<StoredResponse>) -> Option<Fingerprint> {
    entry.value.response()?.facts.fingerprint
}

pub(crate) fn index_of(entry: &Entry<StoredResponse>) -> Option<&Index> {
    match entry.value.slot() {
        Slot::Index(index) => Some(index),
        Slot::Response(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::ByteBudget;
    use crate::http::rules::request::RequestMethod;
    use crate::http::rules::request::tests::request;
    use crate::http::tests::storable::{anonymous, decide, response};

    fn store(fields: &[(&str, &str)], from: &RequestParts, config: &HttpConfig) -> CachedResponse {
        let head = response(200, fields);
        let Ok(plan) = decide(&anonymous(), &head, None, config) else {
            panic!("{fields:?} is storable");
        };
        let coding = Coding::Other;
        let print = |list| fingerprint(list, &from.headers, config, coding);
        let print = plan.vary.as_ref().map(print);
        let now = SystemTime::UNIX_EPOCH;
        CachedResponse::new(
            &head,
            Content::Whole(Bytes::from_static(b"body")),
            &plan,
            &anonymous(),
            print.map(|print| (coding, print)),
            now,
        )
    }

    type RequestParts = http::request::Parts;

    #[test]
    fn a_variant_answers_only_requests_that_select_it() {
        let config = HttpConfig::default();
        let get = |language: &str| request("GET", "/", &[("accept-language", language)]);
        let fields = [("cache-control", "max-age=9"), ("vary", "Accept-Language")];
        let stored = store(&fields, &get("de"), &config);
        let answers =
            |parts: &RequestParts| selects(&stored, &anonymous(), &parts.headers, &config);
        assert!(answers(&get("DE")));
        assert!(!answers(&get("en")));
        assert!(!answers(&request("GET", "/", &[])));
    }

    #[test]
    fn a_response_without_variants_answers_get_and_head() {
        let config = HttpConfig::default();
        let parts = request("GET", "/", &[("accept", "x")]);
        let stored = store(&[("cache-control", "max-age=9")], &parts, &config);
        for method in [RequestMethod::Get, RequestMethod::Head] {
            let asked = RequestFacts { method, ..anonymous() };
            assert!(selects(&stored, &asked, &parts.headers, &config));
        }
    }

    #[test]
    fn credentials_are_asked_at_every_answer() {
        let config = HttpConfig::default();
        let parts = request("GET", "/", &[]);
        let stored = store(&[("cache-control", "max-age=9")], &parts, &config);
        let asked = RequestFacts { credentials: Credentials::AUTHORIZATION, ..anonymous() };
        assert!(!selects(&stored, &asked, &parts.headers, &config));
    }

    #[test]
    fn stripped_cookies_and_withheld_fields_are_not_stored() {
        use crate::settings::layer::SetCookie;
        let config = HttpConfig { set_cookie: SetCookie::Strip, ..HttpConfig::default() };
        let fields = [
            ("cache-control", "max-age=9, private=\"x-a\""),
            ("set-cookie", "a=b"),
            ("x-a", "1"),
            ("x-b", "1"),
        ];
        let stored = store(&fields, &request("GET", "/", &[]), &config);
        let names: Vec<_> = stored.headers.keys().map(header::HeaderName::as_str).collect();
        assert_eq!(names, ["cache-control", "x-b", "date", "content-length"]);
    }

    #[test]
    fn the_length_of_a_whole_body_is_stored_where_there_may_be_one() {
        // RFC 9110, 8.6
        for (status, expected) in [(200, Some("4")), (404, Some("4")), (204, None), (304, None)] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("9"));
            let status = StatusCode::from_u16(status).unwrap();
            write_length(&mut headers, status, &Content::Whole(Bytes::from_static(b"body")));
            let length = headers.get(header::CONTENT_LENGTH).map(|value| value.to_str().unwrap());
            assert_eq!(length, expected, "{status}");
        }
        let mut headers = HeaderMap::new();
        let (arriving, _feed) =
            crate::http::body::SharedBody::new(Some(4), ByteBudget::new(4).reserve(4).unwrap());
        write_length(&mut headers, StatusCode::OK, &Content::Arriving(arriving, None));
        assert!(headers.is_empty(), "it may yet break off");
    }

    #[test]
    fn the_weight_covers_body_and_fields() {
        let parts = request("GET", "/", &[]);
        let stored = store(&[("cache-control", "max-age=9")], &parts, &HttpConfig::default());
        let weight = StoredResponse::from(stored).heap_bytes();
        assert!(weight > size_of::<Slot>() + 4 + 3 * FIELD_BYTES, "{weight}");
    }

    #[test]
    fn an_index_keeps_the_newest_lists_and_every_variant_until_it_is_removed() {
        let config = HttpConfig::default();
        let lists: Vec<_> = ["a", "b", "c", "d", "e"]
            .map(|name| {
                let parsed =
                    crate::http::rules::vary::parse(&response(200, &[("vary", name)]).headers, &[]);
                let Ok(Some(list)) = parsed else { panic!("{name} is a field") };
                list
            })
            .to_vec();
        let none = HeaderMap::new();
        let other = Coding::Other;
        let prints: Vec<_> =
            lists.iter().map(|list| fingerprint(list, &none, &config, other)).collect();
        let mut index = Index::default();
        for (list, print) in lists.iter().zip(&prints) {
            index = index.with(list, other, *print);
        }
        assert_eq!(index.lists, [4, 3, 2, 1].map(|i| lists[i].clone()));
        assert_eq!(index.prediction(&none, &config), Some(prints[4]));

        let again = index.with(&lists[2], other, prints[0]).without(prints[4]);
        assert_eq!(again.lists, [2, 4, 3, 1].map(|i| lists[i].clone()));
        assert_eq!(again.variants, [0, 3, 2, 1].map(|i| prints[i]));
    }
}
