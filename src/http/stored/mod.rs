//! What the store holds for a URI.

pub(crate) mod fill;
pub(crate) mod response;
#[cfg(feature = "remote")]
pub(crate) mod wire;
