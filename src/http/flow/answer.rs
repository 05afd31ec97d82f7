//! Responses as clients get them.

use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Extensions, Response, StatusCode};
use http_body::Body;

use crate::clock::Tick;
use crate::error::Error;
use crate::http::body::{Content, ResponseBody};
use crate::http::cache_for::CacheFor;
use crate::http::flow::error_response::{Make, Refusal, RefusalReason};
use crate::http::flow::forward::{Forward, ForwardStatus};
use crate::http::flow::lookup::{ClientRequest, HttpCaller};
use crate::http::layer::rules::Rules;
use crate::http::rules::fields::{
    CACHE_STATUS, age_value, append_cache_status, cache_status_forward, cache_status_hit,
    cache_status_refused,
};
use crate::http::rules::request::{BypassReason, RequestMethod, Wishes};
use crate::http::rules::shape::Shape;
use crate::http::rules::steering;
use crate::http::stored::response;
use crate::http::stored::response::{HttpCache, StoredEntry};
use crate::outcome::CacheOutcome;

/// How a response from the service came to this client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Provenance<'a> {
    pub(super) fwd: &'a str,
    pub(super) stored: bool,
    pub(super) detail: Option<&'a str>,
    pub(super) outcome: CacheOutcome,
}

impl<'a> Provenance<'a> {
    pub(super) fn of(caller: &HttpCaller, outcome: CacheOutcome, detail: Option<&'a str>) -> Self {
        Self { fwd: caller.forward.as_str(), stored: false, detail, outcome }
    }

    pub(super) fn bypass(reason: BypassReason) -> Self {
        let fwd = if reason == BypassReason::Method { "method" } else { "bypass" };
        let detail = Some(reason.as_str());
        Self { fwd, stored: false, detail, outcome: CacheOutcome::Bypass }
    }
}

/// Makes an answer of this shape out of what is stored. `status` is what `Cache-Status` says of it.
/// It takes the place of an empty response: one is large enough for each move of it to show in
/// what a hit costs. Returns whether it is one by the entry: a refusal is none.
#[inline]
pub(super) fn write<B: Body>(
    response: &mut Response<ResponseBody<B>>,
    rules: &Rules,
    entry: &StoredEntry,
    (method, shape): (RequestMethod, Shape),
    status: impl FnOnce() -> HeaderValue,
    now: Tick,
) -> bool {
    let Some(stored) = entry.value.response() else {
        *response = refusal(rules, Error::new(crate::ErrorKind::ShutDown));
        return false;
    };
    if method == RequestMethod::Get {
        // Nothing is lost: both the body and the fields in their places are
        // empty.
        std::mem::forget(std::mem::replace(response.body_mut(), shape.body(&stored.body)));
    }
    *response.status_mut() = shape.status(stored.status);
    let headers = response.headers_mut();
    std::mem::forget(std::mem::replace(headers, shape.fields(&stored.headers)));
    if method == RequestMethod::Head {
        write_length(headers, stored, &shape);
    }
    write_own_fields(headers, rules, || age_of(entry, now), status);
    true
}

