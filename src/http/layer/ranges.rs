//! Settings of range requests.

use crate::http::layer::HttpLayer;

impl HttpLayer {
    /// Sets whether a range request that finds nothing fresh asks the service for the whole
    /// response, once for a crowd. It is stored, and each client gets its part of it. Defaults
    /// to true.
    ///
    /// Where the whole may not be stored, or has more bytes than
    /// [`max_body`](Self::max_body), ranges go to the service as they are. The first client of a
    /// crowd costs two calls then: its response for the whole is dropped, and its own request is
    /// sent. That is remembered for `uncacheable_for` of the handle: until then, no range asks
    /// for the whole.
    ///
    /// With false, ranges that find nothing go to the service as they are, each for itself. They
    /// are still answered from stored responses and from computations that run. Set it where
    /// wholes are hardly ever wanted, and the service makes each part for itself.
    ///
    /// A range in another unit than bytes goes to the service as it is; so does each range
    /// where [`empty_request_body`](Self::empty_request_body) is missing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_stampede::{HttpLayer, HttpStampede, Stampede};
    /// # let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// let layer: HttpLayer = cache.http_layer().fill_from_ranges(false);
    /// ```
    pub fn fill_from_ranges(self, fills: bool) -> Self {
        self.change(move |rules| rules.config.fill_from_ranges = fills)
    }
}
