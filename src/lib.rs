//! stub

#[cfg(feature = "http")]
mod http;
mod key;

pub use key::{Key, KeyBuf, Tag, ToKey};