#[cold]
fn write_length(headers: &mut HeaderMap, stored: &response::CachedResponse, shape: &Shape) {
    // RFC 9110, 8.6: a 204 must not have one.
    if *shape == Shape::Whole
        && stored.status != StatusCode::NO_CONTENT
        && !matches!(stored.body, Content::Paced(..))
        && let Some(length) = stored.body.length()
    {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// Says in the extensions of a response that it is a hit. `spare` are the extensions of
/// the request: a server or a router has put something in, so they have memory for it.
#[inline]
pub(super) fn mark_hit(extensions: &mut Extensions, mut spare: Extensions) {
    static HIT: LazyLock<Extensions> = LazyLock::new(|| {
        let mut hit = Extensions::new();
        hit.insert(CacheOutcome::Hit);
        hit
    });
    if spare.is_empty() {
        *extensions = HIT.clone();
    } else {
        spare.clear();
        spare.insert(CacheOutcome::Hit);
        *extensions = spare;
    }
}

#[inline]
fn age_of(entry: &StoredEntry, now: Tick) -> HeaderValue {
    age_value(now.since(entry.started()).as_secs().min(1 << 31))
}

/// Writes `Age` and `Cache-Status` into the places that the stored fields have
/// for them: no look-up, and the map does not grow.
#[inline]
fn write_own_fields(
    headers: &mut HeaderMap,
    rules: &Rules,
    age: impl FnOnce() -> HeaderValue,
    status: impl FnOnce() -> HeaderValue,
) {
    if !rules.config.age || rules.hit_status.is_none() {
        let age = rules.config.age.then(age);
        let status = rules.hit_status.is_some().then(status);
        write_anywhere(headers, age, status);
        return clear_places(headers, rules);
    }
    let mut fields = headers.iter_mut();
    match (fields.next(), fields.next()) {
        // Where we made them.
        (Some((age_name, age_place)), Some((name, place)))
            if age_name == header::AGE && name == CACHE_STATUS && place.is_empty() =>
        {
            *age_place = age();
            *place = status();
        }
        _ => write_anywhere(headers, Some(age()), Some(status())),
    }
}

#[cold]
fn write_anywhere(
    headers: &mut HeaderMap,
    mut age: Option<HeaderValue>,
    mut status: Option<HeaderValue>,
) {
    for (name, value) in headers.iter_mut() {
        if name == header::AGE {
            put(value, &mut age);
        } else if value.is_empty() && name == CACHE_STATUS {
            put(value, &mut status);
        }
    }
    if let Some(status) = status {
        // Caches before us wrote theirs: ours follows.
        append_cache_status(headers, status);
    }
}

fn put(place: &mut HeaderValue, value: &mut Option<HeaderValue>) {
    if let Some(value) = value.take() {
        *place = value;
    }
}

/// Removes the places of fields that are switched off.
#[cold]
fn clear_places(headers: &mut HeaderMap, rules: &Rules) {
    if !rules.config.age {
        headers.remove(header::AGE);
    }
    if rules.hit_status.is_none() && headers.get(CACHE_STATUS).is_some_and(HeaderValue::is_empty) {
        headers.remove(CACHE_STATUS);
    }
}

/// Returns what `Cache-Status` says of a stored answer that came about so.
fn status(
    rules: &Rules,
    entry: &StoredEntry,
    outcome: CacheOutcome,
    forward: Forward,
    now: Tick,
) -> HeaderValue {
    match (outcome, entry.value.response()) {
        (CacheOutcome::Joined, Some(stored)) => joined_status(rules, stored.status, forward),
        _ => hit_status(rules, entry, now),
    }
}

fn joined_status(rules: &Rules, status: StatusCode, forward: Forward) -> HeaderValue {
    let name = rules.config.cache_status.as_deref().unwrap_or_default();
    cache_status_forward(name, forward.as_str(), Some(status), false, true, None)
}

#[inline]
pub(super) fn hit_status(rules: &Rules, entry: &StoredEntry, now: Tick) -> HeaderValue {
    let fresh_until = entry.fresh_until();
    if now < fresh_until
        && let Some(status) = &rules.hit_status
    {
        return status.value(fresh_until.since(now).as_secs());
    }
    stale_status(rules, entry, now)
}

#[cold]
fn stale_status(rules: &Rules, entry: &StoredEntry, now: Tick) -> HeaderValue {
    // RFC 9211, 2.2: negative once it is stale, so never zero here.
    let over = now.since(entry.fresh_until()).as_secs();
    let over = i64::try_from(over).unwrap_or(i64::MAX - 1) + 1;
    cache_status_hit(rules.config.cache_status.as_deref().unwrap_or_default(), -over)
}

/// Makes an answer of this shape out of the service's own response.
pub(super) fn from_service<B: Body>(
    rules: &Rules,
    response: Response<ResponseBody<B>>,
    shape: &Shape,
    came: Provenance<'_>,
) -> Response<ResponseBody<B>> {
    let status = response.status();
    let mut response = shaped(response, shape);
    CacheFor::take_from(response.extensions_mut());
    response.extensions_mut().insert(came.outcome);
    steering::remove_ours(response.headers_mut(), &rules.config);
    if let Some(name) = &rules.config.cache_status {
        let asked = response.extensions_mut().remove::<ForwardStatus>().map(|status| status.0);
        let status = asked.unwrap_or(status);
        let member =
            cache_status_forward(name, came.fwd, Some(status), came.stored, false, came.detail);
        append_cache_status(response.headers_mut(), member);
    }
    response
}

/// Makes of the service's own response what this client gets of it.
fn shaped<B: Body>(
    response: Response<ResponseBody<B>>,
    shape: &Shape,
) -> Response<ResponseBody<B>> {
    if *shape == Shape::Whole {
        return response;
    }
    let (mut head, whole) = response.into_parts();
    head.status = shape.status(head.status);
    head.headers = shape.fields(&head.headers);
    // The whole is dropped after that: it keeps the beginning of what arrives.
    let body = whole.content().map(|content| shape.body(&content));
    Response::from_parts(head, body.unwrap_or_default())
}

/// Makes the answer to a request that is to be answered from the store or not
/// at all (RFC 9111, 5.2.1.7).
pub(super) fn not_cached<B: Body>(rules: &Rules) -> Response<ResponseBody<B>> {
    let text = "nothing is stored that may be served\n";
    let mut response = Response::new(ResponseBody::full(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if let Some(name) = &rules.config.cache_status {
        append_cache_status(
            headers,
            cache_status_refused(name, RefusalReason::OnlyIfCached.as_str()),
        );
    }
    response.extensions_mut().insert(CacheOutcome::Refused);
    response
}

/// Makes the response of our own that stands for `error`.
pub(super) fn refusal<B: Body>(rules: &Rules, error: Error) -> Response<ResponseBody<B>> {
    let refused = Refusal::new(error);
    let make = rules.refusal.as_ref().map(|make| &**make as Make<'_>);
    let mut response = refused.response(make).map(ResponseBody::full);
    response.extensions_mut().insert(CacheOutcome::Refused);
    if let Some(name) = &rules.config.cache_status {
        let member = if refused.was_forwarded() {
            cache_status_forward(name, "miss", None, false, false, Some(refused.reason().as_str()))
        } else {
            cache_status_refused(name, refused.reason().as_str())
        };
        append_cache_status(response.headers_mut(), member);
    }
    response
}

/// Returns how much of a stored response a request gets. Only one that asks
/// for less costs a reading of the clock.
#[inline]
pub(super) fn shape_of(
    cache: &HttpCache,
    wishes: Wishes,
    headers: &HeaderMap,
    entry: &StoredEntry,
) -> Shape {
    if !wishes.is_shaped() {
        return Shape::Whole;
    }
    let Some(stored) = entry.value.response() else { return Shape::Whole };
    let now = cache.engine.clock.wall();
    Shape::of(wishes, headers, stored.status, &stored.headers, Some(&stored.body), now).0
}

pub(super) fn answered<B: Body>(
    caller: &HttpCaller,
    entry: &StoredEntry,
    outcome: CacheOutcome,
) -> Response<ResponseBody<B>> {
    let ClientRequest { cache, rules, asked, wishes, headers, .. } = &*caller.request;
    let asked = (asked.method, *wishes, caller.forward);
    by_entry((cache, rules), asked, headers, entry, outcome, cache.now())
}

/// Makes an answer out of what is stored that is no plain hit, and tells how it came about.
#[cold]
pub(super) fn by_entry<B: Body>(
    (cache, rules): (&HttpCache, &Rules),
    (method, wishes, forward): (RequestMethod, Wishes, Forward),
    headers: &HeaderMap,
    entry: &StoredEntry,
    outcome: CacheOutcome,
    now: Tick,
) -> Response<ResponseBody<B>> {
    cache.observer.served(entry, outcome, now);
    let shape = shape_of(cache, wishes, headers, entry);
    let status = || status(rules, entry, outcome, forward, now);
    let mut response = Response::new(ResponseBody::default());
    // A refusal says by itself what it is.
    if write(&mut response, rules, entry, (method, shape), status, now) {
        response.body_mut().comes_by(outcome);
        if outcome != CacheOutcome::Hit || rules.config.outcome_on_hits {
            response.extensions_mut().insert(outcome);
        }
    }
    response
}
