//! Whether a response may be stored, and which requests it may answer.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode, Uri, response::Parts};

use crate::http::cache_for::CacheFor;
use crate::http::config::HttpConfig;
use crate::http::rules::codings::Coding;
use crate::http::rules::conditions::{has_tag, only_date};
pub(crate) use crate::http::rules::decline_reason::{DeclineReason, UnstoredReason};
use crate::http::rules::directives::{DirectiveSet, Directives, Lifetime};
use crate::http::rules::fields::loses_indispensable;
use crate::http::rules::lifetime::{self, Source, Terms, Times};
use crate::http::rules::request::{Credentials, RequestFacts, RequestMethod};
use crate::http::rules::steering;
use crate::http::rules::streams::{SharedStream, is_event_stream};
use crate::http::rules::target::same_origin_target;
use crate::http::rules::targeted;
use crate::http::rules::vary::{self, VaryList};
use crate::settings::layer::SetCookie;

/// Different fields that a stored response may have, whatever their size. A
/// map panics when a field is inserted beyond 24,576 of them, and every answer
/// out of the store needs room for ours.
const MOST_FIELDS: usize = 16_384;

pub(crate) type Decision = Result<Plan, DeclineReason>;

/// How a response is stored.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) terms: Terms,
    pub(crate) directives: Directives,
    /// The credentials that requests may carry which are answered with it.
    pub(crate) permits: Credentials,
    /// The origin itself said how long it is fresh.
    pub(crate) explicit: bool,
    pub(crate) vary: Option<VaryList>,
    /// What the body is coded by.
    pub(crate) coding: Coding,
    /// As which coding it is selected, where that is known: it was stored so.
    pub(crate) selected_as: Option<Coding>,
    /// Fields that are left out.
    pub(crate) withheld: Vec<HeaderName>,
    pub(crate) strip_set_cookie: bool,
    /// The length that the body must have.
    pub(crate) length: Option<u64>,
    /// It answers no request without validation (RFC 9111, 5.2.2.4).
    pub(crate) only_validated: bool,
    /// It has no lifetime: it goes to the clients that wait, and is not stored.
    pub(crate) is_for_wave: bool,
    /// It has no validator, and gets an entity tag from the cache.
    pub(crate) makes_etag: bool,
    /// The rule by which it is a shared stream.
    pub(crate) stream: Option<SharedStream>,
}

impl Plan {
    /// Returns whether the origin, or the layer for this status, has chosen the lifetime.
    pub(crate) fn is_chosen(&self) -> bool {
        self.explicit || self.terms.source == Source::Layer
    }

    /// Returns whether waiters may be answered with it: while it is
    /// fresh, or as stale in its window.
    pub(crate) fn is_shareable(&self) -> bool {
        !self.only_validated && self.terms.cover_a_moment()
    }

    /// Returns why waiters may not be answered with it.
    pub(crate) fn why_not_shared(&self) -> DeclineReason {
        if self.only_validated { DeclineReason::NoCache } else { DeclineReason::NoFreshness }
    }
}

/// An extension of a response: a layer further in keeps it for its client.
#[derive(Clone, Copy)]
pub(crate) struct ForOneClient;

/// What is known of an exchange when the head of the response is there.
#[derive(Clone, Copy)]
pub(crate) struct ResponseFacts<'a> {
    pub(crate) asked: &'a RequestFacts,
    pub(crate) parts: &'a Parts,
    /// As the body itself declares it.
    pub(crate) length: Option<u64>,
    pub(crate) cache_for: Option<&'a CacheFor>,
    pub(crate) config: &'a HttpConfig,
    pub(crate) times: Times,
}

