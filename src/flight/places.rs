//! The places of `max_computations`, and the queue for them.
//!
//! A place belongs to a [`Computation`], not to a future. The code that ends the
//! computation returns the place, also where the future that began it is neither
//! polled nor dropped any more. Each computation is in one of three states here:
//!
//! - *unknown*: it neither has a place nor waits for one;
//! - *queued*: it waits. The longest waiting is served first; a caller keeps its rank
//!   when it is elected after the leader it waited for;
//! - *placed*: it has a place, its own or a borrowed one.
//!
//! A computation may ask the same handle for another key. Then it waits and does not
//! work, so it lends its place to the computation it waits for: an [`Offer`]. The place goes to
//! one borrower at a time and returns when the borrower ends; so a computation that
//! asks for many keys at once does not run them all at once. A lender that stops
//! waiting goes on at once, and the borrower keeps the place until it ends: for that long,
//! one computation more than the bound runs.
//!
//! A computation that is overdue loses its place to the next computation that needs one.

use std::collections::{BTreeSet, HashMap};

use tokio::time::Instant;

use crate::clock::{Clock, Tick};
use crate::flight::waiter::WaitSlot;
use crate::sync::{Arc, AtomicU64, Mutex, Notify, Ordering, RandomState};

/// Maps smaller than this are not worth shrinking.
const LEAST_CAPACITY: usize = 64;

/// One call of the origin, for one flight or several.
#[derive(Debug)]
pub(crate) struct Computation {
    id: u64,
    /// When other computations may take its place.
    overdue_at: AtomicU64,
    /// Its rank in the queue; the lower, the earlier. Zero: none yet.
    rank: AtomicU64,
    /// Wakes the leader that waits for a place.
    wake: Notify,
}

impl Computation {
    pub(crate) fn new(id: u64, overdue_at: Tick, rank: Option<u64>) -> Self {
        Self {
            id,
            overdue_at: AtomicU64::new(overdue_at.as_nanos()),
            rank: AtomicU64::new(rank.unwrap_or_default()),
            wake: Notify::new(),
        }
    }

    pub(crate) fn overdue_at(&self) -> Tick {
        Tick::from_nanos(self.overdue_at.load(Ordering::Acquire))
    }

    /// Returns whether its leader should have ended it by now. A leader in a future
    /// that is not polled any more never does.
    pub(crate) fn is_overdue(&self, now: Tick) -> bool {
        now >= self.overdue_at()
    }

    /// Returns its rank in the queue, if it has ever waited.
    pub(crate) fn rank(&self) -> Option<u64> {
        Some(self.rank.load(Ordering::Relaxed)).filter(|rank| *rank > 0)
    }

    /// Makes the leader look around: it has a place, or no caller any more.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }
}

/// Why a computation has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// No place came free in time.
    TimedOut,
    /// No caller wants the result any more.
    Unwanted,
    /// The cache is not on: it bounds nothing.
    NotNeeded,
}

#[derive(Debug)]
pub(crate) struct Places {
    state: Mutex<State>,
    /// No placed computation is overdue before this.
    next_overdue: AtomicU64,
}

#[derive(Debug)]
struct State {
    free: usize,
    members: HashMap<u64, Member, RandomState>,
    queue: BTreeSet<(u64, u64)>,
    last_rank: u64,
    /// Those of the queue that each lender waits for.
    waiting_for: HashMap<u64, BTreeSet<(u64, u64)>, RandomState>,
    /// The lenders of each borrower, and how many offers each has made to it.
    lenders: HashMap<u64, HashMap<u64, u32, RandomState>, RandomState>,
}

#[derive(Debug)]
struct Member {
    computation: Arc<Computation>,
    standing: Standing,
    /// A computation in the queue counts as a waiter, until it has a place.
    _slot: Option<WaitSlot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Queued { rank: u64 },
    Placed { lender: Option<u64>, lent_to: Option<u64> },
}

