//! The lock of the time before `SET NX PX`, with its flaws.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

use crate::error::ConfigError;
use crate::lease::grant::Token;
use crate::remote::redis::Redis;
use crate::remote::redis::connection::Command;
use crate::remote::redis::lock::{countable, is_passing, poll_pause};
use crate::remote::redis::names::Names;
use crate::remote::redis::pool::{Pool, Request};
use crate::remote::redis::reply::{CallFailure, Cause, ServerReply};
use crate::remote::{RemoteError, RemoteErrorKind};

/// A lock by `SETNX` and `GETSET`, for servers and proxies that know neither
/// `SET NX PX` nor scripts.
///
/// The key is `namespace:legacy:name`, so that no other lock is mixed up with
/// it; its value is the lease's end, in milliseconds since the UNIX epoch, a
/// colon, and a token. A client that finds this time in the past takes the lock over.
///
/// # Its flaws
///
/// Use [`RedisLock`](crate::remote::redis::RedisLock) wherever the server allows it. Here:
///
/// - The clocks of the clients decide. One that is a lease ahead takes a lock
///   that is held.
/// - Of two that take over at once, one wins, and the other has written its own
///   value over the winner's: the lock then ends later than the winner's lease,
///   and bears the loser's mark.
/// - Giving back cannot be made to depend on the mark. So it is done only as
///   long as the lease has a margin left, of twice the `op_timeout` and at
///   least a tenth of the lease; after that the lock is left to run out. A
///   `DEL` that is delayed for longer than the margin deletes the next
///   holder's lock.
/// - The key has no expiry. One that was not given back in time stays on the server until the
///   next holder of the lock gives it back, and `volatile-*` policies do not evict it. Use few
///   names, not one for each order.
/// - It cannot be extended.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use tower_stampede::{LegacyLock, Redis};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = Redis::lazy("redis://127.0.0.1")?.namespace("shop");
/// let lock = LegacyLock::new(&redis, "orders:42")?.lease(Duration::from_secs(10));
/// if let Some(guard) = lock.try_acquire().await? {
///     // ... the work ...
///     guard.release().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct LegacyLock {
    link: Pool,
    name: Arc<[u8]>,
    lease: Duration,
    op_timeout: Duration,
}

impl LegacyLock {
    /// Names a lock in the namespace of `redis`. Nothing is sent yet.
    ///
    /// All such locks of a `redis` share a connection of their own, on which
    /// nothing but `SETNX`, `GET`, `GETSET` and `DEL` is sent (and what the
    /// URL asks for: `AUTH`, `SELECT`).
    ///
    /// # Errors
    ///
    /// If the [namespace](Redis::namespace) of `redis` is not set, or cannot be one.
    pub fn new(redis: &Redis, name: impl AsRef<[u8]>) -> Result<Self, ConfigError> {
        let below = Names::legacy(&redis.namespace)?;
        let name = [below.as_bytes(), name.as_ref()].concat();
        Ok(Self {
            link: redis.link.plain(),
            name: name.into(),
            lease: Duration::from_secs(10),
            op_timeout: redis.settings.op_timeout,
        })
    }

