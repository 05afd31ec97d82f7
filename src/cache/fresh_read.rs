//! Which values of other processes a fresh read takes.
//!
//! A fresh read returns no value whose computation began before the call. Of a computation in
//! this process the number says when it began. The clock of another process proves nothing. But
//! a key has one lease at a time, and each lease fills once, under a version above all before.
//! So a leader that finds the key leased, after the call, goes on like this:
//!
//! - The first new version that it sees may come from that very lease, which may be older than
//!   the call. It does not count.
//! - The next one comes from a lease that was granted when that lease had ended: after the call.
//!
//! A leader that finds the key free takes the lease, and computes. So of all processes that
//! read a key fresh at once, one computes at a time, and each waits for two others at most.

use std::sync::Arc;

use crate::entry::Entry;
use crate::flight::table::Table;
use crate::lease::grant::Version;

/// A fresh read, and what its leader has seen in the remote.
#[derive(Debug)]
pub(super) struct FreshRead {
    /// Computations from this number on began after the call.
    pub(super) from_number: u64,
    last: Option<Version>,
    lease: Option<ForeignLease>,
}

/// The lease that another process had when the leader first asked for it.
#[derive(Debug)]
struct ForeignLease {
    /// Computations that began after the leader saw it have higher numbers.
    number: u64,
    /// What stood there then.
    before: Option<Version>,
    /// What may come from that lease.
    first: Option<Version>,
}

impl FreshRead {
    pub(super) fn new(from_number: u64) -> Self {
        Self { from_number, last: None, lease: None }
    }

    /// Takes note that another process has the lease.
    pub(super) fn is_leased<V>(&mut self, table: &Table<V>) {
        let (before, first) = (self.last, None);
        let seen = || ForeignLease { number: table.next_number(), before, first };
        self.lease.get_or_insert_with(seen);
    }

    /// Returns whether the computation of `found` surely began after the call.
    pub(super) fn covers<V>(&mut self, found: &Arc<Entry<V>>) -> bool {
        self.last = found.version;
        let (Some(lease), Some(version)) = (&mut self.lease, found.version) else { return false };
        if lease.before.is_some_and(|before| version <= before) {
            return false;
        }
        version > *lease.first.get_or_insert(version)
    }

    /// Returns the number that a value has which it covers.
    pub(super) fn number(&self) -> Option<u64> {
        self.lease.as_ref().map(|lease| lease.number)
    }
}
