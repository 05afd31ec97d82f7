//! A cluster: which node has a key, and how to follow keys that move.
//!
//! Each node has a [`Pool`] of its own, so that one that is frozen or dead delays callers of its
//! own keys only. The map of slots is read when it is first needed, and again in the background
//! when a reply says that it is out of date: from any node that answers first.
//!
//! What is redirected says nothing of the health of a node
//! ([cluster specification](https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/)).

mod inboxes;
pub(super) mod slots;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::key::Key;
use crate::remote::RemoteErrorKind;
use crate::remote::pause::Pause;
pub(super) use crate::remote::redis::cluster::inboxes::{NotHeard, SlotInboxes};
use crate::remote::redis::cluster::slots::{MOST_NODES, SLOTS, SlotMap};
pub(super) use crate::remote::redis::cluster::slots::{Place, slot_of, tag_of_slot};
use crate::remote::redis::connection::{Command, Subscription, Target};
use crate::remote::redis::pool::{CallerPatience, Pool, Request};
use crate::remote::redis::reply::{CallFailure, Cause, ServerReply};

/// After so many redirections a command is given up: nodes send it to and fro.
const MOST_REDIRECTIONS: u32 = 8;

/// How long keys are waited for that are on their way, where no caller says how long it waits.
const WAIT_FOR_KEYS: Duration = Duration::from_millis(50);

/// How often the map is read at most.
const READ_EVERY: Duration = Duration::from_millis(100);

/// How many nodes are asked for the map, and how long after each other.
const MOST_ASKED: u32 = 16;
const ASK_NEXT_AFTER: Duration = Duration::from_millis(50);

/// How many more are asked where one does not know who has all slots.
const OTHERS_ASKED: u32 = 3;

/// How long reading the map may take.
const READ_LIMIT: Duration = Duration::from_secs(2);

/// The nodes of a cluster.
pub(super) struct Cluster {
    pub(super) seeds: Target,
    is_plain: bool,
    /// That of all nodes.
    patience: CallerPatience,
    state: Mutex<ClusterState>,
    /// How often a node with an invalidation log was found to be another one.
    moves: AtomicU64,
    /// Held by the task that reads the map.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct ClusterState {
    map: Option<Arc<SlotMap>>,
    /// The slots of the invalidation logs.
    logs: Vec<u16>,
    /// By their addresses.
    nodes: HashMap<Place, Pool>,
    /// When the map was last read, or tried to be.
    read: Option<Instant>,
    /// Why it could not be, where there is none.
    failed: Option<CallFailure>,
}

impl Cluster {
    pub(super) fn new(seeds: Target, is_plain: bool, patience: CallerPatience) -> Self {
        let (moves, reading) = (AtomicU64::new(0), tokio::sync::Mutex::new(()));
        Self { seeds, is_plain, patience, state: Mutex::default(), moves, reading }
    }

    /// Has another node for the slot of an invalidation log count as another connection.
    pub(super) fn has_log_in(&self, slot: u16) {
        self.state.lock().logs.push(slot);
    }

