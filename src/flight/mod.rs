//! Flights: one computation per key, and every other caller waits for its verdict.

pub(crate) mod end;
pub(crate) mod engine;
pub(crate) mod hold;
pub(crate) mod hold_policy;
pub(crate) mod leader;
pub(crate) mod lending;
pub(crate) mod marks;
#[cfg(all(test, stampede_model))]
mod model;
pub(crate) mod phase;
pub(crate) mod places;
pub(crate) mod ports;
pub(crate) mod table;
pub(crate) mod tasks;
#[cfg(test)]
mod tests;
pub(crate) mod waiter;
