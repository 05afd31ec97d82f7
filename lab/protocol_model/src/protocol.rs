//! The state of the servers and processes, and what one step does to it.
//!
//! There is one key with one tag. The data of the origin is a counter, `db`, that each
//! invalidation raises as it begins: a value is the counter that its computation has read. So
//! the oracle knows the real order: a value is dead after an invalidation if it is smaller
//! than the counter which that invalidation has made.

use crate::rules::Rules;

pub const MAX_PROCESSES: usize = 2;

/// The epoch is random: here the next number that was never used. 0 is none.
type Epoch = u8;
type Position = u8;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Stamp {
    pub epoch: Epoch,
    pub position: Position,
}

/// A value in the remote.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    pub value: u8,
    pub stamp: Stamp,
    pub version: u8,
    /// The version of the original where this is a copy.
    pub origin: u8,
}

/// A value in a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LocalCopy {
    pub value: u8,
    pub stamp: Stamp,
    pub origin: u8,
    pub sent: Stamp,
    pub is_checked: bool,
}

/// The slot of the key. The lock and the right name the token of a grant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct KeySlot {
    pub entry: Option<Entry>,
    pub lock: Option<u8>,
    pub right: Option<Right>,
    /// Ticks with each grant.
    pub clock: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Right {
    pub token: u8,
    pub version: u8,
    /// The version of the entry at the grant; 0 is none.
    pub found: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Log {
    pub epoch: Epoch,
    pub last: Position,
    pub tag: Position,
    pub key: Position,
    pub mark: u8,
    /// The last key item that the ring has lost.
    pub dropped: Position,
    pub replication_id: u8,
    /// The epoch before the failover, and its last position.
    pub previous: Stamp,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Kind {
    Tag,
    Key,
    Everything,
    /// A tag and a key that our entry does not have.
    OtherTag,
    OtherKey,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Item {
    pub kind: Kind,
    pub mark: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Message {
    pub at: Stamp,
    pub item: Item,
}

/// What a process does about the key. Between any two steps it may pause for ever.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reader {
    Idle,
    /// The reply of `GET` is under way. `is_void`: ended here meanwhile.
    Got {
        entry: Option<Entry>,
        sent: Stamp,
        is_void: bool,
    },
    /// Checked and not inserted: without `insert_then_check`.
    Checked {
        copy: LocalCopy,
        is_void: bool,
    },
    Missed {
        seen: u8,
    },
    Granted {
        token: u8,
        version: u8,
        sent: Stamp,
        is_void: bool,
    },
    /// `token` is 0 where no grant was there in time.
    Computed {
        value: u8,
        stamp: Stamp,
        origin: u8,
        sent: Stamp,
        token: u8,
        version: u8,
        is_void: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Writer {
    Idle,
    Begun {
        value: u8,
        kind: Kind,
    },
    /// One of the two places of a key is done.
    Half {
        value: u8,
        mark: u8,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Heartbeat {
    pub log: Option<Log>,
    pub sent: Stamp,
    pub done: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Process {
    pub at: Stamp,
    /// Since here the log was followed without a gap.
    pub since: Position,
    pub left: u16,
    pub tag: Position,
    pub key: Position,
    pub mark: u8,
    /// The replication id that the connection has seen.
    pub connection: u8,
    pub copy: Option<LocalCopy>,
    pub reader: Reader,
    pub writer: Writer,
    pub journal: Option<Item>,
    /// The highest value that an invalidation has made which stands in the journal.
    pub queued: u8,
    pub heartbeat: Option<Heartbeat>,
    pub inbox: [Option<Message>; 2],
    /// For the oracle: values below this one must not be served here.
    pub heard: u8,
}

impl Process {
    pub fn new() -> Self {
        Self {
            at: Stamp::default(),
            since: 0,
            left: 0,
            tag: 0,
            key: 0,
            mark: 0,
            connection: u8::MAX,
            copy: None,
            reader: Reader::Idle,
            writer: Writer::Idle,
            journal: None,
            queued: 0,
            heartbeat: None,
            inbox: [None; 2],
            heard: 0,
        }
    }

    pub fn has_left(&self, epoch: Epoch) -> bool {
        self.left & (1 << epoch) != 0
    }

    /// Ends what this process holds and what is under way in it.
    pub fn forget(&mut self) {
        self.copy = None;
        match &mut self.reader {
            Reader::Got { is_void, .. }
            | Reader::Checked { is_void, .. }
            | Reader::Granted { is_void, .. }
            | Reader::Computed { is_void, .. } => *is_void = true,
            Reader::Idle | Reader::Missed { .. } => {}
        }
    }

    /// Drops the local copy if what the process knows ends it.
    pub fn check_copy(&mut self) {
        let Some(copy) = &mut self.copy else { return };
        let is_dead = copy.stamp.epoch != self.at.epoch
            || copy.sent.epoch != self.at.epoch
            || copy.stamp.position < self.tag
            || copy.sent.position < self.key
            // A gap in between: an item of the key may have been dropped.
            || copy.sent.position < self.since;
        if is_dead {
            self.copy = None;
        } else {
            copy.is_checked = true;
        }
    }

    pub fn apply(&mut self, item: Item, position: Position) {
        match item.kind {
            Kind::Tag => self.tag = self.tag.max(position),
            Kind::Key => {
                self.key = self.key.max(position);
                self.mark = self.mark.max(item.mark);
            }
            Kind::Everything | Kind::OtherTag | Kind::OtherKey => {}
        }
        self.drop_ended();
    }

    pub fn drop_ended(&mut self) {
        let was_checked = self.copy.is_some_and(|copy| copy.is_checked);
        self.check_copy();
        if let Some(copy) = &mut self.copy {
            copy.is_checked = was_checked;
        }
    }

    /// Applies what the log says, up to its last position.
    pub fn follow(&mut self, log: &Log, rules: &Rules) {
        if log.epoch != self.at.epoch {
            if rules.no_return_to_left_epoch && self.has_left(log.epoch) {
                return;
            }
            let is_successor = !rules.old_epoch_is_dead
                && log.previous.epoch != 0
                && log.previous.epoch == self.at.epoch;
            self.left |= 1 << self.at.epoch;
            let is_first = self.at.epoch == 0;
            if is_successor {
                self.translate(log);
            } else {
                self.copy = None;
                self.forget_positions();
                self.since = if rules.begins_at_last || !is_first { log.last } else { 0 };
            }
            self.at = Stamp { epoch: log.epoch, position: log.last };
            self.drop_ended();
            return;
        }
        if log.dropped > self.at.position {
            // Unverified: the copy is asked about at its next use.
            self.copy = None;
            self.since = log.last.max(self.since);
        }
        if log.tag > self.at.position {
            self.apply(Item { kind: Kind::Tag, mark: 0 }, log.tag);
        }
        if log.key > self.at.position {
            self.apply(Item { kind: Kind::Key, mark: log.mark }, log.key);
        }
        self.at.position = self.at.position.max(log.last);
    }

    fn forget_positions(&mut self) {
        self.tag = 0;
        self.key = 0;
        self.mark = 0;
    }

    /// Goes on in the epoch after a failover, and announces again what was lost.
    fn translate(&mut self, log: &Log) {
        let most = log.previous.position;
        if self.tag > most {
            self.journal = Some(Item { kind: Kind::Tag, mark: 0 });
        } else if self.key > most {
            self.journal = Some(Item { kind: Kind::Key, mark: self.mark });
        }
        self.tag = log.tag;
        self.key = log.key;
        self.mark = self.mark.max(log.mark);
        self.since = self.since.min(most);
        if let Some(copy) = &mut self.copy {
            for stamp in [&mut copy.stamp, &mut copy.sent] {
                if stamp.epoch == log.previous.epoch {
                    *stamp = Stamp { epoch: log.epoch, position: stamp.position.min(most) };
                }
            }
        }
    }
}

/// What a process says of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    Alive,
    Dead,
    ReadLog,
}

impl Process {
    /// Judges an entry from memory.
    pub fn judge(&self, entry: &Entry, rules: &Rules) -> Judgement {
        if self.journal.is_some_and(|item| item.kind == Kind::Tag || item.kind == Kind::Everything)
            && rules.journal_bars_entries
        {
            return Judgement::Dead;
        }
        let stamp = entry.stamp;
        if stamp.epoch == 0 && rules.absence_is_no_stamp {
            return Judgement::Dead;
        }
        if self.at.epoch == 0 {
            return Judgement::ReadLog;
        }
        if stamp.epoch != self.at.epoch && stamp.epoch != 0 {
            return if self.has_left(stamp.epoch) && rules.old_epoch_is_dead {
                Judgement::Dead
            } else if rules.unknown_epoch_reads_log {
                Judgement::ReadLog
            } else {
                Judgement::Alive
            };
        }
        if stamp.position > self.at.position {
            return Judgement::ReadLog;
        }
        if stamp.position < self.since && rules.old_stamp_reads_log {
            return Judgement::ReadLog;
        }
        let is_ended = self.tag > stamp.position
            || rules.version_marks && self.key != 0 && entry.origin <= self.mark;
        if is_ended { Judgement::Dead } else { Judgement::Alive }
    }
}

impl Log {
    /// Judges an entry by the log itself.
    pub fn is_alive(&self, entry: &Entry, rules: &Rules) -> bool {
        let mut stamp = entry.stamp;
        if stamp.epoch == 0 && !rules.absence_is_no_stamp {
            stamp.epoch = self.epoch;
        }
        if !rules.old_epoch_is_dead && stamp.epoch != 0 && stamp.epoch == self.previous.epoch {
            let position = stamp.position.min(self.previous.position);
            stamp = Stamp { epoch: self.epoch, position };
        }
        let is_ended = stamp.epoch != self.epoch
            || self.tag > stamp.position
            || rules.version_marks && self.key != 0 && entry.origin <= self.mark
            || rules.dropped_items_end_entries && self.dropped > stamp.position;
        !is_ended
    }
}

impl Process {
    /// What a message says ends in any case; the position moves only where nothing is between.
    pub fn take_message(&mut self, message: Message) {
        if message.at.epoch != self.at.epoch {
            if !matches!(message.item.kind, Kind::OtherTag | Kind::OtherKey) {
                self.copy = None;
            }
            return;
        }
        self.apply(message.item, message.at.position);
        if message.at.position == self.at.position + 1 {
            self.at.position += 1;
        }
    }
}
