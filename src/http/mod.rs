//! The HTTP face.

mod config;
mod credentials;
mod directives;
mod host;
mod key;
mod members;
mod request;
mod target;
mod vary;

pub use config::SetCookie;
