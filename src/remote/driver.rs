//! Keeps `link` up to date, and does what it says: it listens to the remote, reads the invalidation
//! log, and ends here what others have ended.
//!
//! Once a second the log is read: the *heartbeat*. It finds what messages have missed. Local
//! copies are valid until two seconds after the last heartbeat was sent that the remote has
//! answered. After that, for example when the process was stopped, the next caller has the
//! log read before it is served. While the log is away, local copies are served, because there is
//! nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::Tick;
use crate::lease::grant::Stamp;
use crate::lease::shared_store::Unavailable;
use crate::observe::{Occurrence, RemoteOp};
use crate::remote::coordinator::EntryRemote;
use crate::remote::link::known::OwnItems;
use crate::remote::link::{Asked, Effects, Link};
use crate::remote::log::LogReply;
use crate::remote::shard::{ShardState, TaskClaim};
use crate::remote::{Notice, OnNotice, RemoteErrorKind};

/// How often the log is read, give or take a tenth: so do many processes not read together.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// How long local copies are used where there is no log, by default.
const WITHOUT_LOG: Duration = Duration::from_secs(1);

/// How long a caller waits that has a local copy in hand, where answers come quickly.
const VOUCH_LIMIT: Duration = Duration::from_millis(100);

/// How long a caller waits for the end of what has ended.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);

/// How soon a heartbeat is repeated that was not answered.
const REPEAT: Duration = Duration::from_millis(100);

/// How often the log is read on, before copies are dropped instead. Each read brings up to a
/// thousand items.
const MAX_READS: u8 = 8;

/// How many calls a caller waits for that finds the log unread: the subscription, the clock, and
/// two reads. Each ends within its own time-out.
const MOST_CALLS: u32 = 4;

/// What a read of the log may carry, in bytes.
const LOG_BYTES: usize = 256 << 10;

/// After how long without a sign of the task that looks after the link its runtime stands
/// still.
const UNATTENDED_AFTER: Duration = Duration::from_secs(120);

#[derive(Default)]
pub(super) struct Driver {
    pub(super) begun: AtomicBool,
    /// The number of the task that looks after the link: odd, or even where there is none.
    tending: AtomicU64,
    /// When that task was last at work, by the timers.
    tended_at: AtomicU64,
    /// Whether there was a subscription.
    was_subscribed: watch::Sender<bool>,
    /// Held by the task that reads the log.
    pub(super) reading: tokio::sync::Mutex<()>,
    /// The task that tells the journal.
    pub(super) telling_task: TaskClaim,
    /// When the call was sent that has last read the log to its end.
    heard: Mutex<Option<Instant>>,
    /// When the log could last not be read, and why.
    failed: Mutex<Option<(Instant, RemoteErrorKind)>>,
    /// How often in a row it could not be read, whatever else was answered.
    unread: AtomicU32,
    /// How many effects of the link are being carried out, and the callers that wait for their end.
    running: AtomicU32,
    settled: tokio::sync::Notify,
    /// When local copies were last dropped, for a remote without a log.
    dropped: Mutex<Option<Instant>>,
}

