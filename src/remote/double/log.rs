//! The invalidation log of the double.

use std::collections::HashMap;
use std::hash::BuildHasher;

use crate::key::{Key, Tag};
use crate::lease::grant::{Epoch, Stamp};
use crate::remote::{LogHeader, LogItem, LogPositions, LogReply};

/// Items that one call returns.
const MOST_READ: usize = 1000;

/// Into so many parts the tags are divided whose records were dropped: one dropped record
/// concerns the tags of its part.
const PARTS: usize = 1024;

/// The log, if there is one, and what survives its loss.
pub(super) struct DoubleLog {
    written: Option<WrittenLog>,
    /// The server that answers now; another after a failover.
    server: u64,
    max_tags: usize,
    max_keys: usize,
}

struct WrittenLog {
    header: LogHeader,
    tags: HashMap<Tag, u64>,
    /// `None`: lost alone.
    keys: Option<HashMap<Key, u64>>,
    /// The position of the last key.
    last_key: u64,
    dropped_tags: HashMap<usize, u64>,
    hasher: foldhash::fast::FixedState,
}

impl Default for DoubleLog {
    fn default() -> Self {
        Self { written: None, server: 1, max_tags: 100_000, max_keys: 4096 }
    }
}

impl DoubleLog {
    pub(super) fn announce(&mut self, items: &[LogItem], from: Option<Stamp>) -> LogReply {
        let server = self.server;
        let is_good = |log: &mut WrittenLog| {
            let last = log.header.last;
            let is_rolled_back =
                from.is_some_and(|from| from.epoch == log.header.epoch && from.position > last);
            log.header.server == server && !is_rolled_back
        };
        if !self.written.as_mut().is_some_and(is_good) {
            self.written = None;
        }
        let log = self.written.get_or_insert_with(|| WrittenLog::new(server));
        log.find_loss_of_keys();
        let reply = log.read(from);
        let previous = log.header.last;
        for item in items {
            log.append(item);
        }
        log.drop_oldest(self.max_tags, self.max_keys);
        LogReply { header: log.header, previous, ..reply }
    }

    pub(super) fn read(&self, from: Option<Stamp>) -> Option<LogReply> {
        self.written.as_ref().map(|log| log.read(from))
    }

    pub(super) fn positions(&self, tags: &[Tag]) -> Option<LogPositions> {
        let log = self.written.as_ref()?;
        let position_of = |tag: &Tag| {
            let known = log.tags.get(tag).copied().unwrap_or_default();
            let dropped = log.dropped_tags.get(&log.part_of(tag)).copied().unwrap_or_default();
            known.max(dropped)
        };
        let positions = tags.iter().map(position_of).collect();
        Some(LogPositions { header: log.header(), positions })
    }
}

/// Faults.
impl DoubleLog {
    pub(super) fn set_bounds(&mut self, tags: usize, keys: usize) {
        (self.max_tags, self.max_keys) = (tags, keys);
    }

    pub(super) fn lose(&mut self) {
        self.written = None;
    }

    pub(super) fn lose_keys(&mut self) {
        if let Some(log) = &mut self.written {
            log.keys = None;
        }
    }

    /// Another server takes over, which lacks the last `lost` items.
    pub(super) fn fail_over(&mut self, lost: u64) {
        self.server += 1;
        self.roll_back(lost);
    }

    /// The last `lost` items go, as if they had never been announced.
    pub(super) fn roll_back(&mut self, lost: u64) {
        let Some(log) = &mut self.written else { return };
        log.header.last = log.header.last.saturating_sub(lost);
        let last = log.header.last;
        log.header.everything = log.header.everything.min(last);
        log.header.everything_stale = log.header.everything_stale.min(last);
        log.last_key = log.last_key.min(last);
        log.tags.retain(|_, position| *position <= last);
        if let Some(keys) = &mut log.keys {
            keys.retain(|_, position| *position <= last);
        }
    }
}

impl WrittenLog {
    fn new(server: u64) -> Self {
        let (everything, everything_stale) = (0, 0);
        let epoch = Epoch::random();
        Self {
            header: LogHeader { epoch, server, last: 0, everything, everything_stale, dropped: 0 },
            tags: HashMap::new(),
            keys: Some(HashMap::new()),
            last_key: 0,
            dropped_tags: HashMap::new(),
            hasher: foldhash::fast::FixedState::default(),
        }
    }

    fn part_of(&self, tag: &Tag) -> usize {
        self.hasher.hash_one(tag.as_bytes()) as usize % PARTS
    }

    /// The header as a reader sees it: keys that were lost are dropped ones.
    fn header(&self) -> LogHeader {
        let lost = if self.keys.is_none() { self.last_key } else { 0 };
        LogHeader { dropped: self.header.dropped.max(lost), ..self.header }
    }

    fn find_loss_of_keys(&mut self) {
        self.header = self.header();
        self.keys.get_or_insert_default();
    }

    fn append(&mut self, item: &LogItem) {
        self.header.last += 1;
        let position = self.header.last;
        match item {
            LogItem::Tag(tag) => {
                self.tags.insert(tag.clone(), position);
            }
            LogItem::Key(key) => {
                self.keys.get_or_insert_default().insert(key.clone(), position);
                self.last_key = position;
            }
            LogItem::Everything => self.header.everything = position,
            LogItem::EverythingStale => self.header.everything_stale = position,
        }
    }

    fn drop_oldest(&mut self, max_tags: usize, max_keys: usize) {
        while self.tags.len() > max_tags {
            let Some((tag, position)) = oldest(&self.tags) else { return };
            self.tags.remove(&tag);
            self.dropped_tags.insert(self.part_of(&tag), position);
            self.header.dropped = self.header.dropped.max(position);
        }
        let Some(keys) = &mut self.keys else { return };
        while keys.len() > max_keys {
            let Some((key, position)) = oldest(keys) else { return };
            keys.remove(&key);
            self.header.dropped = self.header.dropped.max(position);
        }
    }

    fn read(&self, from: Option<Stamp>) -> LogReply {
        let header = self.header();
        let previous = header.last;
        let Some(from) = from.filter(|from| from.epoch == header.epoch) else {
            return LogReply { header, previous, missed: Vec::new(), complete_to: previous };
        };
        let is_missed = |position: &u64| *position > from.position;
        let tags = self.tags.iter().map(|(tag, at)| (*at, LogItem::Tag(tag.clone())));
        let keys = self.keys.iter().flatten().map(|(key, at)| (*at, LogItem::Key(key.clone())));
        let mut missed: Vec<_> = tags.chain(keys).filter(|(at, _)| is_missed(at)).collect();
        missed.sort_unstable_by_key(|(at, _)| *at);
        missed.truncate(MOST_READ);
        let is_cut = missed.len() == MOST_READ;
        let complete_to = missed.last().filter(|_| is_cut).map_or(previous, |(at, _)| *at);
        LogReply { header, previous, missed, complete_to }
    }
}

fn oldest<T: Clone>(records: &HashMap<T, u64>) -> Option<(T, u64)> {
    let oldest = records.iter().min_by_key(|(_, position)| **position);
    oldest.map(|(item, position)| (item.clone(), *position))
}
