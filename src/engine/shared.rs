//! The store that several processes share, as the engine sees it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::grant::{Ask, Filled, Grant, Token, Version};
use super::time::Tick;
use super::wakes::Listener;
use crate::entry::Entry;
use crate::key::{Key, Tag};

/// The remote did not answer, or is known not to: go on without it, and ask
/// nothing more for the same request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Away;

pub(crate) type Asking<'a, T> = Pin<Box<dyn Future<Output = Result<T, Away>> + Send + 'a>>;
pub(crate) type Telling<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What stands under a key in the remote.
#[derive(Debug)]
pub(crate) enum Found<V> {
    Nothing,
    /// A value that no invalidation has reached, however old it is.
    Entry(Arc<Entry<V>>),
    /// Whoever computed last says: answers of this key may not be shared.
    Uncacheable {
        until: Tick,
        version: Option<Version>,
    },
    /// Something that cannot be used: damaged, foreign, invalidated.
    Useless(Option<Version>),
}

/// What an acquire was answered with.
#[derive(Debug)]
pub(crate) enum Asked<V> {
    Hit(Found<V>),
    Granted(Grant),
    /// Another holds the lease for so long, if it is not renewed.
    Locked(Duration),
    /// Nobody computes for so long.
    Held(Duration),
}

/// Whether the remote was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Done,
    /// It is away; it will be told before it is asked again.
    Queued,
}

/// One entry, or the word that there is none to share.
#[derive(Debug)]
pub(crate) enum Share<V> {
    Entry(Arc<Entry<V>>),
    Uncacheable(Duration),
}

/// The store and the lock that several processes share. Every call ends within
/// a bound of its own.
pub(crate) trait Shared<V>: Send + Sync + 'static {
    /// Returns whether it is worth asking.
    fn is_up(&self) -> bool;

    fn get<'a>(&'a self, key: &'a Key) -> Asking<'a, Found<V>>;

    fn acquire<'a>(&'a self, key: &'a Key, ask: &'a Ask) -> Asking<'a, Asked<V>>;

    /// Fills under a lease.
    fn fill<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        share: &'a Share<V>,
    ) -> Asking<'a, Filled>;

    /// Returns whether the lease still holds.
    fn renew<'a>(&'a self, key: &'a Key, grant: &'a Grant, ask: &'a Ask) -> Asking<'a, bool>;

    fn abandon<'a>(
        &'a self,
        key: &'a Key,
        token: &'a Token,
        hold: Option<Duration>,
    ) -> Telling<'a, ()>;

    fn invalidate<'a>(&'a self, key: &'a Key) -> Telling<'a, Told>;

    /// Whatever was taken over before this is done, and has one of the tags, is
    /// dead afterwards.
    fn invalidate_tags<'a>(&'a self, tags: &'a [Tag]) -> Telling<'a, Told>;

    /// Stores without a lease, in place of whatever is there.
    fn put<'a>(&'a self, key: &'a Key, entry: &'a Entry<V>) -> Telling<'a, Told>;

    fn listen(&self, key: &Key) -> Listener;

    /// Returns whether wake-ups arrive.
    fn is_subscribed(&self) -> bool;

    /// Returns a new try to get a lease.
    fn ask(&self) -> Ask;

    fn health(&self) -> RemoteHealth;
}

/// How the remote is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemoteHealth {
    Up,
    /// It answers and its messages do not arrive.
    Unsubscribed,
    /// Nobody asks it until a probe has reached it.
    Away,
}
