//! The lock alone, for code that wants no cache.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::error::ConfigError;
use crate::lease::grant::Token;
use crate::lease::wakes::Listener;
use crate::remote::pause::Pause;
use crate::remote::redis::connection::Script;
use crate::remote::redis::lock_inbox::LockInbox;
use crate::remote::redis::names::{Names, lock_record};
use crate::remote::redis::pool::Pool;
use crate::remote::redis::remote::millis;
use crate::remote::redis::reply::{CallFailure, ServerReply};
use crate::remote::redis::{Redis, scripts};
use crate::remote::{RemoteError, RemoteErrorKind};

/// How long a lock is tried to be given back, where its lease is longer.
const LONGEST_GIVING_BACK: Duration = Duration::from_secs(60);

/// How long a waiting process relies on being told.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// A lock in Redis that processes take turns with.
///
/// It is the lock of the Redis documentation: `SET name token NX PX lease`,
/// given back by compare-and-delete. Any language that does the same excludes
/// this one and is excluded by it; the name is the key, without a namespace.
///
/// A clone is the same lock; each acquire is a try of its own.
///
/// # What it does not promise
///
/// That no other process works at the same time. A process that is paused for
/// longer than the lease, a failover that loses the key, or a split network
/// give the lock to another process while the first still believes that it has it.
/// Several servers (Redlock) do not change that. Use the lock so that work
/// is *rarely* done twice. Where doing it twice does harm, the target of the writes must
/// refuse the older writer itself, by the guard's
/// [fencing token](RedisLockGuard::fencing_token). The cache's own fills are fenced in this way.
///
/// # What it stores
///
/// Beside the lock there is a record, `{name}:stampede-lock` (`name:stampede-lock` if a part of
/// the name stands in braces): the last fencing token, how long its lease may last, and the
/// processes that wait. It ends a
/// minute after the lease. An access control list must allow both names, and the
/// channels of the namespace of the [`Redis`]. A lock whose name has braces without a hash tag of
/// Redis Cluster has no record.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use tower_stampede::{Redis, RedisLock};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = Redis::lazy("redis://127.0.0.1")?.namespace("shop");
/// let lock = RedisLock::new(&redis, "orders:42")?.lease(Duration::from_secs(10));
/// if let Some(guard) = lock.acquire(Duration::from_secs(5)).await? {
///     let fence = guard.fencing_token();
///     // ... the work: update orders set ... where id = 42 and fence < $fence ...
///     # let _ = fence;
///     guard.release().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct RedisLock {
    link: Pool,
    name: Arc<[u8]>,
    /// Where its last fencing token is, and its waiters are.
    record: Option<Arc<[u8]>>,
    /// What the channel begins with on which this process is told of free locks.
    below: Arc<str>,
    lease: Duration,
    extend: bool,
    op_timeout: Duration,
}

impl RedisLock {
    /// Names a lock. Nothing is sent yet.
    ///
    /// Every call to the server is given up after the [`op_timeout`](Redis::op_timeout) of `redis`,
    /// or up to four times that where answers take longer, as a cache's calls are.
    ///
    /// # Errors
    ///
    /// If the [namespace](Redis::namespace) of `redis` is not set, or cannot be one.
    pub fn new(redis: &Redis, name: impl AsRef<[u8]>) -> Result<Self, ConfigError> {
        let name = name.as_ref();
        Ok(Self {
            link: redis.link.clone(),
            name: name.into(),
            record: lock_record(name).map(Arc::from),
            below: Names::below(&redis.namespace)?.into(),
            lease: Duration::from_secs(10),
            extend: true,
            op_timeout: redis.settings.op_timeout,
        })
    }

