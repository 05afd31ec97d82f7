use bytes::Bytes;
use tower_stampede::{Builder, Computed, Redis, Stampede};

use super::{ENTRIES, Kind, Peer, TTL};
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
            let redis =
                Redis::lazy(&url).expect("the server's address is good").namespace("stampede");
            Box::pin(async move { function(Ours(build(settings().redis(redis))), &origin) })
        }),
    }
}

#[derive(Clone)]
struct Ours(Stampede<Bytes>);

fn settings() -> Builder<Bytes> {
    Stampede::builder("peers").ttl(TTL).max_bytes(1 << 30).max_entries(ENTRIES)
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
