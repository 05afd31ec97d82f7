//! Makes a store of entries out of a remote of bytes: opens and closes envelopes,
//! translates times, and applies invalidations.

use std::any::type_name;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::cache::weights::Weights;
use crate::clock::Tick;
use crate::entry::{Entry, Tags};
use crate::flight::engine::Engine;
use crate::freshness::{Lifetimes, Window};
use crate::key::{Key, Tag, is_of_process};
use crate::lease::grant::{FillOutcome, Grant, LeaseRequest, Stamp, Token};
use crate::lease::shared_store::{
    CallerArrival, Errand, FillPayload, NotFilled, RemoteFuture, RemoteHealth, RemoteValue,
    SharedStore, Unavailable, UncacheableFor,
};
use crate::lease::wakes::{Listener, Wakes};
use crate::observe::{Observe, Occurrence, RemoteOp};
use crate::remote::codec::ValueForm;
use crate::remote::driver::Driver;
use crate::remote::envelope::{self, Damage, Envelope, Kind};
use crate::remote::guard::{Guard, RemoteFailure};
use crate::remote::link::is_rolled_back;
use crate::remote::link::known::{JudgedEntry, Liveness, judge_by};
use crate::remote::log::RemoteLog;
use crate::remote::shard::ShardState;
use crate::remote::writes::{PendingWrites, WriteKind};
use crate::remote::{
    AcquireOutcome, Remote, RemoteErrorKind, RemotePush, RemoteSettings, ServerTime, Version,
};

pub(crate) struct EntryRemote<V: Send + Sync + 'static> {
    pub(super) me: Weak<Self>,
    pub(super) engine: Weak<Engine<V>>,
    pub(super) gate: Guard,
    pub(super) driver: Driver,
    /// For a remote that sends no wake-ups: it is never notified.
    unwoken: Wakes,
    pub(super) pending: PendingWrites,
    form: ValueForm<V>,
    weights: Weights<V>,
    /// How long a lease holds, and how long the record of the right to fill is kept.
    times: (Duration, Duration),
    /// The remote's time when this process last ended everything, for a remote without a log.
    pub(super) everything: AtomicU64,
}

/// How often the log is read for one entry. A message may overtake the reply to a read that was
/// sent before it: then that read does not say what the message has skipped.
const MAX_CATCH_UPS: u32 = 3;

/// The shortest time a remote can keep anything.
const LEAST_TTL: Duration = Duration::from_millis(1);

/// How far ahead a reading of the remote's clock may seem to be.
pub(super) const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);

/// For how long processes compute without waiting for each other after a result that could not be
/// shared: as long as that is fresh, within these bounds.
const SHORTEST_MARKER: Duration = Duration::from_secs(1);
const LONGEST_MARKER: Duration = Duration::from_secs(60);

/// The payload of a marker that concerns processes. Version 0.2.0 reads the first 8 bytes as the
/// hash of a request that no client sends.
const OTHER_PROCESSES: &[u8] = b"processes";