    /// Sets how long the lock stays taken when its holder dies, from a
    /// millisecond to a year. Defaults to 10 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = countable(lease);
        self
    }

    /// Takes the lock if it is free, or if its lease is over by this
    /// machine's clock. One to three round trips.
    ///
    /// # Errors
    ///
    /// If the server did not answer as it should, or the key holds what no
    /// such lock has written. Then the lock may stay taken for up to a lease, without a
    /// holder.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may leave the lock taken, without a holder, for up to a lease.
    pub async fn try_acquire(&self) -> Result<Option<LegacyLockGuard>, RemoteError> {
        let runtime = Handle::try_current()
            .map_err(|error| RemoteError::caused(RemoteErrorKind::Connection, error))?;
        let mark = Mark { until: now() + self.lease, token: Token::random().to_string() };
        let taken = self.set_if_free(&mark).await? || self.take_over(&mark).await?;
        Ok(taken.then(|| LegacyLockGuard {
            lock: self.clone(),
            until: mark.until,
            runtime: Some(runtime),
        }))
    }

    /// Takes the lock, asking again every 25 to 250 ms until `patience` is over. Nothing if others
    /// had it all the time. One to three round trips for each try.
    ///
    /// There is no order among waiting processes. The calls of one process take turns.
    ///
    /// # Errors
    ///
    /// If the last try failed, or one was refused for good (a missing right, a key that no such
    /// lock has written).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may leave the lock taken, without a holder, for up to a lease.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tower_stampede::{LegacyLock, Redis};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let redis = Redis::lazy("redis://127.0.0.1")?.namespace("shop");
    /// let lock = LegacyLock::new(&redis, "orders:42")?;
    /// match lock.acquire(Duration::from_secs(5)).await? {
    ///     Some(guard) => drop(guard),
    ///     None => println!("taken by others for five seconds"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn acquire(
        &self,
        patience: Duration,
    ) -> Result<Option<LegacyLockGuard>, RemoteError> {
        let begun = Instant::now();
        let _turn = timeout(patience, self.link.turn(&self.name)).await;
        let mut poll = poll_pause();
        loop {
            let tried = self.try_acquire().await;
            let left = patience.saturating_sub(begun.elapsed());
            match &tried {
                Ok(None) if !left.is_zero() => (),
                Err(error) if !left.is_zero() && is_passing(error.kind()) => (),
                _ => return tried,
            }
            sleep(poll.lengthen().min(left)).await;
        }
    }

    async fn set_if_free(&self, mark: &Mark) -> Result<bool, RemoteError> {
        let set = Command::new("SETNX").arg(&self.name).arg(mark.to_string());
        Ok(self.send(set).await?.int()? == 1)
    }

    async fn take_over(&self, mark: &Mark) -> Result<bool, RemoteError> {
        match Mark::read(&self.send(Command::new("GET").arg(&self.name)).await?)? {
            // The reply to our first `SETNX` was lost, and it was sent again.
            Some(found) if found.token == mark.token => return Ok(true),
            Some(found) if !found.is_over() => return Ok(false),
            _ => (),
        }
        let take = Command::new("GETSET").arg(&self.name).arg(mark.to_string());
        // A faster client shows here; our mark has replaced its own.
        let before = Mark::read(&self.send(take).await?)?;
        Ok(before.is_none_or(|before| before.is_over()))
    }

    /// Sends a command. What it does if it is executed twice, a lost reply in
    /// between, is harmless: the lock bears our mark, so this process holds it or it runs out.
    async fn send(&self, command: Command) -> Result<ServerReply, RemoteError> {
        self.limited(self.link.send(&command)).await
    }

    async fn limited(
        &self,
        call: impl Future<Output = Result<ServerReply, CallFailure>>,
    ) -> Result<ServerReply, RemoteError> {
        self.link.patiently(&self.name, self.op_timeout, call).await
    }

    fn margin(&self) -> Duration {
        (self.op_timeout * 2).max(self.lease / 10)
    }

    /// Gives back a lock whose lease ends at `until`. Returns whether it did.
    async fn give_back(&self, until: Duration) -> Result<bool, RemoteError> {
        if now() + self.margin() >= until {
            return Ok(false);
        }
        // Executed twice, it would delete the next holder's lock.
        let delete = Command::new("DEL").arg(&self.name);
        Ok(self.limited(self.link.ask(Request::Once(&delete))).await?.int()? == 1)
    }
}

/// Shows where the lock is and not what it is called.
impl fmt::Debug for LegacyLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LegacyLock")
            .field("servers", &self.link.target().address())
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

/// A lock that is taken, until this is released or dropped, or its lease is
/// over.
#[must_use = "the lock is given back when this is dropped"]
pub struct LegacyLockGuard {
    lock: LegacyLock,
    until: Duration,
    /// Where to give back, until that is done.
    runtime: Option<Handle>,
}

impl LegacyLockGuard {
    /// Gives the lock back. Returns `false` if it was too late for that and
    /// the lock runs out by itself, or it was gone.
    ///
    /// # Errors
    ///
    /// If the server did not answer as it should; the lock runs out then.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have given the lock back.
    pub async fn release(mut self) -> Result<bool, RemoteError> {
        // Never twice: the second time it could be another's.
        self.runtime = None;
        self.lock.give_back(self.until).await
    }

    /// Returns whether the lease is over by this machine's clock.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        now() >= self.until
    }
}

impl Drop for LegacyLockGuard {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            let (lock, until) = (self.lock.clone(), self.until);
            runtime.spawn(async move { lock.give_back(until).await });
        }
    }
}

impl fmt::Debug for LegacyLockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LegacyLockGuard").field("is_lost", &self.is_lost()).finish_non_exhaustive()
    }
}

/// What the key holds.
#[derive(Debug, PartialEq, Eq)]
struct Mark {
    /// Since the UNIX epoch, by the holder's clock.
    until: Duration,
    token: String,
}

impl Mark {
    fn is_over(&self) -> bool {
        self.until <= now()
    }

    fn read(reply: &ServerReply) -> Result<Option<Self>, CallFailure> {
        let reply = match reply {
            ServerReply::Nil => return Ok(None),
            reply => reply.text().ok().and_then(Self::parse),
        };
        let foreign = "the key holds a value that is no time and token of a `LegacyLock`: delete the \
                       key, or give the lock another name";
        let failure = || CallFailure::new(RemoteErrorKind::Protocol, Cause::Plain, foreign);
        reply.map(Some).ok_or_else(failure)
    }

    fn parse(text: &str) -> Option<Self> {
        let (until, token) = text.split_once(':')?;
        let until = Duration::from_millis(until.parse().ok()?);
        Some(Self { until, token: token.to_owned() })
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.until.as_millis(), self.token)
    }
}

fn now() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_is_written_and_anything_else_is_none() {
        let mark = Mark { until: Duration::from_millis(1234), token: "ab".to_owned() };
        assert_eq!(mark.to_string(), "1234:ab");
        assert_eq!(Mark::parse("1234:ab").unwrap(), mark);
        assert!(mark.is_over());
        for other in ["", "1234", "uuid", "x:ab", "-1:ab", "99999999999999999999:ab"] {
            assert!(Mark::parse(other).is_none(), "{other:?}");
        }
    }
}
