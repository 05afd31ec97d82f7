//! Wake-ups on a cluster: what a process hears on the channels of slots.
//!
//! A plain message goes to every node, and the script that publishes it is told only of the
//! processes that hear it on its own node. A
//! [sharded message](https://redis.io/docs/latest/develop/pubsub/#sharded-pubsub) (Redis 7) goes
//! to the node of its slot, and all processes that hear it are there.
//!
//! A process subscribes to the channel of a slot when it has to wait there, before it registers.
//! Where that fails it registers its other channel, which every node knows. When a slot moves,
//! the node ends the subscription, and all waiters look again.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::lease::wakes::Wakes;
use crate::remote::RemoteErrorKind;
use crate::remote::redis::cluster::slots::Place;
use crate::remote::redis::connection::messages::until_death;
use crate::remote::redis::connection::{
    CONNECT_TIMEOUT, Command, Connection, Pulse, SlotNotice, Target,
};
use crate::remote::redis::message::Message;

/// How long a channel without waiters is kept.
const IDLE: Duration = Duration::from_secs(60);

/// How often that is looked after.
const LOOK_AFTER: Duration = Duration::from_secs(10);

/// How long a server that has refused is not asked again: it may be too old, or the user may
/// lack the right.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// To how many channels a process subscribes at most, over all nodes.
const MOST_CHANNELS: usize = 1024;

/// The subscriptions of one process to channels of slots.
pub(in crate::remote::redis) struct SlotInboxes {
    wakes: Wakes,
    nodes: Mutex<HashMap<Place, NodeTask>>,
    refused: Mutex<Option<Instant>>,
}

/// One node, and the task that hears it.
struct NodeTask {
    inbox: Arc<NodeInbox>,
    task: JoinHandle<()>,
}

impl Drop for NodeTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl SlotInboxes {
    pub(in crate::remote::redis) fn new(wakes: Wakes) -> Self {
        Self { wakes, nodes: Mutex::default(), refused: Mutex::new(None) }
    }

    /// Returns whether a process may be woken on channels of slots.
    pub(in crate::remote::redis) fn are_of_use(&self) -> bool {
        let now = Instant::now();
        self.refused.lock().is_none_or(|at| now.saturating_duration_since(at) >= REFUSED_FOR)
    }

    /// Returns whether messages on `channel` of this node arrive, and keeps it if so.
    pub(in crate::remote::redis) fn hears(&self, place: &Place, channel: &str) -> bool {
        self.nodes.lock().get(place).is_some_and(|node| node.hears(channel))
    }

    /// Subscribes to `channel` on this node. Then messages arrive.
    ///
    /// Cancel safe: the subscription may still begin later.
    pub(in crate::remote::redis) async fn subscribe(
        &self,
        place: &Place,
        target: impl FnOnce() -> Target,
        channel: &str,
    ) -> Result<(), NotHeard> {
        let node = self.node(place, target).ok_or(NotHeard::TooMany)?;
        let subscribed = node.subscribe(channel).await;
        if matches!(subscribed, Err(NotHeard::Refused)) {
            *self.refused.lock() = Some(Instant::now());
        }
        subscribed
    }

    fn node(&self, place: &Place, target: impl FnOnce() -> Target) -> Option<Arc<NodeInbox>> {
        let mut nodes = self.nodes.lock();
        // Also those whose runtime has ended.
        nodes.retain(|_, node| !node.task.is_finished());
        if nodes.values().map(|node| node.inbox.channels.lock().len()).sum::<usize>()
            >= MOST_CHANNELS
        {
            return None;
        }
        if let Some(node) = nodes.get(place) {
            return Some(Arc::clone(&node.inbox));
        }
        let runtime = Handle::try_current().ok()?;
        let inbox = Arc::new(NodeInbox::new(self.wakes.clone()));
        let task = runtime.spawn(Arc::clone(&inbox).hear(target()));
        nodes.insert(place.clone(), NodeTask { inbox: Arc::clone(&inbox), task });
        Some(inbox)
    }
}

impl NodeTask {
    fn hears(&self, channel: &str) -> bool {
        !self.task.is_finished() && self.inbox.touch(channel)
    }
}

/// Why nothing arrives on a channel.
pub(in crate::remote::redis) enum NotHeard {
    /// The process has as many channels as it may have.
    TooMany,
    /// The server does not know the command, or the user may not send it.
    Refused,
    /// The slot is at another node.
    Elsewhere,
    /// The connection is.
    Gone,
}

/// What one node tells.
struct NodeInbox {
    wakes: Wakes,
    connection: watch::Sender<Link>,
    channels: Mutex<HashMap<String, SlotSubscription>>,
    changes: watch::Sender<()>,
}

/// A channel of a slot.
struct SlotSubscription {
    phase: Phase,
    /// When it was last of use.
    used: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It was asked for.
    Asked,
    /// Messages arrive.
    Heard,
    /// It was asked to end. What the server says next of it is the end.
    Ending,
}

#[derive(Clone)]
enum Link {
    Opening,
    Open(Connection),
    /// The server speaks RESP2, where a connection that hears messages takes no other commands.
    Refused,
    Gone,
}

impl NodeInbox {
    fn new(wakes: Wakes) -> Self {
        let (connection, changes) = (watch::Sender::new(Link::Opening), watch::Sender::new(()));
        Self { wakes, connection, channels: Mutex::default(), changes }
    }

    /// Returns whether messages on `channel` arrive, and keeps it if so.
    fn touch(&self, channel: &str) -> bool {
        self.phase(channel) == Some(Phase::Heard)
    }

