//! The rules against a slow reading of the RFCs, and against published cases.
//!
//! These tests look at [`rules`](crate::http::rules) and at the wire format from inside,
//! where no request is needed. Tests of requests and responses stand in `tests/http` of the
//! repository.
//!
//! # What enters
//!
//! Heads of responses and requests: written down by hand, taken from a published suite, or
//! made at random by proptest.
//!
//! # What leaves
//!
//! A failed assertion, with the smallest head that shows it. Failures that proptest has
//! found are kept in `proptest-regressions/`.
//!
//! # The states in between
//!
//! The expected result comes from one of three sources:
//!
//! | source | its authority |
//! |---|---|
//! | `reference` | the texts of RFC 9111, 9213 and 5861, read slowly and plainly |
//! | `published` | the cases of a published conformance suite for HTTP caches |
//! | `storable` | cases that were written for this crate |
//!
//! `differential` compares the product code with the first source. The cases of the other two
//! carry their expected result with them.
//!
//! # Reading order
//!
//! - `reference`: what a shared cache may do with a response; `reference/dates` and
//!   `reference/dictionary` are its own parsers. Nothing in it calls product code.
//! - `differential`: the product code and the reference on the same random responses.
//! - `at_random`: what holds for every response, whatever else it says.
//! - `storable`: whether a response is stored, and for whom.
//! - `published`: the cases of the published suite that the head of one response decides.
//! - `wire`: bytes that another process wrote (feature `remote`).

mod at_random;
mod differential;
mod published;
pub(crate) mod reference;
pub(crate) mod storable;
#[cfg(feature = "remote")]
mod wire;
