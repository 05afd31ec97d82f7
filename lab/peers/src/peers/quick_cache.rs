use std::sync::Arc;

use bytes::Bytes;
use quick_cache::sync::Cache as Quick;

use super::{ENTRIES, Kind, Peer};
use crate::origin::{Failure, Origin};
use crate::report::Role;
use crate::subject::{Cache, function};

pub(super) fn peer() -> Peer {
    Peer {
        id: "quick_cache",
        name: "quick_cache",
        role: Role::Other,
        kind: Kind::Function,
        crates: &["quick_cache"],
        configuration: "`get_or_insert_async`; it has no lifetimes",
        has_private_answers: false,
        start: |origin| {
            let cache = Arc::new(Quick::new(ENTRIES as usize));
            Box::pin(async move { function(ByGuard(cache), &origin) })
        },
        start_on_redis: None,
    }
}

#[derive(Clone)]
struct ByGuard(Arc<Quick<u64, Bytes>>);

impl Cache for ByGuard {
    type Error = Failure;

    async fn get(&self, key: u64, origin: &'static Origin) -> Result<Bytes, Failure> {
        self.0.get_or_insert_async(&key, origin.compute()).await
    }
}
