//! Makes a store of entries out of a remote of bytes: opens and closes envelopes,
//! translates times, and applies invalidations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use crate::cache::weights::Weights;
use crate::clock::Tick;
use crate::entry::Entry;
use crate::flight::engine::Engine;
use crate::freshness::{Lifetimes, Window};
use crate::key::{Key, Tag, is_of_process};
use crate::lease::grant::{FillOutcome, Grant, LeaseRequest, Token};
use crate::lease::shared_store::{
    AcquireAnswer, Delivery, Errand, FillPayload, NoticeFuture, RemoteFuture, RemoteHealth,
    RemoteValue, SharedStore, Unavailable,
};
use crate::lease::wakes::Listener;
use crate::observe::{Observe, Occurrence, RemoteCall};
use crate::remote::clock::ServerClock;
use crate::remote::envelope::{self, Damage, Envelope, EnvelopeContents, Kind};
use crate::remote::guard::{Guard, RemoteFailure};
use crate::remote::log_retention::LogRetention;
use crate::remote::pending_writes::{PendingWrites, WriteKind};
use crate::remote::sync::Synchronizer;
use crate::remote::tag_log::Mirror;
use crate::remote::{AcquireOutcome, Remote, RemoteErrorKind, RemoteSettings, ServerTime, Version};

/// How values become bytes and weigh.
pub(crate) struct Codec<V> {
    pub(crate) encode: fn(&V) -> Option<Bytes>,
    pub(crate) decode: fn(Bytes) -> Option<V>,
    pub(crate) weights: Weights<V>,
    pub(crate) schema: u32,
}

/// The times the remote is asked with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTimes {
    pub(crate) lease: Duration,
    /// How long a computation and its waiters can take.
    pub(crate) work: Duration,
}

pub(crate) struct EntryRemote<V: Send + Sync + 'static> {
    pub(super) me: Weak<Self>,
    pub(super) engine: Weak<Engine<V>>,
    pub(super) gate: Guard,
    pub(super) mirror: Mirror,
    pub(super) clock: ServerClock,
    pub(super) link: Synchronizer,
    pub(super) told: LogRetention,
    pub(super) pending: PendingWrites,
    codec: Codec<V>,
    times: LeaseTimes,
    /// The longest time any entry may be of use, in milliseconds.
    longest_kept: AtomicU64,
}

/// Tags that the mirror keeps, as many as the log of one process.
const MAX_TAGS: usize = 100_000;

/// The shortest time a remote can keep anything.
const LEAST_TTL: Duration = Duration::from_millis(1);

/// How far ahead a reading of the remote's clock may seem to be.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);

/// The version of an envelope that the remote itself numbers.
const UNNUMBERED: u64 = 1;

