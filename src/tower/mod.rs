//! The layer for any tower service: a cache in front of requests of any type.
//!
//! # What enters
//!
//! A request. The [`Adapter`](adapter::Adapter) makes its key, or says `None`: then the
//! request goes to the service as it is. A closure from a request to a key is an adapter.
//!
//! # What leaves
//!
//! A response of the service's own type. A response from the cache is *thawed* from the
//! stored value. The leader's own caller gets the service's response itself: it was
//! *frozen* into a value for the others, or the adapter said that it may not be shared.
//!
//! # The states in between
//!
//! ```text
//! call ─┬─ no key ── the service answers; nothing is stored
//!       ├─ fresh ─── thaw; ready at once, without an allocation
//!       └─ else ──── the orchestrator (`flight::door`) with a call of the service as its
//!                    computation, on a task of its own or inline
//! ```
//!
//! The service is always ready, because a hit does not need the inner service. A caller
//! that has to ask drives a clone of the inner service to readiness and calls that clone.
//! Readiness counts into the `compute_timeout`, except for requests without a key: those
//! have no time-out here.
//!
//! # Reading order
//!
//! - `adapter`: how requests and responses become keys and values.
//! - `layer`: `Stampede::layer`, detached or inline.
//! - `service`: the three ways above.
//! - `future`: the future of the service, one state for each way.
//! - `oneshot`: drives a service to readiness, then calls it once. HTTP uses it, too.

pub(crate) mod adapter;
pub(crate) mod future;
pub(crate) mod layer;
pub(crate) mod oneshot;
pub(crate) mod service;
