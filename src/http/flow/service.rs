//! The service of the HTTP layer.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::cache::state::Lookup;
use crate::clock::Tick;
use crate::error::BoxError;
use crate::http::body::{ResponseBody, read_request};
use crate::http::flow::answer::{self, Provenance};
use crate::http::flow::content::{self, Safety};
use crate::http::flow::forwarded::ForwardPlace;
use crate::http::flow::future::HttpFuture;
use crate::http::flow::lookup::{
    Forward, HttpCache, HttpCaller, StoredEntry, automatic_tags, group_origin, look, primary_key,
    received_uri,
};
use crate::http::flow::miss::{self, serve, shape_of};
use crate::http::flow::nested::{self, Nested, Position, View};
use crate::http::flow::normal_form;
use crate::http::flow::outside::Outside;
use crate::http::flow::owned_routes::Crowd;
use crate::http::flow::part::may_fill_from_range;
use crate::http::flow::refresh::is_being_refreshed;
use crate::http::flow::trail::{self, Trail};
use crate::http::flow::unkeyed::NOTHING;
use crate::http::flow::unsafe_method;
use crate::http::layer::Rules;
use crate::http::layer::routes::{AmbiguousPath, RouteTable};
use crate::http::rules::codings;
use crate::http::rules::content::{RequestContent, is_query};
use crate::http::rules::request::{
    BypassReason, Class, FieldScan, RequestFacts, RequestMethod, Wishes, classify,
    credential_field, is_unsafe,
};
use crate::http::stored::response::StoredResponse;
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
            return self.call_inside(parts, body);
        }
        match &self.rules.route_table {
            None => self.take(parts, body, &self.rules, None),
            Some(table) => self.take_by_route(parts, body, table),
        }
    }
}

impl<S> HttpService<S> {
    fn mode(&self) -> Mode {
        self.cache.engine.mode()
    }

