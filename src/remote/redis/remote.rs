//! The trait `Remote` on Redis, for one cache.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::key::Key;
use crate::lease::grant::{FillOutcome, Grant, LeaseRequest, ServerTime, Token, Version};
use crate::lease::wakes::Listener;
use crate::remote::redis::cluster::{NotHeard, Place, SlotInboxes, slot_of, tag_of_slot};
use crate::remote::redis::connection::Script;
use crate::remote::redis::message;
use crate::remote::redis::names::{EntryNames, Names};
use crate::remote::redis::oversize::Oversize;
use crate::remote::redis::pool::Pool;
use crate::remote::redis::reply::{CallFailure, Cause, ServerReply};
use crate::remote::redis::scripts;
use crate::remote::redis::subscriber::Ear;
use crate::remote::{
    AcquireOutcome, Call, InvalidatedRecords, OnNotice, Remote, RemoteErrorKind, RemoteLog,
    RemotePush, Shard,
};

/// Redis as the remote of one cache.
pub(super) struct RedisRemote {
    pub(super) link: Pool,
    pub(super) names: Names,
    pub(super) ear: Arc<Ear>,
    listening: Mutex<Option<AbortOnDropHandle<()>>>,
    oversize: Oversize,
    slots: SlotInboxes,
}

/// Where a process that has to wait is woken.
enum WakeChannel {
    Nowhere,
    OfProcess,
    OfSlot(String),
    /// On that of the slot, once it is subscribed to.
    NotYet(SlotChannel),
}

/// How long a process that has to wait is kept by its subscription, at most: a quarter of the time
/// that its call has, if that is less.
const SUBSCRIBE_LIMIT: Duration = Duration::from_millis(50);

/// The channel of a slot, and the node that has it.
struct SlotChannel {
    slot: u16,
    place: Place,
    name: String,
}

impl SlotChannel {
    fn of(remote: &RedisRemote, key: &Key) -> Option<Self> {
        let cluster = remote.link.cluster()?;
        if !remote.slots.are_of_use() {
            return None;
        }
        let slot = slot_of(&remote.names.value(key));
        let name = remote.names.slot_inbox(remote.ear.process, &tag_of_slot(slot));
        Some(Self { slot, place: cluster.place_of(slot)?, name })
    }

    /// Subscribes. Where that cannot be had, messages arrive on the channel of the process.
    async fn subscribed(self, remote: &RedisRemote) -> WakeChannel {
        let Some(cluster) = remote.link.cluster() else { return WakeChannel::OfProcess };
        let mut place = self.place;
        let limit = remote.link.patience().get().map_or(SUBSCRIBE_LIMIT, |patience| patience / 4);
        let subscribed = timeout(limit.min(SUBSCRIBE_LIMIT), async {
            loop {
                let target = || cluster.seeds.at(&place);
                match remote.slots.subscribe(&place, target, &self.name).await {
                    // The old map is better than none.
                    Err(NotHeard::Elsewhere) => _ = cluster.read_after(Instant::now()).await,
                    subscribed => return subscribed.is_ok(),
                }
                match cluster.place_of(self.slot) {
                    Some(moved) if moved != place => place = moved,
                    _ => return false,
                }
            }
        });
        match subscribed.await {
            Ok(true) => WakeChannel::OfSlot(self.name),
            Ok(false) | Err(_) => WakeChannel::OfProcess,
        }
    }
}

impl RedisRemote {
    pub(super) fn new(link: Pool, names: Names, max_value_bytes: usize) -> Self {
        // As random as the operating system's: processes that start together,
        // on machines that do, must not be taken for each other.
        let process = RandomState::new().hash_one(std::process::id());
        let ear =
            Ear::new(process, names.inbox(process), names.broadcast(link.target().database()));
        let oversize = Oversize::new(max_value_bytes);
        if let Some(cluster) = link.cluster() {
            cluster.has_log_in(slot_of(names.log().tags.as_bytes()));
        }
        let slots = SlotInboxes::new(ear.wakes.clone());
        Self { link, names, ear: Arc::new(ear), listening: Mutex::new(None), oversize, slots }
    }

    /// Runs a script on the names of an entry.
    async fn run(
        &self,
        script: &Script,
        key: &Key,
        args: &[&[u8]],
    ) -> Result<ServerReply, CallFailure> {
        let EntryNames { value, lock, right } = self.names.entry(key);
        self.link.run(script, &[&value, &lock, &right], args).await
    }

