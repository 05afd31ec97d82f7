//! Texts and code agree: tables and lists in `docs/` are read, and held against what
//! the layer does.
//!
//! `rfc9111` counts what the whole process has allocated. Nothing in this binary may
//! hold much memory while it runs.

#[path = "../kit/mod.rs"]
mod kit;

mod http_page;
mod rfc9111;
mod threats;
