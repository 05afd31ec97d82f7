//! `put` and invalidations: in this process at once, then in the remote.
//!
//! The order is the same everywhere: this process, the remote, this process again. Between
//! the first two steps this process may take over an old value from the remote; the third
//! step ends that.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Shared;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::cache::handle::{Announcement, Invalidation};
use crate::cache::state::CacheState;
use crate::computed::Computed;
use crate::entry::{ComputationStart, Entry};
use crate::flight::end::End;
use crate::flight::engine::{Admission, FlightRequest, LedFor};
use crate::flight::leader::Leader;
use crate::flight::ports::Store;
use crate::freshness::Freshness;
use crate::key::{Key, Tag};
use crate::lease::shared_store::{Delivery, RemoteHealth, RemoteValue, SharedStore};
use crate::mode::Mode;
use crate::observe::{Observe, Occurrence};

/// The order in which the background tells the remote: as it was asked to. An invalidation
/// must not overtake the `put` before it.
#[derive(Default)]
pub(crate) struct BackgroundOrder(Mutex<Option<Shared<oneshot::Receiver<()>>>>);

impl BackgroundOrder {
    /// Returns the turn of an errand, which ends when it is dropped, and when it begins.
    fn next(&self) -> (oneshot::Sender<()>, impl Future<Output = ()> + Send + use<>) {
        let (turn, over) = oneshot::channel();
        let before = self.0.lock().replace(over.shared());
        (turn, ended(before))
    }

    /// Waits until all errands so far have ended.
    fn last(&self) -> impl Future<Output = ()> + Send + use<> {
        ended(self.0.lock().clone())
    }
}

async fn ended(turn: Option<Shared<oneshot::Receiver<()>>>) {
    if let Some(turn) = turn {
        // It has ended, also where its sender was dropped.
        let _ = turn.await;
    }
}

/// What the remote is still to be told. Dropped before that is done, for example with the
/// runtime, it is queued as during an outage.
struct Undone<V, Q: FnOnce(&dyn SharedStore<V>)> {
    shared: Arc<dyn SharedStore<V>>,
    queue: Option<Q>,
}

impl<V, Q: FnOnce(&dyn SharedStore<V>)> Undone<V, Q> {
    fn settle(mut self) {
        self.queue = None;
    }
}

impl<V, Q: FnOnce(&dyn SharedStore<V>)> Drop for Undone<V, Q> {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue(&*self.shared);
        }
    }
}