    /// Returns the channel that an acquire registers, where that is of use.
    fn wake_channel(&self, key: &Key, ask: &LeaseRequest) -> WakeChannel {
        if !ask.register || !self.ear.is_subscribed() {
            return WakeChannel::Nowhere;
        }
        if let Some(channel) = SlotChannel::of(self, key) {
            return if self.slots.hears(&channel.place, &channel.name) {
                WakeChannel::OfSlot(channel.name)
            } else {
                WakeChannel::NotYet(channel)
            };
        }
        WakeChannel::OfProcess
    }

    async fn ask_for_lease(
        &self,
        key: &Key,
        ask: &LeaseRequest,
        channel: &WakeChannel,
    ) -> Result<AcquireOutcome, CallFailure> {
        let (inbox, kind) = match channel {
            WakeChannel::OfProcess => (&*self.ear.inbox, ""),
            WakeChannel::Nowhere | WakeChannel::NotYet(_) => ("", ""),
            WakeChannel::OfSlot(name) => (&**name, "s"),
        };
        let token = ask.token.to_string();
        let (lease, keep) = (millis(ask.lease), millis(ask.keep));
        let seen = ask.seen.map(|seen| seen.to_string()).unwrap_or_default();
        let most = self.oversize.max_bytes().to_string();
        let args = [&*token, &lease, &keep, inbox, &seen, &most, kind].map(str::as_bytes);
        acquired(&ask.token, &self.run(&scripts::ACQUIRE, key, &args).await?)
    }
}

impl Remote for RedisRemote {
    fn get<'a>(&'a self, key: &'a Key) -> Call<'a, Option<Bytes>> {
        Box::pin(async move {
            let name = self.names.value(key);
            match self.oversize.read(&self.link, &name, key.stable_hash()).await {
                Ok(ServerReply::Nil) => Ok(None),
                Ok(reply) => Ok(Some(reply.bytes()?.clone())),
                Err(failure) if failure.cause == Cause::WrongType => Ok(Some(Bytes::new())),
                Err(failure) => Err(failure.into()),
            }
        })
    }

    fn acquire<'a>(&'a self, key: &'a Key, ask: &'a LeaseRequest) -> Call<'a, AcquireOutcome> {
        Box::pin(async move {
            let channel = self.wake_channel(key, ask);
            let outcome = self.ask_for_lease(key, ask, &channel).await?;
            if let (AcquireOutcome::Locked { .. }, WakeChannel::NotYet(slot)) = (&outcome, channel)
            {
                // A wake-up must find the waiter: the process first listens, then registers.
                let channel = slot.subscribed(self).await;
                return Ok(self.ask_for_lease(key, ask, &channel).await?);
            }
            Ok(outcome)
        })
    }

    fn fill<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        ttl: Duration,
        envelope: Bytes,
    ) -> Call<'a, FillOutcome> {
        Box::pin(async move {
            let (token, version) = (grant.token.to_string(), grant.version.to_string());
            let (ttl, message) = (millis(ttl), message::filled(key, grant.version));
            let args = [token.as_bytes(), version.as_bytes(), ttl.as_bytes(), &envelope, &message];
            match self.run(&scripts::FILL, key, &args).await?.int()? {
                0 => Ok(FillOutcome::Refused),
                1 => Ok(FillOutcome::Stored),
                2 => Ok(FillOutcome::StoredBefore),
                _ => Err(CallFailure::nonsense().into()),
            }
        })
    }

    fn renew<'a>(
        &'a self,
        key: &'a Key,
        grant: &'a Grant,
        ask: &'a LeaseRequest,
    ) -> Call<'a, bool> {
        Box::pin(async move {
            let args = [
                grant.token.to_string(),
                millis(ask.lease),
                millis(ask.keep),
                grant.version.to_string(),
            ];
            let args = args.each_ref().map(String::as_bytes);
            Ok(self.run(&scripts::RENEW, key, &args).await?.int()? == 1)
        })
    }

    fn abandon<'a>(
        &'a self,
        key: &'a Key,
        token: &'a Token,
        hold: Option<Duration>,
    ) -> Call<'a, bool> {
        Box::pin(async move {
            let EntryNames { lock, right, .. } = self.names.entry(key);
            let (token, message) = (token.to_string(), message::abandoned(key));
            let hold = match hold {
                None => "0".to_owned(),
                Some(Duration::ZERO) => "-1".to_owned(),
                Some(hold) => millis(hold),
            };
            let args = [token.as_bytes(), hold.as_bytes(), &message];
            let reply = self.link.run(&scripts::ABANDON, &[&lock, &right], &args).await?;
            Ok(reply.int()? == 1)
        })
    }

    fn invalidate<'a>(&'a self, key: &'a Key) -> Call<'a, InvalidatedRecords> {
        Box::pin(async move {
            let message = message::invalidated(self.ear.process, key);
            // The log tells the others.
            let args = [&b""[..], &message];
            let reply = self.run(&scripts::INVALIDATE, key, &args).await?;
            match reply.array()? {
                [value, lease, digits] => Ok(InvalidatedRecords {
                    value: value.int()? == 1,
                    lease: lease.int()? == 1,
                    version: Some(version(digits)?),
                }),
                _ => Err(CallFailure::nonsense().into()),
            }
        })
    }

    fn put<'a>(
        &'a self,
        key: &'a Key,
        ttl: Duration,
        envelope: Bytes,
    ) -> Call<'a, (ServerTime, Version)> {
        Box::pin(async move {
            let (ttl, message) = (millis(ttl), message::invalidated(self.ear.process, key));
            let args = [ttl.as_bytes(), &envelope, b"", &message];
            match self.run(&scripts::PUT, key, &args).await?.array()? {
                [now, digits] => Ok((time(now)?, version(digits)?)),
                _ => Err(CallFailure::nonsense().into()),
            }
        })
    }

    fn probe(&self, shard: Shard) -> Call<'_, ServerTime> {
        Box::pin(async move {
            let probe = self.names.probe(self.link.tag_of_shard(shard.number()).as_deref());
            let reply = self.link.run(&scripts::PROBE, &[probe.as_bytes()], &[]).await?;
            Ok(time(&reply)?)
        })
    }

    fn log(&self) -> Option<&dyn RemoteLog> {
        Some(self)
    }

    fn push(&self) -> Option<&dyn RemotePush> {
        Some(self)
    }

    fn address(&self) -> String {
        self.link.target().address()
    }

    fn shard_of(&self, key: &Key) -> Shard {
        Shard::new(self.link.shard_of(|| self.names.value(key)))
    }

    fn address_of(&self, shard: Shard) -> String {
        self.link.address_of(shard.number())
    }

    fn connection(&self, shard: Shard) -> u64 {
        self.link.connection_of(shard.number())
    }

    fn is_connecting(&self, shard: Shard) -> bool {
        self.link.is_connecting(shard.number())
    }

    fn suspect(&self, shard: Shard, kind: RemoteErrorKind) {
        // Whatever else failed, the link has seen it itself.
        if kind == RemoteErrorKind::Timeout {
            self.link.suspect_shard(shard.number());
        }
    }
}

