//! The invalidation log: tag → when it was last invalidated.
//!
//! A second kind of record makes entries stale instead of dead: it stands under the tag's
//! *stale mark*. When an entry that is alive is looked up, it takes the moment of the record
//! over, and its windows end that much earlier. Computations that run are treated alike by
//! both kinds.
//!
//! A log, not an index of keys: it costs nothing per entry, and it reaches
//! computations that are still running and have no entry yet. "When" is a
//! sequence number: an entry whose computation started before its tag's last
//! invalidation is dead. A hit compares the log's number with the number that its entry
//! remembers, and looks tags up only when the two differ.
//!
//! The log is bounded, and its oldest records go first, an eighth of the bound
//! at a time. Before they go, every entry of the local store is checked against
//! them: a dead one is removed, a living one remembers the number at which it
//! was found alive, and is judged from that number on. So no entry dies because
//! records were dropped. For a computation that began before a dropped record,
//! and whose tags are known only with its result, the log cannot tell; its
//! result counts as dead, goes to the callers that wait, and is not stored.
//!
//! A tag of a URI is made by the HTTP layer for every response, and any client may invalidate
//! it by a write. So it is recorded only while it is *live*: an entry, a computation or a hold of
//! this process carries it ([`LiveTags`]). A write to a URI of which nothing is here leaves
//! nothing here.
//!
//! The bound is one of records, and of bytes: a long tag stands in the log as a hash.
//!
//! # Locks
//!
//! Writers take `appending`, then the lock of one shard. They publish the number
//! last: a reader that sees it finds the record. A reader takes the shards of
//! its own tags, for reading; for an entry without tags it reads one atomic.
//! Records are removed after `dropped` was raised, and a reader looks at
//! `dropped` after it has looked for records: if a record is gone, `dropped` covers
//! it. No lock is held while the store is checked, except the lock that
//! keeps other threads from checking it as well.

mod live;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState as SipState};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::clock::Tick;
use crate::entry::Entry;
use crate::key::{KeyKind, Tag};
use crate::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Notify, Ordering, RandomState, RwLock};

pub(crate) use live::LiveTags;

/// A caller that has not said when it asked: later than everything.
pub(crate) const ASKED_NOW: u64 = u64::MAX;

const SHARDS: usize = if cfg!(stampede_model) { 2 } else { 64 };

type Records = HashMap<Tag, Record, RandomState>;

/// A tag with more bytes stands in the log as a hash, by two keys that only the log knows. Where two
/// tags had one hash, too much would be invalidated.
const LONGEST_TAG: usize = 128;

/// The name of a record: the kind of a hash, and two hashes.
type HashName = [u8; 18];

#[derive(Debug)]
pub(crate) struct InvalidationLog {
    seq: AtomicU64,
    /// This process may have missed invalidations of values that were read before this
    /// number.
    doubted: AtomicU64,
    /// When everything was last invalidated.
    everything: AtomicU64,
    /// The number of the newest record that makes entries stale.
    marked: AtomicU64,
    /// When everything was last made stale.
    everything_marked: RwLock<Option<Record>>,
    /// The number of the newest dropped record: an entry with a tag that is not
    /// known to be alive at this number counts as dead.
    dropped: AtomicU64,
    shards: Box<[CachePadded<RwLock<Records>>]>,
    hasher: RandomState,
    /// For the names of long tags.
    namers: [SipState; 2],
    /// Held by a thread that gives out a number or removes records.
    appending: Mutex<()>,
    records: AtomicUsize,
    /// Held by the thread that checks the store because the log is full.
    pub(crate) checking: Mutex<()>,
    room_wanted: Arc<Notify>,
    max_tags: usize,
    /// The tags of URIs that something in this process carries.
    pub(crate) live: LiveTags,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    seq: u64,
    at: Tick,
}

/// The log is at its bound, and has no record of this tag yet.
#[derive(Debug)]
pub(crate) struct Full(pub(crate) Tag);

