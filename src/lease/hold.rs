//! A lease that is held: renewed while it is needed, and given up however its
//! holder ends.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::entry::Entry;
use crate::key::Key;
use crate::lease::grant::{AcquireOutcome, FillOutcome, Grant, LeaseRequest, Token, Version};
use crate::lease::shared_store::{
    FillPayload, NotFilled, RemoteValue, SharedStore, Unavailable, UncacheableFor,
};

/// How often an offer is repeated when another value stands there.
const MAX_OFFERS: u8 = 3;

/// A hold that only wakes all processes that wait.
pub(crate) const FOR_ALL: Option<Duration> = Some(Duration::ZERO);

/// Runs commands to the remote that no caller waits for.
#[derive(Clone, Debug)]
pub(crate) struct Errands {
    pub(crate) tasks: TaskTracker,
    pub(crate) runtime: Handle,
}

impl Errands {
    pub(crate) fn run(&self, errand: impl Future<Output = ()> + Send + 'static) {
        drop(self.tasks.spawn_on(errand, &self.runtime));
    }
}

/// A key of the remote, and the entry that is to stand there.
pub(crate) struct FillTarget<V> {
    key: Key,
    entry: Arc<Entry<V>>,
    merge: Option<Merge<V>>,
    /// Filled only over what stands there already; this stood there at the last look.
    stands: Option<Arc<Entry<V>>>,
}

/// Makes the entry to store from the entry that stands there already; none if
/// the old entry is to stay.
pub(crate) type Merge<V> = Box<dyn FnMut(&Arc<Entry<V>>) -> Option<Arc<Entry<V>>> + Send>;

impl<V> FillTarget<V> {
    pub(crate) fn new(key: Key, entry: Arc<Entry<V>>) -> Self {
        Self { key, entry, merge: None, stands: None }
    }

    /// Changes what stands there, by `merge`, and fills nothing where nothing stands: an
    /// invalidation may have removed it. `seen` stood there at the last look.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only HTTP has several places"))]
    pub(crate) fn over(key: Key, seen: &Arc<Entry<V>>, merge: Merge<V>) -> Self {
        let (entry, stands) = (Arc::clone(seen), Some(Arc::clone(seen)));
        Self { key, entry, merge: Some(merge), stands }
    }

    /// Sets how to replace an entry that stands there already and that this leader's
    /// lease is not for. Without it, the old entry stays.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only HTTP has several places"))]
    pub(crate) fn merging(mut self, merge: Merge<V>) -> Self {
        self.merge = Some(merge);
        self
    }
}

impl<V> FillTarget<V> {
    /// Returns the version to replace, unless the found value stays.
    fn give_in_to(&mut self, found: RemoteValue<V>) -> Option<Version> {
        match found {
            RemoteValue::Nothing => None,
            RemoteValue::Useless(version) | RemoteValue::Uncacheable { version, .. } => version,
            RemoteValue::Entry(entry) => {
                self.entry = self.merge.as_mut()?(&entry)?;
                entry.version
            }
        }
    }
}

/// A try to get a lease whose reply is awaited. The remote may have granted it: dropped
/// before the reply is known, the try is given up.
pub(crate) struct Attempt<V: Send + Sync + 'static> {
    shared: Arc<dyn SharedStore<V>>,
    key: Key,
    token: Token,
    errands: Errands,
    over: bool,
}

