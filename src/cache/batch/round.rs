//! Rounds: the keys of one call of the loader, until it begins.

use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::cache::call_options::Stored;
use crate::cache::key_work::{FailedCall, KeyQuestion};
use crate::cache::seat::{AppKey, OpenCall, RoundCall, Seat};
use crate::computed::Computed;
use crate::entry::Entry;
use crate::error::Error;
use crate::flight::door::Lead;
use crate::flight::engine::{Engine, PlaceForOne};
use crate::key::Key;

/// How long the first of several late keys waits for the others.
const LATE_WINDOW: Duration = Duration::from_millis(5);

/// What a loader returns: the values that it has found, in any order.
pub(crate) type LoadedPairs<V> = Vec<(Key, Computed<V>)>;
pub(crate) type BatchLoad<V> = Arc<
    dyn Fn(Vec<KeyToLoad<V>>) -> BoxFuture<'static, Result<LoadedPairs<V>, Error>> + Send + Sync,
>;
/// A key, and its older value.
pub(crate) type KeyToLoad<V> = (AppKey, Option<Stored<V>>);

/// Makes the error of a key that the loader returned nothing for.
pub(crate) type AbsentError = Arc<dyn Fn(&AppKey) -> Error + Send + Sync>;

/// What a loader panicked with.
pub(super) type Panic = Box<dyn Any + Send>;

/// What has happened to a key, for its caller.
pub(super) enum KeyOutcome<V: Clone + Send + Sync + 'static> {
    Called(Result<V, FailedCall<V>>),
    /// The remote has a value.
    Found(Arc<Entry<V>>, KeyQuestion<V>),
    Refused(Error, KeyQuestion<V>),
}

/// One key on its way to a call (`Q` is its question), or in one (`Q` is what has begun).
pub(super) struct BatchKey<V: Clone + Send + Sync + 'static, Q> {
    pub(super) key: Key,
    pub(super) seat: Arc<Seat>,
    pub(super) way: Way<V, Q>,
    /// Dropped, it makes the caller ask anew.
    pub(super) reply: oneshot::Sender<Result<KeyOutcome<V>, Panic>>,
}

/// How the caller of a key computes it.
pub(super) enum Way<V: Send + Sync + 'static, Q> {
    /// As the leader of a flight. A shutdown waits for that.
    Led(Box<(Lead<V>, Q)>, TaskTrackerToken),
    /// Outside of any flight. Without a limit, where its caller asked while the cache was not on.
    Alone { place: Option<PlaceForOne<V>>, is_limited: bool },
}

impl<V: Send + Sync + 'static, Q> Way<V, Q> {
    /// Returns whether the caller waits for a limited time, or asks anew.
    pub(super) fn is_limited(&self) -> bool {
        !matches!(self, Self::Alone { is_limited: false, .. })
    }
}

/// A key whose call has yet to begin.
pub(super) type WaitingKey<V> = BatchKey<V, KeyQuestion<V>>;

/// The keys of one call.
pub(super) struct Round<V: Clone + Send + Sync + 'static> {
    pub(super) call: Arc<RoundCall>,
    max: usize,
    gathered: Mutex<Gathered<V>>,
}

struct Gathered<V: Clone + Send + Sync + 'static> {
    keys: Vec<WaitingKey<V>>,
    encoded: HashSet<Key>,
    /// When the call begins; from the first key on.
    begins_at: Option<Instant>,
}

impl<V: Clone + Send + Sync + 'static> Round<V> {
    /// Adds a key. Returns when the call begins: then the caller is to take the round, and to call.
    /// Returns the key where it comes too late: the round is closed, or full and about to be taken.
    /// The same where it stands here already: it was invalidated since, and belongs to a later call.
    pub(super) fn push(
        &self,
        key: WaitingKey<V>,
        window: Duration,
    ) -> Result<Instant, Box<WaitingKey<V>>> {
        let mut gathered = self.gathered.lock();
        let is_full = gathered.keys.len() >= self.max;
        if is_full || self.call.is_closed() || !gathered.encoded.insert(key.key.clone()) {
            return Err(Box::new(key));
        }
        gathered.keys.push(key);
        let now = Instant::now();
        let begins_at = *gathered.begins_at.get_or_insert(now + window);
        Ok(if gathered.keys.len() >= self.max { now } else { begins_at })
    }

    pub(super) fn is_full(&self) -> bool {
        self.gathered.lock().keys.len() >= self.max
    }

    /// Closes the round. Returns its keys, once.
    pub(super) fn take(&self) -> Vec<WaitingKey<V>> {
        let mut gathered = self.gathered.lock();
        self.call.close();
        std::mem::take(&mut gathered.keys)
    }
}

/// Brings keys together in rounds.
pub(crate) struct Batcher<V> {
    pub(super) engine: Arc<Engine<V>>,
    pub(super) load: BatchLoad<V>,
    pub(super) absent: AbsentError,
    /// How long single callers gather.
    pub(super) window: Duration,
    /// Whether the loader reads the older values.
    pub(super) sees_stored: bool,
    /// The round of single callers and of late keys, a `Round<V>`. A typed cache has a batcher
    /// also for types of values that no round can have.
    open: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
}

impl<V: Clone + Send + Sync + 'static> Batcher<V> {
    pub(crate) fn new(
        engine: &Arc<Engine<V>>,
        load: BatchLoad<V>,
        absent: AbsentError,
        window: Duration,
        sees_stored: bool,
    ) -> Arc<Self> {
        let (engine, open) = (Arc::clone(engine), Mutex::new(None));
        Arc::new(Self { engine, load, absent, window, sees_stored, open })
    }

    /// Returns how long an open round gathers.
    pub(super) fn longest_gathering(&self) -> Duration {
        self.window.max(LATE_WINDOW)
    }

    pub(super) fn new_round(&self) -> Arc<Round<V>> {
        let origin_call = self.engine.shared_call();
        let scope = self.engine.scope_of(&origin_call);
        let gathered = Gathered { keys: Vec::new(), encoded: HashSet::new(), begins_at: None };
        let max = self.engine.settings.max_batch();
        let call = Arc::new(RoundCall::new(origin_call, scope));
        Arc::new(Round { call, max, gathered: Mutex::new(gathered) })
    }

    /// Returns the round that single callers and late keys belong to now.
    pub(super) fn open_round(&self) -> Arc<Round<V>> {
        let mut open = self.open.lock();
        let round = open.clone().and_then(|round| round.downcast::<Round<V>>().ok());
        round.filter(|round| !round.call.is_closed()).unwrap_or_else(|| {
            let round = self.new_round();
            *open = Some(Arc::clone(&round) as _);
            round
        })
    }

    /// Replaces an open round that cannot have the next key.
    pub(super) fn replace_open(&self, round: &Arc<Round<V>>) {
        let mut open = self.open.lock();
        open.take_if(|open| std::ptr::addr_eq(Arc::as_ptr(open), Arc::as_ptr(round)));
    }
}

impl<V: Clone + Send + Sync + 'static> OpenCall for Batcher<V> {
    fn open_call(&self) -> Arc<RoundCall> {
        Arc::clone(&self.open_round().call)
    }
}
