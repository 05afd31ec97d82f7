use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tower::ServiceBuilder;
use tower_resilience_cache::CacheLayer;
use tower_resilience_coalesce::CoalesceLayer;

use super::{ENTRIES, Kind, Peer, TTL};
use crate::report::Role;
use crate::subject::web;

pub(super) fn peer() -> Peer {
    Peer {
        id: "tower_resilience",
        name: "tower-resilience, cache and coalesce",
        role: Role::Other,
        kind: Kind::Http,
        crates: &["tower-resilience-cache", "tower-resilience-coalesce"],
        configuration: "`CacheLayer`, within it `CoalesceLayer`, both by path; neither knows of \
                        HTTP",
        // It stores all answers; the scenario shows which callers get another's.
        has_private_answers: true,
        start: |origin| {
            let cache = CacheLayer::builder()
                .max_size(ENTRIES as usize)
                .ttl(TTL)
                .key_extractor(path)
                .build()
                .expect("the settings are good");
            let layers = ServiceBuilder::new().layer(cache).layer(CoalesceLayer::new(path));
            Box::pin(async move { web(layers.service(origin.service())) })
        },
        start_on_redis: None,
    }
}

fn path(request: &Request<Full<Bytes>>) -> String {
    request.uri().path().to_owned()
}
