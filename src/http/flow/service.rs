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
use crate::http::body::ResponseBody;
use crate::http::flow::answer::{self, Provenance};
use crate::http::flow::future::HttpFuture;
use crate::http::flow::lookup::{
    Forward, HttpCache, HttpCaller, StoredEntry, automatic_tags, look, primary_key,
};
use crate::http::flow::miss::{serve, shape_of};
use crate::http::flow::nested::{self, Position};
use crate::http::flow::normal_form;
use crate::http::flow::unsafe_method;
use crate::http::layer::Rules;
use crate::http::rules::request::{
    BypassReason, Class, FieldScan, RequestFacts, Wishes, classify, credential_field, is_unsafe,
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
    pub(crate) fn new(inner: S, cache: Arc<HttpCache>, rules: Rules) -> Self {
        Self { inner, cache, rules: Arc::new(rules) }
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
        let (mut parts, body) = request.into_parts();
        let rules = &*self.rules;
        if let Some(outer) = nested::outer_rules(&parts, &self.cache) {
            return self.inside(parts, body, &outer);
        }
        let seen = FieldScan::of(&parts.headers, &rules.config);
        let (asked, wishes) = match classify(&parts, &seen, body.is_end_stream(), &rules.config) {
            Class::Cacheable(asked, wishes) => (asked, wishes),
            Class::Unsafe => return self.pass_unsafe(parts, body, Position::Outermost),
            Class::Bypass(reason) => return self.bypass(parts, body, reason),
        };
        let mut primary = KeyBuf::new();
        if let Err(reason) = primary_key(&mut primary, &parts, &seen, rules) {
            return self.bypass(parts, body, reason);
        }
        if self.cache.engine.mode() != Mode::On {
            let nothing = (Lookup::Miss(None), Forward::UriMiss);
            return self.miss(parts, body, (asked, wishes), &primary, nothing);
        }
        let now = self.cache.now();
        let found = look(&self.cache, rules, primary.as_bytes(), &asked, &parts.headers, now);
        match if wishes.demand.is_some() { wishes.judge(found, now) } else { found } {
            (Lookup::Fresh(entry), _) => {
                let mut response = Response::new(ResponseBody::default());
                self.write_hit(&mut response, &mut parts, (asked, wishes), &entry, now);
                HttpFuture::ready(response)
            }
            found => self.miss(parts, body, (asked, wishes), &primary, found),
        }
    }
}

impl<S> HttpService<S> {
    #[inline]
    fn write_hit<B: Body>(
        &self,
        response: &mut Response<ResponseBody<B>>,
        parts: &mut Parts,
        (asked, wishes): (RequestFacts, Wishes),
        entry: &StoredEntry,
        now: Tick,
    ) {
        let rules = &*self.rules;
        self.cache.observer.answered(CacheOutcome::Hit);
        let shape = shape_of(&self.cache, wishes, &parts.headers, entry);
        let status = || answer::hit_status(rules, entry, now);
        answer::write(response, rules, entry, (asked.method, shape), status, now);
        // A refusal has said so already.
        if rules.config.outcome_on_hits && response.extensions().is_empty() {
            answer::mark_hit(response.extensions_mut(), std::mem::take(&mut parts.extensions));
        }
    }

    /// Passes on a request that a layer of the same handle has seen to, and the
    /// response as it comes: what a handler says in it is for that layer. A write
    /// invalidates here, too.
    #[cold]
    fn inside<Q, B>(&self, parts: Parts, body: Q, outer: &Rules) -> HttpFuture<B, S::Error>
    where
        S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        Q: Send + 'static,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let is_alike = self.rules.share_like(outer);
        let (outer, inner) = (outer.made_at, self.rules.made_at);
        self.cache.observer.happened(Occurrence::LayersNested { outer, inner, is_alike });
        if is_unsafe(&parts.method) {
            return self.pass_unsafe(parts, body, Position::Inside { is_alike });
        }
        self.cache.observer.bypass_reason(BypassReason::Nested.as_str());
        let call = Oneshot::new(self.inner.clone(), Request::from_parts(parts, body));
        HttpFuture::pending(async move {
            let mut response = call.await?.map(ResponseBody::inner);
            if !is_alike {
                nested::forbid_sharing(response.extensions_mut());
            }
            Ok(response)
        })
    }

    fn bypass<Q, B>(
        &self,
        mut parts: Parts,
        body: Q,
        reason: BypassReason,
    ) -> HttpFuture<B, S::Error>
    where
        S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        Q: Send + 'static,
        B: Body + Send + 'static,
    {
        self.cache.observer.bypassed(reason.as_str());
        if matches!(parts.method, Method::GET | Method::HEAD) {
            normal_form::apply(&mut parts, &self.rules);
        }
        nested::mark(&mut parts, &self.cache, &self.rules);
        let call = Oneshot::new(self.inner.clone(), Request::from_parts(parts, body));
        let rules = Arc::clone(&self.rules);
        HttpFuture::pending(async move {
            let response = call.await?.map(ResponseBody::inner);
            Ok(answer::from_service(&rules, response, Provenance::bypass(reason)))
        })
    }

    fn pass_unsafe<Q, B>(
        &self,
        mut parts: Parts,
        body: Q,
        position: Position,
    ) -> HttpFuture<B, S::Error>
    where
        S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        Q: Send + 'static,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (cache, rules) = (Arc::clone(&self.cache), Arc::clone(&self.rules));
        match position {
            Position::Outermost => {
                cache.observer.bypassed(BypassReason::Method.as_str());
                nested::mark(&mut parts, &cache, &rules);
            }
            Position::Inside { .. } => {
                cache.observer.bypass_reason(BypassReason::Nested.as_str());
            }
        }
        let service = self.inner.clone();
        HttpFuture::pending(unsafe_method::pass(cache, rules, service, parts, body, position))
    }

    /// Answers a request that found nothing fresh.
    fn miss<Q, B>(
        &self,
        mut parts: Parts,
        body: Q,
        (asked, wishes): (RequestFacts, Wishes),
        primary: &KeyBuf,
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
        let caller = HttpCaller {
            cache: Arc::clone(&self.cache),
            rules: Arc::clone(&self.rules),
            asked,
            wishes,
            not_before: self.cache.engine.table.upcoming_number(),
            headers: parts.headers.clone(),
            primary: primary.to_key(),
            tags: automatic_tags(&parts, &self.rules),
            stale: None,
            forward,
            claim: None,
            has_left: false,
            is_apart: false,
            learned: None,
            refreshed: None,
            credential: carries_some
                .then(|| credential_field(&parts.headers, &self.rules.config))
                .flatten(),
        };
        normal_form::apply(&mut parts, &self.rules);
        nested::mark(&mut parts, &self.cache, &self.rules);
        let request = Request::from_parts(parts, body);
        let service = self.inner.clone();
        HttpFuture::pending(async move {
            let observer = Arc::clone(&caller.cache.observer);
            let result = serve(caller, look, service, request).await;
            let outcome = result.as_ref().ok().and_then(|r| r.extensions().get().copied());
            observer.answered(outcome.unwrap_or(CacheOutcome::Computed));
            result
        })
    }
}

impl<S: std::fmt::Debug> std::fmt::Debug for HttpService<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