impl<V: Send + Sync + 'static> EntryRemote<V> {
    pub(crate) fn new(
        remote: Arc<dyn Remote>,
        settings: RemoteSettings,
        (form, weights): (ValueForm<V>, Weights<V>),
        times: (Duration, Duration),
        engine: &Arc<Engine<V>>,
    ) -> Arc<Self> {
        let observer: Arc<dyn Observe> = Arc::clone(&engine.observer);
        observer.happened(Occurrence::RemoteAttached);
        if form.is_lossy() {
            observer.happened(Occurrence::ValuesAltered { type_name: type_name::<V>() });
        }
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            engine: Arc::downgrade(engine),
            gate: Guard::new(remote, settings, observer),
            driver: Driver::default(),
            unwoken: Wakes::new(),
            pending: PendingWrites::default(),
            form,
            weights,
            times,
            everything: AtomicU64::new(0),
        })
    }

    pub(super) fn remote(&self) -> &dyn Remote {
        &*self.gate.remote
    }

    pub(super) fn log(&self) -> Option<&dyn RemoteLog> {
        self.gate.remote.log()
    }

    /// Opens what stands under `key`. `seq` is the number of the local invalidation log when the
    /// remote was asked: what was invalidated since is dead. What has ended since the caller's
    /// `arrival` serves the caller.
    async fn open(
        &self,
        (key, shard): (&Key, &ShardState),
        bytes: &Bytes,
        seq: u64,
        arrival: Option<CallerArrival>,
    ) -> RemoteValue<V> {
        self.gate.has_seen(bytes.len());
        let max = self.gate.settings.max_value_bytes;
        let envelope = match envelope::open(bytes, key, &self.form.coding, max) {
            Ok(envelope) => envelope,
            Err(damage) => return self.damaged(bytes, damage),
        };
        let version = envelope::version_of(bytes);
        let judged = JudgedEntry { key, tags: &envelope.tags, stamp: envelope.stamp, version };
        let liveness = self.judge(judged, envelope.started).await;
        let was_alive = |arrival: &CallerArrival| {
            matches!(liveness, Liveness::Dead | Liveness::Stale(_))
                && self.gate.link().was_alive(judged, arrival.stamp, self.tick())
        };
        // What has ended it came after the caller.
        let arrival = arrival.filter(was_alive);
        // Callers that have come later find it dead, as it would be in the store of this process.
        let seq = arrival.map_or(seq, |arrival| arrival.seq.min(seq));
        let stale_from = match liveness {
            Liveness::Alive => None,
            _ if arrival.is_some() => None,
            Liveness::Stale(from) => Some(from),
            Liveness::Dead | Liveness::Behind | Liveness::Unknown => {
                return RemoteValue::Useless(version);
            }
        };
        let Some(started) = self.started(shard, envelope.started) else {
            return RemoteValue::Useless(version);
        };
        if envelope.kind == Kind::Uncacheable {
            return self.marker(&envelope, started, version);
        }
        match self.entry(key, envelope, version, started, seq) {
            Some(entry) => {
                if let Some(from) = stale_from {
                    // Where it is not known, as early as can be.
                    entry.mark_stale(from.unwrap_or(started));
                }
                RemoteValue::Entry(Arc::new(entry))
            }
            None => self.damaged(bytes, Damage::Payload),
        }
    }

    /// Judges an entry by the invalidation log, and asks the log where this process does not
    /// know enough. An entry without a judgement is replaced under a lease, as a dead one is.
    async fn judge(&self, entry: JudgedEntry<'_>, started: ServerTime) -> Liveness {
        let Some(log) = self.log() else { return self.judge_without_log(entry, started) };
        let judge = || self.gate.link().judge(entry, self.tick());
        let mut liveness = judge();
        for _ in 0..MAX_CATCH_UPS {
            if liveness != Liveness::Behind {
                break;
            }
            if self.read_log_on().await.is_err() {
                return Liveness::Behind;
            }
            liveness = judge();
        }
        match (liveness, entry.stamp) {
            (Liveness::Unknown, Some(stamp)) if self.gate.log_answers() => {
                self.ask_log(log, entry, stamp).await
            }
            (liveness, _) => liveness,
        }
    }

    /// Has the log say where its items are that concern an entry.
    async fn ask_log(&self, log: &dyn RemoteLog, entry: JudgedEntry<'_>, stamp: Stamp) -> Liveness {
        // A server that has taken over may lack what has ended this entry, and only it can say
        // that it is another one.
        let is_in_question = self.gate.link().is_in_question(self.tick());
        if is_in_question && self.read_log_on().await.is_err() {
            return Liveness::Unknown;
        }
        let marks = entry.marks().into_iter().chain([Tag::of_marked_keys()]);
        let tags: Vec<_> = entry.tags.iter().cloned().chain(marks).collect();
        let asked = self.asks();
        let (shard, ask) = (self.gate.log_shard(), || log.positions(&tags));
        let positions = self.gate.call_shard(RemoteOp::ReadPositions, &shard, 0, ask).await;
        let Ok(Some(mut positions)) = positions else { return Liveness::Unknown };
        let marked_keys = positions.positions.pop();
        if is_rolled_back(&positions.header, asked.stamp) {
            // What it lacks may be just what has ended this entry.
            self.on(|link, _| link.has_lost_items());
            return Liveness::Unknown;
        }
        if !self.gate.link().is_over_one_connection(&asked) {
            return Liveness::Unknown;
        }
        if let Some(position) = marked_keys {
            self.gate.link().is_told_of_marked_keys(&positions.header, position);
        }
        judge_by(&positions, entry.tags.len(), stamp)
    }

    fn judge_without_log(&self, entry: JudgedEntry<'_>, started: ServerTime) -> Liveness {
        let everything = self.everything.load(Ordering::Relaxed);
        let is_dead = !entry.tags.is_empty() || started.as_millis() <= everything;
        if is_dead { Liveness::Dead } else { Liveness::Alive }
    }

    /// Returns when a computation started, by this process's clock. One that
    /// starts in the future comes from a server whose clock ran ahead: how old
    /// it is cannot be known.
    fn started(&self, shard: &ShardState, at: ServerTime) -> Option<Tick> {
        let (started, now) = (shard.clock.tick_of(at)?, self.tick());
        (started <= now.plus(CLOCK_TOLERANCE)).then_some(started.min(now))
    }

    fn damaged(&self, bytes: &Bytes, damage: Damage) -> RemoteValue<V> {
        if damage == Damage::Schema {
            self.gate.observer.happened(Occurrence::TypeDiffers { type_name: type_name::<V>() });
        }
        self.gate.observer.happened(Occurrence::Damaged { how: damage.as_str() });
        RemoteValue::Useless(envelope::version_of(bytes))
    }

    fn marker(
        &self,
        envelope: &Envelope,
        started: Tick,
        version: Option<Version>,
    ) -> RemoteValue<V> {
        let until = started.plus(envelope.fresh);
        let whom = match envelope.payload.first_chunk() {
            _ if *envelope.payload == *OTHER_PROCESSES => UncacheableFor::OtherProcesses,
            Some(hash) => UncacheableFor::EqualRequests(u64::from_be_bytes(*hash)),
            None => UncacheableFor::AllRequests,
        };
        match self.tick() < until {
            true => RemoteValue::Uncacheable { whom, until, took: envelope.took, version },
            false => RemoteValue::Useless(version),
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
        let bytes = envelope.payload.len();
        let value = self.form.read(envelope.payload)?;
        // Not of a value of another type, as during a deploy.
        self.weights.learn_from(bytes);
        let lifetimes = Lifetimes {
            ttl: envelope.fresh,
            stale_for: envelope.stale_for,
            stale_if_error: envelope.stale_if_error,
        };
        let born = started.minus(envelope.age);
        let window = Window::counted_from(born, born, lifetimes, envelope.took)
            .kept_longer(envelope.kept_longer);
        let tags = Tags::new(envelope.tags.into(), envelope.validator);
        let entry = Entry::new(value, window, tags, seq).with_version(version);
        Some(self.weights.weigh(entry, key))
    }

    /// Closes an entry, and returns for how long it can be of use.
    pub(super) fn close(
        &self,
        (key, shard): (&Key, &ShardState),
        entry: &Entry<V>,
        (started, stamp): (ServerTime, Option<Stamp>),
        version: Version,
    ) -> Option<(Bytes, Duration)> {
        let tags: Vec<_> = entry.tags.iter().filter(|tag| !is_of_process(tag)).cloned().collect();
        let is_unknown_tag = self.log().is_none() || self.gate.link().journal.has_any_of(&tags);
        if !tags.is_empty() && is_unknown_tag {
            return None;
        }
        let altered = Occurrence::ValuesAltered { type_name: type_name::<V>() };
        let payload = self.form.write(&entry.value, || self.gate.observer.happened(altered))?;
        self.weights.learn_from(payload.len());
        if payload.len() > self.gate.settings.max_value_bytes {
            // Readers bound what they unpack.
            return None;
        }
        let window = entry.window();
        // Where the two clocks cannot be told apart, the value is older.
        let born = shard.clock.server_time(window.started)?;
        let age = Duration::from_millis(started.as_millis().saturating_sub(born.as_millis()));
        let envelope = Envelope {
            kind: Kind::Value,
            started,
            stamp,
            age,
            fresh: window.fresh_until.since(window.started),
            stale_for: window.stale_until.since(window.fresh_until),
            stale_if_error: window.error_until.since(window.fresh_until),
            kept_longer: window.kept_until().since(window.useful_until()),
            took: window.computed_in(),
            tags,
            validator: entry.tags.validator().map(Into::into),
            payload,
        };
        let left = window.kept_until().since(self.engine.upgrade()?.clock.now());
        let left = left.min(self.gate.settings.remote_ttl).max(LEAST_TTL);
        let bytes = envelope::encode(&envelope, key, &self.form.coding, version)?;
        self.gate.has_seen(bytes.len());
        (bytes.len() <= self.gate.settings.max_value_bytes).then_some((bytes, left))
    }

    fn close_marker(
        &self,
        (key, shard): (&Key, &ShardState),
        grant: &Grant,
        (whom, span, took): (UncacheableFor, Duration, Duration),
    ) -> Option<(Bytes, Duration)> {
        let payload = match whom {
            UncacheableFor::EqualRequests(hash) => Bytes::copy_from_slice(&hash.to_be_bytes()),
            UncacheableFor::AllRequests => Bytes::new(),
            UncacheableFor::OtherProcesses => Bytes::from_static(OTHER_PROCESSES),
        };
        // The word counts from now on, however long the computation took.
        let started = shard.clock.tick_of(grant.now)?;
        let envelope = Envelope {
            kind: Kind::Uncacheable,
            started: grant.now,
            stamp: grant.stamp,
            fresh: self.tick().since(started).saturating_add(span),
            took,
            payload,
            ..Envelope::default()
        };
        let bytes = envelope::encode(&envelope, key, &self.form.coding, grant.version)?;
        Some((bytes, span.max(LEAST_TTL)))
    }

    /// Takes a reading of a shard's clock that came with a reply.
    pub(super) fn sample(&self, shard: &ShardState, sent: Tick, now: ServerTime) {
        if let Some(engine) = self.engine.upgrade() {
            shard.clock.sample(sent, engine.clock.now(), now);
        }
    }

    pub(super) fn tick(&self) -> Tick {
        self.engine.upgrade().map(|engine| engine.clock.now()).unwrap_or_default()
    }

    /// Returns whether what could not be closed is a result that cannot be shared, or can be later.
    fn not_closed(&self, share: &FillPayload<V>, shard: &ShardState) -> NotFilled {
        match share {
            FillPayload::Entry(entry)
                if shard.clock.is_set() && !self.gate.link().journal.has_any_of(&entry.tags) =>
            {
                let left = entry.window().fresh_until.since(self.tick());
                NotFilled::Unshareable(left.clamp(SHORTEST_MARKER, LONGEST_MARKER))
            }
            _ => NotFilled::Unavailable,
        }
    }
}

