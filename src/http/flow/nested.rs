//! A layer of the same handle further out has handled a request already.
//!
//! A layer on a route inside a layer of the same handle on the router would
//! wait for a flight that waits for it. So the outer one leaves a mark in the
//! request's extensions, and the inner one passes the request through.
//!
//! The mark says nothing of the resource. A layer between the two may change the
//! URI, and then two flights could wait for each other, or one layer's entry be
//! taken for the other's. So a request that the application makes with copied
//! extensions is passed through as well. Writes wait for no flight: each layer
//! invalidates what it has stored.
//!
//! The inner layer may tell clients apart that the outer one does not: by an
//! identity, by more credentials, by a bypass. Then the inner one leaves a mark
//! in the response, and the outer one does not store it. So a stricter layer on
//! a route stays strict, at the price of its cache.

use std::sync::Arc;

use http::{Extensions, request::Parts};

use crate::http::flow::lookup::HttpCache;
use crate::http::layer::Rules;

/// The layers that a request has come through, the outermost first.
#[derive(Clone)]
struct LayerMark(Vec<Layer>);

#[derive(Clone)]
struct Layer {
    /// Where the handle's state is in memory. The layer that left the mark
    /// keeps it alive while the request is on its way.
    cache: usize,
    rules: Arc<Rules>,
}

/// Where a layer stands among those of the same handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    Outermost,
    /// Another one has seen to the request; `is_alike` if it shares by the same
    /// rules.
    Inside {
        is_alike: bool,
    },
}

/// The response comes from behind a layer that shares by other rules.
#[derive(Clone, Copy)]
struct SharedByOtherRules;

fn place(cache: &Arc<HttpCache>) -> usize {
    Arc::as_ptr(cache).addr()
}

/// Returns the rules of the layer of the same handle that this request has come
/// through.
#[inline]
pub(super) fn outer_rules(parts: &Parts, cache: &Arc<HttpCache>) -> Option<Arc<Rules>> {
    let passed = parts.extensions.get::<LayerMark>()?;
    let outer = passed.0.iter().find(|layer| layer.cache == place(cache));
    outer.map(|layer| Arc::clone(&layer.rules))
}

/// Leaves the mark of this layer in a request.
pub(super) fn mark(parts: &mut Parts, cache: &Arc<HttpCache>, rules: &Arc<Rules>) {
    let layer = Layer { cache: place(cache), rules: Arc::clone(rules) };
    let passed = parts.extensions.get_or_insert_with(|| LayerMark(Vec::new()));
    passed.0.push(layer);
}

/// Leaves a mark in a response that layers further out must not store.
pub(super) fn forbid_sharing(response: &mut Extensions) {
    response.insert(SharedByOtherRules);
}

/// Returns whether a layer further in has left that mark.
pub(crate) fn forbids_sharing(response: &Extensions) -> bool {
    response.get::<SharedByOtherRules>().is_some()
}