    fn phase(&self, channel: &str) -> Option<Phase> {
        let mut channels = self.channels.lock();
        let subscription = channels.get_mut(channel)?;
        subscription.used = Instant::now();
        Some(subscription.phase)
    }

    async fn subscribe(&self, channel: &str) -> Result<(), NotHeard> {
        let mut changes = self.changes.subscribe();
        let mut link = self.connection.subscribe();
        let connection = match link.wait_for(|link| !matches!(link, Link::Opening)).await.as_deref()
        {
            Ok(Link::Open(connection)) => connection.clone(),
            Ok(Link::Refused) => return Err(NotHeard::Refused),
            _ => return Err(NotHeard::Gone),
        };
        let asked = SlotSubscription { phase: Phase::Asked, used: Instant::now() };
        self.channels.lock().entry(channel.to_owned()).or_insert(asked);
        if self.phase(channel) == Some(Phase::Ending) {
            return Err(NotHeard::Gone);
        }
        let command = Command::new("SSUBSCRIBE").arg(channel);
        if let Err(failure) = connection.send(&command).await {
            self.channels.lock().remove(channel);
            return Err(match failure.kind {
                RemoteErrorKind::Denied | RemoteErrorKind::Protocol => NotHeard::Refused,
                RemoteErrorKind::TryAgain => NotHeard::Elsewhere,
                _ => NotHeard::Gone,
            });
        }
        // What the client takes for the reply may be the end of another subscription. So only
        // what was told of this channel counts.
        loop {
            match self.phase(channel) {
                Some(Phase::Heard) => return Ok(()),
                Some(Phase::Asked) => changes.changed().await.map_err(|_| NotHeard::Gone)?,
                Some(Phase::Ending) | None => return Err(NotHeard::Gone),
            }
        }
    }

    /// Connects and listens, until the connection is gone or nothing has been waited for in a
    /// while.
    async fn hear(self: Arc<Self>, target: Target) {
        let over = NodeOver(&self);
        let Ok((pulse, mut messages)) = target.subscribe(&[], CONNECT_TIMEOUT).await else {
            return;
        };
        let Pulse::Push(connection) = &pulse else {
            self.connection.send_replace(Link::Refused);
            return;
        };
        let connection = connection.clone();
        self.connection.send_replace(Link::Open(connection.clone()));
        let mut death = std::pin::pin!(until_death(pulse));
        let mut looked = Instant::now();
        loop {
            let next = std::pin::pin!(timeout(LOOK_AFTER, messages.next_of_slots()));
            match select(next, death.as_mut()).await {
                Either::Left((Ok(Some(notice)), _)) => self.take(notice),
                Either::Left((Err(_), _)) => (),
                Either::Left((Ok(None), _)) | Either::Right(_) => break,
            }
            if looked.elapsed() >= LOOK_AFTER {
                looked = Instant::now();
                if !self.forget_idle(&connection) {
                    break;
                }
            }
        }
        drop(over);
    }

    fn take(&self, notice: SlotNotice) {
        match notice {
            SlotNotice::Message(message) => self.wake(&message),
            SlotNotice::Subscribed(channel) => {
                // This process ignores a channel that it has not subscribed to.
                if let Some(subscription) = self.channels.lock().get_mut(&channel)
                    && subscription.phase == Phase::Asked
                {
                    subscription.phase = Phase::Heard;
                }
                self.changes.send_replace(());
            }
            SlotNotice::Unsubscribed(channel) => {
                let ended = self.channels.lock().remove(&channel);
                self.changes.send_replace(());
                if ended.is_some_and(|subscription| subscription.phase == Phase::Heard) {
                    // The slot is elsewhere now: waiters must register there.
                    self.wakes.wake_all();
                }
            }
        }
    }

    fn wake(&self, message: &Bytes) {
        match Message::decode(message) {
            Some(Message::Woken(hash)) => self.wakes.wake(hash),
            Some(Message::Invalidated(_, key)) => self.wakes.wake(key.stable_hash()),
            _ => self.wakes.wake_all(),
        }
    }

    /// Ends the subscriptions that have been of no use. Returns whether any is left.
    fn forget_idle(self: &Arc<Self>, connection: &Connection) -> bool {
        let now = Instant::now();
        let mut channels = self.channels.lock();
        let mut idle = Vec::new();
        for (channel, subscription) in channels.iter_mut() {
            let is_idle = now.saturating_duration_since(subscription.used) >= IDLE;
            if is_idle && subscription.phase != Phase::Ending {
                subscription.phase = Phase::Ending;
                idle.push(channel.clone());
            }
        }
        // Channels of several slots are not for one command.
        for channel in idle {
            let command = Command::new("SUNSUBSCRIBE").arg(&channel);
            let (connection, me) = (connection.clone(), Arc::clone(self));
            // Sent in the background: the end is heard like all else.
            tokio::spawn(async move {
                let sent = timeout(LOOK_AFTER, connection.send(&command)).await;
                if !matches!(sent, Ok(Ok(_))) {
                    me.channels.lock().remove(&channel);
                }
            });
        }
        !channels.is_empty()
    }
}

/// However the listening ends: no message arrives any more, and all waiters look again.
struct NodeOver<'a>(&'a NodeInbox);

impl Drop for NodeOver<'_> {
    fn drop(&mut self) {
        self.0.connection.send_if_modified(|link| {
            let is_new = !matches!(link, Link::Refused);
            if is_new {
                *link = Link::Gone;
            }
            is_new
        });
        let was_of_use = !std::mem::take(&mut *self.0.channels.lock()).is_empty();
        self.0.changes.send_replace(());
        if was_of_use {
            self.0.wakes.wake_all();
        }
    }
}

impl fmt::Debug for SlotInboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.nodes.lock().keys()).finish()
    }
}
