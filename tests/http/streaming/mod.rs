//! Bodies that are read while they arrive.

mod ends;
pub(crate) mod fed;
mod keeping;
mod misfits;
mod passing;
mod pauses;
mod room;
mod unwanted;
mod variants;