/// The oldest records, up to a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice(u64);

impl InvalidationLog {
    pub(crate) fn new(max_tags: usize) -> Self {
        Self {
            seq: AtomicU64::new(0),
            doubted: AtomicU64::new(0),
            everything: AtomicU64::new(0),
            marked: AtomicU64::new(0),
            everything_marked: RwLock::default(),
            dropped: AtomicU64::new(0),
            shards: std::iter::repeat_with(CachePadded::default).take(SHARDS).collect(),
            hasher: RandomState::default(),
            namers: Default::default(),
            appending: Mutex::default(),
            records: AtomicUsize::new(0),
            checking: Mutex::default(),
            room_wanted: Arc::default(),
            max_tags: max_tags.max(1),
            live: LiveTags::default(),
        }
    }

    /// Returns the number that a computation starting now, or a caller asking
    /// now, remembers.
    #[inline]
    pub(crate) fn seq(&self) -> u64 {
        self.seq.load(Ordering::Acquire)
    }

    fn shard(&self, name: &[u8]) -> &RwLock<Records> {
        &self.shards[self.hasher.hash_one(name) as usize % SHARDS]
    }

    /// Returns the name under which a tag has its record: its bytes, or their hash, in `room`.
    fn name_of<'a>(&self, tag: &'a [u8], room: &'a mut HashName) -> &'a [u8] {
        if tag.len() <= LONGEST_TAG {
            return tag;
        }
        let [one, two] = self.namers.each_ref().map(|namer| namer.hash_one(tag).to_be_bytes());
        room[..2].copy_from_slice(&KeyKind::LongTag.start());
        room[2..10].copy_from_slice(&one);
        room[10..].copy_from_slice(&two);
        room
    }

    /// Returns the record of a tag, or of a stale mark.
    fn record_of(&self, tag: &Tag) -> Option<Record> {
        let mut room = HashName::default();
        let name = self.name_of(tag.as_bytes(), &mut room);
        self.shard(name).read().get(name).copied()
    }

