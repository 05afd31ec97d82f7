//! One request on its way: look-up, flight, origin call, answer.
//!
//! [`http`](crate::http) maps the five steps. This page maps the files.
//!
//! # What enters
//!
//! A request and the service behind the layer, in `service`.
//!
//! # What leaves
//!
//! A future. It is ready at once for a hit; else it is a boxed future that resolves to a
//! response, or to the service's own error. The error reaches only the client whose own
//! request was forwarded. Waiters get a response in place of it (`error_response`).
//!
//! # The states in between
//!
//! ```text
//! service ─┬─ inside another layer of the handle ─ nested ─ forward as it is
//!          ├─ keyed by its body ─ content ─ read, then from here again
//!          ├─ bypass ───────────────────────────── forward
//!          ├─ unsafe ──────────────── unsafe_method ─ forward, then invalidate
//!          └─ cacheable ─ lookup ─┬─ fresh ─ answer
//!                                 └─ miss ─┬─ stale ─ answer; refresh
//!                                          └─ work ─ flight::door ─┬─ an entry ─ answer
//!                                                                ├─ lead ─ client ─ answer
//!                                                                ├─ alone ─ forward
//!                                                                └─ refused ─ fallback
//! ```
//!
//! # Reading order
//!
//! The way in:
//! - `service`: classifies a request, makes its key, looks up, and writes a hit.
//! - `future`: ready for a hit, pending for everything else.
//! - `nested`: a layer of the same handle further out handles the request already.
//! - `content`: a request that is keyed by its body is read first.
//! - `forwarded`: the bound on requests that are forwarded outside of flights.
//! - `normal_form`: the one form of a request that is keyed and forwarded.
//! - `lookup`: where the answer may stand, which flight the request belongs to, what may
//!   answer it ([`HttpCaller`](lookup::HttpCaller)).
//! - `wishes`: whether a stored response is what the request wants.
//! - `miss`: the request waits, leads, or goes alone.
//! - `context`: what it takes along from the caller's task to that of the leader.
//! - `part`: the request asks for a part, and leads to the whole, or waits for it.
//! - `work`: what it brings to the orchestrator; `unkeyed`: what it has besides its key.
//! - `sharing`: what is known of whether its response will be shared.
//!
//! The origin:
//! - `origin_call`: a request for a response, or for the confirmation of a stored one.
//! - `lead`: from the call to the verdict; `lead/keep` stores and shares, `lead/pump` carries
//!   the body.
//! - `revalidate`: a stored response that the service has confirmed.
//! - `refresh`: a request on behalf of all clients, while they are served the stale response.
//! - `trail`: the way of a leader to where its response stands in the remote.
//! - `remote`: how responses get there, and from there into this process.
//! - `unsafe_method`: requests that change something; `request_end`: whether one was sent to its
//!   end.
//!
//! The way out:
//! - `client`: what the client gets whose own request was forwarded for all.
//! - `fallback`: what is served when the service cannot be reached.
//! - `answer`: responses as clients get them, with `Age` and `Cache-Status`.
//! - `error_response`: our own responses in place of an answer.

use http::{Request, Response};
use tower_service::Service;

pub(crate) mod answer;
pub(crate) mod client;
pub(crate) mod content;
pub(crate) mod context;
pub(crate) mod error_response;
pub(crate) mod fallback;
pub(crate) mod fill;
mod forward;
pub(crate) mod forwarded;
pub(crate) mod future;
pub(crate) mod lead;
pub(crate) mod lookup;
pub(crate) mod miss;
pub(crate) mod nested;
pub(crate) mod normal_form;
pub(crate) mod origin_call;
pub(crate) mod part;
pub(crate) mod refresh;
pub(crate) mod remote;
pub(crate) mod request_end;
pub(crate) mod revalidate;
pub(crate) mod service;
pub(crate) mod sharing;
pub(crate) mod trail;
pub(crate) mod unkeyed;
pub(crate) mod unsafe_method;
mod way;
pub(crate) mod wishes;
mod work;

/// What the layer asks of the service behind it: a computation goes on on a task of its own.
trait OriginService<Q, B>:
    Service<Request<Q>, Response = Response<B>, Future: Send, Error: Send> + Clone + Send + 'static
{
}

impl<S, Q, B> OriginService<Q, B> for S where
    S: Service<Request<Q>, Response = Response<B>, Future: Send, Error: Send>
        + Clone
        + Send
        + 'static
{
}
