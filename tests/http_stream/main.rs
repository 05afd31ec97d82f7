//! Bodies that are read while they arrive.

#![cfg(feature = "axum")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod ends;
mod fed;
#[path = "../http_support/mod.rs"]
mod http_support;
mod keeping;
mod passing;
mod variants;