impl ResponseFacts<'_> {
    /// Judges a response by its head.
    pub(crate) fn judge(self) -> Decision {
        self.plan(false)
    }

    /// Judges an error or a redirect without a lifetime: returns how the clients get it that wait
    /// for it, as if it were stored for no time at all. "Log in" and "forbidden" are for each
    /// client alone.
    pub(crate) fn judge_unstored(self) -> Option<Plan> {
        match (self.parts.status.as_u16(), self.asked.method) {
            (401 | 403 | 407, _) => None,
            (_, RequestMethod::Head) => self.as_get(|it| it.judge_unstored()),
            _ => self.plan(true).ok(),
        }
    }

    /// Judges the response to a HEAD, which is for other HEADs. Fields that describe the body
    /// count for nothing: there is none, however long the one of a GET would be.
    pub(crate) fn judge_head(self) -> Decision {
        self.as_get(|it| it.judge())
    }

    /// Judges the response to a HEAD as one to a GET whose body is not described.
    fn as_get<T>(self, judge: impl FnOnce(ResponseFacts<'_>) -> T) -> T {
        let mut parts = self.parts.clone();
        for name in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::TRAILER] {
            parts.headers.remove(name);
        }
        let asked = &RequestFacts { method: RequestMethod::Get, ..*self.asked };
        judge(ResponseFacts { asked, parts: &parts, length: None, ..self })
    }

    /// Judges the response to a POST, which may be stored for later GETs (RFC
    /// 9110, 9.3.3). `target` is the request's absolute URI.
    pub(crate) fn judge_post(self, method: &Method, target: &Uri) -> Decision {
        let mut locations = self.parts.headers.get_all(header::CONTENT_LOCATION).iter();
        let location = locations.next().and_then(|value| same_origin_target(target, value));
        let is_this = location.as_ref() == Some(target) && locations.next().is_none();
        if method != Method::POST || !self.parts.status.is_success() || !is_this {
            return Err(DeclineReason::OtherResource);
        }
        let plan = self.judge()?;
        refuse_if(!self.asked.credentials.is_anonymous(), DeclineReason::Credentials)?;
        refuse_if(!plan.explicit || !plan.is_shareable(), plan.why_not_shared())?;
        Ok(plan)
    }

    /// A plan `is_for_wave` where the response is to be shared with the clients that wait, and
    /// not to be stored.
    fn plan(self, is_for_wave: bool) -> Decision {
        // Before anything is read that may be as large as it likes.
        self.check_fields()?;
        refuse_if(self.parts.extensions.get::<ForOneClient>().is_some(), DeclineReason::Nested)?;
        let DirectiveSet { mut directives, mut withheld } = self.governing();
        self.check_status()?;
        self.check_directives(&directives)?;
        let stream = self.stream()?;
        // The rule speaks like a handler: it sets a lifetime, and lifts no other prohibition.
        let ttl = stream.as_ref().and_then(SharedStream::ttl);
        directives.no_cache &= ttl.is_none();
        let has_lifetime = matches!(directives.lifetime, Lifetime::Seconds(1..));
        let by_rule = ttl.filter(|_| !has_lifetime).map(CacheFor::new);
        let this = ResponseFacts { cache_for: self.cache_for.or(by_rule.as_ref()), ..self };
        let can_be_validated = self.can_be_validated(&withheld);
        let only_validated = directives.no_cache;
        refuse_if(only_validated && !can_be_validated, DeclineReason::NoCache)?;
        let length = self.check_body()?;
        let coding = Coding::of_response(&self.parts.headers);
        let vary = self.vary(coding)?;
        let terms = this.terms(&directives, is_for_wave)?;
        let explicit = directives.is_explicit();
        let by_origin = explicit && terms.source == Source::Origin;
        let permits = self.permits(&directives, by_origin);
        let strip_set_cookie = self.check_cookies(&withheld, by_origin)?;
        if !permits.contains(self.asked.credentials) {
            return Err(DeclineReason::Credentials);
        }
        let is_of_use = can_be_validated || is_for_wave || terms.cover_anything();
        refuse_if(!is_of_use, DeclineReason::NoFreshness)?;
        withheld.extend(steering::ours(self.config).cloned());
        Ok(Plan {
            terms,
            directives,
            permits,
            explicit,
            vary,
            coding,
            selected_as: None,
            withheld,
            strip_set_cookie,
            length,
            only_validated,
            is_for_wave,
            makes_etag: self.makes_etag(),
            stream,
        })
    }

    fn check_fields(&self) -> Result<(), DeclineReason> {
        let headers = &self.parts.headers;
        let is_over =
            headers.keys_len() > MOST_FIELDS || weight(headers) > self.config.max_header_bytes;
        refuse_if(is_over, DeclineReason::HeadersTooLarge)
    }

    fn governing(&self) -> DirectiveSet {
        targeted::governing(&self.parts.headers, self.config, self.times.response)
    }

    fn check_status(&self) -> Result<(), DeclineReason> {
        let status = self.parts.status;
        let is_partial = matches!(status, StatusCode::PARTIAL_CONTENT | StatusCode::NOT_MODIFIED);
        refuse_if(self.asked.method != RequestMethod::Get, DeclineReason::Method)?;
        refuse_if(status.is_informational() || is_partial, DeclineReason::Status)
    }

    fn check_directives(&self, said: &Directives) -> Result<(), DeclineReason> {
        refuse_if(said.unreadable, DeclineReason::Unreadable)?;
        let understood = said.must_understand && understands(self.parts.status);
        refuse_if(said.must_understand && !understood, DeclineReason::MustUnderstand)?;
        refuse_if(said.no_store && !understood, DeclineReason::NoStore)?;
        refuse_if(said.private, DeclineReason::Private)
    }

    /// Only a 200 is validated, by an entity tag or a date that is stored with
    /// it (RFC 9111, 4.3.1).
    fn can_be_validated(&self, withheld: &[HeaderName]) -> bool {
        let Parts { status, headers, .. } = self.parts;
        let kept = |name| !withheld.contains(name);
        let received = self.times.response;
        let by_date = || only_date(headers, &header::LAST_MODIFIED, received).is_some();
        *status == StatusCode::OK
            && (kept(&header::ETAG) && has_tag(headers)
                || kept(&header::LAST_MODIFIED) && by_date())
    }

    /// A field that is there says that the origin has a validator, whatever stands in it.
    fn makes_etag(&self) -> bool {
        let Parts { status, headers, .. } = self.parts;
        let has = |name| headers.contains_key(name);
        self.config.make_etags
            && *status == StatusCode::OK
            && !has(header::ETAG)
            && !has(header::LAST_MODIFIED)
    }

    fn check_body(&self) -> Result<Option<u64>, DeclineReason> {
        let headers = &self.parts.headers;
        let has_coding = headers.contains_key(header::TRANSFER_ENCODING);
        refuse_if(
            has_coding && headers.contains_key(header::CONTENT_LENGTH),
            DeclineReason::Framing,
        )?;
        let length = content_length(headers)?;
        let contradicts = |(a, b): (u64, u64)| a != b;
        refuse_if(length.zip(self.length).is_some_and(contradicts), DeclineReason::Framing)?;
        let length = length.or(self.length);
        refuse_if(
            length.is_some_and(|n| n > self.config.max_body as u64),
            DeclineReason::TooLarge,
        )?;
        refuse_if(headers.contains_key(header::TRAILER), DeclineReason::Trailers)?;
        refuse_if(loses_indispensable(headers), DeclineReason::Framing)?;
        Ok(length)
    }

    /// Without a rule of the application, or where it cannot be read, an event stream is for one
    /// client.
    fn stream(&self) -> Result<Option<SharedStream>, DeclineReason> {
        let Parts { status, headers, .. } = self.parts;
        let is_ok = *status == StatusCode::OK;
        let stream = if is_ok { SharedStream::of(self.config, headers) } else { Ok(None) };
        let stream = stream.map_err(|()| DeclineReason::EventStream)?;
        refuse_if(stream.is_none() && is_event_stream(headers), DeclineReason::EventStream)?;
        Ok(stream)
    }

    /// A coded body is for clients that accept its coding, whatever `Vary` says.
    fn vary(&self, coding: Coding) -> Result<Option<VaryList>, DeclineReason> {
        let list = vary::parse(&self.parts.headers, &self.config.vary)?;
        Ok(if coding.is_coded() { Some(VaryList::with_codings(list.as_ref())) } else { list })
    }

    fn terms(&self, said: &Directives, is_for_wave: bool) -> Result<Terms, DeclineReason> {
        let Parts { status, headers, .. } = self.parts;
        if is_for_wave {
            // "Not reusable" is a lifetime, too.
            let is_said = said.no_cache || said.lifetime != Lifetime::Unsaid;
            refuse_if(is_said && !is_never_stored(*status), DeclineReason::NoFreshness)?;
            return Ok(Terms::never_fresh(Source::Origin, headers, self.times));
        }
        refuse_if(is_never_stored(*status), DeclineReason::Status)?;
        let terms =
            lifetime::terms(*status, said, headers, self.cache_for, self.config, self.times);
        if said.no_cache {
            let source = terms.map_or(Source::Origin, |terms| terms.source);
            return Ok(Terms::never_fresh(source, headers, self.times));
        }
        // What is wrong with one request is kept only at the origin's word, or at the
        // application's for this very status.
        let needs_origin = matches!(status.as_u16(), 400 | 413 | 421)
            && !self.config.status_ttl.contains_key(&status.as_u16());
        refuse_if(needs_origin && !said.is_explicit(), DeclineReason::NoFreshness)?;
        terms.ok_or(DeclineReason::NoFreshness)
    }

    /// An origin that says for how long a response is fresh knows of shared
    /// caches. Without a lifetime of its own, `must-revalidate` is what many
    /// frameworks write into every personal page.
    /// A lifetime of zero beside one of the handler's is no permission.
    fn permits(&self, said: &Directives, by_origin: bool) -> Credentials {
        let by_handler = self.config.public || self.cache_for.is_some_and(|said| said.public);
        let has_lifetime = by_origin || matches!(said.lifetime, Lifetime::Seconds(1..));
        if by_handler || has_lifetime && (said.public || said.has_s_maxage) {
            Credentials::ALL
        } else if has_lifetime && said.must_revalidate {
            Credentials::AUTHORIZATION
        } else {
            Credentials::NONE
        }
    }

    /// Returns whether the cookies are to be left out.
    fn check_cookies(
        &self,
        withheld: &[HeaderName],
        is_explicit: bool,
    ) -> Result<bool, DeclineReason> {
        let headers = &self.parts.headers;
        if !headers.contains_key(header::SET_COOKIE) || withheld.contains(&header::SET_COOKIE) {
            return Ok(false);
        }
        match self.config.set_cookie {
            SetCookie::Refuse => Err(DeclineReason::SetCookie),
            SetCookie::Strip => Ok(true),
            SetCookie::Explicit => {
                let mut cookies = headers.get_all(header::SET_COOKIE).iter();
                let is_shared = is_explicit && !cookies.any(is_personal);
                refuse_if(!is_shared, DeclineReason::SetCookie)?;
                refuse_if(!self.asked.credentials.is_anonymous(), DeclineReason::Credentials)?;
                Ok(false)
            }
        }
    }
}

