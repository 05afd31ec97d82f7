use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cachet::{Cache as Cachet, CacheBuilder, CacheEntry, CacheTier, Error, InsertOutcome};
use futures_util::future::BoxFuture;
use redis::AsyncCommands;
use redis::aio::ConnectionManager;
use tick::Clock;

use super::{ENTRIES, Kind, Peer, TTL};
use crate::faults::{Stage, Staged, Work};
use crate::origin::Origin;
use crate::report::Role;
use crate::subject::{Cache, function};

pub(super) fn peer() -> Peer {
    Peer {
        id: "cachet",
        name: "cachet try_get_or_insert",
        role: Role::Other,
        kind: Kind::Function,
        crates: &["cachet"],
        configuration: "`try_get_or_insert`, `stampede_protection`, a lifetime; it ships no tier \
                        for Redis: the one here is ours, with the connection manager of `redis` \
                        as built",
        has_private_answers: false,
        start: |origin| Box::pin(async move { function(Tiers(memory()), &origin) }),
        start_on_redis: Some(|origin, url| {
            Box::pin(async move { function(Tiers(both(&url).await), &origin) })
        }),
    }
}

#[derive(Clone)]
struct Tiers(Arc<Cachet<u64, Bytes>>);

impl Cache for Tiers {
    type Error = Error;

    async fn get(&self, key: u64, origin: &'static Origin) -> Result<Bytes, Error> {
        let entry = self.0.try_get_or_insert(&key, || origin.compute()).await;
        entry.map(CacheEntry::into_value)
    }
}

fn memory() -> Arc<Cachet<u64, Bytes>> {
    let builder = Cachet::builder(Clock::new_tokio());
    let builder = builder.memory_with(|memory| memory.max_capacity(ENTRIES));
    Arc::new(builder.ttl(TTL).stampede_protection().build())
}

async fn both(url: &str) -> Arc<Cachet<u64, Bytes>> {
    let client = redis::Client::open(url).expect("the server's address is good");
    let connection = client.get_connection_manager().await.expect("the server answers");
    let clock = Clock::new_tokio();
    let second: CacheBuilder<u64, Bytes, _> =
        Cachet::builder(clock.clone()).storage(OnRedis(connection));
    let first = Cachet::builder(clock).memory_with(|memory| memory.max_capacity(ENTRIES));
    // The server expires its values. With a lifetime, the tier would take them for expired, because
    // they do not say when they were stored.
    let both = first.ttl(TTL).fallback(second);
    Arc::new(both.stampede_protection().build())
}

/// Three commands, as one writes them for a tier.
struct OnRedis(ConnectionManager);

impl CacheTier<u64, Bytes> for OnRedis {
    async fn get(&self, key: &u64) -> Result<Option<CacheEntry<Bytes>>, Error> {
        let value: Option<Vec<u8>> = self.0.clone().get(*key).await.map_err(Error::from_source)?;
        Ok(value.map(|value| CacheEntry::new(value.into())))
    }

    async fn insert(&self, key: u64, entry: CacheEntry<Bytes>) -> Result<InsertOutcome, Error> {
        let ttl = entry.ttl().unwrap_or(TTL).max(Duration::from_secs(1)).as_secs();
        let value = entry.into_value().to_vec();
        let stored = self.0.clone().set_ex(key, value, ttl).await;
        stored.map_err(Error::from_source).map(|()| InsertOutcome::Accepted)
    }

    async fn invalidate(&self, key: &u64) -> Result<(), Error> {
        self.0.clone().del(*key).await.map_err(Error::from_source)
    }

    async fn clear(&self) -> Result<(), Error> {
        Err(Error::from_message("not used here"))
    }
}

/// It has no time-outs: `Stage::time_out` has no counterpart.
pub(super) fn staged(stage: Stage) -> BoxFuture<'static, Arc<dyn Staged>> {
    Box::pin(async move {
        let cache = match &stage.redis {
            Some(url) => both(url).await,
            None => memory(),
        };
        Arc::new(Tiers(cache)) as Arc<dyn Staged>
    })
}

impl Staged for Tiers {
    fn ask(&self, key: u64, work: Work) -> BoxFuture<'static, Result<u64, String>> {
        let cache = Arc::clone(&self.0);
        Box::pin(async move {
            let load = || async move { work.run().await.map(Work::bytes_of) };
            let entry = cache.try_get_or_insert(&key, load).await;
            let entry = entry.map_err(|error| error.to_string())?;
            Work::value_of(entry.into_value())
        })
    }

    fn invalidate(&self, key: u64) -> BoxFuture<'static, Result<(), String>> {
        let cache = Arc::clone(&self.0);
        Box::pin(async move { cache.invalidate(&key).await.map_err(|error| error.to_string()) })
    }

    fn invalidate_tag(&self) -> Option<BoxFuture<'static, Result<(), String>>> {
        None
    }
}
