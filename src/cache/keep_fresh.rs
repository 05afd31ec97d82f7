//! Keys that are refreshed before they expire, whether any caller reads them or not.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either, join_all, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::cache::batch::{Gathering, Member};
use crate::cache::computation::{CallerClosure, TakeCall as _, TakenCall};
use crate::cache::key_work::KeyWork;
use crate::cache::loader::Loader;
use crate::cache::state::{CacheState, Lookup};
use crate::cache::typed::Cache;
use crate::entry::Entry;
use crate::flight::door::{self, Lead};
use crate::key::ToKey;
use crate::mode::Mode;
use crate::observe::ledger;

/// The last part of its lifetime in which a value is refreshed: a fifth.
const LAST_PART: u32 = 5;

/// How often the keys are looked at: twenty times in a lifetime, within these bounds.
const LOOKS: u32 = 20;
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Of the `max_refreshes`, one in so many is left to callers of other keys.
const FOR_CALLERS: usize = 8;

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
    /// caller reads it. What is invalidated or evicted is loaded again. The call itself does not
    /// wait: a task loads the keys. A caller that reads one of them meanwhile waits for that load.
    ///
    /// The task looks at the keys twenty times in a `ttl`, at most every 10 ms and at least once a
    /// second. So the next load of a key begins after 0.8 of its lifetime, or one look later. With the
    /// default [`jitter`](crate::Builder::jitter) that is 0.72 to 0.8 of the `ttl`.
    ///
    /// Set [`stale_for`](crate::Builder::stale_for) too. Without it, a refresh that fails or hangs past
    /// the end of the lifetime leaves no value: callers wait for it, or get its error.
    ///
    /// Up to seven eighths of the [`max_refreshes`](crate::Builder::max_refreshes) run at once; the
    /// next begins as soon as one ends. With a loader for single keys that takes 10 ms, the default
    /// refreshes more than 20,000 keys in a second. Such computations count as those of other refreshes, and
    /// never as requests.
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
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_stampede::ConfigError> {
    /// let handle = Stampede::builder("squares")
    ///     .ttl(Duration::from_secs(60))
    ///     .stale_for(Duration::from_secs(600))
    ///     .build()?;
    /// let squares = Cache::new(handle, |n: u64| async move { Ok::<_, std::io::Error>(n * n) });
    /// let kept = squares.keep_fresh([1, 2, 3]);
    /// // Later, when the keys are of no interest any more:
    /// drop(kept);
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn keep_fresh(&self, keys: impl IntoIterator<Item = K>) -> KeepFresh {
        let keys: HashSet<K> = keys.into_iter().collect();
        self.keep(Kept::Named(keys.into_iter().collect()))
    }

    /// Refreshes the `most` keys that have saved the origin the most time before they expire, without
    /// their being named: those that [`Stampede::top`](crate::Stampede::top) lists first and this process
    /// holds, by price and use: what was saved an hour ago counts half. At most 128. Hours before the first
    /// such call count as the last one. While keys are kept so, one that no caller has asked for in hours may
    /// leave the list of [`Stampede::top`](crate::Stampede::top) though it has saved more.
    ///
    /// As [`keep_fresh`](Self::keep_fresh) in all but the choice of keys. A key becomes known by its
    /// sixteenth use by [`get`](Self::get) or [`get_borrowed`](Self::get_borrowed) after this call. One
    /// that was not used since its last refresh is not refreshed again, until it is used; what was
    /// invalidated or evicted is left to the next caller.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::{Cache, Stampede};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_stampede::ConfigError> {
    /// let handle = Stampede::builder("squares")
    ///     .ttl(Duration::from_secs(60))
    ///     .stale_for(Duration::from_secs(600))
    ///     .build()?;
    /// let squares = Cache::new(handle, |n: u64| async move { Ok::<_, std::io::Error>(n * n) });
    /// squares.keep_popular(20).forever();
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn keep_popular(&self, most: usize) -> KeepFresh {
        // From now on they are remembered.
        drop(self.popular());
        self.keep(Kept::Popular { most, refreshed_at: HashMap::new() })
    }

    fn keep(&self, kept: Kept<K>) -> KeepFresh {
        let stop = self.handle().0.engine.stop.child_token();
        let guard = KeepFresh(stop.clone().drop_guard());
        // Weak: the keys of a cache that no caller has any more are of no use.
        tokio::spawn(keep(self.downgrade(), kept, stop));
        guard
    }
}

