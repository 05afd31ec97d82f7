//! What is stored in this process, for people and tests.

use std::time::Duration;
#[cfg(feature = "admin")]
use std::{collections::BTreeMap, sync::Arc};

use crate::cache::handle::Stampede;
use crate::cache::state::CacheState;
use crate::clock::Tick;
use crate::entry::Entry;
#[cfg(feature = "admin")]
use crate::key::Key;
use crate::key::{KeyBuf, Tag, ToKey, text_of};
#[cfg(feature = "admin")]
use crate::lease::grant::Stamp;
use crate::lease::grant::Version;
use crate::observe::Savings;

/// An entry of this process, at the moment of [`Stampede::lookup`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntryInfo {
    /// The time since its computation began. For a response over HTTP that is the
    /// value of its `Age`.
    pub age: Duration,
    /// How long it is still fresh; zero if it is stale.
    pub ttl_left: Duration,
    /// How long it may still be served while it is refreshed, the time until it is stale
    /// included; zero if it may not.
    pub stale_left: Duration,
    /// How long it may still be served in place of a failure, the time until it is stale
    /// included; zero if it may not.
    pub stale_if_error_left: Duration,
    /// The tags by which it can be invalidated. A response over HTTP has some that the
    /// layer has made; they are no text.
    pub tags: Vec<Tag>,
    /// Its weight against the bound on memory, in bytes.
    pub bytes: u64,
    /// The number under which the value stands in the remote. Copies of one key with the same
    /// number are copies of one value. `None`: it is in this process alone.
    pub version: Option<u64>,
}

impl EntryInfo {
    fn of<V>(entry: &Entry<V>, now: Tick) -> Self {
        let window = entry.window();
        Self {
            age: now.since(window.started),
            ttl_left: window.fresh_until.since(now),
            stale_left: window.stale_until.max(window.fresh_until).since(now),
            stale_if_error_left: window.error_until.max(window.fresh_until).since(now),
            tags: entry.tags.to_vec(),
            bytes: entry.weight.into(),
            version: entry.version.map(Version::get),
        }
    }
}

impl<V: Clone + Send + Sync + 'static> Stampede<V> {
    /// Says what this process has stored under `key`; `None` if there is nothing, or it was
    /// invalidated, or it is too old for any use. Returns entries in every mode.
    ///
    /// Concerns this process alone: the remote is not asked, and computations that run are
    /// not seen. No counter and no metric changes. The store cannot be read without a trace:
    /// the call counts as a use where the least recently used entry makes room.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::{Computed, Stampede};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let users = Stampede::builder("users").ttl(Duration::from_secs(60)).jitter(0.0).build().unwrap();
    /// users.put_with(7, Computed::new("Ada".to_owned()).tag("user")).await;
    /// let entry = users.lookup(7).unwrap();
    /// assert!(entry.ttl_left > Duration::from_secs(50));
    /// assert_eq!(entry.tags, ["user".into()]);
    /// assert!(users.lookup(8).is_none());
    /// # }
    /// ```
    #[must_use]
    pub fn lookup<K: ToKey>(&self, key: K) -> Option<EntryInfo> {
        self.0.inspect(KeyBuf::of(&key).as_bytes())
    }
}

/// What has saved the origin the most time, the greatest first; see [`Stampede::top`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Top {
    /// The keys, as the lines of the log write them. Of a longer one its first 192 bytes. Over HTTP the
    /// variants of a response count together.
    pub keys: Vec<(String, Savings)>,
    /// The tags, without those that the HTTP layer makes.
    pub tags: Vec<(String, Savings)>,
    /// The routes of requests over HTTP: the path of axum's route where its router stands outside of
    /// the layer, else the first segment of the path.
    pub routes: Vec<(String, Savings)>,
}

impl<V: Clone + Send + Sync + 'static> Stampede<V> {
    /// Returns the keys, tags and routes that have saved the origin the most time in this process:
    /// requests that needed no computation, each priced by the time that the computation of its value
    /// took.
    ///
    /// Estimates: an entry is noted at each sixteenth use, later at each 128th. At most `count` of
    /// each, of 128 keys, 32 tags and 32 routes that are known; those that have saved little may be
    /// missing. The sum of all is exact: [`Stats::origin_time_saved`](crate::Stats::origin_time_saved).
    ///
    /// # Cost
    ///
    /// A hit adds two numbers for it. The memory is bounded by 64 KiB for each cache. The call sorts
    /// what is known.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use std::time::Duration;
    /// use tower_stampede::Stampede;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_stampede::Error> {
    /// let cache: Stampede<u64> = Stampede::in_memory(Duration::from_secs(60));
    /// for _ in 0..33 {
    ///     cache.get_or_compute("report", || async { Ok::<_, Infallible>(7) }).await?;
    /// }
    /// let (key, savings) = &cache.top(20).keys[0];
    /// assert_eq!((key.as_str(), savings.hits), ("report", 32));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn top(&self, count: usize) -> Top {
        let ledger = &self.0.observer.ledger;
        let named = |rows: Vec<(Box<[u8]>, Savings)>| {
            rows.into_iter().map(|(name, savings)| (text_of(&name), savings)).collect()
        };
        let (keys, tags) = (named(ledger.keys(count)), named(ledger.tags(count)));
        Top { keys, tags, routes: named(ledger.routes(count)) }
    }
}

