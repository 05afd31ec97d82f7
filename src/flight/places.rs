//! The places of `max_computations`, and the queue for them.
//!
//! A place belongs to an [`OriginCall`], not to a future. A call serves one flight, or
//! several where it computes a batch of keys; the part of each flight in it is a
//! [`Computation`]. The code that ends a computation lets go of the place, also where the
//! future that began it is neither polled nor dropped any more. The place is returned when
//! the last computation of the call has let go. Each call is in one of three states here:
//!
//! - *unknown*: it neither has a place nor waits for one;
//! - *queued*: it waits. Clients are served in turns (`queue.rs`), and of the calls of one
//!   client the longest waiting is served first. A caller keeps its rank when it is elected after
//!   the leader it waited for;
//! - *placed*: it has a place, its own or a borrowed one. An own place counts for the client
//!   that took it, until it is returned.
//!
//! A computation may ask the same handle for another key. Then it waits and does not
//! work, so it lends its place to the computation it waits for: an [`Offer`]. The place goes to
//! one borrower at a time and returns when the borrower ends; so a computation that
//! asks for many keys at once does not run them all at once. A lender that stops
//! waiting goes on at once, and the borrower keeps the place until it ends: for that long,
//! one computation more than the bound runs.
//!
//! A call whose computations are all overdue loses its place to the next call that needs one.
//!
//! With `min_computations` the number of places follows the time that computations take
//! (`adaptive_limit.rs`). Where it falls, no computation loses its place: as many are not given on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU64;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::{Clock, Tick};
use crate::flight::adaptive_limit::AdaptiveLimit;
use crate::flight::client_key::ClientKey;
use crate::flight::computation::{Computation, OriginCall};
use crate::flight::holders::Holders;
use crate::flight::queue::{Queue, Waiting, shrink};
use crate::flight::wait_slot::WaitSlot;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, RandomState};

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
    /// How many places there are, where that is not fixed. Locked before `state`.
    limit: Option<Mutex<AdaptiveLimit>>,
}

#[derive(Debug)]
struct State {
    /// Below zero: more are taken than there are now.
    free: isize,
    /// Whether a call has queued since the number of places was last set.
    has_queued: bool,
    members: HashMap<u64, Member, RandomState>,
    queue: Queue,
    last_rank: u64,
    /// Those of the queue that each lender waits for.
    waiting_for: HashMap<u64, BTreeSet<Waiting>, RandomState>,
    /// The offers to each call.
    offers: HashMap<u64, Offers, RandomState>,
}

/// How many offers each lender has made to each computation of a call.
type Offers = BTreeMap<(u64, u64), u32>;

#[derive(Debug)]
struct Member {
    call: Arc<OriginCall>,
    holders: Holders,
    standing: Standing,
    /// A call in the queue counts as a waiter, until it has a place.
    _slot: Option<WaitSlot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Queued { rank: u64 },
    Placed { from: Source, lent_to: Option<u64> },
}

/// Where the place of a call is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// It is one of the places, and counts for this client.
    Own(Option<ClientKey>),
    /// This call has lent it.
    Lender(u64),
}

impl Places {
    /// Makes `max` places; with `min`, from that many up to `max`.
    pub(crate) fn new(min: Option<usize>, max: usize) -> Self {
        let limit = min.map(|min| AdaptiveLimit::new(min, max));
        let max = limit.as_ref().map_or(max, AdaptiveLimit::get);
        let state = State {
            free: isize::try_from(max).unwrap_or(isize::MAX),
            has_queued: false,
            members: HashMap::default(),
            queue: Queue::new(max),
            last_rank: 0,
            waiting_for: HashMap::default(),
            offers: HashMap::default(),
        };
        let next_overdue = AtomicU64::new(u64::MAX);
        Self { state: Mutex::new(state), next_overdue, limit: limit.map(Mutex::new) }
    }

    /// Notes how long a computation has taken in its place, and follows it with the number of
    /// places where that is not fixed.
    pub(crate) fn note_time(&self, took: Duration, now: Tick) {
        let Some(limit) = &self.limit else { return };
        let mut limit = limit.lock();
        let mut state = self.state.lock();
        let before = limit.get();
        if limit.note(took, state.has_queued) {
            state.resize(before, limit.get(), now);
        }
    }