impl<K, V, E> Cache<K, V, E>
where
    K: ToKey + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: fmt::Debug + fmt::Display + Send + Sync + 'static,
{
    #[cold]
    pub(super) fn note_popular<Q: ToKey + ?Sized>(&self, key: &Q, own: impl FnOnce() -> K) {
        let Some(popular) = self.hooks().popular.get() else { return };
        let ledger = &self.handle().0.observer.ledger;
        let Some(mut popular) = popular.try_lock() else { return };
        if popular.len() >= 2 * ledger::KEYS {
            let known = HashSet::<_>::from_iter(ledger.hashes());
            popular.retain(|hash, _| known.contains(hash));
        }
        let hash = ledger.hash(key.to_key().as_bytes());
        popular.entry(hash).or_insert_with(own);
    }

    /// Returns the keys that are known here, that which has saved the most first; see
    /// [`keep_popular`](Self::keep_popular).
    fn popular(&self) -> Vec<K> {
        let popular = self.hooks().popular.get_or_init(Default::default).lock();
        let first = self.handle().0.observer.ledger.hashes().into_iter();
        first.filter_map(|hash| popular.get(&hash).cloned()).collect()
    }
}

/// Which keys are kept.
enum Kept<K> {
    Named(Vec<K>),
    /// The first ones that are here, and at which number of uses the last refresh of each began.
    Popular {
        most: usize,
        refreshed_at: HashMap<K, u32>,
    },
}

impl<K: ToKey + Eq + Hash + Clone + Send + Sync + 'static> Kept<K> {
    /// Returns the keys that are due.
    fn due<V, E>(&mut self, cache: &Cache<K, V, E>) -> Vec<K>
    where
        V: Clone + Send + Sync + 'static,
        E: fmt::Debug + fmt::Display + Send + Sync + 'static,
    {
        let state = &cache.handle().0;
        match self {
            Self::Named(keys) => keys.iter().filter(|key| is_due(state, *key)).cloned().collect(),
            Self::Popular { most, refreshed_at } => {
                state.observer.ledger.fade(state.now());
                let here = |key: &K| uses_of(state, key).is_some();
                let mut keys: Vec<_> =
                    cache.popular().into_iter().filter(here).take(*most).collect();
                refreshed_at.retain(|key, _| keys.contains(key));
                keys.retain(|key| self.is_due(state, key));
                keys
            }
        }
    }

    fn is_due<V: Clone + Send + Sync + 'static>(&self, state: &CacheState<V>, key: &K) -> bool {
        let is_used = match self {
            Self::Named(_) => true,
            Self::Popular { refreshed_at, .. } => {
                let uses = uses_of(state, key);
                uses.is_some() && uses.as_ref() != refreshed_at.get(key)
            }
        };
        is_used && is_due(state, key)
    }

    /// Remembers how often keys were used whose refresh has begun.
    fn note_refresh<V: Clone + Send + Sync + 'static>(
        &mut self,
        state: &CacheState<V>,
        begun: &[K],
    ) {
        if let Self::Popular { refreshed_at, .. } = self {
            let uses = |key: &K| Some((key.clone(), uses_of(state, key)?));
            refreshed_at.extend(begun.iter().filter_map(uses));
        }
    }
}

/// The keys of one [`Cache::keep_fresh`], and what is done for them.
struct Upkeep<K> {
    kept: Kept<K>,
    /// Those that were due at the last look, and whose turn is yet to come.
    due: VecDeque<K>,
    /// Those that are computed now.
    underway: HashSet<K>,
    /// The computations, each of one key or of those of one batch.
    loads: FuturesUnordered<BoxFuture<'static, Vec<K>>>,
}

async fn keep<K, V, E>(
    upgrade: impl Fn() -> Option<Cache<K, V, E>>,
    kept: Kept<K>,
    stop: CancellationToken,
) where
    K: ToKey + Eq + Hash + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: fmt::Debug + fmt::Display + Send + Sync + 'static,
{
    let Some(pause) = upgrade().map(|cache| pause(&cache.handle().0)) else { return };
    let mut looks = tokio::time::interval(pause);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (due, underway, loads) = (VecDeque::new(), HashSet::new(), FuturesUnordered::new());
    let mut upkeep = Upkeep { kept, due, underway, loads };
    loop {
        let next = upkeep.next(&mut looks);
        let Some(is_look) = stop.run_until_cancelled(next).await else { return };
        let Some(cache) = upgrade() else { return };
        if cache.handle().mode() != Mode::On {
            upkeep.due.clear();
            continue;
        }
        if is_look {
            upkeep.look(&cache);
        }
        upkeep.begin(&cache);
    }
}

