//! The service of the HTTP layer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::cache::state::Lookup;
use crate::clock::Tick;
use crate::error::BoxError;
use crate::http::body::{ResponseBody, SourceBody, read_request};
use crate::http::flow::OriginService;
use crate::http::flow::answer::{self, Provenance, by_entry, shape_of};
use crate::http::flow::content;
use crate::http::flow::forward::Forward;
use crate::http::flow::forwarded;
use crate::http::flow::future::HttpFuture;
use crate::http::flow::lookup::{
    ClientRequest, HttpCaller, automatic_tags, group_origin, look, primary_key,
};
use crate::http::flow::miss::serve;
use crate::http::flow::nested::{self, Passage, RequestPurpose};
use crate::http::flow::normal_form;
use crate::http::flow::part::may_fill_from_range;
use crate::http::flow::refresh::is_being_refreshed;
use crate::http::flow::trail;
use crate::http::flow::unsafe_method;
use crate::http::layer::route_table::{AmbiguousPath, RouteTable, matched_path};
use crate::http::layer::rules::Rules;
use crate::http::rules::codings;
use crate::http::rules::content::{RequestContent, is_query};
use crate::http::rules::request::{
    BypassReason, Class, FieldScan, RequestFacts, Wishes, classify, credential_field, is_unsafe,
};
use crate::http::rules::shape::Shape;
use crate::http::rules::steering;
use crate::http::stored::response::{HttpCache, StoredEntry, StoredResponse};
use crate::key::KeyBuf;
use crate::mode::Mode;
use crate::observe::{Observe, Occurrence};
use crate::outcome::CacheOutcome;
use crate::tower::oneshot::Oneshot;

/// Answers HTTP requests from a cache, and asks the inner service once.
///
/// Made by [`HttpLayer`](crate::HttpLayer), where the example is.
///
/// # Backpressure
///
/// Always ready: a hit must not wait for a saturated service. A leader drives a clone of the
/// service to readiness, and meets its back-pressure there.
#[derive(Clone)]
pub struct HttpService<S> {
    inner: S,
    cache: Arc<HttpCache>,
    rules: Arc<Rules>,
}

impl<S> HttpService<S> {
    pub(crate) fn new(inner: S, cache: Arc<HttpCache>, rules: Arc<Rules>) -> Self {
        Self { inner, cache, rules }
    }

    /// Returns the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, Q, B> Service<Request<Q>> for HttpService<S>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    Q: Body + Send + 'static,
    B: Body + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = HttpFuture<B, S::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let is_inside = nested::is_inside(request.extensions(), &self.cache);
        let (parts, body) = request.into_parts();
        if is_inside {
            return self.pass_on(parts, body);
        }
        match &self.rules.route_table {
            None => self.take(parts, body, &self.rules),
            Some(table) => self.take_by_route(parts, body, table),
        }
    }
}

impl<S> HttpService<S> {
    fn mode(&self) -> Mode {
        self.cache.engine.mode()
    }

    /// Passes on a request that has come through a layer of the same handle; see [`nested`].
    #[cold]
    fn pass_on<Q, B>(&self, parts: Parts, body: Q) -> HttpFuture<B, S::Error>
    where
        S: OriginService<Q, B>,
        Q: Body + Send + 'static,
        B: SourceBody,
    {
        let observer = &self.cache.observer;
        observer.bypass_reason(BypassReason::Nested.as_str());
        if !self.rules.is_known_as_nested.swap(true, Ordering::Relaxed) {
            observer.happened(Occurrence::LayerNested);
        }
        let rules = match &self.rules.route_table {
            None => Some(&self.rules),
            Some(table) => table.find(&parts).ok().map(|rules| rules.unwrap_or(&self.rules)),
        };
        let passage = Passage::of(&parts, &self.cache, rules.map(|rules| &**rules));
        let rules = rules.unwrap_or(&self.rules);
        if passage.is_write(&parts, rules) {
            return self.forward_write(parts, body, rules, false);
        }
        let call = Oneshot::new(self.inner.clone(), Request::from_parts(parts, body));
        HttpFuture::pending(async move {
            let response = call.await?;
            passage.end(&response);
            Ok(response.map(ResponseBody::inner))
        })
    }