impl Places {
    pub(crate) fn new(max: usize) -> Self {
        let state = State {
            free: max,
            members: HashMap::default(),
            queue: BTreeSet::new(),
            last_rank: 0,
            waiting_for: HashMap::default(),
            lenders: HashMap::default(),
        };
        Self { state: Mutex::new(state), next_overdue: AtomicU64::new(u64::MAX) }
    }

    /// Takes a place if there is one now, free or lent. Returns whether the
    /// computation has one.
    pub(crate) fn try_take(&self, computation: &Arc<Computation>, now: Tick) -> bool {
        let mut state = self.state.lock();
        self.reclaim(&mut state, now);
        let is_placed = state.try_place(computation);
        drop(state);
        self.note_overdue(computation);
        is_placed
    }

    /// Enters the queue, unless there is a place. Returns whether there was.
    pub(crate) fn join_queue(
        &self,
        computation: &Arc<Computation>,
        slot: &mut Option<WaitSlot>,
        now: Tick,
    ) -> bool {
        let mut state = self.state.lock();
        self.reclaim(&mut state, now);
        let is_placed = state.try_place(computation);
        if !is_placed {
            state.enqueue(computation, slot);
        }
        drop(state);
        self.note_overdue(computation);
        is_placed
    }

    /// Waits in the queue until `deadline`, as long as `gives_up` gives no reason to leave.
    ///
    /// Dropped while it waits, it leaves the computation in the queue; the owner of
    /// the computation has to [`release`](Self::release) it.
    pub(crate) async fn wait(
        &self,
        computation: &Arc<Computation>,
        deadline: Instant,
        clock: &Clock,
        gives_up: impl Fn() -> Option<NoPlace>,
    ) -> Result<(), NoPlace> {
        loop {
            let has_place = self.join_queue(computation, &mut None, clock.now());
            if let Some(reason) = gives_up() {
                self.release(computation, clock.now());
                return Err(reason);
            }
            if has_place {
                return Ok(());
            }
            if Instant::now() >= deadline {
                self.release(computation, clock.now());
                return Err(NoPlace::TimedOut);
            }
            let overdue = Tick::from_nanos(self.next_overdue.load(Ordering::Acquire));
            let pause = overdue.since(clock.now()).max(std::time::Duration::from_millis(1));
            let until = Instant::now().checked_add(pause).map_or(deadline, |at| at.min(deadline));
            // Woken or not: the queue says how it stands.
            let _ = tokio::time::timeout_at(until, computation.wake.notified()).await;
        }
    }

    /// Ends what the computation has here: its place, or its wait for one.
    pub(crate) fn release(&self, computation: &Computation, now: Tick) {
        let mut state = self.state.lock();
        state.release(computation.id, now);
        state.shrink();
    }

    /// Makes every leader in the queue look around.
    pub(crate) fn wake_queue(&self) {
        let state = self.state.lock();
        let queued = state.queue.iter().filter_map(|(_, id)| state.members.get(id));
        queued.for_each(|member| member.computation.wake());
    }

    /// Takes a computation that no caller wants any more out of the queue, and wakes its
    /// leader. One that has a place keeps it.
    pub(crate) fn leave_queue(&self, computation: &Computation) {
        let mut state = self.state.lock();
        if let Some(Standing::Queued { rank }) = state.standing(computation.id) {
            state.members.remove(&computation.id);
            state.unqueue(rank, computation.id);
            state.shrink();
        }
        drop(state);
        computation.wake();
    }

    /// Says until when a computation is expected to end.
    pub(crate) fn expect_until(&self, computation: &Computation, overdue_at: Tick) {
        computation.overdue_at.store(overdue_at.as_nanos(), Ordering::Release);
        self.note_overdue(computation);
    }

    fn note_overdue(&self, computation: &Computation) {
        let at = computation.overdue_at.load(Ordering::Acquire);
        self.next_overdue.fetch_min(at, Ordering::AcqRel);
    }

