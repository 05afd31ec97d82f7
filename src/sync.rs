//! The primitives whose order the models check.
//!
//! Everything that threads share in a flight, the table, the places and the
//! invalidation log comes from here. With `--cfg stampede_model` (see `scripts/model`), the same
//! names stand for those of the model checker. The flag is no feature: `--all-features`
//! must not turn the product into a model.

#[cfg(stampede_model)]
mod model;

#[cfg(not(stampede_model))]
mod product {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use std::sync::{Arc, OnceLock, Weak};

    pub(crate) use foldhash::fast::RandomState;
    pub(crate) use parking_lot::{Mutex, RwLock};
    pub(crate) use tokio::sync::Notify;
    pub(crate) use tokio::task_local;
}

#[cfg(stampede_model)]
pub(crate) use model::*;
#[cfg(not(stampede_model))]
pub(crate) use product::*;
