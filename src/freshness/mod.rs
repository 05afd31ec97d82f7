//! When an entry may be used.
//!
//! Everything here is a pure function of a reading of the clock. There is no lock and no
//! await. [`decide()`] takes its random number as an argument, so the same input always gives
//! the same result.
//!
//! # What enters
//!
//! [`Lifetimes`]: the three spans that an application or an origin states (`ttl`,
//! `stale_for`, `stale_if_error`). Then, at each look-up, the present time.
//!
//! # What leaves
//!
//! A [`Window`]: the moments between which an entry is fresh, stale, or of use in place of
//! a failure. It is made once, when the entry is filled. A lifetime counts from the end of
//! the computation where the application chose it, and from the start where the origin
//! stated it. Both stale windows begin where the lifetime ends; they overlap.
//!
//! # The states in between
//!
//! ```text
//! started      filled               fresh_until        stale_until        error_until
//!    │ computes  │ Fresh ... Early ...  │ Stale             │ StaleIfError      │ Expired
//! ```
//!
//! [`decide()`] returns one of these five. `Early` is `Fresh`, and this reader has drawn the
//! early refresh. It is the only judge. The store may forget an entry sooner, to save
//! memory; no other code says that one may be served. HTTP adds what RFC 9111 adds, on top of
//! the result: a response with `no-cache` is a miss, however fresh it is.
//!
//! # Reading order
//!
//! - `window`: from lifetimes to moments.
//! - `short_span`: how an entry stores them.
//! - `decide`: from a window and a time to one of the five.
//! - `early`: the draw of the early refresh (XFetch).

mod decide;
mod early;
mod short_span;
mod window;

pub(crate) use decide::{Freshness, decide, sample};
pub(crate) use early::EarlyRefresh;
pub(crate) use short_span::ShortSpan;
pub(crate) use window::{Lifetimes, PackedWindow, Window};
