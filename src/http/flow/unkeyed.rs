//! What a request has besides its key.

use http::header::{self, HeaderMap, HeaderName};

use crate::http::flow::lookup::HttpCaller;
use crate::http::rules::shape::ASKS_FOR_LESS;

/// Returns a hash of the content of a request, and of its fields that are not keyed. Requests of one
/// flight whose hashes differ may get different responses. Conditions and ranges do not count: a
/// request that is for all clients is sent without them. Fields that select the response do: which
/// they are is known in one process, and not yet in another.
///
/// All processes that share a remote compare it, so it has no secret. It is of BLAKE3: a client
/// must not find fields that seem to be another's.
pub(super) fn unkeyed_fields(caller: &HttpCaller, sent: &HeaderMap) -> u64 {
    let config = &caller.request.rules.config;
    let counts = |name: &HeaderName| {
        *name != header::HOST && !ASKS_FOR_LESS.contains(name) && !config.keys(name)
    };
    let mut fields: Vec<_> = sent.iter().filter(|(name, _)| counts(name)).collect();
    // The order of fields with different names means nothing.
    fields.sort_by_key(|(name, _)| name.as_str());
    if fields.is_empty() && caller.request.content.is_none() {
        // It is its key, and no more.
        return 0;
    }
    let mut hasher = blake3::Hasher::new();
    let mut add = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_be_bytes()).update(bytes);
    };
    for (name, value) in fields {
        add(name.as_str().as_bytes());
        add(value.as_bytes());
    }
    // The application's own key may stand for different bytes.
    if let Some(content) = &caller.request.content {
        add(content);
    }
    let digest = *hasher.finalize().as_bytes();
    u64::from_be_bytes(std::array::from_fn(|i| digest[i]))
}
