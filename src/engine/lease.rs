//! A lease that is held: renewed while it is needed, and given up however its
//! holder ends.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::flight::Flight;
use super::grant::{Ask, Filled, Grant, Token, Version};
use super::shared::{Asked, Away, Found, Share, Shared};
use super::time::Clock;
use crate::entry::Entry;
use crate::key::Key;

/// How often an offer is made over, when something else stands there.
const MAX_OFFERS: u8 = 3;

/// Where commands go that nobody waits for.
#[derive(Clone, Debug)]
pub(super) struct Errands {
    pub(super) tasks: TaskTracker,
    pub(super) runtime: Handle,
}

impl Errands {
    pub(super) fn run(&self, errand: impl Future<Output = ()> + Send + 'static) {
        drop(self.tasks.spawn_on(errand, &self.runtime));
    }
}

/// A key of the remote, and what is to stand there.
pub(crate) struct Place<V> {
    key: Key,
    entry: Arc<Entry<V>>,
    merge: Option<Merge<V>>,
}

/// Makes the entry to store from one that stands there already, or none if
/// that one is to stay.
pub(crate) type Merge<V> = Box<dyn FnMut(&Arc<Entry<V>>) -> Option<Arc<Entry<V>>> + Send>;

impl<V> Place<V> {
    pub(crate) fn new(key: Key, entry: Arc<Entry<V>>) -> Self {
        Self { key, entry, merge: None }
    }

    /// Sets what to do where something stands already that this leader has no
    /// lease to replace. Without it, that stays.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only HTTP has several places"))]
    pub(crate) fn merging(mut self, merge: Merge<V>) -> Self {
        self.merge = Some(merge);
        self
    }
}

impl<V> Place<V> {
    /// Returns the version to replace, unless what was found stays.
    fn give_in_to(&mut self, found: Found<V>) -> Option<Version> {
        match found {
            Found::Nothing => None,
            Found::Useless(version) | Found::Uncacheable { version, .. } => version,
            Found::Entry(entry) => {
                self.entry = self.merge.as_mut()?(&entry)?;
                entry.version
            }
        }
    }
}

/// A try to get a lease whose reply is awaited. Dropped without a word, it may
/// have been granted: then it is given up.
pub(super) struct Attempt<V: Send + Sync + 'static> {
    shared: Arc<dyn Shared<V>>,
    key: Key,
    token: Token,
    errands: Errands,
    over: bool,
}

impl<V: Send + Sync + 'static> Attempt<V> {
    pub(super) fn begin(
        shared: &Arc<dyn Shared<V>>,
        key: &Key,
        ask: &Ask,
        errands: &Errands,
    ) -> Self {
        let (shared, key, errands) = (Arc::clone(shared), key.clone(), errands.clone());
        Self { shared, key, token: ask.token, errands, over: false }
    }

    /// Says that the reply is known, and nothing was granted.
    pub(super) fn was_answered(mut self) {
        self.over = true;
    }

    /// Goes over into a lease that is renewed while `flight` is expected to
    /// go on.
    pub(super) fn was_granted(
        mut self,
        grant: Grant,
        ask: &Ask,
        over_value: bool,
        flight: &Arc<Flight<V>>,
        watch: &Clock,
    ) -> Lease<V> {
        self.over = true;
        let renewal = Renewal {
            shared: Arc::clone(&self.shared),
            key: self.key.clone(),
            grant,
            ask: *ask,
            flight: Arc::clone(flight),
            watch: watch.clone(),
        };
        let renewal = self.errands.runtime.spawn(renewal.run()).abort_handle();
        Lease {
            shared: Arc::clone(&self.shared),
            key: self.key.clone(),
            grant,
            over_value,
            renewal,
            errands: self.errands.clone(),
            over: false,
        }
    }
}

impl<V: Send + Sync + 'static> Drop for Attempt<V> {
    fn drop(&mut self) {
        if !self.over {
            abandon(&self.errands, &self.shared, &self.key, self.token, None);
        }
    }
}

fn abandon<V: Send + Sync + 'static>(
    errands: &Errands,
    shared: &Arc<dyn Shared<V>>,
    key: &Key,
    token: Token,
    hold: Option<Duration>,
) {
    let (shared, key) = (Arc::clone(shared), key.clone());
    errands.run(async move { shared.abandon(&key, &token, hold).await });
}

