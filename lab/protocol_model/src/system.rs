//! The servers and processes together: every step that one of them, or a fault, can take.

use crate::checker::Model;
use crate::protocol::*;
use crate::rules::Rules;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    EvictEntry,
    EvictRight,
    EvictLog,
    LeaseEnds,
    /// A failover of the key's slot, or of the log's, to an empty server.
    EmptyKey,
    EmptyLog,
    /// The same, to a replica that has stopped to follow at any time before.
    LagKey,
    LagLog,
    /// The log cannot be reached by one announcement.
    AnnounceFails,
    /// A process ends and another begins.
    Restart,
}

/// How large a model is.
#[derive(Clone, Copy)]
pub struct Scope {
    pub name: &'static str,
    pub reads: u8,
    pub writes: u8,
    pub kinds: &'static [Kind],
    pub faults: &'static [Fault],
    pub max_faults: u8,
    /// Processes that may invalidate, and that may end: bits.
    pub writers: u8,
    /// A log is there, and both processes have read it.
    pub has_log: bool,
    /// Replies of heartbeats may be late.
    pub has_late_heartbeats: bool,
    /// A process may publish its local copy again.
    pub has_copies: bool,
    /// A process may compute before its grant arrives.
    pub has_soft_timeout: bool,
    /// The log keeps one key item.
    pub has_short_ring: bool,
}

impl Scope {
    pub const BASE: Self = Self {
        name: "",
        reads: 2,
        writes: 1,
        kinds: &[],
        faults: &[],
        max_faults: 0,
        writers: 1,
        has_log: true,
        has_late_heartbeats: false,
        has_copies: false,
        has_soft_timeout: false,
        has_short_ring: false,
    };
}

pub struct System {
    pub scope: Scope,
    pub rules: Rules,
}

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

