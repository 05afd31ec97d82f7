//! Lifetimes of errors, for caches of HTTP responses.

use std::time::Duration;

use crate::cache::builder::Builder;

impl<V: Clone + Send + Sync + 'static> Builder<V> {
    /// Sets the lifetime of HTTP responses with the status `status`, an error from 400 to 599,
    /// that say nothing of their lifetime. The default of
    /// [`HttpLayer::status_ttl`](crate::HttpLayer::status_ttl), which says more. May be called
    /// once per status. Defaults to none.
    ///
    /// A cache that stores no HTTP responses ignores it.
    pub fn status_ttl(mut self, status: u16, ttl: Duration) -> Self {
        self.settings.status_ttl.insert(status, ttl);
        self
    }
}
