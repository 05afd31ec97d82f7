//! The HTTP face.

mod body;
mod cache_for;
mod config;
mod credentials;
mod date;
mod directives;
mod freshness;
mod headers;
mod host;
mod key;
mod members;
mod refusal;
mod request;
mod storable;
mod stored;
mod target;
mod vary;

pub use body::ResponseBody;
pub use cache_for::CacheFor;
pub use config::SetCookie;
pub use stored::StoredResponse;
