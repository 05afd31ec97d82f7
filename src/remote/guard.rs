//! The one way to the remote: a deadline around every call, and a breaker for each of its
//! shards.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::key::Key;
use crate::observe::{Observe, Occurrence, RemoteOp};
use crate::remote::link::Link;
use crate::remote::shard::{Shard, ShardState, Shards};
use crate::remote::{Call, Remote, RemoteErrorKind, RemoteLog, RemoteSettings};

/// Tags whose positions are known without the log, as many as the log of one process has.
const MAX_TAGS: usize = 100_000;

const MIB: f64 = 1024.0 * 1024.0;

pub(super) struct Guard {
    pub(super) remote: Arc<dyn Remote>,
    pub(super) settings: RemoteSettings,
    pub(super) shards: Shards,
    /// What this process knows of the log.
    link: Mutex<Link>,
    pub(super) observer: Arc<dyn Observe>,
    /// Wakes the task that looks after the remote.
    pub(super) tend: Arc<Notify>,
    /// Bytes of the largest value seen: how much a read may have to carry.
    largest: AtomicUsize,
}

/// Why a call came to nothing; `None` when it was not made.
pub(super) type RemoteFailure = Option<RemoteErrorKind>;

impl Guard {
    pub(super) fn new(
        remote: Arc<dyn Remote>,
        settings: RemoteSettings,
        observer: Arc<dyn Observe>,
    ) -> Self {
        Self {
            remote,
            shards: Shards::new(settings.clone()),
            link: Mutex::new(Link::new(MAX_TAGS, settings.max_journal)),
            settings,
            observer,
            tend: Arc::new(Notify::new()),
            largest: AtomicUsize::new(0),
        }
    }

