//! Settings of what clients get when the service fails, or the cache refuses.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use crate::http::flow::error_response::Refusal;
use crate::http::layer::HttpLayer;
use crate::http::layer::rules::{DisconnectedRule, RefusalRule};

impl HttpLayer {
    /// Sets which errors of the inner service, of type `E`, say that it could
    /// not be reached: refused, reset or broken off before the header section
    /// ended, or no connection in time.
    ///
    /// Such an error is answered stale within
    /// [`stale_if_disconnected`](Self::stale_if_disconnected). Where what is
    /// stored forbids that (`must-revalidate` and its kin), the client gets a
    /// 504 from the cache instead of the error. Defaults to every error of the
    /// service, and never a 504.
    pub fn disconnected<E: 'static>(self, is: impl Fn(&E) -> bool + Send + Sync + 'static) -> Self {
        let is = move |error: &dyn Any| error.downcast_ref().is_some_and(&is);
        let rule: DisconnectedRule = Arc::new(is);
        self.change(move |rules| rules.disconnected = Some(rule))
    }

    /// Replaces the responses of our own: when the cache refuses a request, or
    /// the computation it waited for failed. The status is the refusal's,
    /// whatever the response says. Defaults to a line of text.
    pub fn on_refusal(
        self,
        response: impl Fn(&Refusal) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        let rule: RefusalRule = Arc::new(response);
        self.change(move |rules| rules.refusal = Some(rule))
    }
}