#[derive(Clone, Copy, Debug)]
pub enum Step {
    Get(usize),
    Judge(usize),
    Insert(usize),
    Check(usize),
    Drop(usize),
    Acquire(usize),
    Republish(usize),
    Compute(usize),
    ComputeWithoutGrant(usize),
    AcquireLate(usize),
    Fill(usize),
    Begin(usize, Kind),
    InvalidateKeySlot(usize),
    Announce(usize),
    AnnounceFails(usize),
    Replay(usize),
    Heartbeat(usize),
    SendHeartbeat(usize),
    TakeHeartbeat(usize),
    Deliver(usize, Kind),
    ReplicaStops(&'static str),
    Fault(Fault),
    Restart(usize),
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
    fn announce(&mut self, p: usize, item: Option<Item>, is_short: bool, rules: &Rules) {
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
    fn contact(&mut self, p: usize, rules: &Rules) {
        let is_checked = self.processes[p].connection == self.replication_id;
        match self.log {
            None if !rules.lost_log_ends_all => {}
            Some(_) if is_checked || !rules.connection_is_checked => {
                self.take_read(p, self.log, self.processes[p].at, self.done, rules);
            }
            _ => self.announce(p, None, false, rules),
        }
    }

    fn take_read(&mut self, p: usize, read: Option<Log>, sent: Stamp, done: u8, rules: &Rules) {
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

    fn judge(&mut self, p: usize, entry: &Entry, rules: &Rules) -> bool {
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

    fn grant(&mut self, p: usize, rules: &Rules) -> (u8, u8) {
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

    fn fill(&mut self, entry: Entry, token: u8, rules: &Rules) {
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
    fn invalidate_slot(&mut self, rules: &Rules) -> (bool, u8) {
        let mark = self.mark(rules);
        let slot = &mut self.slot;
        let was_there = slot.entry.is_some() || slot.right.is_some() || slot.lock.is_some();
        slot.entry = None;
        slot.right = None;
        slot.lock = None;
        (was_there, mark)
    }

    fn mark(&self, rules: &Rules) -> u8 {
        let entry = self.slot.entry.map_or(0, |entry| entry.version);
        let right = self.slot.right.map_or(0, |right| right.version);
        if rules.mark_covers_right { entry.max(right).max(self.slot.clock) } else { entry }
    }

    fn finish(&mut self, p: usize, value: u8) {
        self.done = self.done.max(value);
        let process = &mut self.processes[p];
        process.heard = process.heard.max(value);
        process.writer = Writer::Idle;
    }

    /// No more faults, a heartbeat for each process: then nothing dead is served, and a new
    /// value lives.
    fn comes_to_rest(&self, rules: &Rules) -> Result<(), &'static str> {
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

impl Model for System {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        let mut state = State {
            slot: KeySlot::default(),
            slot_replica: None,
            log: None,
            log_replica: None,
            replication_id: 0,
            epochs: 0,
            reasons: 1,
            tokens: 0,
            db: 0,
            done: 0,
            processes: [Process::new(), Process::new()],
            reads: 0,
            writes: 0,
            faults: 0,
            has_overwritten: false,
        };
        if self.scope.has_log {
            for p in 0..MAX_PROCESSES {
                state.contact(p, &Rules::ALL);
            }
        }
        state
    }

    fn violation(&self, state: &State) -> Option<&'static str> {
        for process in &state.processes {
            let copy = process.copy;
            if copy.is_some_and(|copy| copy.is_checked && copy.value < process.heard) {
                return Some("P1: a dead value is served");
            }
        }
        if state.has_overwritten {
            return Some("fence: an older value has replaced a newer one");
        }
        if state.epochs > state.reasons {
            return Some("false alarm: a new epoch without a loss");
        }
        state.comes_to_rest(&self.rules).err()
    }

    fn next(&self, state: &State, found: &mut Vec<(Step, State)>) {
        for p in 0..MAX_PROCESSES {
            self.read(state, p, found);
            self.write(state, p, found);
            self.listen(state, p, found);
        }
        if state.faults < self.scope.max_faults {
            self.fail(state, found);
        }
    }
}

impl System {
    fn read(&self, state: &State, p: usize, found: &mut Vec<(Step, State)>) {
        let rules = &self.rules;
        let process = &state.processes[p];
        let mut add = |step, change: &mut dyn FnMut(&mut State)| {
            let mut next = state.clone();
            change(&mut next);
            found.push((step, next));
        };
        if process.copy.is_some_and(|copy| !copy.is_checked) {
            add(Step::Check(p), &mut |next| next.processes[p].check_copy());
        }
        let may_read = state.reads < self.scope.reads;
        match process.reader {
            Reader::Idle if may_read && process.copy.is_none() => {
                add(Step::Get(p), &mut |next| {
                    next.reads += 1;
                    let sent = process.at;
                    next.processes[p].reader =
                        Reader::Got { entry: next.slot.entry, sent, is_void: false };
                });
            }
            Reader::Idle => {
                let copy = process.copy.filter(|copy| copy.is_checked);
                if let Some(copy) = copy
                    && self.scope.has_copies
                    && may_read
                    && state.slot.entry.is_none()
                    && state.slot.lock.is_none()
                {
                    add(Step::Republish(p), &mut |next| {
                        next.reads += 1;
                        let (token, version) = next.grant(p, rules);
                        next.processes[p].reader = Reader::Computed {
                            value: copy.value,
                            stamp: if rules.copies_keep_stamp { copy.stamp } else { process.at },
                            origin: if rules.copies_keep_version { copy.origin } else { version },
                            sent: copy.sent,
                            token,
                            version,
                            is_void: false,
                        };
                    });
                }
            }
            Reader::Got { is_void: true, .. } | Reader::Checked { is_void: true, .. } => {
                add(Step::Drop(p), &mut |next| next.processes[p].reader = Reader::Idle);
            }
            Reader::Got { entry: None, .. } => {
                add(Step::Judge(p), &mut |next| {
                    next.processes[p].reader = Reader::Missed { seen: 0 };
                });
            }
            Reader::Got { entry: Some(entry), sent, .. } => {
                add(Step::Judge(p), &mut |next| {
                    if !next.judge(p, &entry, rules) {
                        next.processes[p].reader = Reader::Missed { seen: entry.version };
                        return;
                    }
                    let log = next.log;
                    let process = &mut next.processes[p];
                    let mut stamp = entry.stamp;
                    if stamp.epoch != process.at.epoch {
                        let most = log.map_or(0, |log| log.previous.position);
                        let position = if rules.old_epoch_is_dead {
                            stamp.position
                        } else {
                            stamp.position.min(most)
                        };
                        stamp = Stamp { epoch: process.at.epoch, position };
                    }
                    let sent = if rules.copy_carries_sent_position { sent } else { process.at };
                    let copy = LocalCopy {
                        value: entry.value,
                        stamp,
                        origin: entry.origin,
                        sent,
                        is_checked: false,
                    };
                    if rules.insert_then_check {
                        process.copy = Some(copy);
                        process.reader = Reader::Idle;
                    } else {
                        let mut other = process.clone();
                        other.copy = Some(copy);
                        other.check_copy();
                        process.reader = other
                            .copy
                            .map_or(Reader::Idle, |copy| Reader::Checked { copy, is_void: false });
                    }
                });
            }
            Reader::Checked { copy, .. } => add(Step::Insert(p), &mut |next| {
                next.processes[p].copy = Some(copy);
                next.processes[p].reader = Reader::Idle;
            }),
            Reader::Missed { seen } => {
                add(Step::Acquire(p), &mut |next| {
                    let sent = process.at;
                    next.processes[p].reader = match next.slot.entry {
                        Some(entry) if entry.version != seen => {
                            Reader::Got { entry: Some(entry), sent, is_void: false }
                        }
                        _ if next.slot.lock.is_some() => Reader::Idle,
                        _ => {
                            let (token, version) = next.grant(p, rules);
                            Reader::Granted { token, version, sent, is_void: false }
                        }
                    };
                });
                if self.scope.has_soft_timeout {
                    add(Step::ComputeWithoutGrant(p), &mut |next| {
                        next.processes[p].reader = Reader::Computed {
                            value: state.db,
                            stamp: process.at,
                            origin: 0,
                            sent: process.at,
                            token: 0,
                            version: 0,
                            is_void: false,
                        };
                    });
                }
            }
            Reader::Granted { token, version, sent, is_void } => {
                add(Step::Compute(p), &mut |next| {
                    next.processes[p].reader = Reader::Computed {
                        value: state.db,
                        stamp: process.at,
                        origin: version,
                        sent,
                        token,
                        version,
                        is_void,
                    };
                });
            }
            Reader::Computed { token, .. } => {
                add(Step::Fill(p), &mut |next| self.fill(next, p));
                if token == 0 && !rules.late_grant_is_abandoned && state.slot.lock.is_none() {
                    add(Step::AcquireLate(p), &mut |next| {
                        let grant = next.grant(p, rules);
                        if let Reader::Computed { token, version, origin, .. } =
                            &mut next.processes[p].reader
                        {
                            (*token, *version) = grant;
                            *origin = grant.1;
                        }
                    });
                }
            }
        }
    }

    fn fill(&self, next: &mut State, p: usize) {
        let rules = &self.rules;
        let process = &next.processes[p];
        let Reader::Computed { value, mut stamp, origin, sent, token, version, is_void } =
            process.reader
        else {
            return;
        };
        if !rules.stamp_before_computation {
            stamp = process.at;
        }
        if !rules.positions_not_times {
            stamp.position += 1;
        }
        let is_barred = rules.journal_bars_entries
            && process
                .journal
                .is_some_and(|item| matches!(item.kind, Kind::Tag | Kind::Everything));
        if token != 0 && is_barred {
            if next.slot.lock == Some(token) {
                next.slot.lock = None;
            }
        } else if token != 0 {
            next.fill(Entry { value, stamp, version, origin }, token, rules);
        }
        let process = &mut next.processes[p];
        process.reader = Reader::Idle;
        if !is_void && process.copy.is_none() {
            process.copy = Some(LocalCopy { value, stamp, origin, sent, is_checked: false });
        }
    }

    fn write(&self, state: &State, p: usize, found: &mut Vec<(Step, State)>) {
        let rules = &self.rules;
        let is_short = self.scope.has_short_ring;
        let process = &state.processes[p];
        let is_first = state.writes < self.scope.writes && self.scope.writers & (1 << p) != 0;
        let mut add = |step, change: &mut dyn FnMut(&mut State)| {
            let mut next = state.clone();
            change(&mut next);
            found.push((step, next));
        };
        if let Some(item) = process.journal {
            add(Step::Replay(p), &mut |next| {
                next.announce(p, Some(item), is_short, rules);
                next.processes[p].journal = None;
                next.done = next.done.max(process.queued);
            });
        }
        let may_fail = self.scope.faults.contains(&Fault::AnnounceFails)
            && state.faults < self.scope.max_faults
            && process.journal.is_none();
        match process.writer {
            Writer::Idle if is_first => {
                for &kind in self.scope.kinds {
                    add(Step::Begin(p, kind), &mut |next| {
                        next.writes += 1;
                        let is_ours = !matches!(kind, Kind::OtherTag | Kind::OtherKey);
                        if is_ours {
                            next.db += 1;
                            next.processes[p].forget();
                        }
                        let value = if is_ours { next.db } else { 0 };
                        next.processes[p].writer = Writer::Begun { value, kind };
                    });
                }
            }
            Writer::Begun { value, kind: Kind::Key } if rules.key_before_log => {
                add(Step::InvalidateKeySlot(p), &mut |next| {
                    let (was_there, mark) = next.invalidate_slot(rules);
                    if was_there || rules.empty_slot_is_announced {
                        next.processes[p].writer = Writer::Half { value, mark };
                    } else {
                        next.processes[p].forget();
                        next.finish(p, value);
                    }
                });
            }
            Writer::Begun { value, kind: Kind::Key } => {
                add(Step::Announce(p), &mut |next| {
                    let mark = next.mark(rules);
                    next.announce(p, Some(Item { kind: Kind::Key, mark }), is_short, rules);
                    next.processes[p].writer = Writer::Half { value, mark };
                });
            }
            Writer::Half { value, .. } if !rules.key_before_log => {
                add(Step::InvalidateKeySlot(p), &mut |next| {
                    next.invalidate_slot(rules);
                    next.processes[p].forget();
                    next.finish(p, value);
                });
            }
            Writer::Begun { value, .. } | Writer::Half { value, .. } => {
                let item = match process.writer {
                    Writer::Half { mark, .. } => Item { kind: Kind::Key, mark },
                    Writer::Begun { kind, .. } => Item { kind, mark: 0 },
                    Writer::Idle => return,
                };
                add(Step::Announce(p), &mut |next| {
                    next.announce(p, Some(item), is_short, rules);
                    next.finish(p, value);
                });
                if may_fail {
                    add(Step::AnnounceFails(p), &mut |next| {
                        next.faults += 1;
                        let process = &mut next.processes[p];
                        process.forget();
                        process.journal = rules.journal_keeps_failed.then_some(item);
                        process.queued = process.queued.max(value);
                        process.heard = process.heard.max(value);
                        process.writer = Writer::Idle;
                    });
                }
            }
            Writer::Idle => {}
        }
    }

    fn listen(&self, state: &State, p: usize, found: &mut Vec<(Step, State)>) {
        let rules = &self.rules;
        let process = &state.processes[p];
        let mut add = |step, change: &mut dyn FnMut(&mut State)| {
            let mut next = state.clone();
            change(&mut next);
            found.push((step, next));
        };
        add(Step::Heartbeat(p), &mut |next| next.contact(p, rules));
        if let Some(Heartbeat { log, sent, done }) = process.heartbeat {
            add(Step::TakeHeartbeat(p), &mut |next| {
                next.processes[p].heartbeat = None;
                next.take_read(p, log, sent, done, rules);
            });
        } else if self.scope.has_late_heartbeats
            && (process.connection == state.replication_id || !rules.connection_is_checked)
        {
            add(Step::SendHeartbeat(p), &mut |next| {
                let (log, sent, done) = (state.log, process.at, state.done);
                next.processes[p].heartbeat = Some(Heartbeat { log, sent, done });
            });
        }
        for number in 0..process.inbox.len() {
            if let Some(message) = process.inbox[number] {
                add(Step::Deliver(p, message.item.kind), &mut |next| {
                    let process = &mut next.processes[p];
                    process.inbox[number] = None;
                    process.inbox.sort_unstable_by_key(Option::is_none);
                    process.take_message(message);
                });
            }
        }
    }

    fn fail(&self, state: &State, found: &mut Vec<(Step, State)>) {
        let can = |fault| self.scope.faults.contains(&fault);
        if can(Fault::LagKey) && state.slot_replica.is_none() {
            let next = State { slot_replica: Some(state.slot), ..state.clone() };
            found.push((Step::ReplicaStops("key"), next));
        }
        if can(Fault::LagLog) && state.log_replica.is_none() {
            let next = State { log_replica: Some(state.log), ..state.clone() };
            found.push((Step::ReplicaStops("log"), next));
        }
        for &fault in self.scope.faults {
            let mut next = state.clone();
            next.faults += 1;
            match fault {
                Fault::EvictEntry if state.slot.entry.is_some() => next.slot.entry = None,
                Fault::EvictRight if state.slot.right.is_some() => next.slot.right = None,
                Fault::LeaseEnds if state.slot.lock.is_some() => next.slot.lock = None,
                Fault::EvictLog if state.log.is_some() => {
                    next.log = None;
                    next.reasons += 1;
                }
                Fault::EmptyKey => next.slot = KeySlot::default(),
                Fault::EmptyLog => {
                    next.log = None;
                    next.replication_id += 1;
                    next.reasons += 1;
                }
                Fault::LagKey if state.slot_replica.is_some() => {
                    next.slot = state.slot_replica.unwrap_or_default();
                    next.slot_replica = None;
                }
                Fault::LagLog if state.log_replica.is_some() => {
                    next.log = state.log_replica.flatten();
                    next.log_replica = None;
                    next.replication_id += 1;
                    next.reasons += 1;
                }
                Fault::Restart => {
                    for p in 0..MAX_PROCESSES {
                        let mut next = next.clone();
                        next.processes[p] = Process::new();
                        self.settle(&mut next);
                        found.push((Step::Restart(p), next));
                    }
                    continue;
                }
                _ => continue,
            }
            self.settle(&mut next);
            found.push((Step::Fault(fault), next));
        }
    }

    /// Replicas make no difference any more after the last fault.
    fn settle(&self, next: &mut State) {
        if next.faults == self.scope.max_faults {
            next.slot_replica = None;
            next.log_replica = None;
        }
    }
}
