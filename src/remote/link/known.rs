//! What this process knows of one life of the invalidation log, and how it judges an entry of the
//! remote by it.
//!
//! Items are applied in their order, each once. The positions of tags are remembered since this
//! process began to follow the log, up to a bound. For an entry whose stamp is older than that, the
//! log itself is asked.

use std::collections::{HashMap, VecDeque};

use crate::clock::Tick;
use crate::key::{Key, Tag};
use crate::lease::grant::{Stamp, Version};
use crate::remote::log::{LogHeader, LogItem, LogPositions};

/// How many of the last items are remembered one by one.
pub(super) const MAX_RECENT: usize = 1000;

/// How many keys are remembered that this process has invalidated.
const MAX_KEYS: usize = 4096;

type Positions<K, P> = HashMap<K, P, foldhash::fast::RandomState>;

/// What is known of one life of the log.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) applied: Stamp,
    /// The server that had written the log when this process began to follow it.
    pub(super) server: u64,
    /// What was announced after this position is in `tags`, for each tag its last item.
    pub(super) since: u64,
    tags: Positions<Tag, Announced>,
    /// The keys that this process itself has invalidated. Those of other processes may have been
    /// put: a value that was put carries a stamp of before its announcement.
    keys: Positions<Key, EndedKey>,
    /// A position that no stale mark of a key is above; `None` before the log was asked.
    marked_keys: Option<u64>,
    everything: u64,
    everything_stale: Option<Announced>,
    /// The last items with their positions, in the order in which this process heard of them, but
    /// for keys. What was announced after `recent_since` is in it.
    recent: VecDeque<(u64, LogItem)>,
    recent_since: u64,
    /// The highest position that this process has heard of.
    heard: u64,
}

/// The last item of a tag.
#[derive(Clone, Copy, Debug)]
struct Announced {
    position: u64,
    /// When this process heard of it; `None` where that was before it followed the log.
    at: Option<Tick>,
}

/// What a call has announced.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnItems<'a> {
    pub(crate) items: &'a [LogItem],
    /// The keys that were removed before, each with a version that no computation after that is
    /// below. None of what was put.
    pub(crate) ended: &'a [(Key, Version)],
}

/// An entry of the remote, as far as it is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JudgedEntry<'a> {
    pub(crate) key: &'a Key,
    pub(crate) tags: &'a [Tag],
    pub(crate) stamp: Option<Stamp>,
    pub(crate) version: Option<Version>,
}

impl JudgedEntry<'_> {
    /// Returns the tags whose records make it stale.
    pub(crate) fn marks(self) -> Vec<Tag> {
        let mark_of_key = Tag::mark_of_key(self.key);
        self.tags.iter().map(Tag::stale_mark).chain([mark_of_key]).collect()
    }
}

/// How this process has invalidated a key: entries that were stamped before and have a lower version
/// are older than that.
#[derive(Clone, Copy, Debug)]
struct EndedKey {
    position: u64,
    version: Version,
}

impl EndedKey {
    /// An entry without a version may be anything.
    fn ends(self, stamp: Stamp, version: Option<Version>) -> bool {
        stamp.position < self.position && version.is_none_or(|version| version < self.version)
    }
}

/// What is known of an entry of the remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    Alive,
    /// Alive, and stale from then on; `None` where it is not known from when on.
    Stale(Option<Tick>),
    Dead,
    /// The log knows more than this process: it is to be read first.
    Behind,
    /// Only the log knows the positions of its tags.
    Unknown,
}

impl Known {
    /// Begins to follow the log from its last item on.
    pub(super) fn new(header: &LogHeader) -> Self {
        let stale = Announced { position: header.everything_stale, at: None };
        Self {
            applied: Stamp::new(header.epoch, header.last),
            server: header.server,
            since: header.last,
            tags: Positions::default(),
            keys: Positions::default(),
            marked_keys: None,
            everything: header.everything,
            everything_stale: (stale.position > 0).then_some(stale),
            recent: VecDeque::new(),
            recent_since: header.last,
            heard: header.last,
        }
    }

    /// Judges an entry by what this process knows.
    pub(super) fn judge(&self, entry: JudgedEntry<'_>, stamp: Stamp) -> Liveness {
        let tags = entry.tags;
        if stamp.position < self.everything || self.has_ended(entry, stamp) {
            return Liveness::Dead;
        }
        let positions = tags.iter().filter_map(|tag| self.tags.get(tag));
        if positions.into_iter().any(|tag| stamp.position < tag.position) {
            return Liveness::Dead;
        }
        let is_older = |position| stamp.position < position;
        let has_record = !tags.is_empty() || self.marked_keys.is_none_or(is_older);
        if has_record && is_older(self.since) {
            return Liveness::Unknown;
        }
        let marks = entry.marks();
        let marks = marks.iter().filter_map(|mark| self.tags.get(mark));
        let marks = marks.chain(&self.everything_stale);
        let marks = marks.filter(|mark| stamp.position < mark.position);
        marks.map(|mark| mark.at).min().map_or(Liveness::Alive, Liveness::Stale)
    }

    /// Returns up to where this process has heard of the log.
    pub(super) fn heard(&self) -> Stamp {
        Stamp { position: self.heard.max(self.applied.position), ..self.applied }
    }

