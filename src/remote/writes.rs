//! The writes of this process: how the remote is told of them, in which order, and what waits for
//! them.
//!
//! A write is pending from before it takes effect in this process until the remote has been
//! told, or until the journal has it. A caller that asks the remote for a key waits for the
//! pending writes that concern the key, so that it never takes over what they have ended.
//! A write waits for those before it where the order matters. Each wait has a bound: a write
//! whose task is not run is handed over to the journal, and then the remote is not asked
//! until it has been told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::entry::Entry;
use crate::key::{Key, Tag};
use crate::lease::grant::Stamp;
use crate::lease::shared_store::{Delivery, Unavailable};
use crate::observe::{Occurrence, RemoteOp};
use crate::remote::coordinator::{CLOCK_TOLERANCE, EntryRemote};
use crate::remote::guard::RemoteFailure;
use crate::remote::link::known::OwnItems;
use crate::remote::link::{items_of_keys, items_of_tags};
use crate::remote::log::LogItem;
use crate::remote::shard::ShardState;
use crate::remote::{RemoteErrorKind, Version};

/// How many tags are announced in one call: a server does nothing else meanwhile.
const MOST_ANNOUNCED: usize = 500;

/// In place of a position.
const SEVERAL: u64 = u64::MAX;

/// The version of an envelope that the remote itself numbers.
const UNNUMBERED: u64 = 1;

/// How many calls a write makes: the log is read, the longest life is told, and the value. The tags
/// of one invalidation may need more.
const CALLS_OF_A_WRITE: usize = 3;

/// What a write does, as far as its order goes.
#[derive(Debug)]
pub(super) enum WriteKind {
    Put(Key),
    Invalidate(Box<[Key]>),
    InvalidateTags(Box<[Tag]>),
}

impl WriteKind {
    /// Returns whether it may end the use of what stands under `key`.
    fn concerns(&self, key: &Key) -> bool {
        match self {
            Self::Put(own) => own == key,
            Self::Invalidate(keys) => keys.contains(key),
            Self::InvalidateTags(tags) => {
                tags.iter().any(|tag| tag.marked_key().is_none_or(|marked| marked == *key))
            }
        }
    }

    /// Returns how many calls it makes at most.
    fn calls(&self) -> usize {
        match self {
            Self::Put(_) | Self::Invalidate(_) => CALLS_OF_A_WRITE,
            Self::InvalidateTags(tags) => CALLS_OF_A_WRITE + tags.len() / MOST_ANNOUNCED,
        }
    }

    /// Returns whether the remote must be told of both in their order. Invalidations may
    /// change places.
    fn is_ordered_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Put(key), other) | (other, Self::Put(key)) => other.concerns(key),
            _ => false,
        }
    }
}

#[derive(Debug)]
pub(super) struct PendingWrite {
    id: u64,
    kind: WriteKind,
    /// Where the log says that the key was written which this one is to put: 0 nowhere, `SEVERAL` in
    /// more than one place, or the place is not known. It may be the own item of this write.
    written_at: AtomicU64,
    /// What the remote is to be told of first; empty when this write is over.
    before: Mutex<Vec<Arc<PendingWrite>>>,
    /// Cancelled once the remote or the journal has it.
    over: CancellationToken,
}

impl PendingWrite {
    fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Returns whether another process has written the key. `own` is where the own item is, or 0.
    fn is_overtaken(&self, own: u64) -> bool {
        let written_at = self.written_at.load(Ordering::Relaxed);
        written_at != 0 && written_at != own
    }

    fn is_written_at(&self, position: u64) {
        let position = if position == 0 { SEVERAL } else { position };
        let more = |before| match before {
            0 => Some(position),
            before if before == position => None,
            _ => Some(SEVERAL),
        };
        let _ = self.written_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    fn first_before(&self) -> Option<Arc<Self>> {
        self.before.lock().iter().find(|write| !write.is_over()).cloned()
    }

    /// Returns the write that all of its way waits for: it has no other before it.
    fn oldest(self: &Arc<Self>) -> Arc<Self> {
        let mut oldest = Arc::clone(self);
        while let Some(before) = oldest.first_before() {
            oldest = before;
        }
        oldest
    }
}

/// All writes that are pending, by their numbers.
#[derive(Debug, Default)]
pub(super) struct PendingWrites(Mutex<BTreeMap<u64, Arc<PendingWrite>>>);

impl PendingWrites {
    fn begin(&self, kind: WriteKind) -> Arc<PendingWrite> {
        let mut writes = self.0.lock();
        let before = writes.values().filter(|write| kind.is_ordered_with(&write.kind));
        let before = Mutex::new(before.cloned().collect());
        let id = writes.last_key_value().map_or(0, |(last, _)| last + 1);
        let (written_at, over) = (AtomicU64::new(0), CancellationToken::new());
        let write = Arc::new(PendingWrite { id, kind, written_at, before, over });
        writes.insert(id, Arc::clone(&write));
        write
    }

