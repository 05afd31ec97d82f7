//! The servers and processes together: every step that one of them, or a fault, can take.

use crate::checker::Model;
use crate::protocol::*;
use crate::rules::Rules;
use crate::state::State;

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
