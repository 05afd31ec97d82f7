//! A layer of the same handle further out has seen to a request already.
//!
//! A layer on a route inside a layer of the same handle on the router would
//! wait for a flight that waits for it. So the outer one leaves a mark in the
//! request's extensions, and the inner one passes the request through. The mark
//! names the resource: extensions may be copied into a request for another one.
//! Writes wait for no flight, so each layer invalidates what it has stored.
//!
//! The inner layer may tell clients apart that the outer one does not: by an
//! identity, by more credentials, by a bypass. Then the inner one leaves a mark
//! in the response, and the outer one does not store it. So a stricter layer on
//! a route stays strict, at the price of its cache.

use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{Extensions, Method, request::Parts};

use super::layer::Rules;
use super::lookup::{Cache, received_uri};

/// The layers that a request has come through, the outermost first.
#[derive(Clone)]
struct Passed(Vec<Layer>);

#[derive(Clone)]
struct Layer {
    /// Where the handle's state is in memory. The layer that left the mark
    /// keeps it alive while the request is on its way.
    cache: usize,
    /// Path and query as received.
    resource: Option<PathAndQuery>,
    rules: Arc<Rules>,
}

/// The response comes from behind a layer that shares by other rules.
#[derive(Clone, Copy)]
struct SharedByOtherRules;

fn place(cache: &Arc<Cache>) -> usize {
    Arc::as_ptr(cache).addr()
}

/// Returns the rules of the layer of the same handle that this request has come
/// through.
#[inline]
pub(super) fn outer_rules(parts: &Parts, cache: &Arc<Cache>) -> Option<Arc<Rules>> {
    let passed = parts.extensions.get::<Passed>()?;
    if !matches!(parts.method, Method::GET | Method::HEAD) {
        return None;
    }
    let resource = received_uri(parts).path_and_query();
    let is_it = |layer: &&Layer| layer.cache == place(cache) && layer.resource.as_ref() == resource;
    passed.0.iter().find(is_it).map(|layer| Arc::clone(&layer.rules))
}

/// Leaves the mark of this layer in a request.
pub(super) fn mark(parts: &mut Parts, cache: &Arc<Cache>, rules: &Arc<Rules>) {
    let resource = received_uri(parts).path_and_query().cloned();
    let layer = Layer { cache: place(cache), resource, rules: Arc::clone(rules) };
    let passed = parts.extensions.get_or_insert_with(|| Passed(Vec::new()));
    passed.0.push(layer);
}

/// Leaves a mark in a response that layers further out must not store.
pub(super) fn forbid_sharing(response: &mut Extensions) {
    response.insert(SharedByOtherRules);
}

/// Returns whether a layer further in has left that mark.
pub(super) fn forbids_sharing(response: &Extensions) -> bool {
    response.get::<SharedByOtherRules>().is_some()
}