    /// Returns whether an entry that has ended, or has become stale, was alive when this process had
    /// heard of the log up to `arrived`.
    pub(super) fn was_alive(&self, entry: JudgedEntry<'_>, stamp: Stamp, arrived: Stamp) -> bool {
        // Only the last invalidation of a key is remembered.
        if [stamp.epoch, arrived.epoch] != [self.applied.epoch; 2] || self.has_ended(entry, stamp) {
            return false;
        }
        let is_between = |position| stamp.position < position && position <= arrived.position;
        let mut recent = self.recent.iter();
        stamp.position >= arrived.position
            || stamp.position >= self.recent_since
                && !recent.any(|(position, item)| {
                    is_between(*position) && item.concerns(entry.key, entry.tags)
                })
    }

    /// Returns whether this process has invalidated the key of an entry since it was computed.
    fn has_ended(&self, entry: JudgedEntry<'_>, stamp: Stamp) -> bool {
        self.keys.get(entry.key).is_some_and(|ended| ended.ends(stamp, entry.version))
    }

    /// Takes what the header says of all entries. Returns what of it is new.
    pub(super) fn take_header(&mut self, header: &LogHeader, now: Tick) -> Vec<(u64, LogItem)> {
        let both = [
            (header.everything, LogItem::Everything),
            (header.everything_stale, LogItem::EverythingStale),
        ];
        let applied = self.applied.position;
        let is_new = |(position, item): &(u64, LogItem)| {
            *position > applied && self.note(*position, item, now, usize::MAX)
        };
        both.into_iter().filter(is_new).collect()
    }

    /// Notes what this process has announced from the position `first` on. It is known from now on,
    /// whatever else was missed.
    pub(super) fn note_own(&mut self, first: u64, own: OwnItems<'_>, now: Tick, max_tags: usize) {
        let mut position = first;
        for (n, item) in own.items.iter().enumerate() {
            position = first.saturating_add(n as u64);
            self.note(position, item, now, max_tags);
        }
        for (key, version) in own.ended {
            self.keys.insert(key.clone(), EndedKey { position, version: *version });
        }
        shrink(&mut self.keys, MAX_KEYS, |ended| ended.position);
    }

    /// Notes an item. Returns whether it was new.
    pub(super) fn note(
        &mut self,
        position: u64,
        item: &LogItem,
        now: Tick,
        max_tags: usize,
    ) -> bool {
        self.heard = self.heard.max(position);
        let is_new = self.note_last(position, item, now, max_tags);
        if is_new && !matches!(item, LogItem::Key(_)) {
            self.recent.push_back((position, item.clone()));
            if self.recent.len() > MAX_RECENT
                && let Some((forgotten, _)) = self.recent.pop_front()
            {
                self.recent_since = self.recent_since.max(forgotten);
            }
        }
        is_new
    }

    /// Notes a position that has the stale mark of a key, or is above all of them.
    pub(super) fn note_marked_keys(&mut self, position: u64) {
        self.marked_keys = self.marked_keys.max(Some(position));
    }

    /// Notes it where it is the last one of its kind.
    fn note_last(&mut self, position: u64, item: &LogItem, now: Tick, max_tags: usize) -> bool {
        let announced = Announced { position, at: Some(now) };
        match item {
            LogItem::Everything => {
                let is_new = position > self.everything;
                self.everything = self.everything.max(position);
                is_new
            }
            LogItem::EverythingStale => {
                let known = self.everything_stale.map_or(0, |known| known.position);
                if position > known {
                    self.everything_stale = Some(announced);
                }
                position > known
            }
            LogItem::Key(_) => position > self.applied.position,
            LogItem::Tag(tag) if *tag == Tag::of_marked_keys() => {
                self.note_marked_keys(position);
                false
            }
            LogItem::Tag(tag) => {
                let known = self.tags.get(tag).map_or(0, |known| known.position);
                if position <= known.max(self.since) {
                    return false;
                }
                self.tags.insert(tag.clone(), announced);
                // For entries with older stamps the log is asked.
                let cut = shrink(&mut self.tags, max_tags, |known| known.position);
                self.since = self.since.max(cut);
                true
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.tags.len()
    }

    /// Feeds all that decides what this does next.
    #[cfg(test)]
    pub(super) fn fingerprint(&self, to: &mut impl std::hash::Hasher) {
        use std::collections::BTreeMap;
        use std::hash::Hash;
        let tags = self.tags.iter().map(|(tag, known)| (tag.as_bytes(), known.position));
        let keys =
            self.keys.iter().map(|(key, ended)| (key.as_bytes(), (ended.position, ended.version)));
        (tags.collect::<BTreeMap<_, _>>(), keys.collect::<BTreeMap<_, _>>()).hash(to);
        (self.applied, self.server, self.since, self.everything, self.marked_keys).hash(to);
    }
}

/// Judges an entry that carries `stamp` by what the log says of its `tags`, so many, and after those
/// of what makes it stale.
pub(crate) fn judge_by(said: &LogPositions, tags: usize, stamp: Stamp) -> Liveness {
    let is_later = |position: &u64| stamp.position < *position;
    let (tags, marks) = said.positions.split_at(tags);
    let is_dead = said.header.epoch != stamp.epoch
        || is_later(&said.header.everything)
        || tags.iter().any(is_later);
    if is_dead {
        Liveness::Dead
    } else if is_later(&said.header.everything_stale) || marks.iter().any(is_later) {
        Liveness::Stale(None)
    } else {
        Liveness::Alive
    }
}

/// Forgets the older half of what is known where it is more than `max`. Returns up to which position
/// that is.
fn shrink<K, P>(known: &mut Positions<K, P>, max: usize, position: impl Fn(&P) -> u64) -> u64 {
    if known.len() <= max {
        return 0;
    }
    let mut positions: Vec<_> = known.values().map(&position).collect();
    let middle = positions.len() / 2;
    let cut = *positions.select_nth_unstable(middle).1;
    known.retain(|_, known| position(known) > cut);
    cut
}
