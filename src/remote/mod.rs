//! A store and a refresh lock that many processes share.
//!
//! `Redis` (feature `redis`) is the implementation. For a store of your own that reads, writes and
//! deletes, implement [`PlainStore`], and hand a [`PlainRemote`] to `Builder::remote`.
//!
//! What a cache asks of a server, in bytes and round trips, is the trait `Remote`. It and its types
//! are public for the tests and tools of this repository, and hidden: they change with the protocol,
//! in any release. Everything above the trait is the same for every remote.
//!
//! # What enters
//!
//! From the cache: look-ups, requests for the lease of a key, fills, invalidations. From the
//! server: replies, and notices of what other processes invalidated.
//!
//! # What leaves
//!
//! To the cache: entries whose times are in this process's clock, or the word that the remote
//! cannot be asked. To the server: *envelopes*, bytes that carry a value with its times, its
//! tags, its key and a checksum.
//!
//! # The states in between
//!
//! ```text
//! cache ── coordinator ── guard ── Remote ── server
//!             │             │
//!             │             ├─ shards, each with a breaker: closed, or open until a probe
//!             │             │  succeeds
//!             │             └─ link: what this process knows of the log, and what the log does
//!             │                not know yet (the journal)
//!             ├─ pending writes: on their way; what is read about their keys waits
//!             └─ driver: feeds the link, and does what it says
//! ```
//!
//! Every call has a deadline. After some failures in a row the breaker of a shard opens:
//! requests no longer ask that shard, and a task probes it. When a probe succeeds, the journal is
//! replayed and, where the shard has the log, the log is read before requests ask again. A key
//! that stands in the journal is not asked for, and what carries a tag from there is neither
//! adopted nor shared. Where messages may have been missed, local copies are dropped. So no
//! request fails because of the remote.
//!
//! Whatever is read from a remote is untrusted. A value that is damaged, belongs to another
//! key or schema, or is too large counts as a miss.
//!
//! # Reading order for contributors
//!
//! - `coordinator`: from entries to envelopes and back; the engine's view of the remote.
//! - `envelope`, `codec`: the bytes around a value, and the value as bytes.
//! - `guard`, `shard`, `progress`, `breaker`, `pause`: the one way to the server, and what happens
//!   without it.
//! - `recovery`: brings back a shard that was away, and tells it what it has missed.
//! - `writes`: how the remote is told of writes, their order, and what is read after them.
//! - `log`: the words of the invalidation log that the processes share.
//! - `link`: what this process knows of it, as a machine without async, lock or I/O.
//! - `driver`: reads the log, and carries out what the link says.
//! - `clock`: the server's time in readings of our own clock, and back.
//! - `attach`, `settings`, `error`: the builder's side.
//! - `plain`: a remote made of a store that has neither a lease nor a log.
//! - `redis/`: the implementation. `double/`: a server in memory, for tests.
//! - `contract/`: what both do, and every other remote must, as tests.

mod attach;
pub(crate) mod breaker;
pub(crate) mod clock;
pub(crate) mod codec;
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub mod contract;
mod coordinator;
#[cfg(feature = "test-util")]
mod double;
mod driver;
pub(crate) mod envelope;
mod error;
mod guard;
mod link;
mod log;
mod pause;
mod plain;
mod progress;
mod recovery;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod settings;
mod shard;
mod writes;

use std::future::Future;
use std::pin::Pin;
use std::sync::Weak;
use std::time::Duration;

use bytes::Bytes;

