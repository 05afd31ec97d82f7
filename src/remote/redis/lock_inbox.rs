//! How a process hears that a lock is free again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::key::Key;
use crate::lease::wakes::{Listener, Wakes};
use crate::remote::redis::connection::ChannelNotice;
use crate::remote::redis::credentials::retry_pause;
use crate::remote::redis::pool::WeakPool;

/// The channel on which one process hears of locks, and the waiters for them. It is subscribed to
/// from the first wait on.
#[derive(Debug)]
pub(super) struct LockInbox {
    channel: String,
    wakes: Wakes,
    is_subscribed: AtomicBool,
    listening: Mutex<Option<JoinHandle<()>>>,
}

impl LockInbox {
    pub(super) fn new(channel: String) -> Self {
        let (wakes, is_subscribed) = (Wakes::new(), AtomicBool::new(false));
        Self { channel, wakes, is_subscribed, listening: Mutex::new(None) }
    }

    /// Begins to wait for the lock of this name. Every message from now on wakes the listener.
    pub(super) fn listen(self: &Arc<Self>, name: &[u8], pool: WeakPool) -> Listener {
        let mut listening = self.listening.lock();
        // Also where its runtime has ended.
        if listening.as_ref().is_none_or(JoinHandle::is_finished) {
            self.is_subscribed.store(false, Ordering::Release);
            *listening = Some(tokio::spawn(Arc::clone(self).subscribe_again_and_again(pool)));
        }
        self.wakes.listen(&Key::from_encoded(name))
    }

    /// Returns the channel that a waiting process registers: none while nothing would arrive.
    pub(super) fn channel(&self) -> &str {
        if self.is_subscribed.load(Ordering::Acquire) { &self.channel } else { "" }
    }

    async fn subscribe_again_and_again(self: Arc<Self>, pool: WeakPool) {
        let mut backoff = retry_pause();
        while let Some(link) = pool.upgrade() {
            let subscribed = link.subscribe(&[&self.channel]).await;
            drop(link);
            if let Ok(mut subscription) = subscribed {
                backoff.reset();
                self.is_subscribed.store(true, Ordering::Release);
                // The waiters have not registered yet, or with the subscription before.
                self.wakes.wake_all();
                while let Some(ChannelNotice::Message(_, name)) = subscription.next().await {
                    self.wakes.wake(Key::from_encoded(&name).stable_hash());
                }
                self.is_subscribed.store(false, Ordering::Release);
                self.wakes.wake_all();
            }
            sleep(backoff.lengthen()).await;
        }
    }

    pub(super) fn stop(&self) {
        if let Some(listening) = &*self.listening.lock() {
            listening.abort();
        }
    }
}
