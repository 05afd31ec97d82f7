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

impl<S, Q, B> HttpWork<S, Q, B> {
    /// Takes what [`carry_context`](crate::HttpLayer::carry_context) carries. To be called while the caller is polled: its task-local values are
    /// there then.
    pub(super) fn take_context(mut self) -> (Vec<ContextWrap>, Self) {
        let rules = &self.caller.request.rules;
        if rules.contexts.is_empty() {
            return (Vec::new(), self);
        }
        let (parts, body) = self.request.into_parts();
        let wraps = rules.contexts.iter().map(|take| take(&parts)).collect();
        self.request = Request::from_parts(parts, body);
        (wraps, self)
    }
}

impl<S, Q, B> HttpWork<S, Q, B>
where
    S: OriginService<Q, B>,
    Q: Body + Send + 'static,
    B: SourceBody,
{
    /// The way of a leader on a task of its own, in the context of its caller.
    ///
    /// No `async fn`: that would hold the work twice.
    pub(super) fn lead_in(
        self,
        context: Vec<ContextWrap>,
        lead: Lead<StoredResponse>,
    ) -> impl Future<Output = LeadOutcome<StoredResponse, Self>> + Send {
        let work = door::lead(lead, self);
        if context.is_empty() {
            return Either::Left(work);
        }
        let work = Box::pin(work);
        Either::Right(async move {
            let (give, mut given) = oneshot::channel();
            let work = async move {
                // Fails where the application has taken the work elsewhere.
                let _ = give.send(work.await);
            };
            context.into_iter().fold(Box::pin(work) as _, |work, wrap| wrap(work)).await;
            // Or it has dropped the work.
            let lost = |_| LeadOutcome::Refused(Error::new(ErrorKind::ShutDown), None);
            given.try_recv().unwrap_or_else(lost)
        })
    }
}
