//! The server that the processes share: its state, its faults, its messages.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Weak;
use std::time::Duration;

use parking_lot::Mutex;

use crate::key::{self, Key};
use crate::remote::double::clock::{DoubleClock, Now};
use crate::remote::double::log::DoubleLog;
use crate::remote::double::records::{Inbox, Records, Woken};
use crate::remote::double::shards::DoubleShards;
use crate::remote::{Notice, OnNotice, RemoteError, RemoteErrorKind, RemoteOp, Shard, Wakes};

/// What is done once a command has arrived.
pub(super) type DoubleCommand = Box<dyn FnOnce(&mut DoubleState, Now) + Send>;

#[derive(Default)]
pub(super) struct DoubleServer {
    state: Mutex<DoubleState>,
    /// Held while messages are handed out: one after the other, in order.
    delivery: Mutex<()>,
}

#[derive(Default)]
pub(super) struct DoubleState {
    pub(super) clock: DoubleClock,
    records: HashMap<Key, Records>,
    pub(super) log: DoubleLog,
    pub(super) clients: Vec<DoubleClient>,
    /// All that has arrived since [`Double::forget_calls`](super::Double::forget_calls).
    pub(super) calls: Vec<DoubleCall>,
    pub(super) faults: HashMap<RemoteOp, Fault>,
    /// How the next calls end. They go before `faults`.
    pub(super) scripts: HashMap<RemoteOp, VecDeque<Result<(), RemoteErrorKind>>>,
    pub(super) delay: Duration,
    pub(super) way_there: Duration,
    pub(super) frozen: bool,
    pub(super) loses_messages: bool,
    pub(super) full: bool,
    /// Commands that arrived while frozen.
    backlog: VecDeque<(Shard, DoubleCommand)>,
    pub(super) shards: DoubleShards,
    mail: VecDeque<(Inbox, Message)>,
}

/// The subscriber connection of a process.
#[derive(Clone, Default)]
pub(super) struct DoubleClient {
    pub(super) wakes: Wakes,
    pub(super) listener: Option<Weak<dyn OnNotice>>,
    /// Cut off by the test.
    pub(super) deaf: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Fault {
    /// Not executed.
    Refuses(RemoteErrorKind),
    /// Executed, and answered with an error.
    Garbles(RemoteErrorKind),
    /// Executed, and never answered.
    Mute,
}

/// One call that has arrived at a [`Double`](super::Double): an entry of its
/// [`call_log`](super::Double::call_log). As text, `0 get k` or `1 fill k: timeout`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DoubleCall {
    /// The number of the process, in the order in which [`Double::process`](super::Double::process)
    /// made them, from 0.
    pub process: usize,
    /// What was asked for.
    pub op: RemoteOp,
    /// The key, if the call is about one.
    pub key: Option<Key>,
    /// The error that the test let it end with.
    pub error: Option<RemoteErrorKind>,
}

impl fmt::Display for DoubleCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.process, self.op.as_str())?;
        if let Some(key) = &self.key {
            write!(f, " {}", key::text_of(key.as_bytes()))?;
        }
        match self.error {
            Some(kind) => write!(f, ": {}", kind.as_str()),
            None => Ok(()),
        }
    }
}

enum Message {
    Wake(u64),
    Notice(Notice),
}

