//! The HTTP face.

mod config;
mod credentials;
mod directives;
mod members;
mod request;

pub use config::SetCookie;
