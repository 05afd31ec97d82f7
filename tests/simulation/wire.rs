//! The client of one process: it hands each call to the network.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tower_stampede::remote::{
    AcquireOutcome, Call, DoubleProcess, FillOutcome, Grant, InvalidatedRecords, LeaseRequest,
    Listener, LogItem, LogPositions, LogReply, Notice, OnNotice, Remote, RemoteError,
    RemoteErrorKind, RemoteLog, RemoteOp, RemotePush, ServerTime, Shard, Stamp, Token, Version,
};
use tower_stampede::{Key, Tag};

use crate::history::{History, Moment, ProcessId};
use crate::network::{Arrival, Command, Delivery, Network, Return};

type Answer<T> = Result<T, RemoteError>;

pub(crate) struct Wire {
    id: ProcessId,
    network: Arc<Network>,
    process: Arc<DoubleProcess>,
    listener: Mutex<Option<Weak<dyn OnNotice>>>,
    ears: Mutex<Option<Arc<dyn OnNotice>>>,
    /// Rings when something was sent.
    pub(crate) sent: Notify,
    started: Instant,
    started_at: u64,
}

/// Takes notices from the server.
struct Ears {
    id: ProcessId,
    network: Weak<Network>,
}

impl OnNotice for Ears {
    fn on_notice(&self, notice: Notice) {
        if let Some(network) = self.network.upgrade() {
            network.notify(self.id, notice);
        }
    }
}

impl Wire {
    /// Makes the client of a process that starts at `at`; called on its runtime.
    pub(crate) fn new(
        id: ProcessId,
        network: &Arc<Network>,
        process: Arc<DoubleProcess>,
        at: u64,
    ) -> Arc<Self> {
        let wire = Arc::new_cyclic(|_| Self {
            id,
            network: Arc::clone(network),
            process: Arc::clone(&process),
            listener: Mutex::new(None),
            ears: Mutex::new(None),
            sent: Notify::new(),
            started: Instant::now(),
            started_at: at,
        });
        network.connect(process, Arc::downgrade(&wire));
        wire
    }

    /// Returns the time by the clock of the process.
    pub(crate) fn now(&self) -> u64 {
        self.started_at + u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn hand_on(&self, notice: Notice) {
        let listener = self.listener.lock().clone();
        if let Some(listener) = listener.and_then(|weak| weak.upgrade()) {
            listener.on_notice(notice);
        }
    }

    pub(crate) fn listen_to(&self, process: &DoubleProcess) {
        let ears = Ears { id: self.id, network: Arc::downgrade(&self.network) };
        let ears: Arc<dyn OnNotice> = Arc::new(ears);
        *self.ears.lock() = Some(Arc::clone(&ears));
        process.attach(Arc::downgrade(&ears));
    }

    fn history(&self) -> &History {
        &self.network.history
    }

    fn sending(&self) -> (Moment, u64) {
        (self.history().moment(), self.now())
    }

    /// Sends a command. It may be executed also where its caller goes away.
    async fn call<T: Send + 'static>(
        &self,
        op: RemoteOp,
        key: Option<&Key>,
        run: impl FnOnce(Arc<DoubleProcess>) -> Pin<Box<dyn Future<Output = Answer<T>> + Send>>
        + Send
        + 'static,
    ) -> Answer<T> {
        let now = self.now();
        let hash = key.map_or(0, |key| {
            key.as_bytes().iter().fold(7, |hash: u64, byte| hash * 31 + u64::from(*byte))
        });
        let fate = self.network.fate(self.id, op, hash, now);
        let id = self.id;
        self.history().say(|| {
            let fate_text = match (fate.is_lost, fate.returns) {
                (true, _) => "lost",
                (_, Return::Delivered) => "",
                (_, Return::Lost) => "its answer will be lost",
                (_, Return::Cut) => "its answer will be cut",
            };
            let (there, back) = (fate.there, fate.back);
            format!("p{id} sends {op:?} {} ({there}+{back} ms at {now}) {fate_text}", show(key))
        });
        let (reply, answer) = oneshot::channel::<Answer<T>>();
        let reply = Arc::new(Mutex::new(Some(reply)));
        let refusal = Arc::clone(&reply);
        let refuse: Delivery = Box::new(move || {
            if let Some(reply) = refusal.lock().take() {
                let _ = reply.send(Err(RemoteError::new(RemoteErrorKind::Connection)));
            }
        });
        let process = Arc::clone(&self.process);
        let run: Command = Box::new(move || {
            let result = run(process).now_or_never();
            let result = result.unwrap_or_else(|| panic!("the double answers at once"));
            Box::new(move || {
                if let Some(reply) = reply.lock().take() {
                    let _ = reply.send(result);
                }
            })
        });
        if fate.is_lost {
            std::future::pending::<()>().await;
        }
        let (back, returns) = (fate.back, fate.returns);
        let command = Arrival::Command { from: id, run, refuse, back, returns };
        self.network.send(now + fate.there, command);
        self.sent.notify_one();
        match answer.await {
            Ok(answer) => answer,
            // The answer is lost.
            Err(_) => std::future::pending().await,
        }
    }

