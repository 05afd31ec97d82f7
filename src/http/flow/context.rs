//! The context of a caller's task, around work on a task of its own.

use std::future::Future;

use futures_util::future::Either;
use http::Request;
use http_body::Body;
use tokio::sync::oneshot;

use crate::error::{Error, ErrorKind};
use crate::flight::door::{self, Lead, LeadOutcome};
use crate::http::body::SourceBody;
use crate::http::flow::OriginService;
use crate::http::flow::work::HttpWork;
use crate::http::layer::rules::ContextWrap;
use crate::http::stored::response::StoredResponse;

/// What [`carry_context`](crate::HttpLayer::carry_context) has taken from the task of a caller.
/// Most layers take nothing; then it has no allocation.
pub(super) struct CallerContext(Vec<ContextWrap>);

impl CallerContext {
    /// Runs `work` in it. Returns `lost` where the code of the application drops the work.
    ///
    /// No `async fn`: that would hold the work twice.
    fn around<T: Send + 'static>(
        self,
        work: impl Future<Output = T> + Send + 'static,
        lost: impl FnOnce() -> T + Send,
    ) -> impl Future<Output = T> + Send {
        let Self(wraps) = self;
        if wraps.is_empty() {
            return Either::Left(work);
        }
        let work = Box::pin(work);
        Either::Right(async move {
            let (give, mut given) = oneshot::channel();
            let work = async move {
                // Fails where the application has taken the work elsewhere.
                let _ = give.send(work.await);
            };
            wraps.into_iter().fold(Box::pin(work) as _, |work, wrap| wrap(work)).await;
            given.try_recv().unwrap_or_else(|_| lost())
        })
    }
}

impl<S, Q, B> HttpWork<S, Q, B> {
    /// Takes the context. To be called while the caller is polled: its task-local values are
    /// there then.
    pub(super) fn take_context(mut self) -> (CallerContext, Self) {
        let rules = &self.caller.request.rules;
        if rules.contexts.is_empty() {
            return (CallerContext(Vec::new()), self);
        }
        let (parts, body) = self.request.into_parts();
        let wraps = rules.contexts.iter().map(|take| take(&parts)).collect();
        self.request = Request::from_parts(parts, body);
        (CallerContext(wraps), self)
    }
}

impl<S, Q, B> HttpWork<S, Q, B>
where
    S: OriginService<Q, B>,
    Q: Body + Send + 'static,
    B: SourceBody,
{
    /// The way of a leader on a task of its own, in the context of its caller.
    pub(super) fn lead_in(
        self,
        context: CallerContext,
        lead: Lead<StoredResponse>,
    ) -> impl Future<Output = LeadOutcome<StoredResponse, Self>> + Send {
        let lost = || LeadOutcome::Refused(Error::new(ErrorKind::ShutDown), None);
        context.around(door::lead(lead, self), lost)
    }
}
