//! Keys that are refreshed before they expire, whether any caller reads them or not.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::cache::computation::{self, TakeCall as _, TakenCall};
use crate::cache::key_work::KeyWork;
use crate::cache::state::{CacheState, Lookup};
use crate::cache::typed::{Cache, Loader, WeakCache};
use crate::entry::Entry;
use crate::key::ToKey;
use crate::mode::Mode;

/// The last part of its lifetime in which a value is refreshed: a fifth.
const LAST_PART: u32 = 5;

/// How often the keys are looked at: twenty times in a lifetime, within these bounds.
const LOOKS: u32 = 20;
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Keeps the keys of one [`Cache::keep_fresh`] fresh, until it is dropped.
#[must_use = "the keys are kept fresh as long as this lives"]
pub struct KeepFresh(DropGuard);

impl KeepFresh {
    /// Keeps the keys fresh for as long as their cache lives, or until its
    /// [`shutdown`](crate::Stampede::shutdown).
    pub fn forever(self) {
        drop(self.0.disarm());
    }
}

impl fmt::Debug for KeepFresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepFresh").finish_non_exhaustive()
    }
}

impl<K, V, E> Cache<K, V, E>
where
    K: ToKey + Eq + Hash + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: fmt::Debug + fmt::Display + Send + Sync + 'static,
{
    /// Loads the keys now, and refreshes each in the last fifth of its lifetime, although no
    /// caller reads it. What is invalidated or evicted is loaded again. A task looks at the
    /// keys twenty times in a `ttl`, at most every 10 ms and at least once a second.
    ///
    /// A failure is treated as any other: stale values and holds apply, and it is tried again.
    /// Where several processes share a remote, one of them refreshes a key. While the mode is
    /// not [`On`](Mode::On), nothing is loaded.
    ///
    /// Ends when what it returns is dropped, or the cache is shut down.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::{Cache, Stampede};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let handle = Stampede::in_memory(Duration::from_secs(60));
    /// let squares = Cache::new(handle, |n: u64| async move { Ok::<_, std::io::Error>(n * n) });
    /// let kept = squares.keep_fresh([1, 2, 3]);
    /// // Later, when the keys are of no interest any more:
    /// drop(kept);
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn keep_fresh(&self, keys: impl IntoIterator<Item = K>) -> KeepFresh {
        let keys: HashSet<K> = keys.into_iter().collect();
        let stop = self.handle().0.engine.stop.child_token();
        let guard = KeepFresh(stop.clone().drop_guard());
        // Weak: the keys of a cache that no caller has any more are of no use.
        tokio::spawn(keep(self.downgrade(), keys.into_iter().collect(), stop));
        guard
    }
}

async fn keep<K, V, E>(cache: WeakCache<K, V, E>, keys: Vec<K>, stop: CancellationToken)
where
    K: ToKey + Eq + Hash + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: fmt::Debug + fmt::Display + Send + Sync + 'static,
{
    let Some(pause) = cache.upgrade().map(|cache| pause(&cache.handle().0)) else { return };
    let mut looks = tokio::time::interval(pause);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut loads, mut loading) = (FuturesUnordered::new(), HashSet::new());
    loop {
        let loaded: Option<Vec<K>> = {
            let tick = pin!(looks.tick());
            let load = pin!(async {
                match loads.next().await {
                    Some(loaded) => loaded,
                    None => std::future::pending().await,
                }
            });
            match stop.run_until_cancelled(select(tick, load)).await {
                None => return,
                Some(Either::Left(_)) => None,
                Some(Either::Right((loaded, _))) => Some(loaded),
            }
        };
        if let Some(loaded) = loaded {
            for key in loaded {
                loading.remove(&key);
            }
            continue;
        }
        let Some(cache) = cache.upgrade() else { return };
        if cache.handle().mode() != Mode::On {
            continue;
        }
        let due = |key: &&K| !loading.contains(*key) && is_due(&cache.handle().0, *key);
        let due: Vec<K> = keys.iter().filter(due).cloned().collect();
        let absent = cache.refresh_present(due);
        if !absent.is_empty() {
            loading.extend(absent.iter().cloned());
            loads.push(async move {
                // As many calls at once as refreshes in the background: callers need places.
                let most = cache.handle().0.engine.settings.max_refreshes();
                let load = cache.preload(absent.iter().cloned(), most);
                // A panic of the loader has been reported; the next look tries again.
                drop(AssertUnwindSafe(load).catch_unwind().await);
                absent
            });
        }
    }
}

impl<K, V, E> Cache<K, V, E>
where
    K: ToKey + Eq + Hash + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: fmt::Debug + fmt::Display + Send + Sync + 'static,
{
    /// Begins to refresh the values of those keys that have one, in the background. Returns
    /// the keys without a value.
    fn refresh_present(&self, keys: Vec<K>) -> Vec<K> {
        let state = &self.handle().0;
        let (mut absent, mut present) = (Vec::new(), Vec::new());
        for key in keys {
            let encoded = key.to_key();
            match state.peek(encoded.as_bytes()) {
                Lookup::Fresh(seen)
                | Lookup::Early(seen)
                | Lookup::Stale(seen)
                | Lookup::Unvouched(seen) => {
                    present.push((key, encoded, seen));
                }
                Lookup::Miss(_) => absent.push(key),
            }
        }
        match self.loader() {
            Loader::One(load) => {
                for (key, encoded, seen) in present {
                    let mut later = computation::computed(self.loading(load, &key));
                    let work = KeyWork::serve(state, encoded, None, TakenCall(later.take_call()));
                    state.refresh_in_background(work, &seen);
                }
            }
            Loader::Batch(batcher) => {
                let mut present = present.into_iter().peekable();
                while present.peek().is_some() {
                    let round = batcher.begin_round(state);
                    for (key, encoded, seen) in present.by_ref().take(batcher.max_batch()) {
                        let seat = round.seat(key);
                        let pass = seat.pass();
                        let mut later = computation::computed(move || seat.load());
                        let compute = TakenCall(later.take_call());
                        let work = KeyWork::serve(state, encoded, None, compute).with_pass(pass);
                        state.refresh_in_background(work, &seen);
                    }
                }
            }
        }
        absent
    }
}

fn pause<V: Clone + Send + Sync + 'static>(state: &CacheState<V>) -> Duration {
    let ttl = state.values.lifetimes.map_or(LONGEST_PAUSE, |lifetimes| lifetimes.ttl);
    (ttl / LOOKS).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

fn is_due<V: Clone + Send + Sync + 'static>(state: &CacheState<V>, key: &impl ToKey) -> bool {
    match state.peek(key.to_key().as_bytes()) {
        Lookup::Fresh(entry) | Lookup::Unvouched(entry) => is_nearly_stale(state, &entry),
        Lookup::Early(_) | Lookup::Stale(_) | Lookup::Miss(_) => true,
    }
}

/// Returns whether a value is in the last part of its lifetime.
fn is_nearly_stale<V: Clone + Send + Sync + 'static>(
    state: &CacheState<V>,
    entry: &Entry<V>,
) -> bool {
    let rest = entry.window().fresh_until.since(state.now());
    rest <= entry.window().lifetime() / LAST_PART
}
