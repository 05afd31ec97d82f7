//! One call of the service: for a response, or for the confirmation of a stored one.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header, response::Parts};
use http_body::Body;
use tower_service::Service;

use crate::http::body::ResponseBody;
use crate::http::cache_for::CacheFor;
use crate::http::flow::content;
use crate::http::flow::forward::ForwardStatus;
use crate::http::flow::lookup::HttpCaller;
use crate::http::flow::nested;
use crate::http::rules::decline_reason::is_failure;
use crate::http::rules::request::RequestMethod;
use crate::http::rules::validation::{self, Validators};
use crate::http::stored::response::{CachedResponse, HttpCache, StoredEntry, selects};
use crate::key::Key;
use crate::observe::table::RevalidationResult;
use crate::observe::{Observe, Occurrence};

/// A request on its way to the service.
pub(super) struct OriginRequest<S, Q> {
    service: S,
    request: Request<Q>,
    about: Option<About<Q>>,
    /// A stored response that the service is not asked about: it has no validator.
    unasked: Option<StoredEntry>,
}

/// A stored response that the service is asked about.
struct About<Q> {
    key: Key,
    entry: StoredEntry,
    validators: Validators,
    /// For asking again, once, if the answer is about something else.
    spare: Q,
}

/// What the service says.
pub(super) enum OriginAnswer<B> {
    Response(Response<B>),
    /// The stored response is still good.
    Confirmed(Confirmation),
}

impl<S, Q: Body + 'static> OriginRequest<S, Q> {
    /// Asks about what the caller has in hand, if that can be validated.
    pub(super) fn new(caller: &HttpCaller, service: S, request: Request<Q>) -> Self {
        // A part is asked for under the client's own condition.
        let is_whole =
            !request.headers().contains_key(header::RANGE) && !caller.request.wishes.last_event;
        let about = caller.to_validate().filter(|_| is_whole).and_then(|(entry, validators)| {
            Some(About {
                key: caller.request.primary.clone(),
                entry,
                validators,
                spare: content::spare(&caller.request.rules, caller.request.content.as_ref())?,
            })
        });
        let has_condition = validation::is_conditional(request.headers());
        let unasked =
            if about.is_some() || has_condition || !is_whole { None } else { caller.to_confirm() };
        Self { service, request, about, unasked }
    }

    /// Returns whether the request carries our own condition, and no other.
    pub(super) fn is_conditional(&self) -> bool {
        self.about.is_some()
    }

    /// Asks. A 304 that is not about the stored response, or comes when that
    /// has been invalidated, updates nothing (RFC 9111, 4.3.4): then the
    /// service is asked once more, without a condition.
    pub(super) async fn put<B>(self, cache: &HttpCache) -> Result<OriginAnswer<B>, S::Error>
    where
        S: Service<Request<Q>, Response = Response<B>> + Clone,
    {
        let Self { service, request, about, unasked } = self;
        let Some(About { key, entry, validators, spare }) = about else {
            let response = nested::call(service, request).await?;
            return Ok(confirm_unasked(cache, unasked, response));
        };
        let (mut parts, body) = request.into_parts();
        let mut again = parts.clone();
        validation::ask(&mut parts.headers, &validators);
        let conditional = Request::from_parts(parts, body);
        let response = nested::call(service.clone(), conditional).await?;
        let revalidated =
            |result| cache.observer.happened(Occurrence::Revalidated { key: &key, result });
        if response.status() != StatusCode::NOT_MODIFIED {
            let status = response.status();
            revalidated(match is_failure(status) || status.is_server_error() {
                true => RevalidationResult::Failed,
                false => RevalidationResult::Changed,
            });
            return Ok(OriginAnswer::Response(response));
        }
        let is_about_it = validators.are_confirmed_by(response.headers());
        if is_about_it && cache.engine.log.is_alive(&entry) {
            revalidated(RevalidationResult::Confirmed);
            let not_modified = response.into_parts().0;
            let confirmed = Confirmation { entry, not_modified };
            return Ok(OriginAnswer::Confirmed(confirmed));
        }
        revalidated(RevalidationResult::Mismatched);
        drop(response);
        validation::ask_unconditionally(&mut again.headers);
        let unconditional = Request::from_parts(again, spare);
        nested::call(service, unconditional).await.map(OriginAnswer::Response)
    }
}

