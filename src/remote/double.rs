//! A remote in memory, for tests, with faults to switch on.
//!
//! # What enters
//!
//! Calls of the trait `Remote`, from as many clients as the test makes processes
//! ([`Double::process`]). And faults: calls that fail, always or by a script, replies that are lost, a server that
//! stands still, subscriptions that break, records that are lost.
//!
//! # What leaves
//!
//! The same replies, wake-ups and notices as from a Redis server: both pass the contract
//! suite, [`contract`](crate::remote::contract). Also the log of the calls.
//!
//! # The states in between
//!
//! ```text
//! DoubleProcess ──call──▶ DoubleServer ──▶ Records of the key (value, lease, right)
//!       ▲                      │
//!       └──wake-ups, notices───┘
//! ```
//!
//! All state of the server is under one lock, and an operation is one step under it, as a
//! script is on a Redis server. Time is tokio's, so a test that pauses it waits for
//! nothing.
//!
//! # Reading order
//!
//! - `records`: one key: the six operations of the protocol as functions of the server's time.
//! - `server`: the state that all processes share, its faults, its messages.
//! - `process`: the client of one process: the trait `Remote`.
//! - `clock`: the server's time.
//! - `contract`: the double under the contract suite.
//! - `log`: the invalidation log.
//! - `shards`: the servers of a cluster, and what goes wrong with one of them.
//! - `tests`: what the contract suite does not show.

mod clock;
mod contract;
mod log;
mod process;
mod records;
mod server;
mod shards;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::key::Key;
pub use crate::remote::double::process::DoubleProcess;
pub use crate::remote::double::records::Record;
pub use crate::remote::double::server::DoubleCall;
use crate::remote::double::server::{DoubleClient, DoubleServer, Fault};
use crate::remote::{RemoteErrorKind, RemoteOp, Shard};

/// A remote in memory: a server that several processes of a test share.
///
/// It keeps to what [`Remote`](crate::remote::Remote) promises as a Redis server does,
/// and does wrong what it is told to. Its time is tokio's, so a test that
/// pauses it waits for nothing. A process hears wake-ups and notices once
/// something is attached to it, which a cache does when it is built.
///
/// A clone is the same server.
///
/// # Examples
///
/// Two processes ask for the lease of a key; one has it, and the other is woken
/// when the value is there.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use tower_stampede::Key;
/// use tower_stampede::remote::{
///     AcquireOutcome, Double, FillOutcome, LeaseRequest, Notice, OnNotice, Remote, RemoteOp,
///     RemotePush,
/// };
///
/// struct Ignore;
/// impl OnNotice for Ignore {
///     fn on_notice(&self, _: Notice) {}
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let double = Double::new();
/// let (one, other) = (double.process(), double.process());
/// let ignore: Arc<dyn OnNotice> = Arc::new(Ignore);
/// other.attach(Arc::downgrade(&ignore));
///
/// let key = Key::from("k");
/// let ask = || LeaseRequest::new(Duration::from_secs(5), Duration::from_secs(60));
/// let AcquireOutcome::Granted(grant) = one.acquire(&key, &ask()).await? else { panic!("not ours") };
///
/// let mut listener = other.listen(&key);
/// let locked = other.acquire(&key, &ask().register()).await?;
/// assert!(matches!(locked, AcquireOutcome::Locked { .. }));
///
/// let envelope = format!("TEST{}value", grant.version);
/// let filled = one.fill(&key, &grant, Duration::from_secs(60), envelope.into()).await?;
/// assert_eq!(filled, FillOutcome::Stored);
/// listener.woken().await;
/// assert!(other.get(&key).await?.unwrap().ends_with(b"value"));
/// assert_eq!(double.calls(RemoteOp::Acquire), 2);
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Double(Arc<DoubleServer>);

impl Double {
    /// Starts an empty server.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes one more process's client.
    #[must_use]
    pub fn process(&self) -> Arc<DoubleProcess> {
        let (inbox, wakes) = self.0.with(|state, _| {
            let client = DoubleClient::default();
            let wakes = client.wakes.clone();
            state.clients.push(client);
            (state.clients.len() - 1, wakes)
        });
        Arc::new(DoubleProcess::new(Arc::clone(&self.0), inbox, wakes))
    }

    /// Returns how often `op` was asked for by all processes together, failed
    /// and frozen calls included.
    #[must_use]
    pub fn calls(&self, op: RemoteOp) -> usize {
        self.0.with(|state, _| state.calls.iter().filter(|call| call.op == op).count())
    }