    /// Returns how many places there are now, where that is not fixed.
    pub(crate) fn adaptive_limit(&self) -> Option<usize> {
        self.limit.as_ref().map(|limit| limit.lock().get())
    }

    /// Takes a place if there is one now, free or lent. Returns whether the
    /// computation has one.
    pub(crate) fn try_take(&self, computation: &Arc<Computation>, now: Tick) -> bool {
        let mut state = self.state.lock();
        self.reclaim(&mut state, now);
        let is_placed = state.try_place(computation);
        drop(state);
        self.note_overdue(computation.overdue_at());
        is_placed
    }

    /// Takes the place of a lender, if one lends its place now: for a computation that needs none,
    /// and may lend it on. Returns whether the computation has one.
    pub(crate) fn borrow(&self, computation: &Arc<Computation>) -> bool {
        let mut state = self.state.lock();
        let is_placed = state.borrow(computation);
        drop(state);
        self.note_overdue(computation.overdue_at());
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
        self.note_overdue(computation.overdue_at());
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
            let pause = overdue.since(clock.now()).max(Duration::from_millis(1));
            let until = Instant::now().checked_add(pause).map_or(deadline, |at| at.min(deadline));
            // Woken or not: the queue says how it stands.
            let _ = tokio::time::timeout_at(until, computation.woken()).await;
        }
    }

    /// Ends what the computation has here: its part in a place, or in the wait for one.
    pub(crate) fn release(&self, computation: &Computation, now: Tick) {
        let mut state = self.state.lock();
        if state.let_go(computation) {
            state.end(computation.call().id, now);
        }
        state.shrink();
    }

    /// Enters the queue where another computation of the call waits already. Returns whether
    /// it did: then the call has its slot among the waiters.
    pub(crate) fn share_queue(&self, computation: &Arc<Computation>) -> bool {
        let mut state = self.state.lock();
        let is_queued =
            matches!(state.standing(computation.call().id), Some(Standing::Queued { .. }));
        if is_queued {
            state.hold(computation);
        }
        is_queued
    }

    /// Makes the computation a part of another call. Its place goes with it, unless other
    /// parts of the first call need it, or the other call has one; and so does its share of the
    /// refreshes, `shares`.
    pub(crate) fn move_to(
        &self,
        shares: &Self,
        computation: &Arc<Computation>,
        call: &Arc<OriginCall>,
        now: Tick,
    ) {
        let mut state = self.state.lock();
        let mut shares = shares.state.lock();
        let before = computation.call();
        if before.id == call.id {
            return;
        }
        state.move_part(computation, &before, call, now);
        shares.move_part(computation, &before, call, now);
        // Under both locks: whatever releases the computation finds it in both.
        computation.set_call(call);
        state.move_offers(computation.id, before.id, call.id);
        shares.hold(computation);
        state.shrink();
    }

    /// Makes every leader in the queue look around.
    pub(crate) fn wake_queue(&self) {
        let state = self.state.lock();
        let queued = state.queue.ids().filter_map(|id| state.members.get(&id));
        queued.for_each(|member| member.holders.wake());
    }

    /// Takes a computation that no caller wants any more out of the queue, and wakes its
    /// leader. One that has a place keeps it.
    pub(crate) fn leave_queue(&self, computation: &Computation) {
        let mut state = self.state.lock();
        let id = computation.call().id;
        if let Some(Standing::Queued { rank }) = state.standing(id)
            && state.let_go(computation)
            && let Some(member) = state.members.remove(&id)
        {
            state.unqueue(&member.call, rank);
            state.shrink();
        }
        drop(state);
        computation.tell_unwanted();
    }

    /// Says until when a computation is expected to end.
    pub(crate) fn expect_until(&self, computation: &Computation, overdue_at: Tick) {
        computation.set_overdue_at(overdue_at);
        self.note_overdue(computation.overdue_at());
    }

    fn note_overdue(&self, at: Tick) {
        self.next_overdue.fetch_min(at.as_nanos(), Ordering::AcqRel);
    }

    /// Takes the places of calls that are overdue.
    fn reclaim(&self, state: &mut State, now: Tick) {
        if now.as_nanos() < self.next_overdue.load(Ordering::Acquire) {
            return;
        }
        self.next_overdue.store(u64::MAX, Ordering::Release);
        let overdue: Vec<u64> = state
            .members
            .iter()
            .filter(|(_, member)| now >= member.holders.overdue_at())
            .map(|(id, _)| *id)
            .collect();
        for id in overdue {
            state.end(id, now);
        }
        for member in state.members.values() {
            self.note_overdue(member.holders.overdue_at());
        }
    }

    /// Says that the caller inside `lender` waits for `borrower`. Where the lender needs no place, and
    /// has none, the one that waits for it lends its own.
    pub(crate) fn offer(
        self: &Arc<Self>,
        lender: &Arc<Computation>,
        borrower: &Arc<Computation>,
    ) -> Offer {
        let mut state = self.state.lock();
        let lender = state.lender_around(lender.call().id);
        state.add_offers(lender, borrower.id, borrower.call().id, 1);
        drop(state);
        Offer { places: Arc::clone(self), lender, borrower: Arc::clone(borrower) }
    }

    /// Returns whether all places are taken.
    pub(crate) fn is_full(&self) -> bool {
        self.state.lock().free <= 0
    }

    /// Returns how many places are free.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.state.lock().free.max(0).cast_unsigned()
    }
}

