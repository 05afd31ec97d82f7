use bytes::Bytes;
use http_body_util::Full;
use http_cache::MokaManager;
use http_cache_tower::HttpCacheLayer;
use moka::future::Cache;
use tower::Layer;

use super::{ENTRIES, Kind, Peer};
use crate::report::Role;
use crate::subject::web;

pub(super) fn peer() -> Peer {
    Peer {
        id: "http_cache_tower",
        name: "http-cache-tower",
        role: Role::Other,
        kind: Kind::Http,
        crates: &["http-cache-tower", "http-cache"],
        configuration: "`HttpCacheLayer` with `MokaManager`; made for clients",
        has_private_answers: true,
        start: |origin| {
            let layer = HttpCacheLayer::new(MokaManager::new(Cache::new(ENTRIES)));
            Box::pin(async move { web(layer.layer(origin.service::<Full<Bytes>>())) })
        },
        start_on_redis: None,
    }
}
