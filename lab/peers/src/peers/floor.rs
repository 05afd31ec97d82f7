//! What a hit cannot cost less than.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::Either;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use moka::sync::Cache as Map;
use tower::service_fn;

use super::{ENTRIES, Kind, Peer};
use crate::origin::{Failure, Origin, fields};
use crate::report::Role;
use crate::subject::{Cache, function, web};

pub(super) fn get() -> Peer {
    Peer {
        id: "moka_get",
        name: "moka's get alone",
        role: Role::Without,
        kind: Kind::Function,
        crates: &["moka"],
        configuration: "`moka::sync::Cache::get`",
        has_private_answers: false,
        start: |origin| Box::pin(async move { function(Get(Map::new(ENTRIES)), &origin) }),
        start_on_redis: None,
    }
}

#[derive(Clone)]
struct Get(Map<u64, Bytes>);

impl Cache for Get {
    type Error = Failure;

    async fn get(&self, key: u64, origin: &'static Origin) -> Result<Bytes, Failure> {
        if let Some(found) = self.0.get(&key) {
            return Ok(found);
        }
        let value = origin.compute().await?;
        self.0.insert(key, value.clone());
        Ok(value)
    }
}

type Found = Arc<(HeaderMap, Bytes)>;

pub(super) fn response() -> Peer {
    Peer {
        id: "moka_response",
        name: "moka's get and a response",
        role: Role::Without,
        kind: Kind::Http,
        crates: &["moka"],
        configuration: "`moka::sync::Cache::get`, an `http::Response` made and drained",
        has_private_answers: false,
        start: |origin| {
            let map: Map<String, Found> = Map::new(ENTRIES);
            Box::pin(async move {
                web(service_fn(move |request: Request<Full<Bytes>>| {
                    // Cloned for a miss only: a hit shall cost the least it can.
                    let found = match map.get(request.uri().path()) {
                        Some(found) => Either::Left(ready(found)),
                        None => Either::Right(fill(map.clone(), origin.clone(), request)),
                    };
                    async move { Ok::<_, Infallible>(respond(&found.await)) }
                }))
            })
        },
        start_on_redis: None,
    }
}

async fn fill(map: Map<String, Found>, origin: Origin, request: Request<Full<Bytes>>) -> Found {
    let body = origin.compute().await.expect("it answers at once");
    let found = Arc::new((fields(false), body));
    map.insert(request.uri().path().to_owned(), found.clone());
    found
}

fn respond(found: &Found) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(found.1.clone()));
    *response.headers_mut() = found.0.clone();
    response
}
