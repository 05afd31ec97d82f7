//! What a cache has saved, by key, by tag and by route: the first of each.
//!
//! An entry counts its uses. Now and then a hit brings the count here, with the time that the
//! computation of the entry took: so a hit costs next to nothing. A row that is not among the first
//! is given up for one with a greater sum. That of a key is known when it comes back, as long as its
//! entries follow each other in the store; tags and routes begin with the sum that they replace, as
//! in Metwally, Agrawal, El Abbadi, "Efficient computation of frequent and top-k elements in data
//! streams" (ICDT 2005).

use std::hash::BuildHasher;
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::clock::Tick;
use crate::entry::{Entry, NOTED_USE};
use crate::key::{self, Tag};

/// How many rows are kept of keys, and of tags and routes each.
pub(crate) const KEYS: usize = 128;
const GROUPS: usize = 32;
/// Of a longer name the first bytes are kept.
pub(crate) const LONGEST_NAME: usize = 192;

/// What the allocator adds to a name.
const ALLOCATION: usize = 16;
const _: () = {
    let (row, name) = (size_of::<Row>(), LONGEST_NAME + ALLOCATION);
    assert!(
        (KEYS + 2 * GROUPS) * (row + name) + GROUPS * row <= 64 << 10,
        "a ledger must not exceed 64 KiB"
    );
};

/// From [`OFTEN`] on, of the uses that come here only each that follows by so many counts.
const SELDOM: u32 = 128;
const OFTEN: u32 = 1024;

/// After which time what a key has saved counts half for [`Ledger::hashes`].
const HALF: Duration = Duration::from_secs(3600);

/// Returns for how many uses a noted one stands, if it counts.
fn step(uses: u32) -> Option<u32> {
    match uses {
        ..=OFTEN => Some(NOTED_USE),
        _ => uses.is_multiple_of(SELDOM).then_some(SELDOM),
    }
}

/// What was saved by one key, tag or route, and what its callers have waited; see
/// [`Stampede::top`](crate::Stampede::top).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Savings {
    /// Requests that were answered by a fresh entry, rounded down to 16 for each row of entries that
    /// replaced each other.
    pub hits: u64,
    /// Requests that waited for the computation of another. They are counted for keys alone.
    pub joined: u64,
    /// The time that the origin would have worked for these, each priced by the time that the
    /// computation of its value took.
    pub origin_time_saved: Duration,
    /// The time that those that have joined have waited.
    pub waited: Duration,
    /// What the hits have served, by the weight of their entries.
    pub bytes: u64,
}

impl Savings {
    fn add(&mut self, more: &Self) {
        self.hits = self.hits.saturating_add(more.hits);
        self.joined = self.joined.saturating_add(more.joined);
        self.origin_time_saved = self.origin_time_saved.saturating_add(more.origin_time_saved);
        self.waited = self.waited.saturating_add(more.waited);
        self.bytes = self.bytes.saturating_add(more.bytes);
    }

    fn of_hits<V>(hits: u32, entry: &Entry<V>) -> Self {
        let bytes = u64::from(hits) * u64::from(entry.weight);
        let origin_time_saved = entry.computed_in().saturating_mul(hits);
        Self { hits: hits.into(), origin_time_saved, bytes, ..Self::default() }
    }

    /// What the last use of an entry stands for, if it comes to the ledger.
    fn of_step<V>(entry: &Entry<V>) -> Option<Self> {
        Some(Self::of_hits(step(entry.uses())?, entry))
    }
}

#[derive(Debug)]
struct Row {
    hash: u64,
    /// The beginning of the name.
    name: Box<[u8]>,
    /// By what it stands among the others: what is saved, with that of the row it has replaced.
    rank: Duration,
    sum: Savings,
}

/// Rows of one kind.
#[derive(Debug)]
struct Rows {
    most: usize,
    rows: Vec<Row>,
}

impl Rows {
    fn new(most: usize) -> Mutex<Self> {
        Mutex::new(Self { most, rows: Vec::new() })
    }

    /// Adds to a row. Where there is none, it begins with `whole`, or without that with what `more`
    /// adds to the row that it replaces.
    /// Returns its sum, or `whole` for what does not get a row.
    fn note(&mut self, hash: u64, name: &[u8], more: &Savings, whole: Option<&Savings>) -> Savings {
        if let Some(row) = self.rows.iter_mut().find(|row| row.hash == hash) {
            row.rank = row.rank.saturating_add(more.origin_time_saved);
            row.sum.add(more);
            return row.sum;
        }
        let sum = *whole.unwrap_or(more);
        let name = || name[..name.len().min(LONGEST_NAME)].into();
        if self.rows.len() < self.most {
            let rank = sum.origin_time_saved;
            self.rows.push(Row { hash, name: name(), rank, sum });
            return sum;
        }
        let Some(least) = self.rows.iter_mut().min_by_key(|row| row.rank) else { return sum };
        let rank = match whole {
            Some(whole) => whole.origin_time_saved,
            None => least.rank.saturating_add(more.origin_time_saved),
        };
        if rank > least.rank {
            *least = Row { hash, name: name(), rank, sum };
        }
        sum
    }

