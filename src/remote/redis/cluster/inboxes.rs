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
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::lease::wakes::Wakes;
use crate::remote::RemoteErrorKind;
use crate::remote::redis::cluster::slots::Place;
use crate::remote::redis::connection::{
    CONNECT_TIMEOUT, ChannelNotice, Command, Connection, Target,
};
use crate::remote::redis::message::{Message, wake};

/// How long the connection to a node is kept that no process waits at.
const IDLE: Duration = Duration::from_secs(60);

/// How long a server that has refused is not asked again: it may be too old, or the user may
/// lack the right.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// To how many channels a process subscribes at most, over all nodes. Then it begins anew.
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
    task: AbortOnDropHandle<()>,
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
        self.nodes.lock().get(place).is_some_and(|node| {
            !node.task.is_finished() && node.inbox.is_heard(channel) == Some(true)
        })
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
        let node = self.node(place, target).ok_or(NotHeard::Gone)?;
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
        let channels = |node: &NodeTask| node.inbox.channels.lock().len();
        if nodes.values().map(channels).sum::<usize>() >= MOST_CHANNELS {
            nodes.clear();
        }
        if let Some(node) = nodes.get(place) {
            return Some(Arc::clone(&node.inbox));
        }
        let runtime = Handle::try_current().ok()?;
        let inbox = Arc::new(NodeInbox::new(self.wakes.clone()));
        let task = AbortOnDropHandle::new(runtime.spawn(Arc::clone(&inbox).hear(target())));
        nodes.insert(place.clone(), NodeTask { inbox: Arc::clone(&inbox), task });
        Some(inbox)
    }
}

/// Why nothing arrives on a channel.
pub(in crate::remote::redis) enum NotHeard {
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
    /// Whether messages arrive on them by now.
    channels: Mutex<HashMap<String, bool>>,
    changes: watch::Sender<()>,
    /// When it was last of use.
    used: Mutex<Instant>,
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
        let used = Mutex::new(Instant::now());
        Self { wakes, connection, channels: Mutex::default(), changes, used }
    }

    /// Returns whether messages on `channel` arrive; `None` where it was not asked for.
    fn is_heard(&self, channel: &str) -> Option<bool> {
        *self.used.lock() = Instant::now();
        self.channels.lock().get(channel).copied()
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
        self.channels.lock().entry(channel.to_owned()).or_insert(false);
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
            match self.is_heard(channel) {
                Some(true) => return Ok(()),
                Some(false) => changes.changed().await.map_err(|_| NotHeard::Gone)?,
                None => return Err(NotHeard::Gone),
            }
        }
    }

    /// Connects and listens, until the connection is gone or nothing has been waited for in a
    /// while.
    async fn hear(self: Arc<Self>, target: Target) {
        let over = NodeOver(&self);
        let Ok(mut subscription) = target.subscribe(&[], CONNECT_TIMEOUT).await else {
            return;
        };
        let Some(connection) = &subscription.connection else {
            self.connection.send_replace(Link::Refused);
            return;
        };
        self.connection.send_replace(Link::Open(connection.clone()));
        while self.used.lock().elapsed() < IDLE {
            match timeout(IDLE, subscription.next()).await {
                Ok(Some(heard)) => self.take(heard),
                Ok(None) => break,
                Err(_) => (),
            }
        }
        drop(over);
    }

    fn take(&self, heard: ChannelNotice) {
        match heard {
            ChannelNotice::Message(_, message) => wake(&self.wakes, Message::decode(&message)),
            ChannelNotice::Subscribed(channel) => {
                // This process ignores a channel that it has not subscribed to.
                if let Some(is_heard) = self.channels.lock().get_mut(&channel) {
                    *is_heard = true;
                }
                self.changes.send_replace(());
            }
            ChannelNotice::Unsubscribed(channel) => {
                let ended = self.channels.lock().remove(&channel);
                self.changes.send_replace(());
                if ended == Some(true) {
                    // The slot is elsewhere now: waiters must register there.
                    self.wakes.wake_all();
                }
            }
        }
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