impl<V: Send + Sync + 'static> EntryRemote<V> {
    pub(crate) fn new(
        remote: Arc<dyn Remote>,
        settings: RemoteSettings,
        codec: Codec<V>,
        times: LeaseTimes,
        engine: &Arc<Engine<V>>,
    ) -> Arc<Self> {
        let observer: Arc<dyn Observe> = Arc::clone(&engine.observer);
        observer.happened(Occurrence::RemoteAttached);
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            engine: Arc::downgrade(engine),
            gate: Guard::new(remote, settings, observer),
            mirror: Mirror::new(MAX_TAGS),
            clock: ServerClock::new(),
            link: Synchronizer::new(),
            told: LogRetention::default(),
            pending: PendingWrites::default(),
            codec,
            times,
            longest_kept: AtomicU64::new(0),
        })
    }

    pub(super) fn remote(&self) -> &dyn Remote {
        &*self.gate.remote
    }

    /// Returns how long anything of this cache can be of use.
    pub(super) fn longest_kept(&self) -> Duration {
        Duration::from_millis(self.longest_kept.load(Ordering::Relaxed))
    }

    pub(super) fn keeps_for(&self, span: Duration) {
        let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        self.longest_kept.fetch_max(millis, Ordering::Relaxed);
    }

    /// Opens what stands under `key`. `seq` is the number of the invalidation
    /// log when the remote was asked: what was invalidated since is dead.
    fn open(&self, key: &Key, bytes: &Bytes, seq: u64) -> RemoteValue<V> {
        self.gate.has_seen(bytes.len());
        let max = self.gate.settings.max_value_bytes;
        let opened = match envelope::open(bytes, key, self.codec.schema, max) {
            Ok(opened) => opened,
            Err(damage) => return self.damaged(bytes, damage),
        };
        let EnvelopeContents { version, envelope } = opened;
        if self.mirror.is_dead(&envelope.tags, envelope.started) {
            return RemoteValue::Useless(version);
        }
        let stale_from = self.mirror.made_stale(&envelope.tags, envelope.started);
        let Some(started) = self.started(envelope.started) else {
            return RemoteValue::Useless(version);
        };
        if envelope.kind == Kind::Uncacheable {
            return self.marker(started.plus(envelope.fresh), version);
        }
        match self.entry(key, envelope, version, started, seq) {
            Some(entry) => {
                if let Some(at) = stale_from {
                    // Where the two clocks cannot be told apart, it is stale now.
                    let now = self.tick();
                    entry.mark_stale(self.clock.tick_of(at).map_or(now, |at| at.min(now)));
                }
                RemoteValue::Entry(Arc::new(entry))
            }
            None => self.damaged(bytes, Damage::Payload),
        }
    }

    /// Returns when a computation started, by this process's clock. One that
    /// starts in the future comes from a server whose clock ran ahead: how old
    /// it is cannot be known.
    fn started(&self, at: ServerTime) -> Option<Tick> {
        let (started, now) = (self.clock.tick_of(at)?, self.tick());
        (started <= now.plus(CLOCK_TOLERANCE)).then_some(started.min(now))
    }

    fn damaged(&self, bytes: &Bytes, damage: Damage) -> RemoteValue<V> {
        self.gate.observe(Occurrence::Damaged { how: damage.as_str() });
        RemoteValue::Useless(envelope::version_of(bytes))
    }

    fn marker(&self, until: Tick, version: Option<Version>) -> RemoteValue<V> {
        let now = self.engine.upgrade().map(|engine| engine.clock.now());
        match now {
            Some(now) if now < until => RemoteValue::Uncacheable { until, version },
            _ => RemoteValue::Useless(version),
        }
    }

    fn entry(
        &self,
        key: &Key,
        envelope: Envelope,
        version: Option<Version>,
        started: Tick,
        seq: u64,
    ) -> Option<Entry<V>> {
        let value = (self.codec.decode)(envelope.payload)?;
        let lifetimes = Lifetimes {
            ttl: envelope.fresh,
            stale_for: envelope.stale_for,
            stale_if_error: envelope.stale_if_error,
        };
        let born = started.minus(envelope.age);
        let window = Window::counted_from(born, born, lifetimes, envelope.took)
            .kept_longer(envelope.kept_longer);
        self.keeps_for(window.kept_until().since(started));
        let entry = Entry::new(value, window, envelope.tags.into(), seq).with_version(version);
        Some(self.codec.weights.weigh(entry, key))
    }

    /// Closes an entry, and returns for how long it can be of use.
    fn close(
        &self,
        key: &Key,
        entry: &Entry<V>,
        started: ServerTime,
        version: Version,
    ) -> Option<(Bytes, Duration)> {
        let payload = (self.codec.encode)(&entry.value)?;
        let window = entry.window();
        let from = self.clock.tick_of(started)?;
        // Where the two clocks cannot be told apart, the value is older.
        let born = self.clock.server_time(window.started)?;
        let age = Duration::from_millis(started.as_millis().saturating_sub(born.as_millis()));
        let envelope = Envelope {
            kind: Kind::Value,
            started,
            age,
            fresh: window.fresh_until.since(window.started),
            stale_for: window.stale_until.since(window.fresh_until),
            stale_if_error: window.error_until.since(window.fresh_until),
            kept_longer: window.kept_until().since(window.useful_until()),
            took: window.computed_in(),
            tags: entry.tags.iter().filter(|tag| !is_of_process(tag)).cloned().collect(),
            payload,
        };
        let left = window.kept_until().since(self.engine.upgrade()?.clock.now()).max(LEAST_TTL);
        self.keeps_for(window.kept_until().since(from));
        self.bounded(envelope::encode(&envelope, key, self.codec.schema, version)?)
            .map(|bytes| (bytes, left))
    }

    fn close_marker(&self, key: &Key, grant: &Grant, span: Duration) -> Option<(Bytes, Duration)> {
        // The word counts from now on, however long the computation took.
        let started = self.clock.tick_of(grant.now)?;
        let envelope = Envelope {
            kind: Kind::Uncacheable,
            started: grant.now,
            age: Duration::ZERO,
            fresh: self.tick().since(started).saturating_add(span),
            stale_for: Duration::ZERO,
            stale_if_error: Duration::ZERO,
            kept_longer: Duration::ZERO,
            took: Duration::ZERO,
            tags: Vec::new(),
            payload: Bytes::new(),
        };
        let bytes = envelope::encode(&envelope, key, self.codec.schema, grant.version)?;
        Some((bytes, span.max(LEAST_TTL)))
    }

    fn bounded(&self, bytes: Bytes) -> Option<Bytes> {
        self.gate.has_seen(bytes.len());
        (bytes.len() <= self.gate.settings.max_value_bytes).then_some(bytes)
    }

    pub(super) fn seq(&self) -> Result<u64, Unavailable> {
        self.engine.upgrade().map(|engine| engine.log.seq()).ok_or(Unavailable)
    }

    /// Takes a reading of the remote's clock that came with a reply.
    pub(super) fn sample(&self, sent: Tick, now: ServerTime) {
        if let Some(engine) = self.engine.upgrade() {
            self.clock.sample(sent, engine.clock.now(), now);
        }
    }

    pub(super) fn tick(&self) -> Tick {
        self.engine.upgrade().map(|engine| engine.clock.now()).unwrap_or_default()
    }

    async fn get_now(&self, key: &Key) -> Result<RemoteValue<V>, Unavailable> {
        self.prepared().await?;
        let seq = self.caught_up(key).await?;
        let largest = self.gate.largest();
        let found = self.gate.call(RemoteCall::Get, largest, || self.remote().get(key)).await;
        match found.map_err(away)? {
            None => Ok(RemoteValue::Nothing),
            Some(bytes) => Ok(self.open(key, &bytes, seq)),
        }
    }

    async fn acquire_now(
        &self,
        key: &Key,
        ask: &LeaseRequest,
    ) -> Result<AcquireAnswer<V>, Unavailable> {
        self.prepared().await?;
        let seq = self.caught_up(key).await?;
        let sent = self.tick();
        let largest = self.gate.largest();
        let asked =
            self.gate.call(RemoteCall::Acquire, largest, || self.remote().acquire(key, ask)).await;
        let (now, asked) = match asked.map_err(away)? {
            AcquireOutcome::Hit { now, envelope } => (now, Err(envelope)),
            AcquireOutcome::Granted(grant) => (grant.now, Ok(AcquireAnswer::Granted(grant))),
            AcquireOutcome::Locked { now, left } => (now, Ok(AcquireAnswer::Locked(left))),
            AcquireOutcome::Held { now, left } => (now, Ok(AcquireAnswer::Held(left))),
        };
        self.sample(sent, now);
        Ok(asked.unwrap_or_else(|envelope| AcquireAnswer::Hit(self.open(key, &envelope, seq))))
    }

    async fn fill_now(
        &self,
        key: &Key,
        grant: &Grant,
        share: &FillPayload<V>,
    ) -> Result<FillOutcome, Unavailable> {
        let closed = match share {
            FillPayload::Entry(entry) => self.close(key, entry, grant.now, grant.version),
            FillPayload::Uncacheable(span) => self.close_marker(key, grant, *span),
        };
        let Some((bytes, ttl)) = closed else {
            self.gate.observe(Occurrence::Unshareable { key });
            return Err(Unavailable);
        };
        self.tell_longest().await;
        let fill = || self.remote().fill(key, grant, ttl, bytes.clone());
        self.gate.call(RemoteCall::Fill, bytes.len(), fill).await.map_err(away)
    }

    async fn invalidate_now(&self, key: &Key) -> Delivery {
        self.start();
        match self.gate.call(RemoteCall::Invalidate, 0, || self.remote().invalidate(key)).await {
            Ok(_) => Delivery::Done,
            Err(failure) => self.queue(RemoteCall::Invalidate, failure, |journal| {
                journal.note_key(key.clone());
            }),
        }
    }

    async fn invalidate_tags_now(&self, tags: &[Tag]) -> Delivery {
        self.start();
        let call = || self.remote().invalidate_tags(tags);
        match self.gate.call(RemoteCall::InvalidateTags, 0, call).await {
            Ok(at) => {
                self.heard_of(tags, at);
                Delivery::Done
            }
            Err(failure) => self.queue(RemoteCall::InvalidateTags, failure, |journal| {
                journal.note_tags(tags);
            }),
        }
    }

    async fn put_now(&self, key: &Key, entry: &Entry<V>) -> Delivery {
        self.start();
        let queue =
            |failure| self.queue(RemoteCall::Put, failure, |journal| journal.note_key(key.clone()));
        if self.prepared().await.is_err() {
            return queue(None);
        }
        let sent = self.tick();
        let started = self.clock.server_time(sent);
        let version = Version::new(UNNUMBERED);
        let closed =
            started.zip(version).and_then(|(at, version)| self.close(key, entry, at, version));
        let Some((bytes, ttl)) = closed else {
            // It stays in this process; what others hold is out of date.
            self.gate.observe(Occurrence::Unshareable { key });
            return self.invalidate_now(key).await;
        };
        self.tell_longest().await;
        let put = || self.remote().put(key, ttl, bytes.clone());
        match self.gate.call(RemoteCall::Put, bytes.len(), put).await {
            Ok((now, _)) => {
                self.sample(sent, now);
                Delivery::Done
            }
            // The remote has dropped the old value in place of a new one.
            Err(Some(RemoteErrorKind::OutOfMemory)) => Delivery::Done,
            Err(failure) => queue(failure),
        }
    }

    /// Notes what the remote must be told before it is asked again.
    pub(super) fn queue(
        &self,
        op: RemoteCall,
        failure: RemoteFailure,
        note: impl FnOnce(&crate::remote::journal::Journal),
    ) -> Delivery {
        note(&self.gate.journal);
        self.gate.trip(op, failure);
        Delivery::Queued
    }
}