    /// Answers a request under the rules of its route. One that may be for several routes is
    /// forwarded as it has come: what one route does not count, another one may.
    #[inline(never)]
    fn take_by_route<Q, B>(
        &self,
        parts: Parts,
        body: Q,
        table: &RouteTable<Rules>,
    ) -> HttpFuture<B, S::Error>
    where
        S: OriginService<Q, B>,
        Q: Body + Send + 'static,
        B: SourceBody,
    {
        match table.find(&parts) {
            Ok(rules) => self.take(parts, body, rules.unwrap_or(&self.rules)),
            Err(AmbiguousPath) if is_unsafe(&parts.method) => {
                self.pass_unsafe(parts, body, &self.rules)
            }
            Err(AmbiguousPath) => {
                self.bypass(parts, body, &self.rules, BypassReason::AmbiguousPath)
            }
        }
    }

    /// Answers a request under `rules`, once its body was read if that is a part of its key.
    #[inline]
    fn take<Q, B>(&self, mut parts: Parts, body: Q, rules: &Arc<Rules>) -> HttpFuture<B, S::Error>
    where
        S: OriginService<Q, B>,
        Q: Body + Send + 'static,
        B: SourceBody,
    {
        if content::is_to_be_read(&mut parts, rules) && self.mode() != Mode::Off {
            return self.read(parts, body, rules);
        }
        self.answer(parts, body, rules)
    }

    /// Answers a request that is keyed by its body, once that was read.
    #[cold]
    fn read<Q, B>(&self, mut parts: Parts, body: Q, rules: &Arc<Rules>) -> HttpFuture<B, S::Error>
    where
        S: OriginService<Q, B>,
        Q: Body + Send + 'static,
        B: SourceBody,
    {
        if let Some(reason) = content::refuse(&body, rules) {
            if reason == BypassReason::BodyType {
                let type_name = std::any::type_name::<Q>();
                self.cache.observer.happened(Occurrence::BodyTypeUnknown { type_name });
            }
            return self.forward_unread(parts, body, rules, reason);
        }
        let (own, rules) = (self.clone(), Arc::clone(rules));
        let (most, time) = (rules.config.max_request_body, rules.config.request_body_timeout);
        HttpFuture::pending(async move {
            let read = read_request(body, most, time);
            let (body, content) = content::judge(&parts, &rules, read.await);
            let answer = match content {
                Ok(Some(content)) => {
                    parts.extensions.insert(content);
                    own.answer(parts, body, &rules)
                }
                Ok(None) => own.pass_unsafe(parts, body, &rules),
                Err(reason) => own.forward_unread(parts, body, &rules, reason),
            };
            answer.await
        })
    }

    /// Forwards a request whose body was not read to its end.
    fn forward_unread<Q, B>(
        &self,
        parts: Parts,
        body: Q,
        rules: &Arc<Rules>,
        reason: BypassReason,
    ) -> HttpFuture<B, S::Error>
    where
        S: OriginService<Q, B>,
        Q: Body + Send + 'static,
        B: SourceBody,
    {
        if content::is_unsafe_unread(&parts, rules) {
            return self.pass_unsafe(parts, body, rules);
        }
        self.bypass(parts, body, rules, reason)
    }