use crate::key::Key;
#[doc(hidden)]
pub use crate::lease::grant::{
    AcquireOutcome, Epoch, FillOutcome, Grant, LeaseRequest, ServerTime, Stamp, Token, Version,
};
#[doc(hidden)]
pub use crate::lease::wakes::{Listener, Wakes};
pub use crate::observe::RemoteOp;
#[cfg(feature = "codec-aead")]
#[cfg_attr(docsrs, doc(cfg(feature = "codec-aead")))]
pub use crate::remote::codec::coding::EncryptionKeys;
pub use crate::remote::codec::{Codec, Remotable};
#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub use crate::remote::double::{Double, DoubleCall};
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub use crate::remote::double::{DoubleProcess, Record};
pub use crate::remote::error::{RemoteError, RemoteErrorKind};
#[doc(hidden)]
pub use crate::remote::log::{LogHeader, LogItem, LogPositions, LogReply, LogUpdate, RemoteLog};
pub use crate::remote::plain::{PlainRemote, PlainStore};
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use crate::remote::redis::{
    ConnectError, CredentialsFuture, CredentialsProvider, Redis, RedisCredentials, RedisLock,
    RedisLockGuard,
};
#[cfg(feature = "redis-legacy-lock")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis-legacy-lock")))]
pub use crate::remote::redis::{LegacyLock, LegacyLockGuard};
pub use crate::remote::settings::RemoteSettings;
#[doc(hidden)]
pub use crate::remote::shard::Shard;

/// What every call to a remote returns.
///
/// Dropping it must be safe at any point; the command may still be executed.
#[doc(hidden)]
pub type Call<'a, T> = Pin<Box<dyn Future<Output = Result<T, RemoteError>> + Send + 'a>>;

/// What an invalidation found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub struct InvalidatedRecords {
    /// Whether there was a value.
    pub value: bool,
    /// Whether a lease or a right to fill was ended.
    pub lease: bool,
    /// A version that no later grant is below, and that is above the earlier ones as far as the
    /// remote can tell; `None` where it cannot.
    pub version: Option<Version>,
}

/// A message of the remote, never about what this process itself has announced.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(hidden)]
pub enum Notice {
    /// Another process has announced something.
    Announced(LogUpdate),
    /// The remote is listened to, from now on or again: messages before this
    /// may have been missed.
    Subscribed,
    /// The remote is not listened to any more.
    Unsubscribed,
}

/// Takes the notices of a remote. Must neither block nor panic.
#[doc(hidden)]
pub trait OnNotice: Send + Sync + 'static {
    /// Is told `notice`, in the order in which the remote sent it.
    fn on_notice(&self, notice: Notice);
}