impl<V: Send + Sync + 'static> Attempt<V> {
    pub(crate) fn begin(
        shared: &Arc<dyn SharedStore<V>>,
        key: &Key,
        ask: &LeaseRequest,
        errands: &Errands,
    ) -> Self {
        let (shared, key, errands) = (Arc::clone(shared), key.clone(), errands.clone());
        Self { shared, key, token: ask.token, errands, over: false }
    }

    /// Says that the reply is known, and nothing was granted.
    pub(crate) fn was_answered(mut self) {
        self.over = true;
    }

    /// Becomes a lease that is renewed while it `is_needed`.
    pub(crate) fn was_granted(
        mut self,
        grant: Grant,
        ask: &LeaseRequest,
        over_value: bool,
        is_needed: impl Fn() -> bool + Send + 'static,
    ) -> Lease<V> {
        self.over = true;
        let renewal =
            Renewal { shared: Arc::clone(&self.shared), key: self.key.clone(), grant, ask: *ask };
        let renewal = self.errands.runtime.spawn(renewal.run(is_needed)).abort_handle();
        Lease {
            shared: Arc::clone(&self.shared),
            key: self.key.clone(),
            grant,
            over_value,
            way: Box::default(),
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
    shared: &Arc<dyn SharedStore<V>>,
    key: &Key,
    token: Token,
    hold: Option<Duration>,
) {
    let (shared, key) = (Arc::clone(shared), key.clone());
    errands.run(async move { shared.abandon(&key, &token, hold).await });
}

struct Renewal<V: Send + Sync + 'static> {
    shared: Arc<dyn SharedStore<V>>,
    key: Key,
    grant: Grant,
    ask: LeaseRequest,
}

impl<V: Send + Sync + 'static> Renewal<V> {
    /// Renews until the lease is lost or not needed.
    async fn run(self, is_needed: impl Fn() -> bool) {
        loop {
            tokio::time::sleep(self.ask.lease / 3).await;
            if !is_needed() {
                return;
            }
            let renewed = self.shared.renew(&self.key, &self.grant, &self.ask).await;
            if renewed == Ok(false) {
                return;
            }
        }
    }
}

/// The lease of a key. Dropped, it is given up, and one of the waiting processes is
/// woken.
pub(crate) struct Lease<V: Send + Sync + 'static> {
    shared: Arc<dyn SharedStore<V>>,
    pub(crate) key: Key,
    pub(crate) grant: Grant,
    /// Whether a value is there that may yet be of use.
    pub(crate) over_value: bool,
    /// What stood under the keys that led to this one. Where there are any, the remote may fill
    /// under the lease what was invalidated meanwhile: no key leads to it any more.
    pub(crate) way: Box<[Arc<Entry<V>>]>,
    renewal: tokio::task::AbortHandle,
    errands: Errands,
    over: bool,
}

