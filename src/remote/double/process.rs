//! One process's client of the double.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::key::{Key, Tag};
use crate::remote::double::clock::Now;
use crate::remote::double::records::{Inbox, OutOfMemory};
use crate::remote::double::server::{DoubleCall, DoubleCommand, DoubleServer, DoubleState, Fault};
use crate::remote::{
    AcquireOutcome, Call, FillOutcome, Grant, InvalidatedRecords, LeaseRequest, Listener, LogItem,
    LogPositions, LogReply, LogUpdate, Notice, OnNotice, Remote, RemoteError, RemoteErrorKind,
    RemoteLog, RemoteOp, RemotePush, ServerTime, Shard, Stamp, Token, Version, Wakes,
};

/// Shorter envelopes have no room for a version.
const SHORTEST: usize = 20;

/// One process's client of a [`Double`](crate::remote::double::Double), with wake-ups and
/// notices of its own.
pub struct DoubleProcess {
    server: Arc<DoubleServer>,
    inbox: Inbox,
    wakes: Wakes,
    suspicions: Mutex<Vec<RemoteErrorKind>>,
}

impl DoubleProcess {
    pub(super) fn new(server: Arc<DoubleServer>, inbox: Inbox, wakes: Wakes) -> Self {
        Self { server, inbox, wakes, suspicions: Mutex::default() }
    }

    /// Cuts this process off from wake-ups and notices; it is told so. Before
    /// it listens at all, this keeps it from doing so.
    pub fn unsubscribe(&self) {
        self.server.with(|state, _| {
            let was_subscribed = state.is_subscribed(self.inbox);
            state.clients[self.inbox].deaf = true;
            if was_subscribed {
                state.tell_itself(self.inbox, Notice::Unsubscribed);
            }
        });
    }

    /// Ends [`unsubscribe`](Self::unsubscribe): the process is told so, and
    /// all its waiting callers are woken.
    pub fn subscribe(&self) {
        self.server.with(|state, _| {
            let was_subscribed = state.is_subscribed(self.inbox);
            state.clients[self.inbox].deaf = false;
            if !was_subscribed && state.is_subscribed(self.inbox) {
                state.tell_itself(self.inbox, Notice::Subscribed);
            }
        });
    }

    /// Returns what [`Remote::suspect`] was told, oldest first.
    #[must_use]
    pub fn suspicions(&self) -> Vec<RemoteErrorKind> {
        self.suspicions.lock().clone()
    }

    /// Lets a command arrive: at once, or after its way there, also if the
    /// caller has gone meanwhile.
    async fn send(
        &self,
        call: DoubleCall,
        shard: Shard,
        command: DoubleCommand,
    ) -> Result<(Duration, Option<Fault>), RemoteError> {
        let way = self.server.with(|state, _| state.way_there);
        if way.is_zero() {
            return self.server.accept(call, shard, command);
        }
        let server = Arc::clone(&self.server);
        let arrival = tokio::spawn(async move {
            tokio::time::sleep(way).await;
            server.accept(call, shard, command)
        });
        arrival.await.unwrap_or_else(|_| Err(RemoteError::new(RemoteErrorKind::Connection)))
    }

    /// Sends a command when first polled. Dropped after that, it is executed
    /// all the same, as it would be by a server.
    fn call<'a, T: Send + 'static>(
        &'a self,
        op: RemoteOp,
        key: Option<&Key>,
        shard: Shard,
        work: impl FnOnce(&mut DoubleState, Now) -> Result<T, RemoteError> + Send + 'static,
    ) -> Call<'a, T> {
        let call = DoubleCall { process: self.inbox, op, key: key.cloned(), error: None };
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            let command = Box::new(move |state: &mut DoubleState, now| {
                // The caller may be gone.
                let _ = reply.send(work(state, now));
            });
            let (delay, fault) = self.send(call, shard, command).await?;
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            let answer = answer.await;
            match fault {
                Some(Fault::Mute) => std::future::pending().await,
                Some(Fault::Garbles(kind) | Fault::Refuses(kind)) => Err(RemoteError::new(kind)),
                // The command was dropped: the server is gone.
                None => {
                    answer.unwrap_or_else(|_| Err(RemoteError::new(RemoteErrorKind::Connection)))
                }
            }
        })
    }

    /// The same, about a key.
    fn call_at<'a, T: Send + 'static>(
        &'a self,
        op: RemoteOp,
        key: &Key,
        work: impl FnOnce(&mut DoubleState, &Key, Now) -> Result<T, RemoteError> + Send + 'static,
    ) -> Call<'a, T> {
        let (shard, at) = (Remote::shard_of(self, key), key.clone());
        self.call(op, Some(key), shard, move |state, now| work(state, &at, now))
    }
}

impl Remote for DoubleProcess {
    fn get<'a>(&'a self, key: &'a Key) -> Call<'a, Option<Bytes>> {
        self.call_at(RemoteOp::Get, key, |state, key, now| Ok(state.at(key, now, |r| r.envelope())))
    }

