//! What this process knows of the invalidation log, and how it judges an entry of the remote.
//!
//! The follower applies items in their order, each once. It remembers the positions of tags
//! since it began to follow, up to a bound. For an entry whose stamp is older than that, the log
//! itself is asked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::clock::Tick;
use crate::key::{Key, Tag};
use crate::lease::grant::Stamp;
use crate::remote::log::{LogHeader, LogItem, LogPositions, LogReply, LogUpdate};

/// How often the log is read on, before copies are dropped instead. Each read brings up to a
/// thousand items.
pub(crate) const MAX_READS: u8 = 8;

#[derive(Debug)]
pub(crate) struct Follower {
    state: Mutex<Option<Known>>,
    max_tags: usize,
    questions: Questions,
}

/// Messages that tell of items which this process has not read. Until a read of the log that is
/// sent after such a message, this process does not know what is alive.
#[derive(Debug, Default)]
struct Questions {
    /// How many there were.
    count: AtomicU64,
    /// The number of the last one that told of another epoch.
    of_epoch: AtomicU64,
    /// Up to which number a read has answered them.
    answered: AtomicU64,
}

impl Questions {
    /// Called under the lock of the state.
    fn arises(&self, is_of_epoch: bool) {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if is_of_epoch {
            self.of_epoch.store(number, Ordering::Relaxed);
        }
    }

    fn is_open(&self) -> bool {
        self.answered.load(Ordering::Relaxed) < self.count.load(Ordering::Relaxed)
    }

    fn is_epoch_open(&self) -> bool {
        self.answered.load(Ordering::Relaxed) < self.of_epoch.load(Ordering::Relaxed)
    }
}

/// What is known of one life of the log.
#[derive(Debug)]
struct Known {
    applied: Stamp,
    /// What was announced after this position is in `tags`, for each tag its last item.
    since: u64,
    tags: HashMap<Tag, Announced, foldhash::fast::RandomState>,
    everything: u64,
    everything_stale: Option<Announced>,
}

/// The last item of a tag.
#[derive(Clone, Copy, Debug)]
struct Announced {
    position: u64,
    /// When this process heard of it; `None` where that was before it followed the log.
    at: Option<Tick>,
}

/// What this process has to do after it has heard of the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Ends locally, in this order.
    pub(crate) items: Vec<LogItem>,
    /// Items may have been missed for good: local copies are of no use any more.
    pub(crate) has_gap: bool,
    /// More is to be read.
    pub(crate) is_behind: bool,
    /// The log has lost items that this process has applied: it must begin again.
    pub(crate) is_rolled_back: bool,
}

/// What this process has announced, and the position of the first of it.
#[derive(Clone, Copy)]
struct OwnItems<'a> {
    first: u64,
    items: &'a [LogItem],
}

