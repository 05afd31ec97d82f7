//! The service of the HTTP layer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
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
use super::request::{Asked, AskedMethod, BypassReason, Class, Wishes, classify};
use super::shape::{Shape, ask_for_the_whole};
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
        let (asked, wishes) = match classify(&parts, body.is_end_stream(), &self.rules.config) {
            Class::Cacheable(asked, wishes) => (asked, wishes),
            Class::Unsafe => return self.pass_unsafe(parts, body),
            Class::Bypass(reason) => return self.bypass(parts, body, reason),
        };
        let primary = match primary_key(&parts, &self.rules) {
            Ok(primary) => primary,
            Err(reason) => return self.bypass(parts, body, reason),
        };
        let rules = &*self.rules;
        if self.cache.engine.mode() != Mode::On {
            let nothing = (Look::Miss(None), Forward::UriMiss);
            return self.miss(parts, body, (asked, wishes), &primary, nothing);
        }
        let now = self.cache.now();
        let found = look(&self.cache, rules, primary.as_bytes(), &asked, &parts.headers, now);
        match if wishes.demand.is_some() { wishes.judge(found, now) } else { found } {
            (Look::Fresh(entry), forward) => {
                let outcome = CacheOutcome::Hit;
                self.cache.observer.answered(outcome);
                HttpFuture::ready(answer::from_entry(
                    rules,
                    &entry,
                    asked.method,
                    shape_of(&self.cache, wishes, &parts.headers, &entry),
                    outcome,
                    forward,
                    now,
                ))
            }
            found => self.miss(parts, body, (asked, wishes), &primary, found),
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
        (asked, wishes): (Asked, Wishes),
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
            wishes,
            not_before: self.cache.engine.table.upcoming_id(),
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
        Look::Fresh(entry) | Look::Early(entry) => (entry, CacheOutcome::Hit),
        Look::Stale(entry) if !caller.wishes.no_store => (entry, CacheOutcome::Stale),
        Look::Stale(entry) => {
            caller.stale = Some(entry);
            return Miss { caller, service, request }.resolve().await;
        }
        Look::Miss(stale) => {
            caller.stale = stale;
            return Miss { caller, service, request }.resolve().await;
        }
    };
    let answer = answered(&caller, &entry, outcome);
    refresh(caller, &entry, service, request);
    Ok(answer)
}

/// Returns how much of a stored response a request gets. Only one that asks
/// for less costs a reading of the clock.
fn shape_of(cache: &Cache, wishes: Wishes, headers: &HeaderMap, entry: &Stored) -> Shape {
    let stored = entry.value.response().filter(|_| wishes.is_shaped());
    let Some(stored) = stored else { return Shape::Whole };
    let (length, now) = (stored.body.length(), cache.engine.clock.wall());
    Shape::of(wishes, headers, stored.status, &stored.headers, length, now)
}