struct Renewal<V: Send + Sync + 'static> {
    shared: Arc<dyn Shared<V>>,
    key: Key,
    grant: Grant,
    ask: Ask,
    flight: Arc<Flight<V>>,
    watch: Clock,
}

impl<V: Send + Sync + 'static> Renewal<V> {
    /// Renews until the lease is lost, or its flight is overdue: a leader that
    /// is neither polled nor dropped must not keep it for ever.
    async fn run(self) {
        loop {
            tokio::time::sleep(self.ask.lease / 3).await;
            if self.flight.is_overdue(self.watch.now()) {
                return;
            }
            let renewed = self.shared.renew(&self.key, &self.grant, &self.ask).await;
            if renewed == Ok(false) {
                return;
            }
        }
    }
}

/// The lease of a key. Dropped without a word, it is given up, and one of the
/// processes that wait is woken.
pub(super) struct Lease<V: Send + Sync + 'static> {
    shared: Arc<dyn Shared<V>>,
    pub(super) key: Key,
    pub(super) grant: Grant,
    /// Whether a value is there that may yet be of use.
    over_value: bool,
    renewal: tokio::task::AbortHandle,
    errands: Errands,
    over: bool,
}

impl<V: Send + Sync + 'static> Lease<V> {
    pub(super) fn errands(&self) -> &Errands {
        &self.errands
    }

    /// Fills the places: last the one the lease is for, since those who wait
    /// for it are woken by that and may look at the others. If it is for none
    /// of them, the lease is given up.
    pub(super) async fn share(self, places: Vec<Place<V>>) -> Result<Filled, Away> {
        let (mut own, others): (Vec<_>, Vec<_>) =
            places.into_iter().partition(|place| place.key == self.key);
        for place in others {
            self.offer(place).await?;
        }
        match own.pop() {
            Some(place) => self.fill(&Share::Entry(place.entry)).await,
            None => Ok(Filled::Stored),
        }
    }

    /// Fills a place that this lease is not for, if nobody else is at it.
    async fn offer(&self, mut place: Place<V>) -> Result<(), Away> {
        let mut ask = self.shared.ask();
        for _ in 0..MAX_OFFERS {
            let attempt = Attempt::begin(&self.shared, &place.key, &ask, &self.errands);
            match self.shared.acquire(&place.key, &ask).await? {
                Asked::Granted(grant) => {
                    let share = Share::Entry(Arc::clone(&place.entry));
                    // The computation started under our own lease: what was
                    // invalidated since then must find this too old.
                    let grant = Grant::new(grant.token, grant.version, self.grant.now);
                    self.shared.fill(&place.key, &grant, &share).await?;
                    attempt.was_answered();
                    return Ok(());
                }
                Asked::Hit(found) => {
                    attempt.was_answered();
                    let Some(seen) = place.give_in_to(found) else { return Ok(()) };
                    ask = self.shared.ask().seen(Some(seen));
                }
                Asked::Locked(_) | Asked::Held(_) => {
                    attempt.was_answered();
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Fills, and gives the lease up if that fails.
    ///
    /// Dropped while it waits, it gives the lease up; if the fill was executed
    /// nevertheless, that finds nothing to give up.
    pub(super) async fn fill(mut self, share: &Share<V>) -> Result<Filled, Away> {
        let filled = self.shared.fill(&self.key, &self.grant, share).await;
        // A refused fill has given up what was left of the lease.
        self.over = filled.is_ok();
        filled
    }

    /// Says that no value that may yet be of use is there any more.
    pub(super) fn replaces_nothing_good(&mut self) {
        self.over_value = false;
    }

    /// Says that answers of this key may not be shared, unless there is still
    /// a value.
    pub(super) fn mark_uncacheable(self, span: Duration) {
        if self.over_value {
            return;
        }
        let errands = self.errands.clone();
        errands.run(async move {
            let _ = self.fill(&Share::Uncacheable(span)).await;
        });
    }

    /// Gives the lease up; with a `hold`, nobody computes for so long.
    pub(super) fn give_up(mut self, hold: Option<Duration>) {
        self.over = true;
        abandon(&self.errands, &self.shared, &self.key, self.grant.token, hold);
    }
}

impl<V: Send + Sync + 'static> Drop for Lease<V> {
    fn drop(&mut self) {
        self.renewal.abort();
        if !self.over {
            abandon(&self.errands, &self.shared, &self.key, self.grant.token, None);
        }
    }
}
