//! The lock alone, for code that wants no cache.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

use crate::lease::grant::Token;
use crate::remote::redis::connection::Script;
use crate::remote::redis::pool::Pool;
use crate::remote::redis::remote::{EndOnDrop, millis};
use crate::remote::redis::{Redis, scripts};
use crate::remote::{RemoteError, RemoteErrorKind};

const SHORTEST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

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
/// refuse the older writer itself. The cache's own fills are fenced in this way.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use tower_stampede::{Redis, RedisLock};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = Redis::lazy("redis://127.0.0.1")?;
/// let lock = RedisLock::new(&redis, "orders:42").lease(Duration::from_secs(10));
/// if let Some(guard) = lock.try_acquire().await? {
///     // ... the work ...
///     guard.release().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct RedisLock {
    link: Pool,
    name: Arc<[u8]>,
    lease: Duration,
    extend: bool,
    op_timeout: Duration,
}

impl RedisLock {
    /// Names a lock. Nothing is sent yet.
    ///
    /// Every call to the server is given up after the
    /// [`op_timeout`](Redis::op_timeout) of `redis`.
    pub fn new(redis: &Redis, name: impl AsRef<[u8]>) -> Self {
        Self {
            link: redis.link.clone(),
            name: name.as_ref().into(),
            lease: Duration::from_secs(10),
            extend: true,
            op_timeout: redis.settings.op_timeout,
        }
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
    /// If the server did not answer as it should. Then the lock may stay taken
    /// for up to a lease, without a holder.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the call is dropped, or took too long, the lock is given
    /// back in the background.
    pub async fn try_acquire(&self) -> Result<Option<RedisLockGuard>, RemoteError> {
        let runtime = Handle::try_current()
            .map_err(|error| RemoteError::caused(RemoteErrorKind::Connection, error))?;
        let held = LockLease {
            lock: self.clone(),
            token: Token::random().to_string(),
            until: Mutex::new(Instant::now() + self.lease),
            runtime,
        };
        // From here on, whatever happens: what was taken is given back.
        let mut guard = RedisLockGuard { held: Arc::new(held), extending: None, taken: true };
        guard.taken = guard.held.call(&scripts::LOCK, Some(self.lease)).await?;
        if !guard.taken {
            return Ok(None);
        }
        if self.extend {
            let extending = tokio::spawn(Arc::clone(&guard.held).extend_while_ours());
            guard.extending = Some(EndOnDrop(extending.abort_handle()));
        }
        Ok(Some(guard))
    }

    /// Takes the lock, asking again every 25 to 250 ms until `patience` is
    /// over. Nothing if others had it all the time.
    ///
    /// There is no order among waiting processes.
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
        let mut pause = SHORTEST_PAUSE;
        loop {
            let tried = self.try_acquire().await;
            let left = patience.saturating_sub(begun.elapsed());
            match &tried {
                Ok(None) if !left.is_zero() => (),
                Err(error) if !left.is_zero() && is_passing(error.kind()) => (),
                _ => return tried,
            }
            sleep(pause.mul_f64(0.8 + 0.4 * fastrand::f64()).min(left)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Keeps a duration within what can be added to a time, and above nothing.
pub(super) fn countable(duration: Duration) -> Duration {
    duration.clamp(Duration::from_millis(1), Duration::from_secs(3600 * 24 * 365))
}

const fn is_passing(kind: RemoteErrorKind) -> bool {
    !matches!(kind, RemoteErrorKind::Denied | RemoteErrorKind::Protocol)
}

/// Shows where the lock is and not what it is called.
impl fmt::Debug for RedisLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLock")
            .field("servers", &self.link)
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
    extending: Option<EndOnDrop>,
    /// Whether there is, or may be, something to give back.
    taken: bool,
}

impl RedisLockGuard {
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
    /// If the server did not answer as it should. Then it is tried once more
    /// in the background, and after that the lease ends by itself.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a dropped call gives the lock back in the background.
    pub async fn release(mut self) -> Result<bool, RemoteError> {
        let ours = self.held.call(&scripts::UNLOCK, None).await?;
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
            self.held.runtime.spawn(async move { held.call(&scripts::UNLOCK, None).await });
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
    async fn call(&self, script: &Script, lease: Option<Duration>) -> Result<bool, RemoteError> {
        let lock = &self.lock;
        let lease = lease.map(millis);
        let mut args = vec![self.token.as_bytes()];
        args.extend(lease.as_deref().map(str::as_bytes));
        let names = [&*lock.name];
        match timeout(lock.op_timeout, lock.link.run(script, &names, &args)).await {
            Ok(reply) => Ok(reply?.int()? == 1),
            Err(_) => {
                lock.link.suspect();
                Err(RemoteError::new(RemoteErrorKind::Timeout))
            }
        }
    }

    async fn extend(&self, lease: Duration) -> Result<bool, RemoteError> {
        let (asked, lease) = (Instant::now(), countable(lease));
        let ours = self.call(&scripts::EXTEND, Some(lease)).await?;
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