fn answered<B: Body>(
    caller: &HttpCaller,
    entry: &Stored,
    outcome: CacheOutcome,
) -> Response<ResponseBody<B>> {
    let (method, now) = (caller.asked.method, caller.cache.now());
    let shape = shape_of(&caller.cache, caller.wishes, &caller.headers, entry);
    answer::from_entry(&caller.rules, entry, method, shape, outcome, caller.forward, now)
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
    if caller.wishes.no_store {
        return;
    }
    *request.method_mut() = Method::GET;
    ask_for_the_whole(request.headers_mut());
    if caller.wishes.only_if_cached {
        // Another cache on the way would not ask either.
        request.headers_mut().remove(header::CACHE_CONTROL);
    }
    caller.asked.method = AskedMethod::Get;
    caller.wishes = Wishes::default();
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
        if self.caller.wishes.only_if_cached {
            return Ok(answer::not_cached(&self.caller.rules));
        }
        if self.caller.wishes.no_store {
            return self.go_past(BypassReason::NoStore).await;
        }
        let mut ticket = Ticket::new(&engine, engine.log.seq());
        match ticket.resolve(&mut self.caller).await {
            Step::Answer(entry, _) if self.caller.cannot_cut(&entry) => {
                self.caller.claim = None;
                self.go_past(BypassReason::Range).await
            }
            Step::Answer(entry, outcome) => Ok(answered(&self.caller, &entry, outcome)),
            Step::Refuse(error) => {
                let error = self.caller.told_of(error);
                Ok(answer::refusal(&self.caller.rules, error))
            }
            Step::Lead(leader) => {
                if !self.forwards_conditions() {
                    ask_for_the_whole(self.request.headers_mut());
                }
                self.lead(leader, CacheOutcome::Computed).await
            }
            Step::Alone(why) => {
                let key = self.caller.flight_key();
                match self.caller.cache.place_to_go_alone(why, &key) {
                    Ok(_place) => self.go_unshared().await,
                    Err(error) => Ok(answer::refusal(&self.caller.rules, error)),
                }
            }
        }
    }

    /// Asks for what no flight had for this client.
    async fn go_unshared(mut self) -> Result<Response<ResponseBody<B>>, S::Error> {
        self.caller.look_again();
        if !self.caller.joins_only() {
            let came = self.came_alone(None);
            return self.go_alone(came).await;
        }
        // Somebody may have filled between our look and our way to the table.
        if let Some(entry) = self.caller.second_look() {
            return Ok(answered(&self.caller, &entry, CacheOutcome::Hit));
        }
        let is_head = self.caller.asked.method == AskedMethod::Head;
        self.go_past(if is_head { BypassReason::Method } else { BypassReason::Range }).await
    }

    /// Sends the request as it is; the answer is for this client alone.
    async fn go_past(self, reason: BypassReason) -> Result<Response<ResponseBody<B>>, S::Error> {
        self.caller.cache.observer.bypass_reason(reason.as_str());
        self.go_alone(Came::bypass(reason)).await
    }

    /// Returns whether the client's conditions go to the service as they are:
    /// where answers are known not to be shared, a 304 for this client is all
    /// that can be saved. What is stored has conditions of its own.
    fn forwards_conditions(&self) -> bool {
        let Self { caller, .. } = self;
        caller.wishes.condition && caller.stale.is_none() && caller.is_not_shared()
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
            // What asks for less goes as it is, and fills nothing.
            let is_plain = self.caller.wishes == Wishes::default();
            if is_plain && let Entered::Lead(leader) = engine.enter(&boarding, &mut None) {
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
        let is_ours = question.is_conditional();
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
                let fwd_status = Some(response.status());
                // The condition that went out was ours: its own comes now.
                let shape = if is_ours { caller.shape_of_own(&response) } else { Shape::Whole };
                let came = Came { fwd_status, ..came };
                Ok(answer::from_service(&caller.rules, answer::shaped(response, shape), came))
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
            fwd_status: None,
            outcome: CacheOutcome::Alone,
        }
    }
}

/// What the leader's own client needs once the leader has gone to work.
struct Client {
    caller: HttpCaller,
}

impl HttpCaller {
    /// Returns how much this client gets of the response that it led to, which
    /// is for others too.
    fn shape_of_own<B>(&self, response: &Response<B>) -> Shape {
        if !self.wishes.is_shaped() {
            return Shape::Whole;
        }
        let (status, now) = (response.status(), self.cache.engine.clock.wall());
        Shape::of(self.wishes, &self.headers, status, response.headers(), None, now)
    }

    /// Returns whether a part is wanted of what has no length yet.
    fn cannot_cut(&self, entry: &Stored) -> bool {
        let stored = entry.value.response().filter(|_| self.wishes.range);
        stored.is_some_and(|it| it.status == StatusCode::OK && it.body.length().is_none())
    }

    fn for_client(&self) -> Client {
        let is_shaped = self.wishes.is_shaped();
        Client {
            caller: Self {
                cache: Arc::clone(&self.cache),
                rules: Arc::clone(&self.rules),
                asked: self.asked,
                wishes: self.wishes,
                not_before: self.not_before,
                headers: if is_shaped { self.headers.clone() } else { HeaderMap::new() },
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
            fwd_status: None,
            outcome,
        };
        match own {
            Own::Response { response, stored, why } => {
                let detail = why.map(super::storable::Refusal::as_str);
                let fwd_status = Some(response.status());
                let shape =
                    if why.is_none() { caller.shape_of_own(&response) } else { Shape::Whole };
                let came = Came { fwd_status, ..came(stored, detail) };
                Ok(answer::from_service(&caller.rules, answer::shaped(response, shape), came))
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