impl<V: Send + Sync + 'static> EntryRemote<V> {
    /// Begins to listen to the remote and to look after the link, once, and
    /// again where the runtime it was begun on has ended or stands still.
    pub(super) fn start(&self) {
        let tending = self.driver.tending.load(Ordering::Acquire);
        let is_taken = tending % 2 == 1;
        if is_taken && !self.stands_still() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let Some(me) = self.me.upgrade() else { return };
        let number = if is_taken { tending + 2 } else { tending + 1 };
        let (acq_rel, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
        if self.driver.tending.compare_exchange(tending, number, acq_rel, relaxed).is_err() {
            return;
        }
        self.is_at_work();
        if is_taken {
            self.is_unattended();
        }
        if !self.driver.begun.swap(true, Ordering::AcqRel)
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
        self.driver.tended_at.store(now, Ordering::Relaxed);
    }

    fn stands_still(&self) -> bool {
        let Some(engine) = self.engine.upgrade() else { return false };
        let tended_at = Tick::from_nanos(self.driver.tended_at.load(Ordering::Relaxed));
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
            return self.stamp().map(drop).ok_or(Unavailable);
        }
        // What was heard a moment ago is good enough where copies are valid again.
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
        let (shard, sent) = (self.gate.log_shard(), Instant::now());
        let limit = self.gate.deadline(&shard, 0) * MOST_CALLS;
        match tokio::time::timeout(limit, reading).await {
            Ok(Ok(result)) => return result.map_err(|_| Unavailable),
            // Where the runtime has much to do, the read of another caller may be over, and its own
            // task has not run yet.
            Ok(Err(_)) | Err(_) if since.is_none() && self.is_prepared() => return Ok(()),
            Ok(Err(_)) | Err(_) => {}
        }
        // What this caller computes is neither locked nor shared: that is a failure, too.
        let (op, kind) = (RemoteOp::ReadLog, RemoteErrorKind::Timeout);
        let (took, error) = (sent.elapsed(), Some(kind.as_str()));
        self.gate.observer.happened(Occurrence::RemoteCalled { op, took, error });
        self.gate.count(op, &shard, sent, Some(kind));
        Err(Unavailable)
    }

    /// Returns whether the log is known, and the local copies are valid.
    pub(super) fn is_prepared(&self) -> bool {
        match self.log() {
            Some(_) => self.gate.link().is_prepared(self.tick()),
            None => self.gate.log_shard().clock.is_set(),
        }
    }

    /// Returns how far the log was applied; `None` before it was read.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        self.gate.link().stamp()
    }

    /// Tells the link of an event, and does what follows from it. Returns whether all of the log is
    /// applied.
    ///
    /// Copies that are valid for longer are so after that, and those that are valid no more at once:
    /// so no caller is served what is about to end here.
    pub(super) fn on(&self, event: impl FnOnce(&mut Link, Tick) -> Effects) -> bool {
        let Some(engine) = self.engine.upgrade() else { return false };
        let effects = {
            let mut link = self.gate.link();
            let effects = event(&mut link, engine.clock.now());
            self.driver.running.fetch_add(1, Ordering::Relaxed);
            if self.log().is_some() {
                engine.is_valid_at_most(link.valid_until());
            }
            effects
        };
        let _running = Running(self);
        let is_complete = effects.is_complete;
        self.carry_out(effects);
        is_complete
    }

    fn carry_out(&self, effects: Effects) {
        let Some(engine) = self.engine.upgrade() else { return };
        if effects.drops_copies {
            self.drop_copies();
        }
        for (position, item) in effects.items {
            match item.into_tag() {
                Err(key) => {
                    self.pending.overtake(&key, position);
                    engine.invalidated_elsewhere(&key);
                }
                Ok(tag) => {
                    if let Some(key) = tag.marked_key() {
                        engine.mark_stale(&key);
                        continue;
                    }
                    let concerns_all = tag.concerns_all();
                    let seq = engine.invalidate_tag(tag, engine.clock.now());
                    if concerns_all {
                        engine.table.forget_before(seq);
                    }
                }
            }
        }
        if effects.tends {
            self.gate.tend.notify_one();
        }
    }

    /// Reads the log, unless that was done since then, or is not needed.
    async fn prepare(&self, since: Option<Instant>) -> Result<(), RemoteErrorKind> {
        let began = Instant::now();
        let _reading = self.driver.reading.lock().await;
        let failed = *self.driver.failed.lock();
        if let Some((_, kind)) = failed.filter(|(at, _)| *at > began)
            && began.elapsed() >= self.gate.log_shard().progress.most_patience()
        {
            // Callers that have waited long enough for a read fail together with it.
            return Err(kind);
        }
        let is_done = match since {
            Some(since) => self.driver.heard.lock().is_some_and(|heard| heard >= since),
            None => self.is_prepared(),
        };
        if is_done {
            return Ok(());
        }
        if !self.gate.log_answers() {
            // A caller that had the lock before has found the remote away.
            return Err(RemoteErrorKind::Unavailable);
        }
        if self.stamp().is_none() {
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
        let mut was_subscribed = self.driver.was_subscribed.subscribe();
        let subscribed = was_subscribed.wait_for(|was| *was);
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
            let from = Instant::now();
            let mut asked = self.asks();
            let found = match asked.verifies {
                true => None,
                false => {
                    let read = log.read(asked.stamp);
                    self.gate.attempt(RemoteOp::ReadLog, &shard, LOG_BYTES, read).await?
                }
            };
            let reply = match found {
                Some(reply) => reply,
                // Begins the log where there is none, or where it was set back.
                None => {
                    asked = asked.verifying();
                    let announce = log.announce(&[], asked.stamp);
                    self.gate.attempt(RemoteOp::ReadLog, &shard, LOG_BYTES, announce).await?
                }
            };
            if self.on(|link, now| link.is_answered(&asked, &reply, OwnItems::default(), now)) {
                *self.driver.heard.lock() = Some(from);
                return Ok(());
            }
            if reads >= MAX_READS {
                // It grows faster than it is read, or was not read for long.
                self.on(|link, _| link.skips_to(&reply.header, &asked));
            }
        }
        // It says something else each time.
        Err(RemoteErrorKind::Protocol)
    }

    /// Begins a call that asks the log.
    pub(super) fn asks(&self) -> Asked {
        self.gate.link().asks(self.tick())
    }

    /// Takes what the log has replied to an announcement. What it does not say is read now, and not
    /// with the next heartbeat: what this process computes until then would be of no use to others.
    pub(super) fn is_announced(&self, asked: &Asked, reply: &LogReply, own: OwnItems<'_>) {
        // The server has checked its log before it appended to it.
        let asked = asked.verifying();
        if !self.on(|link, now| link.is_answered(&asked, reply, own, now)) {
            self.gate.tend.notify_one();
        }
    }

    /// Counts a read of the log. A remote whose log cannot be read is of no use, also where it
    /// answers everything else.
    fn count_read(&self, sent: Instant, failure: Option<RemoteErrorKind>) {
        let shard = self.gate.log_shard();
        self.gate.count(RemoteOp::ReadLog, &shard, sent, failure);
        *self.driver.failed.lock() = failure.map(|kind| (Instant::now(), kind));
        if failure.is_none() {
            return self.driver.unread.store(0, Ordering::Relaxed);
        }
        let unread = self.driver.unread.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(kind) = failure
            && unread >= self.gate.settings.breaker_failures.max(1)
        {
            self.driver.unread.store(0, Ordering::Relaxed);
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
        self.settled().await;
        if !matches!(prepared, Ok(Ok(()))) {
            // The caller does not wait for a remote that is slower than usual. What was ended
            // meanwhile is judged before the remote is asked again.
            self.gate.trip(RemoteOp::ReadLog, &self.gate.log_shard(), RemoteErrorKind::Timeout);
            self.on(|link, _| link.is_away());
        }
    }

    /// Waits until what this process knows has ended here.
    async fn settled(&self) {
        let settled = async {
            loop {
                let settled = self.driver.settled.notified();
                if self.driver.running.load(Ordering::Acquire) == 0 {
                    return;
                }
                settled.await;
            }
        };
        // The user's code may stand still in a `Drop`.
        let _ = tokio::time::timeout(SETTLES_WITHIN, settled).await;
    }

    /// Reads the log that was away, and lets requests ask its shard.
    pub(super) async fn open_log(&self, shard: &ShardState) -> Result<(), RemoteErrorKind> {
        let _reading = self.driver.reading.lock().await;
        self.read_log().await?;
        // In this order: what is dropped here is there.
        self.on(|link, _| link.is_back());
        self.gate.close(shard);
        Ok(())
    }

    /// Drops every local copy: an invalidation may have been missed. Nothing
    /// that was read before this is stored after it.
    fn drop_copies(&self) {
        let Some(engine) = self.engine.upgrade() else { return };
        engine.log.doubt();
        drop(engine.local.clear());
        *self.driver.dropped.lock() = Some(Instant::now());
    }

    /// The runtime has ended or stands still, and with it the tasks that listened: on the
    /// next runtime they begin again.
    fn is_unattended(&self) {
        self.on(|link, _| link.is_unattended());
        self.driver.begun.store(false, Ordering::Release);
    }

    /// Looks after the link once, and returns when to do so again.
    async fn tend_once(&self, runtime: u64) -> Duration {
        self.is_at_work();
        self.recover(runtime);
        if !self.gate.log_answers() {
            self.on(|link, _| link.is_away());
            return HEARTBEAT;
        }
        self.on(|link, _| link.is_back());
        if self.log().is_none() {
            return self.drop_old_copies();
        }
        self.on(|link, now| link.tells_again(now));
        let read = self.prepare(Some(Instant::now())).await;
        let due = self.gate.link().next_due().map(|due| due.since(self.tick()));
        let pause = match read {
            Ok(()) => HEARTBEAT.mul_f64(0.9 + 0.2 * fastrand::f64()),
            Err(_) => REPEAT,
        };
        due.map_or(pause, |due| pause.min(due))
    }

    /// A remote without a log tells of no invalidation: local copies are used for no longer
    /// than `local_ttl`.
    fn drop_old_copies(&self) -> Duration {
        let local_ttl = self.gate.settings.local_ttl.unwrap_or(WITHOUT_LOG);
        let age = self.driver.dropped.lock().get_or_insert_with(Instant::now).elapsed();
        if age < local_ttl {
            return local_ttl - age;
        }
        self.drop_copies();
        local_ttl
    }
}

