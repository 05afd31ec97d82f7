//! A layer of the same handle further out has seen to a request already.
//!
//! A layer on a route inside a layer of the same handle on the router would
//! wait for a flight that waits for it. So the outer one leaves a mark in the
//! request's extensions, and the inner one passes the request through.

use std::panic::Location;
use std::sync::Arc;

use http::request::Parts;

use super::layer::Rules;
use super::lookup::Cache;

/// The layers that a request has come through, the outermost first.
#[derive(Clone)]
struct Passed(Vec<Layer>);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Layer {
    /// Where the handle's state is in memory. The layer that left the mark
    /// keeps it alive while the request is on its way.
    cache: usize,
    made_at: &'static Location<'static>,
}

fn place(cache: &Arc<Cache>) -> usize {
    Arc::as_ptr(cache).addr()
}

/// Returns where the layer of the same handle was made that this request has
/// come through.
#[inline]
pub(super) fn outer_layer(parts: &Parts, cache: &Arc<Cache>) -> Option<&'static Location<'static>> {
    let passed = parts.extensions.get::<Passed>()?;
    let outer = passed.0.iter().find(|layer| layer.cache == place(cache));
    outer.map(|layer| layer.made_at)
}

/// Leaves the mark of this layer.
pub(super) fn mark(parts: &mut Parts, cache: &Arc<Cache>, rules: &Rules) {
    let layer = Layer { cache: place(cache), made_at: rules.made_at };
    let passed = parts.extensions.get_or_insert_with(|| Passed(Vec::new()));
    passed.0.push(layer);
}
