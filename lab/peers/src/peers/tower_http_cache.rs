use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use tower::Layer;
use tower_http_cache::backend::CacheBackend;
use tower_http_cache::backend::multi_tier::MultiTierBackend;
use tower_http_cache::prelude::*;

use super::{ENTRIES, Kind, Peer, TTL};
use crate::origin::Origin;
use crate::report::Role;
use crate::subject::{Subject, web};

pub(super) fn peer() -> Peer {
    Peer {
        id: "tower_http_cache",
        name: "tower-http-cache",
        role: Role::Other,
        kind: Kind::Http,
        crates: &["tower-http-cache"],
        configuration: "`CacheLayer`, `respect_cache_control`; with Redis: two tiers, each value \
                        kept in memory from its first use",
        has_private_answers: true,
        start: |origin| Box::pin(async move { start(InMemoryBackend::new(ENTRIES), &origin) }),
        start_on_redis: Some(|origin, url| {
            Box::pin(async move { start(both(&url).await, &origin) })
        }),
    }
}

fn start<B: CacheBackend + Clone>(backend: B, origin: &Origin) -> Arc<dyn Subject> {
    let layer = CacheLayer::builder(backend).ttl(TTL).respect_cache_control(true).build();
    web(layer.layer(origin.service::<Full<Bytes>>()))
}

async fn both(url: &str) -> MultiTierBackend<InMemoryBackend, RedisBackend> {
    let client = redis::Client::open(url).expect("the server's address is good");
    let manager = client.get_connection_manager().await.expect("the server answers");
    MultiTierBackend::builder()
        .l1(InMemoryBackend::new(ENTRIES))
        .l2(RedisBackend::new(manager))
        .promotion_threshold(1)
        .write_through(true)
        .build()
}
