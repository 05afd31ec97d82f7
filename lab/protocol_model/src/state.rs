//! The servers and processes at one moment, and what the parts of a step do to them.

use crate::protocol::*;
use crate::rules::Rules;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub slot: KeySlot,
    pub slot_replica: Option<KeySlot>,
    pub log: Option<Log>,
    pub log_replica: Option<Option<Log>>,
    pub replication_id: u8,
    pub epochs: u8,
    /// New epochs that have a reason.
    pub reasons: u8,
    pub tokens: u8,
    pub db: u8,
    /// The highest value made by an invalidation that has returned `Done`.
    pub done: u8,
    pub processes: [Process; MAX_PROCESSES],
    pub reads: u8,
    pub writes: u8,
    pub faults: u8,
    pub has_overwritten: bool,
}

impl State {
    fn tell_others(&mut self, from: usize, message: Message) {
        for (number, process) in self.processes.iter_mut().enumerate() {
            if number != from && process.at.epoch != 0 {
                process.inbox = [Some(message), process.inbox[0]];
            }
        }
    }

    fn new_epoch(&mut self, previous: Stamp, last: u8) -> Log {
        self.epochs += 1;
        Log {
            epoch: self.epochs,
            last,
            tag: 0,
            key: 0,
            mark: 0,
            dropped: 0,
            replication_id: self.replication_id,
            previous,
        }
    }

    /// The head of the script: the log as it is to be used.
    fn script(&mut self, lost: Option<Stamp>, is_certain: bool, rules: &Rules) -> Log {
        let log = match self.log {
            None => self.new_epoch(Stamp::default(), 0),
            Some(log) => {
                let is_other = log.replication_id != self.replication_id;
                let is_rolled_back = lost.is_some_and(|at| {
                    is_certain || at.epoch == log.epoch && at.position > log.last
                });
                if is_other && rules.new_epoch_after_failover {
                    let previous = Stamp { epoch: log.epoch, position: log.last };
                    if rules.old_epoch_is_dead {
                        self.new_epoch(Stamp::default(), log.last)
                    } else {
                        let new = self.new_epoch(previous, log.last);
                        Log { tag: log.tag, key: log.key, mark: log.mark, ..new }
                    }
                } else if is_rolled_back {
                    self.new_epoch(Stamp::default(), log.last)
                } else {
                    log
                }
            }
        };
        self.log = Some(log);
        log
    }

    /// `announce`: the script, then its reply, which arrives at once.
    pub fn announce(&mut self, p: usize, item: Option<Item>, is_short: bool, rules: &Rules) {
        let at = self.processes[p].at;
        let mut log = self.script(Some(at), false, rules);
        if let Some(item) = item {
            if item.kind == Kind::Everything {
                log = self.new_epoch(Stamp::default(), log.last);
                self.reasons += 1;
            }
            let is_in_log = rules.keys_in_log || !matches!(item.kind, Kind::Key | Kind::OtherKey);
            if is_in_log {
                log.last += 1;
            }
            match item.kind {
                Kind::Tag => log.tag = log.last,
                Kind::Key if is_in_log => {
                    log.key = log.last;
                    log.mark = log.mark.max(item.mark);
                }
                Kind::OtherKey if is_short && log.key != 0 => {
                    log.dropped = log.key;
                    log.key = 0;
                    log.mark = 0;
                }
                _ => {}
            }
            self.log = Some(log);
            let at = Stamp { epoch: log.epoch, position: log.last };
            self.tell_others(p, Message { at, item });
        }
        let done = self.done;
        let id = self.replication_id;
        let process = &mut self.processes[p];
        process.connection = id;
        match item {
            Some(item) if !rules.applied_positions_only && process.at.epoch == log.epoch => {
                process.apply(item, log.last);
                process.at.position = log.last;
            }
            _ => process.follow(&log, rules),
        }
        process.heard = process.heard.max(done);
    }

    /// A read of the log that is answered at once.
    pub fn contact(&mut self, p: usize, rules: &Rules) {
        let is_checked = self.processes[p].connection == self.replication_id;
        match self.log {
            None if !rules.lost_log_ends_all => {}
            Some(_) if is_checked || !rules.connection_is_checked => {
                self.take_read(p, self.log, self.processes[p].at, self.done, rules);
            }
            _ => self.announce(p, None, false, rules),
        }
    }

    pub fn take_read(&mut self, p: usize, read: Option<Log>, sent: Stamp, done: u8, rules: &Rules) {
        let Some(log) = read else {
            if rules.lost_log_ends_all {
                self.announce(p, None, false, rules);
            }
            return;
        };
        let known = if rules.roll_back_judged_as_sent { sent } else { self.processes[p].at };
        if log.epoch == known.epoch && log.last < known.position {
            let is_certain = !rules.roll_back_judged_as_sent || !rules.repair_names_position;
            let now = self.script(Some(known), is_certain, rules);
            let process = &mut self.processes[p];
            process.follow(&now, rules);
            process.heard = process.heard.max(self.done);
            return;
        }
        let process = &mut self.processes[p];
        process.follow(&log, rules);
        if process.at.epoch == log.epoch {
            process.heard = process.heard.max(done);
        }
    }