    /// Sets how long the lock stays taken when its holder dies, from a
    /// millisecond to a year. Defaults to 10 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = countable(lease);
        self
    }

    /// Sets whether a guard prolongs its lease by itself, every third of it,
    /// for as long as it lives. Defaults to `true`; without it, the lock is
    /// lost when the lease ends, unless the guard is
    /// [extended](RedisLockGuard::extend).
    pub const fn auto_extend(mut self, extend: bool) -> Self {
        self.extend = extend;
        self
    }

    /// Takes the lock if it is free. One round trip.
    ///
    /// # Errors
    ///
    /// If the server did not answer as it should. What it may have taken is given back in the
    /// background, as soon as the server answers; if it does not for a lease, or for a minute, the
    /// lock may stay taken for up to a lease, without a holder.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the call is dropped, or took too long, the lock is given
    /// back in the background.
    pub async fn try_acquire(&self) -> Result<Option<RedisLockGuard>, RemoteError> {
        Ok(match self.attempt("").await? {
            Attempt::Taken(guard) => Some(guard),
            Attempt::Busy { .. } => None,
        })
    }

    /// Takes the lock, or registers `inbox` in the same step, to be told when it is free.
    async fn attempt(&self, inbox: &str) -> Result<Attempt, RemoteError> {
        let runtime = Handle::try_current()
            .map_err(|error| RemoteError::caused(RemoteErrorKind::Connection, error))?;
        let held = LockLease {
            lock: self.clone(),
            token: Token::random().to_string(),
            until: Mutex::new(Instant::now() + self.lease),
            runtime,
        };
        // From here on the lock is given back, whatever happens.
        let mut guard =
            RedisLockGuard { held: Arc::new(held), extending: None, taken: true, fence: 0 };
        let lease = millis(self.lease);
        let reply = guard.held.run(&scripts::LOCK, &[lease.as_bytes(), inbox.as_bytes()]).await?;
        let numbers = reply.array()?.iter().map(ServerReply::int).collect::<Result<Vec<_>, _>>()?;
        match *numbers {
            [1, fence] => guard.fence = u64::try_from(fence).unwrap_or_default(),
            [0, left, is_told] => {
                guard.taken = false;
                let left = u64::try_from(left).map(Duration::from_millis).ok();
                return Ok(Attempt::Busy { left: left.filter(|_| is_told == 1) });
            }
            _ => return Err(CallFailure::nonsense().into()),
        }
        if self.extend {
            let extending = tokio::spawn(Arc::clone(&guard.held).extend_while_ours());
            guard.extending = Some(AbortOnDropHandle::new(extending));
        }
        Ok(Attempt::Taken(guard))
    }

    /// Takes the lock, waiting for it until `patience` is over. Nothing if others had it all the
    /// time.
    ///
    /// The holder's release is published to the processes that wait; the first wait of a process
    /// opens a connection for that, which all its locks share. A timer stands behind the message:
    /// the end of the lease, a second at most. Where the holder is a program that writes no
    /// record, or messages do not arrive, the lock is asked for every 25 to 250 ms. A release
    /// costs one message and one try for each waiting process: the calls of one process take turns,
    /// in the order in which they came. There is no order among processes.
    ///
    /// # Errors
    ///
    /// If the last try failed, or one was refused for good (a missing right, a
    /// reply that makes no sense).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, as [`try_acquire`](Self::try_acquire) is.
    pub async fn acquire(&self, patience: Duration) -> Result<Option<RedisLockGuard>, RemoteError> {
        let begun = Instant::now();
        // Of the callers in this process, one at a time asks, in the order in which they came. One
        // whose time is over before its turn tries once.
        let _turn = timeout(patience, self.link.turn(&self.name)).await;
        let mut poll = poll_pause();
        let mut waiting = None;
        loop {
            let channel = waiting.as_ref().map_or("", |(inbox, _): &Waiting| inbox.channel());
            let tried = self.attempt(channel).await;
            let left = patience.saturating_sub(begun.elapsed());
            let pause = match tried {
                Ok(Attempt::Taken(guard)) => return Ok(Some(guard)),
                Ok(Attempt::Busy { .. }) if left.is_zero() => return Ok(None),
                Ok(Attempt::Busy { left: Some(lease) }) => {
                    poll.reset();
                    (lease + Duration::from_millis(fastrand::u64(1..=5))).min(LONGEST_WAIT)
                }
                Ok(Attempt::Busy { left: None }) => poll.lengthen(),
                Err(error) if left.is_zero() || !is_passing(error.kind()) => return Err(error),
                Err(_) => poll.lengthen(),
            };
            // The listener is there before the process registers, so that no message is missed.
            let (_, listener) = match &mut waiting {
                Some(waiting) => waiting,
                None => {
                    let inbox = self.link.lock_inbox(&self.below);
                    let listener = inbox.listen(&self.name, self.link.downgrade());
                    let is_ready = !inbox.channel().is_empty();
                    let waiting = waiting.insert((inbox, listener));
                    if is_ready {
                        continue;
                    }
                    waiting
                }
            };
            let _ = timeout(pause.min(left), listener.woken()).await;
        }
    }
}

