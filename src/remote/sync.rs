//! Whether what this process knows of the remote is up to date: subscribed, the invalidation
//! log followed, and local copies vouched for.
//!
//! Once a second the log is read: the *heartbeat*. It finds what messages have missed. Local
//! copies are vouched for until two seconds after the last heartbeat was sent that the remote
//! has answered. After that, for example when the process was stopped, the next caller has the
//! log read before it is served. A remote that is away vouches for nothing. Then the local
//! copies are served, because there is nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::Tick;
use crate::key::Tag;
use crate::lease::grant::Stamp;
use crate::lease::shared_store::Unavailable;
use crate::observe::RemoteOp;
use crate::remote::coordinator::EntryRemote;
use crate::remote::log::follower::{Effect, MAX_READS};
use crate::remote::log::{LogItem, LogReply};
use crate::remote::shard::{ShardState, TaskClaim};
use crate::remote::{Notice, OnNotice, RemoteErrorKind};

/// How often the log is read, give or take a tenth: so do many processes not read together.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// How long local copies are vouched for, from when a heartbeat was sent.
const VOUCHED: Duration = Duration::from_secs(2);

/// How long local copies are used where there is no log, by default.
const WITHOUT_LOG: Duration = Duration::from_secs(1);

/// How long a caller waits that has a local copy in hand, where answers come quickly.
const VOUCH_LIMIT: Duration = Duration::from_millis(100);

/// How soon a heartbeat is repeated that was not answered.
const REPEAT: Duration = Duration::from_millis(100);

/// How often the remote itself checks that its log is the one that this process follows: a
/// failover may have set it back without breaking a connection.
const VERIFY_EVERY: Duration = Duration::from_secs(15);

/// How many calls a caller waits for that finds the log unread: the subscription, the clock, and
/// two reads. Each ends within its own time-out.
const MOST_CALLS: u32 = 4;

/// What a read of the log may carry, in bytes.
const LOG_BYTES: usize = 256 << 10;

/// After how long without a sign of the task that looks after the link its runtime stands
/// still.
const UNATTENDED_AFTER: Duration = Duration::from_secs(120);

pub(super) struct Synchronizer {
    begun: AtomicBool,
    /// The number of the task that looks after the link: odd, or even where there is none.
    tending: AtomicU64,
    /// When that task was last at work, by the timers.
    tended_at: AtomicU64,
    /// Counts subscriptions and losses of them.
    subscriptions: watch::Sender<u64>,
    /// Held by the task that reads the log.
    pub(super) reading: tokio::sync::Mutex<()>,
    /// The task that tells the journal.
    pub(super) telling_task: TaskClaim,
    /// When the call was sent that has last read the log to its end.
    heard: Mutex<Option<Instant>>,
    /// When the log could last not be read, and why.
    failed: Mutex<Option<(Instant, RemoteErrorKind)>>,
    /// When the remote last checked its log; `None`: it is to do so with the next read.
    verified: Mutex<Option<Instant>>,
    /// The connection by which it was asked for that. A reply of a later one may be of another
    /// server, which lacks what this process knows.
    verified_on: AtomicU64,
    /// How often this process has announced again what it has ended.
    again: AtomicU64,
    /// Whether another server may have answered since then.
    has_moved: AtomicBool,
    /// How often in a row it could not be read, whatever else was answered.
    unread: AtomicU32,
    /// Whether local copies are to be dropped once the remote is asked again.
    in_doubt: AtomicBool,
    /// When they were last dropped, for a remote without a log.
    dropped: Mutex<Option<Instant>>,
}

