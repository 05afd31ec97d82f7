//! A lease that is held: renewed while it is needed, and given up however its
//! holder ends.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

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
    /// Whether it is filled only over what stands there already; `entry` stood there at the last
    /// look.
    is_over: bool,
}

/// Makes the entry to store from the entry that stands there already; none if
/// the old entry is to stay.
pub(crate) type Merge<V> = Box<dyn FnMut(&Arc<Entry<V>>) -> Option<Arc<Entry<V>>> + Send>;

impl<V> FillTarget<V> {
    pub(crate) fn new(key: Key, entry: Arc<Entry<V>>) -> Self {
        Self { key, entry, merge: None, is_over: false }
    }

    /// Changes what stands there, by `merge`, and fills nothing where nothing stands: an
    /// invalidation may have removed it. `seen` stood there at the last look.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only HTTP has several places"))]
    pub(crate) fn over(key: Key, seen: &Arc<Entry<V>>, merge: Merge<V>) -> Self {
        Self { key, entry: Arc::clone(seen), merge: Some(merge), is_over: true }
    }

    /// Sets how to replace an entry that stands there already and that this leader's
    /// lease is not for. Without it, the old entry stays.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only HTTP has several places"))]
    pub(crate) fn merging(mut self, merge: Merge<V>) -> Self {
        self.merge = Some(merge);
        self
    }

    /// Returns the version to replace, unless the found value stays.
    fn give_in_to(&mut self, found: RemoteValue<V>) -> Option<Version> {
        match found {
            RemoteValue::Nothing => None,
            RemoteValue::Useless(_) | RemoteValue::Uncacheable { .. } if self.is_over => None,
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
    pub(crate) key: Key,
    token: Token,
    pub(crate) errands: Errands,
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
        self,
        grant: Grant,
        ask: &LeaseRequest,
        over_value: bool,
        is_needed: impl Fn() -> bool + Send + 'static,
    ) -> Lease<V> {
        let renewal = renew(Arc::clone(&self.shared), self.key.clone(), grant, *ask, is_needed);
        let _renewal = AbortOnDropHandle::new(self.errands.runtime.spawn(renewal));
        Lease { _renewal, attempt: self, grant, over_value, way: Box::default() }
    }

    fn give_up(&mut self, hold: Option<Duration>) {
        self.over = true;
        let (shared, key, token) = (Arc::clone(&self.shared), self.key.clone(), self.token);
        self.errands.run(async move { shared.abandon(&key, &token, hold).await });
    }
}

impl<V: Send + Sync + 'static> Drop for Attempt<V> {
    fn drop(&mut self) {
        if !self.over {
            self.give_up(None);
        }
    }
}

/// Renews until the lease is lost or not needed.
async fn renew<V: Send + Sync + 'static>(
    shared: Arc<dyn SharedStore<V>>,
    key: Key,
    grant: Grant,
    ask: LeaseRequest,
    is_needed: impl Fn() -> bool,
) {
    loop {
        tokio::time::sleep(ask.lease / 3).await;
        if !is_needed() || shared.renew(&key, &grant, &ask).await == Ok(false) {
            return;
        }
    }
}

/// The lease of a key. Dropped, it is given up, and one of the waiting processes is
/// woken.
pub(crate) struct Lease<V: Send + Sync + 'static> {
    _renewal: AbortOnDropHandle<()>,
    /// The try that was granted. It gives the lease up.
    pub(crate) attempt: Attempt<V>,
    pub(crate) grant: Grant,
    /// Whether a value is there that may yet be of use.
    pub(crate) over_value: bool,
    /// What stood under the keys that led to this one. Where there are any, the remote may fill
    /// under the lease what was invalidated meanwhile: no key leads to it any more.
    pub(crate) way: Box<[Arc<Entry<V>>]>,
}

impl<V: Send + Sync + 'static> Lease<V> {
    /// Fills the targets. The key that the lease is for comes last: its fill wakes the
    /// waiting processes, and they may look at the other keys. If the lease is for none
    /// of the targets, it is given up.
    pub(crate) async fn share(
        self,
        places: Vec<FillTarget<V>>,
    ) -> Result<FillOutcome, Unavailable> {
        let (mut own, others): (Vec<_>, Vec<_>) =
            places.into_iter().partition(|place| place.key == self.attempt.key);
        for place in others {
            self.offer(place).await?;
        }
        match own.pop() {
            Some(place) => self.fill(&FillPayload::Entry(place.entry)).await,
            None => Ok(FillOutcome::Stored),
        }
    }

    /// Fills a key that this lease is not for, unless another process computes it.
    async fn offer(&self, mut place: FillTarget<V>) -> Result<(), Unavailable> {
        let shared = &self.attempt.shared;
        let mut ask = shared.ask();
        if place.is_over {
            ask.seen = place.give_in_to(RemoteValue::Entry(Arc::clone(&place.entry)));
            if ask.seen.is_none() {
                return Ok(());
            }
        }
        for _ in 0..MAX_OFFERS {
            let attempt = Attempt::begin(shared, &place.key, &ask, &self.attempt.errands);
            match shared.acquire(&place.key, &ask).await? {
                // A grant does not say whether anything stands there: an invalidation may have come
                // since the last look. So the key is read once more under the grant. What is there
                // then has not been invalidated, and an invalidation that comes later ends the
                // right to fill.
                AcquireOutcome::Granted(_)
                    if place.is_over
                        && !matches!(shared.get(&place.key, &mut None).await?,
                            RemoteValue::Entry(now) if now.version == ask.seen) =>
                {
                    return Ok(());
                }
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
                    ask = shared.ask().seen(Some(seen));
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
    pub(super) async fn fill(self, share: &FillPayload<V>) -> Result<FillOutcome, Unavailable> {
        let filled = self.fill_or_mark(&self.attempt.key, &self.grant, share, true).await;
        match filled {
            // A refused fill has given up the rest of the lease.
            Ok(_) => self.attempt.was_answered(),
            // The next result will hardly reach the processes that wait either: all of them see that
            // the lease has ended.
            Err(_) => self.give_up(FOR_ALL),
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
        let filled = self.attempt.shared.fill(key, grant, share).await;
        if let (Err(NotFilled::Unshareable(_)), FillPayload::Entry(entry)) = (&filled, share) {
            entry.is_no_copy();
        }
        match (filled, share) {
            (Err(NotFilled::Unshareable(span)), FillPayload::Entry(entry)) if leaves_marker => {
                let (whom, took) = (UncacheableFor::OtherProcesses, entry.window().computed_in());
                let marker = FillPayload::Uncacheable { whom, span, took };
                self.attempt.shared.fill(key, grant, &marker).await
            }
            _ => filled,
        }
    }

    /// Says that the next result will not be shared with `whom` either; unless there is still a
    /// value.
    pub(crate) fn mark_uncacheable(self, whom: UncacheableFor, span: Duration, took: Duration) {
        if self.over_value {
            return;
        }
        let errands = self.attempt.errands.clone();
        errands.run(async move {
            let _ = self.fill(&FillPayload::Uncacheable { whom, span, took }).await;
        });
    }

    /// Gives the lease up. With a `hold`, no process computes for so long; with one of zero, all
    /// that wait are woken.
    pub(crate) fn give_up(mut self, hold: Option<Duration>) {
        self.attempt.give_up(hold);
    }
}
