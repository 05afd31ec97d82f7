use std::sync::Arc;

use bytes::Bytes;
use hitbox::concurrency::BroadcastConcurrencyManager;
use hitbox::policy::{ConcurrencyLimit, PolicyConfig};
use hitbox::predicate::PredicateExt;
use hitbox::{Config, Neutral};
use hitbox_backend::CacheBackend;
use hitbox_backend::format::BincodeFormat;
use hitbox_http::CacheableHttpResponse;
use hitbox_http::extractors::Method;
use hitbox_http::extractors::path::PathExtractor;
use hitbox_http::predicates::NeutralRequestPredicate;
use hitbox_http::predicates::header::{Header, Operation};
use hitbox_http::predicates::response::{StatusClass, StatusCode};
use hitbox_moka::MokaBackend;
use hitbox_redis::{ConnectionMode, RedisBackend};
use hitbox_tower::Cache;
use http::header::CACHE_CONTROL;
use http_body_util::Full;
use tower::Layer;

use super::{ENTRIES, Kind, Peer, TTL};
use crate::origin::{Failure, Origin};
use crate::report::Role;
use crate::subject::{Subject, web};

type Answer = CacheableHttpResponse<Full<Bytes>>;

pub(super) fn peer() -> Peer {
    Peer {
        id: "hitbox",
        name: "hitbox, protection on",
        role: Role::Other,
        kind: Kind::Http,
        crates: &["hitbox", "hitbox-tower", "hitbox-moka", "hitbox-redis"],
        configuration: "`BroadcastConcurrencyManager`, one call at a time for each key; values in \
                        bincode; predicates: 2xx, no `no-store`; with Redis: that alone",
        has_private_answers: true,
        start: |origin| Box::pin(async move { start(memory(), &origin) }),
        start_on_redis: Some(|origin, url| {
            let mode = ConnectionMode::single(url);
            let redis = RedisBackend::builder().connection(mode).build();
            let redis = redis.expect("the server's address is good");
            Box::pin(async move { start(redis, &origin) })
        }),
    }
}

fn memory() -> MokaBackend<BincodeFormat> {
    MokaBackend::builder().max_entries(ENTRIES).value_format(BincodeFormat).build()
}

fn start<B>(backend: B, origin: &Origin) -> Arc<dyn Subject>
where
    B: CacheBackend + Clone + Send + Sync + 'static,
{
    let one = ConcurrencyLimit::new(1).expect("one is in its range");
    let is_private = Header::new(Operation::Contains(CACHE_CONTROL, "no-store".to_owned()));
    let is_good = StatusCode::new_class(Neutral::<Answer>::new(), StatusClass::Success);
    let config = Config::builder()
        .request_predicate(NeutralRequestPredicate::<Full<Bytes>>::new())
        .response_predicate(is_good.and(is_private.not()))
        .extractor(Method::new().path("/report/{id}"))
        .policy(PolicyConfig::builder().ttl(TTL).concurrency(one).build())
        .build();
    let layer = Cache::builder()
        .backend(backend)
        .config(config)
        .concurrency_manager(BroadcastConcurrencyManager::<Result<Answer, Failure>>::new())
        .build();
    web(layer.layer(origin.service()))
}
