//! The server that instances share, if `--redis` names one.

use std::time::Duration;

pub(crate) use tower_stampede::Redis;
use tower_stampede::{Builder, Health, HttpStampede, StoredResponse};

#[path = "../redis_failure/mod.rs"]
mod redis_failure;

/// Takes a server by its URL. Nothing is sent yet: one that is down is no
/// reason not to start.
pub(crate) fn read(url: &str) -> Result<Redis, String> {
    // The URL may hold a password: neither this nor the error quotes it.
    Redis::lazy(url).map_err(|error| error.to_string())
}

/// Shares what the cache stores, and its locks.
pub(crate) fn attach(
    cache: Builder<StoredResponse>,
    redis: Redis,
    namespace: Option<&str>,
    op_timeout: Option<Duration>,
) -> Builder<StoredResponse> {
    let redis = match op_timeout {
        Some(op_timeout) => redis.op_timeout(op_timeout),
        None => redis,
    };
    cache.redis(in_namespace(redis, namespace))
}

/// Says on stderr what is wrong with the server, if anything is. The instance
/// goes on without it until it can be used.
pub(crate) fn check_in_background(redis: Redis, namespace: Option<&str>) {
    let redis = in_namespace(redis, namespace);
    tokio::spawn(async move {
        if let Err(error) = redis.check().await {
            let why = redis_failure::describe(&error);
            eprintln!("web_server: --redis: Redis cannot be used now: {why}");
        }
    });
}

fn in_namespace(redis: Redis, namespace: Option<&str>) -> Redis {
    redis.namespace(namespace.unwrap_or("stampede"))
}

/// Says whether the server can be reached.
pub(crate) fn state(cache: &HttpStampede, redis: Option<&Redis>) -> &'static str {
    match (redis, cache.health()) {
        (None, _) => "none",
        (Some(_), Health::Up) => "up",
        (Some(_), _) => "down",
    }
}
