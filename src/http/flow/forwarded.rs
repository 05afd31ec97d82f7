//! The bound on requests that are forwarded outside of any flight.
//!
//! A request that no flight is for has none of the places for computations: it is credentialed,
//! unsafe, uncacheable, or bypasses the cache. Where the layer sets a bound, such a request has
//! one of its places until the head of the response is there. A handler that sends another
//! request through the layer lends its place.

use http::request::Parts;

use crate::error::Error;
use crate::flight::client_key::ClientKey;
use crate::flight::door::ForwardPlace;
use crate::http::layer::rules::Rules;
use crate::http::rules::key::received_uri;
use crate::http::stored::response::{HttpCache, StoredResponse};
use crate::key::Key;
use crate::sync::Arc;

impl Rules {
    /// Returns the client of a request, if the application names it.
    pub(super) fn client(&self, parts: &Parts) -> Option<ClientKey> {
        self.client.as_ref().and_then(|client| client(parts))
    }
}

/// Waits for a place as long as the handle's `wait_timeout`.
///
/// Cancel safe: a request that is dropped leaves the queue.
pub(super) async fn take_place(
    cache: &Arc<HttpCache>,
    rules: &Rules,
    parts: &Parts,
) -> Result<ForwardPlace<StoredResponse>, Error> {
    let Some(bound) = &rules.forwarded else { return Ok(ForwardPlace::NOT_NEEDED) };
    let taken = bound.take(&cache.engine, || rules.client(parts)).await;
    taken.map_err(|_| cache.engine.overloaded(&Key::from(received_uri(parts).path())))
}
