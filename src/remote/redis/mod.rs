//! Redis as the remote of many processes.
//!
//! # What enters
//!
//! Calls of the trait `Remote`: keys, envelopes (opaque bytes), tokens, tags. And messages
//! that other processes publish. A [`Redis`] handle says which servers, which namespace and
//! which limits.
//!
//! # What leaves
//!
//! One round trip per call, and its reply. Wake-ups for waiting leaders, and notices of
//! invalidations by other processes. Nothing here retries a command or has a deadline:
//! the caller (`remote/guard.rs`) has one, and drops the call.
//!
//! # The states in between
//!
//! Each key has up to three records on the server, in one cluster slot:
//!
//! | record | holds | ends |
//! |---|---|---|
//! | value | the envelope | with its `ttl` |
//! | lock | the token of the leader, or the word `hold` | with the lease or the hold |
//! | right | the right to fill, its version, and the processes that wait | with a fill |
//!
//! An invalidation of the key ends all three. An operation that changes more than one thing
//! is one Lua script, so it is one atomic step. The invalidation log is one
//! sorted set per cache, tag by time of the server.
//!
//! A process has one connection for commands, opened when it is first needed and replaced
//! after three calls in a row without an answer; and one for messages, which is opened again
//! whenever it breaks.
//!
//! # Reading order
//!
//! - `remote`: the trait `Remote`, one method after the other.
//! - `oversize`: values that are too large to be read again.
//! - `scripts`, `scripts/`: the atomic steps.
//! - `names`: keys and channels on the server.
//! - `reply`: what a server answers, and what is wrong when it does not.
//! - `pool`: the connection for commands.
//! - `subscriber`: the connection for messages.
//! - `connection`, `connection/topology`, `tls`: the client library; no other file names it.
//! - `credentials`: user names and passwords that change.
//! - `check`, `eviction`: what is missing on a server, and a policy that evicts locks.
//! - `lock`, `lock_inbox`, `legacy`: the lock alone, without a cache.
//! - `tests/`: all of this on real servers.

mod check;
mod cluster;
mod connection;
mod credentials;
mod eviction;
#[cfg(feature = "redis-legacy-lock")]
mod legacy;
mod lock;
mod lock_inbox;
mod log;
mod message;
mod names;
mod oversize;
mod pool;
mod remote;
mod reply;
mod scripts;
mod subscriber;
#[cfg(test)]
mod tests;
mod tls;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::ConfigError;
pub use crate::remote::redis::check::ConnectError;
use crate::remote::redis::connection::Target;
use crate::remote::redis::credentials::Login;
pub use crate::remote::redis::credentials::{
    CredentialsFuture, CredentialsProvider, RedisCredentials,
};
#[cfg(feature = "redis-legacy-lock")]
pub use crate::remote::redis::legacy::{LegacyLock, LegacyLockGuard};
pub use crate::remote::redis::lock::{RedisLock, RedisLockGuard};
use crate::remote::redis::names::{NameSecret, Names};
use crate::remote::redis::pool::Pool;
use crate::remote::redis::remote::RedisRemote;
use crate::remote::{Remote, RemoteSettings};

/// How long the name of a connection may be.
const LONGEST_CLIENT_NAME: usize = 128;

/// A Redis or Valkey server that caches of many processes share.
///
/// A clone is the same connection, and so is every cache that is built with
/// one. It is opened by the first command, and replaced when it breaks; no
/// request ever fails because of it.
///
/// The server must be Redis 6.2 or newer, or Valkey.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::Redis;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = Redis::lazy("redis://127.0.0.1:6379/0")?
///     .namespace("shop")
///     .op_timeout(Duration::from_millis(50));
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Redis {
    link: Pool,
    pub(crate) namespace: Arc<str>,
    name_secret: Option<NameSecret>,
    pub(crate) settings: RemoteSettings,
}

