//! The process's copy of the remote's invalidation log.
//!
//! It is in the remote's time: entries of other processes carry no sequence
//! number of this process. An entry whose computation started at or before the time of
//! one of its tags is dead; a tie is dead too and costs one more call.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::key::Tag;
use crate::lease::grant::ServerTime;

#[derive(Debug)]
pub(crate) struct Mirror {
    /// The latest time of all, in ms: what started after it is alive.
    latest: AtomicU64,
    records: Mutex<Records>,
    max: usize,
}

type Times = HashMap<Tag, ServerTime, foldhash::fast::RandomState>;

#[derive(Debug, Default)]
struct Records {
    tags: Times,
    everything: Option<ServerTime>,
    /// When everything was last made stale.
    everything_marked: Option<ServerTime>,
    /// Stands for records dropped: whatever has a tag and started at or before
    /// this counts as dead.
    floor: Option<ServerTime>,
    /// Up to here the log itself has been trimmed.
    trimmed: ServerTime,
}

/// How the log and the mirror differed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LogDifference {
    /// What the log knew later than the mirror: local copies are to go.
    pub(crate) raised: Vec<Tag>,
    /// What the mirror knows and the log does not, or knows older.
    pub(crate) missing: Vec<(Tag, ServerTime)>,
}

impl Mirror {
    /// Makes an empty mirror of at most `max` tags.
    pub(crate) fn new(max: usize) -> Self {
        Self { latest: AtomicU64::new(0), records: Mutex::default(), max }
    }

    /// Records that `tag` was invalidated at `at`. Returns whether that is later
    /// than what was known.
    pub(crate) fn raise(&self, tag: &Tag, at: ServerTime) -> bool {
        self.raise_in(&mut self.records.lock(), tag, at)
    }

    /// Returns whether an entry with `tags` whose computation started at
    /// `started` has been invalidated. Costs one load when nothing was
    /// invalidated since.
    #[inline]
    pub(crate) fn is_dead(&self, tags: &[Tag], started: ServerTime) -> bool {
        started.as_millis() <= self.latest.load(Ordering::Acquire)
            && self.records.lock().kill(tags, started)
    }

    /// Returns when an entry with `tags` whose computation started at `started` was made stale,
    /// if it was. Costs one load when nothing was invalidated since.
    #[inline]
    pub(crate) fn made_stale(&self, tags: &[Tag], started: ServerTime) -> Option<ServerTime> {
        if started.as_millis() > self.latest.load(Ordering::Acquire) {
            return None;
        }
        self.records.lock().made_stale(tags, started)
    }

    /// Takes over what `log` knows, and never forgets what it does not: the
    /// remote may have lost it.
    pub(crate) fn merge(&self, log: Vec<(Tag, ServerTime)>) -> LogDifference {
        let mut records = self.records.lock();
        let mut raised = Vec::new();
        let mut logged = Times::default();
        for (tag, at) in log {
            if self.raise_in(&mut records, &tag, at) {
                raised.push(tag.clone());
            }
            let known = logged.entry(tag).or_insert(at);
            *known = at.max(*known);
        }
        LogDifference { raised, missing: records.missing_in(&logged) }
    }

    /// Drops what is older than `before`: nothing that started earlier is still
    /// of use.
    pub(crate) fn trim(&self, before: ServerTime) {
        let mut records = self.records.lock();
        records.trimmed = before.max(records.trimmed);
        records.drop_if(|at| at < before);
    }

    fn raise_in(&self, records: &mut Records, tag: &Tag, at: ServerTime) -> bool {
        let is_later = records.raise(tag, at);
        if is_later {
            records.shrink_to(self.max);
            // Published last: a reader of the new time finds the record.
            self.latest.fetch_max(at.as_millis(), Ordering::Release);
        }
        is_later
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.records.lock().tags.len()
    }
}

impl Records {
    fn raise(&mut self, tag: &Tag, at: ServerTime) -> bool {
        let of_all = match tag.marked() {
            None => tag.is_everything().then_some(&mut self.everything),
            Some(marked) => marked.is_everything().then_some(&mut self.everything_marked),
        };
        if let Some(known) = of_all {
            let is_later = *known < Some(at);
            *known = (*known).max(Some(at));
            return is_later;
        }
        let known = self.tags.get(tag.as_bytes()).copied().max(self.floor);
        let is_later = known < Some(at);
        if is_later {
            self.tags.insert(tag.clone(), at);
        }
        is_later
    }

    fn kill(&self, tags: &[Tag], started: ServerTime) -> bool {
        let started = Some(started);
        started <= self.everything
            || !tags.is_empty() && started <= self.floor
            || tags.iter().any(|tag| started <= self.tags.get(tag.as_bytes()).copied())
    }

