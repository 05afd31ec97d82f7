//! The service for any tower service.

use std::sync::Arc;
use std::task::{Context, Poll};

use tower_service::Service;

use crate::cache::computation::ComputationResult;
use crate::cache::compute::Answer;
use crate::cache::handle::Stampede;
use crate::cache::state::Lookup;
use crate::computed::Computed;
use crate::error::{BoxError, Error};
use crate::key::Key;
use crate::outcome::CacheOutcome;
use crate::tower::adapter::Adapter;
use crate::tower::future::ResponseFuture;
use crate::tower::oneshot::Oneshot;

/// Answers from a cache, and calls the inner service once per key.
///
/// Made by [`StampedeLayer`](crate::StampedeLayer).
///
/// # Errors
///
/// Its error is [`Error`]. [`Error::inner`] has the inner service's own error, and the example;
/// [`Error::kind`] says what it is where the cache has refused the call. The guide has an application
/// that matches both ([*Any tower service*](crate::guide::put_it_in_your_app#any-tower-service)).
///
/// # Backpressure
///
/// Always ready: a hit must not wait for a saturated service. A leader drives
/// a clone of the inner service to readiness and meets its back-pressure there.
pub struct StampedeService<S, V, A> {
    inner: S,
    cache: Stampede<V>,
    adapter: Arc<A>,
    inline: bool,
}

impl<S, V: Clone + Send + Sync + 'static, A> StampedeService<S, V, A> {
    pub(crate) fn new(inner: S, cache: Stampede<V>, adapter: Arc<A>, inline: bool) -> Self {
        Self { inner, cache, adapter, inline }
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

impl<S, V, A, Req> Service<Req> for StampedeService<S, V, A>
where
    S: Service<Req> + Clone + Send + 'static,
    S::Error: Into<BoxError> + Send,
    S::Future: Send,
    S::Response: Send,
    Req: Send + 'static,
    V: Clone + Send + Sync + 'static,
    A: Adapter<Req, S::Response, Stored = V> + Send + Sync + 'static,
{
    type Response = S::Response;
    type Error = Error;
    type Future = ResponseFuture<S, Req>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let observer = &self.cache.0.observer;
        let Some(key) = self.adapter.key(&request) else {
            observer.answered(CacheOutcome::Bypass);
            return ResponseFuture::bypass(Oneshot::new(self.inner.clone(), request));
        };
        match self.cache.0.look(key.as_bytes()) {
            Lookup::Fresh(entry) => {
                observer.hit(key.as_bytes(), &entry);
                ResponseFuture::answered(self.adapter.thaw(&entry.value))
            }
            look => self.miss(key, look, request),
        }
    }
}

impl<S, V, A> StampedeService<S, V, A>
where
    V: Clone + Send + Sync + 'static,
{
    fn miss<Req>(&self, key: Key, look: Lookup<V>, request: Req) -> ResponseFuture<S, Req>
    where
        S: Service<Req> + Clone + Send + 'static,
        S::Error: Into<BoxError> + Send,
        S::Future: Send,
        S::Response: Send,
        Req: Send + 'static,
        A: Adapter<Req, S::Response, Stored = V> + Send + Sync + 'static,
    {
        let (inner, service) = (Arc::clone(&self.cache.0), self.inner.clone());
        let (adapter, inline) = (Arc::clone(&self.adapter), self.inline);
        let freezing = Arc::clone(&adapter);
        let work = move || async move {
            let response = Oneshot::new(service, request).await?;
            let frozen = freezing.freeze(&response).map(Computed::plain);
            Ok::<ComputationResult<V, S::Response>, S::Error>((frozen, response))
        };
        ResponseFuture::pending(async move {
            let served = if inline {
                inner.answer_inline(key, look, work, None).await?
            } else {
                inner.answer_owned(key, look, work).await?
            };
            Ok(match served {
                Answer::Entry(entry, _) => adapter.thaw(&entry.value),
                Answer::Own(response, _) => response,
            })
        })
    }
}

// Not derived: nothing is asked of the adapter.
impl<S: Clone, V: Clone + Send + Sync + 'static, A> Clone for StampedeService<S, V, A> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            cache: self.cache.clone(),
            adapter: Arc::clone(&self.adapter),
            inline: self.inline,
        }
    }
}

impl<S: std::fmt::Debug, V: Clone + Send + Sync + 'static, A> std::fmt::Debug
    for StampedeService<S, V, A>
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StampedeService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