    fn end(&self, write: &PendingWrite) {
        let mut writes = self.0.lock();
        if !write.is_over() {
            writes.remove(&write.id);
            write.over.cancel();
        }
        drop(writes);
        drop(std::mem::take(&mut *write.before.lock()));
    }

    /// The log says that `key` was put or invalidated. Where it was another process, what this one has
    /// put before, and has not yet told the remote of, may be the older value.
    pub(super) fn overtake(&self, key: &Key, position: u64) {
        for write in self.0.lock().values() {
            if matches!(&write.kind, WriteKind::Put(own) if own == key) {
                write.is_written_at(position);
            }
        }
    }

    fn that_concern(&self, key: &Key) -> Vec<Arc<PendingWrite>> {
        let writes = self.0.lock();
        writes.values().filter(|write| write.kind.concerns(key)).cloned().collect()
    }

    fn all(&self) -> Vec<Arc<PendingWrite>> {
        self.0.lock().values().cloned().collect()
    }

    fn len(&self) -> usize {
        self.0.lock().len()
    }
}

/// A write on its way to the remote. Dropped before the remote has been told, for example
/// with its runtime, it is handed over to the journal.
pub(super) struct WriteTurn<V: Send + Sync + 'static> {
    remote: Arc<EntryRemote<V>>,
    write: Arc<PendingWrite>,
}

impl<V: Send + Sync + 'static> WriteTurn<V> {
    /// Waits for the writes before this one, and tells the remote by `tell`, unless the journal
    /// has it already.
    pub(super) async fn tell(
        self,
        tell: impl AsyncFnOnce(&EntryRemote<V>, &PendingWrite) -> Delivery,
    ) -> Delivery {
        // Each turn of the loop one of them ends, or all are handed over.
        loop {
            let before = self.write.before.lock().clone();
            if self.remote.are_told(&before).await.is_ok() {
                break;
            }
        }
        if self.write.is_over() {
            return Delivery::Queued;
        }
        let told = tell(&self.remote, &self.write).await;
        self.remote.pending.end(&self.write);
        told
    }
}

impl<V: Send + Sync + 'static> Drop for WriteTurn<V> {
    fn drop(&mut self) {
        if !self.write.is_over() {
            self.remote.hand_over(&self.write);
        }
    }
}

