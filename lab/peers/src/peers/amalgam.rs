use std::sync::Arc;
use std::time::Duration;

use amalgam::provider::{
    JsonSerializer, RedisBackplane, RedisDistributedCache, RedisDistributedLocker,
};
use amalgam::{Cache as Amalgam, CacheBuilder, EntryOptions, Timeout, source};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ENTRIES, Kind, Peer, TTL};
use crate::faults::{Stage, Staged, TAG, Work};
use crate::origin::Origin;
use crate::report::Role;
use crate::subject::{Cache, function};

pub(super) fn peer() -> Peer {
    Peer {
        id: "amalgam",
        name: "amalgam get_or_set",
        role: Role::Other,
        kind: Kind::Function,
        crates: &["amalgam-cache"],
        configuration: "`get_or_set`, with a `Duration`; its keys are strings, so each call makes \
                        one of the number; with Redis: its level 2, backplane and locker, values \
                        as JSON, as built",
        has_private_answers: false,
        start: |origin| {
            let cache = settings(TTL, None).try_build().expect("the settings are good");
            Box::pin(async move { function(Held::<Bytes>(cache), &origin) })
        },
        start_on_redis: Some(|origin, url| {
            Box::pin(async move {
                let cache: Amalgam<Vec<u8>> = on_redis(settings(TTL, None), &url).await;
                function(Held(cache), &origin)
            })
        }),
    }
}

fn settings<V>(ttl: Duration, time_out: Option<Duration>) -> CacheBuilder<V>
where
    V: Clone + Send + Sync + 'static,
{
    let hard = Timeout::from_option(time_out);
    let options = EntryOptions::new(ttl).with_factory_timeouts(Timeout::Infinite, hard, true);
    Amalgam::builder().name("peers").max_capacity(ENTRIES).default_options(options)
}

/// All that the crate has for several processes.
async fn on_redis<V>(settings: CacheBuilder<V>, url: &str) -> Amalgam<V>
where
    V: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    const ANSWERS: &str = "the server answers";
    let values = RedisDistributedCache::connect(url).await.expect(ANSWERS);
    let backplane = RedisBackplane::connect(url).await.expect(ANSWERS);
    let locker = RedisDistributedLocker::connect(url).await.expect(ANSWERS);
    settings
        .distributed(Arc::new(values))
        .serializer(Arc::new(JsonSerializer))
        .backplane(Arc::new(backplane))
        .distributed_locker(Arc::new(locker))
        .try_build_ready()
        .await
        .expect("the settings are good")
}

#[derive(Clone)]
struct Held<V: Clone + Send + Sync + 'static>(Amalgam<V>);

impl<V> Cache for Held<V>
where
    V: Clone + Send + Sync + From<Bytes> + Into<Bytes> + 'static,
{
    type Error = amalgam::Error;

    async fn get(&self, key: u64, origin: &'static Origin) -> Result<Bytes, amalgam::Error> {
        let load = source::factory(move |_| async move { origin.compute().await.map(V::from) });
        self.0.get_or_set(key.to_string(), load).await.map(Into::into)
    }
}

pub(super) fn staged(stage: Stage) -> BoxFuture<'static, Arc<dyn Staged>> {
    Box::pin(async move {
        let settings = settings(TTL, stage.time_out);
        let cache: Amalgam<u64> = match &stage.redis {
            Some(url) => on_redis(settings, url).await,
            None => settings.try_build().expect("the settings are good"),
        };
        Arc::new(cache) as Arc<dyn Staged>
    })
}

impl Staged for Amalgam<u64> {
    fn ask(&self, key: u64, work: Work) -> BoxFuture<'static, Result<u64, String>> {
        let cache = self.clone();
        Box::pin(async move {
            let load = source::factory(move |_| work.run());
            let asked = cache.get_or_set(key.to_string(), load).tags([TAG]);
            asked.await.map_err(|error| error.to_string())
        })
    }

    fn invalidate(&self, key: u64) -> BoxFuture<'static, Result<(), String>> {
        let cache = self.clone();
        Box::pin(
            async move { cache.remove(key.to_string()).await.map_err(|error| error.to_string()) },
        )
    }

    fn invalidate_tag(&self) -> Option<BoxFuture<'static, Result<(), String>>> {
        let cache = self.clone();
        Some(Box::pin(
            async move { cache.remove_by_tag(TAG).await.map_err(|error| error.to_string()) },
        ))
    }
}
