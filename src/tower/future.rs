//! The future of the layer for any tower service.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tower_service::Service;

use crate::error::{BoxError, Error};
use crate::tower::oneshot::Oneshot;

type Pending<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

pin_project! {
    /// The future of [`StampedeService`](crate::StampedeService).
    ///
    /// A hit is ready at once and costs no allocation.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves a running computation to the other callers, unless the
    /// layer is [`inline`](crate::StampedeLayer::inline): then one of the waiters
    /// leads the next computation.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, Req>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, Req>
    where
        S: Service<Req>,
    {
        Answered { response: Option<S::Response> },
        Bypass { #[pin] call: Oneshot<S, Req> },
        Pending { answer: Pending<S::Response> },
    }
}

impl<S: Service<Req>, Req> ResponseFuture<S, Req> {
    pub(crate) fn answered(response: S::Response) -> Self {
        Self { state: State::Answered { response: Some(response) } }
    }

    pub(crate) fn bypass(call: Oneshot<S, Req>) -> Self {
        Self { state: State::Bypass { call } }
    }

    pub(crate) fn pending(
        answer: impl Future<Output = Result<S::Response, Error>> + Send + 'static,
    ) -> Self {
        Self { state: State::Pending { answer: Box::pin(answer) } }
    }
}

impl<S, Req> Future for ResponseFuture<S, Req>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
{
    type Output = Result<S::Response, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Answered { response } => {
                Poll::Ready(Ok(response.take().expect("not polled after it was ready")))
            }
            StateProj::Bypass { call } => call.poll(cx).map_err(Error::inner_error),
            StateProj::Pending { answer } => answer.as_mut().poll(cx),
        }
    }
}

impl<S: Service<Req>, Req> std::fmt::Debug for ResponseFuture<S, Req> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
