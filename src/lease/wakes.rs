//! Wake-ups from other processes: which flights wait for which key.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::key::Key;

/// The waiting flights of this process, by the stable hash of their key.
///
/// A wake-up is a hint: the woken leader looks again. Two keys with the same
/// hash wake each other, and one of them without need.
#[derive(Clone, Debug, Default)]
pub struct Wakes(Arc<Mutex<HashMap<u64, Slot, foldhash::fast::RandomState>>>);

#[derive(Debug, Default)]
struct Slot {
    listeners: usize,
    rung: watch::Sender<u64>,
}

impl Wakes {
    /// Makes a board without listeners.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins to listen for `key`. Every wake-up from now on wakes the
    /// listener, also one that comes before it waits.
    #[must_use]
    pub fn listen(&self, key: &Key) -> Listener {
        let hash = key.stable_hash();
        let mut board = self.0.lock();
        let slot = board.entry(hash).or_default();
        slot.listeners += 1;
        Listener { board: self.clone(), hash, rung: slot.rung.subscribe() }
    }

    /// Wakes every listener of the key with this hash.
    pub fn wake(&self, hash: u64) {
        if let Some(slot) = self.0.lock().get(&hash) {
            slot.rung.send_modify(|rung| *rung += 1);
        }
    }

    /// Wakes every listener: messages may have been missed.
    pub fn wake_all(&self) {
        for slot in self.0.lock().values() {
            slot.rung.send_modify(|rung| *rung += 1);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().len()
    }
}

/// One flight that listens for its key; see [`Wakes::listen`].
#[derive(Debug)]
pub struct Listener {
    board: Wakes,
    hash: u64,
    rung: watch::Receiver<u64>,
}

impl Listener {
    /// Waits for a wake-up. Returns at once when there was one since this
    /// listener was made or was last woken.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a dropped wait misses nothing.
    pub async fn woken(&mut self) {
        // The sender lives in the board as long as there is a listener.
        let _ = self.rung.changed().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut board = self.board.0.lock();
        if let Some(slot) = board.get_mut(&self.hash) {
            slot.listeners -= 1;
            if slot.listeners == 0 {
                board.remove(&self.hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_ring_before_the_wait_is_not_missed() {
        let wakes = Wakes::new();
        let key = Key::from("k");
        let mut listener = wakes.listen(&key);
        wakes.wake(key.stable_hash());
        assert!(listener.woken().now_or_never().is_some());
        assert!(listener.woken().now_or_never().is_none(), "once");
    }

    #[test]
    fn a_ring_wakes_every_listener_of_its_key_and_no_other() {
        let wakes = Wakes::new();
        let (a, b) = (Key::from("a"), Key::from("b"));
        let (mut first, mut second) = (wakes.listen(&a), wakes.listen(&a));
        let mut other = wakes.listen(&b);
        wakes.wake(a.stable_hash());
        assert!(first.woken().now_or_never().is_some());
        assert!(second.woken().now_or_never().is_some());
        assert!(other.woken().now_or_never().is_none());
        wakes.wake_all();
        assert!(other.woken().now_or_never().is_some());
    }

    #[test]
    fn a_board_without_listeners_holds_nothing() {
        let wakes = Wakes::new();
        let listeners: Vec<_> = (0..10_u32).map(|n| wakes.listen(&n.into())).collect();
        assert_eq!(wakes.len(), 10);
        drop(listeners);
        assert_eq!(wakes.len(), 0);
    }
}
