//! What the engine needs of the world outside.

use std::sync::Arc;

use crate::entry::Entry;
use crate::key::Key;

/// The store of this process. Fills and removals of one key are serial: what
/// `allowed` says is decided under the same lock as the write it allows.
pub(crate) trait Store<V>: Send + Sync + 'static {
    /// Stores `entry` if `allowed`, and returns whether it did.
    fn fill(&self, key: &Key, entry: Arc<Entry<V>>, allowed: &dyn Fn() -> bool) -> bool;

    /// Removes whatever stands there, and returns whether something did.
    fn remove(&self, key: &Key) -> bool;

    /// Removes everything.
    #[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "a remote that was away"))]
    fn clear(&self);

    /// Removes this very entry.
    fn remove_exactly(&self, key: &Key, entry: &Arc<Entry<V>>);
}
