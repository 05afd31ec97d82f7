//! The store, as the engine sees it.

use std::sync::Arc;

use crate::entry::Entry;
use crate::garbage::Garbage;
use crate::key::Key;
use crate::lease::hold::FillTarget;

/// The store of this process. Fills and removals of one key are serial: `allowed` is
/// asked under the same lock as the write that it allows.
///
/// No operation drops an entry: each hands out the entries that it has replaced, removed or
/// evicted. The caller drops them when it holds no lock and has published the result that
/// others wait for.
pub(crate) trait Store<V>: Send + Sync + 'static {
    /// Stores `entry` if `allowed`, unless it is too heavy to be stored.
    fn fill(&self, key: &Key, entry: Arc<Entry<V>>, allowed: &dyn Fn() -> bool) -> StoreChange<V>;

    /// Removes the entry of `key`, if there is one.
    fn remove(&self, key: &Key) -> StoreChange<V>;

    /// Returns the entry for the cache's own work, which is no use of it.
    fn peek(&self, key: &[u8]) -> Option<Arc<Entry<V>>>;

    /// Removes everything.
    #[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "a remote that was away"))]
    fn clear(&self) -> Garbage<V>;

    /// Removes this very entry.
    fn remove_exactly(&self, key: &Key, entry: &Arc<Entry<V>>) -> Garbage<V>;

    /// Shows every entry to `keep`, and removes the entries that it does not keep.
    /// Entries that are filled meanwhile may be shown or not.
    fn retain(&self, keep: &dyn Fn(&Entry<V>) -> bool) -> Garbage<V>;
}

/// Where a result stands: in this process, and in the remote.
pub(crate) trait Destination<V>: Send + 'static {
    /// Stores `entry` where later callers look for it, if `allowed`.
    fn store(&self, entry: &Arc<Entry<V>>, allowed: &dyn Fn() -> bool) -> StoreChange<V>;

    /// Returns what goes to the remote, by the lease of the key `leased`.
    fn targets(&self, entry: &Arc<Entry<V>>, leased: &Key) -> Vec<FillTarget<V>>;

    /// Takes back what was stored, if it still stands there: the remote has refused it.
    fn unstore(&self, entry: &Arc<Entry<V>>);
}

/// What an operation of the store did.
#[derive(Debug)]
#[must_use = "dropping it runs code of the user's: say when"]
pub(crate) struct StoreChange<V> {
    /// Whether the entry was stored, or an entry removed.
    pub(crate) applied: bool,
    /// What the operation has left behind, whether it was applied or not.
    pub(crate) garbage: Garbage<V>,
}

impl<V> StoreChange<V> {
    /// Drops the garbage now, and returns whether the change was applied.
    pub(crate) fn finish(self) -> bool {
        let Self { applied, garbage } = self;
        drop(garbage);
        applied
    }
}