    fn made_stale(&self, tags: &[Tag], started: ServerTime) -> Option<ServerTime> {
        let time_of = |tag: &Tag| self.tags.get(tag.stale_mark().as_bytes()).copied();
        let times = tags.iter().filter_map(time_of).chain(self.everything_marked);
        times.filter(|at| started <= *at).min()
    }

    fn missing_in(&self, logged: &Times) -> Vec<(Tag, ServerTime)> {
        let all = Tag::from("*");
        let marked = self.everything_marked.map(|at| (all.stale_mark(), at));
        let everything = self.everything.map(|at| (all, at)).into_iter().chain(marked);
        let tags = self.tags.iter().map(|(tag, at)| (tag.clone(), *at));
        everything
            .chain(tags)
            .filter(|(tag, at)| logged.get(tag).is_none_or(|logged| logged < at))
            // What was trimmed from the log is not lost.
            .filter(|(_, at)| *at >= self.trimmed)
            .collect()
    }

    /// Drops the older half when there are more than `max` records. Safe, not
    /// free: entries with any tag that started before them are computed again.
    fn shrink_to(&mut self, max: usize) {
        if self.tags.len() <= max {
            return;
        }
        let mut times: Vec<_> = self.tags.values().copied().collect();
        let middle = times.len() / 2;
        let (_, cut, _) = times.select_nth_unstable(middle);
        let cut = *cut;
        self.drop_if(|at| at <= cut);
    }

