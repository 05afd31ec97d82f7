//! The marks of a key: facts that are remembered besides its value. Each ends by itself.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState as SipState};
use std::sync::Arc;
use std::time::Duration;

use crate::budget::{ByteBudget, Reservation};
use crate::clock::Tick;
use crate::error::Error;
use crate::flight::evidence::Evidence;
use crate::flight::hold::Hold;
use crate::flight::hold_policy::HoldPolicy;
use crate::freshness;
use crate::key::Key;
use crate::sync::RandomState;

/// The number of declined refreshes is forgotten this long after the last pause.
const REMEMBERED: Duration = Duration::from_secs(120);

/// When the next background refresh may start: another process refreshes, or the last
/// refreshes were declined.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RefreshPause {
    until: Tick,
    declined: u32,
    remembered_until: Tick,
}

impl RefreshPause {
    pub(crate) fn is_over(&self, now: Tick) -> bool {
        now >= self.until
    }

    /// Returns whether the last result of a refresh might not be stored.
    pub(crate) fn has_declined(&self, now: Tick) -> bool {
        self.declined > 0 && !self.is_old(now)
    }

    pub(super) fn pause_until(&mut self, until: Tick) {
        self.until = until;
        self.remembered_until = self.remembered_until.max(until);
    }

    pub(super) fn decline(&mut self, now: Tick, policy: HoldPolicy) {
        if self.is_old(now) {
            self.declined = 0;
        }
        self.declined = self.declined.saturating_add(1);
        let pause = policy.after(self.declined, true, freshness::sample());
        self.pause_until(now.plus(pause));
        self.remembered_until = now.plus(pause).plus(REMEMBERED);
    }

    fn is_old(&self, now: Tick) -> bool {
        now >= self.remembered_until
    }
}

/// The facts of one key.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    pub(crate) hold: Hold,
    pub(crate) refresh_pause: RefreshPause,
    pub(crate) evidence: Evidence,
}

impl Marks {
    /// Notes that a result was stored, or may be stored, and counts as seen lately until
    /// `until`: earlier declined results say nothing of it.
    pub(crate) fn set_storable(&mut self, unkeyed: u64, until: Tick) {
        self.evidence.share(unkeyed, until);
        self.refresh_pause = RefreshPause::default();
    }

    fn is_idle(&self, now: Tick) -> bool {
        self.hold.is_old(now) && self.refresh_pause.is_old(now) && self.evidence.is_old(now)
    }
}

/// The marks of many keys, bounded in number and in bytes.
#[derive(Debug)]
pub(crate) struct MarkMap {
    by_key: HashMap<MarkKey, Marks, RandomState>,
    hashers: [SipState; 2],
    max: usize,
}

/// A key that has marks. Strangers choose how long the keys of HTTP are: a long one is held as
/// a hash, by two keys that only this map knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum MarkKey {
    Short(Key),
    Long([u64; 2]),
}

/// A key with more bytes is long.
const LONGEST_SHORT: usize = 128;

/// What left a map under the table's lock, to be dropped without it: the `Drop` of an
/// error is the user's code.
#[derive(Debug, Default)]
#[must_use = "to be dropped without the table's lock"]
pub(crate) struct RemovedMarks {
    marks: Vec<Marks>,
    errors: Vec<Error>,
}

impl RemovedMarks {
    pub(crate) fn extend(&mut self, other: Self) {
        self.marks.extend(other.marks);
        self.errors.extend(other.errors);
    }
}

impl MarkMap {
    pub(crate) fn new(max: usize) -> Self {
        Self { by_key: HashMap::default(), hashers: Default::default(), max }
    }

