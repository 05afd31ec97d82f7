//! Ends cache stampedes: of all callers that miss at once, one computes; the
//! others wait for its result or are served the stale value.
//!
//! When an entry of an ordinary cache expires, every caller misses at once and
//! every caller computes. The service slows down, the next crowd is larger, and
//! the cache has failed just when it was needed.
//!
//! Here each key has at most one running computation, its *flight*. The first
//! caller leads it, the others join it, and whatever becomes of the leader
//! (done, failed, gone, panicked, silent), it leaves a *verdict* by which those
//! who wait know how to go on. Stale values bridge the time of a refresh, and of
//! a failure, where you allow it.
//!
//! The crate fits in front of an axum or hyper service
//! ([`http_layer`](Stampede#method.http_layer)), any tower service
//! ([`layer`](Stampede::layer)), or a plain function
//! ([`get_or_compute`](Stampede::get_or_compute)). Over HTTP it is a shared cache
//! by the rules of RFC 9111.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//!
//! use axum::{Extension, Router, body::Body, http::Request, routing::get};
//! use tower::ServiceExt;
//! # #[cfg(feature = "http")]
//! use tower_stampede::{CacheFor, HttpStampede, Stampede};
//!
//! # #[cfg(feature = "http")]
//! /// Slow, and the same for every client.
//! async fn report() -> (Extension<CacheFor>, &'static str) {
//!     tokio::time::sleep(Duration::from_millis(30)).await;
//!     let cache_for = CacheFor::new(Duration::from_secs(30)).tag("reports");
//!     (Extension(cache_for), "expensive")
//! }
//!
//! # #[cfg(not(feature = "http"))]
//! # fn main() {}
//! # #[cfg(feature = "http")]
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // Stores what a handler marks, or the response's own fields allow.
//!     let cache: HttpStampede = Stampede::builder("site").origin_only().build()?;
//!     let app: Router = Router::new().route("/report", get(report)).layer(cache.http_layer());
//!
//!     // A herd of 100 at the same URL: one of them computes.
//!     let herd: Vec<_> = (0..100)
//!         .map(|_| Request::get("/report").body(Body::empty()).unwrap())
//!         .map(|request| tokio::spawn(app.clone().oneshot(request)))
//!         .collect();
//!     for request in herd {
//!         assert_eq!(request.await??.status(), 200);
//!     }
//!     assert_eq!(cache.stats().computations, 1);
//!
//!     // After a write: whoever asks from now on gets a new answer.
//!     cache.invalidate_tag("reports").await;
//!     app.oneshot(Request::get("/report").body(Body::empty())?).await?;
//!     assert_eq!(cache.stats().computations, 2);
//!     Ok(())
//! }
//! ```
//!
//! # Concepts
//!
//! ## The handle
//!
//! [`Stampede<V>`](Stampede) holds the store, the flights and the settings. It is
//! cheap to clone, and every clone and every layer made from it shares the same
//! entries and flights. [`Stampede::in_memory`] takes a `ttl` and leaves the rest
//! at its defaults; [`Stampede::builder`] sets everything, and
//! [`Builder::build`] refuses what contradicts itself.
//!
//! ## Keys
//!
//! An entry is named by a [`Key`]: text, numbers, bytes, or tuples of them (see
//! [`ToKey`]). For HTTP the layer makes it of scheme, host, path and query, of
//! the fields that can change where a request leads (`HttpLayer::KEYED_HEADERS`),
//! and of the request fields that `Vary` names.
//!
//! ## Fresh, stale, expired
//!
//! An entry is *fresh* for its `ttl`, counted from the end of its computation: it is
//! at most `ttl` + `compute_timeout` old.
//! For `stale_for` longer it is *stale*: served at once, while one refresh runs in
//! the background. Within `stale_if_error` it stands in for a failure. After that
//! it is *expired*. A value may set its own times and tags ([`Computed`]), and so
//! may a handler (`CacheFor`). [`guide::time_outs`] helps to choose them.
//!
//! ## Leader, waiters, verdict
//!
//! The leader computes on a task of its own, so a client that hangs up wastes
//! nothing. A waiter has a time-out of its own (`wait_timeout`) and there are
//! bounds on waiters and on computations. [`guide::how_it_works`] lists the
//! verdicts and what a waiter does with each.
//!
//! ## Invalidation
//!
//! [`invalidate`](Stampede::invalidate) by key,
//! [`invalidate_tag`](Stampede::invalidate_tag) by tag,
//! [`invalidate_all`](Stampede::invalidate_all), and `invalidate_path` over HTTP.
//! Each reaches computations that are still running. To keep serving while a new
//! value is computed, use [`mark_stale`](Stampede::mark_stale).
//!
//! With a remote they reach every process; in the others an invalidation holds once
//! its message has arrived. [`mark_stale`](Stampede::mark_stale) concerns this
//! process alone.
//!
//! ## Over HTTP
//!
//! The layer is a shared cache by RFC 9111: it stores what a response's own fields,
//! a handler's `CacheFor` or a `ttl` allow, asks about what has a validator instead
//! of fetching it, answers conditions and ranges, and lets all who wait read a body
//! while it arrives. [`guide::what_is_cached`] has the tables: what is stored, who
//! is answered with it, what is served stale, and how to be stricter or laxer.
//!
//! ## Many processes
//!
//! With the feature `redis`, `Builder::redis` gives a cache a *remote*: any number of
//! processes then share values and a *refresh lock*. The leader of each process asks
//! the remote for the value, then for the *lease* of the key; one of them gets it
//! and computes, the others wait for its *wake-up* or take over when the lease ends.
//! Local copies stay in front: what a process holds, it does not ask for.
//!
//! ```
//! # #[cfg(feature = "redis")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use tower_stampede::{Redis, Stampede};
//!
//! let cache: Stampede<String> = Stampede::builder("catalog")
//!     .ttl(Duration::from_secs(60))
//!     .stale_for(Duration::from_secs(600))
//!     .redis(Redis::lazy("redis://127.0.0.1")?.namespace("shop"))
//!     .build()?;
//! # Ok(()) }
//! # #[cfg(not(feature = "redis"))]
//! # fn main() {}
//! ```
//!
//! Values travel by [serde](https://serde.rs), or as their type's `Remotable` says.
//! [`guide::the_lock`] explains the lock, [`guide::operating_redis`] what to set up
//! and what to watch. For tests there is a remote in memory (feature `test-util`).
//!
//! ## Backpressure
//!
//! The layers are always ready, because a hit does not need the service behind
//! them. A leader waits for the readiness of a clone of it. Put
//! `ConcurrencyLimit`, `Buffer` or `LoadShed` *inside* the layer; shed load outside
//! of it by `max_waiters` and `max_computations`.
//!
//! ## Seeing what it does
//!
//! [`Stampede::stats`] counts, [`Stampede::events`] tells each thing that happens,
//! and the features `metrics` and `tracing` pass both on. Every HTTP response
//! carries a [`CacheOutcome`] among its extensions and a `Cache-Status` field,
//! unless the layer is told to leave them out.
//! [`Stampede::set_mode`] switches the cache off, or lets it only observe, while
//! the application runs.
//!
//! # Guarantees and limits
//!
//! *Exactly one* means: in one process, for one handle and its clones, at most one
//! computation of a key runs at a time, and each caller that needs its result gets
//! it. With a remote that answers, the same holds among all processes with its
//! namespace and the cache's name. What is not covered:
//!
//! - **Other processes without a remote.** Each computes for itself.
//! - **A remote in trouble.** While it is away each process computes for itself: at most
//!   one computation per process and key. A lease that is lost (its process was
//!   killed or stood still, the lock was evicted, the server failed over) costs one
//!   more. A late result never replaces a newer one. No request fails because of the
//!   remote; each is held up by at most one call that fails, for `op_timeout`, and by
//!   none once the breaker is open.
//! - **Values that may not be shared.** Each caller computes its own, in parallel.
//! - **A leader that is lost.** If it panics, one waiter computes once more. An
//!   inline one ([`get_or_compute_scoped`](Stampede::get_or_compute_scoped),
//!   [`StampedeLayer::inline`]) that is dropped costs one more computation too; one
//!   that is no longer polled is given up, and may still be at work if it is polled
//!   again. Its result is not stored then.
//! - **An invalidation.** Who asks after it starts a new computation beside the one
//!   that runs; the result of the old one goes to those who waited, and is not stored.
//! - **What you ask for by name.** `compute_after_wait`,
//!   [`FailureAction::EachItself`], [`Mode::Off`] and [`Mode::Observe`] let callers
//!   compute for themselves.
//! - **Eviction.** An entry that made room for another is computed again when it is
//!   asked for. `max_bytes` is 64 MiB unless set.
//!
//! Other guarantees, within one process:
//!
//! - Who asks after an invalidation has returned never gets the old value. In other
//!   processes this holds once the remote's message has arrived. While the remote is
//!   away it is told later, by a journal that dies with its process.
//! - No waiter hangs: it has a verdict, or its `wait_timeout`, whatever became of the
//!   leader.
//! - A failure never replaces a stored value.
//! - A hit spawns no task and does not ask the service behind.
//!
//! A computation that asks for its own key waits for itself, until a time-out.
//!
//! # Features
//!
//! | feature | default | adds | without it |
//! | --- | --- | --- | --- |
//! | `http` | yes | `HttpLayer`, `HttpStampede`, `CacheFor`, `invalidate_path` | the handle and the layer for any tower service remain |
//! | `axum` | yes | keys by axum's `OriginalUri` | layers inside `Router::nest` see paths without the prefix: give each a `scope` |
//! | `metrics` | no | counters, gauges and histograms through the `metrics` facade | [`Stampede::stats`] still counts |
//! | `tracing` | no | a span per computation and a line per change of state, at DEBUG, and at WARN when the remote goes and comes back, and once where a setting keeps requests from being shared; target `tower_stampede` | computations do not run in their caller's span |
//! | `remote` | no | `Remotable`, the trait `remote::Remote`, `Builder::remote` | values stay in their process |
//! | `redis` | no | `Redis`, `RedisLock`, `Builder::redis` | each process computes for itself |
//! | `redis-tls-rustls` | no | `rediss://` with rustls | such a URL is refused |
//! | `redis-tls-native` | no | `rediss://` with the system's TLS library | the same |
//! | `redis-cluster` | no | `Redis::cluster` | a single node of a cluster serves its own slots only |
//! | `redis-sentinel` | no | `Redis::sentinel` | an address that always leads to the primary is needed |
//! | `redis-legacy-lock` | no | `LegacyLock`, by `SETNX` and `GETSET` | a lock needs a server with scripts |
//! | `test-util` | no | [`ManualClock`](guide::testing), `remote::Double` | tests pause tokio's time, which needs no feature |
//! | `full` | no | all of these but `redis-tls-native` | |
//!
//! Features only add; each alone, none, and all together are checked.
//!
//! # Rust versions
//!
//! Rust 1.88 or newer. A release that needs a newer one raises the minor version and
//! says so in the changelog.
//!
//! # More
//!
//! The [guide] has longer texts, the folder `examples` has programs, the first
//! of them `quick_start.rs`. Questions and bugs go to the repository's issues; a
//! response that reaches the wrong user is a vulnerability, see `SECURITY.md`.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::unwrap_used)]