    /// Answers a request that has come through a layer of the same handle; see [`nested`].
    #[cold]
    fn call_inside<Q, B>(&self, mut parts: Parts, body: Q) -> HttpFuture<B, S::Error>
    where
        S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        Q: Body + Send + 'static,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let Some(nested) = self.claim(&mut parts) else { return self.pass_on(parts, body) };
        let answer = self.take(parts, body, &nested.rules, Some(&nested.outside));
        nested.finish(answer)
    }

    /// Answers a request under the rules of its route. One that may be for several routes is
    /// forwarded as it has come: what one route does not count, another one may.
    #[inline(never)]
    fn take_by_route<Q, B>(
        &self,
        parts: Parts,
        body: Q,
        table: &RouteTable,
    ) -> HttpFuture<B, S::Error>
    where
        S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        Q: Body + Send + 'static,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        match table.find(&parts) {
            Ok(rules) => self.take(parts, body, rules.unwrap_or(&self.rules), None),
            Err(AmbiguousPath) if is_unsafe(&parts.method) => {
                self.pass_unsafe(parts, body, &self.rules, Position::Outermost)
            }
            Err(AmbiguousPath) => {
                self.bypass(parts, body, &self.rules, BypassReason::AmbiguousPath)
            }
        }
    }

    /// Answers a request under `rules`, once its body was read if that is a part of its key.
    #[inline]
    fn take<Q, B>(
        &self,
        mut parts: Parts,
        body: Q,
        rules: &Arc<Rules>,
        outside: Option<&Outside>,
    ) -> HttpFuture<B, S::Error>
    where
        S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        Q: Body + Send + 'static,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if content::is_to_be_read(&mut parts, rules) && self.mode() != Mode::Off {
            return self.read(parts, body, rules, outside);
        }
        self.answer(parts, body, rules, outside)
    }

    /// Answers a request that is keyed by its body, once that was read.
    #[cold]
    fn read<Q, B>(
        &self,
        mut parts: Parts,
        body: Q,
        rules: &Arc<Rules>,
        outside: Option<&Outside>,
    ) -> HttpFuture<B, S::Error>
    where
        S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        Q: Body + Send + 'static,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let position = if outside.is_some() { Position::Inside } else { Position::Outermost };
        if let Some(reason) = content::refuse(&body, rules) {
            if reason == BypassReason::BodyType {
                let type_name = std::any::type_name::<Q>();
                self.cache.observer.happened(Occurrence::BodyTypeUnknown { type_name });
            }
            return self.forward_unread(parts, body, rules, reason, position);
        }
        let (own, rules, outside) = (self.clone(), Arc::clone(rules), outside.cloned());
        let (most, time) = (rules.config.max_request_body, rules.config.request_body_timeout);
        HttpFuture::pending(async move {
            let read = read_request(body, most, time);
            let (body, safety) = content::judge(&parts, &rules, read.await);
            let answer = match safety {
                Ok(Safety::Safe(content)) => {
                    parts.extensions.insert(content);
                    own.answer(parts, body, &rules, outside.as_ref())
                }
                Ok(Safety::Unsafe) => own.pass_unsafe(parts, body, &rules, position),
                Err(reason) => own.forward_unread(parts, body, &rules, reason, position),
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
        position: Position,
    ) -> HttpFuture<B, S::Error>
    where
        S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        Q: Body + Send + 'static,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if content::is_unsafe_unread(&parts, rules) {
            return self.pass_unsafe(parts, body, rules, position);
        }
        self.bypass(parts, body, rules, reason)
    }

    /// Answers a request under `rules`. `outside` is what layers further out have received.
    // Never: with two callers, what it calls itself would be inlined in neither.
    #[inline(never)]
    fn answer<Q, B>(
        &self,
        mut parts: Parts,
        body: Q,
        rules: &Arc<Rules>,
        outside: Option<&Outside>,
    ) -> HttpFuture<B, S::Error>
    where
        S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        Q: Body + Send + 'static,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if !rules.config.ignored_cookies.is_empty() {
            normal_form::remove_ignored_cookies(&mut parts, &rules.config);
        }
        let seen = FieldScan::of(&parts.headers, &rules.config);
        let (mut asked, wishes) = match classify(&parts, &seen, body.is_end_stream(), &rules.config)
        {
            Class::Cacheable(asked, wishes) => (asked, wishes),
            Class::Unsafe => return self.pass_unsafe(parts, body, rules, Position::Outermost),
            Class::Bypass(reason) => return self.bypass(parts, body, rules, reason),
        };
        let mut own = KeyBuf::new();
        let added_from = match primary_key(&mut own, &parts, &seen, rules) {
            Ok(added_from) => added_from,
            Err(reason) => return self.bypass(parts, body, rules, reason),
        };
        let nested;
        let primary = match outside {
            None => &own,
            Some(outside) => {
                if let Some(reason) = outside.refused {
                    return self.bypass(parts, body, rules, reason);
                }
                asked.credentials = asked.credentials | outside.facts.credentials;
                nested = outside.nest(&own);
                // Once more: a hash of what layers further out have received is part of it.
                if nested.as_bytes().len() > rules.config.max_key_bytes {
                    return self.bypass(parts, body, rules, BypassReason::KeyTooLong);
                }
                &nested
            }
        };
        if self.cache.engine.mode() != Mode::On {
            let nothing = (Lookup::Miss(None), Forward::UriMiss);
            let keys = (primary, &own.as_bytes()[added_from..]);
            return self.miss(parts, body, (rules, outside), (asked, wishes), keys, nothing);
        }
        let now = self.cache.now();
        let selecting = outside.and_then(|outside| outside.selecting.as_ref());
        let headers = selecting.unwrap_or(&parts.headers);
        let found = look(&self.cache, rules, primary.as_bytes(), &asked, headers, now);
        let found = if wishes.demand.is_some() { wishes.judge(found, now) } else { found };
        // By reference: a lookup is so large that each move of it shows in the instructions.
        if let (Lookup::Fresh(entry), _) = &found {
            let mut response = Response::new(ResponseBody::default());
            self.write_hit(&mut response, &mut parts, rules, (asked, wishes), entry, now);
            return HttpFuture::ready(response);
        }
        match found {
            (Lookup::Stale(entry), _)
                if outside.is_none()
                    && !wishes.no_store
                    && rules.routes.are_none()
                    && is_being_refreshed(&self.cache, primary.as_bytes(), &entry) =>
            {
                // What `miss` comes to for it, by a longer way.
                let answered = (wishes, asked.method, now);
                HttpFuture::ready(self.stale_hit(&parts, rules, answered, &entry))
            }
            found => {
                let keys = (primary, &own.as_bytes()[added_from..]);
                self.miss(parts, body, (rules, outside), (asked, wishes), keys, found)
            }
        }
    }

    #[inline]
    fn write_hit<B: Body>(
        &self,
        response: &mut Response<ResponseBody<B>>,
        parts: &mut Parts,
        rules: &Rules,
        (asked, wishes): (RequestFacts, Wishes),
        entry: &StoredEntry,
        now: Tick,
    ) {
        self.cache.observer.answered(CacheOutcome::Hit);
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

    /// Answers by an entry that is stale, and that another request has refreshed.
    #[cold]
    fn stale_hit<B: Body>(
        &self,
        parts: &Parts,
        rules: &Rules,
        (wishes, method, now): (Wishes, RequestMethod, Tick),
        entry: &StoredEntry,
    ) -> Response<ResponseBody<B>> {
        self.cache.observer.answered(CacheOutcome::Stale);
        let shape = shape_of(&self.cache, wishes, &parts.headers, entry);
        let status = || answer::hit_status(rules, entry, now);
        let mut response = answer::from_entry(rules, entry, method, shape, status, now);
        miss::say(&mut response, rules, CacheOutcome::Stale);
        response
    }

    /// Claims a request that has come through a layer of the same handle; see [`nested`].
    /// Returns `None` where it is not for this layer.
    #[cold]
    fn claim(&self, parts: &mut Parts) -> Option<Box<Nested>> {
        let marks = nested::marks_of(parts, &self.cache);
        let is_again = marks.iter().any(|mark| mark.is_of(&self.rules));
        let outer = marks.last().filter(|_| !is_again)?;
        let rules = nested::combine(&self.rules, &outer.rules);
        if is_unsafe(&parts.method) && !content::is_safe_post(parts, &rules) {
            outer.claim();
            return None;
        }
        outer.restore(parts);
        if marks.iter().any(|mark| !mark.is_keyed()) {
            self.mark_uncached(parts, &rules);
            return None;
        }
        outer.claim();
        let has_remote = self.cache.engine.shared.get().is_some();
        let outside = Outside::of(&marks, &rules, parts, has_remote);
        Some(Box::new(Nested { rules, outside, outer: outer.clone() }))
    }

    /// Passes on a request that is not for this layer, and the response as it comes: what a
    /// handler says in it is for a layer further out.
    fn pass_on<Q, B>(&self, parts: Parts, body: Q) -> HttpFuture<B, S::Error>
    where
        S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        Q: Body + Send + 'static,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if is_unsafe(&parts.method) {
            let outer = nested::marks_of(&parts, &self.cache).pop();
            let rules = outer.map(|outer| nested::combine(&self.rules, &outer.rules));
            let rules = rules.as_ref().unwrap_or(&self.rules);
            return self.pass_unsafe(parts, body, rules, Position::Inside);
        }
        self.cache.observer.bypass_reason(BypassReason::Nested.as_str());
        let call = Oneshot::new(self.inner.clone(), Request::from_parts(parts, body));
        HttpFuture::pending(async move { Ok(call.await?.map(ResponseBody::inner)) })
    }

    /// Leaves a mark in a request that is forwarded uncached, in the form that this layer
    /// gives its requests.
    fn mark_uncached(&self, parts: &mut Parts, rules: &Arc<Rules>) {
        parts.extensions.remove::<RequestContent>();
        let received = received_uri(parts).clone();
        let is_query = rules.config.query_method && is_query(&parts.method);
        if is_query || matches!(parts.method, Method::GET | Method::HEAD) {
            normal_form::apply(parts, rules);
        }
        nested::mark(parts, &self.cache, &self.rules, rules, received, None);
    }

    /// Leaves a mark in a request that is forwarded as it has come.
    fn mark(&self, parts: &mut Parts, rules: &Arc<Rules>) {
        let received = received_uri(parts).clone();
        nested::mark(parts, &self.cache, &self.rules, rules, received, None);
    }

    fn bypass<Q, B>(
        &self,
        mut parts: Parts,
        body: Q,
        rules: &Arc<Rules>,
        reason: BypassReason,
    ) -> HttpFuture<B, S::Error>
    where
        S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        Q: Send + 'static,
        B: Body + Send + 'static,
    {
        self.cache.observer.bypassed(reason.as_str());
        match reason {
            BypassReason::AmbiguousPath => self.mark(&mut parts, rules),
            _ => self.mark_uncached(&mut parts, rules),
        }
        let (cache, rules) = (Arc::clone(&self.cache), Arc::clone(rules));
        let service = self.inner.clone();
        HttpFuture::pending(async move {
            let place = match ForwardPlace::take(&cache, &rules, &parts).await {
                Ok(place) => place,
                Err(error) => return Ok(answer::refusal(&rules, error)),
            };
            let call = Oneshot::new(service, Request::from_parts(parts, body));
            let response = place.drive(call).await?.map(ResponseBody::inner);
            Ok(answer::from_service(&rules, response, Provenance::bypass(reason)))
        })
    }

    fn pass_unsafe<Q, B>(
        &self,
        mut parts: Parts,
        body: Q,
        rules: &Arc<Rules>,
        position: Position,
    ) -> HttpFuture<B, S::Error>
    where
        S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        Q: Body + Send + 'static,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (cache, rules) = (Arc::clone(&self.cache), Arc::clone(rules));
        cache.writes.note_write();
        match position {
            Position::Outermost => {
                cache.observer.bypassed(BypassReason::Method.as_str());
                self.mark_uncached(&mut parts, &rules);
            }
            Position::Inside => {
                cache.observer.bypass_reason(BypassReason::Nested.as_str());
            }
        }
        let service = self.inner.clone();
        HttpFuture::pending(unsafe_method::pass(cache, rules, service, parts, body, position))
    }

    /// Answers a request that found nothing fresh. `added` is what rules of the
    /// application have added to the key.
    fn miss<Q, B>(
        &self,
        mut parts: Parts,
        body: Q,
        (rules, outside): (&Arc<Rules>, Option<&Outside>),
        (asked, wishes): (RequestFacts, Wishes),
        (primary, added): (&KeyBuf, &[u8]),
        (look, forward): (Lookup<StoredResponse>, Forward),
    ) -> HttpFuture<B, S::Error>
    where
        S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        Q: Body + Send + 'static,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let carries_some = !asked.credentials.is_anonymous();
        let credential = || credential_field(&parts.headers, &rules.config);
        let credential = carries_some.then(credential).flatten();
        let selecting = outside.and_then(|outside| outside.selecting.as_ref());
        let caller = HttpCaller {
            cache: Arc::clone(&self.cache),
            rules: Arc::clone(rules),
            asked,
            wishes,
            not_before: self.cache.engine.table.upcoming_number(),
            headers: selecting.unwrap_or(&parts.headers).clone(),
            primary: primary.to_key(),
            content: RequestContent::of_request(&parts).map(|content| content.bytes.clone()),
            tags: automatic_tags(&self.cache, &parts, rules, outside),
            anchors: trail::anchors(&self.cache, primary.as_bytes(), outside),
            trail: Trail::default(),
            group_origin: group_origin(&parts, rules),
            stale: None,
            forward,
            claim: None,
            has_left: false,
            is_apart: false,
            learned: None,
            refreshed: None,
            unkeyed: NOTHING,
            credential: credential.or_else(|| outside.and_then(|it| it.credential.clone())),
            outside: outside.map(|it| it.facts).unwrap_or_default(),
            client: rules.client(&parts),
            may_fill_from_range: wishes.range && may_fill_from_range::<Q>(&parts, rules),
        };
        let view = View::of(&parts, rules, added);
        let received = received_uri(&parts).clone();
        if caller.content.is_some() {
            parts.extensions.remove::<RequestContent>();
        }
        normal_form::apply(&mut parts, rules);
        codings::reduce(&mut parts.headers, &rules.config);
        let mark = nested::mark(&mut parts, &self.cache, &self.rules, rules, received, Some(view));
        let request = Request::from_parts(parts, body);
        let service = self.inner.clone();
        HttpFuture::pending(async move {
            let (cache, rules) = (Arc::clone(&caller.cache), Arc::clone(&caller.rules));
            if mark.admits(Crowd::Coming) {
                let result = nested::pass_to_owner(&cache, service, request).await;
                return answer::without_ours(&rules, result);
            }
            let result = serve(caller, look, service, request).await;
            let result = answer::without_ours(&rules, result);
            if !mark.is_claimed() {
                let outcome = result.as_ref().ok().and_then(|r| r.extensions().get().copied());
                cache.observer.answered(outcome.unwrap_or(CacheOutcome::Computed));
            }
            result
        })
    }
}

impl<S: std::fmt::Debug> std::fmt::Debug for HttpService<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
