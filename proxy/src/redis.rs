//! The server that instances share, if `--redis` names one.

pub(crate) use tower_stampede::Redis;
use tower_stampede::{Builder, StoredResponse};

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
) -> Builder<StoredResponse> {
    cache.redis(in_namespace(redis, namespace))
}

/// Says on stderr what is wrong with the server, if anything is. The instance
/// goes on without it until it can be used.
pub(crate) fn check_in_background(redis: Redis, namespace: Option<&str>) {
    let redis = in_namespace(redis, namespace);
    tokio::spawn(async move {
        if let Err(error) = redis.check().await {
            eprintln!("stampede-proxy: Redis cannot be used now: {error}");
        }
    });
}

fn in_namespace(redis: Redis, namespace: Option<&str>) -> Redis {
    match namespace {
        Some(namespace) => redis.namespace(namespace),
        None => redis,
    }
}