    /// Sends `request` to the node of its slot, and after it where the keys have moved. Without a
    /// slot, any node will do.
    pub(super) async fn send(
        self: &Arc<Self>,
        request: Request<'_>,
    ) -> Result<ServerReply, CallFailure> {
        let slot = request.slot();
        // The caller is to have the reply before it takes the node for dead.
        let limit = self.patience.get().map_or(WAIT_FOR_KEYS, |patience| patience / 2);
        let keys_until = Instant::now() + limit;
        let (mut place, mut is_asking) = (self.owner(slot).await?, false);
        let (mut pause, mut was_broken) = (Pause::of_millis(2, 20), false);
        for _ in 0..MOST_REDIRECTIONS {
            // `is_asking` is for one command: the slot is on its way to that node.
            let failure = match self.node(&place)?.ask_here(request, is_asking).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            is_asking = failure.cause == Cause::Ask;
            match failure.cause {
                Cause::Moved | Cause::Ask => {
                    if failure.cause == Cause::Moved {
                        // Before the reply of the other node.
                        if slot.is_some_and(|slot| self.state.lock().logs.contains(&slot)) {
                            self.moves.fetch_add(1, Ordering::AcqRel);
                        }
                        self.read_soon();
                    }
                    let named = failure.place().ok_or_else(CallFailure::nonsense)?;
                    place = Place::named(named, &place);
                }
                Cause::TryAgain => {
                    let left = keys_until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(failure);
                    }
                    sleep(pause.lengthen().min(left)).await;
                    place = self.owner(slot).await?;
                }
                // The node may be gone, and another one have its slots. One more try, and only of what may
                // be carried out twice.
                Cause::Broken | Cause::Misled
                    if !was_broken && !matches!(request, Request::Once(_)) =>
                {
                    was_broken = true;
                    self.read_after(Instant::now()).await?;
                    let owner = self.owner(slot).await?;
                    if owner == place {
                        return Err(failure);
                    }
                    place = owner;
                }
                _ => {
                    if failure.kind == RemoteErrorKind::Unavailable {
                        self.read_soon();
                    }
                    return Err(failure);
                }
            }
        }
        Err(CallFailure::new(RemoteErrorKind::TryAgain, Cause::TryAgain, "redirected too often"))
    }

    /// Returns the shard of a slot: nodes have the number of their first slot, so that the
    /// replica that takes over a node's slots takes over its number.
    pub(super) fn shard_of_slot(&self, slot: u16) -> u32 {
        self.state.lock().map.as_ref().map_or(0, |map| map.shard_of(slot))
    }

    /// Returns the first slot of a shard, and where its node is.
    pub(super) fn node_of_shard(&self, shard: u32) -> Option<(u16, String)> {
        let state = self.state.lock();
        let (slot, place) = state.map.as_ref()?.node_of_shard(shard)?;
        Some((slot, self.seeds.at(place).address()))
    }

    /// Returns a number that changes before a reply comes from another node of the shard.
    pub(super) fn connection_of(&self, shard: u32) -> u64 {
        let moves = self.moves.load(Ordering::Acquire);
        (moves << 32) + self.pool_of_shard(shard).map_or(0, |node| node.connection_of(shard))
    }

    /// Is told that a caller gave up waiting for an answer of a shard.
    pub(super) fn suspect(self: &Arc<Self>, shard: u32) {
        if let Some(node) = self.pool_of_shard(shard) {
            node.suspect();
        }
        self.read_soon();
    }

    /// Returns the way to the node of a shard, where it was asked for anything.
    pub(super) fn pool_of_shard(&self, shard: u32) -> Option<Pool> {
        let state = self.state.lock();
        let (_, place) = state.map.as_ref()?.node_of_shard(shard)?;
        state.nodes.get(place).cloned()
    }

    /// Returns where the node of a slot is, by the map as it is.
    pub(super) fn place_of(&self, slot: u16) -> Option<Place> {
        self.state.lock().map.as_ref()?.owner(slot).cloned()
    }

    /// Returns the nodes that have slots, each with a key that it has.
    pub(super) async fn nodes(self: &Arc<Self>) -> Result<Vec<(Pool, Option<Key>)>, CallFailure> {
        self.read_after(Instant::now()).await?;
        let map = self.map().await?;
        if map.slots() < SLOTS {
            let missing = SLOTS - map.slots();
            let said = format!("{missing} of {SLOTS} slots have no node");
            return Err(CallFailure::unavailable(said));
        }
        let known = map.nodes_and_slots().iter();
        known
            .map(|(slot, at)| Ok((self.node(at)?, Some(Key::from(&*tag_of_slot(*slot))))))
            .collect()
    }

    /// Returns the nodes that are known, those that were named at the beginning last.
    pub(super) fn known(&self) -> Vec<Place> {
        let mut known = self.members();
        for seed in self.seeds.places() {
            if !known.contains(&seed) {
                known.push(seed);
            }
        }
        known
    }

    /// Returns the nodes of the map, in any order.
    fn members(&self) -> Vec<Place> {
        let map = self.state.lock().map.clone();
        let mut members: Vec<_> = map.iter().flat_map(|map| map.nodes().cloned()).collect();
        fastrand::shuffle(&mut members);
        members
    }

    /// Subscribes on any node: what is published on one reaches all of them. A node that was named
    /// and is not of the cluster would answer, and hear nothing.
    pub(super) async fn subscribe(
        self: &Arc<Self>,
        channels: &[&str],
        limit: Duration,
    ) -> Result<Subscription, CallFailure> {
        self.map().await?;
        let mut failed = CallFailure::nonsense();
        for place in self.members() {
            match self.seeds.at(&place).subscribe(channels, limit).await {
                Ok(listening) => return Ok(listening),
                Err(failure) => failed = failure,
            }
        }
        self.read_soon();
        Err(failed)
    }

    /// Returns the way to a node.
    fn node(&self, place: &Place) -> Result<Pool, CallFailure> {
        let mut state = self.state.lock();
        if let Some(node) = state.nodes.get(place) {
            return Ok(node.clone());
        }
        // With each map, those are forgotten that it does not name.
        if state.nodes.len() >= MOST_NODES {
            return Err(CallFailure::nonsense());
        }
        let node = Pool::with(self.seeds.at(place), self.is_plain, self.patience.clone());
        state.nodes.insert(place.clone(), node.clone());
        Ok(node)
    }

    async fn owner(self: &Arc<Self>, slot: Option<u16>) -> Result<Place, CallFailure> {
        let map = self.map().await?;
        let owner = match slot {
            Some(slot) => map.owner(slot),
            None => map.nodes().nth(fastrand::usize(..map.nodes().len().max(1))),
        };
        owner.cloned().ok_or_else(|| {
            self.read_soon();
            CallFailure::unavailable("no node has this slot")
        })
    }

    /// Returns the map; reads it where that was not done yet.
    async fn map(self: &Arc<Self>) -> Result<Arc<SlotMap>, CallFailure> {
        let known = || self.state.lock().map.clone();
        if let Some(map) = known() {
            return Ok(map);
        }
        self.read_after(Instant::now()).await?;
        known().ok_or_else(CallFailure::nonsense)
    }

    /// Reads the map in the background, unless that was done a moment ago.
    fn read_soon(self: &Arc<Self>) {
        let now = Instant::now();
        let is_due = |at: Instant| now.saturating_duration_since(at) >= READ_EVERY;
        if !self.state.lock().read.is_none_or(is_due) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let cluster = Arc::clone(self);
        runtime.spawn(async move { cluster.read_after(now).await });
    }

    /// Reads the map, or waits for a read that began after `since`.
    pub(super) async fn read_after(self: &Arc<Self>, since: Instant) -> Result<(), CallFailure> {
        let cluster = Arc::clone(self);
        // On a task: a caller that goes away does not keep the others waiting.
        let read = tokio::spawn(async move {
            let _reading = cluster.reading.lock().await;
            let has_map = {
                let mut state = cluster.state.lock();
                if state.read.is_some_and(|read| read > since) {
                    match (&state.map, &state.failed) {
                        (Some(_), _) => return Ok(()),
                        // Not each in turn: the waiting calls would ask a silent node one by one,
                        // long after they have been given up.
                        (None, Some(failed)) => return Err(failed.clone()),
                        (None, None) => (),
                    }
                }
                state.read = Some(Instant::now());
                state.map.is_some()
            };
            let read = timeout(READ_LIMIT, cluster.read()).await;
            let read = read.unwrap_or_else(|_| Err(CallFailure::late()));
            match read {
                Ok(map) => {
                    let mut state = cluster.state.lock();
                    state.nodes.retain(|place, _| map.has(place));
                    let (map, logs) = (Arc::new(map), state.logs.clone());
                    let old = state.map.replace(Arc::clone(&map));
                    let has_moved = |old: &SlotMap, slot| old.owner(slot) != map.owner(slot);
                    if old.is_some_and(|old| logs.into_iter().any(|slot| has_moved(&old, slot))) {
                        cluster.moves.fetch_add(1, Ordering::AcqRel);
                    }
                    Ok(())
                }
                // The old one is better than none.
                Err(_) if has_map => Ok(()),
                Err(failure) => {
                    cluster.state.lock().failed = Some(failure.clone());
                    Err(failure)
                }
            }
        });
        read.await.unwrap_or_else(|_| Err(CallFailure::disconnected("the runtime is gone")))
    }

    /// Asks node after node, without waiting for those that do not answer. A node that does not
    /// know the others is believed only where no other node answers soon.
    async fn read(&self) -> Result<SlotMap, CallFailure> {
        let known = self.known();
        let asked = known.into_iter().zip(0..MOST_ASKED).map(|(place, n)| async move {
            sleep(ASK_NEXT_AFTER * n).await;
            let node = self.node(&place)?;
            let ask = Command::new("CLUSTER SLOTS");
            let reply = node.ask_here(Request::Command(&ask), false).await?;
            let map = SlotMap::read(&reply, &place)?;
            // A node that was reset, or has lost its file, answers too. It knows nothing.
            if map.nodes().len() == 0 {
                return Err(CallFailure::unavailable("the node knows of no slots"));
            }
            Ok(map)
        });
        let mut asked: FuturesUnordered<_> = asked.collect();
        let (mut failed, mut found) = (CallFailure::nonsense(), None::<SlotMap>);
        let mut until = None;
        loop {
            let answer = match until {
                None => asked.next().await,
                Some(until) => timeout_at(until, asked.next()).await.unwrap_or(None),
            };
            match answer {
                Some(Ok(map)) if map.slots() == SLOTS => return Ok(map),
                Some(Ok(map)) => {
                    until.get_or_insert_with(|| Instant::now() + ASK_NEXT_AFTER * OTHERS_ASKED);
                    if found.as_ref().is_none_or(|found| found.slots() < map.slots()) {
                        found = Some(map);
                    }
                }
                Some(Err(failure)) => failed = failure,
                None => return found.ok_or(failed),
            }
        }
    }
}