    /// Notes that the log was read to its end.
    fn heard(&self, sent: (Moment, u64), from: Option<Stamp>, reply: &LogReply) {
        let is_of_log = from.is_none_or(|from| {
            from.epoch == reply.header.epoch && from.position <= reply.header.last
        });
        if is_of_log && reply.complete_to >= reply.previous {
            self.history().hear(self.id, sent);
        } else if from.is_some_and(|from| from.epoch != reply.header.epoch) {
            self.history().hear_anew(self.id, sent);
        }
        let id = self.id;
        self.history().say(|| {
            let header = &reply.header;
            format!(
                "p{id} hears of the log up to {} of {:?}",
                header.last,
                from.map(|f| f.position)
            )
        });
    }
}

fn show(key: Option<&Key>) -> String {
    key.map(|key| format!("k{}", String::from_utf8_lossy(key.as_bytes()))).unwrap_or_default()
}

impl Remote for Wire {
    fn get<'a>(&'a self, key: &'a Key) -> Call<'a, Option<Bytes>> {
        let own = key.clone();
        let run = move |process: Arc<DoubleProcess>| async move { process.get(&own).await }.boxed();
        Box::pin(self.call(RemoteOp::Get, Some(key), run))
    }

    fn acquire<'a>(&'a self, key: &'a Key, ask: &'a LeaseRequest) -> Call<'a, AcquireOutcome> {
        let (own, ask) = (key.clone(), *ask);
        let run = move |process: Arc<DoubleProcess>| {
            async move { process.acquire(&own, &ask).await }.boxed()
        };
        Box::pin(self.call(RemoteOp::Acquire, Some(key), run))
    }

    fn fill<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        ttl: Duration,
        envelope: Bytes,
    ) -> Call<'a, FillOutcome> {
        let (own, grant, network) = (key.clone(), *grant, Arc::clone(&self.network));
        let id = self.id;
        let run = move |process: Arc<DoubleProcess>| {
            async move {
                let filled = process.fill(&own, &grant, ttl, envelope.clone()).await;
                network.history.say(|| {
                    let value = crate::case::find(&envelope);
                    format!("the server: fill of p{id} with {value:?}: {filled:?}")
                });
                if matches!(filled, Ok(FillOutcome::Stored)) {
                    network.history.stored(&envelope);
                }
                filled
            }
            .boxed()
        };
        Box::pin(self.call(RemoteOp::Fill, Some(key), run))
    }

    fn renew<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        ask: &'a LeaseRequest,
    ) -> Call<'a, bool> {
        let (own, grant, ask) = (key.clone(), *grant, *ask);
        let run = move |process: Arc<DoubleProcess>| {
            async move { process.renew(&own, &grant, &ask).await }.boxed()
        };
        Box::pin(self.call(RemoteOp::Renew, Some(key), run))
    }

    fn abandon<'a>(
        &'a self,
        key: &'a Key,
        token: &'a Token,
        hold: Option<Duration>,
    ) -> Call<'a, bool> {
        let (own, token) = (key.clone(), *token);
        let run = move |process: Arc<DoubleProcess>| {
            async move { process.abandon(&own, &token, hold).await }.boxed()
        };
        Box::pin(self.call(RemoteOp::Abandon, Some(key), run))
    }

    fn invalidate<'a>(&'a self, key: &'a Key) -> Call<'a, InvalidatedRecords> {
        let own = key.clone();
        let run = move |process: Arc<DoubleProcess>| {
            async move { process.invalidate(&own).await }.boxed()
        };
        Box::pin(self.call(RemoteOp::Invalidate, Some(key), run))
    }

    fn put<'a>(
        &'a self,
        key: &'a Key,
        ttl: Duration,
        envelope: Bytes,
    ) -> Call<'a, (ServerTime, Version)> {
        let own = key.clone();
        let run = move |process: Arc<DoubleProcess>| {
            async move { process.put(&own, ttl, envelope).await }.boxed()
        };
        Box::pin(self.call(RemoteOp::Put, Some(key), run))
    }

    fn probe(&self, shard: Shard) -> Call<'_, ServerTime> {
        let run =
            move |process: Arc<DoubleProcess>| async move { process.probe(shard).await }.boxed();
        Box::pin(self.call(RemoteOp::Probe, None, run))
    }

    fn log(&self) -> Option<&dyn RemoteLog> {
        Some(self)
    }

    fn push(&self) -> Option<&dyn RemotePush> {
        Some(self)
    }

    fn suspect(&self, _: Shard, _: RemoteErrorKind) {}
}

