//! When an entry may be used.
//!
//! Everything here is a pure function of a reading of the clock. A [`Window`] says
//! between which moments an entry is fresh, stale, or of use in place of a failure.
//! It is made once, when the entry is filled, out of [`Lifetimes`]. A lifetime counts
//! from the end of the computation where the application chose it. [`decide`] reads
//! it: it is the only judge of fresh, early, stale and expired. The store may forget
//! an entry sooner, to save memory; no other code says that one may be served.
//!
//! Reading order: `window`, `decide`, `early`.

mod decide;
mod early;
mod window;

pub(crate) use decide::{Freshness, decide, sample};
pub(crate) use early::EarlyRefresh;
pub(crate) use window::{Lifetimes, Window};
