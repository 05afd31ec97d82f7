use std::convert::Infallible;

use axum::body::Body;
use axum::response::IntoResponse;
use axum_response_cache::CacheLayer;
use http::{Request, StatusCode};
use tower::{Layer, service_fn};

use super::{Kind, Peer, TTL};
use crate::origin::Origin;
use crate::report::Role;
use crate::subject::web;

pub(super) fn peer() -> Peer {
    Peer {
        id: "axum_response_cache",
        name: "axum-response-cache",
        role: Role::Other,
        kind: Kind::Http,
        crates: &["axum-response-cache"],
        configuration: "`CacheLayer::with_lifespan`; it reads no `Cache-Control`, and knows \
                        failures as responses with 500 only",
        has_private_answers: true,
        start: |origin| {
            let inner = service_fn(move |_: Request<Body>| {
                let origin = origin.clone();
                async move { Ok::<_, Infallible>(respond(&origin).await) }
            });
            let service = CacheLayer::with_lifespan(TTL).use_stale_on_failure().layer(inner);
            Box::pin(async move { web(service) })
        },
        start_on_redis: None,
    }
}

async fn respond(origin: &Origin) -> axum::response::Response {
    match origin.respond().await {
        Ok(response) => response.map(Body::new),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
