//! Invalidations that the remote has not been told yet.

use std::collections::HashMap;

use crate::key::{Key, Tag, collected};

/// What is told at once: tags in one call, keys in as many on their way
/// together.
const BATCH: usize = 100;

/// Invalidations that the remote still has to be told. Each key and tag stands in it once;
/// when there are too many of them, `*` takes the place of all.
///
/// One task at a time takes work out of it.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    keys: Noted<Key>,
    announcements: Noted<Key>,
    tags: Noted<Tag>,
    /// How often anything was noted.
    notes: u64,
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

type Noted<T> = HashMap<T, JournalState, foldhash::fast::RandomState>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum JournalState {
    Noted,
    /// Handed out and not noted again since.
    Handed,
}

impl Journal {
    /// Makes an empty journal of at most `max` things.
    pub(crate) fn new(max: usize) -> Self {
        let (keys, announcements, tags) = Default::default();
        Self { keys, announcements, tags, notes: 0, max }
    }

    /// Returns how often anything was noted.
    pub(crate) fn notes(&self) -> u64 {
        self.notes
    }

    /// Notes keys. Those of one URI count once: any client may write to any URI.
    pub(crate) fn note_keys(&mut self, keys: &[Key]) {
        self.notes += 1;
        for key in keys.iter().cloned().filter_map(collected) {
            if !self.covers_all() {
                self.keys.insert(key, JournalState::Noted);
                self.shrink();
            }
        }
    }

    /// Notes keys that the remote has removed, of which the other processes do not know.
    pub(crate) fn note_announcements(&mut self, keys: &[Key]) {
        self.notes += 1;
        for key in keys {
            if !self.covers_all() && !self.keys.contains_key(key) {
                self.announcements.insert(key.clone(), JournalState::Noted);
                self.shrink();
            }
        }
    }

    pub(crate) fn note_tags(&mut self, tags: &[Tag]) {
        self.notes += 1;
        for tag in tags {
            if tag.is_everything() {
                self.collapse();
            } else if !self.covers_all() {
                self.tags.insert(tag.clone(), JournalState::Noted);
                self.shrink();
            }
        }
    }

