//! What an application holds: the handle, its settings, and how values are made.
//!
//! # What enters
//!
//! A key and a computation: from `get_or_compute` and the methods like it, or from
//! the layer for any tower service ([`tower`](crate::tower)). The HTTP layer shares the
//! state and the orchestrator and brings its own look-up ([`http`](crate::http)).
//! Also: `put`, invalidations, and the switches of the handle.
//!
//! # What leaves
//!
//! An [`Answer`](compute::Answer): an entry of the store, or what the caller's own
//! computation returned. Or an [`Error`](crate::Error) that says why there is no value.
//!
//! # The states in between
//!
//! ```text
//! look ─┬─ Fresh ── the answer
//!       ├─ Early ── the answer; one caller refreshes
//!       ├─ Stale ── the answer; one caller refreshes
//!       └─ Miss ─── run ─┬─ Answer    another caller's result, or a stale value
//!                        ├─ Called    this caller led and asked the origin
//!                        ├─ Found     the remote has a value
//!                        ├─ Alone     this caller computes for itself
//!                        └─ Refused   an error, or a stale value in its place
//! ```
//!
//! There is one [`run`](crate::flight::door::run). What differs between callers is a parameter of it:
//!
//! | difference | parameter |
//! |---|---|
//! | a plain value or an HTTP response | the [`Work`](crate::flight::door::Work): `KeyWork`, `HttpWork` |
//! | a miss, a refresh or a fresh read | the purpose inside the work |
//! | on a task of its own or inside the caller | the closure that runs [`lead`](crate::flight::door::lead) |
//! | with a caller that waits or without | [`LedFor`](crate::flight::engine::LedFor) |
//!
//! While the mode is not `On`, [`run_unprotected`](crate::flight::door::run_unprotected) takes the place of
//! `run`: the caller computes for itself, without any wait, bound or time-out. What it
//! computes is stored if the handle observes and no other caller computes the key.
//!
//! # Reading order
//!
//! - `handle`: what an application holds, and its switches.
//! - `get`: the methods that return a value. A hit ends here.
//! - `put`: the methods that store and invalidate; `mark_stale`: those that make stale by tags.
//! - `state`: what a handle and its layers share: the look-up, how entries are made, and the
//!   task that tidies.
//! - `entry_selector`, `call_options`: one call with options of its own; `call_limits`: how long
//!   such a call waits.
//! - `computation`: the closure that a caller brings, and how its type is forgotten.
//! - `compute`: the ways of a caller that asks for a key; `key_work`: what it brings; `fresh_read`:
//!   which values of other processes a fresh read takes.
//! - `write`: `put` and invalidations, here at once, then in the remote.
//! - `inspect`: what is stored, for people and tests.
//! - `typed`: a cache with one type of key and a loader (`loader`); `failure`: why it returned no value.
//!   `single`: a cache of one value without a key.
//! - `names`: which names the handles of this process have.
//! - `weights`: what entries weigh against `max_bytes`.
//! - `batch`, `seat`, `get_many`: one call of the origin for several keys.
//! - `blocking`: the handle for code without `async`.
//! - `keep_fresh`: keys that are refreshed before they expire.
//! - `manifest`: what a process leaves to the next one.
//! - `builder`: collects the settings, checks them together and makes the handle.

pub(crate) mod batch;
pub(crate) mod blocking;
pub(crate) mod builder;
mod call_limits;
pub(crate) mod call_options;
pub(crate) mod computation;
pub(crate) mod compute;
pub(crate) mod entry_selector;
pub(crate) mod failure;
mod fresh_read;
pub(crate) mod get;
pub(crate) mod get_many;
pub(crate) mod handle;
pub(crate) mod inspect;
pub(crate) mod keep_fresh;
pub(crate) mod key_work;
mod loader;
pub(crate) mod manifest;
mod mark_stale;
mod names;
mod put;
mod seat;
mod single;
pub(crate) mod state;
mod streams;
#[cfg(test)]
mod tests;
pub(crate) mod typed;
pub(crate) mod weights;
pub(crate) mod write;