    /// Returns the same for every `op` that was asked for.
    #[must_use]
    pub fn all_calls(&self) -> BTreeMap<RemoteOp, usize> {
        let mut counts = BTreeMap::new();
        self.0.with(|state, _| {
            state.calls.iter().for_each(|call| *counts.entry(call.op).or_default() += 1);
        });
        counts
    }

    /// Returns all calls of all processes in the order in which they arrived, failed and frozen
    /// calls included. The log grows until [`forget_calls`](Self::forget_calls).
    #[must_use]
    pub fn call_log(&self) -> Vec<DoubleCall> {
        self.0.with(|state, _| state.calls.clone())
    }

    /// Empties the log of calls, and so begins to count from zero.
    pub fn forget_calls(&self) {
        self.0.with(|state, _| state.calls.clear());
    }
}

/// Faults of the server and of the way to it.
impl Double {
    /// Lets these calls fail at once, without being executed.
    pub fn fail(&self, ops: &[RemoteOp], kind: RemoteErrorKind) {
        self.set_fault(ops, Some(Fault::Refuses(kind)));
    }

    /// Lets these calls be executed and their replies be lost: the caller
    /// waits for ever.
    pub fn lose_replies(&self, ops: &[RemoteOp]) {
        self.set_fault(ops, Some(Fault::Mute));
    }

    /// Lets these calls be executed and the caller be told that they failed.
    #[doc(hidden)]
    pub fn break_replies(&self, ops: &[RemoteOp], kind: RemoteErrorKind) {
        self.set_fault(ops, Some(Fault::Garbles(kind)));
    }

    /// Lets the next calls of `op` end in this order, whichever process makes them: `Ok(())` is
    /// executed, `Err(kind)` fails at once, without being executed. After the last of them,
    /// [`fail`](Self::fail) and [`lose_replies`](Self::lose_replies) count again. A second script of
    /// the same `op` follows the first.
    pub fn script(
        &self,
        op: RemoteOp,
        outcomes: impl IntoIterator<Item = Result<(), RemoteErrorKind>>,
    ) {
        self.0.with(|state, _| state.scripts.entry(op).or_default().extend(outcomes));
    }

    /// Lets these calls work again, and drops their scripts.
    pub fn heal(&self, ops: &[RemoteOp]) {
        self.set_fault(ops, None);
        self.0.with(|state, _| state.scripts.retain(|op, _| !ops.contains(op)));
    }

    fn set_fault(&self, ops: &[RemoteOp], fault: Option<Fault>) {
        self.0.with(|state, _| {
            for op in ops {
                match fault {
                    Some(fault) => state.faults.insert(*op, fault),
                    None => state.faults.remove(op),
                };
            }
        });
    }

    /// Lets replies be under way for so long.
    pub fn delay(&self, delay: Duration) {
        self.0.with(|state, _| state.delay = delay);
    }

    /// Lets commands be under way for so long before they are executed.
    pub fn delay_commands(&self, delay: Duration) {
        self.0.with(|state, _| state.way_there = delay);
    }

    /// Stops the server: calls wait, also calls whose callers have gone.
    pub fn freeze(&self) {
        self.0.with(|state, _| state.frozen = true);
    }

    /// Lets the server go on, first with the calls that waited, in order.
    pub fn thaw(&self) {
        self.0.with(|state, _| state.thaw());
    }

    /// Sets whether wake-ups and notices are lost on their way.
    pub fn lose_messages(&self, lose: bool) {
        self.0.with(|state, _| state.loses_messages = lose);
    }

    /// Sets whether the server has no memory for anything new.
    pub fn out_of_memory(&self, full: bool) {
        self.0.with(|state, _| state.full = full);
    }
}

/// What others do to the data.
impl Double {
    /// Removes everything: `FLUSHALL`, or a start without data.
    pub fn flush(&self) {
        self.0.with(|state, _| state.flush());
    }

    /// Removes all keys, and leaves the invalidation log: what a cluster loses with a node that
    /// has not the log.
    #[doc(hidden)]
    pub fn flush_keys(&self) {
        self.0.with(|state, _| state.flush_keys());
    }

    /// Removes the invalidation log, as an eviction may.
    #[doc(hidden)]
    pub fn lose_log(&self) {
        self.0.with(|state, _| state.log.lose());
    }

    /// Removes the keys of the invalidation log, and leaves the rest.
    #[doc(hidden)]
    pub fn lose_key_log(&self) {
        self.0.with(|state, _| state.log.lose_keys());
    }

    /// Lets another server take over the invalidation log, one that lacks its last `lost`
    /// items.
    #[doc(hidden)]
    pub fn fail_over_log(&self, lost: u64) {
        self.0.with(|state, _| state.log.fail_over(lost));
    }