    fn first<T>(
        &self,
        count: usize,
        by: impl Fn(&Row) -> Duration,
        shown: impl Fn(&Row) -> T,
    ) -> Vec<T> {
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(by(row)));
        rows.into_iter().take(count).map(shown).collect()
    }

    fn named(&self, count: usize) -> Vec<(Box<[u8]>, Savings)> {
        let shown = |row: &Row| (row.name.clone(), row.sum);
        self.first(count, |row| row.sum.origin_time_saved, shown)
    }
}

/// The ledger of a cache.
#[derive(Debug)]
pub(crate) struct Ledger {
    hasher: RandomState,
    keys: Mutex<Rows>,
    /// What callers have joined, without names: a herd saves little with each of them, and all of it
    /// counts for the row of its key.
    joined: Mutex<Rows>,
    faded_at: Mutex<Option<Tick>>,
    tags: Mutex<Rows>,
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "routes are HTTP's"))]
    routes: Mutex<Rows>,
}

impl Default for Ledger {
    fn default() -> Self {
        let hasher = RandomState::default();
        let groups = || Rows::new(GROUPS);
        let (joined, tags, routes) = (groups(), groups(), groups());
        Self { hasher, keys: Rows::new(KEYS), joined, faded_at: Mutex::default(), tags, routes }
    }
}

impl Ledger {
    /// Notes a use of an entry that [is noted](Entry::is_noted_use). A hit does not wait for another that is here: what
    /// it has to say is lost then.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_use<V>(&self, key: &[u8], entry: &Entry<V>) {
        let Some(more) = Savings::of_step(entry) else { return };
        let whole = Savings::of_hits(entry.uses(), entry);
        if let Some(mut keys) = self.keys.try_lock() {
            keys.note(self.hash(key), key, &more, Some(&whole));
        }
        for tag in entry.tags.iter().map(Tag::as_bytes).filter(|tag| !key::is_made_tag(tag)) {
            if let Some(mut rows) = self.tags.try_lock() {
                rows.note(self.hasher.hash_one(tag), tag, &more, None);
            }
        }
    }

    /// Notes the same use for a route.
    #[cfg(feature = "http")]
    #[cold]
    pub(crate) fn note_route<V>(&self, route: &str, entry: &Entry<V>) {
        let Some(more) = Savings::of_step(entry) else { return };
        let Some(mut rows) = self.routes.try_lock() else { return };
        rows.note(self.hasher.hash_one(route.as_bytes()), route.as_bytes(), &more, None);
    }

    /// Notes a caller that has waited for a computation, and what that has taken, if it gave a value.
    pub(crate) fn note_wait(&self, key: &[u8], waited: Duration, took: Option<Duration>) {
        let (joined, origin_time_saved) = (took.is_some().into(), took.unwrap_or_default());
        let more = Savings { joined, origin_time_saved, waited, ..Savings::default() };
        let hash = self.hash(key);
        let Some(mut joined) = self.joined.try_lock() else { return };
        let whole = joined.note(hash, b"", &more, None);
        if let Some(mut keys) = self.keys.try_lock() {
            keys.note(hash, key, &more, Some(&whole));
        }
    }

    pub(crate) fn keys(&self, count: usize) -> Vec<(Box<[u8]>, Savings)> {
        self.keys.lock().named(count)
    }

    /// Returns the [hashes](Self::hash) of all keys, in the order of what they have saved of late where
    /// [`fade`](Self::fade) is called.
    pub(crate) fn hashes(&self) -> Vec<u64> {
        self.keys.lock().first(KEYS, |row| row.rank, |row| row.hash)
    }

    /// Halves by what the keys stand among each other, once an hour, however many ask for it. What they have
    /// saved stays.
    pub(crate) fn fade(&self, now: Tick) {
        let mut faded_at = self.faded_at.lock();
        let before = *faded_at.get_or_insert(now);
        if now.since(before) >= HALF {
            let hours = now.since(before).as_secs() / HALF.as_secs();
            *faded_at = Some(now);
            let part = 1 << hours.min(31);
            self.keys.lock().rows.iter_mut().for_each(|row| row.rank /= part);
        }
    }

    /// Returns by what a key is known here. Of its name only the beginning is.
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    pub(crate) fn tags(&self, count: usize) -> Vec<(Box<[u8]>, Savings)> {
        self.tags.lock().named(count)
    }

    pub(crate) fn routes(&self, count: usize) -> Vec<(Box<[u8]>, Savings)> {
        self.routes.lock().named(count)
    }
}