impl Synchronizer {
    pub(super) fn new() -> Self {
        Self {
            begun: AtomicBool::new(false),
            tending: AtomicU64::new(0),
            tended_at: AtomicU64::new(0),
            subscriptions: watch::Sender::new(0),
            reading: tokio::sync::Mutex::new(()),
            telling_task: TaskClaim::default(),
            heard: Mutex::new(None),
            failed: Mutex::new(None),
            verified: Mutex::new(None),
            verified_on: AtomicU64::new(0),
            again: AtomicU64::new(0),
            has_moved: AtomicBool::new(false),
            unread: AtomicU32::new(0),
            in_doubt: AtomicBool::new(false),
            dropped: Mutex::new(None),
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    pub(super) fn again(&self) -> u64 {
        self.again.load(Ordering::Acquire)
    }

    fn has_heard_since(&self, at: Instant) -> bool {
        self.heard.lock().is_some_and(|heard| heard >= at)
    }

    fn is_to_be_verified(&self) -> bool {
        self.verified.lock().is_none_or(|at| at.elapsed() >= VERIFY_EVERY)
    }
}

impl<V: Send + Sync + 'static> EntryRemote<V> {
    /// Begins to listen to the remote and to look after the link, once, and
    /// again where the runtime it was begun on has ended or stands still.
    pub(super) fn start(&self) {
        let tending = self.link.tending.load(Ordering::Acquire);
        let is_taken = tending % 2 == 1;
        if is_taken && !self.stands_still() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let Some(me) = self.me.upgrade() else { return };
        let number = if is_taken { tending + 2 } else { tending + 1 };
        let (acq_rel, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
        if self.link.tending.compare_exchange(tending, number, acq_rel, relaxed).is_err() {
            return;
        }
        self.is_at_work();
        if is_taken {
            self.is_unattended();
        }
        if !self.link.begun.swap(true, Ordering::AcqRel)
            && let Some(push) = self.remote().push()
        {
            let me: Arc<dyn OnNotice> = Arc::clone(&me) as _;
            push.attach(Arc::downgrade(&me));
        }
        runtime.spawn(tend(Tending { store: Arc::downgrade(&me), number }));
    }

    /// Says that the task that looks after the link is run.
    pub(super) fn is_at_work(&self) {
        let now = self.engine.upgrade().map_or(0, |engine| engine.watch.now().as_nanos());
        self.link.tended_at.store(now, Ordering::Relaxed);
    }

    fn stands_still(&self) -> bool {
        let Some(engine) = self.engine.upgrade() else { return false };
        let tended_at = Tick::from_nanos(self.link.tended_at.load(Ordering::Relaxed));
        engine.watch.now() >= tended_at.plus(UNATTENDED_AFTER)
    }

    /// Waits until the invalidation log is known, within one `op_timeout`. The
    /// first time this waits for the subscription too. While the log is away, this process goes
    /// on with what it knows of it. Where it knows nothing it cannot use the remote: everything
    /// may have been invalidated before it started.
    pub(super) async fn prepared(&self) -> Result<(), Unavailable> {
        if self.is_prepared() {
            return Ok(());
        }
        if !self.gate.log_answers() {
            return self.follower.stamp().map(drop).ok_or(Unavailable);
        }
        // What was heard a moment ago is good enough where copies are vouched for again.
        self.read_within_time_out(None).await
    }

    /// Reads the log, or waits for a read that begins now, within one `op_timeout`.
    pub(super) async fn read_log_on(&self) -> Result<(), Unavailable> {
        self.read_within_time_out(Some(Instant::now())).await
    }

    async fn read_within_time_out(&self, since: Option<Instant>) -> Result<(), Unavailable> {
        if !self.gate.log_answers() {
            return Err(Unavailable);
        }
        let Some(me) = self.me.upgrade() else { return Err(Unavailable) };
        // On a task: a caller that goes away does not keep the others waiting.
        let reading = tokio::spawn(async move { me.prepare(since).await });
        let limit = self.gate.deadline(&self.gate.log_shard(), 0) * MOST_CALLS;
        match tokio::time::timeout(limit, reading).await {
            Ok(Ok(result)) => result.map_err(|_| Unavailable),
            Ok(Err(_)) | Err(_) => Err(Unavailable),
        }
    }

    /// Returns whether the log is known, and the local copies are vouched for.
    pub(super) fn is_prepared(&self) -> bool {
        let is_known = match self.log() {
            Some(_) => self.follower.stamp().is_some(),
            None => self.gate.log_shard().clock.is_set(),
        };
        is_known
            && self.is_on_verified_connection()
            && self.engine.upgrade().is_some_and(|engine| engine.is_vouched(engine.clock.now()))
    }

    /// Returns whether what is asked now is asked on the connection by which the log was checked.
    pub(super) fn is_on_verified_connection(&self) -> bool {
        let verified_on = self.link.verified_on.load(Ordering::Acquire);
        self.log().is_none() || self.connection() == verified_on
    }

    /// Returns whether that is not the connection by which the log was checked before.
    fn is_on_new_connection(&self) -> bool {
        let is_first = self.link.verified_on.load(Ordering::Acquire) == 0;
        !is_first && !self.is_on_verified_connection()
    }

    /// Returns the number of the connection to the server with the log.
    pub(super) fn connection(&self) -> u64 {
        self.remote().connection(self.gate.log_shard().shard)
    }

    /// Reads the log, unless that was done since then, or is not needed.
    async fn prepare(&self, since: Option<Instant>) -> Result<(), RemoteErrorKind> {
        let began = Instant::now();
        let _reading = self.link.reading.lock().await;
        let failed = *self.link.failed.lock();
        if let Some((_, kind)) = failed.filter(|(at, _)| *at > began)
            && began.elapsed() >= self.gate.log_shard().progress.most_patience()
        {
            // Callers that have waited long enough for a read fail together with it.
            return Err(kind);
        }
        let is_done = match since {
            Some(since) => self.link.has_heard_since(since),
            None => self.is_prepared(),
        };
        if is_done {
            return Ok(());
        }
        if !self.gate.log_answers() {
            // A caller that had the lock before has found the remote away.
            return Err(RemoteErrorKind::Unavailable);
        }
        if self.follower.stamp().is_none() {
            self.first_subscription().await;
        }
        let sent = Instant::now();
        let result = self.read_log().await;
        self.count_read(sent, result.err());
        result
    }

    /// Waits for the first subscription. Where there is none, polling and
    /// reading the log again and again take its place.
    async fn first_subscription(&self) {
        if self.remote().push().is_none() {
            return;
        }
        let mut subscriptions = self.link.subscriptions.subscribe();
        let subscribed = subscriptions.wait_for(|count| *count > 0);
        let _ = tokio::time::timeout(self.gate.settings.op_timeout / 2, subscribed).await;
    }

    /// Reads the log to its end, and the clock where it is not known.
    pub(super) async fn read_log(&self) -> Result<(), RemoteErrorKind> {
        let shard = self.gate.log_shard();
        if !shard.clock.is_set() {
            self.read_clock(&shard).await?;
        }
        let Some(log) = self.log() else { return Ok(()) };
        for reads in 0..MAX_READS * 2 {
            let (sent, asked) = (self.tick(), self.follower.stamp());
            let question = self.follower.question();
            let from = Instant::now();
            let may_have_moved = shard.may_have_moved.swap(false, Ordering::Relaxed);
            let verifies = may_have_moved
                || self.link.is_to_be_verified()
                || !self.is_on_verified_connection();
            let over = self.connection();
            if may_have_moved || self.is_on_new_connection() {
                self.link.has_moved.store(true, Ordering::Release);
            }
            let found = match verifies {
                true => None,
                false => {
                    let read = log.read(asked);
                    self.gate.attempt(RemoteOp::ReadLog, &shard, LOG_BYTES, read).await?
                }
            };
            let reply = match found {
                Some(reply) => reply,
                // Begins the log where there is none, or where it was set back.
                None => {
                    let announce = log.announce(&[], asked);
                    let announce =
                        self.gate.attempt(RemoteOp::ReadLog, &shard, LOG_BYTES, announce);
                    let reply = announce.await?;
                    *self.link.verified.lock() = Some(from);
                    if self.is_still(over) {
                        // And not the number of now, which may be a later one already.
                        self.link.verified_on.store(over.max(1), Ordering::Release);
                    }
                    reply
                }
            };
            if self.heard((sent, over), asked, &reply, &[]) {
                self.follower.is_answered(question);
                *self.link.heard.lock() = Some(from);
                return Ok(());
            }
            if reads >= MAX_READS {
                // It grows faster than it is read, or was not read for long.
                self.follower.skip_to(&reply.header);
                self.follower.is_answered(question);
                self.doubt_when_open();
            }
        }
        // It says something else each time.
        Err(RemoteErrorKind::Protocol)
    }

    /// Returns whether a reply is of the connection `over` that was there when its call was sent.
    /// The first connection is opened by the first call.
    fn is_still(&self, over: u64) -> bool {
        over.max(1) == self.connection()
    }

    /// Takes what the log has replied to a call that was sent with the stamp `asked`, on the
    /// connection `over`. Returns whether this process has applied all of it, and that is the log
    /// which is asked from now on.
    pub(super) fn heard(
        &self,
        (sent, over): (Tick, u64),
        asked: Option<Stamp>,
        reply: &LogReply,
        own: &[LogItem],
    ) -> bool {
        let is_new_epoch = asked.is_some_and(|asked| asked.epoch != reply.header.epoch);
        let has_moved = self.link.has_moved.load(Ordering::Acquire) || self.is_on_new_connection();
        if is_new_epoch && has_moved {
            // Before any value of the new epoch can be judged as alive.
            self.announce_again();
        }
        let effect = self.follower.take_reply(asked, reply, own, self.tick());
        let is_complete = !effect.is_behind
            && !effect.is_rolled_back
            && self.is_still(over)
            && self.is_on_verified_connection();
        if is_complete {
            self.link.has_moved.store(false, Ordering::Release);
        }
        self.settle(effect);
        if is_complete && let Some(engine) = self.engine.upgrade() {
            engine.vouch_until(sent.plus(VOUCHED));
        }
        is_complete
    }

    /// The same of a call that has announced `own`. What it does not say is read now, and not with
    /// the next heartbeat: what this process computes until then would be of no use to others.
    pub(super) fn heard_own(
        &self,
        sent: (Tick, u64),
        asked: Option<Stamp>,
        reply: &LogReply,
        own: &[LogItem],
    ) {
        if !self.heard(sent, asked, reply, own) {
            self.gate.tend.notify_one();
        }
    }

    /// The log has begun anew on another server, which may lack what this process was told was done:
    /// it is told again. Until then nothing that it concerns is taken over. A log that begins anew
    /// on the same server has ended all that.
    fn announce_again(&self) {
        self.own.copy_to(&self.gate.journal);
        self.link.again.fetch_add(1, Ordering::AcqRel);
        self.gate.tend.notify_one();
    }

    /// Returns whether the log may be on another server than when it was last checked.
    pub(super) fn is_log_in_question(&self) -> bool {
        let may_have_moved = &self.gate.log_shard().may_have_moved;
        may_have_moved.load(Ordering::Relaxed)
            || self.link.is_to_be_verified()
            || !self.is_on_verified_connection()
    }

    /// The log lacks what this process has applied: with the next read it is to begin again.
    pub(super) fn has_lost_items(&self) {
        *self.link.verified.lock() = None;
        self.gate.tend.notify_one();
    }

    /// Ends here what others have ended. The follower knows of it already, so that whatever is
    /// taken over from now on is checked against it.
    fn settle(&self, effect: Effect) {
        if effect.has_gap {
            self.doubt_when_open();
        }
        if effect.is_rolled_back {
            *self.link.verified.lock() = None;
        }
        let Some(engine) = self.engine.upgrade() else { return };
        for item in effect.items {
            let tag = match item {
                LogItem::Key(key) => {
                    self.pending.overtake(&key);
                    engine.invalidated_elsewhere(&key);
                    continue;
                }
                LogItem::Tag(tag) => tag,
                LogItem::Everything => Tag::from("*"),
                LogItem::EverythingStale => Tag::from("*").stale_mark(),
            };
            let concerns_all = tag.concerns_all();
            let seq = engine.invalidate_tag(tag, engine.clock.now());
            if concerns_all {
                engine.table.forget_before(seq);
            }
        }
    }

    /// Counts a read of the log. A remote whose log cannot be read is of no use, also where it
    /// answers everything else.
    fn count_read(&self, sent: Instant, failure: Option<RemoteErrorKind>) {
        let shard = self.gate.log_shard();
        self.gate.count(RemoteOp::ReadLog, &shard, sent, failure);
        *self.link.failed.lock() = failure.map(|kind| (Instant::now(), kind));
        if failure.is_none() {
            return self.link.unread.store(0, Ordering::Relaxed);
        }
        let unread = self.link.unread.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(kind) = failure
            && unread >= self.gate.settings.breaker_failures.max(1)
        {
            self.link.unread.store(0, Ordering::Relaxed);
            // Also where the log is on its way to another server: all keys wait for it.
            self.gate.open(RemoteOp::ReadLog, &shard, kind);
        }
    }

    pub(super) async fn read_clock(&self, shard: &ShardState) -> Result<(), RemoteErrorKind> {
        let sent = self.tick();
        let probe = self.remote().probe(shard.shard);
        let now = self.gate.attempt(RemoteOp::Probe, shard, 0, probe).await?;
        self.sample(shard, sent, now);
        Ok(())
    }

    /// Waits until the clock of a shard is known, so that what is read there can be dated.
    pub(super) async fn dated(&self, shard: &ShardState) -> Result<(), Unavailable> {
        if shard.clock.is_set() {
            return Ok(());
        }
        let _reading = shard.reading_clock.lock().await;
        if shard.clock.is_set() {
            return Ok(());
        }
        if !shard.answers() {
            return Err(Unavailable);
        }
        let sent = Instant::now();
        let read = self.read_clock(shard).await;
        self.gate.count(RemoteOp::Probe, shard, sent, read.err());
        read.map_err(|_| Unavailable)
    }

    /// Has the log read where local copies are not vouched for. A remote that is away says
    /// nothing of them: they are served until it is back.
    pub(super) async fn vouch_now(&self, has_value: bool) {
        self.start();
        let soon = self.gate.log_shard().progress.patience_with_a_value(VOUCH_LIMIT);
        // Without a value there is the time-out of the read itself.
        let limit = if has_value { soon } else { Duration::MAX };
        let prepared = tokio::time::timeout(limit, self.prepared()).await;
        if !matches!(prepared, Ok(Ok(()))) {
            // The caller does not wait for a remote that is slower than usual. What was ended
            // meanwhile is judged before the remote is asked again.
            self.gate.trip(RemoteOp::ReadLog, &self.gate.log_shard(), RemoteErrorKind::Timeout);
            self.vouch_for_ever();
        }
    }

    /// Lets local copies be served while the log is away.
    fn vouch_for_ever(&self) {
        let Some(engine) = self.engine.upgrade() else { return };
        engine.vouch_for_ever();
        if self.gate.log_answers() {
            // It has come back meanwhile.
            engine.withdraw_vouch();
        }
    }

    /// Reads the log that was away, and lets requests ask its shard.
    pub(super) async fn open_log(&self, shard: &ShardState) -> Result<(), RemoteErrorKind> {
        let _reading = self.link.reading.lock().await;
        let sent = self.tick();
        self.read_log().await?;
        self.gate.close(shard);
        // In this order: what is dropped here is there.
        self.settle_doubt();
        if let Some(engine) = self.engine.upgrade().filter(|_| self.log().is_some()) {
            engine.vouch_until(sent.plus(VOUCHED));
        }
        Ok(())
    }

    /// Drops every local copy: an invalidation may have been missed. Nothing
    /// that was read before this is stored after it.
    fn doubt(&self) {
        let Some(engine) = self.engine.upgrade() else { return };
        engine.log.doubt();
        drop(engine.local.clear());
        *self.link.dropped.lock() = Some(Instant::now());
    }

    /// The same as soon as the remote is asked: until then local copies are all
    /// there is, and dropping them would make every process compute.
    fn doubt_when_open(&self) {
        self.link.in_doubt.store(true, Ordering::Release);
        self.settle_doubt();
    }

    /// The runtime has ended or stands still, and with it the tasks that listened: on the
    /// next runtime they begin again.
    fn is_unattended(&self) {
        self.link.subscriptions.send_modify(|count| *count += 1);
        *self.link.verified.lock() = None;
        self.doubt();
        self.link.begun.store(false, Ordering::Release);
    }

    pub(super) fn settle_doubt(&self) {
        if self.gate.log_answers() && self.link.in_doubt.swap(false, Ordering::AcqRel) {
            self.doubt();
        }
    }

    /// Looks after the link once, and returns when to do so again.
    async fn tend_once(&self, runtime: u64) -> Duration {
        self.is_at_work();
        self.recover(runtime);
        if !self.gate.log_answers() {
            self.vouch_for_ever();
            return HEARTBEAT;
        }
        self.settle_doubt();
        if self.log().is_none() {
            return self.drop_old_copies();
        }
        let read = match self.follower.stamp() {
            None => self.prepare(None).await,
            Some(_) => self.beat().await,
        };
        match read {
            Ok(()) => HEARTBEAT.mul_f64(0.9 + 0.2 * fastrand::f64()),
            Err(_) => REPEAT,
        }
    }

    async fn beat(&self) -> Result<(), RemoteErrorKind> {
        let _reading = self.link.reading.lock().await;
        if !self.gate.log_answers() {
            return Err(RemoteErrorKind::Unavailable);
        }
        let sent = Instant::now();
        let result = self.read_log().await;
        self.count_read(sent, result.err());
        result
    }

    /// A remote without a log tells of no invalidation: local copies are used for no longer
    /// than `local_ttl`.
    fn drop_old_copies(&self) -> Duration {
        let local_ttl = self.gate.settings.local_ttl.unwrap_or(WITHOUT_LOG);
        let age = self.link.dropped.lock().get_or_insert_with(Instant::now).elapsed();
        if age < local_ttl {
            return local_ttl - age;
        }
        self.doubt();
        local_ttl
    }
}

impl<V: Send + Sync + 'static> OnNotice for EntryRemote<V> {
    fn on_notice(&self, notice: Notice) {
        match notice {
            Notice::Announced(update) => {
                let effect = self.follower.take_update(&update, self.tick());
                let is_behind = effect.is_behind;
                self.settle(effect);
                if is_behind {
                    self.gate.tend.notify_one();
                }
            }
            Notice::Subscribed => {
                // It may be another server, and messages were missed.
                self.gate.shards.all().iter().for_each(|shard| shard.clock.reset());
                *self.link.verified.lock() = None;
                self.link.subscriptions.send_modify(|count| *count += 1);
                if self.log().is_some()
                    && self.gate.log_answers()
                    && let Some(engine) = self.engine.upgrade()
                {
                    engine.withdraw_vouch();
                }
                self.gate.tend.notify_one();
            }
            Notice::Unsubscribed => {
                self.link.subscriptions.send_modify(|count| *count += 1);
            }
        }
    }
}

/// The claim to be the task that looks after the link. It is given up however the task
/// ends, and lost when its runtime stands still: a cache may outlive its runtime.
struct Tending<V: Send + Sync + 'static> {
    store: std::sync::Weak<EntryRemote<V>>,
    number: u64,
}

