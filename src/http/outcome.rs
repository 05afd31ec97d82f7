//! How a response came about, for who has it in hand.

use http::Response;
use http_body::Body;

use crate::http::body::ResponseBody;
use crate::outcome::CacheOutcome;

impl CacheOutcome {
    /// Returns how a response of the HTTP layer came about, if it is one.
    ///
    /// A response that is no hit has it among its extensions, where a middleware around any
    /// body finds it. A hit has it in its body alone, unless
    /// [`outcome_on_hits`](crate::HttpLayer::outcome_on_hits) says otherwise.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::{convert::Infallible, time::Duration};
    /// use bytes::Bytes;
    /// use http::{Request, Response};
    /// use http_body_util::{Empty, Full};
    /// use tower::{ServiceBuilder, ServiceExt, service_fn};
    /// use tower_stampede::{CacheOutcome, Stampede};
    ///
    /// let report = |_: Request<Empty<Bytes>>| async {
    ///     Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("report")))
    /// };
    /// let cache = Stampede::in_memory(Duration::from_secs(60));
    /// let app = ServiceBuilder::new().layer(cache.http_layer()).service(service_fn(report));
    /// for expected in [CacheOutcome::Computed, CacheOutcome::Hit] {
    ///     let response = app.clone().oneshot(Request::new(Empty::new())).await?;
    ///     assert_eq!(CacheOutcome::of(&response), Some(expected));
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn of<B: Body>(response: &Response<ResponseBody<B>>) -> Option<Self> {
        response.extensions().get().copied().or_else(|| response.body().outcome())
    }
}
