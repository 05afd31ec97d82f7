//! The layer for any tower service.

pub(crate) mod adapter;
pub(crate) mod future;
pub(crate) mod layer;
pub(crate) mod oneshot;
pub(crate) mod service;
