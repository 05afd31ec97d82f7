//! The service of the HTTP layer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, header};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::answer::{self, Came};
use super::body::ResponseBody;
use super::fill::Received;
use super::key::unkey_query;
use super::layer::Rules;
use super::lead::{Back, Led, Own, lead};
use super::lookup::{self, Cache, Forward, HttpCaller, Stored, automatic_tags, look, primary_key};
use super::question::{Question, Reply};
use super::remote::Purpose;
use super::request::{Asked, AskedMethod, BypassReason, Class, classify};
use super::unsafe_method;
use crate::engine::waiter::{Caller, Step, Ticket};
use crate::engine::{Entered, Mode};
use crate::entry::Started;
use crate::error::{BoxError, Error};
use crate::inner::Look;
use crate::key::KeyBuf;
use crate::oneshot::Oneshot;
use crate::outcome::CacheOutcome;
use crate::serve::Seen;

/// Answers HTTP requests from a cache, and asks the inner service once.
///
/// Made by [`HttpLayer`](crate::HttpLayer), where the example is.
///
/// # Backpressure
///
/// Always ready: a hit must not wait for a saturated service. Whoever has to
/// ask the service drives a clone of it to readiness, and meets its
/// back-pressure there.
#[derive(Clone)]
pub struct HttpService<S> {
    inner: S,
    cache: Arc<Cache>,
    rules: Arc<Rules>,
}

impl<S> HttpService<S> {
    pub(super) fn new(inner: S, cache: Arc<Cache>, rules: Rules) -> Self {
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
        let (parts, body) = request.into_parts();
        let asked = match classify(&parts, body.is_end_stream(), &self.rules.config) {
            Class::Cacheable(asked) => asked,
            Class::Unsafe => return self.pass_unsafe(parts, body),
            Class::Bypass(reason) => return self.bypass(parts, body, reason),
        };
        let primary = match primary_key(&parts, &self.rules) {
            Ok(primary) => primary,
            Err(reason) => return self.bypass(parts, body, reason),
        };
        let rules = &*self.rules;
        if self.cache.engine.mode() != Mode::On {
            return self.miss(parts, body, asked, &primary, (Look::Miss(None), Forward::UriMiss));
        }
        let now = self.cache.now();
        match look(&self.cache, rules, primary.as_bytes(), &asked, &parts.headers, now) {
            (Look::Fresh(entry), forward) => {
                let outcome = CacheOutcome::Hit;
                self.cache.observer.answered(outcome);
                HttpFuture::ready(answer::from_entry(
                    rules,
                    &entry,
                    asked.method,
                    outcome,
                    forward,
                    now,
                ))
            }
            found => self.miss(parts, body, asked, &primary, found),
        }
    }
}

impl<S> HttpService<S> {
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
            hide_what_is_unkeyed(&mut parts, &self.rules);
        }
        let call = Oneshot::new(self.inner.clone(), Request::from_parts(parts, body));
        let rules = Arc::clone(&self.rules);
        HttpFuture::pending(async move {
            let response = call.await?.map(ResponseBody::inner);
            Ok(answer::from_service(&rules, response, Came::bypass(reason)))
        })
    }

    fn pass_unsafe<Q, B>(&self, parts: Parts, body: Q) -> HttpFuture<B, S::Error>
    where
        S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        Q: Send + 'static,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.cache.observer.bypassed(BypassReason::Method.as_str());
        let (cache, rules) = (Arc::clone(&self.cache), Arc::clone(&self.rules));
        HttpFuture::pending(unsafe_method::pass(cache, rules, self.inner.clone(), parts, body))
    }

    /// Answers a request that found nothing fresh.
    fn miss<Q, B>(
        &self,
        mut parts: Parts,
        body: Q,
        asked: Asked,
        primary: &KeyBuf,
        (look, forward): (Look<super::StoredResponse>, Forward),
    ) -> HttpFuture<B, S::Error>
    where
        S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        Q: Body + Send + 'static,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let caller = HttpCaller {
            cache: Arc::clone(&self.cache),
            rules: Arc::clone(&self.rules),
            asked,
            headers: parts.headers.clone(),
            primary: primary.to_key(),
            tags: automatic_tags(&parts, &self.rules),
            stale: None,
            forward,
            claim: None,
        };
        hide_what_is_unkeyed(&mut parts, &self.rules);
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