    /// Takes the last `lost` items out of the invalidation log; the same server goes on, as one
    /// does that has read older data from its disk.
    #[doc(hidden)]
    pub fn roll_back_log(&self, lost: u64) {
        self.0.with(|state, _| state.log.roll_back(lost));
    }

    /// Sets how many tags and keys the invalidation log keeps: 100,000 and 4,096 unless this is
    /// called.
    #[doc(hidden)]
    pub fn bound_log(&self, tags: usize, keys: usize) {
        self.0.with(|state, _| state.log.set_bounds(tags, keys));
    }

    /// Sets the server's clock forward: what expires by then is gone.
    #[doc(hidden)]
    pub fn set_clock_forward(&self, by: Duration) {
        self.0.with(|state, _| state.clock.set_forward(by));
    }

    /// Sets the server's clock back: leases and values stay for so much longer.
    #[doc(hidden)]
    pub fn set_clock_back(&self, by: Duration) {
        self.0.with(|state, _| state.clock.set_back(by));
    }

    /// Removes one record of a key, as an eviction may.
    #[doc(hidden)]
    pub fn lose(&self, key: &Key, record: Record) {
        self.0.with(|state, now| state.at(key, now, |records| records.lose(record)));
    }

    /// Overwrites the value of a key, with whatever bytes and without end.
    #[doc(hidden)]
    pub fn set_raw(&self, key: &Key, envelope: impl Into<Bytes>) {
        let envelope = Some(envelope.into());
        self.0.with(|state, now| state.at(key, now, |records| records.overwrite(envelope)));
    }

    /// Overwrites the value of a key with one of a foreign type.
    #[doc(hidden)]
    pub fn set_foreign(&self, key: &Key) {
        self.0.with(|state, now| state.at(key, now, |records| records.overwrite(None)));
    }

    /// Takes the lock as a client does that knows only the lock. Returns
    /// whether it was free.
    #[must_use]
    #[doc(hidden)]
    pub fn lock_as_stranger(&self, key: &Key, lease: Duration) -> bool {
        self.0.with(|state, now| state.at(key, now, |r| r.lock_for_stranger(now, lease)))
    }

    /// Gives back what [`lock_as_stranger`](Self::lock_as_stranger) took.
    /// Returns whether it was still there.
    #[must_use]
    #[doc(hidden)]
    pub fn unlock_as_stranger(&self, key: &Key) -> bool {
        self.0.with(|state, now| state.at(key, now, |records| records.unlock_by_stranger()))
    }

    /// Sets how much is left of a lease, for any holder: a server does this when its clock
    /// is set.
    #[doc(hidden)]
    pub fn stretch_lease(&self, key: &Key, left: Duration) {
        self.0.with(|state, now| state.at(key, now, |records| records.stretch_lease(now, left)));
    }
}

// Neither keys nor tokens: they do not belong into logs.
impl fmt::Debug for Double {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Double").finish_non_exhaustive()
    }
}

/// The shards of the server, and their faults.
impl Double {
    /// Starts an empty server of so many shards. The invalidation log is on [`Shard::ONLY`], the
    /// first.
    #[must_use]
    #[doc(hidden)]
    pub fn sharded(count: u32) -> Self {
        let double = Self::new();
        double.0.with(|state, _| state.shards.count = count);
        double
    }

    /// Returns the shard of a key.
    #[must_use]
    #[doc(hidden)]
    pub fn shard_of(&self, key: &Key) -> Shard {
        self.0.with(|state, _| state.shards.shard_of(key))
    }

    /// Lets all calls to a shard fail at once, without being executed.
    #[doc(hidden)]
    pub fn fail_shard(&self, shard: Shard, kind: RemoteErrorKind) {
        self.0.with(|state, _| state.shards.change(shard, |it| it.refuses = Some(kind)));
    }

    /// Stops a shard: calls wait, also calls whose callers have gone.
    #[doc(hidden)]
    pub fn freeze_shard(&self, shard: Shard) {
        self.0.with(|state, _| state.shards.change(shard, |it| it.is_frozen = true));
    }

    /// Ends [`fail_shard`](Self::fail_shard) and [`freeze_shard`](Self::freeze_shard): the shard
    /// goes on with the calls that waited, in order.
    #[doc(hidden)]
    pub fn heal_shard(&self, shard: Shard) {
        self.0.with(|state, _| {
            state.shards.change(shard, |it| (it.refuses, it.is_frozen) = (None, false));
            state.go_on();
        });
    }

    /// Sets by how much the clock of a shard is ahead of the first one's.
    #[doc(hidden)]
    pub fn set_shard_ahead(&self, shard: Shard, ahead: Duration) {
        self.0.with(|state, _| state.shards.change(shard, |it| it.ahead = ahead));
    }
}
