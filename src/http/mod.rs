//! The HTTP face.

mod answer;
mod body;
mod cache_for;
mod client;
mod conditions;
mod config;
mod confirm;
mod credentials;
mod date;
#[cfg(test)]
mod differential;
mod directives;
mod disconnected;
mod field_names;
mod fill;
mod freshness;
mod future;
mod headers;
mod host;
mod key;
mod layer;
mod lead;
mod lookup;
mod members;
mod miss;
mod nested;
mod normal_form;
mod question;
mod range;
#[cfg(test)]
mod reference;
mod refresh;
mod refusal;
mod refused;
mod remote;
mod request;
mod request_directives;
mod service;
mod shape;
mod storable;
mod stored;
mod target;
mod targeted;
mod unsafe_method;
mod validate;
mod vary;
#[cfg(feature = "remote")]
pub(crate) mod wire;

pub use body::{BodyError, BodyErrorKind, ResponseBody};
pub use cache_for::CacheFor;
pub use config::SetCookie;
pub use future::HttpFuture;
pub use layer::{HttpLayer, HttpStampede};
pub use refused::Refused;
pub use service::HttpService;
pub use stored::StoredResponse;