impl DoubleServer {
    /// Looks at the state, or changes it, and hands out the messages of it.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut DoubleState, Now) -> T) -> T {
        let result = {
            let mut state = self.state.lock();
            let now = state.clock.now();
            work(&mut state, now)
        };
        self.deliver();
        result
    }

    /// Takes a command. Returns how long its reply is under way and whether
    /// the reply is lost.
    pub(super) fn accept(
        &self,
        call: DoubleCall,
        shard: Shard,
        command: DoubleCommand,
    ) -> Result<(Duration, Option<Fault>), RemoteError> {
        self.with(|state, now| {
            let fault = state.next_fault(call.op);
            let fault_of_shard = state.shards.fault(shard);
            let refused = match fault {
                Some(Fault::Refuses(kind)) => Some(kind),
                _ => fault_of_shard.refuses,
            };
            let error = match fault {
                Some(Fault::Garbles(kind)) if refused.is_none() => Some(kind),
                _ => refused,
            };
            state.calls.push(DoubleCall { error, ..call });
            if let Some(kind) = refused {
                return Err(RemoteError::new(kind));
            }
            if state.frozen || fault_of_shard.is_frozen {
                state.backlog.push_back((shard, command));
            } else {
                command(state, now.ahead(fault_of_shard.ahead));
            }
            Ok((state.delay, fault))
        })
    }

    /// Delivers the pending messages, unless another call further out does so already:
    /// a listener may call back.
    fn deliver(&self) {
        loop {
            let Some(in_order) = self.delivery.try_lock() else { return };
            while let Some((client, message)) = self.next_message() {
                client.receive(message);
            }
            drop(in_order);
            // What came since then was left to us.
            if self.state.lock().mail.is_empty() {
                return;
            }
        }
    }

    fn next_message(&self) -> Option<(DoubleClient, Message)> {
        let mut state = self.state.lock();
        let (inbox, message) = state.mail.pop_front()?;
        Some((state.clients[inbox].clone(), message))
    }
}

impl DoubleClient {
    fn receive(self, message: Message) {
        match message {
            Message::Wake(hash) => self.wakes.wake(hash),
            Message::Notice(notice) => {
                if notice == Notice::Subscribed {
                    self.wakes.wake_all();
                }
                if let Some(listener) = self.listener.and_then(|weak| weak.upgrade()) {
                    listener.on_notice(notice);
                }
            }
        }
    }
}

impl DoubleState {
    /// Works on the records of `key`.
    pub(super) fn at<T>(&mut self, key: &Key, now: Now, work: impl FnOnce(&mut Records) -> T) -> T {
        let records = self.records.entry(key.clone()).or_default();
        records.expire(now);
        let result = work(records);
        if records.is_empty() {
            self.records.remove(key);
        }
        result
    }

    /// Returns what the test lets go wrong with a call that arrives now.
    fn next_fault(&mut self, op: RemoteOp) -> Option<Fault> {
        match self.scripts.get_mut(&op).and_then(VecDeque::pop_front) {
            Some(outcome) => outcome.err().map(Fault::Refuses),
            None => self.faults.get(&op).copied(),
        }
    }

    pub(super) fn flush(&mut self) {
        self.flush_keys();
        self.log.lose();
    }

    pub(super) fn flush_keys(&mut self) {
        self.records.clear();
    }

    pub(super) fn thaw(&mut self) {
        self.frozen = false;
        self.go_on();
    }

    /// Executes what has waited for a shard that is not frozen any more.
    pub(super) fn go_on(&mut self) {
        for (shard, command) in std::mem::take(&mut self.backlog) {
            let fault = self.shards.fault(shard);
            if self.frozen || fault.is_frozen {
                self.backlog.push_back((shard, command));
                continue;
            }
            let now = self.clock.now().ahead(fault.ahead);
            command(self, now);
        }
    }

    pub(super) fn is_subscribed(&self, inbox: Inbox) -> bool {
        let client = &self.clients[inbox];
        client.listener.is_some() && !client.deaf
    }

    pub(super) fn subscribed(&self) -> Vec<Inbox> {
        (0..self.clients.len()).filter(|inbox| self.is_subscribed(*inbox)).collect()
    }

    pub(super) fn wake(&mut self, woken: Woken, key: &Key) {
        for inbox in woken {
            self.send(inbox, Message::Wake(key.stable_hash()));
        }
    }

    /// Tells every process but one.
    pub(super) fn tell_others(&mut self, own: Inbox, notice: &Notice) {
        for inbox in (0..self.clients.len()).filter(|inbox| *inbox != own) {
            self.send(inbox, Message::Notice(notice.clone()));
        }
    }

    fn send(&mut self, inbox: Inbox, message: Message) {
        if !self.loses_messages && self.is_subscribed(inbox) {
            self.mail.push_back((inbox, message));
        }
    }

    /// Tells a process of its own connection, which no fault keeps from it.
    pub(super) fn tell_itself(&mut self, inbox: Inbox, notice: Notice) {
        self.mail.push_back((inbox, Message::Notice(notice)));
    }
}