impl OwnItems<'_> {
    /// They are known from now on, whatever else was missed.
    fn note(self, known: &mut Known, now: Tick, max_tags: usize) {
        for (n, item) in self.items.iter().enumerate() {
            known.note(self.first.saturating_add(n as u64), item, now, max_tags);
        }
    }

    /// Returns what has to end once more: an item of another process may be hidden by them, as
    /// the log has only the last item of each tag.
    fn end_again(self, is_gapless: bool) -> Vec<LogItem> {
        if is_gapless { Vec::new() } else { self.items.to_vec() }
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

impl Follower {
    /// Makes a follower that remembers at most `max_tags` tags.
    pub(crate) fn new(max_tags: usize) -> Self {
        Self { state: Mutex::new(None), max_tags, questions: Questions::default() }
    }

    /// Returns a number to be taken before a read of the log is sent.
    pub(crate) fn question(&self) -> u64 {
        self.questions.count.load(Ordering::Relaxed)
    }

    /// The read that was sent with this number has brought all of the log.
    pub(crate) fn is_answered(&self, question: u64) {
        self.questions.answered.fetch_max(question, Ordering::Relaxed);
    }

    /// Returns how far the log was applied; `None` before it was read.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        self.state.lock().as_ref().map(|known| known.applied)
    }

    /// Takes what the log has replied to a read, or to an announcement of `own` items. `asked`
    /// was the stamp when the call was sent.
    pub(crate) fn take_reply(
        &self,
        asked: Option<Stamp>,
        reply: &LogReply,
        own: &[LogItem],
        now: Tick,
    ) -> Effect {
        let header = &reply.header;
        let mut state = self.state.lock();
        let left = state.as_ref().map(|known| known.applied.epoch);
        // Another epoch: the server has lost its log, or another server answers.
        if left != Some(header.epoch) {
            // A process never returns to an epoch that it has left: the reply may be late.
            if left.is_some() && left != asked.map(|asked| asked.epoch) {
                return Effect { is_behind: true, ..Effect::default() };
            }
            *state = Some(Known::new(header));
            return Effect { has_gap: true, ..Effect::default() };
        }
        let Some(known) = state.as_mut() else { return Effect::default() };
        let own = OwnItems { first: reply.previous.saturating_add(1), items: own };
        // Where nothing is between what is applied and the own items, they end nothing that they
        // have not ended before. Else they hide what others have announced of the same tags.
        let is_gapless = known.applied.position >= reply.previous;
        if is_gapless {
            own.note(known, now, self.max_tags);
        }
        let asked = asked.filter(|asked| asked.epoch == header.epoch);
        let is_rolled_back = Self::is_rolled_back(header, asked);
        let Some(asked) = asked.filter(|_| !is_rolled_back) else {
            let items = own.end_again(is_gapless);
            own.note(known, now, self.max_tags);
            let is_behind = !is_rolled_back && known.applied.position < header.last;
            return Effect { items, is_behind, is_rolled_back, has_gap: false };
        };
        if known.applied.position.max(asked.position) < header.dropped {
            // Dropped items cannot be read any more.
            *known = Known::new(header);
            return Effect { has_gap: true, ..Effect::default() };
        }
        // The reply says all from `asked` on, as far as it reaches.
        let mut effect = Effect::default();
        known.take_header(header, now, &mut effect);
        for (position, item) in &reply.missed {
            if known.note(*position, item, now, self.max_tags) {
                effect.items.push(item.clone());
            }
        }
        let is_complete = reply.complete_to >= reply.previous;
        if !is_complete {
            effect.items.extend(own.end_again(is_gapless));
        }
        own.note(known, now, self.max_tags);
        let complete_to = if is_complete { header.last } else { reply.complete_to };
        // Where messages have brought this process further than the call was sent from, the
        // reply is as complete.
        known.applied.position = known.applied.position.max(complete_to);
        effect.is_behind = known.applied.position < header.last;
        effect
    }

    /// Gives up to read what was missed, and goes on from where the log is now.
    pub(crate) fn skip_to(&self, header: &LogHeader) {
        *self.state.lock() = Some(Known::new(header));
    }

    /// Takes what another process has announced.
    pub(crate) fn take_update(&self, update: &LogUpdate, now: Tick) -> Effect {
        let mut state = self.state.lock();
        // What it says has ended in any case.
        let ends = || Effect { items: update.items.clone(), is_behind: true, ..Effect::default() };
        let Some(known) = state.as_mut() else { return ends() };
        let last = update.previous.saturating_add(update.items.len() as u64);
        if known.applied.epoch == update.epoch && last <= known.applied.position {
            return Effect::default();
        }
        if known.applied.epoch != update.epoch {
            self.questions.arises(true);
            return ends();
        }
        let mut effect = Effect::default();
        for (n, item) in update.items.iter().enumerate() {
            let position = update.previous.saturating_add(n as u64).saturating_add(1);
            if known.note(position, item, now, self.max_tags) {
                effect.items.push(item.clone());
            }
        }
        // What was announced between the two comes with the next read.
        effect.is_behind = update.previous > known.applied.position;
        if effect.is_behind {
            self.questions.arises(false);
        } else {
            known.applied.position = last;
        }
        effect
    }

    /// Judges an entry with `tags` that carries `stamp`.
    pub(crate) fn judge(&self, tags: &[Tag], stamp: Option<Stamp>) -> Liveness {
        let state = self.state.lock();
        let Some(known) = state.as_ref() else { return Liveness::Behind };
        // Stored by a process that had not read the log.
        let Some(stamp) = stamp else { return Liveness::Dead };
        if stamp.epoch != known.applied.epoch || stamp.position > known.applied.position {
            return Liveness::Behind;
        }
        match known.judge(tags, stamp) {
            Liveness::Dead => Liveness::Dead,
            _ if self.questions.is_open() => Liveness::Behind,
            liveness => liveness,
        }
    }

    /// Judges an entry that the log should be read for, while the log is away. A computation that
    /// was stamped later than what this process knows is one that nothing known has ended.
    pub(crate) fn judge_behind(&self, tags: &[Tag], stamp: Option<Stamp>) -> Liveness {
        let state = self.state.lock();
        match (state.as_ref(), stamp) {
            (Some(known), Some(stamp))
                if stamp.epoch == known.applied.epoch && !self.questions.is_epoch_open() =>
            {
                known.judge(tags, stamp)
            }
            _ => Liveness::Unknown,
        }
    }

    /// Returns whether a log says less than a process had applied when it asked.
    pub(crate) fn is_rolled_back(header: &LogHeader, asked: Option<Stamp>) -> bool {
        asked.is_some_and(|asked| asked.epoch == header.epoch && header.last < asked.position)
    }

    /// Judges an entry that carries `stamp` by what the log says of its tags, and after those of
    /// their stale marks.
    pub(crate) fn judge_by(said: &LogPositions, stamp: Stamp) -> Liveness {
        let is_later = |position: &u64| stamp.position < *position;
        let (tags, marks) = said.positions.split_at(said.positions.len() / 2);
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

    #[cfg(test)]
    fn len(&self) -> usize {
        self.state.lock().as_ref().map_or(0, |known| known.tags.len())
    }
}

impl Known {
    /// Begins to follow the log from its last item on.
    fn new(header: &LogHeader) -> Self {
        let stale = Announced { position: header.everything_stale, at: None };
        Self {
            applied: Stamp::new(header.epoch, header.last),
            since: header.last,
            tags: HashMap::default(),
            everything: header.everything,
            everything_stale: (stale.position > 0).then_some(stale),
        }
    }

    /// Judges an entry by what this process knows.
    fn judge(&self, tags: &[Tag], stamp: Stamp) -> Liveness {
        if stamp.position < self.everything {
            return Liveness::Dead;
        }
        let positions = tags.iter().filter_map(|tag| self.tags.get(tag));
        if positions.into_iter().any(|tag| stamp.position < tag.position) {
            return Liveness::Dead;
        }
        if !tags.is_empty() && stamp.position < self.since {
            return Liveness::Unknown;
        }
        let marks = tags.iter().filter_map(|tag| self.tags.get(&tag.stale_mark()));
        let marks = marks.chain(&self.everything_stale);
        let marks = marks.filter(|mark| stamp.position < mark.position);
        marks.map(|mark| mark.at).min().map_or(Liveness::Alive, Liveness::Stale)
    }

    fn take_header(&mut self, header: &LogHeader, now: Tick, effect: &mut Effect) {
        let both = [
            (header.everything, LogItem::Everything),
            (header.everything_stale, LogItem::EverythingStale),
        ];
        for (position, item) in both {
            if position > self.applied.position && self.note(position, &item, now, usize::MAX) {
                effect.items.push(item);
            }
        }
    }

    /// Notes an item. Returns whether it was new.
    fn note(&mut self, position: u64, item: &LogItem, now: Tick, max_tags: usize) -> bool {
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
            LogItem::Tag(tag) => {
                let known = self.tags.get(tag).map_or(0, |known| known.position);
                if position <= known.max(self.since) {
                    return false;
                }
                self.tags.insert(tag.clone(), announced);
                self.shrink_to(max_tags);
                true
            }
        }
    }

    /// Forgets the older half of the tags where there are more than `max`: for entries with
    /// older stamps the log is asked.
    fn shrink_to(&mut self, max: usize) {
        if self.tags.len() <= max {
            return;
        }
        let mut positions: Vec<_> = self.tags.values().map(|known| known.position).collect();
        let middle = positions.len() / 2;
        let (_, cut, _) = positions.select_nth_unstable(middle);
        let cut = *cut;
        self.tags.retain(|_, known| known.position > cut);
        self.since = self.since.max(cut);
    }
}

/// Returns what is said of keys in the log: one key stands for all that a write to a URI ends.
pub(crate) fn items_of_keys(keys: &[Key]) -> Vec<LogItem> {
    crate::key::announced(keys).into_iter().map(LogItem::Key).collect()
}

#[cfg(test)]
mod tests;
