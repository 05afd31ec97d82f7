//! The HTTP face.

pub(crate) mod body;
pub(crate) mod cache_for;
pub(crate) mod config;
pub(crate) mod flow;
pub(crate) mod layer;
pub(crate) mod rules;
pub(crate) mod stored;
#[cfg(test)]
mod tests;

pub use body::{BodyError, BodyErrorKind, ResponseBody};
pub use cache_for::CacheFor;
pub use config::SetCookie;
pub use flow::error_response::Refusal;
pub use flow::future::HttpFuture;
pub use flow::service::HttpService;
pub use layer::{HttpLayer, HttpStampede};
pub use stored::response::StoredResponse;
