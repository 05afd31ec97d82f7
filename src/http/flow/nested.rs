//! Layers of one handle inside each other: the innermost one owns the response.
//!
//! The outer layer runs first, and cannot know what stands behind it. So it leaves a mark in
//! each request, and the inner layer *claims* the request when it gets it. From then
//! on the outer one has nothing to do with it: its flight ends without a result, its place
//! and its lease are given up, and its waiters are sent on. The inner layer does nothing
//! before that: it lets the outer one run once. So no flight waits for another.
//!
//! ```text
//! outer: no entry ─┬─ route known to be owned ───── forward
//!                  └─ lead, or wait ── forward ──┐
//! inner:                                  claim ─┴─ look up, wait or lead, store
//! outer:            the flight ends ── waiters: forward
//! ```
//!
//! With its claim the inner layer says which route it stands on, and the outer one remembers
//! it ([`OwnedRoutes`]). It forwards later requests for that route at once. What it remembers
//! decides only about cost. Where a request that is forwarded so meets no inner layer, the
//! response goes to its client alone.
//!
//! # Which requests share
//!
//! Two requests share a response only if they would share it by what either layer has
//! received. Something between the two may change the request: it may strip a prefix or a
//! credential, and put what it has read into an extension. So the mark carries the request
//! as the outer layer has received it ([`View`]), and the inner one adds it to the
//! key, the credentials, the selecting fields and the tags ([`Outside`]). Entries of inner
//! layers have keys of their own kind: no layer without one around it finds them.
//!
//! [`OwnedRoutes`]: crate::http::flow::owned_routes::OwnedRoutes

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use futures_util::future::{Either, Ready, ready};
use futures_util::task::AtomicWaker;
use http::request::Parts;
use http::{Extensions, Request, Response, Uri, header};
use parking_lot::RwLock;
use tower_service::Service;

use crate::http::body::{ResponseBody, SourceBody};
use crate::http::flow::answer::{self, Provenance};
use crate::http::flow::future::HttpFuture;
use crate::http::flow::lookup::HttpCache;
use crate::http::flow::outside::Outside;
use crate::http::flow::owned_routes::Crowd;
use crate::http::layer::Rules;
use crate::http::rules::codings;
use crate::http::rules::key::unkey_query;
use crate::http::rules::request::BypassReason;
use crate::outcome::CacheOutcome;
use crate::tower::oneshot::Oneshot;

/// Where a layer stands among those of the same handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    Outermost,
    Inside,
}

/// The marks of the layers that a request has come through, the outermost first.
#[derive(Clone)]
struct Marks(Vec<Mark>);

/// What a layer leaves in a request.
#[derive(Clone)]
pub(super) struct Mark {
    /// Where the handle's state is in memory. The layer that left the mark
    /// keeps it alive while the request is on its way.
    cache: usize,
    /// The rules that the layer was made with: they tell layers apart.
    own: Arc<Rules>,
    /// The same, inside of the layers around it.
    pub(super) rules: Arc<Rules>,
    /// The URI as received, which the layer may have hidden parameters of.
    received: Uri,
    /// The request as received; `None` where the layer forwards it uncached.
    view: Option<Arc<View>>,
    pub(super) claim: Arc<Claim>,
}

/// A request as one layer has received it.
pub(super) struct View {
    /// Without extensions, but for the URI before a router stripped a prefix.
    pub(super) parts: Parts,
    /// What the rules of the application add to the key.
    pub(super) key: Box<[u8]>,
    /// The name of the route, where a router has given it one.
    pub(super) pattern: Option<Arc<str>>,
}

impl View {
    pub(super) fn of(parts: &Parts, rules: &Rules, key: &[u8]) -> Self {
        let (mut view, ()) = Request::new(()).into_parts();
        view.method = parts.method.clone();
        view.uri = parts.uri.clone();
        view.headers = parts.headers.clone();
        if rules.config.ignore_cookies {
            view.headers.remove(header::COOKIE);
        }
        // What it accepts counts as the layer passes it on.
        codings::reduce(&mut view.headers, &rules.config);
        #[cfg(feature = "axum")]
        if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
            view.extensions.insert(original.clone());
        }
        Self { parts: view, key: key.into(), pattern: pattern_of(parts) }
    }
}

/// Returns the pattern of the one route that a router has matched. Behind a wildcard there
/// may be many routes.
#[cfg(feature = "axum")]
fn pattern_of(parts: &Parts) -> Option<Arc<str>> {
    let pattern = parts.extensions.get::<axum::extract::MatchedPath>()?.as_str();
    (!pattern.contains("{*")).then(|| pattern.into())
}

#[cfg(not(feature = "axum"))]
fn pattern_of(_: &Parts) -> Option<Arc<str>> {
    None
}

/// The word of an inner layer that the request is its own.
#[derive(Default)]
pub(super) struct Claim {
    is_made: AtomicBool,
    /// The outer layer knows the owner of the route, and waits for nothing.
    is_passing: AtomicBool,
    /// Such a request counts as on its way until it reaches the owner, or ends.
    is_on_its_way: AtomicBool,
    outer: AtomicWaker,
}