fn away(_: RemoteFailure) -> Unavailable {
    Unavailable
}

impl<V: Send + Sync + 'static> SharedStore<V> for EntryRemote<V> {
    fn is_up(&self) -> bool {
        self.start();
        self.gate.is_open()
    }

    fn get<'a>(&'a self, key: &'a Key) -> RemoteFuture<'a, RemoteValue<V>> {
        Box::pin(self.get_now(key))
    }

    fn acquire<'a>(
        &'a self,
        key: &'a Key,
        ask: &'a LeaseRequest,
    ) -> RemoteFuture<'a, AcquireAnswer<V>> {
        Box::pin(self.acquire_now(key, ask))
    }

    fn fill<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        share: &'a FillPayload<V>,
    ) -> RemoteFuture<'a, FillOutcome> {
        Box::pin(self.fill_now(key, grant, share))
    }

    fn renew<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        ask: &'a LeaseRequest,
    ) -> RemoteFuture<'a, bool> {
        let renew = move || self.remote().renew(key, grant, ask);
        Box::pin(async move { self.gate.call(RemoteCall::Renew, 0, renew).await.map_err(away) })
    }

    fn abandon<'a>(
        &'a self,
        key: &'a Key,
        token: &'a Token,
        hold: Option<Duration>,
    ) -> NoticeFuture<'a, ()> {
        Box::pin(async move {
            // Past the breaker: the call that opened it may have been an acquire,
            // executed late. If this does not arrive, the lease ends by itself.
            let abandon = self.remote().abandon(key, token, hold);
            let _ = self.gate.attempt(RemoteCall::Abandon, 0, abandon).await;
        })
    }

    fn invalidate(self: Arc<Self>, keys: Box<[Key]>) -> Errand {
        let turn = self.begin_write(WriteKind::Invalidate(keys.clone()));
        Box::pin(turn.tell(async move |remote| {
            // On their way together: a URI has several keys.
            let told = keys.iter().map(|key| remote.invalidate_now(key));
            let told = join_all(told).await;
            if told.contains(&Delivery::Queued) { Delivery::Queued } else { Delivery::Done }
        }))
    }

    fn invalidate_tags(self: Arc<Self>, tags: Box<[Tag]>) -> Errand {
        let turn = self.begin_write(WriteKind::InvalidateTags(tags.clone()));
        Box::pin(turn.tell(async move |remote| remote.invalidate_tags_now(&tags).await))
    }

    fn put(self: Arc<Self>, key: Key, entry: Arc<Entry<V>>) -> Errand {
        let turn = self.begin_write(WriteKind::Put(key.clone()));
        Box::pin(turn.tell(async move |remote| remote.put_now(&key, &entry).await))
    }

    fn listen(&self, key: &Key) -> Listener {
        self.remote().listen(key)
    }

    fn is_subscribed(&self) -> bool {
        self.remote().is_subscribed()
    }

    fn ask(&self) -> LeaseRequest {
        let LeaseTimes { lease, work } = self.times;
        // Longer than leases and values: the versions of a key go on from it.
        let keep = (lease * 2).saturating_add(work).saturating_add(self.longest_kept());
        LeaseRequest::new(lease, keep)
    }

    fn health(&self) -> RemoteHealth {
        if !self.gate.is_open() {
            RemoteHealth::Away
        } else if self.link.has_begun() && !self.is_subscribed() {
            RemoteHealth::Unsubscribed
        } else {
            RemoteHealth::Up
        }
    }
}