    fn key_of(&self, key: &Key) -> MarkKey {
        match key.as_bytes() {
            bytes if bytes.len() <= LONGEST_SHORT => MarkKey::Short(key.clone()),
            bytes => MarkKey::Long(self.hashers.each_ref().map(|hasher| hasher.hash_one(bytes))),
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Marks> {
        // Most keys have none, and most shards: no hashing then.
        if self.by_key.is_empty() { None } else { self.by_key.get(&self.key_of(key)) }
    }

    pub(crate) fn get_mut(&mut self, key: &Key) -> Option<&mut Marks> {
        if self.by_key.is_empty() {
            return None;
        }
        let key = self.key_of(key);
        self.by_key.get_mut(&key)
    }

    /// Returns the marks of `key`, new if there are none. At the bound an arbitrary key
    /// makes room: a lost mark costs a computation, no more.
    pub(crate) fn of(&mut self, key: &Key, now: Tick) -> (&mut Marks, RemovedMarks) {
        let mut removed = RemovedMarks::default();
        let key = self.key_of(key);
        if self.by_key.len() >= self.max && !self.by_key.contains_key(&key) {
            removed = self.sweep(now);
            if self.by_key.len() >= self.max
                && let Some(victim) = self.by_key.keys().next().cloned()
            {
                removed.marks.extend(self.by_key.remove(&victim));
            }
        }
        (self.by_key.entry(key).or_default(), removed)
    }

    /// Ends the hold of `key`.
    #[must_use = "to be dropped without the table's lock"]
    pub(crate) fn end_hold(&mut self, key: &Key) -> Option<Error> {
        self.get_mut(key)?.hold.end_row()
    }

    /// Takes `bytes` of the room for errors. Where there is too little, the errors of holds that are
    /// over make room.
    pub(crate) fn room_for_error(
        &mut self,
        room: &Arc<ByteBudget>,
        bytes: u64,
        now: Tick,
    ) -> (Option<Reservation>, RemovedMarks) {
        if let Some(reservation) = room.reserve(bytes) {
            return (Some(reservation), RemovedMarks::default());
        }
        let ended = RemovedMarks { marks: Vec::new(), errors: self.take_ended_errors(now) };
        (room.reserve(bytes), ended)
    }

    fn take_ended_errors(&mut self, now: Tick) -> Vec<Error> {
        let marks = self.by_key.values_mut();
        marks.filter_map(|marks| marks.hold.take_error_if_over(now)).collect()
    }

    /// Forgets the marks that say nothing any more.
    pub(crate) fn sweep(&mut self, now: Tick) -> RemovedMarks {
        let idle = self.by_key.extract_if(|_, marks| marks.is_idle(now));
        let marks = idle.map(|(_, marks)| marks).collect();
        let removed = RemovedMarks { marks, errors: self.take_ended_errors(now) };
        if self.by_key.is_empty() {
            self.by_key.shrink_to_fit();
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flight::evidence::RequestTraits;

    const T0: Tick = Tick::from_nanos(0);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_number_of_marks_is_bounded() {
        let mut marks = MarkMap::new(4);
        for n in 0..100_u32 {
            let (mark, removed) = marks.of(&n.into(), T0);
            mark.evidence.decline(RequestTraits::default(), T0.plus(SECOND), T0);
            drop(removed);
        }
        assert!(marks.by_key.len() <= 4);
        assert!(marks.get(&99_u32.into()).is_some(), "the newest is kept");
    }

    #[test]
    fn a_long_key_finds_its_marks_by_a_hash() {
        let mut marks = MarkMap::new(4);
        let long = |n: u32| Key::from(format!("{n}{}", "x".repeat(8192)));
        for n in 0..2 {
            marks.of(&long(n), T0).0.evidence.decline(
                RequestTraits::default(),
                T0.plus(SECOND * (n + 1)),
                T0,
            );
        }
        assert!(!marks.get(&long(0)).unwrap().evidence.is_declined(T0.plus(SECOND)));
        assert!(marks.get(&long(1)).unwrap().evidence.is_declined(T0.plus(SECOND)));
        assert!(marks.get(&long(2)).is_none());
        assert!(marks.by_key.keys().all(|key| matches!(key, MarkKey::Long(_))));
    }

    #[test]
    fn marks_that_say_nothing_any_more_are_swept() {
        let mut marks = MarkMap::new(4);
        marks.of(&"a".into(), T0).0.evidence.decline(RequestTraits::default(), T0.plus(SECOND), T0);
        assert_eq!(marks.sweep(T0).marks.len(), 0);
        assert!(marks.get(&"a".into()).is_some());
        assert_eq!(marks.sweep(T0.plus(SECOND)).marks.len(), 1);
        assert!(marks.get(&"a".into()).is_none());
    }
}
