//! One connection for all commands: opened when it is first needed,
//! replaced when it is of no use any more.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::Instant;

use crate::key::Key;
use crate::observe::{RemoteOp, warn_of_connection};
use crate::remote::progress::Progress;
use crate::remote::redis::cluster::{Cluster, slot_of, tag_of_slot};
use crate::remote::redis::connection::{
    CONNECT_TIMEOUT, Command, Connection, Script, Subscription, Target,
};
use crate::remote::redis::eviction;
use crate::remote::redis::lock_inbox::LockInbox;
use crate::remote::redis::reply::{CallFailure, Cause, REMEDIES, ServerReply};
use crate::remote::{RemoteError, RemoteErrorKind};

/// After how many calls in a row without an answer a connection is replaced.
const STRIKES: u32 = 3;

/// How often the limit of an attempt to connect is doubled.
const MOST_DOUBLINGS: u32 = 3;

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
    /// How many connections there were.
    opened: AtomicU64,
    patience: CallerPatience,
    /// Whether nothing is sent but what callers send.
    is_plain: bool,
    /// A bit for each script that a server has run.
    sent_scripts: AtomicU64,
    /// Where this process hears of locks, by the channel.
    lock_inboxes: Mutex<HashMap<String, Arc<LockInbox>>>,
    /// How quickly calls of locks are answered, by their `op_timeout`.
    lock_progress: Mutex<HashMap<Duration, Arc<Progress>>>,
    /// Whose turn it is to ask for a lock, by its name.
    lock_turns: Mutex<HashMap<Vec<u8>, Weak<tokio::sync::Mutex<()>>>>,
    /// Tells this process's channels from those of others.
    process: u64,
    advised: Once,
    /// How many attempts to connect in a row have taken too long.
    late: AtomicU32,
    /// A bit for each remedy that the log has named since a connection was of use.
    reported: AtomicU32,
    /// The number of the last connection that was.
    useful: AtomicU64,
    plain: std::sync::OnceLock<Pool>,
    /// Where the target is one: each node has a pool of its own, and this one no connection.
    cluster: Option<Arc<Cluster>>,
}

#[derive(Default)]
struct Slot {
    open: Option<Open>,
    opening: Option<Attempt>,
}

#[derive(Clone)]
struct Open {
    number: u64,
    since: Instant,
    connection: Connection,
}

/// The longest that any caller waits for an answer, in ms; 0 where none has said so. A clone is the
/// same one.
#[derive(Clone, Default)]
pub(super) struct CallerPatience(Arc<AtomicU64>);