/// A store with a refresh lock, shared by processes.
///
/// Per key it holds a value (an *envelope*: opaque bytes, but for the version,
/// 16 decimal digits at bytes 4 to 19), the lease, and the right to fill with
/// the processes that wait. Each method is one round trip and atomic. What an
/// implementation must do is told by the contract suite (the module `contract`, feature
/// `test-util`).
///
/// A remote may leave out the [invalidation log](RemoteLog) and the [messages](RemotePush).
/// Without the log, entries with tags stay in their process, an invalidation of a tag or of
/// everything reaches this process alone, and local copies are used for at most
/// [`local_ttl`](RemoteSettings::local_ttl). Without messages, waiting processes poll.
///
/// A method need not bound its time: the caller does, and calls
/// [`suspect`](Self::suspect) after a call that took too long.
#[doc(hidden)]
pub trait Remote: Send + Sync + 'static {
    /// Returns the envelope of `key`. A value of a foreign type is an envelope
    /// without bytes.
    fn get<'a>(&'a self, key: &'a Key) -> Call<'a, Option<Bytes>>;

    /// Asks for the lease of `key`. Repeating a call with the same token is
    /// the same grant. Registers the process for a wake-up where another holds
    /// the lease and `ask.register` is set, in the same atomic step.
    fn acquire<'a>(&'a self, key: &'a Key, ask: &'a LeaseRequest) -> Call<'a, AcquireOutcome>;

    /// Stores `envelope` for `ttl` and ends the lease, unless the right to
    /// fill has ended; wakes every process that waits.
    fn fill<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        ttl: Duration,
        envelope: Bytes,
    ) -> Call<'a, FillOutcome>;

    /// Prolongs the lease. Returns whether the caller still has it.
    fn renew<'a>(&'a self, key: &'a Key, grant: &'a Grant, ask: &'a LeaseRequest)
    -> Call<'a, bool>;

    /// Gives the lease up and wakes one process that waits; with a `hold`,
    /// no process computes for so long and all are woken. A hold of zero only wakes all. Returns
    /// whether `token` had a lease or a right to fill.
    fn abandon<'a>(
        &'a self,
        key: &'a Key,
        token: &'a Token,
        hold: Option<Duration>,
    ) -> Call<'a, bool>;

    /// Removes the value, the lease and the right to fill, and wakes every process
    /// that waits. The others are told by the log.
    fn invalidate<'a>(&'a self, key: &'a Key) -> Call<'a, InvalidatedRecords>;

    /// Stores `envelope` for `ttl` under a version above everything seen, ends
    /// lease and right, and wakes every process that waits. The others are told by the log.
    /// Returns the remote's time and the version.
    fn put<'a>(
        &'a self,
        key: &'a Key,
        ttl: Duration,
        envelope: Bytes,
    ) -> Call<'a, (ServerTime, Version)>;

    /// Returns the time of a shard: the cheapest way to see whether it answers and takes writes.
    /// Asks that shard itself, and tells no process.
    fn probe(&self, shard: Shard) -> Call<'_, ServerTime>;

    /// Returns the shard of a key: what fails together with it. It may change from call to call.
    /// Called for every call about a key, so it must be cheap. Defaults to
    /// [`Shard::ONLY`].
    fn shard_of(&self, key: &Key) -> Shard {
        let _ = key;
        Shard::ONLY
    }

    /// Returns the invalidation log. Defaults to none.
    fn log(&self) -> Option<&dyn RemoteLog> {
        None
    }

    /// Returns what delivers messages. Defaults to none.
    fn push(&self) -> Option<&dyn RemotePush> {
        None
    }

    /// Returns where the remote is, for the log lines about it: hosts and ports, or any other
    /// text by which an operator finds it. It must hold no user, no password and no other
    /// secret. Asked once, when the cache is built. Defaults to `remote`.
    fn address(&self) -> String {
        "remote".to_owned()
    }

    /// Returns where a shard is, for log lines and [`servers_away`], in the form of
    /// [`address`](Self::address). Asked when the shard goes away and when it is back. Defaults
    /// to `address`.
    ///
    /// [`servers_away`]: crate::Stampede::servers_away
    fn address_of(&self, shard: Shard) -> String {
        let _ = shard;
        self.address()
    }

    /// Returns the number of the connection by which a shard is asked now. It changes before a reply
    /// comes that may be of another server than the replies before: then what is known of the
    /// [log](Self::log) is held against that server first. Called for every call, so it must be
    /// cheap. Defaults to 1, for a remote that always leads to the same server.
    fn connection(&self, shard: Shard) -> u64 {
        let _ = shard;
        1
    }

    /// Returns whether a connection to a shard is being made. A call that waits for one may take four
    /// times as long as another. Defaults to `false`.
    fn is_connecting(&self, shard: Shard) -> bool {
        let _ = shard;
        false
    }

    /// Is told that a call to a shard failed or took too long. After several in a row the
    /// connection to it is worth replacing.
    fn suspect(&self, shard: Shard, kind: RemoteErrorKind);
}

/// The messages of a remote: wake-ups, and what other processes announce.
#[doc(hidden)]
pub trait RemotePush: Send + Sync {
    /// Begins to listen for wake-ups of `key`, before the acquire that
    /// registers for them.
    fn listen(&self, key: &Key) -> Listener;

    /// Returns whether wake-ups and notices arrive now. While they do not, an
    /// acquire registers nothing.
    fn is_subscribed(&self) -> bool;

    /// Begins to subscribe, and tells `listener` from then on. Called on the
    /// runtime, and once more on another where that one has ended.
    fn attach(&self, listener: Weak<dyn OnNotice>);
}
