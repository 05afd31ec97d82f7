//! What an application holds: the handle, its settings, and the one orchestrator.

pub(crate) mod builder;
pub(crate) mod compute;
pub(crate) mod handle;
pub(crate) mod run;
pub(crate) mod state;
#[cfg(test)]
mod tests;
pub(crate) mod write;