impl Redis {
    /// Takes a server by its URL, without connecting yet:
    /// `redis://user:password@host:port/database`, of which all but the host
    /// may be left out; `rediss://` for TLS (with one of the features
    /// `redis-tls-rustls` and `redis-tls-native`); `unix:///path` for a socket.
    ///
    /// # Errors
    ///
    /// If the URL makes no sense. The error says why, and does not quote it.
    pub fn lazy(url: &str) -> Result<Self, ConfigError> {
        Ok(Self::new(Target::single(url)?))
    }

    /// Takes the server of a client that the application has set up, with its user, database and TLS,
    /// without connecting yet. The client's connections are not shared: this handle makes its own, as
    /// many as with a URL. [`root_certificates`](Self::root_certificates) and
    /// [`client_certificate`](Self::client_certificate) have no effect where the client has any.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tower_stampede::Redis;
    /// let client = redis::Client::open("redis://cache:secret@10.0.0.1:6379/2")?;
    /// let redis = Redis::from_client(&client).namespace("shop");
    /// # Ok::<(), redis::RedisError>(())
    /// ```
    pub fn from_client(client: &redis::Client) -> Self {
        Self::new(Target::of_client(client))
    }

    /// Takes a Redis Cluster by the URLs of some of its nodes, without
    /// connecting yet. The URLs differ in host and port only.
    ///
    /// # Errors
    ///
    /// If there is no URL, or one that makes no sense.
    #[cfg(feature = "redis-cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-cluster")))]
    pub fn cluster<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, ConfigError> {
        Ok(Self::new(Target::cluster(urls)?))
    }