    fn drop_if(&mut self, is_dropped: impl Fn(ServerTime) -> bool) {
        let Self { tags, floor, .. } = self;
        tags.retain(|_, at| {
            let drop = is_dropped(*at);
            if drop {
                *floor = (*floor).max(Some(*at));
            }
            !drop
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: u64) -> ServerTime {
        ServerTime::from_millis(millis)
    }

    fn tags(names: &[&str]) -> Vec<Tag> {
        names.iter().map(|name| Tag::from(*name)).collect()
    }

    fn sorted(mut pairs: Vec<(Tag, ServerTime)>) -> Vec<(Tag, ServerTime)> {
        pairs.sort_by_key(|(tag, at)| (tag.as_bytes().to_vec(), *at));
        pairs
    }

    #[test]
    fn what_started_at_or_before_the_time_of_a_tag_is_dead() {
        let mirror = Mirror::new(10);
        assert!(!mirror.is_dead(&tags(&["a"]), at(0)), "nothing is known");
        assert!(mirror.raise(&"a".into(), at(100)));
        assert!(mirror.is_dead(&tags(&["a"]), at(99)));
        assert!(mirror.is_dead(&tags(&["b", "a"]), at(100)), "a tie");
        assert!(!mirror.is_dead(&tags(&["a"]), at(101)));
        assert!(!mirror.is_dead(&tags(&["b"]), at(50)));
        assert!(!mirror.is_dead(&[], at(50)));
    }

    #[test]
    fn everything_reaches_what_has_no_tag() {
        let mirror = Mirror::new(10);
        assert!(mirror.raise(&"*".into(), at(100)));
        assert!(!mirror.raise(&"*".into(), at(99)));
        assert!(mirror.is_dead(&[], at(100)));
        assert!(!mirror.is_dead(&[], at(101)));
    }

    #[test]
    fn time_never_goes_back() {
        let mirror = Mirror::new(10);
        assert!(mirror.raise(&"a".into(), at(100)));
        assert!(!mirror.raise(&"a".into(), at(100)));
        assert!(!mirror.raise(&"a".into(), at(50)));
        assert!(mirror.is_dead(&tags(&["a"]), at(100)));
        assert!(mirror.raise(&"a".into(), at(101)));
    }

    #[test]
    fn a_merge_takes_what_is_later_and_names_what_the_log_lost() {
        let mirror = Mirror::new(10);
        for (tag, time) in [("lost", 10), ("same", 20), ("older there", 30), ("older here", 40)] {
            mirror.raise(&tag.into(), at(time));
        }
        mirror.raise(&"*".into(), at(5));
        let log = [("same", 20), ("older there", 29), ("older here", 41), ("new", 50)];
        let merged = mirror.merge(log.map(|(tag, time)| (tag.into(), at(time))).to_vec());
        assert_eq!(merged.raised, tags(&["older here", "new"]));
        let missing = [("*", 5), ("lost", 10), ("older there", 30)];
        let missing = missing.map(|(tag, time)| (Tag::from(tag), at(time)));
        assert_eq!(sorted(merged.missing), missing);
        assert!(mirror.is_dead(&tags(&["lost"]), at(10)));
        assert!(mirror.is_dead(&tags(&["older there"]), at(30)));
    }

    #[test]
    fn a_log_that_names_a_tag_twice_means_the_later_time() {
        let mirror = Mirror::new(10);
        let log = [("a", 9), ("a", 7), ("*", 3), ("*", 4)];
        let merged = mirror.merge(log.map(|(tag, time)| (tag.into(), at(time))).to_vec());
        assert_eq!(merged.missing, []);
        assert!(mirror.is_dead(&tags(&["a"]), at(9)));
        assert!(mirror.is_dead(&[], at(4)));
    }

    #[test]
    fn records_beyond_the_bound_are_dropped_on_the_safe_side() {
        let mirror = Mirror::new(10);
        for n in 1..=1000_u32 {
            mirror.raise(&n.into(), at(n.into()));
            assert!(mirror.len() <= 10);
        }
        for n in 1..=1000_u32 {
            assert!(mirror.is_dead(&[n.into()], at(n.into())), "tag {n}");
        }
        assert!(!mirror.is_dead(&tags(&["1000"]), at(1001)));
        assert!(!mirror.is_dead(&[], at(0)), "untagged entries are not concerned");
        assert!(!mirror.raise(&"1".into(), at(1)), "known by the floor");
    }

    #[test]
    fn a_log_larger_than_the_mirror_does_not_outgrow_it() {
        let mirror = Mirror::new(10);
        let log: Vec<_> = (1..=1000_u32).map(|n| (Tag::from(n), at(n.into()))).collect();
        let merged = mirror.merge(log.clone());
        assert!(mirror.len() <= 10);
        assert_eq!(merged.raised.len(), 1000);
        assert_eq!(merged.missing, []);
        assert_eq!(mirror.merge(log).raised, [], "the second time nothing is new");
    }

    #[test]
    fn trimming_forgets_what_is_older_and_still_kills_it() {
        let mirror = Mirror::new(10);
        mirror.raise(&"old".into(), at(10));
        mirror.raise(&"new".into(), at(20));
        mirror.raise(&"*".into(), at(5));
        mirror.trim(at(20));
        assert_eq!(mirror.len(), 1);
        assert!(mirror.is_dead(&tags(&["old"]), at(10)), "a leader that slept for long");
        assert!(mirror.is_dead(&tags(&["new"]), at(20)));
        assert!(mirror.is_dead(&[], at(5)));
        assert_eq!(mirror.merge(Vec::new()).missing, [("new".into(), at(20))], "not lost: trimmed");
    }

    #[test]
    fn a_mark_makes_stale_what_started_at_or_before_it_and_ends_nothing() {
        let mirror = Mirror::new(10);
        for (of, entry) in [("a", &["a", "b"][..]), ("*", &[])] {
            let (mirror, entry) = (Mirror::new(10), tags(entry));
            assert!(mirror.raise(&Tag::from(of).stale_mark(), at(100)));
            assert!(!mirror.raise(&Tag::from(of).stale_mark(), at(99)));
            assert_eq!(mirror.made_stale(&entry, at(99)), Some(at(100)));
            assert_eq!(mirror.made_stale(&entry, at(100)), Some(at(100)), "a tie");
            assert_eq!(mirror.made_stale(&entry, at(101)), None);
            assert!(!mirror.is_dead(&entry, at(50)));
        }
        mirror.raise(&Tag::from("a").stale_mark(), at(100));
        assert_eq!(mirror.made_stale(&tags(&["b"]), at(50)), None);
        assert_eq!(mirror.made_stale(&[], at(50)), None);
    }

    #[test]
    fn marks_that_the_log_has_lost_are_named() {
        let mirror = Mirror::new(10);
        let marks = ["*", "a"].map(|of| (Tag::from(of).stale_mark(), at(10)));
        assert!(marks.iter().all(|(mark, at)| mirror.raise(mark, *at)));
        assert_eq!(sorted(mirror.merge(Vec::new()).missing), sorted(marks.to_vec()));
        assert_eq!(mirror.merge(marks.to_vec()).missing, []);
        let other = Mirror::new(10);
        assert_eq!(other.merge(marks.to_vec()).raised.len(), 2);
        assert_eq!(other.made_stale(&tags(&["a"]), at(10)), Some(at(10)));
    }

    proptest! {
        #[test]
        fn however_small_the_mirror_no_dead_entry_lives(
            raises in proptest::collection::vec((0..20_u32, 0..50_u64), 0..60),
            trims in proptest::collection::vec(0..50_u64, 0..3),
            max in 0..8_usize, tag in 0..20_u32, started in 0..50_u64,
        ) {
            let (small, large) = (Mirror::new(max), Mirror::new(1000));
            for (n, time) in raises {
                small.raise(&n.into(), at(time));
                large.raise(&n.into(), at(time));
            }
            trims.into_iter().for_each(|before| small.trim(at(before)));
            let entry = [Tag::from(tag)];
            prop_assert!(small.len() <= max);
            prop_assert!(small.is_dead(&entry, at(started)) || !large.is_dead(&entry, at(started)));
        }
    }
}