    /// Takes the places of computations that are overdue.
    fn reclaim(&self, state: &mut State, now: Tick) {
        if now.as_nanos() < self.next_overdue.load(Ordering::Acquire) {
            return;
        }
        self.next_overdue.store(u64::MAX, Ordering::Release);
        let overdue: Vec<u64> = state
            .members
            .iter()
            .filter(|(_, member)| member.computation.is_overdue(now))
            .map(|(id, _)| *id)
            .collect();
        for id in overdue {
            state.release(id, now);
        }
        for member in state.members.values() {
            self.note_overdue(&member.computation);
        }
    }

    /// Says that the caller inside `lender` waits for `borrower`.
    pub(crate) fn offer(
        self: &Arc<Self>,
        lender: &Arc<Computation>,
        borrower: &Arc<Computation>,
    ) -> Offer {
        let mut state = self.state.lock();
        *state.lenders.entry(borrower.id).or_default().entry(lender.id).or_default() += 1;
        if let Some(Standing::Queued { rank }) = state.standing(borrower.id) {
            state.waiting_for.entry(lender.id).or_default().insert((rank, borrower.id));
        }
        state.lend(lender.id);
        Offer { places: Arc::clone(self), lender: lender.id, borrower: borrower.id }
    }

    /// Returns how many places are free.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.state.lock().free
    }
}

impl State {
    fn try_place(&mut self, computation: &Arc<Computation>) -> bool {
        if let Some(Standing::Placed { .. }) = self.standing(computation.id) {
            return true;
        }
        let is_first = self.queue.first().is_none_or(|(_, first)| *first == computation.id);
        let standing = if self.free > 0 && is_first {
            self.free -= 1;
            Standing::Placed { lender: None, lent_to: None }
        } else if let Some(lender) = self.lender_of(computation.id) {
            self.set_lent(lender, Some(computation.id));
            Standing::Placed { lender: Some(lender), lent_to: None }
        } else {
            return false;
        };
        self.place(Arc::clone(computation), standing);
        true
    }

    fn enqueue(&mut self, computation: &Arc<Computation>, slot: &mut Option<WaitSlot>) {
        if self.standing(computation.id).is_some() {
            return;
        }
        self.last_rank += 1;
        let rank = computation.rank().unwrap_or(self.last_rank);
        computation.rank.store(rank, Ordering::Relaxed);
        self.queue.insert((rank, computation.id));
        for lender in self.lenders.get(&computation.id).into_iter().flat_map(HashMap::keys) {
            self.waiting_for.entry(*lender).or_default().insert((rank, computation.id));
        }
        let (standing, slot) = (Standing::Queued { rank }, slot.take());
        let computation = Arc::clone(computation);
        self.members.insert(computation.id, Member { computation, standing, _slot: slot });
    }

    fn standing(&self, id: u64) -> Option<Standing> {
        self.members.get(&id).map(|member| member.standing)
    }

    fn place(&mut self, computation: Arc<Computation>, standing: Standing) {
        let id = computation.id;
        if let Some(Standing::Queued { rank }) = self.standing(id) {
            self.unqueue(rank, id);
        }
        self.members.insert(id, Member { computation, standing, _slot: None });
        // It may wait for another computation itself.
        self.lend(id);
    }

    fn set_lent(&mut self, lender: u64, borrower: Option<u64>) {
        if let Some(member) = self.members.get_mut(&lender)
            && let Standing::Placed { lent_to, .. } = &mut member.standing
        {
            *lent_to = borrower;
        }
    }

    /// Returns whether a computation has a place that it has not lent.
    fn can_lend(&self, id: u64) -> bool {
        matches!(self.standing(id), Some(Standing::Placed { lent_to: None, .. }))
    }

    fn lender_of(&self, borrower: u64) -> Option<u64> {
        let mut lenders = self.lenders.get(&borrower)?.keys().copied();
        lenders.find(|lender| *lender != borrower && self.can_lend(*lender))
    }

    /// Takes a computation out of the queue.
    fn unqueue(&mut self, rank: u64, id: u64) {
        self.queue.remove(&(rank, id));
        let lenders: Vec<u64> =
            self.lenders.get(&id).into_iter().flat_map(HashMap::keys).copied().collect();
        for lender in lenders {
            self.wait_no_more(lender, (rank, id));
        }
    }