impl Claim {
    fn make(&self) {
        self.is_made.store(true, Ordering::Release);
        self.outer.wake();
    }

    fn is_made(&self) -> bool {
        self.is_made.load(Ordering::Acquire)
    }

    /// Returns whether the request was on its way until now.
    fn arrive(&self) -> bool {
        self.is_on_its_way.swap(false, Ordering::Relaxed)
    }
}

/// The rest of a call that an inner layer has claimed.
pub(super) type RestOfCall<S, Q> = Either<
    Ready<Result<<S as Service<Request<Q>>>::Response, <S as Service<Request<Q>>>::Error>>,
    Pin<Box<Oneshot<S, Request<Q>>>>,
>;

/// Calls the service until it answers, or an inner layer claims the request.
pub(super) async fn call_unless_claimed<S, Q>(
    service: S,
    request: Request<Q>,
    claim: Option<&Claim>,
) -> Result<Result<S::Response, S::Error>, RestOfCall<S, Q>>
where
    S: Service<Request<Q>>,
{
    let Some(claim) = claim else { return Ok(Oneshot::new(service, request).await) };
    let mut call = Box::pin(Oneshot::new(service, request));
    let result = poll_fn(|context| {
        claim.outer.register(context.waker());
        match call.as_mut().poll(context) {
            Poll::Pending if claim.is_made() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
            Poll::Ready(result) => Poll::Ready(Some(result)),
        }
    });
    match result.await {
        None => Err(Either::Right(call)),
        Some(result) if claim.is_made() => Err(Either::Left(ready(result))),
        Some(result) => Ok(result),
    }
}

fn place(cache: &Arc<HttpCache>) -> usize {
    Arc::as_ptr(cache).addr()
}

/// Returns whether the request has come through a layer of the same handle.
#[inline]
pub(super) fn is_inside(extensions: &Extensions, cache: &Arc<HttpCache>) -> bool {
    let marks = extensions.get::<Marks>();
    marks.is_some_and(|marks| marks.0.iter().any(|mark| mark.cache == place(cache)))
}

/// Returns the marks that layers of this handle have left, the outermost first.
pub(super) fn marks_of(parts: &Parts, cache: &Arc<HttpCache>) -> Vec<Mark> {
    let marks = parts.extensions.get::<Marks>().into_iter().flat_map(|marks| &marks.0);
    marks.filter(|mark| mark.cache == place(cache)).cloned().collect()
}

/// Returns the mark of the layer that sends this request.
pub(super) fn own_mark(extensions: &Extensions) -> Option<&Mark> {
    extensions.get::<Marks>()?.0.last()
}

/// Leaves the mark of a layer in a request that it has received at `received`.
pub(super) fn mark(
    parts: &mut Parts,
    cache: &Arc<HttpCache>,
    own: &Arc<Rules>,
    rules: &Arc<Rules>,
    received: Uri,
    view: Option<View>,
) -> Mark {
    let mark = Mark {
        cache: place(cache),
        own: Arc::clone(own),
        rules: Arc::clone(rules),
        received,
        view: view.map(Arc::new),
        claim: Arc::default(),
    };
    parts.extensions.get_or_insert_with(|| Marks(Vec::new())).0.push(mark.clone());
    mark
}

impl Mark {
    /// Returns whether a layer that was made with these rules has left the mark.
    pub(super) fn is_of(&self, rules: &Arc<Rules>) -> bool {
        Arc::ptr_eq(&self.own, rules)
    }

    pub(super) fn view(&self) -> Option<&View> {
        self.view.as_deref()
    }

    /// Returns whether the layer has keyed the request.
    pub(super) fn is_keyed(&self) -> bool {
        self.view.is_some()
    }

    /// Returns whether a layer further in has claimed the request.
    pub(super) fn is_claimed(&self) -> bool {
        self.claim.is_made()
    }

    /// Says that the layer inside of this one owns the request.
    pub(super) fn claim(&self) {
        if let Some(view) = &self.view {
            self.rules.routes.learn(view, self.claim.arrive());
        }
        self.claim.make();
    }

    /// Returns whether the request goes straight on to the owner of its route: then it is to be
    /// given to [`pass_to_owner`] at once.
    pub(super) fn admits(&self, crowd: Crowd) -> bool {
        let admit = |view: &Arc<View>| self.rules.routes.admit(view, crowd);
        let is_passing = self.view.as_ref().is_some_and(admit);
        self.claim.is_passing.store(is_passing, Ordering::Relaxed);
        self.claim.is_on_its_way.store(is_passing, Ordering::Relaxed);
        is_passing
    }