    /// Notes all that another journal has of keys and tags.
    pub(crate) fn note_all(&mut self, other: &Self) {
        self.note_keys(&other.keys.keys().cloned().collect::<Vec<_>>());
        self.note_tags(&other.tags.keys().cloned().collect::<Vec<_>>());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether what stands under `key` is not to be asked for: it has ended, and the
    /// remote does not know it.
    pub(crate) fn concerns(&self, key: &Key) -> bool {
        if self.keys.is_empty() && self.tags.is_empty() {
            return false;
        }
        // Of the key that leads to the other responses of a URI it is not known which URI.
        self.tags.contains_key(&b"*"[..])
            || match collected(key.clone()) {
                Some(key) => self.keys.contains_key(&key),
                None => !self.keys.is_empty(),
            }
    }

    /// Returns whether the remote does not know that one of `tags` was announced: what carries
    /// it is neither adopted nor shared.
    pub(crate) fn has_any_of(&self, tags: &[Tag]) -> bool {
        !self.tags.is_empty() && tags.iter().any(|tag| self.tags.contains_key(tag))
    }

    /// Returns what to tell next, the same again until it is [`done`](Self::done): of the keys
    /// those that `selects` selects, and what goes to the log `with_log` alone.
    pub(crate) fn next(
        &mut self,
        with_log: bool,
        selects: impl FnMut(&Key) -> bool,
    ) -> Option<JournalWork> {
        if with_log && !self.tags.is_empty() {
            return Some(JournalWork::Tags(hand_out(&mut self.tags, |_| true)));
        }
        if with_log && !self.announcements.is_empty() {
            return Some(JournalWork::Announcements(hand_out(&mut self.announcements, |_| true)));
        }
        let keys = hand_out(&mut self.keys, selects);
        (!keys.is_empty()).then_some(JournalWork::Keys(keys))
    }

    /// Removes what has been told. What was noted again since it was handed out
    /// stays: that invalidation came later.
    pub(crate) fn done(&mut self, work: &JournalWork) {
        match work {
            JournalWork::Keys(keys) => keys.iter().for_each(|key| remove(&mut self.keys, key)),
            JournalWork::Announcements(keys) => {
                keys.iter().for_each(|key| remove(&mut self.announcements, key));
            }
            JournalWork::Tags(tags) => tags.iter().for_each(|tag| remove(&mut self.tags, tag)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len() + self.announcements.len() + self.tags.len()
    }

    /// Feeds all that decides what this does next.
    #[cfg(test)]
    pub(super) fn fingerprint(&self, to: &mut impl std::hash::Hasher) {
        use std::collections::BTreeMap;
        use std::hash::Hash;
        let keys = |noted: &Noted<Key>| {
            let keys = noted.iter().map(|(key, state)| (key.as_bytes().to_vec(), *state));
            keys.collect::<BTreeMap<_, _>>()
        };
        let tags = self.tags.iter().map(|(tag, state)| (tag.as_bytes(), *state));
        (keys(&self.keys), keys(&self.announcements), tags.collect::<BTreeMap<_, _>>()).hash(to);
    }

    /// Whether "everything" is noted and will be told after what is noted now.
    fn covers_all(&self) -> bool {
        self.tags.get(&b"*"[..]) == Some(&JournalState::Noted)
    }

    fn collapse(&mut self) {
        (self.keys, self.announcements, self.tags) = Default::default();
        self.tags.insert(Tag::from("*"), JournalState::Noted);
    }

    fn shrink(&mut self) {
        if self.len() > self.max {
            self.collapse();
        }
    }
}

fn hand_out<T: Clone>(noted: &mut Noted<T>, mut selects: impl FnMut(&T) -> bool) -> Vec<T> {
    let selected = noted.iter_mut().filter(|(one, _)| selects(one));
    let batch = selected.take(BATCH).map(|(one, state)| {
        *state = JournalState::Handed;
        one.clone()
    });
    batch.collect()
}

fn remove<T: std::hash::Hash + Eq>(noted: &mut Noted<T>, told: &T) {
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

    fn next(journal: &mut Journal) -> Option<JournalWork> {
        journal.next(true, |_| true)
    }

    fn drain(journal: &mut Journal) -> Vec<JournalWork> {
        let next = || next(journal).inspect(|work| journal.done(work));
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn everything_noted_is_handed_out_once() {
        let mut journal = Journal::new(1000);
        assert!(journal.is_empty());
        for n in [1_u32, 2, 1, 3, 2] {
            journal.note_keys(&[n.into()]);
        }
        journal.note_tags(&tags(&["a", "b", "a"]));
        assert!(!journal.is_empty());
        let (mut keys, mut told) = (Vec::new(), Vec::new());
        for work in drain(&mut journal) {
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
        let mut journal = Journal::new(10);
        assert!(!journal.concerns(&"k".into()));
        journal.note_keys(&["k".into()]);
        journal.note_tags(&tags(&["a"]));
        assert!(journal.concerns(&"k".into()) && !journal.concerns(&"l".into()));
        assert!(journal.has_any_of(&tags(&["b", "a"])) && !journal.has_any_of(&tags(&["b"])));
        let handed = next(&mut journal).unwrap();
        assert!(journal.has_any_of(&tags(&["a"])), "not told yet");
        journal.done(&handed);
        assert!(!journal.has_any_of(&tags(&["a"])));
        drain(&mut journal);
        assert!(!journal.concerns(&"k".into()));
        journal.note_tags(&tags(&["*"]));
        assert!(journal.concerns(&"l".into()));
    }

    #[test]
    fn keys_that_nobody_selects_stay_and_without_a_log_so_does_what_it_is_told() {
        let mut journal = Journal::new(10);
        ["k", "l"].into_iter().for_each(|key| journal.note_keys(&[key.into()]));
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
        let mut journal = Journal::new(1000);
        let all: Vec<_> = (0..250_u32).map(Tag::from).collect();
        journal.note_tags(&all);
        (0..150_u32).for_each(|n| journal.note_keys(&[n.into()]));
        let sizes = drain(&mut journal).into_iter().map(|work| match work {
            JournalWork::Tags(batch) => batch.len(),
            JournalWork::Keys(batch) | JournalWork::Announcements(batch) => batch.len(),
        });
        assert_eq!(sizes.collect::<Vec<_>>(), [100, 100, 50, 100, 50]);
    }

    #[test]
    fn what_was_not_told_is_handed_out_again() {
        let mut journal = Journal::new(10);
        journal.note_keys(&["k".into()]);
        assert_eq!(next(&mut journal), Some(JournalWork::Keys(vec!["k".into()])));
        assert_eq!(next(&mut journal), Some(JournalWork::Keys(vec!["k".into()])));
        assert!(!journal.is_empty());
    }

    #[test]
    fn what_is_noted_again_while_it_is_told_stays() {
        let mut journal = Journal::new(10);
        journal.note_keys(&["k".into()]);
        let work = next(&mut journal).unwrap();
        journal.note_keys(&["k".into()]);
        journal.done(&work);
        assert_eq!(drain(&mut journal), [work]);

        journal.note_tags(&tags(&["a"]));
        let work = next(&mut journal).unwrap();
        journal.note_tags(&tags(&["a"]));
        journal.done(&work);
        assert_eq!(drain(&mut journal), [work]);
    }

    #[test]
    fn too_many_become_everything_and_stay_one() {
        let mut journal = Journal::new(10);
        (0..6_u32).for_each(|n| journal.note_keys(&[n.into()]));
        journal.note_tags(&tags(&["a", "b", "c", "d"]));
        assert_eq!(journal.len(), 10);
        journal.note_tags(&tags(&["e", "f"]));
        assert_eq!(journal.len(), 1);
        journal.note_keys(&["k".into()]);
        journal.note_tags(&tags(&["g"]));
        assert_eq!(drain(&mut journal), [JournalWork::Tags(tags(&["*"]))]);
    }

    #[test]
    fn everything_stands_for_what_was_noted_before_it() {
        let mut journal = Journal::new(10);
        journal.note_keys(&["k".into()]);
        journal.note_tags(&tags(&["a", "*", "b"]));
        assert_eq!(drain(&mut journal), [JournalWork::Tags(tags(&["*"]))]);
    }

    #[test]
    fn what_is_noted_while_everything_is_told_is_told_after_it() {
        let mut journal = Journal::new(10);
        journal.note_tags(&tags(&["*"]));
        let everything = next(&mut journal).unwrap();
        journal.note_keys(&["k".into()]);
        journal.done(&everything);
        assert_eq!(drain(&mut journal), [JournalWork::Keys(vec!["k".into()])]);

        journal.note_tags(&tags(&["*"]));
        let everything = next(&mut journal).unwrap();
        (0..11_u32).for_each(|n| journal.note_keys(&[n.into()]));
        journal.done(&everything);
        assert_eq!(drain(&mut journal), [everything], "it overflowed again since");
    }

    #[test]
    fn work_of_before_an_overflow_removes_nothing_of_after_it() {
        let mut journal = Journal::new(1);
        journal.note_keys(&["k".into()]);
        let work = next(&mut journal).unwrap();
        journal.note_keys(&["l".into()]);
        journal.done(&work);
        assert_eq!(drain(&mut journal), [JournalWork::Tags(tags(&["*"]))]);
    }
}