/// A place in the order in which entries are listed: a digest of the key, because keys may
/// be of any length.
#[cfg(feature = "admin")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cursor(u128);

#[cfg(feature = "admin")]
impl Cursor {
    fn of(key: &Key) -> Self {
        let mut first = [0; 16];
        first.copy_from_slice(&blake3::hash(key.as_bytes()).as_bytes()[..16]);
        Self(u128::from_be_bytes(first))
    }

    /// Reads what `to_string` has written.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let is_one = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_one.then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
    }
}

#[cfg(feature = "admin")]
impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Entries that are looked at before other tasks run.
#[cfg(feature = "admin")]
const SLICE: usize = 512;

#[cfg(feature = "admin")]
impl<V: Clone + Send + Sync + 'static> CacheState<V> {
    /// Returns at most `limit` entries after `after`, in the order of their digests, and where
    /// to go on if there are more. Holds as many as it returns.
    pub(crate) async fn entries_after(
        self: Arc<Self>,
        after: Option<Cursor>,
        limit: usize,
    ) -> (Vec<(Key, EntryInfo)>, Option<Cursor>) {
        let mut found = BTreeMap::new();
        let mut has_more = false;
        for (n, (key, entry)) in self.local.iter().enumerate() {
            let cursor = Cursor::of(&key);
            let is_after = after.is_none_or(|after| cursor > after);
            let last = found.last_key_value().map(|(last, _)| *last);
            let is_too_late = found.len() == limit && last.is_some_and(|last| cursor > last);
            if let Some(info) = self.info_of(&entry).filter(|_| is_after) {
                has_more |= is_too_late;
                if !is_too_late {
                    found.insert(cursor, (key, info));
                }
            }
            if found.len() > limit {
                found.pop_last();
                has_more = true;
            }
            if n % SLICE == SLICE - 1 {
                tokio::task::yield_now().await;
            }
        }
        let last = found.last_key_value().map(|(last, _)| *last);
        (found.into_values().collect(), last.filter(|_| has_more))
    }
}

impl<V: Clone + Send + Sync + 'static> CacheState<V> {
    fn inspect(&self, key: &[u8]) -> Option<EntryInfo> {
        let entry = self.local.peek(key)?;
        self.info_of(&entry)
    }

    /// Returns how far this process has applied the invalidation log of the remote, and how long
    /// local copies are served before it is read again: `None`, without limit.
    #[cfg(feature = "admin")]
    pub(crate) fn log_state(&self) -> (Option<Stamp>, Option<Duration>) {
        let applied = self.engine.shared.get().and_then(|shared| shared.applied());
        let until = self.engine.vouched_until();
        (applied, until.map(|until| until.since(self.now())))
    }

    fn info_of(&self, entry: &Entry<V>) -> Option<EntryInfo> {
        let now = self.now();
        self.is_of_use(entry).then(|| EntryInfo::of(entry, now))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::clock::Tick;
    use crate::entry::Entry;
    use crate::freshness::{Lifetimes, Window};
    use crate::observe::ledger::Ledger;

    fn entry(weight: u32) -> Entry<u8> {
        let (ttl, none) = (Duration::from_secs(60), Duration::ZERO);
        let lifetimes = Lifetimes { ttl, stale_for: none, stale_if_error: none };
        let window = Window::new(Tick::from_nanos(0), lifetimes, Duration::from_secs(1));
        let mut entry = Entry::new(1, window, Box::default(), 0);
        entry.weight = weight;
        entry
    }

    #[test]
    fn an_entry_that_was_used_most_does_not_begin_to_count_again() {
        let entry = entry(1);
        entry.inherit_uses(u32::MAX);
        for _ in 0..2 {
            assert!(
                entry.count_use() == entry.uses().is_multiple_of(16) && entry.uses() >= 1 << 31
            );
        }
    }

    #[test]
    fn the_sums_of_the_ledger_stay_at_the_greatest_number() {
        let (ledger, entry) = (Ledger::default(), entry(u32::MAX));
        entry.inherit_uses(u32::MAX - 127);
        for _ in 0..3 {
            ledger.note_use(b"k", &entry);
        }
        assert_eq!(ledger.keys(1)[0].1.bytes, u64::MAX);
    }
}
