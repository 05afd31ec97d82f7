use std::sync::Arc;

use bytes::Bytes;
use moka::future::Cache as Moka;

use super::{ENTRIES, Kind, Peer, TTL};
use crate::origin::{Failure, Origin};
use crate::report::Role;
use crate::subject::{Cache, function};

pub(super) fn peer() -> Peer {
    Peer {
        id: "moka",
        name: "moka try_get_with",
        role: Role::Other,
        kind: Kind::Function,
        crates: &["moka"],
        configuration: "`moka::future::Cache::try_get_with`, with a lifetime",
        has_private_answers: false,
        start: |origin| {
            let cache = Moka::builder().max_capacity(ENTRIES).time_to_live(TTL).build();
            Box::pin(async move { function(ByFuture(cache), &origin) })
        },
        start_on_redis: None,
    }
}

#[derive(Clone)]
struct ByFuture(Moka<u64, Bytes>);

impl Cache for ByFuture {
    type Error = Arc<Failure>;

    async fn get(&self, key: u64, origin: &'static Origin) -> Result<Bytes, Arc<Failure>> {
        self.0.try_get_with(key, origin.compute()).await
    }
}