/// Takes a 304 to a request without a condition for what it can only mean: the stored response is
/// good. A client could do nothing with it.
fn confirm_unasked<B>(
    cache: &HttpCache,
    unasked: Option<StoredEntry>,
    response: Response<B>,
) -> OriginAnswer<B> {
    let is_not_modified = response.status() == StatusCode::NOT_MODIFIED;
    let names_another = response.headers().contains_key(header::ETAG)
        || response.headers().contains_key(header::LAST_MODIFIED);
    let alive = |entry: &StoredEntry| cache.engine.log.is_alive(entry);
    match unasked.filter(alive) {
        Some(entry) if is_not_modified && !names_another => {
            let mut not_modified = response.into_parts().0;
            // Nothing says that the other fields are about the stored response.
            not_modified.headers = validation::lifetime_fields(&not_modified.headers);
            OriginAnswer::Confirmed(Confirmation { entry, not_modified })
        }
        _ => OriginAnswer::Response(response),
    }
}

impl HttpCaller {
    /// Returns what may be validated for this request: a stored response that
    /// it selects, and that is not invalidated.
    pub(super) fn to_validate(&self) -> Option<(StoredEntry, Validators)> {
        let entry = self.to_confirm()?;
        let validators = entry.value.response().and_then(CachedResponse::validators)?;
        Some((entry, validators))
    }

    /// Returns the stored response that a 304 may confirm for this request.
    fn to_confirm(&self) -> Option<StoredEntry> {
        let is_get = self.request.asked.method == RequestMethod::Get;
        let entry = self.stale.as_ref().filter(|_| is_get && !self.request.wishes.no_store)?;
        let stored = entry.value.response()?;
        let is_selected =
            selects(stored, &self.request.asked, &self.request.headers, &self.request.rules.config);
        let is_alive = || self.request.cache.engine.log.is_alive(entry);
        stored.body.whole()?;
        (stored.status == StatusCode::OK && is_selected && is_alive()).then(|| Arc::clone(entry))
    }
}

/// A stored response of which the service has just said that it is good.
pub(super) struct Confirmation {
    pub(super) entry: StoredEntry,
    not_modified: Parts,
}

/// The same as a response of now.
pub(super) struct RenewedResponse {
    pub(super) entry: StoredEntry,
    pub(super) head: Parts,
    pub(super) body: Bytes,
    pub(super) cache_for: Option<CacheFor>,
    /// Meant for the client whose request was forwarded, and for no other.
    cookies: Vec<HeaderValue>,
}

impl Confirmation {
    /// Returns the stored response with the fields of the 304.
    pub(super) fn renew(self, received: SystemTime) -> RenewedResponse {
        let Self { entry, not_modified: mut head } = self;
        let stored = entry.value.response().expect("no index is asked about");
        let cookies = head.headers.get_all(header::SET_COOKIE).iter().cloned().collect();
        head.headers = validation::merge(&stored.headers, &head.headers, received);
        head.status = stored.status;
        let body = stored.body.whole().expect("only what is complete is asked about").clone();
        RenewedResponse { cookies, ..RenewedResponse::new(entry, head, body) }
    }
}

impl RenewedResponse {
    pub(super) fn new(entry: StoredEntry, mut head: Parts, body: Bytes) -> Self {
        let cache_for = CacheFor::take_from(&mut head.extensions);
        Self { entry, head, body, cache_for, cookies: Vec::new() }
    }

    /// Returns the response for the client whose request was forwarded.
    pub(super) fn response<B: http_body::Body>(mut self) -> Response<ResponseBody<B>> {
        if !self.cookies.is_empty() {
            self.head.headers.remove(header::SET_COOKIE);
        }
        for cookie in self.cookies {
            // A map that is full to the brim goes without.
            let _ = self.head.headers.try_append(header::SET_COOKIE, cookie);
        }
        self.head.extensions.insert(ForwardStatus(StatusCode::NOT_MODIFIED));
        Response::from_parts(self.head, ResponseBody::full(self.body))
    }
}