    fn wait_no_more(&mut self, lender: u64, borrower: (u64, u64)) {
        if let Some(queued) = self.waiting_for.get_mut(&lender) {
            queued.remove(&borrower);
            if queued.is_empty() {
                self.waiting_for.remove(&lender);
            }
        }
    }

    /// Lends the place of `lender` to the first of those that it waits for and that are
    /// queued.
    fn lend(&mut self, lender: u64) {
        if !self.can_lend(lender) {
            return;
        }
        let first = self.waiting_for.get(&lender).and_then(BTreeSet::first);
        let Some((_, borrower)) = first.copied() else { return };
        let Some(member) = self.members.get(&borrower) else { return };
        let computation = Arc::clone(&member.computation);
        self.set_lent(lender, Some(borrower));
        computation.wake();
        self.place(computation, Standing::Placed { lender: Some(lender), lent_to: None });
    }

    fn release(&mut self, id: u64, now: Tick) {
        let Some(member) = self.members.remove(&id) else { return };
        match member.standing {
            Standing::Queued { rank } => self.unqueue(rank, id),
            // The borrower goes on with the place.
            Standing::Placed { lender, lent_to: Some(borrower) } => {
                if let Some(member) = self.members.get_mut(&borrower)
                    && let Standing::Placed { lender: from, .. } = &mut member.standing
                {
                    *from = lender;
                }
                if let Some(lender) = lender {
                    self.set_lent(lender, Some(borrower));
                }
            }
            Standing::Placed { lender: Some(lender), lent_to: None } => {
                self.set_lent(lender, None);
                self.lend(lender);
            }
            Standing::Placed { lender: None, lent_to: None } => {
                self.free += 1;
                self.hand_over(now);
            }
        }
    }

    /// Gives free places to the computations that have waited longest.
    fn hand_over(&mut self, now: Tick) {
        while self.free > 0
            && let Some((rank, id)) = self.queue.pop_first()
        {
            self.unqueue(rank, id);
            let Some(member) = self.members.remove(&id) else { continue };
            debug_assert_eq!(member.standing, Standing::Queued { rank });
            // Its leader is silent: it would take the place and not use it.
            if member.computation.is_overdue(now) {
                continue;
            }
            self.free -= 1;
            member.computation.wake();
            self.place(member.computation, Standing::Placed { lender: None, lent_to: None });
        }
    }

    fn withdraw_offer(&mut self, lender: u64, borrower: u64) {
        let Some(lenders) = self.lenders.get_mut(&borrower) else { return };
        let Some(offers) = lenders.get_mut(&lender) else { return };
        *offers -= 1;
        if *offers > 0 {
            return;
        }
        lenders.remove(&lender);
        if lenders.is_empty() {
            self.lenders.remove(&borrower);
        }
        if let Some(Standing::Queued { rank }) = self.standing(borrower) {
            self.wait_no_more(lender, (rank, borrower));
        }
        self.shrink();
    }

    /// Returns memory after a crowd has gone.
    fn shrink(&mut self) {
        shrink(&mut self.members);
        shrink(&mut self.lenders);
        shrink(&mut self.waiting_for);
    }
}

fn shrink<T>(map: &mut HashMap<u64, T, RandomState>) {
    let len = map.len();
    if map.capacity() > LEAST_CAPACITY.max(len * 4) {
        map.shrink_to(len * 2);
    }
}

/// Lends the place of one computation to another, as long as it lives.
#[derive(Debug)]
#[must_use = "an offer ends when it is dropped"]
pub(crate) struct Offer {
    places: Arc<Places>,
    lender: u64,
    borrower: u64,
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.places.state.lock().withdraw_offer(self.lender, self.borrower);
    }
}

// Here, because it looks at every field.
#[cfg(all(test, stampede_model))]
#[path = "model/places.rs"]
mod model;