impl State {
    fn resize(&mut self, before: usize, max: usize, now: Tick) {
        self.free += max.cast_signed() - before.cast_signed();
        self.has_queued = self.queue.ids().next().is_some();
        if max != before {
            self.queue.resize(max);
        }
        self.hand_over(now);
    }

    fn try_place(&mut self, computation: &Arc<Computation>) -> bool {
        let call = computation.call();
        let is_placed = matches!(self.standing(call.id), Some(Standing::Placed { .. }));
        if is_placed || self.free <= 0 || !self.queue.admits(call.client, call.id) {
            return self.borrow(computation);
        }
        let from = self.take_free(call.client);
        self.place_from(from, computation);
        true
    }

    /// Takes part in the place of its call, or the place of a lender.
    fn borrow(&mut self, computation: &Arc<Computation>) -> bool {
        let id = computation.call().id;
        if let Some(Standing::Placed { .. }) = self.standing(id) {
            self.hold(computation);
            return true;
        }
        let Some(lender) = self.lender_of(id) else { return false };
        self.set_lent(lender, Some(id));
        self.place_from(Source::Lender(lender), computation);
        true
    }

    fn place_from(&mut self, from: Source, computation: &Arc<Computation>) {
        self.hold(computation);
        let call = computation.call();
        let holders = self.members.remove(&call.id).map(|member| member.holders);
        let holders = holders.unwrap_or_else(|| Holders::of(computation));
        self.place(call, holders, from);
    }

    fn take_free(&mut self, client: Option<ClientKey>) -> Source {
        self.free -= 1;
        self.queue.take_place(client);
        Source::Own(client)
    }

    /// Gives the computation a part in what its call has here.
    fn hold(&mut self, computation: &Arc<Computation>) {
        if let Some(member) = self.members.get_mut(&computation.call().id) {
            member.holders.add(computation);
        }
    }

    /// Ends the part of the computation. Returns whether it was the last of its call.
    fn let_go(&mut self, computation: &Computation) -> bool {
        let member = self.members.get_mut(&computation.call().id);
        let holders = member.map(|member| &mut member.holders);
        holders.filter(|holders| holders.contains(computation)).is_some_and(|holders| {
            // The last one stays, until the call ends.
            holders.remove(computation)
        })
    }

