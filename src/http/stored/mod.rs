//! What the store holds for a URI.
//!
//! # What enters
//!
//! A response whose head was judged (a `Plan`) and the caller whose request it answers. Or
//! bytes from the remote.
//!
//! # What leaves
//!
//! Entries of a [`StoredResponse`](response::StoredResponse), in the store of the process;
//! and the same as bytes, for the remote.
//!
//! # The states in between
//!
//! ```text
//! primary key ─┬─ a response                          (the URI does not vary)
//!              └─ an index: lists of `Vary` fields ─┬─ variant key ─ a response
//!                                                   └─ variant key ─ a response
//! ```
//!
//! Two kinds of things stand under keys ([`Slot`](response::Slot)). The *index* says where to
//! look, and never what is there: it carries no tags, so an invalidation ends the variants
//! and not the index. It remembers a few lists of fields, the codings that the variants have,
//! and at most `max_variants` variants; the least recently used one makes room.
//!
//! A body is *whole*, or it is *arriving*: then the entry is published to the callers of
//! the flight, and it is not in the store yet. `fill::completed` makes the entry that is
//! stored.
//!
//! An index may be announced before its first response is complete, so that requests for
//! another variant do not wait for this one's body.
//!
//! # Reading order
//!
//! - `response`: a stored response, the index, and which request may have which response.
//! - `fill`: how a response gets into the store: the entry, its window, its place, and the
//!   variant that makes room.
//! - `etag`: entity tags of our own.
//! - `generation`: the number in an index of the remote, and the keys that it leads to.
//! - `wire`: stored responses as bytes (feature `remote`). Everything that is read is checked
//!   as if a client had sent it.

mod etag;
pub(crate) mod generation;
pub(crate) mod response;
#[cfg(feature = "remote")]
pub(crate) mod wire;
