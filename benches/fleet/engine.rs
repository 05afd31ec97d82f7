//! The product's clock readings, under the name by which its policy asks for
//! them.

#[path = "../../src/engine/time.rs"]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "the model uses a part of it")]
pub(crate) mod time;