type Waiting = (Arc<LockInbox>, Listener);

enum Attempt {
    Taken(RedisLockGuard),
    /// Another has it: for how long, if this process is told of the end.
    Busy {
        left: Option<Duration>,
    },
}

/// Returns the pauses between tries of a lock whose release is not announced.
pub(super) const fn poll_pause() -> Pause {
    Pause::of_millis(25, 250)
}

/// Keeps a duration within what can be added to a time, and above nothing.
pub(super) fn countable(duration: Duration) -> Duration {
    duration.clamp(Duration::from_millis(1), Duration::from_secs(3600 * 24 * 365))
}

pub(super) const fn is_passing(kind: RemoteErrorKind) -> bool {
    !matches!(kind, RemoteErrorKind::Denied | RemoteErrorKind::Protocol)
}

/// Shows where the lock is and not what it is called.
impl fmt::Debug for RedisLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLock")
            .field("servers", &self.link.target().address())
            .field("lease", &self.lease)
            .field("auto_extend", &self.extend)
            .finish_non_exhaustive()
    }
}

/// A lock that is taken, until this is released or dropped.
///
/// Dropping it gives the lock back in the background. To know that the lock is free,
/// call [`release`](Self::release).
#[must_use = "the lock is given back when this is dropped"]
pub struct RedisLockGuard {
    held: Arc<LockLease>,
    extending: Option<AbortOnDropHandle<()>>,
    /// Whether there is, or may be, something to give back.
    taken: bool,
    fence: u64,
}

impl RedisLockGuard {
    /// Returns a number that is higher for each later holder of the lock: send it with each write,
    /// and let the target refuse a number below one that it has seen. Then a process that was
    /// paused past its lease can do no harm.
    ///
    /// The server makes it in the step that takes the lock: its clock in microseconds, or one more
    /// than the last number of this lock, whichever is higher. Programs in other languages that
    /// take the lock by `SET NX PX` get no number, and later numbers of this lock are still higher.
    ///
    /// # What it survives
    ///
    /// - `FLUSHALL`, eviction, a restart without data, and a failover, also to a replica that has
    ///   not seen the last numbers: the clock goes on. Only where the new server's clock is behind
    ///   the old one's by more than the time that has passed, numbers repeat or fall.
    /// - A clock that is set back, as long as the record of the lock stands: until a minute after
    ///   the last lease. A lock [without a record](RedisLock#what-it-stores) depends on the
    ///   clock alone.
    /// - Not a split network: two primaries give numbers of their own, each by its own clock.
    #[must_use]
    pub const fn fencing_token(&self) -> u64 {
        self.fence
    }

    /// Makes the lease last at least `lease` from now on. Returns whether the
    /// lock is still this guard's.
    ///
    /// # Errors
    ///
    /// If the server did not answer as it should; the lease may be prolonged.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a dropped call may or may not have prolonged the lease.
    pub async fn extend(&self, lease: Duration) -> Result<bool, RemoteError> {
        self.held.extend(lease).await
    }

