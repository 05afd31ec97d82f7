//! Invalidations that the remote has not been told yet.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::key::{Key, Tag, collected};

/// What is told at once: tags in one call, keys in as many on their way
/// together.
const BATCH: usize = 100;

/// Invalidations that the remote still has to be told. Each key and tag stands in it once;
/// when there are too many of them, `*` takes the place of all.
///
/// One task at a time takes work out of it; any number may note.
#[derive(Debug)]
pub(crate) struct Journal {
    pending: Mutex<Pending>,
    /// How often anything was noted.
    notes: AtomicU64,
    max: usize,
}

/// What is told to the remote at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JournalWork {
    /// Keys to remove, and to announce.
    Keys(Vec<Key>),
    /// Keys to announce: they have been removed.
    Announcements(Vec<Key>),
    /// Tags to announce.
    Tags(Vec<Tag>),
}

impl JournalWork {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Keys(keys) | Self::Announcements(keys) => keys.len(),
            Self::Tags(tags) => tags.len(),
        }
    }
}

type JournalEntry<T> = HashMap<T, JournalState, foldhash::fast::RandomState>;

#[derive(Debug, Default)]
struct Pending {
    keys: JournalEntry<Key>,
    announcements: JournalEntry<Key>,
    tags: JournalEntry<Tag>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JournalState {
    Noted,
    /// Handed out and not noted again since.
    Handed,
}

impl Journal {
    /// Makes an empty journal of at most `max` things.
    pub(crate) fn new(max: usize) -> Self {
        Self { pending: Mutex::default(), notes: AtomicU64::new(0), max }
    }

    /// Returns how often anything was noted.
    pub(crate) fn notes(&self) -> u64 {
        self.notes.load(Ordering::Relaxed)
    }

    fn pending_to_note(&self) -> MutexGuard<'_, Pending> {
        let pending = self.pending.lock();
        self.notes.fetch_add(1, Ordering::Relaxed);
        pending
    }

    /// Notes a key. The keys of one URI count once: any client may write to any URI.
    pub(crate) fn note_key(&self, key: Key) {
        let Some(key) = collected(key) else { return };
        let mut pending = self.pending_to_note();
        if !pending.covers_all() {
            pending.keys.insert(key, JournalState::Noted);
            pending.shrink_to(self.max);
        }
    }

    /// Notes keys that the remote has removed, of which the other processes do not know.
    pub(crate) fn note_announcements(&self, keys: &[Key]) {
        let mut pending = self.pending_to_note();
        for key in keys {
            if !pending.covers_all() && !pending.keys.contains_key(key) {
                pending.announcements.insert(key.clone(), JournalState::Noted);
                pending.shrink_to(self.max);
            }
        }
    }

    pub(crate) fn note_tags(&self, tags: &[Tag]) {
        let mut pending = self.pending_to_note();
        for tag in tags {
            if tag.is_everything() {
                pending.collapse();
            } else if !pending.covers_all() {
                pending.tags.insert(tag.clone(), JournalState::Noted);
                pending.shrink_to(self.max);
            }
        }
    }

