//! The server that instances share, if `--redis` names one.

use std::error::Error;
use std::iter;

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
            eprintln!("stampede-proxy: Redis cannot be used now: {}", with_causes(&error));
        }
    });
}

/// Returns what an error says, and what its causes say: which of them helps is not known.
fn with_causes(error: &dyn Error) -> String {
    let all = iter::successors(Some(error), |&error| Error::source(error));
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn in_namespace(redis: Redis, namespace: Option<&str>) -> Redis {
    redis.namespace(namespace.unwrap_or("stampede"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_cannot_be_reached_is_reported_with_the_cause() {
        // The port was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let redis = read(&format!("redis://127.0.0.1:{port}")).unwrap();
        let error = in_namespace(redis, None).check().await.unwrap_err();
        let said = with_causes(&error);
        assert!(said.contains("refused"), "{said}");
    }
}