    fn enqueue(&mut self, computation: &Arc<Computation>, slot: &mut Option<WaitSlot>) {
        let call = &computation.call();
        if self.standing(call.id).is_some() {
            self.hold(computation);
            return;
        }
        self.has_queued = true;
        self.last_rank += 1;
        call.take_rank(self.last_rank);
        let rank = call.rank().map_or(self.last_rank, NonZeroU64::get);
        self.queue.insert(call.client, (rank, call.id));
        for lender in self.lenders_of(call.id) {
            self.waiting_for.entry(lender).or_default().insert((rank, call.id));
        }
        let (holders, standing) = (Holders::of(computation), Standing::Queued { rank });
        let member = Member { call: Arc::clone(call), holders, standing, _slot: slot.take() };
        self.members.insert(call.id, member);
    }

    fn standing(&self, id: u64) -> Option<Standing> {
        self.members.get(&id).map(|member| member.standing)
    }

    /// Gives a call a place. It is no member at this moment, but may stand in the queue.
    fn place(&mut self, call: Arc<OriginCall>, holders: Holders, from: Source) {
        let id = call.id;
        if let Some(rank) = call.rank() {
            self.unqueue(&call, rank.get());
        }
        let standing = Standing::Placed { from, lent_to: None };
        self.members.insert(id, Member { call, holders, standing, _slot: None });
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
        let mut lenders = self.offers.get(&borrower)?.keys().map(|(lender, _)| *lender);
        lenders.find(|lender| *lender != borrower && self.can_lend(*lender))
    }

    fn lender_around(&self, lender: u64) -> u64 {
        let is_member = |id: &u64| self.standing(*id).is_some();
        let mut all = std::iter::once(lender).chain(self.lenders_of(lender));
        all.find(is_member).unwrap_or(lender)
    }

    fn lenders_of(&self, borrower: u64) -> Vec<u64> {
        let offers = self.offers.get(&borrower).into_iter().flat_map(BTreeMap::keys);
        offers.map(|(lender, _)| *lender).collect()
    }

    /// Takes a computation out of the queue.
    fn unqueue(&mut self, call: &OriginCall, rank: u64) {
        let waiting = (rank, call.id);
        self.queue.remove(call.client, waiting);
        for lender in self.lenders_of(call.id) {
            self.wait_no_more(lender, waiting);
        }
    }

    fn wait_no_more(&mut self, lender: u64, borrower: Waiting) {
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
        let Some(Member { call, holders, .. }) = self.members.remove(&borrower) else { return };
        self.set_lent(lender, Some(borrower));
        holders.wake();
        self.place(call, holders, Source::Lender(lender));
    }

    /// Ends a call: its place, or its wait for one.
    fn end(&mut self, id: u64, now: Tick) {
        let Some(member) = self.members.remove(&id) else { return };
        match member.standing {
            Standing::Queued { rank } => self.unqueue(&member.call, rank),
            // The borrower goes on with the place.
            Standing::Placed { from, lent_to: Some(borrower) } => {
                if let Some(member) = self.members.get_mut(&borrower)
                    && let Standing::Placed { from: place, .. } = &mut member.standing
                {
                    *place = from;
                }
                if let Source::Lender(lender) = from {
                    self.set_lent(lender, Some(borrower));
                }
            }
            Standing::Placed { from: Source::Lender(lender), lent_to: None } => {
                self.set_lent(lender, None);
                self.lend(lender);
            }
            Standing::Placed { from: Source::Own(client), lent_to: None } => {
                self.free += 1;
                self.queue.return_place(client);
                self.hand_over(now);
            }
        }
    }

    /// Gives free places to the computations whose turn it is.
    fn hand_over(&mut self, now: Tick) {
        while self.free > 0
            && let Some((rank, id)) = self.queue.pop_first()
        {
            let Some(member) = self.members.remove(&id) else { continue };
            debug_assert_eq!(member.standing, Standing::Queued { rank });
            self.unqueue(&member.call, rank);
            // Its leader is silent: it would take the place and not use it.
            if now >= member.holders.overdue_at() {
                continue;
            }
            member.holders.wake();
            let from = self.take_free(member.call.client);
            self.place(member.call, member.holders, from);
        }
    }