    /// Records that everything that started so far with `tag` is dead, if there is
    /// room; or stale, where `tag` is the stale mark of another.
    pub(crate) fn append(&self, tag: Tag, at: Tick) -> Result<u64, Full> {
        let appending = self.appending.lock();
        let seq = self.seq.load(Ordering::Relaxed) + 1;
        let marked = tag.marked();
        if tag.is_everything() {
            self.everything.store(seq, Ordering::Release);
        } else if marked.as_ref().is_some_and(Tag::is_everything) {
            *self.everything_marked.write() = Some(Record { seq, at });
        } else {
            let mut room = HashName::default();
            let name = self.name_of(tag.as_bytes(), &mut room);
            let mut shard = self.shard(name).write();
            match shard.get_mut(name) {
                Some(record) => *record = Record { seq, at },
                None if self.len() >= self.max_tags => {
                    drop(shard);
                    return Err(Full(tag));
                }
                None => {
                    shard.insert(Tag::from_encoded(name), Record { seq, at });
                    self.records.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        if marked.is_some() {
            self.marked.store(seq, Ordering::Release);
        }
        // Published last: a reader of the new number finds the record.
        self.seq.store(seq, Ordering::Release);
        drop(appending);
        if self.wants_room() {
            self.room_wanted.notify_one();
        }
        Ok(seq)
    }

    /// Says that invalidations may have been missed up to now.
    #[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "a remote's are missed"))]
    pub(crate) fn doubt(&self) {
        let _appending = self.appending.lock();
        let seq = self.seq.load(Ordering::Relaxed) + 1;
        self.doubted.store(seq, Ordering::Release);
        self.seq.store(seq, Ordering::Release);
    }

    /// Returns whether this process may have missed an invalidation of a value that was
    /// read at `seq`. A doubt is no invalidation: waiters may have the value.
    pub(crate) fn is_doubted(&self, seq: u64) -> bool {
        seq < self.doubted.load(Ordering::Acquire)
    }

    /// Returns whether an invalidation of a result may have been missed whose computation started at
    /// `started`, before a caller that asked at `asked` came.
    pub(crate) fn is_doubted_by(&self, started: u64, asked: u64) -> bool {
        let doubted = self.doubted.load(Ordering::Acquire);
        started < doubted && doubted <= asked
    }

    /// Returns whether `entry` may be served to a caller that asks now.
    #[inline]
    pub(crate) fn is_alive<V>(&self, entry: &Entry<V>) -> bool {
        let seq = self.seq();
        entry.alive_at() == seq || self.look_up(entry, seq)
    }

    #[cold]
    #[inline(never)]
    fn look_up<V>(&self, entry: &Entry<V>, seq: u64) -> bool {
        let since = entry.alive_at();
        let is_dead = self.is_recorded(&entry.tags, since)
            // The number is read again: the entry may have been found alive, and
            // the records dropped, since it was read first.
            || self.was_dropped(&entry.tags, || entry.alive_at());
        if !is_dead {
            self.made_stale(&entry.tags, since).into_iter().for_each(|at| entry.mark_stale(at));
            entry.found_alive_at(seq);
        }
        !is_dead
    }

    /// Returns whether a result with `tags`, whose computation started at
    /// `started`, is dead for a caller that asked at `asked`: one that asked
    /// before the invalidation may still have it.
    ///
    /// Only the last invalidation of a tag is known. Where the log moved
    /// between `started` and `asked`, an earlier one may lie between the two,
    /// so the result is taken for dead: that costs one more call.
    pub(crate) fn is_dead(&self, tags: &[Tag], started: u64, asked: u64) -> bool {
        if asked <= started || self.seq() == started {
            return false;
        }
        self.is_recorded(tags, started)
            || self.made_stale(tags, started).is_some()
            || self.was_dropped(tags, || started)
    }

    /// Returns whether `entry` may be stored, the result of a computation that
    /// started at `started`. If so it remembers the number of now: it does not
    /// die when older records are dropped.
    pub(crate) fn admits<V>(&self, entry: &Entry<V>, started: u64) -> bool {
        let seq = self.seq();
        let is_alive = !self.is_dead(&entry.tags, started, ASKED_NOW);
        // The entry may have begun before its leader: then the time between the two was
        // not checked.
        if is_alive && started <= entry.started_seq {
            entry.found_alive_at(seq);
        }
        is_alive
    }

    fn is_recorded(&self, tags: &[Tag], since: u64) -> bool {
        let dead_by = |at: u64| since < at;
        dead_by(self.everything.load(Ordering::Acquire))
            || tags.iter().any(|tag| self.record_of(tag).is_some_and(|record| dead_by(record.seq)))
    }

    /// Returns when what started at `since` with `tags` was made stale, if it was. Of several
    /// records of a tag the last is known.
    fn made_stale(&self, tags: &[Tag], since: u64) -> Option<Tick> {
        if self.marked.load(Ordering::Acquire) <= since {
            return None;
        }
        let marks = tags.iter().filter_map(|tag| self.record_of(&tag.stale_mark()));
        let records = marks.chain(*self.everything_marked.read());
        records.filter(|record| since < record.seq).map(|record| record.at).min()
    }

    /// To be asked after [`is_recorded`](Self::is_recorded): records are
    /// removed after `dropped` was raised.
    fn was_dropped(&self, tags: &[Tag], since: impl FnOnce() -> u64) -> bool {
        if tags.is_empty() {
            return false;
        }
        let dropped = self.dropped.load(Ordering::Acquire);
        since() < dropped
    }

    /// Drops records older than `horizon`: nothing that started before them
    /// can still be of use. A leader that blocked its thread past its time-out
    /// may yet bring such a thing; with any tag it counts as dead.
    pub(crate) fn trim(&self, now: Tick, horizon: Duration) {
        let oldest = now.minus(horizon);
        let _appending = self.appending.lock();
        let is_old = |record: &&Record| record.at < oldest;
        let newest = self.shards.iter().filter_map(|shard| {
            shard.read().values().filter(is_old).map(|record| record.seq).max()
        });
        let Some(newest) = newest.max() else { return };
        self.remove(newest, |record| is_old(&record));
    }

    pub(crate) fn len(&self) -> usize {
        self.records.load(Ordering::Relaxed)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.max_tags
    }

    /// Returns whether the tidying task should drop a slice before the log is
    /// full: from three quarters of the bound on.
    pub(crate) fn wants_room(&self) -> bool {
        self.len() >= self.max_tags - self.max_tags / 4
    }

    /// Is notified when the log [wants room](Self::wants_room).
    pub(crate) fn room_wanted(&self) -> Arc<Notify> {
        Arc::clone(&self.room_wanted)
    }

    /// Returns the records to drop next: the oldest, an eighth of the bound.
    pub(crate) fn oldest_slice(&self) -> Slice {
        // Read first. A record with a higher number may be in its shard already and not be
        // published: an entry that is checked now would remember a lower number, and die
        // when the slice is dropped.
        let published = self.seq();
        let mut seqs = Vec::with_capacity(self.len());
        for shard in &self.shards {
            seqs.extend(shard.read().values().map(|record| record.seq));
        }
        let size = (self.max_tags / 8).clamp(1, seqs.len().max(1));
        if seqs.is_empty() {
            return Slice(0);
        }
        let (_, newest, _) = seqs.select_nth_unstable(size - 1);
        Slice(published.min(*newest))
    }

    /// Drops the records of `slice`. Every entry of the store was looked at
    /// with [`is_alive`](Self::is_alive) since the slice was chosen, or admitted.
    pub(crate) fn drop_slice(&self, slice: Slice) {
        let _appending = self.appending.lock();
        self.remove(slice.0, |record| record.seq <= slice.0);
    }

    /// Removes records, `newest` the newest of them. The caller holds
    /// `appending`.
    fn remove(&self, newest: u64, is_removed: impl Fn(&Record) -> bool) {
        // First: a reader that does not find the record finds this number.
        self.dropped.fetch_max(newest, Ordering::Release);
        for shard in &self.shards {
            let mut shard = shard.write();
            let before = shard.len();
            shard.retain(|_, record| !is_removed(record));
            self.records.fetch_sub(before - shard.len(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Tick = Tick::from_nanos(0);

    impl InvalidationLog {
        /// As [`Engine::invalidate_tag`], with no store to check.
        fn invalidate(&self, tag: Tag, at: Tick) -> u64 {
            let mut appended = self.append(tag, at);
            loop {
                match appended {
                    Ok(seq) => return seq,
                    Err(Full(tag)) => {
                        self.drop_slice(self.oldest_slice());
                        appended = self.append(tag, at);
                    }
                }
            }
        }
    }

    fn tags(names: &[&str]) -> Vec<Tag> {
        names.iter().map(|name| Tag::from(*name)).collect()
    }

    #[test]
    fn what_started_before_its_tags_invalidation_is_dead_and_what_started_after_is_not() {
        let log = InvalidationLog::new(10);
        let before = log.seq();
        log.invalidate("a".into(), T0);
        let after = log.seq();
        assert!(log.is_dead(&tags(&["a"]), before, ASKED_NOW));
        assert!(!log.is_dead(&tags(&["b"]), before, ASKED_NOW));
        assert!(!log.is_dead(&tags(&["a"]), after, ASKED_NOW));
    }

    #[test]
    fn who_asked_before_the_invalidation_may_have_the_result() {
        let log = InvalidationLog::new(10);
        let asked = log.seq();
        log.invalidate("a".into(), T0);
        assert!(!log.is_dead(&tags(&["a"]), 0, asked));
        assert!(log.is_dead(&tags(&["a"]), 0, log.seq()));
    }

    #[test]
    fn a_second_invalidation_does_not_hide_the_first_from_who_asked_between_them() {
        let log = InvalidationLog::new(10);
        let started = log.seq();
        log.invalidate("a".into(), T0);
        let asked = log.seq();
        log.invalidate("a".into(), T0);
        assert!(log.is_dead(&tags(&["a"]), started, asked));
        log.invalidate("*".into(), T0);
        log.invalidate("*".into(), T0);
        assert!(log.is_dead(&[], started, log.seq() - 1));
    }

    #[test]
    fn a_long_tag_takes_no_more_room_than_a_short_one_and_is_itself_alone() {
        let log = InvalidationLog::new(1000);
        let long = |n: u32| Tag::from(format!("{}{n}", "x".repeat(10_000)));
        log.invalidate(long(1), T0);
        log.invalidate(long(2).stale_mark(), T0);
        log.invalidate(Tag::from("y".repeat(LONGEST_TAG)), T0);
        assert!(log.is_dead(&[long(1)], 0, ASKED_NOW) && log.is_dead(&[long(2)], 0, ASKED_NOW));
        assert!(log.made_stale(&[long(2)], 0).is_some() && log.made_stale(&[long(1)], 0).is_none());
        assert!(!log.is_dead(&[long(3)], 0, ASKED_NOW));
        let records =
            log.shards.iter().flat_map(|shard| shard.read().keys().cloned().collect::<Vec<_>>());
        assert!(records.into_iter().all(|name| name.as_bytes().len() <= LONGEST_TAG));
        assert_eq!(log.len(), 3);
    }

    #[test]
    fn everything_reaches_what_has_no_tag() {
        let log = InvalidationLog::new(10);
        log.invalidate("*".into(), T0);
        assert!(log.is_dead(&[], 0, ASKED_NOW));
        assert!(!log.is_dead(&[], log.seq(), ASKED_NOW));
    }

    #[test]
    fn records_beyond_the_bound_are_dropped_on_the_safe_side() {
        let log = InvalidationLog::new(10);
        let before = log.seq();
        for n in 0..1000_u32 {
            log.invalidate(n.into(), T0);
        }
        assert!(log.len() <= 10);
        for n in 0..1000_u32 {
            assert!(log.is_dead(&[n.into()], before, ASKED_NOW), "tag {n}");
        }
        assert!(!log.is_dead(&[], before, ASKED_NOW), "untagged entries are not concerned");
    }

    #[test]
    fn trimming_forgets_only_what_is_older_than_the_horizon() {
        let log = InvalidationLog::new(10);
        log.invalidate("old".into(), T0);
        log.invalidate("new".into(), T0.plus(Duration::from_secs(100)));
        log.trim(T0.plus(Duration::from_secs(120)), Duration::from_secs(60));
        assert_eq!(log.len(), 1);
        assert!(log.is_dead(&tags(&["new"]), 0, ASKED_NOW));
    }

    #[test]
    fn what_comes_after_its_tags_record_was_trimmed_is_still_dead() {
        let log = InvalidationLog::new(10);
        let started = log.seq();
        log.invalidate("a".into(), T0);
        log.trim(T0.plus(Duration::from_secs(120)), Duration::from_secs(60));
        assert_eq!(log.len(), 0);
        assert!(log.is_dead(&tags(&["a"]), started, ASKED_NOW));
        assert!(!log.is_dead(&tags(&["a"]), log.seq(), ASKED_NOW));
    }

    #[test]
    fn a_dropped_slice_is_the_oldest_eighth_of_the_bound() {
        let log = InvalidationLog::new(80);
        for n in 0..80_u32 {
            log.append(n.into(), T0).unwrap();
        }
        let started = log.seq();
        assert!(log.append("one more".into(), T0).is_err());
        log.append(79_u32.into(), T0).expect("a tag that has a record takes no room");
        log.append("*".into(), T0).expect("nor does everything");
        log.drop_slice(log.oldest_slice());
        assert_eq!(log.len(), 70);
        assert_eq!(log.oldest_slice().0, 20, "the second ten are next");
        log.append("one more".into(), T0).unwrap();
        assert!(log.is_dead(&tags(&["one more"]), started, ASKED_NOW));
    }

    fn entry(names: &[&str], started: u64) -> Entry<u32> {
        let lifetimes = crate::freshness::Lifetimes {
            ttl: Duration::from_secs(60),
            stale_for: Duration::ZERO,
            stale_if_error: Duration::ZERO,
        };
        let window = crate::freshness::Window::new(T0, lifetimes, Duration::ZERO);
        Entry::new(1, window, tags(names), started)
    }

    #[test]
    fn an_entry_found_alive_outlives_the_records_up_to_then_and_no_other() {
        let log = InvalidationLog::new(8);
        let (checked, unchecked) = (entry(&["mine"], log.seq()), entry(&["mine"], log.seq()));
        let plain = entry(&[], log.seq());
        for n in 0..8_u32 {
            log.append(n.into(), T0).unwrap();
        }
        assert!(log.is_alive(&checked));
        log.drop_slice(log.oldest_slice());
        assert!(log.is_alive(&checked), "found alive before the slice was dropped");
        assert!(log.is_alive(&plain), "no tag, no record");
        assert!(!log.is_alive(&unchecked), "its place in the log is not known");
        log.append("mine".into(), T0).unwrap();
        assert!(!log.is_alive(&checked));
    }

    #[test]
    fn an_admitted_entry_remembers_the_number_unless_it_is_older_than_its_leader() {
        let log = InvalidationLog::new(8);
        let (mine, older) = (entry(&["mine"], 1), entry(&["old"], 0));
        log.append("old".into(), T0).unwrap();
        assert!(log.admits(&mine, 1) && log.admits(&older, 1));
        assert!(!log.is_alive(&older), "it was invalidated before its leader began");
        log.append("another".into(), T0).unwrap();
        assert!(log.admits(&mine, 1));
        log.drop_slice(Slice(2));
        assert!(log.is_alive(&mine));
        assert!(!log.admits(&entry(&["mine"], 1), 1), "began before a dropped record");
    }

    #[test]
    fn an_entry_without_tags_takes_no_lock() {
        let log = InvalidationLog::new(8);
        let plain = entry(&[], log.seq());
        log.append("a".into(), T0).unwrap();
        let _appending = log.appending.lock();
        let _checking = log.checking.lock();
        let _shards: Vec<_> = log.shards.iter().map(|shard| shard.write()).collect();
        assert!(log.is_alive(&plain));
        assert!(!log.is_dead(&[], 0, ASKED_NOW));
    }

    #[test]
    fn a_look_up_of_tags_waits_for_no_lock_but_those_of_its_tags() {
        let log = InvalidationLog::new(8);
        let mine = entry(&["mine"], log.seq());
        log.append("a".into(), T0).unwrap();
        let _appending = log.appending.lock();
        let _checking = log.checking.lock();
        let own: *const _ = log.shard(b"mine");
        let others = log.shards.iter().filter(|shard| !std::ptr::eq(&raw const ***shard, own));
        let _others: Vec<_> = others.map(|shard| shard.write()).collect();
        let _readers = log.shard(b"mine").read();
        assert!(log.is_alive(&mine));
    }

    #[test]
    fn a_mark_makes_entries_stale_from_its_moment_and_computations_dead() {
        let log = InvalidationLog::new(10);
        let (mine, other) = (entry(&["mine"], log.seq()), entry(&["other"], log.seq()));
        let before = mine.window();
        let at = T0.plus(Duration::from_secs(5));
        log.append(Tag::from("mine").stale_mark(), at).unwrap();
        assert!(log.is_dead(&tags(&["mine"]), 0, ASKED_NOW), "a computation that runs");
        assert!(!log.is_dead(&tags(&["other"]), 0, ASKED_NOW));
        assert!(log.is_alive(&mine) && log.is_alive(&other));
        assert_eq!(mine.window(), before.stale_from(at));
        assert_eq!(other.window(), before);
        let later = entry(&["mine"], log.seq());
        assert!(log.is_alive(&later) && log.admits(&later, log.seq()));
        assert_eq!(later.window(), before);
    }

    #[test]
    fn a_mark_of_everything_reaches_what_has_no_tag_and_takes_no_room() {
        let log = InvalidationLog::new(10);
        let plain = entry(&[], log.seq());
        let before = plain.window();
        log.append(Tag::from("*").stale_mark(), T0).unwrap();
        assert_eq!(log.len(), 0);
        assert!(log.is_alive(&plain));
        assert_eq!(plain.window(), before.stale_from(T0));
        assert!(log.is_dead(&[], 0, ASKED_NOW));
        assert!(!log.is_dead(&[], log.seq(), ASKED_NOW));
    }

    #[test]
    fn the_earlier_of_two_marks_that_an_entry_has_met_counts() {
        let log = InvalidationLog::new(10);
        let mine = entry(&["mine"], log.seq());
        let before = mine.window();
        let at = |seconds| T0.plus(Duration::from_secs(seconds));
        for seconds in [5, 9] {
            log.append(Tag::from("mine").stale_mark(), at(seconds)).unwrap();
            assert!(log.is_alive(&mine));
            assert_eq!(mine.window(), before.stale_from(at(5)));
        }
    }

    #[test]
    fn a_mark_that_was_dropped_before_its_entry_was_looked_up_ends_the_entry() {
        let log = InvalidationLog::new(8);
        let (checked, unchecked) = (entry(&["mine"], 0), entry(&["mine"], 0));
        log.append(Tag::from("mine").stale_mark(), T0).unwrap();
        assert!(log.is_alive(&checked));
        log.drop_slice(log.oldest_slice());
        assert_eq!(log.len(), 0);
        assert!(log.is_alive(&checked) && checked.window().fresh_until == T0);
        assert!(!log.is_alive(&unchecked), "not known to be fresh");
    }

    /// Threads that invalidate and drop slices as fast as they can.
    #[test]
    fn under_concurrency_a_reader_of_a_new_number_finds_the_record_or_what_stands_for_it() {
        let log = InvalidationLog::new(16);
        std::thread::scope(|scope| {
            for thread in 0..3_u32 {
                let log = &log;
                scope.spawn(move || {
                    for n in 0..20_000_u32 {
                        let tag = Tag::from((thread, n));
                        let started = log.seq();
                        let mut found = entry(&[], started);
                        found.tags = vec![tag.clone()].into();
                        log.is_alive(&found);
                        log.invalidate(tag, T0);
                        assert!(!log.is_alive(&found), "invalidation {n} is missed");
                        assert!(log.is_dead(&found.tags, started, ASKED_NOW));
                    }
                });
            }
        });
        assert!(log.len() <= 16);
    }

    #[test]
    fn under_concurrency_an_unrelated_entry_is_alive_while_slices_are_dropped() {
        let (log, mine) = (InvalidationLog::new(2), entry(&["mine"], 0));
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        assert!(log.is_alive(&mine));
                    }
                });
            }
            for n in 0..50_000_u32 {
                while log.append(n.into(), T0).is_err() {
                    let slice = log.oldest_slice();
                    assert!(log.is_alive(&mine));
                    log.drop_slice(slice);
                }
            }
            ended.store(true, Ordering::Relaxed);
        });
    }
}