/// Returns whether RFC 6585 forbids to store responses with this status, whatever they say: it is
/// about one client or one connection. Clients that wait for the same response may get it.
pub(crate) const fn is_never_stored(status: StatusCode) -> bool {
    matches!(status.as_u16(), 428 | 429 | 431 | 511)
}

fn refuse_if(condition: bool, refusal: DeclineReason) -> Result<(), DeclineReason> {
    if condition { Err(refusal) } else { Ok(()) }
}

/// Statuses whose rules of caching are implemented (RFC 9111, 5.2.2.3).
fn understands(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200 | 203 | 204 | 300..=303 | 307 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// Reads `Content-Length`; equal repetitions count once (RFC 9110, 8.6).
pub(crate) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, DeclineReason> {
    let mut length = None;
    for line in headers.get_all(header::CONTENT_LENGTH) {
        for member in line.as_bytes().split(|&b| b == b',') {
            let text = str::from_utf8(member.trim_ascii()).unwrap_or_default();
            let is_number = text.bytes().all(|b| b.is_ascii_digit());
            let n = text.parse().ok().filter(|_| is_number).ok_or(DeclineReason::Framing)?;
            refuse_if(length.is_some_and(|other| other != n), DeclineReason::Framing)?;
            length = Some(n);
        }
    }
    Ok(length)
}

fn weight(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

/// Whether a cookie is surely meant for one person.
fn is_personal(cookie: &HeaderValue) -> bool {
    let mut parts = cookie.as_bytes().split(|&b| b == b';').map(<[u8]>::trim_ascii);
    let pair = parts.next().unwrap_or_default().to_ascii_lowercase();
    let pair = pair.strip_prefix(b"=").unwrap_or(&pair).trim_ascii();
    let prefixes: [&[u8]; 4] = [b"__host-", b"__secure-", b"__http-", b"__host-http-"];
    let is_http_only = |attribute: &[u8]| {
        let name = attribute.split(|&b| b == b'=').next().unwrap_or_default();
        name.trim_ascii().eq_ignore_ascii_case(b"httponly")
    };
    prefixes.iter().any(|prefix| pair.starts_with(prefix)) || parts.any(is_http_only)
}
