use bytes::Bytes;
use http_body_util::Full;
use http_cache::MokaManager;
use http_cache_tower_server::ServerCacheLayer;
use moka::future::Cache;
use tower::Layer;

use super::{ENTRIES, Kind, Peer};
use crate::report::Role;
use crate::subject::web;

pub(super) fn peer() -> Peer {
    Peer {
        id: "http_cache_tower_server",
        name: "http-cache-tower-server",
        role: Role::Other,
        kind: Kind::Http,
        crates: &["http-cache-tower-server", "http-cache"],
        configuration: "`ServerCacheLayer` with `MokaManager`",
        has_private_answers: true,
        start: |origin| {
            let layer = ServerCacheLayer::new(MokaManager::new(Cache::new(ENTRIES)));
            Box::pin(async move { web(layer.layer(origin.service::<Full<Bytes>>())) })
        },
        start_on_redis: None,
    }
}
