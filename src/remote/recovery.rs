//! Brings a shard back that was away, and tells the remote what it has missed.
//!
//! Each shard that is away has a task of its own, which probes it. When a probe succeeds, the
//! shard is told what stands in the journal about its keys. Where it has the log, the log is told
//! too, and read: then requests ask the shard again. What was noted meanwhile, or concerns
//! several shards, is told by a task that is there while the journal has anything that can be
//! told.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use futures_util::future::join_all;

use crate::key::{Key, uncollected};
use crate::observe::RemoteOp;
use crate::remote::coordinator::EntryRemote;
use crate::remote::link::journal::JournalWork;
use crate::remote::link::known::OwnItems;
use crate::remote::link::{items_of_keys, items_of_tags};
use crate::remote::log::LogItem;
use crate::remote::shard::{Shard, ShardState, probe_pause};
use crate::remote::{RemoteErrorKind, Version};

/// A call that failed, and the shard that it was made to.
type Failed = (Arc<ShardState>, RemoteErrorKind);

impl<V: Send + Sync + 'static> EntryRemote<V> {
    /// Has each shard brought back that is away, and the remote told of what it has missed.
    /// `runtime` is the number of the task that looks after the link.
    pub(super) fn recover(&self, runtime: u64) {
        for shard in self.gate.shards.away() {
            if shard.return_task.take(runtime) {
                let claim = Claim { store: Weak::clone(&self.me), runtime, shard: Some(shard) };
                tokio::spawn(claim.bring_back());
            }
        }
        if !self.gate.link().journal.is_empty() && self.driver.telling_task.take(runtime) {
            let claim = Claim { store: Weak::clone(&self.me), runtime, shard: None };
            tokio::spawn(claim.tell_journal());
        }
    }

    /// Probes a shard, tells it what it has missed, and lets requests ask it again.
    async fn bring_back(&self, shard: &Arc<ShardState>) -> Result<(), RemoteErrorKind> {
        self.read_clock(shard).await?;
        let is_asked = |other: Shard| other == shard.shard || self.gate.shards.of(other).answers();
        match self.replay(is_asked).await {
            Ok(_) => {}
            Err((failed, kind)) if failed.shard == shard.shard => return Err(kind),
            Err((failed, kind)) => self.gate.trip(RemoteOp::Invalidate, &failed, kind),
        }
        if shard.shard == self.gate.log_shard().shard {
            self.open_log(shard).await?;
        } else {
            self.gate.close(shard);
        }
        Ok(())
    }

    /// Tells the remote what it has missed, as far as shards are asked. Returns whether all of
    /// that was told: keys on their way to another server are left.
    async fn replay(&self, is_asked: impl Fn(Shard) -> bool) -> Result<bool, Failed> {
        let with_log = is_asked(self.gate.log_shard().shard);
        let mut left: HashSet<Key> = HashSet::new();
        // What is noted from now on is told later: a stream of invalidations would keep a shard
        // away for ever.
        let mut most = self.gate.link().journal.len();
        loop {
            let selects = |key: &Key| {
                let asked = |key: &Key| is_asked(self.remote().shard_of(key));
                !left.contains(key) && uncollected(key).iter().all(asked)
            };
            let asked = self.asks();
            let work = self.gate.link().journal.next(with_log, selects);
            let Some(work) = work else { break };
            let told = match &work {
                JournalWork::Announcements(keys) => {
                    self.announce_late(&items_of_keys(keys), &[]).await?;
                    work
                }
                JournalWork::Tags(tags) => {
                    self.announce_late(&items_of_tags(tags), &[]).await?;
                    work
                }
                JournalWork::Keys(keys) => {
                    let (told, ended) = self.remove_late(keys).await?;
                    left.extend(keys.iter().filter(|key| !told.contains(key)).cloned());
                    let removed: Vec<_> = told.iter().flat_map(uncollected).collect();
                    match with_log {
                        true => self.announce_late(&items_of_keys(&removed), &ended).await?,
                        false => self.gate.link().journal.note_announcements(&removed),
                    }
                    if with_log && !self.gate.link().is_over_one_connection(&asked) {
                        // Perhaps they were removed at one server and announced at another.
                        left.extend(told);
                        continue;
                    }
                    JournalWork::Keys(told)
                }
            };
            self.gate.link().journal.done(&told);
            self.is_at_work();
            most = most.saturating_sub(told.len());
            if most == 0 {
                break;
            }
        }
        Ok(left.is_empty())
    }

    /// Removes keys. Returns those that were removed: the others are on their way to another
    /// server. With the versions that no later computation is below.
    async fn remove_late(&self, keys: &[Key]) -> Result<(Vec<Key>, Vec<(Key, Version)>), Failed> {
        let remove = async |key: Key| {
            let shard = self.gate.shard_of(&key);
            let invalidate = self.remote().invalidate(&key);
            match self.gate.attempt(RemoteOp::Invalidate, &shard, 0, invalidate).await {
                Ok(found) => Ok(Some(found.version.map(|version| (key, version)))),
                Err(kind) if kind.says_nothing_of_health() => Ok(None),
                Err(kind) => Err((shard, kind)),
            }
        };
        // Together: one round trip after the other would not keep up with an application that
        // goes on invalidating.
        let remove_all = async |key: &Key| {
            let removed = join_all(uncollected(key).into_iter().map(&remove)).await;
            removed.into_iter().collect::<Result<Option<Vec<_>>, Failed>>()
        };
        let removed = join_all(keys.iter().map(&remove_all)).await;
        let (mut told, mut ended) = (Vec::new(), Vec::new());
        for (key, removed) in keys.iter().zip(removed) {
            if let Some(versions) = removed? {
                told.push(key.clone());
                ended.extend(versions.into_iter().flatten());
            }
        }
        Ok((told, ended))
    }

    async fn announce_late(
        &self,
        items: &[LogItem],
        ended: &[(Key, Version)],
    ) -> Result<(), Failed> {
        let Some(log) = self.log().filter(|_| !items.is_empty()) else { return Ok(()) };
        let shard = self.gate.log_shard();
        let asked = self.asks();
        let announce = log.announce(items, asked.stamp);
        let announced = self.gate.attempt(RemoteOp::Announce, &shard, 0, announce).await;
        let reply = announced.map_err(|kind| (shard, kind))?;
        self.is_announced(&asked, &reply, OwnItems { items, ended });
        Ok(())
    }
}

