use bytes::Bytes;
use foyer_memory::{Cache as Foyer, CacheBuilder};

use super::{ENTRIES, Kind, Peer};
use crate::origin::Origin;
use crate::report::Role;
use crate::subject::{Cache, function};

pub(super) fn peer() -> Peer {
    Peer {
        id: "foyer",
        name: "foyer get_or_fetch",
        role: Role::Other,
        kind: Kind::Function,
        crates: &["foyer-memory"],
        configuration: "its cache in memory, `get_or_fetch`; that has no lifetimes",
        has_private_answers: false,
        start: |origin| {
            let cache = CacheBuilder::new(ENTRIES as usize).build();
            Box::pin(async move { function(Fetching(cache), &origin) })
        },
        start_on_redis: None,
    }
}

#[derive(Clone)]
struct Fetching(Foyer<u64, Bytes>);

impl Cache for Fetching {
    type Error = String;

    async fn get(&self, key: u64, origin: &'static Origin) -> Result<Bytes, String> {
        let entry = self.0.get_or_fetch(&key, || origin.compute()).await;
        entry.map(|entry| entry.value().clone()).map_err(|error| error.to_string())
    }
}
