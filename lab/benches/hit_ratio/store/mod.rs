//! The policy of the product, as it stands in `src/store`: it knows hashes and weights alone.

#![allow(dead_code, reason = "what the product's table asks of it")]
#![allow(unused_imports, reason = "a bench without a harness has no unit tests")]

#[path = "../../../../src/store/ghosts.rs"]
mod ghosts;
#[path = "../../../../src/store/policy.rs"]
pub(crate) mod policy;
