//! Drives a service to readiness, then calls it once.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

pin_project! {
    /// Owns the clone that it drives. A clone of a ready service need not be ready
    /// itself, so the same clone is asked for readiness and called.
    pub(crate) struct Oneshot<S, Req>
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
        Waiting { service: S, request: Option<Req> },
        Called { #[pin] future: S::Future },
    }
}

impl<S: Service<Req>, Req> Oneshot<S, Req> {
    pub(crate) fn new(service: S, request: Req) -> Self {
        Self { state: State::Waiting { service, request: Some(request) } }
    }
}

impl<S: Service<Req>, Req> Future for Oneshot<S, Req> {
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let future = match this.state.as_mut().project() {
                StateProj::Called { future } => return future.poll(cx),
                StateProj::Waiting { service, request } => {
                    ready!(service.poll_ready(cx))?;
                    let request = request.take().expect("a request is called once");
                    service.call(request)
                }
            };
            this.state.set(State::Called { future });
        }
    }
}
