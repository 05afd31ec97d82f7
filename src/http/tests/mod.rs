//! The rules against a slow reading of the RFCs, and against published cases.

mod at_random;
mod differential;
mod published;
mod reference;
pub(crate) mod storable;
#[cfg(feature = "remote")]
mod wire;
