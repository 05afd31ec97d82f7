//! One connection for all commands: opened when it is first needed,
//! replaced when it is of no use any more.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::remote::redis::connection::{Command, Connection, Messages, Pulse, Script, Target};
use crate::remote::redis::credentials::{RetryPause, Validity};
use crate::remote::redis::eviction;
use crate::remote::redis::lock_inbox::LockInbox;
use crate::remote::redis::names::Names;
use crate::remote::redis::reply::{CallFailure, Cause, ServerReply};

/// After how many calls in a row without an answer a connection is replaced.
const STRIKES: u32 = 3;

/// A call that is given up now was sent on an older connection than this.
const YOUNGEST_SUSPECT: Duration = Duration::from_millis(20);

/// Ends with the last [`Pool`] of its connection.
pub(super) struct WeakPool(Weak<PoolState>);

impl WeakPool {
    pub(super) fn upgrade(&self) -> Option<Pool> {
        self.0.upgrade().map(Pool)
    }
}

/// A clone shares the connection.
#[derive(Clone)]
pub(super) struct Pool(Arc<PoolState>);

struct PoolState {
    target: Target,
    slot: Mutex<Slot>,
    strikes: AtomicU32,
    /// The longest that any caller waits for an answer, in ms.
    patience: AtomicU64,
    /// Whether nothing is sent but what callers send.
    is_plain: bool,
    /// A bit for each script that a server has run.
    sent_scripts: AtomicU64,
    /// Where this process hears of locks, by the channel.
    lock_inboxes: Mutex<HashMap<String, Arc<LockInbox>>>,
    /// Tells this process's channels from those of others.
    process: u64,
    advised: Once,
    #[cfg(feature = "redis-legacy-lock")]
    plain: std::sync::OnceLock<Pool>,
}

#[derive(Default)]
struct Slot {
    open: Option<Open>,
    opening: Option<Attempt>,
    opened: u64,
}

#[derive(Clone)]
struct Open {
    number: u64,
    since: Instant,
    connection: Connection,
}

/// Tells all waiting calls how an attempt to connect has ended.
type Attempt = watch::Receiver<Option<Result<Open, CallFailure>>>;

impl Pool {
    pub(super) fn new(target: Target) -> Self {
        Self::with(target, false)
    }

    fn with(target: Target, is_plain: bool) -> Self {
        Self(Arc::new(PoolState {
            target,
            slot: Mutex::default(),
            strikes: AtomicU32::new(0),
            patience: AtomicU64::new(0),
            is_plain,
            sent_scripts: AtomicU64::new(0),
            lock_inboxes: Mutex::default(),
            process: RandomState::new().hash_one(std::process::id()),
            advised: Once::new(),
            #[cfg(feature = "redis-legacy-lock")]
            plain: std::sync::OnceLock::new(),
        }))
    }

    /// Returns a link of its own to the same servers that sends nothing but
    /// what it is told: some proxies hang up on a command they do not know.
    #[cfg(feature = "redis-legacy-lock")]
    pub(super) fn plain(&self) -> Self {
        let target = || self.target().clone().with_client_name("");
        self.0.plain.get_or_init(|| Self::with(target(), true)).clone()
    }

    /// Sends `command`, connecting first if need be.
    ///
    /// A connection that turns out to be broken is replaced, and the command
    /// is sent again, once: the server was restarted since the last command.
    /// All our commands may be executed twice.
    pub(super) async fn send(&self, command: &Command) -> Result<ServerReply, CallFailure> {
        let Some(open) = self.0.open() else {
            return self.send_on(&self.0.opened().await?, command).await;
        };
        match self.send_on(&open, command).await {
            Err(failure) if failure.cause == Cause::Broken && !open.connection.heals_itself() => {
                self.send_on(&self.0.opened().await?, command).await
            }
            answer => answer,
        }
    }

    /// Sends `command`, and not again, whatever becomes of it.
    #[cfg(feature = "redis-legacy-lock")]
    pub(super) async fn send_once(&self, command: &Command) -> Result<ServerReply, CallFailure> {
        self.send_on(&self.0.opened().await?, command).await
    }

    async fn send_on(&self, open: &Open, command: &Command) -> Result<ServerReply, CallFailure> {
        let answer = open.connection.send(command).await;
        let useless = answer.as_ref().is_err_and(|failure| failure.cause.is_useless_connection());
        if !useless {
            self.0.strikes.store(0, Ordering::Relaxed);
        } else if open.connection.heals_itself() {
            self.suspect();
        } else {
            self.0.close(open.number);
        }
        answer
    }

