//! Responses as clients get them.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use http_body::Body;

use super::body::ResponseBody;
use super::cache_for::CacheFor;
use super::headers::{
    CACHE_STATUS, age_value, append_cache_status, cache_status_forward, cache_status_hit,
};
use super::layer::Rules;
use super::lookup::{Cache, Forward, Stored};
use super::refused::Refused;
use super::request::{AskedMethod, BypassReason};
use crate::engine::time::Tick;
use crate::error::Error;
use crate::outcome::CacheOutcome;

/// How a response from the service came to this client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Came<'a> {
    pub(super) fwd: &'a str,
    pub(super) stored: bool,
    pub(super) collapsed: bool,
    pub(super) detail: Option<&'a str>,
    pub(super) outcome: CacheOutcome,
}

impl Came<'_> {
    pub(super) fn bypass(reason: BypassReason) -> Self {
        let fwd = if reason == BypassReason::Method { "method" } else { "bypass" };
        let detail = (fwd == "bypass").then(|| reason.as_str());
        let outcome = CacheOutcome::Bypass;
        Came { fwd, stored: false, collapsed: false, detail, outcome }
    }
}

/// Makes an answer out of a stored response. `outcome` says how it came about.
#[inline]
pub(super) fn from_entry<B: Body>(
    cache: &Cache,
    rules: &Rules,
    entry: &Stored,
    method: AskedMethod,
    outcome: CacheOutcome,
    forward: Forward,
) -> Response<ResponseBody<B>> {
    let Some(stored) = entry.value.response() else {
        return refusal(rules, Error::new(crate::ErrorKind::ShutDown));
    };
    let body = match method {
        AskedMethod::Get => ResponseBody::full(stored.body.clone()),
        AskedMethod::Head => ResponseBody::full(Bytes::new()),
    };
    let mut response = Response::new(body);
    *response.status_mut() = stored.status;
    let mut headers = stored.headers.clone();
    // RFC 9110, 8.6: a 204 must not have one.
    if method == AskedMethod::Head && stored.status != StatusCode::NO_CONTENT {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(stored.body.len()));
    }
    let now = cache.now();
    set_age(&mut headers, rules, entry, now);
    let status = stored.status;
    set_status(&mut headers, rules, || match outcome {
        CacheOutcome::Joined => cache_status_forward(
            rules.config.cache_status.as_deref().unwrap_or_default(),
            forward.as_str(),
            Some(status),
            false,
            true,
            None,
        ),
        _ => hit_status(rules, entry, now),
    });
    *response.headers_mut() = headers;
    response.extensions_mut().insert(outcome);
    response
}

/// The stored fields have a place for `Age` and `Cache-Status`, so that a hit
/// writes them without making the map grow.
fn set_age(headers: &mut HeaderMap, rules: &Rules, entry: &Stored, now: Tick) {
    if rules.config.age {
        let age = now.since(entry.window.started).as_secs();
        headers.insert(header::AGE, age_value(age.min(1 << 31)));
    } else {
        headers.remove(header::AGE);
    }
}

fn set_status(headers: &mut HeaderMap, rules: &Rules, value: impl FnOnce() -> HeaderValue) {
    let is_place = headers.get(CACHE_STATUS).is_some_and(HeaderValue::is_empty);
    match (rules.hit_status.is_some(), is_place) {
        (true, true) => {
            headers.insert(CACHE_STATUS, value());
        }
        (true, false) => append_cache_status(headers, value()),
        (false, true) => {
            headers.remove(CACHE_STATUS);
        }
        (false, false) => {}
    }
}

fn hit_status(rules: &Rules, entry: &Stored, now: Tick) -> HeaderValue {
    let left = entry.window.fresh_until.since(now).as_secs();
    let over = now.since(entry.window.fresh_until);
    if over.is_zero() && left > 0 || now < entry.window.fresh_until {
        if let Some(status) = &rules.hit_status {
            return status.value(i64::try_from(left).unwrap_or(i64::MAX));
        }
    }
    // RFC 9211, 2.2: negative once it is stale, so never zero here.
    let over = i64::try_from(over.as_secs()).unwrap_or(i64::MAX - 1) + 1;
    cache_status_hit(rules.config.cache_status.as_deref().unwrap_or_default(), -over)
}

/// Makes an answer out of the service's own response.
pub(super) fn from_service<B: Body>(
    rules: &Rules,
    response: Response<ResponseBody<B>>,
    came: Came<'_>,
) -> Response<ResponseBody<B>> {
    let mut response = response;
    response.extensions_mut().remove::<CacheFor>();
    response.extensions_mut().insert(came.outcome);
    if let Some(name) = &rules.config.cache_status {
        let status = Some(response.status());
        let member =
            cache_status_forward(name, came.fwd, status, came.stored, came.collapsed, came.detail);
        append_cache_status(response.headers_mut(), member);
    }
    response
}

/// Makes the response of our own that stands for `error`.
pub(super) fn refusal<B: Body>(rules: &Rules, error: Error) -> Response<ResponseBody<B>> {
    let refused = Refused::new(error);
    let make = rules.refusal.as_ref().map(|make| &**make as &dyn Fn(&Refused) -> Response<Bytes>);
    let mut response = refused.response(make).map(ResponseBody::full);
    response.extensions_mut().insert(CacheOutcome::Refused);
    if let Some(name) = &rules.config.cache_status {
        let detail = Some(refused.as_str());
        let member = cache_status_forward(name, "miss", None, false, false, detail);
        append_cache_status(response.headers_mut(), member);
    }
    response
}

/// Statuses that end a wave as a failure (RFC 5861, 4).
pub(super) fn is_failure(status: StatusCode) -> bool {
    matches!(status.as_u16(), 500 | 502 | 503 | 504)
}