impl CallerPatience {
    pub(super) fn note(&self, op_timeout: Duration) {
        let millis = u64::try_from(op_timeout.as_millis()).unwrap_or(u64::MAX);
        self.0.fetch_max(millis, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Option<Duration> {
        let millis = self.0.load(Ordering::Relaxed);
        (millis > 0).then(|| Duration::from_millis(millis))
    }
}

/// What is sent.
#[derive(Clone, Copy)]
pub(super) enum Request<'a> {
    Command(&'a Command),
    /// Never again, whatever happens to it.
    #[cfg_attr(
        not(feature = "redis-legacy-lock"),
        allow(dead_code, reason = "commands of the older lock")
    )]
    Once(&'a Command),
    Script(&'a Script, &'a [&'a [u8]], &'a [&'a [u8]]),
}

impl Request<'_> {
    /// Returns the slot of its key; `None` where it has none.
    pub(super) fn slot(self) -> Option<u16> {
        match self {
            Self::Command(command) | Self::Once(command) => command.slot(),
            Self::Script(_, keys, _) => keys.first().map(|name| slot_of(name)),
        }
    }
}

/// Tells all waiting calls how an attempt to connect has ended.
type Attempt = watch::Receiver<Option<Result<Open, CallFailure>>>;

impl Pool {
    pub(super) fn new(target: Target) -> Self {
        Self::with(target, false, CallerPatience::default())
    }

    pub(super) fn with(target: Target, is_plain: bool, patience: CallerPatience) -> Self {
        let cluster = || Arc::new(Cluster::new(target.clone(), is_plain, patience.clone()));
        Self(Arc::new(PoolState {
            cluster: target.is_cluster().then(cluster),
            target,
            slot: Mutex::default(),
            strikes: AtomicU32::new(0),
            opened: AtomicU64::new(0),
            patience,
            is_plain,
            sent_scripts: AtomicU64::new(0),
            lock_inboxes: Mutex::default(),
            lock_progress: Mutex::default(),
            lock_turns: Mutex::default(),
            process: RandomState::new().hash_one(std::process::id()),
            advised: Once::new(),
            late: AtomicU32::new(0),
            reported: AtomicU32::new(0),
            useful: AtomicU64::new(0),
            plain: std::sync::OnceLock::new(),
        }))
    }

    /// Returns a link of its own to the same servers that sends nothing but
    /// what it is told: some proxies hang up on a command they do not know.
    #[cfg_attr(not(feature = "redis-legacy-lock"), allow(dead_code, reason = "for that lock"))]
    pub(super) fn plain(&self) -> Self {
        let target = || self.target().clone().with_client_name("");
        self.0.plain.get_or_init(|| Self::with(target(), true, CallerPatience::default())).clone()
    }

    /// Sends `command`, connecting first if need be.
    ///
    /// A connection that turns out to be broken is replaced, and the command
    /// is sent again, once: the server was restarted since the last command.
    /// All our commands may be executed twice.
    pub(super) async fn send(&self, command: &Command) -> Result<ServerReply, CallFailure> {
        self.ask(Request::Command(command)).await
    }

    /// Runs `script`: one round trip, unless the server has forgotten it. The first call sends it
    /// in full, so that nothing is loaded when processes connect.
    pub(super) async fn run(
        &self,
        script: &Script,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<ServerReply, CallFailure> {
        self.ask(Request::Script(script, keys, args)).await
    }

    pub(super) async fn ask(&self, request: Request<'_>) -> Result<ServerReply, CallFailure> {
        match &self.0.cluster {
            Some(cluster) => cluster.send(request).await,
            None => self.ask_here(request, false).await,
        }
    }

    /// Asks this server; `is_asking`: one that is about to take the key over.
    pub(super) async fn ask_here(
        &self,
        request: Request<'_>,
        is_asking: bool,
    ) -> Result<ServerReply, CallFailure> {
        match request {
            _ if is_asking => {
                let command = match request {
                    Request::Command(command) | Request::Once(command) => command.clone(),
                    Request::Script(script, keys, args) => script.in_full(keys, args),
                };
                self.0.opened().await?.connection.send_asking(command).await
            }
            Request::Command(command) => self.send_here(command).await,
            Request::Once(command) => self.send_on(&self.0.opened().await?, command).await,
            Request::Script(script, keys, args) => {
                // Two scripts may share a bit: then the server says that it does not know one.
                let bit = 1 << script.number();
                if self.0.sent_scripts.load(Ordering::Relaxed) & bit != 0 {
                    match self.send_here(&script.by_digest(keys, args)).await {
                        Err(failure) if failure.cause == Cause::NoScript => (),
                        answer => return answer,
                    }
                }
                let answer = self.send_here(&script.in_full(keys, args)).await;
                if answer.is_ok() {
                    self.0.sent_scripts.fetch_or(bit, Ordering::Relaxed);
                }
                answer
            }
        }
    }

    async fn send_here(&self, command: &Command) -> Result<ServerReply, CallFailure> {
        let open = self.0.slot.lock().open.clone();
        let Some(open) = open else {
            return self.send_on(&self.0.opened().await?, command).await;
        };
        match self.send_on(&open, command).await {
            Err(failure) if failure.cause == Cause::Broken => {
                self.send_on(&self.0.opened().await?, command).await
            }
            answer => answer,
        }
    }

    async fn send_on(&self, open: &Open, command: &Command) -> Result<ServerReply, CallFailure> {
        let answer = open.connection.send(command).await;
        match &answer {
            Ok(_) => self.0.works(open.number),
            Err(failure) => self.0.report(failure),
        }
        if answer.as_ref().is_err_and(|failure| failure.cause.is_useless_connection()) {
            self.0.close(open.number);
        } else {
            self.0.strikes.store(0, Ordering::Relaxed);
        }
        answer
    }

    pub(super) fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.0.cluster.as_ref()
    }

    /// Returns each server that has keys; of a cluster with a key that it has.
    pub(super) async fn nodes(&self) -> Result<Vec<(Self, Option<Key>)>, CallFailure> {
        match &self.0.cluster {
            Some(cluster) => cluster.nodes().await,
            None => Ok(vec![(self.clone(), None)]),
        }
    }

    /// Returns the number of the shard of a name.
    pub(super) fn shard_of<N: AsRef<[u8]>>(&self, name: impl FnOnce() -> N) -> u32 {
        let of_slot = |cluster: &Arc<Cluster>| cluster.shard_of_slot(slot_of(name().as_ref()));
        self.0.cluster.as_ref().map_or(0, of_slot)
    }

    /// Returns how many connections there were to a shard, or what counts like one: see
    /// [`Remote::connection`](crate::remote::Remote::connection).
    pub(super) fn connection_of(&self, shard: u32) -> u64 {
        match &self.0.cluster {
            Some(cluster) => cluster.connection_of(shard),
            None => self.0.opened.load(Ordering::Acquire),
        }
    }

    /// Returns whether a connection to a shard is being made.
    pub(super) fn is_connecting(&self, shard: u32) -> bool {
        match &self.0.cluster {
            Some(cluster) => cluster.pool_of_shard(shard).is_some_and(|it| it.is_connecting(shard)),
            None => self.0.slot.lock().opening.is_some(),
        }
    }

    /// Returns the first slot of a shard of a cluster, and where it is.
    fn node_of_shard(&self, shard: u32) -> Option<(u16, String)> {
        self.0.cluster.as_ref()?.node_of_shard(shard)
    }

    /// Returns where a shard is.
    pub(super) fn address_of(&self, shard: u32) -> String {
        self.node_of_shard(shard).map_or_else(|| self.target().address(), |(_, address)| address)
    }

    /// Returns what stands in braces in a name that is on this shard; nothing without a cluster.
    pub(super) fn tag_of_shard(&self, shard: u32) -> Option<String> {
        self.node_of_shard(shard).map(|(slot, _)| tag_of_slot(slot))
    }

    /// Opens a connection of its own that hears what is published on
    /// `channels`.
    pub(super) async fn subscribe(&self, channels: &[&str]) -> Result<Subscription, CallFailure> {
        let (begun, limit) = (Instant::now(), self.0.limit());
        let subscribed = match &self.0.cluster {
            Some(cluster) => cluster.subscribe(channels, limit).await,
            None => self.0.target.subscribe(channels, limit).await,
        };
        self.0.has_tried(begun, limit, subscribed.as_ref().err());
        subscribed
    }

    /// Returns how long callers wait for an answer.
    pub(super) fn patience(&self) -> &CallerPatience {
        &self.0.patience
    }

    pub(super) fn downgrade(&self) -> WeakPool {
        WeakPool(Arc::downgrade(&self.0))
    }

    /// Returns where this process hears of locks, on a channel whose name begins with `below`.
    pub(super) fn lock_inbox(&self, below: &str) -> Arc<LockInbox> {
        let channel = format!("{below}lock-in:{:016x}", self.0.process);
        let mut inboxes = self.0.lock_inboxes.lock();
        let inbox = inboxes
            .entry(channel)
            .or_insert_with_key(|name| Arc::new(LockInbox::new(name.clone())));
        Arc::clone(inbox)
    }

    pub(super) fn target(&self) -> &Target {
        &self.0.target
    }

    /// Is told that a caller gave up waiting for an answer of a shard.
    pub(super) fn suspect_shard(&self, shard: u32) {
        match &self.0.cluster {
            Some(cluster) => cluster.suspect(shard),
            None => self.suspect(),
        }
    }

    /// Waits for the answer to a call about a lock for as long as a cache with this `op_timeout`
    /// would.
    pub(super) async fn patiently(
        &self,
        name: &[u8],
        op_timeout: Duration,
        call: impl Future<Output = Result<ServerReply, CallFailure>>,
    ) -> Result<ServerReply, RemoteError> {
        let progress = {
            let mut known = self.0.lock_progress.lock();
            Arc::clone(known.entry(op_timeout).or_insert_with(|| Progress::new(op_timeout).into()))
        };
        let shard = self.shard_of(|| name);
        let is_connecting = || self.is_connecting(shard);
        let call = async { Ok(call.await?) };
        // The caller has nothing else to do meanwhile: its calls are as patient as probes.
        let answer = progress.answer(RemoteOp::Probe, Duration::ZERO, is_connecting, call).await;
        if answer.as_ref().is_err_and(|error| error.kind() == RemoteErrorKind::Timeout) {
            self.suspect_shard(shard);
        }
        answer
    }

    /// Waits until no other caller of this process asks for the lock of this name.
    pub(super) async fn turn(&self, name: &[u8]) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock_turns.lock();
            if turns.len() == turns.capacity() {
                turns.retain(|_, turn| turn.strong_count() > 0);
            }
            match turns.get(name).and_then(Weak::upgrade) {
                Some(turn) => turn,
                None => {
                    let turn = Arc::default();
                    turns.insert(name.to_vec(), Arc::downgrade(&turn));
                    turn
                }
            }
        };
        turn.lock_owned().await
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
            let (begun, limit) = (Instant::now(), shared.limit());
            let connected = shared.target.connect(limit).await;
            shared.has_tried(begun, limit, connected.as_ref().err());
            let opened = shared.end_attempt(connected);
            ended.send_replace(Some(opened.clone()));
            let Ok(open) = opened else { return };
            if !shared.is_plain {
                eviction::warn_once(&shared.advised, &open.connection, &shared.target).await;
            }
        });
        Ok(attempt)
    }

    /// Stores the connection in one step with the end of the attempt, so that
    /// each caller finds one of the two.
    fn end_attempt(&self, connected: Result<Connection, CallFailure>) -> Result<Open, CallFailure> {
        let mut slot = self.slot.lock();
        slot.opening = None;
        let connection = connected?;
        // Before any caller can have a reply of it.
        let number = self.opened.fetch_add(1, Ordering::AcqRel) + 1;
        Ok(slot.open.insert(Open { number, since: Instant::now(), connection }).clone())
    }

    /// Returns how long an attempt to connect may take: as long as any caller waits for it, and twice
    /// as long after each one that was too short. A server may take its time for handshakes, where
    /// many processes come back at once.
    fn limit(&self) -> Duration {
        let doublings = self.late.load(Ordering::Relaxed).min(MOST_DOUBLINGS);
        let longest = CONNECT_TIMEOUT * (1 << MOST_DOUBLINGS);
        let patience = self.patience.get().unwrap_or_default();
        (CONNECT_TIMEOUT * (1 << doublings)).max(patience).max((patience * 4).min(longest))
    }

    fn has_tried(&self, begun: Instant, limit: Duration, failed: Option<&CallFailure>) {
        let Some(failure) = failed else { return self.late.store(0, Ordering::Relaxed) };
        if begun.elapsed() >= limit {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        self.report(failure);
    }

    /// Says in the log what does not mend itself, once until a connection is of use.
    fn report(&self, failure: &CallFailure) {
        let Some((cause, remedy)) = failure.cause_and_remedy() else { return };
        if self.reported.fetch_or(1 << remedy, Ordering::Relaxed) & (1 << remedy) == 0 {
            warn_of_connection(&self.target.address(), cause, REMEDIES[remedy]);
        }
    }

    /// Notes that a connection has been of use.
    fn works(&self, number: u64) {
        if self.useful.load(Ordering::Relaxed) != number {
            self.useful.store(number, Ordering::Relaxed);
            self.reported.store(0, Ordering::Relaxed);
        }
    }

    /// Forgets the connection with this number, if it is still the one in use.
    fn close(&self, number: u64) {
        let mut slot = self.slot.lock();
        if slot.open.as_ref().is_some_and(|open| open.number == number) {
            slot.open = None;
        }
    }
}

impl Drop for PoolState {
    fn drop(&mut self) {
        self.lock_inboxes.get_mut().values().for_each(|inbox| inbox.stop());
    }
}
