//! Ends cache stampedes: of all callers that miss at once, one computes; the
//! others wait for its result or are served the stale value.
//!
//! Each key has at most one running computation, its *flight*. The first
//! caller leads it, the others join it. However the leader ends (done, failed, gone,
//! panicked, silent), it leaves a *verdict*, which tells the waiters how to go on. Stale
//! values bridge the time of a refresh, and of a failure, where you allow it.
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
//! use axum::{Router, body::Body, http::Request, routing::get};
//! use tower::ServiceExt;
//! # #[cfg(feature = "axum")]
//! use tower_stampede::{CacheFor, HttpStampede, Stampede};
//!
//! # #[cfg(feature = "axum")]
//! /// Slow, and the same for every client.
//! async fn report() -> (CacheFor, &'static str) {
//!     tokio::time::sleep(Duration::from_millis(30)).await;
//!     (CacheFor::new(Duration::from_secs(30)).tag("reports"), "expensive")
//! }
//!
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! # #[cfg(feature = "axum")]
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
//!     // After a write: every later request gets a new response.
//!     cache.invalidate_tag("reports").await;
//!     app.oneshot(Request::get("/report").body(Body::empty())?).await?;
//!     assert_eq!(cache.stats().computations, 2);
//!     Ok(())
//! }
//! ```
//!
//! # Concepts
//!
//! - **The handle.** [`Stampede<V>`](Stampede) holds the store, the flights and the settings.
//!   Every clone and every layer made from it shares the same entries and flights.
//!   [`Stampede::in_memory`] takes a `ttl`; [`Stampede::builder`] sets everything.
//! - **Typed caches.** [`Cache<K, V, E>`](Cache) is a handle with a loader: one type of key, and
//!   the application's own error. It loads many keys with one call ([`Cache::get_many`]).
//! - **Keys.** A [`Key`] names an entry: text, numbers, bytes, or tuples of them ([`ToKey`]).
//! - **Fresh, stale, expired.** An entry is *fresh* for its `ttl`, counted from the end of its
//!   computation, so it is at most `ttl` + `compute_timeout` older than what the computation
//!   reads. For `stale_for` longer
//!   it is *stale*: served at once, while one refresh runs. Within `stale_if_error`
//!   it is served in place of a failure. Then it is *expired*. A value may set its own times and tags
//!   ([`Computed`], `CacheFor`).
//! - **Leader and waiters.** The leader computes on a task of its own, so a client that hangs
//!   up wastes nothing. A waiter has its own `wait_timeout`.
//! - **Invalidation.** By key, by tag, of everything, and by path over HTTP. Each reaches
//!   computations that are still running. To keep serving meanwhile, use
//!   [`mark_stale`](Stampede::mark_stale); to read your own write,
//!   [`refresh`](Stampede::refresh).
//! - **Many processes.** With the feature `redis`, `Builder::redis` lets any number of processes
//!   share values and a refresh lock.
//! - **Backpressure.** The layers are always ready, because a hit does not need the service
//!   behind them. Put `ConcurrencyLimit`, `Buffer` or `LoadShed` *inside* the layer.
//! - **Seeing what it does.** [`Stampede::stats`], [`Stampede::events`], the features `metrics`
//!   and `tracing`, and `Cache-Status` in HTTP responses. [`Stampede::set_mode`] switches
//!   the cache off while the application runs.
//!
//! # The guide
//!
//! [`guide`] is the book of this crate. Begin with [`guide::put_it_in_your_app`] and
//! [`guide::glossary`]. [`guide::how_it_works`] has *Guarantees and limits*: what "exactly one
//! computation" covers, and what it does not. [`guide::what_is_cached`] has the tables for HTTP,
//! and each page of [`guide::recipes`] solves one problem. [`guide::operating_redis`] and
//! [`guide::observability`] are for operators.
//!
//! # Features
//!
//! | feature | default | adds | without it |
//! | --- | --- | --- | --- |
//! | `http` | yes | `HttpLayer`, `HttpStampede`, `CacheFor`, `invalidate_path` | the handle and the layer for any tower service remain |
//! | `axum` | yes | keys by axum's `OriginalUri`; `CacheFor` as a part of a response | layers inside `Router::nest` see paths without the prefix: give each a `scope` |
//! | `admin` | no | the module `admin`: a router for operators | [`Stampede`] has all but the list of keys |
//! | `metrics` | no | counters, gauges and histograms through the `metrics` facade | [`Stampede::stats`] still counts |
//! | `tracing` | no | nothing: spans and log lines ([`guide::observability`]) need no feature | the same |
//! | `moka` | no | moka as the store of a cache: `Eviction::Lru`, `TinyLfu` | the crate's own store: `ByPrice`, `S3Fifo` |
//! | `remote` | no | `Remotable`, `remote::PlainStore`, `Builder::remote` | values stay in their process |
//! | `codec-json` | no | `remote::Codec::json` | values leave the process as postcard, or in a form of your own |
//! | `codec-zstd`, `codec-aead` | no | `remote::Codec::compress_above`, `encrypt` | values are neither compressed nor encrypted |
//! | `redis` | no | `Redis`, `RedisLock`, `Builder::redis` | each process computes for itself |
//! | `redis-tls-rustls`, `redis-tls-native` | no | `rediss://`, with rustls or the system's TLS library | such a URL is refused |
//! | `redis-cluster`, `redis-sentinel` | no | `Redis::cluster`, `Redis::sentinel` | one node serves its own slots only; an address that always leads to the primary is needed |
//! | `redis-legacy-lock` | no | `LegacyLock`, by `SETNX` and `GETSET` | a lock needs a server with scripts |
//! | `serde` | no | `Settings`: the settings of a cache from a file, with durations such as `60s` | settings stand in the code |
//! | `test-util` | no | [`ManualClock`](guide::testing), `remote::Double` | tests pause tokio's time, which needs no feature |
//! | `full` | no | all of these but `redis-tls-native` | |
//!
//! Features only add. CI checks each alone, none, and all together.
//!
//! Rust 1.88 or newer; a release that needs a newer one raises the minor version. The folder
//! `examples` has programs, the first of them `quick_start.rs`. A response that reaches the wrong
//! user is a vulnerability, see `SECURITY.md`.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::unwrap_used)]