    /// Takes the primary that sentinels know by this name, whichever server it
    /// is at the time, without connecting yet.
    ///
    /// The URLs are those of the sentinels. User, password, database and TLS
    /// in them are the primary's; a sentinel is asked as the same user, or
    /// without one if it does not know it.
    ///
    /// # Errors
    ///
    /// If there is no URL, or one that makes no sense.
    #[cfg(feature = "redis-sentinel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-sentinel")))]
    pub fn sentinel<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        primary: &str,
    ) -> Result<Self, ConfigError> {
        Ok(Self::new(Target::sentinel(urls, primary)?))
    }

    /// Trusts these certificates, in PEM, instead of the system's. Call it on
    /// the first handle: earlier clones keep a connection of their own.
    ///
    /// With `redis-tls-native` alone it has no effect on a cluster.
    ///
    /// # Errors
    ///
    /// If there is no certificate in `pem`.
    #[cfg(any(feature = "redis-tls-rustls", feature = "redis-tls-native"))]
    #[cfg_attr(docsrs, doc(cfg(any(feature = "redis-tls-rustls", feature = "redis-tls-native"))))]
    pub fn root_certificates(mut self, pem: impl AsRef<[u8]>) -> Result<Self, ConfigError> {
        let mut target = self.link.target().clone();
        target.certificates = target.certificates.with_roots(pem.as_ref())?;
        self.link = Pool::new(target);
        Ok(self)
    }

    /// Shows this certificate to servers that ask clients for one: its chain, and its secret key
    /// (PKCS #8), both in PEM. Call it on the first handle: earlier clones keep a connection of
    /// their own.
    ///
    /// With `redis-tls-native` alone it has no effect on a cluster.
    ///
    /// # Errors
    ///
    /// If there is no certificate in `chain`, or no key in `key`. The error quotes neither.
    #[cfg(any(feature = "redis-tls-rustls", feature = "redis-tls-native"))]
    #[cfg_attr(docsrs, doc(cfg(any(feature = "redis-tls-rustls", feature = "redis-tls-native"))))]
    pub fn client_certificate(
        mut self,
        chain: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Result<Self, ConfigError> {
        let mut target = self.link.target().clone();
        target.certificates = target.certificates.with_own(chain.as_ref(), key.as_ref())?;
        self.link = Pool::new(target);
        Ok(self)
    }

    /// Asks `provider` for user and password, before each connection and before they expire.
    /// Those of the URL have no effect then. Call it on the first handle: earlier clones keep a
    /// connection of their own.
    ///
    /// See [`CredentialsProvider`] for when it is asked, and what happens when it fails.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::{RedisCredentials, Redis};
    ///
    /// # async fn signed_token() -> Result<String, std::io::Error> { Ok(String::new()) }
    /// let redis = Redis::lazy("rediss://cache.example:6380")?.credentials(|| async {
    ///     let token = signed_token().await?;
    ///     Ok(RedisCredentials::new("cache", token).valid_for(Duration::from_secs(900)))
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn credentials(mut self, provider: impl CredentialsProvider) -> Self {
        let mut target = self.link.target().clone();
        target.login = Some(Login::new(provider));
        self.link = Pool::new(target);
        self
    }

    /// Sets the name by which `CLIENT LIST` shows our connections. Defaults to `tower-stampede`;
    /// an empty name sends none. Call it on the first handle: earlier clones keep a connection
    /// of their own.
    ///
    /// Each connection sends `CLIENT SETNAME` when it is opened. A user without the right to do
    /// so connects all the same, without a name. So do a connection that a cluster's client opens
    /// later, and one for messages on a server that does not speak RESP3.
    ///
    /// # Errors
    ///
    /// If the name is longer than 128 bytes, or has a character that is not printable ASCII, or a
    /// blank: Redis would refuse it.
    pub fn client_name(mut self, name: &str) -> Result<Self, ConfigError> {
        let refuse = |reason: String| Err(ConfigError::new(&["client_name"], reason));
        if name.len() > LONGEST_CLIENT_NAME {
            let len = name.len();
            return refuse(format!("has {len} bytes; at most {LONGEST_CLIENT_NAME} are allowed"));
        }
        if let Some(odd) = name.chars().find(|c| !c.is_ascii_graphic()) {
            return refuse(format!(
                "has the character {odd:?}; Redis takes printable ASCII without blanks: replace it"
            ));
        }
        self.link = Pool::new(self.link.target().clone().with_client_name(name));
        Ok(self)
    }

    fn new(target: Target) -> Self {
        Self {
            link: Pool::new(target),
            namespace: "".into(),
            name_secret: None,
            settings: RemoteSettings::new(),
        }
    }

    /// Takes a server by its URL, as [`lazy`](Self::lazy) does, and asks
    /// whether it answers, is new enough, runs scripts, and lets this user send
    /// every command.
    ///
    /// Which keys and channels the user may name is known only with the
    /// namespace, and asked by [`check`](Self::check).
    ///
    /// # Errors
    ///
    /// If the URL makes no sense, or the server cannot be used. Also after 10 s
    /// without an answer.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        let redis = Self::lazy(url)?;
        check::all(&redis.link, None).await?;
        Ok(redis)
    }

    /// Asks the server for everything a cache in this namespace needs of it: its version, the
    /// commands, the keys and the channels. Of a cluster, it asks each node that has slots.
    ///
    /// # Errors
    ///
    /// If something is missing; the error names it, and the node of a cluster. That may be the
    /// [namespace](Self::namespace). Also after 10 s without an answer.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn check(&self) -> Result<(), ConnectError> {
        check::all(&self.link, Some(&self.namespace)).await
    }

    /// Returns the least rights with which a user can be a cache's in this
    /// namespace, as `ACL SETUSER` takes them.
    ///
    /// A [`RedisLock`] needs the same commands, and the keys that it is
    /// named by.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tower_stampede::Redis;
    /// let redis = Redis::lazy("redis://127.0.0.1")?.namespace("shop");
    /// assert!(redis.acl_rules()?.starts_with("resetchannels ~shop:2:* &shop:2:* +ping "));
    /// # Ok::<(), tower_stampede::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the [namespace](Self::namespace) is not set, or cannot be one.
    pub fn acl_rules(&self) -> Result<String, ConfigError> {
        Ok(check::acl_rules(&self.link, &Names::below(&self.namespace)?))
    }

    /// Sets what all keys and channels begin with, so that applications can
    /// share a server. Caches of one name and namespace share their entries.
    ///
    /// It has no default: two applications that both forget it would read each other's values, and
    /// delete each other's keys. Without it, caches and locks are refused when they are built.
    ///
    /// Braces and blanks are refused as well. So is a part between colons that is a
    /// number, empty, or `legacy`: `a:1` with a cache `b` would have the names of `a` with a cache
    /// `1:b`.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Hashes each key with this secret (BLAKE3, keyed) in the names of its records, so that a
    /// list of the names shows no keys. All processes of a cache need the same secret: with
    /// another one they do not find each other's values and locks.
    ///
    /// Not hashed are the names of caches and locks, and what processes tell each other of
    /// invalidations: messages and the invalidation log carry invalidated keys, and tags, as they
    /// are. Values carry their key and tags, unless they are encrypted with `Codec::encrypt`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tower_stampede::Redis;
    /// # let secret = [7; 32];
    /// // 32 random bytes, from your store of secrets.
    /// let redis = Redis::lazy("redis://127.0.0.1")?.namespace("shop").hash_names(&secret);
    /// # Ok::<(), tower_stampede::ConfigError>(())
    /// ```
    pub fn hash_names(mut self, secret: &[u8; 32]) -> Self {
        self.name_secret = Some(NameSecret(*secret));
        self
    }

    /// Sets all that is said of any remote.
    pub fn settings(mut self, settings: RemoteSettings) -> Self {
        self.settings = settings;
        self
    }

    /// See [`RemoteSettings::op_timeout`].
    pub fn op_timeout(mut self, op_timeout: Duration) -> Self {
        self.settings = self.settings.op_timeout(op_timeout);
        self
    }

    /// See [`RemoteSettings::op_timeout_per_mib`].
    pub fn op_timeout_per_mib(mut self, allowance: Duration) -> Self {
        self.settings = self.settings.op_timeout_per_mib(allowance);
        self
    }

    /// See [`RemoteSettings::breaker_failures`].
    pub fn breaker_failures(mut self, failures: u32) -> Self {
        self.settings = self.settings.breaker_failures(failures);
        self
    }

    /// See [`RemoteSettings::local_ttl`].
    pub fn local_ttl(mut self, local_ttl: Duration) -> Self {
        self.settings = self.settings.local_ttl(local_ttl);
        self
    }

    /// See [`RemoteSettings::remote_ttl`].
    pub fn remote_ttl(mut self, remote_ttl: Duration) -> Self {
        self.settings = self.settings.remote_ttl(remote_ttl);
        self
    }

    /// See [`RemoteSettings::max_value_bytes`].
    pub fn max_value_bytes(mut self, bytes: usize) -> Self {
        self.settings = self.settings.max_value_bytes(bytes);
        self
    }

    /// See [`RemoteSettings::max_journal`].
    pub fn max_journal(mut self, invalidations: usize) -> Self {
        self.settings = self.settings.max_journal(invalidations);
        self
    }

    /// Returns the remote of the cache with this name, for tests that ask it
    /// themselves.
    ///
    /// # Errors
    ///
    /// As [`Builder::build`](crate::Builder::build) with this `Redis`: when the
    /// namespace is not set, or it or the name has braces.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn remote(&self, cache_name: &str) -> Result<Arc<dyn Remote>, ConfigError> {
        self.open(cache_name)
    }

    /// Makes the remote of the cache with this name.
    pub(crate) fn open(&self, cache_name: &str) -> Result<Arc<dyn Remote>, ConfigError> {
        self.link.patience().note(self.settings.op_timeout);
        let names = Names::new(&self.namespace, cache_name)?.hashed(self.name_secret);
        Ok(Arc::new(RedisRemote::new(self.link.clone(), names, self.settings.max_value_bytes)))
    }
}

/// Shows where it connects, without user and password.
impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("servers", &self.link.target().address())
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}