impl<V: Send + Sync + 'static> Tending<V> {
    /// Returns the store, unless the cache is gone or another task looks after the link.
    fn store(&self) -> Option<Arc<EntryRemote<V>>> {
        let store = self.store.upgrade()?;
        (store.link.tending.load(Ordering::Acquire) == self.number).then_some(store)
    }
}

impl<V: Send + Sync + 'static> Drop for Tending<V> {
    fn drop(&mut self) {
        if let Some(store) = self.store() {
            store.is_unattended();
            let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
            let (taken, free) = (self.number, self.number + 1);
            let _ = store.link.tending.compare_exchange(taken, free, release, relaxed);
        }
    }
}

/// Looks after the link until the cache is gone, or the runtime.
async fn tend<V: Send + Sync + 'static>(tending: Tending<V>) {
    let mut pause = Duration::ZERO;
    loop {
        // Not held over the pause: the cache may go.
        let Some(store) = tending.store() else { return };
        let tend = Arc::clone(&store.gate.tend);
        drop(store);
        let _ = tokio::time::timeout(pause, tend.notified()).await;
        let Some(store) = tending.store() else { return };
        let mut tended = std::pin::pin!(store.tend_once(tending.number));
        let mut is_due_again = false;
        pause = loop {
            match select(tended.as_mut(), std::pin::pin!(tend.notified())).await {
                Either::Left((pause, _)) => break pause,
                // A shard that goes away meanwhile does not wait for a slow log.
                Either::Right(_) => {
                    store.recover(tending.number);
                    is_due_again = true;
                }
            }
        };
        if is_due_again {
            pause = Duration::ZERO;
        }
    }
}
