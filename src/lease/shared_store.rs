//! The store and the lock that several processes share, as the engine sees them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::clock::Tick;
use crate::entry::Entry;
use crate::key::{Key, Tag};
use crate::lease::grant::{
    AcquireOutcome, FillOutcome, Grant, LeaseRequest, Stamp, Token, Version,
};
use crate::lease::wakes::Listener;

/// The remote did not answer, or is known not to answer: go on without it, and do not
/// ask it again for the same request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unavailable;

pub(crate) type RemoteFuture<'a, T> = BoxFuture<'a, Result<T, Unavailable>>;
/// A write on its way to the remote: its order is that of the calls that made it. Dropped
/// before it is done, it is queued as during an outage.
pub(crate) type Errand = BoxFuture<'static, Delivery>;

/// A look at one key of the remote.
#[derive(Debug)]
pub(crate) enum RemoteValue<V> {
    Nothing,
    /// A value that no invalidation has reached, however old it is.
    Entry(Arc<Entry<V>>),
    /// The last computation, which `took` so long, says: the next result will not be shared with
    /// `whom` either.
    Uncacheable {
        whom: UncacheableFor,
        until: Tick,
        took: Duration,
        version: Option<Version>,
    },
    /// A value that cannot be used: damaged, foreign, invalidated.
    Useless(Option<Version>),
}

/// What this process knew of invalidations when a caller came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallerArrival {
    /// The number of the local invalidation log.
    pub(crate) seq: u64,
    /// Up to where it had heard of the log that the processes share.
    pub(crate) stamp: Stamp,
}

/// Who gains nothing by waiting for a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UncacheableFor {
    /// Callers whose requests have this hash of what they have besides the key.
    EqualRequests(u64),
    AllRequests,
    /// Processes: a result stays in the process that has computed it. Its callers share it.
    OtherProcesses,
}

/// Whether the remote was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    Done,
    /// It has no log by which other processes would hear of it.
    NoLog,
    /// It is away; it will be told before it is asked again.
    Queued,
}

/// One entry, or the word that there is none to share.
#[derive(Debug)]
pub(crate) enum FillPayload<V> {
    Entry(Arc<Entry<V>>),
    /// Counted from now. `took` is how long the work took.
    Uncacheable {
        whom: UncacheableFor,
        span: Duration,
        took: Duration,
    },
}

/// Why a fill came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotFilled {
    Unavailable,
    /// The result cannot be shared between processes, nor can the next one for so long.
    Unshareable(Duration),
}

impl From<NotFilled> for Unavailable {
    fn from(_: NotFilled) -> Self {
        Self
    }
}

/// The store and the lock that several processes share. Every call ends within
/// its own time-out.
pub(crate) trait SharedStore<V>: Send + Sync + 'static {
    /// Returns whether it is worth asking for `key`.
    fn is_up(&self, key: &Key) -> bool;

    /// Looks for a value. One that an invalidation has reached since the caller's `arrival` serves
    /// that caller, and is not to be kept. The first look of a caller sets its arrival.
    fn get<'a>(
        &'a self,
        key: &'a Key,
        arrival: &'a mut Option<CallerArrival>,
    ) -> RemoteFuture<'a, RemoteValue<V>>;

    fn acquire<'a>(
        &'a self,
        key: &'a Key,
        ask: &'a LeaseRequest,
    ) -> RemoteFuture<'a, AcquireOutcome<RemoteValue<V>>>;

    /// Fills under a lease.
    fn fill<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        share: &'a FillPayload<V>,
    ) -> BoxFuture<'a, Result<FillOutcome, NotFilled>>;

    /// Returns whether the lease still holds.
    fn renew<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        ask: &'a LeaseRequest,
    ) -> RemoteFuture<'a, bool>;

    fn abandon<'a>(
        &'a self,
        key: &'a Key,
        token: &'a Token,
        hold: Option<Duration>,
    ) -> BoxFuture<'a, ()>;

    /// Tells of an invalidation. It counts from the call, not from the first poll: callers that
    /// ask the remote for one of the keys after that wait until it is told. The process ends its
    /// own use of the keys after this call.
    fn invalidate(self: Arc<Self>, keys: Box<[Key]>) -> Errand;

    /// The same for tags, and callers of all keys.
    fn invalidate_tags(self: Arc<Self>, tags: Box<[Tag]>) -> Errand;

    /// Stores without a lease, in place of any value; counts from the call, as an invalidation.
    fn put(self: Arc<Self>, key: Key, entry: Arc<Entry<V>>) -> Errand;

    fn listen(&self, key: &Key) -> Listener;

    /// Returns whether wake-ups arrive.
    fn is_subscribed(&self) -> bool;

    /// Finds out whether the local copies may be served: whether other processes have ended any
    /// of them. Ends within its own time-out, also without an answer, and soon where the caller
    /// `has_value` to serve.
    fn vouch(&self, has_value: bool) -> BoxFuture<'_, ()>;

    /// Learns what other processes have ended up to now.
    fn catch_up(&self) -> BoxFuture<'_, ()>;

    /// Returns a new try to get a lease.
    fn ask(&self) -> LeaseRequest;

    fn health(&self) -> RemoteHealth;

    /// Returns where the servers are that no request asks now.
    fn servers_away(&self) -> Vec<String>;

    /// Returns how far this process has applied the invalidation log; `None` before it was read,
    /// or where there is none.
    #[cfg_attr(not(feature = "admin"), allow(dead_code, reason = "the admin router tells it"))]
    fn applied(&self) -> Option<Stamp>;
}

/// Whether the remote answers, and its messages arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemoteHealth {
    Up,
    /// It answers, and its messages do not arrive.
    Unsubscribed,
    /// No request asks it, or one of its shards, until a probe has reached it; or it has still to
    /// be told of something.
    Away,
}