    /// Notes all of it in another journal, and keeps it.
    pub(crate) fn copy_to(&self, other: &Self) {
        let (keys, tags): (Vec<_>, Vec<_>) = {
            let pending = self.pending.lock();
            (pending.keys.keys().cloned().collect(), pending.tags.keys().cloned().collect())
        };
        keys.into_iter().for_each(|key| other.note_key(key));
        other.note_tags(&tags);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether what stands under `key` is not to be asked for: it has ended, and the
    /// remote does not know it.
    pub(crate) fn concerns(&self, key: &Key) -> bool {
        let pending = self.pending.lock();
        if pending.keys.is_empty() && pending.tags.is_empty() {
            return false;
        }
        // Of the key that leads to the other responses of a URI it is not known which URI.
        pending.tags.contains_key(&b"*"[..])
            || match collected(key.clone()) {
                Some(key) => pending.keys.contains_key(&key),
                None => !pending.keys.is_empty(),
            }
    }

    /// Returns whether the remote does not know that one of `tags` was announced: what carries
    /// it is neither adopted nor shared.
    pub(crate) fn has_any_of(&self, tags: &[Tag]) -> bool {
        let pending = self.pending.lock();
        !pending.tags.is_empty() && tags.iter().any(|tag| pending.tags.contains_key(tag))
    }

    /// Returns what to tell next, the same again until it is [`done`](Self::done): of the keys
    /// those that `selects` selects, and what goes to the log `with_log` alone.
    pub(crate) fn next(
        &self,
        with_log: bool,
        selects: impl FnMut(&Key) -> bool,
    ) -> Option<JournalWork> {
        let mut pending = self.pending.lock();
        if with_log && !pending.tags.is_empty() {
            return Some(JournalWork::Tags(hand_out(&mut pending.tags, |_| true)));
        }
        if with_log && !pending.announcements.is_empty() {
            let announcements = hand_out(&mut pending.announcements, |_| true);
            return Some(JournalWork::Announcements(announcements));
        }
        let keys = hand_out(&mut pending.keys, selects);
        (!keys.is_empty()).then_some(JournalWork::Keys(keys))
    }

    /// Removes what has been told. What was noted again since it was handed out
    /// stays: that invalidation came later.
    pub(crate) fn done(&self, work: &JournalWork) {
        let mut pending = self.pending.lock();
        match work {
            JournalWork::Keys(keys) => keys.iter().for_each(|key| remove(&mut pending.keys, key)),
            JournalWork::Announcements(keys) => {
                keys.iter().for_each(|key| remove(&mut pending.announcements, key));
            }
            JournalWork::Tags(tags) => tags.iter().for_each(|tag| remove(&mut pending.tags, tag)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.pending.lock().len()
    }
}

impl Pending {
    fn len(&self) -> usize {
        self.keys.len() + self.announcements.len() + self.tags.len()
    }

    /// Whether "everything" is noted and will be told after what is noted now.
    fn covers_all(&self) -> bool {
        self.tags.get(&b"*"[..]) == Some(&JournalState::Noted)
    }

    fn collapse(&mut self) {
        *self = Self::default();
        self.tags.insert(Tag::from("*"), JournalState::Noted);
    }

    fn shrink_to(&mut self, max: usize) {
        if self.len() > max {
            self.collapse();
        }
    }
}

fn hand_out<T: Clone>(noted: &mut JournalEntry<T>, mut selects: impl FnMut(&T) -> bool) -> Vec<T> {
    let selected = noted.iter_mut().filter(|(one, _)| selects(one));
    let batch = selected.take(BATCH).map(|(one, state)| {
        *state = JournalState::Handed;
        one.clone()
    });
    batch.collect()
}

fn remove<T: std::hash::Hash + Eq>(noted: &mut JournalEntry<T>, told: &T) {
    if noted.get(told) == Some(&JournalState::Handed) {
        noted.remove(told);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(names: &[&str]) -> Vec<Tag> {
        names.iter().map(|name| Tag::from(*name)).collect()
    }

    fn next(journal: &Journal) -> Option<JournalWork> {
        journal.next(true, |_| true)
    }

    fn drain(journal: &Journal) -> Vec<JournalWork> {
        let next = || next(journal).inspect(|work| journal.done(work));
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn everything_noted_is_handed_out_once() {
        let journal = Journal::new(1000);
        assert!(journal.is_empty());
        for n in [1_u32, 2, 1, 3, 2] {
            journal.note_key(n.into());
        }
        journal.note_tags(&tags(&["a", "b", "a"]));
        assert!(!journal.is_empty());
        let (mut keys, mut told) = (Vec::new(), Vec::new());
        for work in drain(&journal) {
            match work {
                JournalWork::Keys(batch) | JournalWork::Announcements(batch) => {
                    keys.extend(batch.iter().map(|key| key.as_bytes().to_vec()));
                }
                JournalWork::Tags(batch) => {
                    told.extend(batch.iter().map(|tag| tag.as_bytes().to_vec()));
                }
            }
        }
        keys.sort();
        told.sort();
        assert_eq!(
            (keys, told),
            ([b"1", b"2", b"3"].map(Vec::from).to_vec(), [b"a", b"b"].map(Vec::from).to_vec())
        );
        assert!(journal.is_empty());
    }

    #[test]
    fn a_key_and_a_tag_concern_themselves_until_they_are_told_and_everything_concerns_all() {
        let journal = Journal::new(10);
        assert!(!journal.concerns(&"k".into()));
        journal.note_key("k".into());
        journal.note_tags(&tags(&["a"]));
        assert!(journal.concerns(&"k".into()) && !journal.concerns(&"l".into()));
        assert!(journal.has_any_of(&tags(&["b", "a"])) && !journal.has_any_of(&tags(&["b"])));
        let handed = next(&journal).unwrap();
        assert!(journal.has_any_of(&tags(&["a"])), "not told yet");
        journal.done(&handed);
        assert!(!journal.has_any_of(&tags(&["a"])));
        drain(&journal);
        assert!(!journal.concerns(&"k".into()));
        journal.note_tags(&tags(&["*"]));
        assert!(journal.concerns(&"l".into()));
    }

    #[test]
    fn keys_that_nobody_selects_stay_and_without_a_log_so_does_what_it_is_told() {
        let journal = Journal::new(10);
        ["k", "l"].into_iter().for_each(|key| journal.note_key(key.into()));
        journal.note_tags(&tags(&["a"]));
        journal.note_announcements(&["m".into()]);
        let work = journal.next(false, |key| *key == "l".into());
        assert_eq!(work, Some(JournalWork::Keys(vec!["l".into()])));
        journal.done(&work.unwrap());
        assert_eq!(journal.next(false, |key| *key == "l".into()), None);
        assert_eq!(journal.len(), 3);
    }

    #[test]
    fn tags_and_keys_come_in_batches_of_a_hundred() {
        let journal = Journal::new(1000);
        let all: Vec<_> = (0..250_u32).map(Tag::from).collect();
        journal.note_tags(&all);
        (0..150_u32).for_each(|n| journal.note_key(n.into()));
        let sizes = drain(&journal).into_iter().map(|work| match work {
            JournalWork::Tags(batch) => batch.len(),
            JournalWork::Keys(batch) | JournalWork::Announcements(batch) => batch.len(),
        });
        assert_eq!(sizes.collect::<Vec<_>>(), [100, 100, 50, 100, 50]);
    }

    #[test]
    fn what_was_not_told_is_handed_out_again() {
        let journal = Journal::new(10);
        journal.note_key("k".into());
        assert_eq!(next(&journal), Some(JournalWork::Keys(vec!["k".into()])));
        assert_eq!(next(&journal), Some(JournalWork::Keys(vec!["k".into()])));
        assert!(!journal.is_empty());
    }

    #[test]
    fn what_is_noted_again_while_it_is_told_stays() {
        let journal = Journal::new(10);
        journal.note_key("k".into());
        let work = next(&journal).unwrap();
        journal.note_key("k".into());
        journal.done(&work);
        assert_eq!(drain(&journal), [work]);

        journal.note_tags(&tags(&["a"]));
        let work = next(&journal).unwrap();
        journal.note_tags(&tags(&["a"]));
        journal.done(&work);
        assert_eq!(drain(&journal), [work]);
    }

    #[test]
    fn too_many_become_everything_and_stay_one() {
        let journal = Journal::new(10);
        (0..6_u32).for_each(|n| journal.note_key(n.into()));
        journal.note_tags(&tags(&["a", "b", "c", "d"]));
        assert_eq!(journal.len(), 10);
        journal.note_tags(&tags(&["e", "f"]));
        assert_eq!(journal.len(), 1);
        journal.note_key("k".into());
        journal.note_tags(&tags(&["g"]));
        assert_eq!(drain(&journal), [JournalWork::Tags(tags(&["*"]))]);
    }

    #[test]
    fn everything_stands_for_what_was_noted_before_it() {
        let journal = Journal::new(10);
        journal.note_key("k".into());
        journal.note_tags(&tags(&["a", "*", "b"]));
        assert_eq!(drain(&journal), [JournalWork::Tags(tags(&["*"]))]);
    }

    #[test]
    fn what_is_noted_while_everything_is_told_is_told_after_it() {
        let journal = Journal::new(10);
        journal.note_tags(&tags(&["*"]));
        let everything = next(&journal).unwrap();
        journal.note_key("k".into());
        journal.done(&everything);
        assert_eq!(drain(&journal), [JournalWork::Keys(vec!["k".into()])]);

        journal.note_tags(&tags(&["*"]));
        let everything = next(&journal).unwrap();
        (0..11_u32).for_each(|n| journal.note_key(n.into()));
        journal.done(&everything);
        assert_eq!(drain(&journal), [everything], "it overflowed again since");
    }

    #[test]
    fn work_of_before_an_overflow_removes_nothing_of_after_it() {
        let journal = Journal::new(1);
        journal.note_key("k".into());
        let work = next(&journal).unwrap();
        journal.note_key("l".into());
        journal.done(&work);
        assert_eq!(drain(&journal), [JournalWork::Tags(tags(&["*"]))]);
    }
}
