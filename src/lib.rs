//! stub
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::unwrap_used)]

mod adapter;
mod builder;
mod computed;
mod drive;
#[cfg_attr(
    not(feature = "http"),
    expect(dead_code, reason = "verdicts and marks that only HTTP has a use for")
)]
mod engine;
mod entry;
mod error;
mod future;
pub mod guide;
mod handle;
#[cfg(feature = "http")]
mod http;
mod inner;
mod key;
mod layer;
mod local;
mod observe;
mod oneshot;
mod outcome;
mod policy;
mod serve;
mod service;

pub use adapter::Adapter;
pub use builder::{Builder, FailureAction};
pub use computed::Computed;
pub use engine::Mode;
#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub use engine::time::ManualClock;
pub use error::{BoxError, ConfigError, Error, ErrorKind};
pub use future::ResponseFuture;
pub use handle::{Health, Invalidation, Stampede};
#[cfg(feature = "http")]
#[cfg_attr(docsrs, doc(cfg(feature = "http")))]
pub use http::{
    CacheFor, HttpFuture, HttpLayer, HttpService, HttpStampede, Refused, ResponseBody, SetCookie,
    StoredResponse,
};
pub use key::{Key, KeyBuf, Tag, ToKey};
pub use layer::StampedeLayer;
pub use local::Eviction;
pub use observe::{Event, Stats};
pub use outcome::CacheOutcome;
pub use service::StampedeService;
