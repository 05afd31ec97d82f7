//! Pure functions of RFC 9110, 9111, 5861, 9213 and 9875.
//!
//! # What enters
//!
//! The head of a request or of a response, the layer's settings
//! ([`HttpConfig`](crate::http::config::HttpConfig)), and times as arguments. Nothing
//! here reads a clock, awaits, or knows of flights and stores. All input is hostile: work is
//! bounded by the size of the input, and nothing panics.
//!
//! # What leaves
//!
//! | question | function | result |
//! |---|---|---|
//! | what is to be done with this request? | `request::classify` | `Class` |
//! | what names its entries? | `key` | the primary key |
//! | may this response be stored, and for whom? | `ResponseFacts::judge` | `Plan`, `DeclineReason` |
//! | how long is it fresh? | `lifetime::terms` | `Terms` |
//! | which stored variant does a request select? | `vary` | `Fingerprint` |
//! | may this stored response answer this request? | `storable::may_answer` | yes or no |
//! | how much of it does the client get? | `shape::Shape::of` | `Shape` |
//! | under which condition is the origin asked? | `validation` | `Validators` |
//!
//! # The states in between
//!
//! A request is read once, in one pass over its fields (`request::FieldScan`). A response
//! is read once, when its head arrives: into `Directives`, then `Terms`, then a `Plan` or a
//! `DeclineReason`. Answers are given from what was read then.
//!
//! # Reading order
//!
//! The request: `request` (what it asks for), `host` (which host), `key` (what names its
//! entries), `field_names` (sets of names and patterns), `credentials` (does it identify a
//! client), `cookies` (those that do not count), `request_directives` (its `Cache-Control`),
//! `content` (its body, as a part of the key).
//!
//! The response: `members` (the syntax of `Cache-Control`), `directives` (its meaning),
//! `targeted` (which field governs), `date` (dates in fields), `lifetime` (how long it is
//! fresh, how old it is), `storable` (the decision), `decline_reason` (why not), `vary`
//! (what selects it), `codings` (what `Accept-Encoding` selects), `steering` (its tags and
//! groups), `streams` (shared streams: their ends, and the ids of their events).
//!
//! The answer: `conditions` (`If-None-Match` and others), `range`, `multipart` (several ranges),
//! `shape` (conditions first, then the ranges), `fields` (fields that are not passed on, and fields that we add).
//!
//! Keeping it true: `validation` (asking the origin about a stored response), `target` (what an
//! unsafe method invalidates).

pub(crate) mod codings;
pub(crate) mod conditions;
pub(crate) mod content;
pub(crate) mod cookies;
pub(crate) mod credentials;
pub(crate) mod date;
pub(crate) mod decline_reason;
pub(crate) mod directives;
pub(crate) mod field_names;
pub(crate) mod fields;
pub(crate) mod host;
pub(crate) mod key;
pub(crate) mod lifetime;
pub(crate) mod members;
pub(crate) mod multipart;
pub(crate) mod range;
pub(crate) mod request;
pub(crate) mod request_directives;
pub(crate) mod shape;
pub(crate) mod steering;
pub(crate) mod storable;
pub(crate) mod streams;
pub(crate) mod target;
pub(crate) mod targeted;
pub(crate) mod validation;
pub(crate) mod vary;