    /// Answers a request under `rules`.
    // Never: with two callers, what it calls itself would be inlined in neither.
    #[inline(never)]
    fn answer<Q, B>(&self, mut parts: Parts, body: Q, rules: &Arc<Rules>) -> HttpFuture<B, S::Error>
    where
        S: OriginService<Q, B>,
        Q: Body + Send + 'static,
        B: SourceBody,
    {
        if !rules.config.ignored_cookies.is_empty() {
            normal_form::remove_ignored_cookies(&mut parts, &rules.config);
        }
        let seen = FieldScan::of(&parts.headers, &rules.config);
        let (asked, wishes) = match classify(&parts, &seen, body.is_end_stream(), &rules.config) {
            Class::Cacheable(asked, wishes) => (asked, wishes),
            Class::Unsafe => return self.pass_unsafe(parts, body, rules),
            Class::Bypass(reason) => return self.bypass(parts, body, rules, reason),
        };
        let mut primary = KeyBuf::new();
        if let Err(reason) = primary_key(&mut primary, &parts, &seen, rules) {
            return self.bypass(parts, body, rules, reason);
        }
        if self.cache.engine.mode() != Mode::On {
            let nothing = (Lookup::Miss(None), Forward::UriMiss);
            return self.miss(parts, body, rules, (asked, wishes), &primary, nothing);
        }
        let now = self.cache.now();
        let found = look(&self.cache, rules, primary.as_bytes(), &asked, &parts.headers, now);
        let is_judged = wishes.demand.is_some() || wishes.last_event;
        let found = if is_judged { wishes.judge(found, &parts.headers, now) } else { found };
        // By reference: a lookup is so large that each move of it shows in the instructions.
        if let (Lookup::Fresh(entry), _) = &found {
            let mut response = Response::new(ResponseBody::default());
            let (found, asked) = ((primary.as_bytes(), entry), (asked, wishes));
            self.write_hit(&mut response, &mut parts, rules, asked, found, now);
            return HttpFuture::ready(response);
        }
        match found {
            (Lookup::Stale(entry), forward)
                if !wishes.no_store
                    && self.cache.engine.settings.soft_timeout.is_none()
                    && is_being_refreshed(&self.cache, primary.as_bytes(), &entry) =>
            {
                // What `miss` comes to for it, by a longer way.
                self.cache.observer.answered(CacheOutcome::Stale);
                let (layer, asked) = ((&*self.cache, &**rules), (asked.method, wishes, forward));
                let outcome = CacheOutcome::Stale;
                HttpFuture::ready(by_entry(layer, asked, &parts.headers, &entry, outcome, now))
            }
            found => self.miss(parts, body, rules, (asked, wishes), &primary, found),
        }
    }

    #[inline]
    fn write_hit<B: Body>(
        &self,
        response: &mut Response<ResponseBody<B>>,
        parts: &mut Parts,
        rules: &Rules,
        (asked, wishes): (RequestFacts, Wishes),
        (primary, entry): (&[u8], &StoredEntry),
        now: Tick,
    ) {
        self.cache.observer.hit(primary, entry);
        if entry.is_noted_use() {
            self.note_route(parts, entry);
        }
        let shape = shape_of(&self.cache, wishes, &parts.headers, entry);
        let status = || answer::hit_status(rules, entry, now);
        // A refusal says by itself what it is.
        if answer::write(response, rules, entry, (asked.method, shape), status, now) {
            response.body_mut().comes_by(CacheOutcome::Hit);
            if rules.config.outcome_on_hits {
                answer::mark_hit(response.extensions_mut(), std::mem::take(&mut parts.extensions));
            }
        }
    }

    /// Notes what a route has saved: that of axum's router, where it stands outside of the layer, else
    /// the first segment of the path.
    #[cold]
    fn note_route(&self, parts: &Parts, entry: &StoredEntry) {
        let path = parts.uri.path();
        let first =
            || path.get(1..).and_then(|rest| rest.find('/')).map_or(path, |at| &path[..at + 2]);
        let route = matched_path(parts).unwrap_or_else(first);
        self.cache.observer.ledger.note_route(route, entry);
    }

    /// Brings a request that is forwarded uncached into the form in which this layer sends its
    /// requests.
    fn normalise(parts: &mut Parts, rules: &Rules) {
        parts.extensions.remove::<RequestContent>();
        let is_query = rules.config.query_method && is_query(&parts.method);
        if is_query || matches!(parts.method, Method::GET | Method::HEAD) {
            normal_form::apply(parts, rules);
        }
    }

    fn bypass<Q, B>(
        &self,
        mut parts: Parts,
        body: Q,
        rules: &Arc<Rules>,
        reason: BypassReason,
    ) -> HttpFuture<B, S::Error>
    where
        S: OriginService<Q, B>,
        Q: Body + Send + 'static,
        B: SourceBody,
    {
        self.cache.observer.bypassed(reason.as_str());
        if reason != BypassReason::AmbiguousPath {
            Self::normalise(&mut parts, rules);
        }
        nested::mark(&mut parts, &self.cache, rules, RequestPurpose::Uncached);
        let (cache, rules) = (Arc::clone(&self.cache), Arc::clone(rules));
        let service = self.inner.clone();
        HttpFuture::pending(async move {
            let place = match forwarded::take_place(&cache, &rules, &parts).await {
                Ok(place) => place,
                Err(error) => return Ok(answer::refusal(&rules, error)),
            };
            let call = Oneshot::new(service, Request::from_parts(parts, body));
            let response = place.drive(call).await?.map(ResponseBody::inner);
            Ok(answer::from_service(&rules, response, &Shape::Whole, Provenance::bypass(reason)))
        })
    }

