//! The invalidation log: tag → when it was last invalidated.
//!
//! A log, not an index of keys: it costs nothing per entry, and it reaches
//! computations that are still running and have no entry yet. "When" is a
//! sequence number: an entry whose computation started before its tag's last
//! invalidation is dead. A hit compares one number with the one it remembers
//! and looks tags up only when it has moved.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Tick;
use crate::entry::Entry;
use crate::key::Tag;

/// A caller that has not said when it asked: later than everything.
pub(crate) const ASKED_NOW: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct InvalidationLog {
    seq: AtomicU64,
    /// Of what was read before this number, an invalidation may have been
    /// missed.
    doubted: AtomicU64,
    records: Mutex<Records>,
    max_tags: usize,
}

#[derive(Debug, Default)]
struct Records {
    tags: HashMap<Tag, Record, foldhash::fast::RandomState>,
    everything: u64,
    /// Stands for records dropped to stay within the bound: whatever has a
    /// tag and started before this counts as dead.
    dropped: u64,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    seq: u64,
    at: Tick,
}

impl InvalidationLog {
    pub(crate) fn new(max_tags: usize) -> Self {
        Self {
            seq: AtomicU64::new(0),
            doubted: AtomicU64::new(0),
            records: Mutex::default(),
            max_tags,
        }
    }

    /// Returns the number that a computation starting now, or a caller asking
    /// now, remembers.
    #[inline]
    pub(crate) fn seq(&self) -> u64 {
        self.seq.load(Ordering::Acquire)
    }

    /// Records that whatever started so far with `tag` is dead.
    pub(crate) fn invalidate(&self, tag: Tag, at: Tick) -> u64 {
        let mut records = self.records.lock();
        let seq = self.seq.load(Ordering::Relaxed) + 1;
        if tag.is_everything() {
            records.everything = seq;
        } else {
            records.tags.insert(tag, Record { seq, at });
            records.shrink_to(self.max_tags);
        }
        // Published last: who reads the new number finds the record.
        self.seq.store(seq, Ordering::Release);
        seq
    }

    /// Says that invalidations may have been missed up to now.
    #[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "a remote's are missed"))]
    pub(crate) fn doubt(&self) {
        let _records = self.records.lock();
        let seq = self.seq.load(Ordering::Relaxed) + 1;
        self.doubted.store(seq, Ordering::Release);
        self.seq.store(seq, Ordering::Release);
    }

    /// Returns whether an invalidation may have been missed of what was asked
    /// for at `seq`. It is no invalidation: callers who wait may have it.
    pub(crate) fn is_doubted(&self, seq: u64) -> bool {
        seq < self.doubted.load(Ordering::Acquire)
    }

    /// Returns whether `entry` may be served to somebody who asks now.
    #[inline]
    pub(crate) fn is_alive<V>(&self, entry: &Entry<V>) -> bool {
        let seq = self.seq();
        entry.alive_at() == seq || self.look_up(entry, seq)
    }

    #[cold]
    fn look_up<V>(&self, entry: &Entry<V>, seq: u64) -> bool {
        let alive = !self.is_dead(&entry.tags, entry.started_seq, ASKED_NOW);
        if alive {
            entry.found_alive_at(seq);
        }
        alive
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
        let records = self.records.lock();
        let dead_by = |at: u64| started < at;
        dead_by(records.everything)
            || !tags.is_empty() && dead_by(records.dropped)
            || tags.iter().any(|tag| {
                records.tags.get(tag.as_bytes()).is_some_and(|record| dead_by(record.seq))
            })
    }

    /// Drops records older than `horizon`: nothing that started before them
    /// can still be of use. A leader that blocked its thread past its time-out
    /// may yet bring such a thing; with any tag it counts as dead.
    pub(crate) fn trim(&self, now: Tick, horizon: Duration) {
        let oldest = now.minus(horizon);
        let mut records = self.records.lock();
        let Records { tags, dropped, .. } = &mut *records;
        tags.retain(|_, record| {
            let is_kept = record.at >= oldest;
            if !is_kept {
                *dropped = record.seq.max(*dropped);
            }
            is_kept
        });
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.records.lock().tags.len()
    }
}

impl Records {
    /// Drops the older half when there are more than `max` records. Safe, not
    /// free: entries with any tag that started before them are computed again.
    fn shrink_to(&mut self, max: usize) {
        if self.tags.len() <= max {
            return;
        }
        let mut seqs: Vec<u64> = self.tags.values().map(|record| record.seq).collect();
        let middle = seqs.len() / 2;
        let (_, cut, _) = seqs.select_nth_unstable(middle);
        let cut = *cut;
        self.tags.retain(|_, record| record.seq > cut);
        self.dropped = self.dropped.max(cut);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Tick = Tick::from_nanos(0);

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
}