impl<V: Send + Sync + 'static> Lease<V> {
    pub(crate) fn errands(&self) -> &Errands {
        &self.errands
    }

    /// Fills the targets. The key that the lease is for comes last: its fill wakes the
    /// waiting processes, and they may look at the other keys. If the lease is for none
    /// of the targets, it is given up.
    pub(crate) async fn share(
        self,
        places: Vec<FillTarget<V>>,
    ) -> Result<FillOutcome, Unavailable> {
        let (mut own, others): (Vec<_>, Vec<_>) =
            places.into_iter().partition(|place| place.key == self.key);
        for place in others {
            self.offer(place).await?;
        }
        match own.pop() {
            Some(place) => self.fill(&FillPayload::Entry(place.entry)).await,
            None => Ok(FillOutcome::Stored),
        }
    }

    /// Changes what stands under a key that this lease is not for.
    ///
    /// A grant does not say whether anything stands there: an invalidation may have come since
    /// the last look. So the key is read once more under the grant. What is there then has not
    /// been invalidated, and an invalidation that comes later ends the right to fill.
    async fn change(
        &self,
        key: &Key,
        mut stands: Arc<Entry<V>>,
        merge: &mut Merge<V>,
    ) -> Result<(), Unavailable> {
        for _ in 0..MAX_OFFERS {
            let Some(merged) = merge(&stands) else { return Ok(()) };
            let ask = self.shared.ask().seen(stands.version);
            let attempt = Attempt::begin(&self.shared, key, &ask, &self.errands);
            match self.shared.acquire(key, &ask).await? {
                AcquireOutcome::Granted(grant) => {
                    let RemoteValue::Entry(now) = self.shared.get(key, &mut None).await? else {
                        return Ok(());
                    };
                    if now.version == stands.version {
                        let grant = grant.for_result_of(&self.grant);
                        self.shared.fill(key, &grant, &FillPayload::Entry(merged)).await?;
                        attempt.was_answered();
                    }
                    return Ok(());
                }
                AcquireOutcome::Hit { value: RemoteValue::Entry(newer), .. } => {
                    attempt.was_answered();
                    stands = newer;
                }
                AcquireOutcome::Hit { .. }
                | AcquireOutcome::Locked { .. }
                | AcquireOutcome::Held { .. } => {
                    attempt.was_answered();
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Fills a key that this lease is not for, unless another process computes it.
    async fn offer(&self, mut place: FillTarget<V>) -> Result<(), Unavailable> {
        if let (Some(stands), Some(merge)) = (place.stands.take(), &mut place.merge) {
            return self.change(&place.key, stands, merge).await;
        }
        let mut ask = self.shared.ask();
        for _ in 0..MAX_OFFERS {
            let attempt = Attempt::begin(&self.shared, &place.key, &ask, &self.errands);
            match self.shared.acquire(&place.key, &ask).await? {
                AcquireOutcome::Granted(grant) => {
                    let share = FillPayload::Entry(Arc::clone(&place.entry));
                    // The computation started under our own lease: an invalidation
                    // since then must find this result too old.
                    let grant = grant.for_result_of(&self.grant);
                    let filled = self.fill_or_mark(&place.key, &grant, &share, ask.seen.is_none());
                    filled.await?;
                    attempt.was_answered();
                    return Ok(());
                }
                AcquireOutcome::Hit { value: found, .. } => {
                    attempt.was_answered();
                    let Some(seen) = place.give_in_to(found) else { return Ok(()) };
                    ask = self.shared.ask().seen(Some(seen));
                }
                AcquireOutcome::Locked { .. } | AcquireOutcome::Held { .. } => {
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
    pub(super) async fn fill(mut self, share: &FillPayload<V>) -> Result<FillOutcome, Unavailable> {
        let filled = self.fill_or_mark(&self.key, &self.grant, share, true).await;
        // A refused fill has given up the rest of the lease.
        self.over = filled.is_ok();
        if filled.is_err() {
            // The next result will hardly reach the processes that wait either: all of them see that
            // the lease has ended.
            self.give_up(FOR_ALL);
        }
        Ok(filled?)
    }

    /// Fills. What cannot be shared `leaves_marker`: the processes that wait find that, and compute
    /// at once instead of one after the other.
    async fn fill_or_mark(
        &self,
        key: &Key,
        grant: &Grant,
        share: &FillPayload<V>,
        leaves_marker: bool,
    ) -> Result<FillOutcome, NotFilled> {
        let filled = self.shared.fill(key, grant, share).await;
        if let (Err(NotFilled::Unshareable(_)), FillPayload::Entry(entry)) = (&filled, share) {
            entry.is_no_copy();
        }
        match (filled, share) {
            (Err(NotFilled::Unshareable(span)), FillPayload::Entry(entry)) if leaves_marker => {
                let (whom, took) = (UncacheableFor::OtherProcesses, entry.window().computed_in());
                let marker = FillPayload::Uncacheable { whom, span, took };
                self.shared.fill(key, grant, &marker).await
            }
            _ => filled,
        }
    }

    /// Says that the value in the remote is of no use any more.
    pub(crate) fn discard_remote_value(&mut self) {
        self.over_value = false;
    }

    /// Says that the next result will not be shared with `whom` either; unless there is still a
    /// value.
    pub(crate) fn mark_uncacheable(self, whom: UncacheableFor, span: Duration, took: Duration) {
        if self.over_value {
            return;
        }
        let errands = self.errands.clone();
        errands.run(async move {
            let _ = self.fill(&FillPayload::Uncacheable { whom, span, took }).await;
        });
    }

    /// Gives the lease up. With a `hold`, no process computes for so long; with one of zero, all
    /// that wait are woken.
    pub(crate) fn give_up(mut self, hold: Option<Duration>) {
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