    /// Returns the link, for the connection by which the log is asked now.
    pub(super) fn link(&self) -> MutexGuard<'_, Link> {
        // Before the lock: the remote may be anything.
        let connection = self.remote.connection(self.log_shard_number());
        let mut link = self.link.lock();
        link.is_asked_over(connection);
        link
    }

    fn log_shard_number(&self) -> Shard {
        self.remote.log().map_or(Shard::ONLY, RemoteLog::shard)
    }

    /// Returns the shard of a key.
    pub(super) fn shard_of(&self, key: &Key) -> Arc<ShardState> {
        self.shards.of(self.remote.shard_of(key))
    }

    /// Returns the shard of the log; without a log, the only one.
    pub(super) fn log_shard(&self) -> Arc<ShardState> {
        self.shards.of(self.log_shard_number())
    }

    /// Returns whether the log may be asked.
    pub(super) fn log_answers(&self) -> bool {
        self.log_shard().answers()
    }

    /// Returns whether the remote may be asked for `key`: its shard answered last time, and has
    /// been told what concerns the key.
    pub(super) fn may_ask(&self, key: &Key) -> bool {
        self.shard_of(key).answers() && !self.is_to_be_told(key)
    }

    /// Returns whether the remote has still to be told what concerns `key`.
    pub(super) fn is_to_be_told(&self, key: &Key) -> bool {
        self.link.lock().journal.concerns(key)
    }

    /// Returns whether all is well: all shards answer, and have been told everything.
    pub(super) fn is_well(&self) -> bool {
        self.shards.all_answer() && self.link.lock().journal.is_empty()
    }

    /// Makes a call for `key` that carries about `bytes`, unless its shard is away or has still
    /// to be told of the key.
    ///
    /// Cancel safe as far as the remote's own call is; a dropped one counts
    /// neither as success nor as failure.
    pub(super) async fn call<'a, T>(
        &self,
        op: RemoteOp,
        key: &Key,
        bytes: usize,
        call: impl FnOnce() -> Call<'a, T>,
    ) -> Result<T, RemoteFailure> {
        if self.is_to_be_told(key) {
            return Err(None);
        }
        self.call_shard(op, &self.shard_of(key), bytes, call).await
    }

    /// Makes a call that carries about `bytes`, unless the shard is away.
    pub(super) async fn call_shard<'a, T>(
        &self,
        op: RemoteOp,
        shard: &ShardState,
        bytes: usize,
        call: impl FnOnce() -> Call<'a, T>,
    ) -> Result<T, RemoteFailure> {
        if !shard.answers() {
            return Err(None);
        }
        let sent = Instant::now();
        let result = self.attempt(op, shard, bytes, call()).await;
        self.count(op, shard, sent, result.as_ref().err().copied());
        result.map_err(Some)
    }

    /// Counts a call as the breaker of its shard does.
    pub(super) fn count(
        &self,
        op: RemoteOp,
        shard: &ShardState,
        sent: Instant,
        failure: RemoteFailure,
    ) {
        if failure.is_some_and(RemoteErrorKind::says_nothing_of_health)
            || failure.is_some() && !shard.progress.is_one_more_failure(sent)
        {
            return;
        }
        let opened = match (op, failure) {
            (RemoteOp::Get, None) => return shard.breaker.look_succeeded(),
            (_, None) => return shard.breaker.succeeded(),
            (RemoteOp::Get, Some(_)) => shard.breaker.look_failed(),
            (_, Some(_)) => shard.breaker.failed(),
        };
        if opened {
            self.is_away(shard, failure.map(|kind| (op, kind.as_str())));
        }
    }

    /// Makes a call without the breaker: in the background.
    pub(super) async fn attempt<T>(
        &self,
        op: RemoteOp,
        shard: &ShardState,
        bytes: usize,
        call: Call<'_, T>,
    ) -> Result<T, RemoteErrorKind> {
        let from = Instant::now();
        let is_connecting = || self.remote.is_connecting(shard.shard);
        let call = shard.progress.answer(op, self.allowance(bytes), is_connecting, call);
        let result = call.await.map_err(|error| error.kind());
        let error = result.as_ref().err().copied();
        if let Some(kind) = error {
            use RemoteErrorKind::{Connection, ReadOnly, Timeout, Unavailable};
            if matches!(kind, Connection | ReadOnly | Timeout | Unavailable)
                && self.is_of_log(shard)
            {
                self.link.lock().has_failed();
            }
            self.remote.suspect(shard.shard, kind);
        }
        let error = error.map(RemoteErrorKind::as_str);
        self.observer.happened(Occurrence::RemoteCalled { op, took: from.elapsed(), error });
        result
    }

    /// Returns how much longer a call may take that carries so many bytes.
    fn allowance(&self, bytes: usize) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "an allowance, not a count")]
        let mib = bytes as f64 / MIB;
        self.settings.op_timeout_per_mib.mul_f64(mib)
    }

    /// Returns how long one call may take while its shard is silent, connecting included.
    pub(super) fn deadline(&self, shard: &ShardState, bytes: usize) -> Duration {
        shard.progress.patience_to_connect() + self.allowance(bytes)
    }

    /// Returns how long one call to any shard may take while it is silent.
    pub(super) fn longest_deadline(&self, bytes: usize) -> Duration {
        let patience = self.shards.all().iter().map(|shard| shard.progress.patience()).max();
        patience.unwrap_or(self.settings.op_timeout) + self.allowance(bytes)
    }

    /// Returns how much a read may have to carry.
    pub(super) fn largest(&self) -> usize {
        self.largest.load(Ordering::Relaxed)
    }

    /// Takes note of the size of a value. One that is too large to be taken
    /// does not prolong the calls after it.
    pub(super) fn has_seen(&self, bytes: usize) {
        let bytes = bytes.min(self.settings.max_value_bytes);
        self.largest.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Asks this shard nothing more until a probe has reached it.
    pub(super) fn trip(&self, op: RemoteOp, shard: &ShardState, failure: RemoteErrorKind) {
        if !failure.says_nothing_of_health() {
            self.open(op, shard, failure);
        }
    }

    /// The same whatever the failure says of the health of the server.
    pub(super) fn open(&self, op: RemoteOp, shard: &ShardState, failure: RemoteErrorKind) {
        if shard.breaker.trip() {
            self.is_away(shard, Some((op, failure.as_str())));
        }
    }

    fn is_of_log(&self, shard: &ShardState) -> bool {
        shard.shard == self.log_shard_number()
    }

    fn is_away(&self, shard: &ShardState, failure: Option<(RemoteOp, &'static str)>) {
        *shard.away_since.lock() = Some(Instant::now());
        if self.is_of_log(shard) {
            let _ = self.link.lock().is_away();
        }
        let server = &self.remote.address_of(shard.shard);
        self.observer.happened(Occurrence::RemoteAway { server, failure });
        self.tend.notify_one();
    }

    pub(super) fn close(&self, shard: &ShardState) {
        if shard.breaker.close() {
            let since = shard.away_since.lock().take();
            let away_for = since.map(|since| since.elapsed()).unwrap_or_default();
            let server = &self.remote.address_of(shard.shard);
            let is_last = self.shards.all_answer();
            self.observer.happened(Occurrence::RemoteBack { server, away_for, is_last });
        }
    }
}
