//! Runs the code of the recipes that need crates which the library does not. `scripts/trial` tests it.

#[doc = include_str!("../../../docs/recipes/reqwest.md")]
pub mod reqwest {}

#[doc = include_str!("../../../docs/recipes/poem-and-salvo.md")]
pub mod poem_and_salvo {}

#[doc = include_str!("../../../docs/recipes/sqlx.md")]
pub mod sqlx {}

#[doc = include_str!("../../../docs/recipes/opentelemetry.md")]
pub mod opentelemetry {}