#[cfg(feature = "__fuzz")]
#[doc(hidden)]
#[path = "fuzz.rs"]
pub mod __fuzz;
mod cache;
mod clock;
mod computed;
mod entry;
mod error;
#[cfg_attr(
    not(feature = "http"),
    expect(dead_code, reason = "verdicts and marks that only HTTP has a use for")
)]
mod flight;
mod freshness;
mod garbage;
pub mod guide;
#[cfg(feature = "http")]
mod http;
mod invalidation;
mod key;
#[cfg_attr(not(feature = "http"), expect(dead_code, reason = "judgements that only HTTP makes"))]
mod lease;
mod mode;
mod observe;
mod outcome;
#[cfg(feature = "remote")]
#[cfg_attr(docsrs, doc(cfg(feature = "remote")))]
pub mod remote;
mod store;
mod sync;
mod tower;

pub use cache::builder::{Builder, FailureAction};
pub use cache::handle::{Announcement, Health, Invalidation, Stampede};
#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub use clock::ManualClock;
pub use computed::Computed;
pub use error::{BoxError, ConfigError, Error, ErrorKind};
#[cfg(feature = "http")]
#[cfg_attr(docsrs, doc(cfg(feature = "http")))]
pub use http::{
    BodyError, BodyErrorKind, CacheFor, HttpFuture, HttpLayer, HttpService, HttpStampede, Refusal,
    ResponseBody, SetCookie, StoredResponse,
};
pub use key::{Key, KeyBuf, Tag, ToKey};
pub use mode::Mode;
pub use observe::{Event, Stats};
pub use outcome::CacheOutcome;
#[cfg(feature = "remote")]
#[cfg_attr(docsrs, doc(cfg(feature = "remote")))]
pub use remote::Remotable;
#[cfg(feature = "redis-legacy-lock")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis-legacy-lock")))]
pub use remote::{LegacyLock, LegacyLockGuard};
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use remote::{Redis, RedisLock, RedisLockGuard};
pub use store::Eviction;
pub use tower::adapter::Adapter;
pub use tower::future::ResponseFuture;
pub use tower::layer::StampedeLayer;
pub use tower::service::StampedeService;

// The README's code runs as a test; it shows the HTTP layer, and Redis.
#[cfg(all(doctest, feature = "axum", feature = "redis"))]
#[doc = include_str!("../README.md")]
mod readme {}