impl<K: ToKey + Eq + Hash + Clone + Send + Sync + 'static> Upkeep<K> {
    /// Waits until a computation ends, or for the next look. Returns whether it is that.
    async fn next(&mut self, looks: &mut Interval) -> bool {
        let (tick, loads) = (pin!(looks.tick()), &mut self.loads);
        let load = pin!(async {
            match loads.next().await {
                Some(loaded) => loaded,
                None => std::future::pending().await,
            }
        });
        match select(load, tick).await {
            Either::Left((loaded, _)) => {
                for key in loaded {
                    self.underway.remove(&key);
                }
                false
            }
            Either::Right(_) => true,
        }
    }

    /// Finds the keys that are due.
    fn look<V, E>(&mut self, cache: &Cache<K, V, E>)
    where
        V: Clone + Send + Sync + 'static,
        E: fmt::Debug + fmt::Display + Send + Sync + 'static,
    {
        let due = self.kept.due(cache).into_iter();
        self.due = due.filter(|key| !self.underway.contains(key)).collect();
    }

    /// Begins to compute keys that are due, as long as there are places.
    fn begin<V, E>(&mut self, cache: &Cache<K, V, E>)
    where
        V: Clone + Send + Sync + 'static,
        E: fmt::Debug + fmt::Display + Send + Sync + 'static,
    {
        let engine = &cache.handle().0.engine;
        let all = engine.settings.max_refreshes();
        // The rest is for refreshes that callers begin.
        let most = (all - all / FOR_CALLERS).max(1);
        let size = match cache.loader() {
            Loader::One(_) => 1,
            Loader::Batch(_) => engine.settings.max_batch(),
        };
        while self.loads.len() < most && !self.due.is_empty() && !engine.refreshes.is_full() {
            // Since the look, a caller may have loaded some of them.
            let is_due = |key: &K| self.kept.is_due(&cache.handle().0, key);
            let keys = self.due.drain(..size.min(self.due.len())).filter(is_due).collect();
            let (begun, ends) = cache.begin_upkeep(keys);
            if !begun.is_empty() {
                self.kept.note_refresh(&cache.handle().0, &begun);
                self.underway.extend(begun.iter().cloned());
                self.loads.push(Box::pin(join_all(ends).map(|_| begun)));
            }
        }
    }
}

impl<K, V, E> Cache<K, V, E>
where
    K: ToKey + Eq + Hash + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: fmt::Debug + fmt::Display + Send + Sync + 'static,
{
    /// Begins to compute keys in the background, with one call where the loader takes several.
    /// Returns the keys of which that is so, and what ends with the computation of each.
    fn begin_upkeep(&self, keys: Vec<K>) -> (Vec<K>, Vec<BoxFuture<'static, ()>>) {
        let state = &self.handle().0;
        // The call begins when it is dropped, with all keys.
        let gathering = match self.loader() {
            Loader::One(_) => None,
            Loader::Batch(batcher) => Some(Gathering::new(batcher)),
        };
        let begin = |key: K| {
            let encoded = key.to_key();
            let seen = match state.peek(encoded.as_bytes()) {
                Lookup::Fresh(seen)
                | Lookup::Early(seen)
                | Lookup::Stale(seen)
                | Lookup::Unvouched(seen) => Some(seen),
                Lookup::Miss(_) => None,
            };
            let end = match (self.loader(), &gathering) {
                (Loader::One(load), _) => {
                    let context = load.context(None);
                    let loading = self.loading(load, &key, context.as_ref());
                    let call = CallerClosure::Closure(loading).take_call();
                    let work = KeyWork::serve(state, encoded, None, TakenCall(call));
                    let work = work.with_context(context);
                    let lead =
                        |lead: Lead<V>, work| lead.in_background(|lead| door::lead(lead, work));
                    // A panic has been reported by the task.
                    state.begin_upkeep(work, seen.as_ref(), lead)?.map(drop).boxed()
                }
                (Loader::Batch(_), gathering) => {
                    let member = gathering.as_ref()?.member(encoded, Arc::new(key.clone()));
                    let lead = Member::lead_in_background;
                    state.begin_upkeep(member.work(state), seen.as_ref(), lead)?.boxed()
                }
            };
            Some((key, end))
        };
        keys.into_iter().filter_map(begin).unzip()
    }
}

fn pause<V: Clone + Send + Sync + 'static>(state: &CacheState<V>) -> Duration {
    let ttl = state.values.ttl.unwrap_or(LONGEST_PAUSE);
    (ttl / LOOKS).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

/// Returns how often a value that is here was used.
fn uses_of<V: Clone + Send + Sync + 'static>(
    state: &CacheState<V>,
    key: &impl ToKey,
) -> Option<u32> {
    let here = state.local.peek(key.to_key().as_bytes())?;
    state.is_of_use(&here).then(|| here.uses())
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
