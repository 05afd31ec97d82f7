//! What arrives on a subscribed connection, and whether it still lives.

use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use redis::aio::{PubSubSink, PubSubStream};
use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout};

use crate::remote::redis::connection::{Command, Connection, failure};
use crate::remote::redis::reply::CallFailure;

/// How often a subscribed server is asked whether it lives, and how long it
/// may take to say so.
const PULSE: Duration = Duration::from_secs(1);

/// Tells whether a subscribed connection still lives.
pub(super) enum Pulse {
    Push(Connection),
    Resp2(PubSubSink),
}

impl Pulse {
    async fn beat(&mut self) -> Result<(), CallFailure> {
        match self {
            Self::Push(connection) => connection.send(&Command::new("PING")).await.map(drop),
            Self::Resp2(sink) => sink.ping::<Value>().await.map(drop).map_err(failure),
        }
    }
}

/// A server that is frozen, or behind a cut cable, sends nothing, like one
/// that has nothing to send: so it is asked.
async fn until_death(mut pulse: Pulse) {
    loop {
        sleep(PULSE).await;
        if !matches!(timeout(PULSE, pulse.beat()).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// What arrives on the channels of a subscribed connection, which is closed
/// when this and its [`Pulse`] are dropped.
pub(super) enum Messages {
    Push(UnboundedReceiver<PushInfo>),
    Resp2(PubSubStream),
}

impl Messages {
    /// Returns what is heard next; nothing when the connection is gone.
    async fn next(&mut self) -> Option<ChannelNotice> {
        match self {
            Self::Push(pushed) => loop {
                let PushInfo { kind, data } = pushed.recv().await?;
                let mut words = data.into_iter().map_while(|word| match word {
                    Value::BulkString(bytes) => Some(bytes),
                    _ => None,
                });
                let channel = words.next().map(|name| String::from_utf8_lossy(&name).into_owned());
                match (kind, channel) {
                    (PushKind::Disconnection, _) => return None,
                    (PushKind::SSubscribe, Some(channel)) => {
                        return Some(ChannelNotice::Subscribed(channel));
                    }
                    (PushKind::SUnsubscribe, Some(channel)) => {
                        return Some(ChannelNotice::Unsubscribed(channel));
                    }
                    (PushKind::Message | PushKind::SMessage, Some(channel)) => {
                        let message = words.next().unwrap_or_default();
                        return Some(ChannelNotice::Message(channel, message.into()));
                    }
                    _ => (),
                }
            },
            Self::Resp2(stream) => {
                let message = stream.next().await?;
                let payload = Bytes::copy_from_slice(message.get_payload_bytes());
                Some(ChannelNotice::Message(message.get_channel_name().to_owned(), payload))
            }
        }
    }
}

/// A connection that hears messages, until it is dropped.
pub(in crate::remote::redis) struct Subscription {
    messages: Messages,
    death: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The same, for commands: only where the server speaks RESP3.
    pub(in crate::remote::redis) connection: Option<Connection>,
}

impl Subscription {
    pub(super) fn new(pulse: Pulse, messages: Messages) -> Self {
        let connection = match &pulse {
            Pulse::Push(connection) => Some(connection.clone()),
            Pulse::Resp2(_) => None,
        };
        Self { messages, death: Box::pin(until_death(pulse)), connection }
    }

    /// Returns what is heard next; nothing when the connection is gone, or its server does not say
    /// that it lives.
    pub(in crate::remote::redis) async fn next(&mut self) -> Option<ChannelNotice> {
        match select(pin!(self.messages.next()), &mut self.death).await {
            Either::Left((next, _)) => next,
            Either::Right(_) => None,
        }
    }
}

/// What a subscribed connection hears.
pub(in crate::remote::redis) enum ChannelNotice {
    /// A message, on this channel.
    Message(String, Bytes),
    /// Of the channel of a slot: messages arrive from now on.
    Subscribed(String),
    /// The same: they do not, also where the slot has gone to another node.
    Unsubscribed(String),
}
