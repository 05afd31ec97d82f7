//! The subscription of a process, and what it does with the messages of the others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use crate::lease::wakes::Wakes;
use crate::remote::pause::Pause;
use crate::remote::redis::connection::{ChannelNotice, Command, Subscription};
use crate::remote::redis::message::{Message, wake};
use crate::remote::redis::pool::Pool;
use crate::remote::redis::reply::CallFailure;
use crate::remote::{Notice, OnNotice};

/// A subscription that ends sooner is not one of a server that is back; a server that answers
/// later than this stands still.
const STEADY_AFTER: Duration = Duration::from_secs(2);

/// After how many refused subscriptions in a row the log says so. A server that comes back may
/// refuse some.
const REFUSALS: u32 = 3;

/// Listens to the other processes for one cache.
pub(super) struct Ear {
    pub(super) process: u64,
    pub(super) inbox: String,
    pub(super) broadcast: String,
    pub(super) wakes: Wakes,
    subscribed: AtomicBool,
}

impl Ear {
    pub(super) fn new(process: u64, inbox: String, broadcast: String) -> Self {
        let subscribed = AtomicBool::new(false);
        Self { process, inbox, broadcast, wakes: Wakes::new(), subscribed }
    }

    pub(super) fn is_subscribed(&self) -> bool {
        self.subscribed.load(Ordering::Acquire)
    }

    /// Subscribes and listens, again and again, until the listener is gone.
    pub(super) async fn listen(self: Arc<Self>, link: Pool, listener: Weak<dyn OnNotice>) {
        let (mut pause, mut refusals) = (Pause::of_millis(50, 2000), 0);
        while listener.strong_count() > 0 {
            // Asked before: a server that stands still refuses no subscription.
            let is_refused = refusals == REFUSALS && answers(&link).await;
            let failure = match link.subscribe(&[&self.inbox, &self.broadcast]).await {
                Ok(subscription) => {
                    let since = Instant::now();
                    self.hear(subscription, &listener).await;
                    // A server that takes subscriptions and ends them at once is not one that is back.
                    (since.elapsed() < STEADY_AFTER)
                        .then(|| CallFailure::disconnected("the subscription was ended at once"))
                }
                Err(failure) => Some(failure),
            };
            match failure {
                None => {
                    pause.reset();
                    refusals = 0;
                }
                Some(failure) if is_refused => {
                    let kind = failure.kind.as_str();
                    crate::observe::warn_of_silence(&link.target().address(), kind);
                    refusals += 1;
                }
                Some(_) if refusals < REFUSALS => refusals += 1,
                Some(_) => (),
            }
            sleep(pause.lengthen()).await;
        }
    }

    async fn hear(&self, mut subscription: Subscription, listener: &Weak<dyn OnNotice>) {
        self.subscribed.store(true, Ordering::Release);
        let subscribed = SubscribedMark(&self.subscribed);
        notify(listener, Notice::Subscribed);
        // A wake-up may have been published before the subscription.
        self.wakes.wake_all();
        while let Some(ChannelNotice::Message(channel, message)) = subscription.next().await {
            self.take(&channel, &message, listener);
        }
        drop(subscribed);
        notify(listener, Notice::Unsubscribed);
    }

    fn take(&self, channel: &str, message: &Bytes, listener: &Weak<dyn OnNotice>) {
        let message = Message::decode(message);
        if channel == self.inbox {
            wake(&self.wakes, message);
        } else if let Some(Message::Announced(from, update)) = message
            && from != self.process
        {
            notify(listener, Notice::Announced(update));
        }
    }
}

/// Returns whether the server answers a command now.
async fn answers(link: &Pool) -> bool {
    let ping = Command::new("PING");
    matches!(timeout(STEADY_AFTER, link.send(&ping)).await, Ok(Ok(_)))
}

/// Marks that messages arrive, however the listening ends.
struct SubscribedMark<'a>(&'a AtomicBool);

impl Drop for SubscribedMark<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn notify(listener: &Weak<dyn OnNotice>, notice: Notice) {
    if let Some(listener) = listener.upgrade() {
        listener.on_notice(notice);
    }
}