impl<V: Clone + Send + Sync + 'static> CacheState<V> {
    pub(crate) fn remote_health(&self) -> Option<RemoteHealth> {
        self.engine.shared.get().map(|shared| shared.health())
    }

    pub(crate) async fn invalidate(self: &Arc<Self>, key: Key) -> Invalidation {
        self.observer.happened(Occurrence::Invalidated { key: &key });
        self.revoke(key).await
    }

    pub(super) async fn revoke(self: &Arc<Self>, key: Key) -> Invalidation {
        let local = self.engine.drop_here(&key);
        let told = key.clone();
        let remote = self.tell(
            |inner, shared| inner.tell_key(shared, told),
            move |shared| shared.queue_invalidation(&key),
        );
        Invalidation { local, remote: remote.await }
    }

    pub(crate) async fn invalidate_tags(self: &Arc<Self>, tags: Box<[Tag]>) -> Invalidation {
        if tags.is_empty() {
            return Invalidation { local: false, remote: Announcement::NoRemote };
        }
        for tag in &tags {
            self.invalidate_tag_now(tag);
        }
        let told = tags.clone();
        let remote = self.tell(
            |inner, shared| inner.tell_tags(shared, told),
            move |shared| shared.queue_tag_invalidation(&tags),
        );
        Invalidation { local: true, remote: remote.await }
    }

    /// The same from where nothing can be awaited.
    pub(crate) fn invalidate_tags_in_background(self: &Arc<Self>, tags: &[Tag]) {
        if tags.is_empty() {
            return;
        }
        for tag in tags {
            self.invalidate_tag_now(tag);
        }
        self.tell_in_background(|inner, shared| inner.tell_tags(shared, tags.into()), {
            let queued: Box<[Tag]> = tags.into();
            move |shared| shared.queue_tag_invalidation(&queued)
        });
    }

    pub(crate) fn invalidate_in_background(self: &Arc<Self>, key: &Key) -> bool {
        self.observer.happened(Occurrence::Invalidated { key });
        self.revoke_in_background(key)
    }

    fn revoke_in_background(self: &Arc<Self>, key: &Key) -> bool {
        let local = self.engine.drop_here(key);
        let (told, queued) = (key.clone(), key.clone());
        self.tell_in_background(
            |inner, shared| inner.tell_key(shared, told),
            move |shared| shared.queue_invalidation(&queued),
        );
        local
    }

    pub(crate) fn put_in_background(self: &Arc<Self>, key: &Key, computed: Computed<V>) {
        let Some(entry) = self.put_here(key, computed) else {
            self.revoke_in_background(key);
            return;
        };
        let (put, queued) = (key.clone(), key.clone());
        self.tell_in_background(
            |inner, shared| inner.tell_put(shared, put, entry),
            // The remote cannot be given the value now, so it loses the old one.
            move |shared| shared.queue_invalidation(&queued),
        );
    }

    /// Tells the remote on a task of its own, one after the other. `queue` has it told before
    /// this process asks it again: where there is no runtime, or where that ends first.
    fn tell_in_background<F>(
        self: &Arc<Self>,
        errand: impl FnOnce(Arc<Self>, Arc<dyn SharedStore<V>>) -> F,
        queue: impl FnOnce(&dyn SharedStore<V>) + Send + 'static,
    ) where
        F: Future<Output = Delivery> + Send + 'static,
    {
        let Some(shared) = self.engine.shared.get() else { return };
        let errand = errand(Arc::clone(self), Arc::clone(shared));
        let undone = Undone { shared: Arc::clone(shared), queue: Some(queue) };
        let (turn, before) = self.background.next();
        // Where it cannot run it is dropped here, and that queues it.
        self.engine.errand_in_background(async move {
            let _turn = turn;
            before.await;
            errand.await;
            undone.settle();
        });
    }

    async fn tell_key(self: Arc<Self>, shared: Arc<dyn SharedStore<V>>, key: Key) -> Delivery {
        let told = shared.invalidate(&key).await;
        self.engine.drop_here(&key);
        told
    }

    async fn tell_put(
        self: Arc<Self>,
        shared: Arc<dyn SharedStore<V>>,
        key: Key,
        entry: Arc<Entry<V>>,
    ) -> Delivery {
        let told = shared.put(&key, &entry).await;
        self.drop_others(&key, &entry);
        told
    }

    async fn tell_tags(
        self: Arc<Self>,
        shared: Arc<dyn SharedStore<V>>,
        tags: Box<[Tag]>,
    ) -> Delivery {
        let told = shared.invalidate_tags(&tags).await;
        if told == Delivery::Queued {
            for tag in tags {
                self.engine.invalidate_tag(tag, self.now());
            }
        }
        told
    }

    pub(crate) async fn put(self: &Arc<Self>, key: Key, computed: Computed<V>) {
        let Some(entry) = self.put_here(&key, computed) else {
            // The copies of other processes are out of date as well.
            self.revoke(key).await;
            return;
        };
        let put = key.clone();
        self.tell(
            |inner, shared| inner.tell_put(shared, put, entry),
            move |shared| shared.queue_invalidation(&key),
        )
        .await;
    }

    /// Stores the value in this process, unless it is not to be stored.
    fn put_here(self: &Arc<Self>, key: &Key, computed: Computed<V>) -> Option<Arc<Entry<V>>> {
        if self.engine.mode() == Mode::Off || !computed.storable {
            return None;
        }
        let started = ComputationStart { tick: self.now(), seq: self.engine.log.seq() };
        let (entry, keep) = self.make_entry(computed, key, started, Duration::ZERO);
        if !keep {
            return None;
        }
        let entry = Arc::new(entry);
        self.engine.put_here(key, Arc::clone(&entry));
        self.tidy_from_now_on();
        Some(entry)
    }

    /// Removes the value that a failure takes the place of, here and in the remote. It is gone
    /// there before the leader ends: what another process puts after that stays.
    pub(super) async fn remove_older(
        self: &Arc<Self>,
        leader: &Leader<V>,
        older: Option<&Arc<Entry<V>>>,
    ) {
        let Some(older) = older.filter(|_| leader.is_current()) else { return };
        let key = leader.key();
        drop(self.local.remove_exactly(key, older));
        let told = key.clone();
        // No second removal here, as after other invalidations: the hold is yet to come.
        let tell =
            |_, shared: Arc<dyn SharedStore<V>>| async move { shared.invalidate(&told).await };
        let queued = key.clone();
        self.tell(tell, move |shared| shared.queue_invalidation(&queued)).await;
    }

    /// Ends the local use of any entry but `entry`: it may have come from the
    /// remote before the remote was overwritten.
    fn drop_others(&self, key: &Key, entry: &Arc<Entry<V>>) {
        self.engine.forget(key);
        if let Some(other) = self.local.get(key.as_bytes())
            && !Arc::ptr_eq(&other, entry)
        {
            drop(self.local.remove_exactly(key, &other));
        }
    }

    /// Tells the remote, on a task of its own: a caller that goes away must not
    /// leave it half told.
    async fn tell<F>(
        self: &Arc<Self>,
        errand: impl FnOnce(Arc<Self>, Arc<dyn SharedStore<V>>) -> F,
        queue: impl FnOnce(&dyn SharedStore<V>) + Send + 'static,
    ) -> Announcement
    where
        F: Future<Output = Delivery> + Send + 'static,
    {
        let Some(shared) = self.engine.shared.get() else { return Announcement::NoRemote };
        let errand = errand(Arc::clone(self), Arc::clone(shared));
        let undone = Undone { shared: Arc::clone(shared), queue: Some(queue) };
        // After all that the background has still to tell: it was said before.
        let before = self.background.last();
        let errand = async move {
            before.await;
            let told = errand.await;
            undone.settle();
            told
        };
        match self.engine.errand(errand).await {
            Some(Delivery::Done) => Announcement::Done,
            // Also when the runtime shut down before it was told.
            Some(Delivery::Queued) | None => Announcement::Queued,
        }
    }

    /// Asks the remote for a value that may be served, and keeps a copy.
    pub(crate) async fn fetch(self: &Arc<Self>, key: Key) -> Option<Arc<Entry<V>>> {
        let shared = Arc::clone(self.engine.shared.get()?);
        if self.engine.mode() != Mode::On || !shared.is_up() {
            return None;
        }
        self.engine.note_runtime();
        let request = FlightRequest::of(key).without_waiting().despite_hold();
        let request = request.led_for(LedFor::CallerWithValue);
        // As the leader of a flight it cannot store a value that is invalidated meanwhile.
        let Admission::Lead(leader) = self.engine.enter(&request, &mut None) else {
            let found = shared.get(&request.key).await;
            return found.ok().and_then(|found| self.servable(&request.key, found));
        };
        let found = shared.get(&request.key).await;
        let Some(entry) = found.ok().and_then(|found| self.servable(&request.key, found)) else {
            leader.end(End::Withdrawn);
            return None;
        };
        leader.adopt(&entry);
        self.adopted(&entry);
        leader.end(End::Found(Arc::clone(&entry)));
        Some(entry)
    }

    fn servable(&self, key: &Key, found: RemoteValue<V>) -> Option<Arc<Entry<V>>> {
        let RemoteValue::Entry(entry) = found else { return None };
        match self.judge_found(key, &entry) {
            Freshness::Fresh | Freshness::Early | Freshness::Stale => Some(entry),
            Freshness::StaleIfError | Freshness::Expired => None,
        }
    }
}