    /// Runs `script`: one round trip, unless the server has forgotten it. The first call sends it
    /// in full, so that nothing is loaded when processes connect.
    pub(super) async fn run(
        &self,
        script: &Script,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<ServerReply, CallFailure> {
        // Two scripts may share a bit: then the server says that it does not know one.
        let bit = 1 << script.number();
        if self.0.sent_scripts.load(Ordering::Relaxed) & bit != 0 {
            match self.send(&script.by_digest(keys, args)).await {
                Err(failure) if failure.cause == Cause::NoScript => (),
                answer => return answer,
            }
        }
        let answer = self.send(&script.in_full(keys, args)).await;
        if answer.is_ok() {
            self.0.sent_scripts.fetch_or(bit, Ordering::Relaxed);
        }
        answer
    }

    /// Opens a connection of its own that hears what is published on
    /// `channels`.
    pub(super) async fn subscribe(
        &self,
        channels: &[&str],
    ) -> Result<(Pulse, Messages), CallFailure> {
        self.0.target.subscribe(channels, self.0.patience()).await
    }

    /// Notes how long callers wait for an answer. Where that is longer than the usual
    /// time-out of a connection attempt, the attempt gets as much time.
    pub(super) fn is_awaited_for(&self, patience: Duration) {
        let millis = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        self.0.patience.fetch_max(millis, Ordering::Relaxed);
    }

    pub(super) fn downgrade(&self) -> WeakPool {
        WeakPool(Arc::downgrade(&self.0))
    }

    /// Returns where this process hears of locks, on a channel of `namespace`.
    pub(super) fn lock_inbox(&self, namespace: &str) -> Arc<LockInbox> {
        let channel = format!("{}lock-in:{:016x}", Names::below(namespace), self.0.process);
        let mut inboxes = self.0.lock_inboxes.lock();
        let inbox = inboxes
            .entry(channel)
            .or_insert_with_key(|name| Arc::new(LockInbox::new(name.clone())));
        Arc::clone(inbox)
    }

    pub(super) fn target(&self) -> &Target {
        &self.0.target
    }

    /// Is told that a caller gave up waiting for an answer.
    pub(super) fn suspect(&self) {
        let mut slot = self.0.slot.lock();
        let Some(open) = &slot.open else { return };
        if open.since.elapsed() < YOUNGEST_SUSPECT {
            return;
        }
        if self.0.strikes.fetch_add(1, Ordering::Relaxed) + 1 >= STRIKES {
            self.0.strikes.store(0, Ordering::Relaxed);
            slot.open = None;
        }
    }
}

impl PoolState {
    fn patience(&self) -> Duration {
        Duration::from_millis(self.patience.load(Ordering::Relaxed))
    }

    fn open(&self) -> Option<Open> {
        self.slot.lock().open.clone()
    }

    /// Returns the open connection, or waits for the one attempt to open it, which all
    /// callers share.
    async fn opened(self: &Arc<Self>) -> Result<Open, CallFailure> {
        let mut attempt = {
            let mut slot = self.slot.lock();
            if let Some(open) = &slot.open {
                return Ok(open.clone());
            }
            match slot.opening.take().filter(|attempt| attempt.has_changed().is_ok()) {
                Some(attempt) => slot.opening.insert(attempt).clone(),
                None => slot.opening.insert(self.attempt()?).clone(),
            }
        };
        match attempt.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(ended)) => ended.clone(),
            _ => Err(CallFailure::disconnected("the runtime that was connecting is gone")),
        }
    }

    /// Begins to connect, on a task that no caller can take along.
    fn attempt(self: &Arc<Self>) -> Result<Attempt, CallFailure> {
        let runtime = Handle::try_current()
            .map_err(|_| CallFailure::disconnected("there is no tokio runtime here"))?;
        let (ended, attempt) = watch::channel(None);
        let shared = Arc::clone(self);
        runtime.spawn(async move {
            let connected = shared.target.connect(shared.patience()).await;
            let opened = shared.end_attempt(connected);
            ended.send_replace(Some(opened.clone()));
            let Ok(open) = opened else { return };
            if !shared.is_plain {
                eviction::warn_once(&shared.advised, &open.connection, &shared.target).await;
            }
            if let Some(validity) = open.connection.replaced_by() {
                let shared = Arc::downgrade(&shared);
                tokio::spawn(replace_before_expiry(shared, open.number, validity));
            }
        });
        Ok(attempt)
    }

    /// Stores the connection in one step with the end of the attempt, so that
    /// each caller finds one of the two.
    fn end_attempt(&self, connected: Result<Connection, CallFailure>) -> Result<Open, CallFailure> {
        let mut slot = self.slot.lock();
        slot.opening = None;
        connected.map(|connection| slot.opened(connection))
    }

    /// Stores a connection in place of the one with this number, if that is still in use.
    fn replace(&self, number: u64, connection: Connection) -> Option<Open> {
        let mut slot = self.slot.lock();
        let is_current = slot.open.as_ref().is_some_and(|open| open.number == number);
        is_current.then(|| slot.opened(connection))
    }

    fn is_open(&self, number: u64) -> bool {
        self.open().is_some_and(|open| open.number == number)
    }

    /// Forgets the connection with this number, if it is still the one in use.
    fn close(&self, number: u64) {
        let mut slot = self.slot.lock();
        if slot.open.as_ref().is_some_and(|open| open.number == number) {
            slot.open = None;
        }
    }
}

/// Opens another connection before the credentials of this one expire, again and again. Commands
/// that were sent on the old one end there.
async fn replace_before_expiry(pool: Weak<PoolState>, mut number: u64, mut validity: Validity) {
    let mut backoff = RetryPause::default();
    loop {
        validity.until_renewal().await;
        let Some(shared) = pool.upgrade() else { return };
        if !shared.is_open(number) {
            return;
        }
        match shared.target.connect(shared.patience()).await {
            Ok(connection) => {
                let Some(open) = shared.replace(number, connection) else { return };
                let Some(next) = open.connection.replaced_by() else { return };
                (number, validity, backoff) = (open.number, next, RetryPause::default());
            }
            Err(_) => {
                drop(shared);
                sleep(backoff.lengthen()).await;
            }
        }
    }
}

impl Drop for PoolState {
    fn drop(&mut self) {
        self.lock_inboxes.get_mut().values().for_each(|inbox| inbox.stop());
    }
}

impl Slot {
    fn opened(&mut self, connection: Connection) -> Open {
        self.opened += 1;
        let open = Open { number: self.opened, since: Instant::now(), connection };
        self.open.insert(open).clone()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.target.fmt(f)
    }
}