async fn serve<S, Q, B>(
    mut caller: HttpCaller,
    look: Look<super::StoredResponse>,
    service: S,
    request: Request<Q>,
) -> Result<Response<ResponseBody<B>>, S::Error>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    Q: Body + Send + 'static,
    B: Body + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (entry, outcome) = match look {
        Look::Fresh(entry) => (entry, CacheOutcome::Hit),
        Look::Early(entry) => (entry, CacheOutcome::Hit),
        Look::Stale(entry) => (entry, CacheOutcome::Stale),
        Look::Miss(stale) => {
            caller.stale = stale;
            let is_head = caller.asked.method == AskedMethod::Head;
            let miss = Miss { caller, service, request };
            if is_head {
                // Sent as HEAD; it fills nothing and leads no flight of GETs.
                let reason = BypassReason::Method;
                miss.caller.cache.observer.bypass_reason(reason.as_str());
                return miss.go_alone(Came::bypass(reason)).await;
            }
            return miss.resolve().await;
        }
    };
    let answer = answered(&caller, &entry, outcome);
    refresh(caller, &entry, service, request);
    Ok(answer)
}

fn answered<B: Body>(
    caller: &HttpCaller,
    entry: &Stored,
    outcome: CacheOutcome,
) -> Response<ResponseBody<B>> {
    let (method, now) = (caller.asked.method, caller.cache.now());
    answer::from_entry(&caller.rules, entry, method, outcome, caller.forward, now)
}

/// Refreshes in the background, as a GET without what belongs to the client
/// that happened to ask.
fn refresh<S, Q, B>(mut caller: HttpCaller, seen: &Stored, service: S, mut request: Request<Q>)
where
    S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    Q: Send + 'static,
    B: Body + Send + 'static,
    B::Error: Into<BoxError>,
{
    *request.method_mut() = Method::GET;
    caller.asked.method = AskedMethod::Get;
    caller.stale = Some(Arc::clone(seen));
    let from = seen.value.response().map(|stored| stored.facts.from).unwrap_or_default();
    drop_credentials(request.headers_mut(), &caller.rules, from);
    drop_credentials(&mut caller.headers, &caller.rules, from);
    caller.asked.credentials = super::request::credentials(&caller.headers, &caller.rules.config);
    let boarding = caller.boarding().without_waiting();
    let engine = Arc::clone(&caller.cache.engine);
    let (cache, rules) = (Arc::clone(&caller.cache), Arc::clone(&caller.rules));
    let (primary, asked) = (caller.primary.clone(), caller.asked);
    let headers = caller.headers.clone();
    let still_wanted = || {
        let now = lookup::find(&cache, &rules, primary.as_bytes(), &asked, &headers);
        now.is_ok_and(|entry| Arc::ptr_eq(&entry, seen))
    };
    let purpose = Purpose::Refresh(Seen::of(seen));
    engine.refresh(&boarding, still_wanted, |leader| async move {
        drop(lead(caller, leader, purpose, service, request).await);
    });
}

/// Removes the credentials that the stored response did not depend on.
fn drop_credentials(headers: &mut HeaderMap, rules: &Rules, keep: super::request::Credentials) {
    use super::request::Credentials;
    if !keep.contains(Credentials::AUTHORIZATION) {
        headers.remove(header::AUTHORIZATION);
    }
    if !keep.contains(Credentials::COOKIE) {
        headers.remove(header::COOKIE);
    }
    if !keep.contains(Credentials::OTHER) {
        for name in &rules.config.credential_headers {
            headers.remove(name);
        }
    }
}

/// Removes from the request what the key leaves out: what one client sent
/// there must not shape what all get.
fn hide_what_is_unkeyed(parts: &mut Parts, rules: &Rules) {
    if rules.config.ignore_cookies {
        parts.headers.remove(header::COOKIE);
    }
    if let Some(allow) = &rules.config.query {
        parts.uri = unkey_query(&parts.uri, allow);
        #[cfg(feature = "axum")]
        if let Some(original) = parts.extensions.get_mut::<axum::extract::OriginalUri>() {
            original.0 = unkey_query(&original.0, allow);
        }
    }
}

/// A request that has to wait, lead or go alone.
struct Miss<S, Q> {
    caller: HttpCaller,
    service: S,
    request: Request<Q>,
}

