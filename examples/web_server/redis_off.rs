//! What stands for Redis where the crate is built without it.

use std::convert::Infallible;
use std::time::Duration;

use tower_stampede::{Builder, HttpStampede, StoredResponse};

/// No server: this build has no Redis.
pub(crate) type Redis = Infallible;

pub(crate) fn read(_: &str) -> Result<Redis, String> {
    Err("needs a build with `--features redis`".into())
}

pub(crate) fn attach(
    _: Builder<StoredResponse>,
    redis: Redis,
    _: Option<&str>,
    _: Option<Duration>,
) -> Builder<StoredResponse> {
    match redis {}
}

pub(crate) fn check_in_background(redis: Redis, _: Option<&str>) {
    match redis {}
}

pub(crate) fn state(_: &HttpStampede, _: Option<&Redis>) -> &'static str {
    "none"
}