impl RemoteLog for Wire {
    fn announce<'a>(&'a self, items: &'a [LogItem], from: Option<Stamp>) -> Call<'a, LogReply> {
        let op = if items.is_empty() { RemoteOp::ReadLog } else { RemoteOp::Announce };
        let items = items.to_vec();
        let run = move |process: Arc<DoubleProcess>| {
            async move { process.announce(&items, from).await }.boxed()
        };
        Box::pin(async move {
            let sent = self.sending();
            let reply = self.call(op, None, run).await?;
            self.heard(sent, from, &reply);
            Ok(reply)
        })
    }

    fn read(&self, from: Option<Stamp>) -> Call<'_, Option<LogReply>> {
        let run =
            move |process: Arc<DoubleProcess>| async move { process.read(from).await }.boxed();
        Box::pin(async move {
            let sent = self.sending();
            let reply = self.call(RemoteOp::ReadLog, None, run).await?;
            if let Some(reply) = &reply {
                self.heard(sent, from, reply);
            }
            Ok(reply)
        })
    }

    fn positions<'a>(&'a self, tags: &'a [Tag]) -> Call<'a, Option<LogPositions>> {
        let tags = tags.to_vec();
        let run = move |process: Arc<DoubleProcess>| {
            async move { process.positions(&tags).await }.boxed()
        };
        Box::pin(self.call(RemoteOp::ReadPositions, None, run))
    }
}

impl RemotePush for Wire {
    fn listen(&self, key: &Key) -> Listener {
        self.process.listen(key)
    }

    fn is_subscribed(&self) -> bool {
        self.network.is_subscribed(self.id)
    }

    fn attach(&self, listener: Weak<dyn OnNotice>) {
        *self.listener.lock() = Some(listener);
        let at = self.now() + self.network.fate(self.id, RemoteOp::Probe, 1, self.now()).there;
        self.network.send(at, Arrival::Attach { from: self.id });
        self.sent.notify_one();
    }
}
