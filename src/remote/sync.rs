//! Whether what this process knows of the remote is up to date: subscribed,
//! the invalidation log read, and local copies dropped where messages may have
//! been missed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::try_join_all;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::Tick;
use crate::key::{Key, Tag, uncollected};
use crate::lease::grant::Token;
use crate::lease::shared_store::Unavailable;
use crate::observe::RemoteCall;
use crate::remote::breaker::Backoff;
use crate::remote::coordinator::EntryRemote;
use crate::remote::journal::JournalWork;
use crate::remote::{Notice, OnNotice, RemoteErrorKind, ServerTime};

/// How often a quiet link is looked after.
const TEND_EVERY: Duration = Duration::from_secs(30);

/// How often old records are dropped from the log.
const TRIM_EVERY: Duration = Duration::from_secs(3600);

/// What reading the log may have to carry, in bytes, once it did not come in
/// time, and at most. It is as long as there are tags, and a remote whose log
/// cannot be read is not asked at all.
const LONG_LOG: usize = 4 << 20;
const LONGEST_LOG: usize = 64 << 20;

/// After how long without a sign of the task that looks after the link its runtime stands
/// still.
const UNATTENDED_AFTER: Duration = Duration::from_secs(120);

/// A remote that fails sooner than this after it was brought back answers
/// probes and little else.
const STEADY_AFTER: Duration = Duration::from_secs(10);

/// Most tags told in one call.
const TAGS_AT_ONCE: usize = 1000;

pub(super) struct Synchronizer {
    begun: AtomicBool,
    /// The number of the task that looks after the link: odd, or even where there is none.
    tending: AtomicU64,
    /// When that task was last at work, by the timers.
    tended_at: AtomicU64,
    /// Counts subscriptions and losses of them.
    epoch: watch::Sender<u64>,
    subscribed: AtomicBool,
    /// When the log was last read, and in which epoch.
    read: Mutex<Option<(u64, Instant)>>,
    /// As how long it counts: more after each time that it did not come.
    log_bytes: AtomicUsize,
    /// Held by the task that reads the log.
    reading: tokio::sync::Mutex<()>,
    /// Whether local copies are to be dropped once the remote is asked again.
    in_doubt: AtomicBool,
    /// When local copies were last vouched for.
    vouched: Mutex<Option<Instant>>,
    trimmed: Mutex<Option<Instant>>,
}

