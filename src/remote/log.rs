//! The invalidation log that the processes share: what they tell each other, in one order.
//!
//! # What enters
//!
//! Items: a tag, a key, or everything. A process announces them; the remote numbers them.
//!
//! # What leaves
//!
//! To the engine: what other processes have invalidated. To the coordinator: whether an entry
//! of the remote is alive.
//!
//! # The mechanism: positions instead of times
//!
//! The log has an *epoch*, a random number, and each item has a *position*. A process keeps how
//! far it has applied the log. An entry is stamped with that pair as it was before its
//! computation began. It is dead if the epoch has changed since, or if one of its tags has a
//! higher position than the stamp. So no clock of a server or process is compared with another.
//!
//! A log that was lost, or that a failover has set back, begins again with another epoch. Then
//! what was invalidated last may not be known to any process, so no entry of the old epoch is
//! used again.
//!
//! # The states in between
//!
//! ```text
//! announce ──▶ the remote's log ──message──▶   link   ──▶ the local invalidation log
//!                     ▲                          ▲
//!                     └── read once a second ────┘ a message was lost
//! ```
//!
//! `link` is what one process knows of the log, and how it judges an entry.

use crate::key::{Key, Tag};
use crate::lease::grant::{Epoch, Stamp};
use crate::remote::{Call, Shard};

/// One item of the invalidation log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogItem {
    /// What carries this tag has ended; or has become stale, where the tag is a stale mark. To
    /// the remote both are bytes.
    Tag(Tag),
    /// A key was invalidated or put. Its value in the remote is gone or replaced already; the
    /// item is for the local copies.
    Key(Key),
    /// Everything has ended.
    Everything,
    /// Everything has become stale.
    EverythingStale,
}

impl LogItem {
    /// Returns the tag that ends, or is marked, by this; a key has none.
    pub(crate) fn into_tag(self) -> Result<Tag, Key> {
        match self {
            Self::Key(key) => Err(key),
            Self::Tag(tag) => Ok(tag),
            Self::Everything => Ok(Tag::from("*")),
            Self::EverythingStale => Ok(Tag::from("*").stale_mark()),
        }
    }

    /// Returns whether it ends what stands under `key` with these tags, or makes it stale.
    pub(crate) fn concerns(&self, key: &Key, tags: &[Tag]) -> bool {
        match self {
            Self::Tag(tag) => match tag.marked_key() {
                Some(marked) => marked == *key,
                None => tags.contains(tag.marked().as_ref().unwrap_or(tag)),
            },
            Self::Key(_) => false,
            Self::Everything | Self::EverythingStale => true,
        }
    }
}

impl From<Tag> for LogItem {
    fn from(tag: Tag) -> Self {
        match tag.marked() {
            None if tag.is_everything() => Self::Everything,
            Some(marked) if marked.is_everything() => Self::EverythingStale,
            None | Some(_) => Self::Tag(tag),
        }
    }
}

/// What the log says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogHeader {
    /// The life of the log.
    pub epoch: Epoch,
    /// The server that has last written it, in its life: another number after a restart or after
    /// another server has taken over; 0 where that is not known. Where the log begins anew on
    /// another server, each process tells it again what it has announced of late.
    pub server: u64,
    /// The position of the last item; 0 where there is none yet.
    pub last: u64,
    /// The position of the last [`LogItem::Everything`]; 0 if there was none.
    pub everything: u64,
    /// The position of the last [`LogItem::EverythingStale`]; 0 if there was none.
    pub everything_stale: u64,
    /// The highest position of an item that the log has dropped for its bound; 0 if there is
    /// none. A process that has not applied that one cannot read what it has missed.
    pub dropped: u64,
}

/// What a process reads of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogReply {
    /// The log after the call.
    pub header: LogHeader,
    /// The position of the last item before those that the call has appended.
    pub previous: u64,
    /// The tags and keys of other calls after the position that was asked for, in the order of
    /// their positions, each with its last position. Empty where that position is of another
    /// epoch or not given. "Everything" stands in the header alone.
    pub missed: Vec<(u64, LogItem)>,
    /// Up to here `missed` is complete, at most [`previous`](Self::previous). A call returns a
    /// bounded number of items.
    pub complete_to: u64,
}

/// The positions of tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPositions {
    /// The log at that moment.
    pub header: LogHeader,
    /// For each tag the position at which it was last announced, or a higher one where the log
    /// has dropped its record; 0 where neither is known.
    pub positions: Vec<u64>,
}

/// What a process has announced, told to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogUpdate {
    /// The life of the log.
    pub epoch: Epoch,
    /// The position of the last item before these. They follow one by one.
    pub previous: u64,
    /// The items.
    pub items: Vec<LogItem>,
}

/// The invalidation log of a remote: what a [`Remote`](crate::remote::Remote) may leave out.
///
/// Each method is one round trip and atomic. The log keeps for each tag the position of its last
/// item, exactly for at least 100,000 tags, and the last 4,096 keys at least. It may drop older
/// records: the tags of a dropped record count as announced at that position or later, and
/// [`LogHeader::dropped`] says so.
///
/// The log belongs to no key. If a part of it is lost, all of it is: then it begins again with
/// a new epoch. It must also do so after a failover to another server, which may lack the last
/// items.
pub trait RemoteLog: Send + Sync {
    /// Appends `items` in their order and tells all other processes, those that
    /// [listen](crate::remote::RemotePush::attach). `from` is what the caller has applied. A log
    /// that is not there, or whose last position in the same epoch is lower than that of `from`,
    /// begins again before. Without items it only does that, and reads.
    ///
    /// A remote without memory must append all the same, as far as it can.
    fn announce<'a>(&'a self, items: &'a [LogItem], from: Option<Stamp>) -> Call<'a, LogReply>;

    /// Returns the shard that has the log. Defaults to [`Shard::ONLY`].
    fn shard(&self) -> Shard {
        Shard::ONLY
    }

    /// Reads what follows `from`; `None` where there is no log. Done once a second by each
    /// process, so it must be cheap and change nothing.
    fn read(&self, from: Option<Stamp>) -> Call<'_, Option<LogReply>>;

    /// Reads the last positions of `tags`; `None` where there is no log.
    fn positions<'a>(&'a self, tags: &'a [Tag]) -> Call<'a, Option<LogPositions>>;
}