    fn acquire<'a>(&'a self, key: &'a Key, ask: &'a LeaseRequest) -> Call<'a, AcquireOutcome> {
        let (ask, inbox) = (*ask, self.inbox);
        self.call_at(RemoteOp::Acquire, key, move |state, key, now| {
            let (full, subscribed) = (state.full, state.is_subscribed(inbox));
            let inbox = (ask.register && subscribed).then_some(inbox);
            Ok(state.at(key, now, |records| records.acquire(now, &ask, inbox, full))?)
        })
    }

    fn fill<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        ttl: Duration,
        envelope: Bytes,
    ) -> Call<'a, FillOutcome> {
        let grant = *grant;
        self.call_at(RemoteOp::Fill, key, move |state, key, now| {
            let full = state.full;
            let (filled, woken) =
                state.at(key, now, |records| records.fill(now, &grant, ttl, envelope, full))?;
            state.wake(woken, key);
            Ok(filled)
        })
    }

    fn renew<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        ask: &'a LeaseRequest,
    ) -> Call<'a, bool> {
        let (grant, ask) = (*grant, *ask);
        self.call_at(RemoteOp::Renew, key, move |state, key, now| {
            Ok(state.at(key, now, |records| records.renew(now, &grant, &ask)))
        })
    }

    fn abandon<'a>(
        &'a self,
        key: &'a Key,
        token: &'a Token,
        hold: Option<Duration>,
    ) -> Call<'a, bool> {
        let token = *token;
        self.call_at(RemoteOp::Abandon, key, move |state, key, now| {
            let (full, hearing) = (state.full, state.subscribed());
            let (done, woken) =
                state.at(key, now, |records| records.abandon(now, &token, hold, &hearing, full));
            state.wake(woken, key);
            Ok(done)
        })
    }

    fn invalidate<'a>(&'a self, key: &'a Key) -> Call<'a, InvalidatedRecords> {
        self.call_at(RemoteOp::Invalidate, key, move |state, key, now| {
            let (found, woken) = state.at(key, now, |records| records.invalidate(now));
            state.wake(woken, key);
            Ok(found)
        })
    }

    fn put<'a>(
        &'a self,
        key: &'a Key,
        ttl: Duration,
        envelope: Bytes,
    ) -> Call<'a, (ServerTime, Version)> {
        self.call_at(RemoteOp::Put, key, move |state, key, now| {
            if envelope.len() < SHORTEST {
                return Err(RemoteError::new(RemoteErrorKind::Protocol));
            }
            let full = state.full;
            let (put, woken) = state.at(key, now, |r| r.put(now, ttl, &envelope, full));
            state.wake(woken, key);
            Ok((now.reading(), put?))
        })
    }

    fn probe(&self, shard: Shard) -> Call<'_, ServerTime> {
        self.call(RemoteOp::Probe, None, shard, |_, now| Ok(now.reading()))
    }

    fn log(&self) -> Option<&dyn RemoteLog> {
        Some(self)
    }

    fn push(&self) -> Option<&dyn RemotePush> {
        Some(self)
    }

    fn shard_of(&self, key: &Key) -> Shard {
        self.server.with(|state, _| state.shards.shard_of(key))
    }

    fn address_of(&self, shard: Shard) -> String {
        match self.server.with(|state, _| state.shards.count()) {
            0 | 1 => self.address(),
            _ => format!("{} {}", self.address(), shard.number()),
        }
    }

    fn suspect(&self, _: Shard, kind: RemoteErrorKind) {
        self.suspicions.lock().push(kind);
    }
}

impl RemoteLog for DoubleProcess {
    fn announce<'a>(&'a self, items: &'a [LogItem], from: Option<Stamp>) -> Call<'a, LogReply> {
        let (items, inbox) = (items.to_vec(), self.inbox);
        let op = if items.is_empty() { RemoteOp::ReadLog } else { RemoteOp::Announce };
        self.call(op, None, Shard::ONLY, move |state, _| {
            let reply = state.log.announce(&items, from);
            if !items.is_empty() {
                let (epoch, previous) = (reply.header.epoch, reply.previous);
                let update = LogUpdate { epoch, previous, items };
                state.tell_others(inbox, &Notice::Announced(update));
            }
            Ok(reply)
        })
    }

    fn read(&self, from: Option<Stamp>) -> Call<'_, Option<LogReply>> {
        self.call(RemoteOp::ReadLog, None, Shard::ONLY, move |state, _| Ok(state.log.read(from)))
    }

    fn positions<'a>(&'a self, tags: &'a [Tag]) -> Call<'a, Option<LogPositions>> {
        let tags = tags.to_vec();
        self.call(RemoteOp::ReadPositions, None, Shard::ONLY, move |state, _| {
            Ok(state.log.positions(&tags))
        })
    }
}

impl RemotePush for DoubleProcess {
    fn listen(&self, key: &Key) -> Listener {
        self.wakes.listen(key)
    }

    fn is_subscribed(&self) -> bool {
        self.server.with(|state, _| state.is_subscribed(self.inbox))
    }

    fn attach(&self, listener: Weak<dyn OnNotice>) {
        self.server.with(|state, _| {
            state.clients[self.inbox].listener = Some(listener);
            if state.is_subscribed(self.inbox) {
                state.tell_itself(self.inbox, Notice::Subscribed);
            }
        });
    }
}

impl From<OutOfMemory> for RemoteError {
    fn from(_: OutOfMemory) -> Self {
        Self::new(RemoteErrorKind::OutOfMemory)
    }
}

impl fmt::Debug for DoubleProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DoubleProcess").field("inbox", &self.inbox).finish_non_exhaustive()
    }
}