    pub fn judge(&mut self, p: usize, entry: &Entry, rules: &Rules) -> bool {
        match self.processes[p].judge(entry, rules) {
            Judgement::Alive => true,
            Judgement::Dead => false,
            Judgement::ReadLog => {
                self.contact(p, rules);
                match &self.log {
                    // D1: without a log nothing was invalidated.
                    None => true,
                    Some(log) if log.epoch == self.processes[p].at.epoch => {
                        log.is_alive(entry, rules)
                    }
                    Some(_) => false,
                }
            }
        }
    }

    pub fn grant(&mut self, p: usize, rules: &Rules) -> (u8, u8) {
        let slot = &mut self.slot;
        slot.clock += 1;
        let found = slot.entry.map_or(0, |entry| entry.version);
        let mut version = slot.clock.max(found + 1);
        if let Some(right) = slot.right {
            version = version.max(right.version + 1);
        }
        if rules.grant_above_mark {
            version = version.max(self.processes[p].mark + 1);
        }
        self.tokens += 1;
        slot.lock = Some(self.tokens);
        slot.right = Some(Right { token: self.tokens, version, found });
        (self.tokens, version)
    }

    pub fn fill(&mut self, entry: Entry, token: u8, rules: &Rules) {
        let slot = &mut self.slot;
        let version = slot.entry.map_or(0, |entry| entry.version);
        let is_mine = slot.lock == Some(token);
        let is_granted =
            slot.right.is_some_and(|right| right.token == token && right.version == entry.version);
        let is_untouched = version == 0 || slot.right.is_some_and(|right| right.found == version);
        let may = is_granted && is_untouched || is_mine && slot.right.is_none();
        if is_mine {
            slot.lock = None;
        }
        if may || !rules.fill_is_fenced {
            self.has_overwritten |= slot.entry.is_some_and(|old| old.value > entry.value);
            slot.entry = Some(entry);
            slot.right = None;
        } else if is_granted {
            slot.right = None;
        }
    }

    /// The first and the second place of an invalidation by key.
    pub fn invalidate_slot(&mut self, rules: &Rules) -> (bool, u8) {
        let mark = self.mark(rules);
        let slot = &mut self.slot;
        let was_there = slot.entry.is_some() || slot.right.is_some() || slot.lock.is_some();
        slot.entry = None;
        slot.right = None;
        slot.lock = None;
        (was_there, mark)
    }

    pub fn mark(&self, rules: &Rules) -> u8 {
        let entry = self.slot.entry.map_or(0, |entry| entry.version);
        let right = self.slot.right.map_or(0, |right| right.version);
        if rules.mark_covers_right { entry.max(right).max(self.slot.clock) } else { entry }
    }

    pub fn finish(&mut self, p: usize, value: u8) {
        self.done = self.done.max(value);
        let process = &mut self.processes[p];
        process.heard = process.heard.max(value);
        process.writer = Writer::Idle;
    }

    /// No more faults, a heartbeat for each process: then nothing dead is served, and a new
    /// value lives.
    pub fn comes_to_rest(&self, rules: &Rules) -> Result<(), &'static str> {
        let mut state = self.clone();
        for p in 0..MAX_PROCESSES {
            if let Some(item) = state.processes[p].journal.take() {
                state.announce(p, Some(item), false, rules);
            }
        }
        for _ in 0..2 {
            for p in 0..MAX_PROCESSES {
                state.contact(p, rules);
                if let Some(item) = state.processes[p].journal.take() {
                    state.announce(p, Some(item), false, rules);
                }
            }
        }
        let queued = state.processes.iter().map(|process| process.queued).max().unwrap_or(0);
        let least = state.done.max(queued);
        for p in 0..MAX_PROCESSES {
            let copy = state.processes[p].copy;
            if copy.is_some_and(|copy| copy.is_checked && copy.value < least) {
                return Err("convergence: a dead copy is served for ever");
            }
            if let Some(entry) = state.slot.entry
                && entry.value < least
                && state.judge(p, &entry, rules)
            {
                return Err("convergence: a dead value is adopted for ever");
            }
        }
        state.slot.lock = None;
        let (token, version) = state.grant(0, rules);
        let stamp = state.processes[0].at;
        state.fill(Entry { value: state.db, stamp, version, origin: version }, token, rules);
        for p in 0..MAX_PROCESSES {
            let Some(entry) = state.slot.entry else { return Err("a new value is refused") };
            if !state.judge(p, &entry, rules) {
                return Err("a new value is dead");
            }
        }
        Ok(())
    }
}
