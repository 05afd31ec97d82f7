use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tower_stampede::{Builder, Computed, Redis, Stampede};

use super::{ENTRIES, Kind, Peer, TTL};
use crate::faults::{Stage, Staged, TAG, Work};
use crate::origin::{Failure, Origin};
use crate::report::Role;
use crate::subject::{Cache, function};

pub(super) fn peer() -> Peer {
    Peer {
        id: "ours",
        name: "tower-stampede, function",
        role: Role::Ours,
        kind: Kind::Function,
        crates: &["tower-stampede"],
        configuration: "`get_or_compute`, or `get_or_compute_with` and `do_not_store` for \
                        answers that may not be stored; as built",
        has_private_answers: true,
        start: |origin| Box::pin(async move { function(Ours(build(settings())), &origin) }),
        start_on_redis: Some(|origin, url| {
            Box::pin(async move { function(Ours(build(settings().redis(server(&url)))), &origin) })
        }),
    }
}

#[derive(Clone)]
struct Ours(Stampede<Bytes>);

fn settings() -> Builder<Bytes> {
    Stampede::builder("peers").ttl(TTL).max_bytes(1 << 30).max_entries(ENTRIES)
}

fn server(url: &str) -> Redis {
    Redis::lazy(url).expect("the server's address is good").namespace("stampede")
}

fn build(settings: Builder<Bytes>) -> Stampede<Bytes> {
    settings.build().expect("the settings are good")
}

impl Cache for Ours {
    type Error = tower_stampede::Error;

    async fn get(&self, key: u64, origin: &'static Origin) -> Result<Bytes, tower_stampede::Error> {
        if !origin.is_private() {
            return self.0.get_or_compute(key, || origin.compute()).await;
        }
        let compute =
            || async { Ok::<_, Failure>(Computed::new(origin.compute().await?).do_not_store()) };
        self.0.get_or_compute_with(key, compute).await
    }
}

pub(super) fn staged(stage: Stage) -> BoxFuture<'static, Arc<dyn Staged>> {
    let mut settings = settings();
    if let Some(time_out) = stage.time_out {
        settings = settings.compute_timeout(time_out);
    }
    if let Some(url) = &stage.redis {
        settings = settings.redis(server(url));
    }
    Box::pin(async move { Arc::new(Ours(build(settings))) as Arc<dyn Staged> })
}

impl Staged for Ours {
    fn ask(&self, key: u64, work: Work) -> BoxFuture<'static, Result<u64, String>> {
        let cache = self.0.clone();
        Box::pin(async move {
            let load = || async move {
                let value = work.run().await.map(Work::bytes_of);
                value.map(|value| Computed::new(value).tag(TAG))
            };
            let value = cache.get_or_compute_with(key, load).await;
            Work::value_of(value.map_err(|error| error.to_string())?)
        })
    }

    fn invalidate(&self, key: u64) -> BoxFuture<'static, Result<(), String>> {
        let cache = self.0.clone();
        Box::pin(async move {
            cache.invalidate(&key).await;
            Ok(())
        })
    }

    fn invalidate_tag(&self) -> Option<BoxFuture<'static, Result<(), String>>> {
        let cache = self.0.clone();
        Some(Box::pin(async move {
            cache.invalidate_tag(TAG).await;
            Ok(())
        }))
    }
}