fn away(_: RemoteFailure) -> Unavailable {
    Unavailable
}

impl<V: Send + Sync + 'static> SharedStore<V> for EntryRemote<V> {
    fn is_up(&self, key: &Key) -> bool {
        self.start();
        self.gate.may_ask(key)
    }

    fn get<'a>(
        &'a self,
        key: &'a Key,
        arrival: &'a mut Option<CallerArrival>,
    ) -> RemoteFuture<'a, RemoteValue<V>> {
        Box::pin(async move {
            self.prepared().await?;
            let seq = self.caught_up(key).await?;
            *arrival = arrival.or_else(|| {
                Some(CallerArrival { seq, stamp: self.gate.link().arrival(self.tick())? })
            });
            let (shard, largest) = (self.gate.shard_of(key), self.gate.largest());
            let found =
                self.gate.call(RemoteOp::Get, key, largest, || self.remote().get(key)).await;
            let Some(bytes) = found.map_err(away)? else { return Ok(RemoteValue::Nothing) };
            self.dated(&shard).await?;
            Ok(self.open((key, &shard), &bytes, seq, *arrival).await)
        })
    }

    fn acquire<'a>(
        &'a self,
        key: &'a Key,
        ask: &'a LeaseRequest,
    ) -> RemoteFuture<'a, AcquireOutcome<RemoteValue<V>>> {
        Box::pin(async move {
            self.prepared().await?;
            let seq = self.caught_up(key).await?;
            // Before the computation can begin.
            let (sent, stamp) = (self.tick(), self.stamp());
            let (shard, largest) = (self.gate.shard_of(key), self.gate.largest());
            let acquire = || self.remote().acquire(key, ask);
            let jumps = shard.clock.jumps();
            let asked = self.gate.call(RemoteOp::Acquire, key, largest, acquire).await;
            let mut asked = asked.map_err(away)?;
            self.sample(&shard, sent, asked.now());
            if ask.seen.is_some()
                && let AcquireOutcome::Granted(grant) = &asked
                && shard.clock.jumps() != jumps
            {
                // The value was dated by a clock that has been set since. It may serve.
                let abandon = self.remote().abandon(key, &grant.token, None);
                let _ = self.gate.attempt(RemoteOp::Abandon, &shard, 0, abandon).await;
                let (sent, unseen) = (self.tick(), ask.seen(None));
                let acquire = || self.remote().acquire(key, &unseen);
                let again = self.gate.call(RemoteOp::Acquire, key, largest, acquire).await;
                asked = again.map_err(away)?;
                self.sample(&shard, sent, asked.now());
            }
            Ok(match asked {
                AcquireOutcome::Hit { now, value } => {
                    let value = self.open((key, &shard), &value, seq, None).await;
                    AcquireOutcome::Hit { now, value }
                }
                AcquireOutcome::Granted(grant) => AcquireOutcome::Granted(Grant { stamp, ..grant }),
                AcquireOutcome::Locked { now, left, waiting, holder } => {
                    AcquireOutcome::Locked { now, left, waiting, holder }
                }
                AcquireOutcome::Held { now, left } => AcquireOutcome::Held { now, left },
            })
        })
    }

    fn fill<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        share: &'a FillPayload<V>,
    ) -> BoxFuture<'a, Result<FillOutcome, NotFilled>> {
        Box::pin(async move {
            let shard = self.gate.shard_of(key);
            if self.log().is_some() && !self.gate.link().is_of_this_epoch(grant.stamp) {
                // No process would use it. Another may compute.
                let abandon = self.remote().abandon(key, &grant.token, None);
                let _ = self.gate.attempt(RemoteOp::Abandon, &shard, 0, abandon).await;
                return Ok(FillOutcome::Refused);
            }
            let closed = match share {
                FillPayload::Entry(entry) => {
                    self.close((key, &shard), entry, (grant.now, grant.stamp), grant.version)
                }
                FillPayload::Uncacheable { whom, span, took } => {
                    self.close_marker((key, &shard), grant, (*whom, *span, *took))
                }
            };
            let Some((bytes, ttl)) = closed else {
                self.gate.observer.happened(Occurrence::Unshareable { key });
                return Err(self.not_closed(share, &shard));
            };
            let fill = || self.remote().fill(key, grant, ttl, bytes.clone());
            let filled = self.gate.call(RemoteOp::Fill, key, bytes.len(), fill).await;
            filled.map_err(|failure| match failure {
                Some(RemoteErrorKind::OutOfMemory) => NotFilled::Unshareable(SHORTEST_MARKER),
                _ => NotFilled::Unavailable,
            })
        })
    }

    fn renew<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        ask: &'a LeaseRequest,
    ) -> RemoteFuture<'a, bool> {
        let renew = move || self.remote().renew(key, grant, ask);
        Box::pin(async move { self.gate.call(RemoteOp::Renew, key, 0, renew).await.map_err(away) })
    }

    fn abandon<'a>(
        &'a self,
        key: &'a Key,
        token: &'a Token,
        hold: Option<Duration>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            // Past the breaker: the call that opened it may have been an acquire,
            // executed late. If this does not arrive, the lease ends by itself.
            let shard = self.gate.shard_of(key);
            let abandon = self.remote().abandon(key, token, hold);
            let _ = self.gate.attempt(RemoteOp::Abandon, &shard, 0, abandon).await;
        })
    }

    fn invalidate(self: Arc<Self>, keys: Box<[Key]>) -> Errand {
        let turn = self.begin_write(WriteKind::Invalidate(keys.clone()));
        Box::pin(turn.tell(async move |remote, _| remote.invalidate_now(&keys).await))
    }

    fn invalidate_tags(self: Arc<Self>, tags: Box<[Tag]>) -> Errand {
        let turn = self.begin_write(WriteKind::InvalidateTags(tags.clone()));
        Box::pin(turn.tell(async move |remote, _| remote.invalidate_tags_now(&tags).await))
    }

    fn put(self: Arc<Self>, key: Key, entry: Arc<Entry<V>>) -> Errand {
        let put_at = self.stamp();
        let turn = self.begin_write(WriteKind::Put(key.clone()));
        Box::pin(
            turn.tell(async move |remote, write| {
                remote.put_now(&key, &entry, (write, put_at)).await
            }),
        )
    }

    fn listen(&self, key: &Key) -> Listener {
        match self.remote().push() {
            Some(push) => push.listen(key),
            None => self.unwoken.listen(key),
        }
    }

    fn is_subscribed(&self) -> bool {
        self.remote().push().is_some_and(RemotePush::is_subscribed)
    }

    fn vouch(&self, has_value: bool) -> BoxFuture<'_, ()> {
        Box::pin(self.vouch_now(has_value))
    }

    fn catch_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let _ = self.read_log_on().await;
        })
    }

    fn ask(&self) -> LeaseRequest {
        LeaseRequest::new(self.times.0, self.times.1)
    }

    fn servers_away(&self) -> Vec<String> {
        let away = self.gate.shards.away();
        away.iter().map(|shard| self.remote().address_of(shard.shard)).collect()
    }

    fn health(&self) -> RemoteHealth {
        if !self.gate.is_well() {
            RemoteHealth::Away
        } else if self.driver.begun.load(Ordering::Relaxed)
            && self.remote().push().is_some()
            && !self.is_subscribed()
        {
            RemoteHealth::Unsubscribed
        } else {
            RemoteHealth::Up
        }
    }

    fn applied(&self) -> Option<Stamp> {
        self.stamp()
    }
}