    /// Gives the lock back. Returns whether it was still this guard's: if not,
    /// another may have worked at the same time.
    ///
    /// # Errors
    ///
    /// If the server did not answer as it should. Then it is tried again in the
    /// background, for a lease and at most a minute; after that the lease ends by itself.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a dropped call gives the lock back in the background.
    pub async fn release(mut self) -> Result<bool, RemoteError> {
        let ours = self.held.is_done(&scripts::UNLOCK, &[]).await?;
        self.taken = false;
        Ok(ours)
    }

    /// Returns whether the lock is known to be lost, or its lease is over by
    /// this process's clock.
    ///
    /// `false` promises nothing: the next moment may be different.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        *self.held.until.lock() <= Instant::now()
    }
}

impl Drop for RedisLockGuard {
    fn drop(&mut self) {
        if self.taken {
            let held = Arc::clone(&self.held);
            // On the runtime it was taken on: there may be none here.
            let was_answered = self.fence > 0;
            self.held.runtime.spawn(async move { held.give_back(was_answered).await });
        }
    }
}

/// Shows no token.
impl fmt::Debug for RedisLockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLockGuard").field("is_lost", &self.is_lost()).finish_non_exhaustive()
    }
}

struct LockLease {
    lock: RedisLock,
    token: String,
    /// When the lease ends at the latest, counted from before it was asked for.
    until: Mutex<Instant>,
    runtime: Handle,
}

impl LockLease {
    /// Runs a script whose first argument is the token.
    async fn run(&self, script: &Script, more: &[&[u8]]) -> Result<ServerReply, RemoteError> {
        let lock = &self.lock;
        let args = [&[self.token.as_bytes()], more].concat();
        let names: Vec<&[u8]> =
            [Some(&*lock.name), lock.record.as_deref()].into_iter().flatten().collect();
        let call = lock.link.run(script, &names, &args);
        lock.link.patiently(&lock.name, lock.op_timeout, call).await
    }

    async fn is_done(&self, script: &Script, more: &[&[u8]]) -> Result<bool, RemoteError> {
        Ok(self.run(script, more).await?.int()? == 1)
    }

    /// Gives back what is, or may be, taken. A server that stands still executes what was sent to
    /// it later, and what was sent on two connections in any order.
    async fn give_back(&self, was_answered: bool) {
        let (begun, lasts) = (Instant::now(), self.lock.lease.min(LONGEST_GIVING_BACK));
        let (mut pause, mut is_over) = (Pause::of_millis(25, 1000), was_answered);
        loop {
            match self.is_done(&scripts::UNLOCK, &[]).await {
                Ok(true) => return,
                Ok(false) if is_over => return,
                // The call that takes it may be behind this one, once.
                Ok(false) => is_over = true,
                Err(error) if !is_passing(error.kind()) => return,
                Err(_) => is_over = false,
            }
            if begun.elapsed() >= lasts {
                return;
            }
            sleep(pause.lengthen()).await;
        }
    }

    async fn extend(&self, lease: Duration) -> Result<bool, RemoteError> {
        let (asked, lease) = (Instant::now(), countable(lease));
        let ours = self.is_done(&scripts::EXTEND, &[millis(lease).as_bytes()]).await?;
        let mut until = self.until.lock();
        *until = if ours { (*until).max(asked + lease) } else { asked };
        Ok(ours)
    }

    /// Extends every third of the lease; more often after a failure, while
    /// there is something left to save.
    async fn extend_while_ours(self: Arc<Self>) {
        let lease = self.lock.lease;
        let mut pause = lease / 3;
        loop {
            sleep(pause.max(Duration::from_millis(1))).await;
            match self.extend(lease).await {
                Ok(true) => pause = lease / 3,
                Ok(false) => return,
                Err(_) if *self.until.lock() <= Instant::now() => return,
                Err(_) => pause = lease / 12,
            }
        }
    }
}