impl RemotePush for RedisRemote {
    fn listen(&self, key: &Key) -> Listener {
        self.ear.wakes.listen(key)
    }

    fn is_subscribed(&self) -> bool {
        self.ear.is_subscribed()
    }

    fn attach(&self, listener: Weak<dyn OnNotice>) {
        let listening = Arc::clone(&self.ear).listen(self.link.clone(), listener);
        *self.listening.lock() = Some(AbortOnDropHandle::new(tokio::spawn(listening)));
    }
}

/// Writes a duration that the server takes: at least a millisecond, and not so
/// long that the end of it cannot be counted.
pub(super) fn millis(duration: Duration) -> String {
    const CENTURY: u64 = 100 * 366 * 24 * 3_600_000;
    let millis = u64::try_from(duration.as_millis()).unwrap_or(CENTURY);
    millis.clamp(1, CENTURY).to_string()
}

fn acquired(token: &Token, reply: &ServerReply) -> Result<AcquireOutcome, CallFailure> {
    let [what, now, rest @ ..] = reply.array()? else { return Err(CallFailure::nonsense()) };
    let now = time(now)?;
    match (&**what.bytes()?, rest) {
        (b"H", [value]) => Ok(AcquireOutcome::Hit { now, value: value.bytes()?.clone() }),
        (b"A", [digits, _]) => {
            Ok(AcquireOutcome::Granted(Grant::new(*token, version(digits)?, now)))
        }
        (b"L", [rest, waiting, holder @ ..]) => {
            let waiting = u32::try_from(waiting.number()?).unwrap_or(u32::MAX);
            let holder = holder.first().and_then(|digits| version(digits).ok());
            Ok(AcquireOutcome::Locked { now, left: left(rest)?, waiting, holder })
        }
        (b"B", [rest]) => Ok(AcquireOutcome::Held { now, left: left(rest)? }),
        _ => Err(CallFailure::nonsense()),
    }
}

fn time(reply: &ServerReply) -> Result<ServerTime, CallFailure> {
    Ok(ServerTime::from_millis(reply.number()?))
}

fn left(reply: &ServerReply) -> Result<Duration, CallFailure> {
    Ok(Duration::from_millis(reply.number()?))
}

fn version(reply: &ServerReply) -> Result<Version, CallFailure> {
    Version::from_digits(reply.bytes()?).ok_or_else(CallFailure::nonsense)
}
