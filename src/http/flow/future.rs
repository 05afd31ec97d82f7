//! The future of the HTTP service.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;

use crate::http::body::ResponseBody;

type Pending<B, E> = Pin<Box<dyn Future<Output = Result<Response<ResponseBody<B>>, E>> + Send>>;

pin_project! {
    /// The future of [`HttpService`](crate::HttpService).
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
    #[inline]
    pub(super) fn ready(response: Response<ResponseBody<B>>) -> Self {
        Self { state: State::Ready(Some(response)) }
    }

    pub(super) fn pending(
        future: impl Future<Output = Result<Response<ResponseBody<B>>, E>> + Send + 'static,
    ) -> Self {
        Self { state: State::Pending(Box::pin(future)) }
    }
}

impl<B: Body, E> Future for HttpFuture<B, E> {
    type Output = Result<Response<ResponseBody<B>>, E>;

    #[inline]
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