impl<V: Send + Sync + 'static> EntryRemote<V> {
    /// Begins a write. What this process does by it itself comes after that.
    pub(super) fn begin_write(self: &Arc<Self>, kind: WriteKind) -> WriteTurn<V> {
        // From now on: the server may be replaced before it is told.
        match &kind {
            WriteKind::Put(key) => self.gate.link().invalidates_keys(std::slice::from_ref(key)),
            WriteKind::Invalidate(keys) => self.gate.link().invalidates_keys(keys),
            WriteKind::InvalidateTags(tags) => self.gate.link().invalidates_tags(tags),
        }
        let write = self.pending.begin(kind);
        if self.pending.len() > self.gate.settings.max_journal {
            self.pending.all().iter().for_each(|write| self.hand_over(write));
        }
        WriteTurn { remote: Arc::clone(self), write }
    }

    /// Returns whether a value that was put has been invalidated before the remote is given it.
    /// What this process itself has invalidated before the put does not count.
    pub(super) fn was_overtaken(&self, entry: &Entry<V>, put_at: Option<Stamp>) -> bool {
        let Some(engine) = self.engine.upgrade() else { return false };
        // The first read of the log is no gap for what was put before it.
        let has_gap = put_at.is_some() && engine.log.is_doubted(entry.started_seq);
        has_gap || !engine.log.is_alive(entry)
    }

    fn seq(&self) -> Result<u64, Unavailable> {
        self.engine.upgrade().map(|engine| engine.log.seq()).ok_or(Unavailable)
    }

    /// Waits until the remote has been told all that concerns `key`. Returns the number of the
    /// invalidation log for what is read from the remote after that: what this process
    /// invalidates later has a higher one.
    pub(super) async fn caught_up(&self, key: &Key) -> Result<u64, Unavailable> {
        let seq = self.seq()?;
        let pending = self.pending.that_concern(key);
        if pending.is_empty() {
            return Ok(seq);
        }
        self.are_told(&pending).await?;
        // The number before the second look: an invalidation of a tag that is in neither
        // raises it. There is no third look, or a stream of writes would delay the caller for
        // ever.
        let seq = self.seq()?;
        self.are_told(&self.pending.that_concern(key)).await?;
        Ok(seq)
    }

    /// Waits until all of `writes` are over, for as long as one write may take.
    async fn are_told(&self, writes: &[Arc<PendingWrite>]) -> Result<(), Unavailable> {
        let Some(first) = writes.iter().find(|write| !write.is_over()) else { return Ok(()) };
        let oldest = first.oldest();
        let all = async {
            for write in writes {
                write.over.cancelled().await;
            }
        };
        if tokio::time::timeout(self.longest_of(writes), all).await.is_ok() {
            return Ok(());
        }
        if !oldest.is_over() {
            // Its calls have deadlines, so its task is not run.
            writes.iter().chain([&oldest]).for_each(|write| self.hand_over(write));
        }
        Err(Unavailable)
    }

    /// Returns how long the longest of `writes` may take.
    fn longest_of(&self, writes: &[Arc<PendingWrite>]) -> Duration {
        let calls = writes.iter().map(|write| write.kind.calls()).max().unwrap_or_default();
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        self.gate.longest_deadline(self.gate.largest()).saturating_mul(calls)
    }

    /// Leaves the write to the journal. The remote cannot be given a value then, so it loses
    /// the old one.
    fn hand_over(&self, write: &PendingWrite) {
        if write.is_over() {
            return;
        }
        match &write.kind {
            WriteKind::Put(key) => {
                self.gate.link().journal.note_keys(std::slice::from_ref(key));
            }
            WriteKind::Invalidate(keys) => self.gate.link().journal.note_keys(keys),
            WriteKind::InvalidateTags(tags) => self.gate.link().journal.note_tags(tags),
        }
        self.gate.tend.notify_one();
        // In this order: between the two no caller asks the remote.
        self.pending.end(write);
    }

    /// First the keys, then the log: a process that learns of it finds nothing old. Where a shard
    /// cannot be told of its keys, the others are told all the same.
    pub(super) async fn invalidate_now(&self, keys: &[Key]) -> Delivery {
        self.start();
        let asked = self.asks();
        let remove = async |key| {
            let shard = self.gate.shard_of(key);
            let invalidate = || self.remote().invalidate(key);
            let removed = self.gate.call_shard(RemoteOp::Invalidate, &shard, 0, invalidate).await;
            removed.map_err(|failure| (shard, failure))
        };
        // On their way together: a URI has several keys.
        let removed = join_all(keys.iter().map(remove)).await;
        let (mut ended, mut failed) = (Vec::new(), Vec::new());
        for (key, removed) in keys.iter().zip(removed) {
            match removed {
                Ok(found) => ended.extend(found.version.map(|version| (key.clone(), version))),
                Err(failure) => failed.push(failure),
            }
        }
        if !failed.is_empty() {
            self.gate.link().journal.note_keys(keys);
            failed.into_iter().for_each(|failed| self.is_queued(RemoteOp::Invalidate, failed));
            self.announce_keys(keys, &ended).await;
            return Delivery::Queued;
        }
        // Else they were perhaps removed at one server, and are announced at another.
        let is_over_one =
            || self.log().is_none() || self.gate.link().is_over_one_connection(&asked);
        if is_over_one() {
            let (told, _) = self.announce_keys(keys, &ended).await;
            if is_over_one() {
                return told;
            }
        }
        self.gate.link().journal.note_keys(keys);
        self.gate.tend.notify_one();
        Delivery::Queued
    }

    /// Tells the others of keys that the remote has replaced or, as far as they are in `ended`,
    /// removed. Returns where the log has the first of them, or 0.
    async fn announce_keys(&self, keys: &[Key], ended: &[(Key, Version)]) -> (Delivery, u64) {
        let items = items_of_keys(keys);
        match self.announce(OwnItems { items: &items, ended }).await {
            Ok(position) => (Delivery::Done, position),
            Err(failure) => {
                self.gate.link().journal.note_announcements(&crate::key::announced(keys));
                self.is_queued(RemoteOp::Announce, failure);
                (Delivery::Queued, 0)
            }
        }
    }

    pub(super) async fn invalidate_tags_now(&self, tags: &[Tag]) -> Delivery {
        self.start();
        for (n, some) in tags.chunks(MOST_ANNOUNCED).enumerate() {
            let items = items_of_tags(some);
            if let Err(failure) = self.announce(OwnItems { items: &items, ended: &[] }).await {
                self.gate.link().journal.note_tags(&tags[n * MOST_ANNOUNCED..]);
                self.is_queued(RemoteOp::Announce, failure);
                return Delivery::Queued;
            }
        }
        if self.log().is_some() { Delivery::Done } else { Delivery::NoLog }
    }

    /// Appends to the log, where the remote has one. Returns where the first item is, or 0.
    async fn announce(&self, own: OwnItems<'_>) -> Result<u64, Failed> {
        let shard = self.gate.log_shard();
        let Some(log) = self.log() else {
            if own.items.contains(&LogItem::Everything) {
                let now = shard.clock.server_time(self.tick().plus(CLOCK_TOLERANCE));
                let now = now.unwrap_or_default().as_millis();
                self.everything.fetch_max(now, Ordering::Relaxed);
            }
            return Ok(0);
        };
        if own.items.is_empty() {
            return Ok(0);
        }
        let asked = self.asks();
        let call = || log.announce(own.items, asked.stamp);
        let announced = self.gate.call_shard(RemoteOp::Announce, &shard, 0, call).await;
        let reply = announced.map_err(|failure| (shard, failure))?;
        self.is_announced(&asked, &reply, own);
        Ok(reply.previous.saturating_add(1))
    }

    /// Stores a value that was put when the log was applied up to `put_at`.
    pub(super) async fn put_now(
        &self,
        key: &Key,
        entry: &Entry<V>,
        (write, put_at): (&PendingWrite, Option<Stamp>),
    ) -> Delivery {
        self.start();
        let shard = self.gate.shard_of(key);
        let queue = |failure| {
            self.gate.link().journal.note_keys(std::slice::from_ref(key));
            self.is_queued(RemoteOp::Put, (Arc::clone(&shard), failure));
            Delivery::Queued
        };
        if self.prepared().await.is_err() || self.dated(&shard).await.is_err() {
            return queue(None);
        }
        let sent = self.tick();
        let started = shard.clock.server_time(sent);
        let version = Version::new(UNNUMBERED);
        let stamp = self.stamp();
        if write.is_overtaken(0) || self.was_overtaken(entry, put_at) {
            // The stamp would say that the value is newer than what has ended it.
            return self.invalidate_now(std::slice::from_ref(key)).await;
        }
        let closed = started
            .zip(version)
            .and_then(|(at, version)| self.close((key, &shard), entry, (at, stamp), version));
        let Some((bytes, ttl)) = closed else {
            // It stays in this process; what others hold is out of date.
            self.gate.observer.happened(Occurrence::Unshareable { key });
            return self.invalidate_now(std::slice::from_ref(key)).await;
        };
        let put = || self.remote().put(key, ttl, bytes.clone());
        match self.gate.call(RemoteOp::Put, key, bytes.len(), put).await {
            Ok((now, _)) => {
                self.sample(&shard, sent, now);
                let (mut told, mut own) = (Delivery::Done, 0);
                if !write.is_overtaken(0) {
                    (told, own) = self.announce_keys(std::slice::from_ref(key), &[]).await;
                }
                // The log says so as well, where messages are late or lost.
                if write.is_overtaken(own) {
                    // Which of the two is the later one is not known.
                    return self.invalidate_now(std::slice::from_ref(key)).await;
                }
                told
            }
            // The remote has dropped the old value in place of a new one.
            Err(Some(RemoteErrorKind::OutOfMemory)) => {
                self.announce_keys(std::slice::from_ref(key), &[]).await.0
            }
            Err(failure) => queue(failure),
        }
    }

    /// Has the remote told of what was noted in the journal. A shard that could not be told is
    /// away.
    pub(super) fn is_queued(&self, op: RemoteOp, (shard, failure): Failed) {
        if let Some(kind) = failure {
            self.gate.trip(op, &shard, kind);
        }
        self.gate.tend.notify_one();
    }
}

/// A call that came to nothing, and the shard that it was for.
type Failed = (Arc<ShardState>, RemoteFailure);
