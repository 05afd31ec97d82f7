use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use tower::Layer;
use tower_stampede::{Builder, HttpStampede, Redis, Stampede, StoredResponse};

use super::{ENTRIES, Kind, Peer, TTL};
use crate::origin::Origin;
use crate::report::Role;
use crate::subject::{Subject, web};

pub(super) fn peer() -> Peer {
    Peer {
        id: "ours_http",
        name: "tower-stampede, HTTP",
        role: Role::Ours,
        kind: Kind::Http,
        crates: &["tower-stampede"],
        configuration: "`http_layer`, with `Age`, `Cache-Status` and the extension; as built",
        has_private_answers: true,
        start: |origin| Box::pin(async move { start(settings(), &origin) }),
        start_on_redis: Some(|origin, url| {
            let redis =
                Redis::lazy(&url).expect("the server's address is good").namespace("stampede");
            Box::pin(async move { start(settings().redis(redis), &origin) })
        }),
    }
}

fn settings() -> Builder<StoredResponse> {
    Stampede::builder("peers").ttl(TTL).max_bytes(1 << 30).max_entries(ENTRIES)
}

fn start(settings: Builder<StoredResponse>, origin: &Origin) -> Arc<dyn Subject> {
    let cache: HttpStampede = settings.build().expect("the settings are good");
    let service = cache.http_layer().layer(origin.service::<Full<Bytes>>());
    web(service)
}