    fn pass_unsafe<Q, B>(
        &self,
        mut parts: Parts,
        body: Q,
        rules: &Arc<Rules>,
    ) -> HttpFuture<B, S::Error>
    where
        S: OriginService<Q, B>,
        Q: Body + Send + 'static,
        B: SourceBody,
    {
        self.cache.observer.bypassed(BypassReason::Method.as_str());
        Self::normalise(&mut parts, rules);
        nested::mark(&mut parts, &self.cache, rules, RequestPurpose::Write);
        self.forward_write(parts, body, rules, true)
    }

    fn forward_write<Q, B>(
        &self,
        parts: Parts,
        body: Q,
        rules: &Arc<Rules>,
        is_outermost: bool,
    ) -> HttpFuture<B, S::Error>
    where
        S: OriginService<Q, B>,
        Q: Body + Send + 'static,
        B: SourceBody,
    {
        let (cache, rules) = (Arc::clone(&self.cache), Arc::clone(rules));
        cache.writes.end();
        let service = self.inner.clone();
        HttpFuture::pending(unsafe_method::pass(cache, rules, service, parts, body, is_outermost))
    }

    /// Answers a request that found nothing fresh.
    fn miss<Q, B>(
        &self,
        mut parts: Parts,
        body: Q,
        rules: &Arc<Rules>,
        (asked, wishes): (RequestFacts, Wishes),
        primary: &KeyBuf,
        (look, forward): (Lookup<StoredResponse>, Forward),
    ) -> HttpFuture<B, S::Error>
    where
        S: OriginService<Q, B>,
        Q: Body + Send + 'static,
        B: SourceBody,
    {
        // All that the caller needs is taken from the request as it came: what follows changes it.
        let carries_some = !asked.credentials.is_anonymous();
        let credential = || credential_field(&parts.headers, &rules.config);
        let client_request = ClientRequest {
            cache: Arc::clone(&self.cache),
            rules: Arc::clone(rules),
            asked,
            wishes,
            not_before: self.cache.engine.table.upcoming_number(),
            headers: parts.headers.clone(),
            primary: primary.to_key(),
            content: RequestContent::of_request(&parts).map(|content| content.bytes.clone()),
            tags: automatic_tags(&self.cache, &parts, rules),
            anchor: trail::anchor(&self.cache, primary.as_bytes()),
            group_origin: group_origin(&parts, rules),
            credential: carries_some.then(credential).flatten(),
            client: rules.client(&parts),
            may_fill_from_range: wishes.range && may_fill_from_range::<Q>(&parts, rules),
            asks_in: None,
        };
        // The key has it; the service gets the body itself.
        if client_request.content.is_some() {
            parts.extensions.remove::<RequestContent>();
        }
        // The service sees one form per key, so that any leader asks for all.
        normal_form::apply(&mut parts, rules);
        codings::reduce(&mut parts.headers, &rules.config);
        nested::mark(&mut parts, &self.cache, rules, RequestPurpose::Shared);
        let request = Request::from_parts(parts, body);
        let service = self.inner.clone();
        let caller = HttpCaller::new(Arc::new(client_request), forward);
        HttpFuture::pending(async move {
            let ClientRequest { cache, rules, .. } = &*caller.request;
            let (cache, rules) = (Arc::clone(cache), Arc::clone(rules));
            let mut result = serve(caller, look, service, request).await;
            if let Ok(response) = &mut result {
                // Fields that are addressed to this cache: also where a layer further in has
                // made the response.
                steering::remove_ours(response.headers_mut(), &rules.config);
            }
            let outcome = result.as_ref().ok().and_then(|r| r.extensions().get().copied());
            cache.observer.answered(outcome.unwrap_or(CacheOutcome::Computed));
            result
        })
    }
}

impl<S: std::fmt::Debug> std::fmt::Debug for HttpService<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