impl Synchronizer {
    pub(super) fn new() -> Self {
        Self {
            begun: AtomicBool::new(false),
            tending: AtomicU64::new(0),
            tended_at: AtomicU64::new(0),
            epoch: watch::Sender::new(0),
            subscribed: AtomicBool::new(false),
            read: Mutex::new(None),
            log_bytes: AtomicUsize::new(0),
            reading: tokio::sync::Mutex::new(()),
            in_doubt: AtomicBool::new(false),
            vouched: Mutex::new(None),
            trimmed: Mutex::new(None),
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    fn moves_on(&self, subscribed: bool) {
        self.subscribed.store(subscribed, Ordering::Release);
        self.epoch.send_modify(|epoch| *epoch += 1);
    }

    fn is_subscribed(&self) -> bool {
        self.subscribed.load(Ordering::Acquire)
    }

    /// Returns whether the log as it was read is still good.
    fn is_current(&self, local_ttl: Duration) -> bool {
        let Some((epoch, at)) = *self.read.lock() else { return false };
        epoch == *self.epoch.borrow() && (self.is_subscribed() || at.elapsed() < local_ttl)
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
        if !self.link.begun.swap(true, Ordering::AcqRel) {
            *self.link.vouched.lock() = Some(Instant::now());
            let me: Arc<dyn OnNotice> = Arc::clone(&me) as _;
            self.remote().attach(Arc::downgrade(&me));
        }
        runtime.spawn(tend(Tending { store: Arc::downgrade(&me), number }));
    }

    /// Says that the task that looks after the link is run.
    fn is_at_work(&self) {
        let now = self.engine.upgrade().map_or(0, |engine| engine.watch.now().as_nanos());
        self.link.tended_at.store(now, Ordering::Relaxed);
    }

    fn stands_still(&self) -> bool {
        let Some(engine) = self.engine.upgrade() else { return false };
        let tended_at = Tick::from_nanos(self.link.tended_at.load(Ordering::Relaxed));
        engine.watch.now() >= tended_at.plus(UNATTENDED_AFTER)
    }

    /// Waits until the invalidation log is known, within one `op_timeout`. The
    /// first time this waits for the subscription too.
    pub(super) async fn prepared(&self) -> Result<(), Unavailable> {
        if self.is_prepared() {
            return Ok(());
        }
        if !self.gate.is_open() {
            return Err(Unavailable);
        }
        let Some(me) = self.me.upgrade() else { return Err(Unavailable) };
        // On a task: a caller that goes away does not keep the others waiting.
        let reading = tokio::spawn(async move { me.prepare().await });
        match tokio::time::timeout(self.gate.settings.op_timeout, reading).await {
            Ok(Ok(result)) => result.map_err(|_| Unavailable),
            Ok(Err(_)) | Err(_) => Err(Unavailable),
        }
    }

    fn is_prepared(&self) -> bool {
        self.link.is_current(self.gate.settings.local_ttl)
    }

    async fn prepare(&self) -> Result<(), RemoteErrorKind> {
        let _reading = self.link.reading.lock().await;
        if self.is_prepared() {
            return Ok(());
        }
        if !self.gate.is_open() {
            // A caller that had the lock before has found the remote away.
            return Err(RemoteErrorKind::Unavailable);
        }
        if self.link.read.lock().is_none() {
            self.first_subscription().await;
        }
        let result = self.read_log().await;
        self.gate.count(RemoteCall::ReadTags, result.as_ref().err().copied());
        result
    }

    /// Waits for the first subscription. Where there is none, polling and
    /// reading the log again and again take its place.
    async fn first_subscription(&self) {
        let mut epoch = self.link.epoch.subscribe();
        let subscribed = epoch.wait_for(|epoch| *epoch > 0);
        let _ = tokio::time::timeout(self.gate.settings.op_timeout / 2, subscribed).await;
    }

    /// Reads the clock and the invalidation log; what the log has lost is
    /// written back.
    async fn read_log(&self) -> Result<(), RemoteErrorKind> {
        let epoch = *self.link.epoch.borrow();
        self.read_clock().await?;
        let at = Instant::now();
        let read = self.remote().read_tags();
        let bytes = self.link.log_bytes.load(Ordering::Relaxed);
        let read = self.gate.attempt(RemoteCall::ReadTags, bytes.max(self.gate.largest()), read);
        let read = read.await;
        if matches!(read, Err(RemoteErrorKind::Timeout)) {
            let more = (bytes * 2).clamp(LONG_LOG, LONGEST_LOG);
            self.link.log_bytes.store(more, Ordering::Relaxed);
        }
        let mut log = read?;
        self.learn_longest(&mut log);
        let merged = self.mirror.merge(log);
        self.invalidate_here(&merged.raised);
        *self.link.read.lock() = Some((epoch, at));
        for lost in merged.missing.chunks(TAGS_AT_ONCE) {
            let restore = self.remote().restore_tags(lost);
            self.gate.attempt(RemoteCall::RestoreTags, 0, restore).await?;
        }
        self.tell_longest().await;
        Ok(())
    }

    async fn read_clock(&self) -> Result<(), RemoteErrorKind> {
        let sent = self.tick();
        let now = self.gate.attempt(RemoteCall::Probe, 0, self.remote().probe()).await?;
        self.sample(sent, now);
        Ok(())
    }

    /// Takes note of the time at which tags were invalidated.
    pub(super) fn heard_of(&self, tags: &[Tag], at: ServerTime) {
        for tag in tags {
            self.mirror.raise(tag, at);
        }
        // All of them, also what is no later than what was known: it may be a
        // second invalidation in one millisecond.
        self.invalidate_here(tags);
    }

    /// Ends the local use of tags; the mirror knows of them already, so that
    /// whatever is taken over from now on is checked against it.
    fn invalidate_here(&self, tags: &[Tag]) {
        let Some(engine) = self.engine.upgrade() else { return };
        for tag in tags {
            let seq = engine.invalidate_tag(tag.clone(), engine.clock.now());
            if tag.concerns_all() {
                engine.table.forget_before(seq);
            }
        }
    }

    /// Drops every local copy: an invalidation may have been missed. Nothing
    /// that was read before this is stored after it.
    fn doubt(&self) {
        let Some(engine) = self.engine.upgrade() else { return };
        engine.log.doubt();
        drop(engine.local.clear());
        *self.link.vouched.lock() = Some(Instant::now());
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
        self.link.moves_on(false);
        self.doubt();
        self.link.begun.store(false, Ordering::Release);
    }

    fn settle_doubt(&self) {
        if self.gate.is_open() && self.link.in_doubt.swap(false, Ordering::AcqRel) {
            self.doubt();
        }
    }

    /// Looks after the link once, and returns when to do so again.
    async fn tend_once(&self, pace: &mut Pace) -> Duration {
        self.is_at_work();
        if !self.gate.is_open() {
            if let Some(me) = self.me.upgrade().filter(|_| self.gate.has_begun_outage()) {
                // On a task of its own: servers may be slow not to answer.
                tokio::spawn(async move { me.gate.report_silent_servers().await });
            }
            if let Some(pause) = pace.pause_if_unsteady() {
                return pause;
            }
            return match self.bring_back().await {
                Ok(()) => pace.was_brought_back(),
                Err(_) => pace.probes.next(),
            };
        }
        self.settle_doubt();
        if !self.is_prepared() && self.link.read.lock().is_some() {
            let _ = self.prepare().await;
        }
        if !self.link.is_subscribed() {
            return self.tend_unsubscribed().await;
        }
        self.trim().await;
        TEND_EVERY
    }

    /// While no messages arrive and the remote answers, local copies are used
    /// no longer than `local_ttl`. If it does not answer, they are all there is.
    async fn tend_unsubscribed(&self) -> Duration {
        let local_ttl = self.gate.settings.local_ttl;
        let vouched = self.link.vouched.lock().map_or(local_ttl, |at| at.elapsed());
        if vouched < local_ttl {
            return local_ttl - vouched;
        }
        let probe = self.gate.call(RemoteCall::Probe, 0, || self.remote().probe()).await;
        if probe.is_ok() && !self.link.is_subscribed() {
            self.doubt();
        }
        local_ttl
    }

    /// Probes, tells the remote what it has missed, and lets requests ask it
    /// again.
    async fn bring_back(&self) -> Result<(), RemoteErrorKind> {
        self.probe().await?;
        self.replay().await?;
        let _reading = self.link.reading.lock().await;
        self.read_log().await?;
        loop {
            // Invalidations that were noted meanwhile. Between the last look into the
            // journal and the opening nothing is awaited: a stream of invalidations
            // would keep the remote away for ever.
            self.replay().await?;
            self.gate.close();
            if self.gate.journal.is_empty() {
                break;
            }
        }
        // In this order: what is dropped here is there.
        self.settle_doubt();
        Ok(())
    }

    /// Tells the remote what it has missed.
    async fn replay(&self) -> Result<(), RemoteErrorKind> {
        while let Some(work) = self.gate.journal.next() {
            match &work {
                JournalWork::Keys(keys) => {
                    // Together: one round trip after the other would not keep up
                    // with an application that goes on invalidating.
                    let invalidate = |key| {
                        let invalidate = self.remote().invalidate(key);
                        self.gate.attempt(RemoteCall::Invalidate, 0, invalidate)
                    };
                    let keys: Vec<_> = keys.iter().flat_map(uncollected).collect();
                    try_join_all(keys.iter().map(invalidate)).await?;
                }
                JournalWork::Tags(tags) => {
                    let invalidate = self.remote().invalidate_tags(tags);
                    let at = self.gate.attempt(RemoteCall::InvalidateTags, 0, invalidate).await?;
                    self.heard_of(tags, at);
                }
            }
            self.gate.journal.done(&work);
            self.is_at_work();
        }
        Ok(())
    }

    /// Sees whether the remote answers, and whether it executes what may write:
    /// a server can be paused for that alone.
    async fn probe(&self) -> Result<(), RemoteErrorKind> {
        self.read_clock().await?;
        let (unheld, nothing) = (Token::random(), Key::from("probe"));
        let abandon = self.remote().abandon(&nothing, &unheld, None);
        self.gate.attempt(RemoteCall::Abandon, 0, abandon).await.map(drop)
    }

    async fn trim(&self) {
        let last = *self.link.trimmed.lock();
        if last.is_some_and(|at| at.elapsed() < TRIM_EVERY) {
            return;
        }
        *self.link.trimmed.lock() = Some(Instant::now());
        // Not at once: many processes begin together.
        let Some(_) = last else { return };
        {
            // Others may have stored by now what lives longer.
            let _reading = self.link.reading.lock().await;
            if self.read_log().await.is_err() {
                return;
            }
        }
        let before = self.clock.server_time(self.tick().minus(self.log_kept()));
        let Some(before) = before else { return };
        self.mirror.trim(before);
        let trim = || self.remote().trim_tags(before);
        let _ = self.gate.call(RemoteCall::TrimTags, 0, trim).await;
    }
}

impl<V: Send + Sync + 'static> OnNotice for EntryRemote<V> {
    fn on_notice(&self, notice: Notice) {
        match notice {
            Notice::Invalidated(key) => {
                let Some(engine) = self.engine.upgrade() else { return };
                engine.invalidated_elsewhere(&key);
            }
            Notice::TagsInvalidated(tags, at) => self.heard_of(&tags, at),
            Notice::Subscribed => {
                // In this order: what is read in the new epoch is not doubted.
                self.doubt_when_open();
                self.clock.reset();
                self.link.moves_on(true);
                self.gate.tend.notify_one();
            }
            Notice::Unsubscribed => {
                *self.link.vouched.lock() = Some(Instant::now());
                self.link.moves_on(false);
                self.gate.tend.notify_one();
            }
        }
    }
}

/// How often a remote that is away is probed.
struct Pace {
    probes: Backoff,
    /// Before the first probe, where the last one proved nothing.
    relapses: Backoff,
    brought_back: Option<Instant>,
}

impl Pace {
    const fn new() -> Self {
        Self { probes: Backoff::new(), relapses: Backoff::new(), brought_back: None }
    }

    fn was_brought_back(&mut self) -> Duration {
        self.probes.reset();
        self.brought_back = Some(Instant::now());
        Duration::ZERO
    }

    /// Returns how long to wait before the first probe of an outage: one right
    /// after another would let requests ask at once, and fail at once.
    fn pause_if_unsteady(&mut self) -> Option<Duration> {
        let brought_back = self.brought_back.take()?;
        if brought_back.elapsed() < STEADY_AFTER {
            return Some(self.relapses.next());
        }
        self.relapses.reset();
        None
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
    let mut pace = Pace::new();
    let mut pause = Duration::ZERO;
    loop {
        // Not held over the pause: the cache may go.
        let Some(store) = tending.store() else { return };
        let tend = Arc::clone(&store.gate.tend);
        drop(store);
        let _ = tokio::time::timeout(pause, tend.notified()).await;
        let Some(store) = tending.store() else { return };
        pause = store.tend_once(&mut pace).await;
    }
}