impl<S, Q, B> Miss<S, Q>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    Q: Body + Send + 'static,
    B: Body + Send + 'static,
    B::Error: Into<BoxError>,
{
    async fn resolve(mut self) -> Result<Response<ResponseBody<B>>, S::Error> {
        let engine = Arc::clone(&self.caller.cache.engine);
        if engine.mode() != Mode::On {
            return self.off_duty().await;
        }
        let mut ticket = Ticket::new(&engine, engine.log.seq());
        match ticket.resolve(&mut self.caller).await {
            Step::Answer(entry, outcome) => Ok(answered(&self.caller, &entry, outcome)),
            Step::Refuse(error) => {
                let error = self.caller.told_of(error);
                Ok(answer::refusal(&self.caller.rules, error))
            }
            Step::Lead(leader) => self.lead(leader, CacheOutcome::Computed).await,
            Step::Alone(why) => {
                let key = self.caller.flight_key();
                match self.caller.cache.place_to_go_alone(why, &key) {
                    Ok(_place) => {
                        self.caller.look_again();
                        let came = self.came_alone(None);
                        self.go_alone(came).await
                    }
                    Err(error) => Ok(answer::refusal(&self.caller.rules, error)),
                }
            }
        }
    }

    /// Asks the service whatever is stored, and stores where nobody else asks.
    async fn off_duty(mut self) -> Result<Response<ResponseBody<B>>, S::Error> {
        let engine = Arc::clone(&self.caller.cache.engine);
        if engine.mode() == Mode::Observe {
            if self.caller.second_look().is_some() {
                self.caller.cache.observer.would_have_answered();
            }
            let mut boarding = self.caller.boarding().without_waiting();
            boarding.despite_hold = true;
            if let Entered::Lead(leader) = engine.enter(&boarding, &mut None) {
                return self.lead(leader, CacheOutcome::Alone).await;
            }
        }
        let came = self.came_alone(Some("off"));
        self.go_alone(came).await
    }

    async fn lead(
        self,
        leader: crate::engine::leader::Leader<super::StoredResponse>,
        outcome: CacheOutcome,
    ) -> Result<Response<ResponseBody<B>>, S::Error> {
        let Self { caller, service, request } = self;
        let mut client = caller.for_client();
        let engine = Arc::clone(&caller.cache.engine);
        let key = leader.key().clone();
        let work = lead(caller, leader, Purpose::Answer, service, request);
        match engine.detached(&key, work).await {
            Ok(Led::Own { own, stale }) => {
                client.caller.stale = stale.or(client.caller.stale);
                client.receive(own, outcome)
            }
            Ok(Led::Back(back)) => {
                let Back { caller, service, request, found } = *back;
                Ok(Miss { caller, service, request }.answer_found(&found))
            }
            Err(_) => client.receive(Own::shut_down(), outcome),
        }
    }

    /// Answers with what the remote has.
    fn answer_found(self, entry: &Stored) -> Response<ResponseBody<B>> {
        let Self { caller, service, request } = self;
        if caller.cache.now() < entry.window.fresh_until {
            return answered(&caller, entry, CacheOutcome::Hit);
        }
        let answer = answered(&caller, entry, CacheOutcome::Stale);
        refresh(caller, entry, service, request);
        answer
    }

    /// Asks the service for this client alone. A failure is answered stale
    /// where that is allowed.
    async fn go_alone(self, came: Came<'_>) -> Result<Response<ResponseBody<B>>, S::Error> {
        let Self { caller, service, request } = self;
        let limit = caller.cache.engine.settings.compute_timeout;
        let started = Started { tick: caller.cache.now(), seq: caller.cache.engine.log.seq() };
        let question = Question::new(&caller, service, request);
        let call = tokio::time::timeout(limit, question.put(&caller.cache)).await;
        let received = Received::now(&caller.cache, started);
        caller.cache.observer.computed_alone(received.delay());
        let failed = match &call {
            Ok(Ok(Reply::Response(response))) => answer::is_failure(response.status()),
            Ok(Ok(Reply::Confirmed(_))) => false,
            Ok(Err(_)) | Err(_) => true,
        };
        if let Some(entry) = caller.fallback().filter(|_| failed) {
            return Ok(answered(&caller, &entry, CacheOutcome::StaleIfError));
        }
        match call {
            Ok(Ok(reply)) => {
                let response = reply.for_one(&caller, received);
                Ok(answer::from_service(&caller.rules, response, came))
            }
            Ok(Err(error)) => {
                let failure = caller.rules.transport_failure(&error);
                match caller.stands_in_for(&failure) {
                    Some(entry) => Ok(answered(&caller, &entry, CacheOutcome::StaleIfError)),
                    None => caller.instead_of(error, failure),
                }
            }
            Err(_) => {
                let error = Error::new(crate::ErrorKind::ComputeTimeout);
                Ok(answer::refusal(&caller.rules, error))
            }
        }
    }
}

