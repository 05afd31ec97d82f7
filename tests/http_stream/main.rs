//! Bodies that are read while they arrive.

#![cfg(feature = "axum")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod ends;
mod fed;
mod keeping;
#[path = "../kit/mod.rs"]
mod kit;
mod passing;
mod variants;
