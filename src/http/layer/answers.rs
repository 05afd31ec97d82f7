//! The settings of what clients get besides the response of the service.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use crate::http::flow::error_response::Refusal;
use crate::http::layer::rules::RefusalRule;
use crate::http::layer::{HttpLayer, setters};
use crate::settings::layer::answers;

answers! { setters; "# Answers: what clients get besides the response" }

/// Answers by rules of the application.
impl HttpLayer {
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