    /// Returns the parameters to a URI that the outer layer has hidden, unless something
    /// between the two layers has changed its query.
    fn restore_query(&self, uri: &mut Uri) {
        let Some(allow) = &self.rules.config.query else { return };
        let query = self.received.query();
        if unkey_query(&self.received, allow).query() == uri.query() && query != uri.query() {
            let resource = query.map(|query| format!("{}?{query}", uri.path()));
            let mut parts = uri.clone().into_parts();
            parts.path_and_query = resource.and_then(|resource| resource.parse().ok());
            if let Ok(restored) = Uri::from_parts(parts) {
                *uri = restored;
            }
        }
    }

    /// Returns to a request the parameters that the outer layer has hidden: which of them
    /// count, the inner one says.
    pub(super) fn restore(&self, parts: &mut Parts) {
        self.restore_query(&mut parts.uri);
        #[cfg(feature = "axum")]
        if let Some(original) = parts.extensions.get_mut::<axum::extract::OriginalUri>() {
            self.restore_query(&mut original.0);
        }
    }
}

/// A request that a layer has claimed.
pub(super) struct Nested {
    pub(super) rules: Arc<Rules>,
    pub(super) outside: Outside,
    pub(super) outer: Mark,
}

impl Nested {
    /// Makes the answer of the one that layers further out get.
    pub(super) fn finish<B, E>(self, answer: HttpFuture<B, E>) -> HttpFuture<B, E>
    where
        B: SourceBody,
        E: Send + 'static,
    {
        let is_alike = self.rules.share_like(&self.outer.rules);
        let is_passing = self.outer.claim.is_passing.load(Ordering::Relaxed);
        if is_alike && is_passing {
            return answer;
        }
        HttpFuture::pending(async move {
            if !is_passing {
                let_outer_run().await;
            }
            let mut response = answer.await?;
            if !is_alike {
                forbid_sharing(response.extensions_mut());
            }
            Ok(response)
        })
    }
}

/// The rules of a layer inside of those of other layers, made once for each of them.
#[derive(Default)]
pub(crate) struct CombinedRules(RwLock<Vec<(Arc<Rules>, Arc<Rules>)>>);

/// Layers around one layer whose combined rules are kept; more are made anew.
const MAX_COMBINED: usize = 16;

/// Returns the rules of an inner layer inside of `outer`.
///
/// The rules of a route are those of `outer` with the changes of the route, and stand for both.
/// Any other layer has rules of its own, and those of `outer` are in force beside them: a
/// setting that lets more requests share holds only where both layers have it
/// ([`narrow`](crate::http::config::HttpConfig::narrow) says so for each setting).
pub(super) fn combine(inner: &Arc<Rules>, outer: &Arc<Rules>) -> Arc<Rules> {
    let known = inner.combined.0.read();
    if let Some((_, rules)) = known.iter().find(|(of, _)| Arc::ptr_eq(of, outer)) {
        return Arc::clone(rules);
    }
    drop(known);
    let rules = Arc::new(inner.inside_of(outer));
    let mut known = inner.combined.0.write();
    if known.len() < MAX_COMBINED {
        known.push((Arc::clone(outer), Arc::clone(&rules)));
    }
    rules
}

/// A request on its way to the owner of its route.
struct Passage(Mark);

impl Drop for Passage {
    /// It is answered, or its client has gone, without reaching the owner.
    fn drop(&mut self) {
        let Self(Mark { claim, rules, view, .. }) = self;
        if let Some(view) = view.as_ref().filter(|_| claim.arrive()) {
            rules.routes.note_unclaimed(view);
        }
    }
}

/// Forwards a request to the layer further in that owns its route.
pub(super) async fn pass_to_owner<S, Q, B>(
    cache: &HttpCache,
    service: S,
    request: Request<Q>,
) -> Result<Response<ResponseBody<B>>, S::Error>
where
    S: Service<Request<Q>, Response = Response<B>>,
    B: SourceBody,
{
    let passage = own_mark(request.extensions()).cloned().map(Passage);
    let response = Oneshot::new(service, request).await?.map(ResponseBody::inner);
    let Some(Passage(mark)) = passage.as_ref().filter(|it| !it.0.is_claimed()) else {
        return Ok(response);
    };
    // It did not get there.
    let reason = BypassReason::Nested;
    cache.observer.bypassed(reason.as_str());
    if response.extensions().get::<CacheOutcome>().is_some() {
        return Ok(response);
    }
    Ok(answer::from_service(&mark.rules, response, Provenance::bypass(reason)))
}

/// Lets the outer layer run before the inner one does anything.
async fn let_outer_run() {
    let mut has_run = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_run, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The response comes from behind a layer that shares by other rules.
#[derive(Clone, Copy)]
struct SharedByOtherRules;

/// Leaves a mark in a response that layers further out, of other handles, must not store.
fn forbid_sharing(response: &mut Extensions) {
    response.insert(SharedByOtherRules);
}

/// Returns whether a layer further in has left that mark.
pub(crate) fn forbids_sharing(response: &Extensions) -> bool {
    response.get::<SharedByOtherRules>().is_some()
}
