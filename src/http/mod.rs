//! HTTP: a shared cache by RFC 9111 in front of a service of `http` requests.
//!
//! # What enters and what leaves
//!
//! A request enters [`HttpService`]. A response leaves, with a
//! [`ResponseBody`], and with the fields `Age` and `Cache-Status` (unless the layer is told to
//! leave them out). A response that is no hit has a `CacheOutcome` among its extensions. The
//! service behind sees a request in one form per key.
//!
//! # One request in five steps
//!
//! 1. **Classify and key** (`flow/service.rs`, `rules/request.rs`, `rules/key.rs`). A request
//!    that cannot be answered from a cache is forwarded: a *bypass*. A method that may
//!    change something is forwarded, and what it touched is invalidated
//!    (`flow/unsafe_method.rs`). Any other request has a *primary key*. The body of a QUERY
//!    is part of it, and is read first (`flow/content.rs`).
//! 2. **Look up** (`flow/lookup.rs`). The entry at the primary key is a response, or an index
//!    of variants: then `Vary` selects one. It is judged by `freshness`, by `no-cache` and
//!    by what the client demands. A fresh one is written at once (`flow/answer.rs`): this
//!    is a hit, and it ends here.
//! 3. **Wait or lead** (`flow/miss.rs`, `flow/work.rs`). A stale response is served, and
//!    refreshed in the background (`flow/refresh.rs`). Any other request is an `HttpWork`
//!    and goes through the orchestrator, `flight::door`: it joins a flight, leads one, goes
//!    alone, or is refused.
//! 4. **Ask the origin** (`flow/lead.rs`, `flow/origin_call.rs`). The leader calls the service,
//!    under a condition where a stored response can be validated. When the head of the
//!    response arrives, `rules/storable.rs` decides whether to store it, and the flight
//!    gets its verdict. The body is read by all while it arrives (`flow/lead/keep.rs`,
//!    `flow/lead/pump.rs`, `body/`), and a complete one is stored (`flow/fill.rs`).
//! 5. **Answer** (`flow/client.rs`, `flow/answer.rs`). The client's own conditions and range
//!    decide how much it gets: the whole, a 304, a part, or a 416.
//!
//! # The states in between
//!
//! What is known of a request grows from step to step: `Parts` and `FieldScan`, then
//! `RequestFacts` and `Wishes`, then `HttpCaller`, then `HttpWork`. A response is a `Head`
//! until it is judged, then a `Plan`, then an entry of a `CachedResponse`.
//!
//! # Reading order
//!
//! - `layer`, `config`, `cache_for`: the settings, and what a handler says in a response;
//!   `read_watch` notices where nothing reads that.
//! - `router_service`: the layer in front of an axum router.
//! - `rules/`: pure functions of the RFCs.
//! - `flow/`: the five steps.
//! - `stored/`: what the store holds for a URI.
//! - `body/`: bodies that leave the layer, and bodies that several clients read.
//! - `tests/`: the rules against a slow reading of the RFCs.

pub(crate) mod body;
pub(crate) mod cache_for;
pub(crate) mod config;
pub(crate) mod flow;
pub(crate) mod layer;
mod outcome;
#[cfg(all(feature = "axum", debug_assertions))]
mod read_watch;
mod replay;
#[cfg(feature = "axum")]
pub(crate) mod router_service;
pub(crate) mod rules;
pub(crate) mod stored;
#[cfg(test)]
mod tests;

pub use body::{BodyError, BodyErrorKind, RequestBody, ResponseBody};
pub use cache_for::CacheFor;
pub use flow::error_response::Refusal;
pub use flow::future::HttpFuture;
pub use flow::request_end::RequestEnd;
pub use flow::service::HttpService;
pub use layer::{HttpLayer, HttpStampede};
#[cfg(feature = "axum")]
pub use router_service::{RouterFuture, RouterService};
pub use stored::response::StoredResponse;