#[cfg(feature = "__fuzz")]
#[doc(hidden)]
#[path = "fuzz.rs"]
pub mod __fuzz;
// First: the macro that it defines is known to the modules below it.
#[macro_use]
mod words;

#[cfg(feature = "admin")]
pub mod admin;
#[cfg_attr(not(feature = "http"), allow(dead_code, reason = "only HTTP's bodies arrive"))]
mod budget;
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
mod lease;
mod mode;
mod observe;
mod outcome;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg_attr(
    not(feature = "serde"),
    allow(unreachable_pub, reason = "without files of settings they are the crate's own")
)]
mod settings;
mod store;
#[cfg_attr(not(feature = "http"), allow(dead_code, reason = "HTTP's bodies ask more of a stream"))]
mod stream;
mod sync;
mod tower;
mod weigh;

pub use cache::blocking::Blocking;
pub use cache::call_options::Stored;
pub use cache::entry_selector::EntrySelector;
pub use cache::failure::Failure;
pub use cache::handle::{Announcement, Health, Invalidation, Stampede};
pub use cache::typed::Cache;
pub use cache::{
    builder::Builder,
    get::Served,
    get_many::Batch,
    inspect::{EntryInfo, Top},
    keep_fresh::KeepFresh,
    manifest::Manifest,
};
#[cfg(feature = "test-util")]
pub use clock::ManualClock;
pub use computed::Computed;
pub use error::{Absent, BoxError, ConfigError, Error, ErrorKind, FailureAction};
pub use garbage::EvictionCause;
#[cfg(feature = "http")]
pub use http::{
    BodyError, BodyErrorKind, CacheFor, HttpFuture, HttpLayer, HttpService, HttpStampede, Refusal,
    RequestBody, RequestEnd, ResponseBody, StoredResponse,
};
#[cfg(feature = "axum")]
pub use http::{RouterFuture, RouterService};
pub use key::{ByBytes, ByDisplay, Key, KeyBuf, Tag, ToKey};
pub use mode::Mode;
pub use observe::{Event, Savings, Stats};
pub use outcome::CacheOutcome;
#[cfg(feature = "remote")]
pub use remote::Remotable;
#[cfg(feature = "redis")]
pub use remote::{CredentialsProvider, Redis, RedisCredentials, RedisLock, RedisLockGuard};
#[cfg(feature = "redis-legacy-lock")]
pub use remote::{LegacyLock, LegacyLockGuard};
pub use settings::Eviction;
#[cfg(feature = "http")]
pub use settings::layer::{SetCookie, StreamReplay, StreamRule};
#[cfg(feature = "serde")]
pub use settings::{Settings, file::SettingsError};
pub use stream::{Chunks, Producer, Recording, StreamError, StreamErrorKind};
pub use tower::{
    adapter::Adapter, future::ResponseFuture, layer::StampedeLayer, service::StampedeService,
};
pub use weigh::Weigh;

// The README's code runs as a test; it shows the HTTP layer, and Redis.
#[cfg(all(doctest, feature = "axum", feature = "redis"))]
#[doc = include_str!("../README.md")]
mod readme {}