    /// Ends the computation's part in `before`, and hands its place to `call`.
    fn move_part(
        &mut self,
        computation: &Computation,
        before: &OriginCall,
        call: &Arc<OriginCall>,
        now: Tick,
    ) {
        if self.hand_place(computation, before, call) {
            return;
        }
        // It has waited as long as the other call would have.
        before.rank().into_iter().for_each(|rank| call.take_rank(rank.get()));
        if self.let_go(computation) {
            self.end(before.id, now);
        }
    }

    /// Gives the place of `before` to `call`, if it has no other part than this computation,
    /// and `call` has none. Returns whether it did.
    fn hand_place(
        &mut self,
        computation: &Computation,
        before: &OriginCall,
        call: &Arc<OriginCall>,
    ) -> bool {
        let member = self.members.get(&before.id);
        let place = member.filter(|member| member.holders.is_only(computation));
        let place = place.map(|member| member.standing);
        let Some(Standing::Placed { from, lent_to: None }) = place else {
            return false;
        };
        if matches!(self.standing(call.id), Some(Standing::Placed { .. })) {
            return false;
        }
        let Some(Member { mut holders, .. }) = self.members.remove(&before.id) else {
            return false;
        };
        // Calls that wait for a place have it now.
        if let Some(queued) = self.members.remove(&call.id) {
            queued.holders.all().for_each(|computation| holders.add(computation));
            queued.holders.wake();
        }
        if let Source::Lender(lender) = from {
            self.set_lent(lender, Some(call.id));
        }
        self.place(Arc::clone(call), holders, from);
        true
    }

    /// Says that the caller inside `lender` waits for a computation of `call`, `count` times.
    fn add_offers(&mut self, lender: u64, computation: u64, call: u64, count: u32) {
        *self.offers.entry(call).or_default().entry((lender, computation)).or_default() += count;
        if let Some(Standing::Queued { rank }) = self.standing(call) {
            self.waiting_for.entry(lender).or_default().insert((rank, call));
        }
        self.lend(lender);
    }

    /// Withdraws `count` offers, or all of them. Returns how many there were.
    fn take_offers(&mut self, lender: u64, computation: u64, call: u64, count: u32) -> u32 {
        let Some(offers) = self.offers.get_mut(&call) else { return 0 };
        let Some(made) = offers.get_mut(&(lender, computation)) else { return 0 };
        let taken = count.min(*made);
        *made -= taken;
        if *made > 0 {
            return taken;
        }
        offers.remove(&(lender, computation));
        let offers_more = offers.range((lender, 0)..=(lender, u64::MAX)).next().is_some();
        if offers.is_empty() {
            self.offers.remove(&call);
        }
        if !offers_more && let Some(Standing::Queued { rank }) = self.standing(call) {
            self.wait_no_more(lender, (rank, call));
        }
        taken
    }

    fn withdraw_offer(&mut self, lender: u64, borrower: &Computation) {
        self.take_offers(lender, borrower.id, borrower.call().id, 1);
        self.shrink();
    }

    /// The offers to a computation follow it to another call.
    fn move_offers(&mut self, computation: u64, from: u64, to: u64) {
        let offers = self.offers.get(&from).into_iter().flat_map(BTreeMap::keys);
        let to_it = offers.filter(|(_, borrower)| *borrower == computation);
        let lenders: Vec<u64> = to_it.map(|(lender, _)| *lender).collect();
        for lender in lenders {
            let count = self.take_offers(lender, computation, from, u32::MAX);
            self.add_offers(lender, computation, to, count);
        }
    }

    /// Returns memory after a crowd has gone.
    fn shrink(&mut self) {
        shrink(&mut self.members);
        shrink(&mut self.offers);
        shrink(&mut self.waiting_for);
        self.queue.shrink();
    }
}

/// Lends the place of one call to another, as long as it lives.
#[derive(Debug)]
#[must_use = "an offer ends when it is dropped"]
pub(crate) struct Offer {
    places: Arc<Places>,
    lender: u64,
    borrower: Arc<Computation>,
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.places.state.lock().withdraw_offer(self.lender, &self.borrower);
    }
}

// Here, because it looks at every field.
#[cfg(all(test, stampede_model))]
#[path = "model/places.rs"]
mod model;
