//! What a request has besides its key.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use http::header::{self, HeaderMap, HeaderName};

use crate::http::flow::lookup::{HttpCaller, selecting_fields};
use crate::http::rules::shape::ASKS_FOR_LESS;

/// Returns a hash of the content of a request, and of its fields that are neither keyed nor known
/// to select its response. Requests of one flight whose hashes differ may get different responses. Conditions
/// and ranges do not count: a request that is for all clients is sent without them.
pub(super) fn unkeyed_fields(caller: &HttpCaller, sent: &HeaderMap) -> u32 {
    // Keyed by a secret: a client must not choose fields that seem to be another's.
    static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let in_force = caller.rules.configs_in_force();
    let (cache, primary) = (&caller.cache, caller.primary.as_bytes());
    let mut lists = selecting_fields(cache, primary, caller.stale.as_ref());
    lists.extend(caller.learned.clone());
    let counts = |name: &HeaderName| {
        *name != header::HOST
            && !ASKS_FOR_LESS.contains(name)
            && !in_force.clone().any(|config| config.keys(name))
            && !lists.iter().any(|list| list.selects(name))
    };
    // A sum: the order of fields with different names means nothing.
    let fields = sent.iter().filter(|(name, _)| counts(name));
    let hashes = fields.map(|(name, value)| HASHER.hash_one((name.as_str(), value.as_bytes())));
    // The application's own key may stand for different bytes.
    let content = caller.content.as_ref().map_or(0, |content| HASHER.hash_one(content));
    hashes.fold(content, u64::wrapping_add) as u32
}