/// The claim to be the task that brings a shard back, or, without one, that tells the journal.
/// It is given up however the task ends.
struct Claim<V: Send + Sync + 'static> {
    store: Weak<EntryRemote<V>>,
    runtime: u64,
    shard: Option<Arc<ShardState>>,
}

impl<V: Send + Sync + 'static> Claim<V> {
    /// Probes the shard until it is back, or the cache gone.
    async fn bring_back(self) {
        let Some(shard) = &self.shard else { return };
        let mut pause = shard.pace.lock().pause_if_unsteady();
        loop {
            tokio::time::sleep(pause).await;
            let Some(store) = self.store.upgrade() else { return };
            if store.bring_back(shard).await.is_ok() {
                shard.pace.lock().was_brought_back();
                let tend = Arc::clone(&store.gate.tend);
                drop((store, self));
                // For the rest of the journal, and where the shard has gone away again.
                return tend.notify_one();
            }
            pause = shard.pace.lock().probes.lengthen();
        }
    }

    /// Tells the remote what stands in the journal, until nothing is left that can be told.
    async fn tell_journal(self) {
        let mut backoff = probe_pause();
        loop {
            let Some(store) = self.store.upgrade() else { return };
            let noted = store.gate.link().journal.notes();
            let is_asked = |shard: Shard| store.gate.shards.of(shard).answers();
            match store.replay(is_asked).await {
                // The rest is for shards that are away. They have it told when they are back.
                Ok(true)
                    if store.gate.link().journal.is_empty() || !store.gate.shards.all_answer() =>
                {
                    drop(self);
                    if store.gate.link().journal.notes() != noted {
                        store.gate.tend.notify_one();
                    }
                    return;
                }
                Ok(true) => backoff.reset(),
                Ok(false) => {}
                Err((shard, kind)) => store.gate.trip(RemoteOp::Invalidate, &shard, kind),
            }
            drop(store);
            tokio::time::sleep(backoff.lengthen()).await;
        }
    }
}

impl<V: Send + Sync + 'static> Drop for Claim<V> {
    fn drop(&mut self) {
        let Some(store) = self.store.upgrade() else { return };
        let task = self.shard.as_ref().map_or(&store.driver.telling_task, |it| &it.return_task);
        task.give_up(self.runtime);
    }
}
