//! `put` and invalidations: in this process at once, then in the remote.
//!
//! The order is the same everywhere. First the write is noted as pending
//! (`remote::writes`): from then on callers that ask the remote wait until it has been
//! told. Then this process does its part: what asked the remote before that cannot be stored
//! any more. Last, the remote is told.

use std::sync::Arc;
use std::time::Duration;

use crate::cache::handle::{Announcement, Invalidation};
use crate::cache::state::{CacheState, Lookup};
use crate::computed::Computed;
use crate::entry::{ComputationStart, Entry};
use crate::flight::door::{Conclusion, Lead, try_lead};
use crate::flight::ports::Store;
use crate::flight::request::{FlightRequest, LedFor};
use crate::freshness::Freshness;
#[cfg(feature = "http")]
use crate::key::UriReach;
use crate::key::{Key, Tag, uri_tag_of};
use crate::lease::shared_store::{
    Delivery, Errand, RemoteHealth, RemoteValue, SharedStore, Unavailable,
};
use crate::mode::Mode;
use crate::observe::{Observe, Occurrence};

impl<V: Clone + Send + Sync + 'static> CacheState<V> {
    pub(crate) fn remote_health(&self) -> Option<RemoteHealth> {
        self.engine.shared.get().map(|shared| shared.health())
    }

    pub(crate) fn servers_away(&self) -> Vec<String> {
        self.engine.shared.get().map(|shared| shared.servers_away()).unwrap_or_default()
    }

    pub(crate) async fn invalidate(self: &Arc<Self>, key: Key) -> Invalidation {
        self.observer.happened(Occurrence::Invalidated { key: &key });
        self.revoke(key).await
    }

    pub(super) async fn revoke(self: &Arc<Self>, key: Key) -> Invalidation {
        let (local, errand) = self.revoke_here(&key);
        Invalidation { local, remote: self.tell(errand).await }
    }

    pub(crate) async fn invalidate_tags(self: &Arc<Self>, tags: Box<[Tag]>) -> Invalidation {
        if tags.is_empty() {
            return Invalidation { local: false, remote: Announcement::NoRemote };
        }
        let errand = self.invalidate_tags_here(&tags);
        Invalidation { local: true, remote: self.tell(errand).await }
    }

    /// Ends what is stored and computed of some URIs, in all processes. Returns how many
    /// invalidations this process has recorded for itself, too.
    #[cfg(feature = "http")]
    pub(crate) async fn invalidate_uris(self: &Arc<Self>, reach: UriReach) -> (Invalidation, u64) {
        let (recorded, errand) = self.invalidate_uris_here(reach);
        (Invalidation { local: recorded > 0, remote: self.tell(errand).await }, recorded)
    }

    pub(crate) async fn mark_stale(self: &Arc<Self>, key: &Key) -> Invalidation {
        let (local, errand) = self.mark_stale_here(key);
        Invalidation { local, remote: self.tell(errand).await }
    }

    /// Makes a value stale from where nothing can be awaited.
    pub(crate) fn mark_stale_in_background(self: &Arc<Self>, key: &Key) -> bool {
        let (local, errand) = self.mark_stale_here(key);
        self.tell_in_background(errand);
        local
    }

    /// Makes stale what carries one of the tags, as [`mark_stale`](Self::mark_stale) does it for a
    /// key: in this process, and in the others.
    pub(crate) async fn mark_tags_stale(self: &Arc<Self>, tags: &[Tag]) -> Invalidation {
        self.invalidate_tags(tags.iter().map(Tag::stale_mark).collect()).await
    }

    /// The same from where nothing can be awaited.
    #[cfg(feature = "http")]
    pub(crate) fn invalidate_uris_in_background(self: &Arc<Self>, reach: UriReach) {
        let (_, errand) = self.invalidate_uris_here(reach);
        self.tell_in_background(errand);
    }

    /// Invalidates tags from where nothing can be awaited.
    pub(crate) fn invalidate_tags_in_background(self: &Arc<Self>, tags: &[Tag]) {
        if !tags.is_empty() {
            let errand = self.invalidate_tags_here(tags);
            self.tell_in_background(errand);
        }
    }

    pub(crate) fn invalidate_in_background(self: &Arc<Self>, key: &Key) -> bool {
        self.observer.happened(Occurrence::Invalidated { key });
        let (local, errand) = self.revoke_here(key);
        self.tell_in_background(errand);
        local
    }

    pub(crate) async fn put(self: &Arc<Self>, key: Key, computed: Computed<V>) {
        let errand = self.put_here(&key, computed);
        self.tell(errand).await;
    }

    pub(crate) fn put_in_background(self: &Arc<Self>, key: &Key, computed: Computed<V>) {
        let errand = self.put_here(key, computed);
        self.tell_in_background(errand);
    }

    /// Begins to tell the remote, if there is one.
    fn begin(&self, write: impl FnOnce(Arc<dyn SharedStore<V>>) -> Errand) -> Option<Errand> {
        self.engine.shared.get().map(|shared| write(Arc::clone(shared)))
    }

    /// A key of the HTTP layer names a URI: then all that is stored of the URI ends.
    fn revoke_here(&self, key: &Key) -> (bool, Option<Errand>) {
        let errand = self.begin(|shared| shared.invalidate(remote_keys(key)));
        let tag = uri_tag_of(key.as_bytes());
        let has_ended = tag.and_then(|tag| self.engine.invalidate_if_live(&tag)).is_some();
        (self.engine.drop_here(key) || has_ended, errand)
    }

    fn mark_stale_here(&self, key: &Key) -> (bool, Option<Errand>) {
        let errand = self.begin(|shared| shared.invalidate_tags([Tag::mark_of_key(key)].into()));
        (self.engine.mark_stale(key), errand)
    }

    #[cfg(feature = "http")]
    fn invalidate_uris_here(&self, reach: UriReach) -> (u64, Option<Errand>) {
        let errand = self.begin(|shared| shared.invalidate(reach.keys.into()));
        let mut recorded = 0;
        for tag in &reach.tags {
            if self.engine.invalidate_if_live(tag).is_some() {
                self.observer.happened(Occurrence::TagInvalidated { tag });
                recorded += 1;
            }
        }
        (recorded, errand)
    }

    fn invalidate_tags_here(&self, tags: &[Tag]) -> Option<Errand> {
        let errand = self.begin(|shared| shared.invalidate_tags(tags.into()));
        for tag in tags {
            self.invalidate_tag_now(tag);
        }
        errand
    }

    /// Stores the value in this process. One that is not to be stored takes the older value's
    /// place too: here and in other processes that is out of date.
    fn put_here(self: &Arc<Self>, key: &Key, computed: Computed<V>) -> Option<Errand> {
        let Some(entry) = self.entry_to_put(key, computed) else {
            return self.revoke_here(key).1;
        };
        let errand = self.begin(|shared| shared.put(key.clone(), Arc::clone(&entry)));
        self.engine.put_here(key, entry);
        self.tidy_from_now_on();
        errand
    }

    fn entry_to_put(&self, key: &Key, computed: Computed<V>) -> Option<Arc<Entry<V>>> {
        // A stream that still arrives would be stored without its rest.
        let is_whole = computed.rest.is_none();
        if self.engine.mode() == Mode::Off || !computed.storable || !is_whole {
            return None;
        }
        let started = ComputationStart { tick: self.now(), seq: self.engine.log.seq() };
        let (entry, keep) = self.make_entry(computed, key, started, Duration::ZERO);
        keep.then(|| Arc::new(entry))
    }

    /// Removes the value that a newer answer takes the place of: a failure, or a result that is not
    /// stored. Returns what tells the remote. It is gone there before the leader ends: what another
    /// process puts after that stays.
    pub(super) fn remove_older(&self, lead: &Lead<V>, older: &Arc<Entry<V>>) -> Option<Errand> {
        let key = lead.key().clone();
        // The flight goes on: its marks are yet to come.
        let errand = self.begin(|shared| shared.invalidate(Box::new([key])));
        self.remove_older_here(lead, older);
        errand
    }

    /// The same in this process alone.
    pub(super) fn remove_older_here(&self, lead: &Lead<V>, older: &Arc<Entry<V>>) {
        lead.keep_garbage(self.local.remove_exactly(lead.key(), older));
    }

    /// Removes what stands at a key of the remote, before the leader ends that has its lease.
    #[cfg(feature = "http")]
    pub(crate) async fn remove_in_remote(self: &Arc<Self>, key: Key) {
        let errand = self.begin(|shared| shared.invalidate(Box::new([key])));
        self.tell(errand).await;
    }

    /// Tells the remote, on a task of its own: a caller that goes away must not
    /// leave it half told.
    pub(super) async fn tell(self: &Arc<Self>, errand: Option<Errand>) -> Announcement {
        let Some(errand) = errand else { return Announcement::NoRemote };
        match self.engine.errand(self.keeping(errand)).await {
            Some(Delivery::Done) => Announcement::Done,
            Some(Delivery::NoLog) => Announcement::NoRemote,
            // Also when the runtime shut down before it was told.
            Some(Delivery::Queued) | None => Announcement::Queued,
        }
    }

    /// Tells the remote on a task that no caller waits for. Where there is no runtime, or where
    /// that ends first, the remote is told before this process asks it again.
    fn tell_in_background(self: &Arc<Self>, errand: Option<Errand>) {
        if let Some(errand) = errand {
            self.engine.errand_in_background(self.keeping(errand));
        }
    }

    /// Keeps what the errand needs of the cache, which may be dropped before it is done.
    fn keeping(self: &Arc<Self>, errand: Errand) -> impl Future<Output = Delivery> + use<V> {
        let state = Arc::clone(self);
        async move {
            let told = errand.await;
            drop(state);
            told
        }
    }

    /// Asks the remote for a value that may be served, and keeps a copy.
    pub(crate) async fn fetch(self: &Arc<Self>, key: Key) -> Option<Arc<Entry<V>>> {
        self.fetch_value(key).await.ok().flatten()
    }

    /// Looks for a call that skips the copy of this process: what it finds there and in the remote,
    /// whichever is newer. A copy of a value that the remote has no more is stale from now on.
    pub(crate) async fn look_past_copy(
        self: &Arc<Self>,
        key: Key,
    ) -> Result<Arc<Entry<V>>, (Key, Lookup<V>)> {
        let look = match self.fetch_value(key.clone()).await {
            Ok(Some(found)) if self.now() < found.window().fresh_until => Lookup::Fresh(found),
            Ok(Some(found)) => Lookup::Stale(found),
            Ok(None) => {
                let copy = self.local.peek(key.as_bytes()).filter(|copy| copy.version.is_some());
                if let Some(copy) = copy {
                    copy.mark_stale(self.now());
                }
                self.look(key.as_bytes())
            }
            Err(Unavailable) => self.look(key.as_bytes()),
        };
        match look {
            Lookup::Fresh(entry) => {
                self.observer.hit(key.as_bytes(), &entry);
                Ok(entry)
            }
            look => Err((key, look)),
        }
    }

    /// Returns a value that may be served, or that there is none in the remote. Where that cannot be
    /// asked, or has something older than this process, or a marker, it says nothing.
    async fn fetch_value(self: &Arc<Self>, key: Key) -> Result<Option<Arc<Entry<V>>>, Unavailable> {
        let shared = Arc::clone(self.engine.shared.get().ok_or(Unavailable)?);
        if self.engine.mode() != Mode::On || !shared.is_up(&key) {
            return Err(Unavailable);
        }
        self.engine.note_runtime();
        let request = FlightRequest::of(key).despite_hold().led_for(LedFor::CallerWithValue);
        let key = request.key.clone();
        // As the leader of a flight it cannot store a value that is invalidated meanwhile.
        let Some(lead) = try_lead(&self.engine, request) else {
            return self.servable(&key, shared.get(&key, &mut None).await?);
        };
        let found = shared.get(&key, &mut None).await;
        let entry = match found.and_then(|found| self.servable(&key, found)) {
            Ok(Some(entry)) => entry,
            nothing => {
                lead.end(Conclusion::Withdraw);
                return nothing;
            }
        };
        lead.adopt(&entry);
        self.adopted(&entry);
        lead.end_found(Arc::clone(&entry)).after_others().await;
        Ok(Some(entry))
    }

    fn servable(
        &self,
        key: &Key,
        found: RemoteValue<V>,
    ) -> Result<Option<Arc<Entry<V>>>, Unavailable> {
        let entry = match found {
            RemoteValue::Entry(entry) => entry,
            RemoteValue::Nothing | RemoteValue::Useless(_) => return Ok(None),
            RemoteValue::Uncacheable { .. } => return Err(Unavailable),
        };
        let here = self.local.peek(key.as_bytes()).filter(|here| self.engine.log.is_alive(here));
        let is_newer = |here: Arc<Entry<V>>| match (here.version, entry.version) {
            (Some(here), Some(found)) => here > found,
            // It has still to be told to the remote, or is for this process alone.
            _ => here.started() > entry.started(),
        };
        if here.is_some_and(is_newer) {
            return Err(Unavailable);
        }
        Ok(match self.judge_found(key, &entry) {
            Freshness::Fresh | Freshness::Early | Freshness::Stale => Some(entry),
            Freshness::StaleIfError | Freshness::Expired => None,
        })
    }
}

/// Returns where something may stand in the remote that `key` names.
fn remote_keys(key: &Key) -> Box<[Key]> {
    #[cfg(feature = "http")]
    if let Some(name) = crate::key::UriName::of_key(key.as_bytes()) {
        return name.primary_keys().chain([name.anchor()]).collect();
    }
    Box::new([key.clone()])
}