impl<V: Send + Sync + 'static> OnNotice for EntryRemote<V> {
    fn on_notice(&self, notice: Notice) {
        match notice {
            Notice::Announced(update) => {
                self.on(|link, now| link.is_told(&update, now));
            }
            Notice::Subscribed => {
                // It may be another server.
                self.gate.shards.all().iter().for_each(|shard| shard.clock.reset());
                self.driver.was_subscribed.send_replace(true);
                self.on(|link, _| link.is_subscribed());
            }
            Notice::Unsubscribed => {}
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
        (store.driver.tending.load(Ordering::Acquire) == self.number).then_some(store)
    }
}

impl<V: Send + Sync + 'static> Drop for Tending<V> {
    fn drop(&mut self) {
        if let Some(store) = self.store() {
            store.is_unattended();
            let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
            let (taken, free) = (self.number, self.number + 1);
            let _ = store.driver.tending.compare_exchange(taken, free, release, relaxed);
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

/// Effects of the link that are being carried out.
struct Running<'a, V: Send + Sync + 'static>(&'a EntryRemote<V>);

impl<V: Send + Sync + 'static> Drop for Running<'_, V> {
    fn drop(&mut self) {
        if self.0.driver.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.driver.settled.notify_waiters();
        }
        // From now on the copies are valid for so long.
        let Some(engine) = self.0.engine.upgrade() else { return };
        let link = self.0.gate.link();
        if self.0.log().is_some() && self.0.driver.running.load(Ordering::Acquire) == 0 {
            engine.is_valid_until(link.valid_until());
        }
    }
}