impl<S, Q> Miss<S, Q> {
    fn came_alone<'a>(&self, detail: Option<&'a str>) -> Came<'a> {
        Came {
            fwd: self.caller.forward.as_str(),
            stored: false,
            collapsed: false,
            detail,
            outcome: CacheOutcome::Alone,
        }
    }
}

/// What the leader's own client needs once the leader has gone to work.
struct Client {
    caller: HttpCaller,
}

impl HttpCaller {
    fn for_client(&self) -> Client {
        Client {
            caller: Self {
                cache: Arc::clone(&self.cache),
                rules: Arc::clone(&self.rules),
                asked: self.asked,
                headers: HeaderMap::new(),
                primary: self.primary.clone(),
                tags: Box::default(),
                stale: self.stale.clone(),
                forward: self.forward,
                claim: None,
            },
        }
    }
}

impl Client {
    fn fail<B: Body, E>(&self, error: E, failure: Error) -> Result<Response<ResponseBody<B>>, E> {
        let caller = &self.caller;
        if let Some(entry) = caller.in_hand_for(&failure) {
            return Ok(answered(caller, &entry, CacheOutcome::StaleIfError));
        }
        caller.instead_of(error, failure)
    }

    fn receive<B: Body, E>(
        self,
        own: Own<B, E>,
        outcome: CacheOutcome,
    ) -> Result<Response<ResponseBody<B>>, E> {
        let caller = &self.caller;
        let stale = || {
            let entry = caller.in_hand()?;
            Some(answered(caller, &entry, CacheOutcome::StaleIfError))
        };
        let came = |stored, detail| Came {
            fwd: caller.forward.as_str(),
            stored,
            collapsed: false,
            detail,
            outcome,
        };
        match own {
            Own::Response { response, stored, why } => {
                let detail = why.map(super::storable::Refusal::as_str);
                Ok(answer::from_service(&caller.rules, response, came(stored, detail)))
            }
            Own::Failed(response) => Ok(stale().unwrap_or_else(|| {
                answer::from_service(&caller.rules, response, came(false, None))
            })),
            Own::Error { error, failure } => self.fail(error, failure),
            Own::Nothing(error) => {
                Ok(stale().unwrap_or_else(|| answer::refusal(&caller.rules, error)))
            }
        }
    }
}

type Pending<B, E> = Pin<Box<dyn Future<Output = Result<Response<ResponseBody<B>>, E>> + Send>>;

pin_project! {
    /// The future of [`HttpService`].
    ///
    /// A hit is ready at once.
    ///
    /// # Cancel safety
    ///
    /// A client that goes away leaves a running computation to the others.
    #[must_use = "futures do nothing unless polled"]
    pub struct HttpFuture<B, E>
    where
        B: Body,
    {
        state: State<B, E>,
    }
}

enum State<B: Body, E> {
    Ready(Option<Response<ResponseBody<B>>>),
    Pending(Pending<B, E>),
}

impl<B: Body, E> HttpFuture<B, E> {
    fn ready(response: Response<ResponseBody<B>>) -> Self {
        Self { state: State::Ready(Some(response)) }
    }

    fn pending(
        future: impl Future<Output = Result<Response<ResponseBody<B>>, E>> + Send + 'static,
    ) -> Self {
        Self { state: State::Pending(Box::pin(future)) }
    }
}

impl<B: Body, E> Future for HttpFuture<B, E> {
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state {
            State::Ready(response) => {
                Poll::Ready(Ok(response.take().expect("not polled after it was ready")))
            }
            State::Pending(future) => future.as_mut().poll(cx),
        }
    }
}

impl<B: Body, E> std::fmt::Debug for HttpFuture<B, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpFuture").finish_non_exhaustive()
    }
}

impl<S: std::fmt::Debug> std::fmt::Debug for HttpService<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
